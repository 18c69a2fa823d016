// SPDX-License-Identifier: Apache-2.0
//
// The one place where kvonce says something by itself: on standard error, warnings only, one line per change of state.
// spdlog is compiled in and hidden; nothing of it is seen from here.
#pragma once

#include <string_view>

namespace kvonce::telemetry {

/// "[time] [kvonce] [warning] text". Never throws; from any thread.
void warn(std::string_view text) noexcept;

}  // namespace kvonce::telemetry
