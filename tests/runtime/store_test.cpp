// SPDX-License-Identifier: Apache-2.0
//
// What the store promises, seen through a whole runtime: verification and demotion, eviction, leases, removal, events.
#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "tests/runtime/fixture.hpp"

namespace runtime_test {

TEST_CASE("ranks whose bytes differ are split into per-rank keys and never hear conflict") {
  for (const std::uint32_t partitions : {1U, 4U}) {
    CAPTURE(partitions);
    auto config = small_config();
    config.verify_sample = 1;
    config.conflict_limit = 3;
    config.partitions = partitions;
    Engine engine(2, config);
    LookupOptions early;
    const auto before = engine.put(0, 50, 0, 2);
    before->wait();
    CHECK(engine.lookup(50, 2).restorable_pages == 2);

    // Both ranks declare one replicated shard, but rank 1 has other bytes.
    const auto first = engine.put(0, 1, 0, 16, {}, 0);
    const auto second = engine.put(1, 1, 0, 16, {}, 1);
    first->wait();
    second->wait();
    for (const auto& put : {first, second})
      for (const auto& result : put->results()) {
        CHECK(result.verdict != Verdict::conflict);
        CHECK((is_success(result.verdict) || result.reason == Reason::unverified));
      }
    CHECK(engine.runtime->stats().conflicts >= 3);
    CHECK(engine.runtime->stats().demotions == 1);

    // From now on each rank stores and finds its own bytes; the handle of the group stays good.
    engine.put(0, 2, 0, 8, {}, 0)->wait();
    engine.put(1, 2, 0, 8, {}, 1)->wait();
    const auto found = engine.lookup(2, 8);
    CHECK(!found.error);
    REQUIRE(found.restorable_pages == 8);
    for (std::size_t r = 0; r < 2; ++r) {
      engine.ranks[r].rows->clear();
      const auto load = engine.load(r, found.lease, 2, 8);
      load->wait();
      CHECK(load->loaded() == 8);
      for (std::size_t i = 0; i < 8; ++i) CHECK(engine.ranks[r].rows->holds(i, page_of(2, i), r));
    }
    // Objects of the old generation are gone for good.
    CHECK(engine.lookup(50, 2).restorable_pages == 0);
  }
}

TEST_CASE("a group that was never looked up before a demotion is found all the same") {
  auto config = small_config();
  config.verify_sample = 1;
  config.conflict_limit = 1;
  Engine engine(2, config);
  engine.put(0, 1, 0, 4, {}, 0)->wait();
  engine.put(1, 1, 0, 4, {}, 1)->wait();
  engine.put(0, 2, 0, 4, {}, 0)->wait();
  auto only_one = engine.lookup(2, 4);
  CHECK(only_one.restorable_pages == 0);
  CHECK(only_one.reason == Reason::group_incomplete);
  CHECK(only_one.missing_pool == "latent");
  CHECK(only_one.missing_shard == 1);
  engine.put(1, 2, 0, 4, {}, 1)->wait();
  CHECK(engine.lookup(2, 4).restorable_pages == 4);
  const auto pages = chain_of(2, 4);
  CHECK(*engine.ranks[0].rank->exists(engine.ranks[0].pool, pages) == std::vector<std::uint8_t>(4, 1));
  CHECK(*engine.runtime->exists(engine.group, "latent", 1, pages) == std::vector<std::uint8_t>(4, 1));
}

TEST_CASE("with demotion off a differing rank is told, and the pool stays as it is") {
  auto config = small_config();
  config.verify_sample = 1;
  config.conflict_limit = 1;
  config.demote = false;
  Engine engine(2, config);
  engine.put(0, 1, 0, 4, {}, 0)->wait();
  const auto put = engine.put(1, 1, 0, 4, {}, 1);
  put->wait();
  CHECK(engine.runtime->stats().conflicts > 0);
  CHECK(engine.runtime->stats().demotions == 0);
  engine.put(0, 2, 0, 4)->wait();
  CHECK(engine.lookup(2, 4).restorable_pages == 4);
}

TEST_CASE("under pressure the oldest chains leave from their ends, so what stays is a prefix") {
  for (const std::uint32_t partitions : {1U, 4U}) {
    CAPTURE(partitions);
    auto config = small_config();
    config.arena_bytes = 8ULL << 20;
    config.index_pages = 2048;
    config.partitions = partitions;
    Engine engine(1, config, 4096, 4, 64);
    for (std::uint64_t chain = 0; chain < 40; ++chain) {
      const auto put = engine.put(0, chain, 0, 16);
      put->wait();
      CHECK(put->succeeded() == 16);
    }
    const Stats stats = engine.runtime->stats();
    CHECK(stats.evicted_objects > 0);
    CHECK(stats.payload_bytes_now == stats.objects_now * engine.ranks[0].rows->object_bytes());
    CHECK(stats.slot_bytes_now + stats.free_bytes_now == stats.arena_slot_bytes);
    CHECK(engine.lookup(39, 16).restorable_pages == 16);
    std::uint64_t kept = 0;
    for (std::uint64_t chain = 0; chain < 40; ++chain) {
      const auto exists = *engine.ranks[0].rank->exists(engine.ranks[0].pool, chain_of(chain, 16));
      kept += static_cast<std::uint64_t>(std::count(exists.begin(), exists.end(), 1));
      if (partitions == 1) CHECK(std::is_sorted(exists.begin(), exists.end(), std::greater<>()));
    }
    CHECK(kept == stats.objects_now);
    const auto oldest = engine.lookup(0, 16);
    CHECK(oldest.restorable_pages < 16);
    CHECK((oldest.reason == Reason::evicted || oldest.reason == Reason::absent));
  }
}

TEST_CASE("leased pages stay however hard others press") {
  auto config = small_config();
  config.arena_bytes = 8ULL << 20;
  config.index_pages = 2048;
  Engine engine(1, config, 4096, 4, 64);
  engine.put(0, 999, 0, 16)->wait();
  const auto found = engine.lookup(999, 16);
  REQUIRE(found.restorable_pages == 16);
  for (std::uint64_t chain = 0; chain < 60; ++chain) engine.put(0, chain, 0, 16)->wait();
  CHECK(engine.runtime->stats().evicted_objects > 0);
  engine.ranks[0].rows->clear();
  const auto load = engine.load(0, found.lease, 999, 16);
  load->wait();
  CHECK(load->loaded() == 16);
  for (std::size_t i = 0; i < 16; ++i) CHECK(engine.ranks[0].rows->holds(i, page_of(999, i)));
  CHECK(!engine.runtime->release(found.lease));
  for (std::uint64_t chain = 100; chain < 160; ++chain) engine.put(0, chain, 0, 16)->wait();
  CHECK(engine.lookup(999, 16).restorable_pages < 16);
}

TEST_CASE("a prefix below half of the budget is leased whole, however many partitions hold it") {
  auto config = small_config();
  config.arena_bytes = 64ULL << 20;
  config.partitions = 4;
  Engine engine(1, config, 65'536, 2, 128);
  engine.put(0, 1, 0, 128)->wait();
  const auto found = engine.lookup(1, 128);
  CHECK(found.restorable_pages == 128);
  CHECK(found.reason == Reason::none);
}

TEST_CASE("a narrowed lease keeps what is below its stop and gives back the rest") {
  Engine engine;
  engine.put(0, 1, 0, 8)->wait();
  const auto found = engine.lookup(1, 8);
  const auto leased = engine.runtime->stats().leased_bytes_now;
  CHECK(leased == 8 * engine.ranks[0].rows->object_bytes());
  CHECK(!engine.runtime->narrow(found.lease, 3));
  CHECK(engine.runtime->stats().leased_bytes_now == 3 * engine.ranks[0].rows->object_bytes());
  const auto load = engine.load(0, found.lease, 1, 3);
  load->wait();
  CHECK(load->loaded() == 3);
  CHECK(!engine.runtime->narrow(found.lease, 0));
  CHECK(engine.runtime->stats().leases_now == 0);
}

TEST_CASE("a lease ends at its deadline by itself") {
  auto config = small_config();
  config.lease_time = milliseconds(20);
  Engine engine(1, config);
  engine.put(0, 1, 0, 4)->wait();
  const auto found = engine.lookup(1, 4);
  REQUIRE(found.lease);
  // Asked until it is so; the test's time-out is the limit.
  while (engine.runtime->stats().leases_now != 0) std::this_thread::yield();
  const auto load = engine.load(0, found.lease, 1, 1);
  load->wait();
  CHECK(load->results()[0] == Reason::lease_expired);
}

TEST_CASE("cleared pages are found no more, and what was leased of them is freed with the lease") {
  for (const std::uint32_t partitions : {1U, 4U}) {
    auto config = small_config();
    config.partitions = partitions;
    Engine engine(1, config);
    engine.put(0, 1, 0, 8)->wait();
    engine.put(0, 2, 0, 8)->wait();
    const auto found = engine.lookup(1, 8);
    const auto cleared = *engine.runtime->clear();
    cleared->wait();
    CHECK(!cleared->error());
    CHECK(cleared->count() == 16);
    CHECK(engine.lookup(1, 8).restorable_pages == 0);
    CHECK(engine.lookup(2, 8).restorable_pages == 0);
    CHECK(engine.runtime->stats().objects_now == 0);
    const auto kept = [&] {
      const Stats stats = engine.runtime->stats();
      return stats.arena_slot_bytes - stats.free_bytes_now;
    };
    CHECK(kept() == 8 * (engine.ranks[0].rows->object_bytes() + 64));
    const auto load = engine.load(0, found.lease, 1, 8);
    load->wait();
    CHECK(load->loaded() == 0);
    CHECK(!engine.runtime->release(found.lease));
    while (kept() != 0) std::this_thread::yield();
    CHECK(engine.runtime->stats().objects_now == 0);
    engine.put(0, 1, 0, 8)->wait();
    CHECK(engine.lookup(1, 8).restorable_pages == 8);
  }
}

TEST_CASE("keys, pages and namespaces are removed one by one") {
  Engine engine;
  const auto other_ns = *engine.runtime->open_namespace("another model");
  engine.put(0, 1, 0, 8)->wait();
  auto removed = *engine.runtime->remove_key(engine.group, "latent", 0, page_of(1, 7));
  removed->wait();
  CHECK(!removed->error());
  CHECK(removed->count() == 1);
  CHECK(engine.lookup(1, 8).restorable_pages == 7);
  removed = *engine.runtime->remove_pages(engine.ns, {page_of(1, 5), page_of(1, 6), page_of(9, 9)});
  removed->wait();
  CHECK(removed->count() == 2);
  CHECK(engine.lookup(1, 8).restorable_pages == 5);
  removed = *engine.runtime->remove_pages(engine.ns, {});
  removed->wait();
  CHECK(removed->count() == 0);
  removed = *engine.runtime->remove_namespace(other_ns);
  removed->wait();
  CHECK(removed->count() == 0);
  removed = *engine.runtime->remove_namespace(engine.ns);
  removed->wait();
  CHECK(removed->count() == 5);
  CHECK(engine.lookup(1, 8).restorable_pages == 0);
}

TEST_CASE("a flush is done when everything put before it is decided, and not before") {
  Engine engine(2);
  PutOptions options;
  options.after = Event::make();
  const auto put = engine.put(0, 1, 0, 4, options);
  const auto flush = *engine.runtime->flush();
  CHECK(!flush->wait_for(milliseconds(1)));
  options.after.signal();
  flush->wait();
  CHECK(!flush->error());
  put->wait();
  CHECK(put->succeeded() == 4);
  const auto idle = *engine.runtime->flush();
  idle->wait();
  CHECK(!idle->error());
  PutOptions never;
  never.after = Event::make();
  const auto stuck = engine.put(0, 2, 0, 1, never);
  const auto late = *engine.runtime->flush(AckLevel::memory, milliseconds(10));
  late->wait();
  CHECK(late->error().reason == Reason::deadline);
  stuck->cancel();
  stuck->wait();
}

TEST_CASE("subscribers hear what is stored, removed and evicted, with names") {
  auto config = small_config();
  config.arena_bytes = 8ULL << 20;
  config.index_pages = 2048;
  Engine engine(1, config, 4096, 4, 64);
  std::mutex mutex;
  std::condition_variable changed;
  std::map<StoreEvent::Kind, std::size_t> heard;
  bool named = true;
  engine.runtime->subscribe([&](std::span<const StoreEvent> events) {
    const std::lock_guard lock(mutex);
    for (const StoreEvent& event : events) {
      ++heard[event.kind];
      named = named && event.pool == "latent" && event.ns == engine.ns.id;
    }
    changed.notify_all();
  });
  const auto wait_for = [&](StoreEvent::Kind kind, std::size_t count) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, std::chrono::seconds(60), [&] { return heard[kind] >= count; });
  };
  engine.put(0, 1, 0, 8)->wait();
  CHECK(wait_for(StoreEvent::Kind::stored, 8));
  (*engine.runtime->remove_pages(engine.ns, {page_of(1, 7)}))->wait();
  CHECK(wait_for(StoreEvent::Kind::removed, 1));
  for (std::uint64_t chain = 10; chain < 50; ++chain) engine.put(0, chain, 0, 16)->wait();
  CHECK(wait_for(StoreEvent::Kind::evicted, 1));
  CHECK(named);
  engine.runtime->subscribe({});
  std::size_t before = 0;
  {
    const std::lock_guard lock(mutex);
    before = heard[StoreEvent::Kind::stored];
  }
  engine.put(0, 2, 0, 8)->wait();
  const std::lock_guard lock(mutex);
  CHECK(heard[StoreEvent::Kind::stored] == before);
}

