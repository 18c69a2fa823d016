// SPDX-License-Identifier: Apache-2.0
#include "runtime/actor_host.hpp"

#include <caf/logger.hpp>

#include <condition_variable>
#include <mutex>
#include <utility>

#include "actors/client_sessions.hpp"
#include "actors/pool_actor_state.hpp"
#include "actors/remote_store_actor.hpp"
#include "actors/shard_key_actor_state.hpp"
#include "actors/store_actor_state.hpp"
#include "actors/store_inbox.hpp"
#include "messages/actors.hpp"
#include "messages/caller_unit.hpp"
#include "messages/system_config.hpp"

namespace kvonce::runtime {

namespace {

// Enough for a batch from the call to its verdicts; what goes beyond belongs to the scheduler.
constexpr compat::RunLimits kCallerRuns{.jobs_max = 256, .duration_max = std::chrono::microseconds{500}, .messages_max = 1};

// What the thread that reads the link may take of the actors' work after a round of frames, before the scheduler gets the rest.
constexpr compat::RunLimits kReaderRuns{.jobs_max = 1024, .duration_max = std::chrono::milliseconds{2}, .messages_max = 0};
constexpr int kFramesPerRead = 16;
// Of a link's backlog. What is on its way to the link by then, all that may be open, has room before the link's own limit.
constexpr std::size_t kBehindBytes = std::size_t{32} << 20U;

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
  std::vector<messages::StoreActor> store_list() {
    const std::lock_guard lock(mutex);
    return stores;
  }

