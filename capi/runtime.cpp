// SPDX-License-Identifier: Apache-2.0
//
// Runtimes: options, start and end, the store behind them, namespaces.
#include "capi/handles.hpp"

#include "runtime/operation_impl.hpp"

using namespace kvonce;        // NOLINT: the C API speaks all of its words
using namespace kvonce::capi;  // NOLINT

namespace {

/// Calls `copy(field of the C options, field of the C++ config)` for each: the one list for both directions.
template <class Options, class Config, class Copy>
void each_field(Options& c, Config& cpp, const Copy& copy) {
  copy(c.engine_id, cpp.engine_id);
  copy(c.store, cpp.store);
  copy(c.serve, cpp.serve);
  copy(c.serve_group, cpp.serve_group);
  copy(c.arena_file, cpp.arena_file);
  copy(c.kvonced_path, cpp.kvonced_path);
  copy(c.policy, cpp.policy);
  copy(c.copy_kernel, cpp.copy_kernel);
  copy(c.connect_timeout_ms, cpp.connect_timeout);
  copy(c.engine_grace_ms, cpp.engine_grace);
  copy(c.auto_idle_ms, cpp.auto_idle);
  copy(c.grant_base_ms, cpp.grant_base);
  copy(c.verify_window_ms, cpp.verify_window);
  copy(c.lease_time_ms, cpp.lease_time);
  copy(c.auto_bytes, cpp.auto_bytes);
  copy(c.arena_bytes, cpp.arena_bytes);
  copy(c.capacity_bytes, cpp.capacity_bytes);
  copy(c.index_pages, cpp.index_pages);
  copy(c.window_bytes, cpp.window_bytes);
  copy(c.least_rate, cpp.least_rate);
  copy(c.leased_bytes, cpp.leased_bytes);
  copy(c.inline_copy_bytes, cpp.inline_copy_bytes);
  copy(c.max_clients, cpp.max_clients);
  copy(c.partitions, cpp.partitions);
  copy(c.ghost_entries, cpp.ghost_entries);
  copy(c.verify_sample, cpp.verify_sample);
  copy(c.conflict_limit, cpp.conflict_limit);
  copy(c.leased_stops, cpp.leased_stops);
  copy(c.scheduler_threads, cpp.scheduler_threads);
  copy(c.mover_threads, cpp.mover_threads);
  copy(c.numa_node, cpp.numa_node);
  copy(c.read_only, cpp.read_only);
  copy(c.populate, cpp.populate);
  copy(c.huge_pages, cpp.huge_pages);
  copy(c.checksums, cpp.checksums);
  copy(c.demote, cpp.demote);
  copy(c.caller_runs, cpp.caller_runs);
}

struct ToOptions {
  void operator()(const char*&, const std::string&) const {}  // NULL is the default
  void operator()(std::uint64_t& to, std::chrono::milliseconds from) const { to = static_cast<std::uint64_t>(from.count()); }
  void operator()(std::uint32_t& to, HugePages from) const { to = from.kind(); }
  template <class To, class From>
  void operator()(To& to, From from) const {
    to = from;
  }
};

struct ToConfig {
  void operator()(const char* from, std::string& to) const {
    if (from != nullptr) to = from;
  }
  void operator()(std::uint64_t from, std::chrono::milliseconds& to) const { to = to_ms(from); }
  void operator()(std::uint32_t from, HugePages& to) const { to = static_cast<HugePages::Kind>(from); }
  void operator()(std::uint32_t from, bool& to) const { to = from != 0; }
  template <class Same>
  void operator()(const Same& from, Same& to) const {
    to = from;
  }
};

kvonce_runtime_options default_options() {
  const RuntimeConfig from;
  kvonce_runtime_options to{};
  to.size = sizeof to;
  each_field(to, from, ToOptions{});
  return to;
}

RuntimeConfig to_config(const kvonce_runtime_options& from) {
  RuntimeConfig to;
  each_field(from, to, ToConfig{});
  return to;
}

/// Empty while the runtime takes calls.
Error check_open(const kvonce_runtime* runtime) {
  if (Error wrong = check(runtime, "runtime")) return wrong;
  const runtime::Call call(*runtime->runtime->impl().core);
  return call.error;
}

Error open_namespace(kvonce_runtime* runtime, const char* text, std::uint32_t* ns, bool find_only) {
  if (Error wrong = check(runtime, "runtime")) return wrong;
  if (text == nullptr) return null("namespace's text");
  if (ns == nullptr) return null("namespace's place");
  const auto made = find_only ? runtime->runtime->find_namespace(text) : runtime->runtime->open_namespace(text);
  if (made) *ns = made.value.id;
  return made.error;
}

}  // namespace

