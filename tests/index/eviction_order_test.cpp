// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "protocol/eviction_order.hpp"
#include "tests/index/index_fixture.hpp"

using namespace kvonce;
using namespace kvonce::protocol;
using namespace kvonce::protocol::test;

namespace {

using Key = std::pair<RecordId, bool>;
struct Naive {
  std::uint64_t stamp = 0;
  bool candidate = false;
};

// (stamp, deepest first): as a number pair that sorts that way.
using Place = std::pair<std::uint64_t, std::int64_t>;

class Both {
 public:
  explicit Both(std::uint32_t pages) : f({pages, 1, 0}), order(f.index) {}

  void touch(Key key) {
    key.second ? order.touch_checkpoint(key.first) : order.touch_page(key.first);
    nodes[key].stamp = stamp;
  }
  void set(Key key, bool candidate) {
    key.second ? order.set_checkpoint_candidate(key.first, candidate) : order.set_page_candidate(key.first, candidate);
    if (const auto at = nodes.find(key); at != nodes.end()) at->second.candidate = candidate;
  }
  void forget(Key key) {
    key.second ? order.forget_checkpoint(key.first) : order.forget_page(key.first);
    nodes.erase(key);
  }
  Place place(Key key) {
    return {nodes.at(key).stamp, -(2 * std::int64_t{f.index.depth(key.first)} + (key.second ? 1 : 0))};
  }
  void check() {
    std::vector<Place> expected;
    std::set<std::uint64_t> stamps{stamp};
    for (const auto& [key, node] : nodes) {
      stamps.insert(node.stamp);
      if (node.candidate) expected.push_back(place(key));
      REQUIRE((key.second ? order.checkpoint_stamp(key.first) : order.stamp(key.first)) == node.stamp);
      REQUIRE((key.second ? order.is_checkpoint_candidate(key.first) : order.is_page_candidate(key.first)) == node.candidate);
    }
    std::sort(expected.begin(), expected.end());
    std::set<Key> seen;
    std::size_t n = 0;
    for (auto at = order.victim(); at; at = order.next_victim(*at), ++n) {
      const Key key{at->record, at->checkpoint};
      REQUIRE(seen.insert(key).second);
      REQUIRE(nodes.at(key).candidate);
      REQUIRE(n < expected.size());
      REQUIRE(place(key) == expected[n]);
    }
    REQUIRE(n == expected.size());
    REQUIRE(order.groups() == stamps.size());
  }

  Fixture f;
  EvictionOrder order;
  std::uint64_t stamp = 0;
  std::map<Key, Naive> nodes;
};

}  // namespace

TEST_CASE("victims come by oldest stamp, then deepest first, after any touches and changes of candidates") {
  for (const std::uint64_t seed : {1, 2, 3, 4}) {
    CAPTURE(seed);
    constexpr std::uint32_t kPages = 60;
    Both both(kPages);
    std::mt19937_64 rng(seed);
    for (std::uint32_t i = 0; i < kPages; ++i) REQUIRE(both.f.index.insert(0, page_of(i), kNone, static_cast<std::uint32_t>(rng() % 20)) == i);
    both.stamp = both.order.begin_touch();
    for (int i = 0; i < 20'000; ++i) {
      const Key key{static_cast<RecordId>(rng() % kPages), rng() % 3 == 0};
      switch (rng() % 10) {
        case 0: {
          const std::uint64_t stamp = both.order.begin_touch();
          REQUIRE(stamp > both.stamp);
          both.stamp = stamp;
          break;
        }
        case 1: both.forget(key); break;
        case 2:
        case 3:
        case 4: both.touch(key); break;
        case 5: both.set(key, false); break;
        default: both.set(key, true); break;
      }
      if (i % 7 == 0) both.check();
    }
  }
}

TEST_CASE("a tree leaves from its leaves, page by page, and parents that became leaves keep their own place") {
  constexpr std::uint32_t kPages = 600;
  Both both(kPages);
  PageIndex& index = both.f.index;
  std::mt19937_64 rng(11);
  std::vector<RecordId> chain;
  std::uint64_t pages = 0;
  // Chains that branch off earlier ones; each put touches its whole path and its last page's checkpoint.
  while (index.records() + 12 < kPages) {
    both.stamp = both.order.begin_touch();
    RecordId at = pages == 0 || rng() % 4 == 0 ? kNone : static_cast<RecordId>(rng() % pages);
    for (std::uint64_t n = 1 + rng() % 10; n != 0; --n) {
      const RecordId parent = at;
      at = index.insert(0, page_of(pages++), parent, parent == kNone ? 0 : index.depth(parent) + 1);
      if (parent != kNone) both.set({parent, false}, false);
    }
    both.touch({at, true});
    both.set({at, true}, true);
    for (RecordId up = at; up != kNone; up = index.parent(up)) both.touch({up, false});
    both.set({at, false}, true);
  }
  both.check();
  std::uint32_t left = index.records();
  Place last{0, 0};
  while (const auto victim = both.order.victim()) {
    const Key key{victim->record, victim->checkpoint};
    const Place place = both.place(key);
    // A whole path is touched together, so a parent never is older than its child and the order is one rising line.
    REQUIRE(place >= last);
    last = place;
    both.forget(key);
    if (key.second) continue;
    REQUIRE(index.children(key.first) == 0);
    REQUIRE_FALSE(both.order.has_checkpoint(key.first));  // deeper than its page, and never newer here
    const RecordId parent = index.parent(key.first);
    index.erase(key.first);
    if (parent != kNone && index.children(parent) == 0) both.set({parent, false}, true);
    if (--left % 50 == 0) both.check();
  }
  CHECK(left == 0);
  CHECK(index.records() == 0);
  CHECK(both.order.groups() == 1);
}

TEST_CASE("what was never touched, or was forgotten, is no candidate") {
  Both both(2);
  const RecordId page = both.f.index.insert(0, page_of(1), kNone, 0);
  both.order.set_page_candidate(page, true);
  both.order.set_checkpoint_candidate(page, true);
  both.order.forget_page(page);
  both.order.forget_checkpoint(page);
  CHECK_FALSE(both.order.victim());
  CHECK_FALSE(both.order.next_victim({page, false}));
  CHECK_FALSE(both.order.has_checkpoint(page));
  CHECK(both.order.stamp(page) == 0);
  CHECK(both.order.checkpoint_stamp(page) == 0);
  both.order.touch_page(page);
  both.order.set_page_candidate(page, true);
  CHECK(both.order.victim() == NodeId{page, false});
  both.order.forget_page(page);
  CHECK_FALSE(both.order.victim());
}
