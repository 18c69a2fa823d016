// SPDX-License-Identifier: Apache-2.0
//
// Inside of the PoolActor: turns what PoolCore wants into messages, copies and results.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "actors/pool_actor.hpp"
#include "actors/tick_timer.hpp"
#include "messages/actors.hpp"
#include "messages/tsan_order.hpp"

namespace kvonce::actors {

class PoolState : public protocol::ObjectLocator {
 public:
  using Self = messages::PoolActor::pointer;
  static constexpr const char* name = "PoolActor";

  void start(Self self, std::shared_ptr<const PoolSetup> setup, messages::ShardKeyActor keys);

  void on_reply(const protocol::StoreReply& reply);
  void on_load_begun(const protocol::LoadBegun& begun);
  void on_rekeyed(const messages::Rekeyed& rekeyed);
  void on_store_lost();
  void on_store_found(const messages::StoreFound& found);
  void on_flush_mark(messages::FlushMark mark);
  void on_add_pool(const messages::AddPool& add);
  void on_unregister(const messages::UnregisterPool& unregister);
  void on_put(messages::PutCommand& command);
  void on_load(messages::LoadCommand& command);
  void on_cancel(messages::CancelCommand command);
  void on_close(const messages::CloseRank& close);
  void on_copy_advanced(const messages::CopyAdvanced& news);
  void on_copy_ended(const messages::CopyEnded& news);
  void on_tick(messages::Tick tick);
  ~PoolState() override;

  void prefetch(std::uint32_t pool, const PageHash& page, unsigned stage) override;
  protocol::ReadStatus locate(std::uint32_t pool, const PageHash& page, std::uint32_t* partition,
                              protocol::PoolKeying* keying, protocol::ObjectLocation* out) override;

 private:
  struct OpenPut {
    std::shared_ptr<PutOperation> operation;
    Event after;
  };
  struct OpenLoad {
    std::shared_ptr<LoadOperation> operation;
    Event after;
    std::vector<std::uint32_t> pools;  // of its items, for the byte counts
  };

  // After every event: does what the core wants, until it wants nothing more.
  void act(protocol::Time now);
  void send(protocol::Time now);
  void finish_put(protocol::PoolActions::PutDone& done);
  void finish_load(protocol::PoolActions::LoadDone& done);
  void start_copy(protocol::CopyOrder&& order, protocol::Time now);
  void run_on_movers(const std::shared_ptr<CopyJob>& job, std::vector<CopyJob::Part>& parts, const Event& after);
  void end_copy(CopyJob& job, protocol::Time now);
  Event after_of(const protocol::CopyOrder& order) const;

  Self self_ = nullptr;
  std::shared_ptr<const PoolSetup> setup_;
  std::shared_ptr<const ArenaView> arena_;  // of the store's present life
  bool store_lost_ = false;
  protocol::Placement placement_ = protocol::Placement::local(1);
  std::uint64_t reads_over_ = 0;            // copies out of rows whose results have not been sent
  messages::ShardKeyActor keys_;
  std::unique_ptr<protocol::PoolCore> core_;
  protocol::PoolActions actions_;
  PoolList pools_;
  std::vector<protocol::PoolKeying> keyings_;  // by pool, as of now
  std::unordered_map<std::uint64_t, OpenPut> puts_;
  std::unordered_map<std::uint64_t, OpenLoad> loads_;
  std::unordered_map<std::uint64_t, std::shared_ptr<CopyJob>> running_;  // on the movers
  std::unordered_map<std::uint32_t, std::vector<messages::SlotPtr<bool>>> unregistering_;
  std::vector<messages::SlotPtr<bool>> closing_;
  bool ended_ = false;
  TickTimer timer_;
};

class PoolActorBody : public caf::stateful_actor<PoolState, compat::TsanOrdered<messages::PoolActor::base>> {
 public:
  PoolActorBody(caf::actor_config& config, std::shared_ptr<const PoolSetup> setup, messages::ShardKeyActor keys);
  messages::PoolActor::behavior_type make_behavior() override;
};

}  // namespace kvonce::actors
