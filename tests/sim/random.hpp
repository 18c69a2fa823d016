// SPDX-License-Identifier: Apache-2.0
//
// The one source of chance of a run: everything follows from the seed.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

namespace kvonce::sim {

constexpr std::uint64_t mix64(std::uint64_t x) noexcept {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9ULL;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebULL;
  x ^= x >> 31;
  return x;
}
constexpr std::uint64_t mix64(std::uint64_t a, std::uint64_t b) noexcept {
  return mix64(a * 0x9e3779b97f4a7c15ULL + mix64(b + 0x632be59bd9b4e019ULL));
}

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(mix64(seed, 0x6b766f6e63655ULL)) {}
  std::uint64_t next() { return mix64(state_ += 0x9e3779b97f4a7c15ULL); }
  /// 0 .. limit-1; limit > 0.
  std::uint64_t below(std::uint64_t limit) { return next() % limit; }
  /// low .. high, both included.
  std::uint64_t between(std::uint64_t low, std::uint64_t high) { return low + below(high - low + 1); }
  bool chance(std::uint64_t per_mille) { return below(1000) < per_mille; }
  template <class T>
  T pick(std::initializer_list<T> values) {
    return *(values.begin() + below(values.size()));
  }
  template <class T>
  T& pick(std::vector<T>& values) {
    return values[below(values.size())];
  }

 private:
  std::uint64_t state_;
};

}  // namespace kvonce::sim
