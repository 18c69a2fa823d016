// SPDX-License-Identifier: Apache-2.0
#include "apps/kvonced/signals.hpp"

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "telemetry/log.hpp"

namespace kvonce::apps {
namespace {

using Clock = std::chrono::steady_clock;

sigset_t watched() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&set, number);
  return set;
}

void ring(int bell) {
  const std::uint64_t one = 1;
  while (write(bell, &one, sizeof one) < 0 && errno == EINTR) {}
}

void silence(int bell) {
  std::uint64_t count = 0;
  while (read(bell, &count, sizeof count) < 0 && errno == EINTR) {}
}

}  // namespace

void Signals::block() {
  const sigset_t set = watched();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not be as large is told as an error
}

Signals::Signals(std::chrono::milliseconds end_time, std::chrono::milliseconds one_wish, std::function<void()> on_end, int parent)
    : one_wish_(one_wish), on_end_(std::move(on_end)), end_time_ms_(end_time.count()) {
  const sigset_t set = watched();
  signals_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  to_main_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  to_watch_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (signals_ < 0 || to_main_ < 0 || to_watch_ < 0) problem_ = "there is no descriptor to be told of signals by: " + std::generic_category().message(errno);
  if (parent != 0) {
    parent_ = static_cast<int>(syscall(SYS_pidfd_open, parent, 0U));
    parent_gone_.store(parent_ < 0 && errno == ESRCH);
    // A kernel that cannot tell of any is no reason not to start.
    if (parent_ < 0 && errno != ESRCH && errno != ENOSYS)
      problem_ = "--parent " + std::to_string(parent) + " cannot be watched: " + std::generic_category().message(errno) + "; it has to be a process";
  }
  if (ready()) thread_ = std::thread([this] { watch(); });
}

Signals::~Signals() {
  quit_.store(true);
  ring(to_watch_);
  if (thread_.joinable()) thread_.join();
  for (const int fd : {signals_, to_main_, to_watch_, parent_}) {
    if (fd >= 0) close(fd);
  }
}

void Signals::told_to_end(int number) {
  ending_.store(true);
  end_signal_.store(number);
  if (on_end_) on_end_();
}

void Signals::watch() {
  std::optional<Clock::time_point> last;
  std::optional<Clock::time_point> told;
  int parent = parent_;
  const auto parent_ended = [&] {
    parent = -1;
    parent_gone_.store(true);
    if (end_signal_.load() == 0) told_to_end(SIGTERM);
    ring(to_main_);
  };
  if (parent_gone_.load()) parent_ended();
  for (;;) {
    int left_ms = -1;
    if (ending_.load() && !last) last = Clock::now() + std::chrono::milliseconds(end_time_ms_.load());
    if (last) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(*last - Clock::now()).count();
      if (left <= 0) {
        telemetry::say(telemetry::Level::error, "the end took longer than it may: ended by force");
        _exit(kExitForced);
      }
      left_ms = static_cast<int>(left);
    }
    pollfd waits[3] = {{signals_, POLLIN, 0}, {to_watch_, POLLIN, 0}, {parent, POLLIN, 0}};
    const int ready = poll(waits, 3, left_ms);
    if (ready < 0 && errno != EINTR) return;
    silence(to_watch_);
    if (quit_.load()) return;
    if (ready > 0 && waits[2].revents != 0) parent_ended();
    signalfd_siginfo info{};
    while (read(signals_, &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
      const int number = static_cast<int>(info.ssi_signo);
      if (number == SIGHUP) {
        reload_.store(true);
      } else if (!told) {
        told = Clock::now();
        told_to_end(number);
      } else if (Clock::now() - *told >= one_wish_) {
        _exit(128 + number);
      }
      ring(to_main_);
    }
  }
}

Signals::Request Signals::wait(std::chrono::milliseconds timeout) {
  const auto wanted = [this] {
    if (end_signal_.load() != 0) return Request::end;
    return reload_.exchange(false) ? Request::reload : Request::none;
  };
  if (const Request request = wanted(); request != Request::none) return request;
  pollfd wait{to_main_, POLLIN, 0};
  poll(&wait, 1, timeout.count() < 0 ? -1 : static_cast<int>(timeout.count()));
  silence(to_main_);
  return wanted();
}

void Signals::begin_end() {
  ending_.store(true);
  ring(to_watch_);
}

}  // namespace kvonce::apps
