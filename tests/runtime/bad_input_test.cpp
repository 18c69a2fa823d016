// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/runtime/fixture.hpp"

namespace runtime_test {

namespace {

bool says(const Error& error, std::string_view a, std::string_view b = "") {
  const bool ok = error.reason != Reason::none && error.text.find(a) != std::string::npos && error.text.find(b) != std::string::npos;
  if (!ok) MESSAGE("the error says: " << error.text);
  return ok;
}

RuntimeConfig with(const std::function<void(RuntimeConfig&)>& change) {
  RuntimeConfig config = small_config();
  change(config);
  return config;
}

}  // namespace

TEST_CASE("a wrong field of the configuration is named with its value and what is allowed") {
  const auto error = [](const std::function<void(RuntimeConfig&)>& change) { return with(change).check(); };
  CHECK(!small_config().check());
  CHECK(says(error([](auto& c) { c.engine_id = ""; }), "engine_id is 0 bytes", "1 to 255"));
  CHECK(says(error([](auto& c) { c.engine_id.assign(256, 'x'); }), "engine_id is 256 bytes"));
  CHECK(says(error([](auto& c) { c.store = "tcp:h:1"; }), "store is 'tcp:h:1'", "'embedded', 'unix:PATH' or 'auto'"));
  CHECK(says(error([](auto& c) { c.store = "unix:"; }), "store is 'unix:'", "unix:PATH"));
  CHECK(says(error([](auto& c) { c.serve = "/x"; }), "serve is '/x'", "unix:PATH"));
  CHECK(says(error([](auto& c) { c.serve = c.store = "unix:/x"; }), "serve is 'unix:/x'", "embedded"));
  CHECK(says(error([](auto& c) {
          c.store = "auto";
          c.arena_file = "/dev/shm/x";
        }),
        "arena_file is '/dev/shm/x'", "embedded"));
  CHECK(says(error([](auto& c) { c.read_only = true; }), "read_only is true"));
  CHECK(says(error([](auto& c) { c.max_clients = 0; }), "max_clients is 0", "1 to 65,536"));
  CHECK(says(error([](auto& c) { c.numa_node = -2; }), "numa_node is -2", "-1 for none"));
  CHECK(says(error([](auto& c) { c.auto_bytes = 5; }), "auto_bytes is 5", "1 MiB to 64 TiB"));
  CHECK(says(error([](auto& c) { c.auto_idle = milliseconds(1); }), "auto_idle is 1 ms", "100 ms to 24 h"));
  CHECK(says(error([](auto& c) { c.connect_timeout = milliseconds(0); }), "connect_timeout is 0 ms", "1 ms to 1 h"));
  CHECK(says(error([](auto& c) { c.engine_grace = milliseconds(-1); }), "engine_grace is -1 ms", "0 ms to 1 h"));
  CHECK(says(error([](auto& c) { c.arena_bytes = 1000; }), "arena_bytes is 1000", "1 MiB to 64 TiB"));
  CHECK(says(error([](auto& c) { c.capacity_bytes = c.arena_bytes + 1; }), "capacity_bytes is", "at most arena_bytes"));
  CHECK(says(error([](auto& c) { c.index_pages = 5; }), "index_pages is 5", "1,024"));
  CHECK(says(error([](auto& c) { c.partitions = 0; }), "partitions is 0", "1 to 64"));
  CHECK(says(error([](auto& c) { c.partitions = 65; }), "partitions is 65"));
  CHECK(says(error([](auto& c) { c.policy = "fifo"; }), "policy is 'fifo'", "lru"));
  CHECK(says(error([](auto& c) { c.window_bytes = 1; }), "window_bytes is 1"));
  CHECK(says(error([](auto& c) { c.grant_base = milliseconds(0); }), "grant_base is 0 ms", "1 ms to 1 h"));
  CHECK(says(error([](auto& c) { c.least_rate = 1; }), "least_rate is 1"));
  CHECK(says(error([](auto& c) { c.verify_window = milliseconds(-1); }), "verify_window is -1 ms"));
  CHECK(says(error([](auto& c) { c.conflict_limit = 0; }), "conflict_limit is 0"));
  CHECK(says(error([](auto& c) { c.lease_time = milliseconds(9); }), "lease_time is 9 ms", "10 ms"));
  CHECK(says(error([](auto& c) { c.leased_stops = 65; }), "leased_stops is 65"));
  CHECK(says(error([](auto& c) { c.scheduler_threads = 0; }), "scheduler_threads is 0"));
  CHECK(says(error([](auto& c) { c.mover_threads = 17; }), "mover_threads is 17", "1 to 16"));
  CHECK(says(error([](auto& c) { c.ghost_entries = 20'000'000; }), "ghost_entries is 20000000"));
  CHECK(says(error([](auto& c) { c.inline_copy_bytes = 2ULL << 30; }), "inline_copy_bytes is"));
  CHECK(says(Runtime::start(with([](auto& c) { c.engine_id = ""; })).error, "engine_id"));
}

TEST_CASE("an arena that does not hold its index is refused with the figures") {
  const auto started = Runtime::start(with([](auto& c) {
    c.arena_bytes = 2ULL << 20;
    c.index_pages = 1'000'000;
  }));
  CHECK(says(started.error, "arena_bytes is 2097152", "index of 1000000 pages"));
}

TEST_CASE("the smallest arena starts with a default index") {
  CHECK(Runtime::start(with([](auto& c) {
    c.arena_bytes = 1ULL << 20;
    c.index_pages = 0;
  })));
}

TEST_CASE("namespaces and groups that make no sense are refused by name") {
  auto runtime = std::move(*Runtime::start(small_config()));
  CHECK(says(runtime->open_namespace("").error, "namespace text is 0 bytes"));
  CHECK(says(runtime->open_namespace(std::string(4097, 'x')).error, "4097"));
  const auto ns = *runtime->open_namespace("model");
  CHECK(runtime->open_namespace("model")->id == ns.id);
  CHECK(runtime->open_namespace("other")->id != ns.id);
  const auto error = [&](const GroupSpec& spec) { return runtime->register_group(ns, spec).error; };
  const GroupPool pool{"p", ShardCounts{}, HitPolicy::every_page(), false};
  CHECK(says(error({"", {}, {pool}}), "group name is 0 bytes"));
  CHECK(says(error({std::string(256, 'g'), {}, {pool}}), "group name is 256 bytes"));
  CHECK(says(error({"g", {}, {}}), "has 0 pools", "1 to 64"));
  CHECK(says(error({"g", {}, std::vector<GroupPool>(65, pool)}), "has 65 pools"));
  CHECK(says(error({"g", {}, {pool, pool}}), "names pool 'p' twice"));
  CHECK(says(error({"g", {0, 1, 1}, {pool}}), "tp 0"));
  CHECK(says(error({"g", {100, 100, 1}, {pool}}), "tp 100", "4096"));
  CHECK(says(error({"g", {2, 1, 1}, {{"p", ShardCounts{4, 1, 1}, {}, false}}}), "shards are tp 4", "ranks on each axis"));
  CHECK(says(error({"g", {2, 1, 1}, {{"p", ShardCounts{0, 1, 1}, {}, false}}}), "shards are tp 0"));
  CHECK(says(runtime->register_group({77}, {"g", {}, {pool}}).error, "namespace handle 77"));
  const auto group = runtime->register_group(ns, {"g", {2, 1, 1}, {pool}});
  REQUIRE(group);
  CHECK(runtime->register_group(ns, {"g", {2, 1, 1}, {pool}})->id == group.value.id);
  CHECK(runtime->register_group(ns, {"g", {2, 1, 1}, {pool, {"q", ShardCounts{}, {}, false}}}).error);
  Coordinates at;
  CHECK(says(runtime->add_rank({9}, at).error, "group handle 9"));
  CHECK(says(runtime->add_rank(group.value, at).error, "tp 0 of 1", "tp 2"));
  at.tp = {2, 2};
  CHECK(says(runtime->add_rank(group.value, at).error, "tp 2 of 2"));
}

TEST_CASE("pools that contradict their group, or themselves, are refused by name") {
  Engine engine(2);
  TestRank& rank = engine.ranks[0];
  const auto spec_of = [&] {
    PoolSpec spec;
    spec.name = "latent";
    spec.shard = Coordinates{};
    spec.components.push_back(rank.rows->component("kv"));
    spec.rows = rank.rows->rows;
    return spec;
  };
  const auto error = [&](const std::function<void(PoolSpec&)>& change) {
    PoolSpec spec = spec_of();
    change(spec);
    return rank.rank->register_pool(spec).error;
  };
  CHECK(rank.rank->register_pool(spec_of())->id == rank.pool.id);
  CHECK(says(error([](auto& s) { s.name = "other"; }), "'other' is not in group 'main'", "'latent'"));
  CHECK(says(error([](auto& s) { s.shard.reset(); }), "by rank: 2 parts on axis tp", "its group has 1"));
  CHECK(says(error([](auto& s) { s.shard->tp = {1, 1}; }), "shard 1 on axis tp", "below 1"));
  CHECK(says(error([](auto& s) { s.memory = MemoryKind::hip; }), "memory is hip"));
  CHECK(says(error([](auto& s) { s.rows = 0; }), "rows"));
  CHECK(says(error([](auto& s) { s.components[0].layers[0].base = nullptr; }), "pool 'latent'"));
  CHECK(says(error([](auto& s) { s.components[0].layers[1].base = s.components[0].layers[0].base; }), "overlap"));
  CHECK(says(error([](auto& s) { s.components[0].layers[0].row_stride = 10; }), "stride"));
  CHECK(says(error([](auto& s) { s.components[0].layers.pop_back(); }), "registered already with other buffers"));
  CHECK(says(error([](auto& s) { s.rows /= 2; }), "registered already with other buffers"));
  // Another rank with objects of another size: refused by the store, and the first registration stays good.
  auto added = engine.runtime->add_rank(engine.group, {{1, 2}, {}, {}});
  REQUIRE(added);
  PoolSpec smaller = spec_of();
  smaller.components[0].layers.pop_back();
  CHECK(says((*added)->register_pool(smaller).error, "latent"));
  engine.put(0, 1, 0, 2)->wait();
  CHECK(engine.lookup(1, 2).restorable_pages == 2);
}

TEST_CASE("an object larger than a partition is refused when its pool is registered") {
  auto runtime = std::move(*Runtime::start(small_config()));
  const auto ns = *runtime->open_namespace("m");
  const auto group = *runtime->register_group(ns, {"g", {}, {{"p", ShardCounts{}, {}, false}}});
  auto rank = *runtime->add_rank(group, {});
  std::vector<char> memory(32ULL << 20);
  PoolSpec spec{"p", Coordinates{}, {{"c", {{memory.data(), memory.size(), memory.size()}}}}, 1};
  CHECK(says(rank->register_pool(spec).error, "one object takes", "raise arena_bytes"));
}

TEST_CASE("bad puts are refused as a whole only where no item could be meant") {
  Engine engine;
  TestRank& r = engine.ranks[0];
  const auto put = [&](PutBatch batch, PutOptions options = {}) { return r.rank->put(std::move(batch), std::move(options)); };
  const PageHash page = page_of(1, 0);
  CHECK(says(put({}).error, "0 items", "1 to 65536"));
  PutBatch many;
  many.pages = {page};
  many.items.assign(65'537, {0, r.pool, 0});
  const auto refused = put(many);
  CHECK(refused.error.reason == Reason::too_many);
  CHECK(says(refused.error, "65537 items"));
  CHECK(says(put({{page}, {}, 0, {{1, r.pool, 0}}}).error, "item 0 names page 1 of a batch of 1"));
  for (const long ms : {0L, -5L, 3'600'001L}) {
    PutOptions options;
    options.timeout = milliseconds(ms);
    CHECK(says(put({{page}, {}, 0, {{0, r.pool, 0}}}, options).error, "put: timeout is " + std::to_string(ms), "1 ms to 1 h"));
  }
  // Items are judged one by one, and good neighbours are stored.
  const std::uint64_t rows = r.rows->rows;
  auto mixed = put({{page, page_of(1, 1), page_of(1, 2)}, {}, 0, {{0, r.pool, 0}, {1, r.pool, rows}, {2, {99}, 0}, {0, r.pool, 1}}});
  REQUIRE(mixed);
  (*mixed)->wait();
  const auto results = (*mixed)->results();
  CHECK(results[0].verdict == Verdict::stored);
  CHECK(results[1].verdict == Verdict::rejected);
  CHECK(results[1].reason == Reason::row_out_of_range);
  CHECK(results[2].verdict == Verdict::rejected);
  CHECK(results[2].reason == Reason::unknown_pool);
  CHECK(results[3].verdict == Verdict::joined);
  PutOptions disk;
  disk.level = AckLevel::disk;
  const auto put_disk = engine.put(0, 5, 0, 2, disk);
  put_disk->wait();
  CHECK(put_disk->results()[1].verdict == Verdict::rejected);
  CHECK(put_disk->results()[1].reason == Reason::level_unavailable);
}

TEST_CASE("bad loads and lookups say what is wrong with them") {
  Engine engine;
  TestRank& r = engine.ranks[0];
  engine.put(0, 1, 0, 2)->wait();
  const auto found = engine.lookup(1, 2);
  CHECK(says(r.rank->load(found.lease, {}).error, "0 items"));
  CHECK(r.rank->load(found.lease, std::vector<LoadItem>(65'537)).error.reason == Reason::too_many);
  LoadOptions options;
  options.layer_begin = options.layer_end = 2;
  CHECK(says(r.rank->load(found.lease, {{page_of(1, 0), r.pool, 0}}, options).error, "layers 2 to 2"));
  options = {};
  options.timeout = milliseconds(0);
  CHECK(says(r.rank->load(found.lease, {{page_of(1, 0), r.pool, 0}}, options).error, "load: timeout is 0"));
  const std::uint64_t rows = r.rows->rows;
  const auto load = *r.rank->load(found.lease, {{page_of(1, 0), r.pool, 0}, {page_of(1, 1), r.pool, rows}, {page_of(1, 1), {7}, 0},
                                                {page_of(9, 9), r.pool, 1}});
  load->wait();
  CHECK(load->results()[0] == Reason::none);
  CHECK(load->results()[1] == Reason::row_out_of_range);
  CHECK(load->results()[2] == Reason::unknown_pool);
  CHECK(load->results()[3] == Reason::absent);
  // One row for two pages; for one page twice it is one.
  CHECK(says(r.rank->load(found.lease, {{page_of(1, 0), r.pool, 1}, {page_of(1, 1), r.pool, 3}, {page_of(1, 1), r.pool, 1}}).error,
             "items 0 and 2 are different pages for row 1 of pool 'latent'"));
  CHECK(r.rank->load(found.lease, {{page_of(1, 0), r.pool, 1}, {page_of(1, 1), r.pool, 0}, {page_of(1, 0), r.pool, 1}}));
  CHECK(r.rank->load(found.lease, {{page_of(1, 0), {7}, 1}, {page_of(1, 1), r.pool, 1}}));
  std::vector<LoadItem> many;
  for (std::uint64_t i = 0; i < 65'536; ++i) many.push_back({page_of(2, i), r.pool, (i * 40'503) % 65'536});
  CHECK(r.rank->load(found.lease, many));
  many[65'535].row = many[17].row;
  CHECK(says(r.rank->load(found.lease, many).error, "items 17 and 65535 are"));
  CHECK(says(engine.runtime->release({7, 64}), "lease_unknown", "no such lease"));
  CHECK(says(engine.runtime->lookup({5}, {page_of(1, 0)}).error, "group handle 5"));
  CHECK(engine.runtime->lookup(engine.group, std::vector<PageHash>(65'537)).error.reason == Reason::too_many);
  LookupOptions asked;
  asked.request_id.assign(4097, 'r');
  CHECK(says(engine.runtime->lookup(engine.group, {page_of(1, 0)}, asked).error, "request_id is 4097 bytes", "4096"));
  asked = {};
  asked.timeout = milliseconds(-1);
  CHECK(says(engine.runtime->lookup(engine.group, {page_of(1, 0)}, asked).error, "lookup: timeout is -1"));
  asked = {};
  asked.lease_time = milliseconds(-1);
  CHECK(says(engine.runtime->lookup(engine.group, {page_of(1, 0)}, asked).error, "lease_time is -1"));
  CHECK(says(r.rank->exists({3}, {}).error, "pool handle 3"));
  CHECK(says(engine.runtime->exists(engine.group, "latent", 1, {}).error, "shard 1", "below 1"));
  CHECK(says(engine.runtime->exists(engine.group, "x", 0, {}).error, "pool 'x' is not in group"));
  CHECK(engine.runtime->stat({44}, page_of(1, 0)).error.reason == Reason::unknown_namespace);
  CHECK(engine.runtime->remove_pages({44}, {}).error.reason == Reason::unknown_namespace);
  CHECK(says(engine.runtime->remove_key(engine.group, "latent", 9, page_of(1, 0)).error, "shard 9"));
  CHECK(says(engine.runtime->flush(AckLevel::memory, milliseconds(0)).error, "flush: timeout is 0"));
  const auto disk = *engine.runtime->flush(AckLevel::disk);
  disk->wait();
  CHECK(says(disk->error(), "nothing at level disk", "memory only"));
  CHECK(says(r.rank->unregister_pool({6}), "pool handle 6"));
}

TEST_CASE("every call that waits takes a time, and names one that makes no sense") {
  Engine engine;
  Runtime& kv = *engine.runtime;
  const NamespaceHandle ns = *kv.open_namespace("model");
  const PageHash page = page_of(1, 0);
  const GroupSpec group{"g", {}, {{"p", ShardCounts{}, HitPolicy::every_page(), false}}};
  for (const long ms : {0L, -1L, 3'600'001L}) {
    const milliseconds time(ms);
    const auto refused = [&](const Error& error, const std::string& call) {
      CHECK(error.reason == Reason::bad_argument);
      CHECK(says(error, call + ": timeout is " + std::to_string(ms) + " ms", "1 ms to 1 h"));
    };
    refused(kv.open_namespace("model", time).error, "open_namespace");
    refused(kv.find_namespace("model", time).error, "find_namespace");
    refused(kv.close_namespace(ns, time), "close_namespace");
    refused(kv.register_group(ns, group, time).error, "register_group");
    refused(engine.ranks[0].rank->register_pool({}, time).error, "register_pool");
    refused(kv.narrow({1, 1}, 0, time), "narrow");
    refused(kv.release({1, 1}, time), "release");
    refused(kv.remove_key(engine.group, "latent", 0, page, {}, time).error, "remove_key");
    refused(kv.remove_pages(ns, {page}, {}, time).error, "remove_pages");
    refused(kv.remove_namespace(ns, {}, time).error, "remove_namespace");
    refused(kv.clear({}, time).error, "clear");
    refused(kv.clients(time).error, "clients");
    refused(kv.epoch("e", time).error, "epoch");
  }
  CHECK(kv.stats(milliseconds(60'000)).store_answered);
  // The refused ones have done nothing.
  CHECK(!kv.close_namespace(ns));
}

TEST_CASE("after stop every call says at once that the runtime is stopped") {
  Engine engine;
  engine.put(0, 1, 0, 2)->wait();
  const auto found = engine.lookup(1, 2);
  TestRank& r = engine.ranks[0];
  engine.runtime->stop();
  engine.runtime->stop();
  const PageHash page = page_of(1, 0);
  CHECK(says(engine.runtime->open_namespace("x").error, "stopped"));
  CHECK(says(engine.runtime->lookup(engine.group, {page}).error, "stopped"));
  CHECK(says(r.rank->put({{page}, {}, 0, {{0, r.pool, 0}}}).error, "stopped"));
  CHECK(says(r.rank->load(found.lease, {{page, r.pool, 0}}).error, "stopped"));
  CHECK(says(r.rank->exists(r.pool, std::vector{page}).error, "stopped"));
  CHECK(says(r.rank->unregister_pool(r.pool), "stopped"));
  CHECK(says(engine.runtime->stat(engine.ns, page).error, "stopped"));
  CHECK(says(engine.runtime->clear().error, "stopped"));
  CHECK(says(engine.runtime->release(found.lease), "stopped"));
  CHECK(engine.runtime->stats().moved_bytes > 0);
  CHECK(!r.rank->close());
}

TEST_CASE("what can never be had is a bad argument, not a lack of space") {
  const auto start = [](auto change) { return Runtime::start(with(change)).error; };
  const Error folder = start([](auto& c) { c.arena_file = "/dev/shm/kvonce-nowhere/at-all/arena"; });
  CHECK(says(folder, "arena_file", "/dev/shm/kvonce-nowhere/at-all"));
  CHECK(folder.reason == Reason::bad_argument);
  const Error node = start([](auto& c) { c.numa_node = 1'023; });
  CHECK(says(node, "numa_node is 1023"));
  CHECK(node.reason == Reason::bad_argument);
}

TEST_CASE("an arena file never replaces what no store has made") {
  char folder[] = "/dev/shm/kvonce-test-XXXXXX";
  if (mkdtemp(folder) == nullptr) {
    MESSAGE("skipped: /dev/shm is not there");
    return;
  }
  const std::string path = std::string(folder) + "/arena";
  const auto start = [&] { return Runtime::start(with([&](auto& c) { c.arena_file = path; })); };
  std::ofstream(path) << "precious";
  CHECK(says(start().error, "arena_file is '" + path + "'", "it is left as it is"));
  std::string text;
  std::ifstream(path) >> text;
  CHECK(text == "precious");
  std::filesystem::remove(path);
  std::filesystem::create_symlink("/dev/null", path);
  CHECK(says(start().error, "arena_file is '" + path + "'", "no plain file"));
  CHECK(std::filesystem::is_symlink(path));
  std::filesystem::remove(path);
  {
    auto first = start();
    REQUIRE(first);
    CHECK((*first)->store_start().why_cold.find("not there yet") != std::string::npos);
  }
  CHECK(start());  // its own file is taken again
  std::filesystem::remove_all(folder);
}

}  // namespace runtime_test
