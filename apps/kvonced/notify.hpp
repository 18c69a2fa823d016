// SPDX-License-Identifier: Apache-2.0
//
// What a service manager is told (the protocol of sd_notify): nothing where $NOTIFY_SOCKET is not set.
#pragma once

#include <string_view>

namespace kvonce::apps {

/// Lines such as "READY=1". False when a socket is named but could not be told.
bool notify_manager(std::string_view lines);

/// "MONOTONIC_USEC=..." of now, which RELOADING=1 needs.
void notify_reloading();

}  // namespace kvonce::apps
