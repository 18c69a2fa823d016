// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/kvonced/command_line.hpp"

namespace kvonce::apps {

/// Serves until it is told to end, or is idle for long enough. Gives the exit status.
int run_daemon(const CommandLine& line, const Settings& settings, const std::vector<SettledLine>& settled);

}  // namespace kvonce::apps
