// SPDX-License-Identifier: Apache-2.0
#include "transport/transport.hpp"

#include <cassert>
#include <utility>

namespace kvonce::transport {

const char* to_string(CopyStatus status) {
  switch (status) {
    case CopyStatus::pending: return "pending";
    case CopyStatus::done: return "done";
    case CopyStatus::expired: return "expired";
    case CopyStatus::canceled: return "canceled";
    case CopyStatus::mismatch: return "mismatch";
    case CopyStatus::failed: return "failed";
  }
  return "unknown";
}

const char* to_string(Refusal refusal) {
  switch (refusal) {
    case Refusal::none: return "none";
    case Refusal::queue_full: return "queue_full";
    case Refusal::too_large: return "too_large";
    case Refusal::stopped: return "stopped";
  }
  return "unknown";
}

Operation::Operation(CopyBatch&& batch)
    : ranges_(std::move(batch.ranges)),
      items_(std::move(batch.items)),
      checksums_(batch.checksums || batch.hash_only ? ranges_.size() : 0),
      rest_(std::move(batch)),
      statuses_(items_.size()) {}  // zero is `pending`

bool Operation::wait_until(TimePoint deadline) const {
  std::unique_lock lock(mutex_);
  if (deadline == TimePoint::max()) {
    returned_changed_.wait(lock, [this] { return returned_; });
    return true;
  }
  return returned_changed_.wait_until(lock, deadline, [this] { return returned_; });
}

std::span<const std::uint64_t> Operation::checksums(std::size_t index) const {
  if (checksums_.empty() || !item_is_valid(index)) return {};
  return std::span(checksums_).subspan(items_[index].first_range, items_[index].range_count);
}

bool Operation::item_is_valid(std::size_t index) const {
  const CopyItem& item = items_[index];
  const std::size_t end = std::size_t{item.first_range} + item.range_count;
  if (end > ranges_.size()) return false;
  for (std::size_t i = item.first_range; i < end; ++i) {
    const CopyRange& range = ranges_[i];
    if (range.bytes != 0 && (range.source == nullptr || (range.target == nullptr && !rest_.hash_only))) return false;
  }
  return true;
}

void Operation::finish() {
  assert(!poll());
  finished_.store(true, std::memory_order_release);
  if (rest_.done) rest_.done(*this);
  // The callbacks often hold what holds this operation: without this neither would ever be freed.
  rest_.done = nullptr;
  rest_.progress = nullptr;
  rest_.check = nullptr;
  rest_.after = Event();
  // Under the lock: a waiter may free this operation as soon as it sees the flag.
  const std::lock_guard lock(mutex_);
  returned_ = true;
  returned_changed_.notify_all();
}

static_assert(static_cast<int>(CopyStatus::pending) == 0);

}  // namespace kvonce::transport
