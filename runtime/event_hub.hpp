// SPDX-License-Identifier: Apache-2.0
//
// Store events on their way to the subscriber: a bounded queue, and a thread that exists while somebody listens.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include <kvonce/runtime.hpp>

#include "protocol/wire.hpp"
#include "runtime/directory.hpp"

namespace kvonce::runtime {

class EventHub {
 public:
  using Callback = std::function<void(std::span<const StoreEvent>)>;

  explicit EventHub(std::shared_ptr<const Directory> directory) : directory_(std::move(directory)) {}
  ~EventHub() { stop(); }
  EventHub(const EventHub&) = delete;
  EventHub& operator=(const EventHub&) = delete;

  /// Never blocks for long: what does not fit is counted and lost.
  void push(std::vector<protocol::ObjectEvent>&& events);
  /// An empty function ends it; returns after the last call of the old one, except when called from within it.
  void subscribe(Callback callback);
  void stop() { subscribe({}); }
  std::uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

 private:
  static constexpr std::size_t kMaxWaiting = 65'536;
  void run(std::uint64_t generation, const Callback& callback);

  const std::shared_ptr<const Directory> directory_;
  std::mutex subscribing_;
  std::mutex mutex_;
  std::condition_variable filled_;
  std::vector<protocol::ObjectEvent> waiting_;
  std::uint64_t generation_ = 0;
  bool listening_ = false;
  std::thread thread_;
  std::atomic<std::uint64_t> dropped_{0};
};

}  // namespace kvonce::runtime
