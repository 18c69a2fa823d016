// SPDX-License-Identifier: Apache-2.0
//
// The reader's side of the page index. The region may hold anything (a store that died in mid-change, flipped bits): every
// index is checked before it is followed and every walk is bounded.
#include <array>

#include "protocol/page_index_layout.hpp"

namespace kvonce::protocol {

using namespace layout;

namespace {

enum class Look : std::uint8_t { other, found, absent, contended };

void pause() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

bool names(const Hot& hot, std::uint32_t name, const PageHash& page) noexcept {
  return peek(hot.name) == name && peek(hot.hash[0]) == page.words[0] && peek(hot.hash[1]) == page.words[1] &&
         peek(hot.hash[2]) == page.words[2] && peek(hot.hash[3]) == page.words[3];
}

// Runs `body` (-> Look found, absent, or contended for nonsense) on the record if it is the page's, until both saw one state.
template <class Body>
Look look_at(const Hot& hot, std::uint32_t name, const PageHash& page, Body&& body) {
  for (unsigned attempt = 0; attempt < kReadRetries; ++attempt) {
    const std::uint32_t seq = peek(hot.seq);
    if (seq & 1U) {
      pause();
      continue;
    }
    const Look look = names(hot, name, page) ? body(hot, seq) : Look::other;
    if (peek(hot.seq) == seq) return look;
  }
  return Look::contended;
}

}  // namespace

struct IndexReader::Access {
  const IndexReader& r;

  template <class T>
  const T* at(std::uint64_t offset) const noexcept {
    return reinterpret_cast<const T*>(r.region_ + offset);
  }
  const Bucket& bucket(std::uint32_t i) const noexcept { return at<Bucket>(r.buckets_)[i]; }
  const Hot& hot(std::uint32_t i) const noexcept { return at<Hot>(r.hot_)[i]; }
  const Member& member(std::uint32_t i) const noexcept { return at<Member>(r.members_)[i]; }
  const Pool* pool(NamespaceId ns, PoolId pool) const noexcept {
    if (r.region_ == nullptr || ns == kNoNamespace || pool >= kMaxPoolsPerNamespace) return nullptr;
    const Pool* const entry = at<Pool>(r.pools_) + std::size_t{place_of(ns)} * kMaxPoolsPerNamespace + pool;
    return peek(entry->turn) == turn_of(ns) ? entry : nullptr;
  }

  // The published member (pool, shard): its number, or kNone. `broken` when the chain is no chain.
  std::uint32_t published(const Hot& record, std::uint32_t seq, std::uint32_t where, bool& broken) const noexcept {
    std::uint32_t id = peek(record.first_member);
    for (std::uint32_t steps = 0; id != kNone; ++steps) {
      if (id >= r.limits_.max_members || steps == kMaxChain) {
        broken = true;
        return kNone;
      }
      // A chain that changes under us may lead anywhere: do not follow it for long.
      if (steps % 64 == 63 && peek(record.seq) != seq) return kNone;
      const Member& m = member(id);
      const std::uint32_t info = peek(m.info);
      if ((info & (kPlaceMask | kStateMask)) == (where | state_bits(MemberState::published))) return id;
      id = peek(m.next);
    }
    return kNone;
  }

  template <class Body>
  ReadStatus find(NamespaceId ns, const PageHash& page, Body&& body) const {
    if (r.region_ == nullptr) return ReadStatus::absent;
    const std::uint64_t hash = mix_page(ns, page);
    const std::uint32_t name = ns | kInUse;
    std::uint32_t b = home_bucket(hash, r.bucket_count_);
    for (std::uint32_t left = probe_limit(r.bucket_count_); left != 0; --left) {
      const Bucket& here = bucket(b);
      const std::uint64_t low = peek(here.tags_low);
      const std::uint64_t high = peek(here.tags_overflow);
      for (Matches m(low, high, tag_of(hash)); m.any(); m.pop()) {
        const std::uint32_t id = peek(here.records[m.first()]);
        if (id >= r.limits_.max_pages) continue;
        switch (look_at(hot(id), name, page, body)) {
          case Look::other: break;
          case Look::found: return ReadStatus::found;
          case Look::absent: return ReadStatus::absent;
          case Look::contended: return ReadStatus::contended;
        }
      }
      if (overflow_of(high) == 0) break;
      b = next_bucket(b, r.bucket_count_);
    }
    return ReadStatus::absent;
  }

