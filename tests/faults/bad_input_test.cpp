// SPDX-License-Identifier: Apache-2.0
//
// Bad input through the public API: named with its value and what is allowed, nothing lost, neighbours served.
#include <cstdint>
#include <functional>

#include "protocol/units.hpp"
#include "tests/faults/fixture.hpp"

namespace faults_test {

namespace {

/// The engine still stores and serves: what was put before is there, and something new goes through.
void check_serves(Engine& engine, std::uint64_t new_chain) {
  const auto put = engine.put(0, new_chain, 0, 4);
  put->wait();
  CHECK(put->succeeded() == 4);
  for (const std::uint64_t chain : {std::uint64_t{1}, new_chain}) {
    const auto found = engine.lookup(chain, 4);
    CHECK(found.restorable_pages == 4);
    engine.ranks[0].rows->clear();
    engine.load(0, found.lease, chain, 4)->wait();
    for (std::size_t i = 0; i < 4; ++i) CHECK(engine.ranks[0].rows->holds(i, page_of(chain, i)));
    CHECK(!engine.runtime->release(found.lease));
  }
}

}  // namespace

TEST_CASE("a bad description of a pool is refused with its thing, its value and what is allowed, and the others are served") {
  Engine engine;
  engine.put(0, 1, 0, 4)->wait();
  const auto group = *engine.runtime->register_group(engine.ns, {"more", {2, 1, 1}, {{"p", ShardCounts{}, {}, false}, {"q", {}, {}, false}}});
  const auto rank = *engine.runtime->add_rank(group, {{0, 2}, {}, {}});
  Rows rows(4, 128, 3);
  const auto error = [&](const std::function<void(PoolSpec&)>& change) {
    PoolSpec spec{"p", Coordinates{}, {rows.component("c")}, rows.rows};
    change(spec);
    return rank->register_pool(spec).error;
  };
  constexpr std::uint64_t kMiB = 1ULL << 20;
  CHECK(says(error([](auto& s) { s.name.clear(); }), "''", "'p'"));
  CHECK(says(error([](auto& s) { s.components[0].layers.clear(); }), "component 'c' has 0 layers", "at least 1"));
  CHECK(says(error([](auto& s) { s.components[0].layers[1].base = nullptr; }), "layer 1 has a null base"));
  CHECK(says(error([](auto& s) { s.components[0].layers[1].base = s.components[0].layers[2].base; }), "overlaps"));
  CHECK(says(error([](auto& s) { s.components.push_back(s.components[0]); }), "overlaps"));
  CHECK(says(error([](auto& s) { s.components[0].layers[1].row_bytes = 0; }), "0 bytes", "at least 1"));
  CHECK(says(error([](auto& s) { s.components[0].layers[1].row_stride = 127; }), "stride of 127 bytes", "at least its row's 128"));
  CHECK(says(error([](auto& s) { s.rows = 0; }), "0 rows", "at least 1"));
  CHECK(says(error([&](auto& s) { s.components[0].layers = {{rows.layers[0].data(), 257 * kMiB, 257 * kMiB}}; }), "269484032 bytes", "268435456"));
  CHECK(says(error([&](auto& s) {
          s.components[0].layers = {{rows.layers[0].data(), 400 * kMiB, 256 * kMiB}, {rows.layers[0].data() + 256 * kMiB, 400 * kMiB, 1}};
        }),
        "268435456"));
  CHECK(says(error([](auto& s) { s.rows = ~std::uint64_t{0}; }), "pool 'p'"));
  CHECK(says(error([](auto& s) { s.shard->tp = {1, 1}; }), "shard 1", "below 1"));
  CHECK(says(error([](auto& s) { s.shard->tp = {2, 2}; }), "tp"));
  CHECK(says(error([](auto& s) { s.shard->cp = {7, 3}; }), "cp"));
  CHECK(says(error([](auto& s) {
          s.name = "q";
          s.shard->tp = {2, 2};
        }),
        "shard 2", "below 2"));
  // Without components it has no bytes: allowed, and takes no part.
  PoolSpec empty{"q", {}, {}, 0};
  CHECK(rank->register_pool(empty));
  // The good description is taken after all of them.
  auto good = rank->register_pool({"p", Coordinates{}, {rows.component("c")}, rows.rows});
  REQUIRE_MESSAGE(good, good.error.text);
  // Another geometry under the registered name: another rank of the group, and another group that shares the pool.
  const auto other = *engine.runtime->add_rank(group, {{1, 2}, {}, {}});
  Rows half(4, 64, 3);
  const Error differs = other->register_pool({"p", Coordinates{}, {half.component("c")}, half.rows}).error;
  CHECK(says(differs, "'p'", "192 bytes"));
  CHECK(says(differs, "384 bytes"));
  CHECK(other->register_pool({"p", Coordinates{}, {Rows(4, 128, 3).component("c")}, 4}));
  rows.fill(0, page_of(5, 0));
  const auto put = *rank->put({{page_of(5, 0)}, {}, 0, {{0, *good, 0}}});
  put->wait();
  CHECK(put->succeeded() == 1);
  check_serves(engine, 2);
}

TEST_CASE("numbers of items outside what is allowed are refused as a whole, and bad items alone") {
  Engine engine;
  TestRank& r = engine.ranks[0];
  engine.put(0, 1, 0, 4)->wait();
  const auto lease = engine.lookup(1, 4).lease;
  const auto batch_of = [&](std::size_t items) {
    PutBatch batch;
    batch.pages = {page_of(3, 0)};
    batch.items.assign(items, {0, r.pool, 0});
    return batch;
  };
  CHECK(says(r.rank->put(batch_of(0)).error, "0 items", "1 to 65536"));
  CHECK(says(r.rank->put(batch_of(65'537)).error, "65537 items", "1 to 65536"));
  CHECK(says(r.rank->load(lease, {}).error, "0 items", "1 to 65536"));
  CHECK(says(r.rank->load(lease, std::vector<LoadItem>(65'537)).error, "65537 items", "1 to 65536"));
  CHECK(says(engine.runtime->lookup(engine.group, std::vector<PageHash>(65'537)).error, "65537", "65536"));
  // As many as are allowed, all the same page: one is stored, the others join it.
  r.rows->fill(0, page_of(3, 0));
  const auto same = *r.rank->put(batch_of(65'536));
  same->wait();
  REQUIRE(same->results().size() == 65'536);
  CHECK(same->results()[0].verdict == Verdict::stored);
  CHECK(same->succeeded() == 65'536);
  CHECK(engine.runtime->stats().objects_now == 5);
  // Rows out of range, by one and by far, beside a good one.
  const std::uint64_t rows = r.rows->rows;
  r.rows->fill(rows - 1, page_of(4, 3));
  const auto mixed = *r.rank->put({chain_of(4, 4), {}, 0, {{0, r.pool, rows}, {1, r.pool, ~std::uint64_t{0}}, {2, {~0U}, 0}, {3, r.pool, rows - 1}}});
  mixed->wait();
  CHECK(mixed->results()[0].reason == Reason::row_out_of_range);
  CHECK(mixed->results()[1].reason == Reason::row_out_of_range);
  CHECK(mixed->results()[2].reason == Reason::unknown_pool);
  CHECK(mixed->results()[3].verdict == Verdict::stored);
  CHECK(says(r.rank->put({{page_of(5, 0)}, {}, 0, {{0, r.pool, 0}, {7, r.pool, 1}}}).error, "item 1 names page 7", "batch of 1"));
  check_serves(engine, 2);
}

TEST_CASE("time-outs of nothing, less than nothing and far too much are refused by every call that has one") {
  Engine engine;
  TestRank& r = engine.ranks[0];
  engine.put(0, 1, 0, 4)->wait();
  const auto lease = engine.lookup(1, 4).lease;
  for (const milliseconds time : {milliseconds(0), milliseconds(-1), milliseconds::min(), milliseconds(3'600'001), milliseconds::max()}) {
    CAPTURE(time.count());
    const std::string value = std::to_string(time.count());
    PutOptions put;
    put.timeout = time;
    CHECK(says(r.rank->put({{page_of(2, 0)}, {}, 0, {{0, r.pool, 0}}}, put).error, "put: timeout is " + value, "1 ms to 1 h"));
    LoadOptions load;
    load.timeout = time;
    CHECK(says(r.rank->load(lease, {{page_of(1, 0), r.pool, 0}}, load).error, "load: timeout is " + value, "1 ms to 1 h"));
    LookupOptions lookup;
    lookup.timeout = time;
    CHECK(says(engine.runtime->lookup(engine.group, {page_of(1, 0)}, lookup).error, "lookup: timeout is " + value, "1 ms to 1 h"));
    CHECK(says(engine.runtime->flush(AckLevel::memory, time).error, "flush: timeout is " + value, "1 ms to 1 h"));
    CHECK(says(r.rank->unregister_pool(r.pool, time), "timeout is " + value, "1 ms to 1 h"));
    CHECK(says(r.rank->close(time), "timeout is " + value, "1 ms to 1 h"));
  }
  check_serves(engine, 2);
}

TEST_CASE("leases that are expired, foreign, forged or empty open nothing, and the real one still does") {
  Engine engine;
  Engine foreign;
  engine.put(0, 1, 0, 4)->wait();
  foreign.put(0, 1, 0, 4)->wait();
  const auto real = engine.lookup(1, 4).lease;
  const auto theirs = foreign.lookup(1, 4).lease;
  const auto reason = [&](const LeaseId& lease) {
    engine.ranks[0].rows->clear();
    const auto load = engine.load(0, lease, 1, 4);
    load->wait();
    if (load->loaded() == 0) CHECK(engine.ranks[0].rows->is_zero(0));
    return load->results()[0];
  };
  CHECK(reason(theirs) == Reason::lease_unknown);
  CHECK(reason({}) == Reason::lease_unknown);
  CHECK(reason({~0ULL, ~0ULL}) == Reason::lease_unknown);
  for (std::uint64_t bit = 0; bit < 64; ++bit) {
    CHECK(reason({real.high ^ (1ULL << bit), real.low}) == Reason::lease_unknown);
    CHECK(reason({real.high, real.low ^ (1ULL << bit)}) == Reason::lease_unknown);
  }
  CHECK(engine.runtime->narrow(theirs, 1).reason == Reason::lease_unknown);
  CHECK(reason(real) == Reason::none);
  CHECK(!engine.runtime->release(real));
  CHECK(reason(real) == Reason::lease_expired);
  check_serves(engine, 2);
}

TEST_CASE("handles, namespaces, groups and levels that are not there are named") {
  Engine engine;
  engine.put(0, 1, 0, 4)->wait();
  Runtime& runtime = *engine.runtime;
  const std::vector<PageHash> page{page_of(1, 0)};
  CHECK(says(runtime.register_group({12345}, {"g", {}, {{"p", {}, {}, false}}}).error, "12345"));
  CHECK(says(runtime.stat({12345}, page[0]).error, "12345"));
  CHECK(says(runtime.remove_namespace({12345}).error, "12345"));
  CHECK(says(runtime.remove_pages({12345}, page).error, "12345"));
  CHECK(runtime.remove_pages({12345}, page).error.reason == Reason::unknown_namespace);
  CHECK(says(runtime.add_rank({54321}, {}).error, "54321"));
  CHECK(says(runtime.lookup({54321}, page).error, "54321"));
  CHECK(says(runtime.exists({54321}, "latent", 0, page).error, "54321"));
  CHECK(says(runtime.exists(engine.group, "no such pool", 0, page).error, "'no such pool'"));
  CHECK(says(runtime.remove_key(engine.group, "no such pool", 0, page[0]).error, "'no such pool'"));
  for (const AckLevel level : {AckLevel::disk, AckLevel::replicated}) {
    PutOptions options;
    options.level = level;
    const auto put = engine.put(0, 3, 0, 4, options);
    put->wait();
    for (const auto& result : put->results()) CHECK(result.reason == Reason::level_unavailable);
    const auto flush = runtime.flush(level);
    if (flush) {
      flush.value->wait();
      CHECK(flush.value->error().reason == Reason::level_unavailable);
    } else {
      CHECK(flush.error.reason == Reason::level_unavailable);
    }
  }
  CHECK(engine.lookup(3, 4).restorable_pages == 0);
  check_serves(engine, 2);
}

TEST_CASE("an arena smaller than one object is told when the pool is registered, and smaller objects are stored in it") {
  auto config = small_config();
  config.arena_bytes = 4ULL << 20;
  config.index_pages = 1024;
  Engine engine(1, config);
  engine.put(0, 1, 0, 4)->wait();
  const auto group = *engine.runtime->register_group(engine.ns, {"large", {}, {{"large", ShardCounts{}, {}, false}}});
  const auto rank = *engine.runtime->add_rank(group, {});
  std::vector<char> memory(8ULL << 20);
  const Error error = rank->register_pool({"large", Coordinates{}, {{"c", {{memory.data(), memory.size(), memory.size()}}}}, 1}).error;
  CHECK(says(error, "'large'", "raise arena_bytes"));
  check_serves(engine, 2);
}

TEST_CASE("page hashes of a wrong length are refused with the length") {
  for (const std::size_t length : {0U, 1U, 16U, 31U, 33U, 63U, 65U, 128U, 65'536U}) {
    std::string error;
    CHECK(!parse_page_hash(std::string(length, 'a'), &error));
    CHECK(error.find(std::to_string(length) + " bytes") != std::string::npos);
    CHECK(error.find("32 raw bytes or 64 hexadecimal digits") != std::string::npos);
    CHECK(!PageHash::from_bytes(std::string(length, 'a')));
    CHECK(!PageHash::from_hex(std::string(length, 'a')));
  }
}

TEST_CASE("sizes, rates and counts written as text are taken or refused, never half read") {
  constexpr std::uint64_t kMax = ~std::uint64_t{0};
  CHECK(protocol::parse_bytes("1.5GiB", 0, kMax).value == 1'610'612'736);
  CHECK(protocol::parse_rate("1.5GiB/s", 0, kMax).value == 1'610'612'736);
  for (const char* text : {"-1", "0x10", "12abc", "", " ", "1 2", "1e3", "1.5", "GiB", "1GiB1", "\xff"}) {
    CAPTURE(text);
    for (const auto& error : {protocol::parse_bytes(text, 0, kMax).error, protocol::parse_rate(text, 0, kMax).error,
                              protocol::parse_u64(text, 0, kMax).error}) {
      CHECK(error.find("allowed is") != std::string::npos);
      CHECK(error.starts_with("\""));
    }
  }
}

}  // namespace faults_test
