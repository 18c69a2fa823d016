// SPDX-License-Identifier: Apache-2.0
//
// The one place where kvonce says something by itself: on standard error, one line per change of state. A library says warnings
// and errors only; the daemon raises the level. spdlog is compiled in and hidden; nothing of it is seen from here.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kvonce::telemetry {

enum class Level : std::uint8_t { error, warning, info };

/// As it can be shown: names come from clients, and may have what a terminal would obey. Control characters, also those above
/// U+007F, those that turn the direction of writing, and bytes that are no UTF-8 are written as \xNN.
std::string printable(std::string_view text);
/// A text of JSON with the same characters written as \uNNNN, except those below U+0020, which JSON has between its values only.
std::string escaped_json(std::string_view json);

/// "[time] [kvonce] [level] text", the text as printable() makes it. Never throws; from any thread.
void say(Level level, std::string_view text) noexcept;
/// say(Level::warning, text).
void warn(std::string_view text) noexcept;

/// What is less urgent than `level` is not said; Level::warning at the start. From any thread, at any time.
void set_level(Level level) noexcept;

}  // namespace kvonce::telemetry
