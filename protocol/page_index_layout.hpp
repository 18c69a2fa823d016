// SPDX-License-Identifier: Apache-2.0
//
// How the page index lies in its region. Private to the index's two sides; everything is native-endian, since writer and
// readers share one host.
//
// Order of a change: sequence odd, data words (release), sequence even (release). A reader that has seen a data word of a
// change therefore also sees the odd sequence when it looks again. No fences, so that ThreadSanitizer understands it.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "protocol/page_index.hpp"

namespace kvonce::protocol::layout {

inline constexpr std::uint64_t kMagic = 0x5849'4543'4e4f'564bULL;  // "KVONCEIX" in memory order
inline constexpr std::uint32_t kVersion = 2;
inline constexpr std::uint64_t kSectionAlign = 4096;
// Record ids keep their top bit clear: the eviction order marks its checkpoint nodes with it.
inline constexpr std::uint32_t kMaxRecords = 0x7fffffffU;
// A key lies at most this many buckets behind its home. Chosen hashes can pile up in one home; this bounds what they cost.
inline constexpr std::uint32_t kMaxProbe = 256;
inline constexpr unsigned kReadRetries = 64;
// Longest member chain that a reader follows; behind it the actor is asked.
inline constexpr std::uint32_t kMaxChain = 65'536;

template <class T>
T peek(const T& word) noexcept {
  // atomic_ref of const arrives with C++26; the load writes nothing, so read-only mappings are fine.
  return std::atomic_ref<T>(const_cast<T&>(word)).load(std::memory_order_acquire);
}
template <class T>
T own(const T& word) noexcept {  // the writer reading its own words
  return std::atomic_ref<T>(const_cast<T&>(word)).load(std::memory_order_relaxed);
}
template <class T>
void put(T& word, T value) noexcept {
  std::atomic_ref<T>(word).store(value, std::memory_order_release);
}

struct Header {
  std::uint64_t magic;  // written last
  std::uint32_t version;
  std::uint32_t max_pages;
  std::uint32_t max_members;
  std::uint32_t max_extent_blocks;
  std::uint64_t incarnation;
  std::uint64_t slot_incarnation;  // stamped into slots: the first life's; a life that takes the region over keeps it
  std::uint64_t pools, buckets, hot, cold, members, extents, total;  // byte offsets, then the region's bytes in use
};

struct Pool {
  std::uint32_t shards;  // 0: not registered
  std::uint32_t trailing_pages;
  std::uint32_t generation;
  std::uint32_t turn;  // whose the entry is, of those that have had the namespace's place
};

inline constexpr unsigned kBucketEntries = 12;
struct alignas(64) Bucket {
  std::uint32_t records[kBucketEntries];
  std::uint64_t tags_low;       // entries 0..7, one byte each; 0: empty
  std::uint64_t tags_overflow;  // low half: entries 8..11; high half: keys that passed this full bucket by
};
static_assert(sizeof(Bucket) == 64);

inline constexpr std::uint32_t kInUse = 1U << 16;
// What readers look at, in one cache line (parent and children ride along).
struct alignas(64) Hot {
  std::uint32_t seq;   // odd: being changed. Never reset, also not for another page
  std::uint32_t name;  // namespace, kInUse
  std::uint64_t hash[4];
  std::uint64_t full_pools;
  std::uint32_t depth;
  std::uint32_t first_member;
  std::uint32_t parent;
  std::uint32_t children;
};
static_assert(sizeof(Hot) == 64);

// The writer's own fields of a record lie apart; no reader looks there.
inline constexpr std::size_t kColdBytes = PageIndex::kRecordFields * sizeof(std::uint32_t);
static_assert(sizeof(Hot) + kColdBytes == 88);

struct Member {
  std::uint64_t epoch;
  std::uint64_t location;  // claimed: the claim's handle; one extent: that extent, packed; more: number of the extent block
  std::uint32_t info;      // pool 6 bits, shard 12, state 2, level 2, extent count 5
  std::uint32_t next;
};
static_assert(sizeof(Member) == 24);

// Slots of 2 to 16 extents. Free blocks are chained through extents[0].
struct alignas(64) ExtentBlock {
  std::uint64_t extents[storage::kMaxExtents];
};

// -- packing ---------------------------------------------------------------------------------------------------------
inline constexpr unsigned kOffsetBits = 40;  // granules: 64 TiB of arena
inline constexpr std::uint64_t kMaxOffsetGranules = (std::uint64_t{1} << kOffsetBits) - 1;
inline constexpr std::uint64_t kMaxExtentGranules = (std::uint64_t{1} << (64 - kOffsetBits)) - 1;  // just under 1 GiB

constexpr bool packable(const storage::Extent& extent) noexcept {
  return extent.offset % storage::kGranuleBytes == 0 && extent.bytes % storage::kGranuleBytes == 0 &&
         extent.offset / storage::kGranuleBytes <= kMaxOffsetGranules &&
         extent.bytes / storage::kGranuleBytes <= kMaxExtentGranules;
}
constexpr std::uint64_t pack(const storage::Extent& extent) noexcept {
  return extent.offset / storage::kGranuleBytes | extent.bytes / storage::kGranuleBytes << kOffsetBits;
}
constexpr storage::Extent unpack(std::uint64_t word) noexcept {
  return {(word & kMaxOffsetGranules) * storage::kGranuleBytes, (word >> kOffsetBits) * storage::kGranuleBytes};
}

struct Info {
  PoolId pool;
  std::uint32_t shard;
  MemberState state;
  AckLevel level;
  std::uint32_t extents;
};
constexpr std::uint32_t pack(const Info& info) noexcept {
  return std::uint32_t{info.pool} | info.shard << 6 | static_cast<std::uint32_t>(info.state) << 18 |
         static_cast<std::uint32_t>(info.level) << 20 | info.extents << 22;
}
constexpr Info unpack_info(std::uint32_t word) noexcept {
  return {static_cast<PoolId>(word & 63), word >> 6 & 4095, static_cast<MemberState>(word >> 18 & 3),
          static_cast<AckLevel>(word >> 20 & 3), word >> 22 & 31};
}
inline constexpr std::uint32_t kPlaceMask = (1U << 18) - 1;
inline constexpr std::uint32_t kPoolMask = 63;
inline constexpr std::uint32_t kStateMask = 3U << 18;
constexpr std::uint32_t place(PoolId pool, std::uint32_t shard) noexcept { return std::uint32_t{pool} | shard << 6; }
constexpr std::uint32_t state_bits(MemberState state) noexcept { return static_cast<std::uint32_t>(state) << 18; }

// -- sections --------------------------------------------------------------------------------------------------------
struct Sections {
  std::uint32_t max_pages = 0, max_members = 0, max_extent_blocks = 0, bucket_count = 0;
  std::uint64_t pools = 0, buckets = 0, hot = 0, cold = 0, members = 0, extents = 0, total = 0;

