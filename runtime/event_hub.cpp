// SPDX-License-Identifier: Apache-2.0
#include "runtime/event_hub.hpp"

#include <pthread.h>

#include <algorithm>

namespace kvonce::runtime {

void EventHub::push(std::vector<protocol::ObjectEvent>&& events) {
  {
    const std::lock_guard lock(mutex_);
    if (!listening_) return;
    const std::size_t room = kMaxWaiting - std::min(kMaxWaiting, waiting_.size());
    const std::size_t taken = std::min(room, events.size());
    waiting_.insert(waiting_.end(), events.begin(), events.begin() + static_cast<std::ptrdiff_t>(taken));
    dropped_.fetch_add(events.size() - taken, std::memory_order_relaxed);
  }
  filled_.notify_one();
}

void EventHub::subscribe(Callback callback) {
  const std::lock_guard one_at_a_time(subscribing_);
  std::uint64_t generation = 0;
  {
    const std::lock_guard lock(mutex_);
    generation = ++generation_;
    listening_ = static_cast<bool>(callback);
    waiting_.clear();
  }
  filled_.notify_all();
  if (thread_.joinable()) {
    if (thread_.get_id() == std::this_thread::get_id())
      thread_.detach();  // called from within the callback: its thread sees the new number and ends
    else
      thread_.join();
  }
  if (!callback) return;
  thread_ = std::thread([this, generation, callback = std::move(callback)] { run(generation, callback); });
  pthread_setname_np(thread_.native_handle(), "kvonce-events");
}

void EventHub::run(std::uint64_t generation, const Callback& callback) {
  std::vector<protocol::ObjectEvent> taken;
  std::vector<StoreEvent> events;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      filled_.wait(lock, [&] { return generation_ != generation || !waiting_.empty(); });
      if (generation_ != generation) return;
      taken.clear();
      taken.swap(waiting_);
    }
    events.clear();
    for (const auto& event : taken) {
      StoreEvent& told = events.emplace_back();
      told.kind = static_cast<StoreEvent::Kind>(event.kind);
      told.ns = directory_->handle_of(event.ns);
      told.pool = directory_->pool(event.ns, event.pool).name;
      told.shard = event.shard;
      told.page = event.page;
    }
    try {
      callback(events);
    } catch (...) {
      // Foreign code; the next batch is delivered all the same.
    }
  }
}

}  // namespace kvonce::runtime
