// SPDX-License-Identifier: Apache-2.0
//
// A stream of bytes from a file, an .xz file or standard input.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace kvonce::workload {

class ByteSource {
public:
  ByteSource() = default;
  ByteSource(const ByteSource&) = delete;
  ByteSource& operator=(const ByteSource&) = delete;
  virtual ~ByteSource() = default;

  /// Fills up to `size` bytes. 0 is the end, or an error when error() is not empty.
  virtual std::size_t read(char* out, std::size_t size) = 0;
  virtual const std::string& error() const = 0;
};

struct OpenedBytes {
  std::unique_ptr<ByteSource> source;  // null exactly when error is set
  std::string error;
};

/// "-" is standard input; a name that ends in .xz is decompressed. Errors name the path and the system's reason.
OpenedBytes open_bytes(std::string_view path);

}  // namespace kvonce::workload
