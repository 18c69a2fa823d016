// SPDX-License-Identifier: Apache-2.0
// What the store says of puts, and what becomes of their copies.
#include <algorithm>

#include "protocol/pool_core_impl.hpp"

namespace kvonce::protocol {

namespace {

ChecksumAnswers& answers_for(std::uint32_t partition, SenderId sender, PoolActions& out) {
  for (auto& [to, answers] : out.checksums)
    if (to == partition) return answers;
  out.checksums.emplace_back(partition, ChecksumAnswers{sender, {}, {}});
  return out.checksums.back().second;
}

}  // namespace

GrantResults& results_for(std::uint32_t partition, SenderId sender, PoolActions& out) {
  for (auto& [to, results] : out.results)
    if (to == partition) return results;
  out.results.emplace_back(partition, GrantResults{sender, {}, {}, {}});
  return out.results.back().second;
}

PoolCore::Impl::Batch* PoolCore::Impl::find_batch(std::uint64_t id) {
  if (found != nullptr && found->id == id) return found;
  const auto at = batches.find(id);
  found = at == batches.end() ? nullptr : &at->second;
  return found;
}

PoolCore::Impl::Item* PoolCore::Impl::waiting_item(Batch* batch, std::uint32_t index) {
  if (batch == nullptr || index >= batch->items.size()) return nullptr;
  Item& item = batch->items[index];
  return item.decided || item.held || item.first != kItself ? nullptr : &item;
}

void PoolCore::Impl::on_reply(const StoreReply& reply, Time now, PoolActions& out) {
  // Verdicts first: a grant for an item that they decide needs no copy.
  for (const ItemVerdict& verdict : reply.verdicts) {
    Batch* batch = find_batch(verdict.batch);
    if (verdict.verdict == Verdict::none || waiting_item(batch, verdict.item) == nullptr) continue;
    decide(*batch, verdict.item, {verdict.verdict, verdict.reason, verdict.retry_after_ms}, false, true, out);
    finish(*batch, out);
  }
  std::vector<std::uint64_t> again;
  for (const Redirect& redirect : reply.redirects) on_redirect(redirect, out, again);
  const std::size_t first_copy = out.copies.size();
  for (const ChecksumAsk& ask : reply.asks) on_ask(ask, reply.partition, first_copy, out);
  for (const Grant& grant : reply.grants) on_grant(grant, reply, first_copy, out);
  for (const std::uint64_t id : again)
    if (Batch* batch = find_batch(id)) announce(*batch, now, out);
}

void PoolCore::Impl::on_redirect(const Redirect& redirect, PoolActions& out, std::vector<std::uint64_t>& again) {
  Batch* batch = find_batch(redirect.batch);
  Item* item = waiting_item(batch, redirect.item);
  if (item == nullptr) return;
  Pool& pool = pools[item->pool];
  const bool asked = std::any_of(pool.rekeys.begin(), pool.rekeys.end(), [&redirect](const auto& rekey) {
    return rekey.first == redirect.pool && rekey.second >= redirect.generation;
  });
  if (++item->redirects > kMaxRedirects || (asked && pool.rekey_failed) || (!asked && pool.rekeys.size() == kMaxRekeys)) {
    decide(*batch, redirect.item, {Verdict::rejected, Reason::unverified, 0}, false, true, out);
    finish(*batch, out);
    return;
  }
  item->held = true;
  ++batch->held;
  detach(*item, true, out);
  if (!asked) {
    pool.rekeys.emplace_back(redirect.pool, redirect.generation);
    pool.rekey_failed = false;
    ++pool.rekeys_pending;
    out.rekeys.push_back({item->pool, redirect.generation});
  } else if (pool.rekeys_pending == 0 && (again.empty() || again.back() != batch->id)) {
    again.push_back(batch->id);  // it was under way under the old key when the pool got its new one
  }
}

void PoolCore::Impl::on_rekeyed(std::uint32_t pool, bool ok, Time now, PoolActions& out) {
  if (pool >= pools.size() || pools[pool].rekeys_pending == 0) return;
  --pools[pool].rekeys_pending;
  pools[pool].rekey_failed = !ok;
  for (const std::uint64_t id : batch_ids()) {
    Batch& batch = batches.at(id);
    if (batch.held == 0) continue;
    if (!ok) {
      for (std::uint32_t i = 0; i < batch.items.size(); ++i)
        if (batch.items[i].held && batch.items[i].pool == pool)
          decide(batch, i, {Verdict::rejected, Reason::unverified, 0}, false, true, out);
      if (finish(batch, out)) continue;
    }
    announce(batch, now, out);
  }
}

// One operation per reply, put and kind, so that each has one owner, deadline and event.
CopyOrder& PoolCore::Impl::copy_for(const Batch& batch, CopyOrder::Kind kind, std::uint32_t partition,
                                    std::size_t first_copy, std::size_t most_items, PoolActions& out) {
  for (std::size_t i = out.copies.size(); i-- > first_copy;)
    if (out.copies[i].owner == batch.id && out.copies[i].kind == kind) return out.copies[i];
  CopyOrder order;
  order.kind = kind;
  order.operation = next_operation++;
  order.owner = batch.id;
  order.deadline = batch.deadline;
  order.items.reserve(std::min(most_items, batch.items.size()));  // an item is 300 bytes: too many to move about
  Operation operation;
  operation.kind = kind;
  operation.owner = batch.id;
  operation.partition = partition;
  operations.emplace(order.operation, std::move(operation));
  out.copies.push_back(std::move(order));
  return out.copies.back();
}

void PoolCore::Impl::on_ask(const ChecksumAsk& ask, std::uint32_t partition, std::size_t first_copy, PoolActions& out) {
  Batch* batch = find_batch(ask.batch);
  Item* item = waiting_item(batch, ask.item);
  if (item != nullptr && item->hash != 0) {
    for (const Operation::Part& part : operations.at(item->hash).parts)
      if (part.item == ask.item && part.name == ask.ask) return;  // the same ask again: it is being answered
    item = nullptr;
  }
  if (item == nullptr) {
    answers_for(partition, config.sender, out).answers.push_back({ask.ask, 0, 0});
    return;
  }
  CopyOrder& order = copy_for(*batch, CopyOrder::Kind::hash_row, partition, first_copy, 1, out);
  Operation& operation = operations.at(order.operation);
  operation.parts.push_back({ask.item, 0, ask.ask});
  ++operation.live;
  item->hash = order.operation;
  CopyOrder::Item& copy = order.items.emplace_back();
  copy.pool = item->pool;
  copy.row = item->row;
  copy.partition = partition;
  copy.location.slot.count = 0;
}

void PoolCore::Impl::on_grant(const Grant& grant, const StoreReply& reply, std::size_t first_copy, PoolActions& out) {
  Batch* batch = find_batch(grant.batch);
  if (batch != nullptr && grant.item < batch->items.size() && grant.epoch <= batch->items[grant.item].epoch) {
    // A grant that is being copied or has been answered. A second answer could make the store free the slot that we
    // write to right now, or that has been published.
    return;
  }
  Item* item = waiting_item(batch, grant.item);
  const bool slot_ok = grant.extent_count >= 1 && grant.extent_count <= storage::kMaxExtents &&
                       grant.first_extent <= reply.extents.size() &&
                       grant.extent_count <= reply.extents.size() - grant.first_extent;
  if (item == nullptr || item->copy != 0 || !slot_ok) {
    results_for(reply.partition, config.sender, out)
        .results.push_back({grant.claim, grant.epoch, GrantOutcome::abandoned, 0, 0});
    return;
  }
  CopyOrder& order = copy_for(*batch, CopyOrder::Kind::to_slot, reply.partition, first_copy, reply.grants.size(), out);
  Operation& operation = operations.at(order.operation);
  operation.parts.push_back({grant.item, grant.claim, grant.epoch});
  ++operation.live;
  item->copy = order.operation;
  item->epoch = grant.epoch;
  CopyOrder::Item& copy = order.items.emplace_back();
  copy.pool = item->pool;
  copy.row = item->row;
  copy.partition = reply.partition;
  copy.location.epoch = grant.epoch;
  copy.location.slot.count = grant.extent_count;
  std::copy_n(reply.extents.begin() + grant.first_extent, grant.extent_count, copy.location.slot.extents.begin());
}

void PoolCore::Impl::copy_done(std::uint64_t id, const std::vector<CopyOutcome>& outcomes,
                               const std::vector<std::uint32_t>& counts, const std::vector<std::uint64_t>& checksums,
                               Time now, PoolActions& out) {
  const auto at = operations.find(id);
  if (at == operations.end()) return;
  const Operation operation = std::move(at->second);
  operations.erase(at);
  if (operation.kind == CopyOrder::Kind::from_slot) {
    load_copied(id, operation, outcomes, out);
    return;
  }

  const bool is_copy = operation.kind == CopyOrder::Kind::to_slot;
  Batch* batch = find_batch(operation.owner);
  std::uint64_t sums_begin = 0;
  for (std::size_t i = 0; i < operation.parts.size(); ++i) {
    const Operation::Part& part = operation.parts[i];
    CopyOutcome outcome = i < outcomes.size() ? outcomes[i] : CopyOutcome::failed;
    const std::uint32_t count = i < counts.size() ? counts[i] : 0;
    if (count > checksums.size() - sums_begin) outcome = CopyOutcome::failed;  // the shell contradicts itself
    if (outcome == CopyOutcome::expired && is_copy && config.faults.land_after_deadline) outcome = CopyOutcome::done;
    const auto first = checksums.begin() + static_cast<std::ptrdiff_t>(sums_begin);
    const bool done = outcome == CopyOutcome::done;
    if (is_copy) {
      GrantResults& to = results_for(operation.partition, config.sender, out);
      GrantResult result{part.claim, part.name, GrantOutcome::abandoned, 0, 0};
      if (done) {
        result.outcome = GrantOutcome::landed;
        result.first_checksum = static_cast<std::uint32_t>(to.checksums.size());
        result.checksum_count = count;
        to.checksums.insert(to.checksums.end(), first, first + count);
      } else if (outcome == CopyOutcome::failed || outcome == CopyOutcome::mismatch) {
        result.outcome = GrantOutcome::failed;
      }
      to.results.push_back(result);
    } else {
      ChecksumAnswers& to = answers_for(operation.partition, config.sender, out);
      const std::uint32_t sums = done ? count : 0;
      to.answers.push_back({part.name, sums == 0 ? 0 : static_cast<std::uint32_t>(to.checksums.size()), sums});
      to.checksums.insert(to.checksums.end(), first, first + sums);
    }
    if (count <= checksums.size() - sums_begin) sums_begin += count;

    if (batch == nullptr) continue;
    Item& item = batch->items[part.item];
    (is_copy ? item.copy : item.hash) = 0;
    if (is_copy) copy_over(*batch, part.item, outcome, out);
    if (item.decided && !item.read()) settle(*batch, item);
  }
  if (batch != nullptr && !finish(*batch, out)) announce(*batch, now, out);
}

void PoolCore::Impl::copy_over(Batch& batch, std::uint32_t index, CopyOutcome outcome, PoolActions& out) {
  Item& item = batch.items[index];
  if (item.withdraw_after_copy && !lost) {
    if (out.withdraws.empty()) out.withdraws.push_back({config.sender, {}});
    out.withdraws.back().items.push_back({batch.id, index});
  }
  item.withdraw_after_copy = false;
  if (item.decided || item.held) return;
  // done and failed: the store has the last word, and the item goes on waiting for it.
  if (outcome == CopyOutcome::expired && !config.faults.forget_deadline) {
    decide(batch, index, {Verdict::unknown, Reason::deadline, 0}, true, true, out);
  } else if (outcome == CopyOutcome::canceled) {
    decide(batch, index, {Verdict::unknown, Reason::canceled, 0}, true, true, out);
  }
}

}  // namespace kvonce::protocol
