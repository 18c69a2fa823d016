// SPDX-License-Identifier: Apache-2.0
//
// Where a replay gets its requests from: a trace file or a built-in generator.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvonce::workload {

/// Tokens per page of a trace, whatever the page of the model is.
inline constexpr std::uint64_t kTracePageTokens = 512;

struct TraceRequest {
  std::uint64_t timestamp_ms = 0;
  std::uint64_t input_tokens = 0;
  std::uint64_t output_tokens = 0;
  /// One id per full page of the prompt: input_tokens / kTracePageTokens of them. Equal ids mean equal content of the page and of all
  /// before it.
  std::vector<std::uint64_t> pages;
  std::optional<std::uint64_t> session;
};

/// A stream of requests in the order of their arrival. Not thread-safe.
class TraceSource {
public:
  TraceSource() = default;
  TraceSource(const TraceSource&) = delete;
  TraceSource& operator=(const TraceSource&) = delete;
  virtual ~TraceSource() = default;

  /// The next request; nothing at the end or at an error, and from then on. error() tells which.
  virtual std::optional<TraceRequest> next() = 0;
  /// Empty as long as nothing was wrong.
  virtual const std::string& error() const = 0;
};

struct OpenedTrace {
  std::unique_ptr<TraceSource> source;  // null exactly when error is set
  std::string error;
};

/// "builtin:chat" and "builtin:agentic" (unlimited, decided by the seed alone), "-" (standard input), or a path of JSON lines, plain or .xz.
OpenedTrace open_trace(std::string_view spec, std::uint64_t seed);

}  // namespace kvonce::workload
