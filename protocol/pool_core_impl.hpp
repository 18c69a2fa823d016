// SPDX-License-Identifier: Apache-2.0
//
// Inside of PoolCore, shared by its source files: pool_core.cpp (orders, time, ends), pool_core_reply.cpp (what the store
// says, copies of puts) and pool_core_load.cpp (loads).
#pragma once

#include <set>
#include <tuple>
#include <unordered_map>

#include "protocol/pool_core.hpp"

namespace kvonce::protocol {

/// What goes to one partition after one event.
GrantResults& results_for(std::uint32_t partition, SenderId sender, PoolActions& out);

struct PoolCore::Impl {
  static constexpr std::uint32_t kItself = 0xffffffffU;
  /// A store that redirects an item more often than this does not know what it wants.
  static constexpr std::uint8_t kMaxRedirects = 8;
  /// Rekeys of one pool; more come from a broken store only.
  static constexpr std::size_t kMaxRekeys = 64;

  struct Pool {
    std::uint64_t object_bytes = 0;
    std::uint64_t rows = 0;
    std::uint32_t layers = 0;
    std::uint64_t lent = 0;     // rows of orders that have not been answered
    bool closing = false;
    bool told = false;          // `unregistered` has been said
    std::uint32_t rekeys_pending = 0;
    bool rekey_failed = false;  // the newest rekey could not be done
    std::vector<std::pair<PoolId, Generation>> rekeys;  // asked for already
  };

  /// One lent row of a put. Flat in its batch: a batch is one allocation, however many items it has.
  struct Item {
    std::uint64_t row = 0;
    Epoch epoch = 0;            // newest grant that is being copied or was answered
    std::uint64_t copy = 0;     // running operations that read the row; 0: none
    std::uint64_t hash = 0;
    std::uint32_t page = 0;
    std::uint32_t pool = 0;
    std::uint32_t first = kItself;  // the item of the same key that this one's verdict follows
    ItemResult result;
    bool lent = false;          // accepted: counted in Pool::lent
    bool decided = false;       // result is fixed
    bool settled = false;       // decided, and nobody reads the row any more
    bool held = false;          // redirected, or its pool is being rekeyed: to be announced (again)
    bool detached = false;      // its running operations have been told that it needs them no more
    bool withdraw_after_copy = false;
    std::uint8_t redirects = 0;
    bool read() const { return copy != 0 || hash != 0; }
  };

  struct Batch {
    std::uint64_t id = 0;
    AckLevel level = AckLevel::memory;
    Time deadline = kNever;
    bool has_parent = false;
    PageHash parent;
    std::uint32_t first_depth = 0;
    std::vector<PageHash> pages;
    std::vector<Item> items;
    std::uint32_t unsettled = 0;  // items with a verdict of their own that are not settled
    std::uint32_t held = 0;
  };

  struct Load {
    LoadOrder order;
    std::vector<Reason> reasons;  // none: still to be loaded, or loaded
    std::vector<std::uint32_t> lent;  // items that were accepted: their rows count in Pool::lent
    bool begun = false;           // LoadBegun has come
    std::size_t next = 0;         // in `lent`: the first that was not looked up yet
    std::uint64_t part_bytes = 0; // of the next part
    bool in_parts = false;        // more than one; then progress is told at the end, when `whole`
    bool whole = true;            // nothing that was found has failed to come over
    std::uint32_t layers = 0;     // the most that a pool of the items found has
    std::vector<std::uint64_t> operations;  // running
    Reason end = Reason::none;    // why its copies were canceled
  };

  struct Operation {
    CopyOrder::Kind kind = CopyOrder::Kind::to_slot;
    std::uint64_t owner = 0;
    std::uint32_t partition = 0;
    std::uint32_t live = 0;  // items that still need it; at 0 it is canceled
    bool canceled = false;
    struct Part {
      std::uint32_t item = 0;   // of the owner
      std::uint32_t claim = 0;
      std::uint64_t name = 0;   // epoch of the grant or of the object that is loaded, or the ask
    };
    std::vector<Part> parts;    // in the order of the CopyOrder's items
    // Loads only.
    LeaseId lease;
    struct Group {
      std::uint32_t parts_end = 0;
      std::uint32_t layers_done = 0;
    };
    std::vector<Group> groups;
    std::size_t groups_told = 0;
  };

  explicit Impl(const PoolCoreConfig& settings, ObjectLocator& finder) : config(settings), locator(finder) {}

