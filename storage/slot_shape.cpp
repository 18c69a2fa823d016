// SPDX-License-Identifier: Apache-2.0
#include "storage/slot_shape.hpp"

#include <algorithm>
#include <cassert>

namespace kvonce::storage {

ShapeResult SlotShape::create(std::span<const std::uint64_t> range_bytes) {
  if (range_bytes.empty()) return {std::nullopt, "an object needs at least one range"};
  if (range_bytes.size() > kMaxRanges) {
    return {std::nullopt, "an object has at most " + std::to_string(kMaxRanges) + " ranges, not " +
                              std::to_string(range_bytes.size())};
  }
  SlotShape shape;
  shape.starts_.reserve(range_bytes.size() + 1);
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < range_bytes.size(); ++i) {
    if (range_bytes[i] == 0) return {std::nullopt, "range " + std::to_string(i) + " has no bytes"};
    // Compared before it is added, so that huge figures cannot wrap around.
    if (range_bytes[i] > kMaxObjectBytes - total) {
      return {std::nullopt, "an object has at most " + std::to_string(kMaxObjectBytes) + " bytes, range " +
                                std::to_string(i) + " goes beyond"};
    }
    shape.starts_.push_back(static_cast<std::uint32_t>(total));
    total += range_bytes[i];
  }
  shape.starts_.push_back(static_cast<std::uint32_t>(total));
  shape.slot_bytes_ = shape.last_piece_bytes(0);
  return {std::move(shape), {}};
}

std::uint32_t SlotShape::ranges_fitting(std::uint32_t first_range, std::uint64_t bytes) const {
  const std::uint64_t limit = starts_[first_range] + bytes;
  const auto after = std::upper_bound(starts_.begin() + first_range, starts_.end(), limit);
  return static_cast<std::uint32_t>(after - starts_.begin() - 1);
}

std::uint64_t SlotShape::slot_bytes(std::span<const std::uint32_t> cut) const {
  std::uint64_t total = 0;
  std::uint32_t first = 0;
  for (const std::uint32_t next : cut) {
    assert(next > first && next <= ranges());
    total += piece_bytes(first, next);
    first = next;
  }
  return total + last_piece_bytes(first);
}

std::optional<SlotShape::Pieces> SlotShape::pieces(std::span<const Extent> extents) const {
  if (extents.empty() || extents.size() > kMaxExtents) return std::nullopt;
  if (extents.size() > 1 && !divisible()) return std::nullopt;
  std::optional<Pieces> result{std::in_place};
  std::uint32_t first = 0;
  for (std::size_t i = 0; i < extents.size(); ++i) {
    const Extent& extent = extents[i];
    if (extent.offset % kGranuleBytes != 0) return std::nullopt;
    const bool last = i + 1 == extents.size();
    // The bound keeps the sum inside ranges_fitting from wrapping around.
    if (extent.bytes > slot_bytes_) return std::nullopt;
    const std::uint32_t end = last ? ranges() : ranges_fitting(first, extent.bytes);
    if (!last && end == first) return std::nullopt;
    if (extent.bytes != (last ? last_piece_bytes(first) : piece_bytes(first, end))) return std::nullopt;
    result->items[i] = {extent.offset, starts_[first], starts_[end], first, end};
    first = end;
  }
  result->count = static_cast<std::uint32_t>(extents.size());
  return result;
}

std::uint64_t SlotShape::locate(std::span<const Extent> extents, std::uint32_t range) const {
  assert(!extents.empty() && range < ranges());
  std::uint32_t first = 0;
  for (const Extent& extent : extents.first(extents.size() - 1)) {
    const std::uint32_t end = ranges_fitting(first, extent.bytes);
    if (range < end) return extent.offset + (starts_[range] - starts_[first]);
    first = end;
  }
  return extents.back().offset + (starts_[range] - starts_[first]);
}

std::uint64_t SlotShape::footer_offset(std::span<const Extent> extents) const {
  assert(!extents.empty());
  std::uint32_t first = 0;
  for (const Extent& extent : extents.first(extents.size() - 1)) first = ranges_fitting(first, extent.bytes);
  return extents.back().offset + round_up(payload_bytes() - starts_[first], kFooterAlignment);
}

}  // namespace kvonce::storage
