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

/// Of the timed part, whoever moved the bytes.
struct MovedBytes {
  std::vector<std::uint64_t> by_rank;
  Stats before;  ///< of the store
  Stats after;
};
/// announced_bytes, moved_bytes, moved_bytes_by_rank, stored_bytes, evicted_bytes, as the ranks and the store count them.
void add_moved(nlohmann::ordered_json& run, const MovedBytes& moved);
/// What a put run begins with.
nlohmann::ordered_json put_run_json(const char* path, const Options& options, const MovedBytes& moved);
/// What a get run begins with.
nlohmann::ordered_json get_run_json(const char* path, const Options& options, std::uint64_t loaded);
struct Asked {
  std::uint64_t unique_pages = 0;  ///< each counts once, however often it was asked
  std::uint64_t keys = 0;
};
/// What an exists run begins with.
nlohmann::ordered_json exists_run_json(const char* path, const Options& options, const Asked& asked, std::uint64_t found,
                                       std::uint64_t false_hits);
/// Of a get run: empty when all of `asked` were loaded.
std::string missing_loads(std::uint64_t asked, std::uint64_t loaded);

/// operations (calls that were timed), seconds, cpu_seconds, unique_pages_per_s, cpu_us_per_unique_page, keys_per_s, ack_us: of every job that asks or moves pages.
void add_pace(nlohmann::ordered_json& run, const Asked& asked, double seconds, double cpu_seconds, std::vector<double>& ack_us);

struct Rates {
  double bytes = 0;  // that had to be copied
  std::uint64_t unique_pages = 0;
  std::uint64_t keys = 0;
};

/// The pace, and how it compares with the machine's copy limit: of put and get.
void add_rates(nlohmann::ordered_json& run, const Rates& rates, double seconds, double cpu_seconds, std::vector<double>& ack_us,
               const LimitMeter& limit);

}  // namespace kvonce::bench
