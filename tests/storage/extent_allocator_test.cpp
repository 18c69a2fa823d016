// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "storage/extent_allocator.hpp"
#include "tests/storage/preset_shapes.hpp"

using namespace kvonce::storage;

namespace {

// A slot as a caller with a fault could hand it in.
Slot slot_of(std::uint32_t count, std::initializer_list<Extent> extents) {
  Slot slot;
  slot.count = count;
  std::copy(extents.begin(), extents.end(), slot.extents.begin());
  return slot;
}

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

// Knows every used byte interval and nothing else.
class NaiveSpace {
 public:
  NaiveSpace(std::uint64_t begin, std::uint64_t end) : begin_(begin), end_(end) {}

  bool take(const Extent& extent) {
    if (extent.bytes == 0 || extent.offset < begin_ || extent.offset + extent.bytes > end_) return false;
    const auto next = used_.lower_bound(extent.offset);
    if (next != used_.end() && next->first < extent.offset + extent.bytes) return false;
    if (next != used_.begin() && std::prev(next)->second > extent.offset) return false;
    used_[extent.offset] = extent.offset + extent.bytes;
    bytes_ += extent.bytes;
    return true;
  }
  void give_back(const Extent& extent) {
    used_.erase(extent.offset);
    bytes_ -= extent.bytes;
  }

  std::uint64_t used_bytes() const { return bytes_; }
  std::vector<std::uint64_t> gaps() const {
    std::vector<std::uint64_t> result;
    std::uint64_t at = begin_;
    for (const auto& [begin, end] : used_) {
      if (begin > at) result.push_back(begin - at);
      at = end;
    }
    if (end_ > at) result.push_back(end_ - at);
    return result;
  }

