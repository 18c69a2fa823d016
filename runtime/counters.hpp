// SPDX-License-Identifier: Apache-2.0
//
// What the ranks of one process count. Written by the PoolActors, read by whoever asks for statistics.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include <kvonce/types.hpp>

namespace kvonce::runtime {

struct Counters {
  std::array<std::atomic<std::uint64_t>, kVerdictCount> verdicts{};  // as delivered
  std::atomic<std::uint64_t> moved_bytes{0};                         // rows to slots
  std::atomic<std::uint64_t> loaded_items{0}, loaded_bytes{0}, load_failures{0};
  std::atomic<std::uint64_t> rows_lent{0};                           // now
  std::atomic<std::uint64_t> row_reads{0};                           // now: copies out of rows that have not been reported
};

inline void add(std::atomic<std::uint64_t>& counter, std::uint64_t n) noexcept {
  counter.fetch_add(n, std::memory_order_relaxed);
}

}  // namespace kvonce::runtime
