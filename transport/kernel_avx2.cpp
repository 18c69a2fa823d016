// SPDX-License-Identifier: Apache-2.0
#include "transport/kernels.hpp"

#ifdef KVONCE_TRANSPORT_X86_KERNELS

#include <immintrin.h>

#define KVONCE_AVX2 __attribute__((target("avx2")))
#define KVONCE_AVX2_INLINE __attribute__((always_inline, target("avx2"))) inline

namespace kvonce::transport::detail {
namespace {

constexpr std::size_t kPrefetchBytes = 2048;  // as in the AVX-512 kernel
constexpr std::size_t kBlock = kStripe * kStripesPerBlock;
constexpr std::size_t kHalf = 32;  // one register takes half a stripe

KVONCE_AVX2_INLINE __m256i load(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}

KVONCE_AVX2_INLINE __m256i accumulate(__m256i lanes, __m256i data, const unsigned char* secret) {
  const __m256i keyed = _mm256_xor_si256(data, load(secret));
  const __m256i product = _mm256_mul_epu32(keyed, _mm256_srli_epi64(keyed, 32));
  const __m256i swapped = _mm256_shuffle_epi32(data, _MM_SHUFFLE(1, 0, 3, 2));
  return _mm256_add_epi64(_mm256_add_epi64(lanes, swapped), product);
}

KVONCE_AVX2_INLINE __m256i scramble(__m256i lanes, const unsigned char* secret) {
  const __m256i prime = _mm256_set1_epi64x(kPrime32First);
  const __m256i folded = _mm256_xor_si256(lanes, _mm256_srli_epi64(lanes, 47));
  const __m256i keyed = _mm256_xor_si256(folded, load(secret));
  const __m256i low = _mm256_mul_epu32(keyed, prime);
  const __m256i high = _mm256_mul_epu32(_mm256_srli_epi64(keyed, 32), prime);
  return _mm256_add_epi64(low, _mm256_slli_epi64(high, 32));
}

template <Store kStore>
KVONCE_AVX2_INLINE void put(std::byte* target, __m256i data) {
  if constexpr (kStore == Store::normal) _mm256_storeu_si256(reinterpret_cast<__m256i*>(target), data);
  if constexpr (kStore == Store::stream) _mm256_stream_si256(reinterpret_cast<__m256i*>(target), data);
}

// The eight lanes, or one stripe.
struct Pair {
  __m256i a;
  __m256i b;
};

KVONCE_AVX2_INLINE Pair load_pair(const void* from) {
  return {load(from), load(static_cast<const std::byte*>(from) + kHalf)};
}

template <Store kStore>
KVONCE_AVX2_INLINE void put_pair(std::byte* target, const Pair& data) {
  put<kStore>(target, data.a);
  put<kStore>(target + kHalf, data.b);
}

KVONCE_AVX2_INLINE void accumulate_pair(Pair& lanes, const Pair& data, const unsigned char* secret) {
  lanes.a = accumulate(lanes.a, data.a, secret);
  lanes.b = accumulate(lanes.b, data.b, secret + kHalf);
}

template <Store kStore>
KVONCE_AVX2 void take_as(const Take& take) {
  const std::byte* source = take.source;
  std::byte* target = take.target;
  Pair lanes = load_pair(take.lanes_in);
  Pair last = lanes;
  std::size_t left = take.stripes;
  while (true) {
    if (left < kStripesPerBlock) {
      for (std::size_t i = 0; i < left; ++i) {
        last = load_pair(source + i * kStripe);
        put_pair<kStore>(target + i * kStripe, last);
        if (i + 1 < left) accumulate_pair(lanes, last, kSecret + i * kSecretStep);
      }
      break;
    }
    const std::byte* ahead = left * kStripe >= kPrefetchBytes + kBlock ? source + kPrefetchBytes : source;
#pragma GCC unroll 16
    for (std::size_t i = 0; i < kStripesPerBlock; ++i) {
      _mm_prefetch(reinterpret_cast<const char*>(ahead + i * kStripe), _MM_HINT_T0);
      last = load_pair(source + i * kStripe);
      put_pair<kStore>(target + i * kStripe, last);
      if (i + 1 < kStripesPerBlock) accumulate_pair(lanes, last, kSecret + i * kSecretStep);
    }
    left -= kStripesPerBlock;
    if (left == 0) break;
    accumulate_pair(lanes, last, kSecret + (kStripesPerBlock - 1) * kSecretStep);
    lanes.a = scramble(lanes.a, kSecret + kSecretScramble);
    lanes.b = scramble(lanes.b, kSecret + kSecretScramble + kHalf);
    source += kBlock;
    if constexpr (kStore != Store::none) target += kBlock;
  }
  if (take.ends)
    accumulate_pair(lanes, last, kSecret + kSecretLast);
  else
    put_pair<Store::normal>(take.held, last);
  put_pair<Store::normal>(reinterpret_cast<std::byte*>(take.lanes), lanes);
}

KVONCE_AVX2 void take_any(const Take& take, Store store) {
  switch (store) {
    case Store::none: return take_as<Store::none>(take);
    case Store::normal: return take_as<Store::normal>(take);
    case Store::stream: return take_as<Store::stream>(take);
  }
}

template <Store kStore>
KVONCE_AVX2 void copy(std::byte* target, const std::byte* source, std::size_t stripes) {
  const std::byte* const end = source + stripes * kStripe;
  while (source != end) {
    const bool more = static_cast<std::size_t>(end - source) > kPrefetchBytes;
    _mm_prefetch(reinterpret_cast<const char*>(more ? source + kPrefetchBytes : source), _MM_HINT_T0);
    put<kStore>(target, load(source));
    put<kStore>(target + kHalf, load(source + kHalf));
    source += kStripe;
    target += kStripe;
  }
}

KVONCE_AVX2 void copy_any(std::byte* target, const std::byte* source, std::size_t stripes, Store store) {
  if (store == Store::stream) return copy<Store::stream>(target, source, stripes);
  copy<Store::normal>(target, source, stripes);
}

}  // namespace

const KernelFunctions kAvx2Kernel{take_any, copy_any};

}  // namespace kvonce::transport::detail

#endif
