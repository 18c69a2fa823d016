// SPDX-License-Identifier: Apache-2.0
//
// One connection of a rank to the store: the real PoolCore and ShardKeyCore, and the engine's side of every call.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <vector>

#include "protocol/pool_core.hpp"
#include "protocol/shard_key_core.hpp"
#include "tests/sim/rank.hpp"
#include "tests/sim/store_node.hpp"

namespace kvonce::sim {

struct PutPlan {
  AckLevel level = AckLevel::memory;
  Duration time = 0;
  bool has_parent = false;
  PageHash parent;
  std::uint32_t first_depth = 0;
  std::vector<PageHash> pages;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> items;  // (page, pool)
  bool repeat_first = false;   // the first item twice
  std::optional<Duration> gate;
};
struct LoadPlan {
  LeaseId lease;
  Duration time = 0;
  std::uint32_t layer_begin = 0;
  std::uint32_t layer_end = 0xffffffffU;
  std::uint32_t layers_per_group = 0;
  std::vector<std::pair<PageHash, std::uint32_t>> items;  // (page, pool)
};

class Session final : public Peer, public ObjectLocator {
 public:
  Session(Sim& sim, Rank& rank, StoreNode& node, Checkers& checkers);

  // -- the engine's calls ----------------------------------------------------------------------------------------------
  /// 0: no row was free for any of it.
  std::uint64_t put(const PutPlan& plan);
  std::uint64_t load(const LoadPlan& plan, std::function<void()> done);
  void cancel_put(std::uint64_t id);
  void cancel_load(std::uint64_t id);
  using LookupDone = std::function<void(const LookupAnswer*)>;  // null: no answer in time
  void lookup(const std::vector<PageHash>& pages, std::uint64_t request, bool probe, LookupDone done);
  void release(const LeaseId& lease);
  void narrow(const LeaseId& lease, std::uint32_t stop);
  void remove(RemoveAsk ask);
  void flush(AckLevel level);
  void unregister(std::uint32_t pool);
  void close();
  /// This process opens a further namespace, and closes it after a while. Nothing where it has it open, or asks for it.
  void open_guest(std::uint32_t ns, bool find_only);
  /// Says that it uses its namespace no more, and uses it all the same.
  void leave_hastily();

  // -- Peer --------------------------------------------------------------------------------------------------------------
  void on_reply(StoreReply&& reply) override;
  void on_lookup(const LookupAnswer& answer) override;
  void on_load_begun(const LoadBegun& begun) override;
  void on_removed(const RemoveAnswer& answer, std::uint32_t partition) override;
  void on_flushed(const FlushAnswer& answer, std::uint32_t partition) override;
  void on_registered(const Registered& answer) override;
  void on_opened(std::uint64_t token, const RegisterAnswer& answer) override;
  void on_connection_lost() override;
  void receive(Action action) override;
  bool can_write() const override;

  // -- ObjectLocator -----------------------------------------------------------------------------------------------------
  ReadStatus locate(std::uint32_t pool, const PageHash& page, std::uint32_t* partition, PoolKeying* keying,
                    ObjectLocation* out) override;

  template <class F>
  void run(F&& f) {
    PoolActions out;
    f(core_, sim_.now(), out);
    settle(out);
  }

  bool ready() const { return ready_ && !lost && !closing_; }
  bool hasty() const { return hasty_; }
  bool quiet() const { return core_.idle() && puts_.empty() && loads_.empty(); }
  std::vector<std::uint64_t> open_puts() const;
  std::vector<std::uint64_t> open_loads() const;
  bool closed_pool(std::uint32_t pool) const { return pools_[pool].closing; }
  NamespaceId ns_id() const { return ns_id_; }
  /// Messages that no honest rank sends.
  void forge();
  void flood(const std::vector<PageHash>& pages);

 private:
  struct PoolState {
    bool per_rank = false;   // demoted
    bool closing = false;
    bool gone = false;
    PoolKeying keying;
    std::vector<PoolKeying> keyings;  // all it ever had
  };
  struct OpenPut {
    Time announced = 0;
    Time deadline = 0;
    std::vector<PutOrderItem> items;
    std::vector<PageHash> pages;
  };
  struct OpenLoad {
    Time deadline = 0;
    LoadPlan plan;
    std::vector<LoadOrderItem> items;
    std::map<std::uint64_t, ContentKey> keys;  // by row and pool, as located
    std::function<void()> done;
    std::uint32_t layers_done = 0;
  };
  struct OpenLookup {
    std::vector<PageHash> pages;
    LookupDone done;
    LookupAsk ask;  // the last one
  };
  void post_lookup(LookupAsk ask, OpenLookup open);

  void settle(PoolActions& out);
  void arm();
  void send_ready(PageReady&& ready);
  void finish_put(const PoolActions::PutDone& done);
  void finish_load(const PoolActions::LoadDone& done);
  void check_loaded(const OpenLoad& load, const LoadOrderItem& item, const ContentKey& key, std::uint32_t layer_end);
  void expect(const char* what, Time deadline, std::function<bool()> open);
  void register_pools();
  void keep_keys();
  void refused();
  void leave_namespace();
  void say_goodbye();
  void start_copy(CopyOrder&& order);
  std::uint64_t next_id() { return ++rank_.last_order; }

  Sim& sim_;
  Rank& rank_;
  StoreNode& node_;
  Checkers& checkers_;
  std::uint64_t process_;
  std::uint32_t ns_;  // of the knobs' namespaces
  ShardKeyCore keys_;
  PoolCore core_;
  std::vector<PoolState> pools_;
  NamespaceId ns_id_ = 0;
  GroupId group_ = 0;
  bool ready_ = false;
  bool closing_ = false;
  bool registering_ = false;
  bool left_ = false;
  bool hasty_ = false;     // has closed the namespace
  std::map<std::uint64_t, std::uint32_t> guests_;  // namespaces that it has open beside its own, or asks for, by token
  bool rogue_ = false;     // has flooded: its grants are never answered
  Time armed_ = kNever;
  std::map<std::uint64_t, OpenPut> puts_;
  std::map<std::uint64_t, OpenLoad> loads_;
  std::map<std::uint64_t, OpenLookup> lookups_;
  std::map<std::uint64_t, std::uint32_t> calls_;  // removes and flushes: answers that are missing
  std::set<std::uint32_t> rekeying_;
  std::vector<LeaseId> seen_leases_;
};

}  // namespace kvonce::sim
