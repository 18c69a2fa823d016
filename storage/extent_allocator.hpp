// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "storage/slot_shape.hpp"

namespace kvonce::storage {

// Arena space of one object: 1 to kMaxExtents extents, in the order of the object's ranges. Only
// the first `count` of them have a meaning; the others are not even initialised.
struct Slot {
  Slot() { extents[0] = {}; }
  // Nearly every slot has one extent: a copy of all of them, most never used, would be most of a small grant's work.
  Slot(const Slot& other) { *this = other; }
  Slot& operator=(const Slot& other) {
    count = other.count;
    extents[0] = other.extents[0];
    for (std::uint32_t i = 1; i < count && i < kMaxExtents; ++i) extents[i] = other.extents[i];
    return *this;
  }

  std::uint32_t count = 0;
  std::array<Extent, kMaxExtents> extents;  // after the first, those from `count` on have no value

  std::span<const Extent> view() const { return {extents.data(), count}; }
  std::uint64_t bytes() const {
    std::uint64_t total = 0;
    for (const Extent& extent : view()) total += extent.bytes;
    return total;
  }
};

// Hands out the space of [base, base + bytes) by offsets; never touches the memory behind them.
//
// Keeps records of free fragments only (60 to 110 bytes each, for the most there ever were): whoever
// holds a slot keeps its extents. Same calls, same offsets. Not thread-safe: one owner.
class ExtentAllocator {
 public:
  // Trimmed to whole granules; at most 2^32 - 2 free fragments.
  ExtentAllocator(std::uint64_t base_offset, std::uint64_t bytes);

  // With `used` given out already, in any order: for a store that takes over an arena. Nothing, and the reason, when an
  // extent lies outside or overlaps another.
  static std::optional<ExtentAllocator> around(std::uint64_t base_offset, std::uint64_t bytes, std::vector<Extent> used,
                                               std::string* why_not);

  // Space for an object, or nothing when the free fragments do not hold it.
  std::optional<Slot> allocate(const SlotShape& shape);
  bool would_fit(const SlotShape& shape) const;

  // Gives a slot back as allocate() made it. False, and nothing has changed, for one that lies
  // outside or is seen to be free already.
  bool free(const Slot& slot);

  std::uint64_t total_bytes() const { return (end_ - begin_) * kGranuleBytes; }
  std::uint64_t free_bytes() const { return free_granules_ * kGranuleBytes; }
  std::uint64_t used_bytes() const { return total_bytes() - free_bytes(); }
  // Bytes of the largest free fragment. Looks through one size class: for telemetry.
  std::uint64_t largest_free() const;
  // Number of free fragments; no two of them touch.
  std::uint64_t fragments() const { return fragment_count_; }
  // Heap bytes of the bookkeeping.
  std::uint64_t metadata_bytes() const;

 private:
  using Index = std::uint32_t;
  static constexpr Index kNone = ~Index{0};

  // Size classes, in granules: one per size up to kExactSizes, then 2^kStepBits per power of two.
  static constexpr unsigned kExactBits = 10;
  static constexpr unsigned kStepBits = 7;
  static constexpr std::uint64_t kExactSizes = std::uint64_t{1} << kExactBits;
  static constexpr unsigned kClasses = static_cast<unsigned>(kExactSizes) + ((64 - kExactBits) << kStepBits);
  static constexpr unsigned kClassWords = kClasses / 64;

  struct Fragment {
    std::uint64_t start;     // granules
    std::uint64_t granules;  // 0: the record is unused, `next` links the unused ones
    Index prev;
    Index next;
  };

  // Finds the fragment that starts or ends at a border. Fragments never touch, so a border belongs
  // to one fragment only.
  struct Border {
    std::uint32_t tag;  // low bits of the border's granule
    Index fragment;     // kNone: empty
  };

  struct Plan {
    std::uint32_t count = 0;
    std::array<Index, kMaxExtents> fragments;
    std::array<std::uint64_t, kMaxExtents> granules;
  };

  static unsigned class_of(std::uint64_t granules);
  unsigned class_from(unsigned first) const;
  unsigned class_below(unsigned limit) const;
  Index best_fit(std::uint64_t granules, std::span<const Index> taken) const;
  bool plan_pieces(const SlotShape& shape, Plan& plan) const;
  Extent carve(Index index, std::uint64_t granules, bool from_top);
  void release(std::uint64_t start, std::uint64_t granules);
  bool looks_used(const Extent& extent) const;

  void link(Index index);
  void unlink(Index index);
  void resize(Index index, std::uint64_t granules);
  Index new_fragment(std::uint64_t start, std::uint64_t granules);
  void drop_fragment(Index index);

  std::size_t home(std::uint32_t tag) const { return (tag * 0x9E3779B97F4A7C15u) >> border_shift_; }
  Index find_border(std::uint64_t granule) const;
  void add_border(std::uint64_t granule, Index index);
  void remove_border(std::uint64_t granule, Index index);
  void grow_borders();

  std::uint64_t begin_;  // granules
  std::uint64_t end_;
  std::uint64_t free_granules_ = 0;
  std::uint64_t fragment_count_ = 0;
  std::vector<Fragment> fragments_;
  Index unused_ = kNone;
  std::vector<Border> borders_;
  unsigned border_shift_ = 0;
  std::vector<Index> heads_;
  std::array<std::uint64_t, kClassWords> class_bits_{};
  std::array<std::uint64_t, (kClassWords + 63) / 64> word_bits_{};
};

}  // namespace kvonce::storage
