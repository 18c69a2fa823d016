// SPDX-License-Identifier: Apache-2.0
//
// Inside of StoreCore: its tables. Private to protocol/store_*.cpp.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "protocol/eviction_order.hpp"
#include "protocol/ghost_list.hpp"
#include "protocol/lease_book.hpp"
#include "protocol/slot_format.hpp"
#include "protocol/store_core.hpp"
#include "storage/extent_allocator.hpp"

namespace kvonce::protocol {

inline constexpr std::uint32_t kRetryMs = 50;
inline constexpr std::size_t kConflictKeysKnown = 16'384;

/// A sender that wants to hear about one key.
struct Waiter {
  std::uint32_t sender = kNone;  // slot in senders
  std::uint32_t item = 0;
  std::uint64_t batch = 0;
  AckLevel level = AckLevel::memory;
  bool cannot_copy = false;      // its copy failed: never granted again
};

/// A slot that somebody may write to.
struct OpenGrant {
  Epoch epoch = 0;
  std::uint32_t sender = kNone;  // slot in senders; kNone once the sender is gone
  std::uint32_t item = 0;
  std::uint64_t batch = 0;
  ClientId client = 0;
  NamespaceId ns = 0;
  PoolId pool = 0;
  bool late = false;
  Time deadline = 0;
  storage::Slot slot{};
};

struct Claim {
  bool in_use = false;
  bool sampled = false;
  bool granted_once = false;
  RecordId record = kNone;  // kNone: removed meanwhile, only its open grants are left
  MemberId member = kNone;
  NamespaceId ns = 0;
  PoolId pool = 0;
  std::uint32_t shard = 0;
  std::uint32_t promotions = 0;
  std::uint64_t birth = 0;  // number of the claim, never reused
  std::uint32_t granted_prev = kNone, granted_next = kNone;  // list of claims with open grants
  bool listed = false;
  std::vector<Waiter> waiters;
  std::vector<OpenGrant> grants;
};

/// Open grants and queued keys of one sender in one pool.
struct Lane {
  NamespaceId ns = 0;
  PoolId pool = 0;
  std::uint64_t open_bytes = 0;
  std::uint64_t window = 0;      // most of them: the pool's share. The sender's lanes together have the store's window_bytes
  std::deque<std::pair<std::uint32_t, std::uint64_t>> queue;  // (claim, birth)
};

/// What all ranks of one client have announced and undecided. Beside others a client has its share of the index, not all of it.
struct ClientUse {
  std::uint64_t open_items = 0;
  std::uint32_t senders = 0;  // which point here
};

struct Sender {
  SenderId id = 0;
  ClientId client = 0;
  EngineId engine = 0;
  bool in_use = false;
  bool dirty = false;
  bool puts = true;
  std::uint32_t open_items = 0;
  ClientUse* use = nullptr;  // of its client
  std::uint64_t open_bytes = 0;  // of all lanes
  std::size_t turn = 0;          // the lane that is first to get what becomes free
  std::vector<Lane> lanes;
  std::vector<AttachPool> pools;
  StoreReply reply;
};

struct Engine {
  std::uint32_t clients = 0;
  Time gone_at = kNever;  // when its last connection ended
  std::uint64_t leased_bytes = 0;
  std::uint64_t lease_pages = 0;  // of its leases, each counted for itself
  std::uint32_t leases = 0;
};

/// A verdict that waits for the checksum of the sender's own bytes.
struct Ask {
  Waiter waiter;
  Verdict verdict = Verdict::none;
  NamespaceId ns = 0;
  PoolId pool = 0;
  std::uint32_t shard = 0;
  PageHash page;
  Epoch epoch = 0;
  EngineId engine = 0;  // of the writer
  Time deadline = 0;
};
/// A verdict that waits for its pool's demotion.
struct Held {
  Waiter waiter;
  NamespaceId ns = 0;
  PoolId pool = 0;
  Time deadline = 0;
};
struct Sample {
  EngineId engine = 0;
  std::uint32_t sender = kNone;
  Time until = 0;
};

struct Persist {
  NamespaceId ns = 0;
  PoolId pool = 0;
  RecordId record = kNone;
  MemberId member = kNone;
  Epoch epoch = 0;
  AckLevel level = AckLevel::disk;
  bool trailing = false;
  bool removed = false;
  std::vector<std::pair<Waiter, Verdict>> waiters;
  std::vector<std::uint64_t> flushes;
};
struct Flush {
  std::uint64_t asker = 0;
  std::uint64_t token = 0;
  AckLevel level = AckLevel::memory;
  std::uint64_t birth = 0;      // claims up to this one are covered
  std::uint64_t remaining = 0;
  bool failed = false;
};

/// This partition's pins of one lease.
struct PartLease {
  struct Page {
    std::uint32_t position = 0;
    RecordId record = kNone;
    bool page = false;        // page set pinned
    bool checkpoint = false;  // checkpoint set pinned
  };
  std::vector<Page> pages;  // ascending positions
};

struct RequestKey {
  EngineId engine = 0;
  Digest128 request;
  Digest128 digest;
  friend bool operator==(const RequestKey&, const RequestKey&) = default;
};
struct RequestKeyHash {
  std::size_t operator()(const RequestKey& k) const noexcept {
    return static_cast<std::size_t>(k.engine ^ k.request.low ^ (k.digest.low * 0x9e3779b97f4a7c15ULL));
  }
};

/// A lease at its home partition.
struct Lease {
  EngineId engine = 0;
  GroupId group = 0;
  Time expires = 0;
  bool ended = false;  // released or expired, kept by running loads
  std::uint32_t stop = 0;
  std::uint32_t narrowed_to = 0;  // pending narrow while loads run
  std::uint64_t bytes = 0;  // counted for it alone: of an earlier life whose pages are not all known here
  LeaseBook::NodeId end = LeaseBook::kNoNode;  // in its engine's book of its group
  std::vector<std::uint32_t> stops;
  std::vector<std::uint32_t> partitions;  // others that hold pins
  bool has_request = false;
  RequestKey request;
  struct Load {
    SenderId sender = 0;
    std::uint64_t load = 0;
    Time deadline = 0;
    ClientId client = 0;  // 0: of an earlier life
  };
  std::vector<Load> loads;
};
struct KeptAnswer {
  LookupAnswer answer;
  Time expires = 0;
  LeaseId lease;
};

/// A lookup whose partitions have not all answered.
struct PendingLookup {
  LookupAsk ask;
  LeaseId lease;
  Time deadline = 0;
  std::uint32_t missing_parts = 0;
  std::vector<std::uint32_t> partitions;
  std::vector<PartPage> pages;  // by position; full_pools 0 and reason none where nothing was reported
  std::vector<PartGap> gaps;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> askers;  // (asker, token)
};

/// A removal that walks all records in small steps.
struct Sweep {
  enum class What : std::uint8_t { all, ns, pool } what = What::all;
  NamespaceId ns = 0;
  PoolId pool = 0;
  Epoch up_to = 0;
  RecordId cursor = 0;
  std::uint64_t removed = 0;
  bool answer = false;
  std::uint64_t asker = 0;
  std::uint64_t token = 0;
};

struct SnapshotContents;

struct StoreCore::Impl {
  /// adopt: the index region is an earlier life's; restored() comes next.
  explicit Impl(const StoreConfig& config_in, bool adopt = false);

