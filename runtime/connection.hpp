// SPDX-License-Identifier: Apache-2.0
//
// A Runtime's connection to the store of another process on its host: made once by start(), and again by a thread of its own
// whenever it is lost, as long as the Runtime lives.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "runtime/core.hpp"
#include "transport/link_client.hpp"

namespace kvonce::runtime {

class StoreConnection {
 public:
  /// `core` outlives it; its host must be there before start().
  explicit StoreConnection(Core& core);
  ~StoreConnection();
  StoreConnection(const StoreConnection&) = delete;
  StoreConnection& operator=(const StoreConnection&) = delete;

  /// Connects for the first time. A permanent error is told at once.
  Error start(SteadyPoint deadline);
  /// Of the store's life that this process is, or was last, connected to.
  StoreStart store_start() const;
  /// By the ShardKeyActor: everything is registered with the store.
  void on_ready();
  /// Likewise: no rank begins a copy into the slots of the store that was lost any more.
  void on_ranks_told();
  void on_ending();
  /// No new attempts; a connection that is there stays.
  void stop_trying();
  /// Ends the link; what was sent before has gone out.
  void close();

 private:
  struct Attempt {
    Error error;
    bool transient = false;
  };
  Attempt connect(SteadyPoint deadline);
  Attempt welcome(transport::Connected&& connected);
  /// Once for each list: with "auto", what the user gave and the store that was found does not have.
  void tell_of_settings(std::string not_met);
  void on_ended(transport::LinkEnd end);
  void run();
  bool sleep_for(std::chrono::milliseconds time);

  Core& core_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<transport::Link> link_;
  std::unique_ptr<transport::LinkReader> reader_;
  std::shared_ptr<const actors::ArenaView> arena_;
  std::uint64_t last_incarnation_ = 0;
  StoreStart store_start_;
  std::string told_not_met_;  // of start, then of the keeper's thread
  bool lost_ = false;
  bool ranks_told_ = true;  // of the last loss
  bool ending_ = false;   // the store has said that it ends
  bool stopping_ = false;
  std::thread keeper_;
};

}  // namespace kvonce::runtime
