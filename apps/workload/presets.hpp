// SPDX-License-Identifier: Apache-2.0
//
// What inference engines store per page, by model: pools, how their objects are shared among ranks, and the ranges each object is made of.
// Worked out from model dimensions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <kvonce/types.hpp>

namespace kvonce::workload {

enum class Sharing : std::uint8_t {
  replicated,  ///< the same bytes on all ranks: one object
  sharded,     ///< every rank its own
  group,       ///< `ranks_per_shard` neighbouring ranks have the same bytes
};

/// One piece of an object, contiguous in an engine's memory.
struct PresetRange {
  std::uint16_t component = 0;
  std::uint16_t layer = 0;
  std::uint64_t bytes = 0;
  friend bool operator==(const PresetRange&, const PresetRange&) = default;
};

struct PoolPreset {
  std::string name;
  Sharing sharing = Sharing::replicated;
  std::uint32_t ranks_per_shard = 1;
  HitPolicy hit_policy;   ///< every page, or a checkpoint over the trailing pages
  bool optional = false;  ///< a page is restorable without it
  std::vector<PresetRange> ranges;

  std::uint64_t object_bytes() const noexcept;
};

/// Whether each pool is stored once per shard, or, as stores without knowledge of shards do it, once per rank.
enum class KeyMode : std::uint8_t { per_shard, per_rank };

struct ModelPreset {
  std::string name;
  std::uint32_t ranks = 1;
  std::uint32_t page_tokens = 64;
  std::vector<PoolPreset> pools;

  std::uint32_t shards(const PoolPreset& pool) const noexcept { return ranks / pool.ranks_per_shard; }
  /// All objects of one page, over the pools that keep every page.
  std::uint64_t page_bytes(KeyMode mode) const noexcept;
  /// All objects of one checkpoint, over the trailing pools; 0 when the model has none.
  std::uint64_t checkpoint_bytes(KeyMode mode) const noexcept;
};

inline constexpr std::uint32_t kPresetRanksMax = 16;

/// All names that find_preset takes.
std::vector<std::string> preset_names();

struct FoundPreset {
  std::optional<ModelPreset> preset;
  std::string error;  // set exactly when there is no preset; names what is allowed
};

/// `ranks` (tensor parallel): 1, 2, 4, 8 or 16.
FoundPreset find_preset(std::string_view name, std::uint32_t ranks);

/// The same model with pages of 512 tokens, as traces have them: one object per pool, every-page objects as many times larger; a
/// checkpoint is the same.
ModelPreset for_trace_pages(const ModelPreset& preset);

/// One range per component instead of one per component and layer; same bytes.
ModelPreset coarse(const ModelPreset& preset);

/// Every range divided by `divisor` (not 0), at least 1 byte. An object's total is rounded once, not range by range, so it is within half
/// a byte of the exact one unless ranges had to be lifted to 1 byte; object_bytes() tells the total that came out.
ModelPreset scaled(const ModelPreset& preset, std::uint64_t divisor);

}  // namespace kvonce::workload
