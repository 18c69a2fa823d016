// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "tests/protocol/pool_core_fixture.hpp"

namespace kvonce::protocol::test {

constexpr auto kCopied = CopyOutcome::done;
constexpr std::uint64_t kObject = 4096;

namespace {

Rank parted() { return Rank({}, 1000, 2 * kObject); }

/// The part that the last event began; its rows.
std::vector<std::uint64_t> rows(const Rank& rank) {
  std::vector<std::uint64_t> rows;
  for (const CopyOrder& copy : rank.out.copies)
    for (const CopyOrder::Item& item : copy.items) rows.push_back(item.row);
  return rows;
}
std::uint64_t operation(const Rank& rank) { return rank.out.copies.empty() ? 0 : rank.out.copies[0].operation; }

using Rows = std::vector<std::uint64_t>;

}  // namespace

TEST_CASE("a load in parts looks up and copies one after the other, each twice the size of the one before") {
  Rank rank = parted();
  rank.load(Rank::load_order(1, 9, 5000));
  rank.begun(1);
  CHECK(rows(rank) == Rows{0, 1});
  CHECK(rank.out.load_more == Operations{1});
  CHECK(rank.out.copies[0].deadline == 5000);
  const auto first = operation(rank);
  rank.more(1);
  CHECK(rows(rank) == Rows{2, 3, 4, 5});
  CHECK(rank.out.load_more == Operations{1});
  const auto second = operation(rank);
  rank.more(1);
  CHECK(rows(rank) == Rows{6, 7, 8});
  CHECK(rank.out.load_more.empty());
  const auto third = operation(rank);
  rank.more(1);
  CHECK(rank.nothing());

  // The parts end in any order; the results keep the order of the items, and the pin stays until the last has ended.
  rank.done(second, {kCopied, CopyOutcome::mismatch, kCopied, kCopied});
  CHECK(rank.out.loads_done.empty());
  CHECK(rank.out.load_ends.empty());
  rank.done(first, {CopyOutcome::failed, kCopied});
  CHECK(rank.out.load_ends.empty());
  CHECK(rank.core->rows_lent(0) == 9);
  rank.done(third, {kCopied, kCopied, CopyOutcome::expired});
  CHECK(rank.load_result() == "copy_failed, none, none, checksum_mismatch, none, none, none, none, deadline");
  CHECK(rank.out.load_ends.size() == 1);
  CHECK(rank.out.load_progress.empty());
  CHECK(rank.core->rows_lent(0) == 0);
  CHECK(rank.core->idle());
}

TEST_CASE("progress of a load in parts is told once, when all parts are in place") {
  Rank rank = parted();
  rank.locator.status[{0, 4}] = ReadStatus::absent;  // it does not hold progress back, as in a load of one part
  rank.load(Rank::load_order(1, 4));
  rank.begun(1);
  const auto first = operation(rank);
  rank.more(1);
  CHECK(rows(rank) == Rows{2});
  const auto second = operation(rank);
  rank.core->copy_progress(first, 2, {kCopied, kCopied}, rank.now, rank.next());
  CHECK(rank.nothing());
  rank.done(first, {kCopied, kCopied});
  CHECK(rank.nothing());
  rank.done(second, {kCopied});
  REQUIRE(rank.out.load_progress.size() == 1);
  CHECK(rank.out.load_progress[0].layers_done == Rank::kLayers);
  CHECK(rank.load_result() == "none, none, none, absent");
}

TEST_CASE("a load in layer groups is not cut") {
  Rank rank = parted();
  LoadOrder order = Rank::load_order(1, 5);
  order.layers_per_group = 3;
  rank.load(order);
  rank.begun(1);
  CHECK(rows(rank) == Rows{0, 1, 2, 3, 4, 0, 1, 2, 3, 4});
  CHECK(rank.out.load_more.empty());
}

TEST_CASE("items that are not there are passed over, and a last part of nothing else ends the load") {
  Rank rank = parted();
  for (const std::uint64_t page : {1, 4, 5}) rank.locator.status[{0, page}] = ReadStatus::absent;
  rank.load(Rank::load_order(1, 5));
  rank.begun(1);
  CHECK(rows(rank) == Rows{1, 2});
  const auto first = operation(rank);
  SUBCASE("while the first part is still running") {
    rank.more(1);
    CHECK(rank.nothing());
    rank.done(first, {kCopied, kCopied});
  }
  SUBCASE("after the first part") {
    rank.done(first, {kCopied, kCopied});
    CHECK(rank.nothing());
    rank.more(1);
  }
  CHECK(rank.load_result() == "absent, none, none, absent, absent");
  CHECK(rank.out.load_ends.size() == 1);
  CHECK(rank.core->idle());
}

TEST_CASE("a part of pools that have none of the layers asked for copies nothing, and the next follows") {
  Rank rank = parted();
  LoadOrder order = Rank::load_order(1, 2);
  for (LoadOrderItem& item : order.items) item.pool = 1;  // two layers, 512 bytes
  for (int i = 0; i < 14; ++i) order.items.push_back({page(100 + static_cast<std::uint64_t>(i)), 1, 2});
  order.items.push_back({page(3), 0, 5});
  order.layer_begin = 2;
  rank.load(order);
  rank.begun(1);
  CHECK(rank.out.copies.empty());
  CHECK(rank.out.load_more == Operations{1});
  rank.more(1);
  CHECK(rows(rank) == Rows{5});
  CHECK(rank.out.load_more.empty());
  rank.done(operation(rank), {kCopied});
  CHECK(rank.out.loads_done.size() == 1);
}

TEST_CASE("a cancel in the middle stops all that runs and begins nothing more") {
  Rank rank = parted();
  rank.load(Rank::load_order(1, 9));
  rank.begun(1);
  const auto first = operation(rank);
  rank.more(1);
  const auto second = operation(rank);
  rank.core->cancel_load(1, rank.now, rank.next());
  CHECK(rank.out.cancel_copies == Operations{first, second});
  CHECK(rank.out.loads_done.empty());
  rank.more(1);
  CHECK(rank.nothing());
  rank.done(first, {kCopied, kCopied});
  CHECK(rank.out.loads_done.empty());  // rows of the second part may still be written
  rank.done(second, {kCopied, CopyOutcome::canceled, CopyOutcome::canceled, CopyOutcome::canceled});
  CHECK(rank.load_result() == "none, none, none, canceled, canceled, canceled, canceled, canceled, canceled");
  CHECK(rank.out.load_progress.empty());
  CHECK(rank.out.load_ends.size() == 1);
  CHECK(rank.core->idle());
}

TEST_CASE("between two parts, when nothing runs, a cancel or a close ends the load at once") {
  Rank rank = parted();
  rank.load(Rank::load_order(1, 3));
  rank.begun(1);
  rank.done(operation(rank), {kCopied, kCopied});
  CHECK(rank.nothing());
  SUBCASE("cancel") {
    rank.core->cancel_load(1, rank.now, rank.next());
    CHECK(rank.load_result() == "none, none, canceled");
  }
  SUBCASE("close") {
    rank.core->close(rank.now, rank.next());
    CHECK(rank.load_result() == "none, none, closed");
  }
  CHECK(rank.out.load_ends.size() == 1);
  CHECK(rank.out.copies.empty());
  rank.more(1);
  CHECK(rank.nothing());
  CHECK(rank.core->idle());
}

TEST_CASE("the parts of a load follow also when the store was lost between them") {
  Rank rank = parted();
  rank.load(Rank::load_order(1, 3));
  rank.begun(1);
  rank.done(operation(rank), {kCopied, kCopied});
  rank.core->on_store_lost(rank.now, rank.next());
  CHECK(rank.out.loads_done.empty());
  rank.more(1);
  rank.done(operation(rank), {kCopied});
  CHECK(rank.load_result() == "none, none, none");
  CHECK(rank.core->idle());
}

TEST_CASE("the deadline ends what has not been looked up; the parts that run end by themselves") {
  Rank rank = parted();
  rank.load(Rank::load_order(1, 4, 2000));
  rank.begun(1);
  const auto first = operation(rank);
  CHECK(rank.core->next_deadline() == 2000);
  SUBCASE("by the clock") { rank.advance(2000); }
  SUBCASE("by a part that comes too late") {
    rank.now = 2000;
    rank.more(1);
  }
  CHECK(rank.out.copies.empty());
  CHECK(rank.out.loads_done.empty());
  rank.done(first, {kCopied, CopyOutcome::expired});
  CHECK(rank.load_result() == "none, deadline, deadline, deadline");
  CHECK(rank.core->idle());
  CHECK(rank.core->next_deadline() == kNever);
}

TEST_CASE("between two parts the deadline ends the load at once") {
  Rank rank = parted();
  rank.load(Rank::load_order(1, 3, 2000));
  rank.begun(1);
  rank.done(operation(rank), {kCopied, kCopied});
  rank.advance(2000);
  CHECK(rank.load_result() == "none, none, deadline");
  CHECK(rank.core->idle());
}

TEST_CASE("more of a load that is not there, or has not begun, is nothing") {
  Rank rank = parted();
  rank.more(7);
  CHECK(rank.nothing());
  rank.load(Rank::load_order(1, 9));
  rank.more(1);
  CHECK(rank.nothing());
}

}  // namespace kvonce::protocol::test
