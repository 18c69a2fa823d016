// SPDX-License-Identifier: Apache-2.0
#include "apps/kvonce/replay_run.hpp"

#include <algorithm>
#include <chrono>

#include <sys/resource.h>
#include <unistd.h>

#include "apps/kvonce/replay_content.hpp"
#include "storage/slot_shape.hpp"

namespace kvonce::apps {
namespace {

using workload::KeyMode;
using workload::PoolPreset;

// Rows of one rank for all its every-page pools together. Small enough for caches, large enough that a batch's fixed costs
// vanish.
constexpr std::uint64_t kRowBytesPerRank = 4ULL << 20;
constexpr std::uint64_t kChunkPagesMost = 2'048;
constexpr std::uint64_t kChunkPagesLeast = 4;
// Trailing pools need two rows: the checkpoint behind the resident pages and the one at the prompt's end.
constexpr std::uint64_t kCheckpointRows = 2;
constexpr std::byte kPoison{0xa5};
// Busy machines must not decide the hit rate: leases outlast any load.
constexpr std::chrono::seconds kLeaseTime{600};
constexpr std::chrono::seconds kCallTimeout{300};

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// True for a share of all (number, rank) pairs, decided by the seed.
bool chosen(double share, std::uint64_t seed, std::uint64_t number, std::uint64_t salt) {
  if (share >= 1)
    return true;
  const std::uint64_t draw = mix_bits(mix_bits(seed + 0x51ed270b27b4d4a1ULL * (number + 1)) + salt) >> 11;
  return static_cast<double>(draw) * 0x1p-53 < share;
}

std::uint32_t shards_of(const workload::ModelPreset& model, const PoolPreset& pool, KeyMode keys) {
  return keys == KeyMode::per_rank ? model.ranks : model.shards(pool);
}

std::uint64_t slot_bytes(const PoolPreset& pool) {
  const std::uint64_t footer = storage::kSlotHeaderBytes + storage::kChecksumBytes * pool.ranges.size();
  return storage::round_up(storage::round_up(pool.object_bytes(), storage::kFooterAlignment) + footer, storage::kGranuleBytes);
}

/// A budget of payload that limits, and around it an arena so roomy that neither slots' overhead nor fragments do: at small
/// scales an object's header would otherwise weigh as much as its bytes, which it does not at full size.
RuntimeConfig store_config(const ReplayPlan& plan, const ReplaySetup& setup) {
  RuntimeConfig config;
  config.engine_id = "replay";
  config.policy = setup.policy;
  config.capacity_bytes = setup.capacity_bytes / plan.scale;
  double overhead = 1;
  std::uint64_t objects = 0;
  for (const PoolPreset& pool : plan.model.pools) {
    overhead = std::max(overhead, static_cast<double>(slot_bytes(pool)) / static_cast<double>(pool.object_bytes()));
    objects += shards_of(plan.model, pool, setup.keys);
  }
  const std::uint64_t pages = config.capacity_bytes / plan.model.page_bytes(setup.keys) + kChunkPagesMost;
  // The index has room for four objects a page on the average; more objects take more pages' room.
  config.index_pages = std::max<std::uint64_t>(2 * pages * ((objects + 3) / 4), 65'536);
  config.arena_bytes = static_cast<std::uint64_t>(1.25 * overhead * static_cast<double>(config.capacity_bytes)) +
                       512 * config.index_pages + (64ULL << 20);
  // One request may need more than half of a small store.
  config.leased_bytes = config.capacity_bytes;
  config.lease_time = kLeaseTime;
  return config;
}

/// Flags of a kvonced that keeps what an embedded store of `config` would.
std::vector<std::string> store_settings(const RuntimeConfig& config) {
  const auto number = [](std::uint64_t value) { return std::to_string(value); };
  return {"--memory",       number(config.arena_bytes),
          "--capacity",     number(config.capacity_bytes),
          "--index-pages",  number(config.index_pages),
          "--partitions",   number(config.partitions),
          "--policy",       config.policy,
          "--leased-bytes", number(config.leased_bytes),
          "--lease-time",   number(static_cast<std::uint64_t>(config.lease_time.count())) + "ms",
          "--populate",     "no"};
}

bool by_path(const ReplayPlan& plan) { return plan.via.starts_with("unix:"); }

}  // namespace

bool ReplayFigures::sound() const noexcept {
  const auto count = [this](Verdict verdict) { return verdicts[static_cast<std::size_t>(verdict)]; };
  std::uint64_t lost_loads = 0;
  for (std::size_t i = 1; i < load_reasons.size(); ++i)
    lost_loads += load_reasons[i];
  return wrong_bytes == 0 && conflicts == 0 && demotions == 0 && lost_loads == 0 && count(Verdict::failed) == 0 &&
         count(Verdict::unknown) == 0 && count(Verdict::conflict) == 0;
}

Error check_store(const ReplayPlan& plan, const ReplaySetup& setup) {
  return store_config(plan, setup).check();
}

ReplayRun::ReplayRun(const ReplayPlan& plan, const ReplaySetup& setup) : plan_(plan), setup_(setup) {
  started_seconds_ = wall_seconds();
  started_cpu_seconds_ = cpu_seconds();
  start();
}

ReplayRun::~ReplayRun() {
  for (RankSide& side : ranks_)
    side.rank.reset();
  // The next pass, or whoever uses that store, has its room again.
  if (runtime_ == nullptr || !by_path(plan_)) return;
  if (const auto removed = runtime_->remove_namespace(ns_)) removed.value->wait();
}

bool ReplayRun::fail(std::string_view what, const Error& error) {
  error_ = std::string(what) + ": " + (error.text.empty() ? std::string(to_string(error.reason)) : error.text);
  return false;
}

bool ReplayRun::start() {
  RuntimeConfig config = store_config(plan_, setup_);
  if (plan_.via == "spawn") {
    try {
      spawned_ = std::make_unique<bench::StoreUse>(store_settings(config));
    } catch (const bench::Failed& failed) {
      return fail("the store does not start", {Reason::store_lost, failed.text});
    }
    config.store = spawned_->address();
  } else if (by_path(plan_)) {
    config.store = plan_.via;
  }
  auto started = Runtime::start(config);
  if (!started)
    return fail("the store does not start", started.error);
  runtime_ = std::move(*started);
  std::string text = plan_.model.name + ", 512-token pages, 1/" + std::to_string(plan_.scale);
  // In a store that others use, too, every pass has a namespace of its own: that of an earlier one would be hit.
  if (by_path(plan_))
    text += ", replay " + std::to_string(getpid()) + '.' + std::to_string(std::chrono::system_clock::now().time_since_epoch().count());
  auto ns = runtime_->open_namespace(text);
  if (!ns)
    return fail("the namespace", ns.error);
  ns_ = *ns;
  if (by_path(plan_))
    before_ = runtime_->stats();

  GroupSpec spec;
  spec.name = plan_.model.name;
  spec.ranks.tp = static_cast<std::uint16_t>(plan_.model.ranks);
  std::uint64_t page_bytes = 0;  // one rank's
  for (const PoolPreset& pool : plan_.model.pools) {
    GroupPool described;
    described.name = pool.name;
    described.shards = ShardCounts{static_cast<std::uint16_t>(shards_of(plan_.model, pool, setup_.keys)), 1, 1};
    described.policy = pool.hit_policy;
    described.optional = pool.optional;
    spec.pools.push_back(std::move(described));
    if (pool.hit_policy.is_trailing()) {
      has_checkpoints_ = true;
    } else {
      page_bytes += pool.object_bytes();
    }
  }
  chunk_pages_ = static_cast<std::uint32_t>(std::clamp(kRowBytesPerRank / page_bytes, kChunkPagesLeast, kChunkPagesMost));
  auto group = runtime_->register_group(*ns, spec);
  if (!group)
    return fail("the page group", group.error);
  group_ = *group;
  for (std::uint32_t index = 0; index < plan_.model.ranks; ++index) {
    if (!add_rank(group_, index))
      return false;
  }
  return true;
}

bool ReplayRun::add_rank(GroupHandle group, std::uint32_t index) {
  const auto ranks = static_cast<std::uint16_t>(plan_.model.ranks);
  RankSide side;
  Coordinates place;
  place.tp = {static_cast<std::uint16_t>(index), ranks};
  auto rank = runtime_->add_rank(group, place);
  if (!rank)
    return fail("rank " + std::to_string(index), rank.error);
  side.rank = std::move(*rank);
  for (std::size_t i = 0; i < plan_.model.pools.size(); ++i) {
    const PoolPreset& pool = plan_.model.pools[i];
    ReplayRows& rows =
        side.rows.emplace_back(pool.object_bytes(), pool.hit_policy.is_trailing() ? kCheckpointRows : chunk_pages_);
    PoolSpec spec;
    spec.name = pool.name;
    const std::uint32_t shards = shards_of(plan_.model, pool, setup_.keys);
    const std::uint32_t shard = setup_.keys == KeyMode::per_rank ? index : content_shard(i, index);
    spec.shard = Coordinates{{static_cast<std::uint16_t>(shard), static_cast<std::uint16_t>(shards)}, {}, {}};
    spec.components.push_back({"object", {{rows.row(0), rows.stride(), rows.object_bytes()}}});
    spec.rows = rows.rows();
    auto handle = side.rank->register_pool(spec);
    if (!handle)
      return fail("pool " + pool.name + " of rank " + std::to_string(index), handle.error);
    side.pools.push_back(*handle);
  }
  ranks_.push_back(std::move(side));
  return true;
}

bool ReplayRun::play(const workload::TraceRequest& request) {
  if (request.pages.size() > kMaxBatchItems) {
    error_ = "request " + std::to_string(figures_.requests + 1) + " has " + std::to_string(request.pages.size()) +
             " full pages; allowed are at most " + std::to_string(kMaxBatchItems);
    return false;
  }
  if (!request.pages.empty()) {
    hashes_.clear();
    for (const std::uint64_t page : request.pages)
      hashes_.push_back(page_hash(plan_.seed, page));
    LookupOptions options;
    options.timeout = kCallTimeout;
    const auto lookup = runtime_->lookup(group_, hashes_, std::move(options));
    if (!lookup)
      return fail("lookup", lookup.error);
    lookup.value->wait();
    const LookupResult& found = lookup.value->result();
    if (found.error)
      return fail("lookup", found.error);
    const bool loaded = load(request, found);
    if (found.lease) {
      if (const Error wrong = runtime_->release(found.lease))
        return fail("the lease's release", wrong);
    }
    if (!loaded || !put(request, found))
      return false;
    figures_.hit_tokens += found.restorable_pages * workload::kTracePageTokens;
    figures_.resident_tokens += found.resident_pages * workload::kTracePageTokens;
  }
  figures_.input_tokens += request.input_tokens;
  ++figures_.requests;
  return true;
}

bool ReplayRun::load(const workload::TraceRequest& request, const LookupResult& found) {
  if (found.restorable_pages == 0 || !chosen(plan_.load_share, plan_.seed, figures_.requests, 0xffff))
    return true;
  verified_ranks_.clear();
  for (std::uint32_t rank = 0; rank < plan_.model.ranks; ++rank) {
    verified_ranks_.push_back(chosen(plan_.verify_share, plan_.seed, figures_.requests, rank) ? 1 : 0);
  }
  for (std::uint32_t first = 0; first < found.restorable_pages; first += chunk_pages_) {
    if (!load_chunk(request.pages, first, found.restorable_pages, found.lease))
      return false;
  }
  return true;
}

bool ReplayRun::load_chunk(std::span<const std::uint64_t> pages, std::uint32_t first, std::uint32_t stop, LeaseId lease) {
  const std::uint32_t end = std::min(stop, first + chunk_pages_);
  std::vector<std::vector<LoadItem>> items(ranks_.size());
  std::vector<std::shared_ptr<LoadOperation>> operations;
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    RankSide& side = ranks_[r];
    for (std::size_t i = 0; i < side.pools.size(); ++i) {
      const bool trailing = plan_.model.pools[i].hit_policy.is_trailing();
      if (trailing && end != stop)
        continue;
      for (std::uint32_t page = trailing ? stop - 1 : first; page < end; ++page) {
        const std::uint64_t row = trailing ? 0 : page - first;
        items[r].push_back({hashes_[page], side.pools[i], row});
        // So that a load which writes nothing is seen: the row may hold this very page from an earlier request.
        if (verified_ranks_[r] != 0)
          std::fill_n(side.rows[i].row(row), side.rows[i].object_bytes(), kPoison);
      }
    }
    LoadOptions options;
    options.timeout = kCallTimeout;
    auto operation = side.rank->load(lease, items[r], std::move(options));
    if (!operation)
      return fail("load", operation.error);
    operations.push_back(std::move(*operation));
  }
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    operations[r]->wait();
    std::size_t at = 0;
    for (std::size_t i = 0; i < ranks_[r].pools.size(); ++i) {
      const PoolPreset& pool = plan_.model.pools[i];
      const bool trailing = pool.hit_policy.is_trailing();
      if (trailing && end != stop)
        continue;
      const std::size_t count = trailing ? 1 : end - first;
      const auto results = operations[r]->results().subspan(at, count);
      const auto bytes = pool.object_bytes();
      for (std::size_t k = 0; k < count; ++k) {
        if (results[k] != Reason::none) {
          const bool forgotten = results[k] == Reason::absent || results[k] == Reason::evicted;
          ++(pool.optional && forgotten ? figures_.optional_not_loaded
                                        : figures_.load_reasons[static_cast<std::size_t>(results[k])]);
          continue;
        }
        figures_.loaded_bytes += bytes;
        if (verified_ranks_[r] == 0)
          continue;
        const std::uint64_t page = pages[trailing ? stop - 1 : first + k];
        const auto content = Content::of(plan_.seed, page, i, content_shard(i, static_cast<std::uint32_t>(r)));
        figures_.verified_bytes += bytes;
        figures_.wrong_bytes += count_wrong_bytes(ranks_[r].rows[i].row(trailing ? 0 : k), bytes, content);
      }
      at += count;
    }
  }
  return true;
}

