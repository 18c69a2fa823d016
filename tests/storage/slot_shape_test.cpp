// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include "storage/slot_shape.hpp"
#include "tests/storage/preset_shapes.hpp"

using namespace kvonce::storage;

namespace {

std::vector<Extent> slot_in(const std::vector<std::uint64_t>& bytes) {
  std::vector<Extent> extents;
  std::uint64_t offset = 64'000'000;
  // Later extents lie lower, so that a test cannot pass by taking the slot for one piece.
  for (const std::uint64_t size : bytes) extents.push_back({offset -= 4'194'304, size});
  return extents;
}

}  // namespace

TEST_CASE("an object of one range and whole granules costs 64 bytes more than its payload") {
  for (const std::uint64_t bytes : {std::uint64_t{64}, std::uint64_t{4096}, std::uint64_t{65'536}, kMaxObjectBytes}) {
    const SlotShape shape = shape_of({bytes}, 1);
    CHECK(shape.ranges() == 1);
    CHECK(shape.payload_bytes() == bytes);
    CHECK(shape.slot_bytes() == bytes + 64);
    CHECK_FALSE(shape.divisible());
    const auto extents = slot_in({shape.slot_bytes()});
    CHECK(shape.footer_offset(extents) == extents[0].offset + bytes);
  }
}

TEST_CASE("the footer lies on an 8-byte border behind an object of odd size and holds a checksum per range") {
  const SlotShape one = shape_of({1}, 1);
  CHECK(one.footer_bytes() == 40);
  CHECK(one.slot_bytes() == 64);
  CHECK(one.footer_offset(slot_in({64})) == slot_in({64})[0].offset + 8);

  const SlotShape odd = shape_of({13, 1, 77}, 1);
  CHECK(odd.payload_bytes() == 91);
  CHECK(odd.footer_bytes() == 32 + 3 * 8);
  CHECK(odd.slot_bytes() == 192);  // 91 -> 96, + 56 = 152
  CHECK(odd.locate(slot_in({192}), 2) == slot_in({192})[0].offset + 14);
}

TEST_CASE("shapes of 64, 276 and 65,536 ranges have each range behind the one before") {
  for (const std::uint32_t ranges : {64u, 276u, kMaxRanges}) {
    std::vector<std::uint64_t> sizes;
    for (std::uint32_t i = 0; i < ranges; ++i) sizes.push_back(1 + i % 7);
    const auto result = SlotShape::create(sizes);
    REQUIRE(result.shape);
    CHECK(result.error.empty());
    std::uint64_t at = 0;
    bool in_order = true;
    const auto extents = slot_in({result.shape->slot_bytes()});
    for (std::uint32_t i = 0; i < ranges; ++i) {
      in_order = in_order && result.shape->range_offset(i) == at && result.shape->range_bytes(i) == sizes[i] &&
                 result.shape->locate(extents, i) == extents[0].offset + at;
      at += sizes[i];
    }
    CHECK(in_order);
    CHECK(result.shape->payload_bytes() == at);
    CHECK(result.shape->slot_bytes() % kGranuleBytes == 0);
    CHECK(result.shape->slot_bytes() >= at + 32 + std::uint64_t{8} * ranges);
    CHECK(result.shape->slot_bytes() < at + 32 + std::uint64_t{8} * ranges + 8 + 64);
  }
}

TEST_CASE("shapes beyond a limit are refused with a reason that names it") {
  const auto error = [](const std::vector<std::uint64_t>& ranges) {
    const auto result = SlotShape::create(ranges);
    CHECK_FALSE(result.shape);
    return result.error;
  };
  CHECK(error({}) == "an object needs at least one range");
  CHECK(error({5, 0, 5}) == "range 1 has no bytes");
  CHECK(error(std::vector<std::uint64_t>(65'537, 1)) == "an object has at most 65536 ranges, not 65537");
  CHECK(error({kMaxObjectBytes, 1}) == "an object has at most 268435456 bytes, range 1 goes beyond");
  CHECK(error({1, ~std::uint64_t{0}}) == "an object has at most 268435456 bytes, range 1 goes beyond");
}

TEST_CASE("a slot cut at seams keeps every range whole and the footer in the last extent") {
  // Ranges of 300,000 bytes are no whole granules: each extent but the last is rounded up.
  const SlotShape shape = shape_of({300'000}, 5);
  REQUIRE(shape.divisible());
  const std::vector<std::uint32_t> cut{2, 3};
  const std::uint64_t first = round_up(600'000, 64);
  const std::uint64_t second = round_up(300'000, 64);
  const std::uint64_t last = round_up(600'000 + 32 + 5 * 8, 64);
  CHECK(shape.slot_bytes(cut) == first + second + last);
  const auto extents = slot_in({first, second, last});

  const auto pieces = shape.pieces(extents);
  REQUIRE(pieces);
  REQUIRE(pieces->count == 3);
  CHECK(pieces->items[0].payload_begin == 0);
  CHECK(pieces->items[0].payload_end == 600'000);
  CHECK(pieces->items[1].payload_end == 900'000);
  CHECK(pieces->items[2].payload_begin == 900'000);
  CHECK(pieces->items[2].payload_end == 1'500'000);
  CHECK(pieces->items[2].first_range == 3);
  CHECK(pieces->items[2].end_range == 5);

  CHECK(shape.locate(extents, 0) == extents[0].offset);
  CHECK(shape.locate(extents, 1) == extents[0].offset + 300'000);
  CHECK(shape.locate(extents, 2) == extents[1].offset);
  CHECK(shape.locate(extents, 3) == extents[2].offset);
  CHECK(shape.locate(extents, 4) == extents[2].offset + 300'000);
  CHECK(shape.footer_offset(extents) == extents[2].offset + 600'000);
}

TEST_CASE("the last extent may hold the footer alone") {
  const SlotShape shape = shape_of({262'144}, 2);
  const auto extents = slot_in({524'288, 64});
  const auto pieces = shape.pieces(extents);
  REQUIRE(pieces);
  CHECK(pieces->items[1].first_range == 2);
  CHECK(pieces->items[1].payload_begin == pieces->items[1].payload_end);
  CHECK(shape.locate(extents, 1) == extents[0].offset + 262'144);
  CHECK(shape.footer_offset(extents) == extents[1].offset);
  CHECK(shape.slot_bytes(std::vector<std::uint32_t>{2}) == 524'288 + 64);
}

TEST_CASE("extents that are no slot of the shape are recognised") {
  const SlotShape shape = shape_of({262'144}, 4);
  const std::uint64_t whole = shape.slot_bytes();
  CHECK(shape.pieces(slot_in({whole})));
  CHECK_FALSE(shape.pieces({}));
  CHECK_FALSE(shape.pieces(slot_in({whole - 64})));
  CHECK_FALSE(shape.pieces(slot_in({whole + 64})));
  CHECK_FALSE(shape.pieces(slot_in({262'144 - 64, whole - 262'144 + 64})));  // inside a range
  CHECK(shape.pieces(slot_in({262'144, whole - 262'144})));
  CHECK_FALSE(shape.pieces(slot_in({262'144, 262'144, whole - 262'144})));
  CHECK_FALSE(shape.pieces(slot_in({0, whole})));
  CHECK_FALSE(shape.pieces(slot_in({~std::uint64_t{63}, 64})));
  CHECK_FALSE(shape.pieces(std::vector<Extent>{{32, whole}}));
  CHECK_FALSE(shape.pieces(std::vector<Extent>(17, Extent{0, 64})));
  const SlotShape small = shape_of({4'096}, 4);
  CHECK_FALSE(small.pieces(slot_in({4'096, small.slot_bytes() - 4'096})));
}
