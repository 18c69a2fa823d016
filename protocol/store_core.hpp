// SPDX-License-Identifier: Apache-2.0
//
// One partition of the store, without clock, thread or socket: (event, now) -> actions. The StoreActor is a thin shell
// around it; the simulator drives the same class. It owns its part of the arena: index, slots, headers and trailers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/catalog.hpp"
#include "protocol/namespace_book.hpp"
#include "protocol/page_index.hpp"
#include "protocol/wire.hpp"

namespace kvonce::protocol {

/// Deliberate faults, for testing the simulator's checkers. All off in production; see tests/sim/faults.hpp.
struct StoreFaults {
  bool publish_before_landed = false;   // readable as soon as granted
  bool ack_before_publish = false;      // the first sender hears `stored` at its grant
  bool free_quarantined = false;        // the slot of a lost grant is free at once
  bool ignore_epoch = false;            // any landed for a claim counts, whatever its epoch
  bool restart_epochs = false;          // a new life begins at epoch 1 again
  bool evict_leased = false;            // leases do not pin
  bool forget_waiters = false;          // only the writer is answered
  bool no_promotion = false;            // nobody takes over from a late or dead writer
  bool leak_ledger = false;             // evictions do not give their bytes back
  bool ignore_removal = false;          // what lands after a removal is published all the same
  bool skip_verification = false;       // samples are asked, differences ignored
  bool answer_busy_as_absent = false;   // a shortage of lease budget is told as a miss
  bool trust_search = false;            // what an asker's search has left out counts as not there
  bool evict_parent_first = false;      // shallowest first within a stamp
  bool double_grant = false;            // every announcer is granted (no coalescing)
  bool keep_turn = false;               // the next owner of a namespace's place gets the number of the last one
  bool free_at_restart = false;         // a later life takes the slots that an earlier life's writers may still write to
};

struct StoreConfig {
  std::uint32_t partition = 0;
  std::uint32_t partitions = 1;
  Incarnation incarnation = 0;
  std::uint32_t max_namespaces = kMaxNamespaces;  // at a time; fewer in tests
  Epoch first_epoch = 1;                        // above every epoch of earlier lives
  std::uint64_t lease_seed[2] = {1, 2};         // random: lease ids are made from it
  // Region of the arena that is this partition's: [index][slots].
  std::byte* arena = nullptr;                   // base of the whole arena
  std::uint64_t index_offset = 0;               // of this partition's index region
  IndexLimits index;
  std::uint64_t slots_offset = 0;
  std::uint64_t slots_bytes = 0;
  std::uint64_t capacity_bytes = 0;             // payload; 0: only the arena limits
  AckLevel max_level = AckLevel::memory;
  std::uint64_t window_bytes = 8ULL << 20;      // W: most open grants of one sender, over all its pools; always one object
  Duration grant_base = 1 * kSecond;
  std::uint64_t least_rate = 64ULL << 20;       // bytes per second that a writer must reach
  std::uint32_t verify_sample = 256;            // 0: off; 1: every key
  std::uint32_t verify_first_keys = 64;         // per (engine, pool)
  Duration verify_window = 10 * kSecond;
  Duration conflict_hold = 250 * kMillisecond;  // how long a differing sender's verdict waits for the demotion
  std::uint32_t conflict_limit = 3;             // keys
  bool demote = true;                           // false: only warn and keep the key
  Duration lease_time = 10 * kSecond;
  Duration lease_time_max = 3600 * kSecond;
  Duration empty_answer_time = 1 * kSecond;
  Duration engine_grace = 2 * kSecond;          // leases outlive the last connection of their engine by this
  std::uint32_t leased_stops = 4;
  std::uint64_t leased_bytes_per_engine = 0;    // 0: a share of what is free (bytes_to_lease). A page counts once per engine and group
  std::uint32_t max_leases_per_engine = 0;      // 0: a share of what is free (leases_to_have)
  std::uint32_t max_open_items_per_sender = 1U << 20;  // beyond: rejected(busy)
  Duration incomplete_grace = 30 * kSecond;
  std::uint32_t ghost_entries = 65536;
  Duration scan_period = 20 * kMillisecond;     // how often deadlines are looked at while anything is open
  std::uint32_t clear_step = 4096;              // records per background step
  StoreFaults faults;
};

/// Counters, all of one partition; sums of monotonic numbers unless named `_now`.
struct StoreStats {
  std::uint64_t verdicts[kVerdictCount] = {};
  std::uint64_t announced_items = 0, announced_bytes = 0;
  std::uint64_t granted_items = 0, granted_bytes = 0;
  std::uint64_t landed_items = 0, landed_bytes = 0;           // copies that arrived complete, late ones included
  std::uint64_t stored_objects = 0, stored_bytes = 0;         // published
  std::uint64_t late_landed_items = 0, late_landed_bytes = 0; // complete, but another grant had won
  std::uint64_t promotions = 0, abandoned = 0, copy_failures = 0, fenced = 0, stale_messages = 0;
  std::uint64_t conflicts = 0, divergent = 0, demotions = 0, redirects = 0, samples = 0, unverified = 0;
  std::uint64_t lookups = 0, lookups_repeated = 0, lookup_pages_asked = 0, lookup_pages_hit = 0;
  std::uint64_t misses[kReasonCount] = {};
  std::uint64_t evicted_page_sets = 0, evicted_checkpoint_sets = 0, evicted_objects = 0, evicted_bytes = 0;
  std::uint64_t evicted_incomplete = 0, removed_objects = 0;
  std::uint64_t no_space = 0;
  std::uint64_t objects_now = 0, payload_bytes_now = 0, slot_bytes_now = 0, records_now = 0, claims_now = 0;
  std::uint64_t quarantined_slots_now = 0, quarantined_bytes_now = 0, leases_now = 0, leased_bytes_now = 0;
  std::uint64_t capacity_bytes = 0, slots_bytes = 0, free_bytes_now = 0;
  std::uint64_t senders_now = 0, clients_now = 0, unverified_pools_now = 0;
  void add(const StoreStats& other);
};

struct AttachSender {
  SenderId sender = 0;
  ClientId client = 0;
  EngineId engine = 0;
  bool puts = true;  // false: of a client that only reads
};
/// One pool of a sender: counts it among the live ranks of that shard when it puts.
struct AttachPool {
  SenderId sender = 0;
  NamespaceId ns = 0;
  PoolId pool = 0;
  std::uint32_t shard = 0;
  bool attached = true;  // false: unregistered
};

/// Slots that one client may be writing to.
struct ClientWrites {
  ClientId client = 0;
  std::uint64_t open_grants = 0;        // late ones included
  std::uint64_t quarantined_bytes = 0;  // of slots
};

/// A process that may still write to quarantined slots. pid 0: not known.
struct ClientProcess {
  ClientId client = 0;
  std::uint32_t pid = 0;
  std::uint64_t start_time = 0;  // clock ticks since boot: with it, a pid names one process of this boot
  friend bool operator==(const ClientProcess&, const ClientProcess&) = default;
};

/// What the shell has to do after an event. Reused from event to event: cleared by the shell after it has acted.
struct StoreActions {
  struct ToSender {
    SenderId sender = 0;
    StoreReply reply;
  };
  std::vector<ToSender> replies;                                                   // one per sender
  std::vector<std::pair<std::uint64_t, LookupAnswer>> lookups;                     // (asker, answer)
  std::vector<std::pair<SenderId, LoadBegun>> loads;
  std::vector<std::pair<std::uint64_t, RemoveAnswer>> removes;                     // (asker, answer)
  std::vector<std::pair<std::uint64_t, FlushAnswer>> flushes;
  std::vector<std::pair<std::uint32_t, PartLookupAsk>> part_asks;                  // (partition, ask)
  std::vector<std::pair<std::uint32_t, PartLookupAnswer>> part_answers;            // (home partition, answer)
  std::vector<std::pair<std::uint32_t, PartNarrow>> part_narrows;
  std::vector<KeyConflict> conflicts;                                              // for the registrar: conflict_book.hpp
  std::vector<PersistOrder> persists;
  std::vector<ObjectEvent> events;                                                 // only while events are wanted
  void clear();
};

class StoreCore {
 public:
  explicit StoreCore(const StoreConfig& config);
  ~StoreCore();
  StoreCore(const StoreCore&) = delete;
  StoreCore& operator=(const StoreCore&) = delete;

