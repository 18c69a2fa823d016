// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <optional>
#include <utility>

#include "protocol/shard_key_core.hpp"
#include "runtime/clock.hpp"
#include "runtime/core.hpp"

namespace kvonce {

using runtime::bad;
using runtime::Call;
using runtime::check_timeout;

namespace {

std::string in_quotes(std::string_view name) { return "'" + std::string(name) + "'"; }

/// The shard that a pool declares for this rank, checked against its group.
Error check_shard(const PoolSpec& spec, const Rank::Impl& rank, std::size_t index, Coordinates* shard) {
  const ShardCounts& counts = rank.group->ask.pools[index].shards;
  *shard = spec.shard.value_or(rank.at);
  const auto axis = [&](const char* name, const AxisPart& part, std::uint16_t of) -> Error {
    if (part.of != of)
      return bad("pool " + in_quotes(spec.name) + ": shard " + (spec.shard ? "declares " : "is by rank: ") + std::to_string(part.of) +
                 " parts on axis " + name + ", its group has " + std::to_string(of));
    if (part.index >= part.of)
      return bad("pool " + in_quotes(spec.name) + ": shard " + std::to_string(part.index) + " on axis " + name +
                 " must be below " + std::to_string(part.of));
    return {};
  };
  if (Error error = axis("tp", shard->tp, counts.tp)) return error;
  if (Error error = axis("pp", shard->pp, counts.pp)) return error;
  return axis("cp", shard->cp, counts.cp);
}

/// Two items that would fill one row with different pages, the first such pair. Rows that ascend, as most do, cost one walk.
std::optional<std::pair<std::size_t, std::size_t>> equal_rows(const std::vector<LoadItem>& items) {
  const auto place = [&](std::size_t i) { return std::pair(items[i].pool.id, items[i].row); };
  std::size_t ascending = 1;
  while (ascending < items.size() && place(ascending - 1) < place(ascending)) ++ascending;
  if (ascending >= items.size()) return {};
  // Items by their rows, half full; each holds its number and one.
  std::vector<std::uint32_t> seen(std::bit_ceil(2 * items.size()), 0);
  for (std::size_t i = 0; i < items.size(); ++i) {
    std::uint64_t at = (items[i].row ^ (std::uint64_t{items[i].pool.id} << 48)) * 0x9e3779b97f4a7c15ULL;
    for (at = (at >> 32) & (seen.size() - 1); seen[at] != 0 && place(seen[at] - 1) != place(i);) at = (at + 1) & (seen.size() - 1);
    if (seen[at] == 0)
      seen[at] = static_cast<std::uint32_t>(i + 1);
    else if (items[seen[at] - 1].page != items[i].page)
      return std::pair<std::size_t, std::size_t>(seen[at] - 1, i);
  }
  return {};
}

bool same_memory(const protocol::PoolGeometry& a, const protocol::PoolGeometry& b) {
  if (a.rows() != b.rows() || a.layout_digest() != b.layout_digest() || a.ranges() != b.ranges()) return false;
  for (std::uint32_t r = 0; r < a.ranges(); ++r)
    if (a.range_row(r, 0) != b.range_row(r, 0) || (a.rows() > 1 && a.range_row(r, 1) != b.range_row(r, 1))) return false;
  return true;
}

}  // namespace

std::shared_ptr<actors::PoolMemory> Rank::Impl::pool(PoolHandle handle) const {
  const std::lock_guard lock(mutex);
  return handle.id < pools.size() ? pools[handle.id] : nullptr;
}

messages::SlotPtr<bool> Rank::Impl::begin_close() {
  messages::SlotPtr<bool> slot;
  {
    const std::lock_guard lock(mutex);
    if (closed) return closed;
    slot = closed = std::make_shared<messages::Slot<bool>>();
  }
  // Without the lock: what ends may call back, and callbacks may ask this rank.
  core->host->tell(*actor, messages::CloseRank{slot});
  return slot;
}

Error Rank::Impl::close(std::chrono::milliseconds timeout) {
  messages::SlotPtr<bool> slot;
  {
    const Call call(*core);
    if (call.error) return {};  // the stop of the runtime has closed it
    slot = begin_close();
  }
  // In a callback the rank may be ending on this very thread: its rows are back when its last operation is done.
  if (in_callback()) return {};
  if (slot->wait_until(std::chrono::steady_clock::now() + timeout)) return {};
  return {Reason::deadline, "rank " + runtime::to_text(at) + " is still closing after " + std::to_string(timeout.count()) + " ms"};
}

Rank::Rank(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

Rank::~Rank() {
  if (impl_->core->forks == runtime::fork_count()) {
    impl_->close(kDefaultTimeout);
    return;
  }
  // Threads and actors are the parent's: nothing of them may be touched here.
  new std::shared_ptr<Impl>(impl_);
}

Result<PoolHandle> Rank::register_pool(const PoolSpec& spec, std::chrono::milliseconds timeout) {
  Result<PoolHandle> result;
  if ((result.error = check_timeout("register_pool: timeout", timeout))) return result;
  if ((result.error = runtime::check_fork(*impl_->core))) return result;
  const std::lock_guard one_at_a_time(impl_->registering);
  const int index = impl_->group->find(spec.name);
  if (index < 0) {
    std::string names;
    for (const auto& pool : impl_->group->ask.pools) names += (names.empty() ? "" : ", ") + in_quotes(pool.name);
    result.error = bad("pool " + in_quotes(spec.name) + " is not in group " + in_quotes(impl_->group->ask.name) + ", which has " + names);
    return result;
  }
  const protocol::GroupPoolAsk& described = impl_->group->ask.pools[static_cast<std::size_t>(index)];
  if (spec.memory != MemoryKind::host) {
    result.error = bad("pool " + in_quotes(spec.name) + ": memory is hip, and this runtime reaches host memory only");
    return result;
  }
  Coordinates shard;
  if ((result.error = check_shard(spec, *impl_, static_cast<std::size_t>(index), &shard))) return result;

  auto memory = std::make_shared<actors::PoolMemory>();
  memory->name = spec.name;
  memory->rank_shard = impl_->at.flat();
  std::vector<protocol::ComponentGeometry> components;
  for (const Component& component : spec.components) {
    auto& made = components.emplace_back();
    made.name = component.name;
    for (const LayerBuffer& layer : component.layers)
      made.layers.push_back({static_cast<std::byte*>(layer.base), layer.row_stride, layer.row_bytes});
  }
  std::string text;
  if (!protocol::PoolGeometry::create(std::move(components), spec.rows, &memory->geometry, &text)) {
    result.error = bad("pool " + in_quotes(spec.name) + ": " + text);
    return result;
  }
  const std::vector<std::uint64_t> ranges = memory->geometry.all_range_bytes();
  if (!ranges.empty()) {
    auto shape = storage::SlotShape::create(ranges);
    if (!shape.shape) {
      result.error = bad("pool " + in_quotes(spec.name) + ": " + shape.error);
      return result;
    }
    memory->shape = std::move(shape.shape);
    const std::uint64_t room = impl_->core->partition_slots_bytes();
    if (memory->shape->slot_bytes() > room) {
      result.error = bad("pool " + in_quotes(spec.name) + ": one object takes " + std::to_string(memory->shape->slot_bytes()) +
                         " bytes, and a partition has " + std::to_string(room) +
                         (impl_->core->config.store == "embedded"
                              ? "; raise arena_bytes"
                              : "; it needs a store with more memory (kvonced --memory), or with fewer partitions"));
      return result;
    }
    memory->order_layers();
  }
  {
    const std::lock_guard lock(impl_->mutex);
    for (std::uint32_t i = 0; i < impl_->pools.size(); ++i) {
      if (!impl_->pools[i] || impl_->pools[i]->name != spec.name || impl_->pools[i]->closing) continue;
      if (same_memory(impl_->pools[i]->geometry, memory->geometry))
        result.value.id = i;
      else
        result.error = bad("pool " + in_quotes(spec.name) + " is registered already with other buffers; unregister it first");
      return result;
    }
  }

  messages::RegisterPool command;
  command.sender = impl_->sender;
  command.ns_handle = impl_->group->ns_handle;
  command.ask.ranks = impl_->group->ranks;
  protocol::PoolInfo& info = command.ask.pool;
  info.name = spec.name;
  info.shards = described.shards;
  info.policy = described.policy;
  info.size = ranges.empty() ? protocol::PoolInfo::Size::none : protocol::PoolInfo::Size::known;
  info.range_bytes = ranges;
  info.object_bytes = memory->geometry.object_bytes();
  info.layout_digest = memory->geometry.layout_digest();
  command.shard = shard.flat();
  command.rank_shard = memory->rank_shard;
  command.memory = memory;
  const auto slot = command.answer = std::make_shared<messages::Slot<messages::Made>>();
  {
    const Call call(*impl_->core);
    if ((result.error = call.error)) return result;
    impl_->core->host->tell_keys(std::move(command));
  }
  const auto made = runtime::wait_for(*slot, timeout, "register_pool", &result.error);
  if (!made) return result;
  if ((result.error = made->error)) return result;
  const std::lock_guard lock(impl_->mutex);
  impl_->pools.resize(std::max<std::size_t>(impl_->pools.size(), std::size_t{made->id} + 1));
  impl_->pools[made->id] = std::move(memory);
  result.value.id = made->id;
  return result;
}

Error Rank::unregister_pool(PoolHandle pool, std::chrono::milliseconds timeout) {
  if (Error error = check_timeout("unregister_pool: timeout", timeout)) return error;
  if (Error error = runtime::check_fork(*impl_->core)) return error;
  const auto memory = impl_->pool(pool);
  if (!memory) return bad("unregister_pool: pool handle " + std::to_string(pool.id) + " is not one of this rank");
  memory->closing = true;
  const auto slot = std::make_shared<messages::Slot<bool>>();
  {
    const Call call(*impl_->core);
    if (call.error) return call.error;
    impl_->core->host->tell(*impl_->actor, messages::UnregisterPool{pool.id, slot});
  }
  Error error;
  if (!runtime::wait_for(*slot, timeout, "unregister_pool: rows are still lent", &error)) return error;
  return {};
}

Result<std::shared_ptr<PutOperation>> Rank::put(PutBatch batch, PutOptions options) {
  Result<std::shared_ptr<PutOperation>> result;
  if ((result.error = check_timeout("put: timeout", options.timeout))) return result;
  const auto limit = [&](const char* what, std::size_t count, std::size_t least) -> bool {
    if (count >= least && count <= kMaxBatchItems) return true;
    result.error = {count > kMaxBatchItems ? Reason::too_many : Reason::bad_argument,
                    std::string("put: ") + std::to_string(count) + " " + what + ": must be " + std::to_string(least) + " to " +
                        std::to_string(kMaxBatchItems)};
    return false;
  };
  if (!limit("items", batch.items.size(), 1) || !limit("pages", batch.pages.size(), 1)) return result;
  protocol::PutOrder order;
  order.items.reserve(batch.items.size());
  for (const PutItem& item : batch.items) {
    if (item.page >= batch.pages.size()) {
      result.error = bad("put: item " + std::to_string(order.items.size()) + " names page " + std::to_string(item.page) +
                         " of a batch of " + std::to_string(batch.pages.size()));
      return result;
    }
    order.items.push_back({item.page, item.pool.id, item.row});
  }
  if (impl_->core->config.read_only) {
    result.error = bad("put: this runtime is read_only");
    return result;
  }
  const Call call(*impl_->core);
  if ((result.error = call.error)) return result;
  auto operation = runtime::make_operation<PutOperation>(*impl_->core, OperationKind::put, options.timeout, std::move(options.completion));
  Operation::Impl& impl = operation->impl();
  impl.mover = impl_->core->mover;
  order.id = impl.id;
  order.level = options.level;
  order.deadline = runtime::to_time(impl.deadline);
  order.has_parent = batch.parent.has_value();
  if (batch.parent) order.parent = *batch.parent;
  order.first_depth = batch.first_depth;
  order.pages = std::move(batch.pages);
  impl.puts.resize(order.items.size());
  impl.canceler = [weak = std::weak_ptr(impl_), id = impl.id] {
    if (const auto rank = weak.lock())
      if (const Call inner(*rank->core); !inner.error) rank->core->host->tell(*rank->actor, messages::CancelCommand{id, false});
  };
  result.value = operation;
  {
    const std::lock_guard lock(impl_->mutex);
    if (impl_->closed) result.error = {Reason::closed, "put: the rank is closed"};
  }
  if (!result.error && !runtime::begin_call(*impl_->core, impl, "put", order.items.size(), &result.error)) {
    if (result.error) result.value = nullptr;
    return result;
  }
  if (!result.error)
    impl_->core->host->tell(*impl_->actor, messages::PutCommand{std::move(operation), std::move(order), std::move(options.after)});
  else
    result.value = nullptr;
  return result;
}

Result<std::shared_ptr<LoadOperation>> Rank::load(LeaseId lease, std::vector<LoadItem> items, LoadOptions options) {
  Result<std::shared_ptr<LoadOperation>> result;
  if ((result.error = check_timeout("load: timeout", options.timeout))) return result;
  if (items.empty() || items.size() > kMaxBatchItems) {
    result.error = {items.empty() ? Reason::bad_argument : Reason::too_many,
                    "load: " + std::to_string(items.size()) + " items: must be 1 to " + std::to_string(kMaxBatchItems)};
    return result;
  }
  if (options.layer_begin >= options.layer_end) {
    result.error = bad("load: layers " + std::to_string(options.layer_begin) + " to " + std::to_string(options.layer_end) +
                       " (exclusive) are none");
    return result;
  }
  if (const auto equal = equal_rows(items)) {
    const LoadItem& item = items[equal->second];
    const auto memory = impl_->pool(item.pool);
    result.error = bad("load: items " + std::to_string(equal->first) + " and " + std::to_string(equal->second) +
                       " are different pages for row " + std::to_string(item.row) + " of pool " +
                       (memory ? in_quotes(memory->name) : "handle " + std::to_string(item.pool.id)) + ": each needs a row of its own");
    return result;
  }
  const Call call(*impl_->core);
  if ((result.error = call.error)) return result;
  auto operation = runtime::make_operation<LoadOperation>(*impl_->core, OperationKind::load, options.timeout, std::move(options.completion));
  Operation::Impl& impl = operation->impl();
  impl.mover = impl_->core->mover;
  protocol::LoadOrder order;
  order.id = impl.id;
  order.lease = lease;
  order.deadline = runtime::to_time(impl.deadline);
  order.layer_begin = options.layer_begin;
  order.layer_end = options.layer_end;
  order.layers_per_group = options.layers_per_group;
  order.items.reserve(items.size());
  for (const LoadItem& item : items) order.items.push_back({item.page, item.pool.id, item.row});
  impl.loads.resize(items.size());
  impl.progress = std::move(options.progress);
  impl.canceler = [weak = std::weak_ptr(impl_), id = impl.id] {
    if (const auto rank = weak.lock())
      if (const Call inner(*rank->core); !inner.error) rank->core->host->tell(*rank->actor, messages::CancelCommand{id, true});
  };
  {
    const std::lock_guard lock(impl_->mutex);
    if (impl_->closed) result.error = {Reason::closed, "load: the rank is closed"};
  }
  if (result.error) return result;
  result.value = operation;
  if (!runtime::begin_call(*impl_->core, impl, "load", order.items.size(), &result.error)) {
    if (result.error) result.value = nullptr;
    return result;
  }
  impl_->core->host->tell(*impl_->actor, messages::LoadCommand{std::move(operation), std::move(order), std::move(options.after)});
  return result;
}

Result<std::vector<std::uint8_t>> Rank::exists(PoolHandle pool, std::span<const PageHash> pages) const {
  Result<std::vector<std::uint8_t>> result;
  const Call call(*impl_->core);
  if ((result.error = call.error)) return result;
  const auto memory = impl_->pool(pool);
  if (!memory) {
    result.error = bad("exists: pool handle " + std::to_string(pool.id) + " is not one of this rank");
    return result;
  }
  const auto view = impl_->core->view();
  if (!view) {
    result.error = runtime::store_lost();
    return result;
  }
  result.value.resize(pages.size());
  const protocol::PoolKeying keying = memory->keying();
  if (!runtime::read_exists(*view, keying.ns, keying.pool, keying.shard, pages, result.value.data()))
    return {{}, runtime::under_change("exists")};
  return result;
}

std::uint64_t Rank::moved_bytes() const noexcept { return impl_->moved_bytes->load(std::memory_order_relaxed); }

Error Rank::close(std::chrono::milliseconds timeout) {
  if (Error error = check_timeout("close: timeout", timeout)) return error;
  return impl_->close(timeout);
}

}  // namespace kvonce