  static constexpr Sections of(const IndexLimits& limits) noexcept {
    Sections s;
    s.max_pages = limits.max_pages;
    s.max_members = limits.max_members;
    s.max_extent_blocks = limits.max_extent_blocks;
    // 9 of 12 entries used when all records are: load 0.75.
    s.bucket_count = s.max_pages / 9 + 1;
    std::uint64_t at = kSectionAlign;
    auto section = [&at](std::uint64_t bytes) {
      const std::uint64_t start = at;
      at += storage::round_up(bytes, kSectionAlign);
      return start;
    };
    s.pools = section(std::uint64_t{kMaxNamespaces} * kMaxPoolsPerNamespace * sizeof(Pool));
    s.buckets = section(std::uint64_t{s.bucket_count} * sizeof(Bucket));
    s.hot = section(std::uint64_t{s.max_pages} * sizeof(Hot));
    s.cold = section(std::uint64_t{s.max_pages} * kColdBytes);
    s.members = section(std::uint64_t{s.max_members} * sizeof(Member));
    s.extents = section(std::uint64_t{s.max_extent_blocks} * sizeof(ExtentBlock));
    s.total = at;
    return s;
  }
};
static_assert(sizeof(Header) <= kSectionAlign);

// -- hash table ------------------------------------------------------------------------------------------------------
constexpr std::uint32_t home_bucket(std::uint64_t hash, std::uint32_t bucket_count) noexcept {
  return static_cast<std::uint32_t>((hash >> 32) * bucket_count >> 32);
}
constexpr std::uint8_t tag_of(std::uint64_t hash) noexcept {
  const auto low = static_cast<std::uint8_t>(hash);
  return low == 0 ? std::uint8_t{1} : low;
}
constexpr std::uint32_t next_bucket(std::uint32_t bucket, std::uint32_t bucket_count) noexcept {
  return bucket + 1 == bucket_count ? 0 : bucket + 1;
}
constexpr std::uint32_t probe_limit(std::uint32_t bucket_count) noexcept { return std::min(bucket_count, kMaxProbe); }
constexpr std::uint32_t overflow_of(std::uint64_t tags_overflow) noexcept {
  return static_cast<std::uint32_t>(tags_overflow >> 32);
}

/// Bit 8*i + 7 set where byte i of `word` is `tag`. A byte above a true match may be flagged too (borrow), one below never:
/// with tag 0 the lowest flag is exact; other matches are verified against the record anyway.
constexpr std::uint64_t match_bytes(std::uint64_t word, std::uint8_t tag) noexcept {
  const std::uint64_t x = word ^ tag * 0x0101'0101'0101'0101ULL;
  return (x - 0x0101'0101'0101'0101ULL) & ~x & 0x8080'8080'8080'8080ULL;
}
/// The entries of a bucket that carry a tag.
struct Matches {
  std::uint64_t low;
  std::uint64_t high;

  Matches(std::uint64_t tags_low, std::uint64_t tags_overflow, std::uint8_t tag) noexcept
      : low(match_bytes(tags_low, tag)), high(match_bytes(tags_overflow, tag) & 0xffff'ffffULL) {}
  bool any() const noexcept { return (low | high) != 0; }
  unsigned first() const noexcept {
    return low != 0 ? static_cast<unsigned>(std::countr_zero(low)) / 8
                    : 8 + static_cast<unsigned>(std::countr_zero(high)) / 8;
  }
  void pop() noexcept {
    if (low != 0)
      low &= low - 1;
    else
      high &= high - 1;
  }
};

}  // namespace kvonce::protocol::layout
