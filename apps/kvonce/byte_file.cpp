// SPDX-License-Identifier: Apache-2.0
#include "apps/kvonce/byte_file.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "protocol/units.hpp"
#include "storage/slot_shape.hpp"

namespace kvonce::apps {
namespace {

constexpr std::size_t kStep = 1 << 20;

class File {
 public:
  File(const std::string& path, int flags) : own_(path != "-") {
    fd_ = own_ ? open(path.c_str(), flags | O_CLOEXEC, 0666) : (flags & O_ACCMODE) == O_RDONLY ? STDIN_FILENO : STDOUT_FILENO;
  }
  ~File() { static_cast<void>(close()); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd() const { return fd_; }
  bool close() {
    const int fd = fd_;
    fd_ = -1;
    return !own_ || fd < 0 || ::close(fd) == 0;
  }

 private:
  bool own_;
  int fd_;
};

std::string shown(const std::string& path, bool reading) {
  return path != "-" ? path : reading ? "standard input" : "standard output";
}
std::string system_error(const std::string& path, bool reading) {
  return shown(path, reading) + ": " + std::generic_category().message(errno);
}

/// As many bytes as there are, up to `most`; -1 with errno.
ssize_t read_up_to(int fd, std::byte* to, std::size_t most) {
  std::size_t done = 0;
  while (done < most) {
    const ssize_t got = read(fd, to + done, most - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return -1;
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  return static_cast<ssize_t>(done);
}

std::string size_error(const std::string& path, std::uint64_t bytes, bool more) {
  return shown(path, true) + " has " + (more ? "more than " : "") + protocol::format_bytes(bytes) + "; an object has 1 B to " +
         protocol::format_bytes(storage::kMaxObjectBytes);
}

}  // namespace

std::string ByteFile::open(const std::string& path) {
  path_ = path;
  const File file(path, O_RDONLY);
  struct stat found {};
  if (file.fd() < 0 || fstat(file.fd(), &found) != 0) return system_error(path, true);
  if (S_ISDIR(found.st_mode)) return path + " is a directory";
  if (S_ISREG(found.st_mode) && path != "-") {
    bytes_ = static_cast<std::uint64_t>(found.st_size);
  } else {
    kept_ = true;
    while (content_.size() <= storage::kMaxObjectBytes) {
      const std::size_t before = content_.size();
      content_.resize(before + kStep);
      const ssize_t got = read_up_to(file.fd(), content_.data() + before, kStep);
      if (got < 0) return system_error(path, true);
      content_.resize(before + static_cast<std::size_t>(got));
      if (static_cast<std::size_t>(got) < kStep) break;
    }
    bytes_ = content_.size();
    if (bytes_ > storage::kMaxObjectBytes) return size_error(path, storage::kMaxObjectBytes, true);
  }
  return bytes_ >= 1 && bytes_ <= storage::kMaxObjectBytes ? std::string() : size_error(path, bytes_, false);
}

std::string ByteFile::read(std::byte* to) const {
  if (kept_) {
    std::memcpy(to, content_.data(), content_.size());
    return {};
  }
  const File file(path_, O_RDONLY);
  if (file.fd() < 0) return system_error(path_, true);
  const ssize_t got = read_up_to(file.fd(), to, bytes_);
  if (got < 0) return system_error(path_, true);
  std::byte more{};
  if (static_cast<std::uint64_t>(got) == bytes_ && read_up_to(file.fd(), &more, 1) == 0) return {};
  return path_ + " had " + protocol::format_bytes(bytes_) + " and has another size now";
}

std::string write_file(const std::string& path, std::span<const std::byte> bytes) {
  struct stat found {};
  const bool is_new = path != "-" && lstat(path.c_str(), &found) != 0;
  File file(path, O_WRONLY | O_CREAT | O_TRUNC | (is_new ? O_EXCL : 0));
  if (file.fd() < 0) return system_error(path, false);
  // Half a page looks like one: a file that was not there before is not there after a failure.
  const auto failed = [&] {
    std::string error = system_error(path, false);
    if (is_new) unlink(path.c_str());
    return error;
  };
  while (!bytes.empty()) {
    const ssize_t put = write(file.fd(), bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return failed();
    bytes = bytes.subspan(static_cast<std::size_t>(put));
  }
  return file.close() ? std::string() : failed();
}

}  // namespace kvonce::apps
