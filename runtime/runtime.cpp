// SPDX-License-Identifier: Apache-2.0
#include <kvonce/runtime.hpp>

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "protocol/epoch_book.hpp"
#include "protocol/shard_key_core.hpp"
#include "runtime/connection.hpp"
#include "runtime/core.hpp"
#include "runtime/store_faults.hpp"

namespace kvonce {

using runtime::bad;
using runtime::Call;
using runtime::check_fork;
using runtime::check_timeout;

namespace {

constexpr std::size_t kMaxRequestId = 4096;

std::string quoted(std::string_view name) { return "'" + std::string(name) + "'"; }

Error check_name(const char* what, std::string_view name) {
  if (!name.empty() && name.size() <= 255) return {};
  return bad(std::string(what) + " is " + std::to_string(name.size()) + " bytes long: must be 1 to 255");
}

Error check_namespace(const runtime::Core& core, const char* what, NamespaceHandle ns) {
  if (Error error = check_fork(core)) return error;
  if (core.directory->namespace_text(ns.id)) return {};
  return {Reason::unknown_namespace, std::string(what) + ": namespace handle " + std::to_string(ns.id) + " was not opened here"};
}

Error check_counts(const std::string& what, const ShardCounts& counts) {
  const std::uint64_t count = std::uint64_t{counts.tp} * counts.pp * counts.cp;
  if (count >= 1 && count <= protocol::kMaxShardsPerPool) return {};
  return bad(what + " are " + runtime::to_text(counts) + ": each must be at least 1, their product at most " +
             std::to_string(protocol::kMaxShardsPerPool));
}

Error check_group(const GroupSpec& spec) {
  if (Error error = check_name("group name", spec.name)) return error;
  if (Error error = check_counts("group " + quoted(spec.name) + ": ranks", spec.ranks)) return error;
  if (spec.pools.empty() || spec.pools.size() > 64)
    return bad("group " + quoted(spec.name) + " has " + std::to_string(spec.pools.size()) + " pools: must be 1 to 64");
  std::set<std::string_view> names;
  for (const GroupPool& pool : spec.pools) {
    if (Error error = check_name("pool name", pool.name)) return error;
    if (!names.insert(pool.name).second) return bad("group " + quoted(spec.name) + " names pool " + quoted(pool.name) + " twice");
    if (!pool.shards) continue;
    if (Error error = check_counts("pool " + quoted(pool.name) + ": shards", *pool.shards)) return error;
    if (pool.shards->tp > spec.ranks.tp || pool.shards->pp > spec.ranks.pp || pool.shards->cp > spec.ranks.cp)
      return bad("pool " + quoted(pool.name) + ": shards are " + runtime::to_text(*pool.shards) +
                 ": must be at most the group's ranks on each axis, " + runtime::to_text(spec.ranks));
  }
  return {};
}

}  // namespace

Runtime::Runtime(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Runtime::~Runtime() {
  impl_->core->stop(kStopTimeout);
  // In a child of a fork the threads are the parent's: nothing of them may be touched.
  if (impl_->core->forks != runtime::fork_count()) new runtime::CorePtr(impl_->core);
}

void Runtime::stop(std::chrono::milliseconds timeout) {
  // The callback's own operation would be waited for.
  if (in_callback()) impl_->core->gate.close();
  else impl_->core->stop(timeout);
}

const RuntimeConfig& Runtime::config() const noexcept { return impl_->core->config; }

namespace {

Result<NamespaceHandle> ask_namespace(runtime::Core& core, std::string_view text, bool find_only,
                                      std::chrono::milliseconds timeout) {
  Result<NamespaceHandle> result;
  const char* const call_name = find_only ? "find_namespace" : "open_namespace";
  if ((result.error = check_timeout(find_only ? "find_namespace: timeout" : "open_namespace: timeout", timeout))) return result;
  if (text.empty() || text.size() > 4096) {
    result.error = bad("namespace text is " + std::to_string(text.size()) + " bytes long: must be 1 to 4,096");
    return result;
  }
  const auto slot = std::make_shared<messages::Slot<messages::Made>>();
  {
    const Call call(core);
    if ((result.error = call.error)) return result;
    if (core.host->is_behind()) return {{}, runtime::too_busy(call_name)};
    core.host->tell_keys(messages::OpenNamespace{std::string(text), find_only, slot});
  }
  const auto made = runtime::wait_for(*slot, timeout, call_name, &result.error);
  if (made && !(result.error = made->error)) result.value.id = made->id;
  return result;
}

}  // namespace

Result<NamespaceHandle> Runtime::open_namespace(std::string_view text, std::chrono::milliseconds timeout) {
  return ask_namespace(*impl_->core, text, false, timeout);
}
Result<NamespaceHandle> Runtime::find_namespace(std::string_view text, std::chrono::milliseconds timeout) {
  return ask_namespace(*impl_->core, text, true, timeout);
}

Error Runtime::close_namespace(NamespaceHandle ns, std::chrono::milliseconds timeout) {
  if (Error error = check_timeout("close_namespace: timeout", timeout)) return error;
  if (Error error = check_namespace(*impl_->core, "close_namespace", ns)) return error;
  const auto slot = std::make_shared<messages::Slot<Error>>();
  {
    const Call call(*impl_->core);
    if (call.error) return call.error;
    impl_->core->host->tell_keys(messages::CloseNamespace{ns.id, slot});
  }
  Error error;
  const auto done = runtime::wait_for(*slot, timeout, "close_namespace", &error);
  return done ? *done : error;
}

Result<std::array<std::uint8_t, 16>> Runtime::epoch(std::string_view name, std::chrono::milliseconds timeout) {
  Result<std::array<std::uint8_t, 16>> result;
  if ((result.error = protocol::epoch_name_error(name))) return result;
  if ((result.error = check_timeout("epoch: timeout", timeout))) return result;
  const auto slot = std::make_shared<messages::Slot<messages::MadeEpoch>>();
  {
    const Call call(*impl_->core);
    if ((result.error = call.error)) return result;
    if (impl_->core->host->is_behind()) return {{}, runtime::too_busy("epoch")};
    impl_->core->host->tell_keys(messages::AskEpoch{std::string(name), slot});
  }
  const auto made = runtime::wait_for(*slot, timeout, "epoch", &result.error);
  if (!made || (result.error = made->error)) return result;
  std::memcpy(result.value.data(), &made->value.high, 8);
  std::memcpy(result.value.data() + 8, &made->value.low, 8);
  return result;
}

Result<std::vector<KnownPool>> Runtime::pools(NamespaceHandle ns) const {
  Result<std::vector<KnownPool>> result;
  const runtime::Core& core = *impl_->core;
  if ((result.error = check_namespace(core, "pools", ns))) return result;
  const Call call(*impl_->core);
  if ((result.error = call.error)) return result;
  const auto with_store = core.directory->namespace_at(ns.id);
  if (!with_store) {
    result.error = runtime::store_lost();
    return result;
  }
  for (const runtime::KnownPool& pool : core.directory->pools_of(*with_store))
    result.value.push_back({pool.name, pool.shards, pool.object_bytes});
  return result;
}

Result<GroupHandle> Runtime::register_group(NamespaceHandle ns, const GroupSpec& spec, std::chrono::milliseconds timeout) {
  Result<GroupHandle> result;
  if ((result.error = check_timeout("register_group: timeout", timeout))) return result;
  if ((result.error = check_group(spec))) return result;
  if ((result.error = check_namespace(*impl_->core, "register_group", ns))) return result;
  messages::RegisterGroup command;
  command.ranks = spec.ranks;
  command.ns_handle = ns.id;
  command.ask.name = spec.name;
  for (const GroupPool& pool : spec.pools)
    command.ask.pools.push_back({pool.name, pool.shards.value_or(spec.ranks), spec.ranks, pool.policy, pool.optional});
  const auto slot = command.answer = std::make_shared<messages::Slot<messages::Made>>();
  {
    const Call call(*impl_->core);
    if ((result.error = call.error)) return result;
    impl_->core->host->tell_keys(std::move(command));
  }
  const auto made = runtime::wait_for(*slot, timeout, "register_group", &result.error);
  if (made && !(result.error = made->error)) result.value.id = made->id;
  return result;
}

Result<std::shared_ptr<Rank>> Runtime::add_rank(GroupHandle group, const Coordinates& at) {
  Result<std::shared_ptr<Rank>> result;
  runtime::Core& core = *impl_->core;
  if ((result.error = check_fork(core))) return result;
  const runtime::GroupPtr record = core.directory->group(group.id);
  if (!record) {
    result.error = bad("add_rank: group handle " + std::to_string(group.id) + " was not registered here");
    return result;
  }
  const auto fits = [](const AxisPart& part, std::uint16_t of) { return part.of == of && part.index < part.of; };
  if (!fits(at.tp, record->ranks.tp) || !fits(at.pp, record->ranks.pp) || !fits(at.cp, record->ranks.cp)) {
    result.error = bad("add_rank: " + runtime::to_text(at) + " is no rank of group " + quoted(record->ask.name) + " with " +
                       runtime::to_text(record->ranks) + " ranks");
    return result;
  }
  const Call call(core);
  if ((result.error = call.error)) return result;
  auto impl = std::make_shared<Rank::Impl>();
  impl->core = impl_->core;
  impl->group = record;
  impl->group_index = group.id;
  impl->at = at;
  impl->sender = runtime::random_bits();
  impl->moved_bytes = std::make_shared<std::atomic<std::uint64_t>>(0);
  auto setup = std::make_shared<actors::PoolSetup>();
  setup->core.sender = impl->sender;
  setup->core.engine = core.engine;
  setup->core.faults = runtime::pool_faults();
  setup->arena = core.view();
  if (!setup->arena) setup->arena = std::make_shared<actors::ArenaView>();
  setup->placement =
      protocol::Placement::local(static_cast<std::uint32_t>(std::max<std::size_t>(setup->arena->readers.size(), 1)));
  setup->mover = core.mover;
  setup->inline_copy_bytes = core.config.inline_copy_bytes;
  setup->counters = core.counters;
  setup->moved_bytes = impl->moved_bytes;
  impl->actor = core.host->add_pool_actor(std::move(setup));
  {
    const std::lock_guard lock(core.ranks_mutex);
    std::erase_if(core.ranks, [](const auto& weak) { return weak.expired(); });
    core.ranks.push_back(impl);
  }
  result.value = std::make_shared<Rank>(std::move(impl));
  return result;
}

Result<std::shared_ptr<LookupOperation>> Runtime::lookup(GroupHandle group, std::vector<PageHash> pages, LookupOptions options) {
  Result<std::shared_ptr<LookupOperation>> result;
  runtime::Core& core = *impl_->core;
  if ((result.error = check_timeout("lookup: timeout", options.timeout))) return result;
  if (options.lease_time.count() < 0 || options.lease_time > kMaxTimeout) {
    result.error = bad("lookup: lease_time is " + std::to_string(options.lease_time.count()) +
                       " ms: must be 1 ms to 1 h, or 0 for the store's default");
    return result;
  }
  if (options.request_id.size() > kMaxRequestId) {
    result.error = {Reason::too_many, "lookup: request_id is " + std::to_string(options.request_id.size()) +
                                          " bytes long: must be at most " + std::to_string(kMaxRequestId)};
    return result;
  }
  if (pages.size() > kMaxBatchItems) {
    result.error = {Reason::too_many,
                    "lookup: " + std::to_string(pages.size()) + " pages: must be at most " + std::to_string(kMaxBatchItems)};
    return result;
  }
  if ((result.error = check_fork(core))) return result;
  if (!core.directory->group(group.id)) {
    result.error = bad("lookup: group handle " + std::to_string(group.id) + " was not registered here");
    return result;
  }
  const Call call(core);
  if ((result.error = call.error)) return result;
  result.value =
      runtime::make_operation<LookupOperation>(core, OperationKind::lookup, options.timeout, std::move(options.completion));
  Operation::Impl& impl = result.value->impl();
  if (pages.empty()) {
    // Nothing is asked: nothing is missing either.
    impl.claim();
    impl.lookup.every_stop = true;
    impl.finish();
    return result;
  }
  if (!runtime::begin_call(core, impl, "lookup", pages.size(), &result.error)) {
    if (result.error) result.value = nullptr;
    return result;
  }
  impl.pages = std::move(pages);
  messages::LookupCommand command;
  command.operation = result.value;
  command.group = group.id;
  command.ask.has_request = !options.request_id.empty();
  if (command.ask.has_request) command.ask.request = protocol::text_digest(options.request_id);
  command.ask.probe = options.probe;
  command.ask.lease_time = static_cast<protocol::Duration>(options.lease_time.count()) * protocol::kMillisecond;
  core.host->tell_keys(std::move(command));
  return result;
}

namespace {

Error call_lease(runtime::Core& core, const LeaseId& lease, std::uint32_t stop, const std::string& what,
                 std::chrono::milliseconds timeout) {
  if (Error error = check_timeout((what + ": timeout").c_str(), timeout)) return error;
  const auto slot = std::make_shared<messages::Slot<Reason>>();
  {
    const Call call(core);
    if (call.error) return call.error;
    core.host->tell_keys(messages::LeaseCommand{{lease, core.engine, stop}, slot});
  }
  Error error;
  const auto reason = runtime::wait_for(*slot, timeout, what.c_str(), &error);
  if (!reason) return error;
  if (*reason == Reason::none) return {};
  const char* const why = *reason == Reason::lease_expired ? ": the lease has ended before"
                          : *reason == Reason::lease_unknown
                              ? ": there is no such lease: it is of another engine, or of another life of the store"
                              : "";
  return {*reason, what + ": " + std::string(to_string(*reason)) + why};
}

}  // namespace

Error Runtime::narrow(LeaseId lease, std::uint32_t stop, std::chrono::milliseconds timeout) {
  return call_lease(*impl_->core, lease, stop, "narrow", timeout);
}
Error Runtime::release(LeaseId lease, std::chrono::milliseconds timeout) {
  return call_lease(*impl_->core, lease, 0, "release", timeout);
}

Result<std::vector<std::uint8_t>> Runtime::exists(GroupHandle group, std::string_view pool, std::uint32_t shard,
                                                  std::span<const PageHash> pages) const {
  Result<std::vector<std::uint8_t>> result;
  if ((result.error = check_fork(*impl_->core))) return result;
  const runtime::GroupPtr record = impl_->core->directory->group(group.id);
  if (!record) {
    result.error = bad("exists: group handle " + std::to_string(group.id) + " was not registered here");
    return result;
  }
  const int index = record->find(pool);
  if (index < 0) {
    result.error = {Reason::unknown_pool, "exists: pool " + quoted(pool) + " is not in group " + quoted(record->ask.name)};
    return result;
  }
  const auto at = static_cast<std::size_t>(index);
  if (shard >= record->shards[at].count()) {
    result.error = bad("exists: shard " + std::to_string(shard) + " of pool " + quoted(pool) + " must be below " +
                       std::to_string(record->shards[at].count()));
    return result;
  }
  const Call call(*impl_->core);
  if ((result.error = call.error)) return result;
  const auto view = impl_->core->view();
  if (!view) {
    result.error = runtime::store_lost();
    return result;
  }
  result.value.resize(pages.size());
  if (!runtime::read_exists(*view, record->ask.ns, record->pools[at], shard, pages, result.value.data()))
    return {{}, runtime::under_change("exists")};
  return result;
}

Result<PageStat> Runtime::stat(NamespaceHandle ns, const PageHash& page) const {
  Result<PageStat> result;
  const runtime::Core& core = *impl_->core;
  if ((result.error = check_namespace(core, "stat", ns))) return result;
  const Call call(*impl_->core);
  if ((result.error = call.error)) return result;
  const auto with_store = core.directory->namespace_at(ns.id);
  const auto arena = core.view();
  if (!with_store || !arena) {
    result.error = runtime::store_lost();
    return result;
  }
  return runtime::read_stat(*arena, *core.directory, *with_store, page);
}

namespace {

/// `name`: of the call, for an error.
Result<std::shared_ptr<AdminOperation>> remove(runtime::Core& core, const char* name, protocol::RemoveAsk&& ask,
                                               Completion&& completion, std::chrono::milliseconds timeout,
                                               std::uint32_t ns_handle = 0xffffffffU) {
  if (core.config.read_only) return {nullptr, bad(std::string(name) + ": this runtime is read_only")};
  Result<std::shared_ptr<AdminOperation>> result;
  const Call call(core);
  if ((result.error = call.error)) return result;
  result.value = runtime::make_operation<AdminOperation>(core, OperationKind::remove, timeout, std::move(completion));
  if (!runtime::begin_call(core, result.value->impl(), name, ask.pages.size(), &result.error)) {
    if (result.error) result.value = nullptr;
    return result;
  }
  messages::AdminCommand command;
  command.operation = result.value;
  command.remove = std::move(ask);
  command.ns_handle = ns_handle;
  core.host->tell_keys(std::move(command));
  return result;
}

}  // namespace

Result<std::shared_ptr<AdminOperation>> Runtime::remove_key(GroupHandle group, std::string_view pool, std::uint32_t shard,
                                                            const PageHash& page, Completion completion,
                                                            std::chrono::milliseconds timeout) {
  if (Error error = check_timeout("remove_key: timeout", timeout)) return {nullptr, error};
  if (Error error = check_fork(*impl_->core)) return {nullptr, error};
  const runtime::GroupPtr record = impl_->core->directory->group(group.id);
  if (!record) return {nullptr, bad("remove_key: group handle " + std::to_string(group.id) + " was not registered here")};
  const int index = record->find(pool);
  if (index < 0)
    return {nullptr, {Reason::unknown_pool, "remove_key: pool " + quoted(pool) + " is not in group " + quoted(record->ask.name)}};
  const auto at = static_cast<std::size_t>(index);
  if (shard >= record->shards[at].count())
    return {nullptr, bad("remove_key: shard " + std::to_string(shard) + " of pool " + quoted(pool) + " must be below " +
                         std::to_string(record->shards[at].count()))};
  protocol::RemoveAsk ask;
  ask.what = protocol::RemoveAsk::What::key;
  ask.ns = record->ask.ns;
  ask.pool = record->pools[at];
  ask.shard = shard;
  ask.pages = {page};
  return remove(*impl_->core, "remove_key", std::move(ask), std::move(completion), timeout);
}

Result<std::shared_ptr<AdminOperation>> Runtime::remove_pages(NamespaceHandle ns, std::vector<PageHash> pages,
                                                              Completion completion, std::chrono::milliseconds timeout) {
  if (Error error = check_timeout("remove_pages: timeout", timeout)) return {nullptr, error};
  if (Error error = check_namespace(*impl_->core, "remove_pages", ns)) return {nullptr, error};
  if (pages.size() > kMaxBatchItems)
    return {nullptr,
            {Reason::too_many,
             "remove_pages: " + std::to_string(pages.size()) + " pages: must be at most " + std::to_string(kMaxBatchItems)}};
  protocol::RemoveAsk ask;
  ask.what = protocol::RemoveAsk::What::page;
  ask.pages = std::move(pages);
  return remove(*impl_->core, "remove_pages", std::move(ask), std::move(completion), timeout, ns.id);
}

Result<std::shared_ptr<AdminOperation>> Runtime::remove_namespace(NamespaceHandle ns, Completion completion,
                                                                  std::chrono::milliseconds timeout) {
  if (Error error = check_timeout("remove_namespace: timeout", timeout)) return {nullptr, error};
  if (Error error = check_namespace(*impl_->core, "remove_namespace", ns)) return {nullptr, error};
  protocol::RemoveAsk ask;
  ask.what = protocol::RemoveAsk::What::ns;
  return remove(*impl_->core, "remove_namespace", std::move(ask), std::move(completion), timeout, ns.id);
}

Result<std::shared_ptr<AdminOperation>> Runtime::clear(Completion completion, std::chrono::milliseconds timeout) {
  if (Error error = check_timeout("clear: timeout", timeout)) return {nullptr, error};
  protocol::RemoveAsk ask;
  ask.what = protocol::RemoveAsk::What::all;
  return remove(*impl_->core, "clear", std::move(ask), std::move(completion), timeout);
}

Result<std::shared_ptr<AdminOperation>> Runtime::flush(AckLevel level, std::chrono::milliseconds timeout, Completion completion) {
  Result<std::shared_ptr<AdminOperation>> result;
  if ((result.error = check_timeout("flush: timeout", timeout))) return result;
  const Call call(*impl_->core);
  if ((result.error = call.error)) return result;
  result.value = runtime::make_operation<AdminOperation>(*impl_->core, OperationKind::flush, timeout, std::move(completion));
  if (!runtime::begin_call(*impl_->core, result.value->impl(), "flush", 0, &result.error)) {
    if (result.error) result.value = nullptr;
    return result;
  }
  messages::AdminCommand command;
  command.operation = result.value;
  command.is_flush = true;
  command.level = level;
  impl_->core->host->tell_keys(std::move(command));
  return result;
}

}  // namespace kvonce
