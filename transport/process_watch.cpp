// SPDX-License-Identifier: Apache-2.0
#include "transport/process_watch.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

namespace kvonce::transport {

namespace {

enum class Seen { same, other, none, unknown };

/// Whether this pid still names the process that started then.
Seen look_at(const WatchedProcess& process) {
  const std::string path = "/proc/" + std::to_string(process.pid) + "/stat";
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return errno == ENOENT ? Seen::none : Seen::unknown;
  char text[1024];
  const ssize_t count = read(fd, text, sizeof text - 1);
  const int error = errno;
  close(fd);
  if (count <= 0) return count < 0 && error == ESRCH ? Seen::none : Seen::unknown;
  text[count] = '\0';
  // The name stands in parentheses and may hold any character; behind it come the fields from the third on.
  const char* at = std::strrchr(text, ')');
  if (at == nullptr) return Seen::unknown;
  ++at;
  for (int field = 3; field <= 22; ++field) {
    while (*at == ' ') ++at;
    if (field == 3 && (*at == 'Z' || *at == 'X')) return Seen::none;  // it has ended; its parent has not asked yet
    if (field == 22) return std::strtoull(at, nullptr, 10) == process.start_time ? Seen::same : Seen::other;
    while (*at != ' ' && *at != '\0') ++at;
  }
  return Seen::unknown;
}

}  // namespace

struct ProcessWatch::Impl {
  std::vector<WatchedProcess> gone_already;
  std::vector<WatchedProcess> waited;
  std::vector<pollfd> polled;  // the stop event first
  std::function<void(const WatchedProcess&)> gone;
  std::thread thread;

  void run() {
    for (const WatchedProcess& process : gone_already) gone(process);
    while (polled.size() > 1) {
      if (poll(polled.data(), polled.size(), -1) < 0) {
        if (errno == EINTR) continue;
        return;
      }
      if (polled.front().revents != 0) return;
      for (std::size_t i = polled.size(); i-- > 1;) {
        if (polled[i].revents == 0) continue;
        close(polled[i].fd);
        const WatchedProcess process = waited[i - 1];
        polled.erase(polled.begin() + static_cast<std::ptrdiff_t>(i));
        waited.erase(waited.begin() + static_cast<std::ptrdiff_t>(i - 1));
        gone(process);
      }
    }
  }
};

ProcessWatch::ProcessWatch(const std::vector<WatchedProcess>& processes, std::function<void(const WatchedProcess&)> gone)
    : impl_(std::make_unique<Impl>()) {
  impl_->gone = std::move(gone);
  const int stop = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  impl_->polled.push_back({stop, POLLIN, 0});
  for (const WatchedProcess& process : processes) {
    if (process.pid == 0 || process.start_time == 0) continue;
    // First the descriptor, then the look: what it says holds for the process of the descriptor.
    const int fd = static_cast<int>(syscall(SYS_pidfd_open, process.pid, 0));
    const bool ended = fd < 0 && errno == ESRCH;
    const Seen seen = ended ? Seen::none : look_at(process);
    if (seen == Seen::none || seen == Seen::other) {
      impl_->gone_already.push_back(process);
    } else if (seen == Seen::same && fd >= 0) {
      impl_->waited.push_back(process);
      impl_->polled.push_back({fd, POLLIN, 0});
      continue;
    }
    if (fd >= 0) close(fd);
  }
  if (stop >= 0 && (!impl_->gone_already.empty() || !impl_->waited.empty())) impl_->thread = std::thread([this] { impl_->run(); });
}

ProcessWatch::~ProcessWatch() {
  const std::uint64_t one = 1;
  const int stop = impl_->polled.front().fd;
  if (impl_->thread.joinable()) {
    static_cast<void>(!write(stop, &one, sizeof one));
    impl_->thread.join();
  }
  for (const pollfd& entry : impl_->polled)
    if (entry.fd >= 0) close(entry.fd);
}

}  // namespace kvonce::transport
