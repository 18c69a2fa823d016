// SPDX-License-Identifier: Apache-2.0
//
// Routing and pools; the process's questions are in shard_key_calls.cpp.
#include "actors/shard_key_actor.hpp"

#include "actors/shard_key_actor_state.hpp"

namespace kvonce::actors {

using messages::Rekeyed;
using protocol::PoolKeying;

void ShardKeyState::start(Self self, std::shared_ptr<const ShardKeySetup> setup, std::vector<messages::StoreActor> stores) {
  self_ = self;
  setup_ = std::move(setup);
  stores_ = std::move(stores);
  core_ = protocol::ShardKeyCore(setup_->placement);
  arena_ = setup_->arena;
  lost_ = stores_.empty();
}

void ShardKeyState::join() {
  for (const auto& store : stores_) {
    watches_.watch(self_, store, [this](const caf::error&) { on_store_down(); });
    compat::tell(self_, store, messages::ClientJoin{setup_->client, setup_->engine, setup_->pid, setup_->start_time,
                                                    messages::ShardKeyActor{self_}});
  }
}

ShardKeyState::~ShardKeyState() { fail_all(Reason::closed); }

// -- routing -----------------------------------------------------------------------------------------------------------

void ShardKeyState::on_page_ready(protocol::PageReady& ready) {
  const protocol::SenderId sender = ready.sender;
  split_.clear();
  refused_.clear();
  core_.canonicalize(std::move(ready), split_, refused_);
  for (auto& [partition, batch] : split_)
    if (partition < stores_.size()) compat::tell(self_, stores_[partition], std::move(batch));
  if (refused_.empty()) return;
  protocol::StoreReply reply;
  reply.verdicts = std::move(refused_);
  if (const auto at = ranks_.find(sender); at != ranks_.end()) compat::tell(self_, at->second, std::move(reply));
}

void ShardKeyState::on_load_begin(const protocol::LoadBegin& begin) {
  if (!lost_ && protocol::ShardKeyCore::home_of(begin.lease) < stores_.size()) {
    to_all(begin);
    return;
  }
  // No store of this view has made such a lease.
  if (const auto at = ranks_.find(begin.sender); at != ranks_.end())
    compat::tell(self_, at->second, protocol::LoadBegun{begin.load, lost_ ? Reason::store_lost : Reason::lease_unknown, 0});
}

// -- ranks and pools ---------------------------------------------------------------------------------------------------

void ShardKeyState::on_attach(const messages::AttachRank& attach) {
  ranks_[attach.sender] = attach.pool;
  to_all(messages::SenderJoin{{attach.sender, setup_->client, setup_->engine}, attach.pool});
  if (unready() == Reason::store_lost)
    compat::tell(self_, attach.pool, messages::StoreLost{0});
  else if (arena_ != setup_->arena)
    found_rank(attach.pool);
}

void ShardKeyState::on_register_pool(const messages::RegisterPool& command) {
  if (const Error error = error_of(unready())) {
    command.answer->fill({error, 0});
    return;
  }
  messages::RegisterPool with_ns = command;
  const auto ns = setup_->directory->namespace_at(command.ns_handle);
  if (!ns) {
    command.answer->fill({{Reason::unknown_namespace, "register_pool: the namespace is not known to the store"}, 0});
    return;
  }
  with_ns.ask.ns = *ns;
  register_pool(with_ns, false);
}

void ShardKeyState::register_pool(const messages::RegisterPool& command, bool again) {
  ask_registrar(command.ask, [this, command, again](protocol::RegisterAnswer& answer) {
    if (answer.error) {
      command.answer->fill({answer.error, 0});
      return;
    }
    if (answer.demoted && !again) {
      messages::RegisterPool by_rank = command;
      by_rank.ask.pool.shards = by_rank.ask.ranks;
      by_rank.shard = by_rank.rank_shard;
      register_pool(by_rank, true);
      return;
    }
    const auto at = ranks_.find(command.sender);
    if (at == ranks_.end()) {
      command.answer->fill({{Reason::closed, "the rank is closed"}, 0});
      return;
    }
    const auto& pool = command.ask.pool;
    setup_->directory->add_pool(command.ask.ns, answer.pool, {pool.name, pool.shards, pool.object_bytes});
    compat::tell(self_, at->second,
                 messages::AddPool{command.memory,
                                   command.ns_handle,
                                   {command.ask.ns, answer.pool, answer.generation, command.shard},
                                   command.ask,
                                   command.answer});
  });
}

void ShardKeyState::attach(protocol::SenderId sender, const PoolKeying& keying, bool attached) {
  to_all(protocol::AttachPool{sender, keying.ns, keying.pool, keying.shard, attached});
}

void ShardKeyState::on_set_keying(const messages::SetKeying& set) {
  core_.set_pool(set.sender, set.pool, set.keying);
  pools_[{set.sender, set.pool}] = {set.ask, set.keying, set.rank_shard, false, set.ns_handle, set.memory};
  attach(set.sender, set.keying, true);
}

void ShardKeyState::on_pool_gone(messages::PoolGone gone) {
  const auto at = pools_.find({gone.sender, gone.pool});
  if (at == pools_.end()) return;
  attach(gone.sender, at->second.keying, false);
  pools_.erase(at);
}

void ShardKeyState::on_rekey(messages::RekeyAsk ask) {
  const auto at = pools_.find({ask.sender, ask.pool});
  const auto rank = ranks_.find(ask.sender);
  if (at == pools_.end() || rank == ranks_.end() || at->second.rekeying) return;
  if (at->second.ask.pool.shards == at->second.ask.ranks) {
    // Every rank has its own shard already: there is nothing finer.
    compat::tell(self_, rank->second, Rekeyed{ask.pool, false, 0, 0, 0, 0});
    return;
  }
  at->second.rekeying = true;
  protocol::PoolAsk by_rank = at->second.ask;
  by_rank.pool.shards = by_rank.ranks;
  ask_registrar(by_rank, [this, ask, by_rank](protocol::RegisterAnswer& answer) {
    const auto entry = pools_.find({ask.sender, ask.pool});
    const auto owner = ranks_.find(ask.sender);
    if (entry == pools_.end() || owner == ranks_.end()) return;
    RankPool& pool = entry->second;
    pool.rekeying = false;
    if (answer.error || answer.demoted) {
      compat::tell(self_, owner->second, Rekeyed{ask.pool, false, 0, 0, 0, 0});
      return;
    }
    attach(ask.sender, pool.keying, false);
    pool.ask = by_rank;
    pool.keying = {by_rank.ns, answer.pool, answer.generation, pool.rank_shard};
    core_.set_pool(ask.sender, ask.pool, pool.keying);
    attach(ask.sender, pool.keying, true);
    setup_->directory->add_pool(by_rank.ns, answer.pool,
                                {by_rank.pool.name, by_rank.pool.shards, by_rank.pool.object_bytes});
    compat::tell(self_, owner->second,
                 Rekeyed{ask.pool, true, pool.keying.ns, pool.keying.pool, pool.keying.generation, pool.keying.shard});
    for (const std::uint32_t group : setup_->directory->groups_with(by_rank.ns, by_rank.pool.name))
      refresh_group(group, [](const Error&) {});
  });
}

void ShardKeyState::on_rank_closed(messages::RankClosed closed) {
  to_all(messages::SenderGone{closed.sender});
  core_.forget_sender(closed.sender);
  ranks_.erase(closed.sender);
  pools_.erase(pools_.lower_bound({closed.sender, 0}), pools_.upper_bound({closed.sender, 0xffffffffU}));
  // Flushes that wait for its mark: it has passed on everything it had.
  std::vector<std::uint64_t> marking;
  for (const auto& [token, open] : admins_)
    if (open.marking) marking.push_back(token);
  for (const std::uint64_t token : marking) on_flush_mark({token, closed.sender});
  on_lost_mark(closed.sender);
}

// -- the actor ---------------------------------------------------------------------------------------------------------

ShardKeyActorBody::ShardKeyActorBody(caf::actor_config& config, std::shared_ptr<const ShardKeySetup> setup, std::vector<messages::StoreActor> stores)
    : stateful_actor(config) {
  compat::state_of(this).start(this, std::move(setup), std::move(stores));
}

messages::ShardKeyActor::behavior_type ShardKeyActorBody::make_behavior() {
  auto* const s = &compat::state_of(this);
  s->join();
  const auto run = [](const auto& work) { guarded(ShardKeyState::name, work); };
  using messages::ToPartition;
  return {
      [s, run](protocol::PageReady& ready) { run([&] { s->on_page_ready(ready); }); },
      [s, run](const ToPartition& to, protocol::GrantResults& results) { run([&] { s->pass_on(to, results); }); },
      [s, run](const ToPartition& to, protocol::ChecksumAnswers& answers) { run([&] { s->pass_on(to, answers); }); },
      [s, run](const protocol::Withdraw& withdraw) { run([&] { s->to_all(withdraw); }); },
      [s, run](const protocol::LoadBegin& begin) { run([&] { s->on_load_begin(begin); }); },
      [s, run](const protocol::LoadEnd& end) { run([&] { s->to_all(end); }); },
      [s, run](const messages::RekeyAsk& ask) { run([&] { s->on_rekey(ask); }); },
      [s, run](const messages::SetKeying& set) { run([&] { s->on_set_keying(set); }); },
      [s, run](const messages::PoolGone& gone) { run([&] { s->on_pool_gone(gone); }); },
      [s, run](const messages::FlushMark& mark) { run([&] { s->on_flush_mark(mark); }); },
      [s, run](const messages::RankClosed& closed) { run([&] { s->on_rank_closed(closed); }); },
      [s, run](messages::RegisterReply& reply) { run([&] { s->on_register_reply(reply); }); },
      [s, run](const protocol::LookupAnswer& answer) { run([&] { s->on_lookup_answer(answer); }); },
      [s, run](const messages::LeaseReply& reply) { run([&] { s->on_lease_reply(reply); }); },
      [s, run](const protocol::RemoveAnswer& a) { run([&] { s->on_admin_answer(a.token, a.error, a.removed_objects); }); },
      [s, run](const protocol::FlushAnswer& a) { run([&] { s->on_admin_answer(a.token, a.error, 0); }); },
      [s, run](const messages::OpenNamespace& command) { run([&] { s->on_open_namespace(command); }); },
      [s, run](const messages::CloseNamespace& command) { run([&] { s->on_close_namespace(command); }); },
      [s, run](const messages::AskEpoch& command) { run([&] { s->on_ask_epoch(command); }); },
      [s, run](const messages::RegisterGroup& command) { run([&] { s->on_register_group(command); }); },
      [s, run](const messages::RegisterPool& command) { run([&] { s->on_register_pool(command); }); },
      [s, run](messages::LookupCommand& command) { run([&] { s->on_lookup(command); }); },
      [s, run](const messages::LeaseCommand& command) { run([&] { s->on_lease(command); }); },
      [s, run](messages::AdminCommand& command) { run([&] { s->on_admin(command); }); },
      [s, run](const messages::AttachRank& attach) { run([&] { s->on_attach(attach); }); },
      [s, run](const messages::StoresFound& found) { run([&] { s->on_stores_found(found); }); },
      [s, run](const messages::CloseProcess&) { run([&] { s->on_close(); }); },
      [s, run](const messages::Tick& tick) { run([&] { s->on_tick(tick); }); },
  };
}

}  // namespace kvonce::actors
