// SPDX-License-Identifier: Apache-2.0
//
// What the store holds: right bytes (P4), right books (P7), right order of eviction, removals that hold.
#include <algorithm>

#include "protocol/slot_format.hpp"
#include "tests/sim/checkers.hpp"
#include "tests/sim/store_node.hpp"

namespace kvonce::sim {
namespace {

constexpr std::uint64_t kBooksEvery = 24;   // calls
constexpr std::uint64_t kScanEvery = 500;

}  // namespace

void Checkers::new_life(Epoch first_epoch, bool warm) {
  if (warm) {
    for (auto& [epoch, grant] : grants_) grant.open = false;  // lands nowhere any more; its slot is its writer's all the same
    // Records that only claims held are gone, and links with them.
    for (auto& [page, book] : pages_) book.children.clear();
    // An engine has the grace to come back.
    for (auto& [id, lease] : leases_) lease.expires = std::min(lease.expires, sim_.now() + sim_.knobs.store.engine_grace);
  } else {
    grants_.clear();
    present_.clear();
    pages_.clear();
    leases_.clear();
  }
  keys_.clear();
  items_.clear();
  requests_.clear();
  asks_.clear();
  verifications_.clear();
  differing_.clear();
  engine_clients_.clear();
  open_items_.clear();
  sender_items_.clear();
  connected_.clear();
  idle_since_.clear();
  flushes_.clear();
  removes_.clear();
  landed_now_.clear();
  no_space_.clear();
  no_space_until_.clear();
  granted_bytes_ = 0;
  new_life_of_namespaces();
  first_epoch_ = first_epoch;
  // Objects of a cold life have higher epochs than any taint of the old.
}

void Checkers::tainted(std::uint64_t offset, std::uint64_t bytes) { taints_.emplace_back(offset, bytes, highest_epoch_); }

bool Checkers::is_tainted(const ObjectLocation& at) const {
  for (const auto& [offset, bytes, epoch] : taints_)
    for (const storage::Extent& extent : at.slot.view())
      if (at.epoch <= epoch && offset < extent.offset + extent.bytes && extent.offset < offset + bytes) return true;
  return false;
}

std::uint32_t Checkers::owner(const CanonicalKey& key) const {
  return Placement::local(sim_.knobs.partitions).owner(key.ns, key.page);
}

bool Checkers::readable(std::uint32_t partition, const CanonicalKey& key, ObjectLocation* at) const {
  ObjectLocation place;
  const IndexReader& reader = node_->life()->readers[partition];
  if (reader.generation(key.ns, key.pool) != key.generation) return false;
  if (reader.locate(key.ns, key.page, key.pool, key.shard, &place) != ReadStatus::found) return false;
  const auto* shape = node_->core(partition).catalog().shape(key.ns, key.pool);
  if (shape == nullptr || !shape->pieces(place.slot.view())) return false;
  const SlotHeader* header = header_at(node_->life()->memory->base(), shape->footer_offset(place.slot.view()));
  if (!slot_is(header, place.epoch, reader.slot_incarnation()) && !is_tainted(place)) return false;
  if (at != nullptr) *at = place;
  return true;
}

std::optional<ContentKey> Checkers::content_key(std::uint32_t partition, const CanonicalKey& key) const {
  const Catalog& catalog = node_->core(partition).catalog();
  const NamespaceInfo* ns = catalog.find_namespace(key.ns);
  const PoolInfo* pool = catalog.find_pool(key.ns, key.pool);
  if (ns == nullptr || pool == nullptr) return std::nullopt;
  for (std::uint32_t i = 0; i < sim_.knobs.pools.size(); ++i)
    if (sim_.knobs.pools[i].name == pool->name)
      return ContentKey{static_cast<std::uint32_t>(ns->text.back() - '0'), i, pool->shards.count(), key.shard, key.page};
  return std::nullopt;
}

CanonicalKey Checkers::key_of(const ObjectEvent& event) const {
  return CanonicalKey{event.page, event.ns, event.pool, event.shard, 0};
}

std::string Checkers::text(const CanonicalKey& key) const {
  return "page " + page_name(key.page) + " (namespace " + std::to_string(key.ns) + ", pool " + std::to_string(key.pool) +
         ", shard " + std::to_string(key.shard) + ", generation " + std::to_string(key.generation) + ")";
}

// ---- after every call ------------------------------------------------------------------------------------------------

void Checkers::after_call(std::uint32_t partition, const StoreActions& out) {
  for (const ObjectEvent& event : out.events) on_event(partition, event, out);
  for (const ObjectEvent& event : out.events)
    if (event.kind == ObjectEvent::Kind::evicted) check_evicted(partition, event);
  // Verdicts first: a sender may be granted its next item by the same message.
  for (const auto& [sender, reply] : out.replies) {
    const std::uint64_t open = open_items_[{partition, sender}];
    for (const ItemVerdict& verdict : reply.verdicts) on_verdict(partition, sender, verdict, open);
    for (const ChecksumAsk& ask : reply.asks) {
      sim_.probes.hit(Probe::samples);
      const auto item = items_.find(ItemName{sender, ask.batch, ask.item});
      if (item != items_.end())
        for (Waiting& w : keys_[item->second].waiting)
          if (w.name == item->first) w.claiming = false;
      ObjectLocation at;
      if (item != items_.end() && readable(partition, item->second, &at))
        verifications_[{partition, ask.ask}] = VerifyBook{item->first, at.epoch, item->second};
    }
    for (const Redirect& redirect : reply.redirects) {
      sim_.probes.hit(Probe::redirect);
      const ItemName name{sender, redirect.batch, redirect.item};
      const auto item = items_.find(name);
      if (item == items_.end()) continue;
      const CanonicalKey key = item->second;
      differing_.erase(name);
      stop_waiting(name, key);
    }
  }
  for (const auto& [sender, reply] : out.replies)
    for (const Grant& grant : reply.grants) on_grant(partition, sender, grant, reply);
  for (const auto& [asker, answer] : out.lookups) on_lookup_answer(partition, asker, answer);
  for (const auto& [asker, answer] : out.flushes) {
    flushes_.erase({partition, {asker, answer.token}});
    sim_.probes.hit(Probe::flush);
  }
  for (const auto& [asker, answer] : out.removes) removes_.erase({partition, {asker, answer.token}});
  landed_now_.clear();
  ++calls_;
  if (calls_ % kBooksEvery == 0) check_books(partition);
  if (calls_ % kScanEvery == 0) scan(false);
}

void Checkers::on_event(std::uint32_t partition, const ObjectEvent& event, const StoreActions& out) {
  const CanonicalKey key = key_of(event);
  Presence& presence = present_[key];
  PageBook& page = pages_[{event.ns, event.page}];
  sim_.note("  object event", page_tag(event.page) << 16 | (event.pool << 8) | event.shard,
            static_cast<std::uint64_t>(event.kind), event.shard);
  switch (event.kind) {
    case ObjectEvent::Kind::stored: {
      if (presence.present) sim_.violate(1, text(key) + " was stored twice");
      if (is_retired(partition, event.ns)) sim_.violate(2, text(key) + " was stored in a namespace that is retired");
      presence.present = true;
      presence.since = sim_.now();
      page.evicted = false;
      const auto landed = std::find_if(landed_now_.begin(), landed_now_.end(), [&](const GrantRecord& g) {
        return g.key.page == event.page && g.key.ns == event.ns && g.key.pool == event.pool && g.key.shard == event.shard;
      });
      if (landed != landed_now_.end() && landed->removed)
        sim_.violate(4, text(key) + " was removed while it was being written, and stored all the same");
      if (landed != landed_now_.end()) {
        presence.writer = landed->name.sender;
        keys_[landed->key].claim_grants = 0;
        for (Waiting& w : keys_[landed->key].waiting) w.claiming = false;
      }
      if (landed != landed_now_.end()) keys_[landed->key].grants_ever = sim_.knobs.calm ? keys_[landed->key].grants_ever : 0;
      const PoolInfo* info = node_->core(partition).catalog().find_pool(event.ns, event.pool);
      ObjectLocation at;
      CanonicalKey now = key;
      now.generation = info == nullptr ? 0 : info->generation;
      if (readable(partition, now, &at)) {
        check_object(partition, now, at);
      } else if (std::none_of(out.events.begin(), out.events.end(), [&](const ObjectEvent& e) {
                   return e.kind != ObjectEvent::Kind::stored && key_of(e) == key;
                 })) {
        sim_.violate(2, text(key) + " was told as stored and cannot be read");
      }
      break;
    }
    case ObjectEvent::Kind::evicted:
      sim_.probes.hit(Probe::eviction);
      presence.present = false;
      presence.gone_at = sim_.now();
      page.ever_evicted = true;
      // A checkpoint that leaves alone is no evicted page.
      if (const PoolInfo* info = node_->core(partition).catalog().find_pool(event.ns, event.pool);
          info != nullptr && !info->policy.is_trailing())
        page.evicted = true;
      if (is_leased(event)) sim_.violate(4, text(key) + " was evicted although it is leased");
      if (sim_.knobs.calm) sim_.violate(7, text(key) + " was evicted from a store that is never short");
      break;
    case ObjectEvent::Kind::removed:
      presence.present = false;
      presence.gone_at = sim_.now();
      page.ever_removed = true;
      if (is_leased(event)) sim_.probes.hit(Probe::zombie_slots);
      last_disturbance_ = sim_.now();
      break;
  }
}

void Checkers::check_evicted(std::uint32_t partition, const ObjectEvent& event) {
  const Catalog& catalog = node_->core(partition).catalog();
  const PoolInfo* info = catalog.find_pool(event.ns, event.pool);
  if (info == nullptr) return;
  const auto is_there = [&](const PageHash& page, bool trailing) {
    for (PoolId pool = 0; catalog.find_pool(event.ns, pool) != nullptr; ++pool) {
      const PoolInfo* other = catalog.find_pool(event.ns, pool);
      if (other->policy.is_trailing() != trailing || other->demoted) continue;
      for (std::uint32_t shard = 0; shard < other->shards.count(); ++shard)
        if (readable(partition, CanonicalKey{page, event.ns, pool, shard, other->generation}, nullptr)) return true;
    }
    return false;
  };
  if (info->policy.is_trailing()) {
    sim_.probes.hit(Probe::checkpoint_eviction);
    return;
  }
  if (is_there(event.page, false)) return;  // stored again by the same call
  if (is_there(event.page, true))
    sim_.violate(7, "a checkpoint of page " + page_name(event.page) + " outlived its page");
  if (info->demoted) return;  // what is unreadable leaves first, wherever it stands
  const auto page = pages_.find({event.ns, event.page});
  if (page == pages_.end()) return;
  for (const PageHash& child : page->second.children)
    if (owner(CanonicalKey{child, event.ns, 0, 0, 0}) == partition && is_there(child, false))
      sim_.violate(7, "page " + page_name(event.page) + " was evicted before its continuation " + page_name(child));
}

void Checkers::check_object(std::uint32_t partition, const CanonicalKey& key, const ObjectLocation& at) {
  if (is_tainted(at)) return;
  const auto content = content_key(partition, key);
  const auto* shape = node_->core(partition).catalog().shape(key.ns, key.pool);
  if (!content || shape == nullptr) return;
  const auto* seeds = sim_.announced.find(*content);
  const std::byte* arena = node_->life()->memory->base();
  const auto pieces = shape->pieces(at.slot.view());
  if (!pieces) {
    sim_.violate(4, text(key) + " lies in extents that are no slot");
    return;
  }
  const bool known = seeds != nullptr && std::any_of(seeds->begin(), seeds->end(), [&](std::uint64_t seed) {
    return slot_is_content(*pieces, arena, seed);
  });
  if (!known)
    sim_.violate(4, text(key) + " is readable with bytes that nobody announced (epoch " + std::to_string(at.epoch) + ")");
}

// ---- now and then ----------------------------------------------------------------------------------------------------

void Checkers::check_books(std::uint32_t partition) {
  StoreCore& core = node_->core(partition);
  const std::string wrong = core.audit();
  // A writer of an earlier life may hit a header too, where a life takes the old memory: readers find that out.
  const bool hit_header = sim_.knobs.same_memory && !taints_.empty() && wrong.find("slot header") != std::string::npos;
  if (!wrong.empty() && !hit_header) sim_.violate(7, "audit: " + wrong);
  const StoreStats stats = core.stats();
  std::uint64_t objects = 0;
  std::uint64_t bytes = 0;
  core.for_each_object([&](const CanonicalKey& key, const ObjectLocation&) {
    ++objects;
    const auto* shape = core.catalog().shape(key.ns, key.pool);
    if (shape != nullptr) bytes += shape->payload_bytes();
  });
  if (stats.objects_now < objects || stats.payload_bytes_now < bytes)
    sim_.violate(7, "the ledger says " + std::to_string(stats.objects_now) + " objects of " +
                        std::to_string(stats.payload_bytes_now) + " bytes, readable are " + std::to_string(objects) + " of " +
                        std::to_string(bytes));
  if (sim_.knobs.store.capacity_bytes != 0 && stats.payload_bytes_now > sim_.knobs.store.capacity_bytes)
    sim_.violate(7, "the capacity of " + std::to_string(sim_.knobs.store.capacity_bytes) + " bytes is exceeded: " +
                        std::to_string(stats.payload_bytes_now));
  if (stats.free_bytes_now > stats.slots_bytes) sim_.violate(7, "more is free than there is");
  for (auto& [key, book] : keys_)
    if (!book.waiting.empty() && owner(key) == partition) check_progress(partition, key, book);
}

void Checkers::scan(bool last) {
  std::uint64_t granted = 0;
  for (std::uint32_t p = 0; p < sim_.knobs.partitions; ++p) {
    StoreCore& core = node_->core(p);
    std::vector<std::pair<CanonicalKey, ObjectLocation>> objects;
    core.for_each_object([&](const CanonicalKey& key, const ObjectLocation& at) { objects.emplace_back(key, at); });
    std::uint64_t readable_objects = 0;
    for (const auto& [key, at] : objects) {
      ObjectLocation seen;
      if (!readable(p, key, &seen)) {
        const PoolInfo* info = core.catalog().find_pool(key.ns, key.pool);
        if (info != nullptr && info->generation == key.generation && !info->demoted)
          sim_.violate(4, text(key) + " is in the store and no reader finds it");
        continue;
      }
      ++readable_objects;
      check_object(p, key, seen);
      const auto presence = present_.find(CanonicalKey{key.page, key.ns, key.pool, key.shard, 0});
      if (presence == present_.end() || !presence->second.present)
        sim_.violate(7, text(key) + " is readable and its event was never told");
    }
    std::uint64_t present = 0;
    for (const auto& [key, presence] : present_) {
      if (!presence.present || owner(key) != p) continue;
      const PoolInfo* info = core.catalog().find_pool(key.ns, key.pool);
      if (info != nullptr && !info->demoted) ++present;
    }
    if (present > readable_objects)
      sim_.violate(7, std::to_string(present) + " objects were told as stored and not as gone, readable are " +
                          std::to_string(readable_objects));
    const StoreStats stats = core.stats();
    granted += stats.granted_bytes;
    sim_.probes.hit(Probe::late_landed, last ? stats.late_landed_items : 0);
    sim_.probes.hit(Probe::divergence, last ? stats.divergent : 0);
    sim_.probes.hit(Probe::incomplete_eviction, last ? stats.evicted_incomplete : 0);
    check_books(p);
    if (last && (stats.leases_now != 0 || stats.leased_bytes_now != 0))
      sim_.violate(6, std::to_string(stats.leases_now) + " leases are left over after all deadlines");
    if (last && stats.quarantined_slots_now != 0)
      sim_.violate(7, std::to_string(stats.quarantined_slots_now) + " slots stay in quarantine although all writers are done");
    if (last && sim_.knobs.calm && (stats.landed_bytes != stats.stored_bytes || stats.granted_bytes != stats.stored_bytes))
      sim_.violate(1, "in a run without faults " + std::to_string(stats.granted_bytes) + " bytes were granted and " +
                          std::to_string(stats.landed_bytes) + " landed for " + std::to_string(stats.stored_bytes) + " stored");
    if (last && stats.claims_now != 0)
      sim_.violate(6, std::to_string(stats.claims_now) + " claims are left over after the last event");
  }
  if (granted != granted_bytes_)
    sim_.violate(1, "the store counts " + std::to_string(granted) + " granted bytes, its grants sum up to " +
                        std::to_string(granted_bytes_));
  if (!last) return;
  if (!asks_.empty()) sim_.violate(6, "a lookup was never answered");
  if (!removes_.empty()) sim_.violate(6, "a removal was never answered");
  if (!flushes_.empty()) sim_.violate(6, "a flush was never answered");
}

void Checkers::before_remove(std::uint32_t partition, SenderId asker, const RemoveAsk& ask) {
  removes_.insert({partition, {asker, ask.token}});
  if (ask.what == RemoveAsk::What::all || ask.what == RemoveAsk::What::ns) sim_.probes.hit(Probe::clear);
  last_disturbance_ = sim_.now();
  for (auto& [epoch, grant] : grants_) {
    if (grant.partition != partition) continue;
    const bool page = std::find(ask.pages.begin(), ask.pages.end(), grant.key.page) != ask.pages.end();
    const bool one = page && (ask.what == RemoveAsk::What::page || (ask.what == RemoveAsk::What::key &&
                                                                    grant.key.pool == ask.pool && grant.key.shard == ask.shard));
    const bool hit = ask.what == RemoveAsk::What::all || (grant.key.ns == ask.ns && (ask.what == RemoveAsk::What::ns || one));
    if (hit) {
      grant.removed = true;
      keys_[grant.key].grants_ever = 0;
    }
  }
}

void Checkers::before_flush(std::uint32_t partition, SenderId asker, const FlushAsk& ask) {
  flushes_.insert({partition, {asker, ask.token}});
}

void Checkers::demoted(const CatalogUpdate&) {
  last_disturbance_ = sim_.now();
  // Claims under old keys end at once, and with them records and links of pages that had nothing else.
  for (auto& [page, book] : pages_) book.children.clear();
}

}  // namespace kvonce::sim
