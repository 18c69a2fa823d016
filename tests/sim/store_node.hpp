// SPDX-License-Identifier: Apache-2.0
//
// The simulated store node: real StoreCores over a real arena, a registrar, links with delays, a disk, crashes.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "protocol/conflict_book.hpp"
#include "protocol/retire_round.hpp"
#include "protocol/store_core.hpp"
#include "storage/arena.hpp"
#include "tests/sim/sim.hpp"

namespace kvonce::sim {

using namespace protocol;

class Checkers;

/// One life of the store. Sessions keep the life that they are connected to, and so its memory.
struct Life {
  std::uint64_t number = 0;
  std::uint64_t lineage = 0;             // number of the first life over the same arena: those after it came back warm
  bool comes_back = false;               // has ended, and the next life takes over from it
  Incarnation incarnation = 0;
  std::shared_ptr<storage::Arena> memory;
  std::vector<IndexReader> readers;  // by partition
  bool up = true;
};

/// What a rank asks of the registrar when it connects, or after a demotion.
struct RegisterOrder {
  std::string ns_text;
  std::vector<PoolAsk> pools;  // `ns` is filled in by the registrar
  GroupAsk group;
};
struct Registered {
  struct Pool {
    PoolId pool = 0;
    Generation generation = 0;
    bool per_rank = false;  // by demotion
  };
  Error error;
  NamespaceId ns = 0;
  std::vector<Pool> pools;
  GroupId group = 0;
};

/// The rank's end of a connection.
class Peer {
 public:
  virtual ~Peer() = default;
  virtual void on_reply(StoreReply&& reply) = 0;
  virtual void on_lookup(const LookupAnswer& answer) = 0;
  virtual void on_load_begun(const LoadBegun& begun) = 0;
  virtual void on_removed(const RemoveAnswer& answer, std::uint32_t partition) = 0;
  virtual void on_flushed(const FlushAnswer& answer, std::uint32_t partition) = 0;
  virtual void on_registered(const Registered& answer) = 0;
  virtual void on_opened(std::uint64_t token, const RegisterAnswer& answer) = 0;
  virtual void on_connection_lost() = 0;
  /// Whether anything of this end may still write to a slot that it was granted, now or when it wakes up.
  virtual bool can_write() const = 0;
  /// Runs something that arrived: at once, after a wake-up, or never.
  virtual void receive(Action action) = 0;

  SenderId sender = 0;
  ClientId client = 0;
  EngineId engine = 0;
  std::shared_ptr<Life> life;
  bool lost = false;                   // this end knows that the connection is gone
  std::vector<Time> cut;               // by partition: nothing sent arrives from then on
  std::vector<Time> last_to, last_from;  // by partition: arrivals keep their order
};

class StoreNode {
 public:
  StoreNode(Sim& sim, Checkers& checkers);
  ~StoreNode();

  std::uint32_t partitions() const { return sim_.knobs.partitions; }
  const std::shared_ptr<Life>& life() const { return life_; }
  bool up() const { return life_->up; }
  StoreCore& core(std::uint32_t partition) { return *parts_[partition].core; }
  std::uint64_t slots_offset(std::uint32_t partition) const;

  /// Called when a round begins that looks for a namespace to be retired.
  std::function<void()> on_round;

  // -- from ranks ----------------------------------------------------------------------------------------------------
  void connect(Peer& peer);
  void register_pools(Peer& peer, RegisterOrder order);
  /// A namespace alone; `token` is the peer's own.
  void open_namespace(Peer& peer, std::uint64_t token, NamespaceAsk ask);
  void close_namespace(Peer& peer, NamespaceId ns);
  /// At the registrar, before it hears of the client's end.
  void leave_registrar(ClientId client);
  using Message = std::function<void(StoreCore&, Time, StoreActions&)>;
  /// Over the link from the peer to the partition.
  void post(Peer& peer, std::uint32_t partition, const char* what, Message message);
  void post_put(Peer& peer, std::uint32_t partition, PutBatch batch);
  void post_results(Peer& peer, std::uint32_t partition, GrantResults results);
  void post_withdraw(Peer& peer, const Withdraw& withdraw);
  /// `pages`: all that the lookup is of.
  void post_lookup(Peer& peer, std::uint32_t partition, LookupAsk ask, std::vector<PageHash> pages);
  void post_remove(Peer& peer, std::uint32_t partition, RemoveAsk ask);
  void post_release(Peer& peer, std::uint32_t partition, const LeaseCall& call, bool whole);

