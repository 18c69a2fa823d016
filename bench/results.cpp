// SPDX-License-Identifier: Apache-2.0
#include "bench/results.hpp"

#include <numeric>
#include <string>

namespace kvonce::bench {

using Json = nlohmann::ordered_json;

Json verdicts_json(const std::vector<VerdictCounts>& by_rank) {
  Json out = Json::object();
  for (std::size_t v = 1; v < kVerdictCount; ++v) {
    std::uint64_t sum = 0;
    for (const VerdictCounts& counts : by_rank) sum += counts[v];
    out[std::string(to_string(static_cast<Verdict>(v)))] = sum;
  }
  return out;
}

Json results_json(const std::vector<ReasonCounts>& by_rank) {
  Json out = Json::object();
  for (std::size_t reason = 0; reason < kReasonCount; ++reason) {
    std::uint64_t sum = 0;
    for (const ReasonCounts& counts : by_rank) sum += counts[reason];
    if (reason == 0 || sum != 0) out[reason == 0 ? "loaded" : std::string(to_string(static_cast<Reason>(reason)))] = sum;
  }
  return out;
}

std::uint64_t loaded_of(const std::vector<ReasonCounts>& by_rank) {
  std::uint64_t sum = 0;
  for (const ReasonCounts& counts : by_rank) sum += counts[static_cast<std::size_t>(Reason::none)];
  return sum;
}

void add_moved(Json& run, const MovedBytes& moved) {
  run["announced_bytes"] = moved.after.announced_bytes - moved.before.announced_bytes;
  run["moved_bytes"] = std::accumulate(moved.by_rank.begin(), moved.by_rank.end(), std::uint64_t{0});
  run["moved_bytes_by_rank"] = moved.by_rank;
  run["stored_bytes"] = moved.after.stored_bytes - moved.before.stored_bytes;
  run["evicted_bytes"] = moved.after.evicted_bytes - moved.before.evicted_bytes;
}

Json put_run_json(const char* path, const Options& options, const MovedBytes& moved) {
  Json run = {{"path", path}, {"unique_pages", options.pages}, {"unique_bytes", options.pages * options.page_bytes}};
  add_moved(run, moved);
  run["checksum_samples"] = moved.after.samples - moved.before.samples;
  return run;
}

Json get_run_json(const char* path, const Options& options, std::uint64_t loaded) {
  return {{"path", path},
          {"unique_pages", options.pages},
          {"unique_bytes", options.pages * options.page_bytes},
          {"asked_bytes", options.pages * options.ranks * options.page_bytes},
          {"loaded_bytes", loaded * options.page_bytes}};
}

Json exists_run_json(const char* path, const Options& options, const Asked& asked, std::uint64_t found, std::uint64_t false_hits) {
  return {{"path", path},
          {"unique_pages", options.pages},
          {"unique_bytes", options.pages * options.page_bytes},
          {"asked_unique_pages", asked.unique_pages},
          {"asked_keys", asked.keys},
          {"found_keys", found},
          {"false_hits", false_hits}};
}

std::string missing_loads(std::uint64_t asked, std::uint64_t loaded) {
  return loaded == asked ? std::string() : std::to_string(asked - loaded) + " of " + std::to_string(asked) + " loads failed";
}

void add_pace(Json& run, const Asked& asked, double seconds, double cpu_seconds, std::vector<double>& ack_us) {
  const double pages = static_cast<double>(asked.unique_pages);
  run["operations"] = ack_us.size();
  run["seconds"] = seconds;
  run["cpu_seconds"] = cpu_seconds;
  run["unique_pages_per_s"] = pages / seconds;
  run["cpu_us_per_unique_page"] = cpu_seconds * 1e6 / pages;
  run["keys_per_s"] = static_cast<double>(asked.keys) / seconds;
  run["ack_us"] = spread(ack_us);
}

void add_rates(Json& run, const Rates& rates, double seconds, double cpu_seconds, std::vector<double>& ack_us,
               const LimitMeter& limit) {
  constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
  add_pace(run, {rates.unique_pages, rates.keys}, seconds, cpu_seconds, ack_us);
  run["gib_per_s"] = rates.bytes / seconds / kGiB;
  run["copy_limit"] = limit.json();
  run["checksummed_copy"] = limit.checksummed_json();
  run["ratio_to_copy_limit"] = limit.gib_per_s() > 0 ? rates.bytes / seconds / kGiB / limit.gib_per_s() : 0.0;
}

}  // namespace kvonce::bench
