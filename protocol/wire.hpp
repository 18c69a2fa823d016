// SPDX-License-Identifier: Apache-2.0
//
// Everything that is said between ranks (PoolCore), routers (ShardKeyCore) and stores (StoreCore), as plain structs of
// fixed-width integers. Page bytes never travel here. Deadlines travel as time remaining.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "protocol/key.hpp"
#include "storage/extent_allocator.hpp"

namespace kvonce::protocol {

/// Nanoseconds on a steady clock whose origin only its owner knows.
using Time = std::uint64_t;
using Duration = std::uint64_t;
inline constexpr Duration kMicrosecond = 1'000;
inline constexpr Duration kMillisecond = 1'000'000;
inline constexpr Duration kSecond = 1'000'000'000;
inline constexpr Time kNever = ~std::uint64_t{0};

// -- page-ready: PoolActor -> ShardKeyActor ----------------------------------------------------------------------------

inline constexpr std::uint32_t kNoParent = 0xffffffffU;        // unknown, first of all, or on another partition
inline constexpr std::uint32_t kExternalParent = 0xfffffffeU;  // the batch's `parent`

/// One page of a batch's chain.
struct ChainPage {
  PageHash hash;
  std::uint32_t depth = 0;            // pages before it in its prefix
  std::uint32_t parent = kNoParent;   // index into the same message's pages, kExternalParent or kNoParent
};

/// One object that a rank has ready.
struct ReadyItem {
  std::uint32_t item = 0;  // the caller's number of it within the batch
  std::uint32_t page = 0;  // index into pages
  std::uint32_t pool = 0;  // the PoolActor's own number of the pool
  std::uint64_t bytes = 0;
};

/// A batch of ready pages, as a PoolActor emits it: no keys yet.
struct PageReady {
  SenderId sender = 0;
  std::uint64_t batch = 0;
  AckLevel level = AckLevel::memory;
  Duration time_left = 0;
  bool has_parent = false;
  PageHash parent;
  std::vector<ChainPage> pages;
  std::vector<ReadyItem> items;
};

// -- put: ShardKeyActor -> StoreActor ----------------------------------------------------------------------------------

struct PutItem {
  std::uint32_t item = 0;
  std::uint32_t page = 0;
  PoolId pool = 0;
  std::uint32_t shard = 0;
  Generation generation = 0;
  std::uint64_t bytes = 0;
};

/// The part of a batch that one StoreActor owns, under canonical keys.
struct PutBatch {
  SenderId sender = 0;
  std::uint64_t batch = 0;
  NamespaceId ns = 0;
  AckLevel level = AckLevel::memory;
  Duration time_left = 0;
  bool has_parent = false;  // `parent` lies on this partition
  PageHash parent;
  std::vector<ChainPage> pages;
  std::vector<PutItem> items;
};

enum class GrantOutcome : std::uint8_t {
  landed = 0,     // all bytes are in the slot; checksums follow
  abandoned = 1,  // the writer has stopped and will not write there any more
  failed = 2,     // likewise, because its copy cannot be made at all: never grant this item to it again
};

/// What became of one grant, named by (claim, epoch).
struct GrantResult {
  std::uint32_t claim = 0;
  Epoch epoch = 0;
  GrantOutcome outcome = GrantOutcome::landed;
  std::uint32_t first_checksum = 0;
  std::uint32_t checksum_count = 0;
};
/// An object whose stored bytes a load has found not to be those that were written.
struct BadObject {
  PageHash page;
  Epoch epoch = 0;
  NamespaceId ns = 0;
  PoolId pool = 0;
  std::uint32_t shard = 0;
};
struct GrantResults {
  SenderId sender = 0;
  std::vector<GrantResult> results;
  std::vector<std::uint64_t> checksums;  // XXH3-64, one per range of each landed object
  std::vector<BadObject> bad;            // to be let go, while the epoch is still theirs
};

/// The sender no longer waits for these items (its own deadline passed, or it is closing).
struct Withdraw {
  SenderId sender = 0;
  struct Item {
    std::uint64_t batch = 0;
    std::uint32_t item = 0;
  };
  std::vector<Item> items;
};

/// Answer to a ChecksumAsk: the checksums of the sender's own row; empty when it could not be read.
struct ChecksumAnswers {
  SenderId sender = 0;
  struct Answer {
    std::uint64_t ask = 0;
    std::uint32_t first_checksum = 0;
    std::uint32_t checksum_count = 0;
  };
  std::vector<Answer> answers;
  std::vector<std::uint64_t> checksums;
};

/// A rank, as a store can name it.
struct RankName {
  SenderId sender = 0;    // 0: it has left
  std::uint32_t pid = 0;  // of its process; 0: not known
  friend bool operator==(const RankName&, const RankName&) = default;
};
/// Partition -> registrar: ranks of one engine announced different bytes under a sampled key.
struct KeyConflict {
  NamespaceId ns = 0;
  PoolId pool = 0;
  bool first_of_key = true;  // false: of this key it is known already, here is one more rank
  RankName writer;           // whose bytes were stored
  RankName differing;
};

// -- StoreActor -> PoolActor -------------------------------------------------------------------------------------------

/// The right and the place to write one object.
struct Grant {
  std::uint64_t batch = 0;
  std::uint32_t item = 0;
  std::uint32_t claim = 0;
  Epoch epoch = 0;
  std::uint32_t first_extent = 0;
  std::uint32_t extent_count = 0;
};
struct ItemVerdict {
  std::uint64_t batch = 0;
  std::uint32_t item = 0;
  Verdict verdict = Verdict::none;
  Reason reason = Reason::none;
  std::uint32_t retry_after_ms = 0;
};
/// "What are the checksums of your own bytes of this item?" Its verdict waits for the answer.
struct ChecksumAsk {
  std::uint64_t ask = 0;
  std::uint64_t batch = 0;
  std::uint32_t item = 0;
};
/// The item's pool has been demoted: announce it again under the rank's own key.
struct Redirect {
  std::uint64_t batch = 0;
  std::uint32_t item = 0;
  PoolId pool = 0;
  Generation generation = 0;
};

/// Everything that one store has to say to one sender after one event.
struct StoreReply {
  std::uint32_t partition = 0;
  std::vector<Grant> grants;
  std::vector<storage::Extent> extents;
  std::vector<ItemVerdict> verdicts;
  std::vector<ChecksumAsk> asks;
  std::vector<Redirect> redirects;
  bool empty() const noexcept { return grants.empty() && verdicts.empty() && asks.empty() && redirects.empty(); }
};

// -- lookup, leases, loads ---------------------------------------------------------------------------------------------

struct Digest128 {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  friend bool operator==(const Digest128&, const Digest128&) = default;
};

/// Asked of the home partition (the partition of the first page).
struct LookupAsk {
  std::uint64_t token = 0;  // names the question towards its asker
  EngineId engine = 0;
  GroupId group = 0;
  bool has_request = false;  // answers with a request id are the store's and kept
  Digest128 request;         // digest of the request id
  Digest128 digest;          // digest of group and hashes
  bool probe = false;        // no lease, does not count as use
  Duration time_left = 0;
  Duration lease_time = 0;   // wanted; 0 = the store's default
  // Of how many pages the question is; `pages` are the first of them, as many as the asker's own search says are needed
  // (lookup_search.hpp). 0: all are here.
  std::uint32_t pages_asked = 0;
  std::vector<PageHash> pages;
};

struct LookupAnswer {
  std::uint64_t token = 0;
  Reason error = Reason::none;        // why there is no answer at all (unknown group, ...)
  std::uint32_t restorable_pages = 0; // the deepest legal stop; 0 = nothing
  std::uint32_t resident_pages = 0;   // leading pages that have all their every-page pools; >= restorable_pages
  bool every_stop = false;            // every length up to restorable_pages is a legal stop
  std::vector<std::uint32_t> stops;   // else: all legal stops, ascending
  std::vector<std::uint32_t> leased_stops;  // those whose trailing pools the lease covers (deepest k)
  LeaseId lease;                      // zero when nothing is leased
  Duration lease_left = 0;
  // The first page that is not restorable, and why.
  std::uint32_t first_missing = 0;
  Reason reason = Reason::none;
  // Of group_incomplete. A page that lacks an every-page pool: its first such pool by number, and the first shard that is not
  // readable. Pages that go on without a further stop: of the stops behind the prefix the one that lacks the fewest objects of
  // trailing pools (of equals the first) names the first pool that it lacks, and that pool's first missing shard on the first
  // page where one is missing.
  PoolId missing_pool = 0;
  std::uint32_t missing_shard = 0;
  std::uint32_t retry_after_ms = 0;
  // Optional pools that do not cover the whole restorable prefix: bit per pool id.
  std::uint64_t optional_missing = 0;
  bool redirect = false;              // a pool of the group has been demoted: describe the group again
  bool repeated = false;              // answered from what was kept for this request
  bool kept = false;                  // of a request id: other ranks have this answer too, or will; its lease is not one asker's to release
  bool search_again = false;          // all the pages that were sent are there by now: ask again with all of them. Nothing is leased
};

/// Home partition -> other partitions: pin and report your pages of this lookup. Positions are prefix positions.
struct PartLookupAsk {
  std::uint64_t token = 0;
  std::uint32_t home = 0;
  EngineId engine = 0;
  GroupId group = 0;
  LeaseId lease;  // zero for a probe: nothing is pinned or touched
  std::vector<std::uint32_t> positions;
  std::vector<PageHash> pages;
};
struct PartPage {
  std::uint32_t position = 0;
  std::uint64_t full_pools = 0;
  Reason reason = Reason::none;  // of this page when it lacks an every-page pool
  PoolId missing_pool = 0;
  std::uint32_t missing_shard = 0;
  bool checkpoint_in_flight = false;  // a trailing pool of it is being written
};
/// A trailing pool that a page has in part.
struct PartGap {
  std::uint32_t position = 0;
  PoolId pool = 0;
  std::uint32_t missing_shards = 0;  // how many are not readable
  std::uint32_t first_missing = 0;   // of them
};
struct PartLookupAnswer {
  std::uint64_t token = 0;
  std::uint32_t partition = 0;
  std::vector<PartPage> pages;
  std::vector<PartGap> gaps;  // by position, then pool; a required trailing pool that is neither full nor here lacks all shards
};
/// Home -> other partitions: keep only this of the lease (pages below `stop`, trailing pools of `stops`). stop 0 = release.
struct PartNarrow {
  LeaseId lease;
  std::uint32_t stop = 0;
  std::uint32_t touch_pages = 0; // != 0: the lookup's answer is fixed now: touch pages below this, and the checkpoint of `stop`
  std::uint32_t trailing_pages = 1;  // most pages that a trailing pool of the group needs before a stop
  std::vector<std::uint32_t> stops;
};

struct LeaseCall {
  LeaseId lease;
  EngineId engine = 0;
  std::uint32_t stop = 0;  // narrow: keep this stop and what is before it; release: 0
};

/// Before a load copies anything: pins what the lease covers until the load's end or deadline.
struct LoadBegin {
  std::uint64_t load = 0;  // the sender's number of the load
  SenderId sender = 0;
  EngineId engine = 0;
  LeaseId lease;
  Duration time_left = 0;
};
struct LoadBegun {
  std::uint64_t load = 0;
  Reason reason = Reason::none;  // none: go on
  std::uint32_t leased_pages = 0;
};
struct LoadEnd {
  std::uint64_t load = 0;
  SenderId sender = 0;
  LeaseId lease;
};

// -- administration ----------------------------------------------------------------------------------------------------

struct RemoveAsk {
  std::uint64_t token = 0;
  enum class What : std::uint8_t { key, page, ns, all } what = What::page;
  NamespaceId ns = 0;
  PoolId pool = 0;
  std::uint32_t shard = 0;
  std::vector<PageHash> pages;
};
struct RemoveAnswer {
  std::uint64_t token = 0;
  std::uint64_t removed_objects = 0;
  Reason error = Reason::none;
};
struct FlushAsk {
  std::uint64_t token = 0;
  AckLevel level = AckLevel::memory;
};
struct FlushAnswer {
  std::uint64_t token = 0;
  Reason error = Reason::none;
};

/// What happened to one object; told to subscribers in batches.
struct ObjectEvent {
  enum class Kind : std::uint8_t { stored, evicted, removed } kind = Kind::stored;
  NamespaceId ns = 0;
  PoolId pool = 0;
  std::uint32_t shard = 0;
  PageHash page;
};

/// Asks the disk tier (or another node) to make one object durable: the seam of the ack levels.
struct PersistOrder {
  std::uint64_t operation = 0;
  CanonicalKey key;
  Epoch epoch = 0;
  AckLevel level = AckLevel::disk;
};

}  // namespace kvonce::protocol
