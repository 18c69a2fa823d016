// SPDX-License-Identifier: Apache-2.0
#include "protocol/pool_core.hpp"

#include <algorithm>
#include <bit>

#include "protocol/pool_core_impl.hpp"

namespace kvonce::protocol {

void PoolActions::clear() {
  ready.clear();
  results.clear();
  withdraws.clear();
  checksums.clear();
  load_begins.clear();
  load_ends.clear();
  copies.clear();
  load_more.clear();
  cancel_copies.clear();
  puts_done.clear();
  load_progress.clear();
  loads_done.clear();
  rekeys.clear();
  unregistered.clear();
}

void PoolCore::Impl::put(PutOrder&& order, Time now, PoolActions& out) {
  if (batches.contains(order.id)) return;  // ids are never reused: the same order again
  Batch fresh;
  fresh.id = order.id;
  fresh.level = order.level;
  fresh.deadline = order.deadline;
  fresh.has_parent = order.has_parent;
  fresh.parent = order.parent;
  fresh.first_depth = order.first_depth;
  fresh.pages = std::move(order.pages);
  fresh.items.resize(order.items.size());

  // What concerns the whole put; none: each item for itself.
  ItemResult all;
  if (closed) {
    all = {Verdict::rejected, Reason::closed, 0};
  } else if (lost) {
    all = {Verdict::unknown, Reason::store_lost, 0};
  } else if (open_items + order.items.size() > config.max_open_items) {
    all = {Verdict::rejected, Reason::busy, kBusyRetryMs};
  }
  const bool late = order.deadline <= now && !config.faults.forget_deadline;

  for (std::size_t i = 0; i < order.items.size(); ++i) {
    const PutOrderItem& asked = order.items[i];
    Item& item = fresh.items[i];
    item.row = asked.row;
    item.page = asked.page;
    item.pool = asked.pool;
    if (all.verdict != Verdict::none) {
      item.result = all;
    } else if (asked.page >= fresh.pages.size()) {
      item.result = {Verdict::rejected, Reason::bad_argument, 0};
    } else if (asked.pool >= pools.size() || pools[asked.pool].object_bytes == 0) {
      item.result = {Verdict::rejected, Reason::unknown_pool, 0};
    } else if (pools[asked.pool].closing) {
      item.result = {Verdict::rejected, Reason::closed, 0};
    } else if (asked.row >= pools[asked.pool].rows) {
      item.result = {Verdict::rejected, Reason::row_out_of_range, 0};
    } else if (late) {
      item.result = {Verdict::unknown, Reason::deadline, 0};
    } else {
      item.lent = item.held = true;
      ++pools[asked.pool].lent;
      ++open_items;
      continue;
    }
    item.decided = item.settled = true;
  }
  mark_repeats(fresh);
  for (Item& item : fresh.items) {
    if (item.first != kItself) item.held = false;
    if (item.held) ++fresh.held, ++fresh.unsettled;
  }

  Batch& batch = batches.emplace(fresh.id, std::move(fresh)).first->second;
  if (finish(batch, out)) return;
  if (batch.deadline != kNever && !config.faults.forget_deadline) deadlines.emplace(batch.deadline, false, batch.id);
  announce(batch, now, out);
}

// An open-addressed table of the batch's items, kept from put to put; entries are item numbers.
void PoolCore::Impl::mark_repeats(Batch& batch) {
  if (batch.items.size() < 2) return;
  const std::size_t size = std::bit_ceil(batch.items.size() * 2);
  repeat_table.assign(size, kItself);
  for (std::uint32_t i = 0; i < batch.items.size(); ++i) {
    Item& item = batch.items[i];
    if (item.settled) continue;
    const PageHash& page = batch.pages[item.page];
    std::uint64_t at = (page.words[0] ^ page.words[1] ^ item.pool) * 0x9e3779b97f4a7c15ULL;
    for (at ^= at >> 32;; ++at) {
      std::uint32_t& slot = repeat_table[at & (size - 1)];
      if (slot == kItself) {
        slot = i;
        break;
      }
      const Item& other = batch.items[slot];
      if (other.pool == item.pool && batch.pages[other.page] == page) {
        item.first = slot;
        break;
      }
    }
  }
}

void PoolCore::Impl::announce(Batch& batch, Time now, PoolActions& out) {
  if (batch.held == 0) return;
  PageReady ready;
  ready.items.reserve(batch.held);
  std::uint64_t bytes = 0;
  for (std::uint32_t i = 0; i < batch.items.size(); ++i) {
    Item& item = batch.items[i];
    if (!item.held || item.read() || pools[item.pool].rekeys_pending != 0) continue;
    item.held = item.detached = false;
    --batch.held;
    ready.items.push_back({i, item.page, item.pool, pools[item.pool].object_bytes});
    bytes += pools[item.pool].object_bytes;
    if (config.announce_bytes == 0 || bytes < config.announce_bytes || batch.held == 0) continue;
    announce_part(batch, std::move(ready), now, out);
    ready = PageReady{};
    bytes = 0;
  }
  if (!ready.items.empty()) announce_part(batch, std::move(ready), now, out);
}

/// The pages that the items name, and those between them: still one chain.
void PoolCore::Impl::announce_part(const Batch& batch, PageReady&& ready, Time now, PoolActions& out) {
  std::uint32_t first = ready.items.front().page;
  std::uint32_t last = first;
  for (const ReadyItem& item : ready.items) {
    first = std::min(first, item.page);
    last = std::max(last, item.page);
  }
  for (ReadyItem& item : ready.items) item.page -= first;
  ready.sender = config.sender;
  ready.batch = batch.id;
  ready.level = batch.level;
  ready.time_left = batch.deadline == kNever ? kNever : batch.deadline > now ? batch.deadline - now : 0;
  ready.has_parent = first != 0 || batch.has_parent;
  ready.parent = first != 0 ? batch.pages[first - 1] : batch.parent;
  ready.pages.reserve(last - first + 1);
  for (std::uint32_t i = first; i <= last; ++i) {
    const std::uint32_t parent = i != first ? i - first - 1 : ready.has_parent ? kExternalParent : kNoParent;
    ready.pages.push_back({batch.pages[i], batch.first_depth + i, parent});
  }
  out.ready.push_back(std::move(ready));
}

void PoolCore::Impl::detach(Item& item, bool cancel, PoolActions& out) {
  if (item.detached) return;
  item.detached = true;
  for (const std::uint64_t id : {item.copy, item.hash}) {
    const auto found_operation = operations.find(id);
    if (id == 0 || found_operation == operations.end()) continue;
    Operation& operation = found_operation->second;
    if (--operation.live == 0 && cancel && !operation.canceled) {
      operation.canceled = true;
      out.cancel_copies.push_back(id);
    }
  }
}

void PoolCore::Impl::decide(Batch& batch, std::uint32_t index, const ItemResult& result, bool withdraw, bool cancel,
                            PoolActions& out) {
  Item& item = batch.items[index];
  item.result = result;
  item.decided = true;
  if (item.held) {
    item.held = false;
    --batch.held;
  }
  if (withdraw) {
    // While its grant is open the store must hear of the grant first.
    if (item.copy != 0) {
      item.withdraw_after_copy = true;
    } else {
      if (out.withdraws.empty()) out.withdraws.push_back({config.sender, {}});
      out.withdraws.back().items.push_back({batch.id, index});
    }
  }
  detach(item, cancel, out);
  if (!item.read() || config.faults.deliver_while_reading) settle(batch, item);
}

void PoolCore::Impl::settle(Batch& batch, Item& item) {
  if (item.settled) return;
  item.settled = true;
  --batch.unsettled;
}

bool PoolCore::Impl::finish(Batch& batch, PoolActions& out) {
  if (batch.unsettled != 0) return false;
  PoolActions::PutDone done{batch.id, {}};
  done.items.reserve(batch.items.size());
  for (const Item& item : batch.items) {
    if (item.first == kItself) {
      done.items.push_back(item.result);
      continue;
    }
    const ItemResult& first = batch.items[item.first].result;
    done.items.push_back(is_success(first.verdict) ? ItemResult{Verdict::joined, Reason::none, 0} : first);
  }
  out.puts_done.push_back(std::move(done));
  deadlines.erase({batch.deadline, false, batch.id});
  for (const Item& item : batch.items) {
    if (!item.lent) continue;
    --open_items;
    give_back(item.pool, out);
  }
  found = nullptr;
  batches.erase(batch.id);
  return true;
}

void PoolCore::Impl::end_batch(Batch& batch, Reason reason, bool withdraw, bool cancel, PoolActions& out) {
  for (std::uint32_t i = 0; i < batch.items.size(); ++i) {
    const Item& item = batch.items[i];
    if (item.decided || item.first != kItself) continue;
    // A held item is not known to the store: it was redirected, or never announced.
    decide(batch, i, {Verdict::unknown, reason, 0}, withdraw && !item.held, cancel, out);
  }
  finish(batch, out);
}

void PoolCore::Impl::give_back(std::uint32_t pool, PoolActions& out) {
  Pool& lender = pools[pool];
  if (--lender.lent != 0 || !lender.closing || lender.told) return;
  lender.told = true;
  out.unregistered.push_back(pool);
}

// Sorted, so that the same events give the same actions wherever the maps keep their entries.
std::vector<std::uint64_t> PoolCore::Impl::batch_ids() const {
  std::vector<std::uint64_t> ids;
  for (const auto& [id, batch] : batches) ids.push_back(id);
  std::sort(ids.begin(), ids.end());
  return ids;
}
std::vector<std::uint64_t> PoolCore::Impl::load_ids() const {
  std::vector<std::uint64_t> ids;
  for (const auto& [id, load] : loads) ids.push_back(id);
  std::sort(ids.begin(), ids.end());
  return ids;
}

void PoolCore::Impl::advance(Time now, PoolActions& out) {
  while (!deadlines.empty() && std::get<0>(*deadlines.begin()) <= now) {
    const auto [deadline, is_load, id] = *deadlines.begin();
    deadlines.erase(deadlines.begin());
    if (is_load) {
      const auto load = loads.find(id);
      if (load == loads.end()) continue;
      if (load->second.begun)
        end_rest(load->second, Reason::deadline, out);
      else
        finish_unbegun(load->second, Reason::deadline, true, out);
    } else {
      const auto batch = batches.find(id);
      // Copies have the same deadline and end by themselves.
      if (batch != batches.end()) end_batch(batch->second, Reason::deadline, true, false, out);
    }
  }
}

// -- the public face ---------------------------------------------------------------------------------------------------

PoolCore::PoolCore(const PoolCoreConfig& config, ObjectLocator& locator)
    : impl_(std::make_unique<Impl>(config, locator)) {}
PoolCore::~PoolCore() = default;

std::uint32_t PoolCore::add_pool(std::uint64_t object_bytes, std::uint64_t rows, std::uint32_t layers) {
  Impl::Pool pool;
  pool.object_bytes = object_bytes;
  pool.rows = rows;
  pool.layers = layers;
  impl_->pools.push_back(std::move(pool));
  return static_cast<std::uint32_t>(impl_->pools.size() - 1);
}

void PoolCore::unregister(std::uint32_t pool, Time, PoolActions& out) {
  if (pool >= impl_->pools.size()) return;
  Impl::Pool& lender = impl_->pools[pool];
  lender.closing = true;
  if (lender.lent != 0 && !impl_->config.faults.unregister_early) return;
  lender.told = true;
  out.unregistered.push_back(pool);
}

void PoolCore::put(PutOrder&& order, Time now, PoolActions& out) { impl_->put(std::move(order), now, out); }
void PoolCore::load(LoadOrder&& order, Time now, PoolActions& out) { impl_->load(std::move(order), now, out); }

void PoolCore::cancel_load(std::uint64_t id, Time, PoolActions& out) {
  const auto load = impl_->loads.find(id);
  if (load != impl_->loads.end())
    impl_->end_load(load->second, Reason::canceled, impl_->config.faults.cancel_while_writing, out);
}
void PoolCore::cancel_put(std::uint64_t id, Time, PoolActions& out) {
  const auto batch = impl_->batches.find(id);
  if (batch != impl_->batches.end()) impl_->end_batch(batch->second, Reason::canceled, true, true, out);
}

void PoolCore::on_reply(const StoreReply& reply, Time now, PoolActions& out) { impl_->on_reply(reply, now, out); }
void PoolCore::on_load_begun(const LoadBegun& begun, Time now, PoolActions& out) {
  impl_->on_load_begun(begun, now, out);
}
void PoolCore::load_more(std::uint64_t id, Time now, PoolActions& out) { impl_->load_more(id, now, out); }
void PoolCore::on_rekeyed(std::uint32_t pool, bool ok, Time now, PoolActions& out) {
  impl_->on_rekeyed(pool, ok, now, out);
}

void PoolCore::on_store_lost(Time now, PoolActions& out) {
  impl_->lost = true;
  for (const std::uint64_t id : impl_->batch_ids())
    impl_->end_batch(impl_->batches.at(id), Reason::store_lost, false, true, out);
  for (const std::uint64_t id : impl_->load_ids()) {
    Impl::Load& load = impl_->loads.at(id);
    if (!load.begun) impl_->begin_unpinned(load, now, out);
  }
  impl_->unbegun.clear();
}

void PoolCore::on_store_found(Time, PoolActions&) {
  impl_->lost = false;
  for (Impl::Pool& pool : impl_->pools) {
    pool.rekeys_pending = 0;
    pool.rekey_failed = false;
    pool.rekeys.clear();
  }
}

void PoolCore::copy_progress(std::uint64_t operation, std::uint32_t items_done, const std::vector<CopyOutcome>& outcomes,
                             Time, PoolActions& out) {
  impl_->copy_progress(operation, items_done, outcomes, out);
}
void PoolCore::copy_done(std::uint64_t operation, const std::vector<CopyOutcome>& outcomes,
                         const std::vector<std::uint32_t>& checksum_counts, const std::vector<std::uint64_t>& checksums,
                         Time now, PoolActions& out) {
  impl_->copy_done(operation, outcomes, checksum_counts, checksums, now, out);
}

void PoolCore::close(Time, PoolActions& out) {
  impl_->closed = true;
  for (const std::uint64_t id : impl_->batch_ids())
    impl_->end_batch(impl_->batches.at(id), Reason::closed, !impl_->lost, true, out);
  for (const std::uint64_t id : impl_->load_ids()) impl_->end_load(impl_->loads.at(id), Reason::closed, false, out);
}

bool PoolCore::idle() const { return impl_->batches.empty() && impl_->loads.empty() && impl_->operations.empty(); }

Time PoolCore::next_deadline() const {
  return impl_->deadlines.empty() ? kNever : std::get<0>(*impl_->deadlines.begin());
}
void PoolCore::advance(Time now, PoolActions& out) { impl_->advance(now, out); }

std::uint64_t PoolCore::rows_lent(std::uint32_t pool) const {
  return pool < impl_->pools.size() ? impl_->pools[pool].lent : 0;
}

}  // namespace kvonce::protocol
