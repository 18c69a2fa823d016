// SPDX-License-Identifier: Apache-2.0
//
// How a runtime is and what it says of itself; its calls on pages are in runtime.cpp.
#include <algorithm>
#include <utility>

#include <kvonce/runtime.hpp>

#include "messages/frames.hpp"
#include "messages/report_rules.hpp"
#include "runtime/connection.hpp"
#include "runtime/core.hpp"

namespace kvonce {

using runtime::bad;
using runtime::Call;
using runtime::check_fork;
using runtime::check_timeout;

Stats Runtime::stats(std::chrono::milliseconds timeout) const {
  Stats stats;
  runtime::Core& core = *impl_->core;
  const runtime::Counters& counters = *core.counters;
  for (std::size_t v = 0; v < kVerdictCount; ++v) stats.verdicts[v] = counters.verdicts[v].load(std::memory_order_relaxed);
  stats.moved_bytes = counters.moved_bytes.load(std::memory_order_relaxed);
  stats.loaded_items = counters.loaded_items.load(std::memory_order_relaxed);
  stats.loaded_bytes = counters.loaded_bytes.load(std::memory_order_relaxed);
  stats.load_failures = counters.load_failures.load(std::memory_order_relaxed);
  stats.rows_lent_now = counters.rows_lent.load(std::memory_order_relaxed);
  stats.events_dropped = core.events->dropped();
  std::vector<messages::StatsSlot> slots;
  {
    const Call call(core);
    if (call.error) return stats;
    slots = core.host->ask_stats();
  }
  protocol::StoreStats sum;
  std::size_t answered = 0;
  // In a callback a store may be waiting for this very thread; it is not waited for then.
  const auto until =
      std::chrono::steady_clock::now() +
      (in_callback() ? std::chrono::milliseconds(0) : std::clamp(timeout, std::chrono::milliseconds(0), kMaxTimeout));
  for (const auto& slot : slots) {
    const auto part = slot->wait_until(until).value_or(std::nullopt);
    if (!part) continue;
    ++answered;
    sum.add(*part);
    // Every partition sees each demotion, and most pools.
    stats.demotions = std::max(stats.demotions, part->demotions);
    stats.unverified_pools_now = std::max(stats.unverified_pools_now, part->unverified_pools_now);
  }
  stats.store_answered = answered != 0 && answered == slots.size();
  stats.announced_items = sum.announced_items;
  stats.announced_bytes = sum.announced_bytes;
  stats.stored_objects = sum.stored_objects;
  stats.stored_bytes = sum.stored_bytes;
  stats.promotions = sum.promotions;
  stats.conflicts = sum.conflicts;
  stats.divergent = sum.divergent;
  stats.samples = sum.samples;
  stats.unverified = sum.unverified;
  stats.lookups = sum.lookups;
  stats.lookup_pages_asked = sum.lookup_pages_asked;
  stats.lookup_pages_hit = sum.lookup_pages_hit;
  std::copy(std::begin(sum.misses), std::end(sum.misses), std::begin(stats.misses));
  stats.evicted_objects = sum.evicted_objects;
  stats.evicted_bytes = sum.evicted_bytes;
  stats.evicted_page_sets = sum.evicted_page_sets;
  stats.evicted_checkpoint_sets = sum.evicted_checkpoint_sets;
  stats.objects_now = sum.objects_now;
  stats.pages_now = sum.records_now;
  stats.payload_bytes_now = sum.payload_bytes_now;
  stats.slot_bytes_now = sum.slot_bytes_now;
  stats.capacity_bytes = sum.capacity_bytes;
  stats.arena_slot_bytes = sum.slots_bytes;
  stats.free_bytes_now = sum.free_bytes_now;
  stats.claims_now = sum.claims_now;
  stats.leases_now = sum.leases_now;
  stats.leased_bytes_now = sum.leased_bytes_now;
  stats.quarantined_bytes_now = sum.quarantined_bytes_now;
  return stats;
}

bool Runtime::connected() const noexcept { return impl_->core->incarnation.load(std::memory_order_acquire) != 0; }

std::uint64_t Runtime::incarnation() const noexcept { return impl_->core->incarnation.load(std::memory_order_acquire); }

bool Runtime::wait_connected(std::chrono::milliseconds timeout) const {
  if (check_fork(*impl_->core)) return false;
  const auto until = std::chrono::steady_clock::now() + std::clamp(timeout, std::chrono::milliseconds{0}, kMaxTimeout);
  return impl_->core->wait_connected(until);
}

StoreStart Runtime::store_start() const {
  runtime::Core& core = *impl_->core;
  const Call call(core);
  return !call.error && core.connection ? core.connection->store_start() : core.store_start;
}

Result<std::vector<ClientInfo>> Runtime::clients(std::chrono::milliseconds timeout) const {
  Result<std::vector<ClientInfo>> result;
  if ((result.error = check_timeout("clients: timeout", timeout))) return result;
  const auto slot = std::make_shared<messages::Slot<std::vector<ClientInfo>>>();
  {
    const Call call(*impl_->core);
    if ((result.error = call.error)) return result;
    if (!impl_->core->host->ask_clients(slot)) {
      result.error = runtime::store_lost();
      return result;
    }
  }
  auto list = runtime::wait_for(*slot, timeout, "clients", &result.error);
  if (list) result.value = std::move(*list);
  if (!connected()) result.error = runtime::store_lost();
  return result;
}

Error Runtime::report(std::string_view label, std::vector<std::pair<std::string, std::uint64_t>> counters) {
  messages::Report report{std::string(label), {}};
  report.counters.reserve(counters.size());
  for (auto& [name, value] : counters) report.counters.push_back({std::move(name), value});
  if (Error error = messages::check_report(report)) return error;

  runtime::Core& core = *impl_->core;
  const Call call(core);
  if (call.error) return call.error;
  if (core.host->is_behind()) return runtime::too_busy("report");
  {
    const std::lock_guard lock(core.reports_mutex);
    if (report.counters.empty()) {
      core.report_labels.erase(report.label);
    } else if (!core.report_labels.contains(report.label)) {
      if (core.report_labels.size() == kMaxReportsPerClient)
        return {Reason::too_many,
                "report: label '" + report.label + "' is one too many; " + std::to_string(kMaxReportsPerClient) + " are allowed"};
      core.report_labels.insert(report.label);
    }
    // Under the lock: the store sees the labels come and go in this order.
    if (core.host->report(report)) return {};
  }
  return runtime::store_lost();
}

Error Runtime::drain(std::chrono::milliseconds timeout) {
  if (Error error = check_timeout("drain: timeout", timeout)) return error;
  const Call call(*impl_->core);
  if (call.error) return call.error;
  return impl_->core->drain(timeout);
}

void Runtime::subscribe(std::function<void(std::span<const StoreEvent>)> callback) {
  runtime::Core& core = *impl_->core;
  const bool on = static_cast<bool>(callback);
  const Call call(core);
  if (call.error) return;
  if (on) core.events->subscribe(std::move(callback));
  core.events_wanted.store(on, std::memory_order_release);
  core.host->want_events(on);
  if (!on) core.events->stop();
}

}  // namespace kvonce
