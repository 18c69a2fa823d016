// SPDX-License-Identifier: Apache-2.0
//
// The ShardKeyActor and a store that comes back: everything that this process had registered is registered again, in the order
// namespaces, groups, pools. Until all of it is known to the store, calls end with store_lost as if it were still away.
#include "actors/pool_memory.hpp"
#include "actors/shard_key_actor_state.hpp"
#include "telemetry/log.hpp"

namespace kvonce::actors {

namespace {

// No key is made of it: what is put under it is told unknown_pool.
constexpr protocol::PoolKeying kNoKeying{protocol::kNoNamespace, 0xffff, 0, 0};

}  // namespace

void ShardKeyState::on_stores_found(const messages::StoresFound& found) {
  if (closed_) return;
  // The old proxies' end comes from them, this from another thread: it may be here first.
  on_store_down();
  stores_ = found.partitions;
  arena_ = found.arena;
  lost_ = false;
  core_.set_placement(protocol::Placement::local(static_cast<std::uint32_t>(stores_.size())));
  join();
  for (const auto& [sender, rank] : ranks_)
    to_all(messages::SenderJoin{{sender, setup_->client, setup_->engine}, rank});
  again_left_ = 1;
  for (const std::string& epoch : epoch_order_) {
    ask_again(protocol::EpochAsk{epoch, epochs_.at(epoch)}, [this, epoch](const protocol::RegisterAnswer& answer) {
      if (!answer.error) know_epoch(epoch, answer.epoch);
    });
  }
  const std::uint32_t namespaces = setup_->directory->namespaces();
  for (std::uint32_t i = 0; i < namespaces; ++i) {
    const auto text = setup_->directory->namespace_text(i);
    if (!text) continue;  // closed
    setup_->directory->move_namespace(i, protocol::kNoNamespace);  // its number was the earlier life's
    ask_again(protocol::NamespaceAsk{*text}, [this, i, text](const protocol::RegisterAnswer& answer) {
      if (!setup_->directory->namespace_text(i)) {  // closed meanwhile
        if (!answer.error) compat::tell(self_, stores_.front(), messages::From{setup_->client, 0}, protocol::NamespaceClose{answer.ns});
        return;
      }
      if (answer.error) telemetry::warn("namespace '" + *text + "' could not be registered again: " + answer.error.text);
      setup_->directory->move_namespace(i, answer.error ? protocol::kNoNamespace : answer.ns);
    });
  }
  // Answers come in the order of the questions: behind this one all namespaces have their numbers.
  after_namespaces_ = true;
  one_registered();
}

/// Asks, counts the question, and goes on when the last one is answered.
template <class Ask>
void ShardKeyState::ask_again(const Ask& ask, std::function<void(const protocol::RegisterAnswer&)> then) {
  ++again_left_;
  ask_registrar(ask, [this, then = std::move(then)](protocol::RegisterAnswer& answer) {
    if (lost_ || closed_) return;
    then(answer);
    one_registered();
  });
}

void ShardKeyState::one_registered() {
  if (--again_left_ != 0) return;
  if (after_namespaces_) {
    after_namespaces_ = false;
    again_left_ = 1;
    register_rest_again();
    one_registered();
    return;
  }
  for (const auto& [sender, rank] : ranks_) found_rank(rank);
  if (setup_->ready) setup_->ready();
}

void ShardKeyState::register_rest_again() {
  const std::uint32_t groups = setup_->directory->groups();
  for (std::uint32_t index = 0; index < groups; ++index) {
    const runtime::GroupPtr old = setup_->directory->group(index);
    if (old->ns_handle == 0xffffffffU) continue;  // gone with its namespace
    protocol::GroupAsk ask = old->ask;
    const auto ns = setup_->directory->namespace_at(old->ns_handle);
    if (!ns) {
      runtime::GroupRecord record = *old;
      record.id = protocol::kNoGroup;
      record.ask.ns = kNoKeying.ns;  // its old number is another's by now
      setup_->directory->replace_group(index, record);
      continue;
    }
    ask.ns = *ns;
    ask_again(ask, [this, index, ask, old](const protocol::RegisterAnswer& answer) {
      runtime::GroupRecord record = *old;
      record.id = protocol::kNoGroup;
      record.ask.ns = kNoKeying.ns;
      if (answer.error)
        telemetry::warn("group '" + ask.name + "' could not be registered again: " + answer.error.text);
      else
        record = record_of(ask, old->ranks, answer);
      setup_->directory->replace_group(index, record);
    });
  }
  for (auto& [number, pool] : pools_) {
    pool.rekeying = false;
    const auto ns = setup_->directory->namespace_at(pool.ns_handle);
    if (!ns) {
      set_again(number.first, number.second, pool, kNoKeying);
      continue;
    }
    pool.ask.ns = *ns;
    register_pool_again(number.first, number.second, pool.keying.shard, false);
  }
}

void ShardKeyState::register_pool_again(protocol::SenderId sender, std::uint32_t number, std::uint32_t shard, bool by_rank) {
  ask_again(pools_.at({sender, number}).ask, [this, sender, number, shard, by_rank](const protocol::RegisterAnswer& answer) {
    const auto at = pools_.find({sender, number});
    if (at == pools_.end()) return;
    RankPool& pool = at->second;
    if (!answer.error && answer.demoted && !by_rank) {
      pool.ask.pool.shards = pool.ask.ranks;
      register_pool_again(sender, number, pool.rank_shard, true);
      return;
    }
    if (answer.error || answer.demoted) {
      telemetry::warn("pool '" + pool.ask.pool.name + "' could not be registered again: " + answer.error.text);
      set_again(sender, number, pool, kNoKeying);
      return;
    }
    const protocol::PoolKeying keying{pool.ask.ns, answer.pool, answer.generation, shard};
    set_again(sender, number, pool, keying);
    attach(sender, keying, true);
    setup_->directory->add_pool(pool.ask.ns, answer.pool, {pool.ask.pool.name, pool.ask.pool.shards, pool.ask.pool.object_bytes});
  });
}

void ShardKeyState::set_again(protocol::SenderId sender, std::uint32_t number, RankPool& pool, const protocol::PoolKeying& keying) {
  pool.keying = keying;
  core_.set_pool(sender, number, keying);
  if (pool.memory) pool.memory->set_keying(keying);
  if (const auto rank = ranks_.find(sender); rank != ranks_.end())
    compat::tell(self_, rank->second, messages::Rekeyed{number, true, keying.ns, keying.pool, keying.generation, keying.shard});
}

void ShardKeyState::found_rank(const messages::PoolActor& rank) {
  compat::tell(self_, rank, messages::StoreFound{arena_, static_cast<std::uint32_t>(stores_.size())});
}

}  // namespace kvonce::actors
