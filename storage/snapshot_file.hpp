// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "storage/arena.hpp"

namespace kvonce::storage {

// Raised with every change of the file's frame; the parts have versions of their own. Readers know all older ones.
inline constexpr std::uint32_t kSnapshotFileVersion = 1;

// Of all parts together: far above what the largest index needs, far below what would be a nuisance to read.
inline constexpr std::uint64_t kMostSnapshotBytes = std::uint64_t{64} << 30;

// What a store that ends cleanly leaves beside its arena's file: one part a partition, opaque here. The file says which arena
// it belongs to (the very file, in this boot), is checksummed, and appears whole or not at all.
//
// Owner only, mode 0600. Nothing when it is written; else why it is not.
std::optional<std::string> write_snapshot_file(const std::string& path, const FileIdentity& arena, const std::vector<std::string>& parts);

struct TakenSnapshot {
  std::vector<std::string> parts;  // empty: there is none to start from
  std::string why_not;
  // Process ids in it mean the same here. False (another container): every process that is named counts as alive.
  bool same_processes = false;
};

// Reads the snapshot of this arena and removes it, whatever is in it: a store that then ends in any other way finds none, and
// starts cold. Call it before anything of the arena changes. One of more than `most_bytes` is not read.
TakenSnapshot take_snapshot_file(const std::string& path, const FileIdentity& arena, std::uint64_t most_bytes = kMostSnapshotBytes);

}  // namespace kvonce::storage
