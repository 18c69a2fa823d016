// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <caf/fwd.hpp>

#include <functional>
#include <memory>

#include "actors/copy_job.hpp"
#include "protocol/placement.hpp"
#include "runtime/directory.hpp"

namespace kvonce::actors {

/// What the ShardKeyActor needs from its process. All of it outlives the actor.
struct ShardKeySetup {
  protocol::ClientId client = 0;
  protocol::EngineId engine = 0;
  protocol::Placement placement = protocol::Placement::local(1);
  std::shared_ptr<runtime::Directory> directory;
  std::shared_ptr<const ArenaView> arena;  // of the store in this process; null: it is found later
  std::uint32_t pid = 0;                   // of this process, and when it started
  std::uint64_t start_time = 0;
  /// Everything is registered with a store that was found.
  std::function<void()> ready;
  /// The store that was found is lost, and every rank knows: no copy into its slots begins any more.
  std::function<void()> lost;
};

}  // namespace kvonce::actors
