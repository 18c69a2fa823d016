// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "tests/sim/runner.hpp"

namespace {

using namespace kvonce::sim;

constexpr const char* kHelp =
    R"(kvonce_sim: ranks, stores, links and disks in one thread on a seeded clock, with checkers for the promises P1 to P8.

  kvonce_sim --seed N [--trace]       one run; prints its digest. The same seed gives the same run.
  kvonce_sim --seeds A..B [--jobs J]  many runs; prints failing seeds and the table of probes, and fails when a
                                      promise was broken or a probe was not reached within its number of seeds.
             [--first]                stops at the first failure
             [--no-probes]            does not judge probes
  kvonce_sim --fault NAME ...         with one deliberate fault in the cores (together with --seed or --seeds)
  kvonce_sim --check-faults [--jobs J]
                                      every fault must be found within its number of seeds
  kvonce_sim --list-faults

Exit codes: 0 all held, 1 a promise was broken, a probe or a fault not reached, 2 wrong call.
)";

struct Options {
  std::uint64_t seed = 0;
  std::uint64_t first = 0, last = 0;
  unsigned jobs = 0;
  bool trace = false, stop_at_first = false, probes = true, check_faults = false;
  const FaultInfo* fault = nullptr;
};

bool number(const char* text, std::uint64_t* out) {
  char* end = nullptr;
  errno = 0;
  *out = std::strtoull(text, &end, 10);
  return *text >= '0' && *text <= '9' && *end == 0 && errno == 0;
}
bool range(const std::string& text, Options& options) {
  const auto dots = text.find("..");
  return dots != std::string::npos && number(text.substr(0, dots).c_str(), &options.first) &&
         number(text.substr(dots + 2).c_str(), &options.last) && options.first >= 1 && options.first <= options.last;
}

int wrong(const std::string& what) {
  std::fprintf(stderr, "kvonce_sim: %s; --help tells what is allowed\n", what.c_str());
  return 2;
}

int run_one(const Options& options, const Faults& faults) {
  const RunResult run = run_seed(options.seed, faults, options.trace);
  std::printf("seed %llu: %llu events, %u partition(s), digest %016llx\n", static_cast<unsigned long long>(run.seed),
              static_cast<unsigned long long>(run.events), run.partitions, static_cast<unsigned long long>(run.digest));
  if (run.violated == 0) return 0;
  std::printf("P%u was broken: %s\n", run.violated, run.sentence.c_str());
  return 1;
}

int run_many(const Options& options, const Faults& faults) {
  const SweepResult sweep = run_seeds(options.first, options.last, options.jobs, faults, options.stop_at_first);
  const std::string fault = options.fault == nullptr ? "" : std::string(" --fault ") + options.fault->name;
  bool good = sweep.failures.empty();
  for (const Failure& failure : sweep.failures) {
    if (failure.promise == 0)
      std::printf("seed %llu crashed: %s", static_cast<unsigned long long>(failure.seed), failure.sentence.c_str());
    else
      std::printf("seed %llu broke P%u: %s", static_cast<unsigned long long>(failure.seed), failure.promise,
                  failure.sentence.c_str());
    std::printf("\n    again: kvonce_sim --seed %llu%s --trace\n", static_cast<unsigned long long>(failure.seed), fault.c_str());
  }
  const std::uint64_t asked = options.last - options.first + 1;
  std::printf("%-26s %14s\n", "probe", "count");
  for (std::size_t i = 0; i < kProbeCount; ++i) {
    const auto probe = static_cast<Probe>(i);
    const std::uint32_t within = info(probe).within_seeds;
    const bool missing = options.probes && options.fault == nullptr && !options.stop_at_first && within != 0 &&
                         asked >= within && sweep.probes.count(probe) == 0;
    std::printf("%-26s %14llu%s\n", info(probe).name, static_cast<unsigned long long>(sweep.probes.count(probe)),
                missing ? "   NOT REACHED" : "");
    good = good && !missing;
  }
  std::printf("%llu seeds (%llu with more than one partition), %llu events, at least %llu in a run, %.1f s: %s\n",
              static_cast<unsigned long long>(sweep.seeds), static_cast<unsigned long long>(sweep.partitioned),
              static_cast<unsigned long long>(sweep.events),
              static_cast<unsigned long long>(sweep.failures.size() == sweep.seeds ? 0 : sweep.events_min), sweep.seconds,
              good ? "all promises held" : "FAILED");
  if (sweep.failures.empty() && sweep.events_min < 2'000) {
    std::printf("a run had fewer than 2,000 events\n");
    good = false;
  }
  return good ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  options.jobs = std::max(1U, std::thread::hardware_concurrency());
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : "";
    std::uint64_t parsed = 0;
    if (flag == "--help" || flag == "-h") return std::fputs(kHelp, stdout) < 0 ? 1 : 0;
    if (flag == "--trace") {
      options.trace = true;
    } else if (flag == "--first") {
      options.stop_at_first = true;
    } else if (flag == "--no-probes") {
      options.probes = false;
    } else if (flag == "--check-faults") {
      options.check_faults = true;
    } else if (flag == "--list-faults") {
      for (const FaultInfo& fault : all_faults())
        std::printf("%-24s within %3u seeds: %s\n", fault.name, fault.within_seeds, fault.what);
      return 0;
    } else if (flag == "--seed") {
      if (!number(value, &options.seed) || options.seed == 0) return wrong("--seed needs a number from 1 on");
      ++i;
    } else if (flag == "--seeds") {
      if (!range(value, options)) return wrong("--seeds needs A..B with 1 <= A <= B");
      ++i;
    } else if (flag == "--jobs") {
      if (!number(value, &parsed) || parsed < 1 || parsed > 256) return wrong("--jobs needs a number from 1 to 256");
      options.jobs = static_cast<unsigned>(parsed);
      ++i;
    } else if (flag == "--fault") {
      options.fault = find_fault(value);
      if (options.fault == nullptr) return wrong("there is no fault '" + std::string(value) + "'");
      ++i;
    } else {
      return wrong("unknown flag '" + flag + "'");
    }
  }
  Faults faults;
  if (options.fault != nullptr) options.fault->set(faults);
  if (options.check_faults) return check_faults(options.jobs) ? 0 : 1;
  if (options.seed != 0) return run_one(options, faults);
  if (options.first != 0) return run_many(options, faults);
  return wrong("one of --seed, --seeds, --check-faults is needed");
}
