// SPDX-License-Identifier: Apache-2.0
#include "apps/kvonced/command_line.hpp"

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <limits>
#include <map>

#include <CLI/CLI.hpp>
#include <fcntl.h>

#include <kvonce/version.hpp>

#include "protocol/units.hpp"

namespace kvonce::apps {
namespace {

constexpr const char* kFooter =
    "Each setting is also a key of the file (idle-exit = \"60s\") and a variable of the environment (KVONCED_IDLE_EXIT=60s);\n"
    "a flag goes before the environment, that before the file. SIGTERM ends in order, SIGHUP reads the file again.\n"
    "Exit status: 0 ended in order, 1 ended by force, 2 not started: settings, socket or memory.";

bool named(int argc, char** argv, const char* flag) {
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], flag) == 0) return true;
  }
  return false;
}

struct Texts {
  std::map<std::string, std::string> settings;
  std::string config;
  std::string ready_fd;
  std::string start_lock_fd;
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
  app.add_flag("--json", line.json, "With --dump-config: as JSON")->group(rest);
  app.add_flag("--detach", line.detach, "Go on in the background, in a session of its own")->group(rest);
  app.add_option("--ready-fd", texts.ready_fd, "Descriptor that is told when the store is ready")->option_text("N")->group(rest);
  app.add_option("--start-lock-fd", texts.start_lock_fd, "Descriptor that is closed then")->option_text("N")->group(rest);
  app.add_flag("--help-all", texts.help_all, "All options");
}

std::string unknown_argument(const std::string& given) {
  if (!given.starts_with("--")) return '"' + given + "\" is not expected: kvonced takes options only (kvonced --help)";
  const std::string name = given.substr(0, given.find('='));
  const std::string near = nearest_setting(name.substr(2));
  return name + " is no option" + (near.empty() ? "" : "; the nearest is --" + near) + " (kvonced --help-all tells them all)";
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
    const int status = app.exit(wanted);
    line.exit_status = std::cout.flush() ? status : 2;
    return line;
  } catch (const CLI::ParseError& error) {
    line.errors.push_back(std::string(error.what()) + " (kvonced --help)");
    return line;
  }
  if (texts.help_all) {
    std::cout << app.help();
    line.exit_status = std::cout.flush() ? 0 : 2;
    return line;
  }
  for (const std::string& given : app.remaining()) {
    if (!given.starts_with("-") && !line.errors.empty()) continue;  // the value of the unknown option before it
    line.errors.push_back(unknown_argument(given));
  }
  if (line.json && !line.dump) line.errors.push_back("--json is of use with --dump-config only");
  read_descriptor("--ready-fd", texts.ready_fd, line, line.ready_fd);
  read_descriptor("--start-lock-fd", texts.start_lock_fd, line, line.start_lock_fd);
  for (const Setting& setting : all_settings()) {
    if (app.count("--" + std::string(setting.name)) != 0) line.sources.flags[setting.name] = texts.settings[setting.name];
  }
  line.sources.environment = read_environment(line.warnings);
  if (const char* const set = std::getenv("KVONCED_CONFIG"); texts.config.empty() && set != nullptr) texts.config = set;
  if (!texts.config.empty()) {
    // Absolute: it is read again at SIGHUP, then perhaps from another folder.
    line.sources.file_path = std::filesystem::absolute(texts.config).lexically_normal().string();
    line.sources.file = read_config_file(line.sources.file_path, line.errors);
  }
  return line;
}

}  // namespace kvonce::apps
