// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/world.hpp"

#include <memory>
#include <vector>

#include "tests/sim/checkers.hpp"
#include "tests/sim/workload.hpp"

namespace kvonce::sim {
namespace {

constexpr std::uint64_t kEventsMax = 400'000;
// After the last action everything ends by its own deadlines; what goes on for longer never ends.
constexpr Duration kTailMax = 400 * kSecond;

}  // namespace

RunResult run_seed(std::uint64_t seed, const Faults& faults, bool trace) {
  Sim sim(seed, faults, trace);
  Checkers checkers(sim);
  StoreNode node(sim, checkers);
  checkers.watch(node);
  std::vector<std::unique_ptr<Rank>> ranks;
  for (std::uint32_t e = 0; e < sim.knobs.engines.size(); ++e)
    for (std::uint32_t r = 0; r < sim.knobs.engines[e].ranks; ++r)
      ranks.push_back(std::make_unique<Rank>(sim, node, checkers, e, r));
  Workload workload(sim, node, ranks);
  workload.start();

  Time end = kNever;
  while (!sim.failed() && sim.schedule.run_one()) {
    if (workload.finished() && end == kNever) end = sim.now() + kTailMax;
    if (sim.schedule.events() > kEventsMax)
      sim.violate(6, "the run does not come to an end: " + std::to_string(kEventsMax) + " events");
    if (sim.now() > end) sim.violate(6, "something still runs long after the last call");
  }
  if (!sim.failed()) {
    checkers.scan(true);
    if (!node.idle_but_leases()) sim.violate(6, "a store has a deadline left after the last event");
    if (node.up() && !node.round_is_over()) sim.violate(6, "a namespace waits for a place, or is on its way out, after the last event");
    for (const auto& rank : ranks) {
      if (rank->dead || rank->session() == nullptr) continue;
      if (!rank->session()->quiet() || !rank->mover.idle())
        sim.violate(6, "a rank still waits for something after the last event");
    }
  }
  RunResult result;
  result.seed = seed;
  result.events = sim.schedule.events();
  result.digest = sim.digest;
  result.violated = sim.violated;
  result.sentence = sim.sentence;
  result.partitions = sim.knobs.partitions;
  result.probes = sim.probes;
  return result;
}

}  // namespace kvonce::sim
