// SPDX-License-Identifier: Apache-2.0
//
// Duplicate and concurrent puts, other contents under one key, writers that end in the middle.
#include <atomic>
#include <thread>

#include "tests/faults/fixture.hpp"

namespace faults_test {

TEST_CASE("two clients that look first and put then all succeed, and each key is stored once") {
  auto config = small_config();
  config.arena_bytes = 64ULL << 20;
  config.index_pages = 32768;
  config.inline_copy_bytes = 4096;
  constexpr std::uint64_t kBatches = 100;
  constexpr std::size_t kPerBatch = 100;
  Engine engine(2, config, 64, 1, kPerBatch);
  std::atomic<bool> go{false};
  std::atomic<std::uint64_t> failed{0};
  std::atomic<std::uint64_t> put_items{0};
  std::vector<std::thread> clients;
  for (std::size_t r = 0; r < 2; ++r)
    clients.emplace_back([&, r] {
      TestRank& rank = engine.ranks[r];
      while (!go) std::this_thread::yield();
      for (std::uint64_t chain = 0; chain < kBatches; ++chain) {
        const auto pages = chain_of(chain, kPerBatch);
        const auto exists = *rank.rank->exists(rank.pool, pages);
        PutBatch batch;
        batch.pages = pages;
        for (std::uint32_t i = 0; i < kPerBatch; ++i) {
          rank.rows->fill(i, pages[i]);
          if (exists[i] == 0) batch.items.push_back({i, rank.pool, i});
        }
        if (batch.items.empty()) continue;
        put_items += batch.items.size();
        const std::uint64_t items = batch.items.size();
        const auto put = *rank.rank->put(std::move(batch));
        put->wait();
        failed += items - put->succeeded();
      }
    });
  go = true;
  for (auto& client : clients) client.join();
  CHECK(failed == 0);
  CHECK(put_items >= kBatches * kPerBatch);
  const Stats stats = engine.runtime->stats();
  CHECK(stats.objects_now == kBatches * kPerBatch);
  CHECK(stats.stored_objects == kBatches * kPerBatch);
  CHECK(engine.moved() == kBatches * kPerBatch * 64 + stats.promotions * 64);
}

TEST_CASE("other bytes of the same size under a stored key are not taken: already stored, and the first bytes stay") {
  auto config = small_config();
  config.verify_sample = 0;
  auto runtime = start(config);
  Model first(*runtime, "m", {{"kv", false, 256, 2}}, 2, 80, 0);
  const auto chain = chain_of(1, 80);
  const std::vector<PageHash> pages(chain.begin() + 70, chain.end());
  first.put(0, chain, {0})->wait();
  // The same rank, so that nobody is a second announcer whose bytes would be compared.
  PutBatch batch;
  batch.pages = pages;
  auto& pool = first.ranks[0].pools[0];
  for (std::uint32_t i = 0; i < pages.size(); ++i) {
    pool.rows->fill(i, pages[i], 99);
    batch.items.push_back({i, pool.handle, i});
  }
  const auto moved = runtime->stats().moved_bytes;
  const auto put = *first.ranks[0].rank->put(std::move(batch));
  put->wait();
  CHECK(all_are(*put, Verdict::already_stored));
  CHECK(runtime->stats().moved_bytes == moved);
  CHECK(first.load(0, 0, first.lookup(chain).lease, pages) == pages.size());
}

TEST_CASE("a rank whose bytes differ under a sampled key is counted, and where the pool is kept all get the first bytes") {
  auto config = small_config();
  config.verify_sample = 1;
  config.demote = false;
  config.conflict_limit = 1000;
  Engine engine(2, config);
  engine.put(0, 1, 0, 4, {}, 0)->wait();
  const auto put = engine.put(1, 1, 0, 4, {}, 1);
  put->wait();
  CHECK(engine.runtime->stats().conflicts == 4);
  const auto found = engine.lookup(1, 4);
  CHECK(found.restorable_pages == 4);
  for (std::size_t r = 0; r < 2; ++r) {
    engine.ranks[r].rows->clear();
    engine.load(r, found.lease, 1, 4)->wait();
    for (std::size_t i = 0; i < 4; ++i) CHECK(engine.ranks[r].rows->holds(i, page_of(1, i), 0));
  }
}

TEST_CASE("a batch with a duplicate and a bad item has an answer for each, and the eight good ones are stored") {
  Engine engine;
  TestRank& r = engine.ranks[0];
  const auto pages = chain_of(1, 9);
  const auto batch = [&] {
    PutBatch made;
    made.pages = pages;
    for (std::uint32_t i = 0; i < 8; ++i) {
      r.rows->fill(i, pages[i]);
      made.items.push_back({i, r.pool, i});
    }
    made.items.insert(made.items.begin() + 4, {2, r.pool, 2});                 // the third page again
    made.items.insert(made.items.begin() + 7, {8, r.pool, r.rows->rows + 5});  // a row that is not there
    return made;
  };
  const auto put = *r.rank->put(batch());
  put->wait();
  REQUIRE(put->results().size() == 10);
  for (std::size_t i = 0; i < 10; ++i) {
    CAPTURE(i);
    const auto& result = put->results()[i];
    CHECK(result.verdict == (i == 4 ? Verdict::joined : i == 7 ? Verdict::rejected : Verdict::stored));
  }
  CHECK(put->results()[7].reason == Reason::row_out_of_range);
  CHECK(put->succeeded() == 9);
  CHECK(engine.runtime->stats().objects_now == 8);
  // The same batch again: nothing moves, and the bad item is bad again.
  const auto moved = engine.moved();
  const auto again = *r.rank->put(batch());
  again->wait();
  REQUIRE(again->results().size() == 10);
  CHECK(again->succeeded() == 9);
  CHECK(again->results()[7].verdict == Verdict::rejected);
  CHECK(engine.moved() == moved);
  CHECK(engine.runtime->stats().rows_lent_now == 0);
}

TEST_CASE("a writer that goes without a word passes its pages on, or leaves nothing") {
  for (const bool by_close : {true, false}) {
    CAPTURE(by_close);
    Engine engine(3);
    PutOptions never;
    never.after = Event::make();
    const auto open = engine.put(0, 1, 0, 4, never);
    const auto alone = engine.put(0, 2, 0, 4, never);
    const auto waiting = engine.put(1, 1, 0, 4);
    while (engine.runtime->stats().claims_now == 0) std::this_thread::yield();  // announced, maybe by another thread
    // The writer of chains 1 and 2 ends between its grant and its last byte.
    if (by_close) CHECK(!engine.ranks[0].rank->close());
    engine.ranks[0].rank.reset();
    waiting->wait();
    CHECK(waiting->succeeded() == 4);
    open->wait();
    alone->wait();
    // Some may have been stored by the other rank before the end was heard; none of these bytes were.
    for (const auto& result : open->results()) CHECK((result.verdict == Verdict::unknown || result.verdict == Verdict::joined));
    CHECK(all_are(*alone, Verdict::unknown));
    CHECK(engine.lookup(1, 4).restorable_pages == 4);
    CHECK(engine.lookup(2, 4).restorable_pages == 0);
    const auto later = engine.put(2, 2, 0, 4);
    later->wait();
    CHECK(all_are(*later, Verdict::stored));
    const Stats stats = engine.runtime->stats();
    CHECK(stats.claims_now == 0);
    CHECK(stats.quarantined_bytes_now == 0);
    CHECK(stats.rows_lent_now == 0);
  }
}

TEST_CASE("a removal that meets a put in flight ends it honestly, and the key can be put again") {
  Engine engine(2);
  PutOptions options;
  options.after = Event::make();
  const auto first = engine.put(0, 1, 0, 4, options);
  const auto second = engine.put(1, 1, 0, 4, options);
  while (engine.runtime->stats().announced_items != 8) std::this_thread::yield();  // maybe by another thread
  (*engine.runtime->remove_pages(engine.ns, chain_of(1, 4)))->wait();
  options.after.signal();
  first->wait();
  second->wait();
  for (const auto& put : {first, second})
    for (const auto& result : put->results()) {
      CHECK(result.verdict == Verdict::rejected);
      CHECK(result.reason == Reason::removed);
    }
  CHECK(engine.lookup(1, 4).restorable_pages == 0);
  engine.put(0, 1, 0, 4)->wait();
  CHECK(engine.lookup(1, 4).restorable_pages == 4);
  CHECK(engine.runtime->stats().objects_now == 4);
}

}  // namespace faults_test
