// SPDX-License-Identifier: Apache-2.0
#include "transport/local_message.hpp"

#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>

namespace kvonce::transport {

LocalMessage receive_message(int socket, std::size_t max_bytes) {
  LocalMessage message;
  message.bytes.resize(max_bytes);
  struct iovec part {
    message.bytes.data(), message.bytes.size()
  };
  alignas(struct cmsghdr) char control[CMSG_SPACE(kMaxDescriptors * sizeof(int))];
  struct msghdr header {};
  ssize_t bytes = -1;
  // A socket whose other end was closed with unread bytes tells of that first, once; what it sent before comes after.
  for (int attempt = 0; attempt < 3 && bytes < 0; ++attempt) {
    header = {};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
    bytes = ::recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (bytes < 0 && errno != ECONNRESET && errno != EINTR) break;
  }
  if (bytes < 0) {
    message.received = errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? Received::nothing_yet : Received::closed;
    message.bytes.clear();
    return message;
  }
  for (struct cmsghdr* at = CMSG_FIRSTHDR(&header); at != nullptr; at = CMSG_NXTHDR(&header, at)) {
    if (at->cmsg_level != SOL_SOCKET || at->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (at->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(at) + i * sizeof(int), sizeof(fd));
      message.descriptors.emplace_back(fd);
    }
  }
  message.bytes.resize(static_cast<std::size_t>(bytes));
  message.bytes_cut = (header.msg_flags & MSG_TRUNC) != 0;
  message.descriptors_cut = (header.msg_flags & MSG_CTRUNC) != 0;
  // An empty message cannot be told from the end; nobody sends one.
  message.received = bytes == 0 && message.descriptors.empty() ? Received::closed : Received::message;
  return message;
}

bool send_message(int socket, std::string_view bytes, std::span<const int> descriptors) {
  if (descriptors.size() > kMaxDescriptors) {
    errno = EINVAL;
    return false;
  }
  struct iovec part {
    const_cast<char*>(bytes.data()), bytes.size()
  };
  alignas(struct cmsghdr) char control[CMSG_SPACE(kMaxDescriptors * sizeof(int))] = {};
  struct msghdr header {};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (!descriptors.empty()) {
    header.msg_control = control;
    header.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    struct cmsghdr* at = CMSG_FIRSTHDR(&header);
    at->cmsg_level = SOL_SOCKET;
    at->cmsg_type = SCM_RIGHTS;
    at->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(at), descriptors.data(), descriptors.size_bytes());
  }
  for (;;) {
    const ssize_t sent = ::sendmsg(socket, &header, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent == static_cast<ssize_t>(bytes.size())) return true;
    if (sent >= 0 || errno != EINTR) return false;
  }
}

}  // namespace kvonce::transport
