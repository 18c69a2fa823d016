// SPDX-License-Identifier: Apache-2.0
//
// An actor's own deadlines: a tick is sent only while something is open, and only when none that is under way comes in
// time. So an idle actor wakes nobody, and a busy one does not ask for a tick per message.
#pragma once

#include <chrono>
#include <string>
#include <exception>
#include <cstdint>
#include <vector>

#include "messages/compat.hpp"
#include "messages/local.hpp"
#include "runtime/clock.hpp"
#include "telemetry/log.hpp"

namespace kvonce::actors {

class TickTimer {
 public:
  template <class Self>
  void arm(Self* self, protocol::Time deadline, protocol::Time now) {
    if (deadline == protocol::kNever || (!pending_.empty() && pending_.back() <= deadline)) return;
    pending_.push_back(deadline);
    const protocol::Duration delay = deadline > now ? deadline - now : 0;
    compat::tell_later(self, self, std::chrono::nanoseconds(delay), messages::Tick{deadline});
  }
  /// To be called for every tick that arrives.
  void arrived(const messages::Tick& tick) {
    while (!pending_.empty() && pending_.back() <= tick.at) pending_.pop_back();
  }

 private:
  std::vector<protocol::Time> pending_;  // ticks under way, latest first
};

/// Runs a handler's work. An exception would end the actor and everybody who waits for it; foreign code and a lack of
/// memory are the only sources of one. Returns false after one.
template <class Work>
bool guarded(const char* actor, const Work& work) {
  try {
    work();
    return true;
  } catch (const std::exception& problem) {
    telemetry::warn(std::string(actor) + ": " + problem.what());
  } catch (...) {
    telemetry::warn(std::string(actor) + ": unknown exception");
  }
  return false;
}

}  // namespace kvonce::actors
