// SPDX-License-Identifier: Apache-2.0
//
// An engine in a box for tests: a Runtime, one group, some ranks with rows whose bytes follow from (page, shard).
#pragma once

#include <kvonce/runtime.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace runtime_test {

using namespace kvonce;  // NOLINT: tests speak the public words
using std::chrono::milliseconds;

/// The i-th page of a chain, different for every `chain`.
inline PageHash page_of(std::uint64_t chain, std::uint64_t i) {
  PageHash page;
  std::uint64_t x = chain * 0x9e3779b97f4a7c15ULL + i + 1;
  for (auto& word : page.words) {
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9ULL;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebULL;
    x ^= x >> 31;
    word = x;
  }
  return page;
}
inline std::vector<PageHash> chain_of(std::uint64_t chain, std::size_t pages) {
  std::vector<PageHash> made;
  for (std::size_t i = 0; i < pages; ++i) made.push_back(page_of(chain, i));
  return made;
}

inline RuntimeConfig small_config() {
  RuntimeConfig config;
  config.engine_id = "test-engine";
  config.arena_bytes = 16ULL << 20;
  config.index_pages = 4096;
  config.huge_pages = false;
  config.verify_sample = 0;
  // However slow the machine: a page that was passed on to the next rank would be moved twice.
  config.grant_base = std::chrono::minutes(10);
  return config;
}

/// One pool's rows of one rank: `layers` buffers of `rows` rows of `row_bytes`.
struct Rows {
  std::uint64_t rows = 0;
  std::uint64_t row_bytes = 0;
  std::vector<std::vector<unsigned char>> layers;

  Rows(std::uint64_t rows_, std::uint64_t row_bytes_, std::size_t layer_count)
      : rows(rows_), row_bytes(row_bytes_), layers(layer_count, std::vector<unsigned char>(rows_ * row_bytes_, 0)) {}
  std::uint64_t object_bytes() const { return row_bytes * layers.size(); }
  static unsigned char byte_of(const PageHash& page, std::uint64_t salt, std::size_t layer, std::uint64_t at) {
    return static_cast<unsigned char>(page.words[at % 4] >> (8 * (at / 4 % 8))) ^
           static_cast<unsigned char>(salt * 31 + layer * 7 + at);
  }
  void fill(std::uint64_t row, const PageHash& page, std::uint64_t salt = 0) {
    for (std::size_t l = 0; l < layers.size(); ++l)
      for (std::uint64_t b = 0; b < row_bytes; ++b) layers[l][row * row_bytes + b] = byte_of(page, salt, l, b);
  }
  bool holds(std::uint64_t row, const PageHash& page, std::uint64_t salt = 0) const {
    for (std::size_t l = 0; l < layers.size(); ++l)
      for (std::uint64_t b = 0; b < row_bytes; ++b)
        if (layers[l][row * row_bytes + b] != byte_of(page, salt, l, b)) return false;
    return true;
  }
  bool is_zero(std::uint64_t row) const {
    for (const auto& layer : layers)
      for (std::uint64_t b = 0; b < row_bytes; ++b)
        if (layer[row * row_bytes + b] != 0) return false;
    return true;
  }
  void clear() {
    for (auto& layer : layers) std::fill(layer.begin(), layer.end(), static_cast<unsigned char>(0));
  }
  Component component(const std::string& name) {
    Component made;
    made.name = name;
    for (auto& layer : layers) made.layers.push_back({layer.data(), row_bytes, row_bytes});
    return made;
  }
};

struct TestRank {
  std::shared_ptr<Rank> rank;
  std::unique_ptr<Rows> rows;
  PoolHandle pool;
};

struct Engine {
  explicit Engine(std::uint16_t rank_count = 1, const RuntimeConfig& config = small_config(), std::uint64_t row_bytes = 1024,
                  std::size_t layers = 4, std::uint64_t row_count = 64) {
    auto started = Runtime::start(config);
    REQUIRE_MESSAGE(started, started.error.text);
    runtime = std::move(*started);
    ns = *runtime->open_namespace("test model");
    GroupSpec spec;
    spec.name = "main";
    spec.ranks.tp = rank_count;
    spec.pools.push_back({"latent", ShardCounts{}, HitPolicy::every_page(), false});
    auto registered = runtime->register_group(ns, spec);
    REQUIRE_MESSAGE(registered, registered.error.text);
    group = *registered;
    for (std::uint16_t r = 0; r < rank_count; ++r) {
      Coordinates at;
      at.tp = {r, rank_count};
      TestRank made;
      made.rank = *runtime->add_rank(group, at);
      made.rows = std::make_unique<Rows>(row_count, row_bytes, layers);
      PoolSpec pool;
      pool.name = "latent";
      pool.shard = Coordinates{};
      pool.components.push_back(made.rows->component("kv"));
      pool.rows = row_count;
      auto handle = made.rank->register_pool(pool);
      REQUIRE_MESSAGE(handle, handle.error.text);
      made.pool = *handle;
      ranks.push_back(std::move(made));
    }
  }

  /// Fills rows 0.. with the chain's pages and puts them; row i holds page first + i.
  std::shared_ptr<PutOperation> put(std::size_t rank, std::uint64_t chain, std::size_t first, std::size_t count,
                                    PutOptions options = {}, std::uint64_t salt = 0) {
    TestRank& r = ranks[rank];
    PutBatch batch;
    for (std::size_t i = 0; i < count; ++i) {
      batch.pages.push_back(page_of(chain, first + i));
      r.rows->fill(i, batch.pages.back(), salt);
      batch.items.push_back({static_cast<std::uint32_t>(i), r.pool, i});
    }
    if (first > 0) batch.parent = page_of(chain, first - 1);
    batch.first_depth = static_cast<std::uint32_t>(first);
    auto result = r.rank->put(std::move(batch), std::move(options));
    REQUIRE_MESSAGE(result, result.error.text);
    return *result;
  }
  LookupResult lookup(std::uint64_t chain, std::size_t count, LookupOptions options = {}) {
    auto result = runtime->lookup(group, chain_of(chain, count), std::move(options));
    REQUIRE_MESSAGE(result, result.error.text);
    (*result)->wait();
    return (*result)->result();
  }
  std::shared_ptr<LoadOperation> load(std::size_t rank, const LeaseId& lease, std::uint64_t chain, std::size_t count,
                                      LoadOptions options = {}) {
    std::vector<LoadItem> items;
    for (std::size_t i = 0; i < count; ++i) items.push_back({page_of(chain, i), ranks[rank].pool, i});
    auto result = ranks[rank].rank->load(lease, std::move(items), std::move(options));
    REQUIRE_MESSAGE(result, result.error.text);
    return *result;
  }
  std::uint64_t moved() const {
    std::uint64_t bytes = 0;
    for (const auto& r : ranks) bytes += r.rank->moved_bytes();
    return bytes;
  }

  std::unique_ptr<Runtime> runtime;
  NamespaceHandle ns;
  GroupHandle group;
  std::vector<TestRank> ranks;
};

inline bool all_are(const PutOperation& put, Verdict verdict) {
  return std::all_of(put.results().begin(), put.results().end(), [&](const auto& r) { return r.verdict == verdict; });
}
inline bool all_are(const LoadOperation& load, Reason reason) {
  return std::all_of(load.results().begin(), load.results().end(), [&](Reason r) { return r == reason; });
}

}  // namespace runtime_test
