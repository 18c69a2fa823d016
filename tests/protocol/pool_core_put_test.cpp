// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "tests/protocol/pool_core_fixture.hpp"

namespace kvonce::protocol::test {

TEST_CASE("a put is announced once, as a chain that continues the caller's parent") {
  Rank rank;
  PutOrder order = Rank::order(1, 3, 5000);
  order.level = AckLevel::disk;
  order.has_parent = true;
  order.parent = page(99);
  order.first_depth = 7;
  rank.put(order);
  REQUIRE(rank.out.ready.size() == 1);
  const PageReady& ready = rank.out.ready[0];
  CHECK(ready.sender == 77);
  CHECK(ready.batch == 1);
  CHECK(ready.level == AckLevel::disk);
  CHECK(ready.time_left == 4000);
  CHECK(ready.has_parent);
  CHECK(ready.parent == page(99));
  REQUIRE(ready.pages.size() == 3);
  CHECK(ready.pages[0].parent == kExternalParent);
  CHECK(ready.pages[0].depth == 7);
  CHECK(ready.pages[2].parent == 1);
  CHECK(ready.pages[2].depth == 9);
  CHECK(ready.pages[2].hash == page(3));
  REQUIRE(ready.items.size() == 3);
  CHECK(ready.items[2].item == 2);
  CHECK(ready.items[2].bytes == 4096);
  CHECK(rank.core->rows_lent(0) == 3);
  rank.put(Rank::order(2, 1));
  CHECK(rank.out.ready[0].pages[0].parent == kNoParent);
  CHECK(rank.out.ready[0].time_left == kNever);
}

TEST_CASE("results come once per put, in the order of its items, when the last one is decided") {
  Rank rank;
  rank.put(Rank::order(1, 3));
  rank.verdict(1, 2, Verdict::already_stored);
  CHECK(rank.nothing());
  rank.verdict(1, 0, Verdict::failed, Reason::copy_failed);
  CHECK(rank.nothing());
  rank.verdict(1, 1, Verdict::joined);
  CHECK(rank.put_result() == "failed copy_failed, joined none, already_stored none");
  CHECK(rank.core->idle());
  CHECK(rank.core->rows_lent(0) == 0);
  rank.verdict(1, 1, Verdict::stored);
  CHECK(rank.nothing());
}

TEST_CASE("one bad item never fails its neighbours") {
  Rank rank;
  PutOrder order = Rank::order(1, 1);
  order.items.push_back({0, 8, 0});             // no such pool
  order.items.push_back({0, 2, 0});             // a pool without bytes
  order.items.push_back({0, 1, Rank::kRows});   // one row too far
  order.items.push_back({1, 1, 0});             // no such page
  order.items.push_back({0, 1, Rank::kRows - 1});
  rank.put(order);
  REQUIRE(rank.out.ready.size() == 1);
  REQUIRE(rank.out.ready[0].items.size() == 2);
  CHECK(rank.out.ready[0].items[1].item == 5);
  rank.verdict(1, 0, Verdict::stored);
  rank.verdict(1, 5, Verdict::stored);
  CHECK(rank.put_result() ==
        "stored none, rejected unknown_pool, rejected unknown_pool, rejected row_out_of_range, rejected bad_argument, "
        "stored none");
}

TEST_CASE("a put with nothing to send is answered at once") {
  Rank rank;
  rank.put(Rank::order(1, 0));
  CHECK(rank.out.puts_done.size() == 1);
  PutOrder order = Rank::order(2, 1);
  order.items[0].pool = 40;
  rank.put(order);
  CHECK(rank.out.ready.empty());
  CHECK(rank.put_result() == "rejected unknown_pool");
  rank.put(Rank::order(3, 1, rank.now));
  CHECK(rank.put_result() == "unknown deadline");
  CHECK(rank.core->idle());
}

TEST_CASE("a put beyond the limit of open items is busy as a whole, with a time to come back") {
  Rank rank({}, 4);
  rank.put(Rank::order(1, 3));
  rank.put(Rank::order(2, 2));
  CHECK(rank.put_result() == "rejected busy, rejected busy");
  CHECK(rank.out.puts_done[0].items[0].retry_after_ms > 0);
  CHECK(rank.out.ready.empty());
  rank.put(Rank::order(3, 1));
  CHECK(rank.out.ready.size() == 1);
  for (std::uint32_t i = 0; i < 3; ++i) rank.verdict(1, i, Verdict::stored);
  rank.put(Rank::order(4, 3));
  CHECK(rank.out.ready.size() == 1);
}

TEST_CASE("the same key twice in one batch is sent once, and the second joins") {
  Rank rank;
  PutOrder order = Rank::order(1, 2);
  order.items.push_back({1, 0, 50});
  order.items.push_back({1, 1, 50});  // another pool: another key
  rank.put(order);
  REQUIRE(rank.out.ready[0].items.size() == 3);
  rank.verdict(1, 2, Verdict::stored);  // forged: nobody asked for it
  rank.verdict(1, 0, Verdict::stored);
  rank.verdict(1, 3, Verdict::stored);
  SUBCASE("when the first is stored") {
    rank.verdict(1, 1, Verdict::stored);
    CHECK(rank.put_result() == "stored none, stored none, joined none, stored none");
  }
  SUBCASE("and hears what the first heard when that failed") {
    rank.verdict(1, 1, Verdict::rejected, Reason::no_space);
    CHECK(rank.put_result() == "stored none, rejected no_space, rejected no_space, stored none");
  }
  CHECK(rank.core->rows_lent(0) == 0);
}

TEST_CASE("a row out of range does not spoil the same key's good row") {
  Rank rank;
  PutOrder order = Rank::order(1, 1);
  order.items.insert(order.items.begin(), {0, 0, Rank::kRows});
  rank.put(order);
  rank.verdict(1, 1, Verdict::stored);
  CHECK(rank.put_result() == "rejected row_out_of_range, stored none");
}

TEST_CASE("granted rows are copied into their slots and reported landed with their checksums") {
  Rank rank;
  rank.put(Rank::order(1, 3, 5000));
  rank.reply(Rank::grants(1, {0, 2}, 41, 3));
  REQUIRE(rank.out.copies.size() == 1);
  const CopyOrder copy = rank.out.copies[0];
  CHECK(copy.kind == CopyOrder::Kind::to_slot);
  CHECK(copy.owner == 1);
  CHECK(copy.deadline == 5000);
  REQUIRE(copy.items.size() == 2);
  CHECK(copy.items[1].row == 2);
  CHECK(copy.items[1].partition == 3);
  CHECK(copy.items[1].location.epoch == 42);
  CHECK(copy.items[1].location.slot.count == 1);
  CHECK(copy.items[1].location.slot.extents[0] == storage::Extent{2 * 8192, 8192});
  rank.core->copy_done(copy.operation, {CopyOutcome::done, CopyOutcome::done}, {2, 1}, {11, 12, 13}, rank.now,
                       rank.next());
  REQUIRE(rank.out.results.size() == 1);
  CHECK(rank.out.results[0].first == 3);
  const GrantResults& results = rank.out.results[0].second;
  CHECK(results.sender == 77);
  CHECK(results.checksums == std::vector<std::uint64_t>{11, 12, 13});
  REQUIRE(results.results.size() == 2);
  CHECK(results.results[1].claim == 502);
  CHECK(results.results[1].epoch == 42);
  CHECK(results.results[1].outcome == GrantOutcome::landed);
  CHECK(results.results[1].first_checksum == 2);
  CHECK(results.results[1].checksum_count == 1);
  CHECK(rank.out.puts_done.empty());
}

TEST_CASE("the grants of several puts in one reply are copied in one operation each") {
  Rank rank;
  rank.put(Rank::order(1, 2));
  rank.put(Rank::order(2, 1, kNever, 50));
  StoreReply reply = Rank::grants(1, {0}, 1);
  reply.grants.push_back({2, 0, 600, 2, 0, 1});
  reply.grants.push_back({1, 1, 601, 3, 0, 1});
  rank.reply(reply);
  REQUIRE(rank.out.copies.size() == 2);
  CHECK(rank.out.copies[0].owner == 1);
  CHECK(rank.out.copies[0].items.size() == 2);
  CHECK(rank.out.copies[1].owner == 2);
}

TEST_CASE("an item whose copy failed stays a waiter and can still join") {
  Rank rank;
  rank.put(Rank::order(1, 1));
  const auto operation = rank.grant(1, {0});
  rank.done(operation, {CopyOutcome::failed});
  CHECK(rank.grant_results() == "failed");
  CHECK(rank.out.puts_done.empty());
  rank.verdict(1, 0, Verdict::joined);
  CHECK(rank.put_result() == "joined none");
}

TEST_CASE("outcomes or checksums that are missing count as a failed copy") {
  Rank rank;
  rank.put(Rank::order(1, 2));
  const auto operation = rank.grant(1, {0, 1});
  rank.core->copy_done(operation, {CopyOutcome::done}, {5}, {1, 2}, rank.now, rank.next());
  CHECK(rank.grant_results() == "failed, failed");
  rank.done(operation, {CopyOutcome::done, CopyOutcome::done});
  CHECK(rank.nothing());
}

TEST_CASE("a verdict that comes during the item's own copy waits until the row is not read any more") {
  Rank rank;
  rank.put(Rank::order(1, 1));
  const auto operation = rank.grant(1, {0});
  rank.verdict(1, 0, Verdict::joined);
  CHECK(rank.out.puts_done.empty());
  CHECK(rank.out.cancel_copies == Operations{operation});
  CHECK(rank.core->rows_lent(0) == 1);
  SUBCASE("when the copy was stopped, its grant is given back") {
    rank.done(operation, {CopyOutcome::canceled});
    CHECK(rank.grant_results() == "abandoned");
  }
  SUBCASE("when it had finished, the store sorts it out") {
    rank.done(operation, {CopyOutcome::done});
    CHECK(rank.grant_results() == "landed");
  }
  CHECK(rank.put_result() == "joined none");
  CHECK(rank.withdrawn().empty());
  CHECK(rank.core->idle());
}

TEST_CASE("a copy is canceled only when no item of it is waiting any more") {
  Rank rank;
  rank.put(Rank::order(1, 2));
  const auto operation = rank.grant(1, {0, 1});
  rank.verdict(1, 0, Verdict::joined);
  CHECK(rank.nothing());
  rank.verdict(1, 1, Verdict::joined);
  CHECK(rank.out.cancel_copies == Operations{operation});
  rank.done(operation, {CopyOutcome::done, CopyOutcome::canceled});
  CHECK(rank.grant_results() == "landed, abandoned");
  CHECK(rank.put_result() == "joined none, joined none");
}

TEST_CASE("the fault deliver_while_reading is seen as a verdict before the copy has ended") {
  PoolFaults faults;
  faults.deliver_while_reading = true;
  Rank rank(faults);
  rank.put(Rank::order(1, 1));
  const auto operation = rank.grant(1, {0});
  rank.verdict(1, 0, Verdict::joined);
  CHECK(rank.put_result() == "joined none");
  CHECK_FALSE(rank.core->idle());
  rank.done(operation, {CopyOutcome::canceled});
  CHECK(rank.grant_results() == "abandoned");
  CHECK(rank.core->idle());
}

TEST_CASE("a grant that comes too late, or that nobody can use, is given back without a copy") {
  Rank rank;
  rank.put(Rank::order(1, 2));
  rank.verdict(1, 0, Verdict::joined);
  CHECK(rank.grant(1, {0}, 5) == 0);  // decided
  CHECK(rank.grant_results() == "abandoned");
  rank.reply(Rank::grants(8, {0}, 6, 2));  // no such batch
  CHECK(rank.grant_results() == "abandoned");
  CHECK(rank.out.results[0].first == 2);
  CHECK(rank.grant(1, {7}, 7) == 0);  // no such item
  CHECK(rank.grant_results() == "abandoned");
  StoreReply reply = Rank::grants(1, {1}, 8);
  reply.grants[0].first_extent = 0xffffffffU;  // extents that are not there
  rank.reply(reply);
  CHECK(rank.grant_results() == "abandoned");
  reply = Rank::grants(1, {1}, 9);
  reply.grants[0].extent_count = 17;
  rank.reply(reply);
  CHECK(rank.grant_results() == "abandoned");
}

TEST_CASE("a grant told twice is copied and answered once") {
  Rank rank;
  rank.put(Rank::order(1, 1));
  const auto operation = rank.grant(1, {0}, 5);
  rank.grant(1, {0}, 5);
  CHECK(rank.nothing());
  rank.done(operation, {CopyOutcome::done});
  CHECK(rank.grant_results() == "landed");
  rank.grant(1, {0}, 5);
  CHECK(rank.nothing());
  CHECK(rank.grant(1, {0}, 6) != 0);  // a new grant is a new copy
}

TEST_CASE("a checksum that is asked for is made from the lent row") {
  Rank rank;
  rank.put(Rank::order(1, 2, 5000));
  StoreReply reply;
  reply.partition = 4;
  reply.asks.push_back({70, 1, 1});
  rank.reply(reply);
  REQUIRE(rank.out.copies.size() == 1);
  CHECK(rank.out.copies[0].kind == CopyOrder::Kind::hash_row);
  CHECK(rank.out.copies[0].items[0].row == 1);
  CHECK(rank.out.copies[0].deadline == 5000);
  const auto operation = rank.out.copies[0].operation;
  SUBCASE("and answered to the partition that asked") {
    rank.reply(reply);
    CHECK(rank.nothing());  // the same ask again
    rank.done(operation, {CopyOutcome::done});
    REQUIRE(rank.out.checksums.size() == 1);
    CHECK(rank.out.checksums[0].first == 4);
    CHECK(rank.out.checksums[0].second.answers[0].ask == 70);
    CHECK(rank.out.checksums[0].second.answers[0].checksum_count == 1);
    CHECK(rank.out.checksums[0].second.checksums == std::vector<std::uint64_t>{900});
  }
  SUBCASE("and the answer is empty when the row could not be read") {
    rank.done(operation, {CopyOutcome::failed});
    CHECK(rank.out.checksums[0].second.answers[0].checksum_count == 0);
  }
  SUBCASE("and the verdict waits until it has been") {
    rank.verdict(1, 0, Verdict::stored);
    rank.verdict(1, 1, Verdict::stored);
    CHECK(rank.out.puts_done.empty());
    CHECK(rank.out.cancel_copies == Operations{operation});
    rank.done(operation, {CopyOutcome::canceled});
    CHECK(rank.put_result() == "stored none, stored none");
  }
}

TEST_CASE("an ask for an item that nobody waits for is answered empty") {
  Rank rank;
  CHECK(rank.ask(5, 0, 71) == 0);
  REQUIRE(rank.out.checksums.size() == 1);
  CHECK(rank.out.checksums[0].second.answers[0].ask == 71);
  CHECK(rank.out.checksums[0].second.answers[0].checksum_count == 0);
}

TEST_CASE("the same put told twice is taken once") {
  Rank rank;
  rank.put(Rank::order(1, 1));
  rank.put(Rank::order(1, 1));
  CHECK(rank.nothing());
  CHECK(rank.core->rows_lent(0) == 1);
}

}  // namespace kvonce::protocol::test
