// SPDX-License-Identifier: Apache-2.0
//
// Leases and the loads that they allow.
#include <algorithm>

#include "protocol/shard_key_core.hpp"
#include "protocol/store_impl.hpp"

namespace kvonce::protocol {

namespace {
constexpr std::size_t kEndedLeasesKnown = 4096;

/// What has ended before its time is not kept until then.
template <class Ends, class Name>
void drop_end(Ends& ends, Time at, const Name& name) {
  const auto [first, last] = ends.equal_range(at);
  const auto end = std::find_if(first, last, [&](const auto& entry) { return entry.second == name; });
  if (end != last) ends.erase(end);
}

std::uint64_t scramble(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}
}  // namespace

LeaseId StoreCore::Impl::new_lease_id() {
  const std::uint64_t number = ++last_lease;
  LeaseId id;
  id.high = scramble(config.lease_seed[0] ^ scramble(number ^ config.incarnation)) | 1;  // never zero
  id.low = scramble(config.lease_seed[1] + scramble(number * 2 + 1));
  id.low = (id.low & ~std::uint64_t{63}) | (config.partition & 63U);  // whoever holds it finds its home by it
  return id;
}

/// Gives back this partition's pins behind `stop`, and those of checkpoints that no kept stop needs; touches what was used.
void StoreCore::Impl::part_narrow(const PartNarrow& narrow) {
  const auto found = part_leases.find(narrow.lease);
  if (found == part_leases.end()) return;
  PartLease& lease = found->second;
  std::uint32_t trailing_max = 1;
  if (narrow.stop != 0) trailing_max = std::max<std::uint32_t>(narrow.trailing_pages, 1);
  const auto kept_checkpoint = [&](std::uint32_t position) {
    if (narrow.stop == 0) return false;
    return std::any_of(narrow.stops.begin(), narrow.stops.end(), [&](std::uint32_t stop) {
      return position < stop && position + trailing_max >= stop;
    });
  };
  if (narrow.touch_pages != 0) {
    order.begin_touch();
    for (std::size_t i = lease.pages.size(); i-- > 0;) {
      const auto& page = lease.pages[i];
      if (page.position >= narrow.touch_pages || !page.page) continue;
      order.touch_page(page.record);
      // Only the checkpoint that the answer ends on: others age, which decides several points of hit rate.
      if (narrow.stop != 0 && page.position < narrow.stop && page.position + trailing_max >= narrow.stop && order.has_checkpoint(page.record))
        order.touch_checkpoint(page.record);
    }
  }
  // Deepest first, so that a parent that becomes a leaf finds its place at once.
  std::vector<PartLease::Page> pages;
  pages.swap(lease.pages);
  if (narrow.stop == 0) part_leases.erase(found);
  std::size_t left = 0;
  for (std::size_t i = pages.size(); i-- > 0;) {
    PartLease::Page& page = pages[i];
    const bool keep_page = page.position < narrow.stop;
    if (page.checkpoint && !(keep_page && kept_checkpoint(page.position))) {
      page.checkpoint = false;
      unpin(page.record, true);
    }
    if (page.page && !keep_page) {
      page.page = false;
      unpin(page.record, false);
    }
    if (keep_page) ++left;
  }
  if (narrow.stop == 0) return;
  pages.resize(left);  // positions ascend: those kept are the first
  part_leases[narrow.lease].pages.swap(pages);
}

void StoreCore::Impl::narrow_everywhere(const LeaseId& id, Lease& lease, std::uint32_t stop, std::uint32_t touch_pages,
                                        StoreActions& out) {
  PartNarrow narrow;
  narrow.lease = id;
  narrow.stop = stop;
  narrow.touch_pages = touch_pages;
  const GroupInfo* group = catalog.find_group(lease.group);
  narrow.trailing_pages = group != nullptr ? group->trailing_pages_max : 1;
  for (const std::uint32_t kept_stop : lease.stops)
    if (kept_stop <= stop) narrow.stops.push_back(kept_stop);
  for (const std::uint32_t partition : lease.partitions) out.part_narrows.push_back({partition, narrow});
  part_narrow(narrow);
}

void StoreCore::Impl::count_lease(Lease& lease, const GroupInfo& group, std::vector<PageHash> pages) {
  Engine& engine = engines[lease.engine];
  LeaseBook& book = lease_books[{lease.engine, lease.group}];
  const std::uint64_t before = book.bytes();
  lease.end = book.add(std::move(pages), lease.stops, nominal_bytes(group, false), nominal_bytes(group, true));
  engine.leased_bytes += book.bytes() - before;
}

void StoreCore::Impl::recount_lease(Lease& lease, const GroupInfo& group, std::uint32_t stop) {
  Engine& engine = engines[lease.engine];
  if (lease.end == LeaseBook::kNoNode) {
    const auto stops = static_cast<std::uint64_t>(std::count_if(lease.stops.begin(), lease.stops.end(), [&](std::uint32_t s) { return s <= stop; }));
    const std::uint64_t bytes = std::min(lease.bytes, stop * nominal_bytes(group, false) + stops * nominal_bytes(group, true));
    engine.leased_bytes -= lease.bytes - bytes;
    lease.bytes = bytes;
    return;
  }
  LeaseBook& book = lease_books[{lease.engine, lease.group}];
  const std::uint64_t before = book.bytes();
  lease.end = book.narrow(lease.end, stop, lease.stops);
  engine.leased_bytes -= before - book.bytes();
}

void StoreCore::Impl::uncount_lease(Lease& lease) {
  Engine& engine = engines[lease.engine];
  if (lease.end == LeaseBook::kNoNode) {
    engine.leased_bytes -= lease.bytes;
    return;
  }
  const auto at = lease_books.find({lease.engine, lease.group});
  LeaseBook& book = at->second;
  const std::uint64_t before = book.bytes();
  book.remove(lease.end, lease.stops);
  engine.leased_bytes -= before - book.bytes();
  if (book.empty()) lease_books.erase(at);
}

Reason StoreCore::Impl::narrow(const LeaseCall& call, StoreActions& out) {
  if (call.stop == 0) return release(call, out);
  const auto found = leases.find(call.lease);
  if (found == leases.end() || found->second.engine != call.engine || found->second.ended)
    return ended_set.contains(call.lease) ? Reason::lease_expired : Reason::lease_unknown;
  Lease& lease = found->second;
  if (call.stop >= lease.stop) return Reason::none;
  if (!lease.loads.empty()) {
    // Running loads may read what lies behind: it goes when they have ended.
    lease.narrowed_to = lease.narrowed_to == 0 ? call.stop : std::min(lease.narrowed_to, call.stop);
    return Reason::none;
  }
  const GroupInfo* group = catalog.find_group(lease.group);
  narrow_everywhere(call.lease, lease, call.stop, 0, out);
  engines[lease.engine].lease_pages -= lease.stop - call.stop;
  lease.stop = call.stop;
  recount_lease(lease, *group, call.stop);
  std::erase_if(lease.stops, [&](std::uint32_t stop) { return stop > call.stop; });
  return Reason::none;
}

Reason StoreCore::Impl::release(const LeaseCall& call, StoreActions& out) {
  const auto found = leases.find(call.lease);
  if (found == leases.end()) return ended_set.contains(call.lease) ? Reason::none : Reason::lease_unknown;
  if (found->second.engine != call.engine) return Reason::lease_unknown;
  end_lease(call.lease, out);
  return Reason::none;
}

void StoreCore::Impl::end_lease(const LeaseId& id, StoreActions& out) {
  Lease& lease = leases.find(id)->second;
  if (!lease.ended) {
    lease.ended = true;
    if (lease.has_request) {
      const auto answer = kept.find(lease.request);
      if (answer != kept.end() && answer->second.lease == id) {
        drop_end(kept_ends, answer->second.expires, lease.request);
        kept.erase(answer);
      }
    }
    ended_leases.push_back(id);
    ended_set.insert(id);
    if (ended_leases.size() > kEndedLeasesKnown) {
      ended_set.erase(ended_leases.front());
      ended_leases.pop_front();
    }
  }
  if (lease.loads.empty()) drop_lease(id, out);
}

void StoreCore::Impl::drop_lease(const LeaseId& id, StoreActions& out) {
  const auto found = leases.find(id);
  Engine& engine = engines[found->second.engine];
  uncount_lease(found->second);
  if (engine.leases > 0) --engine.leases;
  engine.lease_pages -= std::min<std::uint64_t>(engine.lease_pages, found->second.stop);
  drop_end(lease_ends, found->second.expires, id);
  narrow_everywhere(id, found->second, 0, 0, out);
  leases.erase(found);
}

void StoreCore::Impl::load_begin(const LoadBegin& begin, Time now, StoreActions& out) {
  LoadBegun begun;
  begun.load = begin.load;
  const auto found = leases.find(begin.lease);
  if (found == leases.end() || found->second.engine != begin.engine) {
    begun.reason = ended_set.contains(begin.lease) ? Reason::lease_expired : Reason::lease_unknown;
  } else if (found->second.ended || found->second.expires <= now) {
    begun.reason = Reason::lease_expired;
  } else {
    // From here on the load's own deadline counts, not the lease's.
    begun.leased_pages = found->second.stop;
    const std::uint32_t sender = slot_of(begin.sender);
    found->second.loads.push_back({begin.sender, begin.load, now + std::min(begin.time_left, config.lease_time_max),
                                   sender == kNone ? ClientId{0} : senders[sender].client});
  }
  out.loads.push_back({begin.sender, begun});
}

void StoreCore::Impl::load_end(const LoadEnd& end, StoreActions& out) {
  const auto found = leases.find(end.lease);
  if (found == leases.end()) return;
  std::erase_if(found->second.loads, [&](const Lease::Load& load) { return load.sender == end.sender && load.load == end.load; });
  loads_ended(end.lease, found->second, out);
}

void StoreCore::Impl::loads_ended(const LeaseId& id, Lease& lease, StoreActions& out) {
  if (!lease.loads.empty()) return;
  if (lease.ended) return drop_lease(id, out);
  if (lease.narrowed_to != 0) {
    const std::uint32_t stop = lease.narrowed_to;
    lease.narrowed_to = 0;
    narrow(LeaseCall{id, lease.engine, stop}, out);
  }
}

void StoreCore::Impl::end_loads(ClientId client, StoreActions& out) {
  std::vector<LeaseId> touched;
  for (auto& [id, lease] : leases)
    if (std::erase_if(lease.loads, [&](const Lease::Load& load) { return load.client == client; }) != 0) touched.push_back(id);
  for (const LeaseId& id : touched) loads_ended(id, leases.find(id)->second, out);
}

void StoreCore::Impl::scan_leases(Time now, StoreActions& out) {
  for (auto& [id, engine] : engines) {
    if (engine.leases == 0 || engine.gone_at == kNever || engine.gone_at + config.engine_grace > now) continue;
    std::vector<LeaseId> orphans;
    for (const auto& [lease_id, lease] : leases)
      if (lease.engine == id && !lease.ended) orphans.push_back(lease_id);
    for (const LeaseId& orphan : orphans) end_lease(orphan, out);
    engine.gone_at = now;  // those kept by running loads are looked at again after another grace
  }
  while (!lease_ends.empty() && lease_ends.begin()->first <= now) {
    const LeaseId id = lease_ends.begin()->second;
    lease_ends.erase(lease_ends.begin());
    const auto found = leases.find(id);
    if (found == leases.end()) continue;
    Lease& lease = found->second;
    std::erase_if(lease.loads, [&](const Lease::Load& load) { return load.deadline <= now; });
    Time again = kNever;
    for (const Lease::Load& load : lease.loads) again = std::min(again, load.deadline);
    end_lease(id, out);
    if (again != kNever) lease_ends.emplace(again, id);
  }
  while (!kept_ends.empty() && kept_ends.begin()->first <= now) {
    const auto answer = kept.find(kept_ends.begin()->second);
    if (answer != kept.end() && answer->second.expires <= now) kept.erase(answer);
    kept_ends.erase(kept_ends.begin());
  }
}

}  // namespace kvonce::protocol
