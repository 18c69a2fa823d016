// SPDX-License-Identifier: Apache-2.0
#include "runtime/auto_store.hpp"

#include <cerrno>
#include <string_view>
#include <system_error>
#include <thread>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "runtime/host_memory.hpp"
#include "runtime/spawn_store.hpp"

namespace kvonce::runtime {
namespace {

using Clock = std::chrono::steady_clock;

// Between two looks at a store that somebody else starts.
constexpr std::chrono::milliseconds kLookAgain{5};

// A store may end right after it was ready, by somebody's stop; one that always does is not started for ever.
constexpr int kStartsMax = 2;

/// Of PATH/kvonced-w1.sock: PATH/kvonced-w1
std::string stem_of(const std::string& socket) {
  constexpr std::string_view kEnding = ".sock";
  return socket.ends_with(kEnding) ? socket.substr(0, socket.size() - kEnding.size()) : socket;
}

Error start(const RuntimeConfig& config, const std::string& socket, const StartLock& lock, Clock::time_point deadline) {
  auto program = find_store_program(config.kvonced_path);
  if (program.error) return program.error;
  const std::uint64_t bytes = config.auto_bytes != 0 ? config.auto_bytes : default_store_bytes(available_memory());
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
  return start_store_process(process, deadline);
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

Result<std::string> find_or_start_store(const RuntimeConfig& config) {
  const Clock::time_point deadline = Clock::now() + config.connect_timeout;
  Result<std::string> result;
  std::string why_not;
  const std::string socket = auto_socket_path(&why_not);
  if (socket.empty()) {
    result.error = {Reason::store_lost, "there is no place for a store's socket: " + why_not};
    return result;
  }
  StartLock lock(socket);
  if (!lock.usable()) {
    result.error = {Reason::store_lost, StartLock::path(socket) + " cannot be opened: " + std::generic_category().message(errno)};
    return result;
  }
  for (int starts = 0;;) {
    // The order matters: who has the lock looks again, since another may have started one just before.
    const bool mine = lock.take();
    if (store_listens(socket)) {
      result.value = "unix:" + socket;
      return result;
    }
    const StoreHolder holder = store_holder(socket);
    if (mine && !holder.held && starts < kStartsMax) {
      ++starts;
      Error failed = start(config, socket, lock, deadline);
      // One that somebody started by hand in the same moment is as good.
      if (failed && !store_listens(socket)) {
        result.error = std::move(failed);
        return result;
      }
      continue;
    }
    if (Clock::now() >= deadline) {
      result.error = {Reason::deadline,
                      holder.held ? "the kvonced with pid " + std::to_string(holder.pid) + " has taken " + socket +
                                        " but does not listen within " + std::to_string(config.connect_timeout.count()) +
                                        " ms: it is starting, ending, or stuck (kvonce stop ends it)"
                                  : "another process starts a kvonced on " + socket + ", and it is not ready within " +
                                        std::to_string(config.connect_timeout.count()) + " ms; its log is " + stem_of(socket) + ".log"};
      return result;
    }
    std::this_thread::sleep_for(kLookAgain);
  }
}

}  // namespace kvonce::runtime
