// SPDX-License-Identifier: Apache-2.0
//
// A client's side of its link: hands what the store says to the actors that it is for. frame() is called by one thread at a time,
// the one that reads the link at this moment; the rest by any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <kvonce/runtime.hpp>

#include "messages/actors.hpp"
#include "messages/caller_unit.hpp"
#include "messages/frames.hpp"

namespace kvonce::actors {

class StoreInbox {
 public:
  using EventSink = std::function<void(std::vector<protocol::ObjectEvent>&&)>;

  StoreInbox() = default;
  ~StoreInbox();
  StoreInbox(const StoreInbox&) = delete;
  StoreInbox& operator=(const StoreInbox&) = delete;

  void set_keys(messages::ShardKeyActor keys) { keys_ = std::move(keys); }
  void set_events(EventSink events) { events_ = std::move(events); }
  void set_ending(std::function<void()> ending) { ending_ = std::move(ending); }
  void add_rank(protocol::SenderId sender, messages::PoolActor pool);
  void remove_rank(protocol::SenderId sender);

  /// Wakes actors with `unit`, which the caller borrows for a round of frames and runs after it.
  bool frame(std::string_view bytes, compat::CallerUnit& unit);

  // Answers that no actor waits for.
  std::uint64_t expect_stats(messages::StatsSlot slot);
  std::uint64_t expect_clients(messages::SlotPtr<std::vector<ClientInfo>> slot);
  /// What was asked of a store that is lost is not answered any more.
  void forget_questions();

 private:
  bool take(const messages::FrameHead& head, std::string_view payload, compat::CallerUnit& unit);
  bool take_stats(const messages::FrameHead& head, std::string_view payload);
  bool take_clients(const messages::FrameHead& head, std::string_view payload);
  template <class Message>
  bool to_rank(const messages::FrameHead& head, std::string_view payload, compat::CallerUnit& unit);
  template <class Message>
  bool to_keys(std::string_view payload, compat::CallerUnit& unit);

  messages::ShardKeyActor keys_;
  EventSink events_;
  std::function<void()> ending_;
  messages::FrameAssembler in_;

  std::mutex mutex_;
  std::unordered_map<protocol::SenderId, messages::PoolActor> ranks_;
  std::unordered_map<std::uint64_t, messages::StatsSlot> stats_;
  std::unordered_map<std::uint64_t, messages::SlotPtr<std::vector<ClientInfo>>> clients_;
  std::uint64_t next_token_ = 1;
};

}  // namespace kvonce::actors
