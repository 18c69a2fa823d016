// SPDX-License-Identifier: Apache-2.0
// Caller-runs: a plain thread runs the actors that its own message wakes, instead of waking a worker of the scheduler for them.
//
//   auto unit = CallerUnit::borrow(system);
//   unit->tell(pool, PutBatch{...});      // queues the pool actor with this unit, if it was idle
//   unit->run({.jobs_max = 16});          // runs it, and the actors it sends to, on this thread
//                                         // end of scope: what is left goes to the scheduler
//
// An actor still runs on one thread at a time, and messages keep their order: CAF hands an actor to whoever turns its mailbox
// from idle to busy, and only that one may resume it. So the unit may find nothing to do (a worker is at it already), and a
// message being handled by the end of run() is never promised; wait for an answer as if a worker had the job.
//
// Hazard: between tell() and run() the woken actor waits for this thread alone. Call run() at once, or leave() it.
#pragma once

#include "messages/compat.hpp"

#if !KVONCE_CAF_MODERN
#include <caf/execution_unit.hpp>
#include <caf/mailbox_element.hpp>
#include <caf/message_id.hpp>
#include <caf/resumable.hpp>
#endif

#include <atomic>
#include <chrono>
#include <cstddef>
#include <deque>
#include <memory>
#include <thread>

namespace kvonce::compat {

/// What one run() may take.
struct RunLimits {
  /// Jobs (an actor's turn of at most the system's max-throughput messages).
  std::size_t jobs_max = 64;
  /// Looked at between jobs, so one job can go beyond it.
  std::chrono::nanoseconds duration_max = std::chrono::microseconds{200};
  /// Messages of one actor's turn; 0: the system's max-throughput. With one, a chain of actors works on several messages
  /// like a pipeline: the last actor has the first message before the first actor has handled its last.
  std::size_t messages_max = 0;
};

struct RunOutcome {
  /// Turns given to actors on this thread.
  std::size_t jobs = 0;
  /// Jobs handed to the scheduler because a limit was reached.
  std::size_t handed_over = 0;
};

#if !KVONCE_CAF_MODERN

class CallerUnit final : public caf::execution_unit {
 public:
  struct GiveBack {
    void operator()(CallerUnit* unit) const noexcept;
  };
  using Lease = std::unique_ptr<CallerUnit, GiveBack>;

  /// A unit for the calling thread, to be used and given back on that thread, before the system ends. Units are pooled and never
  /// freed: an actor keeps a pointer to the unit it last ran on, and uses it when the end of its last handle runs its exit code.
  static Lease borrow(caf::actor_system& system);

  /// Sends without a sender. Actors woken by it are queued here; call run().
  template <class Handle, class... Ts>
  void tell(const Handle& to, Ts&&... xs) {
    if (auto* actor = caf::actor_cast<caf::abstract_actor*>(to)) {
      actor->enqueue(caf::make_mailbox_element(nullptr, caf::make_message_id(), {}, std::forward<Ts>(xs)...), this);
    }
  }

  /// Called by CAF when a message wakes an actor. From any other thread than the borrower's it goes to the scheduler.
  void exec_later(caf::resumable* job) override;

  /// Runs queued actors, and those they wake, in the order of waking, until none is left or a limit is reached; then hands what
  /// is left to the scheduler. Only from the borrowing thread; not from within an actor that runs on this unit.
  RunOutcome run(const RunLimits& limits = {});

  /// Hands all that is queued to the scheduler; returns how many jobs.
  std::size_t leave();

  std::size_t queued() const { return jobs_.size(); }

 private:
  explicit CallerUnit(caf::actor_system& system) : caf::execution_unit(&system) {}

  // Each job holds one reference on its actor, taken by the sender that woke it.
  std::deque<caf::resumable*> jobs_;
  // The borrower; no thread while the unit lies in the pool.
  std::atomic<std::thread::id> owner_{};
};

#else

/// CAF 1.x: messages go to the scheduler's workers, run() finds nothing to do. The callers' contract is the same.
class CallerUnit final {
 public:
  using Lease = std::unique_ptr<CallerUnit>;

  static Lease borrow(caf::actor_system& /*system*/) { return std::make_unique<CallerUnit>(); }

  template <class Handle, class... Ts>
  void tell(const Handle& to, Ts&&... xs) {
    anon_tell(to, std::forward<Ts>(xs)...);
  }

  RunOutcome run(const RunLimits& /*limits*/ = {}) { return {}; }
  std::size_t leave() { return 0; }
  std::size_t queued() const { return 0; }
};

#endif

}  // namespace kvonce::compat
