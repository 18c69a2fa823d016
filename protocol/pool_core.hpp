// SPDX-License-Identifier: Apache-2.0
//
// One rank's side of the protocol for one page group, without clock, thread or memory access: lent rows, grants being
// copied, verdicts, loads. (event, now) -> actions. The PoolActor and the simulator are shells around it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "protocol/page_index.hpp"
#include "protocol/wire.hpp"

namespace kvonce::protocol {

/// Deliberate faults, for testing the simulator's checkers.
struct PoolFaults {
  bool deliver_while_reading = false;   // a verdict is delivered although the row is still being read
  bool cancel_while_writing = false;    // a cancel is answered although rows are still being written
  bool land_after_deadline = false;     // an expired copy is reported landed
  bool skip_load_verification = false;  // epoch, generation and checksums are not looked at
  bool forget_deadline = false;         // own deadline never ends a wait
  bool unregister_early = false;        // unregister does not wait for lent rows
};

/// When to ask again for what a process refuses itself, as it has too much open.
inline constexpr std::uint32_t kBusyRetryMs = 10;

struct PoolCoreConfig {
  SenderId sender = 0;
  EngineId engine = 0;
  std::uint32_t max_open_items = 1U << 20;  // lent rows; a put beyond is rejected(busy) as a whole
  // A put of more bytes is announced in several messages of about so many, so that its first copies run while the rest is
  // still being announced. 0: always one message.
  std::uint64_t announce_bytes = 2ULL << 20;
  // A load of more bytes, not in layer groups, is copied in parts: a first one of about so many, each further one twice the
  // size of the one before, so that the first copies run while the rest is still being looked up. 0: always one part.
  std::uint64_t load_part_bytes = 2ULL << 20;
  PoolFaults faults;
};

// -- orders from the engine --------------------------------------------------------------------------------------------

struct PutOrderItem {
  std::uint32_t page = 0;  // index into pages
  std::uint32_t pool = 0;  // this rank's number of the pool
  std::uint64_t row = 0;
};
struct PutOrder {
  std::uint64_t id = 0;  // chosen by the caller, never reused
  AckLevel level = AckLevel::memory;
  Time deadline = kNever;
  bool has_parent = false;
  PageHash parent;
  std::uint32_t first_depth = 0;
  std::vector<PageHash> pages;  // a chain: each page's parent is the one before it
  std::vector<PutOrderItem> items;
};
struct ItemResult {
  Verdict verdict = Verdict::none;
  Reason reason = Reason::none;
  std::uint32_t retry_after_ms = 0;
};

struct LoadOrderItem {
  PageHash page;
  std::uint32_t pool = 0;
  std::uint64_t row = 0;
};
struct LoadOrder {
  std::uint64_t id = 0;
  LeaseId lease;
  Time deadline = kNever;
  std::uint32_t layer_begin = 0;
  std::uint32_t layer_end = 0xffffffffU;      // exclusive; beyond the last layer: all
  std::uint32_t layers_per_group = 0;         // 0: one group
  std::vector<LoadOrderItem> items;
};

// -- what the shell has to do ------------------------------------------------------------------------------------------

/// Copy row -> slot (a granted put) or slot -> row (a load), or only read and hash the row.
struct CopyOrder {
  enum class Kind : std::uint8_t { to_slot, from_slot, hash_row } kind = Kind::to_slot;
  std::uint64_t operation = 0;   // names it in copy_progress / copy_done
  std::uint64_t owner = 0;       // the put's or load's id (its event gates the copy)
  Time deadline = kNever;
  struct Item {
    std::uint32_t pool = 0;      // this rank's number of the pool
    std::uint64_t row = 0;
    std::uint32_t layer_begin = 0;  // ranges of these layers only (loads); all: 0 .. 0xffffffff
    std::uint32_t layer_end = 0xffffffffU;
    std::uint32_t partition = 0;
    NamespaceId ns = 0;             // loads: whose generation is checked after the copy
    PoolId store_pool = 0;
    Generation generation = 0;
    ObjectLocation location;        // slot and epoch; unused by hash_row
  };
  std::vector<Item> items;       // loads: all pages of the first layer group, then of the next
};
enum class CopyOutcome : std::uint8_t { done, expired, canceled, mismatch, failed };

struct PoolActions {
  std::vector<PageReady> ready;                                  // to the ShardKeyActor, in order with the two below
  std::vector<std::pair<std::uint32_t, GrantResults>> results;   // (partition, results)
  std::vector<Withdraw> withdraws;
  std::vector<std::pair<std::uint32_t, ChecksumAnswers>> checksums;
  std::vector<LoadBegin> load_begins;
  std::vector<LoadEnd> load_ends;
  std::vector<CopyOrder> copies;
  std::vector<std::uint64_t> load_more;                          // loads: call load_more() once the copies above have begun
  std::vector<std::uint64_t> cancel_copies;                      // operations
  struct PutDone {
    std::uint64_t id;
    std::vector<ItemResult> items;                               // in the order of the put's items
  };
  std::vector<PutDone> puts_done;
  struct LoadProgress {
    std::uint64_t id;
    std::uint32_t layers_done;                                   // all items' layers below this are verified in place
  };
  std::vector<LoadProgress> load_progress;
  struct LoadDone {
    std::uint64_t id;
    std::vector<Reason> items;                                   // none: loaded and verified
  };
  std::vector<LoadDone> loads_done;
  struct Rekey {
    std::uint32_t pool;
    Generation generation;
  };
  std::vector<Rekey> rekeys;                                     // ask the ShardKeyActor for the rank's own key
  std::vector<std::uint32_t> unregistered;                       // pools whose rows are all back
  void clear();
};

/// Finds published objects in the mapped index; the shell gives it the partitions' readers.
class ObjectLocator {
 public:
  virtual ~ObjectLocator() = default;
  /// `keying` of the rank's pool as the ShardKeyActor has it now; partition is filled in.
  virtual ReadStatus locate(std::uint32_t pool, const PageHash& page, std::uint32_t* partition, PoolKeying* keying,
                            ObjectLocation* out) = 0;
  /// A hint that locate() will be asked: stages 0, 1, 2 some items ahead of it (IndexReader::prefetch).
  virtual void prefetch(std::uint32_t /*pool*/, const PageHash& /*page*/, unsigned /*stage*/) {}
};

class PoolCore {
 public:
  PoolCore(const PoolCoreConfig& config, ObjectLocator& locator);
  ~PoolCore();

