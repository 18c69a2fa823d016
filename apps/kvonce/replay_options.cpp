// SPDX-License-Identifier: Apache-2.0
#include "apps/kvonce/replay_options.hpp"

#include <algorithm>
#include <limits>

#include "protocol/units.hpp"
#include "storage/slot_shape.hpp"

namespace kvonce::apps {
namespace {

using workload::KeyMode;
using workload::ModelPreset;
using workload::PoolPreset;

constexpr std::uint64_t kMostScale = 1ULL << 20;
constexpr std::uint64_t kMostCapacityBytes = 1ULL << 50;
constexpr std::uint64_t kMostStoreBytes = 1ULL << 45;  // after scaling; leaves room for slots and index in the largest arena
constexpr double kMostRounding = 0.001;

// Objects lie in one range each: how an object is cut says nothing about hits, and costs time per page.
ModelPreset one_range(ModelPreset model) {
  for (PoolPreset& pool : model.pools)
    pool.ranges = {{0, 0, pool.object_bytes()}};
  return model;
}

/// Empty when dividing by `scale` keeps every object large enough and the ratios of their sizes right.
std::string scale_fault(const ModelPreset& full, std::uint64_t scale) {
  const ModelPreset model = workload::scaled(full, scale);
  for (std::size_t i = 0; i < full.pools.size(); ++i) {
    const std::uint64_t bytes = model.pools[i].object_bytes();
    const double exact = static_cast<double>(full.pools[i].object_bytes()) / static_cast<double>(scale);
    const std::string what = "leaves " + protocol::format_count(bytes) + " B of an object of pool " + full.pools[i].name;
    if (bytes < kLeastObjectBytes)
      return what + "; allowed are at least " + std::to_string(kLeastObjectBytes) + " B";
    if (bytes > storage::kMaxObjectBytes)
      return what + "; allowed are at most " + protocol::format_bytes(storage::kMaxObjectBytes);
    if (std::abs(static_cast<double>(bytes) - exact) > kMostRounding * exact) {
      return what + ", rounded by more than the allowed 0.1 %";
    }
  }
  return {};
}

/// The largest power of two up to `most` that is allowed; 0: none.
std::uint64_t fitting_scale(const ModelPreset& full, std::uint64_t most) {
  std::uint64_t scale = kMostScale;
  while (scale > most || (scale != 0 && !scale_fault(full, scale).empty()))
    scale /= 2;
  return scale;
}

std::string plan_model(const ReplayOptions& options, ReplayPlan& plan) {
  const auto ranks = protocol::parse_u64(options.ranks, 1, workload::kPresetRanksMax);
  if (!ranks)
    return "--ranks: " + ranks.error;
  auto found = workload::find_preset(options.preset, static_cast<std::uint32_t>(ranks.value));
  if (!found.preset)
    return (found.error.starts_with("preset") ? "--preset: " : "--ranks: ") + found.error;
  plan.full_model = one_range(workload::for_trace_pages(*found.preset));

  if (options.scale == "auto") {
    plan.scale = std::max<std::uint64_t>(fitting_scale(plan.full_model, kDefaultScale), 1);
  } else {
    const auto scale = protocol::parse_u64(options.scale, 1, kMostScale);
    if (!scale)
      return "--scale: " + scale.error;
    plan.scale = scale.value;
  }
  if (const std::string fault = scale_fault(plan.full_model, plan.scale); !fault.empty()) {
    return "--scale: " + std::to_string(plan.scale) + ' ' + fault + " (" +
           std::to_string(fitting_scale(plan.full_model, plan.scale)) + " would do)";
  }
  plan.model = workload::scaled(plan.full_model, plan.scale);
  return {};
}

std::string plan_runs(const ReplayOptions& options, ReplayPlan& plan) {
  std::vector<KeyMode> modes;
  if (options.keys == "shard" || options.keys == "both")
    modes.push_back(KeyMode::per_shard);
  if (options.keys == "rank" || options.keys == "both")
    modes.push_back(KeyMode::per_rank);
  if (modes.empty())
    return "--keys: \"" + options.keys + "\" is unknown; allowed are shard, rank and both";
  // Today's way first: a table read from above then goes from before to after.
  std::reverse(modes.begin(), modes.end());
  if (options.policies.empty())
    return "--policy: a value is needed";
  if (options.capacities.empty())
    return "--capacity: a value is needed";

  for (const std::string& text : options.capacities) {
    const auto capacity = protocol::parse_bytes(text, 1, kMostCapacityBytes);
    if (!capacity)
      return "--capacity: " + capacity.error;
    if (capacity.value / plan.scale > kMostStoreBytes) {
      return "--capacity: \"" + text + "\" at --scale " + std::to_string(plan.scale) + " is more than the allowed " +
             protocol::format_bytes(kMostStoreBytes);
    }
    for (const KeyMode mode : modes) {
      const std::uint64_t page = plan.full_model.page_bytes(mode);
      if (capacity.value < page) {
        return "--capacity: \"" + text + "\" does not hold one page of " + plan.full_model.name + " with keys " +
               to_string(mode) + "; allowed are at least " + protocol::format_bytes(page);
      }
      for (const std::string& policy : options.policies)
        plan.runs.push_back({mode, policy, capacity.value});
    }
  }
  return {};
}

std::string plan_rest(const ReplayOptions& options, ReplayPlan& plan) {
  plan.trace = options.trace;
  plan.via = options.via;
  const bool by_path = plan.via.starts_with("unix:") && plan.via.size() > 5;
  if (plan.via != "embedded" && plan.via != "spawn" && !by_path)
    return "--via: \"" + plan.via + "\" is not allowed; allowed are embedded, spawn and unix:PATH";
  if (by_path && options.policies.size() > 1)
    return "--policy: the store at " + plan.via + " has one policy, and " + std::to_string(options.policies.size()) + " are asked for";
  if (options.limit != "auto") {
    const auto limit = protocol::parse_u64(options.limit, 1, std::numeric_limits<std::uint64_t>::max());
    if (!limit)
      return "--limit: " + limit.error;
    plan.limit = limit.value;
  } else if (options.trace.starts_with("builtin:")) {
    plan.limit = kBuiltinRequests;
  }
  const auto load = protocol::parse_share(options.load);
  if (!load)
    return "--load: " + load.error;
  plan.load_share = load.value;
  const auto verify = protocol::parse_share(options.verify);
  if (!verify)
    return "--verify: " + verify.error;
  plan.verify_share = verify.value;
  const auto seed = protocol::parse_u64(options.seed, 0, std::numeric_limits<std::uint64_t>::max());
  if (!seed)
    return "--seed: " + seed.error;
  plan.seed = seed.value;
  return {};
}

}  // namespace

const char* to_string(KeyMode keys) noexcept {
  return keys == KeyMode::per_rank ? "rank" : "shard";
}

PlannedReplay plan_replay(const ReplayOptions& options) {
  ReplayPlan plan;
  for (auto* part : {plan_model, plan_runs, plan_rest}) {
    if (std::string error = part(options, plan); !error.empty())
      return {std::nullopt, std::move(error)};
  }
  return {std::move(plan), {}};
}

std::string take_store_capacity(ReplayPlan& plan, bool wanted, std::uint64_t store_bytes) {
  std::vector<ReplaySetup> runs;
  for (ReplaySetup run : plan.runs) {
    if (wanted && run.capacity_bytes / plan.scale != store_bytes) {
      return "--capacity: " + protocol::format_bytes(run.capacity_bytes) + " at --scale " + std::to_string(plan.scale) + " is " +
             protocol::format_bytes(run.capacity_bytes / plan.scale) + ", and the store at " + plan.via + " keeps " +
             protocol::format_bytes(store_bytes) + ": leave --capacity out";
    }
    run.capacity_bytes = store_bytes * plan.scale;
    if (const std::uint64_t page = plan.full_model.page_bytes(run.keys); run.capacity_bytes < page) {
      return "--via: the store at " + plan.via + " keeps " + protocol::format_bytes(store_bytes) + ", and one page of " +
             plan.full_model.name + " with keys " + to_string(run.keys) + " takes " + protocol::format_bytes(page / plan.scale);
    }
    runs.push_back(std::move(run));
  }
  plan.runs = std::move(runs);
  return {};
}

}  // namespace kvonce::apps
