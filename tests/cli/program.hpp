// SPDX-License-Identifier: Apache-2.0
//
// Runs the built program `kvonce` as a user does.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace kvonce::cli_test {

struct ProgramResult {
  int exit_status = -1;  // 128 + signal when a signal ended it
  std::string out;
  std::string err;
  nlohmann::json json() const { return nlohmann::json::parse(out, nullptr, false); }
};

/// With `input` as its standard input.
ProgramResult run_program(const std::vector<std::string>& arguments, const std::string& input = {});

/// A trace line with full pages of the ids `first` .. `first + pages - 1`, and a partial one.
std::string prompt_line(std::size_t first, std::size_t pages);

/// Trace lines of `requests` prompts; prompt i has the pages 0 .. i.
std::string growing_trace(std::size_t requests);

/// A program whose standard input stays open and whose standard error is a terminal.
class LiveProgram {
 public:
  explicit LiveProgram(const std::vector<std::string>& arguments);
  ~LiveProgram();
  LiveProgram(const LiveProgram&) = delete;
  LiveProgram& operator=(const LiveProgram&) = delete;

  void write(const std::string& text);
  /// Reads the terminal until `text` has come; false when the program ended before.
  bool wait_for_terminal(const std::string& text);
  void signal(int number);
  ProgramResult finish();

 private:
  int process_ = -1;
  int input_ = -1;
  int out_ = -1;
  int terminal_ = -1;
  std::string seen_;
};

}  // namespace kvonce::cli_test
