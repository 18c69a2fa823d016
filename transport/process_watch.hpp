// SPDX-License-Identifier: Apache-2.0
//
// Waits for processes that are not children to end.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace kvonce::transport {

struct WatchedProcess {
  std::uint32_t pid = 0;
  std::uint64_t start_time = 0;  // clock ticks since boot (/proc/PID/stat, field 22)
};

class ProcessWatch {
 public:
  /// `gone` is called once for each process that has ended, on a thread of this object, also when it had ended before. A process
  /// that cannot be seen or compared (pid or start time 0, no pidfd here) counts as alive: nothing is ever told of it.
  ProcessWatch(const std::vector<WatchedProcess>& processes, std::function<void(const WatchedProcess&)> gone);
  ~ProcessWatch();
  ProcessWatch(const ProcessWatch&) = delete;
  ProcessWatch& operator=(const ProcessWatch&) = delete;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvonce::transport
