// SPDX-License-Identifier: Apache-2.0
//
// Stores and runtimes that come, go and come again, with both ends in one process: the sanitizers see both at once.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>

#include "runtime/core.hpp"
#include "tests/runtime/remote_fixture.hpp"

namespace runtime_test {

TEST_CASE("a store that is stopped and served again is found again, with everything registered anew") {
  for (const std::uint32_t partitions : {1U, 4U}) {
    CAPTURE(partitions);
    const Place place;
    auto server = serve(serving(place, partitions));
    Engine client(2, connecting(place));
    const auto more = client.runtime->open_namespace("a second namespace");
    REQUIRE(more);
    client.put(0, 1, 0, 8)->wait();
    PutOptions options;
    options.after = Event::make();
    const auto open = client.put(0, 2, 0, 4, options);
    const auto life = client.runtime->incarnation();
    CHECK(life == server->incarnation());
    CHECK(client.runtime->stats().store_answered);

    server->stop();
    open->wait();
    CHECK(all_are(*open, Verdict::unknown));
    CHECK(open->results()[0].reason == Reason::store_lost);
    CHECK(eventually([&] { return !client.runtime->connected(); }));
    CHECK(client.lookup(1, 8).error.reason == Reason::store_lost);
    CHECK(client.ranks[0].rank->exists(client.ranks[0].pool, chain_of(1, 8)).error.reason == Reason::store_lost);
    CHECK(client.runtime->stat(client.ns, page_of(1, 0)).error.reason == Reason::store_lost);
    CHECK(client.runtime->clients().error.reason == Reason::store_lost);
    CHECK(client.runtime->open_namespace("third").error.reason == Reason::store_lost);
    CHECK_FALSE(client.runtime->stats().store_answered);
    const auto lost = client.put(1, 3, 0, 4);
    lost->wait();
    CHECK(all_are(*lost, Verdict::unknown));
    CHECK(lost->results()[0].reason == Reason::store_lost);
    // A rank that joins while there is no store.
    Coordinates at;
    at.tp = {1, 2};
    auto late = client.runtime->add_rank(client.group, at);
    REQUIRE(late);

    server = serve(serving(place, partitions));
    // Somebody else is first with other names, so that numbers are not what they were.
    REQUIRE(server->open_namespace("other model"));
    REQUIRE(client.runtime->wait_connected(std::chrono::seconds(60)));
    CHECK(client.runtime->incarnation() == server->incarnation());
    CHECK(client.runtime->incarnation() != life);
    CHECK(client.lookup(1, 8).restorable_pages == 0);
    const auto put = client.put(0, 1, 0, 8, {}, 3);
    put->wait();
    CHECK(all_are(*put, Verdict::stored));
    check_load(client, 1, 1, 8, 3);
    CHECK(*client.runtime->exists(client.group, "latent", 0, chain_of(1, 8)) == std::vector<std::uint8_t>(8, 1));
    CHECK(client.runtime->stat(client.ns, page_of(1, 7)).value.found);
    CHECK(client.runtime->open_namespace("a second namespace").value.id == more.value.id);
    PoolSpec pool;
    Rows rows(8, 1024, 4);
    pool.name = "latent";
    pool.shard = Coordinates{};
    pool.components.push_back(rows.component("kv"));
    pool.rows = 8;
    CHECK((*late)->register_pool(pool));
    options.after.signal();
  }
}

TEST_CASE("namespaces get other numbers in a later life, and handles go on meaning what they meant") {
  const Place place;
  auto server = serve(serving(place));
  Engine client(1, connecting(place));
  server->stop();
  CHECK(eventually([&] { return !client.runtime->connected(); }));
  // The second life knows three namespaces before the client comes back.
  auto config = serving(place);
  config.serve.clear();
  server = serve(serving(place));
  const auto before = std::make_unique<Engine>(1, connecting(place, "early"));
  for (const char* text : {"x", "y", "z"}) REQUIRE(before->runtime->open_namespace(text));
  REQUIRE(client.runtime->wait_connected(std::chrono::seconds(60)));
  client.put(0, 5, 0, 6)->wait();
  check_load(client, 0, 5, 6);
  check_load(*before, 0, 5, 6);
}

TEST_CASE("a store is lost and found many times while two runtimes put and load") {
  const Place place;
  auto server = serve(serving(place, 2));
  Engine one(1, connecting(place));
  Engine two(1, connecting(place));
  std::atomic<bool> done{false};
  std::atomic<std::uint64_t> wrong{0};
  std::atomic<std::uint64_t> good{0};
  const auto work = [&](Engine& engine, std::uint64_t base) {
    for (std::uint64_t chain = base; !done; ++chain) {
      const auto put = engine.put(0, chain, 0, 8);
      put->wait();
      const auto found = engine.lookup(chain, 8);
      if (found.error || found.restorable_pages == 0) continue;
      engine.ranks[0].rows->clear();
      const auto load = engine.load(0, found.lease, chain, found.restorable_pages);
      load->wait();
      for (std::size_t i = 0; i < found.restorable_pages; ++i)
        if (load->results()[i] == Reason::none && !engine.ranks[0].rows->holds(i, page_of(chain, i))) ++wrong;
      good += load->loaded();
    }
  };
  std::thread first([&] { work(one, 1); });
  std::thread second([&] { work(two, 1); });
  for (int life = 0; life < 20; ++life) {
    const auto so_far = good.load();
    CHECK(eventually([&] { return good > so_far; }));
    server->stop();
    server = serve(serving(place, 2));
  }
  CHECK(one.runtime->wait_connected(std::chrono::seconds(60)));
  CHECK(two.runtime->wait_connected(std::chrono::seconds(60)));
  const auto so_far = good.load();
  CHECK(eventually([&] { return good > so_far; }));
  done = true;
  first.join();
  second.join();
  CHECK(wrong == 0);
  check_load(one, 0, (one.put(0, 9'999'999, 0, 4)->wait(), 9'999'999), 4);
}

TEST_CASE("a load that was accepted finishes from the mapping when the store is gone") {
  const Place place;
  auto server = serve(serving(place));
  Engine client(1, connecting(place));
  client.put(0, 1, 0, 8)->wait();
  const auto found = client.lookup(1, 8);
  client.ranks[0].rows->clear();
  LoadOptions options;
  options.after = Event::make();
  auto& mover = *client.runtime->impl().core->mover;
  const auto before = mover.stats().batches_accepted;
  const auto load = client.load(0, found.lease, 1, 8, options);
  // Accepted, when its copy waits for nothing but the event; then the lease's end does not end it.
  CHECK(eventually([&] { return mover.stats().batches_accepted > before; }));
  CHECK(!client.runtime->release(found.lease));
  server->stop();
  CHECK(eventually([&] { return !client.runtime->connected(); }));
  options.after.signal();
  load->wait();
  CHECK(load->loaded() == 8);
  for (std::size_t i = 0; i < 8; ++i) CHECK(client.ranks[0].rows->holds(i, page_of(1, i)));
}

TEST_CASE("draining lets open copies land, refuses new puts and newcomers, and tells the clients") {
  const Place place;
  auto server = serve(serving(place));
  Engine client(1, connecting(place));
  PutOptions options;
  options.after = Event::make();
  const auto open = client.put(0, 1, 0, 4, options);
  CHECK(eventually([&] { return server->clients().value.at(0).open_grants == 4; }));
  std::thread drain([&] { CHECK(!server->drain(std::chrono::seconds(60))); });
  // Newcomers hear of it first.
  auto config = connecting(place, "late");
  config.connect_timeout = milliseconds(1'000);
  CHECK(eventually([&] {
    auto late = Runtime::start(config);
    return !late && late.error.text.find("stopping") != std::string::npos;
  }));
  CHECK(eventually([&] {
    const auto refused = client.put(0, 7, 10, 1);
    refused->wait();
    return refused->results()[0].verdict == Verdict::rejected && refused->results()[0].reason == Reason::busy;
  }));
  client.ranks[0].rows->fill(0, page_of(1, 0));
  options.after.signal();
  open->wait();
  CHECK(all_are(*open, Verdict::stored));
  drain.join();
  CHECK(eventually([&] { return !client.runtime->connected(); }));
  server->stop();
}

TEST_CASE("either side may stop first, with calls open") {
  for (int i = 0; i < 12; ++i) {
    CAPTURE(i);
    const Place place;
    auto server = serve(serving(place, i % 2 == 0 ? 1 : 3));
    Engine client(2, connecting(place));
    client.put(1, 1, 0, 4)->wait();
    const auto found = client.lookup(1, 4);
    PutOptions put_options;
    put_options.after = Event::make();
    const auto put = client.put(0, 2, 0, 4, put_options);
    LoadOptions load_options;
    load_options.after = Event::make();
    const auto load = client.load(1, found.lease, 1, 4, load_options);
    std::thread other;
    if (i % 3 == 0) {
      server->stop();
      client.runtime->stop();
    } else if (i % 3 == 1) {
      client.runtime->stop();
      // An orderly end leaves nothing behind: the slots were free at once.
      CHECK(eventually([&] { return server->stats().quarantined_bytes_now == 0; }));
      CHECK(eventually([&] { return server->stats().claims_now == 0; }));
      server->stop();
    } else {
      other = std::thread([&] { server->stop(); });
      client.runtime->stop();
      other.join();
    }
    CHECK(put->done());
    CHECK(all_are(*put, Verdict::unknown));
    CHECK(load->done());
  }
}

TEST_CASE("nothing is left of a runtime that stopped in order, and the next engine finds the pages") {
  const Place place;
  auto config = serving(place);
  config.engine_grace = milliseconds(0);
  Engine server(1, config);
  for (std::uint64_t life = 0; life < 5; ++life) {
    Engine client(2, connecting(place, "engine " + std::to_string(life)));
    if (life == 0) client.put(0, 1, 0, 16)->wait();
    else check_load(client, 1, 1, 16);
    REQUIRE(client.lookup(1, 16).restorable_pages == 16);
    PutOptions options;
    options.after = Event::make();
    const auto open = client.put(0, 50 + life, 0, 4, options);
    CHECK(eventually([&] { return server.runtime->stats().claims_now == 4; }));
    client.runtime->stop();
    CHECK(open->done());
    CHECK(eventually([&] {
      const Stats stats = server.runtime->stats();
      return stats.claims_now == 0 && stats.quarantined_bytes_now == 0 && stats.leases_now == 0;
    }));
    CHECK(eventually([&] { return server.runtime->clients().value.empty(); }));
  }
}

TEST_CASE("two hundred runtimes come and go and leave no descriptor behind") {
  const Place place;
  auto server = serve(serving(place));
  const auto cycle = [&](int i) {
    auto config = connecting(place, "engine " + std::to_string(i % 7));
    config.read_only = i % 5 == 4;
    auto started = Runtime::start(config);
    REQUIRE_MESSAGE(started, started.error.text);
    if (i % 4 == 0) REQUIRE((*started)->open_namespace("x"));
    if (i % 2 == 0) (*started)->stop();
  };
  for (int i = 0; i < 10; ++i) cycle(i);
  REQUIRE(eventually([&] { return server->clients().value.empty(); }));
  const std::size_t before = open_descriptors();
  for (int i = 0; i < 200; ++i) cycle(i);
  REQUIRE(eventually([&] { return server->clients().value.empty(); }));
  CHECK(eventually([&] { return open_descriptors() == before; }));
}

TEST_CASE("a hundred servers come and go and leave neither descriptors nor files") {
  const Place place;
  const auto cycle = [&](int i) {
    auto server = serve(serving(place, i % 3 == 0 ? 3 : 1));
    auto client = Runtime::start(connecting(place));
    REQUIRE_MESSAGE(client, client.error.text);
    if (i % 2 == 0) server->stop();
  };
  for (int i = 0; i < 5; ++i) cycle(i);
  const std::size_t before = open_descriptors();
  for (int i = 0; i < 100; ++i) cycle(i);
  CHECK(open_descriptors() == before);
}

TEST_CASE("a second server at the same place is refused by name, and the first goes on") {
  const Place place;
  Engine server(1, serving(place));
  const auto second = Runtime::start(serving(place));
  CHECK(!second);
  CHECK_MESSAGE(second.error.text.find(std::to_string(getpid())) != std::string::npos, second.error.text);
  Engine client(1, connecting(place));
  client.put(0, 1, 0, 2)->wait();
  check_load(client, 0, 1, 2);
}

TEST_CASE("a runtime whose store is not there says so at once") {
  const Place place;
  const auto started = Runtime::start(connecting(place));
  CHECK(!started);
  CHECK(started.error.reason == Reason::store_lost);
  CHECK(started.error.text.find(place.folder) != std::string::npos);
}

TEST_CASE("a child of a fork is told that the connection is its parent's, and disturbs nobody") {
  const Place place;
  Engine server(1, serving(place));
  Engine client(1, connecting(place));
  client.put(0, 1, 0, 1)->wait();
  const pid_t child = fork();
  if (child == 0) {
    bool said = true;
    const auto forked = [&](const Error& error) { said = said && error.text.find("fork") != std::string::npos; };
    forked(client.ranks[0].rank->put({{page_of(1, 0)}, {}, 0, {{0, client.ranks[0].pool, 0}}}).error);
    forked(client.runtime->lookup(client.group, {page_of(1, 0)}).error);
    forked(client.runtime->open_namespace("more").error);
    forked(client.ranks[0].rank->exists(client.ranks[0].pool, chain_of(1, 1)).error);
    forked(client.runtime->stat(client.ns, page_of(1, 0)).error);
    forked(client.runtime->clients().error);
    forked(client.runtime->release({1, 1}));
    // Also where the call is wrong: nothing of the parent, no lock either, is touched to find that out.
    Runtime& kv = *client.runtime;
    Rank& rank = *client.ranks[0].rank;
    const NamespaceHandle no_namespace{99};
    const GroupHandle no_group{99};
    forked(kv.find_namespace("more").error);
    forked(kv.pools(no_namespace).error);
    forked(kv.register_group(no_namespace, {"g", {}, {{"kv", ShardCounts{}}}}).error);
    forked(kv.add_rank(no_group, {}).error);
    forked(kv.lookup(no_group, {}).error);
    forked(kv.narrow({1, 1}, 1));
    forked(kv.exists(no_group, "kv", 0, {}).error);
    forked(kv.stat(no_namespace, {}).error);
    forked(kv.remove_key(no_group, "kv", 0, {}).error);
    forked(kv.remove_pages(no_namespace, {}).error);
    forked(kv.remove_namespace(no_namespace).error);
    forked(kv.clear().error);
    forked(kv.flush().error);
    forked(kv.epoch("w").error);
    forked(kv.drain());
    said = said && !kv.wait_connected(std::chrono::minutes(30));
    forked(rank.register_pool({}).error);
    forked(rank.unregister_pool({99}));
    forked(rank.load({1, 1}, {{page_of(1, 0), {99}, 0}}).error);
    client.ranks.clear();
    client.runtime.reset();
    server.ranks.clear();
    server.runtime.reset();
    _exit(said ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(client.runtime->connected());
  client.put(0, 2, 0, 4)->wait();
  check_load(client, 0, 2, 4);
}

}  // namespace runtime_test
