// SPDX-License-Identifier: Apache-2.0
//
// How commands hook into the program `kvonce`: each adds its subcommands to the CLI11 application and leaves what to run in a
// CommandChoice; main() parses, then runs the choice. Exit status: 0 done, 1 some items failed, 2 usage, connection or I/O.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include <CLI/CLI.hpp>

namespace kvonce::apps {

inline constexpr int kExitDone = 0;
inline constexpr int kExitSomeFailed = 1;
inline constexpr int kExitUsage = 2;

/// What main() runs after parsing. A subcommand's callback sets it; work inside the callback would run while CLI11 still parses.
struct CommandChoice {
  std::function<int()> run;  ///< gives the exit status
};

enum class OutputFormat { text, json };

/// The options of every command that prints a result: --format text|json, --json, -q.
struct OutputOptions {
  OutputFormat format = OutputFormat::text;
  bool quiet = false;  ///< exit status (and errors) only
};

/// For CLI::Option::check: an empty text is most often a variable that a script has not set, and must not mean something else.
std::string not_empty(const std::string& text);

/// `options` must outlive the parsing and the run.
void add_output_options(CLI::App& command, OutputOptions& options);

/// One line of text on stdout; what a terminal would obey is written as \xNN.
void print_line(const char* format, ...) __attribute__((format(printf, 1, 2)));

/// One line on stderr, "kvonce COMMAND: TEXT". Gives kExitUsage, so that it can be returned.
int tell_error(std::string_view command, std::string_view text);

/// From then on Ctrl-C and SIGTERM only set interrupted(), so that a command can end with what was done so far; a second one ends
/// the process at once. Reads that block return with EINTR.
void catch_interrupts();
bool interrupted() noexcept;

void add_replay_command(CLI::App& app, CommandChoice& choice);
void add_bench_commands(CLI::App& app, CommandChoice& choice);
void add_stop_command(CLI::App& app, CommandChoice& choice);

}  // namespace kvonce::apps
