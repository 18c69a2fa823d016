// SPDX-License-Identifier: Apache-2.0
#include "storage/extent_allocator.hpp"

#include <algorithm>
#include <bit>
#include <cassert>

namespace kvonce::storage {

namespace {

constexpr std::size_t kFirstBorders = 64;
// Fragments of one inexact size class that a best-fit search looks at before it takes what it has.
constexpr unsigned kSearchLimit = 32;
// Slots from this size are carved from the top of a fragment, smaller ones from the bottom, so that
// small slots do not scatter through the space that large ones need.
constexpr std::uint64_t kTopGranules = (std::uint64_t{512} << 10) / kGranuleBytes;

}  // namespace

ExtentAllocator::ExtentAllocator(std::uint64_t base_offset, std::uint64_t bytes)
    : begin_((base_offset + kGranuleBytes - 1) / kGranuleBytes),
      end_(std::max(begin_, (base_offset + bytes) / kGranuleBytes)),
      borders_(kFirstBorders, Border{0, kNone}),
      border_shift_(64 - static_cast<unsigned>(std::countr_zero(kFirstBorders))),
      heads_(kClasses, kNone) {
  if (begin_ < end_) release(begin_, end_ - begin_);
}

std::optional<ExtentAllocator> ExtentAllocator::around(std::uint64_t base_offset, std::uint64_t bytes, std::vector<Extent> used,
                                                       std::string* why_not) {
  ExtentAllocator allocator(base_offset, bytes);
  if (used.empty()) return allocator;
  std::sort(used.begin(), used.end(), [](const Extent& a, const Extent& b) { return a.offset < b.offset; });
  const std::uint64_t begin = allocator.begin_;
  const std::uint64_t end = allocator.end_;
  ExtentAllocator fresh(base_offset, 0);
  fresh.begin_ = begin;
  fresh.end_ = end;
  std::uint64_t at = begin;
  for (const Extent& extent : used) {
    const std::uint64_t start = extent.offset / kGranuleBytes;
    const std::uint64_t granules = extent.bytes / kGranuleBytes;
    if (extent.offset % kGranuleBytes != 0 || extent.bytes % kGranuleBytes != 0 || granules == 0 || start < begin || start >= end ||
        granules > end - start) {
      *why_not = std::to_string(extent.bytes) + " bytes at " + std::to_string(extent.offset) + " do not lie between the slots' borders " +
                 std::to_string(begin * kGranuleBytes) + " and " + std::to_string(end * kGranuleBytes);
      return std::nullopt;
    }
    if (start < at) {
      *why_not = "two slots share the bytes at " + std::to_string(extent.offset);
      return std::nullopt;
    }
    if (start > at) fresh.release(at, start - at);
    at = start + granules;
  }
  if (at < end) fresh.release(at, end - at);
  return fresh;
}

std::optional<Slot> ExtentAllocator::allocate(const SlotShape& shape) {
  const std::uint64_t granules = shape.slot_bytes() / kGranuleBytes;
  if (granules > free_granules_) return std::nullopt;
  const bool from_top = granules >= kTopGranules;
  if (const Index index = best_fit(granules, {}); index != kNone) {
    std::optional<Slot> slot{std::in_place};
    slot->count = 1;
    slot->extents[0] = carve(index, granules, from_top);
    return slot;
  }
  Plan plan;
  if (!shape.divisible() || !plan_pieces(shape, plan)) return std::nullopt;
  std::optional<Slot> slot{std::in_place};
  slot->count = plan.count;
  for (std::uint32_t i = 0; i < plan.count; ++i) {
    slot->extents[i] = carve(plan.fragments[i], plan.granules[i], from_top);
  }
  return slot;
}

bool ExtentAllocator::would_fit(const SlotShape& shape) const {
  const std::uint64_t granules = shape.slot_bytes() / kGranuleBytes;
  if (granules > free_granules_) return false;
  if (best_fit(granules, {}) != kNone) return true;
  Plan plan;
  return shape.divisible() && plan_pieces(shape, plan);
}

bool ExtentAllocator::free(const Slot& slot) {
  if (slot.count == 0 || slot.count > kMaxExtents) return false;
  for (const Extent& extent : slot.view()) {
    if (!looks_used(extent)) return false;
  }
  for (const Extent& extent : slot.view()) release(extent.offset / kGranuleBytes, extent.bytes / kGranuleBytes);
  return true;
}

std::uint64_t ExtentAllocator::largest_free() const {
  const unsigned top = class_below(kClasses);
  if (top == kClasses) return 0;
  std::uint64_t largest = 0;
  for (Index i = heads_[top]; i != kNone; i = fragments_[i].next) largest = std::max(largest, fragments_[i].granules);
  return largest * kGranuleBytes;
}

std::uint64_t ExtentAllocator::metadata_bytes() const {
  return fragments_.capacity() * sizeof(Fragment) + borders_.capacity() * sizeof(Border) +
         heads_.capacity() * sizeof(Index);
}

// Largest fragments first, each filled up to the last seam that fits, until the rest has room in
// one fragment: that one is the best fit. Fewest extents, and only the last leaves a useful rest.
bool ExtentAllocator::plan_pieces(const SlotShape& shape, Plan& plan) const {
  std::uint32_t first = 0;
  for (unsigned size_class = class_below(kClasses); size_class != kClasses; size_class = class_below(size_class)) {
    for (Index index = heads_[size_class]; index != kNone; index = fragments_[index].next) {
      const std::uint64_t rest = shape.last_piece_bytes(first) / kGranuleBytes;
      const std::span<const Index> taken{plan.fragments.data(), plan.count};
      if (rest <= fragments_[index].granules) {
        plan.fragments[plan.count] = best_fit(rest, taken);
        plan.granules[plan.count] = rest;
        ++plan.count;
        return true;
      }
      if (plan.count + 1 == kMaxExtents) return false;
      const std::uint32_t end = shape.ranges_fitting(first, fragments_[index].granules * kGranuleBytes);
      if (end == first) return false;
      plan.fragments[plan.count] = index;
      plan.granules[plan.count] = shape.piece_bytes(first, end) / kGranuleBytes;
      ++plan.count;
      first = end;
    }
  }
  return false;
}

unsigned ExtentAllocator::class_of(std::uint64_t granules) {
  if (granules < kExactSizes) return static_cast<unsigned>(granules);
  const unsigned bits = static_cast<unsigned>(std::bit_width(granules)) - 1;
  const unsigned step = static_cast<unsigned>(granules >> (bits - kStepBits)) & ((1u << kStepBits) - 1);
  return static_cast<unsigned>(kExactSizes) + ((bits - kExactBits) << kStepBits) + step;
}

// The first class from `first` on that has fragments; kClasses if none.
unsigned ExtentAllocator::class_from(unsigned first) const {
  if (first >= kClasses) return kClasses;
  unsigned word = first / 64;
  if (const std::uint64_t bits = class_bits_[word] >> (first % 64); bits != 0) {
    return first + static_cast<unsigned>(std::countr_zero(bits));
  }
  ++word;
  for (unsigned i = word / 64; i < word_bits_.size(); ++i) {
    std::uint64_t words = word_bits_[i];
    if (i == word / 64) words &= ~std::uint64_t{0} << (word % 64);
    if (words == 0) continue;
    const unsigned found = i * 64 + static_cast<unsigned>(std::countr_zero(words));
    return found * 64 + static_cast<unsigned>(std::countr_zero(class_bits_[found]));
  }
  return kClasses;
}

// The last class before `limit` that has fragments; kClasses if none.
unsigned ExtentAllocator::class_below(unsigned limit) const {
  if (limit == 0) return kClasses;
  for (unsigned word = (limit - 1) / 64 + 1; word-- > 0;) {
    std::uint64_t bits = class_bits_[word];
    if (word == limit / 64) bits &= (std::uint64_t{1} << (limit % 64)) - 1;
    if (bits != 0) return word * 64 + 63 - static_cast<unsigned>(std::countl_zero(bits));
  }
  return kClasses;
}

ExtentAllocator::Index ExtentAllocator::best_fit(std::uint64_t granules, std::span<const Index> taken) const {
  const unsigned own = class_of(granules);
  for (unsigned size_class = class_from(own); size_class != kClasses; size_class = class_from(size_class + 1)) {
    Index best = kNone;
    unsigned seen = 0;
    // Only the class of the size itself has fragments that are too small. It is searched to its end
    // as long as nothing fits: a request is not refused because the search was cut short.
    for (Index i = heads_[size_class]; i != kNone; i = fragments_[i].next) {
      if (++seen > kSearchLimit && best != kNone) break;
      if (fragments_[i].granules < granules) continue;
      if (best != kNone && fragments_[i].granules >= fragments_[best].granules) continue;
      if (std::find(taken.begin(), taken.end(), i) != taken.end()) continue;
      best = i;
      if (fragments_[i].granules == granules) return best;
    }
    if (best != kNone) return best;
  }
  return kNone;
}

Extent ExtentAllocator::carve(Index index, std::uint64_t granules, bool from_top) {
  Fragment& fragment = fragments_[index];
  assert(granules > 0 && granules <= fragment.granules);
  const std::uint64_t end = fragment.start + fragment.granules;
  std::uint64_t start = fragment.start;
  if (granules == fragment.granules) {
    remove_border(start, index);
    remove_border(end, index);
    drop_fragment(index);
  } else if (from_top) {
    start = end - granules;
    remove_border(end, index);
    add_border(start, index);
    resize(index, fragment.granules - granules);
  } else {
    remove_border(start, index);
    fragment.start += granules;
    add_border(fragment.start, index);
    resize(index, fragment.granules - granules);
  }
  free_granules_ -= granules;
  return {start * kGranuleBytes, granules * kGranuleBytes};
}

void ExtentAllocator::release(std::uint64_t start, std::uint64_t granules) {
  const std::uint64_t end = start + granules;
  const Index before = find_border(start);
  const Index after = find_border(end);
  free_granules_ += granules;
  if (before != kNone && after != kNone) {
    const std::uint64_t after_granules = fragments_[after].granules;
    remove_border(start, before);
    remove_border(end, after);
    remove_border(end + after_granules, after);
    drop_fragment(after);
    add_border(end + after_granules, before);
    resize(before, fragments_[before].granules + granules + after_granules);
  } else if (before != kNone) {
    remove_border(start, before);
    add_border(end, before);
    resize(before, fragments_[before].granules + granules);
  } else if (after != kNone) {
    remove_border(end, after);
    fragments_[after].start = start;
    add_border(start, after);
    resize(after, fragments_[after].granules + granules);
  } else {
    const Index index = new_fragment(start, granules);
    add_border(start, index);
    add_border(end, index);
  }
}

// Sees a slot that was given back before as long as its borders are still borders of the fragment
// it went into; a full check would need a record per slot.
bool ExtentAllocator::looks_used(const Extent& extent) const {
  if (extent.bytes == 0 || extent.offset % kGranuleBytes != 0 || extent.bytes % kGranuleBytes != 0) return false;
  const std::uint64_t start = extent.offset / kGranuleBytes;
  const std::uint64_t granules = extent.bytes / kGranuleBytes;
  if (start < begin_ || start >= end_ || granules > end_ - start) return false;
  if (granules > (end_ - begin_) - free_granules_) return false;
  const Index before = find_border(start);
  if (before != kNone && fragments_[before].start == start) return false;
  const Index after = find_border(start + granules);
  return after == kNone || fragments_[after].start == start + granules;
}

void ExtentAllocator::link(Index index) {
  Fragment& fragment = fragments_[index];
  const unsigned size_class = class_of(fragment.granules);
  fragment.prev = kNone;
  fragment.next = heads_[size_class];
  if (fragment.next != kNone) {
    fragments_[fragment.next].prev = index;
  } else {
    class_bits_[size_class / 64] |= std::uint64_t{1} << (size_class % 64);
    word_bits_[size_class / 4096] |= std::uint64_t{1} << (size_class / 64 % 64);
  }
  heads_[size_class] = index;
}

void ExtentAllocator::unlink(Index index) {
  const Fragment& fragment = fragments_[index];
  if (fragment.next != kNone) fragments_[fragment.next].prev = fragment.prev;
  if (fragment.prev != kNone) {
    fragments_[fragment.prev].next = fragment.next;
    return;
  }
  const unsigned size_class = class_of(fragment.granules);
  heads_[size_class] = fragment.next;
  if (fragment.next != kNone) return;
  class_bits_[size_class / 64] &= ~(std::uint64_t{1} << (size_class % 64));
  if (class_bits_[size_class / 64] == 0) word_bits_[size_class / 4096] &= ~(std::uint64_t{1} << (size_class / 64 % 64));
}

void ExtentAllocator::resize(Index index, std::uint64_t granules) {
  Fragment& fragment = fragments_[index];
  if (class_of(fragment.granules) == class_of(granules)) {
    fragment.granules = granules;
    return;
  }
  unlink(index);
  fragment.granules = granules;
  link(index);
}

ExtentAllocator::Index ExtentAllocator::new_fragment(std::uint64_t start, std::uint64_t granules) {
  Index index = unused_;
  if (index != kNone) {
    unused_ = fragments_[index].next;
  } else {
    index = static_cast<Index>(fragments_.size());
    fragments_.emplace_back();
  }
  fragments_[index].start = start;
  fragments_[index].granules = granules;
  link(index);
  ++fragment_count_;
  if (fragment_count_ * 4 > borders_.size()) grow_borders();
  return index;
}

void ExtentAllocator::drop_fragment(Index index) {
  unlink(index);
  fragments_[index].granules = 0;
  fragments_[index].next = unused_;
  unused_ = index;
  --fragment_count_;
}

ExtentAllocator::Index ExtentAllocator::find_border(std::uint64_t granule) const {
  const auto tag = static_cast<std::uint32_t>(granule);
  const std::size_t mask = borders_.size() - 1;
  for (std::size_t i = home(tag); borders_[i].fragment != kNone; i = (i + 1) & mask) {
    if (borders_[i].tag != tag) continue;
    // Arenas above 256 GiB have borders with the same tag.
    const Fragment& fragment = fragments_[borders_[i].fragment];
    if (fragment.start == granule || fragment.start + fragment.granules == granule) return borders_[i].fragment;
  }
  return kNone;
}

void ExtentAllocator::add_border(std::uint64_t granule, Index index) {
  const auto tag = static_cast<std::uint32_t>(granule);
  const std::size_t mask = borders_.size() - 1;
  std::size_t i = home(tag);
  while (borders_[i].fragment != kNone) i = (i + 1) & mask;
  borders_[i] = {tag, index};
}

void ExtentAllocator::remove_border(std::uint64_t granule, Index index) {
  const auto tag = static_cast<std::uint32_t>(granule);
  const std::size_t mask = borders_.size() - 1;
  std::size_t hole = home(tag);
  while (borders_[hole].tag != tag || borders_[hole].fragment != index) {
    assert(borders_[hole].fragment != kNone);
    hole = (hole + 1) & mask;
  }
  // Entries behind the hole move up unless that would put them before their home, so that no
  // markers of deleted entries are needed.
  for (std::size_t i = (hole + 1) & mask; borders_[i].fragment != kNone; i = (i + 1) & mask) {
    if (((i - home(borders_[i].tag)) & mask) < ((i - hole) & mask)) continue;
    borders_[hole] = borders_[i];
    hole = i;
  }
  borders_[hole].fragment = kNone;
}

void ExtentAllocator::grow_borders() {
  std::vector<Border> old(borders_.size() * 2, Border{0, kNone});
  old.swap(borders_);
  --border_shift_;
  const std::size_t mask = borders_.size() - 1;
  for (const Border& border : old) {
    if (border.fragment == kNone) continue;
    std::size_t i = home(border.tag);
    while (borders_[i].fragment != kNone) i = (i + 1) & mask;
    borders_[i] = border;
  }
}

}  // namespace kvonce::storage
