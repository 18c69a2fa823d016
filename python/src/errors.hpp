// SPDX-License-Identifier: Apache-2.0
// Errors of the C++ API become exceptions with the fields `reason` and `text`.
#pragma once

#include <chrono>
#include <string>

#include <kvonce/runtime.hpp>

#include "python/src/process.hpp"

namespace kvonce::python {

/// Raises the class that fits error.reason; the lock must be held.
[[noreturn]] void raise(const Error& error);
[[noreturn]] void raise_bad(const std::string& text);
[[noreturn]] void raise_closed(const char* what);
[[noreturn]] void raise_forked();

inline void check(const Error& error) {
  if (error) raise(error);
}

/// A number as people write it: 0.05, 1e+300.
std::string number_text(double number);

inline constexpr double kMostSeconds = 1e9;
inline constexpr const char* kAnyTime = "0 to 1,000,000,000";

/// Seconds to milliseconds, rounded up; raises BadArgument. `what` names the argument, `allowed` what the call takes: the most calls
/// refuse by themselves what is finite and not theirs.
std::chrono::milliseconds milliseconds(double seconds, const char* what, const char* allowed = "0.001 to 3,600");

void bind_errors(nb::module_& module);

}  // namespace kvonce::python
