// SPDX-License-Identifier: Apache-2.0
//
// What a process and the store of its host say to each other, as frames of a link: a head of 16 bytes, then the message as
// codec.hpp packs it. A message that is too long for one frame goes in several. No CAF in here.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "messages/codec.hpp"

namespace kvonce::messages {

/// The numbers are the wire contract.
enum class FrameKind : std::uint8_t {
  none = 0,
  // From a process to a partition of its store. `id` is the token of a question that is answered, else 0.
  sender_join = 1,
  sender_gone,
  attach_pool,
  namespace_ask,
  pool_ask,
  group_ask,
  put_batch,
  grant_results,
  withdraw,
  checksum_answers,
  lookup_ask,
  lease_call,
  load_begin,
  load_end,
  remove_ask,
  flush_ask,
  stats_ask,
  clients_ask,
  want_events,
  client_gone,
  epoch_ask,
  namespace_close,
  report,
  // From the store. `id` is the sender that it is for, or the question's token.
  store_reply = 64,
  load_begun,
  register_reply,
  lookup_answer,
  lease_reply,
  remove_answer,
  flush_answer,
  stats_reply,
  clients_reply,
  events,
  ending,
};

struct FrameHead {
  std::uint8_t kind = 0;
  std::uint8_t partition = 0;
  std::uint8_t more = 0;        // 1: the message goes on in a later frame of the same number
  std::uint8_t reserved = 0;
  std::uint32_t message = 0;    // names the parts of one message
  std::uint64_t id = 0;
};
static_assert(sizeof(FrameHead) == 16 && std::has_unique_object_representations_v<FrameHead>);

inline constexpr std::size_t kMaxPartBytes = 128U << 10U;       // of a message in one frame
inline constexpr std::size_t kMaxMessageBytes = 32U << 20U;     // of all its parts
inline constexpr std::size_t kMaxOpenMessages = 16;             // whose last part has not come

// -- what only frames carry --------------------------------------------------------------------------------------------

struct Nothing {
  std::uint8_t zero = 0;
};
struct SenderName {
  protocol::SenderId sender = 0;
};
struct Wanted {
  bool on = false;
};
struct LeaseOutcome {
  Reason reason = Reason::none;
};
struct StatsReply {
  protocol::StoreStats stats;
};
struct ReportCounter {
  std::string name;
  std::uint64_t value = 0;
};
/// What a process counts of its own accord, under one of its labels. Without counters: the label is forgotten.
struct Report {
  std::string label;
  std::vector<ReportCounter> counters;
};
struct ClientEntry {
  std::uint32_t pid = 0;
  std::string engine_id;
  bool read_only = false;
  std::uint32_t ranks = 0;
  std::uint64_t open_grants = 0;
  std::uint64_t quarantined_bytes = 0;
  std::vector<Report> reports;
};
struct ClientsReply {
  std::vector<ClientEntry> clients;
};
struct Events {
  std::vector<protocol::ObjectEvent> events;
};
KVONCE_FIELDS(Nothing, x.zero)
KVONCE_FIELDS(SenderName, x.sender)
KVONCE_FIELDS(Wanted, x.on)
KVONCE_FIELDS(LeaseOutcome, x.reason)
KVONCE_FIELDS(StatsReply, x.stats)
KVONCE_FIELDS(ReportCounter, x.name, x.value)
KVONCE_FIELDS(Report, x.label, x.counters)
KVONCE_FIELDS(ClientEntry, x.pid, x.engine_id, x.read_only, x.ranks, x.open_grants, x.quarantined_bytes, x.reports)
KVONCE_FIELDS(ClientsReply, x.clients)
KVONCE_FIELDS(Events, x.events)

// -- sending -----------------------------------------------------------------------------------------------------------

/// Packs a message and gives its frames to `send(std::string_view) -> bool`, in order; false when one was not taken.
/// `message` is a number that no other message in several frames has on this link at the moment.
template <class T, class Send>
bool send_frames(FrameHead head, std::uint32_t message, const T& x, const Send& send) {
  thread_local std::string packed;
  packed.assign(sizeof(FrameHead), '\0');
  {
    Writer write(packed);
    each_field(write, x);
  }
  head.message = message;
  std::size_t at = sizeof(FrameHead);
  while (true) {
    const std::size_t left = packed.size() - at;
    const std::size_t part = left < kMaxPartBytes ? left : kMaxPartBytes;
    head.more = part < left ? 1 : 0;
    // The head lies right before its part; what was there has been sent already.
    std::memcpy(packed.data() + at - sizeof(FrameHead), &head, sizeof head);
    if (!send(std::string_view(packed.data() + at - sizeof(FrameHead), part + sizeof(FrameHead)))) return false;
    if (head.more == 0) break;
    at += part;
  }
  if (packed.capacity() > 4 * kMaxPartBytes) std::string().swap(packed);
  return true;
}

// -- receiving ---------------------------------------------------------------------------------------------------------

/// Puts the parts of messages together. What a peer can make it hold is bounded.
class FrameAssembler {
 public:
  enum class Status : std::uint8_t { whole, part, broken };
  /// whole: `head` and `payload` are a message; the payload is good until the next call.
  Status take(std::string_view frame, FrameHead* head, std::string_view* payload);

 private:
  std::unordered_map<std::uint32_t, std::string> open_;
  std::size_t open_bytes_ = 0;
  std::string whole_;
};

}  // namespace kvonce::messages
