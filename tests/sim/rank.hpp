// SPDX-License-Identifier: Apache-2.0
//
// One rank of an engine: its process (which may be stopped or killed), its rows, its copier, its connections.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "storage/slot_shape.hpp"
#include "tests/sim/mover.hpp"
#include "tests/sim/sim.hpp"

namespace kvonce::sim {

class Checkers;
class Session;
class StoreNode;
struct Life;

enum class RowState : std::uint8_t { free, put, load, gone };
struct Row {
  RowState state = RowState::free;
  std::uint64_t order = 0;    // the put or load that it is lent to
  std::uint64_t content = 0;  // seed of what a put's row holds
};

/// One pool as this rank has it.
struct RankPool {
  RankPool(const PoolKnobs& knobs, std::uint32_t index, std::uint32_t shards, std::uint32_t shard);
  std::byte* at(std::uint64_t row) { return bytes.data() + row * shape.payload_bytes(); }
  std::uint32_t layer_of(std::uint32_t range) const { return range % layers; }

  std::uint32_t index;
  std::uint32_t shards;  // declared
  std::uint32_t shard;
  std::uint32_t layers;
  storage::SlotShape shape;
  std::vector<Row> rows;
  std::vector<std::byte> bytes;
};

class Rank {
 public:
  Rank(Sim& sim, StoreNode& node, Checkers& checkers, std::uint32_t engine, std::uint32_t index);
  ~Rank();

  // -- the process -----------------------------------------------------------------------------------------------------
  /// Runs it now, after a wake-up, or never when that process is gone.
  void receive(std::uint64_t of_process, Action action);
  void stop();
  void wake();
  void kill();
  void revive();
  /// The connection breaks; the process lives.
  void lose_connection();
  void connect();
  /// Closes the session as a well-behaved engine does, and opens another.
  void reconnect();
  /// As reconnect(); from then on its connections open another namespace.
  void move_to(std::uint32_t ns);

  Session* session() const { return session_; }
  bool ready() const;
  EngineId engine_id() const { return 0xe000 + engine; }
  std::uint32_t ranks() const { return sim_.knobs.engines[engine].ranks; }
  /// The present session's.
  std::uint32_t ns() const { return ns_; }
  std::shared_ptr<Life> present_life() const;
  Checkers& checkers() { return checkers_; }

  // -- rows ------------------------------------------------------------------------------------------------------------
  std::optional<std::uint64_t> take_row(std::uint32_t pool, RowState state, std::uint64_t order);
  void give_row(std::uint32_t pool, std::uint64_t row);
  /// The seed of this rank's bytes of a page.
  std::uint64_t content_seed(std::uint32_t ns, std::uint32_t pool, const PageHash& page) const;
  ContentKey content_key(std::uint32_t ns, std::uint32_t pool, const PageHash& page, bool per_rank) const;

  /// When the event that a put waits for fires; 0: there is none.
  Time gate_of(std::uint64_t owner) const;

  std::uint32_t engine;
  std::uint32_t index;
  std::uint64_t process = 1;
  std::uint64_t last_order = 0;  // ids of puts and loads, never reused
  bool dead = false;
  bool stopped = false;
  bool slow = false;
  bool divergent = false;
  Time last_wake = 0;
  std::vector<RankPool> pools;
  std::map<std::uint64_t, Time> gates;
  Mover mover;

 private:
  Sim& sim_;
  StoreNode& node_;
  Checkers& checkers_;
  std::vector<Action> inbox_;
  std::vector<std::unique_ptr<Session>> sessions_;  // old ones stay: messages name them
  Session* session_ = nullptr;
  std::uint32_t ns_ = 0, next_ns_ = 0;
};

}  // namespace kvonce::sim
