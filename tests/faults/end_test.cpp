// SPDX-License-Identifier: Apache-2.0
//
// Ends: stops with work pending, handles that outlive their runtime, several stores on one host.
#include <stdexcept>

#include <atomic>
#include <thread>

#include "tests/faults/fixture.hpp"

namespace faults_test {

TEST_CASE("a stop with a hundred operations pending answers each of them once, with a reason") {
  for (const std::uint32_t partitions : {1U, 4U}) {
    auto config = small_config();
    config.partitions = partitions;
    Engine engine(2, config);
    engine.put(0, 1, 0, 4)->wait();
    const auto lease = engine.lookup(1, 4).lease;
    std::atomic<int> called{0};
    auto queue = CompletionQueue::create();
    std::vector<std::shared_ptr<PutOperation>> puts;
    std::vector<std::shared_ptr<LoadOperation>> loads;
    const auto never = Event::make();
    for (std::uint64_t i = 0; i < 50; ++i) {
      PutOptions put_options;
      put_options.after = never;
      put_options.completion = {queue, i, [&] { ++called; }};
      puts.push_back(engine.put(i % 2, 100 + i / 2, 0, 1, put_options));
      LoadOptions load_options;
      load_options.after = never;
      load_options.completion = {queue, 1000 + i, [&] { ++called; }};
      loads.push_back(engine.load(i % 2, lease, 1, 1, load_options));
    }
    const auto flush = *engine.runtime->flush();
    engine.runtime->stop();
    CHECK(called == 100);
    for (const auto& put : puts) {
      CHECK(put->done());
      CHECK(put->results().size() == 1);
      CHECK(all_are(*put, Verdict::unknown));
      CHECK(put->results()[0].reason == Reason::closed);
    }
    for (const auto& load : loads) {
      CHECK(load->done());
      CHECK(all_are(*load, Reason::closed));
    }
    CHECK(flush->done());
    std::vector<CompletionQueue::Entry> entries(200);
    CHECK(queue->poll(entries) == 100);
    CHECK(queue->poll(entries) == 0);
    CHECK(engine.runtime->stats().rows_lent_now == 0);
  }
}

TEST_CASE("handles that outlive their runtime answer that it has stopped") {
  auto queue = CompletionQueue::create();
  std::shared_ptr<Rank> rank;
  std::shared_ptr<PutOperation> done;
  std::shared_ptr<PutOperation> open;
  PoolHandle pool;
  Rows rows(4, 64, 1);
  {
    Engine engine;
    done = engine.put(0, 1, 0, 4);
    done->wait();
    PutOptions options;
    options.after = Event::make();
    options.completion.queue = queue;
    open = engine.put(0, 2, 0, 4, options);
    rank = engine.ranks[0].rank;
    pool = engine.ranks[0].pool;
    // The engine's rows go before its runtime does: the rank must not read them any more.
    engine.runtime->stop();
  }
  CHECK(done->succeeded() == 4);
  CHECK(open->done());
  CHECK(all_are(*open, Verdict::unknown));
  open->cancel();
  CHECK(open->wait_for(milliseconds(0)));
  CHECK(says(rank->put({{page_of(1, 0)}, {}, 0, {{0, pool, 0}}}).error, "stopped"));
  CHECK(says(rank->exists(pool, std::vector{page_of(1, 0)}).error, "stopped"));
  CHECK(rank->moved_bytes() > 0);
  CHECK(!rank->close());
  std::vector<CompletionQueue::Entry> entries(4);
  CHECK(queue->poll(entries) == 1);
}

TEST_CASE("a runtime that is left to the end of the process goes with its open work") {
  // Destroyed after main: what this watches is the exit of the program.
  static Engine engine(2);
  PutOptions options;
  options.after = Event::make();
  static const auto open = engine.put(0, 1, 0, 4, options);
  static const auto done = engine.put(1, 2, 0, 4);
  done->wait();
  CHECK(done->succeeded() == 4);
  CHECK(!open->done());
}

TEST_CASE("eight stores of one name on one host are eight stores") {
  std::vector<std::unique_ptr<Engine>> engines;
  for (int i = 0; i < 8; ++i) engines.push_back(std::make_unique<Engine>(1));
  for (std::size_t i = 0; i < 8; ++i) engines[i]->put(0, i, 0, 4)->wait();
  for (std::size_t i = 0; i < 8; ++i)
    for (std::uint64_t chain = 0; chain < 8; ++chain) CHECK(engines[i]->lookup(chain, 4).restorable_pages == (chain == i ? 4 : 0));
  // A lease of one opens nothing in another, and the end of one is no other's.
  const auto lease = engines[0]->lookup(0, 4).lease;
  const auto load = engines[1]->load(0, lease, 1, 4);
  load->wait();
  CHECK(all_are(*load, Reason::lease_unknown));
  engines[0].reset();
  CHECK(engines[7]->lookup(7, 4).restorable_pages == 4);
}

TEST_CASE("a runtime can be started, used and stopped by different threads") {
  std::unique_ptr<Engine> engine;
  std::thread([&] { engine = std::make_unique<Engine>(2); }).join();
  std::thread([&] { engine->put(0, 1, 0, 4)->wait(); }).join();
  CHECK(engine->lookup(1, 4).restorable_pages == 4);
  std::thread([&] { engine->runtime->stop(); }).join();
  // Its threads live on while another one stops it.
  const auto second = std::make_unique<Engine>(2);
  second->put(1, 2, 0, 4)->wait();
  std::thread([&] { second->runtime->stop(); }).join();
  CHECK(second->runtime->lookup(second->group, {page_of(1, 0)}).error);
}

TEST_CASE("a lookup or put in flight when its store ends is answered") {
  for (int i = 0; i < 50; ++i) {
    auto config = small_config();
    config.arena_bytes = 4ULL << 20;
    config.caller_runs = i % 2 == 0;
    Engine engine(1, config, 64, 1);
    std::thread ender([&] { engine.runtime->stop(); });
    std::vector<std::shared_ptr<Operation>> open;
    for (std::uint64_t n = 0; n < 20; ++n) {
      auto lookup = engine.runtime->lookup(engine.group, chain_of(n, 3));
      if (lookup) open.push_back(*lookup);
      auto put = engine.ranks[0].rank->put({{page_of(n, 0)}, {}, 0, {{0, engine.ranks[0].pool, 0}}});
      if (put) open.push_back(*put);
    }
    ender.join();
    for (const auto& operation : open) CHECK(operation->wait_for(std::chrono::seconds(60)));
  }
}

TEST_CASE("an event whose query throws has not fired: its put ends by its deadline and its rank goes on") {
  Engine engine;
  PutOptions options;
  options.after = Event([]() -> bool { throw std::runtime_error("query"); });
  options.timeout = std::chrono::milliseconds{100};
  const auto put = engine.put(0, 1, 0, 4, options);
  put->wait();
  CHECK(all_are(*put, Verdict::unknown));
  const auto next = engine.put(0, 2, 0, 4);
  next->wait();
  CHECK(all_are(*next, Verdict::stored));
}

}  // namespace faults_test
