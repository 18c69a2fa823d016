// SPDX-License-Identifier: Apache-2.0
#include "runtime/spawn_store.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <thread>

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "transport/handshake.hpp"

extern char** environ;

namespace kvonce::runtime {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int kReadyFd = 3;
constexpr int kLockFd = 4;
constexpr std::size_t kShownLog = 1'024;
constexpr std::size_t kReadyMax = 256;

std::string errno_text(int code) { return std::generic_category().message(code); }

class Descriptor {
 public:
  Descriptor() = default;
  /// Moves it out of the way of the numbers that the child's own will have.
  explicit Descriptor(int fd) : fd_(fd) {
    if (fd_ < 0 || fd_ > kLockFd) return;
    fd_ = fcntl(fd, F_DUPFD_CLOEXEC, kLockFd + 1);
    ::close(fd);
  }
  ~Descriptor() { close(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

 private:
  int fd_ = -1;
};

bool is_program(const std::string& path) {
  struct stat found {};
  return stat(path.c_str(), &found) == 0 && S_ISREG(found.st_mode) && access(path.c_str(), X_OK) == 0;
}

std::string folder_of(const std::string& file) {
  std::error_code code;
  const fs::path whole = fs::canonical(file, code);
  return code ? std::string() : whole.parent_path().string();
}

/// The library that holds this code, or the program where it is linked in.
std::string own_object() {
  Dl_info info{};
  const auto* const here = reinterpret_cast<const void*>(&find_store_program);
  if (dladdr(here, &info) == 0 || info.dli_fname == nullptr || std::strchr(info.dli_fname, '/') == nullptr) return {};
  return info.dli_fname;
}

/// The environment without what a service manager meant for this process alone.
std::vector<char*> child_environment() {
  static constexpr std::array<std::string_view, 6> kOurs{"NOTIFY_SOCKET=", "WATCHDOG_USEC=", "WATCHDOG_PID=",
                                                         "LISTEN_FDS=",    "LISTEN_PID=",    "LISTEN_FDNAMES="};
  std::vector<char*> kept;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    if (std::none_of(kOurs.begin(), kOurs.end(), [&](std::string_view name) { return text.starts_with(name); }))
      kept.push_back(*entry);
  }
  kept.push_back(nullptr);
  return kept;
}

struct Actions {
  Actions() { posix_spawn_file_actions_init(&value); }
  ~Actions() { posix_spawn_file_actions_destroy(&value); }
  Actions(const Actions&) = delete;
  Actions& operator=(const Actions&) = delete;
  posix_spawn_file_actions_t value{};
};

struct Attributes {
  Attributes() { posix_spawnattr_init(&value); }
  ~Attributes() { posix_spawnattr_destroy(&value); }
  Attributes(const Attributes&) = delete;
  Attributes& operator=(const Attributes&) = delete;
  posix_spawnattr_t value{};
};

/// The system's error number; 0: `child` runs.
int spawn(const StoreProcess& process, int input, int log, int ready, int lock, pid_t& child) {
  Actions actions;
  int code = posix_spawn_file_actions_adddup2(&actions.value, input, STDIN_FILENO);
  if (code == 0) code = posix_spawn_file_actions_adddup2(&actions.value, log, STDOUT_FILENO);
  if (code == 0) code = posix_spawn_file_actions_adddup2(&actions.value, log, STDERR_FILENO);
  if (code == 0) code = posix_spawn_file_actions_adddup2(&actions.value, ready, kReadyFd);
  if (code == 0 && lock >= 0) code = posix_spawn_file_actions_adddup2(&actions.value, lock, kLockFd);
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 34)
  if (code == 0) code = posix_spawn_file_actions_addclosefrom_np(&actions.value, kLockFd + 1);
#endif
  Attributes attributes;
  sigset_t none;
  sigset_t all;
  sigemptyset(&none);
  sigfillset(&all);
  if (code == 0) code = posix_spawnattr_setsigmask(&attributes.value, &none);
  if (code == 0) code = posix_spawnattr_setsigdefault(&attributes.value, &all);
  if (code == 0) {
    code = posix_spawnattr_setflags(&attributes.value,
                                    static_cast<short>(POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF));
  }
  if (code != 0) return code;
  std::vector<std::string> words{process.program};
  words.insert(words.end(), process.arguments.begin(), process.arguments.end());
  words.insert(words.end(), {"--detach", "--ready-fd", std::to_string(kReadyFd)});
  if (lock >= 0) words.insert(words.end(), {"--start-lock-fd", std::to_string(kLockFd)});
  std::vector<char*> list;
  for (std::string& word : words) list.push_back(word.data());
  list.push_back(nullptr);
  std::vector<char*> environment = child_environment();
  return posix_spawn(&child, process.program.c_str(), &actions.value, &attributes.value, list.data(), environment.data());
}

/// What the child said on its pipe up to the end of a line; shorter when it closed it or time ran out.
std::string read_ready(int from, Clock::time_point deadline, bool& in_time) {
  std::string text;
  in_time = true;
  while (text.find('\n') == std::string::npos && text.size() < kReadyMax) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd wait{from, POLLIN, 0};
    const int ready = left <= 0 ? 0 : poll(&wait, 1, static_cast<int>(std::min<std::int64_t>(left, 60'000)));
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0 && left > 60'000) continue;
    if (ready <= 0) {
      in_time = false;
      break;
    }
    char part[64];
    const ssize_t got = read(from, part, sizeof part);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    text.append(part, static_cast<std::size_t>(got));
  }
  return text;
}

/// It has detached the store and ends at once; true when it has. Somebody else in this process may wait for all children.
/// `status`: as waitpid's; stays where nobody knows.
bool reap(pid_t child, Clock::time_point deadline, int* status = nullptr) {
  for (;;) {
    const pid_t got = waitpid(child, status, WNOHANG);
    if (got == child || (got < 0 && errno == ECHILD)) return true;
    if (Clock::now() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds{1});
  }
}

std::string last_lines(const std::string& path) {
  Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  struct stat found {};
  if (file.get() < 0 || fstat(file.get(), &found) != 0 || found.st_size == 0) return "its log " + path + " is empty";
  const std::size_t size = std::min(static_cast<std::size_t>(found.st_size), kShownLog);
  std::string text(size, '\0');
  const ssize_t got = pread(file.get(), text.data(), size, found.st_size - static_cast<off_t>(size));
  text.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
  if (static_cast<std::size_t>(found.st_size) > kShownLog) {
    const std::size_t line = text.find('\n');
    if (line != std::string::npos && line + 1 < text.size()) text.erase(0, line + 1);
  }
  while (!text.empty() && text.back() == '\n') text.pop_back();
  std::replace_if(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < ' ' && c != '\n'; }, '?');
  return "its log " + path + " ends with: " + text;
}

/// The signal that has ended the store; 0: none has.
int signal_of(const std::string& said, int status) {
  if (said.starts_with(kKilled)) return std::atoi(said.c_str() + kKilled.size());
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

/// `killed`: it was ended by a signal before it was ready.
Error start_once(const StoreProcess& process, Clock::time_point deadline, bool* killed) {
  const auto failed = [&](const std::string& what, int code) {
    const bool passes = code == EAGAIN || code == ENOMEM;  // a lack of descriptors lasts as long as this process keeps its own
    return Error{passes ? Reason::busy : Reason::store_lost, process.program + " could not be started: " + what + ": " + errno_text(code)};
  };
  Descriptor input(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (input.get() < 0) return failed("/dev/null", errno);
  Descriptor log(open(process.log_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (log.get() < 0) return failed(process.log_path, errno);
  const bool locked = process.start_lock >= 0;
  Descriptor lock(locked ? fcntl(process.start_lock, F_DUPFD_CLOEXEC, kLockFd + 1) : -1);  // the same open file: the same lock
  if (locked && lock.get() < 0) return failed("the lock of the start", errno);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return failed("pipe", errno);
  Descriptor listen(ends[0]);
  Descriptor tell(ends[1]);
  if (listen.get() < 0 || tell.get() < 0) return failed("pipe", EMFILE);
  pid_t child = -1;
  if (const int code = spawn(process, input.get(), log.get(), tell.get(), lock.get(), child); code != 0) return failed("posix_spawn", code);
  tell.close();
  lock.close();
  bool in_time = false;
  const std::string said = read_ready(listen.get(), deadline, in_time);
  const std::string expected = "ready " + std::to_string(transport::kWireVersion) + "\n";
  if (said == expected) {
    // A program that does not detach, as a script around kvonced: it stays this process's child.
    static_cast<void>(reap(child, deadline));
    return {};
  }
  if (!in_time) {
    // What was spawned is gone already unless it is no kvonced; the store itself goes on, and a later call finds it.
    if (!reap(child, deadline)) {
      kill(child, SIGKILL);
      waitpid(child, nullptr, 0);
    }
    return {Reason::deadline, process.program + " was started, but is not ready yet; " + last_lines(process.log_path)};
  }
  int status = 0;
  if (!reap(child, deadline, &status)) {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
  if (said == kToldToEnd) return {Reason::busy, process.program + " was told to end before it was ready"};
  if (said.starts_with("ready "))
    return {Reason::store_lost, process.program + " speaks wire version " + said.substr(6, said.size() - 7) + ", this library " +
                                    std::to_string(transport::kWireVersion) + ": set KVONCE_KVONCED to the kvonced of this release"};
  const int signal = signal_of(said, status);
  *killed = signal != 0;
  std::string how = " ended";
  if (*killed) how = " was ended by signal " + std::to_string(signal) + " (" + strsignal(signal) + ")";
  else if (WEXITSTATUS(status) != 0) how = " ended with status " + std::to_string(WEXITSTATUS(status));
  return {Reason::store_lost, process.program + how + " before it was ready; " + last_lines(process.log_path)};
}

}  // namespace

Result<std::string> find_store_program(const std::string& wanted) {
  Result<std::string> result;
  if (!wanted.empty()) {
    if (is_program(wanted)) result.value = wanted;
    else result.error = {Reason::bad_argument, "kvonced_path is '" + wanted + "': no program is there"};
    return result;
  }
  if (const char* const named = std::getenv("KVONCE_KVONCED"); named != nullptr && named[0] != '\0') {
    if (is_program(named)) result.value = named;
    else result.error = {Reason::bad_argument, "KVONCE_KVONCED is '" + std::string(named) + "': no program is there"};
    return result;
  }
  std::vector<std::string> places;
  const auto add = [&](const std::string& folder) {
    if (folder.empty()) return;
    const std::string place = folder + "/kvonced";
    if (std::find(places.begin(), places.end(), place) == places.end()) places.push_back(place);
  };
  for (const std::string& folder : {folder_of(own_object()), folder_of("/proc/self/exe")}) {
    if (folder.empty()) continue;
    add(folder);
    add(fs::path(folder).parent_path().string() + "/bin");
  }
  if (const char* const path = std::getenv("PATH"); path != nullptr) {
    std::string_view rest(path);
    while (!rest.empty()) {
      const std::size_t end = std::min(rest.find(':'), rest.size());
      // An empty entry and a relative one mean the working directory: not where to take a program from unasked.
      if (rest.starts_with('/')) add(std::string(rest.substr(0, end)));
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
  }
  std::string looked;
  for (const std::string& place : places) {
    if (is_program(place)) {
      result.value = place;
      return result;
    }
    looked += (looked.empty() ? "" : ", ") + place;
  }
  result.error = {Reason::store_lost, "no store answers, and the program kvonced was not found to start one (KVONCE_KVONCED is not set; looked at " +
                                          looked + "): install it, set KVONCE_KVONCED=PATH, or start it yourself: kvonced"};
  return result;
}

Error start_store_process(const StoreProcess& process, Clock::time_point deadline) {
  bool killed = false;
  Error error = start_once(process, deadline, &killed);
  // By somebody's hand, or for memory that was short just then: the next one may live.
  if (killed && Clock::now() < deadline) error = start_once(process, deadline, &killed);
  return error;
}

}  // namespace kvonce::runtime
