// SPDX-License-Identifier: Apache-2.0
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstring>

#include <nlohmann/json.hpp>

#include <kvonce/version.hpp>

#include "apps/json_text.hpp"
#include "apps/kvonced/settings.hpp"
#include "protocol/units.hpp"

extern char** environ;

namespace kvonce::apps {
namespace {

SettledLine choose(const Setting& setting, const Sources& sources) {
  SettledLine line;
  line.setting = &setting;
  if (const auto flag = sources.flags.find(setting.name); flag != sources.flags.end()) {
    line.text = flag->second;
    line.origin = "flag";
  } else if (const auto variable = sources.environment.find(setting.name); variable != sources.environment.end()) {
    line.text = variable->second;
    line.origin = "environment " + environment_name(setting.name);
  } else if (const auto entry = sources.file.find(setting.name); entry != sources.file.end()) {
    line.text = entry->second;
    line.origin = "file " + sources.file_path;
  } else {
    line.text = setting.fallback;
    line.origin = "default";
  }
  return line;
}

std::string where(const SettledLine& line) {
  if (line.origin == "flag") return "--" + std::string(line.setting->name);
  if (line.origin.starts_with("environment ")) return line.origin.substr(std::strlen("environment "));
  if (line.origin.starts_with("file ")) return line.setting->name + std::string(" in ") + line.origin.substr(std::strlen("file "));
  return line.setting->name + std::string(" by default");
}

bool in_a_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || std::strchr("_-/.", c) != nullptr; }

}  // namespace

std::string user_name(const std::vector<SettledLine>& lines, std::string_view setting) {
  for (const SettledLine& line : lines) {
    if (setting == line.setting->name) return where(line);
  }
  return std::string(setting);
}

std::string in_words_of_settings(std::string text, const std::vector<SettledLine>& lines) {
  for (const SettledLine& line : lines) {
    const std::string field = line.setting->field;
    if (field.empty()) continue;
    // Those that are words of the language too are names only where they begin the sentence.
    const bool plain = field.find('_') == std::string::npos;
    for (std::size_t at = text.find(field); at != std::string::npos; at = text.find(field, at)) {
      const std::size_t end = at + field.size();
      const bool whole = (at == 0 || !in_a_word(text[at - 1])) && (end == text.size() || !in_a_word(text[end]));
      const bool begins = at == 0 && (text.compare(end, 4, " is ") == 0 || text.compare(end, 2, ": ") == 0);
      if (!whole || (plain && !begins)) {
        at = end;
        if (plain) break;
        continue;
      }
      std::string name = where(line);
      std::size_t until = end;
      if (at == 0 && text.compare(end, 4, " is ") == 0 && !line.text.empty()) {
        const std::size_t value = end + 4;
        const std::size_t colon = text.find_first_not_of("0123456789", value);
        if (colon != value && colon != std::string::npos && text[colon] == ':') {
          name += " is " + line.text;
          until = colon;
        }
      }
      text.replace(at, until - at, name);
      at += name.size();
    }
  }
  return text;
}

GivenTexts read_environment(std::vector<std::string>& warnings) {
  constexpr std::string_view kPrefix = "KVONCED_";
  GivenTexts given;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::size_t equals = text.find('=');
    if (!text.starts_with(kPrefix) || equals == std::string_view::npos) continue;
    const std::string name(text.substr(0, equals));
    if (name == "KVONCED_CONFIG" || equals + 1 == text.size()) continue;  // empty is as good as not set
    const auto& settings = all_settings();
    const auto found = std::find_if(settings.begin(), settings.end(), [&](const Setting& s) { return environment_name(s.name) == name; });
    if (found != settings.end()) {
      given[found->name] = text.substr(equals + 1);
      continue;
    }
    // Not refused: a container system sets such names by itself for a service called kvonced.
    std::string plain = name.substr(kPrefix.size());
    std::transform(plain.begin(), plain.end(), plain.begin(), [](char c) { return static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c); });
    const std::string near = nearest_setting(plain);
    warnings.push_back(name + " in the environment is no setting and is not read" +
                       (near.empty() ? "" : "; the nearest is " + environment_name(near)));
  }
  return given;
}

