// SPDX-License-Identifier: Apache-2.0
//
// The registrar's side of namespaces: who asks for one gets it, or waits for a place. The places are given back in rounds over
// the store's partitions. Without clock, thread or message of its own: events are noted, step() says what follows.
//
//   a waiting opening -> every partition is asked what it has -> one namespace is chosen and retired -> every partition says
//   that nothing of it is left -> freed -> all that wait ask again, the first of them gets the place
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "protocol/namespace_book.hpp"
#include "protocol/store_core.hpp"

namespace kvonce::protocol {

/// Deliberate faults, for testing the simulator's checkers. All off in production; see tests/sim/faults.hpp.
struct RetireFaults {
  bool free_before_emptied = false;  // freed when the first partition has emptied it
  bool retire_open = false;          // who has it open is not looked at
};

/// A client's question for a namespace; `token` is the client's own.
struct NamespaceOpening {
  ClientId client = 0;
  std::uint64_t token = 0;
  NamespaceAsk ask;
};

class RetireRound {
 public:
  /// Openings that wait for a place; beyond, one is too_many at once. One place is freed after the other.
  static constexpr std::size_t kMaxWaiting = 4096;

  /// What the shell has to do, in this order.
  struct Step {
    std::vector<CatalogUpdate> updates;  // to be applied here at once, and by every other partition in this order
    std::optional<std::uint64_t> ask_use;  // every partition, this one included, is to be asked: number of the round
    std::optional<NamespaceId> freed;    // by `updates`: nothing that is kept by its number may be left
    struct Answer {
      NamespaceOpening to;
      RegisterAnswer answer;
    };
    std::vector<Answer> answers;         // after the updates have reached every partition
  };

  explicit RetireRound(std::uint32_t partitions = 1, const RetireFaults& faults = {}) : partitions_(partitions), faults_(faults) {}

  // -- events. After each: step() until it says nothing. -----------------------------------------------------------------
  /// The client is connected.
  void open(NamespaceOpening opening) { arrived_.push_back({std::move(opening), 0}); }
  void closed(ClientId client, NamespaceId ns) { book_.closed(client, ns); }
  /// What it has open is closed, what it waits for is not answered any more.
  void client_left(ClientId client);
  /// A partition's answer to a round's question; `use` by place. Of an earlier round, or told twice: nothing.
  void use(std::uint32_t partition, std::uint64_t round, std::span<const NamespaceUse> use);
  /// A partition says that nothing of a retired namespace is left in it, and nothing will come.
  void emptied(std::uint32_t partition, NamespaceId ns);

  /// `catalog`: the registrar's, with all updates of the steps before.
  std::optional<Step> step(const Catalog& catalog);

  std::size_t waiting() const { return waiting_.size() + arrived_.size(); }
  /// The one that is on its way out; kNoNamespace: none.
  NamespaceId retiring() const { return retiring_; }

 private:
  struct Waiting {
    NamespaceOpening opening;
    std::uint64_t after_round = 0;  // what rounds up to this one found was asked for before this one waited
  };

  std::optional<Step> free_emptied();
  std::optional<Step> answer_arrived(const Catalog& catalog);
  std::optional<Step> choose(const Catalog& catalog);
  bool all_emptied() const;

  std::uint32_t partitions_;
  RetireFaults faults_;
  NamespaceBook book_;
  std::deque<Waiting> arrived_;   // to be looked at by the next steps
  std::deque<Waiting> waiting_;   // for a place
  std::uint64_t round_ = 0;
  bool asking_ = false;           // a round's answers are missing
  std::vector<bool> told_;        // by partition: has answered the round
  std::vector<NamespaceUse> use_; // by place: the most that any partition has told
  NamespaceId retiring_ = kNoNamespace;
  std::vector<bool> emptied_;     // by partition, of `retiring_`
};

/// A partition's side: of each retired namespace it is told once that nothing of it is left here.
class EmptiedReport {
 public:
  /// Those of which it is true now and was not told before. After every event of the partition.
  std::vector<NamespaceId> newly_emptied(const StoreCore& core);

 private:
  std::vector<NamespaceId> told_;  // of the retired ones
};

}  // namespace kvonce::protocol
