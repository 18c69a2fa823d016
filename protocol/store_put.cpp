// SPDX-License-Identifier: Apache-2.0
//
// Announcements, claims and grants.
#include <algorithm>

#include "protocol/store_impl.hpp"

namespace kvonce::protocol {

namespace {
// Touches closer together than this count as one: eight ranks that announce one chain touch it once.
constexpr std::uint64_t kRecentTouches = 16;
constexpr std::uint32_t kPrefetchAhead = 8;
constexpr std::uint64_t kSlotsAhead = 4;
constexpr std::uint32_t kLeastShare = 1024;  // open items that every sender may have
constexpr std::uint32_t kUnknownRecord = 0xfffffffeU;
}  // namespace

void StoreCore::Impl::put(const PutBatch& batch, Time now, StoreActions& out) {
  const std::uint32_t sender = slot_of(batch.sender);
  if (sender == kNone) {
    ++stats.stale_messages;
    return;
  }
  page_records.assign(batch.pages.size(), kUnknownRecord);
  pool_bytes.clear();
  for (const PutItem& item : batch.items) {
    const auto found = std::find_if(pool_bytes.begin(), pool_bytes.end(), [&](const auto& p) { return p.first == item.pool; });
    if (found == pool_bytes.end())
      pool_bytes.push_back({item.pool, item.bytes});
    else
      found->second += item.bytes;
  }
  for (const auto& [pool, bytes] : pool_bytes) {
    const PoolInfo* info = catalog.find_pool(batch.ns, pool);
    if (info == nullptr) continue;
    const auto first = std::find_if(batch.items.begin(), batch.items.end(), [&, p = pool](const PutItem& i) { return i.pool == p; });
    const auto live = live_ranks.find(shard_key(batch.ns, pool, first->shard));
    const std::uint64_t ranks = live == live_ranks.end() ? 1 : std::max<std::uint32_t>(live->second, 1);
    // A put may come in several messages: what of it is open or waits already counts as well.
    Lane& own = lane(sender, batch.ns, pool);
    const std::uint64_t waiting = own.queue.size() * info->object_bytes;
    own.window = std::min(config.window_bytes, (own.open_bytes + waiting + bytes) / ranks);
  }
  for (std::size_t i = 0; i < batch.pages.size() && i < kPrefetchAhead; ++i) index.prefetch(batch.ns, batch.pages[i].hash);
  const bool accepted = catalog.accepts(batch.ns);
  std::uint32_t prefetched = 0;
  for (const PutItem& item : batch.items) {
    // Records of the pages to come are fetched while this one is worked on.
    const std::uint32_t ahead = std::min<std::uint32_t>(item.page + kPrefetchAhead, static_cast<std::uint32_t>(batch.pages.size()));
    for (; prefetched < ahead; ++prefetched) {
      if (prefetched + kPrefetchAhead < batch.pages.size()) index.prefetch(batch.ns, batch.pages[prefetched + kPrefetchAhead].hash);
      index.prefetch_record(batch.ns, batch.pages[prefetched].hash);
    }
    put_item(batch, item, sender, accepted, now, out);
  }
  touch_chain(batch);
  pump(sender, now, out);
}

RecordId StoreCore::Impl::record_for(const PutBatch& batch, std::uint32_t page, Time now, StoreActions& out) {
  RecordId known = page_records[page];
  if (known == kUnknownRecord) known = page_records[page] = index.find(batch.ns, batch.pages[page].hash);
  const ChainPage& chain = batch.pages[page];
  RecordId parent = kNone;
  const PageHash* named = nullptr;
  if (chain.parent == kExternalParent && batch.has_parent) {
    parent = index.find(batch.ns, batch.parent);
    named = &batch.parent;
  } else if (chain.parent < page) {  // a parent behind its child would be a loop
    parent = page_records[chain.parent] == kUnknownRecord ? index.find(batch.ns, batch.pages[chain.parent].hash)
                                                          : page_records[chain.parent];
    page_records[chain.parent] = parent;
    named = &batch.pages[chain.parent].hash;
  }
  if (known != kNone) {
    if (parent != kNone && index.parent(known) == kNone && index.depth(parent) < index.depth(known)) {
      forget_orphan(known);
      index.set_parent(known, parent);
      refresh(parent);
    } else if (parent == kNone && named != nullptr && index.parent(known) == kNone) {
      want_parent(known, *named);
    }
    return known;
  }
  // A prefix position that contradicts the parent's is the parent's plus one.
  const std::uint32_t depth = parent != kNone ? index.depth(parent) + 1 : chain.depth;
  known = index.insert(batch.ns, chain.hash, parent, depth);
  bool evicted = false;
  // The index is full. The parent must not go while room is made for its child: what is evicted may be all that kept it.
  if (known == kNone && (parent == kNone || pin(parent, false))) {
    while (known == kNone && evict_one(now, out)) {
      evicted = true;
      known = index.insert(batch.ns, chain.hash, parent, depth);
    }
    if (parent != kNone) unpin(parent, false);
  }
  if (evicted) {
    // Records found before may be gone, or have become another page's.
    std::fill(page_records.begin(), page_records.end(), kUnknownRecord);
  }
  page_records[page] = known;
  if (known == kNone) return known;
  if (parent != kNone)
    refresh(parent);
  else if (named != nullptr)
    want_parent(known, *named);
  adopt_orphans(known);
  return known;
}

void StoreCore::Impl::put_item(const PutBatch& batch, const PutItem& item, std::uint32_t sender, bool accepted, Time now,
                               StoreActions& out) {
  Sender& s = senders[sender];
  ++stats.announced_items;
  stats.announced_bytes += item.bytes;
  const Waiter waiter{sender, item.item, batch.batch, batch.level, false};
  ++s.open_items;
  ++s.use->open_items;
  if (!accepted) return answer(waiter, Verdict::rejected, Reason::unknown_namespace);
  const PoolInfo* info = catalog.find_pool(batch.ns, item.pool);
  if (info == nullptr || info->size != PoolInfo::Size::known) return answer(waiter, Verdict::rejected, Reason::unknown_pool);
  if (info->demoted || item.generation != info->generation) return redirect(waiter, batch.ns, item.pool);
  if (item.page >= batch.pages.size() || item.shard >= info->shards.count())
    return answer(waiter, Verdict::rejected, Reason::bad_argument);
  if (item.bytes != info->object_bytes) return answer(waiter, Verdict::conflict, Reason::wrong_size);
  if (batch.level > config.max_level) return answer(waiter, Verdict::rejected, Reason::level_unavailable);
  // A sender that stalls holds its share of the index, not all of it: pages that are only announced displace readable ones.
  const std::uint32_t share = sender_slots.size() > 1 ? std::max(kLeastShare, index.max_records() / 4 * 3) : ~0U;
  if (s.open_items > std::min(config.max_open_items_per_sender, share) || (clients.size() > 1 && s.use->open_items > share))
    return answer(waiter, Verdict::rejected, Reason::busy, kRetryMs);
  pools_verified.try_emplace((std::uint32_t{batch.ns} << 16) | item.pool, false);

  // A frozen store makes no room: it only tells what is stored, or is being written.
  const RecordId record = frozen ? index.find(batch.ns, batch.pages[item.page].hash) : record_for(batch, item.page, now, out);
  if (frozen && record == kNone) return answer(waiter, Verdict::rejected, Reason::busy, kRetryMs);
  if (record == kNone) {
    ++stats.no_space;
    return answer(waiter, Verdict::rejected, Reason::no_space, kRetryMs);
  }
  const MemberId member = index.find_member(record, item.pool, item.shard);
  if (member != kNone) {
    const auto ref = index.member(member);
    if (ref.state == MemberState::published) return announce_stored(waiter, record, ref, batch, item, now, out);
    const std::uint32_t known = claim_of(member);
    if (known == kNone || (frozen && claims[known].grants.empty())) return answer(waiter, Verdict::rejected, Reason::busy, kRetryMs);
    Claim& claim = claims[known];
    if (config.faults.forget_waiters && !claim.waiters.empty()) return close_waiter(waiter);
    claim.waiters.push_back(waiter);
    if (claim.grants.empty() || config.faults.double_grant)
      lane(sender, batch.ns, item.pool).queue.push_back({known, claim.birth});
    return;
  }
  if (frozen) return answer(waiter, Verdict::rejected, Reason::busy, kRetryMs);
  const std::uint32_t c = new_claim(record, item, batch.ns);
  if (c == kNone) {
    const std::uint32_t before = index.records();
    erase_if_empty(record);
    page_records[item.page] = kUnknownRecord;
    // It took parents along, which the batch may know.
    if (before - index.records() > 1) std::fill(page_records.begin(), page_records.end(), kUnknownRecord);
    ++stats.no_space;
    return answer(waiter, Verdict::rejected, Reason::no_space, kRetryMs);
  }
  claims[c].sampled = is_sampled(s.engine, batch.ns, item, batch.pages[item.page].hash);
  claims[c].waiters.push_back(waiter);
  lane(sender, batch.ns, item.pool).queue.push_back({c, claims[c].birth});
}

void StoreCore::Impl::announce_stored(const Waiter& waiter, RecordId record, const PageIndex::MemberRef& member,
                                      const PutBatch& batch, const PutItem& item, Time now, StoreActions& out) {
  if (member.level < waiter.level)
    return want_level(waiter, Verdict::already_stored, record, member.id, batch.ns, item.pool, out);
  if (!samples.empty()) {
    const auto sample = samples.find(member.epoch);
    if (sample != samples.end() && sample->second.until > now && sample->second.sender != waiter.sender)
      return ask_checksum(waiter, Verdict::already_stored, batch.ns, item.pool, item.shard, batch.pages[item.page].hash,
                          member.epoch, sample->second, now);
  }
  answer(waiter, Verdict::already_stored, Reason::none);
}

void StoreCore::Impl::touch_chain(const PutBatch& batch) {
  // The deepest page that has a record; what is above it is reached by the parent links.
  RecordId deepest = kNone;
  for (std::size_t i = batch.pages.size(); i-- > 0;) {
    RecordId& record = page_records[i];
    if (record == kUnknownRecord) record = index.find(batch.ns, batch.pages[i].hash);
    if (record != kNone && deepest == kNone) deepest = record;
  }
  if (deepest == kNone) return;
  const auto recent = [this](RecordId record) {
    const std::uint64_t stamp = order.stamp(record);
    return stamp != 0 && stamp + kRecentTouches > order.newest_stamp();
  };
  // All of them: a page of its middle may be new although its end is not.
  if (std::all_of(page_records.begin(), page_records.end(), [&](RecordId r) { return r == kNone || recent(r); })) return;
  order.begin_touch();
  // Above a page touched lately everything was: a long chain put in many batches is not walked by each of them.
  for (RecordId record = deepest; record != kNone && !recent(record); record = index.parent(record)) order.touch_page(record);
  // Pages of one batch may hang on no parent here: it lies on another partition, or came later than its child.
  for (std::size_t i = batch.pages.size(); i-- > 0;)
    if (page_records[i] != kNone && (config.partitions > 1 ? order.stamp(page_records[i]) != order.newest_stamp() : !recent(page_records[i])))
      order.touch_page(page_records[i]);
  for (const RecordId record : page_records)
    if (record != kNone) refresh(record);
}

std::uint32_t StoreCore::Impl::new_claim(RecordId record, const PutItem& item, NamespaceId ns) {
  const bool checkpoint = trailing(ns, item.pool);
  if (claimed(record, checkpoint) == 0xffffU) return kNone;
  std::uint32_t c = 0;
  if (free_claims.empty()) {
    c = static_cast<std::uint32_t>(claims.size());
    claims.emplace_back();
  } else {
    c = free_claims.back();
    free_claims.pop_back();
  }
  const MemberId member = index.add_claimed(record, item.pool, item.shard, c);
  if (member == kNone) {
    free_claims.push_back(c);
    return kNone;
  }
  Claim& claim = claims[c];
  claim.in_use = true;
  claim.record = record;
  claim.member = member;
  claim.ns = ns;
  claim.pool = item.pool;
  claim.shard = item.shard;
  claim.promotions = 0;
  claim.granted_once = false;
  claim.birth = ++last_birth;
  ++open_claims;
  count_claim(record, checkpoint, true);
  return c;
}

/// The index lies in memory that others can reach: the claim that it names must name it as well.
std::uint32_t StoreCore::Impl::claim_of(MemberId member) const {
  const std::uint32_t c = index.claim_of(member);
  return c < claims.size() && claims[c].in_use && claims[c].member == member ? c : kNone;
}

bool StoreCore::Impl::is_sampled(EngineId engine, NamespaceId ns, const PutItem& item, const PageHash& page) {
  if (config.verify_sample == 0) return false;
  auto& count = first_keys[{engine, (std::uint32_t{ns} << 16) | item.pool}];
  if (count < config.verify_first_keys) {
    ++count;
    return true;
  }
  // Not the bits that the index and the placement use.
  const std::uint64_t mixed = mix_page(ns, page) * 0x9e3779b97f4a7c15ULL + shard_key(ns, item.pool, item.shard);
  return (mixed >> 20) % config.verify_sample == 0;
}

/// The place among the claim's waiters of one that may copy for it; kNone: nothing is to be granted to this sender.
std::uint32_t StoreCore::Impl::grantable(std::uint32_t sender, std::uint32_t c, std::uint64_t birth) const {
  const Claim& claim = claims[c];
  if (!claim.in_use || claim.birth != birth || claim.record == kNone) return kNone;
  if (!claim.grants.empty() && !config.faults.double_grant) return kNone;
  for (std::uint32_t w = 0; w < claim.waiters.size(); ++w)
    if (claim.waiters[w].sender == sender && !claim.waiters[w].cannot_copy) return w;
  return kNone;
}

void StoreCore::Impl::pump(std::uint32_t sender, Time now, StoreActions& out) {
  Sender& s = senders[sender];
  if (!s.in_use) return;
  const std::size_t first = s.turn < s.lanes.size() ? s.turn : 0;
  for (std::size_t i = 0; i < s.lanes.size(); ++i) {
    const std::size_t l = first + i < s.lanes.size() ? first + i : first + i - s.lanes.size();
    Lane* lane = &s.lanes[l];
    const PoolInfo* info = catalog.find_pool(lane->ns, lane->pool);
    if (info == nullptr) continue;
    bool granted = false;
    while (!lane->queue.empty() && (lane->open_bytes == 0 || lane->open_bytes + info->object_bytes <= lane->window)) {
      const auto [c, birth] = lane->queue.front();
      const std::uint32_t w = grantable(sender, c, birth);
      if (w != kNone && s.open_bytes != 0 && s.open_bytes + info->object_bytes > config.window_bytes) {
        // What becomes free goes to the lane that has waited for it: large objects are not passed over by small ones for ever.
        s.turn = granted ? l + 1 : l;
        return;
      }
      lane->queue.pop_front();
      if (w != kNone) granted |= grant(c, w, now, out);
      lane = &s.lanes[l];
    }
  }
}

bool StoreCore::Impl::grant(std::uint32_t c, std::uint32_t w, Time now, StoreActions& out) {
  Claim& claim = claims[c];
  const Waiter waiter = claim.waiters[w];
  if (frozen) {
    if (claim.grants.empty()) fail_claim(c, Verdict::rejected, Reason::busy, kRetryMs, now, out);
    return false;
  }
  const storage::SlotShape* shape = catalog.shape(claim.ns, claim.pool);
  const auto slot = take_slot(*shape, now, out);
  if (!slot) {
    ++stats.no_space;
    if (claim.grants.empty()) fail_claim(c, Verdict::rejected, Reason::no_space, kRetryMs, now, out);
    return false;
  }
  OpenGrant open;
  last_epoch += std::max<std::uint32_t>(config.partitions, 1);
  open.epoch = last_epoch;
  open.sender = waiter.sender;
  open.item = waiter.item;
  open.batch = waiter.batch;
  open.client = senders[waiter.sender].client;
  open.ns = claim.ns;
  open.pool = claim.pool;
  open.slot = *slot;
  const Duration time = config.grant_base + shape->payload_bytes() * kSecond / std::max<std::uint64_t>(config.least_rate, 1);
  open.deadline = now + (time << std::min<std::uint32_t>(claim.promotions, 16));
  SlotHeader* header = header_of(open.slot, *shape);
  stamp_slot(header, open.epoch, slot_incarnation, SlotState::granted, shape->ranges(), shape->payload_bytes());
  // The slots of the next items most likely lie behind this one, with their headers in memory that no cache holds.
  if (open.slot.count == 1)
    __builtin_prefetch(reinterpret_cast<const std::byte*>(header) + kSlotsAhead * open.slot.extents[0].bytes, 1);
  reserved_payload += shape->payload_bytes();
  reserved_slots += open.slot.bytes();
  lane(waiter.sender, claim.ns, claim.pool).open_bytes += shape->payload_bytes();
  senders[waiter.sender].open_bytes += shape->payload_bytes();
  ++stats.granted_items;
  stats.granted_bytes += shape->payload_bytes();
  StoreReply& reply = reply_to(waiter.sender);
  reply.grants.push_back({waiter.batch, waiter.item, c, open.epoch, static_cast<std::uint32_t>(reply.extents.size()), open.slot.count});
  for (const storage::Extent& extent : open.slot.view()) reply.extents.push_back(extent);
  claim.grants.push_back(open);
  claim.granted_once = true;
  list_granted(c, true);
  if (config.faults.ack_before_publish && !claim.waiters.empty()) {
    answer(waiter, Verdict::stored, Reason::none);
    claim.waiters.erase(claim.waiters.begin() + w);
  }
  if (config.faults.publish_before_landed) {
    const std::vector<std::uint64_t> nothing;
    publish(c, open, nothing, now, out);
  }
  return true;
}

bool StoreCore::Impl::promote(std::uint32_t c, Time now, StoreActions& out) {
  if (config.faults.no_promotion) return false;
  Claim& claim = claims[c];
  for (std::uint32_t w = 0; w < claim.waiters.size(); ++w) {
    const Waiter& waiter = claim.waiters[w];
    if (waiter.cannot_copy) continue;
    const bool writing = std::any_of(claim.grants.begin(), claim.grants.end(), [&](const OpenGrant& g) { return g.sender == waiter.sender; });
    if (writing) continue;
    ++claim.promotions;
    if (!grant(c, w, now, out)) {
      claims[c].promotions -= claims[c].promotions > 0 ? 1 : 0;
      return false;
    }
    ++stats.promotions;
    return true;
  }
  return false;
}

void StoreCore::Impl::settle(std::uint32_t c, Time now, StoreActions& out) {
  Claim& claim = claims[c];
  if (!claim.in_use) return;
  if (claim.record == kNone || claim.waiters.empty()) return end_claim(c, now, out);
  if (claim.grants.empty()) list_granted(c, false);
  const bool fresh = std::any_of(claim.grants.begin(), claim.grants.end(), [](const OpenGrant& g) { return !g.late; });
  if (fresh) return;
  const bool able = std::any_of(claim.waiters.begin(), claim.waiters.end(), [](const Waiter& w) { return !w.cannot_copy; });
  if (able) {
    // What was never granted still stands in the lanes of all its waiters.
    if (claim.granted_once) promote(c, now, out);
    return;
  }
  if (claim.grants.empty()) fail_claim(c, Verdict::failed, Reason::copy_failed, 0, now, out);
}

void StoreCore::Impl::quarantine_grants(Claim& claim) {
  for (const OpenGrant& grant : claim.grants) {
    if (config.faults.free_quarantined) {
      release_grant(grant);
      free_grant_slot(grant);
      continue;
    }
    quarantined_bytes += grant.slot.bytes();
    quarantine.emplace(grant.epoch, grant);
  }
  claim.grants.clear();
}

/// Nobody waits any more, or the key is gone: what is still being written is dropped when it ends.
void StoreCore::Impl::end_claim(std::uint32_t c, Time, StoreActions& out) {
  Claim& claim = claims[c];
  quarantine_grants(claim);
  list_granted(c, false);
  const RecordId record = claim.record;
  const MemberId member = claim.member;
  const bool checkpoint = trailing(claim.ns, claim.pool);
  const std::uint64_t birth = claim.birth;
  claim.in_use = false;
  claim.record = kNone;
  claim.member = kNone;
  claim.waiters.clear();
  --open_claims;
  free_claims.push_back(c);
  if (record != kNone) {
    index.drop_member(record, member);
    count_claim(record, checkpoint, false);
    refresh(record);
    erase_if_empty(record);
  }
  flush_progress(birth, kNone, kNone, 0, 0, out);
}

void StoreCore::Impl::fail_claim(std::uint32_t c, Verdict verdict, Reason reason, std::uint32_t retry_ms, Time now,
                                 StoreActions& out) {
  Claim& claim = claims[c];
  for (const Waiter& waiter : claim.waiters) answer(waiter, verdict, reason, retry_ms);
  claim.waiters.clear();
  end_claim(c, now, out);
}

void StoreCore::Impl::list_granted(std::uint32_t c, bool on) {
  Claim& claim = claims[c];
  if (claim.listed == on) return;
  claim.listed = on;
  if (on) {
    claim.granted_prev = granted_tail;
    claim.granted_next = kNone;
    (granted_tail == kNone ? granted_head : claims[granted_tail].granted_next) = c;
    granted_tail = c;
  } else {
    (claim.granted_prev == kNone ? granted_head : claims[claim.granted_prev].granted_next) = claim.granted_next;
    (claim.granted_next == kNone ? granted_tail : claims[claim.granted_next].granted_prev) = claim.granted_prev;
  }
}

void StoreCore::Impl::release_grant(const OpenGrant& grant) {
  if (grant.sender == kNone) return;
  const PoolInfo* info = catalog.find_pool(grant.ns, grant.pool);
  Lane& own = lane(grant.sender, grant.ns, grant.pool);
  const std::uint64_t bytes = std::min(own.open_bytes, info->object_bytes);
  own.open_bytes -= bytes;
  senders[grant.sender].open_bytes -= bytes;
}

void StoreCore::Impl::free_grant_slot(const OpenGrant& grant) {
  const storage::SlotShape* shape = catalog.shape(grant.ns, grant.pool);
  reserved_payload -= shape->payload_bytes();
  reserved_slots -= grant.slot.bytes();
  free_slot(grant.slot, *shape);
}

}  // namespace kvonce::protocol