  // -- puts (pool_core.cpp) ---------------------------------------------------------------------------------------------
  void put(PutOrder&& order, Time now, PoolActions& out);
  void mark_repeats(Batch& batch);
  /// Announces the batch's items that are held and may go; the first announcement is the same thing.
  void announce(Batch& batch, Time now, PoolActions& out);
  void announce_part(const Batch& batch, PageReady&& ready, Time now, PoolActions& out);
  /// Fixes an item's result. The caller calls finish() afterwards.
  void decide(Batch& batch, std::uint32_t index, const ItemResult& result, bool withdraw, bool cancel, PoolActions& out);
  void detach(Item& item, bool cancel, PoolActions& out);
  void settle(Batch& batch, Item& item);
  /// Tells the put's results when all its items are settled; the batch is gone then. True when it was.
  bool finish(Batch& batch, PoolActions& out);
  /// Ends all undecided items as unknown(reason).
  void end_batch(Batch& batch, Reason reason, bool withdraw, bool cancel, PoolActions& out);
  void give_back(std::uint32_t pool, PoolActions& out);
  std::vector<std::uint64_t> batch_ids() const;
  std::vector<std::uint64_t> load_ids() const;
  void advance(Time now, PoolActions& out);

  // -- what the store says; copies (pool_core_reply.cpp) ------------------------------------------------------------------
  void on_reply(const StoreReply& reply, Time now, PoolActions& out);
  void on_redirect(const Redirect& redirect, PoolActions& out, std::vector<std::uint64_t>& again);
  void on_ask(const ChecksumAsk& ask, std::uint32_t partition, std::size_t first_copy, PoolActions& out);
  void on_grant(const Grant& grant, const StoreReply& reply, std::size_t first_copy, PoolActions& out);
  void on_rekeyed(std::uint32_t pool, bool ok, Time now, PoolActions& out);
  CopyOrder& copy_for(const Batch& batch, CopyOrder::Kind kind, std::uint32_t partition, std::size_t first_copy,
                      std::size_t most_items, PoolActions& out);
  void copy_done(std::uint64_t id, const std::vector<CopyOutcome>& outcomes, const std::vector<std::uint32_t>& counts,
                 const std::vector<std::uint64_t>& checksums, Time now, PoolActions& out);
  void copy_over(Batch& batch, std::uint32_t index, CopyOutcome outcome, PoolActions& out);
  Batch* find_batch(std::uint64_t id);
  /// The item that still waits for what the store says of it; null for all that is late, forged or repeated.
  Item* waiting_item(Batch* batch, std::uint32_t index);

  // -- loads (pool_core_load.cpp) -----------------------------------------------------------------------------------------
  void load(LoadOrder&& order, Time now, PoolActions& out);
  void on_load_begun(const LoadBegun& begun, Time now, PoolActions& out);
  void load_more(std::uint64_t id, Time now, PoolActions& out);
  void begin_unpinned(Load& load, Time now, PoolActions& out);
  /// Looks up the next part's items (the last part's: all that are left) and has them copied.
  void start_part(Load& load, PoolActions& out);
  void find_items(Load& load, CopyOrder& copies, std::vector<std::uint32_t>& item_of);
  /// What was not looked up yet gets this reason.
  static void give_up_rest(Load& load, Reason reason);
  void end_rest(Load& load, Reason reason, PoolActions& out);
  /// Ends the load when nothing of it is running or left to be looked up.
  void finish_if_over(Load& load, PoolActions& out);
  void copy_progress(std::uint64_t id, std::uint32_t items_done, const std::vector<CopyOutcome>& outcomes,
                     PoolActions& out);
  void load_copied(std::uint64_t id, const Operation& operation, const std::vector<CopyOutcome>& outcomes, PoolActions& out);
  void report_bad(const LoadOrderItem& item, Epoch epoch, PoolActions& out);
  /// For cancel and close: ends at once what is not copying, else after the copy.
  void end_load(Load& load, Reason reason, bool at_once, PoolActions& out);
  /// What has not been decided of a load that has not begun gets this reason; the load is gone then.
  void finish_unbegun(Load& load, Reason reason, bool remember, PoolActions& out);
  void finish_load(Load& load, PoolActions& out);
  bool loaded(CopyOutcome outcome) const {
    return outcome == CopyOutcome::done || (outcome == CopyOutcome::mismatch && config.faults.skip_load_verification);
  }

  PoolCoreConfig config;
  ObjectLocator& locator;
  std::vector<Pool> pools;
  std::unordered_map<std::uint64_t, Batch> batches;
  std::unordered_map<std::uint64_t, Load> loads;
  std::unordered_map<std::uint64_t, Operation> operations;
  /// Loads that ended before LoadBegun came: the store has to hear their end when it comes.
  std::unordered_map<std::uint64_t, LeaseId> unbegun;
  /// One entry per put or load that may still run into its deadline: (deadline, is a load, id).
  std::set<std::tuple<Time, bool, std::uint64_t>> deadlines;
  std::uint64_t next_operation = 1;
  std::uint64_t open_items = 0;  // of puts
  bool closed = false;
  bool lost = false;
  std::vector<std::uint32_t> repeat_table;  // scratch of mark_repeats
  // Verdicts come in runs of one batch: the last one found. Map nodes stay where they are.
  Batch* found = nullptr;
};

}  // namespace kvonce::protocol
