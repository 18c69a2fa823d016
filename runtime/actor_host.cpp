// SPDX-License-Identifier: Apache-2.0
#include "runtime/actor_host.hpp"

#include <caf/logger.hpp>

#include <condition_variable>
#include <mutex>
#include <utility>

#include "actors/pool_actor_state.hpp"
#include "actors/shard_key_actor_state.hpp"
#include "actors/store_actor_state.hpp"
#include "messages/actors.hpp"
#include "messages/caller_unit.hpp"
#include "messages/system_config.hpp"

namespace kvonce::runtime {

namespace {

// Enough for a batch from the call to its verdicts; what goes beyond belongs to the scheduler.
constexpr compat::RunLimits kCallerRuns{.jobs_max = 256, .duration_max = std::chrono::microseconds{500}, .messages_max = 1};

struct Config final : compat::ActorSystemConfig {
  explicit Config(std::uint32_t threads) : compat::ActorSystemConfig({.worker_threads = threads}) {
    messages::register_messages(*this);
  }
};

// CAF 0.17 leaves a reference to a system's logger with every thread that made the system or an actor of it, until that thread
// does so in another system; and a system's end waits for the last reference. Without this a runtime that one thread started
// could be stopped by no other: it would wait for ever.
void forget_logger() {
#if !KVONCE_CAF_MODERN
  caf::logger::set_current_actor_system(nullptr);
#endif
}

// Actors that have not ended.
struct LiveCount {
  std::mutex mutex;
  std::condition_variable changed;
  std::size_t stores = 0;
  std::size_t others = 0;
};

}  // namespace

struct ActorHost::PoolBox {
  messages::PoolActor actor;
};

struct ActorHost::Impl {
  explicit Impl(const Setup& setup) : caller_runs(setup.caller_runs), config(setup.scheduler_threads), system(config) {}

  template <class Handle, class Message>
  void tell(const Handle& to, Message&& message) {
    if (!caller_runs) {
      compat::anon_tell(to, std::forward<Message>(message));
      return;
    }
    auto unit = compat::CallerUnit::borrow(system);
    unit->tell(to, std::forward<Message>(message));
    unit->run(kCallerRuns);
  }

  template <class Handle>
  void count(const Handle& actor, std::size_t LiveCount::*which) {
    {
      const std::lock_guard lock(live->mutex);
      ++(*live.*which);
    }
    caf::actor_cast<caf::abstract_actor*>(actor)->attach_functor([live = live, which] {
      const std::lock_guard lock(live->mutex);
      --(*live.*which);
      live->changed.notify_all();
    });
  }

  const bool caller_runs;
  Config config;
  caf::actor_system system;
  std::shared_ptr<LiveCount> live = std::make_shared<LiveCount>();
  std::vector<messages::StoreActor> stores;
  messages::ShardKeyActor keys;
};

ActorHost::ActorHost(Setup setup) : impl_(std::make_unique<Impl>(setup)) {
  for (auto& store : setup.stores) {
    impl_->stores.push_back(impl_->system.spawn<actors::StoreActorBody>(std::move(store)));
    impl_->count(impl_->stores.back(), &LiveCount::stores);
  }
  for (const auto& store : impl_->stores) compat::anon_tell(store, messages::Siblings{impl_->stores});
  impl_->keys = impl_->system.spawn<actors::ShardKeyActorBody>(setup.keys, impl_->stores);
  impl_->count(impl_->keys, &LiveCount::others);
  forget_logger();
}

ActorHost::~ActorHost() {
  // Handles first: an actor's memory is given back through the system.
  impl_->keys = messages::ShardKeyActor{};
  impl_->stores.clear();
}

ActorHost::PoolPtr ActorHost::add_pool_actor(std::shared_ptr<const actors::PoolSetup> setup) {
  const protocol::SenderId sender = setup->core.sender;
  auto box = std::make_shared<PoolBox>();
  box->actor = impl_->system.spawn<actors::PoolActorBody>(std::move(setup), impl_->keys);
  forget_logger();
  impl_->count(box->actor, &LiveCount::others);
  impl_->tell(impl_->keys, messages::AttachRank{sender, box->actor});
  return box;
}

void ActorHost::tell(PoolBox& pool, messages::PutCommand&& command) { impl_->tell(pool.actor, std::move(command)); }
void ActorHost::tell(PoolBox& pool, messages::LoadCommand&& command) { impl_->tell(pool.actor, std::move(command)); }
void ActorHost::tell(PoolBox& pool, messages::CancelCommand&& command) { impl_->tell(pool.actor, std::move(command)); }
void ActorHost::tell(PoolBox& pool, messages::UnregisterPool&& command) { impl_->tell(pool.actor, std::move(command)); }
void ActorHost::tell(PoolBox& pool, messages::CloseRank&& command) { impl_->tell(pool.actor, std::move(command)); }
void ActorHost::tell_keys(messages::OpenNamespace&& command) { impl_->tell(impl_->keys, std::move(command)); }
void ActorHost::tell_keys(messages::RegisterGroup&& command) { impl_->tell(impl_->keys, std::move(command)); }
void ActorHost::tell_keys(messages::RegisterPool&& command) { impl_->tell(impl_->keys, std::move(command)); }
void ActorHost::tell_keys(messages::LookupCommand&& command) { impl_->tell(impl_->keys, std::move(command)); }
void ActorHost::tell_keys(messages::LeaseCommand&& command) { impl_->tell(impl_->keys, std::move(command)); }
void ActorHost::tell_keys(messages::AdminCommand&& command) { impl_->tell(impl_->keys, std::move(command)); }
void ActorHost::tell_store(std::uint32_t partition, messages::StatsAsk&& command) {
  impl_->tell(impl_->stores[partition], std::move(command));
}
void ActorHost::tell_store(std::uint32_t partition, messages::WantEvents&& command) {
  impl_->tell(impl_->stores[partition], std::move(command));
}
void ActorHost::end_store(std::uint32_t partition) { impl_->tell(impl_->stores[partition], messages::EndStore{}); }

bool ActorHost::end(TimePoint deadline) {
  auto& live = *impl_->live;
  impl_->tell(impl_->keys, messages::CloseProcess{});
  {
    // The stores outlive those that would take their end for a loss.
    std::unique_lock lock(live.mutex);
    live.changed.wait_until(lock, deadline, [&] { return live.others == 0; });
  }
  for (const auto& store : impl_->stores) impl_->tell(store, messages::EndStore{});
  std::unique_lock lock(live.mutex);
  return live.changed.wait_until(lock, deadline, [&] { return live.others == 0 && live.stores == 0; });
}

}  // namespace kvonce::runtime
