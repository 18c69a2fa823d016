// SPDX-License-Identifier: Apache-2.0
#include "protocol/units.hpp"

#include <limits>

#include <doctest/doctest.h>

using namespace kvonce::protocol;
using namespace std::chrono_literals;

namespace {
constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();

void check_bytes(std::string_view text, std::uint64_t expected) {
  CAPTURE(text);
  const auto parsed = parse_bytes(text, 0, kMax);
  CHECK_MESSAGE(parsed, parsed.error);
  CHECK(parsed.value == expected);
}

template <class T>
void check_refused(std::string_view text, const Parsed<T>& parsed) {
  CAPTURE(text);
  REQUIRE_FALSE(parsed);
  CHECK(parsed.error.find('"' + std::string(text) + '"') != std::string::npos);
  CHECK(parsed.error.find("allowed is") != std::string::npos);
}
}  // namespace

TEST_CASE("sizes are decimal numbers with an optional unit in either case") {
  check_bytes("0", 0);
  check_bytes("65536", 65536);
  check_bytes("7B", 7);
  check_bytes("64KiB", 65536);
  check_bytes("64 kib", 65536);
  check_bytes("1.5GiB", 1'610'612'736);
  check_bytes("1.50 GIB", 1'610'612'736);
  check_bytes("0.0009765625KiB", 1);
  check_bytes("2TiB", std::uint64_t{2} << 40);
  check_bytes("3MiB", 3 << 20);
  check_bytes("1KB", 1000);
  check_bytes("1.001kb", 1001);
  check_bytes("2MB", 2'000'000);
  check_bytes("3GB", 3'000'000'000);
  check_bytes("4tb", 4'000'000'000'000);
  check_bytes("2.0", 2);
  check_bytes("18446744073709551615", kMax);
}

TEST_CASE("what is no size is refused with the value and what is allowed") {
  for (const std::string_view text : {"", " ", "-1", "+1", "0x10", "12abc", "1.5", "1.5B", "0.1KiB", "nan", "inf", "1e9", "1.", ".5", " 1", "1 ",
                                      "1  KiB", "1KiB ", "1K", "1KiBs", "1,000", "18446744073709551616", "99999999999999999999999999",
                                      "16777216TiB", "0.0000000000000000001TiB"}) {
    check_refused(text, parse_bytes(text, 0, kMax));
  }
}

TEST_CASE("the limits of a size are inclusive and named") {
  CHECK(parse_bytes("4KiB", 4096, 8192));
  CHECK(parse_bytes("8192", 4096, 8192));
  check_refused("4095", parse_bytes("4095", 4096, 8192));
  const auto parsed = parse_bytes("8193", 4096, 8192);
  REQUIRE_FALSE(parsed);
  CHECK(parsed.error.find("from 4 KiB to 8 KiB") != std::string::npos);
}

TEST_CASE("an unprintable or endless value is shown safely") {
  CHECK(parse_bytes("1\n2", 0, kMax).error.starts_with("\"1?2\""));
  CHECK(parse_bytes(std::string(5000, '9'), 0, kMax).error.size() < 400);
}

TEST_CASE("rates are sizes per second") {
  CHECK(parse_rate("10GiB/s", 1, kMax).value == std::uint64_t{10} << 30);
  CHECK(parse_rate("10 MB", 1, kMax).value == 10'000'000);
  for (const std::string_view text : {"", "/s", "10GiB/m", "10GiB/s/s", "-1/s", "0/s"}) check_refused(text, parse_rate(text, 1, kMax));
}

TEST_CASE("shares lie between 0 and 1") {
  CHECK(parse_share("0").value == 0.0);
  CHECK(parse_share("0.25").value == 0.25);
  CHECK(parse_share("1.0").value == 1.0);
  CHECK(parse_share("25%").value == 0.25);
  CHECK(parse_share("1").value == 1.0);
  for (const std::string_view text : {"", "%", "-0", "-0.1", "1.01", "101%", "nan", "inf", "1e-3", "0.5x", "0x1", ".5"}) {
    check_refused(text, parse_share(text));
  }
}

TEST_CASE("counts are plain integers within their limits") {
  CHECK(parse_u64("0", 0, 10).value == 0);
  CHECK(parse_u64("10", 0, 10).value == 10);
  CHECK(parse_u64("18446744073709551615", 0, kMax).value == kMax);
  for (const std::string_view text : {"", "-1", "+1", "11", "0x1", "1.0", "5 ", "18446744073709551616"}) check_refused(text, parse_u64(text, 0, 10));
}

TEST_CASE("durations need a unit") {
  CHECK(parse_duration("0", 0ns, 1h).value == 0ns);
  CHECK(parse_duration("500ms", 0ns, 1h).value == 500ms);
  CHECK(parse_duration("10s", 0ns, 1h).value == 10s);
  CHECK(parse_duration("2m", 0ns, 1h).value == 2min);
  CHECK(parse_duration("1h", 0ns, 1h).value == 1h);
  CHECK(parse_duration("1.5 us", 0ns, 1h).value == 1500ns);
  CHECK(parse_duration("7ns", 0ns, 1h).value == 7ns);
  for (const std::string_view text : {"", "10", "-1s", "1.5ns", "61m", "1d", "infs", "nan", "9223372036854775808ns", "99999999999999h"}) {
    check_refused(text, parse_duration(text, 0ns, 1h));
  }
  CHECK(parse_duration("1ms", 5ms, 2min).error.find("from 5 ms to 2 m") != std::string::npos);
}

TEST_CASE("bytes and counts are written for people") {
  CHECK(format_bytes(0) == "0 B");
  CHECK(format_bytes(1023) == "1,023 B");
  CHECK(format_bytes(65536) == "64 KiB");
  CHECK(format_bytes(1'610'612'736) == "1.50 GiB");
  CHECK(format_bytes(1'048'575) == "1.00 MiB");
  CHECK(format_bytes(1'610'612'737) == "1.50 GiB");
  CHECK(format_bytes(1025) == "1.00 KiB");
  CHECK(format_bytes((std::uint64_t{5} << 40) + (std::uint64_t{1} << 38)) == "5.25 TiB");
  CHECK(format_bytes(kMax) == "16,777,216.00 TiB");
  CHECK(format_count(0) == "0");
  CHECK(format_count(999) == "999");
  CHECK(format_count(1000) == "1,000");
  CHECK(format_count(11'767'283) == "11,767,283");
}
