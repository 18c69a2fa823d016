// SPDX-License-Identifier: Apache-2.0
//
// The store of another process that a benchmark talks to: one that is there, or a kvonced of its own.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bench/child.hpp"

namespace kvonce::bench {

/// A folder made by mkdtemp, gone with its contents at the end.
class TemporaryFolder {
 public:
  explicit TemporaryFolder(const std::string& parent);  ///< throws Failed
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// A kvonced that was started from here. At the end of the object at the latest it is gone.
class OwnStore {
 public:
  struct Spec {
    std::uint64_t memory_bytes = 0;
    std::uint64_t index_pages = 0;
    std::string arena_file;  ///< empty: none
  };
  /// Its socket and log lie in `folder`. Returns when it is ready; throws Failed, with the end of its log, when it does not get so.
  OwnStore(const std::string& folder, const Spec& spec);
  ~OwnStore();
  OwnStore(const OwnStore&) = delete;
  OwnStore& operator=(const OwnStore&) = delete;
  std::string address() const { return "unix:" + socket_; }
  pid_t pid() const { return process_.pid(); }
  double seconds_to_ready() const { return seconds_to_ready_; }
  /// Its own line about that.
  std::string ready_line() const;
  /// In order, by SIGTERM; throws Failed when it does not end, or not with status 0.
  void end();

 private:
  std::string log_text() const;
  std::string socket_;
  std::string log_;
  ChildProcess process_;
  double seconds_to_ready_ = 0;
};

/// By --via: "spawn" or "unix:PATH".
class StoreUse {
 public:
  StoreUse(const std::string& via, const OwnStore::Spec& spec);
  std::string address() const { return own_ ? own_->address() : via_; }
  /// Of the process that serves; 0: not known.
  pid_t pid() const { return own_ ? own_->pid() : pid_; }
  void end() {
    if (own_) own_->end();
  }

 private:
  std::string via_;
  pid_t pid_ = 0;
  std::unique_ptr<TemporaryFolder> folder_;  // before the store: gone after it
  std::unique_ptr<OwnStore> own_;
};

}  // namespace kvonce::bench
