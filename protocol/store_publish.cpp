// SPDX-License-Identifier: Apache-2.0
//
// What senders report: landed copies, checksums of their own rows, withdrawals; and what follows from it.
#include <algorithm>

#include "protocol/store_impl.hpp"

namespace kvonce::protocol {

void StoreCore::Impl::grants_done(const GrantResults& results, Time now, StoreActions& out) {
  const std::uint32_t sender = slot_of(results.sender);
  if (sender == kNone) {
    ++stats.stale_messages;
    return;
  }
  const std::span<const GrantResult> all = results.results;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const GrantResult& result = all[i];
    prefetch_done(all, i);
    std::span<const std::uint64_t> sums;
    if (result.outcome == GrantOutcome::landed) {
      if (std::uint64_t{result.first_checksum} + result.checksum_count > results.checksums.size()) {
        ++stats.stale_messages;
        continue;
      }
      sums = std::span(results.checksums).subspan(result.first_checksum, result.checksum_count);
    }
    grant_done(sender, result, sums, now, out);
  }
  for (const BadObject& bad : results.bad) {
    const RecordId record = index.find(bad.ns, bad.page);
    const MemberId member = record == kNone ? kNone : index.find_member(record, bad.pool, bad.shard);
    if (member == kNone || index.member(member).state != MemberState::published || index.member(member).epoch != bad.epoch) continue;
    // Bytes that went bad serve nobody: a miss from now on, and free to be put again.
    ++stats.misses[static_cast<std::size_t>(Reason::checksum_mismatch)];
    remove_member(record, member, now, out);
    erase_if_empty(record);
  }
  pump(sender, now, out);
}

/// What publishing the grants a few places after `at` will write lies in memory that this core has not seen since the grant, if ever.
void StoreCore::Impl::prefetch_done(std::span<const GrantResult> results, std::size_t at) const {
  constexpr std::size_t kAhead = 4;
  if (at + 2 * kAhead < results.size() && results[at + 2 * kAhead].claim < claims.size())
    __builtin_prefetch(&claims[results[at + 2 * kAhead].claim]);
  if (at + kAhead >= results.size() || results[at + kAhead].claim >= claims.size()) return;
  const Claim& claim = claims[results[at + kAhead].claim];
  if (!claim.in_use || claim.grants.empty() || claim.record == kNone) return;
  const OpenGrant& grant = claim.grants.front();
  if (const storage::SlotShape* shape = catalog.shape(grant.ns, grant.pool)) __builtin_prefetch(header_of(grant.slot, *shape), 1);
}

void StoreCore::Impl::grant_done(std::uint32_t sender, const GrantResult& result, std::span<const std::uint64_t> sums, Time now, StoreActions& out) {
  const bool landed = result.outcome == GrantOutcome::landed;
  const auto count_landed = [&](const OpenGrant& grant, bool late) {
    const std::uint64_t bytes = catalog.find_pool(grant.ns, grant.pool)->object_bytes;
    ++stats.landed_items;
    stats.landed_bytes += bytes;
    if (!late) return;
    ++stats.late_landed_items;
    stats.late_landed_bytes += bytes;
  };
  Claim* claim = result.claim < claims.size() && claims[result.claim].in_use ? &claims[result.claim] : nullptr;
  std::size_t at = 0;
  if (claim != nullptr) {
    while (at < claim->grants.size() && claim->grants[at].epoch != result.epoch) ++at;
    if (config.faults.ignore_epoch && at == claim->grants.size() && at > 0) at = 0;
    // Only the writer itself can say that it writes no more.
    if (at < claim->grants.size() && claim->grants[at].sender != sender && !config.faults.ignore_epoch) at = claim->grants.size();
  }
  if (claim == nullptr || at == claim->grants.size()) {
    const auto late = quarantine.find(result.epoch);
    if (late == quarantine.end() || late->second.sender != sender) {
      ++stats.stale_messages;
      return;
    }
    // The writer has answered: nobody writes to this slot any more.
    const OpenGrant grant = late->second;
    quarantine.erase(late);
    quarantined_bytes -= grant.slot.bytes();
    if (landed) count_landed(grant, true);
    release_grant(grant);
    free_grant_slot(grant);
    return;
  }
  const OpenGrant grant = claim->grants[at];
  claim->grants.erase(claim->grants.begin() + static_cast<std::ptrdiff_t>(at));
  release_grant(grant);
  const storage::SlotShape* shape = catalog.shape(grant.ns, grant.pool);
  const bool whole = sums.empty() || sums.size() == shape->ranges();
  if (landed && whole) {
    count_landed(grant, false);
    publish(result.claim, grant, sums, now, out);
    return;
  }
  ++(result.outcome == GrantOutcome::abandoned ? stats.abandoned : stats.copy_failures);
  // Whoever gave up does not get the item again; it may still hear that another's bytes were stored.
  for (Waiter& waiter : claim->waiters)
    if (waiter.sender == grant.sender && waiter.batch == grant.batch && waiter.item == grant.item) waiter.cannot_copy = true;
  free_grant_slot(grant);
  settle(result.claim, now, out);
}

