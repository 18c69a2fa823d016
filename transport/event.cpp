// SPDX-License-Identifier: Apache-2.0
#include <kvonce/event.hpp>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace kvonce {

namespace {
constexpr std::chrono::microseconds kPollInterval{50};
}

struct Event::State {
  std::atomic<bool> fired{false};
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::function<void()>> callbacks;
  std::function<bool()> query;  // set: a polled event
  bool is_polled = false;
};

Event::Event(std::function<bool()> query) : state_(std::make_shared<State>()) {
  state_->is_polled = true;
  state_->query = std::move(query);
}

Event Event::make() {
  Event event;
  event.state_ = std::make_shared<State>();
  return event;
}

void Event::signal() const {
  if (state_ == nullptr || state_->is_polled) return;
  std::vector<std::function<void()>> callbacks;
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->fired.load(std::memory_order_relaxed)) return;
    state_->fired.store(true, std::memory_order_release);
    callbacks.swap(state_->callbacks);
  }
  state_->changed.notify_all();
  for (const auto& callback : callbacks) callback();
}

bool Event::ready() const {
  if (state_ == nullptr || state_->fired.load(std::memory_order_acquire)) return true;
  if (!state_->is_polled) return false;
  const std::lock_guard lock(state_->mutex);
  if (state_->fired.load(std::memory_order_relaxed)) return true;
  try {
    if (state_->query && !state_->query()) return false;
  } catch (...) {
    return false;  // foreign code: not fired yet, and the deadline of whoever waits still holds
  }
  state_->query = nullptr;
  state_->fired.store(true, std::memory_order_release);
  return true;
}

bool Event::wait_until(TimePoint deadline) const {
  if (state_ == nullptr) return true;
  if (state_->is_polled) {
    while (!ready()) {
      const auto now = std::chrono::steady_clock::now();
      if (now >= deadline) return false;
      std::this_thread::sleep_for(std::min<std::chrono::steady_clock::duration>(kPollInterval, deadline - now));
    }
    return true;
  }
  std::unique_lock lock(state_->mutex);
  const auto fired = [this] { return state_->fired.load(std::memory_order_relaxed); };
  if (deadline == TimePoint::max()) {  // some libraries overflow when they convert it for a timed wait
    state_->changed.wait(lock, fired);
    return true;
  }
  return state_->changed.wait_until(lock, deadline, fired);
}

bool Event::on_ready(std::function<void()> callback) const {
  if (state_ != nullptr) {
    if (state_->is_polled) {
      if (!ready()) return false;
    } else {
      const std::lock_guard lock(state_->mutex);
      if (!state_->fired.load(std::memory_order_relaxed)) {
        state_->callbacks.push_back(std::move(callback));
        return true;
      }
    }
  }
  callback();
  return true;
}

bool Event::polled() const { return state_ != nullptr && state_->is_polled; }

}  // namespace kvonce
