// SPDX-License-Identifier: Apache-2.0
//
// One CopyOrder on its way through the movers: made into batches of address ranges, verified item by item, and its
// outcome collected. No actor in here.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "actors/pool_memory.hpp"
#include "protocol/page_index.hpp"
#include "protocol/placement.hpp"
#include "protocol/pool_core.hpp"
#include "protocol/slot_format.hpp"
#include "transport/transport.hpp"

namespace kvonce::actors {

/// The store's memory as a rank sees it.
struct ArenaView {
  std::byte* base = nullptr;
  std::uint64_t bytes = 0;
  std::vector<protocol::IndexReader> readers;  // by partition
  bool checksums = true;                       // compared on loads
  std::shared_ptr<void> mapping;               // what keeps the memory there, when nothing else does
  std::uint64_t slots_bytes = 0;               // of one partition
  std::uint32_t owner(protocol::NamespaceId ns, const PageHash& page) const { return placement.owner(ns, page); }
  protocol::Placement placement = protocol::Placement::local(1);
};

using PoolList = std::vector<std::shared_ptr<PoolMemory>>;  // by the rank's number of the pool

struct CopyJob {
  /// `pools` outlive the job.
  CopyJob(protocol::CopyOrder&& order_, std::shared_ptr<const ArenaView> arena, const PoolList& pools);
  CopyJob(const CopyJob&) = delete;
  CopyJob& operator=(const CopyJob&) = delete;

  /// What to hand to the movers: each batch with the number of its first item. Call once. `done` is not set.
  struct Part {
    std::size_t first_item = 0;
    transport::CopyBatch batch;
  };
  std::vector<Part> make_parts();
  std::uint64_t bytes() const { return bytes_; }

  /// The final outcome of a part's items; with their checksums, when the job makes any.
  void collect(const transport::Operation& operation, std::size_t first_item);
  /// A part that the movers did not take.
  void refuse(std::size_t first_item, std::size_t items, protocol::CopyOutcome outcome);

  protocol::CopyOrder order;
  std::vector<protocol::CopyOutcome> outcomes;   // by item
  std::vector<std::uint32_t> checksum_counts;    // by item; to_slot and hash_row
  std::vector<std::uint64_t> checksums;

  std::vector<std::shared_ptr<transport::Operation>> parts;  // of the actor that started it
  std::atomic<std::size_t> parts_left{0};
  /// Called on a mover thread when all items of one more layer group are verified: leading items that are finished.
  std::function<void(std::uint32_t items_done)> advanced;

 private:
  bool make_ranges(std::size_t item, transport::CopyBatch& batch);
  bool inside(const storage::Slot& slot) const;
  bool verify(std::size_t item, std::span<const std::uint64_t> sums);
  void note_finished(std::size_t item);

  const std::shared_ptr<const ArenaView> arena_;
  const PoolList& pools_;
  std::uint64_t bytes_ = 0;

  struct Check {
    const protocol::SlotHeader* header = nullptr;
    const std::uint32_t* ranges = nullptr;  // numbers of the item's ranges; null: 0, 1, 2, ...
  };
  std::vector<Check> checks_;  // by item; from_slot only

  struct Group {
    std::uint32_t end = 0;              // items before the group's end
    std::atomic<std::uint32_t> left{0};
  };
  std::unique_ptr<Group[]> groups_;
  std::size_t group_count_ = 0;
  std::mutex groups_mutex_;
  std::size_t groups_done_ = 0;
};

}  // namespace kvonce::actors