void StoreCore::Impl::publish(std::uint32_t c, OpenGrant grant, std::span<const std::uint64_t> sums, Time now, StoreActions& out) {
  Claim& claim = claims[c];
  const storage::SlotShape* shape = catalog.shape(claim.ns, claim.pool);
  if (claim.record == kNone && !config.faults.ignore_removal) {
    free_grant_slot(grant);
    return settle(c, now, out);
  }
  const RecordId record = claim.record;
  const bool checkpoint = trailing(claim.ns, claim.pool);
  const PageHash page = index.hash(record);
  SlotHeader* header = header_of(grant.slot, *shape);
  for (std::uint32_t i = 0; i < sums.size(); ++i) write_checksum(header, i, sums[i]);
  // Without checksums the header says that there are none to compare.
  stamp_slot(header, grant.epoch, slot_incarnation, SlotState::published, static_cast<std::uint32_t>(sums.size()),
             shape->payload_bytes());
  if (!index.publish(record, claim.member, grant.epoch, grant.slot, AckLevel::memory)) {
    ++stats.no_space;
    free_grant_slot(grant);
    return fail_claim(c, Verdict::rejected, Reason::no_space, kRetryMs, now, out);
  }
  reserved_payload -= shape->payload_bytes();
  reserved_slots -= grant.slot.bytes();
  resident_payload += shape->payload_bytes();
  resident_slots += grant.slot.bytes();
  ++resident_objects;
  ++stats.stored_objects;
  stats.stored_bytes += shape->payload_bytes();
  count_claim(record, checkpoint, false);
  if (checkpoint) {
    // Stamped when it is stored: with its page, or newer.
    if (order.newest_stamp() == 0) order.begin_touch();
    order.touch_checkpoint(record);
  } else {
    ghost.erase(mix_page(claim.ns, page));
  }
  if (events_wanted) out.events.push_back({ObjectEvent::Kind::stored, claim.ns, claim.pool, claim.shard, page});

  // Published: now it may be told. The claim ends here; its member stays.
  const std::uint32_t writer = grant.sender;
  std::vector<Waiter> waiters;
  waiters.swap(claim.waiters);
  if (claim.sampled && writer != kNone) {
    samples[grant.epoch] = Sample{senders[writer].engine, writer, now + config.verify_window};
    sample_ends.push_back({now + config.verify_window, grant.epoch});
  }
  quarantine_grants(claim);
  list_granted(c, false);
  const Claim ended = claim;
  claim.in_use = false;
  claim.record = kNone;
  claim.member = kNone;
  --open_claims;
  free_claims.push_back(c);
  refresh(record);
  note_incomplete(record, checkpoint, now);
  for (const Waiter& waiter : waiters) {
    const bool mine = waiter.sender == writer && waiter.batch == grant.batch && waiter.item == grant.item;
    tell_stored(waiter, mine ? Verdict::stored : Verdict::joined, ended, grant.epoch, page, writer, now, out);
  }
  flush_progress(ended.birth, record, ended.member, ended.ns, ended.pool, out);
  waiters.clear();
  if (claims[c].waiters.capacity() == 0) claims[c].waiters.swap(waiters);  // keeps its memory
}

