// SPDX-License-Identifier: Apache-2.0
//
// Namespaces come and go: which one makes room, what is left of it, and that nothing of it is taken for the next owner's.
#include <doctest/doctest.h>

#include <set>

#include "protocol/namespace_book.hpp"
#include "store_fixture.hpp"

namespace kvonce::protocol::test {
namespace {

using Kind = CatalogUpdate::Kind;

CatalogUpdate of(Kind kind, NamespaceId ns) {
  CatalogUpdate update;
  update.kind = kind;
  update.ns = ns;
  return update;
}

// A store with every place of namespaces taken; `ns` is "model", registered first.
struct FullStore : StoreFixture {
  std::vector<NamespaceId> others;

  explicit FullStore(std::uint32_t partitions = 1) {
    config.partitions = partitions;
    start();
    for (std::uint32_t i = 1; i < kMaxNamespaces; ++i) others.push_back(open("other " + std::to_string(i)).ns);
  }
  RegisterAnswer open(const std::string& text) {
    std::vector<CatalogUpdate> updates;
    const RegisterAnswer answer = store->catalog().ask(NamespaceAsk{text}, updates);
    apply(updates);
    return answer;
  }
  void step_all() {
    for (int i = 0; i < 100'000 && store->step(now, actions); ++i) collect();
    collect();
  }
  void retire(NamespaceId gone) { apply({of(Kind::retire, gone)}); }
  void free(NamespaceId gone) { apply({of(Kind::free, gone)}); }
};

}  // namespace

TEST_CASE("a freed place is the next one's, under another number, and the old number means nothing") {
  FullStore f;
  const NamespaceId old = f.ns;
  const PoolId kv = f.pool("kv", 1, 4096);
  const GroupId group = f.group("g", {{"kv", {}, {}, HitPolicy::every_page(), false}});
  CHECK(f.open("more").error.reason == Reason::too_many);
  f.retire(old);
  CHECK(f.open("more").error.reason == Reason::too_many);  // not before it is free
  CHECK(f.store->catalog().retired() == std::vector<NamespaceId>{old});
  CHECK(f.store->is_empty(old));
  f.free(old);
  const RegisterAnswer fresh = f.open("more");
  REQUIRE_FALSE(fresh.error);
  CHECK(fresh.ns != old);
  CHECK(place_of(fresh.ns) == place_of(old));
  const Catalog& catalog = f.store->catalog();
  CHECK(catalog.namespaces() == kMaxNamespaces);
  CHECK(catalog.find_namespace(old) == nullptr);
  CHECK(catalog.find_pool(old, kv) == nullptr);
  CHECK(catalog.find_group(group) == nullptr);
  CHECK(catalog.find_namespace(fresh.ns)->pools.empty());
  CHECK(f.store->reader().pool(old, kv).shards == 0);
  std::vector<CatalogUpdate> updates;
  CHECK(catalog.ask(PoolAsk{old, {}, {}}, updates).error.reason == Reason::unknown_namespace);
  CHECK(catalog.ask(GroupAsk{old, "g", {}}, updates).error.reason == Reason::unknown_namespace);
  f.apply({of(Kind::retire, old), of(Kind::free, old)});  // told late: not the new owner's
  CHECK(catalog.accepts(fresh.ns));
  // Numbers of groups are never given again.
  f.ns = fresh.ns;
  CHECK(f.group("g", {{"kv", {}, {}, HitPolicy::every_page(), false}}) > group);
}

TEST_CASE("a place has 63 owners before a number comes again, none of them the reserved one") {
  FullStore f;
  std::set<NamespaceId> seen{f.ns};
  NamespaceId owner = f.ns;
  for (std::uint32_t turn = 1; turn < kNamespaceTurns; ++turn) {
    f.retire(owner);
    f.free(owner);
    owner = f.open("turn " + std::to_string(turn)).ns;
    CHECK(owner != kNoNamespace);
    REQUIRE(seen.insert(owner).second);
  }
  f.retire(owner);
  f.free(owner);
  CHECK(f.open("again").ns == f.ns);
}

TEST_CASE("of several free places the one is taken that has been free for longest") {
  FullStore f;
  for (const int i : {5, 3, 9}) {
    f.retire(f.others[i]);
    f.free(f.others[i]);
  }
  for (const int i : {5, 3, 9}) CHECK(place_of(f.open("new " + std::to_string(i)).ns) == place_of(f.others[i]));
}

TEST_CASE("a retired namespace takes nothing in, empties itself, and its pages are not the next owner's") {
  FullStore f;
  const NamespaceId old = f.ns;
  const PoolId kv = f.pool("kv", 1, 4096);
  const GroupId group = f.group("g", {{"kv", {}, {}, HitPolicy::every_page(), false}});
  const SenderId rank = f.rank(1, {{kv, 0}});
  f.put(f.batch(rank, kv, 0, 0, 20));
  f.land_all();
  REQUIRE(f.readable(kv, 0, 19));
  f.put(f.batch(rank, kv, 0, 20, 1));  // granted, and its copy is still running
  const auto running = f.inbox[rank].grants;
  REQUIRE(running.size() == 1);
  f.retire(old);
  CHECK(f.count(rank, Verdict::rejected, Reason::removed) == 1);
  f.put(f.batch(rank, kv, 0, 30, 3));
  CHECK(f.count(rank, Verdict::rejected, Reason::unknown_namespace) == 3);
  CHECK(f.lookup(group, 0, 5).error == Reason::unknown_namespace);
  f.step_all();
  CHECK(f.store->stats().objects_now == 0);
  CHECK_FALSE(f.store->is_empty(old));  // the copy
  f.land_all();
  CHECK(f.store->is_empty(old));
  CHECK(f.store->stats().slot_bytes_now == 0);
  CHECK(f.store->stats().quarantined_bytes_now == 0);
  f.free(old);
  f.audit();
  CHECK(f.lookup(group, 0, 5).error == Reason::unknown_namespace);
  CHECK(f.lookup(99, 0, 5).error == Reason::bad_argument);
  f.put(f.batch(rank, kv, 0, 40, 0));
  // The next owner stores the same page under the same pool number.
  f.ns = f.open("more").ns;
  REQUIRE(place_of(f.ns) == place_of(old));
  REQUIRE(f.pool("kv", 1, 4096) == kv);
  CHECK_FALSE(f.readable(kv, 0, 0));
  const SenderId other = f.rank(2, {{kv, 0}});
  f.put(f.batch(other, kv, 0, 0, 3));
  f.land_all();
  CHECK(f.count(other, Verdict::stored) == 3);
  ObjectLocation location;
  CHECK(f.store->reader().locate(old, page_hash(0), kv, 0, &location) == ReadStatus::absent);
  f.ns = old;
  PutBatch late = f.batch(other, kv, 0, 0, 0);
  late.pages.push_back({page_hash(0), 0, kNoParent});
  late.items.push_back({0, 0, kv, 0, 0, 4096});
  f.put(late);
  CHECK(f.count(other, Verdict::rejected, Reason::unknown_namespace) == 1);
  f.actions.removes.clear();
  RemoveAsk remove;
  remove.what = RemoveAsk::What::ns;
  remove.ns = old;
  f.store->remove(1, remove, f.now, f.actions);
  REQUIRE(f.actions.removes.size() == 1);
  CHECK(f.actions.removes.front().second.error == Reason::unknown_namespace);
}

TEST_CASE("a retired namespace waits for no lease: it ends at once, or with the loads that run, each at its own deadline") {
  FullStore f;
  const NamespaceId old = f.ns;
  const PoolId kv = f.pool("kv", 1, 4096);
  const GroupId group = f.group("g", {{"kv", {}, {}, HitPolicy::every_page(), false}});
  const SenderId rank = f.rank(1, {{kv, 0}});
  f.put(f.batch(rank, kv, 0, 0, 8));
  f.land_all();
  const LeaseId idle = f.lookup(group, 0, 4).lease;
  const LeaseId loading = f.lookup(group, 0, 8).lease;
  REQUIRE(f.begin_load(rank, 1, loading, 1, 2 * kSecond) == Reason::none);
  f.retire(old);
  CHECK(f.begin_load(rank, 2, idle) == Reason::lease_expired);
  CHECK(f.begin_load(rank, 3, loading) == Reason::lease_expired);
  CHECK(f.store->stats().leases_now == 1);
  f.step_all();
  CHECK_FALSE(f.store->is_empty(old));  // the load reads
  f.advance(2 * kSecond);
  CHECK(f.store->stats().leases_now == 0);
  CHECK(f.store->is_empty(old));
  f.free(old);
  f.audit();
}

TEST_CASE("a lookup that waits for other partitions ends when its namespace is retired, and pins nothing any more") {
  FullStore f(2);
  const NamespaceId old = f.ns;
  f.pool("kv", 1, 4096);
  const GroupId group = f.group("g", {{"kv", {}, {}, HitPolicy::every_page(), false}});
  LookupAsk ask;
  ask.token = 5;
  ask.engine = 1;
  ask.group = group;
  ask.time_left = 60 * kSecond;
  for (std::uint64_t page = 0; page < 32; ++page) ask.pages.push_back(page_hash(page));
  f.store->lookup(1, ask, f.now, f.actions);
  REQUIRE(f.actions.part_asks.size() == 1);
  REQUIRE(f.actions.lookups.empty());
  CHECK_FALSE(f.store->is_empty(old));
  f.retire(old);
  REQUIRE(f.actions.lookups.size() == 1);
  CHECK(f.actions.lookups.front().second.token == 5);
  CHECK(f.actions.lookups.front().second.error == Reason::unknown_namespace);
  REQUIRE(f.actions.part_narrows.size() == 1);
  CHECK(f.actions.part_narrows.front().first == 1);
  CHECK(f.store->is_empty(old));
  // The other partition's answer comes late.
  PartLookupAnswer late;
  late.token = f.actions.part_asks.front().second.token;
  late.partition = 1;
  f.store->part_answer(late, f.now, f.actions);
  CHECK(f.actions.lookups.size() == 1);
  CHECK(f.store->stats().leases_now == 0);
}

TEST_CASE("what a partition has of a namespace: nothing, objects, or what cannot go now") {
  FullStore f;
  const std::uint32_t place = place_of(f.ns);
  CHECK(f.store->namespace_use()[place] == NamespaceUse::none);
  const PoolId kv = f.pool("kv", 1, 4096);
  const GroupId group = f.group("g", {{"kv", {}, {}, HitPolicy::every_page(), false}});
  CHECK(f.store->namespace_use()[place] == NamespaceUse::none);
  const SenderId rank = f.rank(1, {{kv, 0}});
  CHECK(f.store->namespace_use()[place] == NamespaceUse::held);  // a rank's pool
  f.put(f.batch(rank, kv, 0, 0, 4));
  f.land_all();
  f.put(f.batch(rank, kv, 0, 4, 1));  // its copy is running
  f.store->detach(rank, false, f.now, f.actions);
  f.collect();
  CHECK(f.store->namespace_use()[place] == NamespaceUse::held);  // a quarantined slot
  f.store->client_fenced(101, f.now, f.actions);
  f.collect();
  CHECK(f.store->namespace_use()[place] == NamespaceUse::objects);
  const LookupAnswer found = f.lookup(group, 0, 4);
  REQUIRE(found.restorable_pages == 4);
  CHECK(f.store->namespace_use()[place] == NamespaceUse::held);
  CHECK(f.store->release(LeaseCall{found.lease, 1, 0}, f.now, f.actions) == Reason::none);
  f.collect();
  CHECK(f.store->namespace_use()[place] == NamespaceUse::objects);
  for (const NamespaceId other : f.others) REQUIRE(f.store->namespace_use()[place_of(other)] == NamespaceUse::none);
}

TEST_CASE("objects that were evicted leave an empty namespace") {
  FullStore f;
  const PoolId kv = f.pool("kv", 1, 4096);
  const SenderId first = f.rank(1, {{kv, 0}});
  f.put(f.batch(first, kv, 0, 0, 1));
  f.land_all();
  const NamespaceId old = f.ns;
  f.store->detach(first, true, f.now, f.actions);
  f.ns = f.others.front();
  const PoolId more = f.pool("kv", 1, 64 << 10);
  const SenderId second = f.rank(2, {{more, 0}});
  for (std::uint64_t i = 0; i < 200; ++i) {
    PutBatch put = f.batch(second, more, 0, 1000 + i, 1);
    put.has_parent = false;
    put.pages.front().parent = kNoParent;
    f.put(put);
    f.land_all();
  }
  CHECK(f.store->stats().evicted_objects > 0);
  CHECK(f.store->namespace_use()[place_of(old)] == NamespaceUse::none);
  CHECK(f.store->namespace_use()[place_of(f.ns)] == NamespaceUse::held);
}

TEST_CASE("the one that goes is open nowhere and held by nobody, empty before full, and left first") {
  FullStore f;
  const Catalog& catalog = f.store->catalog();
  NamespaceBook book;
  std::vector<NamespaceUse> use(kMaxNamespaces, NamespaceUse::none);
  for (std::uint32_t place = 0; place < kMaxNamespaces; ++place) book.opened(1 + place % 3, catalog.at_place(place));
  book.opened(9, f.others[4]);
  book.opened(9, f.others[4]);  // twice is once
  CHECK_FALSE(book.oldest(catalog, use));
  book.closed(1, f.others[6]);  // not the one who has it
  CHECK_FALSE(book.oldest(catalog, use));
  book.closed(1 + place_of(f.others[4]) % 3, f.others[4]);
  CHECK_FALSE(book.oldest(catalog, use));
  book.closed(9, f.others[4]);
  CHECK(book.oldest(catalog, use) == f.others[4]);
  book.closed(1 + place_of(f.others[2]) % 3, f.others[2]);
  CHECK(book.oldest(catalog, use) == f.others[4]);
  use[place_of(f.others[4])] = NamespaceUse::objects;
  CHECK(book.oldest(catalog, use) == f.others[2]);
  use[place_of(f.others[2])] = NamespaceUse::objects;
  CHECK(book.oldest(catalog, use) == f.others[4]);
  use[place_of(f.others[4])] = NamespaceUse::held;
  CHECK(book.oldest(catalog, use) == f.others[2]);
  f.retire(f.others[2]);
  CHECK_FALSE(book.oldest(catalog, use));
  // A process that leaves closes all that it had.
  book.client_left(3);
  const auto next = book.oldest(catalog, use);
  REQUIRE(next);
  CHECK(place_of(*next) % 3 == 2);
  book.opened(7, *next);
  CHECK(book.oldest(catalog, use) != next);
}

TEST_CASE("a store that is taken over keeps the numbers of namespaces that have had other owners' places, and their pages") {
  FullStore f;
  const NamespaceId old = f.ns;
  f.retire(old);
  f.free(old);
  f.ns = f.open("more").ns;
  f.retire(f.others[7]);  // and one that is on its way out
  const PoolId kv = f.pool("kv", 1, 4096);
  const SenderId rank = f.rank(1, {{kv, 0}});
  f.put(f.batch(rank, kv, 0, 0, 5));
  f.land_all();
  f.retire(f.others[8]);
  f.free(f.others[8]);
  f.store->freeze(f.now, f.actions);
  const std::string snapshot = f.store->snapshot(f.now);
  f.store.reset();
  f.config.incarnation = 78;
  std::string why;
  f.store = StoreCore::restore(f.config, snapshot, f.now, &why);
  REQUIRE_MESSAGE(f.store, why);
  f.audit();
  for (std::uint64_t page = 0; page < 5; ++page) CHECK(f.readable(kv, 0, page));
  const Catalog& catalog = f.store->catalog();
  CHECK(catalog.find_namespace(f.ns)->text == "more");
  CHECK(catalog.find_namespace(old) == nullptr);
  CHECK(catalog.accepts(f.others[7]));  // an ordinary one again
  CHECK(catalog.namespaces() == kMaxNamespaces - 1);
  CHECK(f.open("one more").ns == f.others[8] % kMaxNamespaces);
  CHECK(f.open("two more").error.reason == Reason::too_many);
  // What is new in the other life goes as before.
  f.retire(f.ns);
  f.step_all();
  CHECK(f.store->is_empty(f.ns));
  f.free(f.ns);
  CHECK_FALSE(f.open("two more").error);
}

TEST_CASE("a partition that did not hear that a namespace was freed, and its place given away, is told by the restart") {
  constexpr std::uint32_t kParts = 2;
  StoreConfig configs[kParts];
  const StoreConfig base = StoreFixture().config;
  const std::uint64_t index = (StoreCore::index_bytes(base.index) + 4095) / 4096 * 4096;
  const std::uint64_t share = index + base.slots_bytes;
  const std::unique_ptr<std::byte, decltype(&std::free)> memory(
      static_cast<std::byte*>(std::aligned_alloc(4096, share * kParts)), &std::free);
  std::memset(memory.get(), 0, share * kParts);
  std::vector<std::unique_ptr<StoreCore>> cores;
  for (std::uint32_t p = 0; p < kParts; ++p) {
    configs[p] = base;
    configs[p].max_namespaces = 1;
    configs[p].partition = p;
    configs[p].partitions = kParts;
    configs[p].arena = memory.get();
    configs[p].index_offset = p * share;
    configs[p].slots_offset = p * share + index;
    cores.push_back(std::make_unique<StoreCore>(configs[p]));
  }
  StoreActions out;
  std::vector<CatalogUpdate> updates;
  const auto tell = [&](std::uint32_t partitions) {
    for (std::uint32_t p = 0; p < partitions; ++p)
      for (const CatalogUpdate& update : updates) cores[p]->apply(update, 0, out);
    updates.clear();
  };
  const NamespaceId old = cores[0]->catalog().ask(NamespaceAsk{"old"}, updates).ns;
  tell(kParts);
  PoolAsk ask;
  ask.ns = old;
  ask.pool.name = "kv";
  ask.pool.size = PoolInfo::Size::known;
  ask.pool.range_bytes = {4096};
  REQUIRE_FALSE(cores[0]->catalog().ask(ask, updates).error);
  tell(kParts);
  updates.push_back(of(Kind::retire, old));
  tell(kParts);
  updates.push_back(of(Kind::free, old));
  tell(1);  // the rest gets to partition 0 alone
  const NamespaceId fresh = cores[0]->catalog().ask(NamespaceAsk{"fresh"}, updates).ns;
  REQUIRE(place_of(fresh) == place_of(old));
  tell(1);
  std::vector<std::string> snapshots;
  for (auto& core : cores) snapshots.push_back(core->snapshot(0));
  cores.clear();
  for (StoreConfig& config : configs) config.incarnation = 1234;
  std::string why;
  cores = StoreCore::restore_all(configs, snapshots, 0, &why);
  REQUIRE_MESSAGE(cores.size() == kParts, why);
  for (auto& core : cores) {
    CHECK(core->catalog().find_namespace(old) == nullptr);
    REQUIRE(core->catalog().find_namespace(fresh) != nullptr);
    CHECK(core->catalog().find_namespace(fresh)->text == "fresh");
    CHECK(core->reader().pool(fresh, 0).shards == 0);
    CHECK(core->audit() == "");
  }
}

}  // namespace kvonce::protocol::test
