// SPDX-License-Identifier: Apache-2.0
//
// Runs one thread per rank, each submitting its batches with a number of them in flight, and measures that.
#pragma once

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <kvonce/operation.hpp>

#include "bench/measure.hpp"

namespace kvonce::bench {

struct Driven {
  double seconds = 0;      // first submission to last answer, over all ranks
  double cpu_seconds = 0;  // of the whole process meanwhile
  std::vector<double> ack_us;  // submission to answer, one per batch and rank
  std::string error;           // of the first call that was refused
};

struct DriveSpec {
  std::size_t ranks = 1;
  std::size_t batches = 0;  // of each rank
  std::uint64_t depth = 1;
  bool lockstep = false;
};

/// What one rank's thread did.
struct DrivenRank {
  std::vector<double> ack_us;
  std::chrono::steady_clock::time_point begin, end;
  std::string error;
};

// On the rank's own thread: waits for `start()`, calls `step()` before each batch.
// submit(batch, completion) -> Result<std::shared_ptr<Op>>; done(Op&), once for each.
template <class Start, class Step, class Submit, class Done>
DrivenRank drive_rank(std::size_t batches, std::uint64_t depth, const Start& start, const Step& step, const Submit& submit,
                      const Done& done) {
  using Clock = std::chrono::steady_clock;
  using Op = typename decltype(submit(std::size_t{}, Completion{}).value)::element_type;
  struct Flight {
    std::shared_ptr<Op> operation;
    std::size_t batch = 0;
    Clock::time_point begin;
  };
  // When answers came, as ticks of the clock. Shared with the callbacks: the last may return after everybody is done.
  using Answers = std::vector<std::atomic<Clock::rep>>;
  DrivenRank mine;
  const bool one_at_a_time = depth == 1;
  mine.ack_us.reserve(batches);
  const auto answers = std::make_shared<Answers>(one_at_a_time ? 0 : batches);
  std::deque<Flight> flights;
  const auto finish_oldest = [&] {
    const Flight flight = std::move(flights.front());
    flights.pop_front();
    flight.operation->wait();
    Clock::time_point end = Clock::now();
    if (!one_at_a_time) {
      const Clock::rep told = (*answers)[flight.batch].load(std::memory_order_relaxed);
      if (told != 0) end = Clock::time_point(Clock::duration(told));
    }
    mine.ack_us.push_back(std::chrono::duration<double, std::micro>(end - flight.begin).count());
    done(*flight.operation);
  };
  start();
  mine.begin = Clock::now();
  for (std::size_t b = 0; b < batches; ++b) {
    step();
    if (flights.size() == depth) finish_oldest();
    Completion completion;
    if (!one_at_a_time)
      completion.callback = [answers, b] {
        (*answers)[b].store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
      };
    const Clock::time_point begin = Clock::now();
    auto submitted = submit(b, std::move(completion));
    if (!submitted) {
      if (mine.error.empty()) mine.error = submitted.error.text;
      continue;  // the others wait for this rank before the next step
    }
    flights.push_back({std::move(submitted.value), b, begin});
    if (one_at_a_time) finish_oldest();
  }
  while (!flights.empty()) finish_oldest();
  mine.end = Clock::now();
  return mine;
}

// submit(rank, batch, completion) -> Result<std::shared_ptr<Op>>; done(rank, Op&) on that rank's thread, once for each.
template <class Submit, class Done>
Driven drive(const DriveSpec& spec, const Submit& submit, const Done& done) {
  std::vector<DrivenRank> ranks(spec.ranks);
  std::barrier start(static_cast<std::ptrdiff_t>(spec.ranks + 1));
  std::barrier step(static_cast<std::ptrdiff_t>(spec.ranks));
  const auto body = [&](std::size_t r) {
    pthread_setname_np(pthread_self(), "bench-rank");  // for profilers: these threads do nothing but the timed part
    ranks[r] = drive_rank(
        spec.batches, spec.depth, [&] { start.arrive_and_wait(); },
        [&] {
          if (spec.lockstep) step.arrive_and_wait();
        },
        [&](std::size_t b, Completion completion) { return submit(r, b, std::move(completion)); },
        [&](auto& operation) { done(r, operation); });
  };

  std::vector<std::thread> threads;
  threads.reserve(spec.ranks);
  for (std::size_t r = 0; r < spec.ranks; ++r) threads.emplace_back(body, r);
  const double cpu_begin = process_cpu_seconds();
  start.arrive_and_wait();
  for (std::thread& thread : threads) thread.join();

  Driven out;
  out.cpu_seconds = process_cpu_seconds() - cpu_begin;
  auto begin = ranks[0].begin;
  auto end = ranks[0].end;
  for (DrivenRank& one : ranks) {
    begin = std::min(begin, one.begin);
    end = std::max(end, one.end);
    out.ack_us.insert(out.ack_us.end(), one.ack_us.begin(), one.ack_us.end());
    if (out.error.empty()) out.error = one.error;
  }
  out.seconds = std::chrono::duration<double>(end - begin).count();
  return out;
}

}  // namespace kvonce::bench
