// SPDX-License-Identifier: Apache-2.0
//
// What the calls of one runtime that are not answered yet may hold: whoever asks faster than the store answers is told so, and
// does not fill this process's memory with what waits.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include <kvonce/runtime.hpp>

namespace kvonce::runtime {

class OpenCalls {
 public:
  static constexpr std::uint64_t kMaxPages = kMaxOpenItems;               // 32 MiB of hashes
  static constexpr std::uint64_t kLeastPages = kMaxPages / kMaxOpenCalls;  // what a small call counts as

  bool take(std::uint64_t pages) noexcept {
    if (open_.fetch_add(pages, std::memory_order_relaxed) + pages <= kMaxPages) return true;
    give_back(pages);
    return false;
  }
  void give_back(std::uint64_t pages) noexcept { open_.fetch_sub(pages, std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> open_{0};
};

/// One call's part of it, until end() or its own end.
class OpenCall {
 public:
  OpenCall() = default;
  ~OpenCall() { end(); }
  OpenCall(const OpenCall&) = delete;
  OpenCall& operator=(const OpenCall&) = delete;

  bool begin(const std::shared_ptr<OpenCalls>& calls, std::uint64_t pages) noexcept {
    const std::uint64_t counted = std::max(pages, OpenCalls::kLeastPages);
    if (!calls->take(counted)) return false;
    calls_ = calls;
    pages_ = counted;
    return true;
  }
  void end() noexcept {
    if (const auto calls = std::exchange(calls_, nullptr)) calls->give_back(pages_);
  }

 private:
  std::shared_ptr<OpenCalls> calls_;
  std::uint64_t pages_ = 0;
};

}  // namespace kvonce::runtime
