// SPDX-License-Identifier: Apache-2.0
//
// Runtime::start: from a configuration to running actors.
#include <string>
#include <exception>
#include <utility>

#include "protocol/shard_key_core.hpp"
#include "runtime/core.hpp"
#include "telemetry/log.hpp"

namespace kvonce {

namespace {

protocol::Duration nanoseconds(std::chrono::milliseconds time) {
  return static_cast<protocol::Duration>(time.count()) * protocol::kMillisecond;
}

protocol::StoreConfig store_config(const RuntimeConfig& config, const runtime::Core& core, std::uint32_t partition,
                                   protocol::Incarnation incarnation) {
  const runtime::PartitionLayout& layout = core.layout[partition];
  protocol::StoreConfig store;
  store.partition = partition;
  store.partitions = config.partitions;
  store.incarnation = incarnation;
  store.lease_seed[0] = runtime::random_bits();
  store.lease_seed[1] = runtime::random_bits();
  store.arena = core.arena->base();
  store.index_offset = layout.index_offset;
  store.index = layout.index;
  store.slots_offset = layout.slots_offset;
  store.slots_bytes = layout.slots_bytes;
  store.capacity_bytes = config.capacity_bytes == 0 ? 0 : std::max<std::uint64_t>(config.capacity_bytes / config.partitions, 1);
  store.window_bytes = config.window_bytes;
  store.grant_base = nanoseconds(config.grant_base);
  store.least_rate = config.least_rate;
  store.verify_sample = config.verify_sample;
  store.verify_window = nanoseconds(config.verify_window);
  store.conflict_limit = config.conflict_limit;
  store.demote = config.demote;
  store.lease_time = nanoseconds(config.lease_time);
  store.lease_time_max = std::max(store.lease_time_max, store.lease_time);
  store.leased_stops = config.leased_stops;
  store.leased_bytes_per_engine = config.leased_bytes;  // a lease is counted whole, at its home partition
  store.ghost_entries = config.ghost_entries / config.partitions;
  return store;
}

void warn(const std::string& line) { telemetry::warn(line); }

}  // namespace

Result<std::unique_ptr<Runtime>> Runtime::start(const RuntimeConfig& config) {
  Result<std::unique_ptr<Runtime>> result;
  if ((result.error = config.check())) return result;
  const auto core = std::make_shared<runtime::Core>();
  core->config = config;
  storage::ArenaOptions options;
  options.bytes = config.arena_bytes;
  options.huge_pages = config.huge_pages ? storage::HugePages::madvise : storage::HugePages::off;
  options.populate = config.populate;
  auto arena = storage::Arena::create(options);
  if (!arena.arena) {
    result.error = {Reason::no_space, "arena_bytes is " + std::to_string(config.arena_bytes) + ": " + arena.error};
    return result;
  }
  core->arena = std::move(arena.arena);
  runtime::Layout layout = runtime::plan_layout(config, core->arena->bytes());
  if ((result.error = layout.error)) return result;
  core->layout = std::move(layout.partitions);
  core->placement = protocol::Placement::local(config.partitions);
  core->client = runtime::random_bits();
  core->engine = protocol::text_digest(config.engine_id).low;
  core->directory = std::make_shared<runtime::Directory>();
  core->counters = std::make_shared<runtime::Counters>();
  core->events = std::make_shared<runtime::EventHub>(core->directory);
  try {
    core->mover = std::make_shared<transport::Mover>(
        // Bounded by what the ranks may have open, not here: a refused copy would be a failed page.
        transport::MoverConfig{.threads = config.mover_threads, .max_batches = std::size_t{1} << 24, .kernel = runtime::kernel_of(config.copy_kernel), .now = {}});
    if (core->mover->threads() == 0) {
      result.error = {Reason::no_space, "no thread could be started for copying"};
      return result;
    }
    auto view = std::make_shared<actors::ArenaView>();
    view->base = core->arena->base();
    view->bytes = core->arena->bytes();
    view->checksums = config.checksums;
    runtime::ActorHost::Setup setup;
    setup.scheduler_threads = config.scheduler_threads;
    setup.caller_runs = config.caller_runs;
    const protocol::Incarnation incarnation = runtime::random_bits() | 1U;
    for (std::uint32_t p = 0; p < config.partitions; ++p) {
      auto store = std::make_shared<actors::StoreSetup>();
      store->config = store_config(config, *core, p, incarnation);
      store->core = std::make_unique<protocol::StoreCore>(store->config);
      store->events = [events = core->events](std::vector<protocol::ObjectEvent>&& told) { events->push(std::move(told)); };
      store->warn = warn;
      view->readers.push_back(store->core->reader());
      setup.stores.push_back(std::move(store));
    }
    core->view = view;
    auto keys = std::make_shared<actors::ShardKeySetup>();
    keys->client = core->client;
    keys->engine = core->engine;
    keys->placement = core->placement;
    keys->directory = core->directory;
    keys->arena = core->view;
    setup.keys = std::move(keys);
    core->host = std::make_unique<runtime::ActorHost>(std::move(setup));
  } catch (const std::exception& problem) {
    result.error = {Reason::no_space, std::string("the runtime could not be started: ") + problem.what()};
    return result;
  }
  auto impl = std::make_unique<Impl>();
  impl->core = core;
  result.value.reset(new Runtime(std::move(impl)));
  return result;
}

}  // namespace kvonce
