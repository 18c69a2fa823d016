// SPDX-License-Identifier: Apache-2.0
//
// Puts: one copy (P1), honest verdicts (P2), somebody always writes (P3), slots have one writer (P4), fair limits (P8).
#include <algorithm>

#include "protocol/slot_format.hpp"
#include "tests/sim/checkers.hpp"
#include "tests/sim/store_node.hpp"

namespace kvonce::sim {
namespace {

// For the trace: the digits of the page's name, pool and shard.
std::uint64_t key_tag(const CanonicalKey& key) { return page_tag(key.page) << 16 | (key.pool << 8) | key.shard; }

}  // namespace

void Checkers::joined(std::uint32_t partition, const Peer& peer) {
  connected_.insert({partition, peer.sender});
  engines_[peer.sender] = peer.engine;
  clients_[peer.sender] = peer.client;
  ++engine_clients_[{partition, peer.engine}];
}

void Checkers::before_put(std::uint32_t partition, const PutBatch& batch) {
  if (!connected_.contains({partition, batch.sender})) return;
  touched(batch.ns);
  if (is_retired(partition, batch.ns)) sim_.probes.hit(Probe::late_put);
  for (std::size_t i = 0; i < batch.pages.size(); ++i) {
    const ChainPage& page = batch.pages[i];
    const PageHash* parent = nullptr;
    if (page.parent == kExternalParent && batch.has_parent)
      parent = &batch.parent;
    else if (page.parent < i)
      parent = &batch.pages[page.parent].hash;
    if (parent == nullptr) continue;
    // Only what has a record then can be linked: an object of the parent is readable or announced before the child's.
    const auto names = [&](const PageHash& hash) {
      return std::any_of(batch.items.begin(), batch.items.end(), [&](const PutItem& item) {
        return item.page < batch.pages.size() && batch.pages[item.page].hash == hash;
      });
    };
    if (!names(page.hash)) continue;
    const bool of_batch = names(*parent);
    bool known = of_batch;
    for (PoolId pool = 0; !known && pool < kMaxPoolsPerNamespace; ++pool) {
      if (node_->core(partition).catalog().find_pool(batch.ns, pool) == nullptr) break;
      const auto at = present_.find(CanonicalKey{*parent, batch.ns, pool, 0, 0});
      known = at != present_.end() && at->second.present;
    }
    if (known) pages_[{batch.ns, *parent}].children.insert(page.hash);
  }
  for (const PutItem& item : batch.items) {
    sim_.probes.hit(Probe::put_items);
    if (item.page >= batch.pages.size()) continue;
    const CanonicalKey key{batch.pages[item.page].hash, batch.ns, item.pool, item.shard, item.generation};
    const ItemName name{batch.sender, batch.batch, item.item};
    if (!items_.try_emplace(name, key).second) continue;  // announced twice by a broken rank
    sim_.note("  waits for", key_tag(key), name.sender & 0xffff);
    ObjectLocation at;
    const bool there = readable(partition, key, &at);
    keys_[key].waiting.push_back({name, batch.level, sim_.now(), false, !there, there && at.level >= batch.level});
    ++open_items_[{partition, batch.sender}];
    auto& mine = sender_items_[{partition, batch.sender}];
    if (mine.size() > 4096) std::erase_if(mine, [this](const ItemName& n) { return !items_.contains(n); });
    mine.push_back(name);
  }
}

void Checkers::stop_waiting(const ItemName& name, const CanonicalKey& key) {
  const auto book = keys_.find(key);
  if (book != keys_.end()) {
    std::erase_if(book->second.waiting, [&](const Waiting& w) { return w.name == name; });
    const auto& left = book->second.waiting;
    const bool claimed = std::any_of(left.begin(), left.end(), [](const Waiting& w) { return w.claiming; });
    if (!claimed) book->second.claim_grants = 0;
    if (!claimed)
      for (const Epoch epoch : book->second.grants) grants_.at(epoch).orphan = true;
  }
  if (items_.erase(name) == 0) return;
  auto& open = open_items_[{owner(key), name.sender}];
  if (open > 0) --open;
}

void Checkers::close_grant(GrantRecord& grant) {
  if (!grant.open) return;
  grant.open = false;
  KeyBook& book = keys_[grant.key];
  book.writing_until = std::max(book.writing_until, std::min(sim_.now(), grant.patient_until));
  std::erase(book.grants, grant.epoch);
  idle_since_[{grant.name.sender, grant.partition}] = sim_.now();
}

void Checkers::before_results(std::uint32_t partition, const GrantResults& results) {
  landed_now_.clear();
  for (const GrantResult& result : results.results) {
    const auto at = grants_.find(result.epoch);
    if (at == grants_.end() || at->second.name.sender != results.sender || at->second.claim != result.claim ||
        at->second.partition != partition)
      continue;
    sim_.note("  result", key_tag(at->second.key), results.sender & 0xffff,
              result.epoch * 10 + static_cast<std::uint64_t>(result.outcome));
    if (is_retired(partition, at->second.key.ns)) sim_.probes.hit(Probe::late_result);
    if (result.outcome == GrantOutcome::landed) landed_now_.push_back(at->second);
    if (result.outcome == GrantOutcome::abandoned) sim_.probes.hit(Probe::abandoned);
    if (result.outcome == GrantOutcome::failed) sim_.probes.hit(Probe::copy_failed);
    if (result.outcome != GrantOutcome::landed) {
      // Whoever gave an item up is not asked for it again.
      for (Waiting& w : keys_[at->second.key].waiting)
        if (w.name == at->second.name) w.cannot_copy = true;
    }
    close_grant(at->second);
    grants_.erase(at);
  }
}

void Checkers::before_withdraw(std::uint32_t partition, const Withdraw& withdraw) {
  for (const auto& item : withdraw.items) {
    const ItemName name{withdraw.sender, item.batch, item.item};
    const auto at = items_.find(name);
    if (at == items_.end() || owner(at->second) != partition) continue;
    const CanonicalKey key = at->second;
    check_progress(partition, key, keys_[key]);
    sim_.note("  withdrawn", key_tag(key), withdraw.sender & 0xffff);
    stop_waiting(name, key);
  }
}

void Checkers::before_checksums(std::uint32_t partition, const ChecksumAnswers& answers) {
  for (const auto& answer : answers.answers) {
    const auto at = verifications_.find({partition, answer.ask});
    if (at == verifications_.end() || at->second.name.sender != answers.sender) continue;
    const VerifyBook book = at->second;
    verifications_.erase(at);
    const auto presence = present_.find(CanonicalKey{book.key.page, book.key.ns, book.key.pool, book.key.shard, 0});
    // Engines may differ: two kernels may give two right answers.
    if (presence == present_.end() || engines_[presence->second.writer] != engines_[answers.sender]) continue;
    ObjectLocation place;
    if (answer.checksum_count == 0 || !readable(partition, book.key, &place) || place.epoch != book.epoch) continue;
    const auto* shape = node_->core(partition).catalog().shape(book.key.ns, book.key.pool);
    if (shape == nullptr || shape->ranges() != answer.checksum_count) continue;
    const SlotHeader* header = header_at(node_->life()->memory->base(), shape->footer_offset(place.slot.view()));
    for (std::uint32_t i = 0; i < answer.checksum_count; ++i)
      if (read_checksum(header, i) != answers.checksums[answer.first_checksum + i]) differing_.insert(book.name);
  }
}

void Checkers::before_leave(std::uint32_t partition, const Peer& peer, bool fenced) {
  connected_.erase({partition, peer.sender});
  const auto mine = sender_items_.find({partition, peer.sender});
  if (mine != sender_items_.end()) {
    for (const ItemName& name : mine->second) {
      const auto at = items_.find(name);
      if (at == items_.end()) continue;
      const CanonicalKey key = at->second;
      stop_waiting(name, key);
    }
    sender_items_.erase(mine);
  }
  bool writing = false;
  for (auto& [epoch, grant] : grants_) {
    if (grant.name.sender != peer.sender || grant.partition != partition) continue;
    close_grant(grant);
    writing = true;
  }
  if (writing && !fenced) sim_.probes.hit(Probe::quarantine);
  if (fenced)
    std::erase_if(grants_, [&](const auto& g) { return g.second.client == peer.client && g.second.partition == partition; });
  auto& clients = engine_clients_[{partition, peer.engine}];
  if (clients > 0 && --clients == 0)
    std::erase_if(leases_, [&](const auto& lease) { return lease.second.engine == peer.engine; });
}

void Checkers::fenced(ClientId client) {
  std::erase_if(grants_, [&](const auto& g) { return g.second.client == client; });
}

// ---- what the store says ---------------------------------------------------------------------------------------------

void Checkers::on_grant(std::uint32_t partition, SenderId sender, const Grant& grant, const StoreReply& reply) {
  sim_.probes.hit(Probe::grants);
  const ItemName name{sender, grant.batch, grant.item};
  const auto item = items_.find(name);
  if (item == items_.end()) {
    if (connected_.contains({partition, sender}))
      sim_.violate(1, "a grant was made for an item that nobody waits for (epoch " + std::to_string(grant.epoch) + ")");
    return;
  }
  const CanonicalKey key = item->second;
  sim_.note("  grant", key_tag(key), sender & 0xffff, grant.epoch);
  KeyBook& book = keys_[key];
  if (is_retired(partition, key.ns)) sim_.violate(2, text(key) + " was granted in a namespace that is retired");
  if (grant.epoch < first_epoch_)
    sim_.violate(4, "epoch " + std::to_string(grant.epoch) + " was given out, and earlier lives went up to " +
                        std::to_string(first_epoch_ - 1));
  highest_epoch_ = std::max(highest_epoch_, grant.epoch);
  for (const Epoch epoch : book.grants) {
    const GrantRecord& other = grants_.at(epoch);
    if (other.removed || other.orphan || !other.open) continue;
    if (sim_.now() < other.valid_until)
      sim_.violate(1, text(key) + " was granted to a second sender while the first one's grant " + std::to_string(epoch) +
                          " is valid");
    else
      sim_.probes.hit(Probe::promotion);
  }
  GrantRecord record;
  record.key = key;
  record.epoch = grant.epoch;
  record.name = name;
  record.client = clients_[sender];
  record.claim = grant.claim;
  record.partition = partition;
  record.at = sim_.now();
  for (std::uint32_t i = 0; i < grant.extent_count && grant.first_extent + i < reply.extents.size(); ++i)
    record.extents.push_back(reply.extents[grant.first_extent + i]);
  if (record.extents.size() > 1) sim_.probes.hit(Probe::several_extents);
  for (const auto& [epoch, other] : grants_) {
    for (const storage::Extent& a : other.extents)
      for (const storage::Extent& b : record.extents)
        if (a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes)
          sim_.violate(4, "the slot of epoch " + std::to_string(epoch) + " was given away while its writer may still write");
  }
  const auto* shape = node_->core(partition).catalog().shape(key.ns, key.pool);
  const std::uint64_t bytes = shape == nullptr ? 0 : shape->payload_bytes();
  granted_bytes_ += bytes;
  record.bytes = bytes;
  if (book.claim_grants == 0) {  // promotions do not look at the window
    std::uint64_t open = 0;
    for (const auto& [epoch, other] : grants_)
      if (other.open && other.name.sender == sender && other.partition == partition) open += other.bytes;
    if (open != 0 && open + bytes > sim_.knobs.store.window_bytes)
      sim_.violate(8, text(key) + " was granted to a sender that then has " + std::to_string(open + bytes) +
                          " bytes of open grants, its window is " + std::to_string(sim_.knobs.store.window_bytes));
  }
  const Duration time = sim_.knobs.store.grant_base + bytes * kSecond / sim_.knobs.store.least_rate;
  // Deadlines double with promotions; the first one is what every grant has at least.
  const auto doublings = std::count_if(book.grants.begin(), book.grants.end(), [this](Epoch epoch) {
    return !grants_.at(epoch).orphan && !grants_.at(epoch).removed;
  });
  record.valid_until = sim_.now() + (time << std::min<std::ptrdiff_t>(doublings, 20));
  record.patient_until = sim_.now() + (time << std::min<std::uint32_t>(book.claim_grants++, 16));
  ++book.grants_ever;
  if (sim_.knobs.calm && book.grants_ever > 1)
    sim_.violate(1, text(key) + " was granted " + std::to_string(book.grants_ever) + " times in a run without faults");
  ObjectLocation at;
  if (readable(partition, key, &at) && !sim_.faults.store.publish_before_landed)
    sim_.violate(1, text(key) + " was granted although it is stored");
  book.grants.push_back(grant.epoch);
  grants_.emplace(grant.epoch, std::move(record));
}

void Checkers::count_verdict(const ItemVerdict& v) {
  const auto hit = [this](Probe probe) { sim_.probes.hit(probe); };
  if (v.verdict == Verdict::stored) hit(Probe::stored);
  if (v.verdict == Verdict::joined) hit(Probe::joined);
  if (v.verdict == Verdict::already_stored) hit(Probe::already_stored);
  if (v.verdict == Verdict::conflict) hit(Probe::conflict_verdict);
  if (v.verdict == Verdict::failed && v.reason == Reason::persist_failed) hit(Probe::persist_failed_verdict);
  if (v.verdict != Verdict::rejected) return;
  if (v.reason == Reason::busy) hit(Probe::rejected_busy);
  if (v.reason == Reason::removed) hit(Probe::rejected_removed);
  if (v.reason == Reason::unverified) hit(Probe::rejected_unverified);
  if (v.reason == Reason::level_unavailable) hit(Probe::level_unavailable);
  if (v.reason == Reason::no_space) hit(sim_.knobs.store.index.max_pages < 100 ? Probe::index_full : Probe::no_space);
}

void Checkers::on_verdict(std::uint32_t partition, SenderId sender, const ItemVerdict& verdict,
                          std::uint64_t open_before) {
  count_verdict(verdict);
  const ItemName name{sender, verdict.batch, verdict.item};
  const auto item = items_.find(name);
  if (item == items_.end()) return;  // decided before (a forger's, or withdrawn while it was being answered)
  const CanonicalKey key = item->second;
  sim_.note("  verdict", key_tag(key), sender & 0xffff,
            static_cast<std::uint64_t>(verdict.verdict) * 100 + static_cast<std::uint64_t>(verdict.reason));
  KeyBook& book = keys_[key];
  Waiting waiting;
  for (const Waiting& w : book.waiting)
    if (w.name == name) waiting = w;
  decided_[item_key(sender, key)] = sim_.now();

  if (is_success(verdict.verdict)) {
    told_[item_key(sender, key)] = sim_.now();
    ObjectLocation at;
    if (readable(partition, key, &at)) {
      if (at.level < waiting.level && !waiting.met)
        sim_.violate(2, text(key) + ": " + std::string(to_string(verdict.verdict)) + " at level " +
                            std::string(to_string(waiting.level)) + " was told while it is only at " +
                            std::string(to_string(at.level)) + " (announced " +
                            std::to_string((sim_.now() - waiting.since) / kMicrosecond) + " us before, epoch " +
                            std::to_string(at.epoch) + ")");
    } else {
      // It may have been there when the verdict was made, and been evicted for the next item of the same message.
      // Likewise while a sender was asked for its checksums.
      const auto presence = present_.find(CanonicalKey{key.page, key.ns, key.pool, key.shard, 0});
      const bool was_there = presence != present_.end() && presence->second.gone_at >= waiting.since;
      if (!was_there)
        sim_.violate(2, text(key) + ": " + std::string(to_string(verdict.verdict)) + " was told and it is not readable");
    }
    if (sim_.knobs.store.demote && differing_.contains(name))
      sim_.violate(4, text(key) + ": a sender whose bytes differ was told " + std::string(to_string(verdict.verdict)));
  } else if (verdict.verdict == Verdict::failed && verdict.reason != Reason::persist_failed) {
    const bool able =
        std::any_of(book.waiting.begin(), book.waiting.end(), [](const Waiting& w) { return !w.cannot_copy && w.claiming; });
    if (able) sim_.violate(3, text(key) + " was told failed(" + std::string(to_string(verdict.reason)) +
                                  ") while a sender of it lives and can copy");
  } else if (verdict.verdict == Verdict::rejected && verdict.reason == Reason::busy) {
    if (open_before <= sim_.knobs.store.max_open_items_per_sender)
      sim_.violate(8, "a sender with " + std::to_string(open_before) + " open items was told busy");
  } else if (sim_.knobs.calm && verdict.reason == Reason::no_space) {
    sim_.violate(8, text(key) + " found no space in a store that is never short");
  }
  stop_waiting(name, key);
}

bool Checkers::sender_writes(SenderId sender, std::uint32_t partition, Time* last) const {
  for (const auto& [epoch, grant] : grants_)
    if (grant.open && grant.name.sender == sender && grant.partition == partition) return true;
  const auto at = idle_since_.find({sender, partition});
  *last = at == idle_since_.end() ? 0 : at->second;
  return false;
}

bool Checkers::owns_grant(SenderId sender, Epoch epoch) const {
  const auto at = grants_.find(epoch);
  return at != grants_.end() && at->second.name.sender == sender;
}

// While a sender of a key waits with nothing else to write, somebody has a valid grant for that key.
void Checkers::check_progress(std::uint32_t partition, const CanonicalKey& key, KeyBook& book) {
  if (book.waiting.empty()) return;
  const std::uint64_t no_space = node_->core(partition).stats().no_space;
  if (no_space != no_space_[partition]) no_space_until_[partition] = sim_.now();
  no_space_[partition] = no_space;
  const Duration patience = 3 * sim_.knobs.store.scan_period + 2 * kMillisecond;
  Time written = book.writing_until;
  for (const Epoch epoch : book.grants) {
    const GrantRecord& grant = grants_.at(epoch);
    if (grant.open && !grant.removed && !grant.orphan) written = std::max(written, std::min(grant.patient_until, sim_.now()));
  }
  ObjectLocation at;
  const bool stored = readable(partition, key, &at);
  for (const Waiting& w : book.waiting) {
    if (w.cannot_copy || !connected_.contains({partition, w.name.sender})) continue;
    if (stored) {
      const auto present = present_.find(CanonicalKey{key.page, key.ns, key.pool, key.shard, 0});
      const Time since = present == present_.end() ? sim_.now() : std::max(present->second.since, w.since);
      const Duration bound = patience + sim_.knobs.store.verify_window + sim_.knobs.store.conflict_hold +
                             sim_.knobs.store.grant_base * 2;
      if (at.level >= w.level && sim_.now() - since > bound)
        sim_.violate(3, text(key) + " is stored, and a sender of it was not told for " +
                            std::to_string((sim_.now() - since) / kMillisecond) + " ms");
      continue;
    }
    if (!w.claiming) continue;  // it was stored when this sender was heard; its checksums or its level are waited for
    const bool writes_it = std::any_of(book.grants.begin(), book.grants.end(), [&](Epoch epoch) {
      return grants_.at(epoch).name.sender == w.name.sender;
    });
    Time idle = 0;
    if (writes_it || sender_writes(w.name.sender, partition, &idle)) continue;
    const Time since = std::max({w.since, written, idle});
    if (no_space_until_[partition] + patience >= sim_.now()) continue;  // nothing could be evicted for it just now
    if (sim_.now() - since > patience)
      sim_.violate(3, text(key) + " has a living sender, and nobody was given the right to write it for " +
                          std::to_string((sim_.now() - since) / kMicrosecond) + " us");
  }
}

void Checkers::delivered(const Peer& peer, const std::vector<CanonicalKey>& keys, Verdict verdict, Reason reason,
                         Time announced) {
  if (is_success(verdict)) {
    for (const CanonicalKey& key : keys) {
      const auto at = told_.find(item_key(peer.sender, key));
      if (at != told_.end() && at->second >= announced) return;
    }
    sim_.violate(2, "an engine heard " + std::string(to_string(verdict)) + " for " + text(keys.front()) +
                        ", which no store has told");
  } else if (sim_.knobs.calm && reason != Reason::level_unavailable && reason != Reason::persist_failed) {
    sim_.violate(verdict == Verdict::unknown ? 6 : 3, "an engine heard " + std::string(to_string(verdict)) + "(" +
                                                          std::string(to_string(reason)) + ") for " + text(keys.front()) +
                                                          " in a run without faults");
  } else if (verdict == Verdict::unknown) {
    sim_.probes.hit(Probe::unknown_verdict);
  }
}

}  // namespace kvonce::sim
