// SPDX-License-Identifier: Apache-2.0
#include "runtime/operation_impl.hpp"

#include "runtime/link_pump.hpp"

#include <algorithm>
#include <thread>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kvonce {

namespace {

using TimePoint = Operation::Impl::TimePoint;

void pause_cpu() noexcept {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

// About what it costs to be put to sleep and woken: a result that is nearly there is had for less.
constexpr std::chrono::microseconds kSpin{30};

// Longer for an answer that another process makes: what it takes for a whole batch.
constexpr std::chrono::microseconds kPumpSpin{250};

// Threads that spin at this moment. More than every second core would keep away those that they wait for.
std::atomic<int> g_spinning{0};
const int g_spinning_max = static_cast<int>(std::max(1U, std::thread::hardware_concurrency() / 2));

thread_local int t_callbacks = 0;

template <class Call>
void call_back(const Call& call) noexcept {
  ++t_callbacks;
  try {
    call();
  } catch (...) {
    // Foreign code; its exception has nowhere to go, and the result is delivered.
  }
  --t_callbacks;
}

TimePoint after(std::chrono::nanoseconds time) noexcept {
  const auto now = std::chrono::steady_clock::now();
  if (time <= std::chrono::nanoseconds::zero()) return now;
  // No wait is longer than the longest deadline; what is longer would overflow the clock.
  return now + std::min<std::chrono::nanoseconds>(time, std::chrono::hours(24));
}

}  // namespace

bool in_callback() noexcept { return t_callbacks != 0; }

void Operation::Impl::finish() noexcept {
  open.end();
  {
    const std::lock_guard lock(mutex_);
    done_.store(true, std::memory_order_release);
  }
  wake_sleepers();
  // Taken out: a callback may hold what holds this operation.
  const Completion told = std::exchange(completion, {});
  progress = nullptr;
  if (told.queue) told.queue->impl().push({kind, id, told.user_data});
  if (told.callback) call_back(told.callback);
}

void Operation::Impl::advance_layers(std::uint32_t layers) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (layers <= layers_done_.load(std::memory_order_relaxed)) return;
    layers_done_.store(layers, std::memory_order_release);
  }
  wake_sleepers();
  if (progress) call_back([&] { progress(layers); });
}

// After what they wait for has been written with the mutex held.
void Operation::Impl::wake_sleepers() noexcept {
  if (sleepers_.load(std::memory_order_acquire) != 0) changed_.notify_all();
  if (helpers_.load(std::memory_order_acquire) == 0) return;
  if (const auto copies = mover.lock()) copies->wake_helpers(this);
}

bool Operation::Impl::end_overdue() noexcept {
  if (kind == OperationKind::put || kind == OperationKind::load) return false;
  if (std::chrono::steady_clock::now() < deadline || !claim()) return false;
  error = {Reason::deadline, "no answer within the call's time"};
  lookup.error = error;
  finish();
  return true;
}

/// Reads the link for as long as something comes, and for some time more where that has paid off lately.
template <class Ready, class Help>
void Operation::Impl::pump_link(runtime::LinkPump& link, TimePoint until, const Ready& ready, const Help& help) {
  link.begin();
  bool spin = link.worth_spinning();
  auto idle_since = std::chrono::steady_clock::now();
  while (!ready()) {
    const auto now = std::chrono::steady_clock::now();
    if (now >= until) break;
    if (help() || link.work()) {
      idle_since = std::chrono::steady_clock::now();
      continue;
    }
    if (!spin) break;
    if (now - idle_since > kPumpSpin) {
      link.spun(false);
      spin = false;
      break;
    }
    std::this_thread::yield();
  }
  if (spin && ready()) link.spun(true);
  link.end();
}

/// False when it is worth looking again before the next sleep: there is something to copy.
template <class Ready>
bool Operation::Impl::sleep_until_ready(TimePoint until, const Ready& ready, transport::Mover* copies) {
  if (copies != nullptr) {
    {
      const std::lock_guard lock(mutex_);
      helpers_.fetch_add(1, std::memory_order_acq_rel);
    }
    const bool wanted = copies->wait_to_help(until, this, ready);
    helpers_.fetch_sub(1, std::memory_order_relaxed);
    if (wanted) return ready();
    if (ready() || std::chrono::steady_clock::now() >= until) return true;
  }
  std::unique_lock lock(mutex_);
  sleepers_.fetch_add(1, std::memory_order_acq_rel);
  changed_.wait_until(lock, until, ready);
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
  return true;
}

