// SPDX-License-Identifier: Apache-2.0
#include "actors/pool_actor.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "actors/pool_actor_state.hpp"
#include "messages/caller_unit.hpp"
#include "runtime/operation_impl.hpp"

namespace kvonce::actors {

using protocol::CopyOrder;
using protocol::CopyOutcome;
using protocol::Time;
using runtime::add;

namespace {

// What a mover thread may take over of the actors' work after a copy, before the scheduler gets the rest.
constexpr compat::RunLimits kMoverRuns{.jobs_max = 64, .duration_max = std::chrono::microseconds{300}, .messages_max = 0};

void tell_from_mover(caf::actor_system& system, const messages::PoolActor& pool, auto&& message) {
  auto unit = compat::CallerUnit::borrow(system);
  unit->tell(pool, std::forward<decltype(message)>(message));
  unit->run(kMoverRuns);
}

}  // namespace

void PoolState::start(Self self, std::shared_ptr<const PoolSetup> setup, messages::ShardKeyActor keys) {
  self_ = self;
  setup_ = std::move(setup);
  arena_ = std::move(setup_->arena);
  placement_ = setup_->placement;
  keys_ = std::move(keys);
  core_ = std::make_unique<protocol::PoolCore>(setup_->core, *this);
}

// Only reached with open operations when the actor was ended by force: then the movers have been stopped before.
PoolState::~PoolState() {
  for (auto& [id, open] : puts_) {
    auto& impl = open.operation->impl();
    if (!impl.claim()) continue;
    for (PutItemResult& result : impl.puts) result = {Verdict::unknown, Reason::closed, 0};
    impl.finish();
  }
  for (auto& [id, open] : loads_) {
    auto& impl = open.operation->impl();
    if (!impl.claim()) continue;
    for (Reason& reason : impl.loads) reason = Reason::closed;
    impl.finish();
  }
  for (auto& [pool, slots] : unregistering_)
    for (auto& slot : slots) slot->fill(true);
  for (auto& slot : closing_) slot->fill(true);
}

protocol::ReadStatus PoolState::locate(std::uint32_t pool, const PageHash& page, std::uint32_t* partition,
                                       protocol::PoolKeying* keying, protocol::ObjectLocation* out) {
  if (pool >= keyings_.size() || arena_->readers.empty()) return protocol::ReadStatus::absent;
  const protocol::PoolKeying& key = keyings_[pool];
  *keying = key;
  *partition = placement_.owner(key.ns, page);
  return arena_->readers[*partition].locate(key.ns, page, key.pool, key.shard, out);
}

void PoolState::prefetch(std::uint32_t pool, const PageHash& page, unsigned stage) {
  if (pool >= keyings_.size() || arena_->readers.empty()) return;
  const protocol::PoolKeying& key = keyings_[pool];
  arena_->readers[placement_.owner(key.ns, page)].prefetch(key.ns, page, stage);
}

// -- events ------------------------------------------------------------------------------------------------------------

void PoolState::on_reply(const protocol::StoreReply& reply) {
  const Time now = runtime::now();
  core_->on_reply(reply, now, actions_);
  act(now);
}

void PoolState::on_load_begun(const protocol::LoadBegun& begun) {
  const Time now = runtime::now();
  core_->on_load_begun(begun, now, actions_);
  act(now);
}

void PoolState::on_rekeyed(const messages::Rekeyed& rekeyed) {
  if (rekeyed.pool >= pools_.size()) return;
  if (rekeyed.ok) {
    keyings_[rekeyed.pool] = {rekeyed.ns, rekeyed.store_pool, rekeyed.generation, rekeyed.shard};
    pools_[rekeyed.pool]->set_keying(keyings_[rekeyed.pool]);
  }
  const Time now = runtime::now();
  core_->on_rekeyed(rekeyed.pool, rekeyed.ok, now, actions_);
  act(now);
}

void PoolState::on_store_lost() {
  store_lost_ = true;
  const Time now = runtime::now();
  core_->on_store_lost(now, actions_);
  act(now);
}

void PoolState::on_store_found(const messages::StoreFound& found) {
  arena_ = found.arena;
  store_lost_ = false;
  placement_ = protocol::Placement::local(found.partitions);
  const Time now = runtime::now();
  core_->on_store_found(now, actions_);
  act(now);
}

void PoolState::on_flush_mark(messages::FlushMark mark) {
  mark.sender = setup_->core.sender;
  compat::tell(self_, keys_, mark);
}

void PoolState::on_add_pool(const messages::AddPool& add) {
  const protocol::PoolGeometry& geometry = add.memory->geometry;
  const std::uint32_t number = core_->add_pool(geometry.object_bytes(), geometry.rows(), geometry.layers());
  pools_.resize(std::max<std::size_t>(pools_.size(), std::size_t{number} + 1));
  keyings_.resize(pools_.size());
  pools_[number] = add.memory;
  keyings_[number] = add.keying;
  add.memory->set_keying(add.keying);
  compat::tell(self_, keys_,
               messages::SetKeying{setup_->core.sender, number, add.ns_handle, add.memory, add.keying, add.ask,
                                   add.memory->rank_shard});
  add.answer->fill({{}, number});
}

void PoolState::on_unregister(const messages::UnregisterPool& unregister) {
  unregistering_[unregister.pool].push_back(unregister.answer);
  const Time now = runtime::now();
  core_->unregister(unregister.pool, now, actions_);
  act(now);
}

void PoolState::on_put(messages::PutCommand& command) {
  const Time now = runtime::now();
  add(setup_->counters->rows_lent, command.order.items.size());
  puts_.emplace(command.order.id, OpenPut{std::move(command.operation), std::move(command.after)});
  core_->put(std::move(command.order), now, actions_);
  act(now);
}

void PoolState::on_load(messages::LoadCommand& command) {
  const Time now = runtime::now();
  add(setup_->counters->rows_lent, command.order.items.size());
  OpenLoad open{std::move(command.operation), std::move(command.after), {}};
  open.pools.reserve(command.order.items.size());
  for (const auto& item : command.order.items) open.pools.push_back(item.pool);
  loads_.emplace(command.order.id, std::move(open));
  core_->load(std::move(command.order), now, actions_);
  act(now);
}

void PoolState::on_cancel(messages::CancelCommand command) {
  const Time now = runtime::now();
  if (command.is_load)
    core_->cancel_load(command.operation, now, actions_);
  else
    core_->cancel_put(command.operation, now, actions_);
  act(now);
}

void PoolState::on_close(const messages::CloseRank& close) {
  closing_.push_back(close.answer);
  const Time now = runtime::now();
  core_->close(now, actions_);
  act(now);
}

void PoolState::on_copy_advanced(const messages::CopyAdvanced& news) {
  const auto& job = *news.job;
  if (!running_.contains(job.order.operation)) return;
  const Time now = runtime::now();
  const std::vector<CopyOutcome> finished(job.outcomes.begin(), job.outcomes.begin() + news.items_done);
  core_->copy_progress(job.order.operation, news.items_done, finished, now, actions_);
  act(now);
}

void PoolState::on_copy_ended(const messages::CopyEnded& news) {
  running_.erase(news.job->order.operation);
  const Time now = runtime::now();
  end_copy(*news.job, now);
  act(now);
}

void PoolState::on_tick(messages::Tick tick) {
  timer_.arrived(tick);
  const Time now = runtime::now();
  core_->advance(now, actions_);
  act(now);
}

// -- what the core wants -----------------------------------------------------------------------------------------------

void PoolState::act(Time now) {
  if (ended_) return;
  // Copies on this thread make new actions: repeated until nothing is wanted.
  std::vector<CopyOrder> copies;
  std::vector<std::uint64_t> load_more;
  while (true) {
    send(now);
    if (reads_over_ != 0) setup_->counters->row_reads.fetch_sub(std::exchange(reads_over_, 0), std::memory_order_release);
    copies.clear();
    copies.swap(actions_.copies);
    load_more.clear();
    load_more.swap(actions_.load_more);
    for (const std::uint64_t operation : actions_.cancel_copies) {
      const auto at = running_.find(operation);
      if (at == running_.end()) continue;
      for (const auto& part : at->second->parts) part->cancel();
    }
    for (const std::uint32_t pool : actions_.unregistered) {
      compat::tell(self_, keys_, messages::PoolGone{setup_->core.sender, pool});
      if (const auto slots = unregistering_.extract(pool))
        for (const auto& slot : slots.mapped()) slot->fill(true);
    }
    actions_.clear();
    if (copies.empty()) break;
    for (CopyOrder& copy : copies) start_copy(std::move(copy), now);
    now = runtime::now();
    for (const std::uint64_t load : load_more) core_->load_more(load, now, actions_);
  }
  // What was accepted ends with the old memory; after that it is let go of, for the next store may need it.
  if (store_lost_ && core_->idle() && running_.empty() && !arena_->readers.empty()) arena_ = std::make_shared<const ArenaView>();
  if (!closing_.empty() && core_->idle() && running_.empty()) {
    ended_ = true;
    compat::tell(self_, keys_, messages::RankClosed{setup_->core.sender});
    for (const auto& slot : std::exchange(closing_, {})) slot->fill(true);
    self_->quit();
    return;
  }
  timer_.arm(self_, core_->next_deadline(), now);
}

void PoolState::send(Time) {
  using messages::ToPartition;
  for (auto& ready : actions_.ready) compat::tell(self_, keys_, std::move(ready));
  for (auto& [partition, results] : actions_.results) compat::tell(self_, keys_, ToPartition{partition}, std::move(results));
  for (auto& withdraw : actions_.withdraws) compat::tell(self_, keys_, std::move(withdraw));
  for (auto& [partition, answers] : actions_.checksums)
    compat::tell(self_, keys_, ToPartition{partition}, std::move(answers));
  for (const auto& begin : actions_.load_begins) compat::tell(self_, keys_, begin);
  for (const auto& end : actions_.load_ends) compat::tell(self_, keys_, end);
  for (const auto& rekey : actions_.rekeys) compat::tell(self_, keys_, messages::RekeyAsk{setup_->core.sender, rekey.pool});
  for (auto& done : actions_.puts_done) finish_put(done);
  for (const auto& progress : actions_.load_progress) {
    if (const auto at = loads_.find(progress.id); at != loads_.end())
      at->second.operation->impl().advance_layers(progress.layers_done);
  }
  for (auto& done : actions_.loads_done) finish_load(done);
}

void PoolState::finish_put(protocol::PoolActions::PutDone& done) {
  const auto node = puts_.extract(done.id);
  if (node.empty()) return;
  const auto operation = node.mapped().operation;
  auto& impl = operation->impl();
  std::array<std::uint64_t, kVerdictCount> counts{};
  impl.puts.resize(done.items.size());
  for (std::size_t i = 0; i < done.items.size(); ++i) {
    const protocol::ItemResult& item = done.items[i];
    impl.puts[i] = {item.verdict, item.reason, item.retry_after_ms};
    ++counts[static_cast<std::size_t>(item.verdict)];
    if (is_success(item.verdict)) ++impl.count;
  }
  for (std::size_t v = 0; v < counts.size(); ++v)
    if (counts[v] != 0) add(setup_->counters->verdicts[v], counts[v]);
  setup_->counters->rows_lent.fetch_sub(done.items.size(), std::memory_order_relaxed);
  if (impl.claim()) impl.finish();
}

void PoolState::finish_load(protocol::PoolActions::LoadDone& done) {
  const auto node = loads_.extract(done.id);
  if (node.empty()) return;
  const auto operation = node.mapped().operation;
  auto& impl = operation->impl();
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < done.items.size(); ++i) {
    if (done.items[i] != Reason::none) continue;
    ++impl.count;
    bytes += pools_[node.mapped().pools[i]]->geometry.object_bytes();
  }
  impl.loads = std::move(done.items);
  auto& counters = *setup_->counters;
  add(counters.loaded_items, impl.count);
  add(counters.loaded_bytes, bytes);
  add(counters.load_failures, impl.loads.size() - impl.count);
  counters.rows_lent.fetch_sub(impl.loads.size(), std::memory_order_relaxed);
  if (impl.claim()) impl.finish();
}

