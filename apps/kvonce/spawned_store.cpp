// SPDX-License-Identifier: Apache-2.0
#include "apps/kvonce/spawned_store.hpp"

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <system_error>

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "apps/kvonce/stop_store.hpp"
#include "runtime/auto_store.hpp"
#include "runtime/spawn_store.hpp"

namespace kvonce::apps {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// Taking a large memory at the start may last.
constexpr std::chrono::seconds kStartTime{120};
constexpr std::chrono::seconds kEndTime{30};
constexpr int kKilledMs = 10'000;
constexpr const char* kIdleExit = "10s";

}  // namespace

SpawnedStore::Started SpawnedStore::start(const std::vector<std::string>& settings) {
  Started result;
  const auto program = runtime::find_store_program({});
  if (program.error) {
    result.error = program.error.text;
    return result;
  }
  std::error_code code;
  const fs::path place = fs::temp_directory_path(code);
  std::string folder = code ? std::string("/tmp") : place.string();
  folder += "/kvonce-spawn-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) {
    result.error = "no folder for the store's socket can be made as " + folder + ": " + std::generic_category().message(errno);
    return result;
  }
  std::unique_ptr<SpawnedStore> made(new SpawnedStore);
  made->folder_ = folder;
  made->socket_ = folder + "/store.sock";
  runtime::StoreProcess process;
  process.program = program.value;
  // What the environment and its file say is meant for the user's own store: at least no arena file of that may be taken.
  process.arguments = {"--socket", made->socket_, "--idle-exit", kIdleExit, "--config", "/dev/null", "--arena-file", ""};
  process.arguments.insert(process.arguments.end(), settings.begin(), settings.end());
  process.log_path = folder + "/store.log";
  const Error failed = runtime::start_store_process(process, Clock::now() + kStartTime);
  made->pid_ = runtime::store_holder(made->socket_).pid;
  if (made->pid_ != 0) made->process_ = static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(made->pid_), 0U));
  if (failed) {
    result.error = failed.text;
    return result;
  }
  result.store = std::move(made);
  return result;
}

SpawnedStore::~SpawnedStore() {
  const StoppedStore stopped = stop_store(socket_, kEndTime);
  if (!stopped.error.empty() && process_ >= 0) {
    static_cast<void>(syscall(SYS_pidfd_send_signal, process_, SIGKILL, nullptr, 0U));
    pollfd gone{process_, POLLIN, 0};
    static_cast<void>(poll(&gone, 1, kKilledMs));
  }
  if (process_ >= 0) close(process_);
  std::error_code code;
  fs::remove_all(folder_, code);
}

double SpawnedStore::cpu_seconds() const {
  clockid_t clock{};
  timespec used{};
  if (pid_ == 0 || clock_getcpuclockid(static_cast<pid_t>(pid_), &clock) != 0 || clock_gettime(clock, &used) != 0) return 0;
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

}  // namespace kvonce::apps
