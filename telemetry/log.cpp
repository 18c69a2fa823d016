// SPDX-License-Identifier: Apache-2.0
#include "telemetry/log.hpp"

#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <algorithm>
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

struct Character {
  std::uint32_t code = 0;
  std::size_t bytes = 0;  // 0: what begins there is none in UTF-8
};

Character first_of(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  if (first < 0x80) return {first, 1};
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return {};
  std::uint32_t code = first & (0xffU >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0U) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3fU);
  }
  constexpr std::array<std::uint32_t, 5> kLeast{0, 0, 0x80, 0x800, 0x10000};  // shorter forms
  if (code < kLeast[length] || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) return {};
  return {code, length};
}

/// A terminal obeys it, or shows what follows in another order than it stands in, or nothing for it; or it ends a line.
bool is_obeyed(std::uint32_t code) {
  const auto within = [code](std::uint32_t first, std::uint32_t last) { return code >= first && code <= last; };
  return code < 0x20 || within(0x7f, 0x9f) || code == 0x61c || within(0x200b, 0x200f) || within(0x2028, 0x202e) ||
         within(0x2060, 0x206f) || code == 0xfeff || within(0xe0000, 0xe007f);
}

constexpr char kDigits[] = "0123456789abcdef";

}  // namespace

std::string printable(std::string_view text) {
  std::string shown;
  shown.reserve(text.size());
  while (!text.empty()) {
    const Character next = first_of(text);
    const std::size_t bytes = std::max<std::size_t>(next.bytes, 1);
    const bool as_it_is = next.bytes != 0 && !is_obeyed(next.code);
    for (const char one : text.substr(0, bytes)) {
      const auto byte = static_cast<unsigned char>(one);
      if (as_it_is) shown += one;
      else shown += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15U]};
    }
    text.remove_prefix(bytes);
  }
  return shown;
}

std::string escaped_json(std::string_view json) {
  std::string shown;
  shown.reserve(json.size());
  while (!json.empty()) {
    const Character next = first_of(json);
    const std::size_t bytes = std::max<std::size_t>(next.bytes, 1);
    const auto unit = [&shown](std::uint32_t code) {
      shown += {'\\', 'u', kDigits[code >> 12], kDigits[(code >> 8) & 15U], kDigits[(code >> 4) & 15U], kDigits[code & 15U]};
    };
    if (next.code >= 0x10000 && is_obeyed(next.code)) {
      unit(0xd800 + ((next.code - 0x10000) >> 10));
      unit(0xdc00 + (next.code & 0x3ffU));
    } else if (next.code >= 0x20 && is_obeyed(next.code)) {
      unit(next.code);
    } else {
      shown += json.substr(0, bytes);
    }
    json.remove_prefix(bytes);
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
