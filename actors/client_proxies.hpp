// SPDX-License-Identifier: Apache-2.0
//
// In the store's process: what stands for a connected process (its ShardKeyActor) and for each of its ranks (their
// PoolActors). What a StoreActor says to them goes into their link.
#pragma once

#include <memory>

#include "actors/frame_sender.hpp"
#include "messages/actors.hpp"
#include "messages/tsan_order.hpp"

namespace kvonce::actors {

struct RemoteKeysState {
  static constexpr const char* name = "RemoteShardKeyActor";
};
/// Ends with CloseProcess.
class RemoteKeysActorBody : public caf::stateful_actor<RemoteKeysState, compat::TsanOrdered<messages::ShardKeyActor::base>> {
 public:
  RemoteKeysActorBody(caf::actor_config& config, std::shared_ptr<FrameSender> out);
  messages::ShardKeyActor::behavior_type make_behavior() override;

 private:
  std::shared_ptr<FrameSender> out_;
};

struct RemotePoolState {
  static constexpr const char* name = "RemotePoolActor";
};
/// Ends with CloseRank.
class RemotePoolActorBody : public caf::stateful_actor<RemotePoolState, compat::TsanOrdered<messages::PoolActor::base>> {
 public:
  RemotePoolActorBody(caf::actor_config& config, std::shared_ptr<FrameSender> out, protocol::SenderId rank);
  messages::PoolActor::behavior_type make_behavior() override;

 private:
  std::shared_ptr<FrameSender> out_;
  protocol::SenderId rank_;
};

}  // namespace kvonce::actors
