// SPDX-License-Identifier: Apache-2.0
//
// An index, its eviction order and ghost list in a later life; and what its owner does when somebody else wrote into it.
#include <doctest/doctest.h>

#include <set>

#include "index_fixture.hpp"
#include "protocol/eviction_order.hpp"
#include "protocol/ghost_list.hpp"

using namespace kvonce;
using namespace kvonce::protocol;
using namespace kvonce::protocol::test;

namespace {

constexpr IndexLimits kLimits{400, 1'600, 64};

// Chains of pages with one or two objects each; some removed again.
struct Filled : Fixture {
  explicit Filled(std::uint64_t seed) : Fixture(kLimits), order(index), random(seed) {
    index.set_pool(1, 0, 1, HitPolicy::every_page(), 0);
    index.set_pool(1, 5, 2, HitPolicy::trailing(2), 3);
    for (std::uint64_t chain = 0; chain < 20; ++chain) {
      RecordId parent = kNone;
      order.begin_touch();
      const std::uint64_t length = 1 + random() % 15;
      for (std::uint64_t i = 0; i < length; ++i) {
        const RecordId record = index.insert(1, page_of(chain * 100 + i), parent, static_cast<std::uint32_t>(i));
        REQUIRE(record != kNone);
        put(record, 0, 0, chain * 100 + i);
        if (random() % 3 == 0) put(record, 5, static_cast<std::uint32_t>(random() % 2), chain * 100 + i);
        order.touch_page(record);
        parent = record;
        records.push_back(record);
      }
    }
    for (const RecordId record : records) {
      if (index.children(record) == 0) order.set_page_candidate(record, true);
      if (random() % 4 != 0) continue;
      order.touch_checkpoint(record);
      order.set_checkpoint_candidate(record, random() % 2 == 0);
    }
    for (int i = 0; i < 30; ++i) {
      const RecordId record = records[random() % records.size()];
      if (!index.in_use(record) || index.children(record) != 0) continue;
      while (index.first_member(record) != kNone) index.drop_member(record, index.first_member(record));
      const RecordId up = index.parent(record);
      order.forget_page(record);
      order.forget_checkpoint(record);
      index.erase(record);
      if (up != kNone) order.set_page_candidate(up, index.children(up) == 0);
    }
  }
  void put(RecordId record, PoolId pool, std::uint32_t shard, std::uint64_t seed) {
    const MemberId member = index.add_claimed(record, pool, shard, 7);
    REQUIRE(member != kNone);
    if (random() % 8 != 0) index.publish(record, member, seed + 1, slot_from(seed, 2), AckLevel::memory);
  }
  std::vector<NodeId> leaving() const {
    std::vector<NodeId> nodes;
    for (auto victim = order.victim(); victim; victim = order.next_victim(*victim)) nodes.push_back(*victim);
    return nodes;
  }

  EvictionOrder order;
  std::mt19937_64 random;
  std::vector<RecordId> records;
};

bool operator==(const EvictionOrder::Saved::Group& a, const EvictionOrder::Saved::Group& b) {
  return a.stamp == b.stamp && a.nodes == b.nodes && a.candidates == b.candidates;
}

}  // namespace

TEST_CASE("an index that is taken over finds, refuses and hands out what it did before") {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    CAPTURE(seed);
    Filled f(seed);
    const PageIndex::Marks marks = f.index.marks();
    const EvictionOrder::Saved saved = f.order.save();
    const std::vector<NodeId> before = f.leaving();
    std::vector<std::tuple<PageHash, RecordId, std::uint64_t, std::uint32_t>> known;
    f.index.for_each([&](RecordId r) { known.emplace_back(f.index.hash(r), r, f.index.full_pools(r), f.index.children(r)); });

    PageIndex later(PageIndex::Adopt{}, f.region.data(), kLimits);
    REQUIRE(later.take_over(marks, 99) == "");
    CHECK(later.reader().incarnation() == 99);
    CHECK(later.reader().slot_incarnation() == 77);
    CHECK(later.records() == known.size());
    for (const auto& [page, record, full, children] : known) {
      CHECK(later.find(1, page) == record);
      CHECK(later.full_pools(record) == full);
      CHECK(later.children(record) == children);
      PageView view;
      CHECK(later.reader().page(1, page, &view) == ReadStatus::found);
      CHECK(view.full_pools == full);
    }
    EvictionOrder order(later);
    REQUIRE(order.restore(saved));
    std::vector<NodeId> after;
    for (auto victim = order.victim(); victim; victim = order.next_victim(*victim)) after.push_back(*victim);
    CHECK(after == before);
    CHECK(order.newest_stamp() == saved.newest_stamp);
    const EvictionOrder::Saved again = order.save();
    CHECK(again.nodes.size() == saved.nodes.size());
    CHECK(std::equal(again.groups.begin(), again.groups.end(), saved.groups.begin(), saved.groups.end(),
                     [](const auto& a, const auto& b) { return a == b; }));
    // To its very limit: no number is handed out twice, none is lost.
    std::uint32_t more = 0;
    while (later.insert(2, page_of(1'000'000 + more), kNone, 0) != kNone) ++more;
    CHECK(known.size() + more == kLimits.max_pages);
    for (const auto& [page, record, full, children] : known) CHECK(later.find(1, page) == record);
  }
}

