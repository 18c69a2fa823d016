// SPDX-License-Identifier: Apache-2.0
//
// Deliberate faults. Each must be found by the checkers within a stated number of seeds: what no checker finds, no
// checker checks.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "protocol/pool_core.hpp"
#include "protocol/retire_round.hpp"
#include "protocol/store_core.hpp"

namespace kvonce::sim {

struct SimFaults {
  bool corrupt_load = false;   // a verified row is changed before the engine sees it
  bool corrupt_slot = false;   // a copy puts one wrong byte into its slot and hashes the right one
  bool drop_verdicts = false;  // a store's verdicts are lost although the connection holds
  bool reuse_row = false;      // the engine changes a row before its verdict
};

struct Faults {
  protocol::StoreFaults store;
  protocol::RetireFaults retire;
  protocol::PoolFaults pool;
  SimFaults sim;
};

struct FaultInfo {
  const char* name;
  /// Must be found within the first so many seeds.
  std::uint32_t within_seeds;
  void (*set)(Faults&);
  const char* what;
};
std::span<const FaultInfo> all_faults();
/// Null: no such fault.
const FaultInfo* find_fault(std::string_view name);

}  // namespace kvonce::sim