// -- copies ------------------------------------------------------------------------------------------------------------

Event PoolState::after_of(const CopyOrder& order) const {
  if (order.kind == CopyOrder::Kind::from_slot) {
    const auto at = loads_.find(order.owner);
    return at != loads_.end() ? at->second.after : Event();
  }
  const auto at = puts_.find(order.owner);
  return at != puts_.end() ? at->second.after : Event();
}

void PoolState::start_copy(CopyOrder&& order, Time now) {
  const Event after = after_of(order);
  const auto job = std::make_shared<CopyJob>(std::move(order), arena_, pools_);
  if (job->order.kind != CopyOrder::Kind::from_slot) add(setup_->counters->row_reads, 1);
  auto parts = job->make_parts();
  for (auto& part : parts) {
    part.batch.deadline = runtime::to_point(job->order.deadline);
    part.batch.after = after;
  }
  // Small ones are done before another thread would have woken up.
  if (parts.size() != 1 || job->bytes() > setup_->inline_copy_bytes || !after.ready()) {
    run_on_movers(job, parts, after);
    return;
  }
  const std::size_t items = job->order.items.size();
  const auto answer = setup_->mover->run_inline(std::move(parts.front().batch));
  if (answer.operation)
    job->collect(*answer.operation, 0);
  else
    job->refuse(0, items, answer.refusal == transport::Refusal::stopped ? CopyOutcome::canceled : CopyOutcome::failed);
  end_copy(*job, now);
}

