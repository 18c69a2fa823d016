// SPDX-License-Identifier: Apache-2.0
//
// The benchmarks. Each gives one JSON object; text tables are made of it.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "bench/options.hpp"

namespace kvonce::bench {

struct Outcome {
  nlohmann::ordered_json result;
  /// Empty unless the job could not be done at all: wrong options, no memory, refused calls.
  std::string error;
  /// Empty unless what was stored or answered is not what it must be.
  std::string wrong;
};

/// Checks the options, then runs the job `repeat` times. Numbers with a fraction are medians over the runs, counts are
/// those of the run in the middle; `runs` has every run.
Outcome run(const Options& options);

Outcome run_put(const Options& options);
Outcome run_get(const Options& options);
Outcome run_exists(const Options& options);
Outcome run_lookup(const Options& options);
Outcome run_idle(const Options& options);
Outcome run_memory(const Options& options);
Outcome run_allocator(const Options& options);
Outcome run_coalesce(const Options& options);
Outcome run_restart(const Options& options);

// The same with rank processes and a store of another process: options.via is set.
Outcome run_put_via(const Options& options);
Outcome run_get_via(const Options& options);
Outcome run_exists_via(const Options& options);
Outcome run_lookup_via(const Options& options);
Outcome run_idle_via(const Options& options);

/// How page bytes travelled: through this process's own memory, or straight between a rank process and memory that the store's
/// process shares with it.
inline constexpr const char* kPathEmbedded = "memcpy";
inline constexpr const char* kPathShared = "shm";

/// What is done with memory before the timed part, with rank processes.
inline constexpr const char* kViaMemory =
    "the store populated its memory, every rank process mapped and populated it, and populated its row buffers";

/// The result of one or more runs: what was asked, the medians, the runs.
nlohmann::ordered_json report(const Options& options, const std::vector<nlohmann::ordered_json>& runs, const char* by);

/// A small table for people.
std::string text_of(const nlohmann::ordered_json& result);

}  // namespace kvonce::bench
