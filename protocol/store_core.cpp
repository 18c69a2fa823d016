// SPDX-License-Identifier: Apache-2.0
#include "protocol/store_core.hpp"

#include <algorithm>

#include "protocol/store_impl.hpp"

namespace kvonce::protocol {

void StoreStats::add(const StoreStats& other) {
  static_assert(sizeof(StoreStats) % sizeof(std::uint64_t) == 0, "only counters: summed word by word");
  auto* mine = reinterpret_cast<std::uint64_t*>(this);
  const auto* theirs = reinterpret_cast<const std::uint64_t*>(&other);
  for (std::size_t i = 0; i < sizeof(StoreStats) / sizeof(std::uint64_t); ++i) mine[i] += theirs[i];
}

void StoreActions::clear() {
  replies.clear();
  lookups.clear();
  loads.clear();
  removes.clear();
  flushes.clear();
  part_asks.clear();
  part_answers.clear();
  part_narrows.clear();
  conflicts.clear();
  persists.clear();
  events.clear();
}

StoreCore::Impl::Impl(const StoreConfig& config_in, bool adopt)
    : config(config_in),
      catalog(config_in.max_namespaces, config_in.faults.keep_turn),
      index(adopt ? PageIndex(PageIndex::Adopt{}, config_in.arena + config_in.index_offset, config_in.index)
                  : PageIndex(config_in.arena + config_in.index_offset, config_in.index, config_in.incarnation)),
      order(index),
      ghost(config_in.ghost_entries),
      allocator(config_in.slots_offset, config_in.slots_bytes),
      slot_incarnation(config_in.incarnation),
      last_epoch(config_in.faults.restart_epochs ? 0 : config_in.first_epoch) {
  // Epochs are unique over the partitions of a store: each counts in steps of their number.
  const std::uint64_t parts = std::max<std::uint32_t>(config.partitions, 1);
  last_epoch = (last_epoch / parts + 1) * parts + config.partition;
}

// -- senders -------------------------------------------------------------------------------------------------------------

std::uint32_t StoreCore::Impl::slot_of(SenderId id) const {
  const auto found = sender_slots.find(id);
  return found == sender_slots.end() ? kNone : found->second;
}

StoreReply& StoreCore::Impl::reply_to(std::uint32_t sender) {
  Sender& s = senders[sender];
  if (!s.dirty) {
    s.dirty = true;
    dirty.push_back(sender);
  }
  return s.reply;
}

void StoreCore::Impl::flush_replies(StoreActions& out) {
  for (const std::uint32_t slot : dirty) {
    Sender& s = senders[slot];
    s.dirty = false;
    if (s.in_use && !s.reply.empty()) {
      s.reply.partition = config.partition;
      out.replies.push_back({s.id, std::move(s.reply)});
    }
    s.reply = StoreReply{};
  }
  dirty.clear();
}

void StoreCore::Impl::close_waiter(const Waiter& waiter) {
  if (waiter.sender == kNone || senders[waiter.sender].open_items == 0) return;
  --senders[waiter.sender].open_items;
  --senders[waiter.sender].use->open_items;
}

void StoreCore::Impl::answer(const Waiter& waiter, Verdict verdict, Reason reason, std::uint32_t retry_ms) {
  ++stats.verdicts[static_cast<std::size_t>(verdict)];
  close_waiter(waiter);
  if (waiter.sender == kNone) return;
  reply_to(waiter.sender).verdicts.push_back({waiter.batch, waiter.item, verdict, reason, retry_ms});
}

void StoreCore::Impl::redirect(const Waiter& waiter, NamespaceId ns, PoolId pool) {
  close_waiter(waiter);
  if (waiter.sender == kNone) return;
  ++stats.redirects;
  const PoolInfo* info = catalog.find_pool(ns, pool);
  reply_to(waiter.sender).redirects.push_back({waiter.batch, waiter.item, pool, info != nullptr ? info->generation : 0});
}

Lane& StoreCore::Impl::lane(std::uint32_t sender, NamespaceId ns, PoolId pool) {
  auto& lanes = senders[sender].lanes;
  for (Lane& lane : lanes)
    if (lane.pool == pool && lane.ns == ns) return lane;
  Lane fresh;
  fresh.ns = ns;
  fresh.pool = pool;
  fresh.window = config.window_bytes;
  lanes.push_back(std::move(fresh));
  return lanes.back();
}

/// A rank that only reads takes no part in anybody's put: its share of the copies would wait for nothing.
void StoreCore::Impl::count_rank(const Sender& sender, const AttachPool& pool, bool more) {
  if (!sender.puts) return;
  auto& live = live_ranks[shard_key(pool.ns, pool.pool, pool.shard)];
  if (more)
    ++live;
  else if (live > 0)
    --live;
}

void StoreCore::Impl::drop_sender(std::uint32_t slot, bool fenced, Time now, StoreActions& out) {
  Sender& s = senders[slot];
  for (const AttachPool& pool : s.pools) count_rank(s, pool, false);
  std::vector<std::uint32_t> touched;
  for (std::uint32_t c = 0; c < claims.size(); ++c) {
    Claim& claim = claims[c];
    if (!claim.in_use) continue;
    const auto before = claim.waiters.size() + claim.grants.size();
    std::erase_if(claim.waiters, [&](const Waiter& w) { return w.sender == slot; });
    for (std::size_t i = 0; i < claim.grants.size();) {
      if (claim.grants[i].sender != slot) {
        ++i;
        continue;
      }
      OpenGrant grant = claim.grants[i];
      claim.grants.erase(claim.grants.begin() + static_cast<std::ptrdiff_t>(i));
      grant.sender = kNone;
      if (fenced || config.faults.free_quarantined) {
        ++stats.fenced;
        free_grant_slot(grant);
      } else {
        quarantined_bytes += grant.slot.bytes();
        quarantine.emplace(grant.epoch, grant);
      }
    }
    if (before != claim.waiters.size() + claim.grants.size()) touched.push_back(c);
  }
  for (auto it = quarantine.begin(); it != quarantine.end();) {
    if (it->second.sender == slot) {
      it->second.sender = kNone;
      if (fenced) {
        ++stats.fenced;
        quarantined_bytes -= it->second.slot.bytes();
        free_grant_slot(it->second);
        it = quarantine.erase(it);
        continue;
      }
    }
    ++it;
  }
  std::erase_if(asks, [&](const auto& entry) { return entry.second.waiter.sender == slot; });
  std::erase_if(held, [&](const Held& h) { return h.waiter.sender == slot; });
  for (auto& [operation, persist] : persists)
    std::erase_if(persist.waiters, [&](const auto& w) { return w.first.sender == slot; });
  for (auto& [epoch, sample] : samples)
    if (sample.sender == slot) sample.sender = kNone;
  sender_slots.erase(s.id);
  const bool was_dirty = s.dirty;
  s.use->open_items -= s.open_items;
  if (--s.use->senders == 0) uses.erase(s.client);
  s = Sender{};
  s.dirty = was_dirty;
  free_senders.push_back(slot);
  for (const std::uint32_t c : touched)
    if (claims[c].in_use) settle(c, now, out);
}

// -- timers --------------------------------------------------------------------------------------------------------------

void StoreCore::Impl::scan(Time now, StoreActions& out) {
  last_scan = now;
  for (std::uint32_t c = granted_head; c != kNone;) {
    const std::uint32_t next = claims[c].granted_next;
    bool fresh = false;
    for (OpenGrant& grant : claims[c].grants) {
      grant.late |= grant.deadline <= now;
      fresh |= !grant.late;
    }
    // Again at every scan: a waiter may have come later, or there was no space for its grant.
    if (!fresh && claims[c].record != kNone) promote(c, now, out);
    c = next;
  }
  for (auto it = asks.begin(); it != asks.end();) {
    if (it->second.deadline <= now) {
      ++stats.unverified;
      const Ask ask = it->second;
      it = asks.erase(it);
      answer(ask.waiter, ask.verdict, Reason::none);
    } else {
      ++it;
    }
  }
  for (std::size_t i = 0; i < held.size();) {
    if (held[i].deadline <= now) {
      const Waiter waiter = held[i].waiter;
      held[i] = held.back();
      held.pop_back();
      answer(waiter, Verdict::rejected, Reason::unverified);
    } else {
      ++i;
    }
  }
  while (!sample_ends.empty() && sample_ends.front().first <= now) {
    samples.erase(sample_ends.front().second);
    sample_ends.pop_front();
  }
  scan_leases(now, out);
  for (auto it = pending_lookups.begin(); it != pending_lookups.end();) {
    const auto next = std::next(it);
    if (it->second.deadline <= now) end_lookup(std::move(pending_lookups.extract(it).mapped()), Reason::deadline, false, out);
    it = next;
  }
}

// -- StoreCore -----------------------------------------------------------------------------------------------------------

StoreCore::StoreCore(const StoreConfig& config) : impl_(std::make_unique<Impl>(config)) {}
StoreCore::StoreCore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
StoreCore::~StoreCore() = default;

std::uint64_t StoreCore::index_bytes(const IndexLimits& limits) { return PageIndex::region_bytes(limits); }

void StoreCore::client_joined(ClientId client, EngineId engine, Time, std::uint32_t pid, std::uint64_t start_time) {
  if (!impl_->clients.emplace(client, engine).second) return;
  impl_->processes[client] = {client, pid, start_time};
  Engine& e = impl_->engines[engine];
  ++e.clients;
  e.gone_at = kNever;
}

void StoreCore::client_left(ClientId client, bool fenced, Time now, StoreActions& out) {
  Impl& s = *impl_;
  for (std::uint32_t slot = 0; slot < s.senders.size(); ++slot)
    if (s.senders[slot].in_use && s.senders[slot].client == client) s.drop_sender(slot, fenced, now, out);
  if (fenced) {
    s.end_loads(client, out);
    client_fenced(client, now, out);
  }
  const auto found = s.clients.find(client);
  if (found != s.clients.end()) {
    Engine& e = s.engines[found->second];
    if (e.clients > 0 && --e.clients == 0) e.gone_at = now;
    s.clients.erase(found);
  }
  const bool may_write = std::any_of(s.quarantine.begin(), s.quarantine.end(), [&](const auto& q) { return q.second.client == client; });
  if (!may_write) s.processes.erase(client);
  s.finish_flushes(out);
  s.flush_replies(out);
}

void StoreCore::client_fenced(ClientId client, Time, StoreActions& out) {
  Impl& s = *impl_;
  for (auto it = s.quarantine.begin(); it != s.quarantine.end();) {
    if (it->second.client == client) {
      ++s.stats.fenced;
      s.quarantined_bytes -= it->second.slot.bytes();
      s.release_grant(it->second);
      s.free_grant_slot(it->second);
      it = s.quarantine.erase(it);
    } else {
      ++it;
    }
  }
  if (!s.clients.contains(client)) s.processes.erase(client);
  s.flush_replies(out);
}

void StoreCore::process_fenced(std::uint32_t pid, std::uint64_t start_time, Time now, StoreActions& out) {
  if (pid == 0) return;
  std::vector<ClientId> gone;
  for (const auto& [client, process] : impl_->processes)
    if (process.pid == pid && process.start_time == start_time) gone.push_back(client);
  for (const ClientId client : gone) client_fenced(client, now, out);
}

std::vector<ClientProcess> StoreCore::quarantined_processes() const {
  std::vector<ClientProcess> waiting;
  for (const auto& [client, process] : impl_->processes)
    if (!impl_->clients.contains(client)) waiting.push_back(process);
  return waiting;
}

void StoreCore::attach(const AttachSender& sender, Time) {
  Impl& s = *impl_;
  if (s.sender_slots.contains(sender.sender)) return;
  std::uint32_t slot = 0;
  if (s.free_senders.empty()) {
    slot = static_cast<std::uint32_t>(s.senders.size());
    s.senders.emplace_back();
  } else {
    slot = s.free_senders.back();
    s.free_senders.pop_back();
  }
  Sender& fresh = s.senders[slot];
  fresh.id = sender.sender;
  fresh.client = sender.client;
  fresh.engine = sender.engine;
  fresh.puts = sender.puts;
  fresh.use = &s.uses[sender.client];
  ++fresh.use->senders;
  fresh.in_use = true;
  s.sender_slots.emplace(sender.sender, slot);
}

void StoreCore::attach_pool(const AttachPool& pool, Time) {
  Impl& s = *impl_;
  const std::uint32_t slot = s.slot_of(pool.sender);
  if (slot == kNone) return;
  auto& pools = s.senders[slot].pools;
  const auto same = std::find_if(pools.begin(), pools.end(), [&](const AttachPool& p) {
    return p.ns == pool.ns && p.pool == pool.pool && p.shard == pool.shard;
  });
  if (pool.attached && same == pools.end()) {
    pools.push_back(pool);
    s.count_rank(s.senders[slot], pool, true);
  } else if (!pool.attached && same != pools.end()) {
    pools.erase(same);
    s.count_rank(s.senders[slot], pool, false);
  }
}

void StoreCore::detach(SenderId sender, bool fenced, Time now, StoreActions& out) {
  Impl& s = *impl_;
  const std::uint32_t slot = s.slot_of(sender);
  if (slot != kNone) s.drop_sender(slot, fenced, now, out);
  s.finish_flushes(out);
  s.flush_replies(out);
}

void StoreCore::apply(const CatalogUpdate& update, Time now, StoreActions& out) {
  Impl& s = *impl_;
  s.catalog.apply(update);
  if (update.kind == CatalogUpdate::Kind::pool || update.kind == CatalogUpdate::Kind::demote) {
    const PoolInfo* info = s.catalog.find_pool(update.ns, update.pool);
    if (info != nullptr) s.index.set_pool(update.ns, update.pool, info->shards.count(), info->policy, info->generation);
  }
  if (update.kind == CatalogUpdate::Kind::demote) s.demoted(update.ns, update.pool, now, out);
  if (update.kind == CatalogUpdate::Kind::retire) s.retired(update.ns, now, out);
  if (update.kind == CatalogUpdate::Kind::free) s.freed(update.ns);
  s.finish_flushes(out);
  s.flush_replies(out);
}

const Catalog& StoreCore::catalog() const { return impl_->catalog; }

void StoreCore::put(const PutBatch& batch, Time now, StoreActions& out) {
  impl_->put(batch, now, out);
  impl_->flush_replies(out);
}
void StoreCore::grants_done(const GrantResults& results, Time now, StoreActions& out) {
  impl_->grants_done(results, now, out);
  impl_->finish_flushes(out);
  impl_->flush_replies(out);
}
void StoreCore::withdraw(const Withdraw& withdraw, Time now, StoreActions& out) {
  impl_->withdraw(withdraw, now, out);
  impl_->finish_flushes(out);
  impl_->flush_replies(out);
}
void StoreCore::checksums(const ChecksumAnswers& answers, Time now, StoreActions& out) {
  impl_->checksums(answers, now, out);
  impl_->flush_replies(out);
}
void StoreCore::persisted(std::uint64_t operation, bool ok, Time now, StoreActions& out) {
  impl_->persisted(operation, ok, now, out);
  impl_->finish_flushes(out);
  impl_->flush_replies(out);
}
void StoreCore::lookup(std::uint64_t asker, const LookupAsk& ask, Time now, StoreActions& out) {
  impl_->lookup(asker, ask, now, out);
}
void StoreCore::part_lookup(const PartLookupAsk& ask, Time, StoreActions& out) {
  PartLookupAnswer answer;
  impl_->part_lookup(ask, answer);
  out.part_answers.push_back({ask.home, std::move(answer)});
}
void StoreCore::part_answer(const PartLookupAnswer& answer, Time now, StoreActions& out) {
  const auto found = impl_->pending_lookups.find(answer.token);
  if (found == impl_->pending_lookups.end()) return;  // its pins went with the narrow that ended it
  PendingLookup& pending = found->second;
  for (const PartPage& page : answer.pages)
    if (page.position < pending.pages.size()) pending.pages[page.position] = page;
  pending.gaps.insert(pending.gaps.end(), answer.gaps.begin(), answer.gaps.end());
  if (pending.missing_parts > 0 && --pending.missing_parts == 0) impl_->fix_answer(answer.token, now, out);
}
void StoreCore::part_narrow(const PartNarrow& narrow, Time, StoreActions&) { impl_->part_narrow(narrow); }
Reason StoreCore::narrow(const LeaseCall& call, Time, StoreActions& out) { return impl_->narrow(call, out); }
Reason StoreCore::release(const LeaseCall& call, Time, StoreActions& out) { return impl_->release(call, out); }
void StoreCore::load_begin(const LoadBegin& begin, Time now, StoreActions& out) { impl_->load_begin(begin, now, out); }
void StoreCore::load_end(const LoadEnd& end, Time, StoreActions& out) { impl_->load_end(end, out); }

void StoreCore::remove(std::uint64_t asker, const RemoveAsk& ask, Time now, StoreActions& out) {
  impl_->remove(asker, ask, now, out);
  impl_->finish_flushes(out);
  impl_->flush_replies(out);
}
void StoreCore::flush(std::uint64_t asker, const FlushAsk& ask, Time, StoreActions& out) {
  impl_->flush(asker, ask, out);
  impl_->finish_flushes(out);
  impl_->flush_replies(out);
}
void StoreCore::want_events(bool on) { impl_->events_wanted = on; }
IndexReader StoreCore::reader() const { return impl_->index.reader(); }
Epoch StoreCore::last_epoch() const { return impl_->last_epoch; }

Time StoreCore::next_deadline() const {
  const Impl& s = *impl_;
  Time next = kNever;
  if (s.granted_head != kNone || !s.asks.empty() || !s.held.empty() || !s.pending_lookups.empty())
    next = s.last_scan + s.config.scan_period;
  if (!s.sample_ends.empty()) next = std::min(next, s.sample_ends.front().first);
  if (!s.lease_ends.empty()) next = std::min(next, s.lease_ends.begin()->first);
  if (!s.kept_ends.empty()) next = std::min(next, s.kept_ends.begin()->first);
  for (const auto& [id, engine] : s.engines)
    if (engine.leases > 0 && engine.gone_at != kNever) next = std::min(next, engine.gone_at + s.config.engine_grace);
  return next;
}

void StoreCore::advance(Time now, StoreActions& out) {
  if (now < next_deadline()) return;
  impl_->scan(now, out);
  impl_->finish_flushes(out);
  impl_->flush_replies(out);
}

bool StoreCore::step(Time now, StoreActions& out) {
  const bool more = impl_->step(now, out);
  impl_->finish_flushes(out);
  impl_->flush_replies(out);
  return more;
}

StoreStats StoreCore::stats() const {
  const Impl& s = *impl_;
  StoreStats stats = s.stats;
  stats.objects_now = s.resident_objects;
  stats.payload_bytes_now = s.resident_payload;
  stats.slot_bytes_now = s.resident_slots;
  stats.records_now = s.index.records();
  stats.claims_now = s.open_claims;
  stats.quarantined_slots_now = s.quarantine.size();
  stats.quarantined_bytes_now = s.quarantined_bytes;
  stats.leases_now = s.leases.size();
  for (const auto& [id, engine] : s.engines) stats.leased_bytes_now += engine.leased_bytes;
  stats.capacity_bytes = s.config.capacity_bytes != 0 ? s.config.capacity_bytes : s.config.slots_bytes;
  stats.slots_bytes = s.config.slots_bytes;
  stats.free_bytes_now = s.allocator.free_bytes();
  stats.senders_now = s.sender_slots.size();
  stats.clients_now = s.clients.size();
  for (const auto& [pool, verified] : s.pools_verified) stats.unverified_pools_now += verified ? 0 : 1;
  return stats;
}

std::string StoreCore::audit() const { return impl_->audit(); }

void StoreCore::for_each_object(const std::function<void(const CanonicalKey&, const ObjectLocation&)>& f) const {
  const Impl& s = *impl_;
  s.index.for_each([&](RecordId record) {
    for (const MemberId m : s.index.members(record)) {
      const auto member = s.index.member(m);
      if (member.state != MemberState::published) continue;
      const PoolInfo* info = s.catalog.find_pool(s.index.ns(record), member.pool);
      if (info == nullptr || info->demoted) continue;
      f(make_key({s.index.ns(record), member.pool, info->generation, member.shard}, s.index.hash(record)),
        ObjectLocation{member.epoch, s.index.slot_of(m), member.level});
    }
  });
}

}  // namespace kvonce::protocol
