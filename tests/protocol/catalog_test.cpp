// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "protocol/catalog.hpp"

namespace kvonce::protocol {
namespace {

// A registrar and one more partition that only applies.
struct Registry {
  Catalog catalog, copy;
  std::vector<CatalogUpdate> updates;

  template <class Ask>
  RegisterAnswer ask(const Ask& ask) {
    updates.clear();
    RegisterAnswer answer = catalog.ask(ask, updates);
    if (answer.error) CHECK(updates.empty());
    apply();
    return answer;
  }
  void demote(NamespaceId ns, PoolId pool) {
    updates.clear();
    catalog.demote(ns, pool, updates);
    apply();
  }
  void apply() {
    for (const CatalogUpdate& update : updates) {
      catalog.apply(update);
      copy.apply(update);
    }
  }
};

PoolAsk pool_ask(const std::string& name, ShardCounts shards = {}, ShardCounts ranks = {}, std::uint64_t bytes = 100) {
  PoolAsk ask;
  ask.pool.name = name;
  ask.pool.shards = shards;
  ask.pool.size = PoolInfo::Size::known;
  ask.pool.range_bytes = {bytes, 28};
  ask.pool.layout_digest = 11;
  ask.ranks = ranks;
  return ask;
}
GroupPoolAsk member(const std::string& name, ShardCounts shards = {}, ShardCounts ranks = {}, HitPolicy policy = {},
                    bool optional = false) {
  return {name, shards, ranks, policy, optional};
}
bool names(const RegisterAnswer& answer, const std::string& part) {
  return answer.error.text.find(part) != std::string::npos;
}

constexpr ShardCounts kOne{};
constexpr ShardCounts kTp8{8, 1, 1};
constexpr ShardCounts kTp4{4, 1, 1};

}  // namespace

TEST_CASE("the same text is the same namespace, another one is another") {
  Registry registry;
  CHECK(registry.ask(NamespaceAsk{"a"}).ns == 0);
  CHECK(registry.ask(NamespaceAsk{"b"}).ns == 1);
  CHECK(registry.ask(NamespaceAsk{"a"}).ns == 0);
  CHECK(registry.updates.empty());
  CHECK(registry.copy.namespaces() == 2);
  CHECK(registry.copy.find_namespace(1)->text == "b");
  CHECK(registry.copy.find_namespace(2) == nullptr);
}

TEST_CASE("a namespace that is only looked for is not made, and a found one tells its pools") {
  Registry registry;
  CHECK(registry.ask(NamespaceAsk{"a", true}).error.reason == Reason::unknown_namespace);
  CHECK(registry.catalog.namespaces() == 0);
  CHECK(registry.ask(NamespaceAsk{"a"}).known.empty());
  registry.ask(pool_ask("kv", kTp8));
  GroupAsk group;
  group.name = "g";
  group.pools = {member("other")};
  registry.ask(group);
  for (const bool find_only : {true, false}) {
    const auto found = registry.ask(NamespaceAsk{"a", find_only});
    CHECK_FALSE(found.error);
    REQUIRE(found.known.size() == 2);
    CHECK(found.known[0].pool == 0);
    CHECK(found.known[0].name == "kv");
    CHECK(found.known[0].shards == kTp8);
    CHECK(found.known[0].object_bytes == 128);
    CHECK(found.known[1].pool == 1);
    CHECK(found.known[1].object_bytes == 0);  // no rank has registered it
  }
}

TEST_CASE("texts of namespaces have 1 to 4,096 bytes, and there are at most 1,024 of them at a time") {
  Registry registry;
  CHECK(names(registry.ask(NamespaceAsk{""}), "0 bytes; 1 to 4096"));
  CHECK(names(registry.ask(NamespaceAsk{std::string(4097, 'x')}), "4097 bytes"));
  CHECK_FALSE(registry.ask(NamespaceAsk{std::string(4096, 'x')}).error);
  for (int i = 1; i < 1024; ++i) REQUIRE_FALSE(registry.ask(NamespaceAsk{std::to_string(i)}).error);
  CHECK(registry.ask(NamespaceAsk{"more"}).error.reason == Reason::too_many);
}

TEST_CASE("a pool is registered once, and the same registration gives the same id") {
  Registry registry;
  registry.ask(NamespaceAsk{"a"});
  const auto first = registry.ask(pool_ask("kv"));
  CHECK_FALSE(first.error);
  CHECK(registry.updates.size() == 1);
  CHECK(registry.ask(pool_ask("kv")).pool == first.pool);
  CHECK(registry.updates.empty());
  CHECK(registry.ask(pool_ask("kv", kTp8)).pool != first.pool);  // another number of shards: another pool
  CHECK(registry.copy.find_pool(0, 0)->object_bytes == 128);
  REQUIRE(registry.copy.shape(0, 0) != nullptr);
  CHECK(registry.copy.shape(0, 0)->payload_bytes() == 128);
  CHECK(registry.copy.shape(0, 9) == nullptr);
}

TEST_CASE("a shape that was given out stays where it is while more is registered") {
  Registry registry;
  registry.ask(NamespaceAsk{"a"});
  registry.ask(pool_ask("kv"));
  const auto* shape = registry.catalog.shape(0, 0);
  for (int i = 1; i < 64; ++i) registry.ask(pool_ask("p" + std::to_string(i)));
  for (int i = 0; i < 20; ++i) registry.ask(NamespaceAsk{"n" + std::to_string(i)});
  CHECK(registry.catalog.shape(0, 0) == shape);
  CHECK(shape->payload_bytes() == 128);
}

TEST_CASE("another size, layout or policy under a registered name is refused, and the first one stays") {
  Registry registry;
  registry.ask(NamespaceAsk{"a"});
  registry.ask(pool_ask("kv"));
  auto answer = registry.ask(pool_ask("kv", kOne, kOne, 200));
  CHECK(answer.error.reason == Reason::wrong_size);
  CHECK(names(answer, "pool 'kv'"));
  CHECK(names(answer, "228 bytes"));
  CHECK(names(answer, "128 bytes"));
  CHECK(names(answer, "another pool name or another namespace"));
  PoolAsk layout = pool_ask("kv");
  layout.pool.layout_digest = 12;
  CHECK(names(registry.ask(layout), "layout digest 12"));
  PoolAsk policy = pool_ask("kv");
  policy.pool.policy = HitPolicy::trailing(3);
  CHECK(names(registry.ask(policy), "hit policy trailing 3; registered, and so allowed, is every page"));
  PoolAsk none = pool_ask("kv");
  none.pool.size = PoolInfo::Size::none;
  none.pool.range_bytes.clear();
  CHECK(names(registry.ask(none), "no bytes"));
  CHECK_FALSE(registry.ask(pool_ask("kv")).error);
  CHECK(registry.catalog.find_pool(0, 0)->object_bytes == 128);
}

TEST_CASE("bad pools are refused with the thing, the value and what is allowed") {
  Registry registry;
  PoolAsk nowhere = pool_ask("kv");
  CHECK(registry.ask(nowhere).error.reason == Reason::unknown_namespace);
  registry.ask(NamespaceAsk{"a"});
  CHECK(names(registry.ask(pool_ask("")), "0 bytes; 1 to 255"));
  CHECK(names(registry.ask(pool_ask(std::string(256, 'x'))), "256 bytes"));
  CHECK_FALSE(registry.ask(pool_ask(std::string(255, 'x'))).error);
  CHECK(names(registry.ask(pool_ask("kv", {0, 1, 1})), "are 0; 1 to 4096"));
  CHECK(names(registry.ask(pool_ask("kv", {4097, 1, 1})), "are 4097"));
  CHECK(names(registry.ask(pool_ask("kv", {65535, 65535, 65535})), "are 281462092005375"));
  CHECK_FALSE(registry.ask(pool_ask("kv", {64, 8, 8})).error);
  CHECK(names(registry.ask(pool_ask("kv", kOne, {0, 1, 1})), "the ranks of pool 'kv'"));
  CHECK(names(registry.ask(pool_ask("kv", kOne, kOne, 0)), "range 0 has no bytes"));
  CHECK(registry.ask(pool_ask("kv", kOne, kOne, (256 << 20) + 1)).error.reason == Reason::wrong_size);
  PoolAsk unknown = pool_ask("kv");
  unknown.pool.size = PoolInfo::Size::unknown;
  CHECK(registry.ask(unknown).error.reason == Reason::bad_argument);
}

TEST_CASE("a namespace has at most 64 pools, those that only groups named included") {
  Registry registry;
  registry.ask(NamespaceAsk{"a"});
  for (int i = 0; i < 63; ++i) REQUIRE_FALSE(registry.ask(pool_ask("p" + std::to_string(i))).error);
  CHECK(registry.ask(GroupAsk{0, "g", {member("x"), member("y")}}).error.reason == Reason::too_many);
  CHECK_FALSE(registry.ask(GroupAsk{0, "g", {member("x"), member("p1")}}).error);
  CHECK(registry.ask(pool_ask("more")).error.reason == Reason::too_many);
  CHECK_FALSE(registry.ask(pool_ask("p62")).error);
}

TEST_CASE("a group can be described before any memory, and the first rank fills the bytes in") {
  Registry registry;
  registry.ask(NamespaceAsk{"a"});
  const GroupAsk ask{0,
                     "model",
                     {member("kv"), member("state", kTp8, kTp8, HitPolicy::trailing(1)),
                      member("window", kOne, kOne, HitPolicy::trailing(4)), member("draft", kTp8, kTp8, {}, true)}};
  const auto answer = registry.ask(ask);
  REQUIRE_FALSE(answer.error);
  REQUIRE(answer.pools.size() == 4);
  CHECK(registry.copy.find_pool(0, 0)->size == PoolInfo::Size::unknown);
  CHECK(registry.copy.shape(0, 0) == nullptr);
  const GroupInfo* group = registry.copy.find_group(answer.group);
  REQUIRE(group != nullptr);
  CHECK(group->every_page == 1);
  CHECK(group->trailing == 6);
  CHECK(group->optional_pools == 8);
  CHECK(group->trailing_pages_max == 4);
  CHECK(registry.copy.groups_of(0) == std::vector<GroupId>{answer.group});
  CHECK(registry.copy.groups_of(5).empty());

  CHECK(registry.ask(pool_ask("kv")).pool == answer.pools[0].pool);
  CHECK(registry.copy.shape(0, 0) != nullptr);

  // A pool that turns out to have no bytes takes no part.
  PoolAsk none;
  none.pool.name = "window";
  none.pool.policy = HitPolicy::trailing(4);
  none.pool.size = PoolInfo::Size::none;
  CHECK_FALSE(registry.ask(none).error);
  group = registry.copy.find_group(answer.group);
  CHECK(group->trailing == 2);
  CHECK(group->trailing_pages_max == 1);

  const auto again = registry.ask(ask);
  CHECK(again.group == answer.group);
  CHECK(again.pools.size() == 4);
  CHECK(registry.updates.empty());
}

TEST_CASE("bad groups are refused and leave nothing behind") {
  Registry registry;
  CHECK(registry.ask(GroupAsk{0, "g", {member("kv")}}).error.reason == Reason::unknown_namespace);
  registry.ask(NamespaceAsk{"a"});
  CHECK(names(registry.ask(GroupAsk{0, "", {member("kv")}}), "0 bytes; 1 to 255"));
  CHECK(names(registry.ask(GroupAsk{0, "g", {}}), "0 pools; 1 to 64"));
  std::vector<GroupPoolAsk> many;
  for (int i = 0; i < 65; ++i) many.push_back(member("p" + std::to_string(i)));
  CHECK(names(registry.ask(GroupAsk{0, "g", many}), "65 pools; 1 to 64"));
  CHECK(names(registry.ask(GroupAsk{0, "g", {member("kv"), member("kv")}}), "stands twice"));
  CHECK(names(registry.ask(GroupAsk{0, "g", {member("")}}), "the name of a pool has 0 bytes"));
  CHECK(names(registry.ask(GroupAsk{0, "g", {member("kv", {0, 1, 1})}}), "are 0; 1 to 4096"));
  registry.ask(pool_ask("kv"));
  CHECK(names(registry.ask(GroupAsk{0, "g", {member("new"), member("kv", kOne, kOne, HitPolicy::trailing(1))}}),
              "hit policy"));
  CHECK(registry.catalog.find_pool(0, 1) == nullptr);
  CHECK(registry.catalog.groups() == 0);
}

TEST_CASE("a registered group's name does not take another content") {
  Registry registry;
  registry.ask(NamespaceAsk{"a"});
  const auto first = registry.ask(GroupAsk{0, "g", {member("kv"), member("draft", kOne, kOne, {}, true)}});
  CHECK(names(registry.ask(GroupAsk{0, "g", {member("kv")}}), "page group 'g' is asked with 1 pools"));
  CHECK(registry.ask(GroupAsk{0, "g", {member("kv"), member("draft")}}).error.reason == Reason::bad_argument);
  CHECK(registry.ask(GroupAsk{0, "g", {member("kv", kTp8), member("draft", kOne, kOne, {}, true)}}).error);
  const auto turned = registry.ask(GroupAsk{0, "g", {member("draft", kOne, kOne, {}, true), member("kv")}});
  CHECK(turned.group == first.group);
  CHECK(turned.pools[0].optional);
  CHECK_FALSE(registry.ask(GroupAsk{0, "h", {member("kv")}}).error);
  registry.ask(NamespaceAsk{"b"});
  CHECK_FALSE(registry.ask(GroupAsk{1, "g", {member("kv")}}).error);
}

TEST_CASE("a demotion raises the generation, and ranks are sent to the pool sharded by rank") {
  Registry registry;
  registry.ask(NamespaceAsk{"a"});
  const auto first = registry.ask(pool_ask("kv", kOne, kTp8));
  CHECK_FALSE(first.demoted);
  registry.demote(0, first.pool);
  CHECK(registry.updates.size() == 1);
  CHECK(registry.copy.find_pool(0, first.pool)->generation == 1);
  CHECK(registry.copy.find_pool(0, first.pool)->demoted);
  const auto again = registry.ask(pool_ask("kv", kOne, kTp8));
  CHECK(again.demoted);
  CHECK(again.generation == 1);
  CHECK(registry.updates.empty());
  const auto own = registry.ask(pool_ask("kv", kTp8, kTp8));
  CHECK_FALSE(own.demoted);
  CHECK(own.pool != first.pool);
  registry.demote(0, first.pool);  // already done
  CHECK(registry.updates.empty());
  registry.demote(0, own.pool);  // nothing left to split
  CHECK(registry.updates.empty());
  registry.demote(0, 40);
  CHECK(registry.updates.empty());
}

TEST_CASE("a pool becomes splittable by a later rank, and the registration keeps everything else") {
  Registry registry;
  registry.ask(NamespaceAsk{"a"});
  registry.ask(pool_ask("kv", kOne, kOne));
  registry.demote(0, 0);
  CHECK(registry.updates.empty());
  registry.ask(pool_ask("kv", kOne, kTp4));
  CHECK(registry.updates.size() == 1);
  registry.demote(0, 0);
  CHECK(registry.updates.size() == 1);
  CHECK(registry.catalog.find_pool(0, 0)->object_bytes == 128);
}

TEST_CASE("a group that names a demoted pool gets each engine's own successor, and the old group stays") {
  Registry registry;
  registry.ask(NamespaceAsk{"a"});
  registry.ask(pool_ask("kv", kOne, kTp8));
  const GroupAsk tp8{0, "g", {member("kv", kOne, kTp8), member("x")}};
  const GroupAsk tp4{0, "g", {member("kv", kOne, kTp4), member("x")}};
  const auto before = registry.ask(tp8);
  CHECK(registry.ask(tp4).group == before.group);
  registry.demote(0, before.pools[0].pool);
  const auto after8 = registry.ask(tp8);
  REQUIRE_FALSE(after8.error);
  CHECK(after8.group != before.group);
  CHECK(registry.copy.find_pool(0, after8.pools[0].pool)->shards == kTp8);
  CHECK(after8.pools[1].pool == before.pools[1].pool);
  const auto after4 = registry.ask(tp4);
  REQUIRE_FALSE(after4.error);
  CHECK(after4.group != after8.group);
  CHECK(registry.ask(tp8).group == after8.group);
  CHECK(registry.updates.empty());
  CHECK(registry.catalog.find_group(before.group)->pools[0].pool == before.pools[0].pool);
  // Only the demoted pool may differ.
  CHECK(registry.ask(GroupAsk{0, "g", {member("kv", kOne, kTp8), member("x", kTp8)}}).error);
  // Named directly, the successor is the same group.
  CHECK(registry.ask(GroupAsk{0, "g", {member("kv", kTp8, kTp8), member("x")}}).group == after8.group);
}

TEST_CASE("updates that were applied before, or that name nothing, change nothing") {
  Registry registry;
  registry.ask(NamespaceAsk{"a"});
  const auto ns = registry.updates;
  registry.ask(GroupAsk{0, "g", {member("kv")}});
  const auto group = registry.updates;
  for (const auto& update : ns) registry.copy.apply(update);
  for (const auto& update : group) registry.copy.apply(update);
  CHECK(registry.copy.namespaces() == 1);
  CHECK(registry.copy.groups() == 1);
  CatalogUpdate wrong;
  wrong.kind = CatalogUpdate::Kind::demote;
  wrong.pool = 9;
  registry.copy.apply(wrong);
  wrong.ns = 9;
  registry.copy.apply(wrong);
  CHECK(registry.copy.find_pool(0, 9) == nullptr);
}

}  // namespace kvonce::protocol
