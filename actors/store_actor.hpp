// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <caf/fwd.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "protocol/store_core.hpp"

namespace kvonce::actors {

/// What a StoreActor needs. All of it outlives the actor.
struct StoreSetup {
  protocol::StoreConfig config;
  std::unique_ptr<protocol::StoreCore> core;  // made from config; the actor is its only user
  /// Takes stored, evicted and removed objects; called by the actor, must not block.
  std::function<void(std::vector<protocol::ObjectEvent>&&)> events;
  /// Random and never zero: new epochs. Called by the actor.
  std::function<protocol::Digest128()> fresh_epoch;
  /// A line for the operator, at most one per change of state.
  std::function<void(const std::string&)> warn;
};

}  // namespace kvonce::actors
