// SPDX-License-Identifier: Apache-2.0
//
// The calls that bench/python/figures makes from Python, made from C++: medians in microseconds, as JSON.
#include <kvonce/runtime.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

constexpr std::uint32_t kPages = 128;
constexpr std::size_t kLayers = 2;
constexpr std::size_t kRowBytes = 64;

std::vector<kvonce::PageHash> pages_from(std::uint64_t first) {
  std::vector<kvonce::PageHash> pages(kPages);
  for (std::uint32_t p = 0; p < kPages; ++p) pages[p].words = {first + p, 1, 2, 3};
  return pages;
}

template <class Call>
double median_us(int repeat, const Call& call) {
  std::vector<double> times;
  for (int i = 0; i < repeat; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    call(i);
    times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count());
  }
  std::nth_element(times.begin(), times.begin() + repeat / 2, times.end());
  return times[static_cast<std::size_t>(repeat / 2)];
}

}  // namespace

int main(int argc, char** argv) {
  const int repeat = argc > 1 ? std::atoi(argv[1]) : 500;
  kvonce::RuntimeConfig config;
  config.engine_id = "bench";
  config.arena_bytes = 256ULL << 20;
  config.populate = true;
  auto runtime = kvonce::Runtime::start(config);
  if (!runtime || repeat < 1) return std::fprintf(stderr, "%s\n", runtime.error.text.c_str()), 1;
  auto& kv = **runtime;
  const auto ns = *kv.open_namespace("calls");
  const auto group = *kv.register_group(ns, {"main", {}, {{"kv", kvonce::ShardCounts{}}}});
  auto rank = *kv.add_rank(group, {});
  std::vector<std::vector<char>> memory(kLayers, std::vector<char>(2 * kPages * kRowBytes, 'x'));
  kvonce::PoolSpec spec{"kv", kvonce::Coordinates{}, {{"kv", {}}}, 2 * kPages};
  for (auto& layer : memory) spec.components[0].layers.push_back({layer.data(), kRowBytes, kRowBytes});
  const auto pool = *rank->register_pool(spec);

  const auto put = [&](std::uint64_t first) {
    kvonce::PutBatch batch{pages_from(first), {}, 0, {}};
    for (std::uint32_t p = 0; p < kPages; ++p) batch.items.push_back({p, pool, p});
    auto operation = *rank->put(std::move(batch));
    operation->wait();
    return operation->succeeded() == kPages;
  };
  const double put_us = median_us(repeat, [&](int i) {
    if (!put(1'000'000ULL + static_cast<std::uint64_t>(i) * kPages)) std::abort();
  });
  if (!put(0)) return 1;
  kvonce::LookupOptions probe;
  probe.probe = true;
  const double lookup_us = median_us(repeat, [&](int) {
    auto operation = *kv.lookup(group, pages_from(0), probe);
    operation->wait();
    if (operation->result().restorable_pages != kPages) std::abort();
  });
  kvonce::LookupOptions lease;
  lease.lease_time = std::chrono::minutes(10);
  auto found = *kv.lookup(group, pages_from(0), lease);
  found->wait();
  const double load_us = median_us(repeat, [&](int) {
    const auto pages = pages_from(0);
    std::vector<kvonce::LoadItem> items;
    for (std::uint32_t p = 0; p < kPages; ++p) items.push_back({pages[p], pool, kPages + p});
    auto operation = *rank->load(found->result().lease, std::move(items));
    operation->wait();
    if (operation->loaded() != kPages) std::abort();
  });
  std::printf("{\"put\": %.2f, \"lookup\": %.2f, \"load\": %.2f}\n", put_us, lookup_us, load_us);
  return 0;
}
