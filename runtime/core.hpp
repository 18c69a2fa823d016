// SPDX-License-Identifier: Apache-2.0
//
// Inside of the public Runtime and Rank.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <kvonce/runtime.hpp>

#include "actors/copy_job.hpp"
#include "runtime/actor_host.hpp"
#include "runtime/event_hub.hpp"
#include "runtime/layout.hpp"
#include "runtime/operation_impl.hpp"
#include "storage/arena.hpp"
#include "transport/process_watch.hpp"

namespace kvonce::runtime {

using SteadyPoint = std::chrono::steady_clock::time_point;

/// Calls that are under way. Once closed, it lets nobody in.
class CallGate {
 public:
  bool enter() noexcept {
    if ((state_.fetch_add(1, std::memory_order_acq_rel) & kClosed) == 0) return true;
    leave();
    return false;
  }
  void leave() noexcept {
    if (state_.fetch_sub(1, std::memory_order_acq_rel) == (kClosed | 1)) {
      const std::lock_guard lock(mutex_);
      empty_.notify_all();
    }
  }
  /// True for the first who closes it.
  bool close() noexcept { return (state_.fetch_or(kClosed, std::memory_order_acq_rel) & kClosed) == 0; }
  bool wait_empty(SteadyPoint deadline) {
    std::unique_lock lock(mutex_);
    return empty_.wait_until(lock, deadline, [this] { return state_.load(std::memory_order_acquire) == kClosed; });
  }

 private:
  static constexpr std::uint64_t kClosed = 1ULL << 63;
  std::atomic<std::uint64_t> state_{0};
  std::mutex mutex_;
  std::condition_variable empty_;
};

/// How often this process's line of forks has forked since it was loaded: a runtime of the parent is of no use in a child.
std::uint64_t fork_count() noexcept;
std::uint64_t random_bits();

class LinkPump;
class StoreService;
class StoreConnection;

struct Core {
  Core();
  ~Core();
  RuntimeConfig config;
  std::uint64_t forks = fork_count();
  // Of the store in this process.
  std::optional<storage::Arena> arena;
  std::vector<PartitionLayout> layout;
  StoreStart store_start;
  std::unique_ptr<transport::ProcessWatch> writers;  // of the store's last life, that may still write to slots
  protocol::ClientId client = 0;
  protocol::EngineId engine = 0;
  std::shared_ptr<Directory> directory;
  std::shared_ptr<Counters> counters;
  std::shared_ptr<transport::Mover> mover;
  std::shared_ptr<EventHub> events;
  std::unique_ptr<ActorHost> host;
  std::unique_ptr<StoreService> service;        // for other processes
  std::unique_ptr<StoreConnection> connection;  // to a store of another process

  // The store now: its life (0: lost) and its memory (null: lost).
  std::atomic<std::uint64_t> incarnation{0};
  std::atomic<bool> events_wanted{false};
  std::shared_ptr<const actors::ArenaView> view() const;
  void set_view(std::shared_ptr<const actors::ArenaView> view, std::uint64_t life);
  bool wait_connected(SteadyPoint until) const;
  /// For threads that wait for the store; empty: it is in this process, or lost, or callers do no work of the actors.
  std::weak_ptr<LinkPump> pump() const;
  /// The one before is used by nobody any more when it returns.
  void set_pump(std::shared_ptr<LinkPump> pump);
  /// Of one partition, for the largest object that there is room for; 0: not known.
  std::uint64_t partition_slots_bytes() const;

  CallGate gate;
  std::shared_ptr<OpenCalls> open_calls = std::make_shared<OpenCalls>();
  std::atomic<std::uint64_t> next_operation{1};
  std::mutex ranks_mutex;
  std::vector<std::weak_ptr<Rank::Impl>> ranks;
  std::mutex stop_mutex;
  bool stopped = false;  // under stop_mutex
  std::mutex reports_mutex;
  std::set<std::string, std::less<>> report_labels;

  void stop(std::chrono::milliseconds timeout);
  Error drain(std::chrono::milliseconds timeout);