extern "C" {

void kvonce_runtime_options_init_sized(kvonce_runtime_options* options, size_t size) {
  if (options == nullptr || size < sizeof size) return;
  kvonce_runtime_options defaults = default_options();
  std::memset(static_cast<void*>(options), 0, size);
  std::memcpy(static_cast<void*>(options), &defaults, std::min(size, sizeof defaults));
  options->size = size;
}

kvonce_reason kvonce_runtime_start(const kvonce_runtime_options* options, kvonce_runtime** runtime, kvonce_error* error) {
  return guarded(error, [&]() -> Error {
    if (runtime == nullptr) return null("runtime's place");
    kvonce_runtime_options read = default_options();
    if (Error wrong = read_options(options, "runtime options", &read)) return wrong;
    if (Error wrong = check_reserved("runtime options", read.reserved)) return wrong;
    if (read.huge_pages > HugePages::reserved)
      return bad("runtime options: huge_pages is " + std::to_string(read.huge_pages) + ": must be 0, 1 or 2");
    const std::pair<const char*, std::uint32_t> flags[] = {{"read_only", read.read_only},
                                                           {"populate", read.populate},
                                                           {"checksums", read.checksums},
                                                           {"demote", read.demote},
                                                           {"caller_runs", read.caller_runs}};
    for (const auto& [name, value] : flags)
      if (Error wrong = check_flag(std::string("runtime options: ") + name, value)) return wrong;
    auto handle = std::make_unique<kvonce_runtime>();
    auto started = Runtime::start(to_config(read));
    if (!started) return std::move(started.error);
    handle->runtime = std::move(started.value);
    *runtime = handle.release();
    return {};
  });
}

kvonce_reason kvonce_runtime_stop(kvonce_runtime* runtime, uint64_t timeout_ms, kvonce_error* error) {
  return guarded(error, [&]() -> Error {
    if (Error wrong = check(runtime, "runtime")) return wrong;
    if (in_callback()) return bad("kvonce_runtime_stop waits, and must not be called from a callback");
    runtime->runtime->stop(to_ms(timeout_ms));
    return {};
  });
}

void kvonce_runtime_free(kvonce_runtime* runtime) {
  guarded(nullptr, [&]() -> Error {
    free_handle(runtime);
    return {};
  });
}

int kvonce_runtime_connected(const kvonce_runtime* runtime) { return usable(runtime) && runtime->runtime->connected() ? 1 : 0; }
uint64_t kvonce_runtime_incarnation(const kvonce_runtime* runtime) {
  return usable(runtime) ? runtime->runtime->incarnation() : 0;
}

kvonce_reason kvonce_runtime_wait_connected(const kvonce_runtime* runtime, uint64_t timeout_ms, kvonce_error* error) {
  return guarded(error, [&]() -> Error {
    if (Error wrong = check_open(runtime)) return wrong;
    if (in_callback()) return bad("kvonce_runtime_wait_connected waits, and must not be called from a callback");
    if (runtime->runtime->wait_connected(to_ms(timeout_ms))) return {};
    return {Reason::deadline, "the store is not back after " + std::to_string(timeout_ms) + " ms"};
  });
}

kvonce_reason kvonce_runtime_drain(kvonce_runtime* runtime, uint64_t timeout_ms, kvonce_error* error) {
  return guarded(error, [&]() -> Error {
    if (Error wrong = check(runtime, "runtime")) return wrong;
    return runtime->runtime->drain(to_ms(timeout_ms));
  });
}

kvonce_reason kvonce_runtime_store_start(const kvonce_runtime* runtime, kvonce_store_start* start, kvonce_error* error) {
  return guarded(error, [&]() -> Error {
    if (Error wrong = check(runtime, "runtime")) return wrong;
    if (start == nullptr) return null("result's place");
    const StoreStart from = runtime->runtime->store_start();
    kvonce_store_start to{};
    to.restored_objects = from.restored_objects;
    to.warm = from.warm;
    copy_text(to.why_cold, sizeof to.why_cold, from.why_cold);
    return write_result(to, start, "store start");
  });
}

kvonce_reason kvonce_runtime_clients(const kvonce_runtime* runtime, kvonce_client* clients, size_t capacity, size_t* count,
                                     kvonce_error* error) {
  return guarded(error, [&]() -> Error {
    if (Error wrong = check(runtime, "runtime")) return wrong;
    auto list = runtime->runtime->clients();
    if (!list) return std::move(list.error);
    return copy_list(list.value, clients, capacity, count, [](const ClientInfo& from, kvonce_client* to) {
      *to = {};
      copy_text(to->engine_id, sizeof to->engine_id, from.engine_id);
      to->open_grants = from.open_grants;
      to->quarantined_bytes = from.quarantined_bytes;
      to->pid = from.pid;
      to->ranks = from.ranks;
      to->read_only = from.read_only;
    });
  });
}

kvonce_reason kvonce_runtime_report(kvonce_runtime* runtime, const char* label, const kvonce_counter* counters, size_t count,
                                    kvonce_error* error) {
  return guarded(error, [&]() -> Error {
    if (Error wrong = check(runtime, "runtime")) return wrong;
    if (label == nullptr) return null("report's label");
    if (count > kMaxReportCounters)
      return {Reason::too_many,
              "report: " + std::to_string(count) + " counters: must be at most " + std::to_string(kMaxReportCounters)};
    if (counters == nullptr && count != 0) return bad("report: the counters are NULL");
    std::vector<std::pair<std::string, std::uint64_t>> told;
    told.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
      if (counters[i].name == nullptr) return bad("report: the name of counter " + std::to_string(i) + " is NULL");
      told.emplace_back(counters[i].name, counters[i].value);
    }
    return runtime->runtime->report(label, std::move(told));
  });
}

