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

Json put_run_json(const char* path, const Options& options, const MovedBytes& moved) {
  return {{"path", path},
          {"unique_pages", options.pages},
          {"unique_bytes", options.pages * options.page_bytes},
          {"announced_bytes", moved.after.announced_bytes - moved.before.announced_bytes},
          {"moved_bytes", std::accumulate(moved.by_rank.begin(), moved.by_rank.end(), std::uint64_t{0})},
          {"moved_bytes_by_rank", moved.by_rank},
          {"stored_bytes", moved.after.stored_bytes - moved.before.stored_bytes},
          {"evicted_bytes", moved.after.evicted_bytes - moved.before.evicted_bytes},
          {"checksum_samples", moved.after.samples - moved.before.samples}};
}

Json get_run_json(const char* path, const Options& options, std::uint64_t loaded) {
  return {{"path", path},
          {"unique_pages", options.pages},
          {"unique_bytes", options.pages * options.page_bytes},
          {"asked_bytes", options.pages * options.ranks * options.page_bytes},
          {"loaded_bytes", loaded * options.page_bytes}};
}

std::string missing_loads(std::uint64_t asked, std::uint64_t loaded) {
  return loaded == asked ? std::string() : std::to_string(asked - loaded) + " of " + std::to_string(asked) + " loads failed";
}

void add_rates(Json& run, const Rates& rates, double seconds, double cpu_seconds, std::vector<double>& ack_us,
               const LimitMeter& limit) {
  constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
  const double pages = static_cast<double>(rates.unique_pages);
  run["seconds"] = seconds;
  run["cpu_seconds"] = cpu_seconds;
  run["unique_pages_per_s"] = pages / seconds;
  run["cpu_us_per_unique_page"] = cpu_seconds * 1e6 / pages;
  run["keys_per_s"] = static_cast<double>(rates.keys) / seconds;
  run["gib_per_s"] = rates.bytes / seconds / kGiB;
  run["ack_us"] = spread(ack_us);
  run["copy_limit"] = limit.json();
  run["checksummed_copy"] = limit.checksummed_json();
  run["ratio_to_copy_limit"] = limit.gib_per_s() > 0 ? rates.bytes / seconds / kGiB / limit.gib_per_s() : 0.0;
}

}  // namespace kvonce::bench
