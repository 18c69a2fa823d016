// SPDX-License-Identifier: Apache-2.0
//
// SIGTERM, SIGINT and SIGHUP as requests that the main thread picks up. The end is bounded: a second SIGTERM or SIGINT ends the
// process at once, and so does an end that lasts longer than it may.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>

namespace kvonce::apps {

inline constexpr int kExitForced = 1;
inline constexpr int kExitIncomplete = 1;  // ended, but the next life does not find what it was to find

class Signals {
 public:
  /// Blocks them in this thread and those that it starts from now on: before any other thread is there. SIGPIPE and SIGXFSZ are ignored.
  static void block();

  /// A second signal within `one_wish` of the first is the same wish: `timeout`, for one, tells the process and then its group.
  /// `on_end` is called once, from another thread, when the first signal to end has come. The end of the process `parent` is one,
  /// too; 0: none.
  explicit Signals(std::chrono::milliseconds end_time, std::chrono::milliseconds one_wish = std::chrono::milliseconds{500},
                   std::function<void()> on_end = {}, int parent = 0);
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  /// False: the system gave no descriptor for it, and nothing is watched; `problem` says why.
  bool ready() const { return problem_.empty(); }
  const std::string& problem() const { return problem_; }

  enum class Request { none, reload, end };
  /// The next request; `none` when the time passed first. An end stays requested.
  Request wait(std::chrono::milliseconds timeout);
  int end_signal() const { return end_signal_.load(); }
  bool parent_gone() const { return parent_gone_.load(); }
  /// From SIGTERM to the end of the process; also after begin_end().
  void set_end_time(std::chrono::milliseconds time) { end_time_ms_.store(time.count()); }
  /// The process ends by itself now; the same bound holds.
  void begin_end();

 private:
  void watch();
  void told_to_end(int number);

  const std::chrono::milliseconds one_wish_;
  const std::function<void()> on_end_;
  std::atomic<std::int64_t> end_time_ms_;
  std::atomic<int> end_signal_{0};
  std::atomic<bool> reload_{false};
  std::atomic<bool> ending_{false};
  std::atomic<bool> quit_{false};
  std::atomic<bool> parent_gone_{false};
  int parent_ = -1;  // its descriptor: bound to the process, whatever becomes of its number
  int signals_ = -1;
  int to_main_ = -1;
  int to_watch_ = -1;
  std::string problem_;
  std::thread thread_;
};

}  // namespace kvonce::apps
