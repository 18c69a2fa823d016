// SPDX-License-Identifier: Apache-2.0
//
// What `kvonce replay` is asked to do: options as they are typed, and the checked plan made of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/workload/presets.hpp"

namespace kvonce::apps {

struct ReplayOptions {
  std::string trace = "builtin:agentic";
  std::string preset = "kimi-k3-draft";
  std::vector<std::string> capacities{"480GiB"};
  std::string scale = "auto";  // 1024, or less where that would spoil the ratios of the objects' sizes
  std::string limit = "auto";  // all of a file, kBuiltinRequests of a built-in trace
  std::string ranks = "8";
  std::string keys = "both";
  std::vector<std::string> policies{"lru"};
  std::string load = "1";
  std::string verify = "1";
  std::string seed = "1";
  std::string via = "embedded";
};

inline constexpr std::uint64_t kBuiltinRequests = 1'500;  // of both keyings, within two minutes on two slow cores
inline constexpr std::uint64_t kDefaultScale = 1'024;
/// Smallest object that a scale may leave.
inline constexpr std::uint64_t kLeastObjectBytes = 64;

/// One pass over the trace with a fresh store.
struct ReplaySetup {
  workload::KeyMode keys = workload::KeyMode::per_shard;
  std::string policy;
  std::uint64_t capacity_bytes = 0;  ///< payload, of the model at full size
};

struct ReplayPlan {
  std::string trace;
  std::string via;  ///< "embedded", "spawn" or "unix:PATH"
  workload::ModelPreset full_model;  ///< trace pages, one range per object, full size
  workload::ModelPreset model;       ///< the same divided by scale: what is really kept
  std::uint64_t scale = 1;
  std::optional<std::uint64_t> limit;
  double load_share = 1;
  double verify_share = 1;
  std::uint64_t seed = 1;
  std::vector<ReplaySetup> runs;
};

struct PlannedReplay {
  std::optional<ReplayPlan> plan;
  std::string error;  ///< set exactly when there is no plan: option, value and what is allowed
};

PlannedReplay plan_replay(const ReplayOptions& options);

/// With --via unix:PATH the size of the store is what it is: one capacity, of `store_bytes` (real ones, not scaled). `wanted`: the
/// options name capacities; then they have to be that one. Empty, or what is wrong.
std::string take_store_capacity(ReplayPlan& plan, bool wanted, std::uint64_t store_bytes);

const char* to_string(workload::KeyMode keys) noexcept;

}  // namespace kvonce::apps
