// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include <kvonce/version.hpp>

#include "apps/kvonce/command.hpp"
#include "apps/kvonce/store_client.hpp"
#include "apps/nearest_word.hpp"
#include "apps/standard_streams.hpp"

namespace {

using namespace kvonce::apps;

/// Of those that are shown in the help; empty: `app` has none.
std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App* one) { return !one->get_group().empty(); }))
    names.push_back(command->get_name());
  return names;
}

/// `given`: the word in a command's place; nullptr: there is none.
std::string no_command(const char* given, const std::vector<std::string>& allowed) {
  std::string text = given == nullptr ? "a command is missing" : '"' + std::string(given) + "\" is no command" + nearest_text("", nearest_word(given, allowed));
  for (const std::string& name : allowed) text += (&name == &allowed.front() ? "; allowed are " : ", ") + name;
  return text;
}

/// The first of the words that nothing was made of, where it looks like an option.
std::string unknown_option(const CLI::App& app, const CLI::App& command) {
  const std::vector<std::string> rest = app.remaining(true);
  if (rest.empty() || rest.front().size() < 2 || rest.front().front() != '-') return {};
  const std::string given = rest.front().substr(0, rest.front().find('='));
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) names.insert(names.end(), option->get_lnames().begin(), option->get_lnames().end());
  if (std::find(names.begin(), names.end(), given.substr(given.find_first_not_of('-'))) != names.end() || command.get_option_no_throw(given) != nullptr)
    return given + " stands before the command: options come after it";
  return given + " is no option" + nearest_text("--", nearest_word(std::string_view(given).substr(given.find_first_not_of('-') == 2 ? 2 : 1), names));
}

/// `kvonce help bench put` as `kvonce bench put --help`. Empty: it has said which word is no command.
std::vector<char*> words_of_help(const CLI::App& app, int argc, char** argv) {
  static char kHelp[] = "--help";
  std::vector<char*> words{argv[0]};
  const CLI::App* last = &app;
  std::string path;
  for (int i = 2; i < argc && std::strcmp(argv[i], kHelp) != 0; ++i) {
    const auto found = last->get_subcommands([&](const CLI::App* one) { return !one->get_group().empty() && one->get_name() == argv[i]; });
    if (found.empty()) {
      const std::vector<std::string> allowed = command_names(*last);
      const std::string none = '"' + std::string(argv[i]) + "\" is not expected:" + path + " has no commands of its own";
      static_cast<void>(tell_error("help", allowed.empty() ? none : no_command(argv[i], allowed)));
      return {};
    }
    last = found.front();
    path += ' ' + last->get_name();
    words.push_back(argv[i]);
  }
  words.push_back(kHelp);
  return words;
}

}  // namespace

int main(int argc, char** argv) {
  kvonce::apps::fill_standard_streams();
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
  app.footer("kvonce help COMMAND tells a command's options. Exit status: 0 done, 1 some items failed, 2 usage or I/O.");

  if (argc <= 1) {
    std::fputs(app.help().c_str(), stderr);
    return kExitUsage;
  }
  std::vector<char*> words_of_call(argv, argv + argc);
  if (std::strcmp(argv[1], "help") == 0) {
    words_of_call = words_of_help(app, argc, argv);
    if (words_of_call.empty()) return kExitUsage;
  }
  try {
    app.parse(static_cast<int>(words_of_call.size()), words_of_call.data());
  } catch (const CLI::Success& wanted) {  // --help, --version
    std::ostringstream out;
    const int status = app.exit(wanted, out, out);
    const std::string wrong = write_out(out.str());
    return wrong.empty() ? status : tell_error("", wrong);
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
    if (const auto allowed = command_names(*last); !allowed.empty() && (words >= argc || argv[words][0] != '-'))
      return tell_error(command, no_command(words < argc ? argv[words] : nullptr, allowed) + " (" + help + " --help)");
    const bool left_over = error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError) ||
                           error.get_exit_code() == static_cast<int>(CLI::ExitCodes::RequiredError);
    if (const std::string unknown = left_over ? unknown_option(app, *last) : std::string(); !unknown.empty())
      return tell_error(command, unknown + " (" + help + " --help)");
    return tell_error(command, std::string(error.what()) + " (" + help + " --help)");
  }
  const int status = choice.run();
  if (!std::cout.flush() || std::fflush(stdout) != 0) return tell_error("", "the result could not be written to standard output");
  return status;
}
