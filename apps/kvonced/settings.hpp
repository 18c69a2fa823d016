// SPDX-License-Identifier: Apache-2.0
//
// What kvonced can be told: every setting with its range, and how the sources (flag, environment, file, default) are settled.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <kvonce/config.hpp>

#include "telemetry/log.hpp"

namespace kvonce::apps {

/// All that the daemon runs by.
struct Settings {
  RuntimeConfig runtime;
  std::string socket;  ///< absolute path
  std::chrono::milliseconds idle_exit{0};  ///< 0: never
  std::chrono::milliseconds drain_time{0};
  telemetry::Level log_level = telemetry::Level::info;
};

struct Setting {
  const char* name;         ///< the flag without its dashes, and the key in the file; KVONCED_NAME in the environment
  const char* shown;        ///< what stands for its value in the help
  const char* fallback;     ///< the default, as it would be written
  const char* help;
  const char* field;        ///< of RuntimeConfig, as its errors name it; empty: none
  bool first;               ///< on the first screen of the help
  bool reloads;             ///< takes effect at SIGHUP
  /// Puts the text into the settings. What is wrong with it, or empty; `settled` is how the value is written back, and `note` how
  /// it came about.
  std::function<std::string(std::string_view text, Settings& settings, std::string& settled, std::string& note)> apply;
};

const std::vector<Setting>& all_settings();

/// KVONCED_DRAIN_TIME of "drain-time".
std::string environment_name(std::string_view setting);

/// `"memry" is no setting; the nearest is memory; allowed are ...`. The second part without a near one.
std::string unknown_setting(std::string_view given);
/// The nearest name; empty when none is near.
std::string nearest_setting(std::string_view given);

/// Raw texts by setting, as one source gave them.
using GivenTexts = std::map<std::string, std::string>;

struct Sources {
  GivenTexts flags;
  GivenTexts environment;
  GivenTexts file;
  std::string file_path;
};

struct SettledLine {
  const Setting* setting = nullptr;
  std::string text;     ///< as given
  std::string settled;  ///< the value, as a file would have it
  std::string origin;   ///< "flag", "environment NAME", "file PATH" or "default"
  std::string note;
};

struct Settled {
  Settings settings;
  std::vector<SettledLine> lines;    ///< every setting, in the order of all_settings()
  std::vector<std::string> errors;   ///< whole sentences; empty: all is valid
};

/// Flag before environment before file before default.
Settled settle(const Sources& sources);

/// What the user has written for a setting: "--memory", "KVONCED_MEMORY", "memory in FILE", or "memory by default".
std::string user_name(const std::vector<SettledLine>& lines, std::string_view setting);
/// A text of the library, with its fields' names replaced by those, and a value by what the user gave for it.
std::string in_words_of_settings(std::string text, const std::vector<SettledLine>& lines);

/// Of the environment of this process. KVONCED_... that are no setting are told in `warnings`.
GivenTexts read_environment(std::vector<std::string>& warnings);

/// Of a TOML file: `setting = value` a line, comments; no tables, lists or escapes. What is wrong with it is added to `errors`, with
/// the line.
GivenTexts read_config_file(const std::string& path, std::vector<std::string>& errors);

/// A TOML text that can be given back as a file, with the origins as comments; or JSON.
std::string dump_text(const Settled& settled);
std::string dump_json(const Settled& settled);

}  // namespace kvonce::apps
