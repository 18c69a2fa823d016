// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/kvonced/settings.hpp"

namespace kvonce::apps {

struct CommandLine {
  Sources sources;
  bool dump = false;
  bool json = false;
  bool quiet = false;
  bool detach = false;
  int ready_fd = -1;       ///< told, then closed, when the store is ready
  int start_lock_fd = -1;  ///< closed then
  int parent = 0;          ///< process with whose end this one ends; 0: none
  std::vector<std::string> errors;
  std::vector<std::string> warnings;
  std::optional<int> exit_status;  ///< nothing is left to do: help or version has been printed
};

/// Reads flags, environment and file.
CommandLine read_command_line(int argc, char** argv);

}  // namespace kvonce::apps
