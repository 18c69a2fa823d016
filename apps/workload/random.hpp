// SPDX-License-Identifier: Apache-2.0
//
// A small generator of random numbers and draws from tables, in integers only: the same seed gives the same workload with every compiler
// and library, which std's distributions do not promise.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace kvonce::workload {

/// splitmix64.
class Random {
public:
  explicit Random(std::uint64_t seed) noexcept : state_(seed) {}

  std::uint64_t next() noexcept {
    state_ += 0x9e3779b97f4a7c15ULL;
    std::uint64_t mixed = state_;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9ULL;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebULL;
    return mixed ^ (mixed >> 31);
  }

  /// Below `bound` (1 to 2^32). The bias is below bound / 2^32, which no workload notices.
  std::uint64_t below(std::uint64_t bound) noexcept { return ((next() >> 32) * bound) >> 32; }

  bool chance_permille(std::uint64_t permille) noexcept { return below(1000) < permille; }

  /// From a table of quantiles at 0, 1/n, ... 1, straight between them. Values stay below 2^32.
  template <std::size_t N>
  std::uint64_t from_quantiles(const std::array<std::uint32_t, N>& table) noexcept {
    const std::uint64_t place = below(std::uint64_t{N - 1} << 16);
    const std::uint64_t low = table[place >> 16];
    const std::uint64_t high = table[(place >> 16) + 1];
    return low + (((high - low) * (place & 0xffff)) >> 16);
  }

private:
  std::uint64_t state_;
};

}  // namespace kvonce::workload
