// SPDX-License-Identifier: Apache-2.0
#include "apps/kvonced/command_line.hpp"

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <cstdio>
#include <limits>
#include <map>
#include <sstream>

#include <CLI/CLI.hpp>
#include <fcntl.h>

#include <kvonce/version.hpp>

#include "apps/nearest_word.hpp"
#include "apps/standard_streams.hpp"
#include "protocol/units.hpp"
#include "runtime/auto_store.hpp"

namespace kvonce::apps {
namespace {

constexpr const char* kFooter =
    "Each setting is also a key of the file (idle-exit = \"60s\") and a variable of the environment (KVONCED_IDLE_EXIT=60s);\n"
    "a flag goes before the environment, that before the file. SIGTERM ends in order, SIGHUP reads the file again.\n"
    "Exit status: 0 ended in order, 1 by force or without its snapshot, 2 not started: settings, socket or memory.";

bool named(int argc, char** argv, const char* flag) {
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], flag) == 0) return true;
  }
  return false;
}

struct Texts {
  std::map<std::string, std::string> settings;
  std::string config;
  std::string format;
  bool json = false;
  std::string ready_fd;
  std::string start_lock_fd;
  std::string parent;
  bool help_all = false;
};

void add_options(CLI::App& app, Texts& texts, CommandLine& line, bool all) {
  const std::string rest = all ? "Options" : "";  // of group "": not shown
  app.add_option("--config", texts.config, "TOML file with settings")->option_text("FILE");
  for (const Setting& setting : all_settings()) {
    const std::string fallback = setting.fallback[0] == '\0' ? "" : std::string(" [") + setting.fallback + "]";
    app.add_option("--" + std::string(setting.name), texts.settings[setting.name], setting.help + fallback)
        ->option_text(setting.shown)
        ->group(setting.first ? "Options" : rest);
  }
  app.add_flag("--dump-config", line.dump, "Print every setting and where it came from; status 0: valid");
  app.add_option("--format", texts.format, "With --dump-config: text or json [text]")->option_text("text|json")->group(rest);
  app.add_flag("--json", texts.json, "Same as --format json")->group(rest);
  app.add_flag("-q,--quiet", line.quiet, "With --dump-config: nothing but errors, the status tells")->group(rest);
  app.add_flag("--detach", line.detach, "Go on in the background, in a session of its own");
  app.add_option("--ready-fd", texts.ready_fd, "Descriptor that is told when the store is ready")->option_text("N")->group(rest);
  app.add_option("--start-lock-fd", texts.start_lock_fd, "Descriptor that is closed then")->option_text("N")->group(rest);
  app.add_option("--parent", texts.parent, "Process: when it ends, so does the store, and its socket's folder goes if it has nothing else")
      ->option_text("PID")
      ->group(rest);
  app.add_flag("--help-all", texts.help_all, "All options");
}

std::string unknown_argument(const std::string& given) {
  if (!given.starts_with("--")) return '"' + given + "\" is not expected: kvonced takes options only (kvonced --help)";
  const std::string name = given.substr(0, given.find('='));
  return name + " is no option" + nearest_text("--", nearest_setting(name.substr(2))) + " (kvonced --help-all tells them all)";
}

void read_descriptor(const std::string& name, const std::string& text, CommandLine& line, int& descriptor) {
  if (text.empty()) return;
  const auto number = protocol::parse_u64(text, 0, std::numeric_limits<int>::max());
  if (!number) {
    line.errors.push_back(name + ": " + number.error);
  } else if (fcntl(static_cast<int>(number.value), F_SETFD, FD_CLOEXEC) != 0) {
    line.errors.push_back(name + ": " + text + " is no open descriptor of this process");
  } else {
    descriptor = static_cast<int>(number.value);
  }
}

