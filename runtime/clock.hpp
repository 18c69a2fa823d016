// SPDX-License-Identifier: Apache-2.0
//
// The one clock of the actors: steady nanoseconds.
#pragma once

#include <algorithm>
#include <chrono>

#include "protocol/wire.hpp"

namespace kvonce::runtime {

inline protocol::Time now() noexcept {
  return static_cast<protocol::Time>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count());
}
inline protocol::Time to_time(std::chrono::steady_clock::time_point point) noexcept {
  return static_cast<protocol::Time>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(point.time_since_epoch()).count());
}
inline std::chrono::steady_clock::time_point to_point(protocol::Time time) noexcept {
  // Half the range of the clock is centuries away, and safe to add to.
  constexpr protocol::Time kFar = protocol::Time{1} << 62;
  return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(std::min(time, kFar)));
}

}  // namespace kvonce::runtime
