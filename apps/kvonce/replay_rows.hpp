// SPDX-License-Identifier: Apache-2.0
//
// The memory of one rank in a replay: for each pool, rows of one object each, as an engine has in its device memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace kvonce::apps {

class ReplayRows {
 public:
  /// Rows are not initialised: what is announced is written first, what is loaded is overwritten.
  ReplayRows(std::uint64_t object_bytes, std::uint64_t rows)
      : object_bytes_(object_bytes),
        stride_((object_bytes + kAlignment - 1) / kAlignment * kAlignment),
        rows_(rows),
        memory_(static_cast<std::byte*>(::operator new (stride_* rows, std::align_val_t{kAlignment}))) {}

  std::byte* row(std::uint64_t index) noexcept { return memory_.get() + index * stride_; }
  std::uint64_t object_bytes() const noexcept { return object_bytes_; }
  std::uint64_t stride() const noexcept { return stride_; }
  std::uint64_t rows() const noexcept { return rows_; }

 private:
  static constexpr std::size_t kAlignment = 64;
  struct Free {
    void operator()(std::byte* memory) const noexcept { ::operator delete (memory, std::align_val_t{kAlignment}); }
  };
  std::uint64_t object_bytes_;
  std::uint64_t stride_;
  std::uint64_t rows_;
  std::unique_ptr<std::byte, Free> memory_;
};

}  // namespace kvonce::apps
