// SPDX-License-Identifier: Apache-2.0
//
// A real kvonced in a folder of its own, and the program `kvonce` on it.
#pragma once

#include <string>
#include <vector>

#include "tests/cli/program.hpp"
#include "tests/kvonced/process.hpp"

namespace kvonce::cli_test {

using kvonced_test::RunFolder;

/// This user's store, as far as the programs that are run here can see: in the folder that $XDG_RUNTIME_DIR names.
class LiveStore {
 public:
  explicit LiveStore(const RunFolder&, std::vector<std::string> settings = {});
  bool ready() const { return ready_; }
  pid_t pid() const { return process_.pid(); }
  void signal(int number) { process_.signal(number); }
  int finish() { return process_.finish(); }

 private:
  kvonced_test::Process process_;
  bool ready_ = false;
};

/// As run_program, and its output as JSON; with --json, and the exit status that is expected.
nlohmann::json run_json(std::vector<std::string> arguments, int exit_status = 0);

std::string bytes_of(std::size_t count, int seed);
bool contains(const std::string& text, const std::string& part);

}  // namespace kvonce::cli_test
