// SPDX-License-Identifier: Apache-2.0
//
// Sizes, rates, shares, counts and durations as people write them, and back. Parsing is strict: no sign, no exponent, no hexadecimal,
// nothing left over; what is not understood is refused by a text that names the value and what is allowed.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace kvonce::protocol {

/// Either a value (error is empty) or an error that can be shown as it is.
template <class T>
struct Parsed {
  T value{};
  std::string error;
  explicit operator bool() const noexcept { return error.empty(); }
};
using ParsedBytes = Parsed<std::uint64_t>;
using ParsedCount = Parsed<std::uint64_t>;
using ParsedShare = Parsed<double>;
using ParsedDuration = Parsed<std::chrono::nanoseconds>;

/// Bytes: "65536", "64KiB", "1.5 GiB", "2 TB". Units B, KiB, MiB, GiB, TiB (powers of 1,024), KB, MB, GB, TB (powers of 1,000), in either
/// case. A fraction must come out as whole bytes. min and max are inclusive.
ParsedBytes parse_bytes(std::string_view text, std::uint64_t min, std::uint64_t max);

/// Bytes per second: as parse_bytes, with or without "/s" at the end.
ParsedBytes parse_rate(std::string_view text, std::uint64_t min, std::uint64_t max);

/// A share from 0 to 1, also as per cent: "0.25", "25%".
ParsedShare parse_share(std::string_view text);

/// A decimal integer from min to max (inclusive).
ParsedCount parse_u64(std::string_view text, std::uint64_t min, std::uint64_t max);

/// A duration with a unit: ns, us, ms, s, m (minutes), h; "0" needs none. Whole nanoseconds; min and max are inclusive and not negative.
ParsedDuration parse_duration(std::string_view text, std::chrono::nanoseconds min, std::chrono::nanoseconds max);

/// "0 B", "1,023 B", "64 KiB", "1.50 GiB": up to two decimals, none where the value is whole in its unit.
std::string format_bytes(std::uint64_t bytes);

/// Thousands set apart: "11,767,283".
std::string format_count(std::uint64_t count);
/// "1 object", "2 objects".
std::string format_count(std::uint64_t count, std::string_view one);

}  // namespace kvonce::protocol
