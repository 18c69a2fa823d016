// SPDX-License-Identifier: Apache-2.0
#include "transport/kernels.hpp"

#ifdef KVONCE_TRANSPORT_X86_KERNELS

// g++ 12 warns about its own header's deliberately undefined registers (its bug 105593).
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

// Functions, not the whole file, are compiled for AVX-512: the rest of the program must run without it.
#define KVONCE_AVX512 __attribute__((target("avx512f")))
#define KVONCE_AVX512_INLINE __attribute__((always_inline, target("avx512f"))) inline

namespace kvonce::transport::detail {
namespace {

// How far ahead the source is asked for. The hardware's prefetcher stops at each 4 KiB boundary.
constexpr std::size_t kPrefetchBytes = 2048;
constexpr std::size_t kBlock = kStripe * kStripesPerBlock;

KVONCE_AVX512_INLINE __m512i accumulate(__m512i lanes, __m512i data, const unsigned char* secret) {
  const __m512i keyed = _mm512_xor_si512(data, _mm512_loadu_si512(secret));
  const __m512i product = _mm512_mul_epu32(keyed, _mm512_srli_epi64(keyed, 32));
  const __m512i swapped = _mm512_shuffle_epi32(data, _MM_PERM_BADC);
  return _mm512_add_epi64(_mm512_add_epi64(lanes, swapped), product);
}

KVONCE_AVX512_INLINE __m512i scramble(__m512i lanes) {
  const __m512i prime = _mm512_set1_epi64(kPrime32First);
  const __m512i folded = _mm512_xor_si512(lanes, _mm512_srli_epi64(lanes, 47));
  const __m512i keyed = _mm512_xor_si512(folded, _mm512_loadu_si512(kSecret + kSecretScramble));
  const __m512i low = _mm512_mul_epu32(keyed, prime);
  const __m512i high = _mm512_mul_epu32(_mm512_srli_epi64(keyed, 32), prime);
  return _mm512_add_epi64(low, _mm512_slli_epi64(high, 32));
}

template <Store kStore>
KVONCE_AVX512_INLINE void put(std::byte* target, __m512i data) {
  if constexpr (kStore == Store::normal) _mm512_storeu_si512(target, data);
  if constexpr (kStore == Store::stream) _mm512_stream_si512(reinterpret_cast<__m512i*>(target), data);
}

// Stores a whole block and accumulates all of it but `last`.
template <Store kStore>
KVONCE_AVX512_INLINE __m512i take_block(__m512i lanes, std::byte* target, const std::byte* source,
                                        const std::byte* ahead, __m512i& last) {
#pragma GCC unroll 16
  for (std::size_t i = 0; i < kStripesPerBlock; ++i) {
    _mm_prefetch(reinterpret_cast<const char*>(ahead + i * kStripe), _MM_HINT_T0);
    last = _mm512_loadu_si512(source + i * kStripe);
    put<kStore>(target + i * kStripe, last);
    if (i + 1 < kStripesPerBlock) lanes = accumulate(lanes, last, kSecret + i * kSecretStep);
  }
  return lanes;
}

template <Store kStore>
KVONCE_AVX512 void take_as(const Take& take) {
  const std::byte* source = take.source;
  std::byte* target = take.target;
  __m512i lanes = _mm512_loadu_si512(take.lanes_in);
  __m512i last = lanes;
  std::size_t left = take.stripes;
  while (true) {
    if (left < kStripesPerBlock) {
      for (std::size_t i = 0; i < left; ++i) {
        last = _mm512_loadu_si512(source + i * kStripe);
        put<kStore>(target + i * kStripe, last);
        if (i + 1 < left) lanes = accumulate(lanes, last, kSecret + i * kSecretStep);
      }
      break;
    }
    // Never ask for bytes beyond the end: they belong to somebody else and would cost their bandwidth.
    const bool more = left * kStripe >= kPrefetchBytes + kBlock;
    lanes = take_block<kStore>(lanes, target, source, more ? source + kPrefetchBytes : source, last);
    left -= kStripesPerBlock;
    if (left == 0) break;
    lanes = scramble(accumulate(lanes, last, kSecret + (kStripesPerBlock - 1) * kSecretStep));
    source += kBlock;
    if constexpr (kStore != Store::none) target += kBlock;
  }
  if (take.ends)
    lanes = accumulate(lanes, last, kSecret + kSecretLast);
  else
    _mm512_storeu_si512(take.held, last);
  _mm512_storeu_si512(take.lanes, lanes);
}

KVONCE_AVX512 void take_any(const Take& take, Store store) {
  switch (store) {
    case Store::none: return take_as<Store::none>(take);
    case Store::normal: return take_as<Store::normal>(take);
    case Store::stream: return take_as<Store::stream>(take);
  }
}

template <Store kStore>
KVONCE_AVX512 void copy(std::byte* target, const std::byte* source, std::size_t stripes) {
  const std::byte* const end = source + stripes * kStripe;
  while (static_cast<std::size_t>(end - source) >= kBlock) {
    const bool more = static_cast<std::size_t>(end - source) >= kPrefetchBytes + kBlock;
    const std::byte* ahead = more ? source + kPrefetchBytes : source;
#pragma GCC unroll 16
    for (std::size_t i = 0; i < kStripesPerBlock; ++i) {
      _mm_prefetch(reinterpret_cast<const char*>(ahead + i * kStripe), _MM_HINT_T0);
      put<kStore>(target + i * kStripe, _mm512_loadu_si512(source + i * kStripe));
    }
    source += kBlock;
    target += kBlock;
  }
  for (; source != end; source += kStripe, target += kStripe) put<kStore>(target, _mm512_loadu_si512(source));
}

KVONCE_AVX512 void copy_any(std::byte* target, const std::byte* source, std::size_t stripes, Store store) {
  if (store == Store::stream) return copy<Store::stream>(target, source, stripes);
  copy<Store::normal>(target, source, stripes);
}

}  // namespace

const KernelFunctions kAvx512Kernel{take_any, copy_any};

}  // namespace kvonce::transport::detail

#endif
