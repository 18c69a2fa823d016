// SPDX-License-Identifier: Apache-2.0
#include "messages/report_rules.hpp"

#include <algorithm>
#include <string>
#include <string_view>

#include <kvonce/runtime.hpp>

namespace kvonce::messages {

namespace {

// Labels and names end up in terminals and in lists of others' making: no control characters, nothing that needs an encoding.
bool is_printable(std::string_view text) noexcept {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

}  // namespace

Error check_report(const Report& report) {
  if (report.label.size() > kMaxReportLabelBytes || !is_printable(report.label))
    return {Reason::bad_argument, "report: the label has " + std::to_string(report.label.size()) + " bytes: must be at most " +
                                      std::to_string(kMaxReportLabelBytes) + ", all printable ASCII"};
  if (report.counters.size() > kMaxReportCounters)
    return {Reason::too_many, "report: " + std::to_string(report.counters.size()) + " counters: must be at most " +
                                  std::to_string(kMaxReportCounters)};
  for (const ReportCounter& counter : report.counters) {
    if (counter.name.empty() || counter.name.size() > kMaxReportNameBytes || !is_printable(counter.name))
      return {Reason::bad_argument, "report: the name of a counter has " + std::to_string(counter.name.size()) +
                                        " bytes: must be 1 to " + std::to_string(kMaxReportNameBytes) + ", all printable ASCII"};
  }
  return {};
}

}  // namespace kvonce::messages