  ObjectLocation location(const Member& m, bool& broken) const noexcept {
    ObjectLocation out;
    const Info info = unpack_info(peek(m.info));
    const std::uint64_t where = peek(m.location);
    out.epoch = peek(m.epoch);
    out.level = info.level;
    out.slot.count = info.extents;
    if (info.extents == 0 || info.extents > storage::kMaxExtents) {
      broken = true;
    } else if (info.extents == 1) {
      out.slot.extents[0] = unpack(where);
    } else if (where >= r.limits_.max_extent_blocks) {
      broken = true;
    } else {
      const ExtentBlock& block = at<ExtentBlock>(r.extents_)[where];
      for (std::uint32_t i = 0; i < info.extents; ++i) out.slot.extents[i] = unpack(peek(block.extents[i]));
    }
    return out;
  }
};

IndexReader::IndexReader(const std::byte* region, std::uint64_t region_bytes) {
  if (region == nullptr || region_bytes < sizeof(Header) || reinterpret_cast<std::uintptr_t>(region) % alignof(Bucket) != 0)
    return;
  // Taken over once and checked: what later happens to the header moves no read out of the region.
  const auto& header = *reinterpret_cast<const Header*>(region);
  if (peek(header.magic) != kMagic || peek(header.version) != kVersion) return;
  const IndexLimits limits{peek(header.max_pages), peek(header.max_members), peek(header.max_extent_blocks)};
  const Sections s = Sections::of(limits);
  if (limits.max_pages > kMaxRecords || s.total > region_bytes || peek(header.total) != s.total ||
      peek(header.pools) != s.pools || peek(header.buckets) != s.buckets || peek(header.hot) != s.hot ||
      peek(header.cold) != s.cold || peek(header.members) != s.members || peek(header.extents) != s.extents)
    return;
  region_ = region;
  incarnation_ = peek(header.incarnation);
  slot_incarnation_ = peek(header.slot_incarnation);
  limits_ = limits;
  bucket_count_ = s.bucket_count;
  pools_ = s.pools;
  buckets_ = s.buckets;
  hot_ = s.hot;
  members_ = s.members;
  extents_ = s.extents;
}

ReadStatus IndexReader::page(NamespaceId ns, const PageHash& page, PageView* out) const {
  PageView view;
  const ReadStatus status = Access{*this}.find(ns, page, [&view](const Hot& hot, std::uint32_t) {
    view.depth = peek(hot.depth);
    view.full_pools = peek(hot.full_pools);
    return Look::found;
  });
  if (status == ReadStatus::found && out != nullptr) *out = view;
  return status;
}

ReadStatus IndexReader::locate(NamespaceId ns, const PageHash& page, PoolId pool, std::uint32_t shard,
                               ObjectLocation* out) const {
  if (pool >= kMaxPoolsPerNamespace || shard >= kMaxShardsPerPool) return ReadStatus::absent;
  const Access access{*this};
  ObjectLocation location{};
  const ReadStatus status = access.find(ns, page, [&](const Hot& hot, std::uint32_t seq) {
    bool broken = false;
    const std::uint32_t id = access.published(hot, seq, place(pool, shard), broken);
    if (id != kNone) location = access.location(access.member(id), broken);
    return broken ? Look::contended : id == kNone ? Look::absent : Look::found;
  });
  if (status == ReadStatus::found && out != nullptr) *out = location;
  return status;
}

void IndexReader::prefetch(NamespaceId ns, const PageHash& page, unsigned stage) const {
  if (region_ == nullptr) return;
  const Access access{*this};
  const std::uint64_t hash = mix_page(ns, page);
  const Bucket& bucket = access.bucket(home_bucket(hash, bucket_count_));
  if (stage == 0) return __builtin_prefetch(&bucket);
  const Matches matches(peek(bucket.tags_low), peek(bucket.tags_overflow), tag_of(hash));
  if (!matches.any()) return;
  const std::uint32_t id = peek(bucket.records[matches.first()]);
  if (id >= limits_.max_pages) return;
  if (stage == 1) return __builtin_prefetch(&access.hot(id));
  const std::uint32_t member = peek(access.hot(id).first_member);
  if (member < limits_.max_members) __builtin_prefetch(&access.member(member));
}

void IndexReader::exists(NamespaceId ns, PoolId pool, std::uint32_t shard, std::span<const PageHash> pages,
                         std::uint8_t* out) const {
  const Access access{*this};
  const Pool* const keyed = access.pool(ns, pool);
  if (keyed == nullptr || shard >= kMaxShardsPerPool) {
    std::fill_n(out, pages.size(), std::uint8_t{0});
    return;
  }
  const std::uint32_t shards = peek(keyed->shards);
  const std::uint32_t name = ns | kInUse;
  const std::uint32_t where = place(pool, shard);
  const auto body = [&](const Hot& hot, std::uint32_t seq) {
    const bool full = peek(hot.full_pools) >> pool & 1U;
    if (shard < shards && (full || shards == 1)) return full ? Look::found : Look::absent;
    bool broken = false;
    const std::uint32_t id = access.published(hot, seq, where, broken);
    return broken ? Look::contended : id == kNone ? Look::absent : Look::found;
  };
  const auto answer = [](ReadStatus status) {
    return static_cast<std::uint8_t>(status == ReadStatus::found ? 1 : status == ReadStatus::absent ? 0 : 2);
  };

  // Two misses of the cache a key, the bucket and the record: have a group's of each kind under way together.
  constexpr std::size_t kGroup = 32;
  std::array<std::uint64_t, kGroup> hashes;
  std::array<std::uint32_t, kGroup> ids;
  for (std::size_t begin = 0; begin < pages.size(); begin += kGroup) {
    const std::size_t n = std::min(kGroup, pages.size() - begin);
    const PageHash* const group = pages.data() + begin;
    for (std::size_t i = 0; i < n; ++i) {
      hashes[i] = mix_page(ns, group[i]);
      __builtin_prefetch(&access.bucket(home_bucket(hashes[i], bucket_count_)));
    }
    for (std::size_t i = 0; i < n; ++i) {
      ids[i] = kNone;
      std::uint32_t b = home_bucket(hashes[i], bucket_count_);
      for (std::uint32_t left = probe_limit(bucket_count_); left != 0; --left) {
        const Bucket& here = access.bucket(b);
        const std::uint64_t high = peek(here.tags_overflow);
        const Matches m(peek(here.tags_low), high, tag_of(hashes[i]));
        if (m.any()) {
          ids[i] = peek(here.records[m.first()]);
          if (ids[i] < limits_.max_pages)
            __builtin_prefetch(&access.hot(ids[i]));
          else
            ids[i] = limits_.max_pages;  // nonsense here, but the key may stand further on
          break;
        }
        if (overflow_of(high) == 0) break;
        b = next_bucket(b, bucket_count_);
      }
    }
    for (std::size_t i = 0; i < n; ++i) {
      Look look = Look::other;
      if (ids[i] == kNone)
        look = Look::absent;
      else if (ids[i] < limits_.max_pages)
        look = look_at(access.hot(ids[i]), name, group[i], body);
      switch (look) {
        case Look::found: out[begin + i] = 1; break;
        case Look::absent: out[begin + i] = 0; break;
        case Look::contended: out[begin + i] = 2; break;
        case Look::other: out[begin + i] = answer(access.find(ns, group[i], body)); break;  // another page's tag
      }
    }
  }
}

IndexReader::PoolView IndexReader::pool(NamespaceId ns, PoolId pool) const {
  const Pool* const entry = Access{*this}.pool(ns, pool);
  if (entry == nullptr) return {};
  PoolView view;
  view.shards = peek(entry->shards);
  view.policy.trailing_pages = static_cast<std::uint16_t>(peek(entry->trailing_pages));
  view.generation = peek(entry->generation);
  return view;
}

Generation IndexReader::generation(NamespaceId ns, PoolId pool) const {
  const Pool* const entry = Access{*this}.pool(ns, pool);
  return entry == nullptr ? 0 : peek(entry->generation);
}

}  // namespace kvonce::protocol
