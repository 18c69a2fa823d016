// SPDX-License-Identifier: Apache-2.0
//
// Inside of the StoreActor: hands events to StoreCore and its actions to the other actors. Partition 0 is the registrar.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "actors/store_actor.hpp"
#include "actors/tick_timer.hpp"
#include "messages/actors.hpp"
#include "messages/tsan_order.hpp"
#include "protocol/conflict_book.hpp"
#include "protocol/epoch_book.hpp"
#include "protocol/retire_round.hpp"

namespace kvonce::actors {

class StoreState {
 public:
  using Self = messages::StoreActor::pointer;
  static constexpr const char* name = "StoreActor";

  void start(Self self, std::shared_ptr<StoreSetup> setup);

  protocol::StoreCore& core() { return *setup_->core; }
  protocol::StoreActions& actions() { return actions_; }
  /// After every event: tells everybody what came of it.
  void act(protocol::Time now);

  void on_client_join(const messages::ClientJoin& join);
  void on_client_gone(messages::ClientGone gone);
  void on_client_fenced(messages::ClientFenced fenced);
  void on_sender_join(const messages::SenderJoin& join);
  void on_sender_gone(messages::SenderGone gone);
  template <class Ask>
  void on_register(messages::From from, const Ask& ask) {
    std::vector<protocol::CatalogUpdate> updates;
    protocol::RegisterAnswer answer = core().catalog().ask(ask, updates);
    change_catalog(updates);
    answer_when_spread(from, std::move(answer));
  }
  void on_namespace(messages::From from, const protocol::NamespaceAsk& ask);
  void on_namespace_close(messages::From from, const protocol::NamespaceClose& close) { round_.closed(from.client, close.ns); }
  void on_use_ask(messages::NamespaceUseAsk ask);
  void on_use(const messages::NamespaceUseAnswer& answer);
  void on_emptied(messages::NamespaceEmpty emptied);
  void on_epoch(messages::From from, const protocol::EpochAsk& ask);
  void on_updates(const messages::CatalogUpdates& news);
  void on_ack(messages::CatalogAck ack);
  void on_conflict(const protocol::KeyConflict& conflict);
  void on_lease_call(messages::From from, const protocol::LeaseCall& call);
  void on_load_begin(const protocol::LoadBegin& begin);
  void on_remove(messages::From from, const protocol::RemoveAsk& ask);
  void on_siblings(const messages::Siblings& siblings);
  void on_snapshot(const messages::SnapshotAsk& ask);
  void on_continue();
  void on_tick(messages::Tick tick);

 private:
  bool is_registrar() const { return setup_->config.partition == 0; }
  void change_catalog(const std::vector<protocol::CatalogUpdate>& updates);
  void answer_when_spread(messages::From from, protocol::RegisterAnswer&& answer);
  void release_answers();
  void work_on();
  void go_round();
  void say_emptied();
  template <class Message>
  void tell_client(protocol::ClientId client, Message&& message);

  Self self_ = nullptr;
  std::shared_ptr<StoreSetup> setup_;
  protocol::StoreActions actions_;
  struct Rank {
    messages::PoolActor pool;
    protocol::ClientId client = 0;
  };
  std::unordered_map<protocol::SenderId, Rank> senders_;
  std::unordered_map<protocol::ClientId, messages::ShardKeyActor> clients_;
  std::vector<messages::StoreActor> siblings_;  // by partition, oneself included
  TickTimer timer_;
  bool working_ = false;  // a Continue is under way
  protocol::EmptiedReport emptied_;

  // Registrar.
  protocol::EpochBook epochs_{0};
  protocol::RetireRound round_;
  bool going_round_ = false;
  protocol::ConflictBook conflicts_;
  std::uint64_t update_number_ = 0;        // of the newest CatalogUpdates sent
  std::vector<std::uint64_t> acked_;       // by partition
  struct HeldAnswer {
    std::uint64_t number;
    messages::From from;
    protocol::RegisterAnswer answer;
  };
  std::deque<HeldAnswer> held_;  // until every partition knows what they speak of
};

class StoreActorBody : public caf::stateful_actor<StoreState, compat::TsanOrdered<messages::StoreActor::base>> {
 public:
  StoreActorBody(caf::actor_config& config, std::shared_ptr<StoreSetup> setup);
  messages::StoreActor::behavior_type make_behavior() override;
};

}  // namespace kvonce::actors