  /// Bytes of the index region for these limits.
  static std::uint64_t index_bytes(const IndexLimits& limits);

  // -- membership ----------------------------------------------------------------------------------------------------
  /// `pid` and `start_time` name its process: what fences it in a later life of the store. 0: not known.
  void client_joined(ClientId client, EngineId engine, Time now, std::uint32_t pid = 0, std::uint64_t start_time = 0);
  /// The connection has ended: waits and grants of its senders end; leases go with the engine's last connection.
  /// `fenced`: the process is known to be gone or to write nothing any more, so its quarantined slots are free.
  void client_left(ClientId client, bool fenced, Time now, StoreActions& out);
  /// Later news of a client that had left unfenced; also of one of an earlier life that says, as it joins, that it writes nothing.
  void client_fenced(ClientId client, Time now, StoreActions& out);
  /// The process has ended: that fences all clients that it was, of this life and earlier ones.
  void process_fenced(std::uint32_t pid, std::uint64_t start_time, Time now, StoreActions& out);
  /// Who is waited for: clients that have left, or are of an earlier life, and have slots in quarantine.
  std::vector<ClientProcess> quarantined_processes() const;
  void attach(const AttachSender& sender, Time now);
  void attach_pool(const AttachPool& pool, Time now);
  void detach(SenderId sender, bool fenced, Time now, StoreActions& out);
  void apply(const CatalogUpdate& update, Time now, StoreActions& out);
  const Catalog& catalog() const;