template <class Ready>
bool Operation::Impl::wait_for_ready(TimePoint until, const Ready& ready) {
  if (ready()) return true;
  const bool lends_rows = kind == OperationKind::put || kind == OperationKind::load;
  const auto copies = lends_rows ? mover.lock() : nullptr;
  const auto help = [&] { return copies && std::chrono::steady_clock::now() < until && copies->help(); };
  const auto sleep_until = lends_rows ? until : std::min(until, deadline);
  do {
    while (!ready() && help()) {
    }
    if (ready()) return true;
    if (const auto link = pump.lock()) {
      pump_link(*link, until, ready, help);
    } else if (g_spinning.fetch_add(1, std::memory_order_relaxed) < g_spinning_max) {
      const auto spin_end = std::min(until, std::chrono::steady_clock::now() + kSpin);
      do {
        for (int i = 0; i < 16; ++i) {
          if (ready() || help()) break;
          pause_cpu();
        }
        // Whoever else wants this core gets it: it may be the one that is waited for.
        std::this_thread::yield();
      } while (!ready() && std::chrono::steady_clock::now() < spin_end);
      g_spinning.fetch_sub(1, std::memory_order_relaxed);
    } else {
      g_spinning.fetch_sub(1, std::memory_order_relaxed);
    }
    if (ready()) return true;
  } while (!sleep_until_ready(sleep_until, ready, copies.get()));
  if (ready()) return true;
  if (!lends_rows && end_overdue()) return true;
  // Somebody else has claimed it and is about to finish.
  if (!lends_rows && claimed()) sleep_until_ready(until, ready, nullptr);
  return ready();
}

bool Operation::Impl::wait_until(TimePoint until) {
  return wait_for_ready(until, [this] { return done(); });
}

bool Operation::Impl::wait_layers_until(std::uint32_t layers, TimePoint until) {
  return wait_for_ready(until, [this, layers] { return layers_done() >= layers || done(); });
}

Operation::Operation(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Operation::~Operation() = default;
OperationKind Operation::kind() const noexcept { return impl_->kind; }
std::uint64_t Operation::id() const noexcept { return impl_->id; }
bool Operation::done() const noexcept { return impl_->done(); }
bool Operation::wait_for(std::chrono::nanoseconds time) const { return impl_->wait_until(after(time)); }
void Operation::wait() const {
  while (!impl_->wait_until(after(std::chrono::hours(1)))) {
  }
}

std::span<const PutItemResult> PutOperation::results() const noexcept {
  return done() ? std::span<const PutItemResult>(impl().puts) : std::span<const PutItemResult>();
}
std::uint64_t PutOperation::succeeded() const noexcept { return done() ? impl().count : 0; }
void PutOperation::cancel() {
  if (!done() && impl().canceler) impl().canceler();
}

std::span<const Reason> LoadOperation::results() const noexcept {
  return done() ? std::span<const Reason>(impl().loads) : std::span<const Reason>();
}
std::uint64_t LoadOperation::loaded() const noexcept { return done() ? impl().count : 0; }
std::uint32_t LoadOperation::layers_done() const noexcept { return impl().layers_done(); }
bool LoadOperation::wait_layers(std::uint32_t layers, std::chrono::nanoseconds time) const {
  return impl().wait_layers_until(layers, after(time));
}
void LoadOperation::cancel() {
  if (!done() && impl().canceler) impl().canceler();
}

const LookupResult& LookupOperation::result() const noexcept {
  static const LookupResult kNotYet;
  return done() ? impl().lookup : kNotYet;
}

const Error& AdminOperation::error() const noexcept {
  static const Error kNone;
  return done() ? impl().error : kNone;
}
std::uint64_t AdminOperation::count() const noexcept { return done() ? impl().count : 0; }

}  // namespace kvonce