  StoreConfig config;
  Catalog catalog;
  PageIndex index;
  EvictionOrder order;
  GhostList ghost;
  storage::ExtentAllocator allocator;

  Incarnation slot_incarnation;  // stamped into slots: of the first life over this arena
  bool frozen = false;           // on the way out: nothing is granted
  Epoch last_epoch;
  std::uint64_t last_birth = 0;
  std::uint64_t last_ask = 0;
  std::uint64_t last_operation = 0;
  std::uint64_t last_lease = 0;
  Time last_scan = 0;

  std::vector<Sender> senders;
  std::vector<std::uint32_t> free_senders;
  std::unordered_map<SenderId, std::uint32_t> sender_slots;
  std::vector<std::uint32_t> dirty;
  std::unordered_map<ClientId, EngineId> clients;
  std::unordered_map<ClientId, ClientUse> uses;  // of clients that have senders
  std::unordered_map<ClientId, ClientProcess> processes;  // of clients that are here, or have slots in quarantine
  std::unordered_map<EngineId, Engine> engines;
  std::unordered_map<std::uint64_t, std::uint32_t> live_ranks;  // (ns, pool, shard) -> senders

  std::vector<Claim> claims;
  std::vector<std::uint32_t> free_claims;
  std::uint32_t open_claims = 0;
  std::uint32_t granted_head = kNone, granted_tail = kNone;
  std::unordered_map<Epoch, OpenGrant> quarantine;
  std::uint64_t quarantined_bytes = 0;  // slot bytes

