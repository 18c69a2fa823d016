// SPDX-License-Identifier: Apache-2.0
//
// The simulated clock: actions run in order of their time, those of one time in the order they were asked for.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "protocol/wire.hpp"

namespace kvonce::sim {

using protocol::Duration;
using protocol::kMicrosecond;
using protocol::kMillisecond;
using protocol::kNever;
using protocol::kSecond;
using protocol::Time;

/// Something to run once. Move-only, so that messages are moved through the network and not copied.
class Action {
 public:
  Action() = default;
  template <class F>
    requires(!std::is_same_v<std::decay_t<F>, Action>)
  Action(F&& function)  // NOLINT(google-explicit-constructor): any callable is an action
      : body_(std::make_unique<Body<std::decay_t<F>>>(std::forward<F>(function))) {}
  void operator()() { body_->run(); }

 private:
  struct Base {
    virtual ~Base() = default;
    virtual void run() = 0;
  };
  template <class F>
  struct Body final : Base {
    explicit Body(F f) : function(std::move(f)) {}
    void run() override { function(); }
    F function;
  };
  std::unique_ptr<Base> body_;
};

class Schedule {
 public:
  Time now() const { return now_; }
  std::uint64_t events() const { return events_; }
  bool empty() const { return heap_.empty(); }
  Time next_time() const { return heap_.empty() ? kNever : heap_.front().time; }

  void at(Time time, Action action) {
    heap_.push_back(Entry{std::max(time, now_), ++sequence_, std::move(action)});
    std::push_heap(heap_.begin(), heap_.end(), later);
  }
  void after(Duration delay, Action action) { at(now_ + delay, std::move(action)); }

  /// False: nothing left to run.
  bool run_one() {
    if (heap_.empty()) return false;
    std::pop_heap(heap_.begin(), heap_.end(), later);
    Entry entry = std::move(heap_.back());
    heap_.pop_back();
    now_ = entry.time;
    ++events_;
    entry.action();
    return true;
  }

 private:
  struct Entry {
    Time time;
    std::uint64_t sequence;
    Action action;
  };
  static bool later(const Entry& a, const Entry& b) {
    return a.time != b.time ? a.time > b.time : a.sequence > b.sequence;
  }
  Time now_ = kSecond;  // not zero, so that a time of zero can mean "never so far"
  std::uint64_t sequence_ = 0;
  std::uint64_t events_ = 0;
  std::vector<Entry> heap_;
};

}  // namespace kvonce::sim
