// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kvonce::storage {

// Unit of arena space: every extent starts and ends on this many bytes.
inline constexpr std::uint64_t kGranuleBytes = 64;
// Most pieces that one slot can be cut into.
inline constexpr std::uint32_t kMaxExtents = 16;
inline constexpr std::uint32_t kMaxRanges = 65'536;
inline constexpr std::uint64_t kMaxObjectBytes = std::uint64_t{256} << 20;
inline constexpr std::uint64_t kSlotHeaderBytes = 32;
inline constexpr std::uint64_t kChecksumBytes = 8;
inline constexpr std::uint64_t kFooterAlignment = 8;
// Objects up to this many payload bytes always lie in one extent. Measured with the objects of real
// models in a full arena: 1 MiB loses up to twice the bytes to fragments.
inline constexpr std::uint64_t kContiguousBytes = std::uint64_t{256} << 10;

constexpr std::uint64_t round_up(std::uint64_t bytes, std::uint64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

// A piece of the arena. Both members are bytes, multiples of kGranuleBytes.
struct Extent {
  std::uint64_t offset;
  std::uint64_t bytes;

  friend bool operator==(const Extent&, const Extent&) = default;
};

struct ShapeResult;

// The layout of one object size of a pool inside its slot.
//
// The ranges follow one another without gaps; behind the last one, on an 8-byte border, comes the
// footer: the slot header and one checksum per range. A slot in several extents is cut between
// ranges only. Every extent but the last holds as many of the following ranges as fit in its bytes;
// the last one holds all that remain (maybe none) and the footer. So the extents alone tell where
// each range lies, and nothing about the cut has to be kept.
class SlotShape {
 public:
  // 1 to kMaxRanges ranges of at least one byte, at most kMaxObjectBytes together.
  static ShapeResult create(std::span<const std::uint64_t> range_bytes);

  std::uint32_t ranges() const { return static_cast<std::uint32_t>(starts_.size() - 1); }
  std::uint64_t payload_bytes() const { return starts_.back(); }
  std::uint64_t footer_bytes() const { return kSlotHeaderBytes + kChecksumBytes * ranges(); }
  // The slot in one extent.
  std::uint64_t slot_bytes() const { return slot_bytes_; }
  // Whether the slot may have more than one extent.
  bool divisible() const { return payload_bytes() > kContiguousBytes && ranges() > 1; }

  // Place of a range in the object; `range` < ranges().
  std::uint64_t range_offset(std::uint32_t range) const { return starts_[range]; }
  std::uint64_t range_bytes(std::uint32_t range) const { return starts_[range + 1] - starts_[range]; }

  // The end of the longest run of ranges from `first_range` that fits in `bytes`; first_range when
  // not even one fits.
  std::uint32_t ranges_fitting(std::uint32_t first_range, std::uint64_t bytes) const;
  // Slot bytes of an extent with ranges [first, end) and no footer, and of the last extent.
  std::uint64_t piece_bytes(std::uint32_t first, std::uint32_t end) const {
    return round_up(std::uint64_t{starts_[end]} - starts_[first], kGranuleBytes);
  }
  std::uint64_t last_piece_bytes(std::uint32_t first) const {
    return round_up(round_up(payload_bytes() - starts_[first], kFooterAlignment) + footer_bytes(), kGranuleBytes);
  }
  // Slot bytes of all extents together when they begin with range 0 and then with each range
  // named in `cut` (ascending; ranges() puts the footer alone into the last extent).
  std::uint64_t slot_bytes(std::span<const std::uint32_t> cut) const;

  // Which ranges and which bytes of the object an extent holds; ends are exclusive.
  struct Piece {
    std::uint64_t arena_offset;
    std::uint64_t payload_begin;
    std::uint64_t payload_end;
    std::uint32_t first_range;
    std::uint32_t end_range;
  };
  struct Pieces {
    Pieces() {}  // not `= default`: that would write zeros over all items wherever pieces are value-initialised
    Pieces(const Pieces& other) : count(other.count) { std::copy_n(other.items.data(), count, items.data()); }
    Pieces& operator=(const Pieces&) = delete;

    std::uint32_t count = 0;
    std::array<Piece, kMaxExtents> items;  // those from `count` on have no value

    std::span<const Piece> view() const { return {items.data(), count}; }
  };

  // Nothing when these extents are no slot of this shape: wrong number, not aligned, or of bytes
  // that do not hold the object. Whoever reads extents from shared memory asks this first.
  std::optional<Pieces> pieces(std::span<const Extent> extents) const;

  // Arena offsets of a range's first byte and of the footer. The extents must be a slot of this
  // shape. For many ranges of a slot in several extents use pieces().
  std::uint64_t locate(std::span<const Extent> extents, std::uint32_t range) const;
  std::uint64_t footer_offset(std::span<const Extent> extents) const;

 private:
  SlotShape() = default;

  // Offset of each range in the object, then the object's bytes. 32 bits hold kMaxObjectBytes.
  std::vector<std::uint32_t> starts_;
  std::uint64_t slot_bytes_ = 0;
};

static_assert(kMaxObjectBytes <= std::numeric_limits<std::uint32_t>::max());

// The shape, or the reason why there is none.
struct ShapeResult {
  std::optional<SlotShape> shape;
  std::string error;
};

}  // namespace kvonce::storage
