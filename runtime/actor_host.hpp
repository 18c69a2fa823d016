// SPDX-License-Identifier: Apache-2.0
//
// The actor system of one Runtime, behind a wall: nothing of CAF is seen from here on.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <kvonce/runtime.hpp>

#include "actors/pool_actor.hpp"
#include "actors/shard_key_actor.hpp"
#include "actors/store_actor.hpp"
#include "messages/frames.hpp"
#include "messages/local.hpp"
#include "transport/link.hpp"

namespace kvonce::actors {
class ClientSessions;
}  // namespace kvonce::actors

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
    // Only without stores of its own: what the store of another process tells.
    std::function<void(std::vector<protocol::ObjectEvent>&&)> events;
    std::function<void()> ending;  // it says that it is about to end
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
  void tell_keys(messages::CloseNamespace&& command);
  void tell_keys(messages::AskEpoch&& command);
  void tell_keys(messages::RegisterGroup&& command);
  void tell_keys(messages::RegisterPool&& command);
  void tell_keys(messages::LookupCommand&& command);
  void tell_keys(messages::LeaseCommand&& command);
  void tell_keys(messages::AdminCommand&& command);
  /// One slot a partition. Filled later; never, when the store is lost.
  std::vector<messages::StatsSlot> ask_stats();
  /// False: there is no store to tell. An embedded one keeps none.
  bool report(const messages::Report& report);
  /// False: there is no store to be asked.
  bool ask_clients(const messages::SlotPtr<std::vector<ClientInfo>>& slot);
  void want_events(bool on);

  // -- the store of another process: one thread at a time -----------------------------------------------------------------
  /// Its partitions are reached by this link.
  void stores_found(const std::shared_ptr<transport::Link>& link, std::uint32_t partitions,
                    std::shared_ptr<const actors::ArenaView> arena);
  void stores_lost();
  /// Takes some frames of the link and runs the actors that they are for, on the calling thread, for a bounded time. How many;
  /// -1: another thread is reading.
  int read(transport::Link& link);
  /// The same in two steps, for the thread whose work it is to read the link.
  bool take_frame(std::string_view bytes);
  void turn_over();
  /// The store takes so little of what it is told that nothing more should be asked of it.
  bool is_behind() const;

  // -- clients of the store in this process -------------------------------------------------------------------------------
  const std::shared_ptr<actors::ClientSessions>& sessions();
  void tell_ending();
  void process_fenced(std::uint32_t pid, std::uint64_t start_time);
  /// No new grants. Then, again and again: how many slots somebody may be writing to; nothing when the time is over.
  void freeze();
  std::optional<std::uint64_t> open_writes(TimePoint deadline);
  /// The stores end with it. Empty when a partition did not answer in time.
  std::vector<std::string> snapshot(TimePoint deadline);

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
