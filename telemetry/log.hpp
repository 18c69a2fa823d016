// SPDX-License-Identifier: Apache-2.0
//
// The one place where kvonce says something by itself: on standard error, one line per change of state. A library says warnings
// and errors only; the daemon raises the level. spdlog is compiled in and hidden; nothing of it is seen from here.
#pragma once

#include <cstdint>
#include <string_view>

namespace kvonce::telemetry {

enum class Level : std::uint8_t { error, warning, info };

/// "[time] [kvonce] [level] text". Never throws; from any thread.
void say(Level level, std::string_view text) noexcept;
/// say(Level::warning, text).
void warn(std::string_view text) noexcept;

/// What is less urgent than `level` is not said; Level::warning at the start. From any thread, at any time.
void set_level(Level level) noexcept;

}  // namespace kvonce::telemetry
