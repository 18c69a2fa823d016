// SPDX-License-Identifier: Apache-2.0
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "runtime/core.hpp"
#include "tests/runtime/fixture.hpp"

namespace runtime_test {

TEST_CASE("a put that waits for its event reads what is there when the event fires") {
  for (const std::uint64_t inline_bytes : {std::uint64_t{0}, std::uint64_t{1} << 20}) {
    auto config = small_config();
    config.inline_copy_bytes = inline_bytes;
    Engine engine(1, config);
    PutOptions options;
    options.after = Event::make();
    const auto put = engine.put(0, 1, 0, 4, options, 1);
    CHECK(!put->wait_for(milliseconds(1)));
    for (std::size_t i = 0; i < 4; ++i) engine.ranks[0].rows->fill(i, page_of(1, i), 2);
    options.after.signal();
    put->wait();
    CHECK(all_are(*put, Verdict::stored));
    const auto found = engine.lookup(1, 4);
    engine.ranks[0].rows->clear();
    engine.load(0, found.lease, 1, 4)->wait();
    for (std::size_t i = 0; i < 4; ++i) CHECK(engine.ranks[0].rows->holds(i, page_of(1, i), 2));
  }
}

TEST_CASE("an event that never fires ends the put by its deadline with nothing moved") {
  Engine engine;
  PutOptions options;
  options.after = Event::make();
  options.timeout = milliseconds(30);
  const auto put = engine.put(0, 1, 0, 4, options);
  put->wait();
  CHECK(all_are(*put, Verdict::unknown));
  CHECK(put->results()[0].reason == Reason::deadline);
  CHECK(engine.moved() == 0);
  CHECK(engine.lookup(1, 4).restorable_pages == 0);
}

TEST_CASE("a load that waits for its event writes no byte before it") {
  Engine engine;
  engine.put(0, 1, 0, 4)->wait();
  const auto found = engine.lookup(1, 4);
  engine.ranks[0].rows->clear();
  LoadOptions options;
  options.after = Event::make();
  const auto load = engine.load(0, found.lease, 1, 4, options);
  CHECK(!load->wait_for(milliseconds(1)));
  for (std::size_t i = 0; i < 4; ++i) CHECK(engine.ranks[0].rows->is_zero(i));
  options.after.signal();
  load->wait();
  CHECK(load->loaded() == 4);
}

TEST_CASE("canceled operations end at once and touch nothing") {
  Engine engine;
  engine.put(0, 2, 0, 2)->wait();
  PutOptions put_options;
  put_options.after = Event::make();
  const auto put = engine.put(0, 1, 0, 4, put_options);
  put->cancel();
  put->wait();
  CHECK(all_are(*put, Verdict::unknown));
  CHECK(put->results()[0].reason == Reason::canceled);
  const auto found = engine.lookup(2, 2);
  engine.ranks[0].rows->clear();
  LoadOptions load_options;
  load_options.after = Event::make();
  const auto load = engine.load(0, found.lease, 2, 2, load_options);
  load->cancel();
  load->wait();
  CHECK(all_are(*load, Reason::canceled));
  load_options.after.signal();
  CHECK(engine.ranks[0].rows->is_zero(0));
  put->cancel();
  load->cancel();
}

TEST_CASE("a rank whose event never fires does not keep the page from the others") {
  auto config = small_config();
  config.grant_base = milliseconds(20);
  Engine engine(2, config);
  PutOptions stuck;
  stuck.after = Event::make();
  const auto first = engine.put(0, 1, 0, 4, stuck);
  const auto second = engine.put(1, 1, 0, 4);
  second->wait();
  CHECK(second->succeeded() == 4);
  stuck.after.signal();
  first->wait();
  CHECK(first->succeeded() == 4);
  CHECK(engine.lookup(1, 4).restorable_pages == 4);
  CHECK(engine.runtime->stats().promotions > 0);
}

TEST_CASE("ranks that announce the same pages at once share the copying in equal parts") {
  Engine engine(8);
  const Event ready = Event::make();
  std::vector<std::shared_ptr<PutOperation>> puts;
  for (std::size_t r = 0; r < 8; ++r) {
    PutOptions options;
    options.after = ready;
    puts.push_back(engine.put(r, 1, 0, 32, options));
  }
  // Until the store has heard of all of them; no grant can be used before.
  while (engine.runtime->stats().announced_items != 8 * 32) std::this_thread::yield();
  ready.signal();
  for (const auto& put : puts) put->wait();
  for (const TestRank& r : engine.ranks) CHECK(r.rank->moved_bytes() == 4 * r.rows->object_bytes());
}

TEST_CASE("calls beyond what a runtime may have open are busy at once, and lose nothing") {
  Engine engine;
  engine.put(0, 2, 0, 2)->wait();
  const auto found = engine.lookup(2, 2);
  PutOptions stuck;
  stuck.after = Event::make();
  std::vector<std::shared_ptr<PutOperation>> open;
  while (open.size() < 16'384) open.push_back(engine.put(0, 1, 0, 1, stuck));
  CHECK(!open.back()->done());
  const auto put = engine.put(0, 3, 0, 2);
  CHECK(put->done());
  CHECK(all_are(*put, Verdict::rejected));
  CHECK(put->results()[0].reason == Reason::busy);
  CHECK(put->results()[1].retry_after_ms > 0);
  const auto load = engine.load(0, found.lease, 2, 2);
  CHECK(load->done());
  CHECK(all_are(*load, Reason::busy));
  const LookupResult lookup = engine.lookup(2, 2);
  CHECK(!lookup.error);
  CHECK(lookup.reason == Reason::busy);
  CHECK(lookup.restorable_pages == 0);
  CHECK(lookup.retry_after_ms > 0);
  CHECK((*engine.runtime->clear())->error().reason == Reason::busy);
  CHECK((*engine.runtime->flush(AckLevel::memory, milliseconds(1'000)))->error().reason == Reason::busy);
  // A callback that tries again at once is told so by the call: it would be called back within itself, and so on.
  int callbacks = 0;
  Error refused;
  PutOptions again_and_again;
  again_and_again.completion.callback = [&] {
    ++callbacks;
    refused = engine.ranks[0].rank->put({{page_of(4, 0)}, {}, 0, {{0, engine.ranks[0].pool, 0}}}, again_and_again).error;
  };
  CHECK(!engine.ranks[0].rank->put({{page_of(4, 0)}, {}, 0, {{0, engine.ranks[0].pool, 0}}}, again_and_again).error);
  CHECK(callbacks == 1);
  CHECK(refused.reason == Reason::busy);
  stuck.after.signal();
  for (const auto& one : open) one->wait();
  CHECK(open.back()->succeeded() == 1);
  CHECK(engine.lookup(2, 2).restorable_pages == 2);
  const auto again = engine.put(0, 3, 0, 2);
  again->wait();
  CHECK(again->succeeded() == 2);
}

TEST_CASE("stop ends open operations with reason closed after their last byte") {
  Engine engine;
  engine.put(0, 2, 0, 2)->wait();
  const auto found = engine.lookup(2, 2);
  PutOptions put_options;
  put_options.after = Event::make();
  const auto put = engine.put(0, 1, 0, 4, put_options);
  LoadOptions load_options;
  load_options.after = Event::make();
  const auto load = engine.load(0, found.lease, 2, 2, load_options);
  engine.runtime->stop();
  CHECK(put->done());
  CHECK(all_are(*put, Verdict::unknown));
  CHECK(put->results()[0].reason == Reason::closed);
  CHECK(load->done());
  CHECK(all_are(*load, Reason::closed));
}

TEST_CASE("unregistering a pool waits for its lent rows and says so when time is over") {
  Engine engine;
  PutOptions options;
  options.after = Event::make();
  const auto put = engine.put(0, 1, 0, 4, options);
  TestRank& r = engine.ranks[0];
  CHECK(r.rank->unregister_pool(r.pool, milliseconds(5)).reason == Reason::deadline);
  const auto refused = *r.rank->put({{page_of(3, 0)}, {}, 0, {{0, r.pool, 0}}});
  refused->wait();
  CHECK(refused->results()[0].verdict == Verdict::rejected);
  CHECK(refused->results()[0].reason == Reason::closed);
  options.after.signal();
  CHECK(!r.rank->unregister_pool(r.pool));
  CHECK(put->done());
  CHECK(put->succeeded() == 4);
  CHECK(!r.rank->unregister_pool(r.pool));
  // Its name is free again.
  PoolSpec pool;
  pool.name = "latent";
  pool.shard = Coordinates{};
  pool.components.push_back(r.rows->component("kv"));
  pool.rows = r.rows->rows;
  auto again = r.rank->register_pool(pool);
  REQUIRE(again);
  r.pool = *again;
  engine.put(0, 4, 0, 2)->wait();
  CHECK(engine.lookup(4, 2).restorable_pages == 2);
}

TEST_CASE("a closed rank ends its operations, and others go on") {
  Engine engine(2);
  PutOptions options;
  options.after = Event::make();
  const auto open = engine.put(0, 1, 0, 4, options);
  CHECK(!engine.ranks[0].rank->close());
  CHECK(open->done());
  CHECK(open->results()[0].reason == Reason::closed);
  CHECK(engine.ranks[0].rank->put({{page_of(1, 0)}, {}, 0, {{0, engine.ranks[0].pool, 0}}}).error.reason == Reason::closed);
  CHECK(!engine.ranks[0].rank->close());
  const auto put = engine.put(1, 1, 0, 4);
  put->wait();
  CHECK(all_are(*put, Verdict::stored));
  engine.ranks.erase(engine.ranks.begin());
  CHECK(engine.lookup(1, 4).restorable_pages == 4);
}

TEST_CASE("when a StoreActor ends, waits end with store_lost and so do lookups") {
  Engine engine;
  engine.put(0, 1, 0, 2)->wait();
  PutOptions options;
  options.after = Event::make();
  const auto put = engine.put(0, 2, 0, 2, options);
  engine.runtime->impl().core->host->end_store(0);
  put->wait();
  CHECK(all_are(*put, Verdict::unknown));
  CHECK(put->results()[0].reason == Reason::store_lost);
  const auto found = engine.lookup(1, 2);
  CHECK(found.error.reason == Reason::store_lost);
  const auto later = engine.put(0, 3, 0, 2);
  later->wait();
  CHECK(later->results()[0].reason == Reason::store_lost);
  CHECK(engine.runtime->open_namespace("more").error.reason == Reason::store_lost);
  auto cleared = *engine.runtime->clear();
  cleared->wait();
  CHECK(cleared->error().reason == Reason::store_lost);
  engine.runtime->stop();
}

TEST_CASE("a runtime starts and stops three hundred times") {
  auto config = small_config();
  config.arena_bytes = 4ULL << 20;
  for (int i = 0; i < 300; ++i) {
    config.partitions = i % 3 == 0 ? 3 : 1;
    auto started = Runtime::start(config);
    REQUIRE_MESSAGE(started, started.error.text);
    if (i % 4 == 0) REQUIRE((*started)->open_namespace("x"));
    if (i % 2 == 0) (*started)->stop();
  }
}

TEST_CASE("a runtime that is stopped with open work at a random moment never hangs") {
  for (int i = 0; i < 30; ++i) {
    auto config = small_config();
    config.inline_copy_bytes = i % 2 == 0 ? 0 : 1 << 20;
    Engine engine(2, config);
    std::atomic<bool> go{false};
    std::vector<std::thread> threads;
    for (std::size_t r = 0; r < 2; ++r)
      threads.emplace_back([&, r] {
        while (!go) std::this_thread::yield();
        for (std::uint64_t c = 0; c < 200; ++c) {
          TestRank& rank = engine.ranks[r];
          auto put = rank.rank->put({{page_of(c, 0)}, {}, 0, {{0, rank.pool, 0}}});
          if (!put) return;
          (*put)->wait();
          auto found = engine.runtime->lookup(engine.group, {page_of(c, 0)});
          if (!found) return;
          (*found)->wait();
          auto load = rank.rank->load((*found)->result().lease, {{page_of(c, 0), rank.pool, 1}});
          if (!load) return;
          (*load)->wait();
        }
      });
    go = true;
    for (int spin = 0; spin < i * 50; ++spin) std::this_thread::yield();
    engine.runtime->stop();
    for (auto& thread : threads) thread.join();
  }
}

TEST_CASE("eight threads on one runtime get honest answers") {
  for (const bool caller_runs : {true, false}) {
    auto config = small_config();
    config.partitions = 2;
    config.mover_threads = 2;
    config.inline_copy_bytes = 8192;
    config.caller_runs = caller_runs;
    Engine engine(8, config, 512, 4, 64);
    std::vector<std::thread> threads;
    std::atomic<std::uint64_t> wrong{0};
    std::atomic<std::uint64_t> loaded{0};
    for (std::size_t r = 0; r < 8; ++r)
      threads.emplace_back([&, r] {
        for (std::uint64_t round = 0; round < 25; ++round) {
          // Ranks 0-3 share chains, 4-7 have their own.
          const std::uint64_t chain = r < 4 ? round : 1000 * r + round;
          const auto put = engine.put(r, chain, 0, 16);
          put->wait();
          if (put->succeeded() != 16) ++wrong;
          const auto found = engine.lookup(chain, 16);
          if (found.restorable_pages != 16) ++wrong;
          TestRank& rank = engine.ranks[r];
          std::vector<LoadItem> items;
          for (std::size_t i = 0; i < 16; ++i) items.push_back({page_of(chain, i), rank.pool, 32 + i});
          auto load = *rank.rank->load(found.lease, std::move(items));
          load->wait();
          loaded += load->loaded();
          for (std::size_t i = 0; i < 16; ++i)
            if (load->results()[i] == Reason::none && !rank.rows->holds(32 + i, page_of(chain, i))) ++wrong;
          if (round % 5 == 4 && engine.runtime->release(found.lease)) ++wrong;
          if (round % 8 == 0) static_cast<void>(engine.runtime->stats());
          const auto pages = chain_of(chain, 16);
          if (*rank.rank->exists(rank.pool, pages) != std::vector<std::uint8_t>(16, 1)) ++wrong;
        }
      });
    for (auto& thread : threads) thread.join();
    CHECK(wrong == 0);
    CHECK(loaded == 8 * 25 * 16);
    CHECK(engine.moved() == (25 + 4 * 25) * 16 * engine.ranks[0].rows->object_bytes());
  }
}

TEST_CASE("a child of a fork is told that the runtime is its parent's") {
  Engine engine;
  engine.put(0, 1, 0, 1)->wait();
  const pid_t child = fork();
  if (child == 0) {
    // The child has this thread only: checks end it at once.
    const auto put = engine.ranks[0].rank->put({{page_of(1, 0)}, {}, 0, {{0, engine.ranks[0].pool, 0}}});
    const bool said = put.error.text.find("fork") != std::string::npos;
    engine.ranks.clear();
    engine.runtime.reset();
    _exit(said ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(engine.lookup(1, 1).restorable_pages == 1);
}

}  // namespace runtime_test
