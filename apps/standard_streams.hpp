// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>

#include <fcntl.h>

namespace kvonce::apps {

/// First thing in main(): a standard stream that was closed is another file from here on, so that no socket or file gets its number
/// and what is meant for a terminal. For the output it is /dev/full: a result that nobody gets is an error, as with a full disk.
inline void fill_standard_streams() noexcept {
  for (int fd = 0; fd <= 2; ++fd)
    if (fcntl(fd, F_GETFD) < 0 && (fd != 1 || open("/dev/full", O_WRONLY) < 0))
      static_cast<void>(open("/dev/null", fd == 0 ? O_RDONLY : O_WRONLY));
}

/// All of it on standard output; else why not, as "standard output: No space left on device".
inline std::string write_out(std::string_view text) {
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) return {};
  return std::string("standard output: ") + (errno != 0 ? std::strerror(errno) : "not all of it could be written");
}

}  // namespace kvonce::apps
