// SPDX-License-Identifier: Apache-2.0
//
// Runtime::start: from a configuration to running actors.
#include <unistd.h>

#include <exception>
#include <string>
#include <utility>

#include "actors/client_sessions.hpp"

#include "protocol/shard_key_core.hpp"
#include "runtime/connection.hpp"
#include "runtime/core.hpp"
#include "runtime/service.hpp"
#include "runtime/store_faults.hpp"
#include "runtime/store_memory.hpp"
#include "telemetry/log.hpp"
#include "transport/link_client.hpp"

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
  store.engine_grace = nanoseconds(config.engine_grace);
  store.leased_bytes_per_engine = config.leased_bytes;  // leases are counted at their home partition: that of a prefix's first page
  store.ghost_entries = config.ghost_entries / config.partitions;
  store.faults = runtime::store_faults();
  return store;
}

void warn(const std::string& line) { telemetry::warn(line); }

using runtime::Core;

/// What every Runtime has, wherever its store is.
Error start_common(Core& core) {
  core.client = runtime::random_bits() | 1U;
  core.engine = protocol::text_digest(core.config.engine_id).low;
  core.directory = std::make_shared<runtime::Directory>();
  core.counters = std::make_shared<runtime::Counters>();
  core.events = std::make_shared<runtime::EventHub>(core.directory);
  core.mover = std::make_shared<transport::Mover>(
      // Bounded by what the ranks may have open, not here: a refused copy would be a failed page.
      transport::MoverConfig{.threads = core.config.mover_threads,
                             .max_batches = std::size_t{1} << 24,
                             .kernel = runtime::kernel_of(core.config.copy_kernel),
                             .now = {}});
  if (core.mover->threads() == 0) return {Reason::no_space, "no thread could be started for copying"};
  return {};
}

std::shared_ptr<actors::ShardKeySetup> keys_setup(const Core& core) {
  auto keys = std::make_shared<actors::ShardKeySetup>();
  keys->client = core.client;
  keys->engine = core.engine;
  keys->directory = core.directory;
  keys->pid = static_cast<std::uint32_t>(getpid());
  keys->start_time = transport::own_start_time();
  return keys;
}

Error start_embedded(Core& core) {
  const RuntimeConfig& config = core.config;
  const protocol::Incarnation incarnation = runtime::random_bits() | 1U;
  if (!config.serve.empty()) {
    core.service = std::make_unique<runtime::StoreService>(core);
    if (Error error = core.service->reserve()) return error;
  }
  runtime::StoreMemory memory;
  const auto make_config = [&](std::uint32_t partition) { return store_config(config, core, partition, incarnation); };
  if (Error error = memory.open(core, make_config)) return error;
  auto view = std::make_shared<actors::ArenaView>();
  view->base = core.arena->base();
  view->bytes = core.arena->bytes();
  view->checksums = config.checksums;
  view->placement = protocol::Placement::local(config.partitions);
  view->slots_bytes = core.layout.front().slots_bytes;
  runtime::ActorHost::Setup setup;
  setup.scheduler_threads = config.scheduler_threads;
  setup.caller_runs = config.caller_runs;
  for (std::uint32_t p = 0; p < config.partitions; ++p) {
    auto store = std::make_shared<actors::StoreSetup>();
    store->config = make_config(p);
    store->core = std::move(memory.stores[p]);
    store->warn = warn;
    store->fresh_epoch = [] { return protocol::Digest128{runtime::random_bits() | 1U, runtime::random_bits()}; };
    store->events = [&core](std::vector<protocol::ObjectEvent>&& told) {
      core.host->sessions()->push_events(told);
      core.events->push(std::move(told));
    };
    view->readers.push_back(store->core->reader());
    setup.stores.push_back(std::move(store));
  }
  auto keys = keys_setup(core);
  keys->placement = view->placement;
  keys->arena = view;
  setup.keys = std::move(keys);
  core.set_view(view, incarnation);
  core.host = std::make_unique<runtime::ActorHost>(std::move(setup));
  if (!memory.writers.empty()) {
    std::vector<transport::WatchedProcess> writers;
    for (const auto& process : memory.writers) writers.push_back({process.pid, process.start_time});
    core.writers = std::make_unique<transport::ProcessWatch>(
        writers, [&core](const transport::WatchedProcess& gone) { core.host->process_fenced(gone.pid, gone.start_time); });
  }
  return core.service ? core.service->start(incarnation) : Error{};
}

Error start_connected(Core& core) {
  const auto deadline = std::chrono::steady_clock::now() + core.config.connect_timeout;
  core.connection = std::make_unique<runtime::StoreConnection>(core);
  runtime::ActorHost::Setup setup;
  setup.scheduler_threads = core.config.scheduler_threads;
  setup.caller_runs = core.config.caller_runs;
  setup.events = [events = core.events](std::vector<protocol::ObjectEvent>&& told) { events->push(std::move(told)); };
  setup.ending = [connection = core.connection.get()] { connection->on_ending(); };
  auto keys = keys_setup(core);
  keys->ready = [connection = core.connection.get()] { connection->on_ready(); };
  keys->lost = [connection = core.connection.get()] { connection->on_ranks_told(); };
  setup.keys = std::move(keys);
  core.host = std::make_unique<runtime::ActorHost>(std::move(setup));
  return core.connection->start(deadline);
}

}  // namespace

protocol::StoreFaults& runtime::store_faults() noexcept {
  static protocol::StoreFaults faults;
  return faults;
}
protocol::PoolFaults& runtime::pool_faults() noexcept {
  static protocol::PoolFaults faults;
  return faults;
}

Result<std::unique_ptr<Runtime>> Runtime::start(const RuntimeConfig& config) {
  Result<std::unique_ptr<Runtime>> result;
  if ((result.error = config.check())) return result;
  const auto core = std::make_shared<Core>();
  core->config = config;
  try {
    result.error = start_common(*core);
    if (!result.error) result.error = config.store == "embedded" ? start_embedded(*core) : start_connected(*core);
  } catch (const std::exception& problem) {
    result.error = {Reason::no_space, std::string("the runtime could not be started: ") + problem.what()};
  }
  if (result.error) {
    core->stop(std::chrono::milliseconds{1'000});
    return result;
  }
  auto impl = std::make_unique<Impl>();
  impl->core = core;
  result.value.reset(new Runtime(std::move(impl)));
  return result;
}

}  // namespace kvonce
