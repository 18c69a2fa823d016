// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <set>

#include "apps/workload/presets.hpp"
#include "bench/jobs.hpp"
#include "bench/measure.hpp"
#include "storage/churn.hpp"

namespace kvonce::bench {
namespace {

constexpr std::uint64_t kArenaBytes = 16ULL << 30;
constexpr double kFullShare = 0.95;

// Every object of every model at eight ranks, each layout once.
std::vector<storage::SlotShape> preset_shapes() {
  std::set<std::vector<std::uint64_t>> layouts;
  for (const std::string& name : workload::preset_names()) {
    const auto found = workload::find_preset(name, 8);
    for (const auto& pool : found.preset->pools) {
      std::vector<std::uint64_t> bytes;
      for (const auto& range : pool.ranges) bytes.push_back(range.bytes);
      layouts.insert(std::move(bytes));
    }
  }
  std::vector<storage::SlotShape> shapes;
  for (const auto& layout : layouts)
    if (auto made = storage::SlotShape::create(layout); made.shape) shapes.push_back(*std::move(made.shape));
  return shapes;
}

}  // namespace

Outcome run_allocator(const Options& options) {
  using Clock = std::chrono::steady_clock;
  const auto shapes = preset_shapes();
  const std::uint64_t operations = options.operations;
  std::vector<nlohmann::ordered_json> runs;
  std::string wrong;
  for (std::uint64_t i = 0; i < options.repeat; ++i) {
    const double cpu_begin = process_cpu_seconds();
    const auto begin = Clock::now();
    // A seed per run, the same ones on every call: what was found can be looked at again.
    const auto churn = storage::run_allocator_churn(kArenaBytes, kFullShare, operations, i + 1, shapes);
    const double cpu_end = process_cpu_seconds();
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    // The same with the arena filled to the last byte: how much of it fragments cost then.
    const auto filled = storage::run_allocator_churn(kArenaBytes, 1.0, operations / 10 + 1, i + 1, shapes);
    runs.push_back({{"arena_bytes", kArenaBytes},
                    {"full_share", kFullShare},
                    {"layouts", shapes.size()},
                    {"operations", churn.operations},
                    {"refused", churn.refused + filled.refused},
                    {"lost_share_max", churn.lost_share_max},
                    {"lost_share_mean", churn.lost_share_mean},
                    {"overhead_share", churn.overhead_share_mean},
                    {"resident_share", churn.resident_share_mean},
                    {"lost_share_when_filled", filled.lost_share_mean},
                    {"requests_fragmented", churn.requests_fragmented},
                    {"evictions_for_fragmentation", churn.evictions_for_fragmentation},
                    {"extents_mean", churn.extents_mean},
                    {"extents_max", churn.extents_max},
                    {"objects_max", churn.objects_max},
                    {"metadata_bytes", churn.metadata_bytes},
                    {"seconds", seconds},
                    {"cpu_seconds", cpu_end - cpu_begin},
                    {"operations_per_s", static_cast<double>(operations) / seconds}});
    if (churn.refused + filled.refused != 0) wrong = std::to_string(churn.refused + filled.refused) + " requests were refused";
  }
  return {report(options, runs, "lost_share_max"), {}, wrong};
}

}  // namespace kvonce::bench
