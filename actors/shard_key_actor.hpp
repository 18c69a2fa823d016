// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <caf/fwd.hpp>

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
  std::shared_ptr<const ArenaView> arena;
};

}  // namespace kvonce::actors
