// SPDX-License-Identifier: Apache-2.0
#include "telemetry/log.hpp"

#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <memory>

namespace kvonce::telemetry {

void warn(std::string_view text) noexcept {
  try {
    // Its own logger, not in spdlog's registry, and never destroyed: a last word may come while statics end.
    static auto* const logger = new spdlog::logger("kvonce", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    logger->log(spdlog::level::warn, spdlog::string_view_t(text.data(), text.size()));
  } catch (...) {
    // There is nobody left to tell.
  }
}

}  // namespace kvonce::telemetry
