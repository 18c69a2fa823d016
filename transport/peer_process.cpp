// SPDX-License-Identifier: Apache-2.0
#include "transport/peer_process.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif
#ifndef SO_PEERGROUPS
#define SO_PEERGROUPS 59
#endif

namespace kvonce::transport {
namespace {

// The first bytes of a small file of /proc; empty when it cannot be read.
std::string read_small(const std::string& path) {
  const UniqueFd file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  char text[2048];
  const ssize_t bytes = file ? ::read(file.get(), text, sizeof(text)) : -1;
  return bytes <= 0 ? std::string{} : std::string(text, static_cast<std::size_t>(bytes));
}

}  // namespace

bool read_peer(int socket, PeerProcess& peer) {
  struct ucred credentials {};
  socklen_t bytes = sizeof(credentials);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) != 0) return false;
  peer.pid = static_cast<std::uint32_t>(credentials.pid);
  peer.uid = credentials.uid;
  peer.gid = credentials.gid;
  peer.start_time = peer.pid == 0 ? 0 : start_time_of(peer.pid);
  return true;
}

std::vector<std::uint32_t> peer_groups(int socket) {
  std::vector<std::uint32_t> groups(64);
  for (;;) {
    auto bytes = static_cast<socklen_t>(groups.size() * sizeof(std::uint32_t));
    const int result = ::getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &bytes);
    const std::size_t count = bytes / sizeof(std::uint32_t);
    if (result == 0) {
      groups.resize(count);
      return groups;
    }
    if (errno != ERANGE || count <= groups.size()) return {};
    groups.resize(count);
  }
}

std::uint64_t start_time_of(std::uint32_t pid) {
  const std::string text = read_small(pid == 0 ? "/proc/self/stat" : "/proc/" + std::to_string(pid) + "/stat");
  // Field 2 is the program's name in brackets, and may itself have blanks and brackets.
  std::size_t at = text.rfind(')');
  for (int field = 2; at != std::string::npos && field < 22; ++field) at = text.find(' ', at + 1);
  return at == std::string::npos ? 0 : std::strtoull(text.c_str() + at + 1, nullptr, 10);
}

std::string check_credentials(const PeerProcess& peer, std::span<const std::uint32_t> groups, std::uint32_t own_uid,
                              std::optional<std::uint32_t> allowed_gid) {
  if (peer.uid == own_uid) return {};
  std::string text = "User " + std::to_string(peer.uid) + " may not connect: this server is for user " + std::to_string(own_uid);
  if (!allowed_gid) return text + " only.";
  if (peer.gid == *allowed_gid || std::find(groups.begin(), groups.end(), *allowed_gid) != groups.end()) return {};
  return text + " and members of group " + std::to_string(*allowed_gid) + ".";
}

std::optional<std::uint32_t> pid_of_pidfd(int pidfd) {
  const std::string text = read_small("/proc/self/fdinfo/" + std::to_string(pidfd));
  const std::size_t at = text.find("\nPid:\t");
  if (at == std::string::npos || text.find("\nNSpid:", at) == std::string::npos) return std::nullopt;
  const long pid = std::strtol(text.c_str() + at + 6, nullptr, 10);
  return pid <= 0 ? 0 : static_cast<std::uint32_t>(pid);
}

UniqueFd open_pidfd(std::uint32_t pid) {
  return UniqueFd{static_cast<int>(::syscall(SYS_pidfd_open, pid == 0 ? ::getpid() : static_cast<pid_t>(pid), 0U))};
}

UniqueFd peer_pidfd(int socket, const PeerProcess& peer, UniqueFd handed, std::string& wrong) {
  if (handed) {
    const std::optional<std::uint32_t> pid = pid_of_pidfd(handed.get());
    // A process that cannot be seen from here cannot be told from others in its place either: then only the kernel's word counts.
    if (peer.pid != 0) {
      if (pid == peer.pid) return handed;
      wrong = "The descriptor that came with the hello is " +
              (pid ? "of process " + std::to_string(*pid) : std::string("no process descriptor")) + "; that of process " +
              std::to_string(peer.pid) + ", which connected, is expected.";
      return {};
    }
  }
  int fd = -1;
  socklen_t bytes = sizeof(fd);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &bytes) == 0 && fd >= 0) {
    ::fcntl(fd, F_SETFD, FD_CLOEXEC);
    return UniqueFd{fd};
  }
  if (peer.pid == 0 || peer.start_time == 0) return {};
  UniqueFd opened = open_pidfd(peer.pid);
  // The number may have passed on to another process since it connected.
  if (opened && start_time_of(peer.pid) != peer.start_time) return {};
  return opened;
}

}  // namespace kvonce::transport
