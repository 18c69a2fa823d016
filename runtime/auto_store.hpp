// SPDX-License-Identifier: Apache-2.0
//
// store = "auto": this user's kvonced on this host, started when none answers. Processes that start at the same moment agree on
// one: a file lock decides who starts it, the others wait for it.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include <kvonce/runtime.hpp>

namespace kvonce::runtime {

/// "unix:PATH" of a kvonced that listens, by the deadline. Uses auto_bytes, auto_idle, kvonced_path, and what
/// store_settings.hpp hands on.
/// The store may still end before the caller is connected (idle, or told to): then call again. Errors: Reason::deadline, the time
/// is over; Reason::busy, something that passes was in the way; any other stays until somebody mends it.
Result<std::string> find_or_start_store(const RuntimeConfig& config, std::chrono::steady_clock::time_point deadline);

/// Where this user's kvonced of this wire version listens: in $XDG_RUNTIME_DIR/kvonce, /run/user/UID/kvonce, or a folder of the
/// user in the system's folder for temporary files; the first whose parent is there. Makes the folder (0700), unless `make` is false.
/// Empty when it cannot be trusted (a link, another's, open to others): `why_not` then tells.
std::string auto_socket_path(std::string* why_not, bool make = true);

/// Why that is not in $XDG_RUNTIME_DIR although it is set; empty: it is, or is not set.
std::string passed_over_folder();

/// Who holds the lock PATH.lock beside the socket PATH of a store: it has the socket to itself for as long as it lives.
struct StoreHolder {
  bool held = false;
  std::uint32_t pid = 0;  ///< as the holder wrote it; 0 when it has not yet, and of its own pid namespace
  /// Set where this user may not open the lock: who has it, or that even this cannot be seen. A clause of a sentence.
  std::string hidden;
};
StoreHolder store_holder(const std::string& socket_path);

/// Who starts a store on a socket has this until it listens: the process that spawns it and, by an inherited descriptor, the store
/// itself, so that a store that is starting is known as such even when its starter has died. Given back by the kernel.
class StartLock {
 public:
  explicit StartLock(const std::string& socket_path);
  ~StartLock();
  StartLock(const StartLock&) = delete;
  StartLock& operator=(const StartLock&) = delete;
  bool usable() const { return file_ >= 0; }
  /// False: another has it.
  bool take();
  int file() const { return file_; }
  static std::string path(const std::string& socket_path);

 private:
  int file_;
  bool taken_ = false;
};

/// Whether somebody listens on it right now.
bool store_listens(const std::string& socket_path);

}  // namespace kvonce::runtime
