// SPDX-License-Identifier: Apache-2.0
//
// Stands for one partition of a store in another process: what it is told goes into the link. Ends when the link has ended, so
// that whoever watches it learns of the loss as of any StoreActor's.
#pragma once

#include <memory>

#include "actors/frame_sender.hpp"
#include "messages/actors.hpp"
#include "messages/tsan_order.hpp"

namespace kvonce::actors {

struct RemoteStoreState {
  static constexpr const char* name = "RemoteStoreActor";
};

class RemoteStoreActorBody : public caf::stateful_actor<RemoteStoreState, compat::TsanOrdered<messages::StoreActor::base>> {
 public:
  RemoteStoreActorBody(caf::actor_config& config, std::shared_ptr<FrameSender> out, std::uint32_t partition);
  messages::StoreActor::behavior_type make_behavior() override;

 private:
  std::shared_ptr<FrameSender> out_;
  std::uint32_t partition_;
};

}  // namespace kvonce::actors
