// SPDX-License-Identifier: Apache-2.0
//
// What a seed decides before the run begins: sizes, limits, times and how often things go wrong.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "protocol/store_core.hpp"
#include "tests/sim/random.hpp"
#include "tests/sim/schedule.hpp"

namespace kvonce::sim {

enum class Sharding : std::uint8_t { replicated, grouped, per_rank };

struct PoolKnobs {
  std::string name;
  Sharding sharding = Sharding::replicated;
  std::uint16_t trailing = 0;  // 0: every page
  bool optional = false;
  std::uint32_t components = 1;
  std::uint32_t layers = 1;
  std::vector<std::uint64_t> range_bytes;  // component x layer
  std::uint64_t object_bytes = 0;
  std::uint32_t rows = 16;
};

struct EngineKnobs {
  std::uint32_t ns = 0;
  std::uint32_t ranks = 1;
  bool divergent = false;  // its bytes differ from the other engines' for some pages
};

struct Knobs {
  bool calm = false;  // nothing goes wrong, deadlines are long: the strict promises hold
  std::uint32_t partitions = 1;
  std::uint32_t namespaces = 1;
  std::uint32_t places = 0;  // of namespaces, fewer than there are namespaces; 0: room for all
  std::vector<EngineKnobs> engines;
  std::vector<PoolKnobs> pools;  // of every namespace
  std::uint64_t slots_bytes = 0;  // per partition
  protocol::StoreConfig store;    // limits and times; places are filled in by the node
  std::uint32_t pages_max = 12;   // of one prompt

  // Times.
  Duration link_delay_min = 0, link_delay_max = 0;
  Duration slice_min = 0, slice_max = 0;
  std::uint32_t slices_per_object = 2;
  Duration put_deadline_min = 0, put_deadline_max = 0;
  Duration action_gap = 0;
  Duration disk_delay_max = 0;
  std::uint64_t load_part_bytes = 0;  // of a load's first part; 0: loads are never cut
  Duration load_part_gap = 0;         // longest time between a part and the next

  // How often, in per mille of the workload's actions.
  std::uint32_t kill = 0, stop = 0, connection_loss = 0, crash = 0, bit_flip = 0, clear = 0, remove = 0, cancel = 0,
                gate = 0, forge = 0, flush = 0, unregister = 0;
  std::uint32_t guest = 0;  // a rank's process opens a further namespace for a while
  std::uint32_t move = 0;   // an engine's ranks leave their namespace and open another
  std::uint32_t hasty = 0;  // a rank closes its namespace and uses it all the same
  std::uint32_t slow_rank = 0;        // per mille of ranks that copy eight times slower
  std::uint32_t divergent_rank = 0;   // per mille of ranks whose bytes differ
  std::uint32_t broken_copy = 0;      // per mille of copies that cannot be made
  std::uint32_t disk_failure = 0;     // per mille of persists
  bool rogue = false;                 // one rank floods, forges and never gives back
  std::uint32_t warm = 0;             // per mille of restarts that take over snapshot and arena
  bool same_memory = false;           // a restarted store takes the old memory: late writers reach it
  std::uint32_t actions = 60;
};

/// `names` decides about namespaces alone: a run without a shortage of places is the same whatever it says.
Knobs make_knobs(Random& random, Random names);

}  // namespace kvonce::sim
