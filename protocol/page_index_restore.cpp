// SPDX-License-Identifier: Apache-2.0
//
// Taking over a region that an earlier life of the store has left. Nothing in it is believed: it may have been written to by
// whoever has the arena mapped.
#include <xxhash.h>

#include <array>
#include <cassert>
#include <cstring>
#include <string>

#include "protocol/page_index_layout.hpp"

namespace kvonce::protocol {

using namespace layout;

namespace {

std::string number(std::uint64_t value) { return std::to_string(value); }

// The numbers too: match_bytes may flag an empty entry, and an old number in it may name the very record that is looked for.
void clear(Bucket& bucket) noexcept {
  for (std::uint32_t& record : bucket.records) put(record, kNone);
  put(bucket.tags_low, std::uint64_t{0});
  put(bucket.tags_overflow, std::uint64_t{0});
}

}  // namespace

PageIndex::PageIndex(Adopt, std::byte* region, const IndexLimits& limits) : region_(region), limits_(limits) {
  assert(limits.max_pages <= kMaxRecords);
  assert(reinterpret_cast<std::uintptr_t>(region) % alignof(Bucket) == 0);
  place_sections();
}

PageIndex::Marks PageIndex::marks() const {
  const auto& header = *reinterpret_cast<const Header*>(region_);
  Marks marks;
  marks.records = records_;
  marks.record_limit = record_high_water_;
  marks.member_limit = member_high_water_;
  marks.extent_limit = extent_high_water_;
  marks.incarnation = own(header.incarnation);
  marks.slot_incarnation = own(header.slot_incarnation);

  XXH3_state_t* const state = XXH3_createState();
  XXH3_64bits_reset(state);
  const auto add = [state](const void* data, std::uint64_t bytes) { XXH3_64bits_update(state, data, bytes); };
  add(&header, sizeof header);
  add(pools_, std::uint64_t{kMaxNamespaces} * kMaxPoolsPerNamespace * sizeof(Pool));
  add(buckets_, std::uint64_t{bucket_count_} * sizeof(Bucket));
  add(hot_, std::uint64_t{record_high_water_} * sizeof(Hot));
  add(fields_, std::uint64_t{record_high_water_} * kColdBytes);
  add(members_, std::uint64_t{member_high_water_} * sizeof(Member));
  add(extents_, std::uint64_t{extent_high_water_} * sizeof(ExtentBlock));
  marks.digest = XXH3_64bits_digest(state);
  XXH3_freeState(state);
  return marks;
}

std::string PageIndex::check_record(RecordId record, std::vector<bool>& members_seen, std::vector<bool>& extents_seen) const {
  const std::string what = "index record " + number(record);
  const Hot& h = hot_[record];
  const std::uint32_t name = own(h.name);
  if ((own(h.seq) & 1U) != 0) return what + " is in the middle of a change";
  const NamespaceId ns = static_cast<NamespaceId>(name);
  if ((name & ~kInUse) >= kNamespaceTurns * kMaxNamespaces) return what + " has the name " + number(name);
  const RecordId parent = own(h.parent);
  if (parent != kNone && (parent >= record_high_water_ || (own(hot_[parent].name) & kInUse) == 0)) return what + " has the parent " + number(parent) + ", which is no record";
  // Depths grow along every chain: so there is no loop.
  if (parent != kNone && own(hot_[parent].depth) >= own(h.depth)) return what + " lies no deeper than its parent";
  std::array<std::uint32_t, kMaxPoolsPerNamespace> published{};
  std::uint64_t pools = 0;
  for (MemberId id = own(h.first_member); id != kNone; id = own(members_[id].next)) {
    if (id >= member_high_water_) return what + " names the member " + number(id) + " of " + number(member_high_water_);
    if (members_seen[id]) return what + " shares the member " + number(id);
    members_seen[id] = true;
    const Info info = unpack_info(own(members_[id].info));
    const std::uint32_t shards = own(pool_entry(ns, info.pool).turn) == turn_of(ns) ? own(pool_entry(ns, info.pool).shards) : 0;
    if (info.shard >= shards) return what + " has an object of shard " + number(info.shard) + " of a pool with " + number(shards);
    if (info.state == MemberState::free) return what + " holds a free member";
    if (info.state == MemberState::claimed) continue;
    if (info.extents == 0 || info.extents > storage::kMaxExtents) return what + " has an object in " + number(info.extents) + " extents";
    if (info.extents > 1) {
      const std::uint64_t block = own(members_[id].location);
      if (block >= extent_high_water_) return what + " names the extent block " + number(block) + " of " + number(extent_high_water_);
      if (extents_seen[block]) return what + " shares the extent block " + number(block);
      extents_seen[block] = true;
    }
    if (info.state != MemberState::published) continue;
    ++published[info.pool];
    pools |= std::uint64_t{1} << info.pool;
  }
  std::uint64_t full = 0;
  for (PoolId pool = 0; pool < kMaxPoolsPerNamespace; ++pool)
    if ((pools >> pool & 1U) != 0 && published[pool] == own(pool_entry(ns, pool).shards)) full |= std::uint64_t{1} << pool;
  if (full != own(h.full_pools)) return what + " says that the pools " + number(own(h.full_pools)) + " are whole; " + number(full) + " are";
  return {};
}

std::string PageIndex::take_over(const Marks& marks, Incarnation incarnation) {
  auto& header = *reinterpret_cast<Header*>(region_);
  const IndexReader found(region_, region_bytes(limits_));
  if (!found.valid()) return "there is no index of this version in the arena";
  if (own(header.max_pages) != limits_.max_pages || own(header.max_members) != limits_.max_members ||
      own(header.max_extent_blocks) != limits_.max_extent_blocks)
    return "the arena's index has other limits";
  if (found.incarnation() != marks.incarnation || found.slot_incarnation() != marks.slot_incarnation)
    return "the arena's index is not of the life that wrote the snapshot";
  if (marks.record_limit > limits_.max_pages || marks.member_limit > limits_.max_members || marks.extent_limit > limits_.max_extent_blocks)
    return "the snapshot counts more records, members or extents than the index can have";
  record_high_water_ = marks.record_limit;
  member_high_water_ = marks.member_limit;
  extent_high_water_ = marks.extent_limit;
  records_ = marks.records;
  if (this->marks().digest != marks.digest) return "the checksum over the arena's index differs: it was changed since the snapshot was written";

  for (std::uint32_t i = 0; i < kMaxNamespaces * kMaxPoolsPerNamespace; ++i)
    if (own(pools_[i].shards) > kMaxShardsPerPool) return "the index has a pool with " + number(own(pools_[i].shards)) + " shards";
  std::vector<bool> members_seen(member_high_water_), extents_seen(extent_high_water_);
  std::vector<std::uint32_t> children(record_high_water_);
  std::uint32_t in_use = 0;
  for (RecordId record = 0; record < record_high_water_; ++record) {
    if ((own(hot_[record].name) & kInUse) == 0) continue;
    ++in_use;
    ++records_at_[place_of(ns(record))];
    if (std::string wrong = check_record(record, members_seen, extents_seen); !wrong.empty()) return wrong;
    if (const RecordId parent = own(hot_[record].parent); parent != kNone) ++children[parent];
  }
  if (in_use != marks.records) return "the snapshot counts " + number(marks.records) + " records; the index has " + number(in_use);

  for (std::uint32_t b = 0; b < bucket_count_; ++b) clear(buckets_[b]);
  free_record_ = free_member_ = free_extent_ = kNone;
  for (RecordId record = record_high_water_; record-- > 0;) {
    if ((own(hot_[record].name) & kInUse) == 0) {
      set_field(record, 0, free_record_);
      free_record_ = record;
      continue;
    }
    if (children[record] != own(hot_[record].children))
      return "index record " + number(record) + " counts " + number(own(hot_[record].children)) + " children; it has " + number(children[record]);
    const PageHash page = hash(record);
    if (find(ns(record), page) != kNone) return "index record " + number(record) + " is there twice";
    if (!enter(mix_page(ns(record), page), record)) return "index record " + number(record) + " has no place in the hash table";
    for (unsigned i = 0; i < kRecordFields; ++i) set_field(record, i, i < 4 ? kNone : 0);
  }
  for (MemberId id = member_high_water_; id-- > 0;) {
    if (members_seen[id]) continue;
    put(members_[id].info, 0U);
    put(members_[id].next, free_member_);
    free_member_ = id;
  }
  for (std::uint32_t block = extent_high_water_; block-- > 0;) {
    if (extents_seen[block]) continue;
    put(extents_[block].extents[0], std::uint64_t{free_extent_});
    free_extent_ = block;
  }
  put(header.incarnation, incarnation);
  return {};
}

}  // namespace kvonce::protocol
