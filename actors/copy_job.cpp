// SPDX-License-Identifier: Apache-2.0
#include "actors/copy_job.hpp"

#include <algorithm>

namespace kvonce::actors {

using protocol::CopyOrder;
using protocol::CopyOutcome;
using transport::CopyStatus;

namespace {

// Far below what a batch may have, so that one load of many layer groups comes through in a few batches.
constexpr std::size_t kRangesPerPart = 1U << 20;

CopyOutcome outcome_of(CopyStatus status) {
  switch (status) {
    case CopyStatus::done: return CopyOutcome::done;
    case CopyStatus::expired: return CopyOutcome::expired;
    case CopyStatus::mismatch: return CopyOutcome::mismatch;
    case CopyStatus::failed: return CopyOutcome::failed;
    case CopyStatus::pending:
    case CopyStatus::canceled: break;
  }
  return CopyOutcome::canceled;
}

}  // namespace

CopyJob::CopyJob(CopyOrder&& order_, std::shared_ptr<const ArenaView> arena, const PoolList& pools)
    : order(std::move(order_)), outcomes(order.items.size(), CopyOutcome::canceled), arena_(std::move(arena)), pools_(pools) {
  if (order.kind != CopyOrder::Kind::from_slot) {
    checksum_counts.resize(order.items.size());
    return;
  }
  checks_.resize(order.items.size());
  for (std::size_t i = 1; i < order.items.size(); ++i)
    if (order.items[i].layer_begin != order.items[i - 1].layer_begin) ++group_count_;
  if (group_count_ == 0) return;
  groups_ = std::make_unique<Group[]>(++group_count_);
  std::size_t group = 0;
  for (std::size_t i = 0; i < order.items.size(); ++i) {
    if (i != 0 && order.items[i].layer_begin != order.items[i - 1].layer_begin) ++group;
    groups_[group].end = static_cast<std::uint32_t>(i + 1);
    groups_[group].left.fetch_add(1, std::memory_order_relaxed);
  }
}

// Whatever index or message it comes from: nothing outside the arena is ever touched.
bool CopyJob::inside(const storage::Slot& slot) const {
  if (slot.count == 0 || slot.count > storage::kMaxExtents) return false;
  for (const storage::Extent& extent : slot.view())
    if (extent.offset > arena_->bytes || extent.bytes > arena_->bytes - extent.offset) return false;
  return true;
}

// Appends the ranges of one item; false when it names memory that is not there.
bool CopyJob::make_ranges(std::size_t index, transport::CopyBatch& batch) {
  const CopyOrder::Item& item = order.items[index];
  if (item.pool >= pools_.size()) return false;
  const PoolMemory& pool = *pools_[item.pool];
  const protocol::PoolGeometry& geometry = pool.geometry;
  if (!pool.shape || item.row >= geometry.rows()) return false;
  const storage::SlotShape& shape = *pool.shape;

  if (order.kind == CopyOrder::Kind::hash_row) {
    for (std::uint32_t r = 0; r < geometry.ranges(); ++r)
      batch.ranges.push_back({geometry.range_row(r, item.row), nullptr, geometry.range_bytes(r)});
    bytes_ += geometry.object_bytes();
    return true;
  }

  if (!inside(item.location.slot)) return false;
  const auto pieces = shape.pieces(item.location.slot.view());
  if (!pieces) return false;
  const auto at = [&](std::uint32_t range) -> std::byte* {
    std::uint32_t p = 0;
    while (range >= pieces->items[p].end_range) ++p;
    const auto& piece = pieces->items[p];
    return arena_->base + piece.arena_offset + (shape.range_offset(range) - piece.payload_begin);
  };
  if (order.kind == CopyOrder::Kind::to_slot) {
    for (std::uint32_t r = 0; r < geometry.ranges(); ++r)
      batch.ranges.push_back({geometry.range_row(r, item.row), at(r), geometry.range_bytes(r)});
    bytes_ += geometry.object_bytes();
    return true;
  }

  Check& check = checks_[index];
  const std::uint64_t footer = shape.footer_offset(item.location.slot.view());
  check.header = protocol::header_at(arena_->base, footer);
  __builtin_prefetch(check.header);  // it is compared right after the copy, which reads its neighbour last
  if (item.layer_begin == 0 && item.layer_end >= geometry.layers()) {
    for (std::uint32_t r = 0; r < geometry.ranges(); ++r)
      batch.ranges.push_back({at(r), geometry.range_row(r, item.row), geometry.range_bytes(r)});
    bytes_ += geometry.object_bytes();
    return true;
  }
  const std::uint32_t begin = std::min(item.layer_begin, geometry.layers());
  const std::uint32_t end = std::clamp(item.layer_end, begin, geometry.layers());
  check.ranges = pool.by_layer.data() + pool.layer_start[begin];
  for (std::uint32_t k = pool.layer_start[begin]; k < pool.layer_start[end]; ++k) {
    const std::uint32_t r = pool.by_layer[k];
    batch.ranges.push_back({at(r), geometry.range_row(r, item.row), geometry.range_bytes(r)});
    bytes_ += geometry.range_bytes(r);
  }
  return true;
}

std::vector<CopyJob::Part> CopyJob::make_parts() {
  std::vector<Part> made;
  // Only loads are cut: the checksums of the others are handed on in the items' order.
  const std::size_t ranges_max = order.kind == CopyOrder::Kind::from_slot ? kRangesPerPart : transport::kMaxRanges;
  for (std::size_t i = 0; i < order.items.size();) {
    Part& part = made.emplace_back();
    part.first_item = i;
    transport::CopyBatch& batch = part.batch;
    const std::size_t most = std::min(order.items.size() - i, transport::kMaxItems);
    batch.items.reserve(most);
    if (order.items[i].pool < pools_.size())
      batch.ranges.reserve(std::min(most * pools_[order.items[i].pool]->geometry.ranges(), kRangesPerPart));
    while (i < order.items.size() && batch.items.size() < most && batch.ranges.size() < ranges_max) {
      const auto first = static_cast<std::uint32_t>(batch.ranges.size());
      if (!make_ranges(i, batch)) {
        batch.ranges.resize(first);
        batch.ranges.push_back({nullptr, nullptr, 1});  // makes this item `failed`, and no other
      }
      batch.items.push_back({first, static_cast<std::uint32_t>(batch.ranges.size()) - first, i});
      ++i;
    }
    batch.hash_only = order.kind == CopyOrder::Kind::hash_row;
    batch.checksums = order.kind != CopyOrder::Kind::from_slot || arena_->checksums;
    if (order.kind == CopyOrder::Kind::from_slot) {
      batch.check = [this, base = part.first_item](std::size_t item, std::span<const std::uint64_t> sums) {
        return verify(base + item, sums);
      };
    }
  }
  return made;
}

bool CopyJob::verify(std::size_t index, std::span<const std::uint64_t> sums) {
  const CopyOrder::Item& item = order.items[index];
  const Check& check = checks_[index];
  bool good = true;
  for (std::size_t k = 0; k < sums.size() && good; ++k) {
    const std::uint32_t range = check.ranges != nullptr ? check.ranges[k] : static_cast<std::uint32_t>(k);
    good = protocol::read_checksum(check.header, range) == sums[k];
  }
  // The slot's bytes and trailer were read before this; epochs are never used twice, so an equal one says that the slot
  // was not given to anybody in between.
  std::atomic_thread_fence(std::memory_order_acquire);
  const protocol::IndexReader& reader = arena_->readers[item.partition];
  good = good && protocol::slot_is(check.header, item.location.epoch, reader.slot_incarnation()) &&
         reader.generation(item.ns, item.store_pool) == item.generation;
  outcomes[index] = good ? CopyOutcome::done : CopyOutcome::mismatch;
  note_finished(index);
  return good;
}

void CopyJob::note_finished(std::size_t index) {
  if (group_count_ == 0 || !advanced) return;
  Group* const end = groups_.get() + group_count_;
  Group* const group = std::upper_bound(groups_.get(), end, index, [](std::size_t i, const Group& g) { return i < g.end; });
  // Release and acquire: the outcomes of the group's items were written by several threads.
  if (group->left.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  std::uint32_t items_done = 0;
  {
    const std::lock_guard lock(groups_mutex_);
    while (groups_done_ < group_count_ && groups_[groups_done_].left.load(std::memory_order_acquire) == 0)
      items_done = groups_[groups_done_++].end;
  }
  if (items_done != 0) advanced(items_done);
}

void CopyJob::collect(const transport::Operation& operation, std::size_t first_item) {
  const bool wants_sums = order.kind != CopyOrder::Kind::from_slot;
  for (std::size_t i = 0; i < operation.item_count(); ++i) {
    const CopyOutcome outcome = outcome_of(operation.status(i));
    // Items of finished layer groups are being read by the actor at this moment: they are not written again.
    if (outcomes[first_item + i] != outcome) outcomes[first_item + i] = outcome;
    if (!wants_sums || outcome != CopyOutcome::done) continue;
    const auto sums = operation.checksums(i);
    checksum_counts[first_item + i] = static_cast<std::uint32_t>(sums.size());
    checksums.insert(checksums.end(), sums.begin(), sums.end());
  }
}

void CopyJob::refuse(std::size_t first_item, std::size_t items, CopyOutcome outcome) {
  std::fill_n(outcomes.begin() + static_cast<std::ptrdiff_t>(first_item), items, outcome);
}

}  // namespace kvonce::actors
