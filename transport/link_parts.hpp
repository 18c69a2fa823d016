// SPDX-License-Identifier: Apache-2.0
//
// What one end of a link is made of, for those who make it.
#pragma once

#include <cstdint>

#include "transport/fd.hpp"
#include "transport/handshake.hpp"
#include "transport/link.hpp"
#include "transport/ring.hpp"

namespace kvonce::transport {

// Bells: the server's is an eventfd that the client writes to. The client's is a pipe, as its ends are two open files: the
// client cannot make the server's writes block. (Flags of an eventfd belong to both processes.)
struct LinkParts {
  bool is_server = false;
  UniqueFd socket;
  UniqueFd own_bell;
  UniqueFd peer_bell;
  UniqueFd kept;     // at the server: the pipe's reading end, so that ringing a client that closed its own raises no SIGPIPE
  UniqueFd process;  // at the client: a pidfd of the server, -1 where there is none
  RingMemory memory;
  std::uint64_t backlog_limit = kDefaultBacklogBytes;
  Hello hello;
  Welcome welcome;
  PeerProcess peer;
};

}  // namespace kvonce::transport
