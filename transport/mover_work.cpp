// SPDX-License-Identifier: Apache-2.0
//
// The mover's copying: claims, slices, verdicts. The queue is in mover_state.cpp.
#include <algorithm>
#include <utility>

#include "transport/mover_state.hpp"

namespace kvonce::transport {

bool MoverState::others_wait(const MoverOperation& operation) const {
  // Parked operations count: somebody must come round to look at their events and deadlines.
  return parked_count_.load(std::memory_order_relaxed) != 0 ||
         tasks_queued_.load(std::memory_order_relaxed) > operation.tasks_queued_.load(std::memory_order_relaxed);
}

// Copies at most `budget` bytes of the item at hand; returns how many. At the end of the item, steps to the next one.
std::size_t MoverState::copy_some(MoverOperation& operation, Claim& claim, std::size_t budget) const {
  const CopyItem& item = operation.items_[claim.item];
  if (claim.range == 0 && claim.offset == 0 && !operation.item_is_valid(claim.item)) {
    operation.set_status(claim.item, CopyStatus::failed);
    ++claim.item;
    return 0;
  }
  const bool checksums = !operation.checksums_.empty();
  const bool hash_only = operation.rest_.hash_only;
  std::size_t copied = 0;
  while (claim.range < item.range_count) {
    const std::size_t index = std::size_t{item.first_range} + claim.range;
    const CopyRange& range = operation.ranges_[index];
    std::byte* const target = hash_only ? nullptr : range.target + claim.offset;
    const std::byte* const source = range.source + claim.offset;
    const std::uint64_t left = range.bytes - claim.offset;
    const std::size_t room = budget - copied;
    if (left > room) {
      const std::size_t slice = room / kSliceGranule * kSliceGranule;
      if (hash_only)
        hash_slice(claim.hash, source, slice, config_.kernel);
      else if (checksums)
        copy_slice(claim.hash, target, source, slice, config_.kernel);
      else
        copy_unordered(target, source, slice, config_.kernel);
      claim.offset += slice;
      return copied + slice;
    }
    if (hash_only)
      operation.checksums_[index] = hash_last(claim.hash, source, left, config_.kernel);
    else if (checksums)
      operation.checksums_[index] = copy_last(claim.hash, target, source, left, config_.kernel);
    else
      copy_unordered(target, source, left, config_.kernel);
    copied += left;
    claim.hash.bytes = 0;
    claim.offset = 0;
    ++claim.range;
  }
  claim.range = 0;
  ++claim.item;
  return copied;
}

// Gives their final status to the items that are copied and, with a reason to stop, to all the rest of the claim.
void MoverState::settle(MoverOperation& operation, Claim& claim, CopyStatus reason) {
  std::size_t settled = 0;
  for (; claim.unsettled < claim.item; ++claim.unsettled, ++settled) {
    const std::size_t index = claim.unsettled;
    if (operation.status(index) != CopyStatus::pending) continue;
    // What is all there may be handed over although it was canceled since; never when it is late.
    CopyStatus status = reason == CopyStatus::expired ? reason : CopyStatus::done;
    if (status == CopyStatus::done && operation.rest_.check &&
        !operation.rest_.check(index, operation.checksums(index)))
      status = CopyStatus::mismatch;
    operation.set_status(index, status);
    if (operation.rest_.progress)
      operation.rest_.progress(operation.told_.fetch_add(1, std::memory_order_relaxed) + 1);
  }
  if (reason != CopyStatus::pending) {
    for (; claim.item < claim.end; ++claim.item, ++claim.unsettled, ++settled)
      operation.set_status(claim.item, reason);
  }
  // Acquire and release: whoever settles the last item has seen what all others wrote.
  if (operation.items_left_.fetch_sub(settled, std::memory_order_acq_rel) == settled) complete(operation);
}

MoverState::Outcome MoverState::work(MoverOperation& operation, Claim& claim, bool may_put_back) {
  CopyStatus reason = stop_reason(operation, now());
  while (reason == CopyStatus::pending && claim.item < claim.end) {
    std::size_t budget = kSliceBytes;
    while (claim.item < claim.end && budget >= kSliceGranule) budget -= copy_some(operation, claim, budget);
    // One fence and one look at the clock for all the small items of a slice.
    order_copies();
    bytes_copied_.fetch_add(kSliceBytes - budget, std::memory_order_relaxed);
    reason = stop_reason(operation, now());
    if (reason != CopyStatus::pending || claim.item >= claim.end) break;
    if (claim.unsettled < claim.item) settle(operation, claim, CopyStatus::pending);
    if (may_put_back && others_wait(operation)) return Outcome::put_back;
  }
  settle(operation, claim, reason);
  return Outcome::settled;
}

void MoverState::complete(MoverOperation& operation) {
  std::vector<std::shared_ptr<FenceWait>> fences;
  OperationPtr keep;
  {
    const std::lock_guard lock(mutex_);
    --open_;  // before `done`: it may want to submit the next batch
    fences = std::move(operation.fences_);
    const auto [begin, end] = by_peer_.equal_range(operation.rest_.peer);
    for (auto it = begin; it != end; ++it) {
      if (it->second.get() != &operation) continue;
      keep = std::move(it->second);
      by_peer_.erase(it);
      break;
    }
  }
  operation.finish();
  for (const auto& fence : fences)
    if (fence->open.fetch_sub(1, std::memory_order_acq_rel) == 1) fence->closed();
}

}  // namespace kvonce::transport
