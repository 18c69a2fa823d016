// SPDX-License-Identifier: Apache-2.0
#include "mover_fixture.hpp"

#include "transport/memcpy_transport.hpp"

using namespace mover_test;

TEST_CASE("a batch is copied, with the checksum of every range") {
  Mover mover;
  Pages pages(300, 5000);
  std::atomic<int> done_calls{0};
  CopyBatch batch = pages.batch();
  batch.done = [&](Operation& operation) {
    CHECK(operation.poll());
    ++done_calls;
  };
  const Submitted submitted = mover.submit(std::move(batch));
  REQUIRE(submitted.refusal == Refusal::none);
  REQUIRE(submitted.operation->wait_until(soon()));
  CHECK(done_calls == 1);
  for (std::size_t page = 0; page < 300; ++page) {
    REQUIRE(submitted.operation->status(page) == CopyStatus::done);
    REQUIRE(pages.copied(page));
    REQUIRE(submitted.operation->checksums(page).size() == 1);
    REQUIRE(submitted.operation->checksums(page)[0] == hash(pages.source(page), 5000));
    REQUIRE(submitted.operation->item(page).tag == page);
  }
  CHECK(mover.stats().bytes_copied == 300 * 5000);
}

TEST_CASE("an item of many ranges and slices has one checksum for each range") {
  Mover mover;
  const std::vector<std::uint64_t> lengths{0, 1, 1023, 700'000, 64, 262'144, 262'145, 300, 1'048'576, 5};
  std::uint64_t total = 0;
  for (const auto length : lengths) total += length;
  Pages pages(1, total);
  for (const bool checksums : {true, false}) {
    CAPTURE(checksums);
    CopyBatch batch;
    batch.checksums = checksums;
    std::uint64_t at = 0;
    for (const auto length : lengths) {
      batch.ranges.push_back({pages.source(0) + at, pages.target(0) + at, length});
      at += length;
    }
    batch.items = {{0, 4, 0}, {4, 6, 0}, {10, 0, 0}};
    const auto operation = mover.submit(std::move(batch)).operation;
    REQUIRE(operation->wait_until(soon()));
    CHECK(operation->status(0) == CopyStatus::done);
    CHECK(operation->status(1) == CopyStatus::done);
    CHECK(operation->status(2) == CopyStatus::done);
    CHECK(pages.copied(0));
    std::memset(pages.target(0), 0, total);
    if (!checksums) {
      CHECK(operation->checksums(0).empty());
      continue;
    }
    REQUIRE(operation->checksums(1).size() == 6);
    CHECK(operation->checksums(0)[3] == hash(pages.source(0) + 1024, 700'000));
    CHECK(operation->checksums(1)[5] == hash(pages.source(0) + total - 5, 5));
  }
}

TEST_CASE("a deadline in the middle of a copy ends it as expired and leaves the later slices alone") {
  constexpr std::size_t kPage = 8 * kSliceBytes;
  Pages pages(3, kPage);
  MoverConfig config;
  config.threads = 1;
  // It is late as soon as the third slice of the second page has arrived.
  config.now = [&] {
    const bool arrived = *(pages.target(1) + 3 * kSliceBytes - 1) != std::byte{};
    return arrived ? kStart + 2s : kStart;
  };
  Mover mover(config);
  REQUIRE(*(pages.source(1) + 3 * kSliceBytes - 1) != std::byte{});
  CopyBatch batch = pages.batch();
  batch.deadline = kStart + 1s;
  const auto operation = mover.submit(std::move(batch)).operation;
  REQUIRE(operation->wait_until(soon()));
  CHECK(operation->status(0) == CopyStatus::done);
  CHECK(operation->status(1) == CopyStatus::expired);
  CHECK(operation->status(2) == CopyStatus::expired);
  CHECK(pages.copied(0));
  CHECK(pages.untouched(1, 3 * kSliceBytes));
  CHECK(pages.untouched(2));
  CHECK(mover.stats().bytes_copied == kPage + 3 * kSliceBytes);
}

TEST_CASE("an item whose last byte came too late is not done") {
  Pages pages(1, 4096);
  MoverConfig config;
  config.now = [&] { return pages.untouched(0) ? kStart : kStart + 2s; };
  Mover mover(config);
  CopyBatch batch = pages.batch();
  batch.deadline = kStart + 1s;
  bool checked = false;
  batch.check = [&](std::size_t, std::span<const std::uint64_t>) { return checked = true; };
  const auto operation = mover.run_inline(std::move(batch)).operation;
  CHECK(operation->status(0) == CopyStatus::expired);
  CHECK_FALSE(checked);
}

TEST_CASE("a batch that is late when it is submitted moves no byte") {
  Mover mover;
  const ForbiddenPage source;
  std::vector<std::byte> target(ForbiddenPage::kBytes);
  CopyBatch batch = one_item(source.data(), target.data(), target.size());
  batch.deadline = std::chrono::steady_clock::now() - 1ms;
  const auto operation = mover.submit(std::move(batch)).operation;
  REQUIRE(operation->wait_until(soon()));
  CHECK(operation->status(0) == CopyStatus::expired);
}

TEST_CASE("a deadline that passes in the queue does not wait for its turn") {
  std::atomic<TimePoint> time{kStart};
  MoverConfig config;
  config.threads = 1;
  config.now = [&] { return time.load(); };
  Mover mover(config);
  Pages many(64, kSliceBytes);
  const ForbiddenPage source;
  std::vector<std::byte> target(ForbiddenPage::kBytes);
  std::atomic<bool> late_told{false};
  std::atomic<bool> told_first{false};
  std::shared_ptr<Operation> late;
  std::shared_ptr<Operation> others;
  {
    Blocker blocker(mover);
    CopyBatch ahead = many.batch();
    ahead.progress = [&](std::size_t finished) {
      if (finished == 1) told_first = late_told.load();
    };
    others = mover.submit(std::move(ahead)).operation;
    CopyBatch batch = one_item(source.data(), target.data(), target.size());
    batch.deadline = kStart + 1s;
    batch.done = [&](Operation&) { late_told = true; };
    late = mover.submit(std::move(batch)).operation;
    time = kStart + 2s;
  }
  REQUIRE(late->wait_until(soon()));
  CHECK(late->status(0) == CopyStatus::expired);
  // Not by stop(), which may end the others before their first item.
  REQUIRE(others->wait_until(soon()));
  CHECK(others->status(0) == CopyStatus::done);
  CHECK(told_first);
}

TEST_CASE("cancel stops an item at its next slice and what has not begun at once") {
  constexpr std::size_t kPage = 8 * kSliceBytes;
  Pages pages(2, kPage);
  std::shared_ptr<Operation> operation;
  std::atomic<bool> known{false};
  MoverConfig config;
  config.threads = 1;
  // Between two slices, once the second one has arrived.
  std::atomic<bool> canceled{false};
  std::atomic<bool>* const canceled_once = &canceled;
  config.now = [&, canceled_once] {
    if (known && *(pages.target(0) + 2 * kSliceBytes - 1) != std::byte{} && !canceled_once->exchange(true))
      operation->Operation::cancel();
    return kStart;
  };
  Mover mover(config);
  const Event begin = Event::make();
  CopyBatch batch = pages.batch();
  batch.after = begin;
  operation = mover.submit(std::move(batch)).operation;
  known = true;
  begin.signal();
  REQUIRE(operation->wait_until(soon()));
  CHECK(operation->status(0) == CopyStatus::canceled);
  CHECK(operation->status(1) == CopyStatus::canceled);
  CHECK(pages.untouched(0, 2 * kSliceBytes + kSliceBytes));
  CHECK(pages.untouched(1));
}

TEST_CASE("a canceled batch in the queue is never read") {
  Mover mover({.threads = 1, .max_batches = 16, .kernel = Kernel::automatic, .now = {}});
  const ForbiddenPage source;
  std::vector<std::byte> target(ForbiddenPage::kBytes);
  std::shared_ptr<Operation> operation;
  {
    Blocker blocker(mover);
    operation = mover.submit(one_item(source.data(), target.data(), target.size())).operation;
    operation->cancel();
  }
  REQUIRE(operation->wait_until(soon()));
  CHECK(operation->status(0) == CopyStatus::canceled);
}

TEST_CASE("a bad item fails alone") {
  Mover mover;
  Pages pages(6, 4096);
  CopyBatch batch = pages.batch();
  batch.items[1].first_range = 77;
  batch.items[2].range_count = 0xFFFFFFFF;
  batch.ranges[3].source = nullptr;
  batch.check = [](std::size_t item, std::span<const std::uint64_t> checksums) {
    CHECK(checksums.size() == 1);
    return item != 4;
  };
  const auto operation = mover.submit(std::move(batch)).operation;
  REQUIRE(operation->wait_until(soon()));
  const CopyStatus expected[] = {CopyStatus::done,   CopyStatus::failed,   CopyStatus::failed,
                                 CopyStatus::failed, CopyStatus::mismatch, CopyStatus::done};
  for (std::size_t item = 0; item < 6; ++item) {
    CAPTURE(item);
    CHECK(operation->status(item) == expected[item]);
  }
  CHECK(pages.copied(0));
  CHECK(pages.copied(5));
  CHECK(pages.untouched(1));
}

TEST_CASE("progress counts every item after its check, and done comes last") {
  Mover mover;
  Pages pages(40, 100'000);
  CopyBatch batch = pages.batch();
  std::atomic<std::size_t> checked{0};
  std::atomic<std::size_t> sum{0};
  std::size_t checked_at_done = 0;
  std::size_t sum_at_done = 0;
  batch.check = [&](std::size_t, std::span<const std::uint64_t>) {
    ++checked;
    return true;
  };
  batch.progress = [&](std::size_t finished) {
    CHECK(checked >= finished);
    sum += finished;
  };
  batch.done = [&](Operation&) {
    checked_at_done = checked;
    sum_at_done = sum;
  };
  const auto operation = mover.submit(std::move(batch)).operation;
  REQUIRE(operation->wait_until(soon()));
  CHECK(checked_at_done == 40);
  CHECK(sum_at_done == 40 * 41 / 2);
}

TEST_CASE("a batch without items is done") {
  Mover mover;
  std::atomic<int> calls{0};
  CopyBatch batch;
  batch.done = [&](Operation&) { ++calls; };
  const auto operation = mover.submit(std::move(batch)).operation;
  REQUIRE(operation->wait_until(soon()));
  CHECK(calls == 1);
}

TEST_CASE("an inline copy is finished when it returns") {
  Mover mover;
  Pages pages(3, 20'000);
  bool done = false;
  CopyBatch batch = pages.batch();
  batch.done = [&](Operation&) { done = true; };
  const auto operation = mover.run_inline(std::move(batch)).operation;
  CHECK(done);
  CHECK(operation->poll());
  CHECK(operation->wait_until(TimePoint::min()));
  for (std::size_t page = 0; page < 3; ++page) {
    CHECK(operation->status(page) == CopyStatus::done);
    CHECK(pages.copied(page));
  }
}

TEST_CASE("the memcpy transport says what it is and copies") {
  MemcpyTransport transport(std::make_shared<Mover>());
  CHECK(std::string(transport.name()) == "memcpy");
  CHECK(transport.checksum_place() == ChecksumPlace::fused_with_copy);
  Pages pages(2, 4096);
  const auto operation = transport.submit(pages.batch()).operation;
  REQUIRE(operation->wait_until(soon()));
  CHECK(pages.copied(1));
  CHECK(transport.run_inline(pages.batch()).operation->poll());
}
