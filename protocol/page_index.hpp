// SPDX-License-Identifier: Apache-2.0
//
// The page index: one record per (namespace, page hash), lying in the arena (offsets, no pointers). One writer (the
// partition's StoreCore), any number of readers in any process, under one sequence counter per record.
//
// Memory budget: record 88 B + member 24 B + hash table about 7 B per page of one object. Records, members and extent blocks
// are touched only as their numbers grow; the hash table's pages as keys fall into them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "protocol/key.hpp"
#include "storage/extent_allocator.hpp"

namespace kvonce::protocol {

using RecordId = std::uint32_t;
using MemberId = std::uint32_t;
inline constexpr std::uint32_t kNone = 0xffffffffU;

/// A member is one (pool, shard) of a page.
enum class MemberState : std::uint8_t {
  free = 0,
  claimed,    // being written: not visible to readers; `payload` is the claim's handle
  published,  // readable: epoch and slot are valid
  zombie,     // removed while pinned: not visible, its slot is freed when the last pin of its set goes
};

struct IndexLimits {
  std::uint32_t max_pages = 0;     // records; at most 2^31 - 1
  std::uint32_t max_members = 0;   // members over all records (default: 4 x max_pages is virtual memory only)
  std::uint32_t max_extent_blocks = 0;  // slots of more than one extent
};

/// Where a published object lies.
struct ObjectLocation {
  Epoch epoch = 0;
  storage::Slot slot;
  AckLevel level = AckLevel::memory;
};

/// What a reader learns of a page in one consistent look.
struct PageView {
  std::uint32_t depth = 0;
  std::uint64_t full_pools = 0;  // bit p: all shards of pool p are published
};

enum class ReadStatus : std::uint8_t { found, absent, contended };  // contended: retries used up, ask the actor

/// Reader's side: needs nothing but the mapped region. Every offset read is checked against the region.
class IndexReader {
 public:
  IndexReader() = default;
  IndexReader(const std::byte* region, std::uint64_t region_bytes);
  bool valid() const noexcept { return region_ != nullptr; }  // magic, version and offsets are plausible
  Incarnation incarnation() const noexcept { return incarnation_; }
  /// What the headers of this index's slots carry. Epochs never repeat, so (epoch, this) names one object over all lives.
  Incarnation slot_incarnation() const noexcept { return slot_incarnation_; }
  ReadStatus page(NamespaceId ns, const PageHash& page, PageView* out) const;
  ReadStatus locate(NamespaceId ns, const PageHash& page, PoolId pool, std::uint32_t shard, ObjectLocation* out) const;
  /// Has a page's cache lines on their way before locate() needs them: stage 0 the bucket, 1 the record, 2 its first object.
  /// Each stage looks at what the one before has fetched.
  void prefetch(NamespaceId ns, const PageHash& page, unsigned stage) const;
  /// exists of many keys of one (pool, shard), with prefetching: out[i] = 1 found, 0 absent, 2 contended.
  void exists(NamespaceId ns, PoolId pool, std::uint32_t shard, std::span<const PageHash> pages, std::uint8_t* out) const;
  Generation generation(NamespaceId ns, PoolId pool) const;  // of the pool now (acquire)
  struct PoolView {
    std::uint32_t shards = 0;  // 0: not registered
    HitPolicy policy;
    Generation generation = 0;
  };
  PoolView pool(NamespaceId ns, PoolId pool) const;

 private:
  struct Access;
  const std::byte* region_ = nullptr;  // nothing: not valid, every page is absent
  Incarnation incarnation_ = 0;
  Incarnation slot_incarnation_ = 0;
  IndexLimits limits_;
  std::uint32_t bucket_count_ = 0;
  std::uint64_t pools_ = 0, buckets_ = 0, hot_ = 0, members_ = 0, extents_ = 0;  // byte offsets
};

namespace layout {
struct Header;
struct Pool;
struct Bucket;
struct Hot;
struct Member;
struct ExtentBlock;
}  // namespace layout

/// Writer's side. Not thread safe: one owner.
class PageIndex {
 public:
  static std::uint64_t region_bytes(const IndexLimits& limits);
  /// Formats the region: fresh, zeroed memory of region_bytes(limits), aligned to 64 bytes, that outlives this.
  PageIndex(std::byte* region, const IndexLimits& limits, Incarnation incarnation);

