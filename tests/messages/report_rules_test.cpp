// SPDX-License-Identifier: Apache-2.0
//
// What a report's label and counters may be, at the edges of each rule.
#include "messages/report_rules.hpp"

#include <doctest/doctest.h>

#include <string>

#include <kvonce/runtime.hpp>

namespace {

using kvonce::Error;
using kvonce::Reason;
using kvonce::messages::check_report;
using kvonce::messages::Report;

Error with_label(std::string label) { return check_report({std::move(label), {{"x", 1}}}); }
Error with_name(std::string name) { return check_report({"rank 0", {{"first", 1}, {std::move(name), 2}}}); }

bool tells(const Error& error, Reason reason, const std::string& part) {
  return error.reason == reason && error.text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a report's label is 0 to 255 bytes of printable ASCII") {
  CHECK_FALSE(with_label(""));
  CHECK_FALSE(with_label(" rank 3~"));
  CHECK_FALSE(with_label(std::string(255, 'l')));
  CHECK(tells(with_label(std::string(256, 'l')), Reason::bad_argument, "label has 256 bytes: must be at most 255"));
}

TEST_CASE("the name of a report's counter is 1 to 64 bytes of printable ASCII") {
  CHECK_FALSE(with_name("n"));
  CHECK_FALSE(with_name(std::string(64, 'n')));
  CHECK(tells(with_name(""), Reason::bad_argument, "counter has 0 bytes: must be 1 to 64"));
  CHECK(tells(with_name(std::string(65, 'n')), Reason::bad_argument, "counter has 65 bytes"));
}

TEST_CASE("of all bytes, labels and names take those from the space to the tilde") {
  for (int byte = 0; byte < 256; ++byte) {
    CAPTURE(byte);
    const std::string text{'a', static_cast<char>(byte), 'b'};
    const bool printable = byte >= 0x20 && byte <= 0x7e;
    CHECK(static_cast<bool>(with_label(text)) != printable);
    CHECK(static_cast<bool>(with_name(text)) != printable);
  }
}

TEST_CASE("a report has at most 64 counters, and none of them means that its label is forgotten") {
  Report report{"rank 0", {}};
  CHECK_FALSE(check_report(report));
  while (report.counters.size() < kvonce::kMaxReportCounters) report.counters.push_back({"x", report.counters.size()});
  CHECK_FALSE(check_report(report));
  report.counters.push_back({"x", 0});
  CHECK(tells(check_report(report), Reason::too_many, "65 counters: must be at most 64"));
}
