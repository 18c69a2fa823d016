// SPDX-License-Identifier: Apache-2.0
//
// The store of another process that a benchmark talks to: one that is there, or a kvonced of its own.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <kvonce/runtime.hpp>

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
    std::string arena_file;           ///< empty: none
    std::uint64_t payload_bytes = 0;  ///< that a benchmark keeps at once
    /// Flags of kvonced: all memory taken at the start, all of it may be leased by one engine.
    std::vector<std::string> settings() const;
  };
  /// `settings`: flags of kvonced, such as "--memory", "1GiB". The socket and the log lie in `folder`; what the environment and its
  /// file say is meant for the user's own store and not read. Returns when it is ready; throws Failed, with the end of its log,
  /// when it does not get so.
  OwnStore(const std::string& folder, const std::vector<std::string>& settings);
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

/// Empty when a store listens at "unix:PATH", or whoever connects will be told why not; else what is there, and what helps.
/// `start`: how one is started there.
std::string absent_store(const std::string& address, const std::string& start);

/// Most payload that the store at "unix:PATH" keeps.
Result<std::uint64_t> store_capacity(const std::string& address);

/// By --via: "spawn" or "unix:PATH".
class StoreUse {
 public:
  /// Throws Failed when the store that is there cannot keep what the spec asks for.
  StoreUse(const std::string& via, const OwnStore::Spec& spec);
  /// A kvonced of its own, in a folder that is gone with it.
  explicit StoreUse(const std::vector<std::string>& settings);
  std::string address() const { return own_ ? own_->address() : via_; }
  /// Of the process that serves; 0: not known.
  pid_t pid() const { return own_ ? own_->pid() : pid_; }
  void end() {
    if (own_) own_->end();
  }

 private:
  void start(const std::vector<std::string>& settings);
  std::string via_;
  pid_t pid_ = 0;
  std::unique_ptr<TemporaryFolder> folder_;  // before the store: gone after it
  std::unique_ptr<OwnStore> own_;
};

}  // namespace kvonce::bench
