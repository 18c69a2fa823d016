// SPDX-License-Identifier: Apache-2.0
//
// One registered pool of one rank, as copies and calls need it.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "protocol/geometry.hpp"
#include "protocol/key.hpp"
#include "storage/slot_shape.hpp"

namespace kvonce::actors {

struct PoolMemory {
  std::string name;
  protocol::PoolGeometry geometry;
  std::optional<storage::SlotShape> shape;  // nothing: a pool without bytes
  std::uint32_t rank_shard = 0;             // flat, when the pool is sharded by rank
  std::atomic<bool> closing{false};         // unregistered, or about to be

  /// Ranges ordered by layer: those of layers [a, b) are at layer_start[a] .. layer_start[b].
  std::vector<std::uint32_t> by_layer;
  std::vector<std::uint32_t> layer_start;
  void order_layers();

  /// The keys of this moment, for lookups that ask no actor.
  void set_keying(const protocol::PoolKeying& keying) noexcept {
    key_.store(std::uint64_t{keying.ns} << 48U | std::uint64_t{keying.pool} << 32U | keying.shard, std::memory_order_release);
  }
  protocol::PoolKeying keying() const noexcept {
    const std::uint64_t key = key_.load(std::memory_order_acquire);
    return {static_cast<protocol::NamespaceId>(key >> 48U), static_cast<protocol::PoolId>(key >> 32U), 0,
            static_cast<std::uint32_t>(key)};
  }

 private:
  std::atomic<std::uint64_t> key_{0};
};

inline void PoolMemory::order_layers() {
  const std::uint32_t layers = geometry.layers();
  layer_start.assign(std::size_t{layers} + 1, 0);
  for (std::uint32_t r = 0; r < geometry.ranges(); ++r) ++layer_start[geometry.layer_of(r) + 1];
  for (std::uint32_t l = 0; l < layers; ++l) layer_start[l + 1] += layer_start[l];
  by_layer.resize(geometry.ranges());
  std::vector<std::uint32_t> next(layer_start.begin(), layer_start.end());
  for (std::uint32_t r = 0; r < geometry.ranges(); ++r) by_layer[next[geometry.layer_of(r)]++] = r;
}

}  // namespace kvonce::actors
