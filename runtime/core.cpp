// SPDX-License-Identifier: Apache-2.0
#include "runtime/core.hpp"

#include "protocol/units.hpp"
#include "runtime/connection.hpp"
#include "runtime/link_pump.hpp"
#include "runtime/service.hpp"
#include "runtime/store_memory.hpp"

#include <pthread.h>
#include <sys/random.h>

#include <random>
#include <thread>

namespace kvonce::runtime {

namespace {

std::atomic<std::uint64_t> g_forks{0};

// What the runtime's own steps of a stop may take when the caller's time is over already.
constexpr std::chrono::milliseconds kLastSteps{500};

}  // namespace

std::uint64_t fork_count() noexcept {
  static const int registered = pthread_atfork(nullptr, nullptr, [] { g_forks.fetch_add(1, std::memory_order_relaxed); });
  static_cast<void>(registered);
  return g_forks.load(std::memory_order_relaxed);
}

std::uint64_t random_bits() {
  std::uint64_t bits = 0;
  if (getrandom(&bits, sizeof bits, 0) == static_cast<ssize_t>(sizeof bits)) return bits;
  std::random_device device;
  return std::uint64_t{device()} << 32U | device();
}

Error check_fork(const Core& core) {
  if (core.forks == g_forks.load(std::memory_order_relaxed)) return {};
  return {Reason::closed, "this runtime was started before a fork; the child has to start its own"};
}

Call::Call(Core& core) : error(check_fork(core)) {
  if (error) return;
  if (!core.gate.enter()) {
    error = {Reason::closed, "the runtime is stopped"};
  } else {
    core_ = &core;
  }
}

Call::~Call() {
  if (core_ != nullptr) core_->gate.leave();
}

Error bad(std::string text) { return {Reason::bad_argument, std::move(text)}; }

Error too_busy(const char* what) {
  return {Reason::busy, std::string(what) + ": the store has not answered what this runtime has asked already; " +
                            protocol::format_count(kMaxOpenCalls) + " calls may be open, or fewer that name " +
                            protocol::format_count(kMaxOpenItems) + " pages and items, or so many as a store that stands still has room for"};
}

bool begin_call(Core& core, Operation::Impl& impl, const char* what, std::size_t pages, Error* error) {
  if (!core.host->is_behind() && impl.open.begin(core.open_calls, pages)) return true;
  if (in_callback()) {
    // Its own callback would run within the one that made this call, and so on.
    *error = too_busy(what);
    return false;
  }
  if (!impl.claim()) return false;
  if (impl.kind == OperationKind::put) {
    std::fill(impl.puts.begin(), impl.puts.end(), PutItemResult{Verdict::rejected, Reason::busy, protocol::kBusyRetryMs});
    core.counters->verdicts[static_cast<std::size_t>(Verdict::rejected)].fetch_add(impl.puts.size(), std::memory_order_relaxed);
  } else if (impl.kind == OperationKind::load) {
    std::fill(impl.loads.begin(), impl.loads.end(), Reason::busy);
  } else if (impl.kind == OperationKind::lookup) {
    impl.lookup.reason = Reason::busy;
    impl.lookup.retry_after_ms = protocol::kBusyRetryMs;
  } else {
    impl.error = too_busy(what);
  }
  impl.finish();
  return false;
}

Error check_timeout(const char* what, std::chrono::milliseconds timeout) {
  if (timeout >= std::chrono::milliseconds(1) && timeout <= kMaxTimeout) return {};
  return bad(std::string(what) + " is " + std::to_string(timeout.count()) + " ms: must be 1 ms to 1 h");
}

std::string to_text(const Coordinates& at) {
  const auto axis = [](const char* name, const AxisPart& part) {
    return std::string(name) + " " + std::to_string(part.index) + " of " + std::to_string(part.of);
  };
  return axis("tp", at.tp) + ", " + axis("pp", at.pp) + ", " + axis("cp", at.cp);
}

std::string to_text(const ShardCounts& counts) {
  return "tp " + std::to_string(counts.tp) + ", pp " + std::to_string(counts.pp) + ", cp " + std::to_string(counts.cp);
}

Error store_lost() { return {Reason::store_lost, "the store is lost; a connection is tried again and again"}; }

Core::Core() = default;
Core::~Core() = default;

std::shared_ptr<const actors::ArenaView> Core::view() const {
  const std::lock_guard lock(view_mutex_);
  return view_;
}

void Core::set_view(std::shared_ptr<const actors::ArenaView> view, std::uint64_t life) {
  {
    const std::lock_guard lock(view_mutex_);
    view_ = std::move(view);
    incarnation.store(life, std::memory_order_release);
  }
  view_changed_.notify_all();
}

std::weak_ptr<LinkPump> Core::pump() const {
  const std::lock_guard lock(view_mutex_);
  return pump_;
}

void Core::set_pump(std::shared_ptr<LinkPump> pump) {
  std::shared_ptr<LinkPump> before;
  {
    const std::lock_guard lock(view_mutex_);
    before = std::exchange(pump_, std::move(pump));
  }
  // Whoever waits with it sees its link end, and lets go of it within its spin; unless that is this thread, in a callback.
  const auto give_up = std::chrono::steady_clock::now() + kLastSteps;
  while (before && before.use_count() != 1 && std::chrono::steady_clock::now() < give_up) std::this_thread::yield();
}

bool Core::wait_connected(SteadyPoint until) const {
  std::unique_lock lock(view_mutex_);
  return view_changed_.wait_until(lock, until, [this] { return view_ != nullptr; });
}

std::uint64_t Core::partition_slots_bytes() const {
  const auto memory = view();
  return memory ? memory->slots_bytes : ~std::uint64_t{0};
}

Error under_change(const char* what) {
  return {Reason::busy, std::string(what) + ": a page has been under change for a second: the store's process stands still"};
}

bool read_exists(const actors::ArenaView& arena, protocol::NamespaceId ns, protocol::PoolId pool, std::uint32_t shard,
                 std::span<const PageHash> pages, std::uint8_t* out) {
  const auto& readers = arena.readers;
  const auto settled = [&](const protocol::IndexReader& reader, const PageHash& page, std::uint8_t* found) {
    return *found <= 1 || settle([&] {
      reader.exists(ns, pool, shard, {&page, 1}, found);
      return *found <= 1;
    });
  };
  if (readers.size() == 1) {
    readers.front().exists(ns, pool, shard, pages, out);
    for (std::size_t i = 0; i < pages.size(); ++i)
      if (!settled(readers.front(), pages[i], out + i)) return false;
    return true;
  }
  std::vector<std::vector<PageHash>> parts(readers.size());
  std::vector<std::uint32_t> owner(pages.size());
  for (std::size_t i = 0; i < pages.size(); ++i) {
    owner[i] = arena.owner(ns, pages[i]);
    parts[owner[i]].push_back(pages[i]);
  }
  std::vector<std::vector<std::uint8_t>> found(readers.size());
  for (std::size_t p = 0; p < readers.size(); ++p) {
    found[p].resize(parts[p].size());
    readers[p].exists(ns, pool, shard, parts[p], found[p].data());
    for (std::size_t i = 0; i < parts[p].size(); ++i)
      if (!settled(readers[p], parts[p][i], &found[p][i])) return false;
  }
  std::vector<std::size_t> next(readers.size(), 0);
  for (std::size_t i = 0; i < pages.size(); ++i) out[i] = found[owner[i]][next[owner[i]]++];
  return true;
}

Result<PageStat> read_stat(const actors::ArenaView& arena, const Directory& directory, protocol::NamespaceId ns, const PageHash& page) {
  Result<PageStat> result;
  const protocol::IndexReader& reader = arena.readers[arena.owner(ns, page)];
  using protocol::ReadStatus;
  ReadStatus status = ReadStatus::absent;
  protocol::PageView view;
  if (!settle([&] { return (status = reader.page(ns, page, &view)) != ReadStatus::contended; })) return {{}, under_change("stat")};
  if (status == ReadStatus::absent) return result;
  result.value.found = true;
  result.value.depth = view.depth;
  for (std::uint32_t p = 0; p < protocol::kMaxPoolsPerNamespace; ++p) {
    const auto pool = static_cast<protocol::PoolId>(p);
    const std::uint32_t shards = reader.pool(ns, pool).shards;
    if (shards == 0) continue;
    const KnownPool known = directory.pool(ns, pool);
    for (std::uint32_t shard = 0; shard < shards; ++shard) {
      protocol::ObjectLocation at;
      if (!settle([&] { return (status = reader.locate(ns, page, pool, shard, &at)) != ReadStatus::contended; }))
        return {{}, under_change("stat")};
      if (status == ReadStatus::found) result.value.objects.push_back({known.name, shard, known.object_bytes, at.level});
    }
  }
  return result;
}

Error Core::drain(std::chrono::milliseconds timeout) {
  if (connection) return bad("drain: the store is in another process, which alone can drain it");
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  if (service) service->stop_accepting();
  host->freeze();
  while (std::chrono::steady_clock::now() < deadline) {
    const auto open = host->open_writes(deadline);
    if (!open || *open == 0) break;
    std::this_thread::sleep_for(std::chrono::milliseconds{1});
  }
  host->tell_ending();
  Error error;
  if (!config.arena_file.empty())
    error = write_snapshot(*this, host->snapshot(std::max(deadline, std::chrono::steady_clock::now() + kLastSteps)));
  if (service) service->stop();
  return error;
}

void Core::stop(std::chrono::milliseconds timeout) {
  if (forks != fork_count()) return;  // the threads are the parent's
  const auto now = std::chrono::steady_clock::now();
  const auto deadline = now + std::clamp<std::chrono::milliseconds>(timeout, std::chrono::milliseconds(0), kMaxTimeout);
  gate.close();
  const std::lock_guard one_at_a_time(stop_mutex);
  if (stopped) return;
  stopped = true;
  if (!host) return;
  if (connection) connection->stop_trying();
  bool calls_ended = gate.wait_empty(deadline);

  std::vector<messages::SlotPtr<bool>> closing;
  {
    const std::lock_guard lock(ranks_mutex);
    for (const auto& weak : ranks) {
      const auto rank = weak.lock();
      if (!rank) continue;
      if (auto slot = rank->begin_close()) closing.push_back(std::move(slot));
    }
  }
  bool all_closed = true;
  for (const auto& slot : closing) all_closed = slot->wait_until(deadline).has_value() && all_closed;
  // From here on no copy begins; those that did not end in time end at their next slice, whatever they wait for.
  mover->stop();
  const auto last = std::max(deadline, std::chrono::steady_clock::now() + kLastSteps);
  if (!all_closed)
    for (const auto& slot : closing) slot->wait_until(last);
  events->stop();
  calls_ended = calls_ended || gate.wait_empty(last);
  const bool ended = host->end(last);
  writers.reset();
  // Everything that the actors had to say has gone through the links by now.
  if (connection) connection->close();
  set_pump(nullptr);
  if (service) service->stop();
  const auto memory = view();
  set_view(nullptr, 0);
  if (ended && calls_ended) {
    connection.reset();
    service.reset();
    host.reset();
    arena.reset();
  } else {
    // An engine's callback does not come back. What it runs in, and the memory that may be touched, are left alone.
    static_cast<void>(host.release());
    new std::optional<storage::Arena>(std::move(arena));
    new std::shared_ptr<const actors::ArenaView>(memory);
    static_cast<void>(connection.release());
    static_cast<void>(service.release());
  }
}

}  // namespace kvonce::runtime