void PoolState::run_on_movers(const std::shared_ptr<CopyJob>& job, std::vector<CopyJob::Part>& parts, const Event&) {
  auto* const system = &self_->home_system();
  const messages::PoolActor self_handle{self_};
  running_.emplace(job->order.operation, job);
  job->parts_left.store(parts.size(), std::memory_order_relaxed);
  // The job is not kept by its own function: the message keeps it.
  job->advanced = [system, self_handle, weak = std::weak_ptr(job)](std::uint32_t items_done) {
    if (auto held = weak.lock()) tell_from_mover(*system, self_handle, messages::CopyAdvanced{std::move(held), items_done});
  };
  for (auto& part : parts) {
    const std::size_t items = part.batch.items.size();
    part.batch.done = [system, self_handle, job, first = part.first_item](transport::Operation& operation) {
      job->collect(operation, first);
      if (job->parts_left.fetch_sub(1, std::memory_order_acq_rel) == 1)
        tell_from_mover(*system, self_handle, messages::CopyEnded{job});
    };
    const auto answer = setup_->mover->submit(std::move(part.batch));
    if (answer.operation) {
      job->parts.push_back(answer.operation);
      continue;
    }
    job->refuse(part.first_item, items,
                answer.refusal == transport::Refusal::stopped ? CopyOutcome::canceled : CopyOutcome::failed);
    // Not here and now: the core is told of its end like of any other, after what it wants has been begun.
    if (job->parts_left.fetch_sub(1, std::memory_order_acq_rel) == 1) compat::tell(self_, self_handle, messages::CopyEnded{job});
  }
}

