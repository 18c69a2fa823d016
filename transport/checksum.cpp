// SPDX-License-Identifier: Apache-2.0
#include "transport/checksum.hpp"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "transport/kernels.hpp"

// The library's own inline build gives the short inputs and the steps of the portable kernel; nothing is linked.
#define XXH_INLINE_ALL
#include <xxhash.h>

#ifdef KVONCE_TRANSPORT_X86_KERNELS
#include <immintrin.h>
#endif

namespace kvonce::transport {

namespace detail {
const unsigned char* const kSecret = XXH3_kSecret;
}

namespace {

using namespace detail;

constexpr std::size_t kShortBytes = 240;      // up to here XXH3 uses other formulas
constexpr std::size_t kSecretMerge = 11;      // key of the merge of the lanes
constexpr std::size_t kPortableBlock = 4096;  // copied, then hashed while it lies in the first cache

alignas(64) constexpr std::uint64_t kFirstLanes[8] = {XXH_PRIME32_3, XXH_PRIME64_1, XXH_PRIME64_2, XXH_PRIME64_3,
                                                      XXH_PRIME64_4, XXH_PRIME32_2, XXH_PRIME64_5, XXH_PRIME32_1};

// Never through a function that ThreadSanitizer knows: a row may be written while it is read, by design, and
// whoever uses the bytes checks epoch and checksum afterwards.
#ifdef KVONCE_THREAD_SANITIZER
__attribute__((no_sanitize("thread"), noinline)) void copy_bytes(std::byte* target, const std::byte* source,
                                                                std::size_t bytes) {
  // Volatile, or the compiler makes a call of memcpy from the loops, which is instrumented.
  using Word [[gnu::aligned(1), gnu::may_alias]] = std::uint64_t;
  std::size_t at = 0;
  for (; at + sizeof(Word) <= bytes; at += sizeof(Word))
    *reinterpret_cast<volatile Word*>(target + at) = *reinterpret_cast<const volatile Word*>(source + at);
  for (; at < bytes; ++at)
    *const_cast<volatile std::byte*>(target + at) = *const_cast<const volatile std::byte*>(source + at);
}
#else
void copy_bytes(std::byte* target, const std::byte* source, std::size_t bytes) {
  if (bytes != 0) std::memcpy(target, source, bytes);
}
#endif

std::uint64_t word64(const void* from) {
  std::uint64_t value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// The library's step, in the vector code that every CPU of this architecture has. `lanes` is aligned to 64 bytes.
void accumulate_stripe(std::uint64_t* lanes, const std::byte* stripe, const unsigned char* secret) {
  XXH3_accumulate_512(lanes, stripe, secret);
}

void accumulate_at(std::uint64_t* lanes, const std::byte* stripe, std::size_t index_in_block) {
  accumulate_stripe(lanes, stripe, kSecret + index_in_block * kSecretStep);
  if (index_in_block == kStripesPerBlock - 1) XXH3_scrambleAcc(lanes, kSecret + kSecretScramble);
}

void take_portable(const Take& take, Store store) {
  alignas(64) std::uint64_t lanes[8];
  std::memcpy(lanes, take.lanes_in, sizeof lanes);
  std::byte staged[kPortableBlock];
  std::size_t done = 0;
  while (done < take.stripes) {
    const std::size_t now = std::min(take.stripes - done, kPortableBlock / kStripe);
    copy_bytes(staged, take.source + done * kStripe, now * kStripe);
    if (store != Store::none) copy_bytes(take.target + done * kStripe, staged, now * kStripe);
    for (std::size_t i = 0; i < now; ++i) {
      const std::byte* const stripe = staged + i * kStripe;
      if (done + i + 1 < take.stripes)
        accumulate_at(lanes, stripe, (done + i) % kStripesPerBlock);
      else if (take.ends)
        accumulate_stripe(lanes, stripe, kSecret + kSecretLast);
      else
        std::memcpy(take.held, stripe, kStripe);
    }
    done += now;
  }
  std::memcpy(take.lanes, lanes, sizeof lanes);
}

void copy_portable(std::byte* target, const std::byte* source, std::size_t stripes, Store) {
  copy_bytes(target, source, stripes * kStripe);
}

constexpr KernelFunctions kPortableKernel{take_portable, copy_portable};

const KernelFunctions& functions_of(Kernel kernel) {
  assert(kernel_supported(kernel));
  if (kernel == Kernel::automatic) kernel = best_kernel();
#ifdef KVONCE_TRANSPORT_X86_KERNELS
  if (kernel == Kernel::avx512) return kAvx512Kernel;
  if (kernel == Kernel::avx2) return kAvx2Kernel;
#endif
  return kPortableKernel;
}

Store store_for(const std::byte* target, std::size_t bytes) {
  const bool aligned = reinterpret_cast<std::uintptr_t>(target) % kStripe == 0;
  return aligned && bytes >= kStreamBytes ? Store::stream : Store::normal;
}

void flush_held(RangeHash& hash) {
  if (hash.bytes != 0)
    accumulate_at(hash.lanes, hash.held, (static_cast<std::size_t>(hash.bytes) / kStripe - 1) % kStripesPerBlock);
}

void take_stripes(RangeHash& hash, std::byte* target, const std::byte* source, std::size_t stripes, bool ends,
                  const KernelFunctions& functions) {
  const Store store = target == nullptr ? Store::none : store_for(target, stripes * kStripe);
  flush_held(hash);
  const std::uint64_t* const lanes_in = hash.bytes == 0 ? kFirstLanes : hash.lanes;
  functions.take({lanes_in, hash.lanes, hash.held, target, source, stripes, ends}, store);
  hash.bytes += stripes * kStripe;
}

std::uint64_t fold_product(std::uint64_t a, std::uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

std::uint64_t merge(const std::uint64_t* lanes, std::uint64_t bytes) {
  std::uint64_t result = bytes * XXH_PRIME64_1;
  for (std::size_t pair = 0; pair < 4; ++pair) {
    const unsigned char* key = kSecret + kSecretMerge + pair * 16;
    result += fold_product(lanes[pair * 2] ^ word64(key), lanes[pair * 2 + 1] ^ word64(key + 8));
  }
  result ^= result >> 37;
  result *= 0x165667919E3779F9ULL;
  return result ^ (result >> 32);
}

// `target` null: hash only.
std::uint64_t take_last(RangeHash& hash, std::byte* target, const std::byte* source, std::size_t bytes,
                        const KernelFunctions& functions) {
  if (hash.bytes + bytes <= kShortBytes) {
    std::byte whole[kShortBytes];
    copy_bytes(whole, source, bytes);
    if (target != nullptr) copy_bytes(target, whole, bytes);
    return XXH3_64bits(whole, bytes);
  }
  const std::size_t stripes = bytes / kStripe;
  const std::size_t rest = bytes % kStripe;
  if (stripes != 0) take_stripes(hash, target, source, stripes, rest == 0, functions);
  if (bytes == 0) {
    accumulate_stripe(hash.lanes, hash.held, kSecret + kSecretLast);
  } else if (rest != 0) {
    flush_held(hash);
    // The last stripe is the last 64 bytes of the range: it begins in the stripe before.
    std::byte window[2 * kStripe];
    std::memcpy(window, hash.held, kStripe);
    copy_bytes(window + kStripe, source + stripes * kStripe, rest);
    if (target != nullptr) copy_bytes(target + stripes * kStripe, window + kStripe, rest);
    accumulate_stripe(hash.lanes, window + rest, kSecret + kSecretLast);
    hash.bytes += rest;
  }
  return merge(hash.lanes, hash.bytes);
}

}  // namespace

bool kernel_supported(Kernel kernel) {
#ifdef KVONCE_TRANSPORT_X86_KERNELS
  if (kernel == Kernel::avx512) return __builtin_cpu_supports("avx512f") != 0;
  if (kernel == Kernel::avx2) return __builtin_cpu_supports("avx2") != 0;
#endif
  return kernel == Kernel::automatic || kernel == Kernel::portable;
}

Kernel best_kernel() {
  static const Kernel best = kernel_supported(Kernel::avx512) ? Kernel::avx512
                             : kernel_supported(Kernel::avx2) ? Kernel::avx2
                                                              : Kernel::portable;
  return best;
}

const char* kernel_name(Kernel kernel) {
  switch (kernel) {
    case Kernel::automatic: return kernel_name(best_kernel());
    case Kernel::portable: return "portable";
    case Kernel::avx2: return "avx2";
    case Kernel::avx512: return "avx512";
  }
  return "unknown";
}

void copy_slice(RangeHash& hash, std::byte* target, const std::byte* source, std::size_t bytes, Kernel kernel) {
  assert(target != nullptr && bytes % kSliceGranule == 0);
  if (bytes != 0) take_stripes(hash, target, source, bytes / kStripe, false, functions_of(kernel));
}

std::uint64_t copy_last(RangeHash& hash, std::byte* target, const std::byte* source, std::size_t bytes,
                        Kernel kernel) {
  assert(target != nullptr || bytes == 0);
  return take_last(hash, target, source, bytes, functions_of(kernel));
}

void hash_slice(RangeHash& hash, const std::byte* source, std::size_t bytes, Kernel kernel) {
  assert(bytes % kSliceGranule == 0);
  if (bytes != 0) take_stripes(hash, nullptr, source, bytes / kStripe, false, functions_of(kernel));
}

std::uint64_t hash_last(RangeHash& hash, const std::byte* source, std::size_t bytes, Kernel kernel) {
  return take_last(hash, nullptr, source, bytes, functions_of(kernel));
}

void copy_unordered(std::byte* target, const std::byte* source, std::size_t bytes, Kernel kernel) {
  const std::size_t stripes = bytes / kStripe;
  if (stripes != 0) functions_of(kernel).copy(target, source, stripes, store_for(target, bytes));
  copy_bytes(target + stripes * kStripe, source + stripes * kStripe, bytes % kStripe);
}

void order_copies() {
#ifdef KVONCE_TRANSPORT_X86_KERNELS
  _mm_sfence();
#endif
}

std::uint64_t copy_and_hash(std::byte* target, const std::byte* source, std::size_t bytes, Kernel kernel) {
  RangeHash state;
  const std::uint64_t checksum = copy_last(state, target, source, bytes, kernel);
  order_copies();
  return checksum;
}

std::uint64_t hash(const std::byte* source, std::size_t bytes, Kernel kernel) {
  RangeHash state;
  return hash_last(state, source, bytes, kernel);
}

void copy(std::byte* target, const std::byte* source, std::size_t bytes, Kernel kernel) {
  copy_unordered(target, source, bytes, kernel);
  order_copies();
}

}  // namespace kvonce::transport
