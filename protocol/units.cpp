// SPDX-License-Identifier: Apache-2.0
#include "protocol/units.hpp"

#include <array>
#include <charconv>
#include <limits>
#include <optional>
#include <span>

namespace kvonce::protocol {
namespace {

// A decimal times a unit can need more than 64 bits before it is known to fit.
__extension__ typedef unsigned __int128 Wide;

constexpr std::uint64_t kMaxU64 = std::numeric_limits<std::uint64_t>::max();
constexpr std::size_t kFractionDigitsMax = 18;  // 10^18 * 2^40 still fits Wide

struct Unit {
  std::string_view name;  // lower case
  std::uint64_t factor;
};

constexpr std::array<Unit, 9> kByteUnits{{{"b", 1},
                                          {"kib", std::uint64_t{1} << 10},
                                          {"mib", std::uint64_t{1} << 20},
                                          {"gib", std::uint64_t{1} << 30},
                                          {"tib", std::uint64_t{1} << 40},
                                          {"kb", 1'000},
                                          {"mb", 1'000'000},
                                          {"gb", 1'000'000'000},
                                          {"tb", 1'000'000'000'000}}};

constexpr std::array<Unit, 6> kTimeUnits{{{"ns", 1},
                                          {"us", 1'000},
                                          {"ms", 1'000'000},
                                          {"s", 1'000'000'000},
                                          {"m", 60'000'000'000},
                                          {"h", 3'600'000'000'000}}};

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

enum class Fault { none, not_a_number, no_unit, bad_unit, not_whole, too_large };

struct Amount {
  std::uint64_t value = 0;
  Fault fault = Fault::none;
};

// digits [ '.' digits ] [ ' ' ] [ unit ]. Exact: no floating point, so that 0.1KiB is refused rather than rounded.
Amount parse_amount(std::string_view text, std::span<const Unit> units, bool unit_needed) {
  std::size_t at = 0;
  Wide whole = 0;
  while (at < text.size() && is_digit(text[at])) {
    whole = whole * 10 + static_cast<unsigned>(text[at++] - '0');
    if (whole > kMaxU64) return {0, Fault::too_large};
  }
  if (at == 0) return {0, Fault::not_a_number};
  Wide fraction = 0;
  Wide fraction_scale = 1;
  if (at < text.size() && text[at] == '.') {
    const std::size_t first = ++at;
    while (at < text.size() && is_digit(text[at])) ++at;
    if (at == first) return {0, Fault::not_a_number};
    std::string_view digits = text.substr(first, at - first);
    while (!digits.empty() && digits.back() == '0') digits.remove_suffix(1);
    if (digits.size() > kFractionDigitsMax) return {0, Fault::not_whole};
    for (const char c : digits) {
      fraction = fraction * 10 + static_cast<unsigned>(c - '0');
      fraction_scale *= 10;
    }
  }
  if (at < text.size() && text[at] == ' ' && at + 1 < text.size()) ++at;
  const std::string unit_name = lower(text.substr(at));
  std::uint64_t factor = 1;
  if (unit_name.empty()) {
    if (unit_needed && (whole != 0 || fraction != 0)) return {0, Fault::no_unit};
  } else {
    factor = 0;
    for (const Unit& unit : units) {
      if (unit.name == unit_name) factor = unit.factor;
    }
    if (factor == 0) return {0, Fault::bad_unit};
  }
  if ((fraction * factor) % fraction_scale != 0) return {0, Fault::not_whole};
  const Wide total = whole * factor + fraction * factor / fraction_scale;
  if (total > kMaxU64) return {0, Fault::too_large};
  return {static_cast<std::uint64_t>(total), Fault::none};
}

std::string quoted(std::string_view text) {
  constexpr std::size_t kShownMax = 80;
  std::string out = "\"";
  for (const char c : text.substr(0, kShownMax)) out += (c >= ' ' && c != '\x7f') ? c : '?';
  out += text.size() > kShownMax ? "...\"" : "\"";
  return out;
}

std::string reason_of(Fault fault, std::string_view whole_of) {
  switch (fault) {
    case Fault::not_a_number: return " does not start with a decimal number";
    case Fault::no_unit: return " has no unit";
    case Fault::bad_unit: return " has an unknown unit";
    case Fault::not_whole: return " is not a whole number of " + std::string(whole_of);
    case Fault::too_large: return " is too large";
    case Fault::none: break;
  }
  return " is out of range";
}

std::string range_of_bytes(std::uint64_t min, std::uint64_t max) {
  return "from " + format_bytes(min) + (max == kMaxU64 ? " up" : " to " + format_bytes(max));
}

ParsedBytes parse_sized(std::string_view shown, std::string_view text, std::uint64_t min, std::uint64_t max, std::string_view what,
                        std::string_view example) {
  const Amount amount = parse_amount(text, kByteUnits, false);
  if (amount.fault == Fault::none && amount.value >= min && amount.value <= max) return {amount.value, {}};
  return {0, quoted(shown) + reason_of(amount.fault, "bytes") + "; allowed is " + std::string(what) + ' ' + range_of_bytes(min, max) +
                 ", as decimal with B, KiB, MiB, GiB, TiB, KB, MB, GB or TB, such as " + std::string(example)};
}

std::string format_duration(std::chrono::nanoseconds duration) {
  const auto count = static_cast<std::uint64_t>(duration.count());
  std::size_t best = 0;
  for (std::size_t i = 0; i < kTimeUnits.size(); ++i) {
    if (count != 0 && count % kTimeUnits[i].factor == 0) best = i;
  }
  return format_count(count / kTimeUnits[best].factor) + ' ' + std::string(kTimeUnits[best].name);
}

}  // namespace

ParsedBytes parse_bytes(std::string_view text, std::uint64_t min, std::uint64_t max) {
  return parse_sized(text, text, min, max, "a size", "64MiB");
}

ParsedBytes parse_rate(std::string_view text, std::uint64_t min, std::uint64_t max) {
  std::string_view amount = text;
  if (amount.ends_with("/s") || amount.ends_with("/S")) amount.remove_suffix(2);
  return parse_sized(text, amount, min, max, "a rate per second", "10GiB/s");
}

ParsedShare parse_share(std::string_view text) {
  std::string_view number = text;
  double scale = 1.0;
  if (number.ends_with('%')) {
    number.remove_suffix(1);
    scale = 100.0;
  }
  double value = 0;
  // from_chars would also take a sign, "inf" and "nan".
  if (!number.empty() && is_digit(number.front())) {
    const auto [end, code] = std::from_chars(number.data(), number.data() + number.size(), value, std::chars_format::fixed);
    if (code == std::errc{} && end == number.data() + number.size() && value >= 0.0 && value <= scale) return {value / scale, {}};
  }
  return {0, quoted(text) + " is not a share; allowed is a decimal from 0 to 1, or from 0% to 100%, such as 0.25"};
}

ParsedCount parse_u64(std::string_view text, std::uint64_t min, std::uint64_t max) {
  std::uint64_t value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code == std::errc{} && end == text.data() + text.size() && value >= min && value <= max) return {value, {}};
  return {0, quoted(text) + " is not allowed; allowed is a decimal integer from " + format_count(min) + " to " + format_count(max)};
}

ParsedDuration parse_duration(std::string_view text, std::chrono::nanoseconds min, std::chrono::nanoseconds max) {
  constexpr auto kMaxNs = static_cast<std::uint64_t>(std::chrono::nanoseconds::max().count());
  Amount amount = parse_amount(text, kTimeUnits, true);
  if (amount.fault == Fault::none && amount.value > kMaxNs) amount.fault = Fault::too_large;
  if (amount.fault == Fault::none) {
    const std::chrono::nanoseconds value{static_cast<std::chrono::nanoseconds::rep>(amount.value)};
    if (value >= min && value <= max) return {value, {}};
  }
  return {{}, quoted(text) + reason_of(amount.fault, "nanoseconds") + "; allowed is a duration from " + format_duration(min) + " to " +
                  format_duration(max) + ", as decimal with ns, us, ms, s, m or h, such as 500ms"};
}

std::string format_bytes(std::uint64_t bytes) {
  constexpr std::array<std::string_view, 5> kNames{"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  while (unit + 1 < kNames.size() && (bytes >> (10 * (unit + 1))) != 0) ++unit;
  const std::uint64_t factor = std::uint64_t{1} << (10 * unit);
  std::uint64_t whole = bytes / factor;
  const std::uint64_t rest = bytes % factor;
  if (rest == 0) return format_count(whole) + ' ' + std::string(kNames[unit]);
  // Rounded to hundredths; rest < 2^40, so 200 * rest does not overflow.
  std::uint64_t hundredths = (rest * 200 + factor) / (2 * factor);
  if (hundredths == 100) {
    hundredths = 0;
    if (++whole == 1024 && unit + 1 < kNames.size()) {
      whole = 1;
      ++unit;
    }
  }
  const std::string digits{static_cast<char>('0' + hundredths / 10), static_cast<char>('0' + hundredths % 10)};
  return format_count(whole) + '.' + digits + ' ' + std::string(kNames[unit]);
}

std::string format_count(std::uint64_t count) {
  std::string out = std::to_string(count);
  for (std::size_t at = out.size(); at > 3;) {
    at -= 3;
    out.insert(at, 1, ',');
  }
  return out;
}

std::string format_count(std::uint64_t count, std::string_view one) {
  return format_count(count) + " " + std::string(one) + (count == 1 ? "" : "s");
}

}  // namespace kvonce::protocol
