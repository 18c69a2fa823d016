// SPDX-License-Identifier: Apache-2.0
//
// What a process may tell its store of its own counters: checked where the report is made, and again by the store that gets it.
#pragma once

#include <kvonce/types.hpp>

#include "messages/frames.hpp"

namespace kvonce::messages {

/// Empty, or bad_argument (label, names) or too_many (counters) with what is wrong and what is allowed: see Runtime::report.
Error check_report(const Report& report);

}  // namespace kvonce::messages