  // -- later lives ---------------------------------------------------------------------------------------------------
  /// What the owner knows of its region that does not lie in it.
  struct Marks {
    std::uint32_t records = 0;
    std::uint32_t record_limit = 0, member_limit = 0, extent_limit = 0;  // numbers below have been used at some time
    Incarnation incarnation = 0, slot_incarnation = 0;
    std::uint64_t digest = 0;  // over everything in use, as it lies in the region
  };
  Marks marks() const;
  /// Touches nothing: take_over() comes next.
  struct Adopt {};
  PageIndex(Adopt, std::byte* region, const IndexLimits& limits);
  /// The region as an earlier life left it, under a new incarnation. Every offset and number is checked, what the hash table
  /// and the lists of free entries say is made anew; the record fields are as at insert(). Empty, or why it cannot be; then
  /// neither this nor the region may be used.
  std::string take_over(const Marks& marks, Incarnation incarnation);

  IndexReader reader() const;

  // -- pools ---------------------------------------------------------------------------------------------------------
  /// Registers a pool, or changes one. Another number of shards for a pool that had one walks all records (a demotion).
  void set_pool(NamespaceId ns, PoolId pool, std::uint32_t shards, HitPolicy policy, Generation generation);

  /// The namespace has no pools any more; its place may be another's next. It must have no records.
  void drop_pools(NamespaceId ns);

  // -- records -------------------------------------------------------------------------------------------------------
  /// What is wrong with the lists of free records and members and with the links between records; empty when nothing is.
  /// For tests: reads everything.
  std::string audit() const;
  RecordId find(NamespaceId ns, const PageHash& page) const;
  void prefetch(NamespaceId ns, const PageHash& page) const;          // bucket
  void prefetch_record(NamespaceId ns, const PageHash& page) const;   // record, after the bucket is there
  /// The page must not be there. kNone when the index is full (or the hashes near this one are too crowded). Adds one to the parent's children (a record's parent is fixed here).
  RecordId insert(NamespaceId ns, const PageHash& page, RecordId parent, std::uint32_t depth);
  /// The record must have no members and no children. Takes one off its parent's children.
  void erase(RecordId record);
  std::uint32_t records() const noexcept;
  std::uint32_t records_of(NamespaceId ns) const noexcept;
  std::uint32_t max_records() const noexcept;

  PageHash hash(RecordId) const;
  NamespaceId ns(RecordId) const;
  RecordId parent(RecordId) const;
  void set_parent(RecordId record, RecordId parent);   // when the parent became known later; adjusts children
  std::uint32_t depth(RecordId) const;
  std::uint32_t children(RecordId) const;               // records that name it as parent
  std::uint64_t full_pools(RecordId) const;

  // Small fields that the eviction order (0..3, kNone at insert) and the store (4 and 5, 0 at insert) keep in the record.
  // Readers do not read them.
  static constexpr unsigned kRecordFields = 6;
  std::uint32_t field(RecordId record, unsigned which) const noexcept {  // which < kRecordFields
    return fields_[std::size_t{record} * kRecordFields + which];
  }
  void set_field(RecordId record, unsigned which, std::uint32_t value) noexcept {
    fields_[std::size_t{record} * kRecordFields + which] = value;
  }

