// SPDX-License-Identifier: Apache-2.0
#include "actors/store_inbox.hpp"

#include <utility>

namespace kvonce::actors {

using messages::FrameHead;
using messages::FrameKind;

namespace {

// Questions that nobody has answered yet; beyond, the oldest of them cannot matter any more.
constexpr std::size_t kMaxQuestions = 4096;

}  // namespace

StoreInbox::~StoreInbox() = default;

void StoreInbox::add_rank(protocol::SenderId sender, messages::PoolActor pool) {
  const std::lock_guard lock(mutex_);
  ranks_[sender] = std::move(pool);
}

void StoreInbox::remove_rank(protocol::SenderId sender) {
  messages::PoolActor last;  // outlives the lock
  const std::lock_guard lock(mutex_);
  const auto at = ranks_.find(sender);
  if (at == ranks_.end()) return;
  last = std::move(at->second);
  ranks_.erase(at);
}

bool StoreInbox::frame(std::string_view bytes, compat::CallerUnit& unit) {
  FrameHead head;
  std::string_view payload;
  switch (in_.take(bytes, &head, &payload)) {
    case messages::FrameAssembler::Status::part:
      return true;
    case messages::FrameAssembler::Status::broken:
      return false;
    case messages::FrameAssembler::Status::whole:
      break;
  }
  return take(head, payload, unit);
}

template <class Message>
bool StoreInbox::to_rank(const FrameHead& head, std::string_view payload, compat::CallerUnit& unit) {
  Message message;
  if (!messages::decode(payload, message)) return false;
  messages::PoolActor pool;
  {
    const std::lock_guard lock(mutex_);
    const auto at = ranks_.find(head.id);
    if (at == ranks_.end()) return true;  // it has ended meanwhile
    pool = at->second;
  }
  unit.tell(pool, std::move(message));
  return true;
}

template <class Message>
bool StoreInbox::to_keys(std::string_view payload, compat::CallerUnit& unit) {
  Message message;
  if (!messages::decode(payload, message)) return false;
  unit.tell(keys_, std::move(message));
  return true;
}

bool StoreInbox::take(const FrameHead& head, std::string_view payload, compat::CallerUnit& unit) {
  switch (static_cast<FrameKind>(head.kind)) {
    case FrameKind::store_reply:
      return to_rank<protocol::StoreReply>(head, payload, unit);
    case FrameKind::load_begun:
      return to_rank<protocol::LoadBegun>(head, payload, unit);
    case FrameKind::register_reply: {
      protocol::RegisterAnswer answer;
      if (!messages::decode(payload, answer)) return false;
      unit.tell(keys_, messages::RegisterReply{head.id, std::move(answer)});
      return true;
    }
    case FrameKind::lease_reply: {
      messages::LeaseOutcome outcome;
      if (!messages::decode(payload, outcome)) return false;
      unit.tell(keys_, messages::LeaseReply{head.id, outcome.reason});
      return true;
    }
    case FrameKind::lookup_answer:
      return to_keys<protocol::LookupAnswer>(payload, unit);
    case FrameKind::remove_answer:
      return to_keys<protocol::RemoveAnswer>(payload, unit);
    case FrameKind::flush_answer:
      return to_keys<protocol::FlushAnswer>(payload, unit);
    case FrameKind::stats_reply:
      return take_stats(head, payload);
    case FrameKind::clients_reply:
      return take_clients(head, payload);
    case FrameKind::events: {
      messages::Events events;
      if (!messages::decode(payload, events)) return false;
      if (events_) events_(std::move(events.events));
      return true;
    }
    case FrameKind::ending:
      if (ending_) ending_();
      return true;
    default:
      return false;
  }
}

bool StoreInbox::take_stats(const FrameHead& head, std::string_view payload) {
  messages::StatsReply reply;
  if (!messages::decode(payload, reply)) return false;
  messages::StatsSlot slot;
  {
    const std::lock_guard lock(mutex_);
    if (const auto node = stats_.extract(head.id)) slot = node.mapped();
  }
  if (slot) slot->fill(reply.stats);
  return true;
}

bool StoreInbox::take_clients(const FrameHead& head, std::string_view payload) {
  messages::ClientsReply reply;
  if (!messages::decode(payload, reply)) return false;
  messages::SlotPtr<std::vector<ClientInfo>> slot;
  {
    const std::lock_guard lock(mutex_);
    if (const auto node = clients_.extract(head.id)) slot = node.mapped();
  }
  if (!slot) return true;
  std::vector<ClientInfo> list;
  for (auto& entry : reply.clients) {
    list.push_back({entry.pid, std::move(entry.engine_id), entry.read_only, entry.ranks, entry.open_grants, entry.quarantined_bytes, {}});
    for (auto& report : entry.reports) {
      ClientReport& told = list.back().reports.emplace_back();
      told.label = std::move(report.label);
      for (auto& counter : report.counters) told.counters.emplace_back(std::move(counter.name), counter.value);
    }
  }
  slot->fill(std::move(list));
  return true;
}

std::uint64_t StoreInbox::expect_stats(messages::StatsSlot slot) {
  const std::lock_guard lock(mutex_);
  if (stats_.size() >= kMaxQuestions) stats_.clear();
  stats_[next_token_] = std::move(slot);
  return next_token_++;
}

std::uint64_t StoreInbox::expect_clients(messages::SlotPtr<std::vector<ClientInfo>> slot) {
  const std::lock_guard lock(mutex_);
  if (clients_.size() >= kMaxQuestions) clients_.clear();
  clients_[next_token_] = std::move(slot);
  return next_token_++;
}

void StoreInbox::forget_questions() {
  in_ = {};
  std::unordered_map<std::uint64_t, messages::StatsSlot> stats;
  std::unordered_map<std::uint64_t, messages::SlotPtr<std::vector<ClientInfo>>> lists;
  {
    const std::lock_guard lock(mutex_);
    stats.swap(stats_);
    lists.swap(clients_);
  }
  // Nothing more comes: who waits looks at the connection, and says that it is lost.
  for (const auto& [token, slot] : stats) slot->fill(std::nullopt);
  for (const auto& [token, slot] : lists) slot->fill({});
}

}  // namespace kvonce::actors
