// SPDX-License-Identifier: Apache-2.0
//
// Listens on a Unix socket for clients of this host: checks who they are, has deadlines and limits for the handshake, hands the
// arena over, and then carries the frames of all clients on one thread.
#pragma once

#include <kvonce/types.hpp>

#include <array>
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

class SocketPath;

// The answer to a hello. Without `welcome`, `refuse` is sent (not_ready when it has no reason).
struct Greeting {
  std::optional<Welcome> welcome;
  int arena_fd = -1;  // borrowed for the time of the call; the client gets a duplicate. -1: none
  Refuse refuse;
};

struct LinkServerConfig {
  // Of the socket, at most 107 bytes. Made 0600 (0660 with a group); a stale one of a dead server is replaced. Its directory must
  // exist, belong to this user or root, and must not be writable by everybody unless it is sticky. PATH.lock lies beside it.
  std::string path;
  // PATH when it has been taken already (SocketPath::take), with the same group; empty: start() takes it.
  std::shared_ptr<SocketPath> place;
  std::optional<std::uint32_t> allowed_gid;            // besides this process's own user; also as a supplementary group
  std::uint32_t max_clients = 1024;                    // established
  std::uint32_t max_pending = 64;                      // in handshake; beyond: the oldest is dropped
  std::chrono::milliseconds handshake_time{1000};      // from accept to a whole hello
  std::uint64_t ring_bytes = kDefaultRingBytes;        // of each direction; rounded up to a power of two of at least 4 KiB
  std::uint64_t backlog_limit = kDefaultBacklogBytes;  // of one client that does not read
  std::uint32_t frames_per_turn = 64;                  // of one client before the others get theirs
  std::chrono::microseconds spin{0};                   // looks at the rings for so long before it sleeps,
  std::size_t spin_clients = 1;                        // while no more than so many clients are awake
  // Failed handshakes of one process: so many at once and again per second; beyond that its connections are refused unread.
  std::uint32_t failures_burst = 256;
  double failures_per_s = 256;
  std::string release;  // version text that refusals carry
};

// All on the server's thread, one at a time. None may block, throw, or stop the server. Empty ones are skipped (without `greet`
// everybody is refused as not_ready).
struct LinkServerCallbacks {
  // Of a well-formed hello from somebody who may connect. `welcome->ring_bytes` and `has_arena` are filled in afterwards.
  std::function<Greeting(const Hello&, const PeerProcess&)> greet;
  // The welcome is on its way; frames may be sent from here on.
  std::function<void(const std::shared_ptr<Link>&)> opened;
  std::function<bool(Link&, std::string_view)> frame;  // false: the link ends as broken
  // Asked before the frames of each client. True: no frames are taken from anybody until wake() is called, which whoever says so sees to.
  std::function<bool()> full;
  // After each round of frames over all clients, and after opened, closed or gone.
  std::function<void()> turn_over;
  // The connection has ended and is retired: send() answers false. Nothing is fenced by that: the process may live and write on.
  std::function<void(const std::shared_ptr<Link>&, LinkEnd)> closed;
  // After `closed`: the kernel says that the process has ended. Never, when its process cannot be seen (another pid namespace on
  // a kernel that does not tell), and not after stop().
  std::function<void(const std::shared_ptr<Link>&)> gone;
};

struct LinkServerStats {
  std::uint64_t accepted = 0;  // connections, whatever became of them
  std::uint64_t welcomed = 0;
  std::array<std::uint64_t, kRefuseReasonCount> refused{};  // by RefuseReason
  std::uint64_t expired = 0;                                // handshakes that did not end in time
  std::uint64_t dropped = 0;                                // handshakes that gave way to newer ones (max_pending)
  std::uint64_t hung_up = 0;                                // by the other side, before a hello
  std::uint64_t shed = 0;                                   // closed at once: this process was out of descriptors
  std::uint32_t pending = 0;                                // now
  std::uint32_t open = 0;                                   // now
  std::uint32_t awaiting_exit = 0;                          // now: closed, process not gone
};

class LinkServer {
 public:
  struct Started;
  // Listens when it returns. Else `server` is empty and `error` a sentence; another server on this path is named by its pid.
  static Started start(LinkServerConfig config, LinkServerCallbacks callbacks);
  ~LinkServer();  // stop()
  LinkServer(const LinkServer&) = delete;
  LinkServer& operator=(const LinkServer&) = delete;

  // Any thread. From now on handshakes are refused as draining; established links go on.
  void stop_accepting();
  // Ends all links (`closed` is called for each), joins the thread, removes socket and lock file. Not from a callback.
  void stop();
  // Runs the callback turn_over soon, on the server's thread. Any thread; cheap when one is on its way already.
  void wake();

  LinkServerStats stats() const;
  const std::string& path() const;

 private:
  class Impl;
  explicit LinkServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

struct LinkServer::Started {
  std::unique_ptr<LinkServer> server;
  Error error;
};

}  // namespace kvonce::transport
