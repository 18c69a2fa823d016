// SPDX-License-Identifier: Apache-2.0
//
// Where each partition's index and slots lie in the arena.
#pragma once

#include <cstdint>
#include <vector>

#include <kvonce/config.hpp>

#include "protocol/page_index.hpp"

namespace kvonce::runtime {

struct PartitionLayout {
  protocol::IndexLimits index;
  std::uint64_t index_offset = 0;
  std::uint64_t index_bytes = 0;
  std::uint64_t slots_offset = 0;
  std::uint64_t slots_bytes = 0;
};

struct Layout {
  Error error;
  std::vector<PartitionLayout> partitions;
};

/// Partitions of equal shares, each [index][slots]. `config` has been checked; `arena_bytes` are really there.
Layout plan_layout(const RuntimeConfig& config, std::uint64_t arena_bytes);

}  // namespace kvonce::runtime
