// SPDX-License-Identifier: Apache-2.0
//
// Space: taking slots, evicting sets, pins and candidates, the ledger.
#include <algorithm>

#include "protocol/store_impl.hpp"

namespace kvonce::protocol {

bool StoreCore::Impl::trailing(NamespaceId ns, PoolId pool) const {
  const PoolInfo* info = catalog.find_pool(ns, pool);
  return info != nullptr && info->policy.is_trailing();
}

SlotHeader* StoreCore::Impl::header_of(const storage::Slot& slot, const storage::SlotShape& shape) const {
  return header_at(config.arena, shape.footer_offset(slot.view()));
}

std::optional<storage::Slot> StoreCore::Impl::take_slot(const storage::SlotShape& shape, Time now, StoreActions& out) {
  const std::uint64_t payload = shape.payload_bytes();
  if (config.capacity_bytes != 0) {
    if (payload > config.capacity_bytes) return std::nullopt;
    while (resident_payload + reserved_payload + payload > config.capacity_bytes)
      if (!evict_one(now, out)) return std::nullopt;
  }
  auto slot = allocator.allocate(shape);
  while (!slot && evict_one(now, out)) slot = allocator.allocate(shape);
  return slot;
}

bool StoreCore::Impl::evict_one(Time now, StoreActions& out) {
  if (evict_incomplete(now, out)) return true;
  const auto victim = order.victim();
  if (!victim) return false;
  RecordId record = victim->record;
  if (victim->checkpoint) {
    evict_checkpoint(record, out);
    return true;
  }
  if (config.faults.evict_parent_first)
    for (RecordId up = index.parent(record); up != kNone && index.first_member(up) != kNone && pins(up, false) == 0 &&
                                             pins(up, true) == 0 && claimed(up, false) == 0 && claimed(up, true) == 0;
         up = index.parent(up))
      record = up;
  evict_pages(record, out);
  return true;
}

bool StoreCore::Impl::evict_incomplete(Time now, StoreActions& out) {
  for (std::size_t looked = 0; looked < 8 && !incomplete.empty(); ++looked) {
    const Incomplete entry = incomplete.front();
    const bool known = index.in_use(entry.record) &&
                       mix_page(index.ns(entry.record), index.hash(entry.record)) == entry.mixed && !complete(entry.record, entry.checkpoint);
    if (known && entry.since + config.incomplete_grace > now) return false;
    incomplete.pop_front();
    if (!known) continue;
    if (entry.checkpoint ? order.is_checkpoint_candidate(entry.record) : order.is_page_candidate(entry.record)) {
      ++stats.evicted_incomplete;
      entry.checkpoint ? evict_checkpoint(entry.record, out) : evict_pages(entry.record, out);
      return true;
    }
    // In use, or something hangs on it: its turn comes again.
    incomplete.push_back({entry.mixed, now, entry.record, entry.checkpoint});
  }
  return false;
}

void StoreCore::Impl::evict_pages(RecordId record, StoreActions& out) {
  ++stats.evicted_page_sets;
  ghost.add(mix_page(index.ns(record), index.hash(record)));
  if (order.has_checkpoint(record)) ++stats.evicted_checkpoint_sets;
  for (const MemberId m : index.members(record)) {
    if (index.member(m).state == MemberState::published) drop_published(record, m, ObjectEvent::Kind::evicted, out);
  }
  order.forget_checkpoint(record);
  refresh(record);
  erase_if_empty(record);
}

void StoreCore::Impl::evict_checkpoint(RecordId record, StoreActions& out) {
  ++stats.evicted_checkpoint_sets;
  for (const MemberId m : index.members(record)) {
    const auto ref = index.member(m);
    if (ref.state == MemberState::published && trailing(index.ns(record), ref.pool))
      drop_published(record, m, ObjectEvent::Kind::evicted, out);
  }
  order.forget_checkpoint(record);
  refresh(record);
  erase_if_empty(record);
}

/// Takes a readable object away: no reader finds it afterwards. Its slot is free at once, or when the last pin goes.
void StoreCore::Impl::drop_published(RecordId record, MemberId member, ObjectEvent::Kind kind, StoreActions& out) {
  const auto ref = index.member(member);
  const NamespaceId ns = index.ns(record);
  const storage::SlotShape* shape = catalog.shape(ns, ref.pool);
  const storage::Slot slot = index.slot_of(member);
  if (shape == nullptr) return index.drop_member(record, member);  // of no pool: nonsense in the index
  const std::uint64_t payload = shape->payload_bytes();
  if (events_wanted) out.events.push_back({kind, ns, ref.pool, ref.shard, index.hash(record)});
  if (kind == ObjectEvent::Kind::evicted) {
    ++stats.evicted_objects;
    stats.evicted_bytes += payload;
  } else {
    ++stats.removed_objects;
  }
  for (auto& [operation, persist] : persists)
    if (persist.member == member && persist.epoch == ref.epoch) persist.removed = true;
  if (!config.faults.leak_ledger || kind != ObjectEvent::Kind::evicted) {
    --resident_objects;
    resident_payload -= payload;
    resident_slots -= slot.bytes();
  }
  if (pins(record, trailing(ns, ref.pool)) != 0) {
    reserved_payload += payload;
    reserved_slots += slot.bytes();
    index.make_zombie(record, member);
    zombies.insert(record);
    return;
  }
  index.drop_member(record, member);
  free_slot(slot, *shape);
}

void StoreCore::Impl::free_zombies(RecordId record) {
  bool left = false;
  for (const MemberId m : index.members(record)) {
    const auto ref = index.member(m);
    if (ref.state == MemberState::zombie) {
      const NamespaceId ns = index.ns(record);
      if (pins(record, trailing(ns, ref.pool)) == 0) {
        const storage::SlotShape* shape = catalog.shape(ns, ref.pool);
        const storage::Slot slot = index.slot_of(m);
        if (shape == nullptr) {
          index.drop_member(record, m);
          continue;
        }
        reserved_payload -= shape->payload_bytes();
        reserved_slots -= slot.bytes();
        index.drop_member(record, m);
        free_slot(slot, *shape);
      } else {
        left = true;
      }
    }
  }
  if (!left) zombies.erase(record);
}

void StoreCore::Impl::free_slot(const storage::Slot& slot, const storage::SlotShape& shape) {
  // The index lies in memory that others can reach: nothing is stamped where no slot of this shape can be.
  const bool fits = slot.count == 1 ? slot.extents[0].bytes == shape.slot_bytes() : shape.pieces(slot.view()).has_value();
  if (!fits || !allocator.free(slot)) return;
  stamp_slot(header_of(slot, shape), 0, slot_incarnation, SlotState::free, 0, 0);
}

/// Whether the record's sets may be chosen for eviction now.
void StoreCore::Impl::refresh(RecordId record) {
  const bool checkpoint_free = pins(record, true) == 0 && claimed(record, true) == 0;
  const bool page_free = checkpoint_free && pins(record, false) == 0 && claimed(record, false) == 0 && index.children(record) == 0;
  bool pages = false;
  bool checkpoints = false;
  const bool look_for_checkpoint = checkpoint_free && order.has_checkpoint(record);
  if (page_free || look_for_checkpoint) {
    const NamespaceId ns = index.ns(record);
    for (const MemberId m : index.members(record)) {
      const auto ref = index.member(m);
      if (ref.state != MemberState::published) continue;
      (trailing(ns, ref.pool) ? checkpoints : pages) = true;
      if ((pages || !page_free) && (checkpoints || !look_for_checkpoint)) break;
    }
  }
  order.set_page_candidate(record, page_free && pages);
  order.set_checkpoint_candidate(record, look_for_checkpoint && checkpoints);
}

void StoreCore::Impl::erase_if_empty(RecordId record) {
  while (record != kNone && index.first_member(record) == kNone && index.children(record) == 0 && pins(record, false) == 0 &&
         pins(record, true) == 0) {
    const RecordId parent = index.parent(record);
    order.forget_page(record);
    order.forget_checkpoint(record);
    zombies.erase(record);
    forget_orphan(record);
    index.erase(record);
    if (parent != kNone) refresh(parent);
    record = parent;
  }
}

bool StoreCore::Impl::complete(RecordId record, bool checkpoint) const {
  const NamespaceId ns = index.ns(record);
  const std::uint64_t full = index.full_pools(record);
  std::uint64_t present = 0;
  for (const MemberId m : index.members(record)) {
    const auto ref = index.member(m);
    if (ref.state == MemberState::published && trailing(ns, ref.pool) == checkpoint) present |= std::uint64_t{1} << ref.pool;
  }
  if (present == 0) return true;  // nothing there that could leave
  for (const GroupId id : catalog.groups_of(ns)) {
    const GroupInfo* group = catalog.find_group(id);
    const std::uint64_t needed = checkpoint ? group->trailing : group->every_page;
    const std::uint64_t named = needed | group->optional_pools;
    if ((named & present) != 0 && (full & needed) == needed) return true;
  }
  return false;
}

void StoreCore::Impl::note_incomplete(RecordId record, bool checkpoint, Time now) {
  // Sets that have become complete meanwhile are dropped from the front as others come in, so the list stays short.
  for (int i = 0; i < 2 && !incomplete.empty(); ++i) {
    const Incomplete& front = incomplete.front();
    const bool known = index.in_use(front.record) && mix_page(index.ns(front.record), index.hash(front.record)) == front.mixed;
    if (known && !complete(front.record, front.checkpoint)) break;
    incomplete.pop_front();
  }
  if (complete(record, checkpoint)) return;
  const std::uint64_t mixed = mix_page(index.ns(record), index.hash(record));
  if (!incomplete.empty() && incomplete.back().mixed == mixed && incomplete.back().checkpoint == checkpoint) return;
  incomplete.push_back({mixed, now, record, checkpoint});
}

bool StoreCore::Impl::pin(RecordId record, bool checkpoint) {
  if (pins(record, checkpoint) == 0xffffU) return false;
  const unsigned field = checkpoint ? 5 : 4;
  index.set_field(record, field, index.field(record, field) + 1);
  if (pins(record, checkpoint) == 1) {
    order.set_page_candidate(record, false);
    if (checkpoint) order.set_checkpoint_candidate(record, false);
  }
  return true;
}

void StoreCore::Impl::unpin(RecordId record, bool checkpoint) {
  const unsigned field = checkpoint ? 5 : 4;
  index.set_field(record, field, index.field(record, field) - 1);
  if (pins(record, checkpoint) != 0) return;
  if (!zombies.empty() && zombies.contains(record)) free_zombies(record);
  if (index.children(record) == 0 || order.has_checkpoint(record)) refresh(record);
  if (index.first_member(record) == kNone) erase_if_empty(record);
}

void StoreCore::Impl::count_claim(RecordId record, bool checkpoint, bool more) {
  const unsigned field = checkpoint ? 5 : 4;
  const std::uint32_t value = index.field(record, field);
  index.set_field(record, field, more ? value + 0x10000U : value - 0x10000U);
  if (more) {
    order.set_page_candidate(record, false);
    if (checkpoint) order.set_checkpoint_candidate(record, false);
  }
}

}  // namespace kvonce::protocol
