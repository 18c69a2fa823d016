// SPDX-License-Identifier: Apache-2.0
//
// Warm restarts of one store core: what comes back, and what stays in quarantine.
#include <chrono>

#include "warm_fixture.hpp"

using namespace kvonce;
using namespace kvonce::protocol;
using namespace kvonce::protocol::test;

namespace {

bool overlap(const storage::Slot& a, const storage::Slot& b) {
  for (const auto& x : a.view())
    for (const auto& y : b.view())
      if (x.offset < y.offset + y.bytes && y.offset < x.offset + x.bytes) return true;
  return false;
}

struct StopWatch {
  std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now();
  double ms() const { return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count(); }
};

}  // namespace

TEST_CASE("after any sequence of events a restart brings everything back and hands out nothing that is still written") {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    CAPTURE(seed);
    WarmFixture f;
    f.begin(seed);
    for (int i = 0; i < 300; ++i) f.random_step();
    std::size_t wrong = 0;
    const auto before = f.objects(&wrong);
    REQUIRE(wrong == 0);
    const StoreStats stats = f.store->stats();
    const Epoch last = f.store->last_epoch();
    const auto old_copies = f.copies;
    const std::uint64_t open = stats.quarantined_slots_now + f.store->open_writes();
    f.copies.clear();
    const auto groups = f.store->catalog().groups();
    const std::string snapshot = f.stop();
    const std::string why = f.resume(snapshot);
    REQUIRE_MESSAGE(f.store, why);
    f.audit();
    f.step_all();
    CHECK(f.store->catalog().groups() == groups);
    CHECK(f.store->reader().incarnation() == f.config.incarnation);
    CHECK(f.store->reader().slot_incarnation() == 77);
    CHECK(f.objects(&wrong) == before);
    CHECK(wrong == 0);
    const StoreStats after = f.store->stats();
    CHECK(after.objects_now == stats.objects_now);
    CHECK(after.payload_bytes_now == stats.payload_bytes_now);
    CHECK(after.slot_bytes_now == stats.slot_bytes_now);
    CHECK(after.leases_now == stats.leases_now);
    CHECK(after.leased_bytes_now == stats.leased_bytes_now);
    CHECK(after.free_bytes_now == stats.free_bytes_now);
    CHECK(after.claims_now == 0);
    // A quarantined slot of a sender that is still there is one that it may yet report.
    CHECK(after.quarantined_slots_now == old_copies.size());
    CHECK(after.quarantined_slots_now <= open);

    // Leases hold: what they cover can be loaded, by the processes of their engine only.
    f.new_rank();
    f.new_rank();
    for (const auto& [lease, engine] : f.held_leases) {
      CHECK(f.begin_load(1, 1, lease, engine + 5) == Reason::lease_unknown);
      CHECK(f.begin_load(1, 1, lease, engine) == Reason::none);
    }

    // Filled to capacity, twice over: no grant touches a slot that an old writer may still write to.
    for (std::uint64_t page = 50'000; page < 51'200; page += 40) {
      f.announce(f.ranks[0], f.kv, 0, page, 40);
      for (const auto& copy : f.copies) {
        CHECK(copy.grant.epoch > last);
        for (const auto& old : old_copies) REQUIRE_FALSE(overlap(copy.slot, old.slot));
      }
      f.finish_all();
    }
    for (const auto& old : old_copies) f.write(old, false);
    f.objects(&wrong);
    CHECK(wrong == 0);

    // Each process ends, is fenced by its own name only, and then its slots are free.
    std::set<SenderId> writers;
    for (const auto& old : old_copies) writers.insert(old.sender);
    CHECK(f.store->quarantined_processes().size() == writers.size());
    for (const ClientProcess& process : f.store->quarantined_processes()) {
      const auto held = f.store->stats().quarantined_slots_now;
      f.store->process_fenced(process.pid, process.start_time + 1, f.now, f.actions);
      f.store->process_fenced(0, 0, f.now, f.actions);
      CHECK(f.store->stats().quarantined_slots_now == held);
      f.store->process_fenced(process.pid, process.start_time, f.now, f.actions);
      CHECK(f.store->stats().quarantined_slots_now < held);
      f.collect();
    }
    CHECK(f.store->stats().quarantined_slots_now == 0);
    CHECK(f.store->quarantined_processes().empty());
    for (std::uint64_t page = 60'000; page < 60'400; page += 40) {
      f.announce(f.ranks[1], f.kv, 0, page, 40);
      f.finish_all();
    }
    f.objects(&wrong);
    CHECK(wrong == 0);
  }
}

