// SPDX-License-Identifier: Apache-2.0
#include "apps/workload/presets.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <span>

#include "apps/workload/trace_source.hpp"

namespace kvonce::workload {
namespace {

// Bytes of one (component, layer) range at the table's page size. For pools that split by heads: of one rank of eight.
constexpr std::uint64_t kMlaBf16 = 73'728;       // 64 tokens x (512 + 64) x 2
constexpr std::uint64_t kMlaFp8 = kMlaBf16 / 2;
constexpr std::uint64_t kDsaKv = 41'984;         // 64 x 656
constexpr std::uint64_t kDsaIndexer = 8'448;     // 64 x 132
constexpr std::uint64_t kK3Temporal = 786'432;   // fp32
constexpr std::uint64_t kK3Conv = 9'216;
constexpr std::uint64_t kLinearTemporal = 262'144;  // fp32
constexpr std::uint64_t kKimiLinearConv = 3'072;
constexpr std::uint64_t kQwenConv = 6'144;
constexpr std::uint64_t kQwenHead = 32'768;      // 64 x 256 x 2: one KV head's k or v
constexpr std::uint64_t kLlamaHead = 16'384;     // 64 x 128 x 2: one KV head's k or v
constexpr std::uint32_t kTableRanks = 8;

struct Component {
  std::uint16_t layers;
  std::uint64_t bytes;
};

std::vector<PresetRange> ranges_of(std::span<const Component> components) {
  std::vector<PresetRange> out;
  for (std::size_t c = 0; c < components.size(); ++c) {
    for (std::uint16_t layer = 0; layer < components[c].layers; ++layer) {
      out.push_back({static_cast<std::uint16_t>(c), layer, components[c].bytes});
    }
  }
  return out;
}

PoolPreset replicated(std::string name, std::uint32_t ranks, HitPolicy policy, std::initializer_list<Component> components) {
  return {std::move(name), Sharing::replicated, ranks, policy, false, ranges_of(std::span(components.begin(), components.size()))};
}

// Split evenly over the ranks; `components` are what one rank of eight has. All byte counts are divisible by 2, so 16 ranks work.
PoolPreset split(std::string name, std::uint32_t ranks, HitPolicy policy, std::initializer_list<Component> components) {
  PoolPreset pool{std::move(name), Sharing::sharded, 1, policy, false, ranges_of(std::span(components.begin(), components.size()))};
  for (PresetRange& range : pool.ranges) range.bytes = range.bytes * kTableRanks / ranks;
  return pool;
}

// Grouped heads: with more ranks than KV heads, neighbouring ranks hold the same head.
PoolPreset heads(std::uint32_t ranks, std::uint32_t kv_heads, std::uint16_t layers, std::uint64_t head_bytes) {
  const std::uint32_t shards = std::min(ranks, kv_heads);
  const std::uint64_t bytes = head_bytes * (kv_heads / shards);
  const std::array<Component, 2> components{Component{layers, bytes}, Component{layers, bytes}};
  const std::uint32_t ranks_per_shard = ranks / shards;
  return {"kv", ranks_per_shard == 1 ? Sharing::sharded : Sharing::group, ranks_per_shard, HitPolicy::every_page(), false, ranges_of(components)};
}

using Pools = std::vector<PoolPreset>;
constexpr HitPolicy kEveryPage = HitPolicy::every_page();
constexpr HitPolicy kTrailing1 = HitPolicy::trailing(1);

Pools deepseek_v3(std::uint32_t ranks) { return {replicated("kv", ranks, kEveryPage, {{61, kMlaBf16}})}; }
Pools deepseek_v3_fp8(std::uint32_t ranks) { return {replicated("kv", ranks, kEveryPage, {{61, kMlaFp8}})}; }
Pools deepseek_v3_mtp(std::uint32_t ranks) { return {replicated("kv", ranks, kEveryPage, {{61, kMlaBf16}, {1, kMlaBf16}})}; }

Pools deepseek_v32(std::uint32_t ranks) {
  return {replicated("kv", ranks, kEveryPage, {{61, kDsaKv}}), replicated("indexer", ranks, kEveryPage, {{61, kDsaIndexer}})};
}

Pools deepseek_v4_flash(std::uint32_t ranks) {
  return {replicated("c4", ranks, kEveryPage, {{21, 37'440}}),
          replicated("c4_indexer", ranks, kEveryPage, {{21, 8'448}}),
          replicated("c128", ranks, kEveryPage, {{20, 1'728}}),
          replicated("swa", ranks, kTrailing1, {{43, 149'760}}),
          replicated("c4_state", ranks, kTrailing1, {{21, 65'536}}),
          replicated("c4_indexer_state", ranks, kTrailing1, {{21, 16'384}})};
}

PoolPreset k3_state(std::uint32_t ranks) {
  return split("state", ranks, kTrailing1, {{69, kK3Temporal}, {69, kK3Conv}, {69, kK3Conv}, {69, kK3Conv}});
}

Pools kimi_k3(std::uint32_t ranks) { return {replicated("kv", ranks, kEveryPage, {{24, kMlaBf16}}), k3_state(ranks)}; }
Pools kimi_k3_fp8(std::uint32_t ranks) { return {replicated("kv", ranks, kEveryPage, {{24, kMlaFp8}}), k3_state(ranks)}; }

Pools kimi_k3_draft(std::uint32_t ranks) {
  Pools pools = kimi_k3(ranks);
  const std::array<Component, 1> layers{Component{5, kMlaBf16}};  // a whole one on every rank, whatever their number
  pools.push_back({"draft", Sharing::sharded, 1, kEveryPage, true, ranges_of(layers)});
  return pools;
}

Pools kimi_linear_48b(std::uint32_t ranks) {
  return {replicated("kv", ranks, kEveryPage, {{7, kMlaBf16}}),
          split("state", ranks, kTrailing1, {{20, kLinearTemporal}, {20, kKimiLinearConv}, {20, kKimiLinearConv}, {20, kKimiLinearConv}})};
}

Pools qwen3_next(std::uint32_t ranks) {
  return {heads(ranks, 2, 12, kQwenHead), split("state", ranks, kTrailing1, {{36, kLinearTemporal}, {36, kQwenConv}})};
}

Pools llama_gqa_8(std::uint32_t ranks) { return {heads(ranks, 8, 80, kLlamaHead)}; }

struct Entry {
  std::string_view name;
  std::uint32_t page_tokens;
  Pools (*make)(std::uint32_t ranks);
};

constexpr std::array<Entry, 12> kPresets{{{"deepseek-v3", 64, deepseek_v3},
                                          {"deepseek-v3-fp8", 64, deepseek_v3_fp8},
                                          {"deepseek-v3-mtp", 64, deepseek_v3_mtp},
                                          {"kimi-k2", 64, deepseek_v3},
                                          {"deepseek-v32", 64, deepseek_v32},
                                          {"deepseek-v4-flash", 256, deepseek_v4_flash},
                                          {"kimi-k3", 64, kimi_k3},
                                          {"kimi-k3-fp8", 64, kimi_k3_fp8},
                                          {"kimi-k3-draft", 64, kimi_k3_draft},
                                          {"kimi-linear-48b", 64, kimi_linear_48b},
                                          {"qwen3-next", 64, qwen3_next},
                                          {"llama-gqa-8", 64, llama_gqa_8}}};

std::uint64_t total_bytes(const ModelPreset& preset, KeyMode mode, bool trailing) {
  std::uint64_t total = 0;
  for (const PoolPreset& pool : preset.pools) {
    if (pool.hit_policy.is_trailing() != trailing) continue;
    total += pool.object_bytes() * (mode == KeyMode::per_rank ? preset.ranks : preset.shards(pool));
  }
  return total;
}

void scale_ranges(std::vector<PresetRange>& ranges, std::uint64_t divisor) {
  std::uint64_t exact_end = 0;  // in unscaled bytes
  std::uint64_t end = 0;
  for (PresetRange& range : ranges) {
    exact_end += range.bytes;
    const std::uint64_t rest = exact_end % divisor;
    const std::uint64_t rounded_end = exact_end / divisor + (rest >= divisor - rest ? 1 : 0);
    range.bytes = rounded_end > end ? rounded_end - end : 1;
    end += range.bytes;
  }
}

}  // namespace

std::uint64_t PoolPreset::object_bytes() const noexcept {
  std::uint64_t total = 0;
  for (const PresetRange& range : ranges) total += range.bytes;
  return total;
}

std::uint64_t ModelPreset::page_bytes(KeyMode mode) const noexcept { return total_bytes(*this, mode, false); }
std::uint64_t ModelPreset::checkpoint_bytes(KeyMode mode) const noexcept { return total_bytes(*this, mode, true); }

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Entry& entry : kPresets) names.emplace_back(entry.name);
  return names;
}

FoundPreset find_preset(std::string_view name, std::uint32_t ranks) {
  if (ranks == 0 || ranks > kPresetRanksMax || (ranks & (ranks - 1)) != 0) {
    return {std::nullopt, std::to_string(ranks) + " ranks are not allowed; allowed are 1, 2, 4, 8 and 16"};
  }
  std::string names;
  for (const Entry& entry : kPresets) {
    if (entry.name == name) return {ModelPreset{std::string(name), ranks, entry.page_tokens, entry.make(ranks)}, {}};
    names += (names.empty() ? "" : ", ") + std::string(entry.name);
  }
  return {std::nullopt, "preset \"" + std::string(name) + "\" is unknown; allowed are " + names};
}

ModelPreset for_trace_pages(const ModelPreset& preset) {
  ModelPreset out = preset;
  const std::uint64_t factor = kTracePageTokens / preset.page_tokens;
  out.page_tokens = kTracePageTokens;
  for (PoolPreset& pool : out.pools) {
    if (pool.hit_policy.is_trailing()) continue;
    for (PresetRange& range : pool.ranges) range.bytes *= factor;
  }
  return out;
}

ModelPreset coarse(const ModelPreset& preset) {
  ModelPreset out = preset;
  for (PoolPreset& pool : out.pools) {
    std::map<std::uint16_t, std::uint64_t> bytes;
    for (const PresetRange& range : pool.ranges) bytes[range.component] += range.bytes;
    pool.ranges.clear();
    for (const auto& [component, sum] : bytes) pool.ranges.push_back({component, 0, sum});
  }
  return out;
}

ModelPreset scaled(const ModelPreset& preset, std::uint64_t divisor) {
  ModelPreset out = preset;
  for (PoolPreset& pool : out.pools) scale_ranges(pool.ranges, divisor);
  return out;
}

}  // namespace kvonce::workload
