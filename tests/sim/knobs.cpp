// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/knobs.hpp"

#include <algorithm>
#include <numeric>

namespace kvonce::sim {
namespace {

PoolKnobs make_pool(Random& random, std::uint32_t index, bool huge) {
  PoolKnobs pool;
  pool.name = "pool" + std::to_string(index);
  pool.sharding = random.pick({Sharding::replicated, Sharding::replicated, Sharding::grouped, Sharding::per_rank});
  if (index == 0 && random.chance(700)) pool.sharding = Sharding::replicated;
  if (index > 0 && random.chance(450)) pool.trailing = static_cast<std::uint16_t>(random.between(1, 3));
  pool.optional = index > 0 && random.chance(250);
  pool.components = static_cast<std::uint32_t>(random.between(1, 2));
  pool.layers = static_cast<std::uint32_t>(random.between(1, 3));
  // The huge one lies in several extents where the free space is broken up.
  const std::uint64_t base = huge ? 60'000 : random.pick<std::uint64_t>({64, 64, 96, 128, 256, 500, 700});
  for (std::uint32_t i = 0; i < pool.components * pool.layers; ++i)
    pool.range_bytes.push_back(huge ? base + random.below(70'000) : base - random.below(3) * 8);
  if (huge && pool.range_bytes.size() < 5) {
    pool.components = 1;
    pool.layers = 5;
    pool.range_bytes.resize(5, base + 512);
  }
  pool.object_bytes = std::accumulate(pool.range_bytes.begin(), pool.range_bytes.end(), std::uint64_t{0});
  pool.rows = static_cast<std::uint32_t>(huge ? 6 : random.between(12, 40));
  return pool;
}

void make_namespaces(Knobs& k, Random& names) {
  if (names.chance(650)) return;
  k.places = static_cast<std::uint32_t>(names.between(1, 3));
  k.namespaces = k.places + static_cast<std::uint32_t>(names.between(1, 3));
  for (EngineKnobs& engine : k.engines) engine.ns = static_cast<std::uint32_t>(names.below(k.namespaces));
  k.store.max_namespaces = k.places;
  k.guest = static_cast<std::uint32_t>(names.between(20, 250));
  if (k.calm) return;  // who moves ends its puts
  k.move = static_cast<std::uint32_t>(names.between(5, 60));
  k.hasty = names.chance(500) ? static_cast<std::uint32_t>(names.between(5, 60)) : 0;
}

}  // namespace

Knobs make_knobs(Random& random, Random names) {
  Knobs k;
  k.calm = random.chance(200);
  k.partitions = random.chance(400) ? 1 : static_cast<std::uint32_t>(random.between(2, 4));
  k.namespaces = random.chance(300) ? 2 : 1;
  const auto engines = random.between(1, 3);
  for (std::uint64_t i = 0; i < engines; ++i) {
    EngineKnobs engine;
    engine.ns = static_cast<std::uint32_t>(random.below(k.namespaces));
    engine.ranks = random.pick<std::uint32_t>({1, 2, 2, 3, 4, 4, 8});
    engine.divergent = !k.calm && random.chance(150);
    k.engines.push_back(engine);
  }
  const bool huge = random.chance(30);
  const auto pools = huge ? 2 : random.between(1, 3);
  for (std::uint32_t i = 0; i < pools; ++i) k.pools.push_back(make_pool(random, i, huge && i == 0));
  k.pools[0].optional = false;
  k.pages_max = static_cast<std::uint32_t>(huge ? 4 : random.between(4, 14));

  // Arena: from "a few pages of everything" to "never short".
  std::uint64_t page_bytes = 0;
  for (const PoolKnobs& pool : k.pools) page_bytes += pool.object_bytes + 64 + 8 * pool.range_bytes.size();
  const std::uint64_t pages = random.chance(300) ? 600 : random.between(16, 120);
  k.slots_bytes = std::max<std::uint64_t>(page_bytes * pages / (huge ? 4 : 1) / k.partitions, 16'384);
  if (k.calm) k.slots_bytes = page_bytes * 1500;
  if (huge) {
    // Small objects between a few big ones break the free space up.
    k.calm = false;
    k.slots_bytes = k.pools[0].object_bytes * 7 / 2 + 100'000;
    for (std::uint64_t& bytes : k.pools[1].range_bytes) bytes += 3000;
    auto& small = k.pools[1];
    small.object_bytes = std::accumulate(small.range_bytes.begin(), small.range_bytes.end(), std::uint64_t{0});
  }

  auto& s = k.store;
  s.partitions = k.partitions;
  s.capacity_bytes = !k.calm && random.chance(400) ? k.slots_bytes * 2 / 3 : 0;
  const bool tiny_index = !k.calm && random.chance(60);
  s.index.max_pages = tiny_index ? 24 : 4096;
  s.index.max_members = tiny_index ? 96 : 32'768;
  s.index.max_extent_blocks = 256;
  s.max_level = random.chance(350) ? AckLevel::disk : AckLevel::memory;
  s.window_bytes = random.pick<std::uint64_t>({1, 1024, 4096, 65'536});
  s.grant_base = random.between(3, 40) * kMillisecond;
  s.least_rate = 4U << 20U;
  s.verify_sample = random.pick<std::uint32_t>({0, 1, 1, 4, 256});
  s.verify_first_keys = random.pick<std::uint32_t>({0, 4, 64});
  s.verify_window = random.between(50, 2000) * kMillisecond;
  s.conflict_hold = random.between(20, 100) * kMillisecond;
  s.conflict_limit = static_cast<std::uint32_t>(random.between(1, 4));
  s.demote = random.chance(750);
  s.lease_time = random.between(60, 600) * kMillisecond;
  s.lease_time_max = 2 * kSecond;
  s.empty_answer_time = random.between(20, 200) * kMillisecond;
  s.engine_grace = random.between(20, 200) * kMillisecond;
  s.leased_stops = static_cast<std::uint32_t>(random.between(1, 4));
  s.leased_bytes_per_engine = !k.calm && random.chance(300) ? page_bytes * random.between(2, 12) : 0;
  s.max_leases_per_engine = !k.calm && random.chance(150) ? 3 : 0;
  s.max_open_items_per_sender = !k.calm && random.chance(150) ? 24 : 1U << 20U;
  s.incomplete_grace = random.between(50, 1000) * kMillisecond;
  s.ghost_entries = random.pick<std::uint32_t>({64, 65'536, 65'536});
  s.scan_period = random.between(1, 12) * kMillisecond;
  s.clear_step = static_cast<std::uint32_t>(random.between(1, 40));

  k.link_delay_min = random.between(2, 50) * kMicrosecond;
  k.link_delay_max = k.link_delay_min + random.pick<std::uint64_t>({20, 200, 3000}) * kMicrosecond;
  k.slice_min = random.between(5, 50) * kMicrosecond;
  k.slice_max = k.slice_min + random.pick<std::uint64_t>({20, 300, 2500}) * kMicrosecond;
  k.slices_per_object = static_cast<std::uint32_t>(random.between(1, 4));
  k.put_deadline_min = random.chance(400) ? 2 * kMillisecond : 60 * kMillisecond;
  k.put_deadline_max = k.put_deadline_min + random.between(10, 800) * kMillisecond;
  k.action_gap = random.between(100, 4000) * kMicrosecond;
  k.disk_delay_max = random.between(1, 60) * kMillisecond;

  const auto often = [&](std::uint64_t share, std::uint32_t most) {
    return random.chance(share) ? static_cast<std::uint32_t>(random.between(5, most)) : 0U;
  };
  k.clear = often(300, 25);
  k.remove = often(400, 80);
  k.cancel = often(500, 100);
  k.flush = often(400, 60);
  k.gate = often(400, 300);
  k.unregister = often(200, 20);
  if (k.calm) {
    k.clear = k.remove = k.cancel = k.gate = k.unregister = 0;
    k.put_deadline_min = k.put_deadline_max = 60 * kSecond;
    s.grant_base = 30 * kSecond;
    s.leased_bytes_per_engine = 1ULL << 40U;
    s.conflict_limit = 1000;
  } else {
    k.kill = often(350, 25);
    k.stop = often(400, 60);
    k.connection_loss = often(300, 30);
    k.crash = often(250, 12);
    k.warm = k.crash != 0 ? 600 : 0;
    k.bit_flip = often(300, 40);
    k.forge = often(400, 80);
    k.slow_rank = often(400, 500);
    k.divergent_rank = often(350, 600);
    k.broken_copy = often(200, 60);
    k.disk_failure = often(400, 300);
    k.rogue = random.chance(200);
    k.same_memory = random.chance(300);
  }
  k.load_part_bytes = random.pick<std::uint64_t>({0, 1, 300, 2000});
  k.load_part_gap = random.pick<std::uint64_t>({0, 20, 2000}) * kMicrosecond;
  make_namespaces(k, names);
  // A model that keeps nothing but recurrent state: the pages between its stops are not there at all.
  if (!huge && names.chance(80))
    for (PoolKnobs& pool : k.pools)
      if (pool.trailing == 0) pool.trailing = static_cast<std::uint16_t>(names.between(1, 3));
  return k;
}

}  // namespace kvonce::sim
