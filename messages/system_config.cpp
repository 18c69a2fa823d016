// SPDX-License-Identifier: Apache-2.0
#include "messages/system_config.hpp"

#include "messages/compat.hpp"

namespace kvonce::compat {

namespace {

#if KVONCE_CAF_MODERN
const char* policy_name(SchedulerPolicy policy) {
  return policy == SchedulerPolicy::kStealing ? "stealing" : "sharing";
}
#else
caf::atom_value policy_name(SchedulerPolicy policy) {
  switch (policy) {
    case SchedulerPolicy::kStealing:
      return caf::atom("stealing");
    case SchedulerPolicy::kTesting:
      return caf::atom("testing");
    case SchedulerPolicy::kSharing:
      break;
  }
  return caf::atom("sharing");
}
#endif

}  // namespace

ActorSystemConfig::ActorSystemConfig(const SystemSettings& settings) {
  register_core_types();
  set_option(*this, "scheduler.policy", policy_name(settings.policy));
  set_option(*this, "scheduler.max-threads", settings.worker_threads);
  set_option(*this, "scheduler.max-throughput", settings.messages_per_turn_max);
}

}  // namespace kvonce::compat
