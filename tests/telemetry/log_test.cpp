// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <string>

#include "telemetry/log.hpp"

namespace kvonce::telemetry {

namespace {

std::string in_utf8(unsigned code) {
  const auto byte = [](unsigned value) { return static_cast<char>(value); };
  if (code < 0x80) return {byte(code)};
  if (code < 0x800) return {byte(0xc0 | code >> 6), byte(0x80 | (code & 0x3f))};
  return {byte(0xe0 | code >> 12), byte(0x80 | (code >> 6 & 0x3f)), byte(0x80 | (code & 0x3f))};
}

bool is_to_be_escaped(unsigned code) {
  return code < 0x20 || (code >= 0x7f && code <= 0x9f) || code == 0x61c || (code >= 0x200b && code <= 0x200f) ||
         (code >= 0x2028 && code <= 0x202e) || (code >= 0x2060 && code <= 0x206f);
}

}  // namespace

TEST_CASE("what a terminal would obey is shown as bytes, and all other characters as they are") {
  for (unsigned code = 0; code <= 0x3000; ++code) {
    const std::string shown = printable("<" + in_utf8(code) + ">");
    CAPTURE(code);
    CHECK((shown == "<" + in_utf8(code) + ">") != is_to_be_escaped(code));
  }
  CHECK(printable("\xc2\x9b") == "\\xc2\\x9b");
  CHECK(printable("a\xe2\x80\xae"
                  "b") ==
        "a\\xe2\\x80\\xae"
        "b");
  CHECK(printable("\xf0\x9f\x98\x80") == "\xf0\x9f\x98\x80");
}

TEST_CASE("bytes that are no UTF-8 are shown one by one") {
  CHECK(printable("\xff") == "\\xff");
  CHECK(printable("\xc3") == "\\xc3");
  CHECK(printable("\xe2\x80"
                  "x") == "\\xe2\\x80x");
  CHECK(printable("\xc0\xaf") == "\\xc0\\xaf");           // a longer form of /
  CHECK(printable("\xed\xa0\x80") == "\\xed\\xa0\\x80");  // half of a pair
  CHECK(printable("\xf4\x90\x80\x80") == "\\xf4\\x90\\x80\\x80");
}

TEST_CASE("in JSON the same characters are escapes of JSON, and what stands between the values stays") {
  CHECK(escaped_json("{\n  \"a\": \"\xc2\x9b\xe2\x80\xae\xc3\xa4\x7f\"\n}\n") ==
        "{\n  \"a\": \"\\u009b\\u202e\xc3\xa4\\u007f\"\n}\n");
  for (unsigned code = 0x20; code <= 0x3000; ++code) {
    CAPTURE(code);
    CHECK((escaped_json(in_utf8(code)) == in_utf8(code)) != is_to_be_escaped(code));
  }
  CHECK(escaped_json("\xf3\xa0\x81\x81\xef\xbb\xbf") == "\\udb40\\udc41\\ufeff");  // what nothing is shown for
  CHECK(escaped_json("\xff") == "\xff");
}

}  // namespace kvonce::telemetry
