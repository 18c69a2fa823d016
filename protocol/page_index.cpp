// SPDX-License-Identifier: Apache-2.0
//
// The writer's side of the page index; see page_index_layout.hpp for the rules that keep readers right.
#include "protocol/page_index.hpp"

#include <cassert>

#include "protocol/page_index_layout.hpp"

namespace kvonce::protocol {

using namespace layout;

class PageIndex::Change {
 public:
  // Even before, whatever was found there: an odd one would keep readers away for ever.
  explicit Change(Hot& hot) noexcept : hot_(hot), seq_(own(hot.seq) & ~1U) { put(hot_.seq, seq_ + 1); }
  ~Change() { put(hot_.seq, seq_ + 2); }
  Change(const Change&) = delete;
  Change& operator=(const Change&) = delete;

 private:
  Hot& hot_;
  std::uint32_t seq_;
};

std::uint64_t PageIndex::region_bytes(const IndexLimits& limits) { return Sections::of(limits).total; }

PageIndex::PageIndex(std::byte* region, const IndexLimits& limits, Incarnation incarnation)
    : region_(region), limits_(limits) {
  assert(limits.max_pages <= kMaxRecords);
  assert(reinterpret_cast<std::uintptr_t>(region) % alignof(Bucket) == 0);
  const Sections s = Sections::of(limits);
  place_sections();

  auto& header = *reinterpret_cast<Header*>(region);
  put(header.version, kVersion);
  put(header.max_pages, limits.max_pages);
  put(header.max_members, limits.max_members);
  put(header.max_extent_blocks, limits.max_extent_blocks);
  put(header.incarnation, incarnation);
  put(header.slot_incarnation, incarnation);
  put(header.pools, s.pools);
  put(header.buckets, s.buckets);
  put(header.hot, s.hot);
  put(header.cold, s.cold);
  put(header.members, s.members);
  put(header.extents, s.extents);
  put(header.total, s.total);
  put(header.magic, kMagic);
}

void PageIndex::place_sections() noexcept {
  const Sections s = Sections::of(limits_);
  bucket_count_ = s.bucket_count;
  records_at_.assign(kMaxNamespaces, 0);
  pools_ = reinterpret_cast<Pool*>(region_ + s.pools);
  buckets_ = reinterpret_cast<Bucket*>(region_ + s.buckets);
  hot_ = reinterpret_cast<Hot*>(region_ + s.hot);
  fields_ = reinterpret_cast<std::uint32_t*>(region_ + s.cold);
  members_ = reinterpret_cast<layout::Member*>(region_ + s.members);
  extents_ = reinterpret_cast<ExtentBlock*>(region_ + s.extents);
}

IndexReader PageIndex::reader() const { return IndexReader(region_, region_bytes(limits_)); }

Hot& PageIndex::hot(RecordId record) const noexcept {
  assert(record < record_high_water_);
  return hot_[record];
}

Pool& PageIndex::pool_entry(NamespaceId ns, PoolId pool) const noexcept {
  return pools_[std::size_t{place_of(ns)} * kMaxPoolsPerNamespace + pool];
}

// -- pools -----------------------------------------------------------------------------------------------------------

void PageIndex::set_pool(NamespaceId ns, PoolId pool, std::uint32_t shards, HitPolicy policy, Generation generation) {
  assert(turn_of(ns) < kNamespaceTurns && pool < kMaxPoolsPerNamespace && shards <= kMaxShardsPerPool);
  Pool& entry = pool_entry(ns, pool);
  const std::uint32_t before = own(entry.shards);
  // First, so that whoever copied under the old generation hears of it.
  put(entry.turn, turn_of(ns));
  put(entry.generation, generation);
  put(entry.trailing_pages, std::uint32_t{policy.trailing_pages});
  put(entry.shards, shards);
  // An unregistered pool has no members (add_claimed), so nothing can be full or stop being so.
  if (before == 0 || before == shards) return;
  for_each([&](RecordId record) {
    if (this->ns(record) != ns || full(record, pool) == ((full_pools(record) >> pool & 1U) != 0)) return;
    const Change change(hot(record));
    update_full(record, pool);
  });
}

void PageIndex::drop_pools(NamespaceId ns) {
  assert(records_of(ns) == 0);
  for (PoolId pool = 0; pool < kMaxPoolsPerNamespace; ++pool) {
    Pool& entry = pool_entry(ns, pool);
    put(entry.shards, 0U);
    put(entry.generation, 0U);
    put(entry.trailing_pages, 0U);
    put(entry.turn, 0U);
  }
}

bool PageIndex::full(RecordId record, PoolId pool) const noexcept {
  std::uint32_t published = 0, steps = 0;
  for (MemberId id = first_member(record); id != kNone && steps < member_high_water_; id = next_member(id), ++steps)
    published += (own(members_[id].info) & (kPoolMask | kStateMask)) == (pool | state_bits(MemberState::published));
  const std::uint32_t shards = own(pool_entry(ns(record), pool).shards);
  return shards != 0 && published == shards;
}

void PageIndex::update_full(RecordId record, PoolId pool) noexcept {
  const std::uint64_t bit = std::uint64_t{1} << pool;
  Hot& h = hot(record);
  const std::uint64_t before = own(h.full_pools);
  put(h.full_pools, full(record, pool) ? before | bit : before & ~bit);
}

// -- hash table ------------------------------------------------------------------------------------------------------

namespace {

void set_tag(Bucket& bucket, unsigned entry, std::uint8_t tag) noexcept {
  std::uint64_t& word = entry < 8 ? bucket.tags_low : bucket.tags_overflow;
  const unsigned shift = entry % 8 * 8;
  put(word, (own(word) & ~(std::uint64_t{0xff} << shift)) | std::uint64_t{tag} << shift);
}

constexpr std::uint64_t kOneOverflow = std::uint64_t{1} << 32;

}  // namespace

bool PageIndex::enter(std::uint64_t hash, RecordId record) noexcept {
  std::uint32_t b = home_bucket(hash, bucket_count_);
  for (std::uint32_t passed = 0; passed < probe_limit(bucket_count_); ++passed) {
    Bucket& bucket = buckets_[b];
    const Matches empty(own(bucket.tags_low), own(bucket.tags_overflow), 0);
    if (empty.any()) {
      // From the home on, so that a reader that finds the key has always been led to it.
      std::uint32_t full_one = home_bucket(hash, bucket_count_);
      for (; full_one != b; full_one = next_bucket(full_one, bucket_count_))
        put(buckets_[full_one].tags_overflow, own(buckets_[full_one].tags_overflow) + kOneOverflow);
      put(bucket.records[empty.first()], record);
      set_tag(bucket, empty.first(), tag_of(hash));
      return true;
    }
    b = next_bucket(b, bucket_count_);
  }
  return false;
}

void PageIndex::leave(std::uint64_t hash, RecordId record) noexcept {
  std::uint32_t b = home_bucket(hash, bucket_count_);
  for (std::uint32_t passed = 0; passed < probe_limit(bucket_count_); ++passed) {
    Bucket& bucket = buckets_[b];
    for (Matches m(own(bucket.tags_low), own(bucket.tags_overflow), tag_of(hash)); m.any(); m.pop()) {
      if (own(bucket.records[m.first()]) != record) continue;
      // match_bytes may flag a byte that is not the tag; an emptied entry still holds its last record.
      const unsigned entry = m.first();
      const std::uint64_t word = entry < 8 ? own(bucket.tags_low) : own(bucket.tags_overflow);
      if (static_cast<std::uint8_t>(word >> entry % 8 * 8) != tag_of(hash)) continue;
      set_tag(bucket, entry, 0);
      std::uint32_t full_one = home_bucket(hash, bucket_count_);
      for (; full_one != b; full_one = next_bucket(full_one, bucket_count_))
        put(buckets_[full_one].tags_overflow, own(buckets_[full_one].tags_overflow) - kOneOverflow);
      return;
    }
    b = next_bucket(b, bucket_count_);
  }
  assert(false && "record is not in the hash table");
}

// -- records ---------------------------------------------------------------------------------------------------------

RecordId PageIndex::find(NamespaceId ns, const PageHash& page) const {
  const std::uint64_t hash = mix_page(ns, page);
  std::uint32_t b = home_bucket(hash, bucket_count_);
  for (std::uint32_t left = probe_limit(bucket_count_); left != 0; --left) {
    const Bucket& bucket = buckets_[b];
    const std::uint64_t high = own(bucket.tags_overflow);
    for (Matches m(own(bucket.tags_low), high, tag_of(hash)); m.any(); m.pop()) {
      const RecordId record = own(bucket.records[m.first()]);
      if (record < record_high_water_ && own(hot_[record].name) == (ns | kInUse) && this->hash(record) == page) return record;
    }
    if (overflow_of(high) == 0) break;
    b = next_bucket(b, bucket_count_);
  }
  return kNone;
}

void PageIndex::prefetch(NamespaceId ns, const PageHash& page) const {
  __builtin_prefetch(&buckets_[home_bucket(mix_page(ns, page), bucket_count_)]);
}

void PageIndex::prefetch_record(NamespaceId ns, const PageHash& page) const {
  const std::uint64_t hash = mix_page(ns, page);
  const Bucket& bucket = buckets_[home_bucket(hash, bucket_count_)];
  const Matches m(own(bucket.tags_low), own(bucket.tags_overflow), tag_of(hash));
  if (!m.any()) return;
  const RecordId record = own(bucket.records[m.first()]);
  __builtin_prefetch(&hot_[record]);
  __builtin_prefetch(&fields_[std::size_t{record} * kRecordFields]);
}

RecordId PageIndex::insert(NamespaceId ns, const PageHash& page, RecordId parent, std::uint32_t depth) {
  assert(turn_of(ns) < kNamespaceTurns);
  assert(find(ns, page) == kNone);
  const RecordId record = free_record_ != kNone ? free_record_ : record_high_water_;
  if (record >= limits_.max_pages) return kNone;
  const RecordId next_free = free_record_ != kNone ? field(record, 0) : kNone;
  {
    Hot& h = hot_[record];
    const Change change(h);
    put(h.name, ns | kInUse);
    for (unsigned i = 0; i < 4; ++i) put(h.hash[i], page.words[i]);
    put(h.full_pools, std::uint64_t{0});
    put(h.depth, depth);
    put(h.first_member, kNone);
    put(h.parent, parent);
    put(h.children, 0U);
  }
  if (!enter(mix_page(ns, page), record)) {
    // Back where it came from; a new record's number was not handed out yet.
    const Change change(hot_[record]);
    put(hot_[record].name, 0U);
    return kNone;
  }
  if (free_record_ != kNone)
    free_record_ = next_free;
  else
    ++record_high_water_;
  for (unsigned i = 0; i < kRecordFields; ++i) set_field(record, i, i < 4 ? kNone : 0);
  if (parent != kNone) put(hot(parent).children, own(hot(parent).children) + 1);
  ++records_;
  ++records_at_[place_of(ns)];
  return record;
}

void PageIndex::erase(RecordId record) {
  Hot& h = hot(record);
  assert(in_use(record) && own(h.first_member) == kNone && own(h.children) == 0);
  leave(mix_page(ns(record), hash(record)), record);
  --records_at_[place_of(ns(record))];
  const RecordId up = own(h.parent);
  {
    const Change change(h);
    put(h.name, 0U);
  }
  if (up != kNone) put(hot(up).children, own(hot(up).children) - 1);
  set_field(record, 0, free_record_);
  free_record_ = record;
  --records_;
}

std::uint32_t PageIndex::records() const noexcept { return records_; }
std::uint32_t PageIndex::records_of(NamespaceId ns) const noexcept { return records_at_[place_of(ns)]; }
std::uint32_t PageIndex::max_records() const noexcept { return limits_.max_pages; }
bool PageIndex::in_use(RecordId record) const noexcept {
  return record < record_high_water_ && (own(hot_[record].name) & kInUse) != 0;
}

PageHash PageIndex::hash(RecordId record) const {
  const Hot& h = hot(record);
  return PageHash{{own(h.hash[0]), own(h.hash[1]), own(h.hash[2]), own(h.hash[3])}};
}
NamespaceId PageIndex::ns(RecordId record) const { return static_cast<NamespaceId>(own(hot(record).name)); }
RecordId PageIndex::parent(RecordId record) const {
  const RecordId parent = own(hot(record).parent);
  return parent < record_high_water_ ? parent : kNone;
}
std::uint32_t PageIndex::depth(RecordId record) const { return own(hot(record).depth); }
std::uint32_t PageIndex::children(RecordId record) const { return own(hot(record).children); }
std::uint64_t PageIndex::full_pools(RecordId record) const { return own(hot(record).full_pools); }

void PageIndex::set_parent(RecordId record, RecordId parent) {
  assert(record != parent);
  // No reader looks at parents and children, so no sequence moves.
  const RecordId before = own(hot(record).parent);
  if (before == parent) return;
  if (before != kNone) put(hot(before).children, own(hot(before).children) - 1);
  if (parent != kNone) put(hot(parent).children, own(hot(parent).children) + 1);
  put(hot(record).parent, parent);
}

// -- members ---------------------------------------------------------------------------------------------------------

MemberId PageIndex::find_member(RecordId record, PoolId pool, std::uint32_t shard) const {
  std::uint32_t steps = 0;
  for (MemberId id = first_member(record); id != kNone && steps < member_high_water_; id = next_member(id), ++steps) {
    const std::uint32_t info = own(members_[id].info);
    if ((info & kPlaceMask) == place(pool, shard) && (info & kStateMask) != state_bits(MemberState::zombie)) return id;
  }
  return kNone;
}

PageIndex::MemberRef PageIndex::member(MemberId id) const {
  assert(id < member_high_water_);
  const Info info = unpack_info(own(members_[id].info));
  return {id, info.pool, info.shard, info.state, info.level, own(members_[id].epoch)};
}

// The region can be written to by others: no number in it is followed out of its table.
MemberId PageIndex::first_member(RecordId record) const {
  const MemberId id = own(hot(record).first_member);
  return id < member_high_water_ ? id : kNone;
}
MemberId PageIndex::next_member(MemberId id) const {
  const MemberId next = own(members_[id].next);
  return next < member_high_water_ ? next : kNone;
}

MemberId PageIndex::add_claimed(RecordId record, PoolId pool, std::uint32_t shard, std::uint32_t claim) {
  assert(in_use(record));
  if (pool >= kMaxPoolsPerNamespace || shard >= kMaxShardsPerPool || own(pool_entry(ns(record), pool).shards) == 0)
    return kNone;
  MemberId id = free_member_;
  if (id != kNone) {
    free_member_ = own(members_[id].next);
  } else {
    if (member_high_water_ >= limits_.max_members) return kNone;
    id = member_high_water_++;
  }
  Hot& h = hot(record);
  const Change change(h);
  layout::Member& m = members_[id];
  put(m.epoch, std::uint64_t{0});
  put(m.location, std::uint64_t{claim});
  put(m.info, pack(Info{pool, shard, MemberState::claimed, AckLevel::memory, 0}));
  put(m.next, own(h.first_member));
  put(h.first_member, id);
  return id;
}

std::uint32_t PageIndex::claim_of(MemberId id) const {
  assert(member(id).state == MemberState::claimed);
  return static_cast<std::uint32_t>(own(members_[id].location));
}

bool PageIndex::publish(RecordId record, MemberId id, Epoch epoch, const storage::Slot& slot, AckLevel level) {
  assert(member(id).state == MemberState::claimed);
  if (slot.count == 0 || slot.count > storage::kMaxExtents) return false;
  for (const storage::Extent& extent : slot.view())
    if (!packable(extent)) return false;
  std::uint32_t block = kNone;
  if (slot.count > 1) {
    block = free_extent_;
    if (block != kNone) {
      free_extent_ = static_cast<std::uint32_t>(own(extents_[block].extents[0]));
    } else {
      if (extent_high_water_ >= limits_.max_extent_blocks) return false;
      block = extent_high_water_++;
    }
  }
  layout::Member& m = members_[id];
  const Info before = unpack_info(own(m.info));
  const Change change(hot(record));
  if (block != kNone)
    for (std::uint32_t i = 0; i < slot.count; ++i) put(extents_[block].extents[i], pack(slot.extents[i]));
  put(m.epoch, epoch);
  put(m.location, block != kNone ? std::uint64_t{block} : pack(slot.extents[0]));
  put(m.info, pack(Info{before.pool, before.shard, MemberState::published, level, slot.count}));
  update_full(record, before.pool);
  return true;
}

void PageIndex::set_level(RecordId record, MemberId id, AckLevel level) {
  Info info = unpack_info(own(members_[id].info));
  info.level = level;
  const Change change(hot(record));
  put(members_[id].info, pack(info));
}

void PageIndex::make_zombie(RecordId record, MemberId id) {
  Info info = unpack_info(own(members_[id].info));
  assert(info.state == MemberState::published);
  info.state = MemberState::zombie;
  const Change change(hot(record));
  put(members_[id].info, pack(info));
  update_full(record, info.pool);
}

storage::Slot PageIndex::slot_of(MemberId id) const {
  const Info info = unpack_info(own(members_[id].info));
  assert(info.state == MemberState::published || info.state == MemberState::zombie);
  const std::uint64_t location = own(members_[id].location);
  storage::Slot slot;
  slot.count = info.extents;
  if (info.extents > storage::kMaxExtents || (info.extents > 1 && location >= extent_high_water_))
    slot.count = 0;
  else if (info.extents == 1)
    slot.extents[0] = unpack(location);
  else
    for (std::uint32_t i = 0; i < info.extents; ++i) slot.extents[i] = unpack(own(extents_[location].extents[i]));
  return slot;
}

void PageIndex::free_extents(MemberId id) noexcept {
  if (unpack_info(own(members_[id].info)).extents <= 1) return;
  const auto block = static_cast<std::uint32_t>(own(members_[id].location));
  if (block >= extent_high_water_) return;
  put(extents_[block].extents[0], std::uint64_t{free_extent_});
  free_extent_ = block;
}

void PageIndex::drop_member(RecordId record, MemberId id) {
  Hot& h = hot(record);
  const Info info = unpack_info(own(members_[id].info));
  assert(info.state != MemberState::free);
  const Change change(h);
  std::uint32_t* link = &h.first_member;
  for (std::uint32_t steps = 0; own(*link) != id; ++steps) {
    assert(own(*link) != kNone);
    if (own(*link) >= member_high_water_ || steps == member_high_water_) return;  // a broken chain: the entry is lost, nothing else
    link = &members_[own(*link)].next;
  }
  put(*link, own(members_[id].next));
  free_extents(id);
  put(members_[id].info, 0U);
  put(members_[id].next, free_member_);
  free_member_ = id;
  update_full(record, info.pool);
}

}  // namespace kvonce::protocol
