// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/rank.hpp"

#include <cstdlib>

#include "tests/sim/checkers.hpp"
#include "tests/sim/session.hpp"
#include "tests/sim/store_node.hpp"

namespace kvonce::sim {
namespace {

storage::SlotShape shape_of(const PoolKnobs& knobs) {
  auto made = storage::SlotShape::create(knobs.range_bytes);
  if (!made.shape) std::abort();  // the knobs make no such pool
  return std::move(*made.shape);
}

std::uint32_t shards_of(Sharding sharding, std::uint32_t ranks) {
  if (sharding == Sharding::replicated) return 1;
  if (sharding == Sharding::grouped && ranks % 2 == 0) return ranks / 2;
  return ranks;
}

}  // namespace

RankPool::RankPool(const PoolKnobs& knobs, std::uint32_t index_, std::uint32_t shards_, std::uint32_t shard_)
    : index(index_), shards(shards_), shard(shard_), layers(knobs.layers), shape(shape_of(knobs)), rows(knobs.rows),
      bytes(knobs.rows * knobs.object_bytes) {}

Rank::Rank(Sim& sim, StoreNode& node, Checkers& checkers, std::uint32_t engine_, std::uint32_t index_)
    : engine(engine_), index(index_), mover(sim, *this), sim_(sim), node_(node), checkers_(checkers),
      ns_(sim.knobs.engines[engine_].ns), next_ns_(ns_) {
  slow = sim.random.chance(sim.knobs.slow_rank);
  divergent = sim.random.chance(sim.knobs.divergent_rank);
  for (std::uint32_t i = 0; i < sim.knobs.pools.size(); ++i) {
    const PoolKnobs& pool = sim.knobs.pools[i];
    const std::uint32_t shards = shards_of(pool.sharding, ranks());
    pools.emplace_back(pool, i, shards, index / (ranks() / shards));
  }
}
Rank::~Rank() = default;

bool Rank::ready() const { return !dead && !stopped && session_ != nullptr && session_->ready(); }
std::shared_ptr<Life> Rank::present_life() const { return node_.life(); }

void Rank::receive(std::uint64_t of_process, Action action) {
  if (dead || of_process != process || sim_.failed()) return;
  if (stopped)
    inbox_.push_back(std::move(action));
  else
    action();
}

void Rank::stop() {
  if (dead || stopped) return;
  stopped = true;
  sim_.probes.hit(Probe::rank_stop);
  sim_.note("stop", engine, index);
}

void Rank::wake() {
  if (dead || !stopped) return;
  stopped = false;
  last_wake = sim_.now();
  sim_.note("wake", engine, index);
  std::vector<Action> waiting;
  std::swap(waiting, inbox_);
  for (Action& action : waiting)
    if (!dead && !sim_.failed()) action();
}

void Rank::kill() {
  if (dead) return;
  sim_.probes.hit(Probe::rank_death);
  sim_.note("kill", engine, index);
  dead = true;
  inbox_.clear();
  mover.stop_all();
  for (auto& session : sessions_) {
    if (session->lost) continue;
    node_.disconnect(*session, [] { return false; });
    session->lost = true;
  }
  session_ = nullptr;
}

void Rank::revive() {
  if (!dead) return;
  dead = false;
  stopped = false;
  ++process;
  gates.clear();
  for (RankPool& pool : pools)
    for (Row& row : pool.rows) row = Row{};
  connect();
}

void Rank::lose_connection() {
  if (dead || session_ == nullptr || session_->lost) return;
  Session* session = session_;
  sim_.probes.hit(Probe::connection_loss);
  sim_.note("connection loss", engine, index);
  const auto of_process = process;
  node_.disconnect(*session, [this, session, of_process] {
    // A session that does not know of its end yet may still begin copies.
    return !dead && process == of_process && (!session->lost || mover.writes_for(*session));
  });
  sim_.schedule.after(sim_.random.between(1, 3000) * kMicrosecond, [session] {
    if (!session->lost) session->receive([session] { if (!session->lost) session->on_connection_lost(); });
  });
}

void Rank::connect() {
  if (dead) return;
  const auto of_process = process;
  if (!node_.up()) {
    sim_.schedule.after(4 * kMillisecond, [this, of_process] { receive(of_process, [this] { connect(); }); });
    return;
  }
  if (session_ != nullptr && !session_->lost) return;
  ns_ = next_ns_;
  sessions_.push_back(std::make_unique<Session>(sim_, *this, node_, checkers_));
  session_ = sessions_.back().get();
  for (RankPool& pool : pools)
    for (Row& row : pool.rows)
      if (row.state == RowState::gone) row = Row{};
}

void Rank::move_to(std::uint32_t ns) {
  next_ns_ = ns;
  reconnect();
}

void Rank::reconnect() {
  if (session_ != nullptr) session_->close();
}

std::optional<std::uint64_t> Rank::take_row(std::uint32_t pool, RowState state, std::uint64_t order) {
  auto& rows = pools[pool].rows;
  const std::size_t first = sim_.random.below(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::size_t at = (first + i) % rows.size();
    if (rows[at].state != RowState::free) continue;
    rows[at] = Row{state, order, 0};
    return at;
  }
  return std::nullopt;
}

// The engine uses the row for something else at once: whoever still reads it reads garbage.
void Rank::give_row(std::uint32_t pool, std::uint64_t row) {
  if (pools[pool].rows[row].state == RowState::gone) return;
  pools[pool].rows[row] = Row{};
  make_content(sim_.random.next(), 0, pools[pool].at(row), pools[pool].shape.payload_bytes());
}

ContentKey Rank::content_key(std::uint32_t ns, std::uint32_t pool, const PageHash& page, bool per_rank) const {
  const RankPool& own = pools[pool];
  if (per_rank) return ContentKey{ns, pool, ranks(), index, page};
  return ContentKey{ns, pool, own.shards, own.shard, page};
}

std::uint64_t Rank::content_seed(std::uint32_t ns, std::uint32_t pool, const PageHash& page) const {
  const ContentKey key = content_key(ns, pool, page, false);
  std::uint64_t variant = 0;
  if (divergent && mix64(page.words[0], engine * 64 + index) % 3 == 0) variant = 1000 + engine * 64 + index;
  else if (sim_.knobs.engines[engine].divergent && mix64(page.words[0], engine + 77) % 3 == 0) variant = 1 + engine;
  return mix64(hash_of(key), variant);
}

Time Rank::gate_of(std::uint64_t owner) const {
  const auto at = gates.find(owner);
  return at == gates.end() ? 0 : at->second;
}

}  // namespace kvonce::sim
