// SPDX-License-Identifier: Apache-2.0
//
// Reads a trace line by line. Of what was read only the different ids are kept, to see whether they are chained.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "apps/workload/byte_source.hpp"
#include "apps/workload/page_chains.hpp"
#include "apps/workload/trace_source.hpp"

namespace kvonce::workload {

inline constexpr std::size_t kTraceLineBytesMax = std::size_t{64} << 20;

/// Blank lines are skipped. Reading stops for good at the first line that is not a request: nothing is left out in silence. Its error has
/// the file, the line's number, the field, the value and what is allowed. A file without any request is an error too.
class TraceReader final : public TraceSource {
public:
  TraceReader(std::unique_ptr<ByteSource> bytes, std::string name);

  std::optional<TraceRequest> next() override;
  const std::string& error() const override { return error_; }

private:
  enum class Line { got, end, failed };
  Line read_line(std::string_view& line);
  Line fill();

  std::unique_ptr<ByteSource> bytes_;
  std::string name_;
  std::string buffer_;    // what was read and not yet used lies from used_ to filled_
  std::size_t used_ = 0;
  std::size_t filled_ = 0;
  PageChains chains_;
  std::size_t line_number_ = 0;
  std::size_t requests_ = 0;
  bool input_ended_ = false;
  bool done_ = false;
  std::string error_;
};

/// `path`: "-" is standard input, a name in .xz is decompressed. A file that cannot be opened is told here, anything else by the source.
OpenedTrace open_trace_file(std::string_view path);

}  // namespace kvonce::workload
