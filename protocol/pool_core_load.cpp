// SPDX-License-Identifier: Apache-2.0
// Loads: slot -> row, layer group after layer group.
#include <algorithm>
#include <utility>

#include "protocol/pool_core_impl.hpp"

namespace kvonce::protocol {

namespace {

// Beyond, a part more costs next to nothing.
constexpr std::uint64_t kMaxPartBytes = 1ULL << 40;

}  // namespace

void PoolCore::Impl::load(LoadOrder&& order, Time now, PoolActions& out) {
  if (loads.contains(order.id) || unbegun.contains(order.id)) return;  // ids are never reused: the same order again
  Reason all = Reason::none;
  if (closed) {
    all = Reason::closed;
  } else if (lost) {
    all = Reason::store_lost;
  } else if (order.layer_begin >= order.layer_end) {
    all = Reason::bad_argument;
  } else if (order.deadline <= now && !config.faults.forget_deadline) {
    all = Reason::deadline;
  }
  Load fresh;
  fresh.reasons.assign(order.items.size(), Reason::none);
  for (std::size_t i = 0; i < order.items.size(); ++i) {
    const LoadOrderItem& item = order.items[i];
    Reason& reason = fresh.reasons[i];
    if (all != Reason::none) {
      reason = all;
    } else if (item.pool >= pools.size() || pools[item.pool].object_bytes == 0) {
      reason = Reason::unknown_pool;
    } else if (pools[item.pool].closing) {
      reason = Reason::closed;
    } else if (item.row >= pools[item.pool].rows) {
      reason = Reason::row_out_of_range;
    } else {
      fresh.lent.push_back(static_cast<std::uint32_t>(i));
      ++pools[item.pool].lent;
    }
  }
  if (fresh.lent.empty()) {
    out.loads_done.push_back({order.id, std::move(fresh.reasons)});
    return;
  }
  const Duration left = order.deadline == kNever ? kNever : order.deadline > now ? order.deadline - now : 0;
  out.load_begins.push_back({order.id, config.sender, config.engine, order.lease, left});
  if (order.deadline != kNever && !config.faults.forget_deadline) deadlines.emplace(order.deadline, true, order.id);
  fresh.order = std::move(order);
  const std::uint64_t id = fresh.order.id;
  loads.emplace(id, std::move(fresh));
}

void PoolCore::Impl::on_load_begun(const LoadBegun& begun, Time now, PoolActions& out) {
  const auto over = unbegun.find(begun.load);
  if (over != unbegun.end()) {
    if (begun.reason == Reason::none) out.load_ends.push_back({begun.load, config.sender, over->second});
    unbegun.erase(over);
    return;
  }
  const auto at = loads.find(begun.load);
  if (at == loads.end() || at->second.begun) return;
  Load& load = at->second;
  if (begun.reason != Reason::none) {
    finish_unbegun(load, begun.reason, false, out);
    return;
  }
  if (load.order.deadline <= now && !config.faults.forget_deadline) {
    out.load_ends.push_back({begun.load, config.sender, load.order.lease});
    finish_unbegun(load, Reason::deadline, false, out);
    return;
  }
  load.begun = true;
  load.part_bytes = load.order.layers_per_group == 0 ? config.load_part_bytes : 0;
  start_part(load, out);
}

/// A store that ended pins nothing, and evicts nothing either: what it held is still mapped, and a copy is compared with its
/// slot's header all the same, should a successor write there.
void PoolCore::Impl::begin_unpinned(Load& load, Time now, PoolActions& out) {
  if (load.order.deadline <= now && !config.faults.forget_deadline) {
    finish_unbegun(load, Reason::deadline, false, out);
    return;
  }
  load.begun = true;
  load.part_bytes = 0;
  start_part(load, out);
}

void PoolCore::Impl::load_more(std::uint64_t id, Time now, PoolActions& out) {
  const auto at = loads.find(id);
  if (at == loads.end() || !at->second.begun || at->second.next == at->second.lent.size()) return;
  Load& load = at->second;
  if (load.order.deadline <= now && !config.faults.forget_deadline)
    end_rest(load, Reason::deadline, out);
  else
    start_part(load, out);
}

void PoolCore::Impl::find_items(Load& load, CopyOrder& copies, std::vector<std::uint32_t>& item_of) {
  const LoadOrder& order = load.order;
  constexpr std::size_t kAhead = 4;  // items between one stage of prefetching and the next
  const auto fetch = [&](std::size_t at, unsigned stage) {
    if (at >= load.lent.size()) return;
    const LoadOrderItem& item = order.items[load.lent[at]];
    locator.prefetch(item.pool, item.page, stage);
  };
  if (load.next == 0) {  // else the part before has looked ahead
    for (std::size_t at = 0; at < 3 * kAhead; ++at) fetch(at, 0);
    for (std::size_t at = 0; at < 2 * kAhead; ++at) fetch(at, 1);
  }
  std::uint64_t bytes = 0;
  while (load.next < load.lent.size() && (load.part_bytes == 0 || bytes < load.part_bytes)) {
    const std::size_t at = load.next++;
    fetch(at + 3 * kAhead, 0);
    fetch(at + 2 * kAhead, 1);
    fetch(at + kAhead, 2);
    const std::uint32_t i = load.lent[at];
    const LoadOrderItem& item = order.items[i];
    CopyOrder::Item& copy = copies.items.emplace_back();
    copy.pool = item.pool;
    copy.row = item.row;
    copy.location.slot.count = 0;
    PoolKeying keying;
    const ReadStatus status = locator.locate(item.pool, item.page, &copy.partition, &keying, &copy.location);
    if (status != ReadStatus::found) {
      load.reasons[i] = status == ReadStatus::absent ? Reason::absent : Reason::busy;
      copies.items.pop_back();
      continue;
    }
    copy.ns = keying.ns;
    copy.store_pool = keying.pool;
    copy.generation = keying.generation;
    item_of.push_back(i);
    bytes += pools[item.pool].object_bytes;
    load.layers = std::max(load.layers, pools[item.pool].layers);
  }
}

void PoolCore::Impl::start_part(Load& load, PoolActions& out) {
  const LoadOrder& order = load.order;
  CopyOrder copies;
  copies.kind = CopyOrder::Kind::from_slot;
  copies.owner = order.id;
  copies.deadline = order.deadline;
  std::vector<std::uint32_t> item_of;  // of copies.items
  const std::size_t most = load.lent.size() - load.next;
  copies.items.reserve(load.part_bytes == 0 ? most : std::min<std::size_t>(most, 256));
  item_of.reserve(copies.items.capacity());
  find_items(load, copies, item_of);
  const bool more = load.next < load.lent.size();
  // From here on the deadline is the copies' own, and they end by themselves.
  if (!more) deadlines.erase({order.deadline, true, order.id});
  load.in_parts = load.in_parts || more;
  load.part_bytes = std::min(load.part_bytes * 2, kMaxPartBytes);

  Operation operation;
  operation.kind = copies.kind;
  operation.owner = order.id;
  operation.lease = order.lease;
  const std::uint32_t end = std::min(order.layer_end, load.layers);
  const std::vector<CopyOrder::Item> located = std::exchange(copies.items, {});
  const std::uint32_t layers = end > order.layer_begin ? end - order.layer_begin : 0;
  const std::uint32_t groups = order.layers_per_group == 0 ? 1 : (layers + order.layers_per_group - 1) / order.layers_per_group;
  // Once for all groups: an item is 300 bytes, and a load by single layers has as many of each page as there are layers.
  copies.items.reserve(groups * located.size());
  operation.parts.reserve(groups * located.size());
  for (std::uint32_t begin = order.layer_begin; begin < end;) {
    const std::uint32_t step = order.layers_per_group == 0 ? layers : std::min(order.layers_per_group, end - begin);
    for (std::size_t i = 0; i < located.size(); ++i) {
      if (pools[located[i].pool].layers <= begin) continue;  // it has fewer layers than others, and all of them by now
      copies.items.push_back(located[i]);
      copies.items.back().layer_begin = begin;
      copies.items.back().layer_end = begin + step;
      operation.parts.push_back({item_of[i], 0, located[i].location.epoch});
    }
    begin += step;
    operation.groups.push_back({static_cast<std::uint32_t>(operation.parts.size()), begin});
  }
  // No part has the last word on its layers; the load tells them all when it is over.
  if (load.in_parts) operation.groups.clear();
  if (more) out.load_more.push_back(order.id);
  if (copies.items.empty()) {
    finish_if_over(load, out);
    return;
  }
  copies.operation = next_operation++;
  load.operations.push_back(copies.operation);
  operations.emplace(copies.operation, std::move(operation));
  out.copies.push_back(std::move(copies));
}

void PoolCore::Impl::give_up_rest(Load& load, Reason reason) {
  if (load.next < load.lent.size()) load.whole = false;
  for (; load.next < load.lent.size(); ++load.next) load.reasons[load.lent[load.next]] = reason;
}

void PoolCore::Impl::end_rest(Load& load, Reason reason, PoolActions& out) {
  give_up_rest(load, reason);
  finish_if_over(load, out);
}

void PoolCore::Impl::finish_if_over(Load& load, PoolActions& out) {
  if (!load.operations.empty() || load.next < load.lent.size()) return;
  if (!lost) out.load_ends.push_back({load.order.id, config.sender, load.order.lease});
  const std::uint32_t layers_done = std::min(load.order.layer_end, load.layers);
  if (load.in_parts && load.whole && layers_done > load.order.layer_begin)
    out.load_progress.push_back({load.order.id, layers_done});
  finish_load(load, out);
}

void PoolCore::Impl::copy_progress(std::uint64_t id, std::uint32_t items_done, const std::vector<CopyOutcome>& outcomes,
                                   PoolActions& out) {
  const auto at = operations.find(id);
  if (at == operations.end() || at->second.kind != CopyOrder::Kind::from_slot) return;
  Operation& operation = at->second;
  if (!loads.contains(operation.owner)) return;
  const std::size_t finished = std::min<std::size_t>(items_done, outcomes.size());
  const std::size_t told_before = operation.groups_told;
  while (operation.groups_told < operation.groups.size()) {
    const std::size_t first = operation.groups_told == 0 ? 0 : operation.groups[operation.groups_told - 1].parts_end;
    const std::size_t last = operation.groups[operation.groups_told].parts_end;
    if (last > finished) break;
    // One item that did not come over ends progress for good: the engine would start on layers that are not there.
    const auto begin = outcomes.begin();
    if (!std::all_of(begin + static_cast<std::ptrdiff_t>(first), begin + static_cast<std::ptrdiff_t>(last),
                     [this](CopyOutcome outcome) { return loaded(outcome); }))
      break;
    ++operation.groups_told;
  }
  if (operation.groups_told != told_before)
    out.load_progress.push_back({operation.owner, operation.groups[operation.groups_told - 1].layers_done});
}

void PoolCore::Impl::load_copied(std::uint64_t id, const Operation& operation, const std::vector<CopyOutcome>& outcomes,
                                 PoolActions& out) {
  const auto at = loads.find(operation.owner);
  if (at == loads.end()) {
    out.load_ends.push_back({operation.owner, config.sender, operation.lease});
    return;
  }
  Load& load = at->second;
  std::erase(load.operations, id);
  const bool all_loaded = outcomes.size() >= operation.parts.size() &&
                          std::all_of(outcomes.begin(), outcomes.end(), [this](CopyOutcome outcome) { return loaded(outcome); });
  load.whole = load.whole && all_loaded;
  // What was not told group by group (a copy made on the spot, or one group): all of it, when all of it is there.
  if (operation.groups_told < operation.groups.size() && all_loaded)
    out.load_progress.push_back({operation.owner, operation.groups.back().layers_done});
  for (std::size_t i = 0; i < operation.parts.size(); ++i) {
    const CopyOutcome outcome = i < outcomes.size() ? outcomes[i] : CopyOutcome::failed;
    Reason& reason = load.reasons[operation.parts[i].item];
    if (reason != Reason::none || loaded(outcome)) continue;  // the first group that failed names the reason
    if (outcome == CopyOutcome::mismatch) report_bad(load.order.items[operation.parts[i].item], operation.parts[i].name, out);
    switch (outcome) {
      case CopyOutcome::mismatch:
        reason = Reason::checksum_mismatch;
        break;
      case CopyOutcome::expired:
        reason = Reason::deadline;
        break;
      case CopyOutcome::canceled:
        reason = load.end == Reason::none ? Reason::canceled : load.end;
        break;
      default:
        reason = Reason::copy_failed;
    }
  }
  finish_if_over(load, out);
}

/// The store lets go of what is still there under the epoch that was read; a slot that became another's is not its matter.
void PoolCore::Impl::report_bad(const LoadOrderItem& item, Epoch epoch, PoolActions& out) {
  std::uint32_t partition = 0;
  PoolKeying keying;
  ObjectLocation location;
  if (lost || locator.locate(item.pool, item.page, &partition, &keying, &location) != ReadStatus::found || location.epoch != epoch)
    return;
  results_for(partition, config.sender, out).bad.push_back({item.page, epoch, keying.ns, keying.pool, keying.shard});
}

void PoolCore::Impl::end_load(Load& load, Reason reason, bool at_once, PoolActions& out) {
  if (!load.begun) {
    finish_unbegun(load, reason, true, out);
    return;
  }
  if (load.end == Reason::none) {
    load.end = reason;
    give_up_rest(load, reason);
    for (const std::uint64_t id : load.operations) {
      operations.at(id).canceled = true;
      out.cancel_copies.push_back(id);
    }
  }
  if (!at_once) {
    finish_if_over(load, out);  // also between two parts, when nothing is running
    return;
  }
  for (const std::uint32_t i : load.lent)
    if (load.reasons[i] == Reason::none) load.reasons[i] = reason;
  finish_load(load, out);
}

void PoolCore::Impl::finish_unbegun(Load& load, Reason reason, bool remember, PoolActions& out) {
  for (const std::uint32_t i : load.lent) load.reasons[i] = reason;
  if (remember) unbegun.emplace(load.order.id, load.order.lease);
  finish_load(load, out);
}

void PoolCore::Impl::finish_load(Load& load, PoolActions& out) {
  deadlines.erase({load.order.deadline, true, load.order.id});
  out.loads_done.push_back({load.order.id, std::move(load.reasons)});
  for (const std::uint32_t i : load.lent) give_back(load.order.items[i].pool, out);
  loads.erase(load.order.id);
}

}  // namespace kvonce::protocol
