// SPDX-License-Identifier: Apache-2.0
//
// One whole run from one seed.
#pragma once

#include <cstdint>
#include <string>

#include "tests/sim/faults.hpp"
#include "tests/sim/probes.hpp"

namespace kvonce::sim {

struct RunResult {
  std::uint64_t seed = 0;
  std::uint64_t events = 0;
  std::uint64_t digest = 0;
  std::uint32_t violated = 0;  // number of the promise; 0: all held
  std::string sentence;
  std::uint32_t partitions = 0;
  Probes probes;
};

/// Same arguments, same result, bit for bit.
RunResult run_seed(std::uint64_t seed, const Faults& faults, bool trace);

}  // namespace kvonce::sim
