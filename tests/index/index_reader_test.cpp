// SPDX-License-Identifier: Apache-2.0
//
// Readers beside a writer, and readers of nonsense.
#include <doctest/doctest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "tests/index/index_fixture.hpp"

using namespace kvonce;
using namespace kvonce::protocol;
using namespace kvonce::protocol::test;

namespace {

// What the stress publishes follows from page, pool, shard and epoch, so a reader can tell a torn or foreign answer.
std::uint64_t seed_of(const PageHash& page, PoolId pool, std::uint32_t shard, Epoch epoch) {
  return scramble(page.words[0] ^ scramble(epoch) ^ std::uint64_t{pool} << 40 ^ std::uint64_t{shard} << 48);
}
std::uint32_t depth_of(const PageHash& page) { return static_cast<std::uint32_t>(page.words[1]); }

constexpr std::uint64_t kPages = 48;
constexpr PoolId kPools = 2;
constexpr std::uint32_t kShards[kPools] = {1, 3};

struct Tally {
  std::uint64_t found = 0, absent = 0, contended = 0, wrong = 0;
};

void read_some(const IndexReader& reader, std::uint64_t rounds, std::uint64_t seed, Tally& tally) {
  std::mt19937_64 rng(seed);
  std::vector<PageHash> pages;
  for (std::uint64_t i = 0; i < kPages; ++i) pages.push_back(page_of(i));
  std::vector<std::uint8_t> there(kPages);
  for (std::uint64_t round = 0; round < rounds; ++round) {
    const PageHash& page = pages[rng() % kPages];
    const auto pool = static_cast<PoolId>(rng() % kPools);
    const auto shard = static_cast<std::uint32_t>(rng() % kShards[pool]);
    ObjectLocation where{};
    switch (reader.locate(0, page, pool, shard, &where)) {
      case ReadStatus::found:
        ++tally.found;
        tally.wrong += !same(where.slot, slot_from(seed_of(page, pool, shard, where.epoch)));
        tally.wrong += where.level != static_cast<AckLevel>(where.epoch % 3);
        break;
      case ReadStatus::absent: ++tally.absent; break;
      case ReadStatus::contended: ++tally.contended; break;
    }
    PageView view;
    if (reader.page(0, page, &view) == ReadStatus::found) tally.wrong += view.depth != depth_of(page);
    if (round % 64 == 0) {
      reader.exists(0, pool, shard, pages, there.data());
      tally.wrong += there[kPages - 1] == 0;  // the last page is never erased
    }
  }
}

void churn(PageIndex& index, const std::atomic<int>& reading) {
  std::mt19937_64 rng(5);
  Epoch epoch = 0;
  const auto publish = [&](RecordId record, PoolId pool, std::uint32_t shard) {
    const PageHash page = index.hash(record);
    const MemberId member = index.add_claimed(record, pool, shard, 0);
    if (member == kNone) return;  // all members are in use
    ++epoch;
    if (!index.publish(record, member, epoch, slot_from(seed_of(page, pool, shard, epoch)), static_cast<AckLevel>(epoch % 3)))
      index.drop_member(record, member);
  };
  const PageHash last = page_of(kPages - 1);
  const RecordId resident = index.insert(0, last, kNone, depth_of(last));
  for (PoolId pool = 0; pool < kPools; ++pool)
    for (std::uint32_t shard = 0; shard < kShards[pool]; ++shard) publish(resident, pool, shard);
  while (reading.load(std::memory_order_acquire) != 0) {
    const PageHash page = page_of(rng() % (kPages - 1));
    RecordId record = index.find(0, page);
    if (record == kNone) {
      record = index.insert(0, page, kNone, depth_of(page));
      if (record == kNone) continue;
      for (PoolId pool = 0; pool < kPools; ++pool)
        for (std::uint32_t shard = 0; shard < kShards[pool]; ++shard) publish(record, pool, shard);
    } else if (rng() % 2 == 0) {
      while (index.first_member(record) != kNone) index.drop_member(record, index.first_member(record));
      index.erase(record);
    } else {
      const auto pool = static_cast<PoolId>(rng() % kPools);
      const auto shard = static_cast<std::uint32_t>(rng() % kShards[pool]);
      const MemberId member = index.find_member(record, pool, shard);
      if (member != kNone) index.drop_member(record, member);
      publish(record, pool, shard);
    }
  }
}

// Every question once, to every page and pool: what matters is that it comes back.
void ask_everything(const IndexReader& reader) {
  std::vector<PageHash> pages;
  for (std::uint64_t i = 0; i < kPages; ++i) pages.push_back(page_of(i));
  std::vector<std::uint8_t> there(kPages, 9);
  for (PoolId pool = 0; pool < kPools; ++pool)
    for (std::uint32_t shard = 0; shard < kShards[pool]; ++shard) {
      reader.exists(0, pool, shard, pages, there.data());
      for (const std::uint8_t answer : there) REQUIRE(answer <= 2);
      for (const PageHash& page : pages) {
        ObjectLocation where{};
        if (reader.locate(0, page, pool, shard, &where) == ReadStatus::found) {
          REQUIRE(where.slot.count >= 1);
          REQUIRE(where.slot.count <= storage::kMaxExtents);
        }
        PageView view;
        reader.page(0, page, &view);
      }
    }
}

void fill(PageIndex& index) {
  for (PoolId pool = 0; pool < kPools; ++pool) index.set_pool(0, pool, kShards[pool], HitPolicy::every_page(), 0);
  Epoch epoch = 0;
  for (std::uint64_t i = 0; i < kPages; ++i) {
    const RecordId record = index.insert(0, page_of(i), kNone, depth_of(page_of(i)));
    for (PoolId pool = 0; pool < kPools; ++pool)
      for (std::uint32_t shard = 0; shard < kShards[pool]; ++shard) {
        const MemberId member = index.add_claimed(record, pool, shard, 0);
        ++epoch;
        index.publish(record, member, epoch, slot_from(seed_of(page_of(i), pool, shard, epoch)), AckLevel::memory);
      }
  }
}

}  // namespace

