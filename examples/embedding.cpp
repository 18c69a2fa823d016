// SPDX-License-Identifier: Apache-2.0
//
// One process, two ranks that hold the same bytes: the page is stored once and loaded back.
#include <kvonce/runtime.hpp>

#include <cstdio>
#include <cstring>
#include <vector>

int main() {
  kvonce::RuntimeConfig config;
  config.engine_id = "example";
  config.arena_bytes = 64 << 20;
  auto runtime = kvonce::Runtime::start(config);
  if (!runtime) return std::fprintf(stderr, "%s\n", runtime.error.text.c_str()), 1;
  auto& kv = **runtime;

  // What else decides the bytes, and the pools that a prefix needs together.
  const auto ns = *kv.open_namespace("my-model, bf16, 64 tokens a page");
  const kvonce::GroupSpec spec{"main", {.tp = 2}, {{"latent", kvonce::ShardCounts{}}}};
  const auto group = *kv.register_group(ns, spec);

  // Each rank has 8 rows of 4 KiB per layer. {} declares one replicated shard: both ranks hold identical objects.
  constexpr std::size_t kRow = 4096;
  std::vector<std::vector<char>> buffers(2, std::vector<char>(8 * kRow, 'x'));
  std::vector<std::shared_ptr<kvonce::Rank>> ranks;
  std::vector<kvonce::PoolHandle> pools;
  for (std::uint16_t r = 0; r < 2; ++r) {
    ranks.push_back(*kv.add_rank(group, {.tp = {r, 2}}));
    kvonce::PoolSpec pool{"latent", kvonce::Coordinates{}, {{"latent", {{buffers[r].data(), kRow, kRow}}}}, 8};
    pools.push_back(*ranks[r]->register_pool(pool));
  }

  const auto page = *kvonce::PageHash::from_bytes("a chained page hash: 32 bytes...");
  for (std::size_t r = 0; r < 2; ++r) {
    auto put = *ranks[r]->put({{page}, {}, 0, {{0, pools[r], 3}}});
    put->wait();
    std::printf("rank %zu: %s\n", r, std::string(to_string(put->results()[0].verdict)).c_str());
  }

  auto lookup = *kv.lookup(group, {page});
  lookup->wait();
  std::memset(buffers[1].data(), 0, buffers[1].size());
  auto load = *ranks[1]->load(lookup->result().lease, {{page, pools[1], 5}});
  load->wait();
  const bool same = std::memcmp(buffers[1].data() + 5 * kRow, buffers[0].data() + 3 * kRow, kRow) == 0;
  std::printf("restorable pages: %u, loaded bytes are %s\n", lookup->result().restorable_pages, same ? "the same" : "different");
  return same ? 0 : 1;
}
