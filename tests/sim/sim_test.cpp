// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <set>
#include <string>

#include "tests/sim/faults.hpp"
#include "tests/sim/runner.hpp"
#include "tests/sim/schedule.hpp"
#include "tests/sim/world.hpp"

using namespace kvonce::sim;

TEST_CASE("one seed gives one run, bit for bit") {
  for (const std::uint64_t seed : {3ULL, 4ULL, 8ULL, 17ULL, 42ULL}) {
    const RunResult first = run_seed(seed, {}, false);
    const RunResult again = run_seed(seed, {}, false);
    CHECK(first.digest == again.digest);
    CHECK(first.events == again.events);
    CHECK(first.violated == 0);
    CHECK_MESSAGE(first.sentence.empty(), first.sentence);
  }
}

TEST_CASE("another seed gives another run") {
  std::set<std::uint64_t> digests;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) digests.insert(run_seed(seed, {}, false).digest);
  CHECK(digests.size() == 20);
}

TEST_CASE("a run has at least 2,000 events, and half of the seeds have more than one partition") {
  std::uint32_t partitioned = 0;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    const RunResult run = run_seed(seed, {}, false);
    CHECK(run.events >= 2'000);
    partitioned += run.partitions > 1 ? 1 : 0;
  }
  CHECK(partitioned >= 50);
}

TEST_CASE("a fault found once is found again at the same seed by the same sentence") {
  Faults faults;
  REQUIRE(find_fault("double_grant") != nullptr);
  find_fault("double_grant")->set(faults);
  const SweepResult sweep = run_seeds(1, 50, 2, faults, true);
  REQUIRE(!sweep.failures.empty());
  const RunResult again = run_seed(sweep.failures.front().seed, faults, false);
  CHECK(again.violated == sweep.failures.front().promise);
  CHECK(again.sentence == sweep.failures.front().sentence);
}

TEST_CASE("faults of the round that gives places of namespaces back are found within their seeds") {
  for (const char* name : {"keep_turn", "free_before_emptied", "retire_open"}) {
    const FaultInfo* fault = find_fault(name);
    REQUIRE(fault != nullptr);
    Faults faults;
    fault->set(faults);
    const SweepResult sweep = run_seeds(1, fault->within_seeds, 2, faults, true);
    CHECK_MESSAGE(!sweep.failures.empty(), name);
  }
}

TEST_CASE("some runs have fewer places than namespaces, and places change their owners in them") {
  std::uint64_t retired = 0, reused = 0;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    const RunResult run = run_seed(seed, {}, false);
    retired += run.probes.count(Probe::retirement);
    reused += run.probes.count(Probe::place_reused);
  }
  CHECK(retired > 0);
  CHECK(reused > 0);
}

TEST_CASE("faults have names of their own and a stated number of seeds") {
  std::set<std::string> names;
  for (const FaultInfo& fault : all_faults()) {
    names.insert(fault.name);
    CHECK(fault.within_seeds > 0);
    CHECK(fault.within_seeds <= 400);
  }
  CHECK(names.size() == all_faults().size());
  CHECK(find_fault("no such fault") == nullptr);
}

TEST_CASE("actions of one time run in the order they were asked for, later ones later") {
  Schedule schedule;
  std::string order;
  schedule.after(20, [&] { order += 'c'; });
  schedule.after(10, [&] {
    order += 'a';
    schedule.after(0, [&] { order += 'b'; });
  });
  schedule.after(20, [&] { order += 'd'; });
  while (schedule.run_one()) {
  }
  CHECK(order == "abcd");
  CHECK(schedule.events() == 4);
}
