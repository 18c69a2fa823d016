// SPDX-License-Identifier: Apache-2.0
//
// The file of settings: TOML with one value for each setting, so that whatever it cannot hold is told with its line.
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <string_view>
#include <utility>

#include <sys/stat.h>
#include <toml++/toml.h>

#include "apps/kvonced/settings.hpp"
#include "protocol/units.hpp"

namespace kvonce::apps {
namespace {

constexpr std::size_t kMostFileBytes = 1 << 20;
// A file of another kind is wrong in every line.
constexpr std::size_t kMostErrors = 20;

/// Without control characters (C1 ones are two bytes of UTF-8): a terminal obeys some of them.
std::string printable(std::string_view text) {
  std::string shown(text);
  for (std::size_t i = 0; i < shown.size(); ++i) {
    const auto byte = [&](std::size_t at) { return at < shown.size() ? static_cast<unsigned char>(shown[at]) : 0U; };
    if (byte(i) < 0x20 || byte(i) == 0x7f) shown[i] = '?';
    if (byte(i) == 0xc2 && byte(i + 1) >= 0x80 && byte(i + 1) < 0xa0) shown[i] = shown[i + 1] = '?';
  }
  return shown;
}

bool is_setting(std::string_view name) {
  const auto& settings = all_settings();
  return std::any_of(settings.begin(), settings.end(), [&](const Setting& one) { return name == one.name; });
}

/// The setting that a line, counted from 1, begins with; empty: with none.
std::string name_in_line(std::string_view text, std::size_t line) {
  for (; line > 1; --line) text.remove_prefix(std::min(text.size(), text.find('\n') + 1));
  const std::string_view name = text.substr(0, text.find_first_of("=\n \t"));
  return is_setting(name) ? std::string(name) : std::string();
}

/// A value as it would be given on the command line; `wrong`: why it is none.
std::string text_of(const toml::node& node, std::string& wrong) {
  if (const auto* text = node.as_string()) {
    if (text->get() != printable(text->get())) wrong = "has a control character; a terminal may obey it";
    return text->get();
  }
  if (const auto* number = node.as_integer()) return std::to_string(number->get());
  if (const auto* on = node.as_boolean()) return on->get() ? "true" : "false";
  if (const auto* number = node.as_floating_point()) {
    char text[32];  // the shortest that is read back as the same number
    return {text, std::to_chars(text, text + sizeof text, number->get()).ptr};
  }
  wrong = node.is_array() || node.is_table() ? "has a list or table, which could be more than one value; allowed is one"
                                             : "has a date or time; allowed are texts in quotes, numbers, true and false";
  return {};
}

GivenTexts read(const std::string& path, std::string_view text, std::vector<std::string>& errors) {
  const auto told = [&](const toml::source_position& at, const std::string& what) {
    return path + " line " + std::to_string(at.line) + what;
  };
  toml::table table;
  try {
    table = toml::parse(text);
  } catch (const toml::parse_error& error) {
    const std::string name = name_in_line(text, error.source().begin.line);
    errors.push_back(told(error.source().begin, (name.empty() ? ": no TOML: " : ", " + name + ": no TOML: ") + printable(error.description()) +
                                                    "; allowed is one setting = value, where texts stand in quotes"));
    return {};
  }
  GivenTexts given;
  std::vector<std::pair<toml::source_index, std::string>> found;
  for (const auto& [key, node] : table) {
    const std::string name(key.str());
    const toml::source_position& at = key.source().begin;
    std::string wrong;
    if (const auto* section = node.as_table(); section != nullptr && !section->is_inline()) {
      found.emplace_back(at.line, told(at, ": [" + printable(name) + "] is not allowed; settings stand outside of tables"));
    } else if (!is_setting(name)) {
      found.emplace_back(at.line, told(at, ": " + unknown_setting(printable(name))));
    } else if (std::string value = text_of(node, wrong); !wrong.empty()) {
      found.emplace_back(at.line, told(at, ": " + name + ' ' + wrong));
    } else {
      given[name] = std::move(value);
    }
  }
  if (found.empty()) return given;
  std::sort(found.begin(), found.end());
  found.resize(std::min(found.size(), kMostErrors));
  for (auto& [line, error] : found) errors.push_back(std::move(error));
  return {};
}

}  // namespace

GivenTexts read_config_file(const std::string& path, std::vector<std::string>& errors) {
  // Whoever opens a pipe waits for its other end, for ever.
  struct stat found {};
  if (stat(path.c_str(), &found) == 0 && !S_ISREG(found.st_mode) && !S_ISCHR(found.st_mode)) {
    errors.push_back(path + " is no plain file; it is not read");
    return {};
  }
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    errors.push_back(path + " cannot be read: " + std::strerror(errno));
    return {};
  }
  // No more of it than may be: it may be a device without an end, or have no end of a line.
  std::string whole(kMostFileBytes + 1, '\0');
  in.read(whole.data(), static_cast<std::streamsize>(whole.size()));
  whole.resize(static_cast<std::size_t>(in.gcount()));
  if (in.bad()) {
    errors.push_back(path + " cannot be read: " + std::strerror(errno));
    return {};
  }
  if (whole.size() > kMostFileBytes) {
    errors.push_back(path + " is larger than the allowed " + protocol::format_bytes(kMostFileBytes));
    return {};
  }
  return read(path, whole, errors);
}

}  // namespace kvonce::apps