TEST_CASE("optional pools and trailing pools decide which stops are legal") {
  auto runtime = std::move(*Runtime::start(small_config()));
  const auto ns = *runtime->open_namespace("hybrid");
  GroupSpec spec;
  spec.name = "hybrid";
  spec.pools = {{"kv", ShardCounts{}, HitPolicy::every_page(), false},
                {"state", ShardCounts{}, HitPolicy::trailing(1), false},
                {"draft", ShardCounts{}, HitPolicy::every_page(), true}};
  const auto group = *runtime->register_group(ns, spec);
  const auto rank = *runtime->add_rank(group, {});
  Rows kv(16, 512, 2);
  Rows state(16, 2048, 1);
  Rows draft(16, 256, 1);
  const auto add = [&](const char* name, Rows& rows) {
    PoolSpec pool;
    pool.name = name;
    pool.shard = Coordinates{};
    pool.components.push_back(rows.component("c"));
    pool.rows = rows.rows;
    return *rank->register_pool(pool);
  };
  const auto kv_pool = add("kv", kv);
  const auto state_pool = add("state", state);
  const auto draft_pool = add("draft", draft);
  const auto pages = chain_of(1, 8);
  PutBatch batch;
  batch.pages = pages;
  for (std::uint32_t i = 0; i < 8; ++i) batch.items.push_back({i, kv_pool, i});
  for (const std::uint32_t i : {2U, 5U}) batch.items.push_back({i, state_pool, i});
  for (std::uint32_t i = 0; i < 3; ++i) batch.items.push_back({i, draft_pool, i});
  const auto put = *rank->put(std::move(batch));
  put->wait();
  CHECK(put->succeeded() == 13);
  const auto lookup = *runtime->lookup(group, pages);
  lookup->wait();
  const LookupResult& found = lookup->result();
  CHECK(found.restorable_pages == 6);
  CHECK(found.resident_pages == 8);
  CHECK(!found.every_stop);
  CHECK(found.stops == std::vector<std::uint32_t>{3, 6});
  CHECK(found.optional_missing == std::vector<std::string>{"draft"});
}

