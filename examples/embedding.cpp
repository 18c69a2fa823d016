// SPDX-License-Identifier: Apache-2.0
//
// One process, two ranks that hold the same bytes: the page is stored once and loaded back.
#include <kvonce/runtime.hpp>

#include <algorithm>
#include <cstdio>
#include <vector>

int main() {
  kvonce::RuntimeConfig config;
  config.engine_id = "example";
  config.arena_bytes = 64 << 20;
  auto runtime = kvonce::Runtime::start(config);
  if (!runtime) return std::fprintf(stderr, "%s\n", runtime.error.text.c_str()), 1;
  auto& kv = **runtime;

  // What else decides the bytes, and the pools that a prefix needs together. ShardCounts{}: all ranks hold identical objects.
  const auto ns = *kv.open_namespace("my-model, bf16, 64 tokens a page");
  const auto group = *kv.register_group(ns, {"main", {.tp = 2}, {{"latent", kvonce::ShardCounts{}}}});
  const auto page = *kvonce::PageHash::from_bytes("a chained page hash: 32 bytes...");

  // Each rank has 8 rows of 4 KiB in its one layer, and puts row 3.
  constexpr std::size_t kRow = 4096;
  std::vector<std::vector<char>> rows(2, std::vector<char>(8 * kRow, 'x'));
  std::vector<std::shared_ptr<kvonce::Rank>> ranks;
  std::vector<kvonce::PoolHandle> pools;
  for (std::uint16_t r = 0; r < 2; ++r) {
    ranks.push_back(*kv.add_rank(group, {.tp = {r, 2}}));
    pools.push_back(*ranks[r]->register_pool({"latent", kvonce::Coordinates{}, {{"latent", {{rows[r].data(), kRow, kRow}}}}, 8}));
    const auto put = *ranks[r]->put({{page}, {}, 0, {{0, pools[r], 3}}});
    put->wait();
    std::printf("rank %u: %s\n", r, std::string(to_string(put->results()[0].verdict)).c_str());
  }

  const auto lookup = *kv.lookup(group, {page});
  lookup->wait();
  std::fill(rows[1].begin(), rows[1].end(), '\0');
  const auto load = *ranks[1]->load(lookup->result().lease, {{page, pools[1], 5}});
  load->wait();
  const bool same = std::equal(&rows[0][3 * kRow], &rows[0][4 * kRow], &rows[1][5 * kRow]);
  std::printf("restorable pages: %u, loaded bytes are %s\n", lookup->result().restorable_pages, same ? "the same" : "different");
  return same ? 0 : 1;
}
