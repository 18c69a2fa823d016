// SPDX-License-Identifier: Apache-2.0
// How waits end: deadlines, cancels, a lost store, unregister, close.
#include <doctest/doctest.h>

#include "tests/protocol/pool_core_fixture.hpp"

namespace kvonce::protocol::test {

TEST_CASE("at its deadline an item that is not being copied is withdrawn and unknown at once") {
  Rank rank;
  rank.put(Rank::order(1, 2, 2000));
  CHECK(rank.core->next_deadline() == 2000);
  rank.verdict(1, 0, Verdict::stored);
  rank.advance(1999);
  CHECK(rank.nothing());
  rank.advance(2000);
  CHECK(rank.withdrawn() == Items{1});
  CHECK(rank.put_result() == "stored none, unknown deadline");
  CHECK(rank.core->next_deadline() == kNever);
  CHECK(rank.core->idle());
}

TEST_CASE("an item that landed before its deadline but was not answered is withdrawn and unknown") {
  Rank rank;
  rank.put(Rank::order(1, 1, 2000));
  rank.done(rank.grant(1, {0}), {CopyOutcome::done});
  rank.advance(2000);
  CHECK(rank.withdrawn() == Items{0});
  CHECK(rank.put_result() == "unknown deadline");
}

TEST_CASE("an item that is being copied at its deadline hears unknown after the copy has ended") {
  Rank rank;
  rank.put(Rank::order(1, 2, 2000));
  const auto operation = rank.grant(1, {0});
  rank.advance(2000);
  CHECK(rank.withdrawn() == Items{1});  // the other one
  CHECK(rank.out.puts_done.empty());
  CHECK(rank.core->rows_lent(0) == 2);
  rank.verdict(1, 0, Verdict::joined);  // too late
  CHECK(rank.nothing());
  rank.done(operation, {CopyOutcome::expired});
  CHECK(rank.grant_results() == "abandoned");
  CHECK(rank.withdrawn() == Items{0});
  CHECK(rank.put_result() == "unknown deadline, unknown deadline");
}

TEST_CASE("a copy that ends by its deadline before the clock is looked at ends the wait as well") {
  Rank rank;
  rank.put(Rank::order(1, 1, 2000));
  rank.done(rank.grant(1, {0}), {CopyOutcome::expired});
  CHECK(rank.grant_results() == "abandoned");
  CHECK(rank.withdrawn() == Items{0});
  CHECK(rank.put_result() == "unknown deadline");
}

TEST_CASE("a row that is being hashed at the deadline stays lent until that has ended") {
  Rank rank;
  rank.put(Rank::order(1, 1, 2000));
  const auto operation = rank.ask(1, 0, 70);
  rank.advance(2000);
  CHECK(rank.withdrawn() == Items{0});
  CHECK(rank.out.puts_done.empty());
  rank.done(operation, {CopyOutcome::expired});
  CHECK(rank.out.checksums[0].second.answers[0].checksum_count == 0);
  CHECK(rank.put_result() == "unknown deadline");
}

TEST_CASE("the fault land_after_deadline is seen as an expired copy that is told landed") {
  PoolFaults faults;
  faults.land_after_deadline = true;
  Rank rank(faults);
  rank.put(Rank::order(1, 1, 2000));
  rank.done(rank.grant(1, {0}), {CopyOutcome::expired});
  CHECK(rank.grant_results() == "landed");
}

TEST_CASE("the fault forget_deadline is seen as a wait without end") {
  PoolFaults faults;
  faults.forget_deadline = true;
  Rank rank(faults);
  rank.put(Rank::order(1, 1, 2000));
  CHECK(rank.core->next_deadline() == kNever);
  rank.done(rank.grant(1, {0}), {CopyOutcome::expired});
  rank.advance(3000);
  CHECK(rank.out.puts_done.empty());
}

TEST_CASE("the earliest deadline of all puts and loads comes first") {
  Rank rank;
  rank.put(Rank::order(1, 1, 4000));
  rank.put(Rank::order(2, 1, 3000));
  rank.load(Rank::load_order(1, 1, 2500));
  CHECK(rank.core->next_deadline() == 2500);
  rank.advance(3500);
  CHECK(rank.load_result() == "deadline");
  CHECK(rank.out.puts_done.size() == 1);
  CHECK(rank.core->next_deadline() == 4000);
}

TEST_CASE("a canceled put is withdrawn and unknown, after the last read of its rows") {
  Rank rank;
  rank.put(Rank::order(1, 2));
  const auto operation = rank.grant(1, {0});
  rank.core->cancel_put(1, rank.now, rank.next());
  CHECK(rank.withdrawn() == Items{1});
  CHECK(rank.out.cancel_copies == Operations{operation});
  CHECK(rank.out.puts_done.empty());
  rank.done(operation, {CopyOutcome::canceled});
  CHECK(rank.grant_results() == "abandoned");
  CHECK(rank.withdrawn() == Items{0});
  CHECK(rank.put_result() == "unknown canceled, unknown canceled");
  rank.core->cancel_put(1, rank.now, rank.next());
  CHECK(rank.nothing());
}

TEST_CASE("a lost store ends all waits, and running put copies are stopped first") {
  Rank rank;
  rank.put(Rank::order(1, 2));
  rank.put(Rank::order(2, 1));
  const auto operation = rank.grant(1, {1});
  rank.core->on_store_lost(rank.now, rank.next());
  CHECK(rank.put_result() == "unknown store_lost");  // of the second put
  CHECK(rank.out.puts_done[0].id == 2);
  CHECK(rank.out.withdraws.empty());
  CHECK(rank.out.cancel_copies == Operations{operation});
  rank.done(operation, {CopyOutcome::canceled});
  CHECK(rank.put_result() == "unknown store_lost, unknown store_lost");
  rank.put(Rank::order(3, 1));
  CHECK(rank.put_result() == "unknown store_lost");
  CHECK(rank.core->idle());
}

TEST_CASE("after a lost store the loads that were accepted finish from what is mapped, begun or not, and no other begins") {
  Rank rank;
  rank.load(Rank::load_order(1, 1));
  rank.begun(1);
  const auto operation = rank.out.copies[0].operation;
  rank.load(Rank::load_order(2, 1));
  rank.core->on_store_lost(rank.now, rank.next());
  CHECK(rank.out.loads_done.empty());
  CHECK(rank.out.cancel_copies.empty());
  REQUIRE(rank.out.copies.size() == 1);  // the second load's
  const auto unpinned = rank.out.copies[0].operation;
  // What the store had under way: heard too late.
  rank.begun(2, Reason::lease_unknown);
  CHECK(rank.nothing());
  rank.done(operation, {CopyOutcome::done});
  CHECK(rank.load_result() == "none");
  CHECK(rank.out.loads_done[0].id == 1);
  CHECK(rank.out.load_ends.empty());  // nobody to tell
  rank.done(unpinned, {CopyOutcome::done});
  CHECK(rank.load_result() == "none");
  CHECK(rank.out.loads_done[0].id == 2);
  rank.load(Rank::load_order(3, 1));
  CHECK(rank.load_result() == "store_lost");
  CHECK(rank.core->idle());
}

TEST_CASE("a load that was not begun when the store was lost finds nothing where nothing is, and keeps its deadline") {
  Rank rank;
  SUBCASE("not mapped") {
    rank.locator.status[{0, 1}] = ReadStatus::absent;
    rank.load(Rank::load_order(1, 1));
    rank.core->on_store_lost(rank.now, rank.next());
    CHECK(rank.load_result() == "absent");
  }
  SUBCASE("too late") {
    LoadOrder order = Rank::load_order(1, 1);
    order.deadline = rank.now + kMillisecond;
    rank.load(std::move(order));
    rank.now += kMillisecond;
    rank.core->on_store_lost(rank.now, rank.next());
    CHECK(rank.load_result() == "deadline");
  }
  CHECK(rank.out.copies.empty());
  CHECK(rank.core->idle());
}

TEST_CASE("unregister waits for every lent row, and new orders are closed") {
  Rank rank;
  rank.put(Rank::order(1, 1));
  rank.load(Rank::load_order(1, 1));
  rank.core->unregister(0, rank.now, rank.next());
  CHECK(rank.nothing());
  PutOrder order = Rank::order(2, 1);
  order.items.push_back({0, 1, 0});
  rank.put(order);
  REQUIRE(rank.out.ready.size() == 1);
  CHECK(rank.out.ready[0].items.size() == 1);
  rank.verdict(2, 1, Verdict::stored);
  CHECK(rank.put_result() == "rejected closed, stored none");
  rank.load(Rank::load_order(2, 1));
  CHECK(rank.load_result() == "closed");
  rank.begun(1);
  const auto operation = rank.out.copies[0].operation;
  rank.verdict(1, 0, Verdict::stored);
  CHECK(rank.out.unregistered.empty());
  rank.done(operation, {CopyOutcome::done});
  CHECK(rank.out.unregistered == Items{0});
}

TEST_CASE("unregister of a pool with no lent row is answered at once") {
  Rank rank;
  rank.core->unregister(1, rank.now, rank.next());
  CHECK(rank.out.unregistered == Items{1});
  rank.core->unregister(17, rank.now, rank.next());
  CHECK(rank.nothing());
}

TEST_CASE("the fault unregister_early is seen as an answer while rows are lent") {
  PoolFaults faults;
  faults.unregister_early = true;
  Rank rank(faults);
  rank.put(Rank::order(1, 1));
  rank.core->unregister(0, rank.now, rank.next());
  CHECK(rank.out.unregistered == Items{0});
}

TEST_CASE("close ends everything once rows are not used any more, and takes nothing new") {
  Rank rank;
  rank.put(Rank::order(1, 2));
  const auto put_copy = rank.grant(1, {0});
  rank.load(Rank::load_order(1, 1));
  rank.begun(1);
  const auto load_copy = rank.out.copies[0].operation;
  rank.load(Rank::load_order(2, 1));
  rank.core->close(rank.now, rank.next());
  CHECK(rank.withdrawn() == Items{1});
  CHECK(rank.out.cancel_copies == Operations{put_copy, load_copy});
  CHECK(rank.load_result() == "closed");
  CHECK(rank.out.puts_done.empty());
  CHECK_FALSE(rank.core->idle());
  rank.done(put_copy, {CopyOutcome::canceled});
  CHECK(rank.put_result() == "unknown closed, unknown closed");
  rank.done(load_copy, {CopyOutcome::canceled});
  CHECK(rank.load_result() == "closed");
  CHECK(rank.core->idle());
  rank.put(Rank::order(5, 1));
  CHECK(rank.put_result() == "rejected closed");
  rank.load(Rank::load_order(5, 1));
  CHECK(rank.load_result() == "closed");
}

}  // namespace kvonce::protocol::test
