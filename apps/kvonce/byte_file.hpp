// SPDX-License-Identifier: Apache-2.0
//
// Files as objects: read whole or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kvonce::apps {

/// A file that is to be an object. "-" is standard input.
class ByteFile {
 public:
  /// Looks at its size; what has none (a pipe) is read here. Empty, or what is wrong with it.
  std::string open(const std::string& path);
  const std::string& path() const { return path_; }
  /// For people.
  std::string name() const { return path_ == "-" ? "standard input" : path_; }
  std::uint64_t bytes() const { return bytes_; }
  /// Fills `to`, which has room for bytes(). Empty, or what is wrong: also that its size has changed.
  std::string read(std::byte* to) const;

 private:
  std::string path_;
  std::uint64_t bytes_ = 0;
  bool kept_ = false;
  std::vector<std::byte> content_;
};

/// "-" is standard output. Empty, or what went wrong.
std::string write_file(const std::string& path, std::span<const std::byte> bytes);

}  // namespace kvonce::apps
