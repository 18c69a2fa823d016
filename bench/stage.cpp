// SPDX-License-Identifier: Apache-2.0
#include "bench/stage.hpp"

#include <algorithm>
#include <cstring>

#include "storage/slot_shape.hpp"

namespace kvonce::bench {
namespace {

constexpr std::uint64_t kChainPages = 4'096;

// The page cut into `ranges` layers of nearly equal bytes, one after the other in the row.
PoolSpec pool_spec(const StageSpec& spec, std::byte* base) {
  PoolSpec pool;
  pool.name = kPoolName;
  pool.shard = Coordinates{};  // the same bytes on all ranks
  pool.rows = spec.rows;
  Component& component = pool.components.emplace_back();
  component.name = "kv";
  std::uint64_t begin = 0;
  for (std::uint64_t i = 1; i <= spec.ranges; ++i) {
    const std::uint64_t end = spec.page_bytes * i / spec.ranges;
    component.layers.push_back({base + begin, Stage::row_stride(spec), end - begin});
    begin = end;
  }
  return pool;
}

}  // namespace

std::uint64_t chain_pages(std::uint64_t batch) { return std::max(kChainPages / batch, std::uint64_t{1}) * batch; }

std::vector<PutBatch> make_put_batches(const std::vector<PageHash>& keys, std::uint64_t batch, PoolHandle pool,
                                       std::uint64_t rows) {
  std::vector<PutBatch> batches;
  const std::uint64_t chain = chain_pages(batch);
  for (std::uint64_t begin = 0; begin < keys.size(); begin += batch) {
    const std::uint64_t count = std::min<std::uint64_t>(batch, keys.size() - begin);
    PutBatch& one = batches.emplace_back();
    one.first_depth = static_cast<std::uint32_t>(begin % chain);
    if (one.first_depth != 0) one.parent = keys[begin - 1];
    one.pages.assign(keys.begin() + static_cast<std::ptrdiff_t>(begin),
                     keys.begin() + static_cast<std::ptrdiff_t>(begin + count));
    one.items.reserve(count);
    for (std::uint64_t i = 0; i < count; ++i) one.items.push_back({static_cast<std::uint32_t>(i), pool, (begin + i) % rows});
  }
  return batches;
}

std::uint64_t Stage::row_stride(const StageSpec& spec) { return storage::round_up(spec.page_bytes, storage::kGranuleBytes); }

Stage::Started Stage::start(const StageSpec& spec, const std::vector<RowMemory>& memory) {
  for (const RowMemory& one : memory)
    if (one.base() == nullptr) return {nullptr, "the system has no memory for the row buffers"};

  std::unique_ptr<Stage> stage(new Stage(spec, memory));
  RuntimeConfig config;
  config.engine_id = spec.engine;
  if (!spec.store.empty()) {
    config.store = spec.store;
    config.read_only = spec.read_only;
    config.connect_timeout = std::chrono::seconds{30};
  }
  const std::uint64_t pages = spec.pages + std::min(spec.pages, kFirstKeys);
  config.arena_bytes = arena_bytes_for(pages, pages, pages * spec.page_bytes, spec.ranges);
  config.index_pages = pages + 1'024;
  config.populate = spec.populate;
  config.leased_bytes = config.arena_bytes;
  config.lease_time = std::chrono::seconds{60};
  config.mover_threads = static_cast<std::uint32_t>(spec.movers);
  config.copy_kernel = spec.kernel;
  config.inline_copy_bytes = spec.inline_copy_bytes;
  auto runtime = Runtime::start(config);
  if (!runtime) return {nullptr, "the runtime did not start: " + runtime.error.text};
  stage->runtime_ = std::move(*runtime);

  const auto ns = stage->runtime_->open_namespace(spec.ns);
  if (!ns) return {nullptr, ns.error.text};
  stage->ns_ = ns.value;
  const std::uint64_t group_ranks = spec.group_ranks == 0 ? spec.ranks : spec.group_ranks;
  GroupSpec group;
  group.name = "bench";
  group.ranks.tp = static_cast<std::uint16_t>(group_ranks);
  group.pools.push_back({kPoolName, ShardCounts{}, HitPolicy::every_page(), false});
  const auto registered = stage->runtime_->register_group(ns.value, group);
  if (!registered) return {nullptr, registered.error.text};
  stage->group_ = registered.value;

  for (std::uint64_t r = 0; r < spec.ranks; ++r) {
    Coordinates place;
    place.tp = {static_cast<std::uint16_t>(spec.first_rank + r), static_cast<std::uint16_t>(group_ranks)};
    auto rank = stage->runtime_->add_rank(stage->group_, place);
    if (!rank) return {nullptr, rank.error.text};
    stage->ranks_.push_back(std::move(*rank));
    const auto pool = stage->ranks_.back()->register_pool(pool_spec(spec, memory[r].base()));
    if (!pool) return {nullptr, pool.error.text};
    stage->pools_.push_back(pool.value);
  }
  return {std::move(stage), {}};
}

void Stage::fill_rows(std::uint64_t seed) {
  for (std::uint64_t i = 0; i < spec_.rows; ++i) fill_row(row(0, i), spec_.page_bytes, seed, i);
  for (std::size_t r = 1; r < ranks_.size(); ++r) std::memcpy(row(r, 0), row(0, 0), spec_.rows * row_stride(spec_));
}

std::vector<std::uint64_t> Stage::moved_bytes(const std::vector<std::uint64_t>& before) const {
  std::vector<std::uint64_t> moved;
  for (std::size_t r = 0; r < ranks_.size(); ++r) moved.push_back(ranks_[r]->moved_bytes() - (before.empty() ? 0 : before[r]));
  return moved;
}

void Stage::clear_rows(std::size_t rank) { std::memset(row(rank, 0), 0, spec_.rows * row_stride(spec_)); }

std::uint64_t Stage::wrong_rows(std::size_t rank, std::uint64_t seed) const {
  std::uint64_t wrong = 0;
  for (std::uint64_t i = 0; i < spec_.rows; ++i)
    if (!row_is(row(rank, i), spec_.page_bytes, seed, i)) ++wrong;
  return wrong;
}

Stage::Leases Stage::lease(const std::vector<PageHash>& keys, std::uint64_t batch) {
  Leases leases;
  const std::uint64_t chain = chain_pages(batch);
  for (std::uint64_t begin = 0; begin < keys.size(); begin += chain) {
    const std::uint64_t count = std::min<std::uint64_t>(chain, keys.size() - begin);
    const auto first = keys.begin() + static_cast<std::ptrdiff_t>(begin);
    LookupOptions options;
    options.timeout = std::chrono::seconds{30};
    auto asked = runtime_->lookup(group_, std::vector<PageHash>(first, first + static_cast<std::ptrdiff_t>(count)), options);
    if (!asked) {
      leases.error = "lookup refused: " + asked.error.text;
      return leases;
    }
    asked.value->wait();
    const LookupResult& result = asked.value->result();
    if (result.error || result.restorable_pages != count) {
      leases.error = "lookup: " + std::to_string(result.restorable_pages) + " of " + std::to_string(count) +
                     " pages restorable (" + (result.error ? result.error.text : std::string(to_string(result.reason))) + ")";
      return leases;
    }
    leases.by_chain.push_back(result.lease);
  }
  return leases;
}

void Stage::release(const Leases& leases) {
  // Whatever becomes of it: the lease also ends by itself.
  for (const LeaseId& lease : leases.by_chain) static_cast<void>(runtime_->release(lease));
}

std::string Stage::verify(const std::vector<PageHash>& keys, std::uint64_t seed, std::uint64_t batch) {
  clear_rows(0);
  const Leases leases = lease(keys, batch);
  if (!leases.error.empty()) return leases.error;
  const std::uint64_t chain = chain_pages(batch);
  std::uint64_t lost = 0;
  for (std::uint64_t begin = 0; begin < keys.size(); begin += batch) {
    std::vector<LoadItem> items;
    for (std::uint64_t i = begin; i < std::min<std::uint64_t>(begin + batch, keys.size()); ++i)
      items.push_back({keys[i], pools_[0], i});
    const std::uint64_t asked = items.size();
    auto load = ranks_[0]->load(leases.by_chain[begin / chain], std::move(items));
    if (!load) return "load refused: " + load.error.text;
    load.value->wait();
    lost += asked - load.value->loaded();
  }
  release(leases);
  if (lost != 0) return std::to_string(lost) + " of " + std::to_string(keys.size()) + " pages could not be loaded back";
  const std::uint64_t wrong = wrong_rows(0, seed);
  if (wrong != 0) return std::to_string(wrong) + " of " + std::to_string(keys.size()) + " pages came back with other bytes";
  return {};
}

}  // namespace kvonce::bench