  std::unordered_map<std::uint64_t, Ask> asks;
  std::vector<Held> held;
  std::unordered_map<Epoch, Sample> samples;
  std::deque<std::pair<Time, Epoch>> sample_ends;
  struct PoolAndEngine {
    EngineId engine;
    std::uint32_t pool;
    friend auto operator<=>(const PoolAndEngine&, const PoolAndEngine&) = default;
  };
  std::map<PoolAndEngine, std::uint32_t> first_keys;
  // Keys that were counted as conflicts, the newest kConflictKeysKnown of them: one counts once, whoever differs and how often.
  struct KeyHash {
    std::size_t operator()(const CanonicalKey& key) const noexcept {
      return static_cast<std::size_t>(mix_page(key.ns, key.page) ^ (std::uint64_t{key.pool} << 32) ^ key.shard);
    }
  };
  std::unordered_set<CanonicalKey, KeyHash> conflict_keys;
  std::deque<CanonicalKey> conflict_order;
  std::map<std::uint32_t, bool> pools_verified;  // (ns << 16 | pool), announced at all -> a sample was compared

  std::unordered_map<std::uint64_t, Persist> persists;
  std::vector<Flush> flushes;

  std::unordered_map<LeaseId, PartLease> part_leases;
  std::unordered_map<LeaseId, Lease> leases;
  struct EngineAndGroup {
    EngineId engine;
    GroupId group;
    friend auto operator<=>(const EngineAndGroup&, const EngineAndGroup&) = default;
  };
  std::map<EngineAndGroup, LeaseBook> lease_books;  // where there are leases
  std::multimap<Time, LeaseId> lease_ends;  // lazily: checked against the lease
  std::unordered_map<RequestKey, KeptAnswer, RequestKeyHash> kept;
  std::multimap<Time, RequestKey> kept_ends;
  std::unordered_map<std::uint64_t, PendingLookup> pending_lookups;
  std::uint64_t last_lookup = 0;
  std::deque<LeaseId> ended_leases;  // lately, so that `expired` can be told from `unknown`
  std::unordered_set<LeaseId> ended_set;

  // Pages whose named parent was not there: they are hung on it when it comes. By the parent's hash, and the way back.
  std::unordered_multimap<PageHash, RecordId> parentless;
  std::unordered_map<RecordId, PageHash> parent_wanted;
  std::unordered_set<RecordId> zombies;  // records that hold zombie members
  struct Incomplete {
    std::uint64_t mixed;
    Time since;
    RecordId record;
    bool checkpoint;
  };
  std::deque<Incomplete> incomplete;
  std::deque<Sweep> sweeps;
  bool events_wanted = false;

  // The ledger: payload and slot bytes of what is readable, and of what is only reserved (open grants, quarantine, zombies).
  std::uint64_t resident_objects = 0;
  std::uint64_t resident_payload = 0;
  std::uint64_t resident_slots = 0;
  std::uint64_t reserved_payload = 0;
  std::uint64_t reserved_slots = 0;

  StoreStats stats;

  // scratch of put(): one entry per page of the batch
  std::vector<RecordId> page_records;
  std::vector<std::uint32_t> page_state;
  std::vector<std::pair<PoolId, std::uint64_t>> pool_bytes;

  // -- senders (store_core.cpp) ----------------------------------------------------------------------------------------
  std::uint32_t slot_of(SenderId id) const;
  StoreReply& reply_to(std::uint32_t sender);
  void flush_replies(StoreActions& out);
  void answer(const Waiter& waiter, Verdict verdict, Reason reason, std::uint32_t retry_ms = 0);
  void redirect(const Waiter& waiter, NamespaceId ns, PoolId pool);
  void close_waiter(const Waiter& waiter);  // one open item less
  Lane& lane(std::uint32_t sender, NamespaceId ns, PoolId pool);
  void count_rank(const Sender& sender, const AttachPool& pool, bool more);
  void drop_sender(std::uint32_t sender, bool fenced, Time now, StoreActions& out);
  void scan(Time now, StoreActions& out);
  static std::uint64_t shard_key(NamespaceId ns, PoolId pool, std::uint32_t shard) {
    return (std::uint64_t{ns} << 48) | (std::uint64_t{pool} << 32) | shard;
  }

