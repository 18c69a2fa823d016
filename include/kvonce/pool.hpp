// SPDX-License-Identifier: Apache-2.0
//
// How pools and page groups are described.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <kvonce/types.hpp>

namespace kvonce {

/// One layer of one component: row r starts at base + r * row_stride, and row_bytes of it belong to the object.
struct LayerBuffer {
  void* base = nullptr;
  std::uint64_t row_stride = 0;  ///< bytes, >= row_bytes
  std::uint64_t row_bytes = 0;   ///< bytes, >= 1
};

/// K, V, latent, temporal, conv ...: one buffer per layer.
struct Component {
  std::string name;
  std::vector<LayerBuffer> layers;
};

/// One rank's buffers for one kind of object. The object of a page is its row in every layer of every component, in
/// this order: 1 B to 256 MiB in 1 to 65,536 ranges. A pool without components has no bytes and takes no part.
struct PoolSpec {
  std::string name;  ///< 1 to 255 bytes; one of the group's pools
  /// Which part of the content this rank holds: ranks that declare the same shard hold identical objects.
  /// Unset: sharded by rank on every axis (the safe default). Must agree with the group's shard counts.
  std::optional<Coordinates> shard{};
  std::vector<Component> components{};
  std::uint64_t rows = 0;  ///< rows of every layer; rows are named 0 .. rows-1
  MemoryKind memory = MemoryKind::host;
  std::int32_t device = 0;
};

/// One pool of a page group, described without memory.
struct GroupPool {
  std::string name;
  /// Number of shards per axis. {1,1,1}: replicated, the same bytes on all ranks. Unset: as many as there are ranks.
  std::optional<ShardCounts> shards;
  HitPolicy policy = HitPolicy::every_page();
  bool optional = false;  ///< a prefix is restorable without it (draft)
};

/// The pools that a prefix of one model needs together.
struct GroupSpec {
  std::string name;   ///< 1 to 255 bytes, unique within the namespace
  ShardCounts ranks;  ///< ranks of the engine on each axis
  std::vector<GroupPool> pools;  ///< 1 to 64
};

}  // namespace kvonce
