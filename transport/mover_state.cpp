// SPDX-License-Identifier: Apache-2.0
//
// The mover's queue: who is next, who waits, who sleeps. The copying is in mover_work.cpp.
#include "transport/mover_state.hpp"

#include <algorithm>
#include <cassert>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kvonce::transport {
namespace {

// About what putting a thread to sleep and waking it costs: an engine that puts batch after batch never pays for it.
constexpr std::chrono::microseconds kSpin{50};
constexpr std::chrono::microseconds kEventPollInterval{50};
constexpr std::size_t kMaxClaimItems = 256;
constexpr std::size_t kTurnClaims = 8;
// A sleeping thread is called in for so many claims: woken for less, it comes too late.
constexpr std::size_t kWorthHelp = 4;

void pause_cpu() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

}  // namespace

MoverOperation::MoverOperation(CopyBatch&& batch, std::weak_ptr<MoverState> home)
    : Operation(std::move(batch)), home_(std::move(home)), items_left_(items_.size()) {
  std::uint64_t bytes = 0;
  for (const CopyRange& range : ranges_) bytes += range.bytes;
  const std::uint64_t average = bytes / std::max<std::size_t>(items_.size(), 1);
  claim_items_ = average == 0 ? kMaxClaimItems : std::clamp<std::size_t>(kSliceBytes / average, 1, kMaxClaimItems);
}

void MoverOperation::cancel() {
  Operation::cancel();
  if (const auto home = home_.lock()) home->wake();
}

MoverState::MoverState(MoverConfig config) : config_(std::move(config)) {
  if (!kernel_supported(config_.kernel)) config_.kernel = Kernel::automatic;
}

// Under the mutex. Counts the batch in when it may come.
Refusal MoverState::admit(const CopyBatch& batch) {
  Refusal refusal = Refusal::none;
  if (stopping_.load(std::memory_order_relaxed))
    refusal = Refusal::stopped;
  else if (batch.items.size() > kMaxItems || batch.ranges.size() > kMaxRanges)
    refusal = Refusal::too_large;
  else if (open_ >= config_.max_batches)
    refusal = Refusal::queue_full;
  if (refusal == Refusal::none) {
    ++open_;
    ++entering_;
    batches_accepted_.fetch_add(1, std::memory_order_relaxed);
  } else {
    batches_refused_.fetch_add(1, std::memory_order_relaxed);
  }
  return refusal;
}

// Makes the operation, without the mutex (large batches take time), or gives the refusal.
OperationPtr MoverState::accept(CopyBatch&& batch, Submitted& answer) {
  {
    const std::lock_guard lock(mutex_);
    answer.refusal = admit(batch);
  }
  if (answer.refusal != Refusal::none) return nullptr;
  auto operation = std::make_shared<MoverOperation>(std::move(batch), weak_from_this());
  answer.operation = operation;
  return operation;
}

// Under the mutex, after accept.
void MoverState::enter(const OperationPtr& operation) {
  --entering_;
  if (operation->rest_.peer != kNoPeer) by_peer_.emplace(operation->rest_.peer, operation);
}

CopyStatus MoverState::stop_reason(const MoverOperation& operation, TimePoint time) const {
  if (operation.canceled() || stopping_.load(std::memory_order_relaxed)) return CopyStatus::canceled;
  return time >= operation.rest_.deadline ? CopyStatus::expired : CopyStatus::pending;
}

Submitted MoverState::submit(CopyBatch&& batch) {
  Submitted answer;
  OperationPtr operation = accept(std::move(batch), answer);
  if (operation == nullptr) return answer;
  const Event after = operation->rest_.after;
  const bool ready = after.ready();
  bool notify = false;
  {
    const std::lock_guard lock(mutex_);
    enter(operation);
    note_deadline(operation->rest_.deadline);
    if (ready) {
      push({std::move(operation), nullptr});
    } else {
      polling_ = polling_ || after.polled();
      parked_.push_back(std::move(operation));
      parked_count_.store(parked_.size(), std::memory_order_relaxed);
    }
    sweep_asked_ = sweep_asked_ || stopping_.load(std::memory_order_relaxed);
    // A parked one, too, needs somebody who looks at its deadline; a spinning thread looks before it sleeps.
    notify = sleeping_ != 0 && spinning_ == 0;
    call_helper();
  }
  if (notify) work_to_do_.notify_one();
  if (!ready) {
    static_cast<void>(after.on_ready([state = weak_from_this()] {
      if (const auto self = state.lock()) self->event_fired();
    }));
  }
  return answer;
}

Submitted MoverState::run_inline(CopyBatch&& batch) {
  if (!batch.after.ready()) return submit(std::move(batch));
  Submitted answer;
  const OperationPtr operation = accept(std::move(batch), answer);
  if (operation == nullptr) return answer;
  {
    const std::lock_guard lock(mutex_);
    enter(operation);
  }
  Claim all;
  all.end = operation->items_.size();
  static_cast<void>(work(*operation, all, false));
  return answer;
}

