// SPDX-License-Identifier: Apache-2.0
//
// Removing keys, pages, namespaces, everything, and the objects of a demoted pool.
#include <algorithm>

#include "protocol/store_impl.hpp"

namespace kvonce::protocol {

/// Whoever waits for the key hears `removed` (or is redirected); what lands later is dropped.
void StoreCore::Impl::remove_claim(std::uint32_t c, bool redirected, Time now, StoreActions& out) {
  if (config.faults.ignore_removal && !redirected) return;
  Claim& claim = claims[c];
  for (const Waiter& waiter : claim.waiters) {
    if (redirected)
      redirect(waiter, claim.ns, claim.pool);
    else
      answer(waiter, Verdict::rejected, Reason::removed);
  }
  claim.waiters.clear();
  end_claim(c, now, out);
}

/// The number of readable objects that went.
std::uint64_t StoreCore::Impl::remove_member(RecordId record, MemberId member, Time now, StoreActions& out) {
  const auto ref = index.member(member);
  if (ref.state != MemberState::published) return 0;
  drop_published(record, member, ObjectEvent::Kind::removed, out);
  refresh(record);
  note_incomplete(record, trailing(index.ns(record), ref.pool), now);
  return 1;
}

void StoreCore::Impl::remove(std::uint64_t asker, const RemoveAsk& ask, Time now, StoreActions& out) {
  using What = RemoveAsk::What;
  const bool known = ask.what == What::all || catalog.accepts(ask.ns);
  const bool pool_known = ask.what != What::key || catalog.find_pool(ask.ns, ask.pool) != nullptr;
  if (!known || !pool_known) {
    out.removes.push_back({asker, RemoveAnswer{ask.token, 0, known ? Reason::unknown_pool : Reason::unknown_namespace}});
    return;
  }
  if (ask.what == What::key || ask.what == What::page) {
    std::uint64_t removed = 0;
    for (const PageHash& page : ask.pages) {
      const RecordId record = index.find(ask.ns, page);
      if (record == kNone) continue;
      // Held, so that the record outlives the walk over its members.
      const bool held_here = pin(record, false);
      for (const MemberId m : index.members(record)) {
        const auto ref = index.member(m);
        if (ask.what == What::page || (ref.pool == ask.pool && ref.shard == ask.shard)) {
          if (ref.state == MemberState::claimed) {
            if (const std::uint32_t c = claim_of(m); c != kNone) remove_claim(c, false, now, out);
          } else
            removed += remove_member(record, m, now, out);
        }
      }
      if (held_here) unpin(record, false);
      if (index.in_use(record)) erase_if_empty(record);
    }
    out.removes.push_back({asker, RemoveAnswer{ask.token, removed, Reason::none}});
    return;
  }
  // Claims end at once; what is readable goes in small steps, and only what was there when this was asked.
  for (std::uint32_t c = 0; c < claims.size(); ++c)
    if (claims[c].in_use && claims[c].record != kNone && (ask.what == What::all || claims[c].ns == ask.ns))
      remove_claim(c, false, now, out);
  Sweep sweep;
  sweep.what = ask.what == What::all ? Sweep::What::all : Sweep::What::ns;
  sweep.ns = ask.ns;
  sweep.up_to = last_epoch;
  sweep.answer = true;
  sweep.asker = asker;
  sweep.token = ask.token;
  sweeps.push_back(sweep);
}

bool StoreCore::Impl::step(Time now, StoreActions& out) {
  if (sweeps.empty()) return false;
  Sweep& sweep = sweeps.front();
  const RecordId end = index.record_limit();
  for (std::uint32_t steps = 0; steps < config.clear_step && sweep.cursor < end; ++steps, ++sweep.cursor) {
    const RecordId record = sweep.cursor;
    if (!index.in_use(record) || (sweep.what != Sweep::What::all && index.ns(record) != sweep.ns)) continue;
    const bool held_here = pin(record, false);
    for (const MemberId m : index.members(record)) {
      const auto ref = index.member(m);
      if (ref.state == MemberState::published && ref.epoch <= sweep.up_to &&
          (sweep.what != Sweep::What::pool || ref.pool == sweep.pool))
        sweep.removed += remove_member(record, m, now, out);
    }
    if (held_here) unpin(record, false);
    if (index.in_use(record)) erase_if_empty(record);
  }
  if (sweep.cursor < end) return true;
  if (sweep.answer) out.removes.push_back({sweep.asker, RemoveAnswer{sweep.token, sweep.removed, Reason::none}});
  sweeps.pop_front();
  return !sweeps.empty();
}

}  // namespace kvonce::protocol
