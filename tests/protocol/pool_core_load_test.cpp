// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "tests/protocol/pool_core_fixture.hpp"

namespace kvonce::protocol::test {

constexpr auto kDone = CopyOutcome::done;

TEST_CASE("a load pins its lease first and copies when the store has said so") {
  Rank rank;
  rank.load(Rank::load_order(1, 2, 5000));
  REQUIRE(rank.out.load_begins.size() == 1);
  CHECK(rank.out.load_begins[0].load == 1);
  CHECK(rank.out.load_begins[0].sender == 77);
  CHECK(rank.out.load_begins[0].engine == 88);
  CHECK(rank.out.load_begins[0].lease == LeaseId{5, 6});
  CHECK(rank.out.load_begins[0].time_left == 4000);
  CHECK(rank.out.copies.empty());
  rank.begun(1);
  REQUIRE(rank.out.copies.size() == 1);
  const CopyOrder copy = rank.out.copies[0];
  CHECK(copy.kind == CopyOrder::Kind::from_slot);
  CHECK(copy.owner == 1);
  CHECK(copy.deadline == 5000);
  REQUIRE(copy.items.size() == 2);
  CHECK(copy.items[1].row == 1);
  CHECK(copy.items[1].layer_begin == 0);
  CHECK(copy.items[1].layer_end == Rank::kLayers);
  CHECK(copy.items[1].partition == 1);
  CHECK(copy.items[1].ns == 2);
  CHECK(copy.items[1].store_pool == 10);
  CHECK(copy.items[1].generation == 4);
  CHECK(copy.items[1].location.epoch == 1002);
  rank.begun(1);
  CHECK(rank.nothing());
  CHECK(rank.core->rows_lent(0) == 2);
  rank.done(copy.operation, {kDone, kDone});
  CHECK(rank.load_result() == "none, none");
  REQUIRE(rank.out.load_ends.size() == 1);
  CHECK(rank.out.load_ends[0].load == 1);
  CHECK(rank.out.load_ends[0].lease == LeaseId{5, 6});
  CHECK(rank.core->rows_lent(0) == 0);
  CHECK(rank.core->idle());
}

TEST_CASE("bad items of a load are named each for itself") {
  Rank rank;
  rank.locator.status[{0, 2}] = ReadStatus::absent;
  rank.locator.status[{0, 3}] = ReadStatus::contended;
  LoadOrder order = Rank::load_order(1, 3);
  order.items.push_back({page(1), 9, 0});
  order.items.push_back({page(1), 2, 0});
  order.items.push_back({page(1), 0, Rank::kRows});
  rank.load(order);
  rank.begun(1);
  REQUIRE(rank.out.copies.size() == 1);
  CHECK(rank.out.copies[0].items.size() == 1);
  rank.done(rank.out.copies[0].operation, {kDone});
  CHECK(rank.load_result() == "none, absent, busy, unknown_pool, unknown_pool, row_out_of_range");
}

TEST_CASE("a load of which no item is left does not bother the store") {
  Rank rank;
  LoadOrder order = Rank::load_order(1, 1);
  order.items[0].pool = 9;
  rank.load(order);
  CHECK(rank.load_result() == "unknown_pool");
  CHECK(rank.out.load_begins.empty());
  order = Rank::load_order(2, 1);
  order.layer_begin = order.layer_end = 3;
  rank.load(order);
  CHECK(rank.load_result() == "bad_argument");
  rank.load(Rank::load_order(3, 1, rank.now));
  CHECK(rank.load_result() == "deadline");
  CHECK(rank.core->idle());
}

TEST_CASE("a load that the store refuses ends with its reason") {
  Rank rank;
  rank.load(Rank::load_order(1, 2));
  rank.begun(1, Reason::lease_expired);
  CHECK(rank.load_result() == "lease_expired, lease_expired");
  CHECK(rank.out.load_ends.empty());
  CHECK(rank.core->rows_lent(0) == 0);
}

TEST_CASE("a load whose pages are all gone gives its pin back") {
  Rank rank;
  rank.locator.status[{0, 1}] = ReadStatus::absent;
  rank.load(Rank::load_order(1, 1));
  rank.begun(1);
  CHECK(rank.load_result() == "absent");
  CHECK(rank.out.load_ends.size() == 1);
  CHECK(rank.core->idle());
}

TEST_CASE("layer groups follow one another, and progress is told as whole groups are in place") {
  Rank rank;
  LoadOrder order = Rank::load_order(1, 2);
  order.layer_begin = 1;
  order.layers_per_group = 2;
  rank.load(order);
  rank.begun(1);
  const CopyOrder copy = rank.out.copies[0];
  REQUIRE(copy.items.size() == 6);  // layers 1-2, 3-4, 5
  CHECK(copy.items[1].layer_begin == 1);
  CHECK(copy.items[1].layer_end == 3);
  CHECK(copy.items[2].row == 0);
  CHECK(copy.items[2].layer_begin == 3);
  CHECK(copy.items[5].layer_begin == 5);
  CHECK(copy.items[5].layer_end == 6);
  rank.core->copy_progress(copy.operation, 1, {kDone}, rank.now, rank.next());
  CHECK(rank.nothing());
  rank.core->copy_progress(copy.operation, 3, {kDone, kDone, kDone}, rank.now, rank.next());
  REQUIRE(rank.out.load_progress.size() == 1);
  CHECK(rank.out.load_progress[0].id == 1);
  CHECK(rank.out.load_progress[0].layers_done == 3);
  SUBCASE("several groups at once are told as one") {
    rank.core->copy_progress(copy.operation, 6, std::vector<CopyOutcome>(6, kDone), rank.now, rank.next());
    REQUIRE(rank.out.load_progress.size() == 1);
    CHECK(rank.out.load_progress[0].layers_done == 6);
  }
  SUBCASE("a group that is not whole in place ends progress, also for the groups behind it") {
    const std::vector<CopyOutcome> outcomes{kDone, kDone, kDone, CopyOutcome::mismatch, kDone, kDone};
    rank.core->copy_progress(copy.operation, 6, outcomes, rank.now, rank.next());
    CHECK(rank.nothing());
    rank.done(copy.operation, outcomes);
    CHECK(rank.load_result() == "none, checksum_mismatch");
  }
  SUBCASE("items done without outcomes are not believed") {
    rank.core->copy_progress(copy.operation, 6, {kDone, kDone, kDone}, rank.now, rank.next());
    CHECK(rank.nothing());
  }
}

TEST_CASE("items that failed before the copy do not hold progress back") {
  Rank rank;
  rank.locator.status[{0, 1}] = ReadStatus::absent;
  LoadOrder order = Rank::load_order(1, 2);
  order.layers_per_group = 3;
  rank.load(order);
  rank.begun(1);
  const auto operation = rank.out.copies[0].operation;
  rank.core->copy_progress(operation, 1, {kDone}, rank.now, rank.next());
  REQUIRE(rank.out.load_progress.size() == 1);
  CHECK(rank.out.load_progress[0].layers_done == 3);
  rank.done(operation, {kDone, kDone});
  CHECK(rank.load_result() == "absent, none");
}

TEST_CASE("a pool with fewer layers than others leaves the later groups out") {
  Rank rank;
  LoadOrder order = Rank::load_order(1, 1);
  order.items.push_back({page(2), 1, 0});  // two layers
  order.layers_per_group = 2;
  rank.load(order);
  rank.begun(1);
  CHECK(rank.out.copies[0].items.size() == 4);
  CHECK(rank.out.copies[0].items[1].pool == 1);
  CHECK(rank.out.copies[0].items[2].pool == 0);
  CHECK(rank.out.copies[0].items[3].pool == 0);
}

TEST_CASE("every way a copy can end has its reason") {
  Rank rank;
  rank.load(Rank::load_order(1, 6));
  rank.begun(1);
  rank.done(rank.out.copies[0].operation, {CopyOutcome::mismatch, CopyOutcome::expired, CopyOutcome::canceled,
                                           CopyOutcome::failed, kDone});
  CHECK(rank.load_result() == "checksum_mismatch, deadline, canceled, copy_failed, none, copy_failed");
}

TEST_CASE("the fault skip_load_verification is seen as wrong bytes that are told loaded") {
  PoolFaults faults;
  faults.skip_load_verification = true;
  Rank rank(faults);
  rank.load(Rank::load_order(1, 1));
  rank.begun(1);
  rank.done(rank.out.copies[0].operation, {CopyOutcome::mismatch});
  CHECK(rank.load_result() == "none");
}

TEST_CASE("a deadline before the store has answered ends the load, and a late begin is ended too") {
  Rank rank;
  rank.load(Rank::load_order(1, 1, 2000));
  rank.advance(2000);
  CHECK(rank.load_result() == "deadline");
  CHECK(rank.out.load_ends.empty());
  CHECK(rank.core->idle());
  SUBCASE("when the store did begin") {
    rank.begun(1);
    REQUIRE(rank.out.load_ends.size() == 1);
    CHECK(rank.out.load_ends[0].lease == LeaseId{5, 6});
    CHECK(rank.out.copies.empty());
  }
  SUBCASE("but not when it refused") {
    rank.begun(1, Reason::lease_expired);
    CHECK(rank.nothing());
  }
  rank.begun(1);
  CHECK(rank.nothing());
}

TEST_CASE("a load that begins after its deadline copies nothing") {
  Rank rank;
  rank.load(Rank::load_order(1, 1, 2000));
  rank.now = 2000;
  rank.begun(1);
  CHECK(rank.out.copies.empty());
  CHECK(rank.load_result() == "deadline");
  CHECK(rank.out.load_ends.size() == 1);
}

TEST_CASE("the deadline of a running load is the copy's own") {
  Rank rank;
  rank.load(Rank::load_order(1, 1, 2000));
  rank.begun(1);
  const auto operation = rank.out.copies[0].operation;
  CHECK(rank.core->next_deadline() == kNever);
  rank.advance(2500);
  CHECK(rank.nothing());
  rank.done(operation, {CopyOutcome::expired});
  CHECK(rank.load_result() == "deadline");
}

TEST_CASE("a cancel is answered only after the last write to the load's rows") {
  Rank rank;
  rank.load(Rank::load_order(1, 2));
  rank.begun(1);
  const auto operation = rank.out.copies[0].operation;
  rank.core->cancel_load(1, rank.now, rank.next());
  CHECK(rank.out.cancel_copies == Operations{operation});
  CHECK(rank.out.loads_done.empty());
  rank.core->cancel_load(1, rank.now, rank.next());
  CHECK(rank.nothing());
  rank.done(operation, {kDone, CopyOutcome::canceled});
  CHECK(rank.load_result() == "none, canceled");
  CHECK(rank.out.load_ends.size() == 1);
}

TEST_CASE("a load canceled before it began ends at once, and its late begin is ended too") {
  Rank rank;
  rank.load(Rank::load_order(1, 1));
  rank.core->cancel_load(1, rank.now, rank.next());
  CHECK(rank.load_result() == "canceled");
  rank.begun(1);
  CHECK(rank.out.load_ends.size() == 1);
  CHECK(rank.out.copies.empty());
}

TEST_CASE("the fault cancel_while_writing is seen as an answer while rows are written") {
  PoolFaults faults;
  faults.cancel_while_writing = true;
  Rank rank(faults);
  rank.load(Rank::load_order(1, 1));
  rank.begun(1);
  const auto operation = rank.out.copies[0].operation;
  rank.core->cancel_load(1, rank.now, rank.next());
  CHECK(rank.load_result() == "canceled");
  CHECK_FALSE(rank.core->idle());
  rank.core->copy_progress(operation, 1, {kDone}, rank.now, rank.next());
  CHECK(rank.nothing());
  rank.done(operation, {kDone});
  CHECK(rank.out.load_ends.size() == 1);
  CHECK(rank.out.loads_done.empty());
  CHECK(rank.core->idle());
}

TEST_CASE("messages about loads and operations that are not there are ignored") {
  Rank rank;
  rank.begun(4);
  CHECK(rank.nothing());
  rank.done(99, {kDone});
  CHECK(rank.nothing());
  rank.core->copy_progress(99, 1, {kDone}, rank.now, rank.next());
  CHECK(rank.nothing());
  rank.core->cancel_load(4, rank.now, rank.next());
  CHECK(rank.nothing());
}

}  // namespace kvonce::protocol::test
