// SPDX-License-Identifier: Apache-2.0
#include "actors/client_sessions.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <map>
#include <utility>

#include "messages/frames.hpp"
#include "messages/report_rules.hpp"

namespace kvonce::actors {

using messages::FrameHead;
using messages::FrameKind;
using messages::From;

namespace {

// What one turn of the server may take of the actors' work, before the scheduler gets the rest.
constexpr compat::RunLimits kTurn{.jobs_max = 4096, .duration_max = std::chrono::milliseconds{2}, .messages_max = 0};

// Of all reports in one list of clients: beyond, clients are listed without theirs.
constexpr std::size_t kMaxListedReportBytes = 8U << 20U;

}  // namespace

struct ClientSessions::Session {
  explicit Session(const std::shared_ptr<transport::Link>& link) : out(std::make_shared<FrameSender>(link)) {}

  std::shared_ptr<FrameSender> out;
  protocol::ClientId client = 0;
  protocol::EngineId engine = 0;
  std::string engine_id;
  std::uint32_t pid = 0;
  bool read_only = false;
  bool said_gone = false;  // the client itself has said that it ends, with no copy running
  // The partitions hear of an end each by an actor of its own: which of them have, as bits. Only the last of them ends it.
  std::uint64_t gone_told = 0;
  std::map<protocol::SenderId, std::uint64_t> leaving;
  messages::ShardKeyActor keys;
  std::unordered_map<protocol::SenderId, messages::PoolActor> ranks;
  std::atomic<std::uint32_t> rank_count{0};
  messages::FrameAssembler in;
  bool listens = false;
  std::map<std::string, std::vector<messages::ReportCounter>> reports;  // by label; under the sessions' mutex
};

ClientSessions::ClientSessions(caf::actor_system& system, std::vector<messages::StoreActor> stores, ClientLimits limits)
    : system_(system),
      stores_(std::move(stores)),
      limits_(limits),
      intake_(std::make_shared<Intake>(stores_.size(), IntakeLimits{})) {}

ClientSessions::~ClientSessions() = default;

template <class... Ts>
void ClientSessions::tell(std::uint32_t partition, Ts&&... xs) {
  if (!unit_) unit_ = compat::CallerUnit::borrow(system_);
  unit_->tell(stores_[partition], std::forward<Ts>(xs)...);
}

template <class Message>
void ClientSessions::tell_all(const Message& message) {
  for (std::uint32_t p = 0; p < stores_.size(); ++p) tell(p, message);
}

void ClientSessions::turn_over() {
  if (!unit_) return;
  unit_->run(kTurn);
  unit_.reset();
}

// -- coming and going --------------------------------------------------------------------------------------------------

void ClientSessions::opened(const std::shared_ptr<transport::Link>& link) {
  const transport::Hello& hello = link->hello();
  auto session = std::make_shared<Session>(link);
  session->client = hello.client;
  session->engine = hello.engine;
  session->engine_id = hello.engine_id;
  session->pid = link->peer().pid;
  session->read_only = hello.read_only;
  session->keys = system_.spawn<RemoteKeysActorBody>(session->out);
  link->user = session;
  {
    const std::lock_guard lock(mutex_);
    sessions_[session->client] = session;
  }
  if (hello.writes_nothing) tell_all(messages::ClientFenced{session->client});
  tell_all(messages::ClientJoin{session->client, session->engine, session->pid, link->peer().start_time, session->keys});
}

void ClientSessions::closed(const std::shared_ptr<transport::Link>& link) {
  // The session holds the link, and would be held by it for ever.
  const auto session = std::static_pointer_cast<Session>(std::exchange(link->user, nullptr));
  if (!session) return;
  if (!session->said_gone) tell_all(messages::ClientGone{session->client, false});
  want(*session, false);
  for (auto& [sender, rank] : session->ranks) {
    owners_.erase(sender);
    compat::anon_tell(rank, messages::CloseRank{});
  }
  session->ranks.clear();
  compat::anon_tell(session->keys, messages::CloseProcess{});
  session->keys = messages::ShardKeyActor{};
  const std::lock_guard lock(mutex_);
  const auto at = sessions_.find(session->client);
  if (at != sessions_.end() && at->second == session) sessions_.erase(at);
}

void ClientSessions::gone(const std::shared_ptr<transport::Link>& link) {
  // It has left already; now it neither writes nor reads any more.
  tell_all(messages::ClientGone{link->hello().client, true});
}

void ClientSessions::tell_ending() {
  const std::lock_guard lock(mutex_);
  for (const auto& [client, session] : sessions_) session->out->send(FrameKind::ending, 0, 0, messages::Nothing{});
}

// -- frames ------------------------------------------------------------------------------------------------------------

bool ClientSessions::frame(transport::Link& link, std::string_view bytes) {
  auto* const session = static_cast<Session*>(link.user.get());
  if (session == nullptr) return false;
  FrameHead head;
  std::string_view payload;
  switch (session->in.take(bytes, &head, &payload)) {
    case messages::FrameAssembler::Status::part:
      return true;
    case messages::FrameAssembler::Status::broken:
      return false;
    case messages::FrameAssembler::Status::whole:
      break;
  }
  if (head.partition >= stores_.size() || session->said_gone) return false;
  if (!take(*session, head, payload)) return false;
  if (intake_->count(head.partition, payload.size())) tell(head.partition, intake_->mark(head.partition));
  return true;
}

bool ClientSessions::owns(const Session& session, protocol::SenderId sender) const { return session.ranks.contains(sender); }

bool ClientSessions::take(Session& session, const FrameHead& head, std::string_view payload) {
  // What a rank sends names the rank, which must be one of this client's own.
  const auto pass = [&](auto message, bool writes) {
    if (!messages::decode(payload, message) || !owns(session, message.sender)) return false;
    if (writes && session.read_only) return false;
    tell(head.partition, std::move(message));
    return true;
  };
  switch (static_cast<FrameKind>(head.kind)) {
    case FrameKind::put_batch:
      return pass(protocol::PutBatch{}, true);
    case FrameKind::grant_results:
      return pass(protocol::GrantResults{}, false);
    case FrameKind::withdraw:
      return pass(protocol::Withdraw{}, true);
    case FrameKind::checksum_answers:
      return pass(protocol::ChecksumAnswers{}, true);
    case FrameKind::attach_pool:
      return pass(protocol::AttachPool{}, false);
    case FrameKind::load_end:
      return pass(protocol::LoadEnd{}, false);
    case FrameKind::load_begin: {
      protocol::LoadBegin begin;
      if (!messages::decode(payload, begin) || !owns(session, begin.sender)) return false;
      begin.engine = session.engine;
      tell(head.partition, begin);
      return true;
    }
    case FrameKind::sender_join:
    case FrameKind::sender_gone:
    case FrameKind::client_gone:
      return take_rank(session, head, payload);
    default:
      return take_question(session, head, payload);
  }
}

bool ClientSessions::told_all(std::uint64_t& told, std::uint32_t partition) const {
  told |= std::uint64_t{1} << partition;
  return static_cast<std::size_t>(std::popcount(told)) == stores_.size();
}

bool ClientSessions::take_rank(Session& session, const FrameHead& head, std::string_view payload) {
  if (static_cast<FrameKind>(head.kind) == FrameKind::client_gone) {
    messages::Nothing nothing;
    if (!messages::decode(payload, nothing)) return false;
    tell(head.partition, messages::ClientGone{session.client, true});
    session.said_gone = told_all(session.gone_told, head.partition);
    return true;
  }
  if (static_cast<FrameKind>(head.kind) == FrameKind::sender_gone) {
    messages::SenderName name;
    if (!messages::decode(payload, name) || !owns(session, name.sender)) return false;
    tell(head.partition, messages::SenderGone{name.sender});
    if (!told_all(session.leaving[name.sender], head.partition)) return true;
    session.leaving.erase(name.sender);
    compat::anon_tell(session.ranks.at(name.sender), messages::CloseRank{});
    session.ranks.erase(name.sender);
    session.rank_count.store(static_cast<std::uint32_t>(session.ranks.size()), std::memory_order_relaxed);
    owners_.erase(name.sender);
    return true;
  }
  protocol::AttachSender sender;
  if (!messages::decode(payload, sender)) return false;
  auto at = session.ranks.find(sender.sender);
  if (at == session.ranks.end()) {
    if (session.ranks.size() >= limits_.ranks) return false;
    if (!owners_.emplace(sender.sender, session.client).second) return false;  // another client's
    at = session.ranks.emplace(sender.sender, system_.spawn<RemotePoolActorBody>(session.out, sender.sender)).first;
    session.rank_count.store(static_cast<std::uint32_t>(session.ranks.size()), std::memory_order_relaxed);
  }
  tell(head.partition, messages::SenderJoin{{sender.sender, session.client, session.engine, !session.read_only}, at->second});
  return true;
}

bool ClientSessions::take_question(Session& session, const FrameHead& head, std::string_view payload) {
  const From from{session.client, head.id};
  // Only the registrar takes registrations.
  const auto ask = [&](auto message, bool writes, bool registrar) {
    if (!messages::decode(payload, message)) return false;
    if ((writes && session.read_only) || (registrar && head.partition != 0)) return false;
    tell(head.partition, from, std::move(message));
    return true;
  };
  switch (static_cast<FrameKind>(head.kind)) {
    case FrameKind::namespace_ask:
      return ask(protocol::NamespaceAsk{}, false, true);
    case FrameKind::namespace_close:
      return ask(protocol::NamespaceClose{}, false, true);
    case FrameKind::pool_ask:
      return ask(protocol::PoolAsk{}, false, true);
    case FrameKind::group_ask:
      return ask(protocol::GroupAsk{}, false, true);
    case FrameKind::epoch_ask:
      return ask(protocol::EpochAsk{}, false, true);
    case FrameKind::remove_ask:
      return ask(protocol::RemoveAsk{}, true, false);
    case FrameKind::flush_ask:
      return ask(protocol::FlushAsk{}, false, false);
    case FrameKind::lookup_ask: {
      protocol::LookupAsk lookup;
      if (!messages::decode(payload, lookup) || lookup.pages.empty()) return false;
      lookup.engine = session.engine;
      tell(head.partition, from, std::move(lookup));
      return true;
    }
    case FrameKind::lease_call: {
      protocol::LeaseCall call;
      if (!messages::decode(payload, call)) return false;
      call.engine = session.engine;
      tell(head.partition, from, call);
      return true;
    }
    case FrameKind::stats_ask: {
      messages::Nothing nothing;
      if (!messages::decode(payload, nothing)) return false;
      tell(head.partition, messages::StatsAsk{[out = session.out, head](const protocol::StoreStats& stats) {
             out->send(FrameKind::stats_reply, head.partition, head.id, messages::StatsReply{stats});
           }});
      return true;
    }
    case FrameKind::clients_ask: {
      messages::Nothing nothing;
      if (!messages::decode(payload, nothing)) return false;
      clients([out = session.out, token = head.id](ClientList&& list) {
        messages::ClientsReply reply;
        for (ClientInfo& client : list) {
          std::vector<messages::Report> reports;
          for (ClientReport& report : client.reports) {
            reports.push_back({std::move(report.label), {}});
            for (auto& [name, value] : report.counters) reports.back().counters.push_back({std::move(name), value});
          }
          reply.clients.push_back({client.pid, std::move(client.engine_id), client.read_only, client.ranks, client.open_grants,
                                   client.quarantined_bytes, std::move(reports)});
        }
        out->send(FrameKind::clients_reply, 0, token, reply);
      });
      return true;
    }
    case FrameKind::report:
      return take_report(session, payload);
    case FrameKind::want_events: {
      messages::Wanted wanted;
      if (!messages::decode(payload, wanted)) return false;
      want(session, wanted.on);
      return true;
    }
    default:
      return false;
  }
}

// -- clients and events ------------------------------------------------------------------------------------------------

bool ClientSessions::take_report(Session& session, std::string_view payload) {
  messages::Report report;
  if (!messages::decode(payload, report) || messages::check_report(report)) return false;
  const std::lock_guard lock(mutex_);
  if (report.counters.empty()) {
    session.reports.erase(report.label);
    return true;
  }
  session.reports[report.label] = std::move(report.counters);
  return session.reports.size() <= kMaxReportsPerClient;
}

/// Under the mutex. `left`: bytes that the list may still take.
std::vector<ClientReport> ClientSessions::reports_of(const Session& session, std::size_t& left) {
  std::vector<ClientReport> list;
  std::size_t bytes = 0;
  for (const auto& [label, counters] : session.reports) {
    list.push_back({label, {}});
    bytes += label.size() + 8;
    for (const auto& counter : counters) {
      list.back().counters.emplace_back(counter.name, counter.value);
      bytes += counter.name.size() + 12;
    }
  }
  if (bytes > left) return {};
  left -= bytes;
  return list;
}

void ClientSessions::clients(std::function<void(ClientList&&)> done) const {
  struct Gathered {
    std::mutex mutex;
    std::size_t left = 0;
    std::vector<std::pair<protocol::ClientId, ClientInfo>> clients;
    std::function<void(ClientList&&)> done;
  };
  auto all = std::make_shared<Gathered>();
  all->left = stores_.size();
  all->done = std::move(done);
  {
    const std::lock_guard lock(mutex_);
    std::size_t left = kMaxListedReportBytes;
    for (const auto& [client, session] : sessions_)
      all->clients.push_back({client, {session->pid, session->engine_id, session->read_only,
                                       session->rank_count.load(std::memory_order_relaxed), 0, 0, reports_of(*session, left)}});
  }
  for (const auto& store : stores_) {
    compat::anon_tell(store, messages::WritesAsk{[all](std::vector<protocol::ClientWrites>&& writes) {
                        const std::lock_guard lock(all->mutex);
                        for (const auto& one : writes) {
                          const auto at = std::find_if(all->clients.begin(), all->clients.end(),
                                                       [&](const auto& entry) { return entry.first == one.client; });
                          if (at == all->clients.end()) continue;
                          at->second.open_grants += one.open_grants;
                          at->second.quarantined_bytes += one.quarantined_bytes;
                        }
                        if (--all->left != 0) return;
                        ClientList list;
                        for (auto& entry : all->clients) list.push_back(std::move(entry.second));
                        all->done(std::move(list));
                      }});
  }
}

void ClientSessions::want(Session& session, bool on) {
  if (session.listens == on) return;
  session.listens = on;
  {
    const std::lock_guard lock(mutex_);
    if (on) {
      const auto at = sessions_.find(session.client);
      if (at != sessions_.end()) listeners_.push_back(at->second);
    } else {
      std::erase_if(listeners_, [&](const SessionPtr& one) { return one.get() == &session; });
    }
  }
  say_wanted();
}

void ClientSessions::want_events_here(bool on) {
  {
    const std::lock_guard lock(mutex_);
    wanted_here_ = on;
  }
  say_wanted();
}

void ClientSessions::say_wanted() {
  bool wanted = false;
  {
    const std::lock_guard lock(mutex_);
    wanted = wanted_here_ || !listeners_.empty();
  }
  for (const auto& store : stores_) compat::anon_tell(store, messages::WantEvents{wanted});
}

void ClientSessions::push_events(const std::vector<protocol::ObjectEvent>& events) {
  std::vector<SessionPtr> listeners;
  {
    const std::lock_guard lock(mutex_);
    listeners = listeners_;
  }
  if (listeners.empty()) return;
  for (const auto& session : listeners) session->out->send(FrameKind::events, 0, 0, messages::Events{events});
}

}  // namespace kvonce::actors
