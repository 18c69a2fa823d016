// SPDX-License-Identifier: Apache-2.0
//
// Who is at the other end of a Unix socket: what the kernel says about it, whether it may come in, and a handle that tells
// when it has ended.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "transport/fd.hpp"
#include "transport/link.hpp"

namespace kvonce::transport {

// False when the kernel does not tell.
bool read_peer(int socket, PeerProcess& peer);
// Its supplementary groups; empty when the kernel does not tell.
std::vector<std::uint32_t> peer_groups(int socket);
// Clock ticks since boot at which a process started; 0 when it cannot be read. pid 0: this process.
std::uint64_t start_time_of(std::uint32_t pid);

// Empty, or the sentence why somebody of these credentials may not connect to a server of `own_uid`.
std::string check_credentials(const PeerProcess& peer, std::span<const std::uint32_t> groups, std::uint32_t own_uid,
                              std::optional<std::uint32_t> allowed_gid);

// The process id that a pidfd means, 0 when it cannot be seen from here or has ended; nothing when it is no pidfd.
std::optional<std::uint32_t> pid_of_pidfd(int pidfd);
// -1 where the kernel has none. pid 0: this process.
UniqueFd open_pidfd(std::uint32_t pid);

// A pidfd of the peer: the one that it handed over (-1: none) when that is its own, else one from the kernel. `wrong` is a
// sentence when it handed over another process's. The handle is -1 when there is none to be had.
UniqueFd peer_pidfd(int socket, const PeerProcess& peer, UniqueFd handed, std::string& wrong);

}  // namespace kvonce::transport