 private:
  mutable std::mutex view_mutex_;
  mutable std::condition_variable view_changed_;
  std::shared_ptr<const actors::ArenaView> view_;
  std::shared_ptr<LinkPump> pump_;
};
using CorePtr = std::shared_ptr<Core>;

/// Empty, or this is a child of the process that started the runtime: none of its locks may be waited for here.
Error check_fork(const Core& core);

/// One call inside the gate: `if (Call call(core); call.error) ...`.
class Call {
 public:
  explicit Call(Core& core);
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  Error error;

 private:
  Core* core_ = nullptr;
};

/// Waits for a slot outside of the gate. Nothing: time is over, or waiting is not allowed here (the error says which).
template <class T>
std::optional<T> wait_for(messages::Slot<T>& slot, std::chrono::milliseconds timeout, const char* what, Error* error) {
  if (in_callback()) {
    *error = {Reason::bad_argument, std::string(what) + " waits, and must not be called from a completion callback"};
    return std::nullopt;
  }
  auto value = slot.wait_until(std::chrono::steady_clock::now() + timeout);
  if (!value) value = slot.give_up();
  if (!value) *error = {Reason::deadline, std::string(what) + ": no answer within " + std::to_string(timeout.count()) + " ms"};
  return value;
}

Error check_timeout(const char* what, std::chrono::milliseconds timeout);
Error bad(std::string text);
Error store_lost();
std::string to_text(const Coordinates& at);
std::string to_text(const ShardCounts& counts);
/// Of RuntimeConfig::copy_kernel; any other name is taken as automatic.
transport::Kernel kernel_of(std::string_view name) noexcept;

template <class Op>
std::shared_ptr<Op> make_operation(Core& core, OperationKind kind, std::chrono::milliseconds timeout, Completion&& completion) {
  auto impl = std::make_unique<Operation::Impl>(kind, core.next_operation.fetch_add(1, std::memory_order_relaxed),
                                                std::chrono::steady_clock::now() + timeout, std::move(completion));
  if (core.connection) impl->pump = core.pump();
  return std::make_shared<Op>(std::move(impl));
}

/// Whether the call, of so many pages or items, may be made. If not it has ended: it holds `busy` for all that was asked.
/// Within a callback `error` is set instead.
bool begin_call(Core& core, Operation::Impl& impl, const char* what, std::size_t pages, Error* error);
Error too_busy(const char* what);

/// Reads the index until `look` has seen it stand still: a record is changed within some hundred nanoseconds, and one under change
/// must not be told as a miss. False: it did not within a second.
template <class Look>
bool settle(const Look& look) {
  if (look()) return true;
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  for (int tries = 1; !look(); ++tries) {
    if (tries < 10) continue;
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::yield();
  }
  return true;
}
Error under_change(const char* what);
/// exists over one (pool, shard) of all partitions. False: under_change().
bool read_exists(const actors::ArenaView& arena, protocol::NamespaceId ns, protocol::PoolId pool, std::uint32_t shard,
                 std::span<const PageHash> pages, std::uint8_t* out);
Result<PageStat> read_stat(const actors::ArenaView& arena, const Directory& directory, protocol::NamespaceId ns, const PageHash& page);

}  // namespace kvonce::runtime

namespace kvonce {

struct KVONCE_INTERNAL Rank::Impl {
  runtime::CorePtr core;
  runtime::GroupPtr group;
  std::uint32_t group_index = 0;
  Coordinates at;
  protocol::SenderId sender = 0;
  runtime::ActorHost::PoolPtr actor;
  std::shared_ptr<std::atomic<std::uint64_t>> moved_bytes;

  std::mutex registering;  // one registration at a time
  mutable std::mutex mutex;
  std::vector<std::shared_ptr<actors::PoolMemory>> pools;  // by handle; unregistered ones stay, closing
  messages::SlotPtr<bool> closed;  // set: closing

  std::shared_ptr<actors::PoolMemory> pool(PoolHandle handle) const;
  /// Begins to close; the slot is filled when no row is lent and no byte moves any more. Inside the gate, or by stop().
  messages::SlotPtr<bool> begin_close();
  Error close(std::chrono::milliseconds timeout);
};

struct KVONCE_INTERNAL Runtime::Impl {
  runtime::CorePtr core;
};

}  // namespace kvonce