TEST_CASE("control: without quarantine a late write of the old life does hit somebody's object") {
  std::size_t wrong = 0;
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    WarmFixture f;
    f.begin(seed);
    for (int i = 0; i < 300; ++i) f.random_step();
    const auto old_copies = f.copies;
    f.copies.clear();
    f.config.faults.free_quarantined = true;
    const std::string snapshot = f.stop();
    REQUIRE(f.resume(snapshot).empty());
    f.new_rank();
    for (std::uint64_t page = 50'000; page < 51'200; page += 40) {
      f.announce(f.ranks[0], f.kv, 0, page, 40);
      f.finish_all();
    }
    for (const auto& old : old_copies) f.write(old, false);
    f.objects(&wrong);
  }
  CHECK(wrong > 0);
}

TEST_CASE("a store goes on after a restart as it would have without one: the same leave, in the same order") {
  for (std::uint64_t seed = 100; seed < 112; ++seed) {
    CAPTURE(seed);
    // Twice the same life; one of the two is restarted.
    std::vector<std::vector<std::pair<int, std::uint64_t>>> histories;
    for (const bool restart : {false, true}) {
      WarmFixture f;
      f.config.capacity_bytes = 600'000;
      f.begin(seed);
      for (int i = 0; i < 250; ++i) f.random_step();
      f.finish_all();
      for (const SenderId rank : f.ranks) f.store->client_left(WarmFixture::client_of(rank), true, f.now, f.actions);
      f.collect();
      f.finish_all();
      f.step_all();
      REQUIRE(f.store->stats().claims_now == 0);
      if (restart) {
        const std::string snapshot = f.stop();
        REQUIRE(f.resume(snapshot) == "");
        f.step_all();
      } else {
        f.ranks.clear();
        f.inbox.clear();
      }
      f.store->want_events(true);
      f.new_rank();
      f.new_rank();  // of the other engine: the grace of a restart ends no lease
      f.actions.events.clear();
      std::vector<std::pair<int, std::uint64_t>> history;
      for (std::uint64_t page = 50'000; page < 50'400; page += 4) {
        f.announce(f.ranks[0], f.kv, 0, page, 4);
        f.finish_all();
        if (page % 100 == 0) f.advance(kSecond);
        for (const ObjectEvent& event : f.actions.events) history.emplace_back(static_cast<int>(event.kind) * 100 + event.pool * 10 + static_cast<int>(event.shard), event.page.words[1]);
        f.actions.events.clear();
        const LookupAnswer answer = f.lookup(f.all, 100 * (page % 40), 12, nullptr, 1, true);
        history.emplace_back(1'000 + static_cast<int>(answer.reason), answer.restorable_pages);
      }
      histories.push_back(std::move(history));
    }
    CHECK(histories[0] == histories[1]);
  }
}

TEST_CASE_FIXTURE(WarmFixture, "a lease outlives the restart until its deadline or its engine's grace, and its pages with it") {
  config.capacity_bytes = 120'000;
  begin(1);
  for (std::uint32_t shard = 0; shard < 2; ++shard) announce(ranks[0], sharded, shard, 0, 6);
  announce(ranks[0], kv, 0, 0, 6);
  announce(ranks[0], checkpoints, 0, 5, 1);
  finish_all();
  const LookupAnswer answer = lookup(all, 0, 6, "request");
  REQUIRE(answer.restorable_pages == 6);
  REQUIRE(begin_load(ranks[0], 9, answer.lease, 1, 30 * kSecond) == Reason::none);
  const auto fill = [&](std::uint64_t from) {
    for (std::uint64_t page = from; page < from + 100; page += 10) {
      announce(ranks.back(), kv, 0, page, 10);
      finish_all();
    }
  };
  const std::string snapshot = stop();
  SUBCASE("while a process of its engine is back") {
    REQUIRE(resume(snapshot) == "");
    new_rank();
    const SenderId r = new_rank();
    ranks = {r};
    const LookupAnswer again = lookup(all, 0, 6, "request");
    CHECK(again.repeated);
    CHECK(again.lease == answer.lease);
    CHECK(again.restorable_pages == 6);
    fill(1'000);
    for (std::uint64_t page = 0; page < 6; ++page) CHECK(readable(kv, 0, page));
    advance(3 * config.engine_grace);
    CHECK(store->stats().leases_now == 1);
    advance(config.lease_time);
    CHECK(store->stats().leases_now == 0);
    fill(2'000);
    CHECK_FALSE(readable(kv, 0, 5));
  }
  SUBCASE("and not for ever when none comes back; a running load keeps it to its own deadline") {
    REQUIRE(resume(snapshot) == "");
    advance(config.engine_grace + kSecond);
    CHECK(store->stats().leases_now == 1);  // of the load
    ranks = {};
    new_rank();
    new_rank();
    ranks = {ranks.back()};
    fill(1'000);
    CHECK(readable(kv, 0, 5));
    store->load_end(LoadEnd{9, 1000, answer.lease}, now, actions);
    collect();
    CHECK(store->stats().leases_now == 0);
    CHECK(store->release(LeaseCall{answer.lease, 1, 0}, now, actions) == Reason::none);  // ended lately: no error
  }
  SUBCASE("also over a second restart") {
    REQUIRE(resume(snapshot) == "");
    const std::string second = stop();
    REQUIRE(resume(second) == "");
    CHECK(store->stats().leases_now == 1);
    CHECK(store->reader().slot_incarnation() == 77);
    std::size_t wrong = 0;
    CHECK(objects(&wrong).size() == 19);
    CHECK(wrong == 0);
  }
}

TEST_CASE_FIXTURE(WarmFixture, "a client of the old life that says it writes nothing frees its own slots and no others") {
  begin(1);
  announce(ranks[0], kv, 0, 0, 8);
  announce(ranks[1], kv, 0, 100, 12);
  const std::size_t mine = copies.size();
  REQUIRE(mine == 5);
  const ClientId first = client_of(ranks[0]);
  copies.clear();
  REQUIRE(resume(stop()) == "");
  CHECK(store->stats().quarantined_slots_now == 5);
  store->client_joined(first, 1, now, 5000, 90'000);
  CHECK(store->stats().quarantined_slots_now == 5);
  store->client_fenced(first, now, actions);
  collect();
  CHECK(store->stats().quarantined_slots_now == 3);
  CHECK(store->quarantined_processes().size() == 1);
  // A second life keeps what the first had in quarantine.
  REQUIRE(resume(stop()) == "");
  CHECK(store->stats().quarantined_slots_now == 3);
  REQUIRE(store->quarantined_processes().size() == 1);
  CHECK(store->quarantined_processes()[0].pid == 5001);
}

TEST_CASE_FIXTURE(WarmFixture, "a frozen store grants nothing more, lets land what is granted, and answers everybody") {
  config.window_bytes = 4096;
  begin(1);
  announce(ranks[0], kv, 0, 0, 4);
  announce(ranks[1], kv, 0, 0, 4);
  const std::size_t granted = copies.size();
  REQUIRE(granted >= 1);
  REQUIRE(granted < 4);
  CHECK(store->open_writes() == granted);
  store->freeze(now, actions);
  collect();
  CHECK(count(ranks[0], Verdict::rejected, Reason::busy) == 4 - granted);
  CHECK(count(ranks[1], Verdict::rejected, Reason::busy) == 4 - granted);
  announce(ranks[2], kv, 0, 0, 4);     // joins what is being written
  announce(ranks[2], kv, 0, 500, 2);   // new: not taken
  CHECK(count(ranks[2], Verdict::rejected, Reason::busy) == 4 - granted + 2);
  CHECK(copies.size() == granted);
  const std::uint64_t landed = copies.front().page;
  finish(0, GrantOutcome::landed);
  while (!copies.empty()) finish(0, GrantOutcome::abandoned);
  CHECK(store->open_writes() == 0);
  CHECK(store->stats().claims_now == 0);
  for (int r = 0; r < 3; ++r) CHECK(verdicts[ranks[static_cast<std::size_t>(r)]].size() == (r == 2 ? 6 : 4));
  CHECK(count(ranks[0], Verdict::stored) + count(ranks[1], Verdict::stored) == 1);
  CHECK(count(ranks[2], Verdict::joined) == 1);
  announce(ranks[2], kv, 0, landed, 1);
  CHECK(count(ranks[2], Verdict::already_stored) == 1);
  audit();
}

TEST_CASE_FIXTURE(WarmFixture, "a removal that was under way goes on, and a demoted pool stays demoted") {
  config.clear_step = 2;
  begin(1);
  const PoolId split = pool("split", 1, 512, HitPolicy::every_page(), 4);
  store->attach_pool(AttachPool{ranks[0], ns, split, 0, true}, now);
  announce(ranks[0], kv, 0, 0, 12);
  announce(ranks[0], split, 0, 200, 12);
  finish_all();
  std::vector<CatalogUpdate> updates;
  store->catalog().demote(ns, split, updates);
  REQUIRE(updates.size() == 1);
  apply(updates);
  RemoveAsk ask;
  ask.what = RemoveAsk::What::all;
  store->remove(1, ask, now, actions);
  REQUIRE(store->step(now, actions));
  const std::string snapshot = stop();
  REQUIRE(resume(snapshot) == "");
  step_all();
  CHECK(store->stats().objects_now == 0);
  CHECK(store->stats().records_now == 0);
  CHECK(store->catalog().find_pool(ns, split)->demoted);
  CHECK(store->catalog().find_pool(ns, split)->generation == 1);
  CHECK(store->reader().generation(ns, split) == 1);
}

TEST_CASE_FIXTURE(WarmFixture, "a smaller capacity lets the oldest go, and an object whose slot header is another's is not handed out") {
  begin(1);
  announce(ranks[0], kv, 0, 0, 12);
  finish_all();
  ObjectLocation at;
  REQUIRE(store->reader().locate(ns, page_hash(3), kv, 0, &at) == ReadStatus::found);
  header_at(memory.get(), shape(kv).footer_offset(at.slot.view()))->epoch ^= 1;
  config.capacity_bytes = 5 * 4096;
  REQUIRE(resume(stop()) == "");
  audit();
  CHECK(store->stats().objects_now == 5);
  CHECK_FALSE(readable(kv, 0, 3));
  CHECK(readable(kv, 0, 0));
}

TEST_CASE("partitions are restored together: catalogs agree again and no pin is left without its lease") {
  constexpr std::uint32_t kParts = 2;
  StoreConfig configs[kParts];
  StoreConfig base = StoreFixture().config;
  const std::uint64_t index = (StoreCore::index_bytes(base.index) + 4095) / 4096 * 4096;
  const std::uint64_t share = index + base.slots_bytes;
  const std::unique_ptr<std::byte, decltype(&std::free)> memory(static_cast<std::byte*>(std::aligned_alloc(4096, share * kParts)), &std::free);
  std::memset(memory.get(), 0, share * kParts);
  std::vector<std::unique_ptr<StoreCore>> cores;
  for (std::uint32_t p = 0; p < kParts; ++p) {
    configs[p] = base;
    configs[p].partition = p;
    configs[p].partitions = kParts;
    configs[p].arena = memory.get();
    configs[p].index_offset = p * share;
    configs[p].slots_offset = p * share + index;
    cores.push_back(std::make_unique<StoreCore>(configs[p]));
  }
  StoreActions out;
  const auto everywhere = [&](std::vector<CatalogUpdate>& made, std::uint32_t partitions) {
    for (std::uint32_t p = 0; p < partitions; ++p)
      for (const CatalogUpdate& update : made) cores[p]->apply(update, 0, out);
    made.clear();
  };
  std::vector<CatalogUpdate> updates;
  const NamespaceId ns = cores[0]->catalog().ask(NamespaceAsk{"model"}, updates).ns;
  everywhere(updates, kParts);
  PoolAsk ask;
  ask.ns = ns;
  ask.pool.name = "kv";
  ask.pool.size = PoolInfo::Size::known;
  ask.pool.range_bytes = {4096};
  ask.ranks.tp = 4;
  const PoolId kv = cores[0]->catalog().ask(ask, updates).pool;
  everywhere(updates, kParts);
  GroupAsk group;
  group.ns = ns;
  group.name = "all";
  group.pools = {{"kv", {1, 1, 1}, {4, 1, 1}, HitPolicy::every_page(), false}};
  const GroupId all = cores[0]->catalog().ask(group, updates).group;
  everywhere(updates, kParts);
  for (auto& core : cores) {
    core->client_joined(7, 1, 0);
    core->attach({70, 7, 1}, 0);
    core->attach_pool({70, ns, kv, 0, true}, 0);
  }
  // One page on each partition.
  const Placement placement = Placement::local(kParts);
  std::vector<PageHash> pages;
  for (std::uint64_t n = 0; pages.size() < 2; ++n)
    if (placement.owner(ns, page_hash(n)) == pages.size()) pages.push_back(page_hash(n));
  for (std::uint32_t p = 0; p < kParts; ++p) {
    PutBatch put;
    put.sender = 70;
    put.batch = 1;
    put.ns = ns;
    put.time_left = kSecond;
    put.pages.push_back({pages[p], p, kNoParent});
    put.items.push_back({0, 0, kv, 0, 0, 4096});
    out.clear();
    cores[p]->put(put, 0, out);
    REQUIRE(out.replies.size() == 1);
    const Grant grant = out.replies[0].reply.grants.at(0);
    out.clear();
    cores[p]->grants_done({70, {{grant.claim, grant.epoch, GrantOutcome::landed, 0, 0}}, {}, {}}, 0, out);
  }
  const auto lookup = [&](bool finish) {
    LookupAsk look;
    look.engine = 1;
    look.group = all;
    look.time_left = kSecond;
    look.pages = pages;
    out.clear();
    cores[0]->lookup(1, look, 0, out);
    REQUIRE(out.part_asks.size() == 1);
    const PartLookupAsk part = out.part_asks[0].second;
    out.clear();
    cores[1]->part_lookup(part, 0, out);
    const PartLookupAnswer answer = out.part_answers.at(0).second;
    out.clear();
    if (!finish) return LeaseId{};
    cores[0]->part_answer(answer, 0, out);
    REQUIRE(out.lookups.size() == 1);
    const auto narrows = out.part_narrows;
    for (const auto& [to, narrow] : narrows) cores[to]->part_narrow(narrow, 0, out);
    return out.lookups[0].second.lease;
  };
  const LeaseId lease = lookup(true);
  REQUIRE(lease);
  lookup(false);  // partition 1 has pinned for it; its home never hears
  cores[0]->catalog().demote(ns, kv, updates);
  const bool demote_lost = updates.size() == 1;
  REQUIRE(demote_lost);
  everywhere(updates, 1);  // the news do not reach partition 1

  std::vector<std::string> snapshots;
  for (auto& core : cores) snapshots.push_back(core->snapshot(0));
  cores.clear();
  for (StoreConfig& config : configs) config.incarnation = 1234;
  std::string why;
  std::vector<std::string> swapped{snapshots[1], snapshots[0]};
  CHECK(StoreCore::restore_all(configs, swapped, 0, &why).empty());
  CHECK(why == "the snapshot is of a store with partition 1; this one has 0 (partition 0)");
  CHECK(StoreCore::restore_all(configs, {snapshots.data(), 1}, 0, &why).empty());
  CHECK(why == "there are 1 snapshots for 2 partitions");
  cores = StoreCore::restore_all(configs, snapshots, 0, &why);
  REQUIRE_MESSAGE(cores.size() == kParts, why);
  for (auto& core : cores) {
    CHECK(core->audit() == "");
    CHECK(core->catalog().find_pool(ns, kv)->demoted);
    CHECK(core->reader().generation(ns, kv) == 1);
    while (core->step(0, out)) {
    }
    CHECK(core->stats().objects_now == 0);
    CHECK(core->audit() == "");
  }
  CHECK(cores[0]->last_epoch() != cores[1]->last_epoch());
  // The lease of the finished lookup still pins on both; its release frees both.
  CHECK(cores[1]->stats().free_bytes_now < cores[1]->stats().slots_bytes);
  out.clear();
  CHECK(cores[0]->release(LeaseCall{lease, 1, 0}, 0, out) == Reason::none);
  for (const auto& [to, narrow] : out.part_narrows) cores[to]->part_narrow(narrow, 0, out);
  for (auto& core : cores) CHECK(core->stats().free_bytes_now == core->stats().slots_bytes);
}

TEST_CASE("how long a restart takes with 65,536 objects of 64 KiB (printed, not asserted)") {
  StoreFixture f;
  f.config.index = IndexLimits{262'144, 1'048'576, 16'400};
  f.config.slots_bytes = 65'536ULL * (65'536 + 64);
  f.config.window_bytes = ~std::uint64_t{0} >> 8;
  f.config.slots_offset = (StoreCore::index_bytes(f.config.index) + 4095) / 4096 * 4096;
  const std::uint64_t bytes = (f.config.slots_offset + f.config.slots_bytes + 4095) / 4096 * 4096;
  f.memory.reset(static_cast<std::byte*>(std::calloc(1, bytes + 4096)));  // only what is touched takes memory
  f.config.arena = reinterpret_cast<std::byte*>((reinterpret_cast<std::uintptr_t>(f.memory.get()) + 4095) / 4096 * 4096);
  f.store = std::make_unique<StoreCore>(f.config);
  std::vector<CatalogUpdate> updates;
  f.ns = f.store->catalog().ask(NamespaceAsk{"model"}, updates).ns;
  for (const auto& update : updates) f.store->apply(update, f.now, f.actions);
  updates.clear();
  PoolAsk ask;
  ask.ns = f.ns;
  ask.pool.name = "kv";
  ask.pool.size = PoolInfo::Size::known;
  ask.pool.range_bytes = {65'536};
  const PoolId kv = f.store->catalog().ask(ask, updates).pool;
  for (const auto& update : updates) f.store->apply(update, f.now, f.actions);
  const SenderId rank = f.rank(0, {{kv, 0}});
  for (std::uint64_t page = 0; page < 65'536; page += 256) {
    f.store->put(f.batch(rank, kv, 0, page, 256), f.now, f.actions);
    GrantResults results;
    results.sender = rank;
    for (const auto& to : f.actions.replies)
      for (const Grant& grant : to.reply.grants) results.results.push_back({grant.claim, grant.epoch, GrantOutcome::landed, 0, 0});
    f.actions.clear();
    f.store->grants_done(results, f.now, f.actions);
    f.actions.clear();
  }
  const std::uint64_t objects = f.store->stats().objects_now;
  REQUIRE(objects == 65'536);
  const StopWatch saving;
  const std::string snapshot = f.store->snapshot(f.now);
  const double saved = saving.ms();
  f.store.reset();
  f.config.incarnation = 78;
  std::string why;
  const StopWatch restoring;
  f.store = StoreCore::restore(f.config, snapshot, f.now, &why);
  const double restored = restoring.ms();
  REQUIRE_MESSAGE(f.store, why);
  CHECK(f.store->stats().objects_now == objects);
  CHECK(f.store->audit() == "");
  MESSAGE("snapshot of ", snapshot.size(), " bytes in ", saved, " ms, restored in ", restored, " ms");
}