  // -- puts (store_put.cpp) --------------------------------------------------------------------------------------------
  void put(const PutBatch& batch, Time now, StoreActions& out);
  /// `accepted`: the batch's namespace takes objects (Catalog::accepts).
  void put_item(const PutBatch& batch, const PutItem& item, std::uint32_t sender, bool accepted, Time now, StoreActions& out);
  RecordId record_for(const PutBatch& batch, std::uint32_t page, Time now, StoreActions& out);
  void announce_stored(const Waiter& waiter, RecordId record, const PageIndex::MemberRef& member, const PutBatch& batch,
                       const PutItem& item, Time now, StoreActions& out);
  void touch_chain(const PutBatch& batch);
  std::uint32_t new_claim(RecordId record, const PutItem& item, NamespaceId ns);
  bool is_sampled(EngineId engine, NamespaceId ns, const PutItem& item, const PageHash& page);
  std::uint32_t grantable(std::uint32_t sender, std::uint32_t claim, std::uint64_t birth) const;
  void pump(std::uint32_t sender, Time now, StoreActions& out);
  bool grant(std::uint32_t claim, std::uint32_t waiter, Time now, StoreActions& out);
  bool promote(std::uint32_t claim, Time now, StoreActions& out);
  void settle(std::uint32_t claim, Time now, StoreActions& out);  // after a grant or waiter went: promote, fail or end it
  void end_claim(std::uint32_t claim, Time now, StoreActions& out);
  void fail_claim(std::uint32_t claim, Verdict verdict, Reason reason, std::uint32_t retry_ms, Time now, StoreActions& out);
  void quarantine_grants(Claim& claim);
  void list_granted(std::uint32_t claim, bool on);
  void release_grant(const OpenGrant& grant);  // its lane gets the bytes back
  void free_grant_slot(const OpenGrant& grant);

  // -- what senders report (store_publish.cpp) ---------------------------------------------------------------------------
  void grants_done(const GrantResults& results, Time now, StoreActions& out);
  void prefetch_done(std::span<const GrantResult> results, std::size_t at) const;
  void grant_done(std::uint32_t sender, const GrantResult& result, std::span<const std::uint64_t> checksums, Time now, StoreActions& out);
  void publish(std::uint32_t claim, OpenGrant grant, std::span<const std::uint64_t> checksums, Time now, StoreActions& out);
  void tell_stored(const Waiter& waiter, Verdict verdict, const Claim& claim, Epoch epoch, const PageHash& page,
                   std::uint32_t writer, Time now, StoreActions& out);
  void withdraw(const Withdraw& withdraw, Time now, StoreActions& out);
  void checksums(const ChecksumAnswers& answers, Time now, StoreActions& out);
  void compared(const Ask& ask, std::span<const std::uint64_t> sums, Time now, StoreActions& out);
  bool note_conflict(const CanonicalKey& key);  // false: it was counted before
  RankName name_of(std::uint32_t sender) const;
  void ask_checksum(const Waiter& waiter, Verdict verdict, NamespaceId ns, PoolId pool, std::uint32_t shard,
                    const PageHash& page, Epoch epoch, const Sample& sample, Time now);
  void want_level(const Waiter& waiter, Verdict verdict, RecordId record, MemberId member, NamespaceId ns, PoolId pool,
                  StoreActions& out, std::uint64_t flush = 0);
  void persisted(std::uint64_t operation, bool ok, Time now, StoreActions& out);
  void flush(std::uint64_t asker, const FlushAsk& ask, StoreActions& out);
  void flush_progress(std::uint64_t birth, RecordId record, MemberId member, NamespaceId ns, PoolId pool, StoreActions& out);
  void flush_step(std::uint64_t flush_birth_token, bool ok, StoreActions& out);
  void finish_flushes(StoreActions& out);
  void demoted(NamespaceId ns, PoolId pool, Time now, StoreActions& out);

  // -- space (store_evict.cpp) -------------------------------------------------------------------------------------------
  std::optional<storage::Slot> take_slot(const storage::SlotShape& shape, Time now, StoreActions& out);
  bool evict_one(Time now, StoreActions& out);
  bool evict_incomplete(Time now, StoreActions& out);
  void evict_pages(RecordId record, StoreActions& out);
  void evict_checkpoint(RecordId record, StoreActions& out);
  void drop_published(RecordId record, MemberId member, ObjectEvent::Kind kind, StoreActions& out);
  void free_slot(const storage::Slot& slot, const storage::SlotShape& shape);
  SlotHeader* header_of(const storage::Slot& slot, const storage::SlotShape& shape) const;
  void refresh(RecordId record);
  void erase_if_empty(RecordId record);
  void want_parent(RecordId record, const PageHash& parent);
  void adopt_orphans(RecordId parent);
  void forget_orphan(RecordId record);
  bool complete(RecordId record, bool checkpoint) const;
  void note_incomplete(RecordId record, bool checkpoint, Time now);
  bool trailing(NamespaceId ns, PoolId pool) const;
  void free_zombies(RecordId record);
  // pins and claims of a record's two sets, kept in record fields 4 and 5: pins in the low half, claims in the high one
  std::uint32_t pins(RecordId r, bool checkpoint) const { return index.field(r, checkpoint ? 5 : 4) & 0xffffU; }
  std::uint32_t claimed(RecordId r, bool checkpoint) const { return index.field(r, checkpoint ? 5 : 4) >> 16; }
  bool pin(RecordId r, bool checkpoint);
  void unpin(RecordId r, bool checkpoint);
  void count_claim(RecordId r, bool checkpoint, bool more);

