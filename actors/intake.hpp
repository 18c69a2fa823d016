// SPDX-License-Identifier: Apache-2.0
//
// How much of what clients have sent waits in the StoreActors' mailboxes. The link server takes frames faster than a store
// answers them; without a bound whoever sends most would fill the mailboxes, and everybody else would stand in line behind that.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "messages/local.hpp"

namespace kvonce::actors {

/// Beyond, no more frames are taken from anybody until the store has caught up. The last message may go beyond by its own size.
struct IntakeLimits {
  std::uint64_t messages = 512;
  std::uint64_t bytes = 4U << 20U;
};

class Intake : public std::enable_shared_from_this<Intake> {
 public:
  Intake(std::size_t partitions, IntakeLimits limits) : limits_(limits), parts_(partitions) {}

  /// A message to a partition, of so many bytes. True: send it a mark() after it. On the link server's thread.
  bool count(std::uint32_t partition, std::uint64_t bytes) {
    Part& part = parts_[partition];
    ++part.messages;
    part.bytes += bytes;
    return part.messages >= std::max<std::uint64_t>(limits_.messages / kMarks, 1) || part.bytes >= limits_.bytes / kMarks;
  }
  /// Goes into the partition's mailbox: when it is taken out, or the mailbox has ended, what came before has been dealt with.
  messages::IntakeMark mark(std::uint32_t partition) {
    parts_[partition].messages = parts_[partition].bytes = 0;
    parts_[partition].marks.fetch_add(1, std::memory_order_relaxed);
    return {std::shared_ptr<void>(nullptr, [self = shared_from_this(), partition](void*) { self->reached(partition); })};
  }
  /// On the link server's thread. True: the wake function will be called when it may have become false.
  bool full() {
    if (!any_full()) return false;
    waited_for_.store(true);
    if (any_full()) return true;
    waited_for_.store(false);
    return false;
  }
  /// Called by whoever handles a mark; empty: by nobody any more, once this returns.
  void set_wake(std::function<void()> wake) {
    const std::lock_guard lock(mutex_);
    wake_ = std::move(wake);
  }

 private:
  static constexpr std::uint32_t kMarks = 4;

  struct Part {
    std::uint64_t messages = 0;  // since the last mark; these two are the link server's
    std::uint64_t bytes = 0;
    std::atomic<std::uint32_t> marks{0};  // in the mailbox
  };

  bool any_full() const {
    return std::any_of(parts_.begin(), parts_.end(), [](const Part& part) { return part.marks.load() >= kMarks; });
  }
  void reached(std::uint32_t partition) noexcept {
    parts_[partition].marks.fetch_sub(1);
    if (!waited_for_.load() || !waited_for_.exchange(false)) return;
    const std::lock_guard lock(mutex_);
    if (wake_) wake_();
  }

  const IntakeLimits limits_;
  std::vector<Part> parts_;
  std::atomic<bool> waited_for_{false};
  std::mutex mutex_;  // of wake_
  std::function<void()> wake_;
};

}  // namespace kvonce::actors
