// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <thread>

#include "bench/jobs.hpp"
#include "bench/measure.hpp"
#include "bench/stage.hpp"

namespace kvonce::bench {

Outcome run_idle(const Options& options) {
  if (!options.via.empty()) return run_idle_via(options);
  using Clock = std::chrono::steady_clock;
  constexpr std::uint64_t kPages = 64;
  StageSpec spec;
  spec.ranks = options.ranks;
  spec.pages = kPages;
  spec.page_bytes = options.page_bytes;
  spec.rows = kPages;
  spec.movers = options.movers;
  std::vector<RowMemory> memory;
  for (std::uint64_t r = 0; r < spec.ranks; ++r) memory.emplace_back(spec.rows * Stage::row_stride(spec));
  auto started = Stage::start(spec, memory);
  if (!started.stage) return {{}, started.error, {}};
  Stage& stage = *started.stage;
  const std::uint64_t seed = fresh_seed();
  const auto keys = make_keys(seed, kPages);
  stage.fill_rows(seed);
  // Idle is meant after work: every thread and actor has been awake once, pages are resident.
  for (std::size_t r = 0; r < stage.ranks(); ++r) {
    for (PutBatch& batch : make_put_batches(keys, kPages, stage.pool(r), kPages)) {
      auto put = stage.rank(r).put(std::move(batch));
      if (!put) return {{}, "put refused: " + put.error.text, {}};
      put.value->wait();
    }
  }
  std::vector<nlohmann::ordered_json> runs;
  for (std::uint64_t i = 0; i < options.repeat; ++i) {
    LimitMeter limit(options);
    limit.measure();
    const double cpu_begin = process_cpu_seconds();
    const auto begin = Clock::now();
    std::this_thread::sleep_for(std::chrono::duration<double>(options.seconds));
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    const double cpu = process_cpu_seconds() - cpu_begin;
    runs.push_back({{"path", kPathEmbedded},
                    {"pools", stage.ranks()},
                    {"operations", 0},
                    {"seconds", seconds},
                    {"cpu_seconds", cpu},
                    {"cpu_percent", cpu / seconds * 100},
                    {"copy_limit", limit.json()}});
  }
  return {report(options, runs, "cpu_percent"), {}, {}};
}

}  // namespace kvonce::bench
