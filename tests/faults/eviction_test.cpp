// SPDX-License-Identifier: Apache-2.0
//
// Eviction, accounting and memory pressure.
#include "tests/faults/fixture.hpp"

namespace faults_test {

namespace {

RuntimeConfig tight() {
  auto config = small_config();
  config.arena_bytes = 8ULL << 20;
  config.index_pages = 2048;
  return config;
}

}  // namespace

TEST_CASE("under pressure a page's shards and pools are whole or gone, and what is left of a chain is its beginning") {
  for (const std::uint32_t partitions : {1U, 2U}) {
    auto config = tight();
    config.partitions = partitions;
    auto runtime = start(config);
    Model model(*runtime, "m", {{"replicated", false, 8192, 1}, {"sharded", true, 4096, 1}}, 8, 8);
    for (std::uint64_t chain = 0; chain < 40; ++chain)
      for (std::size_t r = 0; r < 8; ++r) {
        const auto put = model.put(r, chain_of(chain, 8), {0, 1});
        put->wait();
        CHECK(put->succeeded() == 16);
      }
    CHECK(runtime->stats().evicted_objects > 0);
    std::size_t pages_left = 0;
    for (std::uint64_t chain = 0; chain < 40; ++chain) {
      std::size_t before = 9;
      for (std::uint64_t i = 0; i < 8; ++i) {
        const std::vector<PageHash> page{page_of(chain, i)};
        std::size_t objects = model.existing(0, 0, page);
        for (std::uint32_t s = 0; s < 8; ++s) objects += model.existing(1, s, page);
        CHECK((objects == 0 || objects == 9));
        if (partitions == 1) CHECK(objects <= before);
        before = objects;
        pages_left += objects / 9;
      }
    }
    CHECK(pages_left > 8);
    CHECK(runtime->stats().pages_now == pages_left);
    CHECK(model.lookup(chain_of(39, 8)).restorable_pages == 8);  // the newest is no victim
  }
}

TEST_CASE("a chain of a hundred that loses pages keeps its first ones") {
  auto config = tight();
  config.capacity_bytes = 100 * 1024;
  Engine engine(1, config, 1024, 1, 100);
  engine.put(0, 1, 0, 100)->wait();
  for (std::uint64_t other = 0; other < 10; ++other) {
    engine.put(0, 50 + other, 0, 1)->wait();
    const auto exists = *engine.ranks[0].rank->exists(engine.ranks[0].pool, chain_of(1, 100));
    const auto kept = static_cast<std::size_t>(std::count(exists.begin(), exists.end(), 1));
    CHECK(kept == 99 - other);
    CHECK(std::is_sorted(exists.begin(), exists.end(), std::greater<>()));
    CHECK(engine.runtime->exists(engine.group, "latent", 0, std::vector{page_of(50 + other, 0)})->front() == 1);
  }
  LookupOptions probe;
  probe.probe = true;  // half of the budget is the most that one engine may lease
  CHECK(engine.lookup(1, 100, probe).restorable_pages == 90);
}

TEST_CASE("a store of which everything is leased says no space at once, serves everybody else, and takes puts again later") {
  auto config = tight();
  config.capacity_bytes = 16 * 4096;
  config.leased_bytes = 64ULL << 20;
  Engine engine(2, config, 1024, 4);
  engine.put(0, 1, 0, 16)->wait();
  const auto found = engine.lookup(1, 16);
  REQUIRE(found.restorable_pages == 16);
  for (int round = 0; round < 3; ++round) {
    const auto put = engine.put(0, 2, 0, 4);
    put->wait();
    CHECK(put->succeeded() == 0);
    for (const auto& result : put->results()) {
      CHECK(result.verdict == Verdict::rejected);
      CHECK(result.reason == Reason::no_space);
    }
  }
  // The store is full, not broken.
  const auto known = engine.put(1, 1, 0, 16);
  known->wait();
  CHECK(all_are(*known, Verdict::already_stored));
  const auto second = engine.lookup(1, 16);
  CHECK(second.restorable_pages == 16);
  engine.ranks[1].rows->clear();
  const auto load = engine.load(1, found.lease, 1, 16);
  load->wait();
  CHECK(load->loaded() == 16);
  // Giving back needs no space.
  CHECK(!engine.runtime->release(found.lease));
  CHECK(!engine.runtime->release(second.lease));
  const auto put = engine.put(0, 2, 0, 4);
  put->wait();
  CHECK(all_are(*put, Verdict::stored));
  CHECK(engine.runtime->stats().objects_now == 16);
}

TEST_CASE("the capacity is kept after every put, to a page") {
  constexpr std::uint64_t kObject = 4096;
  auto config = tight();
  config.capacity_bytes = 50 * kObject + 100;
  Engine engine(1, config, 1024, 4);
  for (std::uint64_t chain = 0; chain < 60; ++chain) {
    const auto put = engine.put(0, chain, 0, 1 + chain % 16);
    put->wait();
    CHECK(put->succeeded() == 1 + chain % 16);
    const Stats stats = engine.runtime->stats();
    CHECK(stats.payload_bytes_now <= config.capacity_bytes);
    CHECK(stats.payload_bytes_now == stats.objects_now * kObject);
  }
  CHECK(engine.runtime->stats().objects_now == 50);
}

TEST_CASE("a store without any limit set takes puts for ever, within its arena") {
  auto config = tight();
  config.index_pages = 0;
  Engine engine(1, config, 16384, 4, 16);
  std::uint64_t put_bytes = 0;
  for (std::uint64_t chain = 0; put_bytes < 4 * config.arena_bytes; ++chain) {
    const auto put = engine.put(0, chain, 0, 16);
    put->wait();
    CHECK(put->succeeded() == 16);
    put_bytes += 16 * engine.ranks[0].rows->object_bytes();
  }
  const Stats stats = engine.runtime->stats();
  CHECK(stats.slot_bytes_now <= config.arena_bytes);
  CHECK(stats.slot_bytes_now + stats.free_bytes_now == stats.arena_slot_bytes);
  CHECK(stats.evicted_bytes >= put_bytes - config.arena_bytes);
}

TEST_CASE("an index that is full makes room like an arena that is") {
  auto config = small_config();
  config.index_pages = 1024;
  Engine engine(1, config, 64, 1, 64);
  for (std::uint64_t chain = 0; chain < 60; ++chain) {
    const auto put = engine.put(0, chain, 0, 64);
    put->wait();
    CHECK(put->succeeded() == 64);
  }
  const Stats stats = engine.runtime->stats();
  CHECK(stats.pages_now <= 1024);
  CHECK(stats.evicted_objects == 60 * 64 - stats.objects_now);
  CHECK(engine.lookup(59, 64).restorable_pages == 64);
}

}  // namespace faults_test
