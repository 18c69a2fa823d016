// SPDX-License-Identifier: Apache-2.0
//
// How fast this machine can copy at all: the yardstick for everything that moves pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace kvonce::transport {

inline constexpr std::size_t kDefaultWorkingSetBytes = 256U << 20U;  // of each of the two buffers; beyond any cache

struct CopyRate {
  double gib_per_s = 0;         // bytes copied (read once, written once), all threads together
  double cpu_us_per_block = 0;  // CPU time of the copying threads, per block
  const char* kernel = "";      // "memcpy", "stream-avx512", "stream-avx2"; as given for measure_copy_rate
  unsigned threads = 0;
};

using BlockCopy = std::function<void(std::byte* target, const std::byte* source, std::size_t bytes)>;

// Copies a working set block by block, in address order, each thread its own part, again and again for about
// `seconds`. Memory is populated before, and advised to be huge pages, as arenas and row buffers are.
// Returns gib_per_s == 0 when the memory cannot be had or the arguments make no sense (a block of 0 bytes or
// above the working set of a thread, no threads).
CopyRate measure_copy_rate(const char* name, const BlockCopy& copy_block, std::size_t block_bytes,
                           std::size_t working_set_bytes, unsigned threads, double seconds);

// The best of memcpy and streaming stores, measured in turns so that a disturbance hits both; `seconds` is the
// time for all. Blocks are rounded up to 64 bytes.
CopyRate measure_copy_limit(std::size_t block_bytes, std::size_t working_set_bytes = kDefaultWorkingSetBytes,
                            unsigned threads = 1, double seconds = 1.0);

}  // namespace kvonce::transport