  // -- what goes wrong -----------------------------------------------------------------------------------------------
  /// The connection's end reaches each partition after a while. fenced: nothing of the peer can write any more.
  void disconnect(Peer& peer, std::function<bool()> can_write);
  /// All partitions end at once; a new life begins later: warm, from a snapshot of this moment, or cold.
  void crash();
  /// Flips one bit of a published object.
  void flip_bit();

  bool idle_but_leases() const;
  /// No namespace waits for a place, none is on its way out.
  bool round_is_over() const { return round_.waiting() == 0 && round_.retiring() == kNoNamespace; }

 private:
  struct Part {
    std::unique_ptr<StoreCore> core;
    EmptiedReport emptied;
    StoreActions actions;
    Time armed = kNever;
    bool stepping = false;
  };

  void start();
  bool restore(const std::vector<StoreConfig>& configs);
  template <class F>
  void call(std::uint32_t partition, const char* what, F&& f) {
    sim_.note(what, partition);
    Part& part = parts_[partition];
    f(*part.core, sim_.now(), part.actions);
    settle(partition);
  }
  void settle(std::uint32_t partition);
  void arm(std::uint32_t partition);
  void keep_stepping(std::uint32_t partition);
  void distribute(std::uint32_t partition, StoreActions& out);
  void persist(std::uint32_t partition, const PersistOrder& order);
  void deliver(std::uint32_t partition, Peer& peer, Action action);
  void between(std::uint32_t from, std::uint32_t to, const char* what, Message message);
  void spread(std::vector<CatalogUpdate> updates, std::function<void()> done);
  void on_conflict(const KeyConflict& conflict);
  /// An opening at the registrar: of a namespace alone, or of one with pools and a group to be registered in it.
  struct Opening {
    Peer* peer = nullptr;
    std::uint64_t token = 0;
    std::optional<RegisterOrder> order;
  };
  void open(Peer& peer, std::uint64_t token, const NamespaceAsk& ask, std::optional<RegisterOrder> order);
  void go_round();
  void ask_use(std::uint64_t round);
  void answer_opening(const NamespaceOpening& to, const RegisterAnswer& answer, std::vector<CatalogUpdate> updates);
  void report_emptied(std::uint32_t partition);
  void apply_here(const std::vector<CatalogUpdate>& updates);
  Registered decide(RegisterOrder& order, const RegisterAnswer& ns, std::vector<CatalogUpdate>& updates);
  void watch_fence(Peer& peer, std::uint64_t life, std::function<bool()> can_write);
  Duration delay();

  Sim& sim_;
  Checkers& checkers_;
  std::shared_ptr<Life> life_;
  std::vector<Part> parts_;
  std::vector<std::vector<Time>> last_between_;
  std::unordered_map<SenderId, Peer*> peers_;
  ConflictBook conflicts_;
  RetireRound round_;
  std::map<std::uint64_t, Opening> openings_;  // by number
  std::uint64_t last_opening_ = 0;
  std::vector<std::string> snapshots_;  // of the life before, when the next one is to be warm
  std::vector<std::vector<std::pair<CanonicalKey, ObjectLocation>>> kept_;  // by partition: what was readable then
  std::uint64_t index_bytes_ = 0;
  Epoch next_first_epoch_ = 1;
};

}  // namespace kvonce::sim
