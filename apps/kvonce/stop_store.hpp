// SPDX-License-Identifier: Apache-2.0
//
// Ends a kvonced of this host in order, by the lock that it holds.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace kvonce::apps {

struct StoppedStore {
  bool was_running = false;
  std::uint32_t pid = 0;
  std::string error;  ///< it may still run
};
/// SIGTERM to the kvonced that holds the lock of the socket PATH, and to nobody else; done when it is gone.
StoppedStore stop_store(const std::string& socket, std::chrono::milliseconds timeout);

}  // namespace kvonce::apps
