// SPDX-License-Identifier: Apache-2.0
//
// Many seeds in several processes: a crash of one run names its seed and costs the others nothing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/sim/world.hpp"

namespace kvonce::sim {

struct Failure {
  std::uint64_t seed = 0;
  std::uint32_t promise = 0;  // 0: the run crashed
  std::string sentence;
};
struct SweepResult {
  std::uint64_t seeds = 0;
  std::uint64_t events = 0;
  std::uint64_t events_min = 0;
  std::uint64_t partitioned = 0;  // seeds with more than one partition
  double seconds = 0;
  Probes probes;
  std::vector<Failure> failures;  // by seed
};
inline constexpr std::uint32_t kFailuresKept = 16;

/// Seeds first .. last, both included. Ends early with the first failure (stop_at_first), or when a process has had
/// kFailuresKept of them.
SweepResult run_seeds(std::uint64_t first, std::uint64_t last, unsigned jobs, const Faults& faults, bool stop_at_first);

/// Runs every fault over its stated number of seeds; false when one was not found. Prints a line each.
bool check_faults(unsigned jobs);

}  // namespace kvonce::sim
