// SPDX-License-Identifier: Apache-2.0
//
// The place of a server's socket in the file system: one server at a time, nothing of others replaced.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <cstdint>
#include <optional>
#include <string>

#include "transport/fd.hpp"

namespace kvonce::transport {

// Empty, or the sentence why the path can be no socket's: empty, with a zero byte, or too long for the system.
std::string make_address(const std::string& path, struct sockaddr_un& address, socklen_t& bytes);
// The folder that a path lies in.
std::string directory_of(const std::string& path);

// Empty, or why members of the group could not reach a socket there, as the end of a sentence: the kernel refuses them without a
// word, long before a server could say anything.
std::string closed_to_group(const std::string& path, std::uint32_t group);

// Who listens on a path right now, whatever lies beside it.
struct Listener {
  bool listens = false;
  std::uint32_t pid = 0;      // 0: not known, or not to be seen from here
  bool other_kind = false;    // some other program's, of another type of socket
};
Listener find_listener(const std::string& path);

// A listening socket, and the lock beside it. Destruction removes both files, if they are still ours.
class SocketPath {
 public:
  SocketPath() = default;
  SocketPath(SocketPath&&) = default;
  SocketPath& operator=(SocketPath&&) = delete;
  ~SocketPath() { remove(); }

  // Both: empty, or a sentence. `allowed_gid`: the group that may open the socket besides this user.
  //
  // Takes the lock: from here on this process has the path to itself, and is named as the one that has it.
  std::string take(const std::string& path, std::optional<std::uint32_t> allowed_gid);
  // After take(), with the same path and group: connections are let in.
  std::string listen();
  const std::string& path() const { return path_; }
  int socket() const { return socket_.get(); }
  void remove();

 private:
  std::string take_lock(const std::string& path);
  std::string bind_socket();

  UniqueFd lock_;
  UniqueFd socket_;
  std::string path_;
  std::optional<std::uint32_t> allowed_gid_;
  pid_t pid_ = 0;     // a forked child that destroys its copy must not remove the files of its parent
  dev_t device_ = 0;  // of the socket's own file
  ino_t inode_ = 0;
};

}  // namespace kvonce::transport
