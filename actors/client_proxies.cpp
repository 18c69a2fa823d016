// SPDX-License-Identifier: Apache-2.0
#include "actors/client_proxies.hpp"

#include <utility>

namespace kvonce::actors {

using messages::FrameKind;

RemoteKeysActorBody::RemoteKeysActorBody(caf::actor_config& config, std::shared_ptr<FrameSender> out)
    : stateful_actor(config), out_(std::move(out)) {}

messages::ShardKeyActor::behavior_type RemoteKeysActorBody::make_behavior() {
  auto* const self = this;
  const auto send = [out = out_](FrameKind kind, std::uint64_t token, const auto& message) { out->send(kind, 0, token, message); };
  return {
      [](const protocol::PageReady&) {},
      [](const messages::ToPartition&, const protocol::GrantResults&) {},
      [](const messages::ToPartition&, const protocol::ChecksumAnswers&) {},
      [](const protocol::Withdraw&) {},
      [](const protocol::LoadBegin&) {},
      [](const protocol::LoadEnd&) {},
      [](const messages::RekeyAsk&) {},
      [](const messages::SetKeying&) {},
      [](const messages::PoolGone&) {},
      [](const messages::FlushMark&) {},
      [](const messages::RankClosed&) {},
      [send](const messages::RegisterReply& reply) { send(FrameKind::register_reply, reply.token, reply.answer); },
      [send](const protocol::LookupAnswer& answer) { send(FrameKind::lookup_answer, answer.token, answer); },
      [send](const messages::LeaseReply& reply) {
        send(FrameKind::lease_reply, reply.token, messages::LeaseOutcome{reply.reason});
      },
      [send](const protocol::RemoveAnswer& answer) { send(FrameKind::remove_answer, answer.token, answer); },
      [send](const protocol::FlushAnswer& answer) { send(FrameKind::flush_answer, answer.token, answer); },
      [](const messages::OpenNamespace&) {},
      [](const messages::CloseNamespace&) {},
      [](const messages::AskEpoch&) {},
      [](const messages::RegisterGroup&) {},
      [](const messages::RegisterPool&) {},
      [](const messages::LookupCommand&) {},
      [](const messages::LeaseCommand&) {},
      [](const messages::AdminCommand&) {},
      [](const messages::AttachRank&) {},
      [](const messages::StoresFound&) {},
      [self](const messages::CloseProcess&) { self->quit(); },
      [](const messages::Tick&) {},
  };
}

RemotePoolActorBody::RemotePoolActorBody(caf::actor_config& config, std::shared_ptr<FrameSender> out, protocol::SenderId rank)
    : stateful_actor(config), out_(std::move(out)), rank_(rank) {}

messages::PoolActor::behavior_type RemotePoolActorBody::make_behavior() {
  auto* const self = this;
  const auto send = [out = out_, rank = rank_](FrameKind kind, const auto& message) { out->send(kind, 0, rank, message); };
  return {
      [send](const protocol::StoreReply& reply) { send(FrameKind::store_reply, reply); },
      [send](const protocol::LoadBegun& begun) { send(FrameKind::load_begun, begun); },
      [](const messages::Rekeyed&) {},
      [](const messages::StoreLost&) {},
      [](const messages::FlushMark&) {},
      [](const messages::AddPool&) {},
      [](const messages::UnregisterPool&) {},
      [](const messages::PutCommand&) {},
      [](const messages::LoadCommand&) {},
      [](const messages::CancelCommand&) {},
      [self](const messages::CloseRank&) { self->quit(); },
      [](const messages::StoreFound&) {},
      [](const messages::CopyAdvanced&) {},
      [](const messages::CopyEnded&) {},
      [](const messages::Tick&) {},
  };
}

}  // namespace kvonce::actors
