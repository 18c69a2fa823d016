// SPDX-License-Identifier: Apache-2.0
//
// An established control link between two processes: a Unix socket as the sign of life, a byte ring in shared memory for each
// direction, and a bell for each end that is rung only when that end sleeps. Frames arrive whole and in order, or the link ends.
// Neither end trusts the other: what the other end writes into shared memory can end this link and nothing else.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "transport/handshake.hpp"

namespace kvonce::transport {

inline constexpr std::size_t kMaxFrameBytes = 1U << 20U;
inline constexpr std::uint64_t kDefaultRingBytes = 1U << 20U;
inline constexpr std::uint64_t kDefaultBacklogBytes = 64U << 20U;

enum class LinkEnd : std::uint8_t {
  open,         // has not ended
  closed_here,  // close() at this end
  peer_closed,  // the other end closed it, or its process ended
  broken,       // a bad frame, a bad ring, or bytes on the socket
  stalled,      // the other end did not read, and the backlog passed its limit
};
const char* to_string(LinkEnd end);

// The process at the other end, as the kernel tells it. 0: not to be seen (pid: another pid namespace; start_time: no /proc).
struct PeerProcess {
  std::uint32_t pid = 0;
  std::uint32_t uid = 0;
  std::uint32_t gid = 0;
  std::uint64_t start_time = 0;  // clock ticks since boot
};

struct LinkParts;  // link_parts.hpp: what an end is made of
class LinkState;

// Both ends use this class. It is made by LinkServer and connect_link.
class Link {
 public:
  explicit Link(LinkParts&& parts);
  ~Link();  // close()
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // Any thread, never blocks. What the ring has no room for waits in a backlog; when that exceeds its limit the link ends as
  // `stalled`. False: the link has ended, or the frame is not 1 to kMaxFrameBytes long (the caller splits larger ones).
  bool send(std::string_view frame);
  // Reads up to max_frames whole frames, each copied out of shared memory before `take` sees it (the view lasts as long as the
  // call of `take`). One reader at a time: -1 when another thread is reading right now, or this one from within `take`.
  // `take` false: the link ends as `broken`. Returns how many were taken; fewer than max_frames does not mean that the ring is
  // empty. What the other end sent before it closed can be read after the link has ended as `peer_closed`.
  int receive(const std::function<bool(std::string_view)>& take, int max_frames);
  // Idempotent, any thread, wakes both ends. Frames not yet received are lost.
  void close();

  LinkEnd end() const;
  const Hello& hello() const;
  const Welcome& welcome() const;
  // At the server the client; at the client the process that made the server's socket.
  const PeerProcess& peer() const;
  std::size_t backlog_bytes() const;

  std::shared_ptr<void> user;  // of whoever opened it (set it in `opened`); the link does not look at it

  // -- for the threads that wait on a link (LinkServer, LinkReader) -------------------------------------------------------------

  int socket_fd() const;
  int process_fd() const;  // at the client: readable when the server's process has ended; -1: none
  int bell_fd() const;     // becomes readable when the other end rings; see drain_bell()
  // Empties the client's bell. The server's bell is never read: its descriptor is shared with the client, which can make reads
  // of it block; the server waits for it edge-triggered instead.
  void drain_bell();
  // Says that this end goes to sleep: the next frame rings the bell. False: there is something to read, so do not sleep.
  bool prepare_sleep();
  void cancel_sleep();
  // Moves backlog into the ring as far as there is room; what is left goes on when the bell rings. False: something is left.
  bool flush();
  // Ends the link for this reason unless it has ended before.
  void finish(LinkEnd end);
  // Gives up descriptors and mapping, once it has ended (take them out of any epoll set before); waits for calls that other
  // threads are in. Not from within `take`.
  void retire();

 private:
  std::unique_ptr<LinkState> state_;
};

}  // namespace kvonce::transport
