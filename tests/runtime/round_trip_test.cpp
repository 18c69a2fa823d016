// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <poll.h>
#include <thread>

#include "tests/runtime/fixture.hpp"

namespace runtime_test {

TEST_CASE("what one rank puts is found by a lookup and loaded back byte for byte") {
  Engine engine;
  const auto put = engine.put(0, 1, 0, 8);
  put->wait();
  REQUIRE(put->results().size() == 8);
  CHECK(all_are(*put, Verdict::stored));
  CHECK(put->succeeded() == 8);
  const auto found = engine.lookup(1, 10);
  CHECK(!found.error);
  CHECK(found.restorable_pages == 8);
  CHECK(found.first_missing == 8);
  CHECK(found.reason == Reason::absent);
  REQUIRE(found.lease);
  engine.ranks[0].rows->clear();
  const auto load = engine.load(0, found.lease, 1, 8);
  load->wait();
  CHECK(all_are(*load, Reason::none));
  CHECK(load->loaded() == 8);
  for (std::size_t i = 0; i < 8; ++i) CHECK(engine.ranks[0].rows->holds(i, page_of(1, i)));
  CHECK(!engine.runtime->release(found.lease));
  CHECK(!engine.runtime->release(found.lease));
}

TEST_CASE("eight ranks that announce the same pages move each page once") {
  for (const std::uint32_t partitions : {1U, 4U}) {
    CAPTURE(partitions);
    auto config = small_config();
    config.partitions = partitions;
    Engine engine(8, config);
    std::vector<std::shared_ptr<PutOperation>> puts;
    std::vector<std::thread> threads;
    puts.resize(8);
    for (std::size_t r = 0; r < 8; ++r) threads.emplace_back([&, r] { puts[r] = engine.put(r, 7, 0, 32); });
    for (auto& thread : threads) thread.join();
    std::uint64_t stored = 0;
    for (const auto& put : puts) {
      put->wait();
      for (const auto& result : put->results()) {
        CHECK(is_success(result.verdict));
        if (result.verdict == Verdict::stored) ++stored;
      }
    }
    CHECK(stored == 32);
    CHECK(engine.moved() == 32 * engine.ranks[0].rows->object_bytes());
    const Stats stats = engine.runtime->stats();
    CHECK(stats.moved_bytes == engine.moved());
    CHECK(stats.stored_objects == 32);
    CHECK(stats.objects_now == 32);
    CHECK(stats.pages_now == 32);
    CHECK(stats.verdicts[static_cast<std::size_t>(Verdict::stored)] == 32);
    CHECK(stats.rows_lent_now == 0);
    // Again: nothing moves.
    const auto again = engine.put(3, 7, 0, 32);
    again->wait();
    CHECK(all_are(*again, Verdict::already_stored));
    CHECK(engine.moved() == 32 * engine.ranks[0].rows->object_bytes());
    const auto found = engine.lookup(7, 32);
    CHECK(found.restorable_pages == 32);
    engine.ranks[5].rows->clear();
    const auto load = engine.load(5, found.lease, 7, 32);
    load->wait();
    CHECK(load->loaded() == 32);
    for (std::size_t i = 0; i < 32; ++i) CHECK(engine.ranks[5].rows->holds(i, page_of(7, i)));
  }
}

TEST_CASE("a large object in many ranges comes back whole through the mover threads") {
  auto config = small_config();
  config.arena_bytes = 64ULL << 20;
  config.inline_copy_bytes = 0;
  Engine engine(2, config, 40'000, 61, 8);
  const auto put = engine.put(0, 3, 0, 8);
  put->wait();
  CHECK(all_are(*put, Verdict::stored));
  const auto found = engine.lookup(3, 8);
  const auto load = engine.load(1, found.lease, 3, 8);
  load->wait();
  CHECK(load->loaded() == 8);
  for (std::size_t i = 0; i < 8; ++i) CHECK(engine.ranks[1].rows->holds(i, page_of(3, i)));
}

TEST_CASE("a load tells its layer groups one after another and only when they are in place") {
  for (const std::uint64_t inline_bytes : {std::uint64_t{0}, std::uint64_t{1} << 30}) {
    CAPTURE(inline_bytes);
    auto config = small_config();
    config.inline_copy_bytes = inline_bytes;
    config.mover_threads = 2;
    Engine engine(1, config, 512, 12, 16);
    engine.put(0, 3, 0, 16)->wait();
    const auto found = engine.lookup(3, 16);
    engine.ranks[0].rows->clear();
    std::vector<std::uint32_t> told;
    bool in_place = true;
    LoadOptions options;
    options.layers_per_group = 5;
    options.progress = [&](std::uint32_t layers) {
      told.push_back(layers);
      const Rows& rows = *engine.ranks[0].rows;
      for (std::uint32_t l = 0; l < layers; ++l)
        for (std::size_t i = 0; i < 16; ++i)
          in_place = in_place && rows.layers[l][i * 512] == Rows::byte_of(page_of(3, i), 0, l, 0);
    };
    const auto load = engine.load(0, found.lease, 3, 16, options);
    CHECK(load->wait_layers(5, std::chrono::seconds(30)));
    load->wait();
    CHECK(load->loaded() == 16);
    CHECK(in_place);
    CHECK(std::is_sorted(told.begin(), told.end()));
    CHECK(load->layers_done() == 12);
    for (std::size_t i = 0; i < 16; ++i) CHECK(engine.ranks[0].rows->holds(i, page_of(3, i)));
  }
}

TEST_CASE("a load of some layers writes no others") {
  Engine engine(1, small_config(), 256, 8);
  engine.put(0, 1, 0, 4)->wait();
  const auto found = engine.lookup(1, 4);
  engine.ranks[0].rows->clear();
  LoadOptions options;
  options.layer_begin = 2;
  options.layer_end = 5;
  const auto load = engine.load(0, found.lease, 1, 4, options);
  load->wait();
  CHECK(load->loaded() == 4);
  const Rows& rows = *engine.ranks[0].rows;
  for (std::size_t l = 0; l < 8; ++l)
    for (std::size_t b = 0; b < 256; ++b)
      CHECK(rows.layers[l][b] == (l >= 2 && l < 5 ? Rows::byte_of(page_of(1, 0), 0, l, b) : 0));
}

TEST_CASE("results come by callback, by queue with its eventfd, and to whoever waits") {
  for (const bool caller_runs : {true, false}) {
    CAPTURE(caller_runs);
    auto config = small_config();
    config.caller_runs = caller_runs;
    Engine engine(1, config);
    const auto queue = CompletionQueue::create();
    std::atomic<int> called{0};
    PutOptions options;
    options.completion.queue = queue;
    options.completion.user_data = 42;
    options.completion.callback = [&] { ++called; };
    const auto put = engine.put(0, 1, 0, 4, options);
    pollfd readable{queue->fd(), POLLIN, 0};
    CHECK(poll(&readable, 1, 30'000) == 1);
    CompletionQueue::Entry entries[4];
    CHECK(queue->wait(entries, std::chrono::seconds(30)) == 1);
    CHECK(entries[0].operation == put->id());
    CHECK(entries[0].kind == OperationKind::put);
    CHECK(entries[0].user_data == 42);
    CHECK(put->done());
    CHECK(queue->poll(entries) == 0);
    CHECK(poll(&readable, 1, 0) == 0);
    put->wait();
    while (called == 0) std::this_thread::yield();
    CHECK(called == 1);
    CHECK(queue->wait(entries, std::chrono::milliseconds(1)) == 0);
  }
}

TEST_CASE("a completion queue that is full counts what it drops") {
  Engine engine;
  const auto queue = CompletionQueue::create(3);
  for (std::uint64_t c = 0; c < 5; ++c) {
    PutOptions options;
    options.completion.queue = queue;
    const auto put = engine.put(0, c, 0, 1, options);
    put->wait();
  }
  CompletionQueue::Entry entries[8];
  std::size_t taken = 0;
  while (taken < 3) taken += queue->wait(std::span(entries).subspan(taken), std::chrono::seconds(30));
  engine.runtime->stop();
  CHECK(taken + queue->poll(entries) == 3);
  CHECK(queue->dropped() == 2);
}

TEST_CASE("a callback may put the next batch and look things up, but not wait") {
  Engine engine;
  std::atomic<int> steps{0};
  std::shared_ptr<PutOperation> second;
  Error waited;
  PutOptions options;
  options.completion.callback = [&] {
    second = engine.put(0, 2, 0, 4);
    waited = engine.runtime->release({1, 2});
    ++steps;
  };
  const auto put = engine.put(0, 1, 0, 4, options);
  put->wait();
  while (steps == 0) std::this_thread::yield();
  second->wait();
  CHECK(all_are(*second, Verdict::stored));
  CHECK(waited.reason == Reason::bad_argument);
}

TEST_CASE("stop() in a callback refuses what comes, and leaves the rest to the next one") {
  Engine engine;
  std::atomic<int> stopped{0};
  const auto other = engine.put(0, 2, 0, 4);
  other->wait();
  PutOptions options;
  options.completion.callback = [&] {
    engine.runtime->stop(kMaxTimeout);
    ++stopped;
  };
  const auto put = engine.put(0, 1, 0, 4, options);
  put->wait();
  CHECK(all_are(*put, Verdict::stored));
  while (stopped == 0) std::this_thread::yield();
  CHECK(engine.runtime->open_namespace("more").error.reason == Reason::closed);
  engine.runtime->stop();
  CHECK(engine.runtime->open_namespace("more").error.reason == Reason::closed);
}

TEST_CASE("exists and stat read the index without asking an actor") {
  for (const std::uint32_t partitions : {1U, 4U}) {
    auto config = small_config();
    config.partitions = partitions;
    Engine engine(1, config);
    engine.put(0, 1, 0, 5)->wait();
    const auto pages = chain_of(1, 8);
    const auto exists = engine.ranks[0].rank->exists(engine.ranks[0].pool, pages);
    REQUIRE(exists);
    CHECK(exists.value == std::vector<std::uint8_t>{1, 1, 1, 1, 1, 0, 0, 0});
    const auto by_group = engine.runtime->exists(engine.group, "latent", 0, pages);
    REQUIRE(by_group);
    CHECK(by_group.value == exists.value);
    CHECK(engine.runtime->exists(engine.group, "latent", 0, {})->empty());
    const auto stat = engine.runtime->stat(engine.ns, pages[2]);
    REQUIRE(stat);
    CHECK(stat.value.found);
    CHECK(stat.value.depth == 2);
    REQUIRE(stat.value.objects.size() == 1);
    CHECK(stat.value.objects[0].pool == "latent");
    CHECK(stat.value.objects[0].bytes == engine.ranks[0].rows->object_bytes());
    CHECK(!engine.runtime->stat(engine.ns, pages[7])->found);
  }
}

TEST_CASE("a lookup of no pages is answered at once with nothing missing") {
  Engine engine;
  const auto found = engine.lookup(1, 0);
  CHECK(!found.error);
  CHECK(found.restorable_pages == 0);
  CHECK(found.reason == Reason::none);
}

TEST_CASE("lookups with one request id give the same answer to all ranks") {
  for (const std::uint32_t partitions : {1U, 4U}) {
    auto config = small_config();
    config.partitions = partitions;
    Engine engine(2, config);
    engine.put(0, 1, 0, 4)->wait();
    LookupOptions options;
    options.request_id = "request 1";
    const auto first = engine.lookup(1, 8, options);
    engine.put(1, 1, 4, 4)->wait();
    const auto second = engine.lookup(1, 8, options);
    CHECK(first.restorable_pages == 4);
    CHECK(second.restorable_pages == 4);
    CHECK(first.lease == second.lease);
    options.request_id = "request 2";
    CHECK(engine.lookup(1, 8, options).restorable_pages == 8);
  }
}

TEST_CASE("a probe finds pages without leasing them") {
  Engine engine;
  engine.put(0, 1, 0, 4)->wait();
  LookupOptions options;
  options.probe = true;
  const auto found = engine.lookup(1, 4, options);
  CHECK(found.restorable_pages == 4);
  CHECK(!found.lease);
}

TEST_CASE("a lease that is expired, of another engine's or made up opens nothing") {
  Engine engine;
  engine.put(0, 1, 0, 2)->wait();
  const auto found = engine.lookup(1, 2);
  const auto reason_with = [&](const LeaseId& lease) {
    const auto load = engine.load(0, lease, 1, 1);
    load->wait();
    return load->results()[0];
  };
  CHECK(reason_with({}) == Reason::lease_unknown);
  CHECK(reason_with({found.lease.high ^ 1, found.lease.low}) == Reason::lease_unknown);
  CHECK(reason_with({found.lease.high, found.lease.low | 63}) == Reason::lease_unknown);
  CHECK(!engine.runtime->release(found.lease));
  CHECK(reason_with(found.lease) == Reason::lease_expired);
  CHECK(engine.runtime->narrow({7, 64}, 1).reason != Reason::none);
}

}  // namespace runtime_test
