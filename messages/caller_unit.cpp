// SPDX-License-Identifier: Apache-2.0
#include "messages/caller_unit.hpp"

#if !KVONCE_CAF_MODERN

#include <caf/abstract_actor.hpp>
#include <caf/scheduler/abstract_coordinator.hpp>

#include <algorithm>
#include <mutex>
#include <vector>

namespace kvonce::compat {

namespace {

// The idle units of all systems of this process. As many units exist as callers were at work at once.
struct IdleUnits {
  std::mutex mutex;
  std::vector<CallerUnit*> units;
};

IdleUnits& idle_units() {
  // Never destroyed: an actor may end after the statics of this library.
  static auto* pool = new IdleUnits;
  return *pool;
}

}  // namespace

CallerUnit::Lease CallerUnit::borrow(caf::actor_system& system) {
  auto& idle = idle_units();
  CallerUnit* unit = nullptr;
  {
    const std::lock_guard lock{idle.mutex};
    const auto it = std::find_if(idle.units.rbegin(), idle.units.rend(),
                                 [&](const CallerUnit* candidate) { return &candidate->system() == &system; });
    if (it != idle.units.rend()) {
      unit = *it;
      *it = idle.units.back();
      idle.units.pop_back();
    }
  }
  if (unit == nullptr) {
    unit = new CallerUnit{system};
  }
  unit->owner_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  return Lease{unit};
}

void CallerUnit::GiveBack::operator()(CallerUnit* unit) const noexcept {
  unit->leave();
  unit->owner_.store(std::thread::id{}, std::memory_order_relaxed);
  auto& idle = idle_units();
  const std::lock_guard lock{idle.mutex};
  idle.units.push_back(unit);
}

void CallerUnit::exec_later(caf::resumable* job) {
  // Relaxed is enough: a thread finds its own id here only if it stored it itself.
  if (owner_.load(std::memory_order_relaxed) == std::this_thread::get_id()) {
    jobs_.push_back(job);
    return;
  }
  // An actor's exit code on another thread, through the unit it last ran on. That unit may serve someone else by now.
  auto* actor = dynamic_cast<caf::abstract_actor*>(job);
  auto& home = actor != nullptr ? actor->home_system() : system();
  home.scheduler().enqueue(job);
}

RunOutcome CallerUnit::run(const RunLimits& limits) {
  RunOutcome outcome;
  if (jobs_.empty()) {
    return outcome;
  }
  const auto messages_max = limits.messages_max != 0 ? limits.messages_max : system().scheduler().max_throughput();
  const auto deadline = std::chrono::steady_clock::now() + limits.duration_max;
  while (!jobs_.empty() && outcome.jobs < limits.jobs_max) {
    if (outcome.jobs > 0 && std::chrono::steady_clock::now() >= deadline) {
      break;
    }
    auto* job = jobs_.front();
    jobs_.pop_front();
    ++outcome.jobs;
    // The reference that came with the job is kept while it stays in the loop, and dropped in all other cases; as a worker does.
    switch (job->resume(this, messages_max)) {
      case caf::resumable::resume_later:
        jobs_.push_back(job);
        break;
      case caf::resumable::done:
      case caf::resumable::awaiting_message:
        caf::intrusive_ptr_release(job);
        break;
      case caf::resumable::shutdown_execution_unit:
        // Only the scheduler's own end-of-work marker answers so; it is put into workers' queues alone and owns itself.
        break;
    }
  }
  outcome.handed_over = leave();
  return outcome;
}

std::size_t CallerUnit::leave() {
  const auto count = jobs_.size();
  while (!jobs_.empty()) {
    auto* job = jobs_.front();
    jobs_.pop_front();
    system().scheduler().enqueue(job);
  }
  return count;
}

}  // namespace kvonce::compat

#endif
