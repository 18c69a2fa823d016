// SPDX-License-Identifier: Apache-2.0
//
// Ends the start of a store of this process that still takes its memory, which may last for minutes.
#pragma once

#include <atomic>

namespace kvonce::runtime {

/// Set, from any thread or signal handler: Runtime::start of an embedded store fails with Reason::canceled as long as it takes
/// memory. A store that has begun to read its last life's snapshot comes to its start, since the snapshot would be lost.
inline std::atomic<bool>& start_interrupted() noexcept {
  static std::atomic<bool> interrupted{false};
  return interrupted;
}

}  // namespace kvonce::runtime
