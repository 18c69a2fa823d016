// SPDX-License-Identifier: Apache-2.0
//
// Half-written, not yet written or wrong bytes that get served.
#include <atomic>
#include <cstring>
#include <thread>

#include "runtime/core.hpp"
#include "tests/faults/fixture.hpp"
#include "tests/protocol/store_fixture.hpp"

namespace faults_test {

TEST_CASE("a page that is announced but not written is seen by no call, and by all of them once its put has ended") {
  for (const std::uint64_t inline_bytes : {std::uint64_t{0}, std::uint64_t{1} << 20}) {
    auto config = small_config();
    config.inline_copy_bytes = inline_bytes;
    Engine engine(1, config);
    const auto pages = chain_of(1, 4);
    PutOptions options;
    options.after = Event::make();
    const auto put = engine.put(0, 1, 0, 4, options);
    while (engine.runtime->stats().claims_now < 4) std::this_thread::yield();  // announced, maybe by another thread
    CHECK(*engine.runtime->exists(engine.group, "latent", 0, pages) == std::vector<std::uint8_t>(4, 0));
    const auto early = engine.lookup(1, 4);
    CHECK(early.restorable_pages == 0);
    CHECK(early.reason == Reason::in_flight);
    CHECK(!early.lease);
    CHECK(engine.runtime->stat(engine.ns, pages[0])->objects.empty());
    CHECK(put->results().empty());
    options.after.signal();
    put->wait();
    CHECK(*engine.runtime->exists(engine.group, "latent", 0, pages) == std::vector<std::uint8_t>(4, 1));
    CHECK(engine.lookup(1, 4).restorable_pages == 4);
  }
}

TEST_CASE("readers beside a slow writer get a page's own bytes or a miss, and a page once seen stays") {
  auto config = small_config();
  config.arena_bytes = 64ULL << 20;
  config.inline_copy_bytes = 0;
  constexpr std::size_t kPages = 12;
  Engine engine(1, config, 256ULL << 10, 4, 2 * kPages);  // 1 MiB a page: four slices of copying
  TestRank& r = engine.ranks[0];
  const auto pages = chain_of(1, kPages);
  std::atomic<bool> written{false};
  std::atomic<std::uint64_t> wrong{0};
  std::atomic<std::uint64_t> vanished{0};
  std::thread reader([&] {
    std::vector<std::uint8_t> seen(kPages, 0);
    for (bool last = false;;) {
      const auto exists = *r.rank->exists(r.pool, pages);
      for (std::size_t i = 0; i < kPages; ++i) {
        if (seen[i] != 0 && exists[i] == 0) ++vanished;
        seen[i] = exists[i];
      }
      auto lookup = *engine.runtime->lookup(engine.group, pages);
      lookup->wait();
      const std::size_t there = lookup->result().restorable_pages;
      if (there > 0) {
        auto load = *r.rank->load(lookup->result().lease, {{pages[there - 1], r.pool, kPages}});
        load->wait();
        if (load->results()[0] != Reason::none || !r.rows->holds(kPages, pages[there - 1])) ++wrong;
        static_cast<void>(engine.runtime->release(lookup->result().lease));
      }
      if (last) break;
      last = written;
    }
  });
  for (std::size_t i = 0; i < kPages; ++i) {
    const auto put = engine.put(0, 1, i, 1);
    put->wait();
    CHECK(put->succeeded() == 1);
    CHECK(r.rank->exists(r.pool, std::vector{pages[i]})->front() == 1);
  }
  written = true;
  reader.join();
  CHECK(wrong == 0);
  CHECK(vanished == 0);
}

TEST_CASE("a put that is canceled before its bytes are there leaves nothing, and a later put works") {
  Engine engine;
  const auto free_before = engine.runtime->stats().free_bytes_now;
  for (int round = 0; round < 20; ++round) {
    PutOptions options;
    options.after = Event::make();
    const auto put = engine.put(0, 1, 0, 4, options);
    put->cancel();
    put->wait();
    CHECK(all_are(*put, Verdict::unknown));
    CHECK(engine.lookup(1, 4).restorable_pages == 0);
  }
  const auto flushed = *engine.runtime->flush();
  flushed->wait();
  const Stats stats = engine.runtime->stats();
  CHECK(stats.free_bytes_now == free_before);
  CHECK(stats.claims_now == 0);
  CHECK(stats.rows_lent_now == 0);
  CHECK(stats.quarantined_bytes_now == 0);
  const auto later = engine.put(0, 1, 0, 4);
  later->wait();
  CHECK(all_are(*later, Verdict::stored));
  CHECK(engine.lookup(1, 4).restorable_pages == 4);
}

TEST_CASE_FIXTURE(protocol::test::StoreFixture, "a copy that fails leaves no page and gives its slot back") {
  start();
  const auto kv = pool("kv", 1, 4096, HitPolicy::every_page(), 2);
  const auto a = rank(0, {{kv, 0}});
  const auto free_before = store->stats().free_bytes_now;
  for (std::uint64_t round = 0; round < 50; ++round) {
    put(batch(a, kv, 0, 0, 3));
    report(a, protocol::GrantOutcome::failed);
    CHECK(count(a, Verdict::failed, Reason::copy_failed) == 3 * (round + 1));
    for (std::uint64_t page = 0; page < 3; ++page) CHECK_FALSE(readable(kv, 0, page));
    CHECK(store->stats().free_bytes_now == free_before);
    CHECK(store->stats().claims_now == 0);
    CHECK(store->stats().payload_bytes_now == 0);
  }
  put(batch(a, kv, 0, 0, 3));
  land_all();
  CHECK(count(a, Verdict::stored) == 3);
}

TEST_CASE("a flipped bit in a stored page is a miss that is counted, never wrong bytes, and its neighbours load") {
  for (const std::size_t layer : {std::size_t{0}, std::size_t{3}}) {
    Engine engine;
    TestRank& r = engine.ranks[0];
    engine.put(0, 1, 0, 4)->wait();
    const auto found = engine.lookup(1, 4);
    auto& arena = *engine.runtime->impl().core->arena;
    auto* const stored = static_cast<std::byte*>(
        memmem(arena.base(), arena.bytes(), r.rows->layers[layer].data() + 2 * r.rows->row_bytes, r.rows->row_bytes));
    REQUIRE(stored != nullptr);
    stored[777] ^= std::byte{0x10};
    // The other layers of that page are whole, and a load of those alone says so.
    LoadOptions others;
    others.layer_begin = 1;
    others.layer_end = 3;
    const auto part = engine.load(0, found.lease, 1, 4, others);
    part->wait();
    CHECK(part->loaded() == 4);
    r.rows->clear();
    const auto load = engine.load(0, found.lease, 1, 4);
    load->wait();
    CHECK(load->results()[2] == Reason::checksum_mismatch);
    CHECK(load->loaded() == 3);
    for (const std::size_t i : {0U, 1U, 3U}) CHECK(r.rows->holds(i, page_of(1, i)));
    CHECK(engine.runtime->stats().load_failures == 1);
    CHECK(engine.runtime->stats().misses[static_cast<std::size_t>(Reason::checksum_mismatch)] == 1);
    CHECK(engine.runtime->stats().objects_now == 3);
  }
}

TEST_CASE("a page whose stored bytes went bad is let go when a load finds out, and can be put again") {
  Engine engine;
  TestRank& r = engine.ranks[0];
  engine.put(0, 1, 0, 1)->wait();
  auto& arena = *engine.runtime->impl().core->arena;
  auto* const stored = static_cast<std::byte*>(memmem(arena.base(), arena.bytes(), r.rows->layers[0].data(), r.rows->row_bytes));
  REQUIRE(stored != nullptr);
  stored[1] ^= std::byte{1};
  engine.load(0, engine.lookup(1, 1).lease, 1, 1)->wait();
  const auto put = engine.put(0, 1, 0, 1);
  put->wait();
  CHECK(put->results()[0].verdict == Verdict::stored);
  const auto load = engine.load(0, engine.lookup(1, 1).lease, 1, 1);
  load->wait();
  CHECK(load->loaded() == 1);
}

TEST_CASE("a load whose rows are still in use waits for them, and a put waits for whoever still fills its rows") {
  Engine engine;
  TestRank& r = engine.ranks[0];
  engine.put(0, 1, 0, 4)->wait();
  const auto found = engine.lookup(1, 4);
  // Rows 0..3 are read by somebody until `free`; rows 4..7 are filled until `full`.
  for (std::size_t i = 0; i < 4; ++i) r.rows->fill(i, page_of(8, i));
  LoadOptions load_options;
  load_options.after = Event::make();
  const auto load = engine.load(0, found.lease, 1, 4, load_options);
  PutOptions put_options;
  put_options.after = Event::make();
  PutBatch batch;
  for (std::uint32_t i = 0; i < 4; ++i) {
    batch.pages.push_back(page_of(2, i));
    batch.items.push_back({i, r.pool, 4 + i});
  }
  const auto put = *r.rank->put(std::move(batch), put_options);
  while (engine.runtime->stats().rows_lent_now != 8) std::this_thread::yield();  // maybe by another thread
  for (std::size_t i = 0; i < 4; ++i) CHECK(r.rows->holds(i, page_of(8, i)));
  std::thread producer([&] {
    for (std::size_t i = 0; i < 4; ++i) r.rows->fill(4 + i, page_of(2, i));
    put_options.after.signal();
  });
  put->wait();
  producer.join();
  CHECK(put->succeeded() == 4);
  for (std::size_t i = 0; i < 4; ++i) CHECK(r.rows->holds(i, page_of(8, i)));
  load_options.after.signal();
  load->wait();
  for (std::size_t i = 0; i < 4; ++i) CHECK(r.rows->holds(i, page_of(1, i)));
  const auto second = engine.lookup(2, 4);
  r.rows->clear();
  engine.load(0, second.lease, 2, 4)->wait();
  for (std::size_t i = 0; i < 4; ++i) CHECK(r.rows->holds(i, page_of(2, i)));
}

TEST_CASE("no step of a load that fails is told as loaded") {
  Engine engine;
  TestRank& r = engine.ranks[0];
  engine.put(0, 1, 0, 4)->wait();
  const auto fails_with = [&](Reason reason, const std::shared_ptr<LoadOperation>& load) {
    load->wait();
    CHECK(load->results().size() == 4);
    CHECK(all_are(*load, reason));
    CHECK(load->loaded() == 0);
    CHECK(load->layers_done() == 0);
    for (std::size_t i = 0; i < 4; ++i) CHECK(r.rows->is_zero(i));
  };
  r.rows->clear();
  const auto lease = engine.lookup(1, 4).lease;
  LoadOptions never;
  never.after = Event::make();
  never.timeout = milliseconds(10);
  fails_with(Reason::deadline, engine.load(0, lease, 1, 4, never));
  never.timeout = kDefaultTimeout;
  const auto canceled = engine.load(0, lease, 1, 4, never);
  canceled->cancel();
  fails_with(Reason::canceled, canceled);
  fails_with(Reason::absent, engine.load(0, lease, 77, 4));
  fails_with(Reason::lease_unknown, engine.load(0, {1, 2}, 1, 4));
  (*engine.runtime->remove_pages(engine.ns, chain_of(1, 4)))->wait();
  fails_with(Reason::absent, engine.load(0, lease, 1, 4));
  CHECK(!engine.runtime->release(lease));
  fails_with(Reason::lease_expired, engine.load(0, lease, 1, 4));
  CHECK(engine.runtime->stats().load_failures == 24);
  CHECK(engine.runtime->stats().loaded_items == 0);
  CHECK(engine.runtime->stats().rows_lent_now == 0);
}

}  // namespace faults_test
