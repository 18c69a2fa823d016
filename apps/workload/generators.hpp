// SPDX-License-Identifier: Apache-2.0
//
// Unlimited request streams shaped like recorded traffic. The seed alone decides them. Page ids count up from 0 in order of first use.
#pragma once

#include <cstdint>
#include <memory>

#include "apps/workload/trace_source.hpp"

namespace kvonce::workload {

/// Many short conversations, some hundreds at a time, that share one page of system prompt. An infinite store hits about 37 % of the tokens.
std::unique_ptr<TraceSource> make_chat_generator(std::uint64_t seed);

/// Fourteen coding-agent sessions at a time: many turns each, a growing prefix, a large system prompt with tools that sessions share, now and
/// then a context that is cut back and continued otherwise. About 240 pages a prompt; an infinite store hits about 96 % of the tokens.
std::unique_ptr<TraceSource> make_agentic_generator(std::uint64_t seed);

}  // namespace kvonce::workload
