// SPDX-License-Identifier: Apache-2.0
#include "transport/socket_path.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace kvonce::transport {
namespace {

std::string system_text(int number) { return std::strerror(number); }  // NOLINT(concurrency-mt-unsafe): glibc's is

std::string check_directory(const std::string& path) {
  const std::string directory = directory_of(path);
  struct stat status {};
  if (::stat(directory.c_str(), &status) != 0) {
    return "The directory " + directory + " of the socket cannot be used: " + system_text(errno) + ".";
  }
  if (!S_ISDIR(status.st_mode)) return directory + " is no directory, so no socket can lie in it.";
  if (status.st_uid != ::geteuid() && status.st_uid != 0) {
    return "The directory " + directory + " of the socket belongs to user " + std::to_string(status.st_uid) +
           "; it must belong to user " + std::to_string(::geteuid()) + " or to root.";
  }
  if ((status.st_mode & S_IWOTH) != 0 && (status.st_mode & S_ISVTX) == 0) {
    return "The directory " + directory + " of the socket is writable by everybody; take that away or set its sticky bit.";
  }
  return {};
}

// Who holds the lock, by what it wrote into it.
std::string describe_holder(int lock) {
  char text[32] = {};
  const long pid = ::pread(lock, text, sizeof(text) - 1, 0) > 0 ? std::strtol(text, nullptr, 10) : 0;
  if (pid <= 0) return " that is just starting";
  std::string process = " (process " + std::to_string(pid);
  if (::kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH) {
    process += ", which cannot be seen from here: it runs in another container, or has ended and a child forked by it holds on";
  }
  return process + ")";
}

}  // namespace

std::string make_address(const std::string& path, struct sockaddr_un& address, socklen_t& bytes) {
  address = {};
  address.sun_family = AF_UNIX;
  if (path.empty()) return "The path of the socket is empty.";
  if (path.find('\0') != std::string::npos) return "The path of the socket has a zero byte in it.";
  if (path.size() >= sizeof(address.sun_path)) {
    return "The path of the socket " + path + " is " + std::to_string(path.size()) + " bytes long; the system allows " +
           std::to_string(sizeof(address.sun_path) - 1) + ".";
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  bytes = static_cast<socklen_t>(offsetof(struct sockaddr_un, sun_path) + path.size() + 1);
  return {};
}

std::string directory_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string closed_to_group(const std::string& path, std::uint32_t group) {
  std::string absolute = path;
  if (!absolute.starts_with('/')) {
    char here[4096];
    if (::getcwd(here, sizeof(here)) == nullptr) return {};
    absolute = std::string(here) + "/" + path;
  }
  for (std::size_t slash = 0; slash != std::string::npos; slash = absolute.find('/', slash + 1)) {
    const std::string folder = slash == 0 ? "/" : absolute.substr(0, slash);
    struct stat status {};
    if (::stat(folder.c_str(), &status) != 0) return {};
    if ((status.st_mode & (status.st_gid == group ? S_IXGRP : S_IXOTH)) != 0) continue;
    // An access list may let them in where the mode does not.
    if (::getxattr(folder.c_str(), "system.posix_acl_access", nullptr, 0) > 0) continue;
    return "members of it may not enter the folder " + folder + ", in which the socket " + path +
           " lies; name a socket in a folder that they can enter, such as one of mode 0750 that belongs to the group";
  }
  return {};
}

Listener find_listener(const std::string& path) {
  Listener found;
  struct sockaddr_un address {};
  socklen_t bytes = 0;
  if (!make_address(path, address, bytes).empty()) return found;
  const UniqueFd socket{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  if (!socket) return found;
  if (::connect(socket.get(), reinterpret_cast<const struct sockaddr*>(&address), bytes) == 0) {
    found.listens = true;
    struct ucred who {};  // of the process that called listen()
    socklen_t size = sizeof(who);
    if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &who, &size) == 0 && who.pid > 0) {
      found.pid = static_cast<std::uint32_t>(who.pid);
    }
    return found;
  }
  // EAGAIN: so many wait to be accepted that there is no room for one more, but it listens.
  found.listens = errno == EAGAIN || errno == EPROTOTYPE;
  found.other_kind = errno == EPROTOTYPE;
  return found;
}

std::string SocketPath::take(const std::string& path, std::optional<std::uint32_t> allowed_gid) {
  struct sockaddr_un address {};
  socklen_t bytes = 0;
  if (std::string wrong = make_address(path, address, bytes); !wrong.empty()) return wrong;
  if (std::string wrong = check_directory(path); !wrong.empty()) return wrong;
  // Also looked at when it is bound; here it is told before anything else of a start is done.
  struct stat status {};
  if (::lstat(path.c_str(), &status) == 0 && !S_ISSOCK(status.st_mode)) return path + " exists and is no socket; it is left as it is.";
  if (std::string wrong = take_lock(path); !wrong.empty()) return wrong;
  allowed_gid_ = allowed_gid;
  // A lock file that somebody has removed by hand keeps nobody out.
  const Listener other = find_listener(path);
  if (!other.listens) return {};
  remove();
  if (other.other_kind) return "Another program listens on " + path + ", which is no server of this kind; it is left as it is.";
  return "Another server" + (other.pid == 0 ? std::string() : " (process " + std::to_string(other.pid) + ")") + " already serves " + path +
         ", though its lock file " + path + ".lock was removed.";
}