void read_output(const CLI::App& app, const Texts& texts, CommandLine& line) {
  for (const char* const option : {"--format", "--json", "--quiet"}) {
    if (line.dump || app.count(option) == 0) continue;
    const bool quiet = std::strcmp(option, "--quiet") == 0;
    line.errors.push_back(std::string(quiet ? "-q" : option) + " is of use with --dump-config only" + (quiet ? "; a store logs less with --log-level error" : ""));
  }
  if (app.count("--format") != 0 && texts.format != "text" && texts.format != "json")
    line.errors.push_back("--format: \"" + texts.format + "\" is not allowed; allowed are text and json");
  line.json = texts.json || texts.format == "json";
}

/// CLI11 counts what is required and received.
std::string in_plain_words(const CLI::ParseError& error) {
  const std::string text = error.what();
  const std::string option = text.substr(0, text.find(':'));
  if (!text.starts_with("--") || error.get_exit_code() != static_cast<int>(CLI::ExitCodes::ArgumentMismatch)) return text;
  if (text.find("missing") != std::string::npos) return option + " needs a value";
  if (text.find("At Most 1") != std::string::npos) return option + " is given more than once; allowed is one value";
  return text;
}

/// Help or version: the exit status.
int show(const std::string& text, int status) {
  const std::string wrong = write_out(text);
  if (wrong.empty()) return status;
  std::fprintf(stderr, "kvonced: %s\n", wrong.c_str());
  return 2;
}

}  // namespace

CommandLine read_command_line(int argc, char** argv) {
  CommandLine line;
  Texts texts;
  CLI::App app{"Keeps the KV-cache pages of this host's inference engines once: a store for many processes.", "kvonced"};
  app.set_version_flag("--version", [] { return "kvonced " + version(); }, "Version, commit, CAF version, checks on or off");
  app.get_formatter()->column_width(26);
  app.footer(kFooter);
  app.allow_extras();
  add_options(app, texts, line, named(argc, argv, "--help-all"));
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& wanted) {
    std::ostringstream out;
    const int status = app.exit(wanted, out, out);
    line.exit_status = show(out.str(), status);
    return line;
  } catch (const CLI::ParseError& error) {
    line.errors.push_back(in_plain_words(error) + " (kvonced --help)");
    return line;
  }
  if (texts.help_all) {
    line.exit_status = show(app.help(), 0);
    return line;
  }
  for (const std::string& given : app.remaining()) {
    if (!given.starts_with("-") && !line.errors.empty()) continue;  // the value of the unknown option before it
    line.errors.push_back(unknown_argument(given));
  }
  read_output(app, texts, line);
  read_descriptor("--ready-fd", texts.ready_fd, line, line.ready_fd);
  read_descriptor("--start-lock-fd", texts.start_lock_fd, line, line.start_lock_fd);
  if (!texts.parent.empty()) {
    const auto number = protocol::parse_u64(texts.parent, 1, std::numeric_limits<int>::max());
    if (number) line.parent = static_cast<int>(number.value);
    else line.errors.push_back("--parent: " + number.error);
  }
  for (const Setting& setting : all_settings()) {
    if (app.count("--" + std::string(setting.name)) != 0) line.sources.flags[setting.name] = texts.settings[setting.name];
  }
  line.sources.environment = read_environment(line.warnings);
  // Said where it decides something: a store that others cannot find by that variable.
  const auto socket_given = [&](const GivenTexts& given) { return given.contains("socket") && !given.at("socket").empty(); };
  if (const char* const set = std::getenv("KVONCED_CONFIG"); texts.config.empty() && set != nullptr) texts.config = set;
  if (!texts.config.empty()) {
    // Absolute: it is read again at SIGHUP, then perhaps from another folder.
    line.sources.file_path = std::filesystem::absolute(texts.config).lexically_normal().string();
    line.sources.file = read_config_file(line.sources.file_path, line.errors);
  }
  if (!socket_given(line.sources.flags) && !socket_given(line.sources.environment) && !socket_given(line.sources.file)) {
    if (std::string passed = runtime::passed_over_folder(); !passed.empty()) line.warnings.push_back(std::move(passed));
  }
  return line;
}

}  // namespace kvonce::apps
