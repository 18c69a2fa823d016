// SPDX-License-Identifier: Apache-2.0
//
// Commands that never leave the process: they carry operations, callbacks and memory. No CAF in here.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <kvonce/event.hpp>
#include <kvonce/operation.hpp>

#include "protocol/catalog.hpp"
#include "protocol/pool_core.hpp"
#include "protocol/store_core.hpp"

namespace kvonce::actors {
struct PoolMemory;
struct CopyJob;
struct ArenaView;
}  // namespace kvonce::actors

namespace kvonce::messages {

/// One answer for one waiting thread. The thread waits on its own clock, so that no actor's death or silence can hold it.
template <class T>
class Slot {
 public:
  /// False: nobody waits any more, or it has been filled before. Whoever made something takes it back.
  bool fill(T value) {
    {
      const std::lock_guard lock(mutex_);
      if (value_ || given_up_) return false;
      value_ = std::move(value);
    }
    filled_.notify_all();
    return true;
  }
  /// What has come after all; nothing: nothing will come any more.
  std::optional<T> give_up() {
    const std::lock_guard lock(mutex_);
    given_up_ = true;
    return value_;
  }
  /// Nothing when the deadline passed first.
  std::optional<T> wait_until(std::chrono::steady_clock::time_point deadline) {
    std::unique_lock lock(mutex_);
    filled_.wait_until(lock, deadline, [this] { return value_.has_value(); });
    return value_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable filled_;
  std::optional<T> value_;
  bool given_up_ = false;
};
template <class T>
using SlotPtr = std::shared_ptr<Slot<T>>;
/// What one partition counts; nothing when it was lost before it answered.
using StatsSlot = SlotPtr<std::optional<protocol::StoreStats>>;

/// Outcome of a call that makes something: its number, or why not.
struct Made {
  Error error;
  std::uint32_t id = 0;
};

// -- to a PoolActor ----------------------------------------------------------------------------------------------------

struct PutCommand {
  std::shared_ptr<PutOperation> operation;
  protocol::PutOrder order;  // order.id is the operation's id
  Event after;
};
struct LoadCommand {
  std::shared_ptr<LoadOperation> operation;
  protocol::LoadOrder order;
  Event after;
};
struct CancelCommand {
  std::uint64_t operation = 0;
  bool is_load = false;
};
/// The store has taken the pool in: number it, then have its keys set.
struct AddPool {
  std::shared_ptr<actors::PoolMemory> memory;
  std::uint32_t ns_handle = 0;
  protocol::PoolKeying keying;
  protocol::PoolAsk ask;
  SlotPtr<Made> answer;
};
struct UnregisterPool {
  std::uint32_t pool = 0;
  SlotPtr<bool> answer;
};
struct CloseRank {
  SlotPtr<bool> answer;
};
/// There is a store again, and this rank's pools are registered with it.
struct StoreFound {
  std::shared_ptr<const actors::ArenaView> arena;
  std::uint32_t partitions = 0;
};
/// From a mover thread: leading items of a load's layer groups are in place.
struct CopyAdvanced {
  std::shared_ptr<actors::CopyJob> job;
  std::uint32_t items_done = 0;
};
/// From a mover thread: it touches no byte of the job any more.
struct CopyEnded {
  std::shared_ptr<actors::CopyJob> job;
};

// -- to the ShardKeyActor ----------------------------------------------------------------------------------------------

struct OpenNamespace {
  std::string text;
  bool find_only = false;
  SlotPtr<Made> answer;
};
/// As often as it was opened; then the store is told. The answer says what stands against it.
struct CloseNamespace {
  std::uint32_t ns_handle = 0;
  SlotPtr<Error> answer;
};
struct MadeEpoch {
  Error error;
  protocol::Digest128 value;
};
struct AskEpoch {
  std::string name;
  SlotPtr<MadeEpoch> answer;
};
struct RegisterGroup {
  protocol::GroupAsk ask;  // without namespace: that is ns_handle
  std::uint32_t ns_handle = 0;
  ShardCounts ranks;
  SlotPtr<Made> answer;  // id: index in the directory
};
struct RegisterPool {
  protocol::SenderId sender = 0;
  protocol::PoolAsk ask;         // without namespace: that is ns_handle
  std::uint32_t ns_handle = 0;
  std::uint32_t shard = 0;       // flat, of the declared shards
  std::uint32_t rank_shard = 0;  // flat, when the pool is sharded by rank
  std::shared_ptr<actors::PoolMemory> memory;
  SlotPtr<Made> answer;
};
/// The PoolActor has numbered a pool: from here on its pages can be put under keys.
struct SetKeying {
  protocol::SenderId sender = 0;
  std::uint32_t pool = 0;
  std::uint32_t ns_handle = 0;
  std::shared_ptr<actors::PoolMemory> memory;
  protocol::PoolKeying keying;
  protocol::PoolAsk ask;
  std::uint32_t rank_shard = 0;
};
struct PoolGone {
  protocol::SenderId sender = 0;
  std::uint32_t pool = 0;
};
/// The store wants per-rank keys for this pool.
struct RekeyAsk {
  protocol::SenderId sender = 0;
  std::uint32_t pool = 0;
};
/// Sent on its way back by each PoolActor: everything put before it has passed.
struct FlushMark {
  std::uint64_t token = 0;
  protocol::SenderId sender = 0;  // filled in on the way back
};
struct RankClosed {
  protocol::SenderId sender = 0;
};
struct LookupCommand {
  std::shared_ptr<LookupOperation> operation;
  std::uint32_t group = 0;  // index in the directory
  protocol::LookupAsk ask;  // without token, group, pages: the operation keeps the pages
};
struct LeaseCommand {
  protocol::LeaseCall call;
  SlotPtr<Reason> answer;
};
struct AdminCommand {
  std::shared_ptr<AdminOperation> operation;
  bool is_flush = false;
  AckLevel level = AckLevel::memory;
  protocol::RemoveAsk remove;   // without namespace: that is ns_handle, where one is needed
  std::uint32_t ns_handle = 0xffffffffU;
};
/// What is open is answered `closed`, then the ShardKeyActor ends.
struct CloseProcess {};

// -- to a StoreActor ---------------------------------------------------------------------------------------------------

struct StatsAsk {
  std::function<void(const protocol::StoreStats&)> answer;  // called by the actor, must not block
};
/// Which clients may be writing to slots.
struct WritesAsk {
  std::function<void(std::vector<protocol::ClientWrites>&&)> answer;
};
/// What came over links before it has been handled when the last copy of `token` goes.
struct IntakeMark {
  std::shared_ptr<void> token;
};
/// No new grants from now on.
struct Freeze {};
/// The last thing that a partition does: what its next life needs to know, then it ends.
struct SnapshotAsk {
  SlotPtr<std::string> answer;
};
struct WantEvents {
  bool on = false;
};
struct EndStore {};

// -- to oneself --------------------------------------------------------------------------------------------------------

struct Tick {
  std::uint64_t at = 0;  // the time it was made for; one that is not the newest is ignored
};
struct Continue {};

}  // namespace kvonce::messages
