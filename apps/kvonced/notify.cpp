// SPDX-License-Identifier: Apache-2.0
#include "apps/kvonced/notify.hpp"

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

namespace kvonce::apps {

bool notify_manager(std::string_view lines) {
  const char* const name = std::getenv("NOTIFY_SOCKET");
  if (name == nullptr || name[0] == '\0') return true;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::size_t size = std::strlen(name);
  if ((name[0] != '/' && name[0] != '@') || size >= sizeof address.sun_path) return false;
  std::memcpy(address.sun_path, name, size);
  if (name[0] == '@') address.sun_path[0] = '\0';  // of the abstract names
  const int out = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (out < 0) return false;
  // An abstract name is as long as it is said to be; a path ends with its zero.
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + size + (name[0] == '@' ? 0 : 1));
  const bool told = sendto(out, lines.data(), lines.size(), MSG_NOSIGNAL, reinterpret_cast<const sockaddr*>(&address), length) ==
                    static_cast<ssize_t>(lines.size());
  close(out);
  return told;
}

void notify_reloading() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  notify_manager("RELOADING=1\nMONOTONIC_USEC=" + std::to_string(now.tv_sec * 1'000'000 + now.tv_nsec / 1'000));
}

}  // namespace kvonce::apps