namespace {

/// A share of the memory is another number of bytes each time, and an arena of another size would be a cold start.
void keep_arena_size(Settled& settled) {
  constexpr std::uint64_t kUnit = 2ULL << 20;
  const auto memory = std::find_if(settled.lines.begin(), settled.lines.end(),
                                   [](const SettledLine& line) { return std::string_view(line.setting->name) == "memory"; });
  RuntimeConfig& runtime = settled.settings.runtime;
  struct stat info {};
  if (!memory->text.ends_with('%') || runtime.arena_file.empty() || lstat(runtime.arena_file.c_str(), &info) != 0) return;
  const auto bytes = static_cast<std::uint64_t>(info.st_size);
  if (!S_ISREG(info.st_mode) || info.st_uid != geteuid() || bytes == 0 || bytes % kUnit != 0) return;
  runtime.arena_bytes = bytes;
  memory->settled = std::to_string(bytes);
  memory->note = "what the arena-file has; for a share of what is available now, remove it";
}

}  // namespace

Settled settle(const Sources& sources) {
  Settled settled;
  settled.settings.runtime.engine_id = "kvonced";
  for (const Setting& setting : all_settings()) {
    SettledLine line = choose(setting, sources);
    const std::string wrong = setting.apply(line.text, settled.settings, line.settled, line.note);
    if (!wrong.empty()) {
      settled.errors.push_back(where(line) + ": " + wrong);
      line.settled = '"' + line.text + '"';
      // A terminal would obey them.
      std::replace_if(line.settled.begin(), line.settled.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, '?');
      line.note = "not valid";
    }
    settled.lines.push_back(std::move(line));
  }
  if (!settled.errors.empty()) return settled;
  keep_arena_size(settled);
  const RuntimeConfig& runtime = settled.settings.runtime;
  if (runtime.capacity_bytes > runtime.arena_bytes) {
    settled.errors.push_back(user_name(settled.lines, "capacity") + ": " + protocol::format_bytes(runtime.capacity_bytes) +
                             " is more than the memory of " + protocol::format_bytes(runtime.arena_bytes) + " (" +
                             user_name(settled.lines, "memory") + "); allowed is as much, or 0");
  } else if (const Error wrong = runtime.check()) {
    settled.errors.push_back(in_words_of_settings(wrong.text, settled.lines));
  }
  return settled;
}

std::string dump_text(const Settled& settled) {
  std::size_t longest_name = 0;
  std::size_t longest_value = 0;
  for (const SettledLine& line : settled.lines) {
    longest_name = std::max(longest_name, std::strlen(line.setting->name));
    longest_value = std::max(longest_value, line.settled.size());
  }
  std::string text = "# kvonced " + version() + ": settled settings, and where each came from\n";
  for (const SettledLine& line : settled.lines) {
    std::string row = line.setting->name;
    row.resize(longest_name, ' ');
    row += " = " + line.settled;
    row.resize(longest_name + 3 + longest_value, ' ');
    text += row + "  # " + line.origin + (line.note.empty() ? "" : " (" + line.note + ")") + '\n';
  }
  return text;
}

std::string dump_json(const Settled& settled) {
  nlohmann::ordered_json out;
  out["version"] = version();
  out["valid"] = settled.errors.empty();
  out["errors"] = settled.errors;
  for (const SettledLine& line : settled.lines) {
    nlohmann::ordered_json value = nlohmann::ordered_json::parse(line.settled, nullptr, false);
    if (value.is_discarded()) value = line.text;
    out["settings"][line.setting->name] = {{"value", value}, {"origin", line.origin}, {"given", line.text}};
  }
  return json_text(out) + "\n";
}

}  // namespace kvonce::apps