  bool remote = false;
  mutable std::mutex mutex;  // of the two below, which change with the store of another process
  std::vector<messages::StoreActor> stores;
  std::shared_ptr<actors::FrameSender> out;
  messages::ShardKeyActor keys;
  std::shared_ptr<actors::ClientSessions> sessions;
  std::shared_ptr<actors::StoreInbox> inbox;
  compat::CallerUnit::Lease reading;  // of the link's own thread, in the middle of a round
};

ActorHost::ActorHost(Setup setup) : impl_(std::make_unique<Impl>(setup)) {
  for (auto& store : setup.stores) {
    impl_->stores.push_back(impl_->system.spawn<actors::StoreActorBody>(std::move(store)));
    impl_->count(impl_->stores.back(), &LiveCount::stores);
  }
  impl_->remote = impl_->stores.empty();
  for (const auto& store : impl_->stores) compat::anon_tell(store, messages::Siblings{impl_->stores});
  impl_->keys = impl_->system.spawn<actors::ShardKeyActorBody>(setup.keys, impl_->stores);
  impl_->count(impl_->keys, &LiveCount::others);
  if (impl_->remote) {
    impl_->inbox = std::make_shared<actors::StoreInbox>();
    impl_->inbox->set_keys(impl_->keys);
    impl_->inbox->set_events(std::move(setup.events));
    impl_->inbox->set_ending(std::move(setup.ending));
  } else {
    impl_->sessions = std::make_shared<actors::ClientSessions>(impl_->system, impl_->stores);
  }
  forget_logger();
}

ActorHost::~ActorHost() {
  // Handles first: an actor's memory is given back through the system.
  impl_->inbox.reset();
  impl_->sessions.reset();
  impl_->keys = messages::ShardKeyActor{};
  impl_->stores.clear();
}

ActorHost::PoolPtr ActorHost::add_pool_actor(std::shared_ptr<const actors::PoolSetup> setup) {
  const protocol::SenderId sender = setup->core.sender;
  auto box = std::make_shared<PoolBox>();
  box->actor = impl_->system.spawn<actors::PoolActorBody>(std::move(setup), impl_->keys);
  forget_logger();
  impl_->count(box->actor, &LiveCount::others);
  if (impl_->inbox) {
    impl_->inbox->add_rank(sender, box->actor);
    // Its last word has been said when it has ended.
    caf::actor_cast<caf::abstract_actor*>(box->actor)->attach_functor([weak = std::weak_ptr(impl_->inbox), sender] {
      if (const auto inbox = weak.lock()) inbox->remove_rank(sender);
    });
  }
  impl_->tell(impl_->keys, messages::AttachRank{sender, box->actor});
  return box;
}

void ActorHost::tell(PoolBox& pool, messages::PutCommand&& command) { impl_->tell(pool.actor, std::move(command)); }
void ActorHost::tell(PoolBox& pool, messages::LoadCommand&& command) { impl_->tell(pool.actor, std::move(command)); }
void ActorHost::tell(PoolBox& pool, messages::CancelCommand&& command) { impl_->tell(pool.actor, std::move(command)); }
void ActorHost::tell(PoolBox& pool, messages::UnregisterPool&& command) { impl_->tell(pool.actor, std::move(command)); }
void ActorHost::tell(PoolBox& pool, messages::CloseRank&& command) { impl_->tell(pool.actor, std::move(command)); }
void ActorHost::tell_keys(messages::OpenNamespace&& command) { impl_->tell(impl_->keys, std::move(command)); }
void ActorHost::tell_keys(messages::CloseNamespace&& command) { impl_->tell(impl_->keys, std::move(command)); }
void ActorHost::tell_keys(messages::AskEpoch&& command) { impl_->tell(impl_->keys, std::move(command)); }
void ActorHost::tell_keys(messages::RegisterGroup&& command) { impl_->tell(impl_->keys, std::move(command)); }
void ActorHost::tell_keys(messages::RegisterPool&& command) { impl_->tell(impl_->keys, std::move(command)); }
void ActorHost::tell_keys(messages::LookupCommand&& command) { impl_->tell(impl_->keys, std::move(command)); }
void ActorHost::tell_keys(messages::LeaseCommand&& command) { impl_->tell(impl_->keys, std::move(command)); }
void ActorHost::tell_keys(messages::AdminCommand&& command) { impl_->tell(impl_->keys, std::move(command)); }
std::vector<messages::StatsSlot> ActorHost::ask_stats() {
  std::vector<messages::StatsSlot> slots;
  if (!impl_->remote) {
    for (const auto& store : impl_->stores) {
      slots.push_back(std::make_shared<messages::StatsSlot::element_type>());
      impl_->tell(store, messages::StatsAsk{[slot = slots.back()](const protocol::StoreStats& stats) { slot->fill(stats); }});
    }
    return slots;
  }
  const std::lock_guard lock(impl_->mutex);
  for (std::uint32_t p = 0; p < impl_->stores.size(); ++p) {
    slots.push_back(std::make_shared<messages::StatsSlot::element_type>());
    impl_->out->send(messages::FrameKind::stats_ask, p, impl_->inbox->expect_stats(slots.back()), messages::Nothing{});
  }
  return slots;
}

bool ActorHost::ask_clients(const messages::SlotPtr<std::vector<ClientInfo>>& slot) {
  if (!impl_->remote) {
    impl_->sessions->clients([slot](std::vector<ClientInfo>&& list) { slot->fill(std::move(list)); });
    return true;
  }
  const std::lock_guard lock(impl_->mutex);
  if (!impl_->out) return false;
  return impl_->out->send(messages::FrameKind::clients_ask, 0, impl_->inbox->expect_clients(slot), messages::Nothing{});
}

bool ActorHost::report(const messages::Report& report) {
  if (!impl_->remote) return true;
  const std::lock_guard lock(impl_->mutex);
  return impl_->out && impl_->out->send(messages::FrameKind::report, 0, 0, report);
}

void ActorHost::want_events(bool on) {
  if (!impl_->remote) {
    impl_->sessions->want_events_here(on);
    return;
  }
  const std::lock_guard lock(impl_->mutex);
  if (impl_->out) impl_->out->send(messages::FrameKind::want_events, 0, 0, messages::Wanted{on});
}

// -- the store of another process --------------------------------------------------------------------------------------

void ActorHost::stores_found(const std::shared_ptr<transport::Link>& link, std::uint32_t partitions,
                             std::shared_ptr<const actors::ArenaView> arena) {
  const auto out = std::make_shared<actors::FrameSender>(link);
  std::vector<messages::StoreActor> stores;
  for (std::uint32_t p = 0; p < partitions; ++p) {
    stores.push_back(impl_->system.spawn<actors::RemoteStoreActorBody>(out, p));
    impl_->count(stores.back(), &LiveCount::stores);
  }
  forget_logger();
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->out = out;
    impl_->stores = stores;
  }
  compat::anon_tell(impl_->keys, messages::StoresFound{std::move(stores), std::move(arena)});
}

