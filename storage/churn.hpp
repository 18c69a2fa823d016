// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "storage/slot_shape.hpp"

namespace kvonce::storage {

// What an allocator did while objects came and went. Shares are parts of the arena, 0 to 1.
struct ChurnReport {
  std::uint64_t operations = 0;
  // Requests that failed although every object had been evicted for them.
  std::uint64_t refused = 0;
  // Evictions to stay below the wanted share.
  std::uint64_t evictions_for_share = 0;
  // Evictions because a request found no room: with enough free bytes (lost to fragmentation), or
  // without.
  std::uint64_t evictions_for_fragmentation = 0;
  std::uint64_t evictions_for_space = 0;
  // Most evictions that one request needed because it found no room.
  std::uint64_t evictions_for_space_max = 0;
  // Requests that found no room although enough bytes were free, and the free bytes at that moment:
  // largest and mean over these requests' evictions; 0 if there were none.
  std::uint64_t requests_fragmented = 0;
  double lost_share_max = 0;
  double lost_share_mean = 0;
  // Bytes of used slots beyond their payload (footers, rounding); mean after each operation.
  double overhead_share_mean = 0;
  // Payload; mean after each operation.
  double resident_share_mean = 0;
  double extents_mean = 0;
  std::uint64_t extents_max = 0;
  std::uint64_t objects_max = 0;
  std::uint64_t fragments_max = 0;
  std::uint64_t metadata_bytes = 0;
};

// Puts `operations` objects of shapes drawn at random into an arena of `arena_bytes` (sizes only:
// no memory of that size is used) that was filled before in the same way. The payload is held at
// `full_share` of the arena by evicting the oldest object or one drawn at random, in turn by
// chance; a request without room evicts one more and tries again. Same arguments, same report.
// An empty list of shapes gives an empty report.
ChurnReport run_allocator_churn(std::uint64_t arena_bytes, double full_share, std::uint64_t operations,
                                std::uint64_t seed, std::span<const SlotShape> shapes);

}  // namespace kvonce::storage