void PoolState::end_copy(CopyJob& job, Time now) {
  if (job.order.kind != CopyOrder::Kind::from_slot) ++reads_over_;
  if (job.order.kind == CopyOrder::Kind::to_slot) {
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < job.outcomes.size(); ++i)
      if (job.outcomes[i] == CopyOutcome::done) bytes += pools_[job.order.items[i].pool]->geometry.object_bytes();
    add(setup_->counters->moved_bytes, bytes);
    add(*setup_->moved_bytes, bytes);
  }
  core_->copy_done(job.order.operation, job.outcomes, job.checksum_counts, job.checksums, now, actions_);
}

// -- the actor ---------------------------------------------------------------------------------------------------------

PoolActorBody::PoolActorBody(caf::actor_config& config, std::shared_ptr<const PoolSetup> setup, messages::ShardKeyActor keys)
    : stateful_actor(config) {
  compat::state_of(this).start(this, std::move(setup), std::move(keys));
}

messages::PoolActor::behavior_type PoolActorBody::make_behavior() {
  const auto run = [](const auto& work) { guarded(PoolState::name, work); };
  auto* const s = &compat::state_of(this);
  return {
      [s, run](const protocol::StoreReply& reply) { run([&] { s->on_reply(reply); }); },
      [s, run](const protocol::LoadBegun& begun) { run([&] { s->on_load_begun(begun); }); },
      [s, run](const messages::Rekeyed& rekeyed) { run([&] { s->on_rekeyed(rekeyed); }); },
      [s, run](const messages::StoreLost&) { run([&] { s->on_store_lost(); }); },
      [s, run](const messages::FlushMark& mark) { run([&] { s->on_flush_mark(mark); }); },
      [s, run](const messages::AddPool& add) { run([&] { s->on_add_pool(add); }); },
      [s, run](const messages::UnregisterPool& unregister) { run([&] { s->on_unregister(unregister); }); },
      [s, run](messages::PutCommand& command) { run([&] { s->on_put(command); }); },
      [s, run](messages::LoadCommand& command) { run([&] { s->on_load(command); }); },
      [s, run](const messages::CancelCommand& command) { run([&] { s->on_cancel(command); }); },
      [s, run](const messages::CloseRank& close) { run([&] { s->on_close(close); }); },
      [s, run](const messages::StoreFound& found) { run([&] { s->on_store_found(found); }); },
      [s, run](const messages::CopyAdvanced& news) { run([&] { s->on_copy_advanced(news); }); },
      [s, run](const messages::CopyEnded& news) { run([&] { s->on_copy_ended(news); }); },
      [s, run](const messages::Tick& tick) { run([&] { s->on_tick(tick); }); },
  };
}

}  // namespace kvonce::actors
