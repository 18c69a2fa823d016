// SPDX-License-Identifier: Apache-2.0
//
// A store over an arena that an earlier life has left. The snapshot and the index are believed in nothing that could lead out
// of the partition or give one byte to two owners; what contradicts means a cold start.
#include <algorithm>
#include <tuple>

#include "protocol/store_snapshot.hpp"

namespace kvonce::protocol {

namespace {

std::string number(std::uint64_t value) { return std::to_string(value); }

std::string differs(const char* what, std::uint64_t snapshot, std::uint64_t config) {
  return std::string("the snapshot is of a store with ") + what + " " + number(snapshot) + "; this one has " + number(config);
}

std::string check_layout(const SnapshotLayout& found, const StoreConfig& config) {
  const SnapshotLayout own = layout_of(config);
  const std::tuple<const char*, std::uint64_t, std::uint64_t> numbers[] = {
      {"partition", found.partition, own.partition},
      {"the number of partitions", found.partitions, own.partitions},
      {"index_pages per partition", found.index.max_pages, own.index.max_pages},
      {"index members", found.index.max_members, own.index.max_members},
      {"index extent blocks", found.index.max_extent_blocks, own.index.max_extent_blocks},
      {"the index offset", found.index_offset, own.index_offset},
      {"the slots' offset", found.slots_offset, own.slots_offset},
      {"slot bytes", found.slots_bytes, own.slots_bytes}};
  for (const auto& [what, snapshot, mine] : numbers)
    if (snapshot != mine) return differs(what, snapshot, mine);
  return {};
}

// The catalog that these updates make; apply() ignores what does not fit, so that is looked at before.
std::string apply_all(const std::vector<CatalogUpdate>& updates, Catalog& catalog) {
  using Kind = CatalogUpdate::Kind;
  constexpr const char* kWrong = "the snapshot's catalog contradicts itself";
  for (const CatalogUpdate& update : updates) {
    if (update.kind == Kind::ns) {
      if (turn_of(update.ns) >= kNamespaceTurns || !catalog.is_free(update.ns)) return kWrong;
    } else if (update.kind == Kind::pool) {
      const NamespaceInfo* ns = catalog.find_namespace(update.ns);
      const ShardCounts& shards = update.info.shards;
      const std::uint64_t count = std::uint64_t{shards.tp} * shards.pp * shards.cp;
      if (ns == nullptr || update.pool != ns->pools.size() || update.pool >= kMaxPoolsPerNamespace || count == 0 || count > kMaxShardsPerPool ||
          update.info.size > PoolInfo::Size::known)
        return kWrong;
    } else if (update.kind == Kind::group) {
      const NamespaceInfo* ns = catalog.find_namespace(update.ns);
      if (ns == nullptr || update.group < catalog.next_group() || update.group == kNoGroup || update.group_info.ns != update.ns) return kWrong;
      for (const GroupPool& pool : update.group_info.pools)
        if (pool.pool >= ns->pools.size()) return kWrong;
    } else {
      return kWrong;
    }
    catalog.apply(update);
    if (update.kind != Kind::pool || update.info.size != PoolInfo::Size::known) continue;
    const storage::SlotShape* shape = catalog.shape(update.ns, update.pool);
    if (shape == nullptr || shape->payload_bytes() != update.info.object_bytes) return kWrong;
  }
  return {};
}

Time later(Time now, Duration by) { return by > kNever - 1 - now ? kNever - 1 : now + by; }

}  // namespace

/// Walks records and members: claimed ones go, the slots of the others are checked and collected.
std::string StoreCore::Impl::restore_objects(std::vector<storage::Extent>& used, std::vector<std::pair<RecordId, MemberId>>& published) {
  for (std::uint32_t place = 0; place < kMaxNamespaces; ++place) {
    const NamespaceId owner = catalog.at_place(place);
    const auto ns = owner != kNoNamespace ? owner : static_cast<NamespaceId>(place);
    for (std::uint32_t pool = 0; pool < kMaxPoolsPerNamespace; ++pool) {
      const PoolInfo* info = catalog.find_pool(ns, static_cast<PoolId>(pool));
      const auto view = index.reader().pool(ns, static_cast<PoolId>(pool));
      const bool same = info == nullptr ? view.shards == 0
                                        : view.shards == info->shards.count() &&
                                              view.policy == info->policy && view.generation == info->generation;
      if (!same) return "pool " + number(pool) + " of namespace " + number(ns) + " is another one in the index than in the snapshot";
    }
  }
  for (RecordId record = 0; record < index.record_limit(); ++record) {
    if (!index.in_use(record)) continue;
    const NamespaceId ns = index.ns(record);
    for (const MemberId m : index.members(record)) {
      const auto ref = index.member(m);
      if (ref.state == MemberState::claimed) {
        index.drop_member(record, m);
        continue;
      }
      const storage::SlotShape* shape = catalog.shape(ns, ref.pool);
      const storage::Slot slot = index.slot_of(m);
      if (shape == nullptr || !shape->pieces(slot.view())) return "the slot of an object of index record " + number(record) + " is none of its pool";
      for (const storage::Extent& extent : slot.view()) used.push_back(extent);
      if (ref.state == MemberState::zombie) {
        reserved_payload += shape->payload_bytes();
        reserved_slots += slot.bytes();
        zombies.insert(record);
      } else {
        ++resident_objects;
        resident_payload += shape->payload_bytes();
        resident_slots += slot.bytes();
        published.emplace_back(record, m);
      }
    }
  }
  return {};
}

std::string StoreCore::Impl::restore_leases(const SnapshotContents& from, Time now) {
  for (const auto& [id, saved] : from.leases) {
    const bool right = catalog.find_group(saved.group) != nullptr && (id.low & 63U) == (config.partition & 63U) && !leases.contains(id) &&
                       std::all_of(saved.partitions.begin(), saved.partitions.end(), [this](std::uint32_t p) { return p < config.partitions; });
    if (!right) return "a lease in the snapshot contradicts its catalog";
    Lease lease = saved;
    lease.expires = later(now, saved.expires);
    Time next = kNever;
    for (Lease::Load& load : lease.loads) {
      load.deadline = later(now, load.deadline);
      next = std::min(next, load.deadline);
    }
    lease_ends.emplace(lease.ended ? std::min(next, lease.expires) : lease.expires, id);
    Engine& engine = engines[lease.engine];
    ++engine.leases;
    engine.lease_pages += lease.stop;
    engine.gone_at = now;  // until a process of it comes back
    leases.emplace(id, std::move(lease));
  }
  for (const auto& [id, saved] : from.pins) {
    // A lookup that was still collecting its pages: its asker has no answer and never gets one.
    const bool home = (id.low & 63U) == (config.partition & 63U);
    if ((home && !leases.contains(id)) || part_leases.contains(id)) continue;
    for (const PartLease::Page& page : saved.pages) {
      if (!index.in_use(page.record)) return "a lease in the snapshot pins the index record " + number(page.record) + ", which is none";
      if ((page.page && !pin(page.record, false)) || (page.checkpoint && !pin(page.record, true)))
        return "the snapshot pins an index record more often than can be";
    }
    part_leases.emplace(id, saved);
  }
  for (auto& [id, lease] : leases) {
    // One whose pages are all here is counted as before; of any other only the number is known, so it is counted alone.
    const GroupInfo& group = *catalog.find_group(lease.group);
    const auto mine = part_leases.find(id);
    std::vector<PageHash> pages;
    if (mine != part_leases.end())
      for (const PartLease::Page& page : mine->second.pages)
        if (page.position == pages.size() && index.in_use(page.record)) pages.push_back(index.hash(page.record));
    const bool ascend = lease.stop != 0 && std::is_sorted(lease.stops.begin(), lease.stops.end()) &&
                        (lease.stops.empty() || (lease.stops.front() != 0 && lease.stops.back() <= lease.stop));
    if (pages.size() == lease.stop && ascend) {
      count_lease(lease, group, std::move(pages));
    } else {
      lease.bytes = lease.stop * nominal_bytes(group, false) + lease.stops.size() * nominal_bytes(group, true);
      engines[lease.engine].leased_bytes += lease.bytes;
    }
  }
  for (const auto& [key, saved] : from.kept) {
    if (saved.lease && !leases.contains(saved.lease)) continue;
    KeptAnswer answer = saved;
    answer.expires = later(now, saved.expires);
    kept_ends.emplace(answer.expires, key);
    kept.emplace(key, std::move(answer));
  }
  for (const LeaseId& id : from.ended_leases)
    if (ended_set.insert(id).second) ended_leases.push_back(id);
  return {};
}

std::string StoreCore::Impl::restored(const SnapshotContents& from, Time now) {
  slot_incarnation = from.marks.slot_incarnation;
  if (std::string wrong = apply_all(from.catalog, catalog); !wrong.empty()) return wrong;
  if (std::string wrong = index.take_over(from.marks, config.incarnation); !wrong.empty()) return wrong;
  std::vector<storage::Extent> used;
  std::vector<std::pair<RecordId, MemberId>> published;
  if (std::string wrong = restore_objects(used, published); !wrong.empty()) return wrong;
  for (const auto& saved : from.quarantined) {
    const storage::SlotShape* shape = catalog.shape(saved.ns, saved.pool);
    if (shape == nullptr || !shape->pieces(saved.slot.view()) || saved.epoch > from.last_epoch || quarantine.contains(saved.epoch))
      return "a quarantined slot in the snapshot is none of its pool";
    if (config.faults.free_quarantined || config.faults.free_at_restart) continue;
    OpenGrant grant;
    grant.epoch = saved.epoch;
    grant.client = saved.client;
    grant.ns = saved.ns;
    grant.pool = saved.pool;
    grant.slot = saved.slot;
    for (const storage::Extent& extent : grant.slot.view()) used.push_back(extent);
    reserved_payload += shape->payload_bytes();
    reserved_slots += grant.slot.bytes();
    quarantined_bytes += grant.slot.bytes();
    quarantine.emplace(grant.epoch, grant);
    processes.try_emplace(saved.client, ClientProcess{saved.client, 0, 0});
  }
  for (const ClientProcess& process : from.processes)
    if (const auto waiting = processes.find(process.client); waiting != processes.end()) waiting->second = process;
  for (const auto& [record, member] : published)
    if (const Epoch epoch = index.member(member).epoch; epoch == 0 || epoch > from.last_epoch)
      return "an object of index record " + number(record) + " has the epoch " + number(epoch) + "; the last one was " + number(from.last_epoch);
  std::string why;
  auto space = storage::ExtentAllocator::around(config.slots_offset, config.slots_bytes, std::move(used), &why);
  if (!space) return "the index and the snapshot name a slot that cannot be: " + why;
  allocator = *std::move(space);

  if (!order.restore(from.order)) return "the eviction order in the snapshot contradicts the index";
  if (std::string wrong = restore_leases(from, now); !wrong.empty()) return wrong;

  StoreActions nobody_hears;
  // Slots are inside and each has one owner: now their headers can be looked at. Whose header says otherwise would never be read.
  for (const auto& [record, member] : published) {
    const auto ref = index.member(member);
    const storage::SlotShape& shape = *catalog.shape(index.ns(record), ref.pool);
    if (!slot_is(header_of(index.slot_of(member), shape), ref.epoch, slot_incarnation))
      drop_published(record, member, ObjectEvent::Kind::removed, nobody_hears);
  }
  const std::vector<RecordId> with_zombies(zombies.begin(), zombies.end());
  for (const RecordId record : with_zombies) free_zombies(record);
  for (RecordId record = 0; record < index.record_limit(); ++record) {
    if (!index.in_use(record)) continue;
    erase_if_empty(record);
    if (!index.in_use(record)) continue;
    // What the order does not know could never leave.
    for (const MemberId m : index.members(record)) {
      const auto ref = index.member(m);
      if (ref.state != MemberState::published) continue;
      if (order.stamp(record) == 0) order.touch_page(record);
      if (trailing(index.ns(record), ref.pool) && !order.has_checkpoint(record)) order.touch_checkpoint(record);
    }
    refresh(record);
  }
  for (const std::uint64_t fingerprint : from.ghosts) ghost.add(fingerprint);
  for (const auto& entry : from.incomplete) incomplete.push_back({entry.mixed, now > entry.age ? now - entry.age : 0, entry.record, entry.checkpoint});
  for (const Sweep& saved : from.sweeps) {
    if (saved.what > Sweep::What::pool) return "a removal in the snapshot is of no known kind";
    Sweep sweep;  // who asked for it is gone
    sweep.what = saved.what;
    sweep.ns = saved.ns;
    sweep.pool = saved.pool;
    sweep.up_to = saved.up_to;
    sweep.cursor = saved.cursor;
    sweeps.push_back(sweep);
  }
  while (config.capacity_bytes != 0 && resident_payload + reserved_payload > config.capacity_bytes && evict_one(now, nobody_hears)) {
  }
  stats = StoreStats{};
  return {};
}

// -- StoreCore -----------------------------------------------------------------------------------------------------------

std::vector<std::unique_ptr<StoreCore>> StoreCore::restore_all(std::span<const StoreConfig> configs, std::span<const std::string> snapshots,
                                                               Time now, std::string* why_not) {
  std::vector<std::unique_ptr<StoreCore>> cores;
  std::vector<SnapshotContents> contents;
  const auto cold = [&](const std::string& why, std::size_t partition) {
    *why_not = configs.size() > 1 ? why + " (partition " + number(partition) + ")" : why;
    cores.clear();
    return std::move(cores);
  };
  if (configs.size() != snapshots.size() || configs.empty()) {
    *why_not = "there are " + number(snapshots.size()) + " snapshots for " + number(configs.size()) + " partitions";
    return cores;
  }
  Epoch last = 0;
  for (std::size_t p = 0; p < configs.size(); ++p) {
    std::string why;
    auto decoded = decode_snapshot(snapshots[p], &why);
    if (!decoded) return cold(why, p);
    if (std::string wrong = check_layout(decoded->layout, configs[p]); !wrong.empty()) return cold(wrong, p);
    if (p > 0 && decoded->marks.slot_incarnation != contents.front().marks.slot_incarnation) return cold("the snapshots are of several stores", p);
    if (p > 0 && decoded->marks.incarnation != contents.front().marks.incarnation) return cold("the snapshots are of several lives", p);
    last = std::max(last, decoded->last_epoch);
    contents.push_back(*std::move(decoded));
  }
  for (std::size_t p = 0; p < configs.size(); ++p) {
    StoreConfig config = configs[p];
    config.first_epoch = std::max(config.first_epoch, last + 1);
    auto impl = std::make_unique<Impl>(config, true);
    if (std::string wrong = impl->restored(contents[p], now); !wrong.empty()) return cold(wrong, p);
    cores.push_back(std::unique_ptr<StoreCore>(new StoreCore(std::move(impl))));
  }
  // What was under way between partitions is lost: changes of the catalog, and the ends of leases and lookups.
  const std::vector<CatalogUpdate> catalog = contents.front().catalog;
  StoreActions nobody_hears;
  for (std::size_t p = 0; p < cores.size(); ++p) {
    Impl& s = *cores[p]->impl_;
    if (p > 0) {
      // Freed by the registrar, and the news did not get here: else its place would never be the next one's in this partition.
      for (std::uint32_t place = 0; place < kMaxNamespaces; ++place) {
        const NamespaceId ns = s.catalog.at_place(place);
        if (ns == kNoNamespace || cores.front()->catalog().find_namespace(ns) != nullptr) continue;
        if (!cores[p]->is_empty(ns)) return cold("something is left of namespace " + number(ns) + ", which partition 0 has freed", p);
        CatalogUpdate free;
        free.kind = CatalogUpdate::Kind::free;
        free.ns = ns;
        cores[p]->apply(free, now, nobody_hears);
      }
      for (const CatalogUpdate& update : catalog) cores[p]->apply(update, now, nobody_hears);
    }
    for (const CatalogUpdate& update : catalog) {
      if (update.kind != CatalogUpdate::Kind::pool || !update.info.demoted) continue;
      Sweep sweep;
      sweep.what = Sweep::What::pool;
      sweep.ns = update.ns;
      sweep.pool = update.pool;
      sweep.up_to = s.last_epoch;
      s.sweeps.push_back(sweep);
    }
    std::vector<LeaseId> ownerless;
    for (const auto& [id, pins] : s.part_leases) {
      const std::size_t home = id.low & 63U;
      if (home >= cores.size() || !cores[home]->impl_->leases.contains(id)) ownerless.push_back(id);
    }
    for (const LeaseId& id : ownerless) s.part_narrow(PartNarrow{id, 0, 0, 1, {}});
  }
  return cores;
}

std::unique_ptr<StoreCore> StoreCore::restore(const StoreConfig& config, std::string_view snapshot, Time now, std::string* why_not) {
  const std::string own(snapshot);
  auto cores = restore_all({&config, 1}, {&own, 1}, now, why_not);
  return cores.empty() ? nullptr : std::move(cores.front());
}

}  // namespace kvonce::protocol
