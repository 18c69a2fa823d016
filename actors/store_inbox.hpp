// SPDX-License-Identifier: Apache-2.0
//
// A client's side of its link: hands what the store says to the actors that it is for. frame() and turn_over() are called by one
// thread at a time, the one that reads the link; the rest by any thread.
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

  explicit StoreInbox(caf::actor_system& system) : system_(system) {}
  ~StoreInbox();
  StoreInbox(const StoreInbox&) = delete;
  StoreInbox& operator=(const StoreInbox&) = delete;

  void set_keys(messages::ShardKeyActor keys) { keys_ = std::move(keys); }
  void set_events(EventSink events) { events_ = std::move(events); }
  void set_ending(std::function<void()> ending) { ending_ = std::move(ending); }
  void add_rank(protocol::SenderId sender, messages::PoolActor pool);
  void remove_rank(protocol::SenderId sender);

  bool frame(std::string_view bytes);
  void turn_over();

  // Answers that no actor waits for.
  std::uint64_t expect_stats(messages::SlotPtr<protocol::StoreStats> slot);
  std::uint64_t expect_clients(messages::SlotPtr<std::vector<ClientInfo>> slot);
  /// What was asked of a store that is lost is not answered any more.
  void forget_questions();

 private:
  bool take(const messages::FrameHead& head, std::string_view payload);
  bool take_stats(const messages::FrameHead& head, std::string_view payload);
  bool take_clients(const messages::FrameHead& head, std::string_view payload);
  template <class Message>
  bool to_rank(const messages::FrameHead& head, std::string_view payload);
  template <class Message>
  bool to_keys(std::string_view payload);
  template <class Handle, class Message>
  void tell(const Handle& to, Message&& message);

  caf::actor_system& system_;
  messages::ShardKeyActor keys_;
  EventSink events_;
  std::function<void()> ending_;
  messages::FrameAssembler in_;
  compat::CallerUnit::Lease unit_;  // while a turn is under way

  std::mutex mutex_;
  std::unordered_map<protocol::SenderId, messages::PoolActor> ranks_;
  std::unordered_map<std::uint64_t, messages::SlotPtr<protocol::StoreStats>> stats_;
  std::unordered_map<std::uint64_t, messages::SlotPtr<std::vector<ClientInfo>>> clients_;
  std::uint64_t next_token_ = 1;
};

}  // namespace kvonce::actors
