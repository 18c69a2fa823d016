// SPDX-License-Identifier: Apache-2.0
#include "actors/store_actor.hpp"

#include <algorithm>
#include <string>

#include "actors/store_actor_state.hpp"

namespace kvonce::actors {

using messages::From;
using protocol::Time;

void StoreState::start(Self self, std::shared_ptr<StoreSetup> setup) {
  self_ = self;
  setup_ = std::move(setup);
  conflicts_ = protocol::ConflictBook(setup_->config.conflict_limit);
  epochs_ = protocol::EpochBook(setup_->config.engine_grace);
  round_ = protocol::RetireRound(setup_->config.partitions);
}

template <class Message>
void StoreState::tell_client(protocol::ClientId client, Message&& message) {
  const auto at = clients_.find(client);
  if (at != clients_.end()) compat::tell(self_, at->second, std::forward<Message>(message));
}

void StoreState::act(Time now) {
  auto& out = actions_;
  for (auto& [sender, reply] : out.replies) {
    const auto at = senders_.find(sender);
    if (at != senders_.end() && !reply.empty()) compat::tell(self_, at->second.pool, std::move(reply));
  }
  for (auto& [asker, answer] : out.lookups) tell_client(asker, std::move(answer));
  for (auto& [sender, begun] : out.loads) {
    const auto at = senders_.find(sender);
    if (at != senders_.end()) compat::tell(self_, at->second.pool, begun);
  }
  for (auto& [asker, answer] : out.removes) tell_client(asker, answer);
  for (auto& [asker, answer] : out.flushes) tell_client(asker, answer);
  for (auto& [partition, ask] : out.part_asks)
    if (partition < siblings_.size()) compat::tell(self_, siblings_[partition], std::move(ask));
  for (auto& [partition, answer] : out.part_answers)
    if (partition < siblings_.size()) compat::tell(self_, siblings_[partition], std::move(answer));
  for (auto& [partition, narrow] : out.part_narrows)
    if (partition < siblings_.size()) compat::tell(self_, siblings_[partition], std::move(narrow));
  if (!out.events.empty() && setup_->events) setup_->events(std::move(out.events));
  const auto conflicts = std::exchange(out.conflicts, {});
  out.clear();
  for (const protocol::KeyConflict& conflict : conflicts) {
    if (is_registrar())
      on_conflict(conflict);
    else if (!siblings_.empty())
      compat::tell(self_, siblings_.front(), conflict);
  }
  timer_.arm(self_, core().next_deadline(), now);
  say_emptied();
}

// -- membership --------------------------------------------------------------------------------------------------------

void StoreState::on_client_join(const messages::ClientJoin& join) {
  clients_[join.client] = join.keys;
  const Time now = runtime::now();
  core().client_joined(join.client, join.engine, now, join.pid, join.start_time);
  if (is_registrar()) epochs_.client_joined(join.client, join.engine, now);
}

void StoreState::on_client_gone(messages::ClientGone gone) {
  clients_.erase(gone.client);
  const Time now = runtime::now();
  if (is_registrar()) {
    epochs_.client_left(gone.client, now);
    round_.client_left(gone.client);
  }
  core().client_left(gone.client, gone.fenced, now, actions_);
  act(now);
  std::erase_if(senders_, [&](const auto& entry) { return entry.second.client == gone.client; });
}

void StoreState::on_client_fenced(messages::ClientFenced fenced) {
  const Time now = runtime::now();
  core().client_fenced(fenced.client, now, actions_);
  act(now);
}

void StoreState::on_sender_join(const messages::SenderJoin& join) {
  senders_[join.sender.sender] = {join.pool, join.sender.client};
  core().attach(join.sender, runtime::now());
}

void StoreState::on_sender_gone(messages::SenderGone gone) {
  const Time now = runtime::now();
  // It has ended only after its last copy had.
  core().detach(gone.sender, true, now, actions_);
  act(now);
  senders_.erase(gone.sender);
}

// -- catalog -----------------------------------------------------------------------------------------------------------

void StoreState::change_catalog(const std::vector<protocol::CatalogUpdate>& updates) {
  if (updates.empty()) return;
  const Time now = runtime::now();
  for (const auto& update : updates) core().apply(update, now, actions_);
  ++update_number_;
  for (std::uint32_t p = 1; p < siblings_.size(); ++p)
    compat::tell(self_, siblings_[p], messages::CatalogUpdates{update_number_, updates});
  act(now);
}

void StoreState::answer_when_spread(From from, protocol::RegisterAnswer&& answer) {
  held_.push_back({update_number_, from, std::move(answer)});
  release_answers();
}

void StoreState::release_answers() {
  std::uint64_t everywhere = update_number_;
  for (std::uint32_t p = 1; p < siblings_.size(); ++p) everywhere = std::min(everywhere, acked_[p]);
  while (!held_.empty() && held_.front().number <= everywhere) {
    tell_client(held_.front().from.client, messages::RegisterReply{held_.front().from.token, std::move(held_.front().answer)});
    held_.pop_front();
  }
}

// -- namespaces, and the rounds that give their places back (protocol/retire_round.hpp) --------------------------------

void StoreState::on_namespace(From from, const protocol::NamespaceAsk& ask) {
  if (!clients_.contains(from.client)) return;
  round_.open({from.client, from.token, ask});
  go_round();
}

void StoreState::go_round() {
  if (going_round_) return;  // what a step changed may end the next one: the loop below sees it
  going_round_ = true;
  while (auto step = round_.step(core().catalog())) {
    if (step->freed) conflicts_.forget(*step->freed);
    change_catalog(step->updates);
    if (!step->updates.empty()) work_on();  // a namespace that was retired is cleared
    if (step->ask_use) {
      for (std::uint32_t p = 1; p < siblings_.size(); ++p) compat::tell(self_, siblings_[p], messages::NamespaceUseAsk{*step->ask_use});
      round_.use(0, *step->ask_use, core().namespace_use());
    }
    for (auto& [to, answer] : step->answers) answer_when_spread({to.client, to.token}, std::move(answer));
  }
  going_round_ = false;
}

void StoreState::on_use_ask(messages::NamespaceUseAsk ask) {
  messages::NamespaceUseAnswer answer{setup_->config.partition, ask.round, {}};
  for (const protocol::NamespaceUse use : core().namespace_use()) answer.use.push_back(static_cast<std::uint32_t>(use));
  compat::tell(self_, siblings_.front(), std::move(answer));
}

void StoreState::on_use(const messages::NamespaceUseAnswer& answer) {
  std::vector<protocol::NamespaceUse> use;
  for (const std::uint32_t of : answer.use) use.push_back(static_cast<protocol::NamespaceUse>(of));
  round_.use(answer.partition, answer.round, use);
  go_round();
}

void StoreState::say_emptied() {
  for (const protocol::NamespaceId ns : emptied_.newly_emptied(core())) {
    if (is_registrar())
      on_emptied({0, ns});
    else
      compat::tell(self_, siblings_.front(), messages::NamespaceEmpty{setup_->config.partition, ns});
  }
}

void StoreState::on_emptied(messages::NamespaceEmpty emptied) {
  round_.emptied(emptied.partition, emptied.ns);
  go_round();
}

void StoreState::on_epoch(From from, const protocol::EpochAsk& ask) {
  answer_when_spread(from, epochs_.ask(from.client, ask, setup_->fresh_epoch(), runtime::now()));
}

void StoreState::on_updates(const messages::CatalogUpdates& news) {
  const Time now = runtime::now();
  for (const auto& update : news.updates) core().apply(update, now, actions_);
  act(now);
  work_on();  // a namespace that was retired is cleared
  compat::tell(self_, siblings_.front(), messages::CatalogAck{setup_->config.partition, news.number});
}

void StoreState::on_ack(messages::CatalogAck ack) {
  if (ack.partition >= acked_.size()) return;
  acked_[ack.partition] = std::max(acked_[ack.partition], ack.number);
  release_answers();
}

void StoreState::on_conflict(const protocol::KeyConflict& conflict) {
  const auto found = conflicts_.add(conflict, core().catalog());
  if (!found) return;
  std::vector<protocol::CatalogUpdate> updates;
  const bool demote = found->at_limit && setup_->config.demote;
  if (demote) core().catalog().demote(conflict.ns, conflict.pool, updates);
  if (setup_->warn)
    setup_->warn(found->text + (!found->at_limit    ? ""
                                : !demote           ? "; kept as it is (demote is off)"
                                : updates.empty()   ? "; it cannot be split further"
                                                    : "; stored per rank from now on"));
  change_catalog(updates);
}

// -- leases, loads, administration -------------------------------------------------------------------------------------

void StoreState::on_lease_call(From from, const protocol::LeaseCall& call) {
  const Time now = runtime::now();
  const Reason reason = call.stop == 0 ? core().release(call, now, actions_) : core().narrow(call, now, actions_);
  tell_client(from.client, messages::LeaseReply{from.token, reason});
  act(now);
}

void StoreState::on_load_begin(const protocol::LoadBegin& begin) {
  const Time now = runtime::now();
  core().load_begin(begin, now, actions_);
  // The other partitions pin what they have of the lease; whether it is good only its home can say.
  if (setup_->config.partitions > 1 && (begin.lease.low & 63U) != setup_->config.partition) actions_.loads.clear();
  act(now);
}

void StoreState::on_remove(From from, const protocol::RemoveAsk& ask) {
  const Time now = runtime::now();
  core().remove(from.client, ask, now, actions_);
  act(now);
  work_on();
}

void StoreState::work_on() {
  if (working_) return;
  working_ = true;
  compat::tell(self_, self_, messages::Continue{});
}

void StoreState::on_continue() {
  working_ = false;
  const Time now = runtime::now();
  const bool more = core().step(now, actions_);
  act(now);
  if (more) work_on();
}

void StoreState::on_siblings(const messages::Siblings& siblings) {
  siblings_ = siblings.partitions;
  acked_.assign(siblings_.size(), 0);
  work_on();  // a store that was restored may have begun something
}

void StoreState::on_snapshot(const messages::SnapshotAsk& ask) {
  ask.answer->fill(core().snapshot(runtime::now()));
  self_->quit();
}

void StoreState::on_tick(messages::Tick tick) {
  timer_.arrived(tick);
  const Time now = runtime::now();
  core().advance(now, actions_);
  act(now);
}

// -- the actor ---------------------------------------------------------------------------------------------------------

StoreActorBody::StoreActorBody(caf::actor_config& config, std::shared_ptr<StoreSetup> setup)
    : stateful_actor(config) {
  compat::state_of(this).start(this, std::move(setup));
}

messages::StoreActor::behavior_type StoreActorBody::make_behavior() {
  auto* const self = this;
  auto* const s = &compat::state_of(this);
  // A core that threw in the middle of a change cannot be trusted: the store is lost, and everybody is told so.
  const auto run = [self](const auto& work) {
    if (!guarded(StoreState::name, work)) self->quit(caf::exit_reason::unhandled_exception);
  };
  const auto event = [s, run](const auto& work) {
    run([&] {
      const Time now = runtime::now();
      work(s->core(), now, s->actions());
      s->act(now);
    });
  };
  using protocol::StoreActions;
  using protocol::StoreCore;
  return {
      [s, run](const messages::ClientJoin& join) { run([&] { s->on_client_join(join); }); },
      [s, run](const messages::ClientGone& gone) { run([&] { s->on_client_gone(gone); }); },
      [s, run](const messages::ClientFenced& fenced) { run([&] { s->on_client_fenced(fenced); }); },
      [event](const messages::ProcessFenced& gone) {
        event([&](StoreCore& core, Time now, StoreActions& out) { core.process_fenced(gone.pid, gone.start_time, now, out); });
      },
      [s, run](const messages::SenderJoin& join) { run([&] { s->on_sender_join(join); }); },
      [s, run](const messages::SenderGone& gone) { run([&] { s->on_sender_gone(gone); }); },
      [event](const protocol::AttachPool& pool) {
        event([&](StoreCore& core, Time now, StoreActions&) { core.attach_pool(pool, now); });
      },
      [s, run](const From& from, const protocol::NamespaceAsk& ask) { run([&] { s->on_namespace(from, ask); }); },
      [s, run](const From& from, const protocol::NamespaceClose& close) { run([&] { s->on_namespace_close(from, close); }); },
      [s, run](const From& from, const protocol::PoolAsk& ask) { run([&] { s->on_register(from, ask); }); },
      [s, run](const From& from, const protocol::GroupAsk& ask) { run([&] { s->on_register(from, ask); }); },
      [s, run](const From& from, const protocol::EpochAsk& ask) { run([&] { s->on_epoch(from, ask); }); },
      [s, run](const messages::CatalogUpdates& news) { run([&] { s->on_updates(news); }); },
      [s, run](const messages::CatalogAck& ack) { run([&] { s->on_ack(ack); }); },
      [s, run](const messages::NamespaceUseAsk& ask) { run([&] { s->on_use_ask(ask); }); },
      [s, run](const messages::NamespaceUseAnswer& answer) { run([&] { s->on_use(answer); }); },
      [s, run](const messages::NamespaceEmpty& empty) { run([&] { s->on_emptied(empty); }); },
      [s, run](const protocol::KeyConflict& conflict) { run([&] { s->on_conflict(conflict); }); },
      [event](const protocol::PutBatch& batch) {
        event([&](StoreCore& core, Time now, StoreActions& out) { core.put(batch, now, out); });
      },
      [event](const protocol::GrantResults& results) {
        event([&](StoreCore& core, Time now, StoreActions& out) { core.grants_done(results, now, out); });
      },
      [event](const protocol::Withdraw& withdraw) {
        event([&](StoreCore& core, Time now, StoreActions& out) { core.withdraw(withdraw, now, out); });
      },
      [event](const protocol::ChecksumAnswers& answers) {
        event([&](StoreCore& core, Time now, StoreActions& out) { core.checksums(answers, now, out); });
      },
      [event](const From& from, const protocol::LookupAsk& ask) {
        event([&](StoreCore& core, Time now, StoreActions& out) { core.lookup(from.client, ask, now, out); });
      },
      [event](const protocol::PartLookupAsk& ask) {
        event([&](StoreCore& core, Time now, StoreActions& out) { core.part_lookup(ask, now, out); });
      },
      [event](const protocol::PartLookupAnswer& answer) {
        event([&](StoreCore& core, Time now, StoreActions& out) { core.part_answer(answer, now, out); });
      },
      [event](const protocol::PartNarrow& narrow) {
        event([&](StoreCore& core, Time now, StoreActions& out) { core.part_narrow(narrow, now, out); });
      },
      [s, run](const From& from, const protocol::LeaseCall& call) { run([&] { s->on_lease_call(from, call); }); },
      [s, run](const protocol::LoadBegin& begin) { run([&] { s->on_load_begin(begin); }); },
      [event](const protocol::LoadEnd& end) {
        event([&](StoreCore& core, Time now, StoreActions& out) { core.load_end(end, now, out); });
      },
      [s, run](const From& from, const protocol::RemoveAsk& ask) { run([&] { s->on_remove(from, ask); }); },
      [event](const From& from, const protocol::FlushAsk& ask) {
        event([&](StoreCore& core, Time now, StoreActions& out) { core.flush(from.client, ask, now, out); });
      },
      [s, run](const messages::Siblings& siblings) { run([&] { s->on_siblings(siblings); }); },
      [s, run](const messages::StatsAsk& ask) { run([&] { ask.answer(s->core().stats()); }); },
      [s, run](const messages::WritesAsk& ask) { run([&] { ask.answer(s->core().writes_by_client()); }); },
      [](const messages::IntakeMark&) {},
      [event](const messages::Freeze&) { event([&](StoreCore& core, Time now, StoreActions& out) { core.freeze(now, out); }); },
      [s, run](const messages::SnapshotAsk& ask) { run([&] { s->on_snapshot(ask); }); },
      [s, run](const messages::WantEvents& want) { run([&] { s->core().want_events(want.on); }); },
      [self](const messages::EndStore&) { self->quit(); },
      [s, run](const messages::Continue&) { run([&] { s->on_continue(); }); },
      [s, run](const messages::Tick& tick) { run([&] { s->on_tick(tick); }); },
  };
}

}  // namespace kvonce::actors
