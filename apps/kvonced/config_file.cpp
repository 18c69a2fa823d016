// SPDX-License-Identifier: Apache-2.0
//
// The file of settings: of TOML what one value a line needs, so that whatever it cannot hold is told with its line.
#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <optional>
#include <string_view>

#include "apps/kvonced/settings.hpp"
#include "protocol/units.hpp"

namespace kvonce::apps {
namespace {

constexpr std::size_t kMostFileBytes = 1 << 20;
// A file of another kind is wrong in every line.
constexpr std::size_t kMostErrors = 20;
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

bool is_space(char c) { return c == ' ' || c == '\t'; }

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

/// Bytes of the UTF-8 character that `text` begins with; 0: it begins with none, or with one that is no text.
std::size_t character_bytes(std::string_view text) {
  const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(text[at]); };
  const unsigned first = byte(0);
  if (first < 0x80) return first == '\t' || (first >= 0x20 && first != 0x7f) ? 1 : 0;
  const std::size_t bytes = first >= 0xc2 && first < 0xe0 ? 2 : first >= 0xe0 && first < 0xf0 ? 3 : first >= 0xf0 && first < 0xf5 ? 4 : 0;
  if (bytes == 0 || bytes > text.size()) return 0;
  for (std::size_t at = 1; at < bytes; ++at)
    if ((byte(at) & 0xc0) != 0x80) return 0;
  const unsigned second = byte(1);
  const bool overlong = (first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90);
  const bool beyond = (first == 0xed && second >= 0xa0) || (first == 0xf4 && second >= 0x90);
  // C1 controls: a terminal may obey them.
  return overlong || beyond || (first == 0xc2 && second < 0xa0) ? 0 : bytes;
}

/// The first byte that is no text.
std::optional<unsigned char> no_text(std::string_view line) {
  while (!line.empty()) {
    const std::size_t bytes = character_bytes(line);
    if (bytes == 0) return static_cast<unsigned char>(line.front());
    line.remove_prefix(bytes);
  }
  return std::nullopt;
}

/// 16_777_216 is a number of TOML.
std::string without_underscores(std::string_view text) {
  for (std::size_t at = 0; at < text.size(); ++at) {
    const bool digit = std::isdigit(static_cast<unsigned char>(text[at])) != 0;
    const bool between = text[at] == '_' && at != 0 && at + 1 != text.size() && text[at - 1] != '_';
    if (!digit && !between) return std::string(text);
  }
  std::string number(text);
  std::erase(number, '_');
  return number;
}

struct Value {
  std::string text;
  std::string error;
};

/// What stands behind the equals sign.
Value read_value(std::string_view rest) {
  rest = trimmed(rest);
  std::string_view value;
  const auto comment_or_end = [](std::string_view text) { return trimmed(text).empty() || trimmed(text).front() == '#'; };
  if (rest.empty() || rest.front() == '#') return {{}, "has no value"};
  if (rest.front() == '[' || rest.front() == '{') return {{}, "has a list or table, which could be more than one value; allowed is one"};
  if (const char quote = rest.front(); quote == '"' || quote == '\'') {
    const std::size_t end = rest.find(quote, 1);
    if (end == std::string_view::npos) return {{}, "has no end: a quote is left open"};
    value = rest.substr(1, end - 1);
    rest.remove_prefix(end + 1);
    if (quote == '"' && value.find('\\') != std::string_view::npos)
      return {{}, "has a backslash, which is not allowed in double quotes; single quotes take it as it is"};
  } else {
    std::size_t end = 0;
    const auto in_value = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || std::strchr("_-+.%/:", c) != nullptr; };
    while (end < rest.size() && in_value(rest[end])) ++end;
    value = rest.substr(0, end);
    if (value.empty() || (end < rest.size() && !is_space(rest[end]) && rest[end] != '#'))
      return {{}, "is " + std::string(rest) + ", which is no value; texts stand in quotes"};
    rest.remove_prefix(end);
    if (comment_or_end(rest)) return {without_underscores(value), {}};
  }
  if (!comment_or_end(rest)) return {{}, "has more than one value: " + std::string(trimmed(rest)) + " follows the first; allowed is one, in quotes where it has spaces"};
  return {std::string(value), {}};
}

class ConfigFile {
 public:
  ConfigFile(const std::string& path, std::vector<std::string>& errors) : path_(path), errors_(errors) {}

  GivenTexts read(std::string_view text) {
    if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
    while (!text.empty() && errors_of_file_ < kMostErrors) {
      ++number_;
      const std::size_t end = text.find('\n');
      std::string_view line = text.substr(0, end);
      text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (!read_line(line)) break;
    }
    return errors_of_file_ == 0 ? std::move(given_) : GivenTexts{};
  }

 private:
  void wrong(const std::string& what) {
    errors_.push_back(path_ + " line " + std::to_string(number_) + ": " + what);
    ++errors_of_file_;
  }

  /// False: no text file, which is told once.
  bool read_line(std::string_view line) {
    if (const auto byte = no_text(line)) {
      char shown[8];
      std::snprintf(shown, sizeof shown, "0x%02x", static_cast<unsigned>(*byte));
      wrong(std::string("the byte ") + shown + " is no text; a file of settings is TOML in UTF-8");
      return false;
    }
    line = trimmed(line);
    if (line.empty() || line.front() == '#') return true;
    if (line.front() == '[') {
      wrong(std::string(line.substr(0, line.find(']') + 1)) + " is not allowed; settings stand outside of tables");
      return true;
    }
    const std::size_t equals = line.find('=');
    if (equals == std::string_view::npos) {
      wrong('"' + std::string(line) + "\" is no setting = value");
      return true;
    }
    std::string_view name = trimmed(line.substr(0, equals));
    if (name.size() >= 2 && (name.front() == '"' || name.front() == '\'') && name.back() == name.front()) name = name.substr(1, name.size() - 2);
    const auto& settings = all_settings();
    if (std::none_of(settings.begin(), settings.end(), [&](const Setting& one) { return name == one.name; })) {
      wrong(unknown_setting(name));
      return true;
    }
    Value value = read_value(line.substr(equals + 1));
    if (!value.error.empty()) {
      wrong(std::string(name) + ' ' + value.error);
    } else if (const auto [first, added] = lines_.try_emplace(std::string(name), number_); !added) {
      wrong(std::string(name) + " has more than one value: the first stands in line " + std::to_string(first->second));
    } else {
      given_[std::string(name)] = std::move(value.text);
    }
    return true;
  }

  const std::string& path_;
  std::vector<std::string>& errors_;
  std::size_t errors_of_file_ = 0;
  std::size_t number_ = 0;
  GivenTexts given_;
  std::map<std::string, std::size_t> lines_;
};

}  // namespace

GivenTexts read_config_file(const std::string& path, std::vector<std::string>& errors) {
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
  return ConfigFile(path, errors).read(whole);
}

}  // namespace kvonce::apps
