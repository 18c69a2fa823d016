// SPDX-License-Identifier: Apache-2.0
//
// What is measured with: clocks, percentiles, medians over runs, and the machine's own limit.
#pragma once

#include <cstdint>
#include <vector>

#include <nlohmann/json.hpp>

#include "bench/options.hpp"

namespace kvonce::bench {

/// CPU time of all threads of this process so far, user and system; seconds.
double process_cpu_seconds();

/// Bytes of this process that are in memory now.
std::uint64_t resident_bytes();

/// The p-th quantile (0 to 1) of the samples, nearest rank; 0 for none. Orders them.
double quantile(std::vector<double>& samples, double p);
/// {p50, p99, max}. Orders the samples.
nlohmann::ordered_json spread(std::vector<double>& samples);

/// The copy limit, and what a copy that makes its checksum reaches by itself: measured in two halves around the timed
/// part, the better one counts; where nothing is copied, once before it. With a store of another process, one side of the copies is shared memory as the store's is;
/// what private memory allows is told beside it.
class LimitMeter {
 public:
  explicit LimitMeter(const Options& options) : options_(options) {}
  void measure();
  double gib_per_s() const { return gib_per_s_; }
  /// {gib_per_s (median turn), peak_gib_per_s (best turn), cpu_us_per_page, kernel, threads}
  nlohmann::ordered_json json() const;
  /// {gib_per_s, portable_gib_per_s}: with this CPU's best kernel, and without any vector extension.
  nlohmann::ordered_json checksummed_json() const;

 private:
  const Options& options_;
  double gib_per_s_ = 0;
  double peak_ = 0;  // GiB/s of the best turn
  double cpu_us_per_page_ = 0;
  const char* kernel_ = "";
  double private_ = 0;      // GiB/s, with both sides in private memory
  double all_threads_ = 0;  // GiB/s with the waiting ranks' threads besides
  double checksummed_ = 0;
  double checksummed_portable_ = 0;
};

/// One result for several runs: the run that `by` orders into the middle, so that its counts belong together, with each
/// broken number in it (times and rates) replaced by the median over all runs. At least one run.
nlohmann::ordered_json median_of(const std::vector<nlohmann::ordered_json>& runs, const char* by);

}  // namespace kvonce::bench
