// SPDX-License-Identifier: Apache-2.0
//
// Scanned by hand: a trace has ten million ids, and a general JSON reader spends most of its time on building values for them.
#include "apps/workload/trace_line.hpp"

#include <array>
#include <limits>

namespace kvonce::workload {
namespace {

constexpr std::uint64_t kMaxU64 = std::numeric_limits<std::uint64_t>::max();
constexpr int kNestingMax = 32;
constexpr std::size_t kShownMax = 40;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

class LineParser {
public:
  LineParser(std::string_view line, TraceRequest& request, std::string& error) : line_(line), request_(request), error_(error) {}

  bool parse() {
    request_.pages.clear();
    request_.session.reset();
    skip_space();
    if (!take('{')) return not_json("an object that begins with {");
    skip_space();
    if (!take('}')) {
      do {
        if (!parse_member()) return false;
        skip_space();
      } while (take(','));
      if (!take('}')) return not_json("a comma or }");
    }
    skip_space();
    if (at_ != line_.size()) return not_json("nothing more");
    return check_request();
  }

private:
  enum Field : std::size_t { timestamp, input_length, output_length, hash_ids, session, kFields };
  static constexpr std::array<std::string_view, kFields> kNames{"timestamp", "input_length", "output_length", "hash_ids", "session"};

  bool at_end() const { return at_ >= line_.size(); }
  char peek() const { return at_end() ? '\0' : line_[at_]; }
  bool take(char c) {
    if (at_end() || line_[at_] != c) return false;
    ++at_;
    return true;
  }
  void skip_space() {
    while (!at_end() && (line_[at_] == ' ' || line_[at_] == '\t' || line_[at_] == '\r')) ++at_;
  }

  bool not_json(std::string_view wanted) {
    if (at_end()) {
      error_ = "the line is cut: it ends where " + std::string(wanted) + " should follow";
    } else {
      error_ = "not JSON at column " + std::to_string(at_ + 1) + ": " + shown(at_) + " where " + std::string(wanted) + " should stand";
    }
    return false;
  }

  /// The text from `from` up to the value's end, or its beginning where it is long.
  std::string shown(std::size_t from) const {
    std::size_t end = from;
    while (end < line_.size() && end - from < kShownMax && line_[end] != ',' && line_[end] != '}' && line_[end] != ']') ++end;
    if (end == from && end < line_.size()) ++end;
    std::string out;
    for (const char c : line_.substr(from, end - from)) out += (c >= ' ' && c != '\x7f') ? c : '?';
    return out;
  }

  bool refuse(Field field, const std::string& value, std::string_view allowed) {
    error_ = "field \"" + std::string(kNames[field]) + "\": " + value + " is not allowed; allowed is " + std::string(allowed);
    return false;
  }

  // Leaves at_ behind the string. Escapes are checked only as far as needed to find its end; no known name has one.
  bool parse_string(std::string_view& out) {
    if (!take('"')) return not_json("a string in quotes");
    const std::size_t first = at_;
    while (!at_end() && line_[at_] != '"') {
      if (static_cast<unsigned char>(line_[at_]) < 0x20) return not_json("a string without control characters");
      at_ += line_[at_] == '\\' ? 2 : 1;
    }
    if (at_end()) {
      at_ = line_.size();
      return not_json("the end of a string");
    }
    out = line_.substr(first, at_ - first);
    ++at_;
    return true;
  }

  bool parse_member() {
    skip_space();
    std::string_view name;
    if (!parse_string(name)) return false;
    skip_space();
    if (!take(':')) return not_json("a colon");
    skip_space();
    for (std::size_t i = 0; i < kFields; ++i) {
      if (name == kNames[i]) return parse_field(static_cast<Field>(i));
    }
    return skip_value(0);
  }

  bool parse_field(Field field) {
    if (seen_[field]) return refuse(field, "a second one in the same line", "one");
    seen_[field] = true;
    switch (field) {
      case timestamp: return parse_integer(field, request_.timestamp_ms, kMaxU64, "a time in ms, an integer that is not negative");
      case input_length: return parse_integer(field, request_.input_tokens, kRequestTokensMax, kTokensAllowed);
      case output_length: return parse_integer(field, request_.output_tokens, kRequestTokensMax, kTokensAllowed);
      case hash_ids: return parse_ids();
      case session: return parse_session();
      case kFields: break;
    }
    return false;
  }

  bool parse_session() {
    if (line_.substr(at_).starts_with("null")) {
      at_ += 4;
      return true;
    }
    std::uint64_t value = 0;
    if (!parse_integer(session, value, kMaxU64, "an integer that is not negative, or null")) return false;
    request_.session = value;
    return true;
  }

