// SPDX-License-Identifier: Apache-2.0
//
// The actor system of one Runtime, behind a wall: nothing of CAF is seen from here on.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "actors/pool_actor.hpp"
#include "actors/shard_key_actor.hpp"
#include "actors/store_actor.hpp"
#include "messages/local.hpp"

namespace kvonce::runtime {

class ActorHost {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  /// Handle of one PoolActor.
  struct PoolBox;
  using PoolPtr = std::shared_ptr<PoolBox>;

  struct Setup {
    std::uint32_t scheduler_threads = 1;
    bool caller_runs = true;
    std::vector<std::shared_ptr<actors::StoreSetup>> stores;  // by partition
    std::shared_ptr<const actors::ShardKeySetup> keys;
  };
  /// Throws what CAF throws when the system's threads cannot be had.
  explicit ActorHost(Setup setup);
  /// All actors must have ended: see end().
  ~ActorHost();
  ActorHost(const ActorHost&) = delete;
  ActorHost& operator=(const ActorHost&) = delete;

  PoolPtr add_pool_actor(std::shared_ptr<const actors::PoolSetup> setup);

  // With caller_runs these run the actors that the message wakes, on the calling thread, for a bounded time.
  void tell(PoolBox& pool, messages::PutCommand&& command);
  void tell(PoolBox& pool, messages::LoadCommand&& command);
  void tell(PoolBox& pool, messages::CancelCommand&& command);
  void tell(PoolBox& pool, messages::UnregisterPool&& command);
  void tell(PoolBox& pool, messages::CloseRank&& command);
  void tell_keys(messages::OpenNamespace&& command);
  void tell_keys(messages::RegisterGroup&& command);
  void tell_keys(messages::RegisterPool&& command);
  void tell_keys(messages::LookupCommand&& command);
  void tell_keys(messages::LeaseCommand&& command);
  void tell_keys(messages::AdminCommand&& command);
  void tell_store(std::uint32_t partition, messages::StatsAsk&& command);
  void tell_store(std::uint32_t partition, messages::WantEvents&& command);
  /// One partition ends, as if it had died.
  void end_store(std::uint32_t partition);

  /// The ShardKeyActor and the stores end, after everything that they were sent before. True when all actors have ended in
  /// time; false: some are still at work (a callback that does not come back), and the host must not be destroyed.
  bool end(TimePoint deadline);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvonce::runtime