bool ActorHost::is_behind() const {
  if (!impl_->remote) return false;
  const std::lock_guard lock(impl_->mutex);
  return impl_->out && impl_->out->backlog_bytes() > kBehindBytes;
}

void ActorHost::stores_lost() {
  std::vector<messages::StoreActor> stores;
  {
    const std::lock_guard lock(impl_->mutex);
    stores.swap(impl_->stores);
    impl_->out.reset();
  }
  impl_->inbox->forget_questions();
  for (const auto& store : stores) compat::anon_tell(store, messages::EndStore{});
}

bool ActorHost::take_frame(std::string_view bytes) {
  if (!impl_->reading) impl_->reading = compat::CallerUnit::borrow(impl_->system);
  return impl_->inbox->frame(bytes, *impl_->reading);
}

void ActorHost::turn_over() {
  if (!impl_->reading) return;
  impl_->reading->run(kReaderRuns);
  impl_->reading.reset();
}

int ActorHost::read(transport::Link& link) {
  auto unit = compat::CallerUnit::borrow(impl_->system);
  const int frames = link.receive([&](std::string_view frame) { return impl_->inbox->frame(frame, *unit); }, kFramesPerRead);
  if (frames > 0) unit->run(kCallerRuns);
  return frames;
}

// -- clients of the store in this process ------------------------------------------------------------------------------

const std::shared_ptr<actors::ClientSessions>& ActorHost::sessions() { return impl_->sessions; }

void ActorHost::tell_ending() { impl_->sessions->tell_ending(); }

void ActorHost::process_fenced(std::uint32_t pid, std::uint64_t start_time) {
  for (const auto& store : impl_->stores) compat::anon_tell(store, messages::ProcessFenced{pid, start_time});
}

void ActorHost::freeze() {
  for (const auto& store : impl_->stores) compat::anon_tell(store, messages::Freeze{});
}

std::optional<std::uint64_t> ActorHost::open_writes(TimePoint deadline) {
  std::uint64_t open = 0;
  for (const auto& store : impl_->stores) {
    const auto slot = std::make_shared<messages::Slot<std::uint64_t>>();
    compat::anon_tell(store, messages::WritesAsk{[slot](std::vector<protocol::ClientWrites>&& list) {
                        std::uint64_t sum = 0;
                        for (const auto& one : list) sum += one.open_grants;
                        slot->fill(sum);
                      }});
    const auto part = slot->wait_until(deadline);
    if (!part) return std::nullopt;
    open += *part;
  }
  return open;
}

std::vector<std::string> ActorHost::snapshot(TimePoint deadline) {
  std::vector<messages::SlotPtr<std::string>> slots;
  for (const auto& store : impl_->stores) {
    slots.push_back(std::make_shared<messages::Slot<std::string>>());
    compat::anon_tell(store, messages::SnapshotAsk{slots.back()});
  }
  std::vector<std::string> parts;
  for (const auto& slot : slots) {
    auto part = slot->wait_until(deadline);
    if (!part) return {};
    parts.push_back(std::move(*part));
  }
  return parts;
}

void ActorHost::end_store(std::uint32_t partition) { impl_->tell(impl_->store_list().at(partition), messages::EndStore{}); }

bool ActorHost::end(TimePoint deadline) {
  auto& live = *impl_->live;
  impl_->tell(impl_->keys, messages::CloseProcess{});
  {
    // The stores outlive those that would take their end for a loss.
    std::unique_lock lock(live.mutex);
    live.changed.wait_until(lock, deadline, [&] { return live.others == 0; });
  }
  for (const auto& store : impl_->store_list()) impl_->tell(store, messages::EndStore{});
  std::unique_lock lock(live.mutex);
  return live.changed.wait_until(lock, deadline, [&] { return live.others == 0 && live.stores == 0; });
}

}  // namespace kvonce::runtime
