// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "tests/protocol/pool_core_fixture.hpp"

namespace kvonce::protocol::test {

TEST_CASE("redirected items are announced again in one message once the rank has its own key") {
  Rank rank;
  PutOrder order = Rank::order(1, 4, 9000);
  order.has_parent = true;
  rank.put(order);
  rank.redirect(1, {3, 1});
  REQUIRE(rank.out.rekeys.size() == 1);
  CHECK(rank.out.rekeys[0].pool == 0);
  CHECK(rank.out.rekeys[0].generation == 1);
  CHECK(rank.out.ready.empty());
  rank.redirect(1, {2});  // one Rekey per pool and generation
  CHECK(rank.nothing());
  rank.now = 2000;
  rank.rekeyed(0, true);
  REQUIRE(rank.out.ready.size() == 1);
  const PageReady& ready = rank.out.ready[0];
  CHECK(ready.batch == 1);
  CHECK(ready.time_left == 7000);
  REQUIRE(ready.items.size() == 3);
  CHECK(ready.items[0].item == 1);
  CHECK(ready.items[2].item == 3);
  CHECK(ready.pages[ready.items[2].page].hash == page(4));
  CHECK(ready.pages[0].parent == kExternalParent);
  rank.verdict(1, 0, Verdict::joined);
  for (std::uint32_t i = 1; i < 4; ++i) rank.verdict(1, i, Verdict::stored);
  CHECK(rank.put_result() == "joined none, stored none, stored none, stored none");
}

TEST_CASE("an item that was under way under the old key is announced again without another rekey") {
  Rank rank;
  rank.put(Rank::order(1, 2));
  rank.redirect(1, {0});
  rank.rekeyed(0, true);
  rank.redirect(1, {1});
  CHECK(rank.out.rekeys.empty());
  REQUIRE(rank.out.ready.size() == 1);
  CHECK(rank.out.ready[0].items[0].item == 1);
  rank.rekeyed(0, true);  // nobody asked
  CHECK(rank.nothing());
}

TEST_CASE("a running copy of a redirected item is stopped and its grant given back before it is announced again") {
  Rank rank;
  rank.put(Rank::order(1, 1));
  const auto operation = rank.grant(1, {0});
  rank.redirect(1, {0});
  CHECK(rank.out.cancel_copies == Operations{operation});
  rank.rekeyed(0, true);
  CHECK(rank.nothing());  // still being read
  rank.done(operation, {CopyOutcome::canceled});
  CHECK(rank.grant_results() == "abandoned");
  REQUIRE(rank.out.ready.size() == 1);
  CHECK(rank.grant(1, {0}, 9) != 0);
}

TEST_CASE("items put while their pool is being rekeyed are held as well, those of other pools are not") {
  Rank rank;
  rank.put(Rank::order(1, 1));
  rank.redirect(1, {0});
  PutOrder order = Rank::order(2, 1);
  order.items.push_back({0, 1, 0});
  rank.put(order);
  REQUIRE(rank.out.ready.size() == 1);
  CHECK(rank.out.ready[0].items.size() == 1);
  CHECK(rank.out.ready[0].items[0].pool == 1);
  rank.verdict(2, 0, Verdict::stored);  // of an item that was never announced
  rank.rekeyed(0, true);
  REQUIRE(rank.out.ready.size() == 2);
  CHECK(rank.out.ready[0].batch == 1);
  CHECK(rank.out.ready[1].batch == 2);
  CHECK(rank.out.ready[1].items[0].item == 0);
}

TEST_CASE("items whose pool cannot be rekeyed are rejected as unverified, now and later") {
  Rank rank;
  rank.put(Rank::order(1, 2));
  rank.redirect(1, {0});
  rank.rekeyed(0, false);
  rank.redirect(1, {1});
  CHECK(rank.put_result() == "rejected unverified, rejected unverified");
  CHECK(rank.out.rekeys.empty());
  CHECK(rank.core->idle());
}

TEST_CASE("a held item ends by its deadline without a withdraw, and unregister waits for it") {
  Rank rank;
  rank.put(Rank::order(1, 1, 2000));
  rank.redirect(1, {0});
  rank.core->unregister(0, rank.now, rank.next());
  CHECK(rank.nothing());
  rank.advance(2000);
  CHECK(rank.withdrawn().empty());
  CHECK(rank.put_result() == "unknown deadline");
  CHECK(rank.out.unregistered == Items{0});
  rank.rekeyed(0, true);
  CHECK(rank.nothing());
}

TEST_CASE("a store that redirects without end is left after a while") {
  Rank rank;
  rank.put(Rank::order(1, 1));
  int announced = 0;
  for (int i = 0; i < 100 && rank.out.puts_done.empty(); ++i) {
    rank.redirect(1, {0});
    if (!rank.out.rekeys.empty()) rank.rekeyed(0, true);
    announced += static_cast<int>(rank.out.ready.size());
  }
  CHECK(rank.put_result() == "rejected unverified");
  CHECK(announced < 20);
}

TEST_CASE("redirects for what nobody waits for are ignored") {
  Rank rank;
  rank.put(Rank::order(1, 1));
  rank.redirect(2, {0});
  CHECK(rank.nothing());
  rank.redirect(1, {5});
  CHECK(rank.nothing());
  rank.rekeyed(40, true);
  CHECK(rank.nothing());
}

}  // namespace kvonce::protocol::test
