// SPDX-License-Identifier: Apache-2.0
//
// The engine's calls, and the watch over their ends (P6).
#include <algorithm>

#include "tests/sim/checkers.hpp"
#include "tests/sim/session.hpp"

namespace kvonce::sim {

// Every wait ends by its deadline plus one slice. A stopped rank is late by its own doing: it gets the same time after it
// wakes.
void Session::expect(const char* what, Time deadline, std::function<bool()> open) {
  const Duration patience = rank_.mover.slice_bound() + 100 * kMicrosecond;
  sim_.schedule.at(deadline + patience, [this, what, deadline, patience, open = std::move(open)]() mutable {
    if (rank_.dead || rank_.process != process_ || !open()) return;
    const Time since = std::max(deadline, rank_.last_wake);
    if (rank_.stopped || sim_.now() < since + patience) {
      expect(what, std::max(sim_.now() + kMillisecond, since), std::move(open));
      return;
    }
    sim_.violate(6, std::string("a ") + what + " did not end by its deadline (" + std::to_string(deadline / kMicrosecond) +
                        " us) and one slice (" + std::to_string(patience / kMicrosecond) + " us)");
  });
}

std::uint64_t Session::put(const PutPlan& plan) {
  PutOrder order;
  order.id = next_id();
  order.level = plan.level;
  order.deadline = sim_.now() + plan.time;
  order.has_parent = plan.has_parent;
  order.parent = plan.parent;
  order.first_depth = plan.first_depth;
  order.pages = plan.pages;
  for (const auto& [page, pool] : plan.items) {
    if (pools_[pool].closing) continue;
    const auto row = rank_.take_row(pool, RowState::put, order.id);
    if (!row) continue;
    const std::uint64_t seed = rank_.content_seed(ns_, pool, plan.pages[page]);
    rank_.pools[pool].rows[*row].content = seed;
    make_content(seed, 0, rank_.pools[pool].at(*row), rank_.pools[pool].shape.payload_bytes());
    order.items.push_back({page, pool, *row});
    if (!plan.repeat_first || order.items.size() != 1) continue;
    // The same page again, from another row.
    if (const auto second = rank_.take_row(pool, RowState::put, order.id)) {
      sim_.probes.hit(Probe::duplicate_in_batch);
      rank_.pools[pool].rows[*second].content = seed;
      make_content(seed, 0, rank_.pools[pool].at(*second), rank_.pools[pool].shape.payload_bytes());
      order.items.push_back({page, pool, *second});
    }
  }
  if (order.items.empty()) return 0;
  const std::uint64_t id = order.id;
  if (plan.gate) rank_.gates[id] = sim_.now() + *plan.gate;
  puts_[id] = OpenPut{sim_.now(), order.deadline, order.items, order.pages};
  sim_.note("put", id, sender & 0xffff, order.items.size());
  expect("put", order.deadline, [this, id] { return puts_.contains(id); });
  if (sim_.faults.sim.reuse_row) {
    sim_.schedule.after(sim_.knobs.slice_max, [this, id] {
      const auto at = puts_.find(id);
      if (at == puts_.end()) return;
      const PutOrderItem& item = at->second.items.back();
      rank_.pools[item.pool].at(item.row)[0] ^= std::byte{1};
    });
  }
  run([&](PoolCore& core, Time now, PoolActions& out) { core.put(std::move(order), now, out); });
  return id;
}

std::uint64_t Session::load(const LoadPlan& plan, std::function<void()> done) {
  LoadOrder order;
  order.id = next_id();
  order.lease = plan.lease;
  order.deadline = sim_.now() + plan.time;
  order.layer_begin = plan.layer_begin;
  order.layer_end = plan.layer_end;
  order.layers_per_group = plan.layers_per_group;
  for (const auto& [page, pool] : plan.items) {
    if (pools_[pool].closing) continue;
    if (const auto row = rank_.take_row(pool, RowState::load, order.id)) order.items.push_back({page, pool, *row});
  }
  if (order.items.empty()) {
    if (done) done();
    return 0;
  }
  const std::uint64_t id = order.id;
  OpenLoad& open = loads_[id];
  open.deadline = order.deadline;
  open.plan = plan;
  open.items = order.items;
  open.done = std::move(done);
  sim_.note("load", id, sender & 0xffff, order.items.size());
  expect("load", order.deadline, [this, id] { return loads_.contains(id); });
  run([&](PoolCore& core, Time now, PoolActions& out) { core.load(std::move(order), now, out); });
  return id;
}

void Session::cancel_put(std::uint64_t id) {
  if (!puts_.contains(id)) return;
  run([&](PoolCore& core, Time now, PoolActions& out) { core.cancel_put(id, now, out); });
  expect("canceled put", sim_.now(), [this, id] { return puts_.contains(id); });
}
void Session::cancel_load(std::uint64_t id) {
  if (!loads_.contains(id)) return;
  run([&](PoolCore& core, Time now, PoolActions& out) { core.cancel_load(id, now, out); });
  expect("canceled load", sim_.now(), [this, id] { return loads_.contains(id); });
}

void Session::lookup(const std::vector<PageHash>& pages, std::uint64_t request, bool probe, LookupDone done) {
  LookupAsk ask;
  ask.token = next_id();
  ask.engine = engine;
  ask.group = group_;
  ask.has_request = request != 0;
  ask.request = Digest128{request, mix64(request)};
  ask.digest = lookup_digest(group_, pages);
  ask.probe = probe;
  ask.time_left = sim_.random.between(5, 100) * kMillisecond;
  ask.pages_asked = static_cast<std::uint32_t>(pages.size());
  ask.pages = pages;
  // As by a search in the index, which may be of a moment ago, or wrong.
  if (sim_.random.chance(500)) ask.pages.resize(sim_.random.between(1, pages.size()));
  post_lookup(std::move(ask), OpenLookup{pages, std::move(done), {}});
}

void Session::post_lookup(LookupAsk ask, OpenLookup open) {
  const std::uint64_t token = ask.token;
  const std::uint32_t home = keys_.home(ns_id_, open.pages.front());
  const std::vector<PageHash> pages = open.pages;
  open.ask = ask;
  lookups_[token] = std::move(open);
  sim_.schedule.after(ask.time_left, [this, token] {
    receive([this, token] {
      const auto at = lookups_.find(token);
      if (at == lookups_.end()) return;
      const OpenLookup late = std::move(at->second);
      lookups_.erase(at);
      late.done(nullptr);
    });
  });
  node_.post_lookup(*this, home, std::move(ask), pages);
}

void Session::release(const LeaseId& lease) {
  if (lease) node_.post_release(*this, ShardKeyCore::home_of(lease), LeaseCall{lease, engine, 0}, true);
}
void Session::narrow(const LeaseId& lease, std::uint32_t stop) {
  if (lease) node_.post_release(*this, ShardKeyCore::home_of(lease), LeaseCall{lease, engine, stop}, false);
}

void Session::remove(RemoveAsk ask) {
  ask.token = next_id();
  ask.ns = ns_id_;
  if (ask.what == RemoveAsk::What::all || ask.what == RemoveAsk::What::ns) {
    calls_[ask.token] = node_.partitions();
    for (std::uint32_t p = 0; p < node_.partitions(); ++p) node_.post_remove(*this, p, ask);
    return;
  }
  const std::uint32_t partition = keys_.home(ns_id_, ask.pages.front());
  calls_[ask.token] = 1;
  if (ask.what == RemoveAsk::What::key) {
    const PoolState& pool = pools_[ask.pool];
    ask.pool = pool.keying.pool;
    ask.shard = pool.keying.shard;
  }
  node_.post_remove(*this, partition, std::move(ask));
}

void Session::flush(AckLevel level) {
  FlushAsk ask;
  ask.token = next_id();
  ask.level = level;
  calls_[ask.token] = node_.partitions();
  for (std::uint32_t p = 0; p < node_.partitions(); ++p) {
    node_.post(*this, p, "flush", [this, p, ask](StoreCore& core, Time now, StoreActions& out) {
      checkers_.before_flush(p, sender, ask);
      core.flush(sender, ask, now, out);
    });
  }
}

void Session::unregister(std::uint32_t pool) {
  if (pools_[pool].closing) return;
  pools_[pool].closing = true;
  Time last = sim_.now();
  for (const auto& [id, put] : puts_) last = std::max(last, put.deadline);
  for (const auto& [id, load] : loads_) last = std::max(last, load.deadline);
  sim_.note("unregister", sender & 0xffff, pool);
  expect("unregister", last, [this, pool] { return !pools_[pool].gone; });
  run([&](PoolCore& core, Time now, PoolActions& out) { core.unregister(pool, now, out); });
}

void Session::close() {
  if (lost || closing_) return;
  closing_ = true;
  sim_.note("close", sender & 0xffff);
  expect("close", sim_.now(), [this] { return !quiet(); });
  run([](PoolCore& core, Time now, PoolActions& out) { core.close(now, out); });
}

std::vector<std::uint64_t> Session::open_puts() const {
  std::vector<std::uint64_t> ids;
  for (const auto& [id, put] : puts_) ids.push_back(id);
  return ids;
}
std::vector<std::uint64_t> Session::open_loads() const {
  std::vector<std::uint64_t> ids;
  for (const auto& [id, load] : loads_) ids.push_back(id);
  return ids;
}

// Announces much and writes nothing: its grants are held until it dies.
void Session::flood(const std::vector<PageHash>& pages) {
  rogue_ = true;
  sim_.probes.hit(Probe::flood);
  PutBatch batch;
  batch.sender = sender;
  batch.batch = sim_.random.next();
  batch.ns = ns_id_;
  batch.time_left = kSecond;
  const PoolKeying& keying = pools_[0].keying;
  for (std::uint32_t i = 0; i < 60; ++i) {
    const bool known = i < pages.size() && sim_.random.chance(500);
    const PageHash page = known ? pages[i] : PageHash{{sim_.random.next(), sim_.random.next(), 3, 4}};
    batch.pages.push_back({page, i, kNoParent});
    batch.items.push_back({i, i, keying.pool, keying.shard, keying.generation, rank_.pools[0].shape.payload_bytes()});
  }
  std::vector<std::vector<PutItem>> parts(node_.partitions());
  for (const PutItem& item : batch.items) parts[keys_.home(ns_id_, batch.pages[item.page].hash)].push_back(item);
  for (std::uint32_t p = 0; p < node_.partitions(); ++p) {
    PutBatch part = batch;
    part.items = parts[p];
    node_.post_put(*this, p, std::move(part));
  }
}

void Session::forge() {
  Random& random = sim_.random;
  const auto partition = static_cast<std::uint32_t>(random.below(node_.partitions()));
  sim_.probes.hit(Probe::forged_results);
  // Somebody else's claims and epochs, and ones that never were.
  GrantResults results;
  results.sender = sender;
  for (int i = 0; i < 4; ++i) {
    GrantResult result;
    result.claim = static_cast<std::uint32_t>(random.below(random.chance(500) ? 8 : 4096));
    const Epoch newest = checkers_.highest_epoch();
    result.epoch = newest > 40 ? newest - random.below(40) : random.next();
    result.outcome = random.pick({GrantOutcome::landed, GrantOutcome::abandoned, GrantOutcome::failed});
    result.first_checksum = static_cast<std::uint32_t>(random.below(3));
    result.checksum_count = static_cast<std::uint32_t>(random.below(8));
    // Who lands its own grant without writing it harms its own engine; no store can know.
    if (!checkers_.owns_grant(sender, result.epoch)) results.results.push_back(result);
  }
  results.checksums.assign(4, random.next());
  node_.post_results(*this, partition, std::move(results));
  LeaseCall call{LeaseId{random.next(), random.next()}, engine, 0};
  node_.post_release(*this, partition, call, random.chance(500));
  call.lease = checkers_.some_lease(engine, random);
  if (call.lease) node_.post_release(*this, ShardKeyCore::home_of(call.lease), call, true);
  LoadBegin begin;
  begin.load = random.next();
  begin.sender = sender;
  begin.engine = engine;
  begin.lease = call.lease;
  begin.time_left = 10 * kMillisecond;
  node_.post(*this, partition, "forged load", [begin](StoreCore& core, Time now, StoreActions& out) {
    core.load_begin(begin, now, out);
  });
  ChecksumAnswers answers;
  answers.sender = sender;
  answers.answers.push_back({random.below(64), 0, 2});
  answers.checksums.assign(2, random.next());
  node_.post(*this, partition, "forged checksums", [answers](StoreCore& core, Time now, StoreActions& out) {
    core.checksums(answers, now, out);
  });
  // A wrong size, and pools and shards that are not there.
  PutBatch batch;
  batch.sender = sender;
  batch.batch = random.next();
  batch.ns = static_cast<NamespaceId>(random.below(3));
  batch.time_left = 50 * kMillisecond;
  batch.pages.push_back({PageHash{{random.next(), random.next(), 1, 2}}, 0, kNoParent});
  const PoolKeying& keying = pools_[0].keying;
  batch.items.push_back({0, 0, keying.pool, keying.shard, keying.generation, rank_.pools[0].shape.payload_bytes() + 8});
  batch.items.push_back({1, 0, static_cast<PoolId>(random.below(70)), 5000, 0, 64});
  batch.items.push_back({2, 7, keying.pool, keying.shard, keying.generation, rank_.pools[0].shape.payload_bytes()});
  sim_.probes.hit(Probe::wrong_size);
  const std::uint32_t home = keys_.home(batch.ns, batch.pages[0].hash);
  node_.post_put(*this, home, std::move(batch));
  if (sim_.knobs.places == 0) return;
  // What has been retired is nobody's, and its place's next owner loses nothing.
  RemoveAsk gone;
  gone.token = next_id();
  gone.what = RemoveAsk::What::ns;
  gone.ns = checkers_.some_freed_namespace(random);
  if (gone.ns != kNoNamespace) node_.post_remove(*this, partition, std::move(gone));
}

}  // namespace kvonce::sim
