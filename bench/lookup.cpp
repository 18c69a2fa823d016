// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>

#include "apps/workload/presets.hpp"
#include "bench/jobs.hpp"
#include "bench/measure.hpp"
#include "bench/results.hpp"
#include "bench/rows.hpp"
#include "bench/stage.hpp"
#include "bench/store_use.hpp"

namespace kvonce::bench {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

// Objects of a full-size model would need tens of GiB, and a lookup never looks at their bytes: sizes are divided.
constexpr std::uint64_t kScale = 16'384;
constexpr std::uint64_t kPutPages = 1'024;

struct Model {
  workload::ModelPreset preset;
  std::unique_ptr<Runtime> runtime;
  NamespaceHandle ns;
  GroupHandle group;
  std::vector<std::vector<std::vector<std::byte>>> buffers;  // by rank and pool
  std::vector<std::shared_ptr<Rank>> ranks;
  std::vector<std::vector<PoolHandle>> pools;  // by rank
};

ShardCounts shards_of(const workload::ModelPreset& preset, const workload::PoolPreset& pool) {
  return {static_cast<std::uint16_t>(preset.shards(pool)), 1, 1};
}

workload::ModelPreset scaled_preset(const Options& options) {
  const auto ranks = static_cast<std::uint32_t>(options.ranks);
  return workload::scaled(workload::coarse(*workload::find_preset(options.preset, ranks).preset), kScale);
}

struct StoreSize {
  std::uint64_t arena_bytes = 0;
  std::uint64_t index_pages = 0;
};

StoreSize store_size(const Options& options, const workload::ModelPreset& preset) {
  std::uint64_t objects = 0;
  std::uint64_t bytes = 0;
  std::uint64_t ranges = 1;
  for (const auto& pool : preset.pools) {
    const std::uint64_t count = options.pages * preset.shards(pool);
    objects += count;
    bytes += count * pool.object_bytes();
    ranges = std::max<std::uint64_t>(ranges, pool.ranges.size());
  }
  // An index has room for four objects per page, and these pages have more.
  return {arena_bytes_for(options.pages, objects, bytes, ranges), std::max<std::uint64_t>(options.pages + objects / 3, 4'096)};
}

// Of a store that is there, its namespace is not yet known to anybody.
std::string engine_name(const std::string& store) {
  return store.empty() ? "bench" : "kvonce bench lookup " + std::to_string(fresh_seed());
}

// `store`: of another process; empty: in this one.
std::string start_model(const Options& options, Model& model, const std::string& store) {
  const auto ranks = static_cast<std::uint16_t>(options.ranks);
  model.preset = scaled_preset(options);
  const StoreSize size = store_size(options, model.preset);
  RuntimeConfig config;
  config.engine_id = engine_name(store);
  config.arena_bytes = size.arena_bytes;
  config.index_pages = size.index_pages;
  config.populate = true;
  config.leased_bytes = config.arena_bytes;
  if (!store.empty()) config.store = store;
  config.mover_threads = static_cast<std::uint32_t>(options.movers);
  auto runtime = Runtime::start(config);
  if (!runtime) return "the runtime did not start: " + runtime.error.text;
  model.runtime = std::move(*runtime);

  const auto ns = model.runtime->open_namespace(config.engine_id + " " + options.preset);
  if (!ns) return ns.error.text;
  model.ns = ns.value;
  GroupSpec group;
  group.name = "bench";
  group.ranks.tp = ranks;
  for (const auto& pool : model.preset.pools)
    group.pools.push_back({pool.name, shards_of(model.preset, pool), pool.hit_policy, pool.optional});
  const auto registered = model.runtime->register_group(ns.value, group);
  if (!registered) return registered.error.text;
  model.group = registered.value;

  model.buffers.resize(ranks);
  model.pools.resize(ranks);
  for (std::uint16_t r = 0; r < ranks; ++r) {
    Coordinates place;
    place.tp = {r, ranks};
    auto rank = model.runtime->add_rank(model.group, place);
    if (!rank) return rank.error.text;
    model.ranks.push_back(std::move(*rank));
    for (const auto& pool : model.preset.pools) {
      auto& buffer = model.buffers[r].emplace_back(pool.object_bytes());
      PoolSpec spec;
      spec.name = pool.name;
      spec.rows = 1;
      spec.shard = Coordinates{};
      const std::uint16_t shards = shards_of(model.preset, pool).tp;
      spec.shard->tp = {static_cast<std::uint16_t>(r / pool.ranks_per_shard), shards};
      std::byte* at = buffer.data();
      for (const auto& range : pool.ranges) {
        spec.components.push_back({"c" + std::to_string(range.component), {{at, range.bytes, range.bytes}}});
        at += range.bytes;
      }
      const auto handle = model.ranks.back()->register_pool(spec);
      if (!handle) return handle.error.text;
      model.pools[r].push_back(handle.value);
    }
  }
  return {};
}

// Every rank announces its objects of every page: as engines do. The row is the same for all pages, since a lookup
// looks at no byte.
std::string store_prefix(const Options& options, Model& model, const std::vector<PageHash>& keys) {
  for (std::uint64_t begin = 0; begin < keys.size(); begin += kPutPages) {
    const std::uint64_t end = std::min<std::uint64_t>(begin + kPutPages, keys.size());
    std::vector<std::shared_ptr<PutOperation>> open;
    std::uint64_t wanted = 0;
    Reason reason = Reason::none;
    for (std::size_t r = 0; r < model.ranks.size(); ++r) {
      PutBatch batch;
      batch.first_depth = static_cast<std::uint32_t>(begin);
      if (begin != 0) batch.parent = keys[begin - 1];
      batch.pages.assign(keys.begin() + static_cast<std::ptrdiff_t>(begin), keys.begin() + static_cast<std::ptrdiff_t>(end));
      for (std::size_t p = 0; p < model.preset.pools.size(); ++p) {
        for (std::uint64_t i = begin; i < end; ++i) {
          const bool checkpoint = (i + 1) % options.checkpoint_pages == 0;
          if (model.preset.pools[p].hit_policy.is_trailing() && !checkpoint) continue;
          batch.items.push_back({static_cast<std::uint32_t>(i - begin), model.pools[r][p], 0});
        }
      }
      wanted += batch.items.size();
      auto put = model.ranks[r]->put(std::move(batch));
      if (!put) return "put refused: " + put.error.text;
      open.push_back(std::move(*put));
    }
    for (const auto& put : open) {
      put->wait();
      wanted -= put->succeeded();
      for (const PutItemResult& item : put->results())
        if (!is_success(item.verdict)) reason = item.reason;
    }
    if (wanted != 0)
      return std::to_string(wanted) + " objects could not be stored (" + std::string(to_string(reason)) + ")";
  }
  return {};
}

// Of all objects of the prefix, each once.
std::uint64_t prefix_bytes(const Options& options, const workload::ModelPreset& preset) {
  std::uint64_t bytes = 0;
  for (const auto& pool : preset.pools) {
    const std::uint64_t count = pool.hit_policy.is_trailing() ? options.pages / options.checkpoint_pages : options.pages;
    bytes += count * preset.shards(pool) * pool.object_bytes();
  }
  return bytes;
}

std::vector<std::uint64_t> moved_bytes(const Model& model) {
  std::vector<std::uint64_t> moved;
  for (const auto& rank : model.ranks) moved.push_back(rank->moved_bytes());
  return moved;
}

// CPU of the store's process is counted too, when it is another one.
double cpu_of(pid_t store) { return process_cpu_seconds() + (store > 0 ? cpu_seconds_of(store) : 0); }

Outcome measure_lookups(const Options& options, const std::string& store, pid_t store_pid) {
  Model model;
  if (std::string error = start_model(options, model, store); !error.empty()) return {{}, error, {}};
  const auto keys = make_keys(fresh_seed(), options.pages);
  if (std::string error = store_prefix(options, model, keys); !error.empty()) return {{}, error, {}};

  const bool checkpoints = has_checkpoints(model.preset);
  const std::uint64_t stops = options.pages / options.checkpoint_pages;
  const std::uint64_t restorable = checkpoints ? stops * options.checkpoint_pages : options.pages;
  const std::uint64_t lookups = options.operations;
  const std::uint64_t unique_bytes = prefix_bytes(options, model.preset);
  std::vector<Json> runs;
  for (std::uint64_t i = 0; i < options.repeat; ++i) {
    LimitMeter limit(options);
    limit.measure();
    MovedBytes moved{moved_bytes(model), model.runtime->stats(), {}};
    std::vector<double> lookup_us;
    std::uint64_t wrong = 0;
    double seconds = 0;
    double cpu_seconds = 0;
    for (std::uint64_t n = 0; n < lookups; ++n) {
      std::vector<PageHash> asked = keys;  // the caller's own work is not timed, nor is giving back the lease
      const double cpu_begin = cpu_of(store_pid);
      const auto begin = Clock::now();
      auto lookup = model.runtime->lookup(model.group, std::move(asked));
      if (!lookup) return {{}, "lookup refused: " + lookup.error.text, {}};
      lookup.value->wait();
      const std::chrono::duration<double> took = Clock::now() - begin;
      cpu_seconds += cpu_of(store_pid) - cpu_begin;
      seconds += took.count();
      lookup_us.push_back(took.count() * 1e6);
      const LookupResult& result = lookup.value->result();
      const bool right = !result.error && result.restorable_pages == restorable &&
                         (checkpoints ? result.stops.size() == stops : result.every_stop) && result.lease;
      if (!right) ++wrong;
      if (result.lease) static_cast<void>(model.runtime->release(result.lease));
    }
    moved.after = model.runtime->stats();
    const std::vector<std::uint64_t> moved_now = moved_bytes(model);
    for (std::size_t r = 0; r < moved_now.size(); ++r) moved.by_rank[r] = moved_now[r] - moved.by_rank[r];
    Json run = {{"path", store.empty() ? kPathEmbedded : kPathShared},
                {"unique_pages", options.pages},
                {"unique_bytes", unique_bytes},
                {"stops", checkpoints ? stops : options.pages},
                {"restorable_pages", restorable},
                {"lookups", lookups}};
    add_moved(run, moved);
    add_pace(run, {options.pages, options.pages * lookups}, seconds, cpu_seconds, lookup_us);
    run["lookup_us"] = run["ack_us"];
    run["copy_limit"] = limit.json();
    run["verdicts"] = verdicts_json({});
    run["verified"] = wrong == 0;
    runs.push_back(std::move(run));
    if (wrong != 0)
      return {report(options, runs, "seconds"), {}, std::to_string(wrong) + " lookups gave another answer than was stored"};
  }
  if (!store.empty()) {
    // A store that is somebody else's is left as it was.
    const auto removed = model.runtime->remove_namespace(model.ns);
    if (removed) removed.value->wait();
  }
  return {report(options, runs, "seconds"), {}, {}};
}

}  // namespace

Outcome run_lookup(const Options& options) { return options.via.empty() ? measure_lookups(options, {}, 0) : run_lookup_via(options); }

// One process looks up for all ranks, as schedulers do: their processes have no part in it.
Outcome run_lookup_via(const Options& options) {
  const Interrupts interrupts;
  try {
    const StoreSize size = store_size(options, scaled_preset(options));
    OwnStore::Spec spec;
    spec.memory_bytes = size.arena_bytes;
    spec.index_pages = size.index_pages;
    StoreUse store(options.via, spec);
    Outcome out = measure_lookups(options, store.address(), store.pid());
    store.end();
    return out;
  } catch (const Failed& failed) {
    return {{}, failed.text, {}};
  }
}

}  // namespace kvonce::bench
