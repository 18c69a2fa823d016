// SPDX-License-Identifier: Apache-2.0
//
// Two things under one key, or one thing under two keys.
#include "protocol/geometry.hpp"
#include "protocol/placement.hpp"
#include "protocol/shard_key_core.hpp"
#include "tests/faults/fixture.hpp"

namespace faults_test {

TEST_CASE("namespaces that differ in anything never see each other's pages, though the page hashes are the same") {
  // What differs: dtype, key and value dtypes, weights, revision, page tokens, tenant, or only where a delimiter stands.
  const std::vector<std::string> texts{
      "model=m;dtype=bf16",  "model=m;dtype=fp8",     "model=m;k=fp8;v=bf16", "model=m;k=bf16;v=fp8",     "model=m;weights=aa",
      "model=m;weights=ab",  "model=m;revision=1",    "model=m;revision=2",   "model=m;page=16",          "model=m;page=64",
      "model=m;tenant=a",    "model=m;tenant=b",      "model=m",              "model=m ",                 "Model=m",
      "a/b:c|d",             "a/b|c:d",               std::string("a\0b", 3), std::string("a\0c", 3),     std::string("a", 1),
      std::string("\xff\xfe"), std::string(4096, 'x'), std::string(4095, 'x'),  std::string(4095, 'x') + "y"};
  auto runtime = start();
  std::vector<std::unique_ptr<Model>> models;
  for (std::size_t i = 0; i < texts.size(); ++i)
    models.push_back(std::make_unique<Model>(*runtime, texts[i], std::vector<PoolPlan>{{"kv", false, 64, 1}}, 1, 4, 1000 * i));
  const auto pages = chain_of(1, 4);
  for (std::size_t i = 0; i < models.size(); ++i) {
    CAPTURE(texts[i]);
    CHECK(models[i]->lookup(pages).restorable_pages == 0);
    CHECK(models[i]->existing(0, 0, pages) == 0);
    CHECK(!runtime->stat(models[i]->ns, pages[0])->found);
    const auto put = models[i]->put(0, pages, {0});
    put->wait();
    CHECK(all_are(*put, Verdict::stored));
  }
  CHECK(runtime->stats().objects_now == 4 * models.size());
  for (std::size_t i = 0; i < models.size(); ++i) {
    const auto found = models[i]->lookup(pages);
    CHECK(found.restorable_pages == 4);
    CHECK(models[i]->load(0, 0, found.lease, pages) == 4);  // with this namespace's own bytes
  }
  // A new version of the weights: the old name space goes, on every partition, and no other.
  const auto removed = *runtime->remove_namespace(models[0]->ns);
  removed->wait();
  CHECK(removed->count() == 4);
  CHECK(models[0]->existing(0, 0, pages) == 0);
  for (std::size_t i = 1; i < models.size(); ++i) CHECK(models[i]->existing(0, 0, pages) == 4);
}

TEST_CASE("removing a version's pages reaches all partitions") {
  auto config = small_config();
  config.partitions = 4;
  auto runtime = start(config);
  Model old_weights(*runtime, "m;version=1", {{"kv", false, 64, 1}}, 1, 64);
  Model new_weights(*runtime, "m;version=2", {{"kv", false, 64, 1}}, 1, 64);
  const auto pages = chain_of(1, 64);
  old_weights.put(0, pages, {0})->wait();
  CHECK(new_weights.existing(0, 0, pages) == 0);
  const auto removed = *runtime->remove_namespace(old_weights.ns);
  removed->wait();
  CHECK(removed->count() == 64);
  CHECK(old_weights.existing(0, 0, pages) == 0);
  CHECK(old_weights.lookup(pages).restorable_pages == 0);
  for (const auto& page : pages) CHECK(!runtime->stat(old_weights.ns, page)->found);
}

TEST_CASE("names of pools with any delimiter name different pools, and each keeps its own bytes") {
  auto runtime = start();
  const std::vector<std::string> names{"kv", "kv ", "kv/0", "kv:0", "kv|0", "kv#0", std::string("kv\0a", 4), std::string("kv\0b", 4),
                                       std::string("\xc3\x28"), std::string(255, 'p'), std::string(254, 'p')};
  std::vector<PoolPlan> plans;
  for (const auto& name : names) plans.push_back({name, false, 64, 1});
  Model model(*runtime, "m", plans, 1, 4);
  const auto pages = chain_of(1, 4);
  for (std::size_t p = 0; p < names.size(); ++p) {
    CAPTURE(names[p]);
    CHECK(model.existing(p, 0, pages) == 0);
    model.put(0, pages, {p})->wait();
    CHECK(model.existing(p, 0, pages) == 4);
  }
  const auto found = model.lookup(pages);
  CHECK(found.restorable_pages == 4);
  for (std::size_t p = 0; p < names.size(); ++p) CHECK(model.load(0, p, found.lease, pages) == 4);
  const auto stat = *runtime->stat(model.ns, pages[0]);
  REQUIRE(stat.objects.size() == names.size());
  for (const auto& name : names)
    CHECK(std::count_if(stat.objects.begin(), stat.objects.end(), [&](const auto& o) { return o.pool == name; }) == 1);
}

TEST_CASE("every way of asking uses the key under which a rank has put") {
  for (const std::uint32_t partitions : {1U, 3U}) {
    auto config = small_config();
    config.partitions = partitions;
    auto runtime = start(config);
    Model model(*runtime, "m", {{"replicated", false, 128, 2}, {"sharded", true, 192, 2}}, 8, 16);
    const auto pages = chain_of(1, 16);
    for (std::size_t r = 0; r < 8; ++r) {
      CAPTURE(r);
      const auto shard = static_cast<std::uint32_t>(r);
      CHECK(model.existing(1, shard, pages) == 0);  // the other ranks' shards are not this one's
      CHECK(model.lookup(pages).restorable_pages == 0);
      const auto put = model.put(r, pages, {0, 1});
      put->wait();
      CHECK(put->succeeded() == 32);
      CHECK(model.existing(1, shard, pages) == 16);
      CHECK(model.existing(0, 0, pages) == 16);
      const auto own = model.ranks[r].rank->exists(model.ranks[r].pools[1].handle, pages);
      CHECK(own.value == std::vector<std::uint8_t>(16, 1));
    }
    // 16 replicated objects once, and 16 of each of the eight shards.
    CHECK(runtime->stats().objects_now == 16 + 16 * 8);
    CHECK(runtime->stats().moved_bytes == 16 * model.object_bytes(0) + 16 * 8 * model.object_bytes(1));
    const auto found = model.lookup(pages);
    REQUIRE(found.restorable_pages == 16);
    for (std::size_t r = 0; r < 8; ++r) {
      CHECK(model.load(r, 0, found.lease, pages) == 16);
      CHECK(model.load(r, 1, found.lease, pages) == 16);  // rank r's bytes, not another's
    }
    CHECK(runtime->stat(model.ns, pages[3])->objects.size() == 9);
    const auto removed = *runtime->remove_key(model.group, "sharded", 5, pages[15]);
    removed->wait();
    CHECK(removed->count() == 1);
    for (std::uint32_t s = 0; s < 8; ++s) CHECK(model.existing(1, s, pages) == (s == 5 ? 15 : 16));
    const auto incomplete = model.lookup(pages);
    CHECK(incomplete.restorable_pages == 15);
    CHECK(incomplete.missing_pool == "sharded");
    CHECK(incomplete.missing_shard == 5);
  }
}

TEST_CASE("page hashes that differ in one bit of 256 are different pages") {
  auto config = small_config();
  config.verify_sample = 0;
  auto runtime = start(config);
  Model model(*runtime, "m", {{"kv", false, 64, 1}}, 1, 1);
  // Each pair agrees in three of its four words and in 63 bits of the fourth: whatever 64 bits a table takes of a hash, some
  // pairs agree there. Only one of each pair is put.
  const PageHash base = page_of(7, 0);
  const auto flipped = [&](std::size_t bit) {
    PageHash page = base;
    page.words[bit / 64] ^= 1ULL << (bit % 64);
    return page;
  };
  for (std::size_t bit = 0; bit < 256; bit += 2) model.put(0, {flipped(bit)}, {0})->wait();
  CHECK(runtime->stats().objects_now == 128);
  CHECK(model.existing(0, 0, {base}) == 0);
  for (std::size_t bit = 0; bit < 256; ++bit) {
    CAPTURE(bit);
    const bool there = bit % 2 == 0;
    const std::vector<PageHash> page{flipped(bit)};
    CHECK(model.existing(0, 0, page) == (there ? 1 : 0));
    const auto found = model.lookup(page);
    CHECK(found.restorable_pages == (there ? 1 : 0));
    if (there) CHECK(model.load(0, 0, found.lease, page) == 1);
  }
}

TEST_CASE("page hashes whose 64-bit hash value is the same are different pages") {
  auto runtime = start();
  Model model(*runtime, "m", {{"kv", false, 64, 1}}, 1, 2);
  PageHash first = page_of(7, 0);
  PageHash second = first;
  second.words[3] = ~first.words[3];  // no part of std::hash
  PageHash third = first;
  third.words[2] ^= 0x10;
  third.words[0] ^= 0x20;  // cancels out in std::hash
  REQUIRE(std::hash<PageHash>{}(first) == std::hash<PageHash>{}(second));
  REQUIRE(std::hash<PageHash>{}(first) == std::hash<PageHash>{}(third));
  model.put(0, {first}, {0})->wait();
  for (const PageHash& other : {second, third}) {
    CHECK(model.existing(0, 0, {other}) == 0);
    CHECK(model.lookup({other}).restorable_pages == 0);
    const auto lease = model.lookup({first}).lease;
    CHECK(model.load(0, 0, lease, {other}) == 0);
  }
  model.put(0, {second}, {0})->wait();
  model.put(0, {third}, {0})->wait();
  for (const PageHash& page : {first, second, third}) CHECK(model.load(0, 0, model.lookup({page}).lease, {page}) == 1);
}

TEST_CASE("keys with every bit set or none, and chains of them, are keys like others") {
  for (const std::uint32_t partitions : {1U, 64U}) {
    auto config = small_config();
    config.arena_bytes = 256ULL << 20;
    config.index_pages = 64 * 1024;
    config.partitions = partitions;
    auto runtime = start(config);
    Model model(*runtime, "m", {{"kv", false, 64, 1}}, 1, 8);
    constexpr std::uint64_t kOnes = ~std::uint64_t{0};
    const std::vector<PageHash> pages{PageHash{{0, 0, 0, 0}},         PageHash{{kOnes, kOnes, kOnes, kOnes}}, PageHash{{1ULL << 63, 0, 0, 0}},
                                      PageHash{{0, 1ULL << 63, 0, 0}}, PageHash{{0, 0, 1ULL << 63, 0}},        PageHash{{0, 0, 0, 1ULL << 63}},
                                      PageHash{{kOnes, 0, 0, 0}},     PageHash{{0, 0, 0, kOnes}}};
    const auto put = model.put(0, pages, {0});
    put->wait();
    CHECK(all_are(*put, Verdict::stored));
    const auto found = model.lookup(pages);
    CHECK(found.restorable_pages == 8);
    CHECK(model.load(0, 0, found.lease, pages) == 8);
  }
}

TEST_CASE("keys, digests and owners are the same in every process") {
  // Numbers from an earlier run: a hash that is seeded at random, or differs from machine to machine, does not give them.
  using namespace kvonce::protocol;
  const std::vector<PageHash> pages = chain_of(1, 3);
  const Digest128 text = text_digest("request 1");
  CHECK(text.high == 6657641496066614883U);
  CHECK(text.low == 4151573019278562468U);
  const Digest128 lookup = lookup_digest(7, pages);
  CHECK(lookup.high == 17486688357991295593U);
  CHECK(lookup.low == 3336941904795036443U);
  PoolGeometry geometry;
  std::byte* const base = reinterpret_cast<std::byte*>(std::uintptr_t{0x10000});
  REQUIRE(PoolGeometry::create({{"k", {{base, 64, 48}}}}, 8, &geometry, nullptr));
  CHECK(geometry.layout_digest() == 5234906293187287903U);
  const Placement placement = Placement::local(8);
  std::string owners;
  for (std::uint64_t i = 0; i < 12; ++i) owners += std::to_string(placement.owner(3, page_of(1, i)));
  CHECK(owners == "372105465361");
}

TEST_CASE("a pool that is registered again with other buffers is refused, and the first registration still works") {
  Engine engine;
  TestRank& r = engine.ranks[0];
  Rows others(r.rows->rows, r.rows->row_bytes, r.rows->layers.size());
  PoolSpec spec;
  spec.name = "latent";
  spec.shard = Coordinates{};
  spec.components.push_back(others.component("kv"));
  spec.rows = others.rows;
  CHECK(says(r.rank->register_pool(spec).error, "'latent'", "registered already with other buffers"));
  const auto put = engine.put(0, 1, 0, 4);
  put->wait();
  CHECK(put->succeeded() == 4);
  const auto found = engine.lookup(1, 4);
  r.rows->clear();
  engine.load(0, found.lease, 1, 4)->wait();
  for (std::size_t i = 0; i < 4; ++i) CHECK(r.rows->holds(i, page_of(1, i)));
  for (std::size_t i = 0; i < 4; ++i) CHECK(others.is_zero(i));
}

}  // namespace faults_test