void StoreCore::Impl::tell_stored(const Waiter& waiter, Verdict verdict, const Claim& claim, Epoch epoch, const PageHash& page,
                                  std::uint32_t writer, Time now, StoreActions& out) {
  if (waiter.level > AckLevel::memory) return want_level(waiter, verdict, claim.record, claim.member, claim.ns, claim.pool, out);
  if (claim.sampled && waiter.sender != writer && writer != kNone && waiter.sender != kNone && !waiter.cannot_copy)
    return ask_checksum(waiter, verdict, claim.ns, claim.pool, claim.shard, page, epoch, samples[epoch], now);
  answer(waiter, verdict, Reason::none);
}

// -- verification --------------------------------------------------------------------------------------------------------

void StoreCore::Impl::ask_checksum(const Waiter& waiter, Verdict verdict, NamespaceId ns, PoolId pool, std::uint32_t shard,
                                   const PageHash& page, Epoch epoch, const Sample& sample, Time now) {
  ++stats.samples;
  const std::uint64_t id = ++last_ask;
  asks.emplace(id, Ask{waiter, verdict, ns, pool, shard, page, epoch, sample.engine, std::min(sample.until, now + config.verify_window)});
  reply_to(waiter.sender).asks.push_back({id, waiter.batch, waiter.item});
}

void StoreCore::Impl::checksums(const ChecksumAnswers& answers, Time now, StoreActions& out) {
  for (const auto& given : answers.answers) {
    const auto found = asks.find(given.ask);
    if (found == asks.end() || found->second.waiter.sender != slot_of(answers.sender) ||
        std::uint64_t{given.first_checksum} + given.checksum_count > answers.checksums.size()) {
      ++stats.stale_messages;
      continue;
    }
    const Ask ask = found->second;
    asks.erase(found);
    compared(ask, std::span(answers.checksums).subspan(given.first_checksum, given.checksum_count), now, out);
  }
}

void StoreCore::Impl::compared(const Ask& ask, std::span<const std::uint64_t> sums, Time now, StoreActions& out) {
  const PoolInfo* info = catalog.find_pool(ask.ns, ask.pool);
  if (info->demoted) return redirect(ask.waiter, ask.ns, ask.pool);
  const RecordId record = index.find(ask.ns, ask.page);
  const MemberId member = record == kNone ? kNone : index.find_member(record, ask.pool, ask.shard);
  const bool there = member != kNone && index.member(member).state == MemberState::published && index.member(member).epoch == ask.epoch;
  if (!there) {
    // Evicted or removed since: it was stored when this sender announced it. Unpublished by a difference: its verdict waits.
    const bool differed = samples.contains(ask.epoch) && samples[ask.epoch].engine == 0 && samples[ask.epoch].until == kNever;
    if (!differed) return answer(ask.waiter, ask.verdict, Reason::none);
    held.push_back({ask.waiter, ask.ns, ask.pool, now + config.conflict_hold});
    return;
  }
  if (sums.empty()) {
    ++stats.unverified;
    return answer(ask.waiter, ask.verdict, Reason::none);
  }
  const storage::SlotShape* shape = catalog.shape(ask.ns, ask.pool);
  const storage::Slot slot = index.slot_of(member);
  const SlotHeader* header = header_of(slot, *shape);
  if (header->ranges != shape->ranges()) {  // stored without checksums: nothing to compare with
    ++stats.unverified;
    return answer(ask.waiter, ask.verdict, Reason::none);
  }
  bool same = sums.size() == shape->ranges();
  for (std::uint32_t i = 0; same && i < sums.size(); ++i) same = read_checksum(header, i) == sums[i];
  pools_verified[(std::uint32_t{ask.ns} << 16) | ask.pool] = true;
  if (same || config.faults.skip_verification) return answer(ask.waiter, ask.verdict, Reason::none);
  if (ask.waiter.sender == kNone || senders[ask.waiter.sender].engine != ask.engine) {
    ++stats.divergent;  // two kernels may give two right answers
    return answer(ask.waiter, Verdict::already_stored, Reason::none);
  }
  const bool first = note_conflict(make_key({ask.ns, ask.pool, info->generation, ask.shard}, ask.page));
  if (first) ++stats.conflicts;
  const auto sample = samples.find(ask.epoch);
  out.conflicts.push_back({ask.ns, ask.pool, first, name_of(sample == samples.end() ? kNone : sample->second.sender), name_of(ask.waiter.sender)});
  if (!config.demote) return answer(ask.waiter, ask.verdict, Reason::none);
  // Marks the epoch as unpublished by a difference, for the announcers whose answers are still to come.
  samples[ask.epoch] = Sample{0, kNone, kNever};
  remove_member(record, member, now, out);
  erase_if_empty(record);
  held.push_back({ask.waiter, ask.ns, ask.pool, now + config.conflict_hold});
}

