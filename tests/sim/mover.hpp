// SPDX-License-Identifier: Apache-2.0
//
// The simulated copier of one rank: bytes really move, in slices that take simulated time, between the rank's rows and
// the store's slots.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "protocol/pool_core.hpp"
#include "tests/sim/sim.hpp"

namespace kvonce::sim {

using namespace protocol;

class Rank;
class Session;

class Mover {
 public:
  Mover(Sim& sim, Rank& rank) : sim_(sim), rank_(rank) {}

  void start(Session& session, CopyOrder order);
  void cancel(Session& session, std::uint64_t operation);
  /// True while a copy of this session may still write to a slot.
  bool writes_for(const Session& session) const;
  /// The process is gone: nothing moves any more.
  void stop_all();
  /// Most simulated time between two looks at deadline and cancellation.
  Duration slice_bound() const;
  bool idle() const { return copies_.empty(); }

 private:
  struct Copy {
    Session* session = nullptr;
    CopyOrder order;
    std::size_t item = 0;
    std::uint32_t range = 0;        // next range of the item
    std::uint64_t done_of_range = 0;
    bool item_begun = false;
    bool canceled = false;
    std::uint64_t wake = 0;         // number of the slice that is expected
    bool running = false;           // a slice has begun and moves its bytes at the next wake-up
    std::vector<CopyOutcome> outcomes;
    std::vector<std::uint32_t> counts;
    std::vector<std::uint64_t> sums;
    std::vector<std::uint64_t> item_sums;
    std::vector<std::byte> taken;   // of the present range, as it was read
  };
  using Id = std::uint64_t;

  void wake_later(Id id, Duration delay);
  void slice(Id id);
  void move_bytes(Copy& copy);
  void end_item(Copy& copy, CopyOutcome outcome);
  void end_rest(Copy& copy, CopyOutcome outcome);
  void finish(Id id);
  bool row_is_lent(const Copy& copy, const CopyOrder::Item& item) const;
  bool check_load(const Copy& copy, const CopyOrder::Item& item) const;
  Duration slice_time();

  Sim& sim_;
  Rank& rank_;
  std::map<Id, std::unique_ptr<Copy>> copies_;
  Id next_ = 1;
};

}  // namespace kvonce::sim
