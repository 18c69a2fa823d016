// SPDX-License-Identifier: Apache-2.0
#include "bench/measure.hpp"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <fstream>
#include <numeric>

#include "transport/checksum.hpp"
#include "transport/copy_limit.hpp"

namespace kvonce::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kLine = 64;  // streaming stores copy whole cache lines

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

// Replaces the broken numbers of `value`, which lies at the same place in every run.
void take_medians(Json& value, const std::vector<const Json*>& in_runs) {
  if (value.is_number_float()) {
    std::vector<double> numbers;
    for (const Json* one : in_runs)
      if (one->is_number()) numbers.push_back(one->get<double>());
    value = median(std::move(numbers));
    return;
  }
  if (!value.is_object()) return;
  for (auto& [name, member] : value.items()) {
    std::vector<const Json*> members;
    for (const Json* one : in_runs)
      if (one->is_object() && one->contains(name)) members.push_back(&(*one)[name]);
    take_medians(member, members);
  }
}

}  // namespace

double process_cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

std::uint64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::uint64_t total = 0;
  std::uint64_t resident = 0;
  file >> total >> resident;
  return resident * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

double quantile(std::vector<double>& samples, double p) {
  if (samples.empty()) return 0;
  const double rank = std::ceil(p * static_cast<double>(samples.size()));
  const std::size_t index = std::min(samples.size() - 1, static_cast<std::size_t>(std::max(rank, 1.0)) - 1);
  std::nth_element(samples.begin(), samples.begin() + static_cast<std::ptrdiff_t>(index), samples.end());
  return samples[index];
}

Json spread(std::vector<double>& samples) {
  return {{"p50", quantile(samples, 0.5)}, {"p99", quantile(samples, 0.99)}, {"max", quantile(samples, 1)}};
}

void LimitMeter::measure() {
  if (options_.limit_seconds <= 0) return;
  // Where pages are moved there is a second turn after them.
  const double turn = options_.job == Job::put || options_.job == Job::get ? options_.limit_seconds / 2 : options_.limit_seconds;
  // The same memory as arenas and row buffers (populated, huge pages advised), the same blocks, as many threads.
  const std::size_t block = (options_.page_bytes + kLine - 1) / kLine * kLine;
  const std::size_t working_set = std::max<std::size_t>(transport::kDefaultWorkingSetBytes, options_.movers * block * 2);
  std::vector<transport::CopyCandidate> candidates = transport::copy_limit_candidates();
  const std::size_t bare = candidates.size();
  for (const transport::Kernel kernel : {transport::Kernel::automatic, transport::Kernel::portable}) {
    candidates.push_back({transport::kernel_name(kernel), [kernel](std::byte* target, const std::byte* source, std::size_t bytes) {
                            static_cast<void>(transport::copy_and_hash(target, source, bytes, kernel));
                          }});
  }
  const auto movers = static_cast<unsigned>(options_.movers);
  const transport::CopyMemory memory = options_.via.empty()        ? transport::CopyMemory::private_both
                                       : options_.job == Job::get ? transport::CopyMemory::shared_source
                                                                  : transport::CopyMemory::shared_target;
  const auto rates = transport::measure_copy_rates(candidates, block, working_set, movers, turn, memory);
  if (!options_.via.empty())
    private_ = std::max(private_, transport::measure_copy_limit(block, working_set, movers, turn).gib_per_s);
  for (std::size_t i = 0; i < bare; ++i) {
    peak_ = std::max(peak_, rates[i].peak_gib_per_s);
    if (rates[i].gib_per_s <= gib_per_s_) continue;
    gib_per_s_ = rates[i].gib_per_s;
    cpu_us_per_page_ = rates[i].cpu_us_per_block;
    kernel_ = rates[i].kernel;
  }
  // Ranks copy while they wait: what all threads that may copy at once could reach together is told beside it.
  const unsigned all = static_cast<unsigned>(copying_threads(options_));
  if (all > options_.movers) {
    const std::size_t largest = std::max<std::size_t>(transport::kDefaultWorkingSetBytes, all * block * 2);
    all_threads_ = std::max(all_threads_, transport::measure_copy_limit(block, largest, all, turn / 2, memory).gib_per_s);
  }
  checksummed_ = std::max(checksummed_, rates[bare].gib_per_s);
  checksummed_portable_ = std::max(checksummed_portable_, rates[bare + 1].gib_per_s);
}

Json LimitMeter::json() const {
  Json out = {{"gib_per_s", gib_per_s_},
              {"peak_gib_per_s", peak_},
              {"cpu_us_per_page", cpu_us_per_page_},
              {"kernel", kernel_},
              {"threads", options_.movers},
              {"waiting_threads_too_gib_per_s", std::max(all_threads_, gib_per_s_)}};
  if (!options_.via.empty()) {
    out["memory"] = options_.job == Job::get ? "from shared memory" : "into shared memory";
    out["private_memory_gib_per_s"] = private_;
  }
  return out;
}

Json LimitMeter::checksummed_json() const {
  return {{"gib_per_s", checksummed_}, {"portable_gib_per_s", checksummed_portable_}};
}

Json median_of(const std::vector<Json>& runs, const char* by) {
  std::vector<std::size_t> order(runs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return runs[a].value(by, 0.0) < runs[b].value(by, 0.0);
  });
  Json middle = runs[order[(order.size() - 1) / 2]];
  std::vector<const Json*> all;
  for (const Json& run : runs) all.push_back(&run);
  take_medians(middle, all);
  return middle;
}

}  // namespace kvonce::bench
