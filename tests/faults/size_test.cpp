// SPDX-License-Identifier: Apache-2.0
//
// Sizes: none, one, odd, the most; and groups of pools of different sizes.
#include "runtime/core.hpp"
#include "tests/faults/fixture.hpp"

namespace faults_test {

TEST_CASE("batches of any size have one answer for each item and come back whole") {
  for (const std::uint64_t inline_bytes : {std::uint64_t{0}, std::uint64_t{1} << 20}) {
    auto config = small_config();
    config.arena_bytes = 64ULL << 20;
    config.index_pages = 131'072;
    config.inline_copy_bytes = inline_bytes;
    config.partitions = inline_bytes == 0 ? 3 : 1;
    auto runtime = start(config);
    Model model(*runtime, "m", {{"kv", false, 64, 1}}, 1, 65'536);
    std::uint64_t chain = 1;
    for (const std::size_t count : {1U, 2U, 127U, 128U, 129U, 10'000U, 65'536U}) {
      CAPTURE(count);
      const auto pages = chain_of(chain++, count);
      const auto put = model.put(0, pages, {0});
      put->wait();
      REQUIRE(put->results().size() == count);
      CHECK(all_are(*put, Verdict::stored));
      CHECK(model.existing(0, 0, pages) == count);
      const auto found = model.lookup(pages);
      CHECK(found.restorable_pages == count);
      CHECK(model.load(0, 0, found.lease, pages) == count);
      CHECK(!runtime->release(found.lease));
    }
  }
}

TEST_CASE("on every path a put and a load have as many results as items") {
  constexpr std::size_t kItems = 10;
  const auto count = [&](const auto& operation) {
    operation->wait();
    CHECK(operation->results().size() == kItems);
    return operation;
  };
  PutOptions never_put;
  never_put.after = Event::make();
  LoadOptions never_load;
  never_load.after = Event::make();
  Engine engine(2);
  TestRank& r = engine.ranks[0];
  CHECK(all_are(*count(engine.put(0, 1, 0, kItems)), Verdict::stored));
  CHECK(all_are(*count(engine.put(1, 1, 0, kItems)), Verdict::already_stored));
  auto disk = PutOptions{};
  disk.level = AckLevel::replicated;
  CHECK(all_are(*count(engine.put(0, 2, 0, kItems, disk)), Verdict::rejected));
  auto late = never_put;
  late.timeout = milliseconds(5);
  CHECK(all_are(*count(engine.put(0, 3, 0, kItems, late)), Verdict::unknown));
  const auto canceled = engine.put(0, 4, 0, kItems, never_put);
  canceled->cancel();
  CHECK(all_are(*count(canceled), Verdict::unknown));
  PutBatch nowhere;
  nowhere.pages = chain_of(5, kItems);
  for (std::uint32_t i = 0; i < kItems; ++i) nowhere.items.push_back({i, {77}, i});
  CHECK(all_are(*count(*r.rank->put(nowhere)), Verdict::rejected));
  for (auto& item : nowhere.items) item.pool = r.pool, item.row = ~std::uint64_t{0};
  CHECK(all_are(*count(*r.rank->put(nowhere)), Verdict::rejected));

  const auto lease = engine.lookup(1, kItems).lease;
  CHECK(all_are(*count(engine.load(0, lease, 1, kItems)), Reason::none));
  CHECK(all_are(*count(engine.load(0, {1, 1}, 1, kItems)), Reason::lease_unknown));
  CHECK(all_are(*count(engine.load(0, lease, 6, kItems)), Reason::absent));
  auto late_load = never_load;
  late_load.timeout = milliseconds(5);
  CHECK(all_are(*count(engine.load(0, lease, 1, kItems, late_load)), Reason::deadline));
  const auto canceled_load = engine.load(0, lease, 1, kItems, never_load);
  canceled_load->cancel();
  CHECK(all_are(*count(canceled_load), Reason::canceled));
  LoadOptions beyond;
  beyond.layer_begin = 50;
  beyond.layer_end = 60;
  count(engine.load(0, lease, 1, kItems, beyond));
  for (const std::size_t n : {0U, 1U, 10U, 1000U}) {
    CHECK(r.rank->exists(r.pool, chain_of(1, n))->size() == n);
    CHECK(engine.runtime->exists(engine.group, "latent", 0, chain_of(7, n))->size() == n);
  }

  // A pool that closes, a rank that closes, a store that ends, a runtime that stops.
  const auto held = engine.put(0, 8, 0, kItems, never_put);
  const auto held_load = engine.load(0, lease, 1, kItems, never_load);
  CHECK(r.rank->unregister_pool(r.pool, milliseconds(1)).reason == Reason::deadline);
  CHECK(all_are(*count(engine.put(0, 9, 0, kItems)), Verdict::rejected));
  CHECK(all_are(*count(engine.load(0, lease, 1, kItems)), Reason::closed));
  CHECK(!r.rank->close());
  CHECK(all_are(*count(held), Verdict::unknown));
  CHECK(all_are(*count(held_load), Reason::closed));
  const auto lost = engine.put(1, 10, 0, kItems, never_put);
  engine.runtime->impl().core->host->end_store(0);
  CHECK(all_are(*count(lost), Verdict::unknown));
  CHECK(all_are(*count(engine.load(1, lease, 1, kItems)), Reason::store_lost));
  const auto after = engine.put(1, 11, 0, kItems);
  count(after);
  CHECK(after->succeeded() == 0);
}

TEST_CASE("objects of one, 64 and 4,096 ranges of odd sizes come back byte for byte, whole and by layers") {
  for (const std::size_t ranges : {1U, 64U, 4096U}) {
    for (const std::uint64_t row_bytes : {1U, 3U, 63U, 65U, 257U}) {
      CAPTURE(ranges);
      CAPTURE(row_bytes);
      auto runtime = start();
      Model model(*runtime, "m", {{"state", false, row_bytes, ranges}}, 1, 3);
      const auto pages = chain_of(1, 3);
      const auto put = model.put(0, pages, {0});
      put->wait();
      CHECK(put->succeeded() == 3);
      CHECK(runtime->stats().payload_bytes_now == 3 * ranges * row_bytes);
      const auto found = model.lookup(pages);
      CHECK(model.load(0, 0, found.lease, pages) == 3);
      if (ranges < 3) continue;
      auto& pool = model.ranks[0].pools[0];
      pool.rows->clear();
      LoadOptions middle;
      middle.layer_begin = 1;
      middle.layer_end = 3;
      const auto load = *model.ranks[0].rank->load(found.lease, {{pages[1], pool.handle, 1}}, middle);
      load->wait();
      CHECK(load->loaded() == 1);
      for (std::size_t layer = 0; layer < ranges; ++layer)
        for (std::uint64_t b = 0; b < row_bytes; ++b) {
          const unsigned char right = layer == 1 || layer == 2 ? Rows::byte_of(pages[1], pool.salt, layer, b) : 0;
          REQUIRE(pool.rows->layers[layer][row_bytes + b] == right);
        }
    }
  }
}

TEST_CASE("pools of very different sizes in one group: the bytes used are the sum of the objects', without padding") {
  auto runtime = start();
  Model model(*runtime, "m", {{"index", false, 64, 1}, {"kv", false, 7168, 1}, {"odd", true, 129, 3}, {"one", false, 1, 1}}, 2, 8);
  const auto pages = chain_of(1, 8);
  std::uint64_t sum = 0;
  for (std::size_t r = 0; r < 2; ++r) model.put(r, pages, {0, 1, 2, 3})->wait();
  for (std::size_t p = 0; p < model.plans.size(); ++p) sum += 8 * model.shards(p) * model.object_bytes(p);
  CHECK(sum == 8 * (64 + 7168 + 2 * 387 + 1));
  CHECK(runtime->stats().payload_bytes_now == sum);
  CHECK(runtime->stats().stored_bytes == sum);
  const auto found = model.lookup(pages);
  CHECK(found.restorable_pages == 8);
  for (std::size_t r = 0; r < 2; ++r)
    for (std::size_t p = 0; p < model.plans.size(); ++p) CHECK(model.load(r, p, found.lease, pages) == 8);
}

TEST_CASE("a group of four parts of which three are stored is no hit, and the part that is missing is named") {
  for (std::size_t missing = 0; missing < 4; ++missing) {
    auto runtime = start();
    Model model(*runtime, "m", {{"kv", false, 64, 1}, {"scales", false, 8, 1}, {"index", true, 32, 1}, {"state", true, 256, 1}}, 2, 4);
    const auto pages = chain_of(1, 4);
    std::vector<std::size_t> parts;
    for (std::size_t p = 0; p < 4; ++p)
      if (p != missing) parts.push_back(p);
    for (std::size_t r = 0; r < 2; ++r) model.put(r, pages, parts)->wait();
    const auto found = model.lookup(pages);
    CHECK(found.restorable_pages == 0);
    CHECK(!found.lease);
    CHECK(found.reason == Reason::group_incomplete);
    CHECK(found.missing_pool == model.plans[missing].name);
    // One rank's shard of a sharded part is not the part.
    model.put(0, pages, {missing})->wait();
    CHECK(model.lookup(pages).restorable_pages == (model.plans[missing].sharded ? 0 : 4));
    model.put(1, pages, {missing})->wait();
    CHECK(model.lookup(pages).restorable_pages == 4);
  }
}

TEST_CASE("a state at page 60 of 100 ends what is restorable there, and a draft's own parts are told when they lack") {
  auto runtime = start();
  Model model(*runtime, "m",
              {{"kv", false, 64, 1},
               {"state", false, 256, 1, HitPolicy::trailing(1)},
               {"draft kv", false, 64, 1, HitPolicy::every_page(), true},
               {"draft index", false, 16, 1, HitPolicy::every_page(), true}},
              1, 100);
  const auto pages = chain_of(1, 100);
  model.put(0, pages, {0, 2})->wait();
  PutBatch state;
  state.pages = pages;
  state.items.push_back({59, model.ranks[0].pools[1].handle, 0});
  model.ranks[0].pools[1].rows->fill(0, pages[59], model.ranks[0].pools[1].salt);
  (*model.ranks[0].rank->put(std::move(state)))->wait();
  const auto found = model.lookup(pages);
  CHECK(found.restorable_pages == 60);
  CHECK(found.stops == std::vector<std::uint32_t>{60});
  CHECK(found.resident_pages == 100);
  CHECK(found.first_missing == 60);
  CHECK(found.missing_pool == "state");
  CHECK(found.optional_missing == std::vector<std::string>{"draft index"});
  CHECK(model.load(0, 1, found.lease, {pages[59]}) == 1);
}

TEST_CASE("names at their longest are taken as they are") {
  auto runtime = start();
  const std::string longest(255, 'n');
  Model model(*runtime, std::string(4096, 't'), {{longest, false, 64, 1}}, 1, 4, 0, longest);
  const auto pages = chain_of(1, 4);
  model.put(0, pages, {0})->wait();
  LookupOptions options;
  options.request_id.assign(4096, 'r');
  const auto first = model.lookup(pages, options);
  CHECK(first.restorable_pages == 4);
  CHECK(model.lookup(pages, options).lease == first.lease);
  options.request_id.back() = 's';  // differs in its last byte only: another request
  CHECK(!(model.lookup(pages, options).lease == first.lease));
}

}  // namespace faults_test
