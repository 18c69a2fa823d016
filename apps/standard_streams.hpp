// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>

namespace kvonce::apps {

/// First thing in main(): a standard stream that was closed is /dev/null from here on, so that no socket or file gets its number
/// and what is meant for a terminal.
inline void fill_standard_streams() noexcept {
  for (int fd = 0; fd <= 2; ++fd)
    if (fcntl(fd, F_GETFD) < 0) static_cast<void>(open("/dev/null", fd == 0 ? O_RDONLY : O_WRONLY));
}

}  // namespace kvonce::apps