  // The one place that decides what an integer is: digits only, no leading zero, and nothing of a fraction or exponent behind them.
  bool parse_integer(Field field, std::uint64_t& out, std::uint64_t max, std::string_view allowed) {
    const std::size_t first = at_;
    if (at_end()) return not_json("a value");
    std::uint64_t value = 0;
    while (at_ < line_.size() && is_digit(line_[at_])) {
      const auto digit = static_cast<unsigned>(line_[at_] - '0');
      if (value > (kMaxU64 - digit) / 10) return refuse(field, shown(first), allowed);
      value = value * 10 + digit;
      ++at_;
    }
    const std::size_t digits = at_ - first;
    // A number that reaches the line's end may have lost digits: the line is cut, whatever the value is.
    if (digits != 0 && at_end()) return not_json("the rest of the object");
    const char after = peek();
    const bool ended = after == ',' || after == '}' || after == ']' || after == ' ' || after == '\t' || after == '\r';
    if (digits == 0 || !ended || (digits > 1 && line_[first] == '0') || value > max) return refuse(field, shown(first), allowed);
    out = value;
    return true;
  }

  bool parse_ids() {
    constexpr std::string_view kAllowed = "a list of integers from 0 to 18446744073709551615, one per page";
    if (at_end()) return not_json("a list");
    if (!take('[')) return refuse(hash_ids, shown(at_), kAllowed);
    skip_space();
    if (take(']')) return true;
    do {
      skip_space();
      std::uint64_t id = 0;
      if (!parse_integer(hash_ids, id, kMaxU64, kAllowed)) return false;
      request_.pages.push_back(id);
      skip_space();
    } while (take(','));
    return take(']') || not_json("a comma or ]");
  }

  bool skip_value(int depth) {
    if (depth > kNestingMax) return not_json("a value nested less deeply");
    const char first = peek();
    if (first == '"') {
      std::string_view ignored;
      return parse_string(ignored);
    }
    if (first == '[' || first == '{') return skip_container(depth, first == '{');
    for (const std::string_view word : {"true", "false", "null"}) {
      if (line_.substr(at_).starts_with(word)) {
        at_ += word.size();
        return true;
      }
    }
    return skip_number();
  }

  bool skip_container(int depth, bool object) {
    const char close = object ? '}' : ']';
    ++at_;
    skip_space();
    if (take(close)) return true;
    do {
      skip_space();
      if (object) {
        std::string_view ignored;
        if (!parse_string(ignored)) return false;
        skip_space();
        if (!take(':')) return not_json("a colon");
        skip_space();
      }
      if (!skip_value(depth + 1)) return false;
      skip_space();
    } while (take(','));
    return take(close) || not_json("a comma or the end of a list or object");
  }

  bool skip_digits() {
    if (!is_digit(peek())) return not_json("a digit");
    while (is_digit(peek())) ++at_;
    return true;
  }

  bool skip_number() {
    take('-');
    if (!is_digit(peek())) return not_json("a value");
    if (!take('0')) skip_digits();
    if (take('.') && !skip_digits()) return false;
    if (peek() == 'e' || peek() == 'E') {
      ++at_;
      if (!take('+')) take('-');
      if (!skip_digits()) return false;
    }
    return true;
  }

  bool check_request() {
    for (const Field field : {timestamp, input_length, output_length, hash_ids}) {
      if (!seen_[field]) {
        error_ = "field \"" + std::string(kNames[field]) +
                 "\" is missing; needed are timestamp, input_length, output_length and hash_ids";
        return false;
      }
    }
    const std::uint64_t full = request_.input_tokens / kTracePageTokens;
    const std::size_t ids = request_.pages.size();
    // One more than the full pages is the partial last page; still more means that the trace has another page size.
    if (ids < full || ids > full + 1) {
      return refuse(hash_ids, std::to_string(ids) + (ids == 1 ? " id" : " ids"),
                    std::to_string(full) + " or " + std::to_string(full + 1) + " of them for input_length " +
                        std::to_string(request_.input_tokens) + ", one per page of 512 tokens");
    }
    request_.pages.resize(full);
    return true;
  }

  static constexpr std::string_view kTokensAllowed = "a number of tokens, an integer from 0 to 1000000000";

  std::string_view line_;
  TraceRequest& request_;
  std::string& error_;
  std::size_t at_ = 0;
  std::array<bool, kFields> seen_{};
};

}  // namespace

bool parse_trace_line(std::string_view line, TraceRequest& request, std::string& error) {
  return LineParser(line, request, error).parse();
}

}  // namespace kvonce::workload
