// SPDX-License-Identifier: Apache-2.0
#include "storage/churn.hpp"

#include <algorithm>
#include <vector>

#include "storage/extent_allocator.hpp"

namespace kvonce::storage {

namespace {

// SplitMix64: the distributions of <random> differ between libraries, the report must not.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : state_(seed) {}

  std::uint64_t below(std::uint64_t limit) { return next() % limit; }

 private:
  std::uint64_t next() {
    std::uint64_t x = state_ += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
  }

  std::uint64_t state_;
};

// The objects in the arena, in the order they came. Extents of most objects are kept in the record
// itself, so that millions of small objects cost little.
class Residents {
 public:
  void add(std::uint32_t shape, const Slot& slot) {
    std::uint32_t spill = kNoSpill;
    if (slot.count > 1) {
      if (unused_.empty()) {
        spill = static_cast<std::uint32_t>(spilled_.size());
        spilled_.emplace_back();
      } else {
        spill = unused_.back();
        unused_.pop_back();
      }
      spilled_[spill] = slot;
    }
    alive_.push_back(static_cast<std::uint32_t>(objects_.size()));
    objects_.push_back({slot.extents[0], shape, spill, static_cast<std::uint32_t>(alive_.size() - 1)});
  }

  bool empty() const { return alive_.empty(); }
  std::uint64_t count() const { return alive_.size(); }

  std::uint32_t any(Dice& dice) const { return alive_[dice.below(alive_.size())]; }
  std::uint32_t oldest() {
    while (objects_[first_].place == kGone) ++first_;
    return first_;
  }

  std::uint32_t shape(std::uint32_t id) const { return objects_[id].shape; }

  Slot remove(std::uint32_t id) {
    Object& object = objects_[id];
    Slot slot;
    slot.count = 1;
    slot.extents[0] = object.extent;
    if (object.spill != kNoSpill) {
      slot = spilled_[object.spill];
      unused_.push_back(object.spill);
    }
    const std::uint32_t last = alive_.back();
    alive_[object.place] = last;
    objects_[last].place = object.place;
    alive_.pop_back();
    object.place = kGone;
    return slot;
  }

 private:
  static constexpr std::uint32_t kNoSpill = ~std::uint32_t{0};
  static constexpr std::uint32_t kGone = ~std::uint32_t{0};

  struct Object {
    Extent extent;
    std::uint32_t shape;
    std::uint32_t spill;
    std::uint32_t place;  // in alive_
  };

  std::vector<Object> objects_;
  std::vector<std::uint32_t> alive_;
  std::vector<Slot> spilled_;
  std::vector<std::uint32_t> unused_;
  std::uint32_t first_ = 0;
};

class Churn {
 public:
  Churn(std::uint64_t arena_bytes, double full_share, std::uint64_t seed, std::span<const SlotShape> shapes)
      : allocator_(0, arena_bytes),
        arena_(static_cast<double>(arena_bytes)),
        limit_(static_cast<std::uint64_t>(full_share * static_cast<double>(arena_bytes))),
        dice_(seed),
        shapes_(shapes) {}

  ChurnReport run(std::uint64_t operations) {
    std::uint64_t largest = 0;
    for (const SlotShape& shape : shapes_) largest = std::max(largest, shape.payload_bytes());
    // The report begins once the arena has been as full as it gets.
    while (payload_ + largest <= limit_ && report_.evictions_for_space + report_.refused == 0) put();
    report_ = {};
    lost_sum_ = 0;
    double residents = 0;
    double overhead = 0;
    double extents = 0;
    for (std::uint64_t i = 0; i < operations; ++i) {
      extents += static_cast<double>(put());
      residents += static_cast<double>(payload_);
      overhead += static_cast<double>(allocator_.used_bytes() - payload_);
      report_.objects_max = std::max(report_.objects_max, residents_.count());
      report_.fragments_max = std::max(report_.fragments_max, allocator_.fragments());
    }
    const double count = static_cast<double>(std::max<std::uint64_t>(operations, 1));
    report_.operations = operations;
    report_.resident_share_mean = residents / count / arena_;
    report_.overhead_share_mean = overhead / count / arena_;
    report_.extents_mean = extents / count;
    if (report_.evictions_for_fragmentation > 0) {
      report_.lost_share_mean = lost_sum_ / static_cast<double>(report_.evictions_for_fragmentation);
    }
    report_.metadata_bytes = allocator_.metadata_bytes();
    return report_;
  }

 private:
  // Number of extents of the new object, 0 when it was refused.
  std::uint64_t put() {
    const auto kind = static_cast<std::uint32_t>(dice_.below(shapes_.size()));
    const SlotShape& shape = shapes_[kind];
    while (payload_ + shape.payload_bytes() > limit_ && !residents_.empty()) {
      evict();
      ++report_.evictions_for_share;
    }
    std::uint64_t tries = 0;
    bool fragmented = false;
    for (;;) {
      if (const auto slot = allocator_.allocate(shape)) {
        residents_.add(kind, *slot);
        payload_ += shape.payload_bytes();
        report_.extents_max = std::max<std::uint64_t>(report_.extents_max, slot->count);
        return slot->count;
      }
      if (residents_.empty()) {
        ++report_.refused;
        return 0;
      }
      if (allocator_.free_bytes() >= shape.slot_bytes()) {
        const double lost = static_cast<double>(allocator_.free_bytes()) / arena_;
        lost_sum_ += lost;
        report_.lost_share_max = std::max(report_.lost_share_max, lost);
        ++report_.evictions_for_fragmentation;
        if (!fragmented) ++report_.requests_fragmented;
        fragmented = true;
      } else {
        ++report_.evictions_for_space;
      }
      evict();
      report_.evictions_for_space_max = std::max(report_.evictions_for_space_max, ++tries);
    }
  }

  void evict() {
    const std::uint32_t victim = dice_.below(2) == 0 ? residents_.oldest() : residents_.any(dice_);
    payload_ -= shapes_[residents_.shape(victim)].payload_bytes();
    allocator_.free(residents_.remove(victim));
  }

  ExtentAllocator allocator_;
  double arena_;
  std::uint64_t limit_;
  Dice dice_;
  std::span<const SlotShape> shapes_;
  Residents residents_;
  std::uint64_t payload_ = 0;
  double lost_sum_ = 0;
  ChurnReport report_;
};

}  // namespace

ChurnReport run_allocator_churn(std::uint64_t arena_bytes, double full_share, std::uint64_t operations,
                                std::uint64_t seed, std::span<const SlotShape> shapes) {
  if (shapes.empty()) return {};
  return Churn(arena_bytes, full_share, seed, shapes).run(operations);
}

}  // namespace kvonce::storage
