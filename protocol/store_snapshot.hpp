// SPDX-License-Identifier: Apache-2.0
//
// What one partition's snapshot holds, and its bytes. Native-endian: writer and reader are one host.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "protocol/store_impl.hpp"

namespace kvonce::protocol {

/// Raised with every change of the format. Readers know all older ones.
inline constexpr std::uint32_t kSnapshotVersion = 2;  // 2: numbers of namespaces and groups have gaps

/// The layout that a snapshot belongs to: a store with another one starts cold.
struct SnapshotLayout {
  std::uint32_t partition = 0;
  std::uint32_t partitions = 1;
  IndexLimits index;
  std::uint64_t index_offset = 0;
  std::uint64_t slots_offset = 0;
  std::uint64_t slots_bytes = 0;
};

struct SnapshotContents {
  SnapshotLayout layout;
  PageIndex::Marks marks;
  Epoch last_epoch = 0;
  std::vector<CatalogUpdate> catalog;
  EvictionOrder::Saved order;
  std::vector<std::uint64_t> ghosts;  // oldest first
  struct Incomplete {
    std::uint64_t mixed = 0;
    Duration age = 0;
    RecordId record = kNone;
    bool checkpoint = false;
  };
  std::vector<Incomplete> incomplete;
  std::vector<Sweep> sweeps;
  /// A slot that somebody may still write to.
  struct Quarantined {
    Epoch epoch = 0;
    ClientId client = 0;
    NamespaceId ns = 0;
    PoolId pool = 0;
    storage::Slot slot{};
  };
  std::vector<Quarantined> quarantined;
  std::vector<ClientProcess> processes;  // of those slots' writers
  // Times are what is left.
  std::vector<std::pair<LeaseId, Lease>> leases;
  std::vector<std::pair<LeaseId, PartLease>> pins;
  std::vector<std::pair<RequestKey, KeptAnswer>> kept;
  std::vector<LeaseId> ended_leases;
};

SnapshotLayout layout_of(const StoreConfig& config);
std::string encode_snapshot(const SnapshotContents& contents);
/// Nothing, and why, for bytes that are no snapshot of a version known here.
std::optional<SnapshotContents> decode_snapshot(std::string_view bytes, std::string* why_not);

}  // namespace kvonce::protocol
