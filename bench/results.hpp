// SPDX-License-Identifier: Apache-2.0
//
// Parts that the results of several jobs have in common.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <kvonce/runtime.hpp>
#include <kvonce/types.hpp>

#include "bench/measure.hpp"
#include "bench/options.hpp"

namespace kvonce::bench {

using VerdictCounts = std::array<std::uint64_t, kVerdictCount>;
using ReasonCounts = std::array<std::uint64_t, kReasonCount>;

/// {stored, joined, ...}: every verdict, summed over the ranks.
nlohmann::ordered_json verdicts_json(const std::vector<VerdictCounts>& by_rank);
/// {loaded, ...}: besides it only those that occurred.
nlohmann::ordered_json results_json(const std::vector<ReasonCounts>& by_rank);
/// Loads that succeeded.
std::uint64_t loaded_of(const std::vector<ReasonCounts>& by_rank);

/// What a put run begins with, whoever moved the bytes: what was announced, moved, stored and evicted.
struct MovedBytes {
  std::vector<std::uint64_t> by_rank;
  Stats before;
  Stats after;
};
nlohmann::ordered_json put_run_json(const char* path, const Options& options, const MovedBytes& moved);
/// What a get run begins with.
nlohmann::ordered_json get_run_json(const char* path, const Options& options, std::uint64_t loaded);
/// Of a get run: empty when all of `asked` were loaded.
std::string missing_loads(std::uint64_t asked, std::uint64_t loaded);

struct Rates {
  double bytes = 0;  // that had to be copied
  std::uint64_t unique_pages = 0;
  std::uint64_t keys = 0;
};

/// What put and get have in common, at the end of their results.
void add_rates(nlohmann::ordered_json& run, const Rates& rates, double seconds, double cpu_seconds, std::vector<double>& ack_us,
               const LimitMeter& limit);

}  // namespace kvonce::bench
