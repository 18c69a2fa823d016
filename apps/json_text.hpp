// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "telemetry/log.hpp"

namespace kvonce::apps {

/// A result as the programs write it: two blanks a level, bytes that are no UTF-8 replaced, and what a terminal would obey as
/// \uNNNN, which the reader of the JSON gets back as it was.
template <class Json>
std::string json_text(const Json& value) {
  return telemetry::escaped_json(value.dump(2, ' ', false, Json::error_handler_t::replace));
}

}  // namespace kvonce::apps
