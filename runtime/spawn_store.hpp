// SPDX-License-Identifier: Apache-2.0
//
// Finds and starts the program kvonced.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include <kvonce/runtime.hpp>

namespace kvonce::runtime {

/// The kvonced to start: `wanted`, else $KVONCE_KVONCED, else beside this library or program or in bin beside their folders, else
/// by PATH. The error names every place.
Result<std::string> find_store_program(const std::string& wanted);

/// What a kvonced says on --ready-fd, instead of being ready, when it was told to end while it started.
inline constexpr std::string_view kToldToEnd = "ended\n";

/// What the process that detached it says there when the store was ended by a signal: with its number and the end of the line.
inline constexpr std::string_view kKilled = "killed ";

struct StoreProcess {
  std::string program;
  std::vector<std::string> arguments;  ///< --detach, --ready-fd and --start-lock-fd are added
  int start_lock = -1;                 ///< a taken StartLock, which the store keeps until it is ready; -1: none
  std::string log_path;                ///< made anew: its standard output and error
};
/// Spawned, never forked: own session, no descriptor, handler or blocked signal of this process. Done when it has said that it is
/// ready and the process that this one has to wait for is waited for. One that a signal ends while it starts is started once
/// more. Reason::busy: it may well start the next time; it was told to end while it started, or the system lacks something for
/// the moment.
Error start_store_process(const StoreProcess& process, std::chrono::steady_clock::time_point deadline);

}  // namespace kvonce::runtime
