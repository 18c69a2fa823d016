// SPDX-License-Identifier: Apache-2.0
//
// What processes share through a store, with both ends in one process: the sanitizers see both at once.
#include <unistd.h>

#include <atomic>
#include <mutex>

#include "tests/runtime/remote_fixture.hpp"

namespace runtime_test {

TEST_CASE("what a connected runtime puts, it loads again, and so do others, the server's own ranks among them") {
  for (const std::uint32_t partitions : {1U, 4U}) {
    CAPTURE(partitions);
    const Place place;
    Engine server(1, serving(place, partitions));
    Engine client(2, connecting(place));
    Engine other(1, connecting(place, "another"));
    CHECK(client.runtime->connected());
    CHECK(client.runtime->incarnation() == server.runtime->incarnation());

    const auto put = client.put(0, 1, 0, 16);
    put->wait();
    CHECK(all_are(*put, Verdict::stored));
    const auto again = client.put(1, 1, 0, 16);
    again->wait();
    CHECK(all_are(*again, Verdict::already_stored));
    check_load(client, 1, 1, 16);
    check_load(other, 0, 1, 16);
    check_load(server, 0, 1, 16);

    const auto own = server.put(0, 2, 0, 8, {}, 5);
    own->wait();
    CHECK(all_are(*own, Verdict::stored));
    check_load(client, 0, 2, 8, 5);

    const auto pages = chain_of(1, 20);
    std::vector<std::uint8_t> expected(20, 1);
    std::fill(expected.begin() + 16, expected.end(), std::uint8_t{0});
    CHECK(*client.ranks[0].rank->exists(client.ranks[0].pool, pages) == expected);
    CHECK(*other.runtime->exists(other.group, "latent", 0, pages) == expected);
    CHECK(*server.ranks[0].rank->exists(server.ranks[0].pool, pages) == expected);
    const auto stat = other.runtime->stat(other.ns, page_of(1, 3));
    REQUIRE(stat);
    CHECK(stat.value.found);
    CHECK(stat.value.depth == 3);
    REQUIRE(stat.value.objects.size() == 1);
    CHECK(stat.value.objects[0].pool == "latent");
    CHECK(stat.value.objects[0].bytes == client.ranks[0].rows->object_bytes());

    const auto flushed = *client.runtime->flush();
    flushed->wait();
    CHECK(!flushed->error());
    const Stats stats = client.runtime->stats();
    CHECK(stats.objects_now == 24);
    CHECK(stats.stored_objects == 24);
    CHECK(stats.moved_bytes == 16 * client.ranks[0].rows->object_bytes());

    const auto removed = *other.runtime->remove_pages(other.ns, {page_of(1, 14), page_of(1, 15)});
    removed->wait();
    CHECK(removed->count() == 2);
    CHECK(client.lookup(1, 16).restorable_pages == 14);
    const auto key = *client.runtime->remove_key(client.group, "latent", 0, page_of(1, 13));
    key->wait();
    CHECK(key->count() == 1);
    CHECK(server.lookup(1, 16).restorable_pages == 13);
    const auto cleared = *client.runtime->clear();
    cleared->wait();
    CHECK(!cleared->error());
    CHECK(server.lookup(2, 8).restorable_pages == 0);
  }
}

TEST_CASE("runtimes that put the same pages move each of them once") {
  for (const std::uint32_t partitions : {1U, 4U}) {
    CAPTURE(partitions);
    const Place place;
    Engine server(1, serving(place, partitions));
    std::vector<std::unique_ptr<Engine>> clients;
    for (int i = 0; i < 4; ++i) clients.push_back(std::make_unique<Engine>(1, connecting(place)));
    std::atomic<bool> go{false};
    std::vector<std::thread> threads;
    std::atomic<std::uint64_t> failed{0};
    for (auto& client : clients)
      threads.emplace_back([&failed, &go, engine = client.get()] {
        while (!go) std::this_thread::yield();
        for (std::uint64_t chain = 1; chain <= 10; ++chain) {
          const auto put = engine->put(0, chain, 0, 32);
          put->wait();
          failed += 32 - put->succeeded();
        }
      });
    go = true;
    for (auto& thread : threads) thread.join();
    CHECK(failed == 0);
    std::uint64_t moved = 0;
    for (const auto& client : clients) moved += client->moved();
    CHECK(moved == 10 * 32 * server.ranks[0].rows->object_bytes());
    for (std::uint64_t chain = 1; chain <= 10; ++chain) check_load(server, 0, chain, 32);
  }
}

TEST_CASE("a runtime that only reads loads, and puts and removes nothing") {
  const Place place;
  Engine server(1, serving(place));
  Engine writer(1, connecting(place));
  auto config = connecting(place);
  config.read_only = true;
  Engine reader(1, config);
  writer.put(0, 1, 0, 8)->wait();
  check_load(reader, 0, 1, 8);
  TestRank& rank = reader.ranks[0];
  CHECK(rank.rank->put({{page_of(2, 0)}, {}, 0, {{0, rank.pool, 0}}}).error.reason == Reason::bad_argument);
  CHECK(reader.runtime->clear().error.reason == Reason::bad_argument);
  CHECK(reader.runtime->remove_pages(reader.ns, {page_of(1, 0)}).error.reason == Reason::bad_argument);
  const auto clients = reader.runtime->clients();
  REQUIRE(clients);
  CHECK(std::count_if(clients.value.begin(), clients.value.end(), [](const auto& one) { return one.read_only; }) == 1);
}

TEST_CASE("both sides see who is connected") {
  const Place place;
  Engine server(1, serving(place));
  {
    Engine client(3, connecting(place, "seen"));
    Engine other(1, connecting(place, "other"));
    for (Runtime* side : {server.runtime.get(), client.runtime.get()}) {
      const auto list = side->clients();
      REQUIRE(list);
      REQUIRE(list.value.size() == 2);
      const auto seen =
          std::find_if(list.value.begin(), list.value.end(), [](const auto& one) { return one.engine_id == "seen"; });
      REQUIRE(seen != list.value.end());
      CHECK(seen->ranks == 3);
      CHECK(seen->pid == static_cast<std::uint32_t>(getpid()));
      CHECK(!seen->read_only);
      CHECK(seen->open_grants == 0);
      CHECK(seen->quarantined_bytes == 0);
    }
    client.ranks.pop_back();
    CHECK(eventually([&] {
      const auto list = server.runtime->clients();
      return list && std::any_of(list.value.begin(), list.value.end(), [](const auto& one) { return one.ranks == 2; });
    }));
  }
  CHECK(eventually([&] { return server.runtime->clients().value.empty(); }));
}

TEST_CASE("a connected runtime hears of what is stored, evicted and removed") {
  const Place place;
  Engine server(1, serving(place));
  Engine putter(1, connecting(place));
  std::mutex mutex;
  std::vector<StoreEvent> heard;  // outlives who is called back
  Engine listener(1, connecting(place, "listener"));
  listener.runtime->subscribe([&](std::span<const StoreEvent> events) {
    const std::lock_guard lock(mutex);
    heard.insert(heard.end(), events.begin(), events.end());
  });
  const auto count = [&](StoreEvent::Kind kind) {
    const std::lock_guard lock(mutex);
    return std::count_if(heard.begin(), heard.end(), [&](const auto& one) { return one.kind == kind; });
  };
  // The wish travels on another way than the puts.
  std::uint64_t chain = 0;
  CHECK(eventually([&] {
    putter.put(0, ++chain, 0, 1)->wait();
    return count(StoreEvent::Kind::stored) != 0;
  }));
  const auto removed = *putter.runtime->remove_pages(putter.ns, {page_of(chain, 0)});
  removed->wait();
  CHECK(eventually([&] { return count(StoreEvent::Kind::removed) == 1; }));
  for (std::uint64_t c = 1'000; c < 1'100; ++c) putter.put(0, c, 0, 64)->wait();
  CHECK(eventually([&] { return count(StoreEvent::Kind::evicted) != 0; }));
  const std::lock_guard lock(mutex);
  CHECK(heard.front().pool == "latent");
  CHECK(heard.front().ns == listener.ns.id);
}

TEST_CASE("a lease is its engine's: another process of it uses it, another engine is refused") {
  for (const std::uint32_t partitions : {1U, 4U}) {
    CAPTURE(partitions);
    const Place place;
    Engine server(1, serving(place, partitions));
    Engine taker(1, connecting(place, "one"));
    Engine peer(1, connecting(place, "one"));
    Engine stranger(1, connecting(place, "two"));
    taker.put(0, 1, 0, 8)->wait();
    const auto found = taker.lookup(1, 8);
    REQUIRE(found.restorable_pages == 8);
    const auto theirs = stranger.load(0, found.lease, 1, 8);
    theirs->wait();
    CHECK(all_are(*theirs, Reason::lease_unknown));
    CHECK(stranger.runtime->narrow(found.lease, 4).reason == Reason::lease_unknown);
    CHECK(server.runtime->stats().leases_now == 1);
    const auto ours = peer.load(0, found.lease, 1, 8);
    ours->wait();
    CHECK(ours->loaded() == 8);
    for (std::size_t i = 0; i < 8; ++i) CHECK(peer.ranks[0].rows->holds(i, page_of(1, i)));
    // A process with a lease goes; the engine lives on in the other.
    taker.ranks.clear();
    taker.runtime.reset();
    CHECK(eventually([&] { return server.runtime->clients().value.size() == 2; }));
    const auto later = peer.load(0, found.lease, 1, 8);
    later->wait();
    CHECK(later->loaded() == 8);
    CHECK(!peer.runtime->release(found.lease));
    CHECK(server.runtime->stats().leases_now == 0);
  }
}

TEST_CASE("leases go with the last connection of their engine, after the grace") {
  const Place place;
  auto config = serving(place);
  config.engine_grace = milliseconds(50);
  Engine server(1, config);
  {
    Engine client(1, connecting(place));
    client.put(0, 1, 0, 8)->wait();
    LookupOptions options;
    options.lease_time = std::chrono::hours(1);
    REQUIRE(client.lookup(1, 8, options).restorable_pages == 8);
    CHECK(server.runtime->stats().leases_now == 1);
  }
  CHECK(eventually([&] { return server.runtime->stats().leases_now == 0; }));
}

TEST_CASE("pools of another size or layout are refused to whoever comes second, and to nobody else") {
  const Place place;
  Engine server(1, serving(place));
  Engine first(1, connecting(place));
  first.put(0, 1, 0, 4)->wait();
  auto started = Runtime::start(connecting(place, "second"));
  REQUIRE(started);
  Runtime& second = **started;
  const auto ns = *second.open_namespace("test model");
  GroupSpec spec;
  spec.name = "main";
  spec.pools.push_back({"latent", ShardCounts{}, HitPolicy::every_page(), false});
  auto group = second.register_group(ns, spec);
  REQUIRE_MESSAGE(group, group.error.text);
  const auto rank = *second.add_rank(*group, Coordinates{});
  for (const auto& [row_bytes, layers] : {std::pair<std::uint64_t, std::size_t>{512, 4}, {2048, 2}}) {
    Rows rows(8, row_bytes, layers);
    PoolSpec pool;
    pool.name = "latent";
    pool.shard = Coordinates{};
    pool.components.push_back(rows.component("kv"));
    pool.rows = 8;
    const auto refused = rank->register_pool(pool);
    CHECK(refused.error.reason != Reason::none);
    MESSAGE(refused.error.text);
    CHECK(refused.error.text.find("latent") != std::string::npos);
  }
  check_load(first, 0, 1, 4);
  CHECK(server.runtime->stats().conflicts == 0);
}

TEST_CASE("ranks in different runtimes whose bytes differ are told apart: the pool goes on by rank") {
  for (const std::uint32_t partitions : {1U, 4U}) {
    CAPTURE(partitions);
    const Place place;
    auto config = serving(place, partitions);
    config.verify_sample = 1;
    config.conflict_limit = 1;
    Engine server(2, config);
    std::vector<std::unique_ptr<Engine>> engines;
    for (int i = 0; i < 2; ++i) engines.push_back(std::make_unique<Engine>(2, connecting(place)));
    // Engine i uses its rank i.
    const auto first = engines[0]->put(0, 1, 0, 8, {}, 10);
    first->wait();
    CHECK(all_are(*first, Verdict::stored));
    const auto second = engines[1]->put(1, 1, 0, 8, {}, 11);
    second->wait();
    CHECK(second->succeeded() == 8);
    CHECK(eventually([&] { return server.runtime->stats().demotions == 1; }));
    const auto again = engines[0]->put(0, 1, 0, 8, {}, 10);
    again->wait();
    CHECK(again->succeeded() == 8);
    for (std::size_t r = 0; r < 2; ++r) {
      const auto found = engines[r]->lookup(1, 8);
      REQUIRE(found.restorable_pages == 8);
      engines[r]->ranks[r].rows->clear();
      const auto load = engines[r]->load(r, found.lease, 1, 8);
      load->wait();
      CHECK(load->loaded() == 8);
      for (std::size_t i = 0; i < 8; ++i) CHECK(engines[r]->ranks[r].rows->holds(i, page_of(1, i), 10 + r));
    }
  }
}

}  // namespace runtime_test
