// SPDX-License-Identifier: Apache-2.0
//
// What the interpreter's lock, signals, forks and its end ask of every call: waits without the lock and in slices, nothing
// touched in a forked child, no thread left inside the interpreter when it ends.
#pragma once

#include <nanobind/nanobind.h>
// In every file: a cast that one file makes without them would be another function of the same name.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>

#include <sys/types.h>
#include <unistd.h>

namespace kvonce::python {

namespace nb = nanobind;
using Clock = std::chrono::steady_clock;

/// Longest time that a signal stays unseen while a call waits.
inline constexpr std::chrono::milliseconds kSlice{50};

/// True from the moment on that no thread but the one that ends the interpreter may take its lock.
bool ending() noexcept;

/// At the entry of each call, with the lock: while the interpreter ends, no other thread goes on.
void stay_when_ending() noexcept;

/// True where an object made in process `pid` must not be touched any more: in a child of it, or when the interpreter ends.
bool foreign(pid_t pid) noexcept;

/// Gives the interpreter's lock up, and takes it again. While the interpreter ends, a thread that would take it stays here for
/// ever: the interpreter would end it by unwinding through C++ frames, which aborts the process.
PyThreadState* give_up_lock() noexcept;
void take_lock_again(PyThreadState* state) noexcept;

/// Runs `call` without the interpreter's lock.
template <class Call>
auto unlocked(Call&& call) {
  struct Scope {
    PyThreadState* state = give_up_lock();
    ~Scope() { take_lock_again(state); }
  } scope;
  return call();
}

/// Runs `call` with the lock, from a thread that does not have it. False, and no call, when the interpreter ends.
bool locked(const std::function<void()>& call);

/// Handlers of signals that came meanwhile run here; an exception of theirs (KeyboardInterrupt) is thrown.
void check_signals();

/// Calls `wait(time)`, without the lock and for at most a slice at a time, until it is true. False when `until` passed first.
template <class Wait>
bool wait_in_slices(const std::optional<Clock::time_point>& until, const Wait& wait) {
  for (;;) {
    std::chrono::nanoseconds time = kSlice;
    if (until) time = std::min<std::chrono::nanoseconds>(time, std::max(*until - Clock::now(), Clock::duration::zero()));
    if (unlocked([&] { return wait(time); })) return true;
    if (until && Clock::now() >= *until) return false;
    check_signals();
  }
}

/// Runs `job` on a thread of the binding that may block; it never touches Python.
void run_aside(std::function<void()> job);

/// True on the thread that handles signals: the process's first.
inline bool handles_signals() noexcept { return gettid() == getpid(); }

/// The result of a C++ call that may block with no limit that we could cut into slices. On the thread that handles signals
/// another one makes the call, so that Ctrl-C is seen at once; the call itself goes on to its own deadline, and `call` owns all
/// it uses.
template <class Call>
auto ask(Call call) -> std::invoke_result_t<Call&> {
  using Value = std::invoke_result_t<Call&>;
  if (!handles_signals()) return unlocked(call);
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    std::optional<Value> value;
  };
  auto shared = std::make_shared<Shared>();
  run_aside([shared, call = std::make_shared<Call>(std::move(call))] {
    Value value = (*call)();
    const std::lock_guard lock(shared->mutex);
    shared->value.emplace(std::move(value));
    shared->changed.notify_all();
  });
  wait_in_slices(std::nullopt, [&](std::chrono::nanoseconds time) {
    std::unique_lock lock(shared->mutex);
    return shared->changed.wait_for(lock, time, [&] { return shared->value.has_value(); });
  });
  return std::move(*shared->value);
}

/// Runs `call` soon, with the lock, on the one thread that calls back into Python. Dropped when the interpreter ends.
/// May be called with or without the lock, and from threads of kvonce: it never waits for the lock.
void post(std::function<void()> call);

/// A reference to a Python object that may go on any thread.
class SharedObject {
 public:
  explicit SharedObject(nb::handle object) : object_(object.inc_ref().ptr()), pid_(getpid()) {}
  ~SharedObject();
  SharedObject(const SharedObject&) = delete;
  SharedObject& operator=(const SharedObject&) = delete;
  nb::handle get() const noexcept { return object_; }

 private:
  PyObject* object_;
  pid_t pid_;
};

/// At the end of the interpreter `prepare` runs with its lock, and what it returns without: it stops what still runs, in the time
/// that it is given.
using EndCall = std::function<void(std::chrono::milliseconds)>;
void set_end_call(std::function<EndCall()> prepare);

/// Watches forks and the end of the interpreter, from the import on.
void watch_process(nb::module_& module);

}  // namespace kvonce::python
