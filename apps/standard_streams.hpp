// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>

namespace kvonce::apps {

/// First thing in main(): a standard stream that was closed is another file from here on, so that no socket or file gets its number
/// and what is meant for a terminal. For the output it is /dev/full: a result that nobody gets is an error, as with a full disk.
inline void fill_standard_streams() noexcept {
  for (int fd = 0; fd <= 2; ++fd)
    if (fcntl(fd, F_GETFD) < 0 && (fd != 1 || open("/dev/full", O_WRONLY) < 0))
      static_cast<void>(open("/dev/null", fd == 0 ? O_RDONLY : O_WRONLY));
}

}  // namespace kvonce::apps
