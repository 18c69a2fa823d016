// SPDX-License-Identifier: Apache-2.0
#include "actors/remote_store_actor.hpp"

#include <utility>

#include "messages/frames.hpp"

namespace kvonce::actors {

using messages::FrameKind;
using messages::From;

RemoteStoreActorBody::RemoteStoreActorBody(caf::actor_config& config, std::shared_ptr<FrameSender> out, std::uint32_t partition)
    : stateful_actor(config), out_(std::move(out)), partition_(partition) {}

messages::StoreActor::behavior_type RemoteStoreActorBody::make_behavior() {
  auto* const self = this;
  // A send that fails is no news: the link's end comes by EndStore.
  const auto send = [out = out_, partition = partition_](FrameKind kind, std::uint64_t id, const auto& message) {
    out->send(kind, partition, id, message);
  };
  return {
      [](const messages::ClientJoin&) {},  // the handshake has said it
      [send](const messages::ClientGone&) { send(FrameKind::client_gone, 0, messages::Nothing{}); },
      [](const messages::ClientFenced&) {},
      [](const messages::ProcessFenced&) {},
      [send](const messages::SenderJoin& join) { send(FrameKind::sender_join, 0, join.sender); },
      [send](const messages::SenderGone& gone) { send(FrameKind::sender_gone, 0, messages::SenderName{gone.sender}); },
      [send](const protocol::AttachPool& pool) { send(FrameKind::attach_pool, 0, pool); },
      [send](const From& from, const protocol::NamespaceAsk& ask) { send(FrameKind::namespace_ask, from.token, ask); },
      [send](const From& from, const protocol::NamespaceClose& close) { send(FrameKind::namespace_close, from.token, close); },
      [send](const From& from, const protocol::PoolAsk& ask) { send(FrameKind::pool_ask, from.token, ask); },
      [send](const From& from, const protocol::GroupAsk& ask) { send(FrameKind::group_ask, from.token, ask); },
      [send](const From& from, const protocol::EpochAsk& ask) { send(FrameKind::epoch_ask, from.token, ask); },
      [](const messages::CatalogUpdates&) {},
      [](const messages::CatalogAck&) {},
      [](const messages::NamespaceUseAsk&) {},
      [](const messages::NamespaceUseAnswer&) {},
      [](const messages::NamespaceEmpty&) {},
      [](const protocol::KeyConflict&) {},
      [send](const protocol::PutBatch& batch) { send(FrameKind::put_batch, 0, batch); },
      [send](const protocol::GrantResults& results) { send(FrameKind::grant_results, 0, results); },
      [send](const protocol::Withdraw& withdraw) { send(FrameKind::withdraw, 0, withdraw); },
      [send](const protocol::ChecksumAnswers& answers) { send(FrameKind::checksum_answers, 0, answers); },
      [send](const From& from, const protocol::LookupAsk& ask) { send(FrameKind::lookup_ask, from.token, ask); },
      [](const protocol::PartLookupAsk&) {},
      [](const protocol::PartLookupAnswer&) {},
      [](const protocol::PartNarrow&) {},
      [send](const From& from, const protocol::LeaseCall& call) { send(FrameKind::lease_call, from.token, call); },
      [send](const protocol::LoadBegin& begin) { send(FrameKind::load_begin, 0, begin); },
      [send](const protocol::LoadEnd& end) { send(FrameKind::load_end, 0, end); },
      [send](const From& from, const protocol::RemoveAsk& ask) { send(FrameKind::remove_ask, from.token, ask); },
      [send](const From& from, const protocol::FlushAsk& ask) { send(FrameKind::flush_ask, from.token, ask); },
      [](const messages::Siblings&) {},
      [](const messages::StatsAsk&) {},
      [](const messages::WritesAsk&) {},
      [](const messages::IntakeMark&) {},
      [](const messages::Freeze&) {},
      [](const messages::SnapshotAsk&) {},
      [send](const messages::WantEvents& want) { send(FrameKind::want_events, 0, messages::Wanted{want.on}); },
      [self](const messages::EndStore&) { self->quit(caf::exit_reason::remote_link_unreachable); },
      [](const messages::Continue&) {},
      [](const messages::Tick&) {},
  };
}

}  // namespace kvonce::actors
