// SPDX-License-Identifier: Apache-2.0
#include "telemetry/log.hpp"

#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <atomic>
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

}  // namespace

void say(Level level, std::string_view text) noexcept {
  if (level > least_urgent.load(std::memory_order_relaxed)) return;
  try {
    // Its own logger, not in spdlog's registry, and never destroyed: a last word may come while statics end.
    static auto* const logger = new spdlog::logger("kvonce", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    logger->log(spdlog_level(level), spdlog::string_view_t(text.data(), text.size()));
  } catch (...) {
    // There is nobody left to tell.
  }
}

void warn(std::string_view text) noexcept { say(Level::warning, text); }

void set_level(Level level) noexcept { least_urgent.store(level, std::memory_order_relaxed); }

}  // namespace kvonce::telemetry
