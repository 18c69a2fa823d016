// SPDX-License-Identifier: Apache-2.0
#include "bench/child.hpp"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <system_error>
#include <thread>

extern char** environ;

namespace kvonce::bench {
namespace {

using Clock = std::chrono::steady_clock;

// Whoever waits looks this often whether it was interrupted: the signal may come to another thread.
constexpr std::chrono::milliseconds kPollLook{50};
// Descriptors for a child are moved above all numbers that it may have them under.
constexpr int kOutOfTheWay = 32;
constexpr std::size_t kLineMax = 256U << 20;

constexpr std::array<int, 3> kCaught{SIGINT, SIGTERM, SIGHUP};
volatile std::sig_atomic_t g_interrupted = 0;
std::array<struct sigaction, kCaught.size()> g_before;

void on_signal(int number) { g_interrupted = number; }

// Whether the descriptor is readable (or its other end gone) in time.
bool wait_readable(int fd, SteadyPoint deadline) {
  while (true) {
    Interrupts::check();
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    pollfd wait{fd, POLLIN, 0};
    const int ready = poll(&wait, 1, static_cast<int>(std::clamp(left, std::chrono::milliseconds{0}, kPollLook).count()));
    if (ready > 0) return true;
    if (left.count() <= 0) return false;
  }
}

}  // namespace

Interrupts::Interrupts() {
  g_interrupted = 0;
  struct sigaction action {};
  action.sa_handler = on_signal;
  for (std::size_t i = 0; i < kCaught.size(); ++i) {
    sigaction(kCaught[i], nullptr, &g_before[i]);
    if (g_before[i].sa_handler != SIG_IGN) sigaction(kCaught[i], &action, nullptr);
  }
}

Interrupts::~Interrupts() {
  for (std::size_t i = 0; i < kCaught.size(); ++i) sigaction(kCaught[i], &g_before[i], nullptr);
}

void Interrupts::check() {
  if (g_interrupted == 0) return;
  throw Failed{std::string("interrupted (") + (g_interrupted == SIGINT ? "SIGINT" : g_interrupted == SIGTERM ? "SIGTERM" : "SIGHUP") + ")"};
}

void Descriptor::reset(int fd) {
  if (fd_ >= 0) ::close(fd_);
  fd_ = fd;
}

bool Channel::send(const Json& value) {
  const std::string line = value.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  std::size_t done = 0;
  while (done < line.size()) {
    const ssize_t put = ::send(socket_.get(), line.data() + done, line.size() - done, MSG_NOSIGNAL);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    done += static_cast<std::size_t>(put);
  }
  return true;
}

Channel::Got Channel::receive(Json& value, SteadyPoint deadline) {
  while (true) {
    if (const std::size_t end = seen_.find('\n'); end != std::string::npos) {
      value = Json::parse(seen_.begin(), seen_.begin() + static_cast<std::ptrdiff_t>(end), nullptr, false);
      seen_.erase(0, end + 1);
      return value.is_discarded() ? Got::gone : Got::value;
    }
    if (!wait_readable(socket_.get(), deadline)) return Got::late;
    std::array<char, 65'536> part;
    const ssize_t got = recv(socket_.get(), part.data(), part.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0 || seen_.size() > kLineMax) return Got::gone;
    seen_.append(part.data(), static_cast<std::size_t>(got));
  }
}

bool Channel::pending(std::chrono::milliseconds time) {
  if (seen_.find('\n') != std::string::npos) return true;
  return wait_readable(socket_.get(), Clock::now() + time);
}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  if (this != &other) {
    kill_now();
    pid_ = std::exchange(other.pid_, -1);
  }
  return *this;
}

ChildProcess ChildProcess::start(const std::string& program, const std::vector<std::string>& arguments,
                                 const std::vector<std::pair<int, int>>& inherited) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  std::vector<Descriptor> copies;
  for (const auto& [ours, theirs] : inherited) {
    copies.emplace_back(fcntl(ours, F_DUPFD_CLOEXEC, kOutOfTheWay));
    posix_spawn_file_actions_adddup2(&actions, copies.back().get(), theirs);
  }
  sigset_t none;
  sigset_t all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  std::vector<std::string> words{program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> list;
  for (std::string& word : words) list.push_back(word.data());
  list.push_back(nullptr);
  ChildProcess child;
  const int code = posix_spawn(&child.pid_, program.c_str(), &actions, &attributes, list.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (code != 0) {
    child.pid_ = -1;
    throw Failed{program + " could not be started: " + std::generic_category().message(code)};
  }
  return child;
}

void ChildProcess::signal(int number) const {
  if (pid_ > 0) kill(pid_, number);
}

bool ChildProcess::wait_until(SteadyPoint deadline, int& status) {
  status = 0;
  while (pid_ > 0) {
    const pid_t got = waitpid(pid_, &status, WNOHANG);
    if (got == pid_ || (got < 0 && errno == ECHILD)) {
      pid_ = -1;
      break;
    }
    if (Clock::now() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds{1});
  }
  return true;
}

void ChildProcess::kill_now() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
}

std::string end_text(int wait_status) {
  if (WIFSIGNALED(wait_status)) return "was killed by signal " + std::to_string(WTERMSIG(wait_status));
  return "ended with status " + std::to_string(WEXITSTATUS(wait_status));
}

double cpu_seconds_of(pid_t pid) {
  clockid_t clock{};
  timespec now{};
  if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &now) != 0) return 0;
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

}  // namespace kvonce::bench