bool StoreCore::Impl::note_conflict(const CanonicalKey& key) {
  if (!conflict_keys.insert(key).second) return false;
  conflict_order.push_back(key);
  if (conflict_order.size() > kConflictKeysKnown) {
    conflict_keys.erase(conflict_order.front());
    conflict_order.pop_front();
  }
  return true;
}

RankName StoreCore::Impl::name_of(std::uint32_t sender) const {
  if (sender == kNone) return {};
  const auto process = processes.find(senders[sender].client);
  return {senders[sender].id, process == processes.end() ? 0 : process->second.pid};
}

// -- withdrawals ---------------------------------------------------------------------------------------------------------

void StoreCore::Impl::withdraw(const Withdraw& withdraw, Time now, StoreActions& out) {
  const std::uint32_t sender = slot_of(withdraw.sender);
  if (sender == kNone) return;
  std::unordered_map<std::uint64_t, std::unordered_set<std::uint32_t>> gone;
  for (const auto& item : withdraw.items) gone[item.batch].insert(item.item);
  const auto is_gone = [&](const Waiter& w) {
    if (w.sender != sender) return false;
    const auto batch = gone.find(w.batch);
    return batch != gone.end() && batch->second.contains(w.item);
  };
  const auto forget = [&](const Waiter& w) {
    if (!is_gone(w)) return false;
    ++stats.verdicts[static_cast<std::size_t>(Verdict::unknown)];
    close_waiter(w);
    return true;
  };
  std::erase_if(asks, [&](const auto& entry) { return forget(entry.second.waiter); });
  std::erase_if(held, [&](const Held& h) { return forget(h.waiter); });
  for (auto& [operation, persist] : persists) std::erase_if(persist.waiters, [&](const auto& w) { return forget(w.first); });
  for (std::uint32_t c = 0; c < claims.size(); ++c) {
    if (!claims[c].in_use) continue;
    // A grant of a withdrawn item stays open until its writer says landed or abandoned.
    if (std::erase_if(claims[c].waiters, forget) > 0) settle(c, now, out);
  }
}

// -- levels --------------------------------------------------------------------------------------------------------------

void StoreCore::Impl::want_level(const Waiter& waiter, Verdict verdict, RecordId record, MemberId member, NamespaceId ns,
                                 PoolId pool, StoreActions& out, std::uint64_t flush_token) {
  const auto ref = index.member(member);
  const AckLevel level = flush_token != 0 ? AckLevel::disk : waiter.level;
  Persist* running = nullptr;
  for (auto& [operation, persist] : persists)
    if (persist.epoch == ref.epoch && persist.level >= level && !persist.removed) running = &persist;
  if (running == nullptr) {
    const bool checkpoint = trailing(ns, pool);
    if (!pin(record, checkpoint)) {
      if (flush_token == 0) answer(waiter, Verdict::rejected, Reason::busy, kRetryMs);
      return;
    }
    const std::uint64_t operation = ++last_operation;
    running = &persists[operation];
    running->ns = ns;
    running->pool = pool;
    running->record = record;
    running->member = member;
    running->epoch = ref.epoch;
    running->level = level;
    running->trailing = checkpoint;
    const PoolInfo* info = catalog.find_pool(ns, pool);
    out.persists.push_back({operation, make_key({ns, pool, info->generation, ref.shard}, index.hash(record)), ref.epoch, level});
  }
  if (flush_token != 0)
    running->flushes.push_back(flush_token);
  else
    running->waiters.push_back({waiter, verdict});
}

