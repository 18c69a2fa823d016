// SPDX-License-Identifier: Apache-2.0
#include "telemetry/log.hpp"

#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

namespace kvonce::telemetry {
namespace {

std::atomic<Level> least_urgent{Level::warning};

spdlog::level::level_enum spdlog_level(Level level) {
  switch (level) {
    case Level::error: return spdlog::level::err;
    case Level::warning: return spdlog::level::warn;
    case Level::info: break;
  }
  return spdlog::level::info;
}

/// Bytes of the character that begins there; 0: it is none in UTF-8, or one that controls a terminal.
std::size_t shown_bytes(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  if (first < 0x80) return first >= 0x20 && first != 0x7f ? 1 : 0;
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  std::uint32_t code = first & (0xffU >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0U) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3fU);
  }
  constexpr std::array<std::uint32_t, 5> kLeast{0, 0, 0xa0, 0x800, 0x10000};  // shorter forms; U+0080 to U+009F control
  return code >= kLeast[length] && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff) ? length : 0;
}

}  // namespace

std::string printable(std::string_view text) {
  std::string shown;
  shown.reserve(text.size());
  while (!text.empty()) {
    const std::size_t bytes = shown_bytes(text);
    if (bytes != 0) {
      shown += text.substr(0, bytes);
    } else {
      constexpr char kDigits[] = "0123456789abcdef";
      const auto byte = static_cast<unsigned char>(text.front());
      shown += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15U]};
    }
    text.remove_prefix(bytes != 0 ? bytes : 1);
  }
  return shown;
}

void say(Level level, std::string_view text) noexcept {
  if (level > least_urgent.load(std::memory_order_relaxed)) return;
  try {
    // Its own logger, not in spdlog's registry, and never destroyed: a last word may come while statics end.
    static auto* const logger = new spdlog::logger("kvonce", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    const std::string shown = printable(text);
    logger->log(spdlog_level(level), spdlog::string_view_t(shown.data(), shown.size()));
  } catch (...) {
    // There is nobody left to tell.
  }
}

void warn(std::string_view text) noexcept { say(Level::warning, text); }

void set_level(Level level) noexcept { least_urgent.store(level, std::memory_order_relaxed); }

}  // namespace kvonce::telemetry