void MoverState::fence(PeerId peer, std::function<void()> closed) {
  const auto wait = std::make_shared<FenceWait>();
  wait->closed = std::move(closed);
  std::size_t open = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto [begin, end] = by_peer_.equal_range(peer);
    for (auto it = begin; it != end; ++it, ++open) {
      it->second->fences_.push_back(wait);
      it->second->Operation::cancel();
    }
    // None of them can be counted down before the lock is free.
    wait->open.store(open, std::memory_order_relaxed);
    sweep_asked_ = true;
  }
  if (open == 0)
    wait->closed();
  else
    work_to_do_.notify_one();
}

void MoverState::event_fired() {
  {
    const std::lock_guard lock(mutex_);
    event_fired_ = true;
  }
  work_to_do_.notify_one();
}

void MoverState::wake() {
  {
    const std::lock_guard lock(mutex_);
    sweep_asked_ = true;
  }
  work_to_do_.notify_one();
}

void MoverState::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_.store(true, std::memory_order_relaxed);
    sweep_asked_ = true;
    for (Helper* helper : helpers_) helper->bell.notify_one();
  }
  work_to_do_.notify_all();
}

MoverStats MoverState::stats() const {
  return {batches_accepted_.load(std::memory_order_relaxed), batches_refused_.load(std::memory_order_relaxed),
          bytes_copied_.load(std::memory_order_relaxed)};
}

void MoverState::note_deadline(TimePoint deadline) { next_deadline_ = std::min(next_deadline_, deadline); }

void MoverState::push(Task task) {
  note_deadline(task.operation->rest_.deadline);
  task.operation->tasks_queued_.fetch_add(1, std::memory_order_relaxed);
  queue_.push_back(std::move(task));
  tasks_queued_.store(queue_.size(), std::memory_order_relaxed);
}

// Takes the next claim out of the queue; an operation with more items goes back to its end.
bool MoverState::pop(Task& task) {
  if (queue_.empty()) return false;
  task = std::move(queue_.front());
  queue_.pop_front();
  tasks_queued_.store(queue_.size(), std::memory_order_relaxed);
  MoverOperation& operation = *task.operation;
  operation.tasks_queued_.fetch_sub(1, std::memory_order_relaxed);
  if (task.claim != nullptr) return true;
  task.claim = std::make_unique<Claim>();
  Claim& claim = *task.claim;
  const std::size_t left = operation.items_.size() - operation.next_item_;
  claim.unsettled = claim.item = operation.next_item_;
  claim.end = claim.item + std::min(left, operation.claim_items_);
  operation.next_item_ = claim.end;
  if (claim.end < operation.items_.size()) {
    push({task.operation, nullptr});
    // A turn is a few slices: operations that came together end one after the other, not all at last.
    if (++operation.turn_claims_ < kTurnClaims) {
      queue_.push_front(std::move(queue_.back()));
      queue_.pop_back();
    } else {
      operation.turn_claims_ = 0;
    }
    if (sleeping_ != 0 && spinning_ == 0) work_to_do_.notify_one();
    call_helper();
  }
  return true;
}

// Brings what is to end, for whatever reason, to the head of the queue: a deadline must not wait for its turn.
void MoverState::sweep(TimePoint time) {
  sweep_asked_ = false;
  const auto ends = [&](const MoverOperation& operation) {
    return stop_reason(operation, time) != CopyStatus::pending;
  };
  std::vector<Task> first;
  for (auto& operation : parked_) {
    if (!ends(*operation)) continue;
    operation->tasks_queued_.fetch_add(1, std::memory_order_relaxed);
    first.push_back({std::move(operation), nullptr});
  }
  std::erase(parked_, nullptr);
  parked_count_.store(parked_.size(), std::memory_order_relaxed);
  std::stable_partition(queue_.begin(), queue_.end(), [&](const Task& task) { return ends(*task.operation); });
  for (auto& task : first) queue_.push_front(std::move(task));
  next_deadline_ = TimePoint::max();
  for (const auto& operation : parked_) note_deadline(operation->rest_.deadline);
  for (const auto& task : queue_) {
    // One that is about to end needs no further look: all its items are claimed by the next pop.
    if (ends(*task.operation))
      task.operation->claim_items_ = kMaxItems;
    else
      note_deadline(task.operation->rest_.deadline);
  }
  tasks_queued_.store(queue_.size(), std::memory_order_relaxed);
}