TEST_CASE("a pool without bytes takes no part") {
  auto runtime = std::move(*Runtime::start(small_config()));
  const auto ns = *runtime->open_namespace("m");
  const auto group = *runtime->register_group(ns, {"g", {}, {{"kv", ShardCounts{}, {}, false}, {"none", ShardCounts{}, {}, false}}});
  const auto rank = *runtime->add_rank(group, {});
  Rows kv(4, 512, 1);
  PoolSpec pool{"kv", Coordinates{}, {kv.component("c")}, 4};
  const auto kv_pool = *rank->register_pool(pool);
  PoolSpec empty{"none", Coordinates{}, {}, 0};
  const auto none = rank->register_pool(empty);
  REQUIRE_MESSAGE(none, none.error.text);
  const auto put = *rank->put({{page_of(1, 0)}, {}, 0, {{0, kv_pool, 0}, {0, none.value, 0}}});
  put->wait();
  CHECK(put->results()[0].verdict == Verdict::stored);
  CHECK(put->results()[1].verdict == Verdict::rejected);
  CHECK(put->results()[1].reason == Reason::unknown_pool);
  const auto lookup = *runtime->lookup(group, {page_of(1, 0)});
  lookup->wait();
  CHECK(lookup->result().restorable_pages == 1);
}

}  // namespace runtime_test
