// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <memory>

#include <kvonce/version.hpp>

#include "apps/kvonce/command.hpp"
#include "apps/standard_streams.hpp"
#include "apps/kvonce/store_client.hpp"

namespace {

/// Of those that are shown in the help; empty: `app` has none.
std::string command_names(const CLI::App& app) {
  std::string names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App* one) { return !one->get_group().empty(); })) {
    names += (names.empty() ? "" : ", ") + command->get_name();
  }
  return names;
}

}  // namespace

int main(int argc, char** argv) {
  kvonce::apps::fill_standard_streams();
  using namespace kvonce::apps;
  CLI::App app{"Keeps the KV-cache pages of inference engines once: pages of a store, replays of request traces, benchmarks.", "kvonce"};
  app.set_version_flag(
      "--version", [] { return "kvonce " + kvonce::version(); }, "Version, commit, CAF version, checks on or off");
  app.get_formatter()->column_width(26);
  app.require_subcommand(1);

  CommandChoice choice;
  add_put_command(app, choice);
  add_get_command(app, choice);
  add_exists_command(app, choice);
  add_remove_command(app, choice);
  add_stat_command(app, choice);
  add_flush_command(app, choice);
  add_clear_command(app, choice);
  add_stop_command(app, choice);
  add_replay_command(app, choice);
  add_bench_commands(app, choice);
  // After the commands, which would inherit it.
  app.footer("kvonce COMMAND --help tells a command's options. Exit status: 0 done, 1 some items failed, 2 usage or I/O.");

  if (argc <= 1) {
    std::fputs(app.help().c_str(), stderr);
    return kExitUsage;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& wanted) {  // --help, --version
    const int status = app.exit(wanted);
    return std::cout.flush() && std::fflush(stdout) == 0 ? status : kExitUsage;
  } catch (const CLI::ParseError& error) {
    std::string command;
    std::string help = "kvonce";
    const CLI::App* last = &app;
    int words = 1;  // of the line, that name commands
    for (; !last->get_subcommands().empty(); ++words) {
      last = last->get_subcommands().front();
      command += (command.empty() ? "" : " ") + last->get_name();
    }
    if (!command.empty())
      help += ' ' + command;
    // CLI11 only says that a command is missing.
    if (const std::string allowed = command_names(*last); !allowed.empty() && (words >= argc || argv[words][0] != '-')) {
      const std::string what = words < argc ? '"' + std::string(argv[words]) + "\" is no command" : "a command is missing";
      return tell_error(command, what + "; allowed are " + allowed + " (" + help + " --help)");
    }
    return tell_error(command, std::string(error.what()) + " (" + help + " --help)");
  }
  const int status = choice.run();
  if (!std::cout.flush() || std::fflush(stdout) != 0) return tell_error("", "the result could not be written to standard output");
  return status;
}
