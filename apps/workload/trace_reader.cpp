// SPDX-License-Identifier: Apache-2.0
#include "apps/workload/trace_reader.hpp"

#include <cstring>

#include "apps/workload/trace_line.hpp"

namespace kvonce::workload {
namespace {

constexpr std::size_t kReadBytes = 256 * 1024;

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r") == std::string_view::npos; }

}  // namespace

TraceReader::TraceReader(std::unique_ptr<ByteSource> bytes, std::string name) : bytes_(std::move(bytes)), name_(std::move(name)) {}

std::optional<TraceRequest> TraceReader::next() {
  std::string_view line;
  while (!done_) {
    const Line result = read_line(line);
    if (result != Line::got) {
      done_ = true;
      if (result == Line::end && requests_ == 0) error_ = name_ + ": holds no request; needed is one JSON object a line";
      break;
    }
    ++line_number_;
    if (is_blank(line)) continue;
    TraceRequest request;
    std::string problem;
    if (parse_trace_line(line, request, problem)) problem = chains_.add(request.pages);
    if (problem.empty()) {
      ++requests_;
      return request;
    }
    done_ = true;
    error_ = name_ + ':' + std::to_string(line_number_) + ": " + problem;
  }
  return std::nullopt;
}

TraceReader::Line TraceReader::read_line(std::string_view& line) {
  std::size_t searched = 0;
  for (;;) {
    const char* first = buffer_.data() + used_;
    const std::size_t size = filled_ - used_;
    const void* newline = size == searched ? nullptr : std::memchr(first + searched, '\n', size - searched);
    if (newline != nullptr) {
      const auto length = static_cast<std::size_t>(static_cast<const char*>(newline) - first);
      line = std::string_view(first, length);
      used_ += length + 1;
      return Line::got;
    }
    if (input_ended_) {
      if (size == 0) return Line::end;
      line = std::string_view(first, size);
      used_ = filled_;
      return Line::got;
    }
    if (size > kTraceLineBytesMax) {
      error_ = name_ + ':' + std::to_string(line_number_ + 1) + ": the line is longer than 64 MiB; needed is one request a line";
      return Line::failed;
    }
    searched = size;
    if (fill() == Line::failed) return Line::failed;
  }
}

TraceReader::Line TraceReader::fill() {
  // Moves the begun line to the front, so that the buffer grows only to the longest line.
  if (used_ != 0) {
    std::memmove(buffer_.data(), buffer_.data() + used_, filled_ - used_);
    filled_ -= used_;
    used_ = 0;
  }
  if (buffer_.size() < filled_ + kReadBytes) buffer_.resize(2 * filled_ + kReadBytes);
  const std::size_t got = bytes_->read(buffer_.data() + filled_, buffer_.size() - filled_);
  filled_ += got;
  if (got != 0) return Line::got;
  if (!bytes_->error().empty()) {
    error_ = bytes_->error() + " (after line " + std::to_string(line_number_) + ')';
    return Line::failed;
  }
  input_ended_ = true;
  return Line::end;
}

OpenedTrace open_trace_file(std::string_view path) {
  OpenedBytes bytes = open_bytes(path);
  if (!bytes.source) return {nullptr, std::move(bytes.error)};
  std::string name = path == "-" ? "standard input" : std::string(path);
  return {std::make_unique<TraceReader>(std::move(bytes.source), std::move(name)), {}};
}

}  // namespace kvonce::workload
