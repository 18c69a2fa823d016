// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/runner.hpp"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

namespace kvonce::sim {
namespace {

// What a worker process tells: plain memory shared with the parent.
struct Shared {
  struct Failed {
    std::uint64_t seed;
    std::uint32_t promise;
    char sentence[400];
  };
  std::atomic<std::uint64_t> current{0};  // seed that runs now
  std::uint64_t seeds = 0;
  std::uint64_t events = 0;
  std::uint64_t events_min = ~std::uint64_t{0};
  std::uint64_t partitioned = 0;
  Probes probes;
  std::uint32_t failures = 0;
  Failed failed[kFailuresKept]{};
};
struct Board {
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> next{0};
};

void note_failure(Shared& shared, std::uint64_t seed, std::uint32_t promise, const std::string& sentence) {
  if (shared.failures == kFailuresKept) return;
  Shared::Failed& slot = shared.failed[shared.failures++];
  slot.seed = seed;
  slot.promise = promise;
  std::snprintf(slot.sentence, sizeof slot.sentence, "%s", sentence.c_str());
}

void work(Shared& shared, Board& board, std::uint64_t last, const Faults& faults, bool stop_at_first) {
  while (!board.stop.load()) {
    const std::uint64_t seed = board.next.fetch_add(1);
    if (seed > last) break;
    shared.current.store(seed);
    const RunResult run = run_seed(seed, faults, false);
    ++shared.seeds;
    shared.events += run.events;
    if (run.violated == 0) shared.events_min = std::min(shared.events_min, run.events);
    shared.partitioned += run.partitions > 1 ? 1 : 0;
    shared.probes.add(run.probes);
    if (run.violated != 0) {
      note_failure(shared, seed, run.violated, run.sentence);
      if (stop_at_first || shared.failures == kFailuresKept) board.stop.store(true);
    }
  }
  shared.current.store(0);
}

void* share(std::size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("kvonce_sim: mmap");
    std::exit(2);
  }
  return memory;
}

pid_t start_worker(Shared& shared, Board& board, std::uint64_t last, const Faults& faults, bool stop_at_first) {
  std::fflush(nullptr);
  const pid_t pid = fork();
  if (pid < 0) {
    std::perror("kvonce_sim: fork");
    std::exit(2);
  }
  if (pid == 0) {
    work(shared, board, last, faults, stop_at_first);
    std::fflush(nullptr);
    _exit(0);
  }
  return pid;
}

}  // namespace

SweepResult run_seeds(std::uint64_t first, std::uint64_t last, unsigned jobs, const Faults& faults, bool stop_at_first) {
  const auto begin = std::chrono::steady_clock::now();
  const std::size_t bytes = sizeof(Shared) * jobs;
  auto* shared = static_cast<Shared*>(share(bytes));
  auto* board = new (share(sizeof(Board))) Board;
  board->next.store(first);
  std::vector<pid_t> pids;
  for (unsigned i = 0; i < jobs; ++i) {
    new (&shared[i]) Shared;
    pids.push_back(start_worker(shared[i], *board, last, faults, stop_at_first));
  }
  for (unsigned i = 0; i < jobs; ++i) {
    for (;;) {
      int status = 0;
      waitpid(pids[i], &status, 0);
      const std::uint64_t seed = shared[i].current.load();
      if (WIFEXITED(status) && WEXITSTATUS(status) == 0 && seed == 0) break;
      note_failure(shared[i], seed, 0, WIFSIGNALED(status) ? std::string("the run died: ") + strsignal(WTERMSIG(status))
                                                           : "the run ended with code " + std::to_string(WEXITSTATUS(status)));
      if (stop_at_first || shared[i].failures == kFailuresKept) board->stop.store(true);
      shared[i].current.store(0);
      pids[i] = start_worker(shared[i], *board, last, faults, stop_at_first);
    }
  }
  SweepResult result;
  result.events_min = ~std::uint64_t{0};
  for (unsigned i = 0; i < jobs; ++i) {
    const Shared& one = shared[i];
    result.seeds += one.seeds;
    result.events += one.events;
    result.events_min = std::min(result.events_min, one.events_min);
    result.partitioned += one.partitioned;
    result.probes.add(one.probes);
    for (std::uint32_t f = 0; f < one.failures; ++f)
      result.failures.push_back({one.failed[f].seed, one.failed[f].promise, one.failed[f].sentence});
  }
  munmap(shared, bytes);
  munmap(board, sizeof(Board));
  std::sort(result.failures.begin(), result.failures.end(), [](const Failure& a, const Failure& b) { return a.seed < b.seed; });
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

bool check_faults(unsigned jobs) {
  bool all = true;
  for (const FaultInfo& fault : all_faults()) {
    Faults faults;
    fault.set(faults);
    const SweepResult result = run_seeds(1, fault.within_seeds, jobs, faults, true);
    if (result.failures.empty()) {
      std::printf("%-24s NOT FOUND within %u seeds\n", fault.name, fault.within_seeds);
      all = false;
    } else {
      std::printf("%-24s found at seed %llu: P%u %s\n", fault.name,
                  static_cast<unsigned long long>(result.failures.front().seed), result.failures.front().promise,
                  result.failures.front().sentence.c_str());
    }
    std::fflush(stdout);
  }
  return all;
}

}  // namespace kvonce::sim
