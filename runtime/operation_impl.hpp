// SPDX-License-Identifier: Apache-2.0
//
// Inside of the public operations: one result, delivered once, to whoever waits, polls or is called back.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include <kvonce/operation.hpp>

#include "runtime/open_calls.hpp"
#include "transport/mover.hpp"

namespace kvonce::runtime {
class LinkPump;
}  // namespace kvonce::runtime

namespace kvonce {

struct KVONCE_INTERNAL Operation::Impl {
  using TimePoint = std::chrono::steady_clock::time_point;

  Impl(OperationKind kind_, std::uint64_t id_, TimePoint deadline_, Completion completion_)
      : kind(kind_), id(id_), deadline(deadline_), completion(std::move(completion_)) {}

  const OperationKind kind;
  const std::uint64_t id;
  const TimePoint deadline;
  Completion completion;
  /// Asks the owner to end it early; set before the operation is handed out. May find its runtime gone.
  std::function<void()> canceler;
  std::function<void(std::uint32_t)> progress;
  /// A lookup's pages: kept here, so that it can be repeated after a demotion.
  std::vector<PageHash> pages;
  /// Its part of what the runtime may have open.
  runtime::OpenCall open;
  /// Whose copies a thread that waits for this operation takes part in, instead of sleeping.
  std::weak_ptr<transport::Mover> mover;
  /// The link to the store of another process, which such a thread reads meanwhile.
  std::weak_ptr<runtime::LinkPump> pump;

  // Results: written by whoever won claim(), before finish().
  std::vector<PutItemResult> puts;
  std::vector<Reason> loads;
  LookupResult lookup;
  Error error;
  std::uint64_t count = 0;  // succeeded, loaded or removed

  /// True for one caller only: it writes the results, then calls finish().
  bool claim() noexcept { return !claimed_.exchange(true, std::memory_order_acq_rel); }
  bool claimed() const noexcept { return claimed_.load(std::memory_order_acquire); }
  /// Wakes, queues and calls back, in this order.
  void finish() noexcept;
  bool done() const noexcept { return done_.load(std::memory_order_acquire); }
  void advance_layers(std::uint32_t layers) noexcept;
  std::uint32_t layers_done() const noexcept { return layers_done_.load(std::memory_order_acquire); }

  bool wait_until(TimePoint until);
  bool wait_layers_until(std::uint32_t layers, TimePoint until);

 private:
  template <class Ready, class Help>
  void pump_link(runtime::LinkPump& link, TimePoint until, const Ready& ready, const Help& help);
  template <class Ready>
  bool wait_for_ready(TimePoint until, const Ready& ready);
  // Operations that lend no rows may be ended by their waiter when the deadline has passed.
  bool end_overdue() noexcept;

  std::atomic<bool> claimed_{false};
  std::atomic<bool> done_{false};
  std::atomic<std::uint32_t> layers_done_{0};
  template <class Ready>
  bool sleep_until_ready(TimePoint until, const Ready& ready, transport::Mover* copies);
  void wake_sleepers() noexcept;

  std::atomic<std::uint32_t> sleepers_{0};
  std::atomic<std::uint32_t> helpers_{0};  // of these, asleep in the mover
  std::mutex mutex_;
  std::condition_variable changed_;
};

/// True on a thread that is inside a completion or progress callback: nothing may be waited for there.
bool in_callback() noexcept;

struct KVONCE_INTERNAL CompletionQueue::Impl {
  explicit Impl(std::size_t limit_);
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  void push(const Entry& entry) noexcept;

  const std::size_t limit;
  std::mutex mutex;
  std::condition_variable filled;
  std::vector<Entry> ring;  // grows up to limit
  std::size_t first = 0;
  std::size_t count = 0;
  std::atomic<std::uint64_t> dropped{0};
  int fd = -1;
};

}  // namespace kvonce
