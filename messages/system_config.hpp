// SPDX-License-Identifier: Apache-2.0
// The settings of our actor systems. Nothing is read from the command line or from files: CAF would silently take a
// caf-application.ini from the working directory of whatever process embeds us.
#pragma once

#include <caf/actor_system_config.hpp>

#include <cstddef>

namespace kvonce::compat {

enum class SchedulerPolicy {
  /// One queue for all workers. An idle worker sleeps.
  kSharing,
  /// CAF's default. Burns half a core at 50 requests/s by polling: for measurements only.
  kStealing,
  /// Nothing runs by itself; a test steps through jobs and time.
  kTesting,
};

struct SystemSettings {
  SchedulerPolicy policy = SchedulerPolicy::kSharing;
  /// Worker threads; CAF's own default is one for each hardware thread, far too many inside an engine.
  std::size_t worker_threads = 1;
  /// Messages an actor handles before others get their turn; CAF's default never makes a busy actor yield.
  std::size_t messages_per_turn_max = 100;
};

/// Create the actor system after any fork: its threads do not survive one.
class ActorSystemConfig : public caf::actor_system_config {
 public:
  explicit ActorSystemConfig(const SystemSettings& settings = {});
};

}  // namespace kvonce::compat
