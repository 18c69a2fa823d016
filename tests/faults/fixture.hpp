// SPDX-License-Identifier: Apache-2.0
//
// An engine with several pools on all its ranks, for faults that need more than one kind of object.
#pragma once

#include "tests/runtime/fixture.hpp"

#include <cstdint>
#include <numeric>
#include <string_view>

namespace faults_test {

using namespace runtime_test;  // NOLINT: one vocabulary with the runtime's tests

inline bool says(const Error& error, std::string_view a, std::string_view b = "") {
  const bool ok = error.reason != Reason::none && error.text.find(a) != std::string::npos && error.text.find(b) != std::string::npos;
  if (!ok) MESSAGE("the error says: " << error.text);
  return ok;
}

struct PoolPlan {
  std::string name;
  bool sharded = false;  // by rank; else all ranks hold the same bytes
  std::uint64_t row_bytes = 1024;
  std::size_t layers = 2;
  HitPolicy policy = HitPolicy::every_page();
  bool optional = false;
};

/// One namespace, one group, `ranks` ranks on axis tp, each with all pools. Bytes follow from (page, pool, shard, salt).
struct Model {
  struct Pool {
    std::unique_ptr<Rows> rows;
    PoolHandle handle;
    std::uint64_t salt = 0;
  };
  struct OneRank {
    std::shared_ptr<Rank> rank;
    std::vector<Pool> pools;
  };

  Model(Runtime& runtime_, const std::string& text, std::vector<PoolPlan> plans_, std::uint16_t rank_count = 1,
        std::uint64_t row_count = 32, std::uint64_t salt = 0, const std::string& group_name = "main")
      : runtime(&runtime_), plans(std::move(plans_)) {
    auto opened = runtime->open_namespace(text);
    REQUIRE_MESSAGE(opened, opened.error.text);
    ns = *opened;
    GroupSpec spec;
    spec.name = group_name;
    spec.ranks.tp = rank_count;
    for (const PoolPlan& plan : plans)
      spec.pools.push_back({plan.name, plan.sharded ? std::optional<ShardCounts>{} : ShardCounts{}, plan.policy, plan.optional});
    auto registered = runtime->register_group(ns, spec);
    REQUIRE_MESSAGE(registered, registered.error.text);
    group = *registered;
    for (std::uint16_t r = 0; r < rank_count; ++r) {
      Coordinates at;
      at.tp = {r, rank_count};
      auto added = runtime->add_rank(group, at);
      REQUIRE_MESSAGE(added, added.error.text);
      OneRank made{*added, {}};
      for (std::size_t p = 0; p < plans.size(); ++p) {
        Pool pool;
        pool.rows = std::make_unique<Rows>(row_count, plans[p].row_bytes, plans[p].layers);
        pool.salt = salt + 17 * p + (plans[p].sharded ? 3U * (r + 1U) : 0U);
        PoolSpec pool_spec;
        pool_spec.name = plans[p].name;
        if (!plans[p].sharded) pool_spec.shard = Coordinates{};
        pool_spec.components.push_back(pool.rows->component("c"));
        pool_spec.rows = row_count;
        auto handle = made.rank->register_pool(pool_spec);
        REQUIRE_MESSAGE(handle, handle.error.text);
        pool.handle = *handle;
        made.pools.push_back(std::move(pool));
      }
      ranks.push_back(std::move(made));
    }
  }

  std::uint32_t shards(std::size_t pool) const { return plans[pool].sharded ? static_cast<std::uint32_t>(ranks.size()) : 1; }
  std::uint64_t object_bytes(std::size_t pool) const { return plans[pool].row_bytes * plans[pool].layers; }

  /// Puts the chain's pages in the named pools of one rank; row i holds page i.
  std::shared_ptr<PutOperation> put(std::size_t rank, const std::vector<PageHash>& pages, const std::vector<std::size_t>& pools,
                                    PutOptions options = {}) {
    PutBatch batch;
    batch.pages = pages;
    for (const std::size_t p : pools) {
      Pool& pool = ranks[rank].pools[p];
      for (std::uint32_t i = 0; i < pages.size(); ++i) {
        pool.rows->fill(i, pages[i], pool.salt);
        batch.items.push_back({i, pool.handle, i});
      }
    }
    auto result = ranks[rank].rank->put(std::move(batch), std::move(options));
    REQUIRE_MESSAGE(result, result.error.text);
    return *result;
  }
  LookupResult lookup(const std::vector<PageHash>& pages, LookupOptions options = {}) {
    auto result = runtime->lookup(group, pages, std::move(options));
    REQUIRE_MESSAGE(result, result.error.text);
    (*result)->wait();
    return (*result)->result();
  }
  /// Loads the pages of one pool into rows 0.. that were cleared before; how many came back right. None may be wrong.
  std::size_t load(std::size_t rank, std::size_t pool_index, const LeaseId& lease, const std::vector<PageHash>& pages) {
    Pool& pool = ranks[rank].pools[pool_index];
    pool.rows->clear();
    std::vector<LoadItem> items;
    for (std::size_t i = 0; i < pages.size(); ++i) items.push_back({pages[i], pool.handle, i});
    auto load = ranks[rank].rank->load(lease, std::move(items));
    REQUIRE_MESSAGE(load, load.error.text);
    (*load)->wait();
    REQUIRE((*load)->results().size() == pages.size());
    std::size_t right = 0;
    for (std::size_t i = 0; i < pages.size(); ++i) {
      if ((*load)->results()[i] != Reason::none) continue;
      CHECK(pool.rows->holds(i, pages[i], pool.salt));
      ++right;
    }
    return right;
  }
  std::size_t existing(std::size_t pool, std::uint32_t shard, const std::vector<PageHash>& pages) const {
    auto exists = runtime->exists(group, plans[pool].name, shard, pages);
    REQUIRE_MESSAGE(exists, exists.error.text);
    REQUIRE(exists->size() == pages.size());
    return static_cast<std::size_t>(std::accumulate(exists->begin(), exists->end(), 0));
  }

  Runtime* runtime;
  std::vector<PoolPlan> plans;
  NamespaceHandle ns;
  GroupHandle group;
  std::vector<OneRank> ranks;
};

inline std::unique_ptr<Runtime> start(const RuntimeConfig& config = small_config()) {
  auto started = Runtime::start(config);
  REQUIRE_MESSAGE(started, started.error.text);
  return std::move(*started);
}

}  // namespace faults_test
