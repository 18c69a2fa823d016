// SPDX-License-Identifier: Apache-2.0
#include "apps/kvonce/stop_store.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <optional>
#include <system_error>
#include <thread>

#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/auto_store.hpp"
#include "transport/socket_path.hpp"

namespace kvonce::apps {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// A lock's owner and what it has written into it agree within this, unless something is wrong.
constexpr std::chrono::milliseconds kSettle{1'000};
constexpr std::chrono::milliseconds kStopLookAgain{5};

std::string system_text(int code) { return std::generic_category().message(code); }

/// Whether the process has the file open, and a lock on it: a number in a file may be of a process that is long gone.
bool holds_lock(std::uint32_t pid, const std::string& lock_path) {
  struct stat lock {};
  if (stat(lock_path.c_str(), &lock) != 0) return false;
  const fs::path process = fs::path("/proc") / std::to_string(pid);
  std::error_code code;
  for (fs::directory_iterator entry(process / "fd", code), end; !code && entry != end; entry.increment(code)) {
    struct stat found {};
    if (stat(entry->path().c_str(), &found) != 0 || found.st_dev != lock.st_dev || found.st_ino != lock.st_ino) continue;
    std::ifstream info(process / "fdinfo" / entry->path().filename());
    for (std::string line; std::getline(info, line);) {
      if (line.starts_with("lock:") && line.find("FLOCK") != std::string::npos) return true;
    }
  }
  return false;
}

std::optional<uid_t> owner_of(std::uint32_t pid) {
  struct stat found {};
  if (stat(("/proc/" + std::to_string(pid)).c_str(), &found) != 0) return std::nullopt;
  return found.st_uid;
}

std::string program_of(std::uint32_t pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/comm");
  std::string name;
  std::getline(in, name);
  return name;
}

class ProcessHandle {
 public:
  explicit ProcessHandle(std::uint32_t pid) : fd_(static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0U))) {}
  ~ProcessHandle() {
    if (fd_ >= 0) close(fd_);
  }
  ProcessHandle(const ProcessHandle&) = delete;
  ProcessHandle& operator=(const ProcessHandle&) = delete;
  bool open() const { return fd_ >= 0; }
  bool send(int number) const { return syscall(SYS_pidfd_send_signal, fd_, number, nullptr, 0U) == 0; }
  bool wait_end(Clock::time_point deadline) const {
    for (;;) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
      if (left < 0) return false;
      pollfd wait{fd_, POLLIN, 0};
      const int ready = poll(&wait, 1, static_cast<int>(left));
      if (ready > 0) return true;
      if (ready < 0 && errno != EINTR) return false;
    }
  }

 private:
  int fd_;
};

/// `changing`: what was seen may be of a store that ends or starts in this moment, so that it is worth to look again.
StoppedStore try_to_stop(const std::string& socket, Clock::time_point deadline, std::chrono::milliseconds timeout, bool& changing) {
  StoppedStore result;
  changing = false;
  runtime::StoreHolder holder = runtime::store_holder(socket);
  result.was_running = holder.held;
  result.pid = holder.pid;
  if (!holder.hidden.empty()) {
    result.error = holder.hidden;
    return result;
  }
  // Its lock file may have been removed by hand; who listens says so itself then.
  const transport::Listener listener = holder.held ? transport::Listener{} : transport::find_listener(socket);
  if (listener.listens && !listener.other_kind) {
    result.was_running = true;
    result.pid = holder.pid = listener.pid;
  }
  if (!result.was_running) return result;
  const std::string pid = std::to_string(holder.pid);
  if (holder.pid == 0 && listener.listens) {
    result.error = "a store listens on " + socket + ", but its process cannot be seen from here: end it from there";
    return result;
  }
  if (holder.pid == 0) {
    changing = true;
    result.error = socket + ".lock is held, but names no process yet: a store is starting; try again";
    return result;
  }
  // In this order: from here on the handle is of the process that is looked at, whatever becomes of its number.
  const ProcessHandle process(holder.pid);
  if (!process.open()) {
    changing = errno == ESRCH;
    result.error = "process " + pid + " of " + socket + ".lock cannot be reached: " + system_text(errno) +
                   " (a store in another container is ended from there)";
    return result;
  }
  if (const auto owner = owner_of(holder.pid); owner && geteuid() != 0 && *owner != geteuid()) {
    result.error = "the store on " + socket + " is process " + pid + " of user " + std::to_string(*owner) + ", which user " +
                   std::to_string(geteuid()) + " may not stop";
    return result;
  }
  // Who listens was named by the kernel, for as long as the handle above is of that process.
  if (listener.listens ? transport::find_listener(socket).pid != holder.pid : !holds_lock(holder.pid, socket + ".lock")) {
    changing = true;
    result.error = "process " + pid + " is named by " + socket + ".lock, but does not seem to hold it: a store in another container is"
                   " ended from there";
    return result;
  }
  if (const std::string name = program_of(holder.pid); name != "kvonced") {
    changing = name.empty();  // it has ended since
    result.error = "the store on " + socket + " lies in process " + pid + " (" + name + "), which is no kvonced: end that program itself";
    return result;
  }
  if (!process.send(SIGTERM)) {
    changing = errno == ESRCH;
    result.error = "process " + pid + " cannot be signalled: " + system_text(errno);
    return result;
  }
  static_cast<void>(process.send(SIGCONT));  // one that is stopped would never see it
  if (!process.wait_end(deadline)) {
    result.error = "kvonced with pid " + pid + " was told to end, but has not within " + std::to_string(timeout.count()) +
                   " ms (--timeout): it waits for copies up to its drain-time";
  }
  return result;
}

}  // namespace

StoppedStore stop_store(const std::string& socket, std::chrono::milliseconds timeout) {
  const Clock::time_point deadline = Clock::now() + timeout;
  const Clock::time_point settled = std::min(deadline, Clock::now() + kSettle);
  for (;;) {
    bool changing = false;
    StoppedStore result = try_to_stop(socket, deadline, timeout, changing);
    if (!changing || Clock::now() >= settled) return result;
    std::this_thread::sleep_for(kStopLookAgain);
  }
}

}  // namespace kvonce::apps
