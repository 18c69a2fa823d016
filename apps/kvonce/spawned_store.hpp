// SPDX-License-Identifier: Apache-2.0
//
// A kvonced of one's own, for one run: of `--via spawn`, in replays and benchmarks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace kvonce::apps {

/// A kvonced with a socket in a folder that mkdtemp made. Both are gone with this object: the store ended in order, or killed
/// when it does not. Should this process die before, the store ends by itself when its last client is gone.
class SpawnedStore {
 public:
  struct Started {
    std::unique_ptr<SpawnedStore> store;
    std::string error;  ///< set exactly when there is no store
  };
  /// `settings`: flags of kvonced, such as "--memory", "1GiB". The socket, the idle time and the log are decided here. It is
  /// ready when this returns.
  static Started start(const std::vector<std::string>& settings);

  ~SpawnedStore();
  SpawnedStore(const SpawnedStore&) = delete;
  SpawnedStore& operator=(const SpawnedStore&) = delete;

  /// "unix:PATH", for RuntimeConfig::store.
  std::string address() const { return "unix:" + socket_; }
  std::uint32_t pid() const noexcept { return pid_; }
  /// That it has used until now; 0 when it has ended.
  double cpu_seconds() const;

 private:
  SpawnedStore() = default;
  std::string folder_;
  std::string socket_;
  std::uint32_t pid_ = 0;
  int process_ = -1;  // names it for as long as this object lives, whatever becomes of its number
};

}  // namespace kvonce::apps
