// SPDX-License-Identifier: Apache-2.0
//
// A thread that waits for what the store has to say reads the link itself, instead of sleeping until the link's own thread has
// been woken for it. While it does, the store rings no bell.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "runtime/actor_host.hpp"
#include "transport/link.hpp"

namespace kvonce::runtime {

class LinkPump {
 public:
  LinkPump(std::shared_ptr<transport::Link> link, ActorHost& host) : link_(std::move(link)), host_(host) {}

  /// From here to end() the calling thread has to ask work() again and again.
  void begin() { link_->cancel_sleep(); }
  /// True when something was done.
  bool work() { return host_.read(*link_) > 0; }
  /// What comes from here on rings the bell for the link's own thread.
  void end() {
    while (!link_->prepare_sleep()) {
      // Something has come meanwhile. Who reads it now, this thread or another one, looks again before it sleeps.
      if (host_.read(*link_) < 0) break;
    }
  }
  /// Whether it has paid off lately to look for longer than a moment.
  bool worth_spinning() noexcept {
    const int credit = credit_.load(std::memory_order_relaxed);
    if (credit > 0) return true;
    // Now and then all the same: times change.
    return tries_.fetch_add(1, std::memory_order_relaxed) % 32 == 0;
  }
  void spun(bool paid) noexcept {
    const int credit = credit_.load(std::memory_order_relaxed);
    credit_.store(paid ? (credit < kMostCredit ? credit + 1 : credit) : (credit > 0 ? credit - 1 : 0), std::memory_order_relaxed);
  }

 private:
  static constexpr int kMostCredit = 8;
  std::shared_ptr<transport::Link> link_;
  ActorHost& host_;
  std::atomic<int> credit_{kMostCredit};
  std::atomic<unsigned> tries_{0};
};

}  // namespace kvonce::runtime
