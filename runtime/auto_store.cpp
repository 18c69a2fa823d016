// SPDX-License-Identifier: Apache-2.0
#include "runtime/auto_store.hpp"

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <system_error>
#include <thread>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "runtime/host_memory.hpp"
#include "runtime/spawn_store.hpp"
#include "runtime/store_settings.hpp"

namespace kvonce::runtime {
namespace {

using Clock = std::chrono::steady_clock;

// Between two looks at a store that somebody else starts.
constexpr std::chrono::milliseconds kLookAgain{5};

// Between two starts of stores that ended at once, by somebody's stop or by themselves: doubled each time.
constexpr std::chrono::milliseconds kStartAgain{10};
constexpr std::chrono::milliseconds kStartAgainMax{640};

/// Of PATH/kvonced-w1.sock: PATH/kvonced-w1
std::string stem_of(const std::string& socket) {
  constexpr std::string_view kEnding = ".sock";
  return socket.ends_with(kEnding) ? socket.substr(0, socket.size() - kEnding.size()) : socket;
}

Error start(const RuntimeConfig& config, const std::string& socket, const StartLock& lock, Clock::time_point deadline) {
  auto program = find_store_program(config.kvonced_path);
  if (program.error) return program.error;
  const std::uint64_t given = given_store_memory(config);
  const std::uint64_t bytes = given != 0 ? given : default_store_bytes(available_memory());
  if (bytes < (1ULL << 20)) {
    return {Reason::no_space, "a quarter of the memory that is available here is " + std::to_string(bytes) +
                                  " bytes: a store needs 1 MiB; set auto_bytes"};
  }
  StoreProcess process;
  process.program = *program;
  process.log_path = stem_of(socket) + ".log";
  process.start_lock = lock.file();
  // Not populated: taking the memory may last longer than the caller wants to wait for a store.
  process.arguments = {"--socket",   socket, "--memory",  std::to_string(bytes), "--idle-exit", std::to_string(config.auto_idle.count()) + "ms",
                       "--populate", "no"};
  const std::vector<std::string> settings = given_store_arguments(config);
  process.arguments.insert(process.arguments.end(), settings.begin(), settings.end());
  return start_store_process(process, deadline);
}

/// When the time is over.
std::string why_none(std::chrono::milliseconds waited, const std::string& socket, const StoreHolder& holder, bool mine, int starts,
                     const Error& last) {
  const std::string within = " within " + std::to_string(waited.count()) + " ms";
  if (holder.held) {
    return "the kvonced with pid " + std::to_string(holder.pid) + " has taken " + socket + " but does not listen" + within +
           ": it is starting, ending, or stuck (kvonce stop ends it)";
  }
  const std::string log = "; its log is " + stem_of(socket) + ".log";
  if (!mine) return "another process starts a kvonced on " + socket + ", and it is not ready" + within + log;
  std::string text = "no kvonced stays on " + socket + within + ": " + std::to_string(starts) + (starts == 1 ? " was" : " were") + " started here";
  return text + (last ? ", the last one: " + last.text : ", and each ended as soon as it was ready" + log);
}

}  // namespace

StartLock::StartLock(const std::string& socket_path)
    : file_(open(path(socket_path).c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600)) {}

StartLock::~StartLock() {
  if (file_ >= 0) close(file_);
}

bool StartLock::take() {
  if (!taken_) taken_ = file_ >= 0 && flock(file_, LOCK_EX | LOCK_NB) == 0;
  return taken_;
}

std::string StartLock::path(const std::string& socket_path) { return stem_of(socket_path) + ".start"; }

Result<std::string> find_or_start_store(const RuntimeConfig& config, Clock::time_point deadline) {
  const Clock::time_point begin = Clock::now();
  Result<std::string> result;
  std::string why_not;
  const std::string socket = auto_socket_path(&why_not);
  if (socket.empty()) {
    result.error = {Reason::store_lost, "there is no place for a store's socket: " + why_not};
    return result;
  }
  StartLock lock(socket);
  if (!lock.usable()) {
    const int code = errno;
    const bool passes = code == ENOMEM || code == ENOENT;  // the last: its folder went just now
    result.error = {passes ? Reason::busy : Reason::store_lost,
                    StartLock::path(socket) + " cannot be opened: " + std::generic_category().message(code)};
    return result;
  }
  int starts = 0;
  Error last;  // of a start that failed, but may do the next time
  Clock::time_point next_start = Clock::now();
  std::chrono::milliseconds pause = kStartAgain;
  for (;;) {
    // The order matters: who has the lock looks again, since another may have started one just before.
    const bool mine = lock.take();
    if (store_listens(socket)) {
      result.value = "unix:" + socket;
      return result;
    }
    const StoreHolder holder = store_holder(socket);
    const Clock::time_point now = Clock::now();
    if (mine && !holder.held && now >= next_start && now < deadline) {
      ++starts;
      last = start(config, socket, lock, deadline);
      next_start = Clock::now() + pause;
      pause = std::min(pause * 2, kStartAgainMax);
      // One that somebody started by hand in the same moment is as good, and waited for.
      if (last && last.reason != Reason::busy && !store_holder(socket).held && !store_listens(socket)) {
        result.error = std::move(last);
        return result;
      }
      continue;
    }
    if (now >= deadline) {
      result.error = {Reason::deadline, why_none(std::chrono::ceil<std::chrono::milliseconds>(deadline - begin), socket, holder, mine, starts, last)};
      return result;
    }
    std::this_thread::sleep_for(kLookAgain);
  }
}

}  // namespace kvonce::runtime
