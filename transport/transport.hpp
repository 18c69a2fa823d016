// SPDX-License-Identifier: Apache-2.0
//
// The seam that all ways of moving page bytes stand behind. Always asynchronous.
//
// Promises of every transport:
//  - an item is `done` only when all its bytes are in place, ordered, and within the deadline;
//  - after `done` of a batch was called, no byte of that batch is read or written any more;
//  - deadline and cancellation are looked at between slices of at most kSliceBytes;
//  - one bad item never fails its neighbours;
//  - no byte of the source is read before `after` has fired; one that never fires ends as `expired`.
// Callbacks run on threads of the transport (several at once for the items of one batch); they must be quick, must
// not throw and must not wait for this or another operation.
#pragma once

#include <kvonce/event.hpp>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace kvonce::transport {

using TimePoint = std::chrono::steady_clock::time_point;

inline constexpr std::size_t kSliceBytes = 256U << 10U;
inline constexpr std::size_t kMaxItems = 65'536;        // per batch
inline constexpr std::size_t kMaxRanges = 16'777'216;  // per batch

// `failed`: the item names ranges that are not there or have no address.
enum class CopyStatus : std::uint8_t { pending, done, expired, canceled, mismatch, failed };
const char* to_string(CopyStatus status);

// One checksummed range, contiguous on both sides. The two sides do not overlap.
struct CopyRange {
  const std::byte* source = nullptr;
  std::byte* target = nullptr;
  std::uint64_t bytes = 0;
};

// One object, or one object's ranges of one layer group.
struct CopyItem {
  std::uint32_t first_range = 0;
  std::uint32_t range_count = 0;
  std::uint64_t tag = 0;  // the caller's own
};

class Operation;

// Asked after an item's bytes are copied and ordered, with the checksums of its ranges (none when the batch has
// checksums off); false makes the item a `mismatch`.
using ItemCheck = std::function<bool(std::size_t item, std::span<const std::uint64_t> checksums)>;

using PeerId = std::uint64_t;
inline constexpr PeerId kNoPeer = 0;

struct CopyBatch {
  std::vector<CopyRange> ranges;
  std::vector<CopyItem> items;  // may share no target bytes
  TimePoint deadline = TimePoint::max();
  bool checksums = true;
  bool hash_only = false;  // makes the checksums of the sources and writes nothing: targets are not looked at
  PeerId peer = kNoPeer;  // whom fence() must name to close this batch
  Event after;
  ItemCheck check;
  // Called after each item that was copied and has its final status; how many were so by then, never the same number
  // twice. Items that never began (expired, canceled, failed) are told by `done` alone.
  std::function<void(std::size_t items_finished)> progress;
  std::function<void(Operation&)> done;  // called once, after everything else
};

// One accepted batch. Any thread may ask.
class Operation {
 public:
  explicit Operation(CopyBatch&& batch);
  virtual ~Operation() = default;
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  // True once every item has its final status and no byte moves any more; `done` may still be running.
  bool poll() const { return finished_.load(std::memory_order_acquire); }
  // Blocks until `done` has returned (so never call it in there); false when `deadline` passed first.
  bool wait_until(TimePoint deadline) const;
  void wait() const { static_cast<void>(wait_until(TimePoint::max())); }

  std::size_t item_count() const { return items_.size(); }
  const CopyItem& item(std::size_t index) const { return items_[index]; }
  CopyStatus status(std::size_t index) const { return statuses_[index].load(std::memory_order_acquire); }
  // One per range of the item, in order. Meaningful when its status is `done` or `mismatch`, empty without checksums.
  std::span<const std::uint64_t> checksums(std::size_t index) const;

  // Stops what has not begun, and an item in the middle at its next slice. Returns at once: wait for `done` before
  // touching the memory.
  virtual void cancel() { cancel_.store(true, std::memory_order_relaxed); }

 protected:
  bool canceled() const { return cancel_.load(std::memory_order_relaxed); }
  void set_status(std::size_t index, CopyStatus status) { statuses_[index].store(status, std::memory_order_release); }
  bool item_is_valid(std::size_t index) const;
  // Drops the batch's callbacks after calling `done`, wakes the waiters. Called once, last.
  void finish();

  std::vector<CopyRange> ranges_;
  std::vector<CopyItem> items_;
  std::vector<std::uint64_t> checksums_;  // one per range; empty when off
  CopyBatch rest_;                        // the batch without its two vectors

 private:
  std::vector<std::atomic<CopyStatus>> statuses_;
  std::atomic<bool> cancel_{false};
  std::atomic<bool> finished_{false};
  mutable std::mutex mutex_;
  mutable std::condition_variable returned_changed_;
  bool returned_ = false;
};

enum class Refusal : std::uint8_t { none, queue_full, too_large, stopped };
const char* to_string(Refusal refusal);

// `operation` is set exactly when `refusal` is none. A refused batch is left as it was, its `done` is never called.
struct Submitted {
  std::shared_ptr<Operation> operation;
  Refusal refusal = Refusal::none;
};

// Where the checksums of a transport are made.
enum class ChecksumPlace : std::uint8_t { fused_with_copy, scan_of_slot, by_sender };

class Transport {
 public:
  virtual ~Transport() = default;
  virtual const char* name() const = 0;
  virtual ChecksumPlace checksum_place() const = 0;
  // Never blocks for long and never copies on the calling thread.
  virtual Submitted submit(CopyBatch&& batch) = 0;
  // Cancels everything accepted for `peer` so far and calls `closed` once none of it can read or write a byte any
  // more: at once, on this thread, when nothing is open. Batches accepted later are not its concern.
  virtual void fence(PeerId peer, std::function<void()> closed) = 0;
};

}  // namespace kvonce::transport