  // -- removal (store_remove.cpp) ----------------------------------------------------------------------------------------
  void remove(std::uint64_t asker, const RemoveAsk& ask, Time now, StoreActions& out);
  std::uint64_t remove_member(RecordId record, MemberId member, Time now, StoreActions& out);
  void remove_claim(std::uint32_t claim, bool redirected, Time now, StoreActions& out);

  // -- namespaces that go (store_namespaces.cpp) -------------------------------------------------------------------------
  void retired(NamespaceId ns, Time now, StoreActions& out);
  void freed(NamespaceId ns);
  /// Calls f(ns) for everything, records aside, that needs what the catalog says of its namespace.
  template <class F>
  void for_each_hold(F&& f) const;

  bool step(Time now, StoreActions& out);

  // -- lookups (store_lookup.cpp, store_lease.cpp) -------------------------------------------------------------------------
  void lookup(std::uint64_t asker, const LookupAsk& ask, Time now, StoreActions& out);
  bool answer_kept(std::uint64_t asker, const LookupAsk& ask, const RequestKey& key, Time now, StoreActions& out);
  void part_lookup(const PartLookupAsk& ask, PartLookupAnswer& answer);
  PartPage look_at(NamespaceId ns, const GroupInfo& group, std::uint32_t position, const PageHash& page, RecordId* record) const;
  void fix_answer(std::uint64_t lookup, Time now, StoreActions& out);
  void end_lookup(PendingLookup&& pending, Reason why, bool search_again, StoreActions& out);
  PartGap gap_of(NamespaceId ns, RecordId record, std::uint32_t position, PoolId pool) const;
  void find_stops(const GroupInfo& group, const std::vector<PartPage>& pages, std::span<const PartGap> gaps, LookupAnswer& answer) const;
  void name_gap(const GroupInfo& group, const std::vector<PartPage>& pages, std::span<const PartGap> gaps, LookupAnswer& answer) const;
  std::uint64_t budget() const;
  std::uint64_t bytes_to_lease(std::uint64_t used) const;
  std::uint64_t leases_to_have(std::uint32_t used) const;
  void limit_by_budget(const GroupInfo& group, const LookupAsk& ask, LookupAnswer& answer) const;
  std::uint64_t nominal_bytes(const GroupInfo& group, bool checkpoint) const;
  void part_narrow(const PartNarrow& narrow);
  void narrow_everywhere(const LeaseId& id, Lease& lease, std::uint32_t stop, std::uint32_t touch_pages, StoreActions& out);
  Reason narrow(const LeaseCall& call, StoreActions& out);
  Reason release(const LeaseCall& call, StoreActions& out);
  void end_lease(const LeaseId& id, StoreActions& out);   // now, or when its loads have ended
  void drop_lease(const LeaseId& id, StoreActions& out);  // gives the pins back
  void load_begin(const LoadBegin& begin, Time now, StoreActions& out);
  void load_end(const LoadEnd& end, StoreActions& out);
  /// Of a client whose process is gone: nobody reads for them any more.
  void end_loads(ClientId client, StoreActions& out);
  void loads_ended(const LeaseId& id, Lease& lease, StoreActions& out);
  void scan_leases(Time now, StoreActions& out);
  LeaseId new_lease_id();
  // An engine's leased bytes: a page counts once, however many of its leases of one group begin with it.
  void count_lease(Lease& lease, const GroupInfo& group, std::vector<PageHash> pages);
  void recount_lease(Lease& lease, const GroupInfo& group, std::uint32_t stop);  // before lease.stops are those up to there
  void uncount_lease(Lease& lease);

  // -- later lives (store_snapshot.cpp, store_restore.cpp) ----------------------------------------------------------------
  std::string restored(const SnapshotContents& from, Time now);
  std::string restore_objects(std::vector<storage::Extent>& used, std::vector<std::pair<RecordId, MemberId>>& published);
  std::string restore_leases(const SnapshotContents& from, Time now);
  std::uint32_t claim_of(MemberId member) const;  // kNone when the index names no claim of it

  std::string audit() const;
};

}  // namespace kvonce::protocol
