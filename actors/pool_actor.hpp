// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <caf/fwd.hpp>

#include <atomic>
#include <cstdint>
#include <memory>

#include "actors/copy_job.hpp"
#include "protocol/placement.hpp"
#include "runtime/counters.hpp"
#include "transport/mover.hpp"

namespace kvonce::actors {

/// What a PoolActor needs from its process. All of it outlives the actor.
struct PoolSetup {
  protocol::PoolCoreConfig core;
  /// Of the store as it is now. The actor takes it, so that nothing keeps the memory of a store that is gone.
  mutable std::shared_ptr<const ArenaView> arena;
  protocol::Placement placement = protocol::Placement::local(1);
  std::shared_ptr<transport::Mover> mover;
  std::uint64_t inline_copy_bytes = 0;
  std::shared_ptr<runtime::Counters> counters;                   // of the process
  std::shared_ptr<std::atomic<std::uint64_t>> moved_bytes;       // of this rank
};

}  // namespace kvonce::actors
