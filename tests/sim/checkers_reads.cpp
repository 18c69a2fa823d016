// SPDX-License-Identifier: Apache-2.0
//
// Lookups and leases: no false miss (P5), right stops, equal answers for one request, leased pages stay.
#include <algorithm>
#include <set>

#include "tests/sim/checkers.hpp"
#include "tests/sim/store_node.hpp"

namespace kvonce::sim {
namespace {

constexpr Duration kLookupTimeMax = 100 * kMillisecond;

bool has(std::uint64_t mask, PoolId pool) { return (mask >> pool & 1U) != 0; }

}  // namespace

bool Checkers::full(std::uint32_t partition, NamespaceId ns, const PageHash& page, PoolId pool) const {
  const PoolInfo* info = node_->core(partition).catalog().find_pool(ns, pool);
  if (info == nullptr) return false;
  for (std::uint32_t shard = 0; shard < info->shards.count(); ++shard)
    if (!readable(partition, CanonicalKey{page, ns, pool, shard, info->generation}, nullptr)) return false;
  return true;
}

bool Checkers::in_flight(const CanonicalKey& key) const {
  const auto book = keys_.find(key);
  return book != keys_.end() && std::any_of(book->second.waiting.begin(), book->second.waiting.end(),
                                            [](const Waiting& w) { return w.claiming; });
}

void Checkers::before_lookup(std::uint32_t partition, SenderId asker, const LookupAsk& ask,
                             const std::vector<PageHash>& pages) {
  const auto group = groups_.find(ask.group);
  const bool retired = group != groups_.end() && is_retired(partition, group->second);
  if (group != groups_.end()) touched(group->second);
  if (retired) sim_.probes.hit(Probe::late_lookup);
  sim_.probes.hit(Probe::lookups);
  // Whoever joins a lookup that is under way gets an answer from before its own question.
  Time since = sim_.now();
  for (const auto& [name, other] : asks_)
    if (ask.has_request && other.ask.engine == ask.engine && other.ask.request == ask.request) since = std::min(since, other.at);
  AskBook& book = asks_[{asker, ask.token}] = AskBook{ask, since, retired};
  book.ask.pages = pages;
  // The store itself ends a wait for other partitions; one that joins another rank's lookup has that one's deadline.
  const auto life = node_->life();
  const Duration bound = kLookupTimeMax + 2 * sim_.knobs.store.scan_period + kMillisecond;
  sim_.schedule.after(bound, [this, life, asker, token = ask.token] {
    if (node_->life() == life && life->up && asks_.contains({asker, token}))
      sim_.violate(6, "a lookup was not answered by its deadline");
  });
}

void Checkers::on_lookup_answer(std::uint32_t partition, SenderId asker, const LookupAnswer& answer) {
  const auto at = asks_.find({asker, answer.token});
  if (at == asks_.end()) return;  // a forger's
  const AskBook book = at->second;
  asks_.erase(at);
  sim_.note("lookup answer", answer.restorable_pages, static_cast<std::uint64_t>(answer.reason), answer.lease.low);
  if (book.retired && answer.error != Reason::unknown_namespace)
    sim_.violate(5, "a lookup in a namespace that is retired was answered with " + std::string(to_string(answer.error)));
  if (answer.search_again) {
    sim_.probes.hit(Probe::search_again);
    if (answer.lease) sim_.violate(5, "a lookup that is to be asked again has got a lease");
  }
  if (answer.error != Reason::none || answer.redirect || answer.search_again) return;
  const auto hit = [this](bool on, Probe probe) {
    if (on) sim_.probes.hit(probe);
  };
  hit(answer.repeated, Probe::repeated_lookup);
  hit(answer.reason == Reason::in_flight, Probe::in_flight_answer);
  hit(answer.reason == Reason::busy, Probe::busy_answer);
  hit(answer.reason == Reason::evicted, Probe::evicted_answer);
  hit(answer.reason == Reason::absent, Probe::absent_answer);
  hit(answer.reason == Reason::group_incomplete, Probe::incomplete_answer);
  hit(answer.optional_missing != 0, Probe::optional_missing);
  hit(!answer.every_stop && answer.stops.size() > 1, Probe::stops_by_trailing);

  const auto count = static_cast<std::uint32_t>(book.ask.pages.size());
  if (const GroupInfo* group = node_->core(partition).catalog().find_group(book.ask.group); group != nullptr && group->every_page == 0)
    hit(std::any_of(book.ask.pages.begin(), book.ask.pages.begin() + std::min(answer.restorable_pages, count),
                    [&](const PageHash& page) { return !pages_.contains({group->ns, page}); }),
        Probe::stop_over_nothing);
  if (answer.restorable_pages > count || answer.resident_pages > count || answer.resident_pages < answer.restorable_pages)
    sim_.violate(5, "a lookup of " + std::to_string(count) + " pages says " + std::to_string(answer.restorable_pages) +
                        " restorable of " + std::to_string(answer.resident_pages) + " resident");
  if ((answer.reason == Reason::none) != (answer.restorable_pages == count) && count != 0)
    sim_.violate(5, "a lookup gives reason " + std::string(to_string(answer.reason)) + " with " +
                        std::to_string(answer.restorable_pages) + " of " + std::to_string(count) + " pages");
  check_same_request(book, answer);
  if (answer.repeated) return;
  if (sim_.knobs.partitions == 1) {
    compare_with_model(partition, book, answer);
    check_missing(partition, book, answer);
  } else if (answer.lease && last_disturbance_ < book.at) {
    // What was leased is there when the answer is made, on whichever partition.
    const GroupInfo* group = node_->core(0).catalog().find_group(book.ask.group);
    for (std::uint32_t i = 0; group != nullptr && i < answer.restorable_pages; ++i) {
      for (PoolId pool = 0; pool < kMaxPoolsPerNamespace; ++pool) {
        const std::uint32_t at_part = owner(CanonicalKey{book.ask.pages[i], group->ns, 0, 0, 0});
        if (has(group->every_page, pool) && !full(at_part, group->ns, book.ask.pages[i], pool))
          sim_.violate(5, "page " + page_name(book.ask.pages[i]) + " was leased and is not there");
      }
    }
  }
  if (answer.lease) note_lease(book, answer);
}

// With one partition the answer and the model see the same moment.
void Checkers::compare_with_model(std::uint32_t partition, const AskBook& book, const LookupAnswer& answer) {
  const Catalog& catalog = node_->core(partition).catalog();
  const GroupInfo* group = catalog.find_group(book.ask.group);
  if (group == nullptr) return;
  const auto& pages = book.ask.pages;
  std::vector<std::pair<PoolId, std::uint32_t>> trailing;
  std::vector<PoolId> every;
  for (const GroupPool& pool : group->pools) {
    if (pool.optional) continue;
    const PoolInfo* info = catalog.find_pool(group->ns, pool.pool);
    if (info->policy.is_trailing())
      trailing.emplace_back(pool.pool, info->policy.trailing_pages);
    else
      every.push_back(pool.pool);
  }
  std::uint32_t resident = 0;
  for (; resident < pages.size(); ++resident) {
    const bool all = std::all_of(every.begin(), every.end(),
                                 [&](PoolId pool) { return full(partition, group->ns, pages[resident], pool); });
    if (!all) break;
  }
  std::vector<std::uint32_t> stops;
  for (std::uint32_t stop = 1; stop <= resident; ++stop) {
    bool legal = true;
    for (const auto& [pool, n] : trailing)
      for (std::uint32_t i = stop - std::min(stop, n); legal && i < stop; ++i)
        legal = full(partition, group->ns, pages[i], pool);
    if (legal) stops.push_back(stop);
  }
  if (answer.resident_pages != resident)
    sim_.violate(5, "a lookup says " + std::to_string(answer.resident_pages) + " resident pages, there are " +
                        std::to_string(resident));
  const std::uint32_t deepest = stops.empty() ? 0 : stops.back();
  const bool shorter = answer.reason == Reason::busy;
  if (answer.restorable_pages > deepest || (answer.restorable_pages < deepest && !shorter))
    sim_.violate(5, "a lookup says " + std::to_string(answer.restorable_pages) + " restorable pages (" +
                        std::string(to_string(answer.reason)) + "), there are " + std::to_string(deepest));
  std::vector<std::uint32_t> told = answer.stops;
  if (answer.every_stop) {
    told.clear();
    for (std::uint32_t i = 1; i <= answer.restorable_pages; ++i) told.push_back(i);
  }
  while (!stops.empty() && stops.back() > answer.restorable_pages) stops.pop_back();
  if (told != stops) sim_.violate(5, "a lookup's legal stops are not those that the readable objects allow");
}

void Checkers::check_missing(std::uint32_t partition, const AskBook& book, const LookupAnswer& answer) {
  const GroupInfo* group = node_->core(partition).catalog().find_group(book.ask.group);
  if (group == nullptr || answer.first_missing >= book.ask.pages.size() || answer.reason == Reason::none) return;
  const PageHash& page = book.ask.pages[answer.first_missing];
  const auto records = pages_.find({group->ns, page});
  bool every_missing = false;
  bool flying = false;
  bool maybe_flying = false;
  for (const GroupPool& pool : group->pools) {
    const PoolInfo* info = node_->core(partition).catalog().find_pool(group->ns, pool.pool);
    if (pool.optional || info->policy.is_trailing()) continue;
    if (full(partition, group->ns, page, pool.pool)) continue;
    every_missing = true;
    for (std::uint32_t shard = 0; shard < info->shards.count(); ++shard) {
      const CanonicalKey key{page, group->ns, pool.pool, shard, info->generation};
      const auto waited = keys_.find(key);
      flying |= in_flight(key) && !readable(partition, key, nullptr);
      maybe_flying |= waited != keys_.end() && !waited->second.waiting.empty();
    }
  }
  const bool trailing_reason = !every_missing;
  const auto complain = [&](const std::string& why) {
    sim_.violate(5, "a lookup's first missing page " + page_name(page) + " is told as " +
                        std::string(to_string(answer.reason)) + ", but " + why);
  };
  switch (answer.reason) {
    case Reason::absent:
    case Reason::evicted:
      if (trailing_reason) complain("all of it is there");
      if (flying) complain("it is being written");
      if (answer.reason == Reason::evicted && (records == pages_.end() || !records->second.ever_evicted))
        complain("it was never evicted");
      if (answer.reason == Reason::absent && records != pages_.end() && records->second.evicted &&
          !records->second.ever_removed && sim_.knobs.store.ghost_entries >= 65'536)
        complain("it was evicted");
      break;
    case Reason::group_incomplete:
      if (flying && every_missing) complain("it is being written");
      if (every_missing) {
        const PoolInfo* info = node_->core(partition).catalog().find_pool(group->ns, answer.missing_pool);
        if (info != nullptr &&
            readable(partition, CanonicalKey{page, group->ns, answer.missing_pool, answer.missing_shard, info->generation},
                     nullptr))
          complain("the named shard is there");
      } else {
        check_missing_checkpoint(partition, book, answer);
      }
      break;
    case Reason::in_flight:
      if (!maybe_flying && every_missing) complain("nobody writes it");
      break;
    case Reason::busy:
      if (sim_.knobs.calm) complain("nothing is short in this run");
      break;
    default:
      complain("that is no reason for a miss");
  }
}

// Of the stops behind the prefix the first of those that lack the fewest objects says what is missing.
void Checkers::check_missing_checkpoint(std::uint32_t partition, const AskBook& book, const LookupAnswer& answer) {
  const Catalog& catalog = node_->core(partition).catalog();
  const GroupInfo* group = catalog.find_group(book.ask.group);
  std::set<PoolId> trailing;
  for (const GroupPool& pool : group->pools)
    if (!pool.optional && catalog.find_pool(group->ns, pool.pool)->policy.is_trailing()) trailing.insert(pool.pool);
  std::size_t fewest = ~std::size_t{0};
  std::pair<PoolId, std::uint32_t> expected;
  for (std::uint32_t stop = answer.restorable_pages + 1; stop <= answer.resident_pages; ++stop) {
    std::vector<std::pair<PoolId, std::uint32_t>> missing;
    for (const PoolId pool : trailing) {
      const PoolInfo* info = catalog.find_pool(group->ns, pool);
      for (std::uint32_t i = stop - std::min<std::uint32_t>(stop, info->policy.trailing_pages); i < stop; ++i)
        for (std::uint32_t shard = 0; shard < info->shards.count(); ++shard)
          if (!readable(partition, CanonicalKey{book.ask.pages[i], group->ns, pool, shard, info->generation}, nullptr))
            missing.emplace_back(pool, shard);
    }
    if (missing.empty() || missing.size() >= fewest) continue;
    fewest = missing.size();
    expected = missing.front();
  }
  if (expected.second != 0) sim_.probes.hit(Probe::incomplete_checkpoint);
  if (std::pair(answer.missing_pool, answer.missing_shard) != expected)
    sim_.violate(5, "a lookup names pool " + std::to_string(answer.missing_pool) + " shard " + std::to_string(answer.missing_shard) +
                        " as what the next checkpoint lacks, it is pool " + std::to_string(expected.first) + " shard " +
                        std::to_string(expected.second));
}

void Checkers::check_same_request(const AskBook& book, const LookupAnswer& answer) {
  if (!book.ask.has_request || book.ask.probe) return;
  const auto key = std::tuple(book.ask.engine, mix64(book.ask.request.high, book.ask.request.low),
                              mix64(book.ask.digest.high, book.ask.digest.low));
  const auto known = requests_.find(key);
  if (known != requests_.end() && sim_.now() < known->second.until) {
    if (known->second.restorable != answer.restorable_pages || known->second.lease != answer.lease)
      sim_.violate(5, "two ranks got different answers for one request: " + std::to_string(known->second.restorable) +
                          " and " + std::to_string(answer.restorable_pages) + " pages");
    return;
  }
  requests_[key] = {answer.restorable_pages, answer.lease,
                    sim_.now() + (answer.lease ? answer.lease_left : sim_.knobs.store.empty_answer_time)};
}

void Checkers::note_lease(const AskBook& book, const LookupAnswer& answer) {
  const Catalog& catalog = node_->core(0).catalog();
  const GroupInfo* group = catalog.find_group(book.ask.group);
  if (group == nullptr) return;
  LeaseBook lease;
  lease.engine = book.ask.engine;
  lease.ns = group->ns;
  lease.pages = book.ask.pages;
  lease.stop = answer.restorable_pages;
  lease.stops = answer.leased_stops;
  for (const GroupPool& pool : group->pools) {
    const PoolInfo* info = catalog.find_pool(group->ns, pool.pool);
    if (info->policy.is_trailing()) {
      if (!pool.optional) lease.trailing.emplace_back(pool.pool, info->policy.trailing_pages);
    } else if (!pool.optional) {
      lease.every |= std::uint64_t{1} << pool.pool;
    }
  }
  lease.expires = sim_.now() + answer.lease_left;
  leases_[answer.lease] = std::move(lease);
}

void Checkers::before_release(const LeaseCall& call, bool whole) {
  // Also of an engine whose connections have ended: its grace may last, and then its leases can be given back.
  if (whole)
    std::erase_if(requests_, [&](const auto& request) {
      return request.second.lease == call.lease && std::get<0>(request.first) == call.engine;
    });
  const auto lease = leases_.find(call.lease);
  if (lease == leases_.end() || lease->second.engine != call.engine) {
    sim_.probes.hit(Probe::lease_forged);
    return;
  }
  if (whole) {
    sim_.probes.hit(Probe::release);
    leases_.erase(lease);
    return;
  }
  sim_.probes.hit(Probe::narrow);
  LeaseBook& book = lease->second;
  book.stop = std::min(book.stop, call.stop);
  std::erase_if(book.stops, [&](std::uint32_t stop) { return stop != call.stop; });
}

void Checkers::after_release(const LeaseCall& call, Reason reason) {
  const auto lease = leases_.find(call.lease);
  if (lease != leases_.end() && sim_.now() < lease->second.expires && lease->second.engine != call.engine &&
      reason != Reason::lease_unknown)
    sim_.violate(8, "a lease of another engine was taken: " + std::string(to_string(reason)));
}

LeaseId Checkers::some_lease(EngineId not_of, Random& random) const {
  std::vector<LeaseId> others;
  for (const auto& [id, lease] : leases_)
    if (lease.engine != not_of) others.push_back(id);
  std::sort(others.begin(), others.end(),
            [](const LeaseId& a, const LeaseId& b) { return a.high != b.high ? a.high < b.high : a.low < b.low; });
  return others.empty() ? LeaseId{} : random.pick(others);
}

bool Checkers::is_leased(const ObjectEvent& event) const {
  for (const auto& [id, lease] : leases_) {
    if (lease.ns != event.ns || sim_.now() >= lease.expires) continue;
    const auto at = std::find(lease.pages.begin(), lease.pages.end(), event.page);
    const auto position = static_cast<std::uint32_t>(at - lease.pages.begin());
    bool covered = has(lease.every, event.pool) && position < lease.stop;
    for (const auto& [pool, n] : lease.trailing) {
      if (pool != event.pool) continue;
      for (const std::uint32_t stop : lease.stops) covered |= position < stop && position + n >= stop;
    }
    if (covered) return true;
  }
  return false;
}

}  // namespace kvonce::sim