kvonce_reason kvonce_runtime_reports(const kvonce_runtime* runtime, kvonce_reported* reported, size_t capacity, size_t* count,
                                     kvonce_error* error) {
  return guarded(error, [&]() -> Error {
    if (Error wrong = check(runtime, "runtime")) return wrong;
    const auto list = runtime->runtime->clients();
    if (!list) return list.error;
    struct Told {
      const ClientInfo* client;
      const std::string* label;
      const std::pair<std::string, std::uint64_t>* counter;
    };
    std::vector<Told> all;
    for (const ClientInfo& client : list.value)
      for (const ClientReport& report : client.reports)
        for (const auto& counter : report.counters) all.push_back({&client, &report.label, &counter});
    return copy_list(all, reported, capacity, count, [&](const Told& from, kvonce_reported* to) {
      *to = {};
      copy_text(to->engine_id, sizeof to->engine_id, from.client->engine_id);
      copy_text(to->label, sizeof to->label, *from.label);
      copy_text(to->name, sizeof to->name, from.counter->first);
      to->value = from.counter->second;
      to->pid = from.client->pid;
      to->client = static_cast<std::uint32_t>(from.client - list.value.data());
    });
  });
}

kvonce_reason kvonce_runtime_stats(const kvonce_runtime* runtime, kvonce_stats* stats, kvonce_error* error) {
  return guarded(error, [&]() -> Error {
    if (Error wrong = check_open(runtime)) return wrong;
    if (stats == nullptr) return null("result's place");
    const Stats from = runtime->runtime->stats();
    kvonce_stats to{};
    static_assert(kVerdictCount <= std::size(to.verdicts) && kReasonCount <= std::size(to.misses));
    std::copy(std::begin(from.verdicts), std::end(from.verdicts), to.verdicts);
    std::copy(std::begin(from.misses), std::end(from.misses), to.misses);
    to.announced_items = from.announced_items;
    to.announced_bytes = from.announced_bytes;
    to.moved_bytes = from.moved_bytes;
    to.stored_objects = from.stored_objects;
    to.stored_bytes = from.stored_bytes;
    to.loaded_items = from.loaded_items;
    to.loaded_bytes = from.loaded_bytes;
    to.load_failures = from.load_failures;
    to.promotions = from.promotions;
    to.conflicts = from.conflicts;
    to.divergent = from.divergent;
    to.demotions = from.demotions;
    to.samples = from.samples;
    to.unverified = from.unverified;
    to.lookups = from.lookups;
    to.lookup_pages_asked = from.lookup_pages_asked;
    to.lookup_pages_hit = from.lookup_pages_hit;
    to.evicted_objects = from.evicted_objects;
    to.evicted_bytes = from.evicted_bytes;
    to.evicted_page_sets = from.evicted_page_sets;
    to.evicted_checkpoint_sets = from.evicted_checkpoint_sets;
    to.objects_now = from.objects_now;
    to.pages_now = from.pages_now;
    to.payload_bytes_now = from.payload_bytes_now;
    to.slot_bytes_now = from.slot_bytes_now;
    to.capacity_bytes = from.capacity_bytes;
    to.arena_slot_bytes = from.arena_slot_bytes;
    to.free_bytes_now = from.free_bytes_now;
    to.claims_now = from.claims_now;
    to.leases_now = from.leases_now;
    to.leased_bytes_now = from.leased_bytes_now;
    to.quarantined_bytes_now = from.quarantined_bytes_now;
    to.rows_lent_now = from.rows_lent_now;
    to.unverified_pools_now = from.unverified_pools_now;
    to.events_dropped = from.events_dropped;
    to.store_answered = from.store_answered ? 1 : 0;
    return write_result(to, stats, "stats");
  });
}