void StoreCore::Impl::persisted(std::uint64_t operation, bool ok, Time, StoreActions& out) {
  const auto found = persists.find(operation);
  if (found == persists.end()) {
    ++stats.stale_messages;
    return;
  }
  const Persist persist = std::move(found->second);
  persists.erase(found);
  const bool there = !persist.removed;
  if (ok && there) index.set_level(persist.record, persist.member, persist.level);
  for (const auto& [waiter, verdict] : persist.waiters) {
    if (!there)
      answer(waiter, Verdict::rejected, Reason::removed);
    else if (ok)
      answer(waiter, verdict, Reason::none);
    else
      answer(waiter, Verdict::failed, Reason::persist_failed);
  }
  for (const std::uint64_t token : persist.flushes) flush_step(token, ok || !there, out);
  unpin(persist.record, persist.trailing);
}

void StoreCore::Impl::flush(std::uint64_t asker, const FlushAsk& ask, StoreActions& out) {
  if (ask.level > config.max_level) {
    out.flushes.push_back({asker, FlushAnswer{ask.token, Reason::level_unavailable}});
    return;
  }
  Flush fresh;
  fresh.asker = asker;
  fresh.token = ask.token;
  fresh.level = ask.level;
  fresh.birth = last_birth;
  fresh.remaining = open_claims;
  flushes.push_back(fresh);
  if (ask.level == AckLevel::memory) return;
  const Waiter nobody;
  index.for_each([&](RecordId record) {
    for (const MemberId m : index.members(record)) {
      const auto ref = index.member(m);
      if (ref.state != MemberState::published || ref.level >= ask.level) continue;
      const PoolInfo* info = catalog.find_pool(index.ns(record), ref.pool);
      if (info == nullptr || info->demoted) continue;
      ++flushes.back().remaining;
      want_level(nobody, Verdict::none, record, m, index.ns(record), ref.pool, out, flushes.back().token);
    }
  });
}

/// A claim has ended: flushes that cover it have one less to wait for, or wait for its object's level instead.
void StoreCore::Impl::flush_progress(std::uint64_t birth, RecordId record, MemberId member, NamespaceId ns, PoolId pool,
                                     StoreActions& out) {
  for (Flush& flush : flushes) {
    if (birth > flush.birth || flush.remaining == 0) continue;
    if (record != kNone && flush.level > AckLevel::memory)
      want_level(Waiter{}, Verdict::none, record, member, ns, pool, out, flush.token);
    else
      --flush.remaining;
  }
}

void StoreCore::Impl::flush_step(std::uint64_t token, bool ok, StoreActions&) {
  for (Flush& flush : flushes) {
    if (flush.token != token || flush.remaining == 0) continue;
    --flush.remaining;
    flush.failed |= !ok;
  }
}

void StoreCore::Impl::finish_flushes(StoreActions& out) {
  for (std::size_t i = 0; i < flushes.size();) {
    if (flushes[i].remaining > 0) {
      ++i;
      continue;
    }
    out.flushes.push_back({flushes[i].asker, FlushAnswer{flushes[i].token, flushes[i].failed ? Reason::persist_failed : Reason::none}});
    flushes.erase(flushes.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

// -- demotion ------------------------------------------------------------------------------------------------------------

void StoreCore::Impl::demoted(NamespaceId ns, PoolId pool, Time now, StoreActions& out) {
  ++stats.demotions;
  for (std::uint32_t c = 0; c < claims.size(); ++c)
    if (claims[c].in_use && claims[c].record != kNone && claims[c].ns == ns && claims[c].pool == pool) remove_claim(c, true, now, out);
  for (auto it = asks.begin(); it != asks.end();) {
    if (it->second.ns == ns && it->second.pool == pool) {
      redirect(it->second.waiter, ns, pool);
      it = asks.erase(it);
    } else {
      ++it;
    }
  }
  std::erase_if(held, [&](const Held& h) {
    if (h.ns != ns || h.pool != pool) return false;
    redirect(h.waiter, ns, pool);
    return true;
  });
  for (auto& [operation, persist] : persists) {
    if (persist.ns != ns || persist.pool != pool) continue;
    for (const auto& [waiter, verdict] : persist.waiters) redirect(waiter, ns, pool);
    persist.waiters.clear();
  }
  Sweep sweep;
  sweep.what = Sweep::What::pool;
  sweep.ns = ns;
  sweep.pool = pool;
  sweep.up_to = last_epoch;
  sweeps.push_back(sweep);
}

}  // namespace kvonce::protocol