  // -- namespaces that nobody has open (namespace_book.hpp) ----------------------------------------------------------
  /// What this partition has of each, by place.
  std::vector<NamespaceUse> namespace_use() const;
  /// Nothing is left of it here: a retired one may be freed.
  bool is_empty(NamespaceId ns) const;

  // -- puts ----------------------------------------------------------------------------------------------------------
  void put(const PutBatch& batch, Time now, StoreActions& out);
  void grants_done(const GrantResults& results, Time now, StoreActions& out);
  void withdraw(const Withdraw& withdraw, Time now, StoreActions& out);
  void checksums(const ChecksumAnswers& answers, Time now, StoreActions& out);
  /// Outcome of a PersistOrder.
  void persisted(std::uint64_t operation, bool ok, Time now, StoreActions& out);

  // -- lookups and loads ---------------------------------------------------------------------------------------------
  void lookup(std::uint64_t asker, const LookupAsk& ask, Time now, StoreActions& out);
  void part_lookup(const PartLookupAsk& ask, Time now, StoreActions& out);
  void part_answer(const PartLookupAnswer& answer, Time now, StoreActions& out);
  void part_narrow(const PartNarrow& narrow, Time now, StoreActions& out);
  Reason narrow(const LeaseCall& call, Time now, StoreActions& out);
  Reason release(const LeaseCall& call, Time now, StoreActions& out);  // releasing twice is no error
  void load_begin(const LoadBegin& begin, Time now, StoreActions& out);
  void load_end(const LoadEnd& end, Time now, StoreActions& out);

  // -- administration ------------------------------------------------------------------------------------------------
  void remove(std::uint64_t asker, const RemoveAsk& ask, Time now, StoreActions& out);
  void flush(std::uint64_t asker, const FlushAsk& ask, Time now, StoreActions& out);
  void want_events(bool on);
  StoreStats stats() const;
  std::vector<ClientWrites> writes_by_client() const;
  IndexReader reader() const;

  // -- later lives (store_snapshot.cpp) ------------------------------------------------------------------------------
  /// From now on nothing is granted: who waits for a grant, or announces what is not stored, hears rejected(busy). Open grants
  /// may land, lookups and loads go on. There is no way back.
  void freeze(Time now, StoreActions& out);
  /// Copies that may still be running and whose sender can still say that they have ended.
  std::uint64_t open_writes() const;
  /// Everything that a later life needs beside the arena. Not in it, and made anew: verification (samples, the first keys of
  /// each engine and pool, which pools were compared), counters, waits for an ack level, pending lookups.
  std::string snapshot(Time now) const;
  /// A store over the arena that `snapshot` was taken of, all partitions together (configs and snapshots in their order). None,
  /// and why, when anything contradicts: then the arena may not be used again. `config.incarnation` is the new life's. Open
  /// grants and quarantined slots of the old life are in quarantine; leases hold, each engine has the grace to come back. As
  /// after a removal, step() has to be called until it says false. Time that passed between the lives does not count.
  static std::vector<std::unique_ptr<StoreCore>> restore_all(std::span<const StoreConfig> configs,
                                                             std::span<const std::string> snapshots, Time now,
                                                             std::string* why_not);
  /// The only partition of a store.
  static std::unique_ptr<StoreCore> restore(const StoreConfig& config, std::string_view snapshot, Time now, std::string* why_not);

  // -- time ----------------------------------------------------------------------------------------------------------
  /// When advance() has to be called next; kNever while nothing is open.
  Time next_deadline() const;
  void advance(Time now, StoreActions& out);
  /// Background work (a clear in progress): call step() until it says false, with other events in between.
  bool step(Time now, StoreActions& out);

  // -- checks (tests and simulator) ----------------------------------------------------------------------------------
  /// Empty, or what in the books does not add up (P7): ledger, allocator, index, pins, candidates.
  std::string audit() const;
  /// Calls f for every readable object.
  void for_each_object(const std::function<void(const CanonicalKey&, const ObjectLocation&)>& f) const;
  Epoch last_epoch() const;

 private:
  struct Impl;
  explicit StoreCore(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvonce::protocol