TEST_CASE("what cannot be an index any more is refused by its reason") {
  Filled f(5);
  const PageIndex::Marks marks = f.index.marks();
  const std::vector<std::byte> right(f.region.data(), f.region.data() + f.region.size());
  const auto take = [&](const PageIndex::Marks& asked, const IndexLimits& limits) {
    PageIndex later(PageIndex::Adopt{}, f.region.data(), limits);
    std::string why = later.take_over(asked, 99);
    std::copy(right.begin(), right.end(), f.region.data());
    return why;
  };
  // The digest as it is now: only the look at the contents is left.
  const auto sealed = [&] {
    const PageIndex::Marks now = f.index.marks();
    return take(now, kLimits);
  };
  CHECK(take(marks, kLimits) == "");
  CHECK(take(marks, {399, 1'600, 64}) == "the arena's index has other limits");
  PageIndex::Marks wrong = marks;
  wrong.incarnation = 78;
  CHECK(take(wrong, kLimits) == "the arena's index is not of the life that wrote the snapshot");
  wrong = marks;
  wrong.record_limit = 401;
  CHECK(take(wrong, kLimits) == "the snapshot counts more records, members or extents than the index can have");
  wrong = marks;
  wrong.digest ^= 1;
  CHECK(take(wrong, kLimits) == "the checksum over the arena's index differs: it was changed since the snapshot was written");
  wrong = marks;
  ++wrong.records;
  CHECK(take(wrong, kLimits).find("the snapshot counts") == 0);

  RecordId child = kNone;
  f.index.for_each([&](RecordId r) {
    if (f.index.parent(r) != kNone) child = r;
  });
  REQUIRE(child != kNone);
  const std::string name = "index record " + std::to_string(child);
  const RecordId parent = f.index.parent(child);
  const MemberId member = f.index.first_member(child);
  f.hot(child).seq |= 1;
  CHECK(sealed() == name + " is in the middle of a change");
  f.hot(child).parent = 399;
  CHECK(sealed() == name + " has the parent 399, which is no record");
  f.hot(child).depth = f.index.depth(parent);
  CHECK(sealed().find("lies no deeper than its parent") != std::string::npos);
  f.hot(parent).children += 1;
  CHECK(sealed().find("children; it has") != std::string::npos);
  f.hot(child).full_pools ^= 1ULL << 9;
  CHECK(sealed().find("are whole") != std::string::npos);
  f.hot(child).first_member = 1'599;
  CHECK(sealed().find(" names the member 1599 of ") != std::string::npos);
  f.member(member).next = member;
  CHECK(sealed() == name + " shares the member " + std::to_string(member));
  f.member(member).info |= 4095U << 6;
  CHECK(sealed().find("has an object of shard 4095 of a pool with") != std::string::npos);
  f.member(member).info &= ~layout::kStateMask;
  CHECK(sealed() == name + " holds a free member");
  f.hot(child).name |= 1U << 20;
  CHECK(sealed().find(name + " has the name ") == 0);
  for (unsigned i = 0; i < 4; ++i) f.hot(child).hash[i] = f.hot(parent).hash[i];
  CHECK(sealed().find("is there twice") != std::string::npos);
}

TEST_CASE("an eviction order that contradicts its index is refused") {
  Filled f(9);
  const EvictionOrder::Saved right = f.order.save();
  const auto restore = [&](const EvictionOrder::Saved& saved) {
    f.index.for_each([&](RecordId r) {
      for (unsigned i = 0; i < 4; ++i) f.index.set_field(r, i, kNone);
    });
    EvictionOrder order(f.index);
    return order.restore(saved);
  };
  REQUIRE(right.groups.size() > 3);
  CHECK(restore(right));
  EvictionOrder::Saved wrong = right;
  wrong.nodes.push_back(right.nodes.front());
  CHECK_FALSE(restore(wrong));
  wrong = right;
  wrong.groups[1].stamp = wrong.groups[0].stamp;
  CHECK_FALSE(restore(wrong));
  wrong = right;
  wrong.groups.back().nodes += 1;
  CHECK_FALSE(restore(wrong));
  wrong = right;
  wrong.groups[0].candidates = wrong.groups[0].nodes + 1;
  CHECK_FALSE(restore(wrong));
  wrong = right;
  wrong.nodes[0] = 399;
  CHECK_FALSE(restore(wrong));
  wrong = right;
  wrong.nodes[1] = wrong.nodes[0];
  CHECK_FALSE(restore(wrong));
  wrong = right;
  wrong.newest_stamp = 1;
  CHECK_FALSE(restore(wrong));
}

TEST_CASE("the owner of an index that others wrote into follows no number out of its tables, and always comes to an end") {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    Filled f(seed % 5 + 1);
    for (int flips = 0; flips < 4; ++flips) {
      const RecordId record = f.records[f.random() % f.records.size()];
      layout::Hot& hot = f.hot(record);
      layout::Member& member = f.member(static_cast<MemberId>(f.random() % f.index.marks().member_limit));
      switch (f.random() % 5) {
        case 0: hot.first_member = static_cast<std::uint32_t>(f.random()); break;
        case 1: hot.parent = static_cast<std::uint32_t>(f.random()); break;
        case 2: member.next = static_cast<std::uint32_t>(f.random() % 4 == 0 ? f.random() : f.random() % 300); break;
        case 3: member.info ^= 1U << f.random() % 27; break;
        default: member.location ^= 1ULL << f.random() % 64; break;
      }
    }
    for (const RecordId record : f.records) {
      if (!f.index.in_use(record)) continue;
      for (std::uint32_t shard = 0; shard < 2; ++shard)
        for (const PoolId pool : {PoolId{0}, PoolId{5}}) {
          const MemberId member = f.index.find_member(record, pool, shard);
          if (member == kNone) continue;
          CHECK(member < kLimits.max_members);
          if (f.index.member(member).state == MemberState::published) CHECK(f.index.slot_of(member).count <= storage::kMaxExtents);
        }
      std::uint32_t walked = 0;
      for (const MemberId member : f.index.members(record)) walked += member < kLimits.max_members ? 1 : kLimits.max_members;
      CHECK(walked <= kLimits.max_members);
      CHECK((f.index.parent(record) == kNone || f.index.parent(record) < kLimits.max_pages));
      f.index.set_pool(1, 5, 2 + record % 2, HitPolicy::trailing(2), 3);  // counts the members of all records
    }
  }
}

TEST_CASE("a ghost list tells what it remembers, oldest first") {
  GhostList list(5);
  const auto all = [&] {
    std::vector<std::uint64_t> seen;
    list.for_each([&](std::uint64_t fingerprint) { seen.push_back(fingerprint); });
    return seen;
  };
  CHECK(all().empty());
  for (const std::uint64_t fingerprint : {1, 2, 3}) list.add(fingerprint);
  CHECK(all() == std::vector<std::uint64_t>{1, 2, 3});
  list.add(1);
  list.erase(2);
  CHECK(all() == std::vector<std::uint64_t>{3, 1});
  for (const std::uint64_t fingerprint : {0, 7, 8, 9, 10}) list.add(fingerprint);
  CHECK(all() == std::vector<std::uint64_t>{0, 7, 8, 9, 10});
}
