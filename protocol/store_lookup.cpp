// SPDX-License-Identifier: Apache-2.0
//
// Which prefix lengths are restorable. The home partition (that of the first page) collects what each partition has,
// pinned, and fixes one answer; with one partition all of it happens in one call.
#include <algorithm>
#include <bit>

#include "protocol/shard_key_core.hpp"
#include "protocol/store_impl.hpp"

namespace kvonce::protocol {

namespace {
constexpr std::size_t kPrefetchAhead = 8;

// Of all engines. Each may pin the same page, which can have 65,535 pins.
constexpr std::uint64_t kLeasesMax = 49152;
// Of an engine's leases together, those of one page each counted, for each page that the index can have: a lease costs memory too.
constexpr std::uint64_t kLeasePagesPerRecord = 4;

/// Nobody gets more than twice what all together leave free of `limit`: whatever some hold, a further one finds something.
std::uint64_t fair_rest(std::uint64_t limit, std::uint64_t total, std::uint64_t used) {
  const std::uint64_t most = 2 * (limit - std::min(total, limit));
  return (most - std::min(used, most)) / 3;
}

std::size_t asked_pages(const LookupAsk& ask) { return std::max<std::size_t>(ask.pages.size(), ask.pages_asked); }
}

void StoreCore::Impl::lookup(std::uint64_t asker, const LookupAsk& ask, Time now, StoreActions& out) {
  LookupAnswer quick;
  quick.token = ask.token;
  const GroupInfo* group = catalog.find_group(ask.group);
  const bool known = group != nullptr && catalog.accepts(group->ns);
  if (!known || ask.pages.empty()) {
    // Groups go with their namespace.
    const bool gone = group != nullptr || ask.group < catalog.next_group();
    quick.error = known ? Reason::none : gone ? Reason::unknown_namespace : Reason::bad_argument;
    out.lookups.push_back({asker, quick});
    return;
  }
  for (const GroupPool& pool : group->pools) {
    const PoolInfo* info = catalog.find_pool(group->ns, pool.pool);
    if (info == nullptr || !info->demoted) continue;
    quick.redirect = true;
    quick.missing_pool = pool.pool;
    out.lookups.push_back({asker, quick});
    return;
  }
  const RequestKey key{ask.engine, ask.request, ask.digest};
  if (ask.has_request && !ask.probe) {
    if (answer_kept(asker, ask, key, now, out)) return;
    for (auto& [id, pending] : pending_lookups)
      if (pending.ask.has_request && RequestKey{pending.ask.engine, pending.ask.request, pending.ask.digest} == key) {
        pending.askers.push_back({asker, ask.token});
        // The most patient one's; whoever has less ends by itself.
        pending.deadline = std::max(pending.deadline, now + ask.time_left);
        return;
      }
  }
  ++stats.lookups;
  stats.lookup_pages_asked += asked_pages(ask);
  const std::uint64_t id = ++last_lookup;
  PendingLookup& pending = pending_lookups[id];
  pending.ask = ask;
  pending.askers.push_back({asker, ask.token});
  pending.lease = ask.probe ? LeaseId{} : new_lease_id();
  pending.deadline = now + std::max<Duration>(ask.time_left, kMillisecond);
  pending.pages.resize(ask.pages.size());
  for (std::uint32_t i = 0; i < pending.pages.size(); ++i) pending.pages[i].position = i;

  PartLookupAsk mine;
  mine.token = id;
  mine.home = config.partition;
  mine.engine = ask.engine;
  mine.group = ask.group;
  mine.lease = pending.lease;
  std::vector<PartLookupAsk> others;
  if (config.partitions > 1) {
    const Placement placement = Placement::local(config.partitions);
    others.assign(config.partitions, mine);
    for (std::uint32_t i = 0; i < ask.pages.size(); ++i) {
      PartLookupAsk& part = others[placement.owner(group->ns, ask.pages[i])];
      part.positions.push_back(i);
      part.pages.push_back(ask.pages[i]);
    }
    mine = std::move(others[config.partition]);
  } else {
    mine.pages = ask.pages;
    mine.positions.resize(ask.pages.size());
    for (std::uint32_t i = 0; i < ask.pages.size(); ++i) mine.positions[i] = i;
  }
  for (std::uint32_t p = 0; p < others.size(); ++p) {
    if (p == config.partition || others[p].pages.empty()) continue;
    pending.partitions.push_back(p);
    ++pending.missing_parts;
    out.part_asks.push_back({p, std::move(others[p])});
  }
  PartLookupAnswer found;
  part_lookup(mine, found);
  for (const PartPage& page : found.pages) pending.pages[page.position] = page;
  pending.gaps = std::move(found.gaps);
  if (pending.missing_parts == 0) fix_answer(id, now, out);
}

bool StoreCore::Impl::answer_kept(std::uint64_t asker, const LookupAsk& ask, const RequestKey& key, Time now, StoreActions& out) {
  const auto found = kept.find(key);
  if (found == kept.end()) return false;
  if (found->second.expires <= now) {
    kept.erase(found);
    return false;
  }
  ++stats.lookups_repeated;
  LookupAnswer answer = found->second.answer;
  answer.token = ask.token;
  answer.repeated = true;
  answer.kept = true;
  if (answer.lease) answer.lease_left = found->second.expires - now;
  out.lookups.push_back({asker, std::move(answer)});
  return true;
}

PartPage StoreCore::Impl::look_at(NamespaceId ns, const GroupInfo& group, std::uint32_t position, const PageHash& page,
                                  RecordId* record) const {
  PartPage view;
  view.position = position;
  *record = index.find(ns, page);
  if (*record == kNone) {
    // A group of trailing pools alone needs nothing of the pages between its stops.
    if (group.every_page == 0) return view;
    view.reason = ghost.contains(mix_page(ns, page)) ? Reason::evicted : Reason::absent;
    return view;
  }
  view.full_pools = index.full_pools(*record);
  view.checkpoint_in_flight = group.trailing != 0 && claimed(*record, true) != 0;
  const std::uint64_t missing = group.every_page & ~view.full_pools;
  if (missing == 0) return view;
  // Which shard of the first missing pool, and whether it is on its way.
  view.missing_pool = static_cast<PoolId>(std::countr_zero(missing));
  view.missing_shard = gap_of(ns, *record, position, view.missing_pool).first_missing;
  bool any = false;
  bool writing = false;
  for (const MemberId m : index.members(*record)) {
    const auto member = index.member(m);
    if (member.state == MemberState::claimed) writing |= (group.every_page >> member.pool & 1U) != 0;
    any |= member.state == MemberState::published;
  }
  if (writing)
    view.reason = Reason::in_flight;
  else if (any)
    view.reason = Reason::group_incomplete;
  else
    view.reason = ghost.contains(mix_page(ns, page)) ? Reason::evicted : Reason::absent;
  return view;
}

PartGap StoreCore::Impl::gap_of(NamespaceId ns, RecordId record, std::uint32_t position, PoolId pool) const {
  const std::uint32_t shards = std::min(catalog.find_pool(ns, pool)->shards.count(), kMaxShardsPerPool);
  std::uint64_t there[kMaxShardsPerPool / 64];
  std::fill_n(there, (shards + 63) / 64, 0);
  PartGap gap;
  gap.position = position;
  gap.pool = pool;
  gap.missing_shards = shards;
  for (const MemberId m : index.members(record)) {
    const auto member = index.member(m);
    if (member.state != MemberState::published || member.pool != pool || member.shard >= shards) continue;
    there[member.shard / 64] |= std::uint64_t{1} << (member.shard % 64);
    --gap.missing_shards;
  }
  while (gap.first_missing + 1 < shards && (there[gap.first_missing / 64] >> (gap.first_missing % 64) & 1U) != 0) ++gap.first_missing;
  return gap;
}

/// Reports this partition's pages up to the first that cannot be part of the prefix, and pins them.
void StoreCore::Impl::part_lookup(const PartLookupAsk& ask, PartLookupAnswer& answer) {
  answer.token = ask.token;
  answer.partition = config.partition;
  const GroupInfo* group = catalog.find_group(ask.group);
  if (group == nullptr) return;
  const std::size_t count = std::min(ask.pages.size(), ask.positions.size());
  answer.pages.reserve(count);
  PartLease* lease = nullptr;
  if (ask.lease) {
    lease = &part_leases[ask.lease];
    lease->pages.reserve(count);
  }
  std::uint64_t in_parts = 0;  // trailing pools that a page can have in part
  for (std::uint64_t left = group->trailing; left != 0; left &= left - 1) {
    const auto pool = static_cast<PoolId>(std::countr_zero(left));
    if (catalog.find_pool(group->ns, pool)->shards.count() > 1) in_parts |= std::uint64_t{1} << pool;
  }
  for (std::size_t i = 0; i < count && i < kPrefetchAhead; ++i) index.prefetch(group->ns, ask.pages[i]);
  for (std::size_t i = 0; i < count; ++i) {
    if (i + kPrefetchAhead < count) index.prefetch(group->ns, ask.pages[i + kPrefetchAhead]);
    if (i + kPrefetchAhead / 2 < count) index.prefetch_record(group->ns, ask.pages[i + kPrefetchAhead / 2]);
    RecordId record = kNone;
    PartPage view = look_at(group->ns, *group, ask.positions[i], ask.pages[i], &record);
    const bool checkpoint = (view.full_pools & group->trailing) != 0;
    if (view.reason == Reason::none && lease != nullptr && record != kNone) {
      const bool pinned = config.faults.evict_leased || (pin(record, false) && (!checkpoint || pin(record, true)));
      if (!pinned) view.reason = Reason::busy;
      const bool pins = pinned && !config.faults.evict_leased;
      lease->pages.push_back({ask.positions[i], record, pins, pins && checkpoint});
    }
    answer.pages.push_back(view);
    if (view.reason != Reason::none) break;
    // Most pages have no checkpoint at all: their members, each a cache miss, are not looked at.
    const std::uint64_t lacking = in_parts & ~view.full_pools;
    if (lacking != 0 && record != kNone && order.has_checkpoint(record))
      for (std::uint64_t left = lacking; left != 0; left &= left - 1)
        answer.gaps.push_back(gap_of(group->ns, record, ask.positions[i], static_cast<PoolId>(std::countr_zero(left))));
  }
}

/// Which pool and shard keep the stop behind the restorable prefix that is nearest to being legal from it.
void StoreCore::Impl::name_gap(const GroupInfo& group, const std::vector<PartPage>& pages, std::span<const PartGap> gaps,
                               LookupAnswer& answer) const {
  struct Needed {
    PoolId pool;
    std::uint32_t pages;   // before a stop
    std::uint32_t shards;
    std::uint64_t missing; // objects among those pages
  };
  std::vector<Needed> pools;
  std::uint32_t from = answer.restorable_pages;
  for (std::uint64_t left = group.trailing; left != 0; left &= left - 1) {
    const auto pool = static_cast<PoolId>(std::countr_zero(left));
    const PoolInfo* info = catalog.find_pool(group.ns, pool);
    pools.push_back({pool, info->policy.trailing_pages, info->shards.count(), 0});
    from = std::min(from, answer.restorable_pages + 1 - std::min<std::uint32_t>(answer.restorable_pages + 1, pools.back().pages));
  }
  const auto gap_at = [&](std::uint32_t page, PoolId pool) {
    const auto at = std::lower_bound(gaps.begin(), gaps.end(), std::pair(page, pool),
                                     [](const PartGap& gap, const auto& key) { return std::pair(gap.position, gap.pool) < key; });
    return at != gaps.end() && at->position == page && at->pool == pool ? &*at : nullptr;
  };
  const auto missing_at = [&](std::uint32_t page, const Needed& needed) -> std::uint64_t {
    if ((pages[page].full_pools >> needed.pool & 1U) != 0) return 0;
    const PartGap* gap = gaps.empty() ? nullptr : gap_at(page, needed.pool);
    return gap != nullptr ? gap->missing_shards : needed.shards;
  };
  std::uint32_t nearest = answer.restorable_pages + 1;
  std::uint64_t fewest = ~std::uint64_t{0};
  for (std::uint32_t page = from; page < answer.resident_pages && fewest > 1; ++page) {
    std::uint64_t missing = 0;
    for (Needed& needed : pools) {
      needed.missing += missing_at(page, needed);
      if (page >= from + needed.pages) needed.missing -= missing_at(page - needed.pages, needed);
      missing += needed.missing;
    }
    if (page < answer.restorable_pages || missing >= fewest) continue;
    fewest = missing;
    nearest = page + 1;
  }
  for (const Needed& needed : pools)
    for (std::uint32_t page = nearest - std::min(nearest, needed.pages); page < nearest; ++page) {
      if (missing_at(page, needed) == 0) continue;
      answer.missing_pool = needed.pool;
      const PartGap* gap = gap_at(page, needed.pool);
      answer.missing_shard = gap != nullptr ? gap->first_missing : 0;
      return;
    }
}

void StoreCore::Impl::find_stops(const GroupInfo& group, const std::vector<PartPage>& pages, std::span<const PartGap> gaps,
                                 LookupAnswer& answer) const {
  std::uint32_t resident = 0;
  while (resident < pages.size() && pages[resident].reason == Reason::none &&
         (pages[resident].full_pools & group.every_page) == group.every_page)
    ++resident;
  answer.resident_pages = resident;
  if (group.trailing == 0) {
    answer.every_stop = true;
    answer.restorable_pages = resident;
  } else {
    std::vector<std::pair<PoolId, std::uint32_t>> pools;  // (pool, pages it must have before a stop)
    for (std::uint64_t left = group.trailing; left != 0; left &= left - 1) {
      const auto pool = static_cast<PoolId>(std::countr_zero(left));
      pools.push_back({pool, catalog.find_pool(group.ns, pool)->policy.trailing_pages});
    }
    std::vector<std::uint32_t> run(pools.size(), 0);
    for (std::uint32_t i = 0; i < resident; ++i) {
      bool legal = true;
      for (std::size_t p = 0; p < pools.size(); ++p) {
        run[p] = (pages[i].full_pools >> pools[p].first & 1U) != 0 ? run[p] + 1 : 0;
        legal &= run[p] >= std::min(pools[p].second, i + 1);
      }
      if (legal) answer.stops.push_back(i + 1);
    }
    answer.restorable_pages = answer.stops.empty() ? 0 : answer.stops.back();
  }
  if (answer.restorable_pages < pages.size()) {
    answer.first_missing = answer.restorable_pages;
    const PartPage& missing = pages[resident < pages.size() ? resident : answer.restorable_pages];
    if (resident > answer.restorable_pages || missing.reason == Reason::none) {
      // The pages go on, but no checkpoint lies behind the last stop; or one is on its way.
      const bool writing = std::any_of(pages.begin() + answer.restorable_pages, pages.begin() + resident,
                                       [](const PartPage& page) { return page.checkpoint_in_flight; });
      answer.reason = writing ? Reason::in_flight : Reason::group_incomplete;
      if (!writing && group.trailing != 0) name_gap(group, pages, gaps, answer);
    } else {
      answer.first_missing = resident;
      answer.reason = missing.reason;
      answer.missing_pool = missing.missing_pool;
      answer.missing_shard = missing.missing_shard;
      if (missing.reason == Reason::busy) answer.retry_after_ms = kRetryMs;
    }
  }
}

std::uint64_t StoreCore::Impl::nominal_bytes(const GroupInfo& group, bool checkpoint) const {
  std::uint64_t bytes = 0;
  for (const GroupPool& member : group.pools) {
    const PoolInfo* pool = catalog.find_pool(group.ns, member.pool);
    // A stop holds as many pages' checkpoints as its pool has to have before it.
    if (pool->policy.is_trailing() == checkpoint) bytes += pool->object_bytes * pool->shards.count() * std::max<std::uint64_t>(pool->policy.trailing_pages, 1);
  }
  // Pages that are small for the index use up its records before the memory.
  if (!checkpoint) bytes = std::max(bytes, budget() / std::max<std::uint32_t>(index.max_records(), 1));
  return bytes;
}

std::uint64_t StoreCore::Impl::budget() const { return config.capacity_bytes != 0 ? config.capacity_bytes : config.slots_bytes; }

/// What an engine that has leased `used` bytes may lease more: one engine alone half of the budget, n of them 3 / (2 + 4 n) of it each.
std::uint64_t StoreCore::Impl::bytes_to_lease(std::uint64_t used) const {
  if (config.leased_bytes_per_engine != 0) return config.leased_bytes_per_engine - std::min(used, config.leased_bytes_per_engine);
  const std::uint64_t all = budget() * config.partitions;
  std::uint64_t total = 0;
  for (const auto& [id, engine] : engines) total += engine.leased_bytes;
  return fair_rest(all - all / 4, total, used);
}

std::uint64_t StoreCore::Impl::leases_to_have(std::uint32_t used) const {
  if (config.max_leases_per_engine != 0) return config.max_leases_per_engine - std::min(used, config.max_leases_per_engine);
  std::uint64_t total = 0;
  for (const auto& [id, engine] : engines) total += engine.leases;
  return fair_rest(kLeasesMax, total, used);
}

/// Shortens the answer to what the engine may still lease. A shortage says busy, never "not found".
void StoreCore::Impl::limit_by_budget(const GroupInfo& group, const LookupAsk& ask, LookupAnswer& answer) const {
  const auto known = engines.find(ask.engine);
  const std::uint64_t left = bytes_to_lease(known == engines.end() ? 0 : known->second.leased_bytes);
  const std::uint64_t page = nominal_bytes(group, false);
  const std::uint64_t checkpoint = nominal_bytes(group, true);
  const bool too_many = leases_to_have(known == engines.end() ? 0 : known->second.leases) == 0;
  const std::uint64_t entries = index.max_records() * kLeasePagesPerRecord;
  const std::uint64_t longest = entries - std::min(entries, known == engines.end() ? 0 : known->second.lease_pages);
  // What other leases of the engine hold is counted already.
  const auto book = lease_books.find({ask.engine, ask.group});
  LeaseBook::Counted counted;
  if (book != lease_books.end()) counted = book->second.counted(std::span(ask.pages).first(answer.restorable_pages));
  const auto cost = [&](const std::vector<std::uint32_t>& stops) {
    const std::size_t covered = std::min<std::size_t>(stops.size(), config.leased_stops);
    const auto more = std::count_if(stops.end() - static_cast<std::ptrdiff_t>(covered), stops.end(), [&](std::uint32_t stop) {
      return !std::binary_search(counted.stops.begin(), counted.stops.end(), stop);
    });
    return (stops.back() - std::min(stops.back(), counted.pages)) * page + static_cast<std::uint64_t>(more) * checkpoint;
  };
  const std::uint32_t before = answer.restorable_pages;
  if (answer.every_stop) {
    answer.restorable_pages = too_many ? 0 : static_cast<std::uint32_t>(std::min<std::uint64_t>(answer.restorable_pages, longest));
    if (page != 0) answer.restorable_pages = static_cast<std::uint32_t>(std::min<std::uint64_t>(answer.restorable_pages, counted.pages + left / page));
  } else {
    while (!answer.stops.empty() && (too_many || answer.stops.back() > longest || cost(answer.stops) > left)) answer.stops.pop_back();
    answer.restorable_pages = answer.stops.empty() ? 0 : answer.stops.back();
  }
  if (answer.restorable_pages == before) return;
  answer.first_missing = answer.restorable_pages;
  answer.reason = config.faults.answer_busy_as_absent ? Reason::absent : Reason::busy;
  answer.retry_after_ms = kRetryMs;
}

/// Without an answer: what the partitions pin for it goes back.
void StoreCore::Impl::end_lookup(PendingLookup&& pending, Reason why, bool search_again, StoreActions& out) {
  for (const std::uint32_t p : pending.partitions) out.part_narrows.push_back({p, PartNarrow{pending.lease, 0, 0, 1, {}}});
  part_narrow(PartNarrow{pending.lease, 0, 0, 1, {}});
  for (const auto& [asker, token] : pending.askers) {
    LookupAnswer answer;
    answer.token = token;
    answer.error = why;
    answer.search_again = search_again;
    out.lookups.push_back({asker, answer});
  }
}

void StoreCore::Impl::fix_answer(std::uint64_t id, Time now, StoreActions& out) {
  PendingLookup pending = std::move(pending_lookups.find(id)->second);
  pending_lookups.erase(id);
  const GroupInfo& group = *catalog.find_group(pending.ask.group);
  LookupAnswer answer;
  if (config.partitions > 1)
    std::sort(pending.gaps.begin(), pending.gaps.end(),
              [](const PartGap& a, const PartGap& b) { return std::pair(a.position, a.pool) < std::pair(b.position, b.pool); });
  find_stops(group, pending.pages, pending.gaps, answer);
  // The asker left out what lies behind: what its search found missing has come since.
  if (answer.resident_pages == pending.pages.size() && answer.resident_pages < asked_pages(pending.ask) && !config.faults.trust_search) {
    --stats.lookups;  // it is asked again, and counted then
    stats.lookup_pages_asked -= asked_pages(pending.ask);
    return end_lookup(std::move(pending), Reason::none, true, out);
  }
  if (!pending.ask.probe) limit_by_budget(group, pending.ask, answer);
  for (std::uint64_t left = group.optional_pools; left != 0; left &= left - 1) {
    const auto pool = static_cast<PoolId>(std::countr_zero(left));
    const HitPolicy policy = catalog.find_pool(group.ns, pool)->policy;
    const std::uint32_t first =
        policy.is_trailing() ? answer.restorable_pages - std::min<std::uint32_t>(answer.restorable_pages, policy.trailing_pages) : 0;
    for (std::uint32_t i = first; i < answer.restorable_pages; ++i)
      if ((pending.pages[i].full_pools >> pool & 1U) == 0) {
        answer.optional_missing |= std::uint64_t{1} << pool;
        break;
      }
  }
  stats.lookup_pages_hit += answer.restorable_pages;
  if (answer.reason != Reason::none) ++stats.misses[static_cast<std::size_t>(answer.reason)];
  const std::size_t covered = std::min<std::size_t>(answer.stops.size(), config.leased_stops);
  answer.leased_stops.assign(answer.stops.end() - static_cast<std::ptrdiff_t>(covered), answer.stops.end());

  const RequestKey key{pending.ask.engine, pending.ask.request, pending.ask.digest};
  Time keep_until = now + config.empty_answer_time;
  if (pending.lease) {
    Lease lease;
    lease.engine = pending.ask.engine;
    lease.group = pending.ask.group;
    lease.stop = answer.restorable_pages;
    lease.stops = answer.leased_stops;
    lease.partitions = pending.partitions;
    const Duration wanted = pending.ask.lease_time != 0 ? pending.ask.lease_time : config.lease_time;
    lease.expires = now + std::min(wanted, config.lease_time_max);
    // Parts pinned all that they have: they keep what the answer names, and touch it.
    narrow_everywhere(pending.lease, lease, answer.restorable_pages, answer.resident_pages, out);
    if (answer.restorable_pages > 0) {
      answer.lease = pending.lease;
      answer.lease_left = lease.expires - now;
      pending.ask.pages.resize(answer.restorable_pages);
      count_lease(lease, group, std::move(pending.ask.pages));
      ++engines[lease.engine].leases;
      engines[lease.engine].lease_pages += lease.stop;
      keep_until = lease.expires;
      lease.has_request = pending.ask.has_request;
      lease.request = key;
      lease_ends.emplace(lease.expires, pending.lease);
      leases.emplace(pending.lease, std::move(lease));
    }
    if (pending.ask.has_request) {
      kept[key] = KeptAnswer{answer, keep_until, answer.lease};
      kept_ends.emplace(keep_until, key);
    }
  }
  answer.kept = pending.ask.has_request;
  for (const auto& [asker, token] : pending.askers) {
    answer.token = token;
    out.lookups.push_back({asker, answer});
  }
}

}  // namespace kvonce::protocol
