// SPDX-License-Identifier: Apache-2.0

#include "python/src/futures.hpp"
#include "python/src/lease.hpp"
#include "python/src/options.hpp"
#include "python/src/values.hpp"

namespace kvonce::python {
namespace {

ShardCounts counts_of(nb::handle three, const std::string& name) {
  const auto axes = axes_of<std::uint16_t>(three, name);
  return {axes[0], axes[1], axes[2]};
}

/// What calls have when no time is given, as in runtime.hpp; the signatures below write the same.
constexpr double kControlSeconds = 10.0;
constexpr double kRemoveSeconds = 30.0;
static_assert(kControlTimeout == std::chrono::seconds(10) && kDefaultTimeout == std::chrono::seconds(30) &&
              kStatsTimeout == std::chrono::seconds(2));

/// kvonce.Runtime; all else holds its box.
struct PyRuntime {
  RuntimePtr box;
};
struct PyNamespace {
  RuntimePtr runtime;
  NamespaceHandle handle;
  std::string text;
  bool open = true;
};
struct PyGroup {
  GroupPtr state;
};

/// The value of a call that may wait; `call(Runtime&)` gives a Result. The Runtime goes along: it lives until the call ends, even
/// when its caller has gone on after Ctrl-C.
template <class Call>
auto ask_runtime(const RuntimePtr& box, Call call) {
  auto result = ask([runtime = box->shared(), call = std::move(call)] { return call(*runtime); });
  check(result.error);
  return std::move(result.value);
}
/// As ask_runtime, for a call that gives an Error.
template <class Call>
void tell_runtime(const RuntimePtr& box, Call call) {
  check(ask([runtime = box->shared(), call = std::move(call)] { return call(*runtime); }));
}

/// Waits for flush and remove; bounded by their own deadlines.
std::uint64_t finish(Result<std::shared_ptr<AdminOperation>> started) {
  check(started.error);
  const auto operation = std::move(started.value);
  wait_in_slices(std::nullopt, [&](std::chrono::nanoseconds time) { return operation->wait_for(time); });
  check(operation->error());
  return operation->count();
}

AckLevel level_of(const std::string& level) {
  for (const AckLevel known : {AckLevel::memory, AckLevel::disk, AckLevel::replicated})
    if (level == to_string(known)) return known;
  raise_bad("level is '" + level + "': must be 'memory', 'disk' or 'replicated'");
}

void put_number(nb::dict& dict, const char* name, std::uint64_t value) { dict[name] = value; }

nb::dict stats_of(const Stats& stats) {
  nb::dict dict, verdicts, misses;
  for (std::size_t v = 1; v < kVerdictCount; ++v)
    put_number(verdicts, to_string(static_cast<Verdict>(v)).data(), stats.verdicts[v]);
  for (std::size_t r = 1; r < kReasonCount; ++r) put_number(misses, to_string(static_cast<Reason>(r)).data(), stats.misses[r]);
  dict["verdicts"] = verdicts;
  dict["misses"] = misses;
#define KVONCE_STAT(name) put_number(dict, #name, stats.name)
  KVONCE_STAT(announced_items), KVONCE_STAT(announced_bytes), KVONCE_STAT(moved_bytes), KVONCE_STAT(stored_objects);
  KVONCE_STAT(stored_bytes), KVONCE_STAT(loaded_items), KVONCE_STAT(loaded_bytes), KVONCE_STAT(load_failures);
  KVONCE_STAT(promotions), KVONCE_STAT(conflicts), KVONCE_STAT(divergent), KVONCE_STAT(demotions), KVONCE_STAT(samples);
  KVONCE_STAT(unverified), KVONCE_STAT(lookups), KVONCE_STAT(lookup_pages_asked), KVONCE_STAT(lookup_pages_hit);
  KVONCE_STAT(evicted_objects), KVONCE_STAT(evicted_bytes), KVONCE_STAT(evicted_page_sets), KVONCE_STAT(evicted_checkpoint_sets);
  KVONCE_STAT(objects_now), KVONCE_STAT(pages_now), KVONCE_STAT(payload_bytes_now), KVONCE_STAT(slot_bytes_now);
  KVONCE_STAT(capacity_bytes), KVONCE_STAT(arena_slot_bytes), KVONCE_STAT(free_bytes_now), KVONCE_STAT(claims_now);
  KVONCE_STAT(leases_now), KVONCE_STAT(leased_bytes_now), KVONCE_STAT(quarantined_bytes_now), KVONCE_STAT(rows_lent_now);
  KVONCE_STAT(unverified_pools_now), KVONCE_STAT(events_dropped);
#undef KVONCE_STAT
  dict["store_answered"] = stats.store_answered;
  return dict;
}

nb::list clients_of(const std::vector<ClientInfo>& clients) {
  nb::list list;
  for (const ClientInfo& client : clients) {
    nb::dict dict;
    dict["pid"] = client.pid;
    dict["engine_id"] = client.engine_id;
    dict["read_only"] = client.read_only;
    dict["ranks"] = client.ranks;
    dict["open_grants"] = client.open_grants;
    dict["quarantined_bytes"] = client.quarantined_bytes;
    nb::dict reports;
    for (const ClientReport& report : client.reports) {
      nb::dict counters;
      for (const auto& [name, value] : report.counters) counters[name.c_str()] = value;
      reports[report.label.c_str()] = counters;
    }
    dict["reports"] = reports;
    list.append(dict);
  }
  return list;
}

/// A page and its objects.
struct PyPageStat {
  std::uint32_t depth = 0;
  std::vector<PageStat::Object> objects;
};

nb::object exists_bytes(Result<std::vector<std::uint8_t>> result) {
  check(result.error);
  return nb::bytes(result.value.data(), result.value.size());
}

LookupOptions lookup_options(nb::handle request_id, bool probe, nb::handle lease_time, nb::handle timeout) {
  return {text_of(request_id, "request_id"),
          probe,
          seconds_of(lease_time, "lease_time", "0.001 to 3,600, or 0 for the store's default"),
          seconds_of(timeout, "timeout"),
          {}};
}

nb::object lookup_async(const PyGroup& group, nb::handle pages, nb::handle request_id, bool probe, nb::handle lease_time,
                        nb::handle timeout) {
  const GroupState& state = *group.state;
  Runtime& runtime = state.runtime->use();
  const auto done = std::make_shared<Done>();
  LookupOptions options = lookup_options(request_id, probe, lease_time, timeout);
  options.completion = tell(done);
  auto hashes = read_pages(pages);
  auto started = unlocked([&] { return runtime.lookup(state.handle, std::move(hashes), std::move(options)); });
  check(started.error);
  return nb::cast(new LookupFuture(state.runtime, std::move(started.value), done), nb::rv_policy::take_ownership);
}

/// As lookup_async and result(), without a future in between.
LookupResult lookup(const PyGroup& group, nb::handle pages, nb::handle request_id, bool probe, nb::handle lease_time,
                    nb::handle timeout) {
  const GroupState& state = *group.state;
  Runtime& runtime = state.runtime->use();
  LookupOptions options = lookup_options(request_id, probe, lease_time, timeout);
  auto hashes = read_pages(pages);
  // One turn without the lock for the call and the first slice of its wait.
  auto started = unlocked([&] {
    auto result = runtime.lookup(state.handle, std::move(hashes), std::move(options));
    if (!result.error) result.value->wait_for(kSlice);
    return result;
  });
  check(started.error);
  const auto& operation = started.value;
  if (!operation->done()) {
    check_signals();
    wait_in_slices(std::nullopt, [&](std::chrono::nanoseconds time) { return operation->wait_for(time); });
  }
  check(operation->result().error);
  return operation->result();
}

RankPtr add_rank(const PyGroup& group, std::uint16_t tp, std::uint16_t pp, std::uint16_t cp) {
  const GroupPtr& state = group.state;
  const ShardCounts& ranks = state->spec.ranks;
  const Coordinates at{{tp, ranks.tp}, {pp, ranks.pp}, {cp, ranks.cp}};
  auto rank =
      ask_runtime(state->runtime, [handle = state->handle, at](Runtime& runtime) { return runtime.add_rank(handle, at); });
  return std::make_shared<RankBox>(state, std::move(rank));
}

PyRuntime start(const std::string& engine_id, const std::string& store, const nb::kwargs& options) {
  const RuntimeConfig config = read_options(engine_id, store, options);
  check(config.check());
  auto started = ask([config] { return Runtime::start(config); });
  check(started.error);
  return {std::make_shared<RuntimeBox>(std::move(started.value))};
}

/// Twice is no error.
void close(const PyRuntime& self, double timeout) {
  self.box->check_process();
  const auto time = milliseconds(timeout, "timeout", kAnyTime);
  if (self.box->closed()) return;
  const auto runtime = self.box->shared();
  self.box->mark_closed();
  ask([runtime, time] {
    runtime->stop(time);
    return true;
  });
}

bool wait_connected(const PyRuntime& self, double timeout) {
  const auto runtime = self.box->shared();
  return wait_in_slices(until_of(timeout), [&](std::chrono::nanoseconds time) {
    return runtime->wait_connected(std::chrono::ceil<std::chrono::milliseconds>(time));
  });
}

nb::dict start_of(const StoreStart& start) {
  nb::dict dict;
  dict["warm"] = start.warm;
  dict["why_cold"] = start.why_cold;
  dict["restored_objects"] = start.restored_objects;
  return dict;
}

PyNamespace open_namespace(const PyRuntime& self, const std::string& text, double timeout) {
  const auto time = milliseconds(timeout, "timeout");
  return {self.box, ask_runtime(self.box, [text, time](Runtime& runtime) { return runtime.open_namespace(text, time); }), text};
}

std::optional<PyNamespace> find_namespace(const PyRuntime& self, const std::string& text, double timeout) {
  const auto time = milliseconds(timeout, "timeout");
  auto found = ask([runtime = self.box->shared(), text, time] { return runtime->find_namespace(text, time); });
  if (found.error.reason == Reason::unknown_namespace) return {};
  check(found.error);
  return PyNamespace{self.box, found.value, text};
}

PyGroup make_group(const PyNamespace& self, nb::handle given_name, nb::handle given_pools, nb::handle ranks, double timeout) {
  const auto time = milliseconds(timeout, "timeout");
  const std::string name = text_of(given_name, "name");
  const std::string what = "group '" + name + "': pools";
  if (PySequence_Check(given_pools.ptr()) == 0)
    raise_bad(what + " is " + shown(given_pools) + ": must be a list of kvonce.GroupPool");
  std::vector<GroupPool> pools;
  for (const nb::handle item : nb::tuple(nb::borrow(given_pools))) {
    const GroupPool* const pool = bound<GroupPool>(item);
    if (pool == nullptr) raise_bad(what + " has " + shown(item) + ": must be a list of kvonce.GroupPool");
    pools.push_back(*pool);
  }
  GroupSpec spec{name, counts_of(ranks, "group '" + name + "': ranks"), std::move(pools)};
  const auto handle = ask_runtime(
      self.runtime, [ns = self.handle, spec, time](Runtime& runtime) { return runtime.register_group(ns, spec, time); });
  return {std::make_shared<const GroupState>(GroupState{self.runtime, self.handle, handle, std::move(spec)})};
}

std::optional<PyPageStat> stat(const PyNamespace& self, nb::handle page) {
  auto found = self.runtime->use().stat(self.handle, read_page(page));
  check(found.error);
  if (!found.value.found) return {};
  return PyPageStat{found.value.depth, std::move(found.value.objects)};
}

nb::list pools_of(const PyNamespace& self) {
  nb::list list;
  for (const KnownPool& pool : ask_runtime(self.runtime, [ns = self.handle](Runtime& runtime) { return runtime.pools(ns); })) {
    nb::dict dict;
    dict["name"] = pool.name;
    dict["shards"] = nb::make_tuple(pool.shards.tp, pool.shards.pp, pool.shards.cp);
    dict["object_bytes"] = pool.object_bytes;
    list.append(dict);
  }
  return list;
}

void bind_group_pool(nb::module_& module) {
  nb::class_<GroupPool>(module, "GroupPool", "One pool of a page group, described without memory.")
      .def(
          "__init__",
          [](GroupPool* self, nb::handle given_name, nb::handle shards, nb::handle trailing_pages, bool optional) {
            const std::string name = text_of(given_name, "name");
            std::optional<ShardCounts> counts;
            if (!shards.is_none()) counts = counts_of(shards, "pool '" + name + "': shards");
            const auto trailing = integer_of<std::uint16_t>(trailing_pages, "pool '" + name + "': trailing_pages");
            new (self) GroupPool{name, counts, HitPolicy{trailing}, optional};
          },
          nb::arg("name").none(), nb::arg("shards") = nb::none(), nb::arg("trailing_pages").none() = 0,
          nb::arg("optional") = false,
          nb::sig("def __init__(self, name: str, shards: tuple[int, int, int] | None = None, trailing_pages: int = 0, "
                  "optional: bool = False) -> None"),
          "shards: number of shards on each axis (tp, pp, cp); (1, 1, 1): the same bytes on all ranks; None: as many as there "
          "are ranks.\n"
          "trailing_pages: 0: a prefix needs every page of this pool; n: only its last n (sliding window, recurrent state).\n"
          "optional: a prefix is restorable without it (draft).")
      .def_ro("name", &GroupPool::name)
      .def_prop_ro(
          "shards",
          [](const GroupPool& p) -> nb::object {
            if (!p.shards) return nb::none();
            return nb::make_tuple(p.shards->tp, p.shards->pp, p.shards->cp);
          },
          nb::sig("def shards(self) -> tuple[int, int, int] | None"))
      .def_prop_ro("trailing_pages", [](const GroupPool& p) { return p.policy.trailing_pages; })
      .def_ro("optional", &GroupPool::optional);
}

void bind_namespace(nb::module_& module) {
  nb::class_<PyPageStat>(module, "PageStat", "What the store holds of one page.")
      .def_ro("depth", &PyPageStat::depth, "Pages before it in its prefix.")
      .def_prop_ro(
          "objects",
          [](const PyPageStat& stat) {
            nb::list list;
            for (const PageStat::Object& object : stat.objects) {
              nb::dict dict;
              dict["pool"] = object.pool;
              dict["shard"] = object.shard;
              dict["bytes"] = object.bytes;
              dict["level"] = std::string(to_string(object.level));
              list.append(dict);
            }
            return list;
          },
          nb::sig("def objects(self) -> list[dict[str, typing.Any]]"), "Each as a dict: pool, shard (flat index), bytes, level.");
  nb::class_<PyNamespace>(module, "Namespace", "All that decides the bytes besides page hash, pool and shard.")
      .def_ro("text", &PyNamespace::text)
      .def("group", &make_group, nb::arg("name").none(), nb::arg("pools").none(),
           nb::arg("ranks").none() = nb::make_tuple(1, 1, 1), nb::arg("timeout") = kControlSeconds,
           nb::sig("def group(self, name: str, pools: list[GroupPool], ranks: tuple[int, int, int] = (1, 1, 1), "
                   "timeout: float = 10.0) -> Group"),
           "Registers the pools that a prefix needs together. ranks: of the engine, on the axes (tp, pp, cp).")
      .def("stat", &stat, nb::arg("page").none(), nb::sig("def stat(self, page: Page) -> PageStat | None"),
           "None where the page is not there.")
      .def(
          "remove",
          [](const PyNamespace& self, nb::handle pages, double timeout) {
            Runtime& runtime = self.runtime->use();
            const auto time = milliseconds(timeout, "timeout");
            auto hashes = read_pages(pages);
            return finish(unlocked([&] { return runtime.remove_pages(self.handle, std::move(hashes), {}, time); }));
          },
          nb::arg("pages"), nb::arg("timeout") = kRemoveSeconds,
          nb::sig("def remove(self, pages: Pages, timeout: float = 30.0) -> int"), "Number of objects removed.")
      .def(
          "clear",
          [](const PyNamespace& self, double timeout) {
            Runtime& runtime = self.runtime->use();
            const auto time = milliseconds(timeout, "timeout");
            return finish(unlocked([&] { return runtime.remove_namespace(self.handle, {}, time); }));
          },
          nb::arg("timeout") = kRemoveSeconds, nb::sig("def clear(self, timeout: float = 30.0) -> int"),
          "Removes all of the namespace. Number of objects removed.")
      .def(
          "close",
          [](PyNamespace& self, double timeout) {
            const auto time = milliseconds(timeout, "timeout");
            if (!self.open) return;
            const auto runtime = self.runtime->shared();
            self.open = false;
            const Error error = ask([runtime, handle = self.handle, time] { return runtime->close_namespace(handle, time); });
            // It is still open: the next call tries again.
            if (error) self.open = true;
            check(error);
          },
          nb::arg("timeout") = kControlSeconds, nb::sig("def close(self, timeout: float = 10.0) -> None"),
          "This process uses it no more: its groups mean nothing then, and no pool of a rank may be registered in it any more. "
          "What is stored stays. A store has room for 1,024 namespaces and gives the place of one that nobody has open to a new "
          "one. Idempotent.")
      .def("pools", &pools_of, nb::sig("def pools(self) -> list[dict[str, typing.Any]]"),
           "Each as a dict: name, shards (tp, pp, cp), object_bytes (0: not known yet).")
      .def("__repr__", [](const PyNamespace& self) { return "<kvonce.Namespace '" + self.text + "'>"; });
}

void bind_group(nb::module_& module) {
  nb::class_<PyGroup>(module, "Group", "The pools that a prefix of one model needs together.")
      .def_prop_ro("name", [](const PyGroup& self) { return self.state->spec.name; })
      .def(
          "rank",
          [](const PyGroup& self, nb::handle tp, nb::handle pp, nb::handle cp) {
            return make_rank(add_rank(self, integer_of<std::uint16_t>(tp, "tp"), integer_of<std::uint16_t>(pp, "pp"),
                                      integer_of<std::uint16_t>(cp, "cp")));
          },
          nb::arg("tp").none() = 0, nb::arg("pp").none() = 0, nb::arg("cp").none() = 0,
          nb::sig("def rank(self, tp: int = 0, pp: int = 0, cp: int = 0) -> Rank"),
          "This process's rank: its index on each axis; how many there are comes from the group.")
      .def("lookup", &lookup, nb::arg("pages").none(), nb::arg("request_id").none() = "", nb::arg("probe") = false,
           nb::arg("lease_time").none() = 0.0, nb::arg("timeout").none() = 5.0,
           nb::sig("def lookup(self, pages: Pages, request_id: str = '', probe: bool = False, lease_time: float = 0.0, timeout: "
                   "float = 5.0) -> Lookup"),
           "How much of this prefix is restorable, with a lease on it. pages: at most 65,536, from the first one on.\n"
           "request_id: lookups with the same one get the same answer on all ranks. probe: no lease, does not count as use.\n"
           "lease_time: seconds; 0: the store's default. Raises StoreLost, Deadline (after `timeout` seconds), Closed.")
      .def("lookup_async", &lookup_async, nb::arg("pages").none(), nb::arg("request_id").none() = "", nb::arg("probe") = false,
           nb::arg("lease_time").none() = 0.0, nb::arg("timeout").none() = 5.0,
           nb::sig("def lookup_async(self, pages: Pages, request_id: str = '', probe: bool = False, lease_time: float = 0.0, "
                   "timeout: float = 5.0) -> LookupFuture"),
           "As lookup, without waiting.")
      .def(
          "exists",
          [](const PyGroup& self, nb::handle pool, nb::handle shard, nb::handle pages) {
            Runtime& runtime = self.state->runtime->use();
            return exists_bytes(runtime.exists(self.state->handle, text_of(pool, "pool"),
                                               integer_of<std::uint32_t>(shard, "shard"), read_pages(pages)));
          },
          nb::arg("pool").none(), nb::arg("shard").none(), nb::arg("pages").none(),
          nb::sig("def exists(self, pool: str, shard: int, pages: Pages) -> bytes"),
          "One byte per page, 0 or 1. Reads the index in shared memory: waits for nobody. shard: flat index.")
      .def(
          "remove_key",
          [](const PyGroup& self, const std::string& pool, std::uint32_t shard, nb::handle page, double timeout) {
            Runtime& runtime = self.state->runtime->use();
            const auto time = milliseconds(timeout, "timeout");
            const PageHash hash = read_page(page);
            return finish(unlocked([&] { return runtime.remove_key(self.state->handle, pool, shard, hash, {}, time); }));
          },
          nb::arg("pool"), nb::arg("shard"), nb::arg("page"), nb::arg("timeout") = kRemoveSeconds,
          nb::sig("def remove_key(self, pool: str, shard: int, page: Page, timeout: float = 30.0) -> int"),
          "Removes one object. Number of objects removed.");
}

}  // namespace

void bind_runtime(nb::module_& module) {
  bind_group_pool(module);
  bind_namespace(module);
  bind_group(module);
  nb::class_<PyRuntime>(module, "Runtime", nb::is_weak_referenceable(), "Connects this process to a store, or holds one itself.")
      .def(
          "__init__",
          [](PyRuntime* self, nb::handle engine_id, nb::handle store, const nb::kwargs& options) {
            PyRuntime made = start(text_of(engine_id, "engine_id"), text_of(store, "store"), options);
            new (self) PyRuntime(std::move(made));
          },
          nb::arg("engine_id").none(), nb::arg("store").none() = "auto", nb::arg("options"),
          nb::sig("def __init__(self, engine_id: str, store: str = 'auto', **options: typing.Any) -> None"),
          "engine_id: names the serving instance that all its rank and scheduler processes share.\n"
          "store: 'auto': this user's kvonced on this host, started when none answers; 'unix:PATH'; 'embedded': in this "
          "process.\n"
          "options: the fields of RuntimeConfig (include/kvonce/config.hpp): durations in seconds, sizes as int or text "
          "('1GiB').\n"
          "Raises BadArgument (an unknown option: with the nearest name), StoreLost, Deadline.")
      .def_prop_ro("engine_id", [](const PyRuntime& self) { return self.box->use().config().engine_id; })
      .def_prop_ro("closed",
                   [](const PyRuntime& self) {
                     self.box->check_process();
                     return self.box->closed();
                   })
      .def("namespace", &open_namespace, nb::arg("text"), nb::arg("timeout") = kControlSeconds,
           nb::sig("def namespace(self, text: str, timeout: float = 10.0) -> Namespace"),
           "Opens the namespace. The text says all that decides the bytes: model, revision, dtype, page tokens, tenant; 1 to "
           "4,096 bytes.")
      .def("find_namespace", &find_namespace, nb::arg("text"), nb::arg("timeout") = kControlSeconds,
           nb::sig("def find_namespace(self, text: str, timeout: float = 10.0) -> Namespace | None"),
           "As namespace, but one that nobody has opened yet is None, and is not made.")
      .def(
          "epoch",
          [](const PyRuntime& self, const std::string& name, double timeout) {
            const auto time = milliseconds(timeout, "timeout");
            const auto bytes = ask_runtime(self.box, [name, time](Runtime& runtime) { return runtime.epoch(name, time); });
            return nb::bytes(bytes.data(), bytes.size());
          },
          nb::arg("name"), nb::arg("timeout") = 5.0, nb::sig("def epoch(self, name: str, timeout: float = 5.0) -> bytes"),
          "16 random bytes that the store gives out once per (engine id while it is connected, name): all processes of the "
          "engine get the same.\n"
          "name: 1 to 255 bytes, as 'weights 3'; at most 1,024 names an engine. Raises StoreLost, Deadline.")
      .def_prop_ro(
          "connected", [](const PyRuntime& self) { return self.box->use().connected(); },
          "False while the store is lost: calls raise StoreLost, and a connection is tried again and again.")
      .def_prop_ro(
          "incarnation", [](const PyRuntime& self) { return self.box->use().incarnation(); },
          "Random number of this life of the store; 0 while it is lost.")
      .def("wait_connected", &wait_connected, nb::arg("timeout"), nb::sig("def wait_connected(self, timeout: float) -> bool"),
           "True when connected; False when the time (seconds) passed first.")
      .def(
          "stats",
          [](const PyRuntime& self, double timeout) {
            const auto time = milliseconds(timeout, "timeout");
            return stats_of(ask([runtime = self.box->shared(), time] { return runtime->stats(time); }));
          },
          nb::arg("timeout") = 2.0, nb::sig("def stats(self, timeout: float = 2.0) -> dict[str, typing.Any]"),
          "Counters since the start, those that end in _now as they are; bytes are payload bytes. `verdicts` and `misses` are "
          "dicts by name. `store_answered` is False while the store is lost or slower than `timeout`: what it counts is then "
          "left out or is less than it is.")
      .def(
          "clients",
          [](const PyRuntime& self, double timeout) {
            const auto time = milliseconds(timeout, "timeout");
            return clients_of(ask_runtime(self.box, [time](Runtime& runtime) { return runtime.clients(time); }));
          },
          nb::arg("timeout") = kControlSeconds,
          nb::sig("def clients(self, timeout: float = 10.0) -> list[dict[str, typing.Any]]"),
          "The processes that are connected to the store: pid, engine_id, read_only, ranks, open_grants, quarantined_bytes, "
          "reports "
          "(label -> {name: count}, as each gave them).")
      .def(
          "report",
          [](const PyRuntime& self, const std::string& label, const nb::dict& counters) {
            std::vector<std::pair<std::string, std::uint64_t>> list;
            for (const auto& [key, value] : own_copy(counters)) {
              std::string name = text_of(key, "the name of a counter");
              const auto count = integer_of<std::uint64_t>(value, "counter " + shown(key));
              list.emplace_back(std::move(name), count);
            }
            Runtime& runtime = self.box->use();
            check(unlocked([&] { return runtime.report(label, std::move(list)); }));
          },
          nb::arg("label"), nb::arg("counters"), nb::sig("def report(self, label: str, counters: dict[str, int]) -> None"),
          "Gives counters of this process to the store, for clients() and `kvonce stat`; they replace those of the same label, "
          "and go "
          "with the connection. No counters: the label is forgotten. At most 8 labels, 64 counters, names of 1 to 64 bytes.")
      .def_prop_ro(
          "store_start",
          [](const PyRuntime& self) { return start_of(ask([runtime = self.box->shared()] { return runtime->store_start(); })); },
          nb::sig("def store_start(self) -> dict[str, typing.Any]"), "How the store came up: warm, why_cold, restored_objects.")
      .def(
          "flush",
          [](const PyRuntime& self, double timeout, const std::string& level) {
            Runtime& runtime = self.box->use();
            const AckLevel wanted = level_of(level);
            const auto time = milliseconds(timeout, "timeout");
            finish(unlocked([&] { return runtime.flush(wanted, time); }));
          },
          nb::arg("timeout") = 30.0, nb::arg("level") = "memory",
          nb::sig("def flush(self, timeout: float = 30.0, level: str = 'memory') -> None"),
          "Waits until everything accepted so far is decided at that level. Raises Deadline after `timeout` seconds.")
      .def(
          "clear",
          [](const PyRuntime& self, double timeout) {
            Runtime& runtime = self.box->use();
            const auto time = milliseconds(timeout, "timeout");
            return finish(unlocked([&] { return runtime.clear({}, time); }));
          },
          nb::arg("timeout") = kRemoveSeconds, nb::sig("def clear(self, timeout: float = 30.0) -> int"),
          "Removes everything from the store. Number of objects removed.")
      .def(
          "release",
          [](const PyRuntime& self, nb::handle lease, double timeout) {
            const auto time = milliseconds(timeout, "timeout");
            tell_runtime(self.box, [id = lease_of(lease), time](Runtime& runtime) { return runtime.release(id, time); });
          },
          nb::arg("lease").none(), nb::arg("timeout") = kControlSeconds,
          nb::sig("def release(self, lease: Lease | bytes, timeout: float = 10.0) -> None"),
          "Gives a lease back; twice is no error.")
      .def(
          "narrow",
          [](const PyRuntime& self, nb::handle lease, std::uint32_t pages, double timeout) {
            const auto time = milliseconds(timeout, "timeout");
            tell_runtime(self.box,
                         [id = lease_of(lease), pages, time](Runtime& runtime) { return runtime.narrow(id, pages, time); });
          },
          nb::arg("lease"), nb::arg("pages"), nb::arg("timeout") = kControlSeconds,
          nb::sig("def narrow(self, lease: Lease | bytes, pages: int, timeout: float = 10.0) -> None"),
          "Gives back what lies behind so many pages of the prefix (0: everything).")
      .def("close", &close, nb::arg("timeout") = 5.0, nb::sig("def close(self, timeout: float = 5.0) -> None"),
           "Open operations end with reason 'closed', then everything of this runtime stops, within `timeout` seconds. Twice is "
           "no error.")
      .def(
          "__enter__", [](nb::object self) { return self; }, nb::sig("def __enter__(self) -> Runtime"))
      .def(
          "__exit__", [](const PyRuntime& self, nb::args) { close(self, 5.0); },
          nb::sig("def __exit__(self, *exception: object) -> None"));
}

}  // namespace kvonce::python
