// SPDX-License-Identifier: Apache-2.0
//
// The client's end: connecting with a deadline, and the thread that waits for frames.
#pragma once

#include <kvonce/types.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "transport/handshake.hpp"
#include "transport/link.hpp"

namespace kvonce::transport {

struct Connected {
  std::shared_ptr<Link> link;    // empty: `error` says why
  int arena_fd = -1;             // the caller's to close; -1: the server handed out none
  Error error;                   // bad_argument: path or hello; deadline; closed: refused; store_lost: nobody answers
  std::optional<Refuse> refuse;  // the server's own words, when it refused
};

// Blocks until the handshake is over or `deadline` has passed. `hello.nonce` must be a new random number for each attempt;
// pid and start_time of 0 are filled in.
Connected connect_link(const std::string& path, const Hello& hello, std::chrono::steady_clock::time_point deadline,
                       std::uint64_t backlog_limit = kDefaultBacklogBytes);

// Of this process: /proc/self/stat, field 22; 0 when it cannot be read.
std::uint64_t own_start_time();

// A thread that waits on the bell and the socket. `frame` false: the link ends as broken. `turn_over` after each round of frames.
// `ended` once, last, after all that the server sent before it closed has been handed to `frame`; the link is retired by then.
// None may throw or block. Throws std::system_error when the system has no thread or no descriptor for it.
class LinkReader {
 public:
  using Frame = std::function<bool(std::string_view)>;
  using TurnOver = std::function<void()>;
  using Ended = std::function<void(LinkEnd)>;
  LinkReader(std::shared_ptr<Link> link, Frame frame, TurnOver turn_over, Ended ended,
             std::chrono::microseconds spin = std::chrono::microseconds{0});
  ~LinkReader();  // stop()
  LinkReader(const LinkReader&) = delete;
  LinkReader& operator=(const LinkReader&) = delete;

  // Closes the link and joins the thread (`ended` is called if it was not). Idempotent. From one of its callbacks: only closes.
  // Do not destroy it from a callback.
  void stop();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvonce::transport
