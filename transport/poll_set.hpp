// SPDX-License-Identifier: Apache-2.0
//
// An epoll instance whose events carry a kind and a number instead of a pointer, so that a late event finds nothing.
#pragma once

#include <sys/epoll.h>

#include <array>
#include <cstdint>
#include <span>

#include "transport/fd.hpp"

namespace kvonce::transport {

class PollSet {
 public:
  struct Tag {
    std::uint32_t kind = 0;  // below 16
    std::uint64_t id = 0;    // below 2^60
  };

  bool open() {
    fd_ = UniqueFd{::epoll_create1(EPOLL_CLOEXEC)};
    return static_cast<bool>(fd_);
  }
  bool add(int fd, std::uint32_t events, Tag tag) { return control(EPOLL_CTL_ADD, fd, events, tag); }
  // Always before a descriptor is closed that another process has as well: closing alone does not take it out.
  void remove(int fd) { control(EPOLL_CTL_DEL, fd, 0, {}); }
  // -1: for ever. Interrupted: no events.
  std::span<const struct epoll_event> wait(int timeout_ms) {
    const int count = ::epoll_wait(fd_.get(), events_.data(), static_cast<int>(events_.size()), timeout_ms);
    return {events_.data(), static_cast<std::size_t>(count < 0 ? 0 : count)};
  }
  static Tag tag_of(const struct epoll_event& event) {
    return {static_cast<std::uint32_t>(event.data.u64 & 15U), event.data.u64 >> 4U};
  }

 private:
  bool control(int operation, int fd, std::uint32_t events, Tag tag) {
    struct epoll_event event {};
    event.events = events;
    event.data.u64 = tag.id << 4U | tag.kind;
    return ::epoll_ctl(fd_.get(), operation, fd, &event) == 0;
  }

  UniqueFd fd_;
  std::array<struct epoll_event, 128> events_{};
};

}  // namespace kvonce::transport
