// SPDX-License-Identifier: Apache-2.0
//
// Processes that a benchmark starts: none is left behind, and none is waited for without end.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace kvonce::bench {

using Json = nlohmann::ordered_json;
using SteadyPoint = std::chrono::steady_clock::time_point;

/// Why a benchmark cannot go on; thrown inside of it, an Outcome::error in the end.
struct Failed {
  std::string text;
};
/// What was stored or answered is not what it must be: an Outcome::wrong in the end.
struct Wrong {
  std::string text;
};

/// While it lives, SIGINT, SIGTERM and SIGHUP only set a flag: whoever waits throws Failed, and all that was started is ended.
class Interrupts {
 public:
  Interrupts();
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;
  /// Throws Failed when one has come.
  static void check();
};

/// An owned descriptor.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  ~Descriptor() { reset(); }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) reset(std::exchange(other.fd_, -1));
    return *this;
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  void reset(int fd = -1);

 private:
  int fd_;
};

/// JSON values, one a line, over a stream socket.
class Channel {
 public:
  Channel() = default;
  explicit Channel(Descriptor socket) : socket_(std::move(socket)) {}
  bool is_open() const { return socket_.get() >= 0; }
  int fd() const { return socket_.get(); }
  /// False when the other side has gone.
  bool send(const Json& value);
  enum class Got { value, gone, late };
  Got receive(Json& value, SteadyPoint deadline);
  /// True: a value can be received without waiting for long, or the other side has gone.
  bool pending(std::chrono::milliseconds time);

 private:
  Descriptor socket_;
  std::string seen_;
};

/// A process that was started: killed, and waited for, at the latest at the end of this object.
class ChildProcess {
 public:
  ChildProcess() = default;
  ~ChildProcess() { kill_now(); }
  ChildProcess(ChildProcess&& other) noexcept : pid_(std::exchange(other.pid_, -1)) {}
  ChildProcess& operator=(ChildProcess&& other) noexcept;
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  /// `inherited`: which of this process's descriptors the child has under which number (3 and up; 1 and 2 too). Its input is
  /// empty; Ctrl-C of a terminal does not reach it. Throws Failed.
  static ChildProcess start(const std::string& program, const std::vector<std::string>& arguments,
                            const std::vector<std::pair<int, int>>& inherited);

  pid_t pid() const { return pid_; }
  bool running() const { return pid_ > 0; }
  void signal(int number) const;
  /// True when it has ended; how, is in `status` as waitpid tells it.
  bool wait_until(SteadyPoint deadline, int& status);
  void kill_now();

 private:
  pid_t pid_ = -1;
};

/// "was killed by signal 9", "ended with status 2".
std::string end_text(int wait_status);

/// CPU time of all threads of a process so far; 0 when it cannot be read.
double cpu_seconds_of(pid_t pid);

}  // namespace kvonce::bench