void ReplayRun::fill(std::size_t pool, std::uint64_t row, std::uint64_t page) {
  // Ranks of one shard hold the same bytes, each in memory of its own.
  std::byte* source = nullptr;
  std::uint32_t source_shard = 0;
  for (std::uint32_t r = 0; r < ranks_.size(); ++r) {
    ReplayRows& rows = ranks_[r].rows[pool];
    const std::uint32_t shard = content_shard(pool, r);
    if (source != nullptr && shard == source_shard) {
      std::memcpy(rows.row(row), source, rows.object_bytes());
      continue;
    }
    source = rows.row(row);
    source_shard = shard;
    write_content(source, rows.object_bytes(), Content::of(plan_.seed, page, pool, shard));
  }
}

bool ReplayRun::put(const workload::TraceRequest& request, const LookupResult& found) {
  const auto count = static_cast<std::uint32_t>(request.pages.size());
  bool full = false;
  // Behind a page that did not fit nothing more is announced: what follows could only push out the beginning that it needs.
  for (std::uint32_t first = found.restorable_pages; first < count && !full; first += chunk_pages_) {
    if (!put_chunk(request.pages, first, found.resident_pages > found.restorable_pages ? found.resident_pages : 0, full))
      return false;
  }
  return true;
}

bool ReplayRun::put_chunk(std::span<const std::uint64_t> pages, std::uint32_t first, std::uint32_t resident, bool& full) {
  const std::uint32_t end = std::min(static_cast<std::uint32_t>(pages.size()), first + chunk_pages_);
  const std::size_t pool_count = plan_.model.pools.size();
  struct Planned {
    std::uint32_t page;
    std::uint32_t pool;
    std::uint32_t row;
  };
  // Page by page, so that what does not fit is the end of the chain and not one of its pools.
  std::vector<Planned> planned;
  std::uint32_t checkpoint_row = 0;
  std::uint64_t bytes = 0;
  for (std::uint32_t page = first; page < end; ++page) {
    const bool checkpoint = page + 1 == resident || page + 1 == pages.size();
    for (std::uint32_t i = 0; i < pool_count; ++i) {
      const bool trailing = plan_.model.pools[i].hit_policy.is_trailing();
      if (trailing && !checkpoint)
        continue;
      const std::uint32_t row = trailing ? checkpoint_row : page - first;
      fill(i, row, pages[page]);
      planned.push_back({page - first, i, row});
      bytes += plan_.model.pools[i].object_bytes();
    }
    if (checkpoint)
      ++checkpoint_row;
  }

  std::vector<std::shared_ptr<PutOperation>> operations;
  for (std::size_t turn = 0; turn < ranks_.size(); ++turn) {
    // Another rank is the first one each time, as chance has it where ranks are machines of their own: the first is granted most.
    RankSide& side = ranks_[(figures_.requests + turn) % ranks_.size()];
    PutBatch batch;
    batch.pages.assign(hashes_.begin() + first, hashes_.begin() + end);
    if (first != 0)
      batch.parent = hashes_[first - 1];
    batch.first_depth = first;
    batch.items.reserve(planned.size());
    for (const Planned& item : planned)
      batch.items.push_back({item.page, side.pools[item.pool], item.row});
    PutOptions options;
    options.timeout = kCallTimeout;
    auto operation = side.rank->put(std::move(batch), std::move(options));
    if (!operation) {
      // Rows of the others are still read.
      for (auto& begun : operations)
        begun->wait();
      return fail("put", operation.error);
    }
    operations.push_back(std::move(*operation));
    figures_.announced_bytes += bytes;
  }
  for (auto& operation : operations) {
    operation->wait();
    for (const PutItemResult& result : operation->results()) {
      ++figures_.verdicts[static_cast<std::size_t>(result.verdict)];
      if (is_success(result.verdict))
        continue;
      ++figures_.put_reasons[static_cast<std::size_t>(result.reason)];
      full = true;
    }
  }
  return true;
}

ReplayFigures ReplayRun::figures() const {
  ReplayFigures out = figures_;
  out.seconds = wall_seconds() - started_seconds_;
  out.cpu_seconds = cpu_seconds() - started_cpu_seconds_ + (spawned_ ? bench::cpu_seconds_of(spawned_->pid()) : 0);
  for (const RankSide& side : ranks_) {
    out.moved_bytes_by_rank.push_back(side.rank->moved_bytes());
    out.moved_bytes += out.moved_bytes_by_rank.back();
  }
  if (runtime_ != nullptr) {
    const Stats stats = runtime_->stats();
    out.stored_bytes = stats.stored_bytes - before_.stored_bytes;
    out.kept_bytes = stats.payload_bytes_now - std::min(before_.payload_bytes_now, stats.payload_bytes_now);
    out.evicted_bytes = stats.evicted_bytes - before_.evicted_bytes;
    out.conflicts = stats.conflicts - before_.conflicts;
    out.demotions = stats.demotions - before_.demotions;
  }
  return out;
}

}  // namespace kvonce::apps