std::string SocketPath::listen() {
  std::string wrong = bind_socket();
  if (!wrong.empty()) remove();
  return wrong;
}

std::string SocketPath::take_lock(const std::string& path) {
  const std::string name = path + ".lock";
  for (;;) {
    UniqueFd lock{::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600)};
    if (!lock) return "The lock file " + name + " cannot be opened: " + system_text(errno) + ".";
    if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == EINTR) continue;
      if (errno != EWOULDBLOCK) return "The lock file " + name + " cannot be locked: " + system_text(errno) + ".";
      return "Another server" + describe_holder(lock.get()) + " already serves " + path + ".";
    }
    // A server that stops removes its lock file: what was locked here may have been that one, while a third has made a new one.
    struct stat locked {};
    struct stat named {};
    if (::fstat(lock.get(), &locked) != 0 || ::lstat(name.c_str(), &named) != 0 || locked.st_ino != named.st_ino ||
        locked.st_dev != named.st_dev) {
      continue;
    }
    if (!S_ISREG(locked.st_mode)) return "The lock file " + name + " is no regular file.";
    const std::string pid = std::to_string(::getpid()) + "\n";
    if (::ftruncate(lock.get(), 0) != 0 || ::pwrite(lock.get(), pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
      const int why = errno;
      ::unlink(name.c_str());
      return "The lock file " + name + " cannot be written: " + system_text(why) + ".";
    }
    lock_ = std::move(lock);
    path_ = path;
    pid_ = ::getpid();
    return {};
  }
}

std::string SocketPath::bind_socket() {
  const std::string& path = path_;
  const std::optional<std::uint32_t> allowed_gid = allowed_gid_;
  struct stat status {};
  if (::lstat(path.c_str(), &status) == 0) {
    if (!S_ISSOCK(status.st_mode)) return path + " exists and is no socket; it is left as it is.";
    // We hold the lock, so whoever made it is gone; unless the lock file was removed while we started.
    if (find_listener(path).listens) return "Another server has begun to serve " + path + " since the lock file " + path + ".lock was removed.";
    if (::unlink(path.c_str()) != 0) return "The old socket " + path + " cannot be removed: " + system_text(errno) + ".";
  }
  UniqueFd socket{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  if (!socket) return "No socket can be made: " + system_text(errno) + ".";
  const mode_t mode = allowed_gid ? 0660 : 0600;
  ::fchmod(socket.get(), mode);  // the file is born with it (less the umask), so there is no moment at which it is open to all
  struct sockaddr_un address {};
  socklen_t bytes = 0;
  if (std::string wrong = make_address(path, address, bytes); !wrong.empty()) return wrong;
  if (::bind(socket.get(), reinterpret_cast<const struct sockaddr*>(&address), bytes) != 0 ||
      ::lstat(path.c_str(), &status) != 0) {
    return "The socket " + path + " cannot be made: " + system_text(errno) + ".";
  }
  device_ = status.st_dev;
  inode_ = status.st_ino;
  if (allowed_gid && ::lchown(path.c_str(), static_cast<uid_t>(-1), *allowed_gid) != 0) {
    return "The socket " + path + " cannot be given to group " + std::to_string(*allowed_gid) + ": " + system_text(errno) + ".";
  }
  if (::chmod(path.c_str(), mode) != 0 || ::listen(socket.get(), SOMAXCONN) != 0) {
    return "The socket " + path + " cannot be opened: " + system_text(errno) + ".";
  }
  socket_ = std::move(socket);
  return {};
}

void SocketPath::remove() {
  if (!lock_ || ::getpid() != pid_) return;
  struct stat status {};
  if (inode_ != 0 && ::lstat(path_.c_str(), &status) == 0 && status.st_ino == inode_ && status.st_dev == device_) {
    ::unlink(path_.c_str());
  }
  socket_.reset();
  // Before the lock is given up: whoever locks the removed file sees that it is not the named one.
  const std::string name = path_ + ".lock";
  struct stat locked {};
  if (::fstat(lock_.get(), &locked) == 0 && ::lstat(name.c_str(), &status) == 0 && status.st_ino == locked.st_ino &&
      status.st_dev == locked.st_dev) {
    ::unlink(name.c_str());
  }
  lock_.reset();
}

}  // namespace kvonce::transport
