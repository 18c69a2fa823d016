// SPDX-License-Identifier: Apache-2.0
//
// The server's door: takes connections, checks who they are, waits for their hello with a deadline, and refuses what may not
// come in. Everything before a client is welcomed happens here, bounded in number, time and memory.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "transport/fd.hpp"
#include "transport/link_server.hpp"
#include "transport/poll_set.hpp"

namespace kvonce::transport {

// What the events of the server's thread belong to.
struct PollKind {
  static constexpr std::uint32_t wake = 0, listener = 1, pending = 2, socket = 3, bell = 4, process = 5;
};

// The counters that any thread may ask for.
class LinkCounters {
 public:
  template <class F>
  void change(F f) {
    const std::lock_guard lock(mutex_);
    f(stats_);
  }
  LinkServerStats get() const {
    const std::lock_guard lock(mutex_);
    return stats_;
  }

 private:
  mutable std::mutex mutex_;
  LinkServerStats stats_;
};

// Somebody whose hello is in order.
struct Visitor {
  UniqueFd socket;
  Hello hello;
  PeerProcess peer;
  UniqueFd pidfd;  // -1: its process cannot be watched
};

class LinkDoor {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  using Enter = std::function<void(Visitor&&)>;
  using IsConnected = std::function<bool(std::uint64_t client)>;

  LinkDoor(const LinkServerConfig& config, PollSet& polls, LinkCounters& counters, IsConnected is_connected, Enter enter);

  // False when the listener cannot be waited for.
  bool open(int listener);
  void begin_draining() { draining_ = true; }
  void on_listener(TimePoint now);
  void on_pending(std::uint64_t id, TimePoint now);
  // Handshakes whose time is over; accepting again after a pause.
  void on_time(TimePoint now);
  std::optional<TimePoint> next_time() const;
  void close();

  // Says so and closes the connection.
  void refuse(UniqueFd socket, Refuse refuse);
  // A client was welcomed: its (client, nonce) is used up.
  void remember(const Hello& hello);

 private:
  struct Pending {
    UniqueFd socket;
    PeerProcess peer;
    TimePoint deadline;
  };
  struct Allowance {
    double left = 0;
    TimePoint at;
  };

  bool accept_one(TimePoint now);
  void shed(TimePoint now);
  // True when the connection is done with, whatever became of it.
  bool try_hello(UniqueFd& socket, const PeerProcess& peer, TimePoint now);
  Refuse judge(const Hello& hello) const;
  void drop(std::map<std::uint64_t, Pending>::iterator at);
  Allowance& allowance(std::uint32_t pid, TimePoint now);
  void count_failure(const PeerProcess& peer, TimePoint now);
  void count_pending();

  const LinkServerConfig& config_;
  PollSet& polls_;
  LinkCounters& counters_;
  IsConnected is_connected_;
  Enter enter_;
  int listener_ = -1;
  bool draining_ = false;
  UniqueFd spare_;                         // given up to take, and close, a connection when descriptors have run out
  std::optional<TimePoint> paused_until_;  // not accepting: not even the spare descriptor was there
  std::uint64_t next_id_ = 1;
  std::map<std::uint64_t, Pending> pending_;     // in the order of accepting, and so of deadlines
  std::map<std::uint32_t, Allowance> failures_;  // by pid
  std::deque<std::pair<std::uint64_t, std::uint64_t>> used_in_order_;
  std::set<std::pair<std::uint64_t, std::uint64_t>> used_;
};

}  // namespace kvonce::transport
