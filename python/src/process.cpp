// SPDX-License-Identifier: Apache-2.0
#include "python/src/process.hpp"

#include <atomic>
#include <csignal>
#include <deque>
#include <thread>

#include <pthread.h>

namespace kvonce::python {
namespace {

// When the interpreter ends, it ends other threads where they next ask for its lock, by unwinding their stacks; a C++ frame that
// catches everything, as nanobind's do, does not survive that. So no thread may ask for the lock inside of us any more from then
// on, and none runs Python code there that could. Threads that do so stay where they are instead.

// Threads that wait for the interpreter's lock inside of us.
std::atomic<int> g_taking{0};
std::atomic<bool> g_ending{false};
std::atomic<pid_t> g_ending_thread{0};
std::function<EndCall()> g_prepare_end;

// What the end of the interpreter may take: for what is stopped, and for callbacks and threads on their way.
constexpr std::chrono::milliseconds kEndOfCalls{2'000};
constexpr std::chrono::milliseconds kEndOfThreads{500};
constexpr std::size_t kIdleHelpers = 2;

/// A thread of ours gets no signal that the interpreter waits for.
template <class Body>
void start_thread(Body body) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread(std::move(body)).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

/// Jobs for threads that end when enough others are idle.
class Helpers {
 public:
  void run(std::function<void()> job) {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
    ++open_;
    if (idle_ >= jobs_.size()) {
      filled_.notify_one();
      return;
    }
    start_thread([this] { work(); });
  }
  /// True when all jobs have ended in time.
  bool wait_until(Clock::time_point until) {
    std::unique_lock lock(mutex_);
    return ended_.wait_until(lock, until, [&] { return open_ == 0; });
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      while (!jobs_.empty()) {
        auto job = std::move(jobs_.front());
        jobs_.pop_front();
        lock.unlock();
        job();
        job = nullptr;
        lock.lock();
        if (--open_ == 0) ended_.notify_all();
      }
      if (idle_ >= kIdleHelpers) return;
      ++idle_;
      filled_.wait(lock, [&] { return !jobs_.empty(); });
      --idle_;
    }
  }

  std::mutex mutex_;
  std::condition_variable filled_, ended_;
  std::deque<std::function<void()>> jobs_;
  std::size_t idle_ = 0;
  std::size_t open_ = 0;
};

/// The thread that calls back into Python.
class Caller {
 public:
  void post(std::function<void()> call) {
    const std::lock_guard lock(mutex_);
    calls_.push_back(std::move(call));
    if (!started_) {
      started_ = true;
      start_thread([this] { work(); });
    }
    filled_.notify_one();
  }
  bool wait_until(Clock::time_point until) {
    std::unique_lock lock(mutex_);
    return drained_.wait_until(lock, until, [&] { return calls_.empty() && !busy_; });
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      filled_.wait(lock, [&] { return !calls_.empty(); });
      std::deque<std::function<void()>> now;
      now.swap(calls_);
      busy_ = true;
      lock.unlock();
      // All that is there with one turn of the lock.
      const bool called = locked([&] {
        for (auto& call : now) call();
      });
      // Python objects that a call has not consumed stay: there is no lock to give them back under.
      if (!called) new std::deque<std::function<void()>>(std::move(now));
      now.clear();
      lock.lock();
      busy_ = false;
      drained_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable filled_, drained_;
  std::deque<std::function<void()>> calls_;
  bool started_ = false;
  bool busy_ = false;
};

// Never destroyed: their threads outlive all static objects. A forked child gets new ones, as its threads are not there.
std::atomic<Helpers*> g_helpers{nullptr};
std::atomic<Caller*> g_caller{nullptr};

void after_fork_in_child() {
  g_taking.store(0);
  g_helpers.store(new Helpers);
  g_caller.store(new Caller);
}

void end_of_interpreter() {
  g_ending_thread.store(gettid());
  const EndCall end_call = g_prepare_end();
  PyThreadState* const state = PyEval_SaveThread();
  end_call(kEndOfCalls);
  const auto until = Clock::now() + kEndOfThreads;
  g_helpers.load()->wait_until(until);
  g_caller.load()->wait_until(until);
  g_ending.store(true);
  // Who waits for the lock gets it now; later comers do not ask for it any more.
  while (g_taking.load() != 0 && Clock::now() < until) std::this_thread::sleep_for(std::chrono::microseconds{200});
  g_caller.load()->wait_until(until);
  PyEval_RestoreThread(state);
}

bool may_take() noexcept { return !g_ending.load() || g_ending_thread.load() == gettid(); }

}  // namespace

bool ending() noexcept { return g_ending.load(); }

void stay_when_ending() noexcept {
  if (may_take()) return;
  PyEval_SaveThread();
  for (;;) pause();
}

bool foreign(pid_t pid) noexcept { return pid != getpid() || g_ending.load(); }

PyThreadState* give_up_lock() noexcept { return PyEval_SaveThread(); }

void take_lock_again(PyThreadState* state) noexcept {
  g_taking.fetch_add(1);
  if (!may_take()) {
    g_taking.fetch_sub(1);
    for (;;) pause();
  }
  PyEval_RestoreThread(state);
  g_taking.fetch_sub(1);
}

bool locked(const std::function<void()>& call) {
  g_taking.fetch_add(1);
  if (!may_take()) {
    g_taking.fetch_sub(1);
    return false;
  }
  const PyGILState_STATE state = PyGILState_Ensure();
  g_taking.fetch_sub(1);
  call();
  PyGILState_Release(state);
  return true;
}

void check_signals() {
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

void run_aside(std::function<void()> job) { g_helpers.load()->run(std::move(job)); }

void post(std::function<void()> call) {
  if (!ending()) g_caller.load()->post(std::move(call));
}

SharedObject::~SharedObject() {
  if (foreign(pid_)) return;
  post([object = object_] { Py_DECREF(object); });
}

void set_end_call(std::function<EndCall()> prepare) { g_prepare_end = std::move(prepare); }

void watch_process(nb::module_& module) {
  if (g_helpers.load() == nullptr) {
    g_helpers.store(new Helpers);
    g_caller.store(new Caller);
    pthread_atfork(nullptr, nullptr, after_fork_in_child);
  }
  module.def("_end", &end_of_interpreter, "Ends what still runs; for atexit.");
  nb::module_::import_("atexit").attr("register")(module.attr("_end"));
}

}  // namespace kvonce::python
