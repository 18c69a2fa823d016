// SPDX-License-Identifier: Apache-2.0
//
// A rank's row buffers, the bytes in them, and the keys of pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <kvonce/types.hpp>

namespace kvonce::bench {

/// Memory for rows: populated, huge pages advised. Not there (`base() == nullptr`) when the system has none.
class RowMemory {
 public:
  explicit RowMemory(std::uint64_t bytes);
  ~RowMemory();
  RowMemory(RowMemory&& other) noexcept
      : base_(std::exchange(other.base_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  RowMemory(const RowMemory&) = delete;
  RowMemory& operator=(const RowMemory&) = delete;
  RowMemory& operator=(RowMemory&&) = delete;

  std::byte* base() const { return base_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  std::byte* base_ = nullptr;
  std::uint64_t bytes_ = 0;
};

/// The bytes of page number `page`: other pages and other seeds give other bytes.
void fill_row(std::byte* row, std::uint64_t bytes, std::uint64_t seed, std::uint64_t page);
/// Whether every byte of the row is what fill_row writes.
bool row_is(const std::byte* row, std::uint64_t bytes, std::uint64_t seed, std::uint64_t page);

/// A seed that no run before had.
std::uint64_t fresh_seed();
/// Keys of pages 0 .. pages-1 under a seed: with a fresh one, keys that no store has seen.
std::vector<PageHash> make_keys(std::uint64_t seed, std::uint64_t pages);

}  // namespace kvonce::bench
