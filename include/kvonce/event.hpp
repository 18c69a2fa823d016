// SPDX-License-Identifier: Apache-2.0
//
// What a copy can be told to wait for before it reads its first byte ("the kernel that fills this page has ended").
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include <kvonce/export.hpp>

namespace kvonce {

// A copyable handle; all copies mean the same event. It fires once and stays fired.
// A default constructed Event is "nothing to wait for": it is ready. All functions may be called from any thread.
// Everything the signalling thread did before signal() is visible to whoever saw ready() or wait_until() be true.
class KVONCE_API Event {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  Event() = default;
  // Fires when `query` first answers true. It is asked from any thread, one at a time, and must be quick; one
  // that throws has not fired yet. It is never asked again after it answered true. For devices, whose events can only be asked.
  explicit Event(std::function<bool()> query);
  // An event that signal() fires.
  static Event make();

  // No effect on one that has fired, is polled or is default constructed. Callbacks run on the calling thread.
  void signal() const;
  bool ready() const;
  // Blocks; false when `deadline` passed first. A polled event is asked about every 50 us.
  bool wait_until(TimePoint deadline) const;
  // Calls back once when the event fires, on the thread that signals; at once, on this thread, when it has fired.
  // False, and no call ever, for a polled event that has not fired: ask ready() instead. An event that never fires
  // keeps its callbacks until its last handle is gone.
  bool on_ready(std::function<void()> callback) const;
  bool polled() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace kvonce
