// SPDX-License-Identifier: Apache-2.0
//
// Inside of the mover: its queue, and the copying itself. Everybody else includes mover.hpp.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "transport/mover.hpp"

namespace kvonce::transport {

// Several operations that one fence waits for.
struct FenceWait {
  std::atomic<std::size_t> open{0};
  std::function<void()> closed;
};

// Items [item, end) of an operation that one thread has claimed, and how far it is in the first of them. What comes
// before `item` and after `unsettled` is copied and waits for its verdict.
struct Claim {
  std::size_t unsettled = 0;
  std::size_t item = 0;
  std::size_t end = 0;
  std::uint32_t range = 0;
  std::uint64_t offset = 0;  // bytes of the range that are copied
  RangeHash hash;
};

class MoverOperation final : public Operation {
 public:
  MoverOperation(CopyBatch&& batch, std::weak_ptr<MoverState> home);
  void cancel() override;

 private:
  friend class MoverState;
  const std::weak_ptr<MoverState> home_;
  std::size_t claim_items_ = 1;              // items taken at once: about a slice
  std::size_t turn_claims_ = 0;              // taken in a row; under the state's mutex
  std::atomic<std::size_t> items_left_;      // without a final status
  std::atomic<std::size_t> told_{0};         // items reported by `progress`
  std::atomic<std::size_t> tasks_queued_{0};
  std::size_t next_item_ = 0;                        // first unclaimed; under the state's mutex
  std::vector<std::shared_ptr<FenceWait>> fences_;  // under the state's mutex
};

using OperationPtr = std::shared_ptr<MoverOperation>;

class MoverState : public std::enable_shared_from_this<MoverState> {
 public:
  explicit MoverState(MoverConfig config);

  Submitted submit(CopyBatch&& batch);
  Submitted run_inline(CopyBatch&& batch);
  void fence(PeerId peer, std::function<void()> closed);
  // What every thread of the mover does until it is stopped.
  void thread_main();
  bool help();
  bool wait_to_help(TimePoint until, const void* waits_for, const std::function<bool()>& done);
  void wake_helpers(const void* waits_for);
  void stop();
  void wake();
  MoverStats stats() const;

 private:
  // A piece of work in the queue: the unclaimed items of an operation, or a claim to go on with.
  struct Task {
    OperationPtr operation;
    std::unique_ptr<Claim> claim;
  };
  enum class Outcome : std::uint8_t { settled, put_back };
  // A thread in wait_to_help. Each has its own bell: what one waits for is no reason to wake the others.
  struct Helper {
    const void* waits_for = nullptr;
    bool called = false;
    std::condition_variable bell;
  };

  TimePoint now() const { return config_.now ? config_.now() : std::chrono::steady_clock::now(); }
  // `pending`: go on.
  CopyStatus stop_reason(const MoverOperation& operation, TimePoint time) const;

  OperationPtr accept(CopyBatch&& batch, Submitted& answer);
  void event_fired();

  // Queue; all under mutex_.
  Refusal admit(const CopyBatch& batch);
  void enter(const OperationPtr& operation);
  void push(Task task);
  bool pop(Task& task);
  void sweep(TimePoint time);
  void check_events(std::unique_lock<std::mutex>& lock);
  void sleep(std::unique_lock<std::mutex>& lock);
  void note_deadline(TimePoint deadline);
  bool work_for_more() const;
  void call_helper();

  // Copying; without the mutex.
  Outcome work(MoverOperation& operation, Claim& claim, bool may_put_back);
  std::size_t copy_some(MoverOperation& operation, Claim& claim, std::size_t budget) const;
  void settle(MoverOperation& operation, Claim& claim, CopyStatus reason);
  void complete(MoverOperation& operation);
  bool others_wait(const MoverOperation& operation) const;

  MoverConfig config_;  // not changed after construction
  std::atomic<bool> stopping_{false};
  std::atomic<std::size_t> tasks_queued_{0};  // size of queue_, for a look without the lock
  std::atomic<std::size_t> parked_count_{0};  // size of parked_, likewise

  std::mutex mutex_;
  std::condition_variable work_to_do_;
  std::deque<Task> queue_;
  std::vector<OperationPtr> parked_;  // their event has not fired yet
  std::unordered_multimap<PeerId, OperationPtr> by_peer_;
  TimePoint next_deadline_ = TimePoint::max();  // no operation queued or parked has an earlier one
  TimePoint watched_until_ = TimePoint::max();  // a sleeping thread wakes by itself no later than this
  std::size_t open_ = 0;                        // accepted and not finished
  std::size_t entering_ = 0;                    // of these, neither queued nor parked yet
  unsigned sleeping_ = 0;
  unsigned spinning_ = 0;
  std::vector<Helper*> helpers_;  // the last one came last
  bool sweep_asked_ = false;  // something was canceled
  bool event_fired_ = false;  // a parked operation may be ready
  bool polling_ = false;      // a parked operation has a polled event

  std::atomic<std::uint64_t> batches_accepted_{0};
  std::atomic<std::uint64_t> batches_refused_{0};
  std::atomic<std::uint64_t> bytes_copied_{0};
};

}  // namespace kvonce::transport
