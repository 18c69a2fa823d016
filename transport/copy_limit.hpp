// SPDX-License-Identifier: Apache-2.0
//
// How fast this machine can copy at all: the yardstick for everything that moves pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace kvonce::transport {

inline constexpr std::size_t kDefaultWorkingSetBytes = 256U << 20U;  // of each of the two buffers; beyond any cache

struct CopyRate {
  double gib_per_s = 0;         // bytes copied (read once, written once), all threads together: the median of the turns
  double peak_gib_per_s = 0;    // of the best turn
  double cpu_us_per_block = 0;  // CPU time of the copying threads, per block
  const char* kernel = "";      // "memcpy", "stream-avx512", "stream-avx2"; or the candidate's name
  unsigned threads = 0;
};

using BlockCopy = std::function<void(std::byte* target, const std::byte* source, std::size_t bytes)>;

struct CopyCandidate {
  const char* name = "";
  BlockCopy copy_block;
};

// Which memory is copied between. Shared memory is a memory file, as the arena of a store that other processes map.
enum class CopyMemory : std::uint8_t { private_both, shared_target, shared_source };

// Each candidate copies a working set block by block, in address order, each thread its own part, round and round.
// They take many short turns within `seconds` (all together), and the median turn of each counts, so that what else the
// machine does meanwhile hits all alike, and also what is measured beside it in as short a time. Memory is populated
// before, and advised to be huge pages, as arenas and row buffers are. The rates are 0 when the memory cannot be had or
// the arguments make no sense (a block of 0 bytes or
// above the part of a thread, no threads).
std::vector<CopyRate> measure_copy_rates(std::span<const CopyCandidate> candidates, std::size_t block_bytes,
                                         std::size_t working_set_bytes, unsigned threads, double seconds,
                                         CopyMemory memory = CopyMemory::private_both);

// memcpy and the streaming stores that this CPU has.
std::vector<CopyCandidate> copy_limit_candidates();

// The best of these. Blocks are rounded up to 64 bytes.
CopyRate measure_copy_limit(std::size_t block_bytes, std::size_t working_set_bytes = kDefaultWorkingSetBytes,
                            unsigned threads = 1, double seconds = 1.0,
                            CopyMemory memory = CopyMemory::private_both);

}  // namespace kvonce::transport
