// SPDX-License-Identifier: Apache-2.0
#include "apps/workload/presets.hpp"

#include <set>

#include <doctest/doctest.h>

using namespace kvonce::workload;

namespace {

ModelPreset preset(std::string_view name, std::uint32_t ranks = 8) {
  auto found = find_preset(name, ranks);
  REQUIRE_MESSAGE(found.preset, found.error);
  return *found.preset;
}

const PoolPreset& pool(const ModelPreset& model, std::string_view name) {
  for (const PoolPreset& one : model.pools) {
    if (one.name == name) return one;
  }
  FAIL("no pool " << std::string(name));
  return model.pools.front();
}

struct Expected {
  const char* model;
  const char* pool;
  std::uint32_t shards;
  bool trailing;
  std::uint64_t bytes;
  std::size_t ranges;
};

}  // namespace

TEST_CASE("each pool of each model has the bytes, shards and ranges of the table at eight ranks") {
  const Expected rows[] = {
      {"deepseek-v3", "kv", 1, false, 4'497'408, 61},
      {"kimi-k2", "kv", 1, false, 4'497'408, 61},
      {"deepseek-v3-fp8", "kv", 1, false, 2'248'704, 61},
      {"deepseek-v3-mtp", "kv", 1, false, 4'497'408 + 73'728, 62},
      {"deepseek-v32", "kv", 1, false, 2'561'024, 61},
      {"deepseek-v32", "indexer", 1, false, 515'328, 61},
      {"deepseek-v4-flash", "c4", 1, false, 786'240, 21},
      {"deepseek-v4-flash", "c4_indexer", 1, false, 177'408, 21},
      {"deepseek-v4-flash", "c128", 1, false, 34'560, 20},
      {"deepseek-v4-flash", "swa", 1, true, 6'439'680, 43},
      {"deepseek-v4-flash", "c4_state", 1, true, 1'376'256, 21},
      {"deepseek-v4-flash", "c4_indexer_state", 1, true, 344'064, 21},
      {"kimi-k3", "kv", 1, false, 1'769'472, 24},
      {"kimi-k3-fp8", "kv", 1, false, 884'736, 24},
      {"kimi-k3", "state", 8, true, 56'171'520, 276},
      {"kimi-k3-draft", "draft", 8, false, 368'640, 5},
      {"kimi-linear-48b", "kv", 1, false, 516'096, 7},
      {"kimi-linear-48b", "state", 8, true, 5'427'200, 80},
      {"qwen3-next", "kv", 2, false, 786'432, 24},
      {"qwen3-next", "state", 8, true, 9'658'368, 72},
      {"llama-gqa-8", "kv", 8, false, 2'621'440, 160},
  };
  for (const Expected& row : rows) {
    CAPTURE(row.model);
    CAPTURE(row.pool);
    const ModelPreset model = preset(row.model);
    const PoolPreset& one = pool(model, row.pool);
    CHECK(one.object_bytes() == row.bytes);
    CHECK(model.shards(one) == row.shards);
    CHECK(one.hit_policy.is_trailing() == row.trailing);
    CHECK(one.ranges.size() == row.ranges);
    CHECK(one.optional == (one.name == "draft"));
  }
}

TEST_CASE("sharded objects shrink with the number of ranks and grouped heads never split below one head") {
  CHECK(pool(preset("kimi-linear-48b", 4), "state").object_bytes() == 10'854'400);
  CHECK(pool(preset("kimi-k3-draft", 4), "draft").object_bytes() == 368'640);
  const ModelPreset qwen1 = preset("qwen3-next", 1);
  CHECK(qwen1.shards(pool(qwen1, "kv")) == 1);
  CHECK(pool(qwen1, "kv").object_bytes() == 2 * 786'432);
  const ModelPreset qwen2 = preset("qwen3-next", 2);
  CHECK(qwen2.shards(pool(qwen2, "kv")) == 2);
  CHECK(pool(qwen2, "kv").object_bytes() == 786'432);
  const ModelPreset llama16 = preset("llama-gqa-8", 16);
  CHECK(llama16.shards(pool(llama16, "kv")) == 8);
  CHECK(pool(llama16, "kv").sharing == Sharing::group);
  CHECK(pool(llama16, "kv").object_bytes() == 2'621'440);
}

TEST_CASE("pages of a trace have the sizes of the reference table") {
  const ModelPreset k3 = for_trace_pages(preset("kimi-k3-draft"));
  CHECK(k3.page_tokens == 512);
  CHECK(pool(k3, "kv").object_bytes() == 14'155'776);
  CHECK(pool(k3, "draft").object_bytes() == 2'949'120);
  CHECK(k3.page_bytes(KeyMode::per_shard) == 14'155'776 + 8 * 2'949'120);
  CHECK(k3.page_bytes(KeyMode::per_rank) == 8 * 14'155'776 + 8 * 2'949'120);
  CHECK(k3.checkpoint_bytes(KeyMode::per_shard) == 449'372'160);
  CHECK(k3.checkpoint_bytes(KeyMode::per_rank) == 449'372'160);
  const ModelPreset k2 = for_trace_pages(preset("kimi-k2"));
  CHECK(k2.page_bytes(KeyMode::per_shard) == 35'979'264);
  CHECK(k2.checkpoint_bytes(KeyMode::per_shard) == 0);
  const ModelPreset v4 = for_trace_pages(preset("deepseek-v4-flash"));
  CHECK(pool(v4, "c4").object_bytes() == 2 * 786'240);
  CHECK(pool(v4, "swa").object_bytes() == 6'439'680);
}

TEST_CASE("the coarse form has one range per component and the same bytes") {
  for (const std::string& name : preset_names()) {
    CAPTURE(name);
    const ModelPreset full = preset(name);
    const ModelPreset few = coarse(full);
    for (std::size_t i = 0; i < full.pools.size(); ++i) {
      std::set<std::uint16_t> components;
      for (const PresetRange& range : full.pools[i].ranges) components.insert(range.component);
      CHECK(few.pools[i].ranges.size() == components.size());
      CHECK(few.pools[i].object_bytes() == full.pools[i].object_bytes());
    }
  }
}

TEST_CASE("a scaled object keeps its ranges and is within a byte of its share") {
  for (const std::string& name : preset_names()) {
    const ModelPreset full = preset(name);
    for (const std::uint64_t divisor : {1, 3, 16, 1000, 1024}) {
      CAPTURE(name);
      CAPTURE(divisor);
      const ModelPreset small = scaled(full, divisor);
      for (std::size_t i = 0; i < full.pools.size(); ++i) {
        CHECK(small.pools[i].ranges.size() == full.pools[i].ranges.size());
        const std::uint64_t exact = full.pools[i].object_bytes();
        const std::uint64_t back = small.pools[i].object_bytes() * divisor;
        CHECK((back > exact ? back - exact : exact - back) <= divisor / 2);
      }
    }
  }
}

TEST_CASE("a range never vanishes, however far it is scaled") {
  const ModelPreset tiny = scaled(preset("kimi-k3"), 1'000'000'000);
  for (const PoolPreset& one : tiny.pools) {
    for (const PresetRange& range : one.ranges) CHECK(range.bytes == 1);
  }
  CHECK(pool(tiny, "state").object_bytes() == 276);
}

TEST_CASE("unknown models and impossible numbers of ranks are refused with what is allowed") {
  const auto unknown = find_preset("kimi-k9", 8);
  CHECK_FALSE(unknown.preset);
  CHECK(unknown.error.find("\"kimi-k9\"") != std::string::npos);
  CHECK(unknown.error.find("kimi-k3-draft") != std::string::npos);
  for (const std::uint32_t ranks : {0U, 3U, 32U}) {
    const auto found = find_preset("kimi-k3", ranks);
    CHECK_FALSE(found.preset);
    CHECK(found.error.find("1, 2, 4, 8 and 16") != std::string::npos);
  }
}
