// SPDX-License-Identifier: Apache-2.0
#include "protocol/ghost_list.hpp"

#include <algorithm>
#include <bit>
#include <limits>

namespace kvonce::protocol {

namespace {
constexpr std::uint32_t kEmpty = std::numeric_limits<std::uint32_t>::max();
constexpr std::uint32_t kMaxCapacity = 1U << 30;
}  // namespace

GhostList::GhostList(std::uint32_t capacity)
    : capacity_(std::min(capacity, kMaxCapacity)) {}

std::size_t GhostList::find(std::uint64_t fingerprint) const noexcept {
  std::size_t entry = home(fingerprint);
  while (table_[entry] != kEmpty && ring_[table_[entry]] != fingerprint) entry = (entry + 1) & mask_;
  return entry;
}

void GhostList::remove(std::size_t entry) noexcept {
  // Entries behind move up where that does not put them before their home, so no tombstones are needed.
  std::size_t hole = entry;
  for (std::size_t at = (hole + 1) & mask_; table_[at] != kEmpty; at = (at + 1) & mask_) {
    const std::size_t from_home = (at - home(ring_[table_[at]])) & mask_;
    const std::size_t from_hole = (at - hole) & mask_;
    if (from_home < from_hole) continue;
    table_[hole] = table_[at];
    hole = at;
  }
  table_[hole] = kEmpty;
  --size_;
}

void GhostList::add(std::uint64_t fingerprint) {
  if (capacity_ == 0) return;
  if (ring_.empty()) {  // memory is taken when the first page leaves, not before
    ring_.resize(capacity_);
    table_.assign(std::bit_ceil(std::max<std::size_t>(2, ring_.size() * 2)), kEmpty);
    mask_ = table_.size() - 1;
  }
  if (const std::size_t known = find(fingerprint); table_[known] != kEmpty) remove(known);
  if (const std::size_t oldest = find(ring_[next_]); table_[oldest] == next_) remove(oldest);
  ring_[next_] = fingerprint;
  table_[find(fingerprint)] = next_;
  ++size_;
  next_ = next_ + 1 == ring_.size() ? 0 : next_ + 1;
}

bool GhostList::contains(std::uint64_t fingerprint) const {
  return size_ != 0 && table_[find(fingerprint)] != kEmpty;
}

bool GhostList::erase(std::uint64_t fingerprint) {
  if (size_ == 0) return false;  // the usual case until something is evicted: costs no cache miss
  const std::size_t entry = find(fingerprint);
  if (table_[entry] == kEmpty) return false;
  remove(entry);
  return true;
}

}  // namespace kvonce::protocol
