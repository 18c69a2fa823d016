// SPDX-License-Identifier: Apache-2.0
//
// Copies that make the checksum of what they copy, in one pass over the bytes.
//
// The checksum of a range is XXH3-64 with seed 0, bit for bit what `XXH3_64bits` of libxxhash gives.
// A range may be taken in slices: any number of `copy_slice` / `hash_slice` calls, each of a multiple of
// kSliceGranule bytes, then one `copy_last` / `hash_last` of any length (also 0), which gives the checksum.
//
// The source may be written by somebody else while it is read (a row reused too early): every source byte is
// read once, so the checksum is always that of the bytes that were stored in the target.
// Source and target must not overlap. No alignment is required; a target aligned to 64 bytes is faster.
//
// HAZARD: stores of copy_slice, copy_last and copy_unordered may go past the cache and are ordered with nothing.
// Call order_copies() after the last of them, before anybody is told that the bytes are there.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvonce::transport {

enum class Kernel : std::uint8_t { automatic, portable, avx2, avx512 };

// True when this CPU and this build can run `kernel`. `automatic` and `portable` always can.
bool kernel_supported(Kernel kernel);
// The kernel that `automatic` stands for on this machine. Under ThreadSanitizer: portable.
Kernel best_kernel();
const char* kernel_name(Kernel kernel);

inline constexpr std::size_t kSliceGranule = 1024;  // bytes; length of every slice but the last is a multiple

// From this length on copies go past the cache (non-temporal stores), when the target is aligned to 64 bytes.
inline constexpr std::size_t kStreamBytes = 2048;

// The state of one range between slices. A plain value: copy it, drop it.
// NOLINTNEXTLINE(cppcoreguidelines-pro-type-member-init): lanes and held mean nothing while bytes is 0
struct alignas(64) RangeHash {
  std::uint64_t lanes[8];
  std::byte held[64];       // last stripe taken; what becomes of it depends on whether more follows
  std::uint64_t bytes = 0;  // taken so far
};

// `kernel` must be supported (asserted).
void copy_slice(RangeHash& hash, std::byte* target, const std::byte* source, std::size_t bytes,
                Kernel kernel = Kernel::automatic);
[[nodiscard]] std::uint64_t copy_last(RangeHash& hash, std::byte* target, const std::byte* source,
                                      std::size_t bytes, Kernel kernel = Kernel::automatic);
void hash_slice(RangeHash& hash, const std::byte* source, std::size_t bytes, Kernel kernel = Kernel::automatic);
[[nodiscard]] std::uint64_t hash_last(RangeHash& hash, const std::byte* source, std::size_t bytes,
                                      Kernel kernel = Kernel::automatic);

// Without a checksum; any slicing will do.
void copy_unordered(std::byte* target, const std::byte* source, std::size_t bytes,
                    Kernel kernel = Kernel::automatic);
// Orders what the calling thread copied before every later store of this thread.
void order_copies();

// A whole range at once, ordered.
std::uint64_t copy_and_hash(std::byte* target, const std::byte* source, std::size_t bytes,
                            Kernel kernel = Kernel::automatic);
[[nodiscard]] std::uint64_t hash(const std::byte* source, std::size_t bytes, Kernel kernel = Kernel::automatic);
void copy(std::byte* target, const std::byte* source, std::size_t bytes, Kernel kernel = Kernel::automatic);

}  // namespace kvonce::transport
