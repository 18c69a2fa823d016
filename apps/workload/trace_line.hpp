// SPDX-License-Identifier: Apache-2.0
//
// One line of a trace: a JSON object with timestamp (ms), input_length and output_length (tokens), hash_ids (one integer per page of 512
// tokens of the prompt; the last page may be partial), and session (an integer, may be absent or null). Other fields are ignored.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "apps/workload/trace_source.hpp"

namespace kvonce::workload {

inline constexpr std::uint64_t kRequestTokensMax = 1'000'000'000;

/// Fills `request`; its pages are the full ones only. False: `error` says which field, which value, and what is allowed.
bool parse_trace_line(std::string_view line, TraceRequest& request, std::string& error);

}  // namespace kvonce::workload
