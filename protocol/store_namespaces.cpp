// SPDX-License-Identifier: Apache-2.0
//
// StoreCore: what a partition has of a namespace, and how that ends when the registrar gives its place to another one.
#include <algorithm>

#include "protocol/store_impl.hpp"

namespace kvonce::protocol {

template <class F>
void StoreCore::Impl::for_each_hold(F&& f) const {
  const auto group = [&](GroupId id) {
    if (const GroupInfo* info = catalog.find_group(id)) f(info->ns);
  };
  for (const Claim& claim : claims)
    if (claim.in_use) f(claim.ns);
  for (const auto& [epoch, grant] : quarantine) f(grant.ns);
  for (const auto& [operation, persist] : persists) f(persist.ns);
  for (const auto& [id, ask] : asks) f(ask.ns);
  for (const Held& waits : held) f(waits.ns);
  for (const auto& [id, lease] : leases) group(lease.group);
  for (const auto& [id, pending] : pending_lookups) group(pending.ask.group);
}

std::vector<NamespaceUse> StoreCore::namespace_use() const {
  const Impl& s = *impl_;
  std::vector<NamespaceUse> use(kMaxNamespaces, NamespaceUse::none);
  for (std::uint32_t place = 0; place < kMaxNamespaces; ++place)
    if (const NamespaceId ns = s.catalog.at_place(place); ns != kNoNamespace && s.index.records_of(ns) != 0) use[place] = NamespaceUse::objects;
  s.for_each_hold([&](NamespaceId ns) { use[place_of(ns)] = NamespaceUse::held; });
  for (const auto& [id, lease] : s.part_leases)
    for (const PartLease::Page& page : lease.pages)
      if (page.page || page.checkpoint) use[place_of(s.index.ns(page.record))] = NamespaceUse::held;
  for (const Sender& sender : s.senders)
    for (const AttachPool& pool : sender.pools)
      if (s.catalog.find_namespace(pool.ns) != nullptr) use[place_of(pool.ns)] = NamespaceUse::held;
  return use;
}

bool StoreCore::is_empty(NamespaceId ns) const {
  if (impl_->index.records_of(ns) != 0) return false;
  bool held = false;
  impl_->for_each_hold([&](NamespaceId of) { held |= of == ns; });
  return !held;
}

/// Nothing new gets in from here on, so what is there only has to go: claims, lookups and leases at once, objects in the
/// background. A process that closed the namespace may have asked before it did: its lease must not keep the place for an hour.
void StoreCore::Impl::retired(NamespaceId ns, Time now, StoreActions& out) {
  for (std::uint32_t c = 0; c < claims.size(); ++c)
    if (claims[c].in_use && claims[c].record != kNone && claims[c].ns == ns) remove_claim(c, false, now, out);
  const auto of_it = [&](GroupId id) {
    const GroupInfo* group = catalog.find_group(id);
    return group != nullptr && group->ns == ns;
  };
  for (auto it = pending_lookups.begin(); it != pending_lookups.end();) {
    const auto next = std::next(it);
    if (of_it(it->second.ask.group)) end_lookup(std::move(pending_lookups.extract(it).mapped()), Reason::unknown_namespace, false, out);
    it = next;
  }
  std::vector<LeaseId> leased;
  for (const auto& [id, lease] : leases)
    if (of_it(lease.group)) leased.push_back(id);
  for (const LeaseId& id : leased) {
    // Running loads keep it, each no longer than its own deadline.
    Time next = kNever;
    for (const Lease::Load& load : leases.find(id)->second.loads) next = std::min(next, load.deadline);
    end_lease(id, out);
    if (next != kNever) lease_ends.emplace(next, id);
  }
  if (index.records_of(ns) == 0) return;
  Sweep sweep;
  sweep.what = Sweep::What::ns;
  sweep.ns = ns;
  sweep.up_to = last_epoch;
  sweeps.push_back(sweep);
}

/// Its number may be another's in 63 turns: nothing that is kept by it may be left.
void StoreCore::Impl::freed(NamespaceId ns) {
  index.drop_pools(ns);
  const std::uint32_t first = std::uint32_t{ns} << 16;
  pools_verified.erase(pools_verified.lower_bound(first), pools_verified.upper_bound(first | 0xffffU));
  std::erase_if(first_keys, [&](const auto& entry) { return entry.first.pool >> 16 == ns; });
  std::erase_if(conflict_keys, [&](const CanonicalKey& key) { return key.ns == ns; });
  std::erase_if(conflict_order, [&](const CanonicalKey& key) { return key.ns == ns; });
  std::erase_if(live_ranks, [&](const auto& entry) { return entry.first >> 48 == ns; });
  for (Sender& sender : senders) {
    std::erase_if(sender.lanes, [&](const Lane& lane) {
      if (lane.ns == ns) sender.open_bytes -= lane.open_bytes;
      return lane.ns == ns;
    });
    std::erase_if(sender.pools, [&](const AttachPool& pool) { return pool.ns == ns; });
  }
  std::erase_if(sweeps, [&](const Sweep& sweep) { return sweep.what != Sweep::What::all && sweep.ns == ns && !sweep.answer; });
}

}  // namespace kvonce::protocol