TEST_CASE("readers beside a writer see every record in one piece") {
  // Room for fewer pages than there are, so that records, members and extent blocks change hands all the time.
  Fixture f({32, 80, 60});
  for (PoolId pool = 0; pool < kPools; ++pool) f.index.set_pool(0, pool, kShards[pool], HitPolicy::every_page(), 0);
  const PageHash last = page_of(kPages - 1);
  std::atomic<int> reading{2};
  Tally tally[2];
  std::vector<std::thread> readers;
  for (int i = 0; i < 2; ++i)
    readers.emplace_back([&, i] {
      const IndexReader reader = f.index.reader();
      // The resident page is the writer's first act.
      while (reader.locate(0, last, 1, kShards[1] - 1, nullptr) != ReadStatus::found) std::this_thread::yield();
      read_some(reader, 100'000, static_cast<std::uint64_t>(i) + 1, tally[i]);
      reading.fetch_sub(1, std::memory_order_release);
    });
  churn(f.index, reading);
  for (std::thread& reader : readers) reader.join();
  for (const Tally& t : tally) {
    CHECK(t.wrong == 0);
    CHECK(t.found > 0);
    CHECK(t.absent > 0);
  }
}

TEST_CASE("nothing of a change is seen before all of it") {
  // The last of many shards comes and goes. Counting the shards takes long, between publishing the member and marking the
  // pool full: a reader that sees an unmoved, even sequence around both looks must never see the one without the other.
  constexpr std::uint32_t kMany = 1000;
  Fixture f({1, kMany, 0});
  f.index.set_pool(0, 0, kMany, HitPolicy::every_page(), 0);
  const PageHash page = page_of(1);
  const RecordId record = f.index.insert(0, page, kNone, 0);
  const auto publish = [&](std::uint32_t shard) {
    f.index.publish(record, f.index.add_claimed(record, 0, shard, 0), 1, slot_from(shard, 1), AckLevel::memory);
  };
  for (std::uint32_t shard = 0; shard < kMany; ++shard) publish(shard);

  std::atomic<bool> done{false};
  std::uint64_t wrong = 0, looks = 0;
  std::thread looking([&] {
    const IndexReader reader = f.index.reader();
    const layout::Hot& hot = f.hot(record);
    while (!done.load(std::memory_order_acquire) || looks == 0) {
      const std::uint32_t seq = layout::peek(hot.seq);
      if (seq % 2 != 0) continue;
      const bool there = reader.locate(0, page, 0, kMany - 1, nullptr) == ReadStatus::found;
      PageView view;
      if (!there || reader.page(0, page, &view) != ReadStatus::found || layout::peek(hot.seq) != seq) continue;
      ++looks;
      wrong += view.full_pools != 1;
    }
  });
  for (int round = 0; round < 20'000; ++round) {
    f.index.drop_member(record, f.index.find_member(record, 0, kMany - 1));
    publish(kMany - 1);
  }
  done.store(true, std::memory_order_release);
  looking.join();
  CHECK(wrong == 0);
}

TEST_CASE("a region that is no index, or another one than its header says, is not valid") {
  const IndexLimits limits{64, 256, 64};
  Fixture f(limits);
  CHECK(f.index.reader().valid());
  CHECK(f.index.reader().incarnation() == 77);
  CHECK_FALSE(IndexReader().valid());
  CHECK_FALSE(IndexReader(f.region.data(), f.region.size() - 1).valid());
  CHECK_FALSE(IndexReader(f.region.data(), 16).valid());
  CHECK_FALSE(IndexReader(f.region.data() + 8, f.region.size() - 8).valid());
  auto& header = *f.at<layout::Header>(0);
  for (std::uint64_t* word : {&header.magic, &header.hot, &header.members, &header.buckets, &header.total, &header.extents}) {
    *word ^= 1ULL << 40;
    CHECK_FALSE(IndexReader(f.region.data(), f.region.size()).valid());
    *word ^= 1ULL << 40;
  }
  header.max_pages += 1'000'000;
  CHECK_FALSE(IndexReader(f.region.data(), f.region.size()).valid());
  ask_everything(IndexReader(f.region.data(), f.region.size()));
  ask_everything(IndexReader());
}

TEST_CASE("readers of random bytes come back") {
  const IndexLimits limits{64, 256, 64};
  Fixture f(limits);
  const IndexReader reader = f.index.reader();
  std::mt19937_64 rng(3);
  for (int round = 0; round < 20; ++round) {
    for (std::uint64_t at = sizeof(layout::Header); at + 8 <= f.region.size(); at += 8) {
      const std::uint64_t word = rng();
      std::memcpy(f.region.data() + at, &word, 8);
    }
    // Shards that make exists walk, and numbers that are sometimes within bounds.
    for (PoolId pool = 0; pool < kPools; ++pool) f.at<layout::Pool>(f.sections.pools)[pool].shards = kShards[pool];
    for (std::uint32_t b = 0; b < f.sections.bucket_count; ++b)
      for (std::uint32_t& record : f.at<layout::Bucket>(f.sections.buckets)[b].records) record %= 80;
    ask_everything(reader);
  }
}

TEST_CASE("readers of a damaged index come back") {
  const IndexLimits limits{64, 256, 256};
  std::mt19937_64 rng(4);
  for (int round = 0; round < 150; ++round) {
    Fixture f(limits);
    fill(f.index);
    const IndexReader reader = f.index.reader();
    // Where the data is; the pool table is mostly empty.
    const std::uint64_t begin = f.sections.buckets;
    for (int flip = 0; flip < 400; ++flip) {
      const std::uint64_t at = begin + rng() % (f.region.size() - begin);
      f.region.data()[at] ^= static_cast<std::byte>(1U << rng() % 8);
      // Links that stay within bounds lead further into the damage.
      if (flip % 4 == 0) f.member(static_cast<MemberId>(rng() % limits.max_members)).next = static_cast<std::uint32_t>(rng() % 300);
    }
    ask_everything(reader);
  }
}

TEST_CASE("a record that stays in change and a chain without end are for the actor to judge") {
  Fixture f({64, 256, 256});
  fill(f.index);
  const IndexReader reader = f.index.reader();
  const PageHash page = page_of(7);
  const RecordId record = f.index.find(0, page);
  std::uint8_t there = 9;

  const MemberId first = f.index.first_member(record);
  const std::uint32_t next = f.member(first).next;
  const std::uint32_t info = f.member(first).info;
  f.member(first).next = first;
  f.member(first).info = 0;
  CHECK(reader.locate(0, page, 0, 0, nullptr) == ReadStatus::contended);
  f.member(first).next = 0xfffffffeU;
  CHECK(reader.locate(0, page, 0, 0, nullptr) == ReadStatus::contended);
  f.member(first).next = next;
  f.member(first).info = info;
  CHECK(reader.locate(0, page, 0, 0, nullptr) == ReadStatus::found);

  f.hot(record).seq += 1;
  CHECK(reader.locate(0, page, 0, 0, nullptr) == ReadStatus::contended);
  CHECK(reader.page(0, page, nullptr) == ReadStatus::contended);
  reader.exists(0, 0, 0, std::span(&page, 1), &there);
  CHECK(there == 2);
  f.hot(record).seq += 1;
  reader.exists(0, 0, 0, std::span(&page, 1), &there);
  CHECK(there == 1);
}
