// SPDX-License-Identifier: Apache-2.0
//
// Inside of checksum.cpp: what one kernel has to offer. Everybody else includes checksum.hpp.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvonce::transport::detail {

inline constexpr std::size_t kStripe = 64;           // bytes XXH3 takes in one step
inline constexpr std::size_t kStripesPerBlock = 16;  // the lanes are scrambled after each
inline constexpr std::size_t kSecretStep = 8;        // secret bytes consumed by one step
inline constexpr std::size_t kSecretScramble = 128;  // where the scramble's key stands in the secret
inline constexpr std::size_t kSecretLast = 121;      // key of the last stripe of a range
inline constexpr std::uint32_t kPrime32First = 0x9E3779B1U;

extern const unsigned char* const kSecret;  // XXH3's default secret, 192 bytes

enum class Store : std::uint8_t { none, normal, stream };

// Takes `stripes` (>= 1) whole stripes, the first of which begins a block: stores them to `target` as `store`
// says and accumulates all but the last. The last is accumulated as the end of the range when `ends`, else it is
// left in `held`. `lanes_in` may be `lanes`. `stream` needs a target aligned to 64 bytes and does not fence.
struct Take {
  const std::uint64_t* lanes_in;
  std::uint64_t* lanes;
  std::byte* held;
  std::byte* target;
  const std::byte* source;
  std::size_t stripes;
  bool ends;
};
using TakeStripes = void (*)(const Take& take, Store store);
// Copies whole stripes, as above.
using CopyStripes = void (*)(std::byte* target, const std::byte* source, std::size_t stripes, Store store);

struct KernelFunctions {
  TakeStripes take;
  CopyStripes copy;
};

#if defined(__SANITIZE_THREAD__)
#define KVONCE_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define KVONCE_THREAD_SANITIZER 1
#endif
#endif

#if defined(__x86_64__) && !defined(KVONCE_THREAD_SANITIZER)
#define KVONCE_TRANSPORT_X86_KERNELS 1
extern const KernelFunctions kAvx512Kernel;
extern const KernelFunctions kAvx2Kernel;
#endif

}  // namespace kvonce::transport::detail
