// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <memory>

#include <kvonce/version.hpp>

#include "apps/kvonce/command.hpp"
#include "apps/standard_streams.hpp"
#include "apps/kvonce/store_client.hpp"

namespace {

/// CLI11 only says that a command is missing.
std::string unknown_command(const CLI::App& app, const char* given) {
  std::string names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names += (names.empty() ? "" : ", ") + command->get_name();
  }
  return '"' + std::string(given) + "\" is no command; allowed are " + names + " (kvonce --help)";
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
    if (app.get_subcommands().empty() && argv[1][0] != '-')
      return tell_error("", unknown_command(app, argv[1]));
    std::string command;
    std::string help = "kvonce";
    for (const CLI::App* sub = &app; !sub->get_subcommands().empty();) {
      sub = sub->get_subcommands().front();
      command += (command.empty() ? "" : " ") + sub->get_name();
    }
    if (!command.empty())
      help += ' ' + command;
    return tell_error(command, std::string(error.what()) + " (" + help + " --help)");
  }
  const int status = choice.run();
  if (!std::cout.flush() || std::fflush(stdout) != 0) return tell_error("", "the result could not be written to standard output");
  return status;
}
