// SPDX-License-Identifier: Apache-2.0
//
// Inside of the ShardKeyActor: routes what ranks say to the partitions that own the pages, and keeps the questions that
// this process has open with its store.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "actors/shard_key_actor.hpp"
#include "actors/tick_timer.hpp"
#include "messages/actors.hpp"
#include "messages/tsan_order.hpp"
#include "protocol/lookup_search.hpp"
#include "protocol/shard_key_core.hpp"

namespace kvonce::actors {

Error error_of(Reason reason);

class ShardKeyState {
 public:
  using Self = messages::ShardKeyActor::pointer;
  static constexpr const char* name = "ShardKeyActor";

  void start(Self self, std::shared_ptr<const ShardKeySetup> setup, std::vector<messages::StoreActor> stores);
  ~ShardKeyState();
  /// Introduces this process to its stores, and watches them.
  void join();
  /// The store is there again, in another life: everything of this process is registered anew.
  void on_stores_found(const messages::StoresFound& found);

  // From ranks, in their order, to the stores.
  void on_page_ready(protocol::PageReady& ready);
  template <class Message>
  void pass_on(messages::ToPartition to, Message& message) {
    if (to.partition < stores_.size()) compat::tell(self_, stores_[to.partition], std::move(message));
  }
  template <class Message>
  void to_all(const Message& message) {
    for (const auto& store : stores_) compat::tell(self_, store, message);
  }
  void on_load_begin(const protocol::LoadBegin& begin);

  // Ranks and their pools.
  void on_attach(const messages::AttachRank& attach);
  void on_register_pool(const messages::RegisterPool& command);
  void on_set_keying(const messages::SetKeying& set);
  void on_pool_gone(messages::PoolGone gone);
  void on_rekey(messages::RekeyAsk ask);
  void on_rank_closed(messages::RankClosed closed);

  // Questions of the process, and the answers.
  void on_open_namespace(const messages::OpenNamespace& command);
  void on_close_namespace(const messages::CloseNamespace& command);
  void on_ask_epoch(const messages::AskEpoch& command);
  void on_register_group(const messages::RegisterGroup& command);
  void on_lookup(messages::LookupCommand& command);
  void on_lease(const messages::LeaseCommand& command);
  void on_admin(messages::AdminCommand& command);
  void on_flush_mark(messages::FlushMark mark);
  void on_register_reply(messages::RegisterReply& reply);
  void on_lookup_answer(const protocol::LookupAnswer& answer);
  void on_lease_reply(messages::LeaseReply reply);
  void on_admin_answer(std::uint64_t token, Reason error, std::uint64_t removed);
  void on_close();
  void on_tick(messages::Tick tick);

 private:
  using Registered = std::function<void(protocol::RegisterAnswer&)>;
  struct RankPool {
    protocol::PoolAsk ask;
    protocol::PoolKeying keying;
    std::uint32_t rank_shard = 0;
    bool rekeying = false;
    std::uint32_t ns_handle = 0;
    std::shared_ptr<PoolMemory> memory;
  };
  struct OpenLookup {
    std::shared_ptr<LookupOperation> operation;
    std::uint32_t group = 0;
    std::uint32_t redirects = 0;
    protocol::LookupAsk ask;
    std::size_t sent = 0;  // pages that the store was asked for
    bool search = true;
  };
  struct OpenAdmin {
    std::shared_ptr<AdminOperation> operation;
    std::uint32_t left = 0;   // partitions that have not answered
    bool marking = false;     // flush: ranks are still passing on what they had ...
    std::set<protocol::SenderId> marks;  // ... namely these
    AckLevel level = AckLevel::memory;
    std::uint64_t count = 0;
    Reason error = Reason::none;
  };

  template <class Ask>
  void ask_registrar(const Ask& ask, Registered then);
  template <class Ask>
  void ask_again(const Ask& ask, std::function<void(const protocol::RegisterAnswer&)> then);
  void know_epoch(const std::string& epoch, protocol::Digest128 value);
  void one_registered();
  void register_rest_again();
  void register_pool_again(protocol::SenderId sender, std::uint32_t number, std::uint32_t shard, bool by_rank);
  void set_again(protocol::SenderId sender, std::uint32_t number, RankPool& pool, const protocol::PoolKeying& keying);
  void found_rank(const messages::PoolActor& rank);
  /// Why nothing can be asked of the store now; none: it can.
  Reason unready() const {
    return closed_ ? Reason::closed : lost_ || again_left_ != 0 ? Reason::store_lost : Reason::none;
  }
  void register_pool(const messages::RegisterPool& command, bool again);
  void refresh_group(std::uint32_t index, std::function<void(const Error&)> then);
  runtime::GroupRecord record_of(const protocol::GroupAsk& ask, ShardCounts ranks, const protocol::RegisterAnswer& answer) const;
  void send_lookup(std::uint64_t token, OpenLookup& open);
  protocol::LookupSearch search_of(const runtime::GroupRecord& group) const;
  void end_lookup(OpenLookup& open, const protocol::LookupAnswer& answer);
  void fail_lookup(OpenLookup& open, Reason reason);
  void end_admin(OpenAdmin& open);
  void start_flush(std::uint64_t token, OpenAdmin& open);
  void attach(protocol::SenderId sender, const protocol::PoolKeying& keying, bool attached);
  void on_store_down();
  void on_lost_mark(protocol::SenderId sender);
  void fail_all(Reason reason);

  Self self_ = nullptr;
  std::shared_ptr<const ShardKeySetup> setup_;
  std::vector<messages::StoreActor> stores_;
  compat::WatchTable watches_;
  protocol::ShardKeyCore core_{protocol::Placement::local(1)};
  std::vector<std::pair<std::uint32_t, protocol::PutBatch>> split_;  // reused
  std::vector<protocol::ItemVerdict> refused_;                       // reused
  std::unordered_map<protocol::SenderId, messages::PoolActor> ranks_;
  std::map<std::pair<protocol::SenderId, std::uint32_t>, RankPool> pools_;
  std::unordered_map<std::uint64_t, Registered> registering_;
  std::unordered_map<std::uint64_t, OpenLookup> lookups_;
  std::set<std::uint32_t> unsearched_;  // groups whose pages the store counts by other pools than the search does
  std::unordered_map<std::uint64_t, messages::SlotPtr<Reason>> lease_calls_;
  std::unordered_map<std::uint64_t, OpenAdmin> admins_;
  std::map<std::string, std::uint32_t, std::less<>> opens_;  // of namespaces by text, those under way included
  // That the store gave out, oldest first: a later life of it is told them.
  std::map<std::string, protocol::Digest128> epochs_;
  std::deque<std::string> epoch_order_;
  std::uint64_t next_token_ = 1;
  std::shared_ptr<const ArenaView> arena_;
  std::uint32_t again_left_ = 0;    // registrations with a store that came back that have not been answered
  bool after_namespaces_ = false;   // and then come groups and pools
  bool lost_ = false;
  std::uint64_t lost_token_ = 0;            // of the marks behind the news of a loss ...
  std::set<protocol::SenderId> lost_marks_; // ... that have not come back from these ranks
  bool closed_ = false;
  TickTimer timer_;
};

class ShardKeyActorBody : public caf::stateful_actor<ShardKeyState, compat::TsanOrdered<messages::ShardKeyActor::base>> {
 public:
  ShardKeyActorBody(caf::actor_config& config, std::shared_ptr<const ShardKeySetup> setup, std::vector<messages::StoreActor> stores);
  messages::ShardKeyActor::behavior_type make_behavior() override;
};

}  // namespace kvonce::actors
