// SPDX-License-Identifier: Apache-2.0
//
// The store's side of its clients: turns what comes out of their links into messages to the StoreActors, as if the clients'
// actors were in this process, and keeps each client to what is its own. Every function but clients() and push_events() is called
// on the link server's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <kvonce/runtime.hpp>

#include "actors/client_proxies.hpp"
#include "actors/intake.hpp"
#include "messages/actors.hpp"
#include "messages/caller_unit.hpp"
#include "transport/link.hpp"

namespace kvonce::actors {

/// Most of what one client may have. Beyond, its link ends as broken.
struct ClientLimits {
  std::uint32_t ranks = 4'096;
};

class ClientSessions {
 public:
  ClientSessions(caf::actor_system& system, std::vector<messages::StoreActor> stores, ClientLimits limits = {});
  ~ClientSessions();
  ClientSessions(const ClientSessions&) = delete;
  ClientSessions& operator=(const ClientSessions&) = delete;

  void opened(const std::shared_ptr<transport::Link>& link);
  bool frame(transport::Link& link, std::string_view bytes);
  void turn_over();
  void closed(const std::shared_ptr<transport::Link>& link);
  void gone(const std::shared_ptr<transport::Link>& link);

  /// Whether the store has enough to do: then no frames are to be taken, until the intake's wake function is called.
  bool full() { return intake_->full(); }
  /// Any thread.
  const std::shared_ptr<Intake>& intake() const { return intake_; }

  /// A store that is ending says so to everybody. Any thread.
  void tell_ending();

  using ClientList = std::vector<ClientInfo>;
  /// `done` is called once, by an actor; it must not block. Any thread.
  void clients(std::function<void(ClientList&&)> done) const;
  /// Store events for the clients that want them. Any thread; never blocks.
  void push_events(const std::vector<protocol::ObjectEvent>& events);
  /// Whether this process wants events itself.
  void want_events_here(bool on);

 private:
  struct Session;
  using SessionPtr = std::shared_ptr<Session>;

  template <class... Ts>
  void tell(std::uint32_t partition, Ts&&... xs);
  template <class Message>
  void tell_all(const Message& message);
  bool take(Session& session, const messages::FrameHead& head, std::string_view payload);
  /// Whether with this partition all have been told. told: bits by partition.
  bool told_all(std::uint64_t& told, std::uint32_t partition) const;
  bool take_rank(Session& session, const messages::FrameHead& head, std::string_view payload);
  bool take_question(Session& session, const messages::FrameHead& head, std::string_view payload);
  bool take_report(Session& session, std::string_view payload);
  static std::vector<ClientReport> reports_of(const Session& session, std::size_t& left);
  bool owns(const Session& session, protocol::SenderId sender) const;
  void want(Session& session, bool on);
  void say_wanted();

  caf::actor_system& system_;
  const std::vector<messages::StoreActor> stores_;
  const ClientLimits limits_;
  const std::shared_ptr<Intake> intake_;
  compat::CallerUnit::Lease unit_;  // while a turn is under way
  std::unordered_map<protocol::SenderId, protocol::ClientId> owners_;

  mutable std::mutex mutex_;  // of what follows
  std::unordered_map<protocol::ClientId, SessionPtr> sessions_;
  std::vector<SessionPtr> listeners_;
  bool wanted_here_ = false;
};

}  // namespace kvonce::actors
