// SPDX-License-Identifier: Apache-2.0
//
// Leases and pins: forgotten, given back in any order, aborted in the middle.
#include <algorithm>
#include <cstdint>
#include <random>
#include <thread>

#include "tests/faults/fixture.hpp"
#include "tests/protocol/store_fixture.hpp"

namespace faults_test {

TEST_CASE_FIXTURE(protocol::test::StoreFixture, "what a caller leased and never loaded can be evicted after the lease's time, and not before") {
  config.capacity_bytes = 10 * 4096;
  config.leased_bytes_per_engine = 1 << 30;
  start();
  const auto kv = pool("kv", 1, 4096);
  const auto both = group("g", {{"kv", {1, 1, 1}, {1, 1, 1}, HitPolicy::every_page(), false}});
  const auto a = rank(0, {{kv, 0}});
  put(batch(a, kv, 0, 0, 10));
  land_all();
  REQUIRE(lookup(both, 0, 10).restorable_pages == 10);
  put(batch(a, kv, 0, 100, 1));
  CHECK(count(a, Verdict::rejected, Reason::no_space) == 1);
  advance(config.lease_time - protocol::kMillisecond);
  put(batch(a, kv, 0, 100, 1));
  CHECK(count(a, Verdict::rejected, Reason::no_space) == 2);
  advance(2 * protocol::kMillisecond);
  CHECK(store->stats().leases_now == 0);
  put(batch(a, kv, 0, 100, 1));
  land_all();
  CHECK(readable(kv, 0, 100));
  CHECK_FALSE(readable(kv, 0, 9));
}

TEST_CASE_FIXTURE(protocol::test::StoreFixture, "leases and loads that end in any order leave no pin behind") {
  config.leased_bytes_per_engine = 1 << 30;
  start();
  const auto kv = pool("kv", 1, 4096);
  const auto state = pool("state", 1, 8192, HitPolicy::trailing(1));
  const auto both = group("g", {{"kv", {1, 1, 1}, {1, 1, 1}, HitPolicy::every_page(), false},
                                {"state", {1, 1, 1}, {1, 1, 1}, HitPolicy::trailing(1), false}});
  const auto a = rank(0, {{kv, 0}, {state, 0}});
  const auto free_before = store->stats().free_bytes_now;
  for (std::uint32_t seed = 1; seed <= 60; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    put(batch(a, kv, 0, 0, 12));
    for (std::uint64_t page = 2; page < 12; page += 3) put(batch(a, state, 0, page, 1));
    land_all();
    struct Pin {
      LeaseId lease;
      std::uint64_t load = 0;  // 0: the lease's own
    };
    std::vector<Pin> pins;
    std::uint64_t next_load = 1;
    for (int step = 0; step < 60; ++step) {
      const std::uint64_t what = random() % 6;
      if (what < 2 || pins.empty()) {
        const auto answer = lookup(both, 0, 1 + random() % 12, random() % 2 == 0 ? "one request" : nullptr);
        if (answer.lease) pins.push_back({answer.lease, 0});
      } else if (what == 2) {
        const LeaseId lease = pins[random() % pins.size()].lease;
        if (begin_load(a, next_load, lease, 1, 20 * protocol::kSecond) == Reason::none) pins.push_back({lease, next_load});
        ++next_load;
      } else if (what == 3) {
        static_cast<void>(store->narrow({pins[random() % pins.size()].lease, 1, static_cast<std::uint32_t>(random() % 12)}, now, actions));
        collect();
      } else if (what == 4) {
        advance(static_cast<protocol::Duration>(random() % 3000) * protocol::kMillisecond);
      } else {
        const std::size_t at = random() % pins.size();
        const Pin pin = pins[at];
        if (pin.load != 0)
          store->load_end({pin.load, a, pin.lease}, now, actions);
        else
          static_cast<void>(store->release({pin.lease, 1, 0}, now, actions));
        collect();
        if (random() % 2 == 0) pins.erase(pins.begin() + static_cast<std::ptrdiff_t>(at));  // else it is given back twice
      }
    }
    std::shuffle(pins.begin(), pins.end(), random);
    for (const Pin& pin : pins) {
      if (pin.load != 0) store->load_end({pin.load, a, pin.lease}, now, actions);
      else CHECK(store->release({pin.lease, 1, 0}, now, actions) == Reason::none);
      collect();
    }
    // Leases whose answers were thrown away, and loads that never ended, go with their time.
    advance(config.lease_time_max + 30 * protocol::kSecond);
    CHECK(store->stats().leases_now == 0);
    CHECK(store->stats().leased_bytes_now == 0);
    protocol::RemoveAsk ask;
    ask.what = protocol::RemoveAsk::What::all;
    store->remove(1, ask, now, actions);
    while (store->step(now, actions)) collect();
    collect();
    CHECK(store->stats().objects_now == 0);
    CHECK(store->stats().free_bytes_now == free_before);
  }
}

TEST_CASE("a load aborted at any step, a thousand times, leaves every counter where it was") {
  for (const std::uint64_t inline_bytes : {std::uint64_t{0}, std::uint64_t{1} << 20}) {
    auto config = small_config();
    config.inline_copy_bytes = inline_bytes;
    Engine engine(1, config, 256, 4);
    TestRank& r = engine.ranks[0];
    engine.put(0, 1, 0, 8)->wait();
    const Stats before = engine.runtime->stats();
    std::uint64_t loaded = 0;
    for (std::uint64_t i = 0; i < 500; ++i) {
      const auto found = engine.lookup(1, 8);
      REQUIRE(found.restorable_pages == 8);
      r.rows->clear();
      LoadOptions options;
      options.layers_per_group = 1;
      options.after = Event::make();
      if (i % 5 == 0) options.timeout = milliseconds(1);
      const auto load = engine.load(0, found.lease, 1, 8, options);
      switch (i % 5) {
        case 0:  // its time is over
          break;
        case 1:  // before it could begin
          load->cancel();
          options.after.signal();
          break;
        case 2:  // while it is copied
          options.after.signal();
          load->cancel();
          break;
        case 3: {  // by another thread, while its lease is given back
          std::thread other([&] { load->cancel(); });
          options.after.signal();
          CHECK(!engine.runtime->release(found.lease));
          other.join();
          break;
        }
        default:  // after it has begun to tell layers
          options.after.signal();
          static_cast<void>(load->wait_layers(1, std::chrono::seconds(60)));
          load->cancel();
      }
      load->wait();
      load->cancel();  // once more: no effect
      REQUIRE(load->results().size() == 8);
      for (std::size_t item = 0; item < 8; ++item)
        if (load->results()[item] == Reason::none) CHECK(r.rows->holds(item, page_of(1, item)));
      loaded += load->loaded();
      CHECK(!engine.runtime->release(found.lease));
      CHECK(!engine.runtime->release(found.lease));
    }
    const Stats after = engine.runtime->stats();
    CHECK(after.rows_lent_now == 0);
    CHECK(after.leases_now == 0);
    CHECK(after.leased_bytes_now == 0);
    CHECK(after.free_bytes_now == before.free_bytes_now);
    CHECK(after.objects_now == 8);
    CHECK(after.loaded_items == loaded);
    CHECK(after.load_failures == 500 * 8 - loaded);
    // Nothing is pinned any more: everything can go.
    const auto cleared = *engine.runtime->clear();
    cleared->wait();
    const Stats empty = engine.runtime->stats();
    CHECK(empty.free_bytes_now == empty.arena_slot_bytes);
  }
}

TEST_CASE("a lease that has ended opens nothing, by whichever way it is used") {
  for (const bool released : {true, false}) {
    CAPTURE(released);
    auto config = small_config();
    if (!released) config.lease_time = milliseconds(10);
    Engine engine(1, config);
    engine.put(0, 1, 0, 4)->wait();
    const auto found = engine.lookup(1, 4);
    REQUIRE(found.lease);
    if (released) CHECK(!engine.runtime->release(found.lease));
    while (engine.runtime->stats().leases_now != 0) std::this_thread::yield();
    std::vector<LoadOptions> ways(4);
    ways[1].layer_begin = 1;
    ways[1].layer_end = 2;
    ways[2].layers_per_group = 1;
    ways[3].after = Event::make();
    ways[3].after.signal();
    engine.ranks[0].rows->clear();
    for (const auto& way : ways) {
      const auto load = engine.load(0, found.lease, 1, 4, way);
      load->wait();
      CHECK(all_are(*load, Reason::lease_expired));
      CHECK(engine.ranks[0].rows->is_zero(0));
    }
    CHECK(engine.runtime->narrow(found.lease, 2).reason != Reason::none);
    CHECK(!engine.runtime->release(found.lease));
  }
}

TEST_CASE("all ranks get one answer though the store was pressed hard in between, and all can load it") {
  auto config = small_config();
  config.arena_bytes = 8ULL << 20;
  config.index_pages = 2048;
  Engine engine(4, config, 4096, 4, 64);
  engine.put(0, 999, 0, 16)->wait();
  LookupOptions options;
  options.request_id = "one request";
  const auto first = engine.lookup(999, 16, options);
  REQUIRE(first.restorable_pages == 16);
  for (std::size_t r = 0; r < 4; ++r) {
    for (std::uint64_t chain = 0; chain < 30; ++chain) engine.put(r, 100 * r + chain, 0, 16)->wait();
    const auto again = engine.lookup(999, 16, options);
    CHECK(again.restorable_pages == first.restorable_pages);
    CHECK(again.lease == first.lease);
    engine.ranks[r].rows->clear();
    const auto load = engine.load(r, again.lease, 999, 16);
    load->wait();
    CHECK(load->loaded() == 16);
    for (std::size_t i = 0; i < 16; ++i) CHECK(engine.ranks[r].rows->holds(i, page_of(999, i)));
  }
  CHECK(engine.runtime->stats().evicted_objects > 0);
}

}  // namespace faults_test
