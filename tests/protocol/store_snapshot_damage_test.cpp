// SPDX-License-Identifier: Apache-2.0
//
// Snapshots and indexes that are not what they were: a cold start with a reason, and never a crash.
#include <xxhash.h>

#include "protocol/page_index_layout.hpp"
#include "warm_fixture.hpp"

using namespace kvonce;
using namespace kvonce::protocol;
using namespace kvonce::protocol::test;

namespace {

// The checksum over everything before it, as if the change had been meant.
void seal(std::string& snapshot) {
  const std::uint64_t sum = XXH3_64bits(snapshot.data(), snapshot.size() - 8);
  std::memcpy(snapshot.data() + snapshot.size() - 8, &sum, 8);
}

}  // namespace

TEST_CASE("a damaged snapshot or index means a cold start with a reason, and never a crash") {
  WarmFixture f;
  f.begin(7);
  for (int i = 0; i < 300; ++i) f.random_step();
  const std::string snapshot = f.stop();
  std::vector<std::byte> arena(f.memory.get(), f.memory.get() + f.config.slots_offset + f.config.slots_bytes);
  const auto restore = [&](const std::string& bytes) {
    std::memcpy(f.memory.get(), arena.data(), arena.size());
    std::string why;
    f.store.reset();
    f.store = StoreCore::restore(f.config, bytes, f.now, &why);
    CHECK(why.empty() == (f.store != nullptr));
    if (f.store) f.audit();
    return why;
  };
  REQUIRE(restore(snapshot) == "");
  std::mt19937_64 random(3);

  SUBCASE("cut off anywhere") {
    for (std::size_t size = 0; size < snapshot.size(); size += 1 + snapshot.size() / 250) CHECK(restore(snapshot.substr(0, size)) != "");
    CHECK(restore(snapshot + '\0').find("checksum differs") != std::string::npos);
    CHECK(restore("").find("only 0 bytes") != std::string::npos);
  }
  SUBCASE("cut off anywhere, with a right checksum") {
    for (std::size_t size = 20; size < snapshot.size(); size += 1 + snapshot.size() / 250) {
      std::string cut = snapshot.substr(0, size);
      seal(cut);
      CHECK(restore(cut) != "");
    }
  }
  SUBCASE("a bit flipped") {
    for (int i = 0; i < 300; ++i) {
      std::string flipped = snapshot;
      flipped[random() % flipped.size()] ^= static_cast<char>(1 << random() % 8);
      CHECK(restore(flipped) != "");
    }
  }
  SUBCASE("bits flipped, with a right checksum: refused, or a store whose books add up") {
    int refused = 0;
    for (int i = 0; i < 500; ++i) {
      std::string flipped = snapshot;
      for (std::uint64_t n = 1 + random() % 2; n > 0; --n) flipped[12 + random() % (flipped.size() - 20)] ^= static_cast<char>(1 << random() % 8);
      seal(flipped);
      refused += restore(flipped).empty() ? 0 : 1;
    }
    CHECK(refused > 100);
  }
  SUBCASE("the index changed since") {
    const std::uint64_t used = layout::Sections::of(f.config.index).hot + 40 * sizeof(layout::Hot);
    for (int i = 0; i < 200; ++i) {
      std::uint64_t at = random() % used;
      if (at >= sizeof(layout::Header) && at < layout::kSectionAlign) at = 8;
      std::memcpy(f.memory.get(), arena.data(), arena.size());
      f.memory.get()[at] ^= static_cast<std::byte>(1 << random() % 8);
      std::string why;
      CHECK_FALSE(StoreCore::restore(f.config, snapshot, f.now, &why));
      CHECK(why != "");
    }
  }
  SUBCASE("another format") {
    std::string other = snapshot;
    other[8] = 3;
    seal(other);
    CHECK(restore(other) == "the snapshot has format 3; this release reads formats 1 to 2");
    other[8] = 0;
    seal(other);
    CHECK(restore(other) == "the snapshot has format 0; this release reads formats 1 to 2");
    other[0] ^= 1;
    CHECK(restore(other) == "the bytes are no snapshot of a store");
  }
  SUBCASE("another layout") {
    f.config.slots_bytes -= 4096;
    CHECK(restore(snapshot) == "the snapshot is of a store with slot bytes 4194304; this one has 4190208");
    f.config.slots_bytes += 4096;
    f.config.partitions = 2;
    CHECK(restore(snapshot) == "the snapshot is of a store with the number of partitions 1; this one has 2");
  }
  SUBCASE("the arena of another life") {
    f.config.incarnation = 99;
    REQUIRE(restore(snapshot) == "");
    const std::string second = f.store->snapshot(f.now);
    CHECK(restore(second).find("is not of the life that wrote the snapshot") != std::string::npos);
    std::memset(f.memory.get(), 0, f.config.slots_offset);
    f.store.reset();
    std::string cold;
    CHECK_FALSE(StoreCore::restore(f.config, snapshot, f.now, &cold));
    CHECK(cold == "there is no index of this version in the arena");
  }
}

// Whoever wrote the index may itself have been wrong: with right checksums everything in it is looked at all the same.
TEST_CASE("an index that was damaged before its snapshot was taken is refused or sound, never a crash") {
  int refused = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    WarmFixture f;
    f.begin(seed % 4 + 1);
    for (int i = 0; i < 120; ++i) f.random_step();
    std::mt19937_64 random(seed);
    const auto sections = layout::Sections::of(f.config.index);
    const auto records = f.store->stats().records_now;
    for (std::uint64_t n = 1 + random() % 3; n > 0; --n) {
      const std::uint64_t members = sections.members + random() % (records * 2 * sizeof(layout::Member));
      const std::uint64_t hot = sections.hot + random() % (records * sizeof(layout::Hot));
      f.memory.get()[random() % 2 == 0 ? members : hot] ^= static_cast<std::byte>(1 << random() % 8);
    }
    const std::string snapshot = f.store->snapshot(f.now);
    f.stop();
    const std::string why = f.resume(snapshot);
    CHECK(why.empty() == (f.store != nullptr));
    refused += why.empty() ? 0 : 1;
    if (f.store) f.audit();
  }
  CHECK(refused > 20);
}