  // -- members -------------------------------------------------------------------------------------------------------
  struct MemberRef {
    MemberId id = kNone;
    PoolId pool = 0;
    std::uint32_t shard = 0;
    MemberState state = MemberState::free;
    AckLevel level = AckLevel::memory;
    Epoch epoch = 0;
  };
  /// The claimed or published member of (pool, shard); zombies are not found.
  MemberId find_member(RecordId, PoolId pool, std::uint32_t shard) const;
  MemberRef member(MemberId) const;
  MemberId first_member(RecordId) const;
  MemberId next_member(MemberId) const;
  /// A record's members, for range-for; the one at hand may be dropped. Ends also where a broken chain is a ring.
  class Members;
  Members members(RecordId) const;
  /// kNone when the member table is full, or the pool is not registered. State claimed, with the claim's handle.
  MemberId add_claimed(RecordId, PoolId pool, std::uint32_t shard, std::uint32_t claim);
  std::uint32_t claim_of(MemberId) const;                    // state claimed only
  /// claimed -> published; updates full_pools. False (nothing changed) when no extent block is left for a slot of several
  /// extents, or it is no slot: 1 to 16 extents in whole granules, offsets below 64 TiB, each below 1 GiB.
  bool publish(RecordId, MemberId, Epoch epoch, const storage::Slot& slot, AckLevel level);
  void set_level(RecordId, MemberId, AckLevel level);
  /// published -> zombie (not visible any more; full_pools updated). The slot stays known.
  void make_zombie(RecordId, MemberId);
  storage::Slot slot_of(MemberId) const;                     // published or zombie; of no extent when the entry is nonsense
  /// Takes the member out of its record (any state) and frees the entry; full_pools updated.
  void drop_member(RecordId, MemberId);

  /// Walks every record in use; for checks and snapshots. Inserts nothing, erases at most the record it is given.
  template <class F>
  void for_each(F&& f) const {
    for (RecordId record = 0; record < record_high_water_; ++record)
      if (in_use(record)) f(record);
  }
  bool in_use(RecordId record) const noexcept;
  /// Ids below this have been used at some time: for walks in steps.
  RecordId record_limit() const noexcept { return record_high_water_; }

 private:
  void place_sections() noexcept;
  std::string check_record(RecordId, std::vector<bool>& members_seen, std::vector<bool>& extents_seen) const;
  class Change;  // the time in which a record's sequence is odd
  layout::Hot& hot(RecordId) const noexcept;
  layout::Pool& pool_entry(NamespaceId ns, PoolId pool) const noexcept;
  bool full(RecordId, PoolId pool) const noexcept;
  void update_full(RecordId, PoolId pool) noexcept;
  bool enter(std::uint64_t hash, RecordId) noexcept;  // into the hash table
  void leave(std::uint64_t hash, RecordId) noexcept;
  void free_extents(MemberId) noexcept;

  std::byte* region_;
  IndexLimits limits_;
  std::uint32_t bucket_count_ = 0;
  layout::Pool* pools_;
  layout::Bucket* buckets_;
  layout::Hot* hot_;
  std::uint32_t* fields_;  // kRecordFields per record; those of free records are chained through the first
  layout::Member* members_;
  layout::ExtentBlock* extents_;
  std::uint32_t records_ = 0;
  std::vector<std::uint32_t> records_at_;  // by namespace place
  // Numbers below the high-water marks have been handed out before; those given back are chained from free_*.
  std::uint32_t record_high_water_ = 0, member_high_water_ = 0, extent_high_water_ = 0;
  std::uint32_t free_record_ = kNone, free_member_ = kNone, free_extent_ = kNone;
};

class PageIndex::Members {
 public:
  class Iterator {
   public:
    Iterator(const PageIndex& index, MemberId at, std::uint32_t left) : index_(&index), at_(at), left_(left) { look_ahead(); }
    MemberId operator*() const { return at_; }
    Iterator& operator++() {
      at_ = left_ == 0 ? kNone : next_;
      --left_;
      look_ahead();
      return *this;
    }
    bool operator!=(const Iterator& other) const { return at_ != other.at_; }

   private:
    void look_ahead() { next_ = at_ == kNone ? kNone : index_->next_member(at_); }
    const PageIndex* index_;
    MemberId at_;
    MemberId next_ = kNone;
    std::uint32_t left_;
  };
  Members(const PageIndex& index, RecordId record) : index_(index), record_(record) {}
  Iterator begin() const { return {index_, index_.first_member(record_), index_.member_high_water_}; }
  Iterator end() const { return {index_, kNone, 0}; }

 private:
  const PageIndex& index_;
  RecordId record_;
};

inline PageIndex::Members PageIndex::members(RecordId record) const { return {*this, record}; }

}  // namespace kvonce::protocol