  /// Numbers pools 0, 1, ... `layers`: of the pool's geometry.
  std::uint32_t add_pool(std::uint64_t object_bytes, std::uint64_t rows, std::uint32_t layers);
  /// Answered by PoolActions::unregistered when no row of it is lent any more; new orders for it are rejected(closed).
  void unregister(std::uint32_t pool, Time now, PoolActions& out);

  void put(PutOrder&& order, Time now, PoolActions& out);
  void load(LoadOrder&& order, Time now, PoolActions& out);
  /// The load ends with reason `canceled` for what was not loaded yet, after the last write to its rows.
  void cancel_load(std::uint64_t id, Time now, PoolActions& out);
  /// Withdraws what is not decided yet (verdict unknown, reason canceled), after the last read of its rows.
  void cancel_put(std::uint64_t id, Time now, PoolActions& out);

  void on_reply(const StoreReply& reply, Time now, PoolActions& out);
  void on_load_begun(const LoadBegun& begun, Time now, PoolActions& out);
  /// Goes on with a load that PoolActions::load_more named.
  void load_more(std::uint64_t id, Time now, PoolActions& out);
  /// The pool's keys are per rank from now on: what was redirected is announced again. ok = false: it cannot be.
  void on_rekeyed(std::uint32_t pool, bool ok, Time now, PoolActions& out);
  void on_store_lost(Time now, PoolActions& out);
  /// There is a store again, in another life, and its keys are known to the locator. No copy that reads a row for the store
  /// that was lost may still run.
  void on_store_found(Time now, PoolActions& out);

  /// items_done: leading items of the order that are finished. Optional, for layer groups.
  void copy_progress(std::uint64_t operation, std::uint32_t items_done, const std::vector<CopyOutcome>& outcomes, Time now,
                     PoolActions& out);
  /// The operation touches no byte any more. checksums: of each done item's ranges, one after another (puts, hash_row).
  void copy_done(std::uint64_t operation, const std::vector<CopyOutcome>& outcomes,
                 const std::vector<std::uint32_t>& checksum_counts, const std::vector<std::uint64_t>& checksums, Time now,
                 PoolActions& out);

  /// Ends everything: undecided items hear unknown(closed) once their rows are not read any more.
  void close(Time now, PoolActions& out);
  bool idle() const;  // nothing lent, nothing running

  Time next_deadline() const;
  void advance(Time now, PoolActions& out);

  std::uint64_t rows_lent(std::uint32_t pool) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvonce::protocol