// Queues what its event has set free. Queries of polled events are foreign code and are asked without the lock.
void MoverState::check_events(std::unique_lock<std::mutex>& lock) {
  event_fired_ = false;
  polling_ = false;
  std::vector<OperationPtr> taken = std::exchange(parked_, {});
  lock.unlock();
  const auto ready = std::stable_partition(taken.begin(), taken.end(), [](const OperationPtr& operation) {
    return operation->rest_.after.ready();
  });
  lock.lock();
  for (auto it = taken.begin(); it != ready; ++it) push({std::move(*it), nullptr});
  for (auto it = ready; it != taken.end(); ++it) {
    polling_ = polling_ || (*it)->rest_.after.polled();
    note_deadline((*it)->rest_.deadline);
    parked_.push_back(std::move(*it));
  }
  parked_count_.store(parked_.size(), std::memory_order_relaxed);
  // A sweep of another thread has not seen what was taken out.
  sweep_asked_ = true;
}

void MoverState::sleep(std::unique_lock<std::mutex>& lock) {
  ++spinning_;
  lock.unlock();
  const auto spin_end = std::chrono::steady_clock::now() + kSpin;
  while (tasks_queued_.load(std::memory_order_relaxed) == 0 && !stopping_.load(std::memory_order_relaxed) &&
         std::chrono::steady_clock::now() < spin_end) {
    for (int i = 0; i < 16; ++i) pause_cpu();
    std::this_thread::yield();
  }
  lock.lock();
  --spinning_;
  if (!queue_.empty() || sweep_asked_ || event_fired_ || stopping_.load(std::memory_order_relaxed)) return;
  ++sleeping_;
  TimePoint until = next_deadline_;
  if (polling_) until = std::min(until, now() + kEventPollInterval);
  if (until >= watched_until_) {  // also when there is nothing to look out for
    work_to_do_.wait(lock);
  } else {
    // One thread watches the clock for all.
    watched_until_ = until;
    // An hour at most: what is longer overflows in some libraries.
    work_to_do_.wait_for(lock, std::min<TimePoint::duration>(until - now(), std::chrono::hours(1)));
    if (watched_until_ == until) watched_until_ = TimePoint::max();
  }
  --sleeping_;
}

bool MoverState::help() {
  if (tasks_queued_.load(std::memory_order_relaxed) == 0) return false;
  Task task;
  {
    const std::lock_guard lock(mutex_);
    if (!pop(task)) return false;
  }
  if (work(*task.operation, *task.claim, true) == Outcome::settled) return true;
  {
    const std::lock_guard lock(mutex_);
    push(std::move(task));
  }
  work_to_do_.notify_one();
  return true;
}

// A thread that is called in finds the beginnings of its work gone: so much is to be left that it is still worth it.
bool MoverState::work_for_more() const {
  if (queue_.size() >= kWorthHelp) return true;
  std::size_t claims = 0;
  for (const Task& task : queue_) {
    const MoverOperation& operation = *task.operation;
    claims += task.claim != nullptr ? 1 : (operation.items_.size() - operation.next_item_) / operation.claim_items_;
  }
  return claims >= kWorthHelp;
}

// The one that came last: what it needs is still in its core's caches.
void MoverState::call_helper() {
  const auto idle = std::find_if(helpers_.rbegin(), helpers_.rend(), [](const Helper* helper) { return !helper->called; });
  if (idle == helpers_.rend() || !work_for_more()) return;
  (*idle)->called = true;
  (*idle)->bell.notify_one();
}

bool MoverState::wait_to_help(TimePoint until, const void* waits_for, const std::function<bool()>& done) {
  Helper self;
  self.waits_for = waits_for;
  std::unique_lock lock(mutex_);
  helpers_.push_back(&self);
  while (!done() && !stopping_.load(std::memory_order_relaxed) && !work_for_more()) {
    self.called = false;
    if (self.bell.wait_until(lock, until) == std::cv_status::timeout) break;
  }
  std::erase(helpers_, &self);
  return !stopping_.load(std::memory_order_relaxed) && work_for_more();
}

// Under the lock: whoever has just looked at its `done` waits by now, and no bell is gone before it has rung.
void MoverState::wake_helpers(const void* waits_for) {
  const std::lock_guard lock(mutex_);
  for (Helper* helper : helpers_)
    if (helper->waits_for == waits_for) helper->bell.notify_one();
}

void MoverState::thread_main() {
  std::unique_lock lock(mutex_);
  while (true) {
    if (!parked_.empty() && (event_fired_ || polling_)) check_events(lock);
    if (sweep_asked_ || (next_deadline_ != TimePoint::max() && now() >= next_deadline_)) sweep(now());
    Task task;
    if (pop(task)) {
      lock.unlock();
      const Outcome outcome = work(*task.operation, *task.claim, true);
      if (outcome == Outcome::settled) task = {};
      lock.lock();
      if (outcome == Outcome::put_back) push(std::move(task));
      continue;
    }
    if (stopping_.load(std::memory_order_relaxed) && parked_.empty() && entering_ == 0) return;
    sleep(lock);
  }
}

}  // namespace kvonce::transport