 private:
  std::uint64_t begin_;
  std::uint64_t end_;
  std::uint64_t bytes_ = 0;
  std::map<std::uint64_t, std::uint64_t> used_;
};

std::vector<SlotShape> mixed_shapes() {
  auto shapes = preset_shapes();
  for (const std::uint64_t bytes : {1, 64, 1'000, 4'096, 65'536, 262'144}) shapes.push_back(shape_of({bytes}, 1));
  shapes.push_back(shape_of({99'991}, 31));
  return shapes;
}

}  // namespace

TEST_CASE("random slots never overlap, stay inside, add up, and leave one fragment when all are free") {
  for (const std::uint64_t seed : {1, 2, 3}) {
    CAPTURE(seed);
    const std::uint64_t base = 4096;
    const std::uint64_t bytes = 512 * kMiB;
    ExtentAllocator allocator(base, bytes);
    NaiveSpace model(base, base + bytes);
    const auto shapes = mixed_shapes();
    std::mt19937_64 random(seed);
    std::vector<std::pair<Slot, const SlotShape*>> slots;
    std::uint64_t refused = 0;
    std::uint64_t divided = 0;
    for (int step = 0; step < 20'000; ++step) {
      if (slots.empty() || random() % 3 != 0) {
        const SlotShape& shape = shapes[random() % shapes.size()];
        const bool fits = allocator.would_fit(shape);
        const auto slot = allocator.allocate(shape);
        REQUIRE(slot.has_value() == fits);
        if (!slot) {
          ++refused;
          REQUIRE(allocator.largest_free() < shape.slot_bytes());
          // Makes room, or the arena stays full of the largest objects.
          for (int i = 0; i < 10 && !slots.empty(); ++i) {
            REQUIRE(allocator.free(slots.back().first));
            for (const Extent& extent : slots.back().first.view()) model.give_back(extent);
            slots.pop_back();
          }
        } else {
          REQUIRE(shape.pieces(slot->view()).has_value());
          if (slot->count > 1) ++divided;
          for (const Extent& extent : slot->view()) REQUIRE(model.take(extent));
          slots.emplace_back(*slot, &shape);
        }
      } else {
        const std::size_t victim = random() % slots.size();
        REQUIRE(allocator.free(slots[victim].first));
        for (const Extent& extent : slots[victim].first.view()) model.give_back(extent);
        slots[victim] = slots.back();
        slots.pop_back();
      }
      REQUIRE(allocator.used_bytes() == model.used_bytes());
      REQUIRE(allocator.used_bytes() + allocator.free_bytes() == allocator.total_bytes());
      if (step % 500 == 0) {
        const auto gaps = model.gaps();
        REQUIRE(allocator.fragments() == gaps.size());
        REQUIRE(allocator.largest_free() == (gaps.empty() ? 0 : *std::max_element(gaps.begin(), gaps.end())));
      }
    }
    CHECK(refused > 0);
    CHECK(divided > 0);
    for (const auto& [slot, shape] : slots) REQUIRE(allocator.free(slot));
    CHECK(allocator.fragments() == 1);
    CHECK(allocator.free_bytes() == bytes);
    CHECK(allocator.largest_free() == bytes);
    CHECK(allocator.used_bytes() == 0);
  }
}

TEST_CASE("a fragment is freed into its neighbours below, above, on both sides and alone") {
  const SlotShape shape = shape_of({4'032}, 1);
  ExtentAllocator allocator(0, 5 * shape.slot_bytes());
  std::vector<Slot> slots;
  while (const auto slot = allocator.allocate(shape)) slots.push_back(*slot);
  REQUIRE(slots.size() == 5);
  CHECK(allocator.fragments() == 0);
  CHECK(allocator.largest_free() == 0);
  std::sort(slots.begin(), slots.end(), [](const Slot& a, const Slot& b) { return a.extents[0].offset < b.extents[0].offset; });
  CHECK(allocator.free(slots[0]));
  CHECK(allocator.free(slots[4]));
  CHECK(allocator.fragments() == 2);
  CHECK(allocator.free(slots[1]));
  CHECK(allocator.free(slots[3]));
  CHECK(allocator.fragments() == 2);
  CHECK(allocator.largest_free() == 2 * shape.slot_bytes());
  CHECK(allocator.free(slots[2]));
  CHECK(allocator.fragments() == 1);
  CHECK(allocator.largest_free() == 5 * shape.slot_bytes());
}

TEST_CASE("objects from 64 bytes to 256 MiB fit exactly into an arena of their slot's bytes") {
  for (std::uint64_t bytes = 64; bytes <= kMaxObjectBytes; bytes *= 2) {
    CAPTURE(bytes);
    const SlotShape shape = shape_of({bytes}, 1);
    ExtentAllocator allocator(64, shape.slot_bytes());
    const auto slot = allocator.allocate(shape);
    REQUIRE(slot);
    CHECK(slot->count == 1);
    CHECK(slot->extents[0] == Extent{64, bytes + 64});
    CHECK(allocator.free_bytes() == 0);
    CHECK_FALSE(allocator.would_fit(shape));
    CHECK_FALSE(allocator.allocate(shape));
    CHECK(allocator.free(*slot));
    CHECK(allocator.would_fit(shape));
    ExtentAllocator too_small(64, shape.slot_bytes() - 1);
    CHECK_FALSE(too_small.allocate(shape));
  }
}

TEST_CASE("the smallest fragment that holds a slot is taken") {
  const SlotShape wall = shape_of({64}, 1);
  const SlotShape large = shape_of({1'024 * 64}, 1);
  const SlotShape small = shape_of({40 * 64}, 1);
  ExtentAllocator allocator(0, 16 * kMiB);
  const auto a = allocator.allocate(large);
  const auto w1 = allocator.allocate(wall);
  const auto b = allocator.allocate(small);
  const auto w2 = allocator.allocate(wall);
  REQUIRE((a && w1 && b && w2));
  allocator.free(*a);
  allocator.free(*b);
  REQUIRE(allocator.fragments() == 3);
  const auto again = allocator.allocate(small);
  REQUIRE(again);
  CHECK(again->extents[0] == b->extents[0]);
  CHECK(allocator.fragments() == 2);
}

TEST_CASE("a large object uses up fragments that are too small for it, cut at its seams") {
  const SlotShape shape = shape_of({131'072}, 8);
  // Gaps of two and a half ranges between walls.
  const SlotShape gap = shape_of({327'680 - 64}, 1);
  const SlotShape wall = shape_of({64}, 1);
  ExtentAllocator allocator(0, 5 * (gap.slot_bytes() + wall.slot_bytes()));
  std::vector<Slot> gaps;
  for (int i = 0; i < 5; ++i) {
    gaps.push_back(allocator.allocate(gap).value());
    REQUIRE(allocator.allocate(wall));
  }
  for (int i = 0; i < 3; ++i) allocator.free(gaps[i]);
  CHECK_FALSE(allocator.would_fit(shape));
  CHECK_FALSE(allocator.allocate(shape));
  allocator.free(gaps[3]);
  allocator.free(gaps[4]);
  const std::uint64_t free_before = allocator.free_bytes();
  const auto slot = allocator.allocate(shape);
  REQUIRE(slot);
  CHECK(slot->count == 4);
  REQUIRE(shape.pieces(slot->view()));
  CHECK(allocator.free_bytes() == free_before - slot->bytes());
  CHECK(allocator.free(*slot));
  CHECK(allocator.free_bytes() == free_before);
  CHECK(allocator.fragments() == 5);
  // The bytes would do, but eleven ranges do not go into five gaps of two and a half.
  const SlotShape eleven = shape_of({131'072}, 11);
  REQUIRE(eleven.slot_bytes() < free_before);
  CHECK_FALSE(allocator.allocate(eleven));
  // One range is never cut, nor is an object that is small enough to stay in one piece.
  CHECK_FALSE(allocator.would_fit(shape_of({327'681}, 1)));
  CHECK(allocator.free_bytes() == free_before);
}

TEST_CASE("a slot has at most 16 extents") {
  // Gaps of one range each; the footer takes one more.
  for (const std::uint32_t ranges : {15u, 16u}) {
    const SlotShape shape = shape_of({65'536}, ranges);
    const SlotShape gap = shape_of({65'536 - 64}, 1);
    const SlotShape wall = shape_of({64}, 1);
    ExtentAllocator allocator(0, 20 * (gap.slot_bytes() + wall.slot_bytes()));
    std::vector<Slot> gaps;
    for (int i = 0; i < 20; ++i) {
      gaps.push_back(allocator.allocate(gap).value());
      REQUIRE(allocator.allocate(wall));
    }
    for (const Slot& slot : gaps) allocator.free(slot);
    const auto slot = allocator.allocate(shape);
    CHECK(slot.has_value() == (ranges == 15));
    if (slot) CHECK(slot->count == 16);
  }
}

TEST_CASE("what is no used slot is not freed") {
  const SlotShape shape = shape_of({4'032}, 1);
  ExtentAllocator allocator(8'192, 64 * kMiB);
  const auto slot = allocator.allocate(shape);
  const auto other = allocator.allocate(shape);
  REQUIRE((slot && other));
  CHECK(allocator.free(*slot));
  const std::uint64_t used = allocator.used_bytes();
  CHECK_FALSE(allocator.free(*slot));
  CHECK_FALSE(allocator.free(slot_of(0, {})));
  CHECK_FALSE(allocator.free(slot_of(17, {})));
  CHECK_FALSE(allocator.free(slot_of(1, {Extent{0, 64}})));
  CHECK_FALSE(allocator.free(slot_of(1, {Extent{other->extents[0].offset, 63}})));
  CHECK_FALSE(allocator.free(slot_of(1, {Extent{other->extents[0].offset + 1, 64}})));
  CHECK_FALSE(allocator.free(slot_of(1, {Extent{other->extents[0].offset, 0}})));
  CHECK_FALSE(allocator.free(slot_of(1, {Extent{64 * kMiB, ~std::uint64_t{63}}})));
  CHECK(allocator.used_bytes() == used);
  CHECK(allocator.free(*other));
  CHECK(allocator.fragments() == 1);
}

TEST_CASE("a slot is not freed twice when it has become the bottom, the top or all of a fragment") {
  const SlotShape shape = shape_of({4'032}, 1);
  ExtentAllocator allocator(0, 4 * shape.slot_bytes());
  std::vector<Slot> slots;
  while (const auto slot = allocator.allocate(shape)) slots.push_back(*slot);
  REQUIRE(slots.size() == 4);
  REQUIRE(slots[0].extents[0].offset < slots[1].extents[0].offset);
  CHECK(allocator.free(slots[0]));
  CHECK_FALSE(allocator.free(slots[0]));
  CHECK(allocator.free(slots[1]));
  CHECK_FALSE(allocator.free(slots[0]));
  CHECK_FALSE(allocator.free(slots[1]));
  CHECK(allocator.free_bytes() == 2 * shape.slot_bytes());
  CHECK(allocator.fragments() == 1);
}

TEST_CASE("an arena without a whole granule holds nothing") {
  ExtentAllocator allocator(1, 100);
  CHECK(allocator.total_bytes() == 0);
  CHECK(allocator.fragments() == 0);
  CHECK_FALSE(allocator.allocate(shape_of({1}, 1)));
}

TEST_CASE("an arena of terabytes keeps its borders apart") {
  // Beyond 256 GiB the table of borders meets equal tags.
  const SlotShape shape = shape_of({kMaxObjectBytes - 64}, 1);
  ExtentAllocator allocator(0, std::uint64_t{1} << 40);
  std::vector<Slot> slots;
  while (const auto slot = allocator.allocate(shape)) slots.push_back(*slot);
  REQUIRE(slots.size() == 4'096);
  for (std::size_t i = 0; i < slots.size(); i += 2) REQUIRE(allocator.free(slots[i]));
  CHECK(allocator.fragments() == 2'048);
  for (std::size_t i = 1; i < slots.size(); i += 2) REQUIRE(allocator.free(slots[i]));
  CHECK(allocator.fragments() == 1);
}

TEST_CASE("the bookkeeping grows with free fragments, not with slots") {
  const SlotShape shape = shape_of({4'032}, 1);
  ExtentAllocator allocator(0, 100'000 * shape.slot_bytes());
  const std::uint64_t before = allocator.metadata_bytes();
  std::vector<Slot> slots;
  while (const auto slot = allocator.allocate(shape)) slots.push_back(*slot);
  CHECK(allocator.metadata_bytes() == before);
  for (std::size_t i = 0; i < slots.size(); i += 10) allocator.free(slots[i]);
  CHECK(allocator.fragments() == 10'000);
  CHECK(allocator.metadata_bytes() < before + 10'000 * 128);
}

TEST_CASE("the same calls give the same offsets") {
  const auto shapes = mixed_shapes();
  ExtentAllocator first(0, 256 * kMiB);
  ExtentAllocator second(0, 256 * kMiB);
  std::mt19937_64 random(7);
  std::vector<Slot> slots;
  for (int step = 0; step < 5'000; ++step) {
    const SlotShape& shape = shapes[random() % shapes.size()];
    const auto a = first.allocate(shape);
    const auto b = second.allocate(shape);
    REQUIRE(a.has_value() == b.has_value());
    if (a) {
      REQUIRE(a->count == b->count);
      for (std::uint32_t i = 0; i < a->count; ++i) REQUIRE(a->extents[i] == b->extents[i]);
      slots.push_back(*a);
    }
    if (!a || random() % 3 == 0) {
      const std::size_t victim = random() % slots.size();
      REQUIRE(first.free(slots[victim]));
      REQUIRE(second.free(slots[victim]));
      slots[victim] = slots.back();
      slots.pop_back();
    }
  }
}

TEST_CASE("an allocator around extents that are in use hands out everything else and nothing of them") {
  constexpr std::uint64_t kBase = 4'096, kBytes = 1'024 * kGranuleBytes;
  std::mt19937_64 random(11);
  for (int round = 0; round < 60; ++round) {
    ExtentAllocator first(kBase, kBytes);
    std::vector<Slot> held;
    for (int i = 0; i < 150; ++i) {
      const std::uint64_t ranges[] = {1 + random() % 900};
      const auto shape = SlotShape::create(ranges).shape;
      if (auto slot = first.allocate(*shape)) held.push_back(*slot);
      if (!held.empty() && random() % 3 == 0) {
        const std::size_t which = random() % held.size();
        REQUIRE(first.free(held[which]));
        held.erase(held.begin() + static_cast<std::ptrdiff_t>(which));
      }
    }
    std::vector<Extent> used;
    for (const Slot& slot : held)
      for (const Extent& extent : slot.view()) used.push_back(extent);
    std::shuffle(used.begin(), used.end(), random);
    std::string why;
    auto second = ExtentAllocator::around(kBase, kBytes, used, &why);
    REQUIRE_MESSAGE(second, why);
    CHECK(second->total_bytes() == first.total_bytes());
    CHECK(second->free_bytes() == first.free_bytes());
    CHECK(second->fragments() == first.fragments());
    CHECK(second->largest_free() == first.largest_free());
    for (const Slot& slot : held) REQUIRE(second->free(slot));
    CHECK(second->free_bytes() == second->total_bytes());
    CHECK(second->fragments() == 1);
  }
}

TEST_CASE("extents that overlap or lie outside are refused by name") {
  std::string why;
  CHECK(ExtentAllocator::around(4'096, 6'400, {}, &why)->free_bytes() == 6'400);
  CHECK(ExtentAllocator::around(4'096, 6'400, {{4'096, 6'400}}, &why)->free_bytes() == 0);
  CHECK_FALSE(ExtentAllocator::around(4'096, 6'400, {{4'096, 128}, {4'160, 64}}, &why));
  CHECK(why == "two slots share the bytes at 4160");
  CHECK_FALSE(ExtentAllocator::around(4'096, 6'400, {{4'032, 128}}, &why));
  CHECK(why == "128 bytes at 4032 do not lie between the slots' borders 4096 and 10496");
  CHECK_FALSE(ExtentAllocator::around(4'096, 6'400, {{10'432, 128}}, &why));
  CHECK_FALSE(ExtentAllocator::around(4'096, 6'400, {{4'096, 0}}, &why));
  CHECK_FALSE(ExtentAllocator::around(4'096, 6'400, {{4'100, 64}}, &why));
  CHECK_FALSE(ExtentAllocator::around(4'096, 6'400, {{~std::uint64_t{63}, 128}}, &why));
}