kvonce_reason kvonce_runtime_subscribe(kvonce_runtime* runtime,
                                       void (*callback)(const kvonce_store_event* events, size_t count, void* argument),
                                       void* argument, kvonce_error* error) {
  return guarded(error, [&]() -> Error {
    if (Error wrong = check_open(runtime)) return wrong;
    if (callback == nullptr) {
      runtime->runtime->subscribe({});
      return {};
    }
    runtime->runtime->subscribe([callback, argument](std::span<const StoreEvent> events) {
      std::vector<kvonce_store_event> told(events.size());
      for (std::size_t i = 0; i < events.size(); ++i) {
        told[i].pool = events[i].pool.c_str();
        std::memcpy(told[i].page.bytes, events[i].page.words.data(), sizeof told[i].page.bytes);
        told[i].kind = static_cast<std::uint32_t>(events[i].kind);
        told[i].ns = events[i].ns;
        told[i].shard = events[i].shard;
      }
      callback(told.data(), told.size(), argument);
    });
    return {};
  });
}

kvonce_reason kvonce_runtime_epoch(kvonce_runtime* runtime, const char* name, uint64_t timeout_ms, uint8_t value[16],
                                   kvonce_error* error) {
  return guarded(error, [&]() -> Error {
    if (Error wrong = check(runtime, "runtime")) return wrong;
    if (name == nullptr) return null("epoch's name");
    if (value == nullptr) return null("epoch's place");
    const auto given = runtime->runtime->epoch(name, to_ms_or(timeout_ms, std::chrono::milliseconds{5'000}));
    if (given) std::copy(given.value.begin(), given.value.end(), value);
    return given.error;
  });
}

kvonce_reason kvonce_namespace_open(kvonce_runtime* runtime, const char* text, uint32_t* ns, kvonce_error* error) {
  return guarded(error, [&] { return open_namespace(runtime, text, ns, false); });
}

kvonce_reason kvonce_namespace_find(kvonce_runtime* runtime, const char* text, uint32_t* ns, kvonce_error* error) {
  return guarded(error, [&] { return open_namespace(runtime, text, ns, true); });
}

kvonce_reason kvonce_namespace_close(kvonce_runtime* runtime, uint32_t ns, kvonce_error* error) {
  return guarded(error, [&]() -> Error {
    if (Error wrong = check(runtime, "runtime")) return wrong;
    return runtime->runtime->close_namespace({ns});
  });
}

kvonce_reason kvonce_namespace_pools(const kvonce_runtime* runtime, uint32_t ns, kvonce_known_pool* pools, size_t capacity,
                                     size_t* count, kvonce_error* error) {
  return guarded(error, [&]() -> Error {
    if (Error wrong = check(runtime, "runtime")) return wrong;
    auto list = runtime->runtime->pools({ns});
    if (!list) return std::move(list.error);
    return copy_list(list.value, pools, capacity, count, [](const KnownPool& from, kvonce_known_pool* to) {
      *to = {};
      copy_text(to->name, sizeof to->name, from.name);
      to->object_bytes = from.object_bytes;
      to->shards = from_shards(from.shards);
    });
  });
}

}  // extern "C"
