// SPDX-License-Identifier: Apache-2.0
//
// The jobs with rank processes and a store of another process.
#include <algorithm>
#include <thread>

#include "bench/crew.hpp"
#include "bench/jobs.hpp"
#include "bench/questions.hpp"
#include "bench/results.hpp"

namespace kvonce::bench {
namespace {

using Clock = std::chrono::steady_clock;

// Rows are only there to be put; which bytes a page has is of no matter to `exists`.
constexpr std::uint64_t kExistsRows = 65'536;
constexpr std::uint64_t kExistsBatch = 4'096;

void add_cpu(Json& run, const CpuMark& cpu, std::uint64_t unique_pages) {
  const double pages = static_cast<double>(std::max<std::uint64_t>(unique_pages, 1));
  run["cpu_us_per_unique_page_of"] = {{"ranks", cpu.ranks * 1e6 / pages}, {"store", cpu.store * 1e6 / pages}, {"bench", cpu.self * 1e6 / pages}};
}

// Runs `body` with what ends a benchmark caught: reasons become an Outcome.
template <class Body>
Outcome guarded(const Options& options, const char* by, const Body& body) {
  const Interrupts interrupts;
  std::vector<Json> runs;
  Outcome out;
  try {
    body(runs);
  } catch (const Failed& failed) {
    return {{}, failed.text, {}};
  } catch (const Wrong& wrong) {
    out.wrong = wrong.text;
  } catch (const std::exception& problem) {
    return {{}, std::string("the benchmark failed: ") + problem.what(), {}};
  }
  if (!runs.empty()) out.result = report(options, runs, by);
  return out;
}

CrewSpec crew_spec(const Options& options) {
  CrewSpec spec;
  spec.ranks = options.ranks;
  spec.pages = options.pages;
  spec.page_bytes = options.page_bytes;
  spec.rows = options.pages;
  return spec;
}

Json asked_of(const Options& options, const char* what, std::uint64_t seed) {
  return {{"do", what}, {"seed", seed}, {"pages", options.pages}, {"batch", options.batch}, {"depth", options.depth}};
}

std::vector<std::uint64_t> moved_of(const Crew::Timed& timed) {
  std::vector<std::uint64_t> moved;
  for (const Json& report : timed.reports) moved.push_back(report.at("moved_bytes"));
  return moved;
}

void put_once(const Options& options, Crew& crew, std::vector<Json>& runs) {
  const std::uint64_t seed = fresh_seed();
  const auto keys = make_keys(seed, options.pages);
  crew.ask_all({{"do", "fill"}, {"seed", seed}});
  if (runs.empty()) {
    // As in one process: the pool's first keys are verified on every rank, so they are spent on pages that are not measured.
    for (std::size_t r = 0; r < crew.size(); ++r)
      crew.ask(r, {{"do", "put_all"}, {"seed", ~seed}, {"pages", std::min(options.pages, kFirstKeys)}, {"batch", options.batch}, {"rows", options.pages}});
  }
  LimitMeter limit(options);
  limit.measure();
  const Stats before = crew.stage().runtime().stats();
  Crew::Timed timed = crew.timed(asked_of(options, "put", seed));
  const Stats after = crew.stage().runtime().stats();
  limit.measure();

  std::vector<VerdictCounts> verdicts;
  for (const Json& report : timed.reports) verdicts.push_back(report.at("verdicts").get<VerdictCounts>());
  Json run = put_run_json(kPathShared, options, {moved_of(timed), before, after});
  add_rates(run, {static_cast<double>(options.pages * options.page_bytes), options.pages, options.pages * options.ranks}, timed.seconds, timed.cpu.all(),
            timed.ack_us, limit);
  add_cpu(run, timed.cpu, options.pages);
  run["seconds_to_start"] = crew.seconds_to_start();
  run["verdicts"] = verdicts_json(verdicts);
  // By this process, which has put nothing.
  const std::string wrong = crew.stage().verify(keys, seed, options.batch);
  run["verified"] = wrong.empty();
  runs.push_back(std::move(run));
  if (!wrong.empty()) throw Wrong{wrong};
  crew.remove(keys);
}

void get_once(const Options& options, Crew& crew, std::vector<Json>& runs) {
  const std::uint64_t seed = fresh_seed();
  const auto keys = make_keys(seed, options.pages);
  crew.ask(0, {{"do", "fill"}, {"seed", seed}});
  crew.ask(0, {{"do", "put_all"}, {"seed", seed}, {"pages", options.pages}, {"batch", options.batch}, {"rows", options.pages}});
  crew.ask_all({{"do", "clear"}});
  // Taken by this process, used by those of the same engine.
  const Stage::Leases leases = crew.stage().lease(keys, options.batch);
  if (!leases.error.empty()) throw Wrong{leases.error};
  Json command = asked_of(options, "get", seed);
  command["leases"] = Json::array();
  for (const LeaseId& lease : leases.by_chain) command["leases"].push_back({lease.high, lease.low});
  LimitMeter limit(options);
  limit.measure();
  const Stats before = crew.stage().runtime().stats();
  Crew::Timed timed = crew.timed(command);
  const Stats after = crew.stage().runtime().stats();
  limit.measure();
  crew.stage().release(leases);

  std::vector<ReasonCounts> reasons;
  for (const Json& report : timed.reports) reasons.push_back(report.at("reasons").get<ReasonCounts>());
  const std::uint64_t asked = options.pages * options.ranks;
  const std::uint64_t loaded = loaded_of(reasons);
  Json run = get_run_json(kPathShared, options, loaded);
  add_moved(run, {moved_of(timed), before, after});
  add_rates(run, {static_cast<double>(asked * options.page_bytes), options.pages, asked}, timed.seconds, timed.cpu.all(), timed.ack_us,
            limit);
  add_cpu(run, timed.cpu, options.pages);
  run["seconds_to_start"] = crew.seconds_to_start();
  run["results"] = results_json(reasons);
  run["verdicts"] = verdicts_json({});
  std::string wrong = missing_loads(asked, loaded);
  const auto rows = crew.ask_all({{"do", "wrong_rows"}, {"seed", seed}});
  for (std::size_t r = 0; r < rows.size() && wrong.empty(); ++r)
    if (rows[r].at("wrong") != 0)
      wrong = std::to_string(rows[r].at("wrong").get<std::uint64_t>()) + " pages of rank process " + std::to_string(r) + " have other bytes";
  run["verified"] = wrong.empty();
  runs.push_back(std::move(run));
  if (!wrong.empty()) throw Wrong{wrong};
  crew.remove(keys);
}

}  // namespace

Outcome run_put_via(const Options& options) {
  return guarded(options, "seconds", [&](std::vector<Json>& runs) {
    CrewSpec spec = crew_spec(options);
    spec.own_rows = options.pages;
    Crew crew(options, spec);
    for (std::uint64_t i = 0; i < options.repeat; ++i) put_once(options, crew, runs);
    crew.end();
  });
}

Outcome run_get_via(const Options& options) {
  return guarded(options, "seconds", [&](std::vector<Json>& runs) {
    Crew crew(options, crew_spec(options));
    for (std::uint64_t i = 0; i < options.repeat; ++i) get_once(options, crew, runs);
    crew.end();
  });
}

Outcome run_exists_via(const Options& options) {
  return guarded(options, "seconds", [&](std::vector<Json>& runs) {
    CrewSpec spec = crew_spec(options);
    spec.rows = std::min(kExistsRows, options.pages);
    Crew crew(options, spec);
    const std::uint64_t seed = fresh_seed();
    crew.ask(0, {{"do", "fill"}, {"seed", seed}});
    crew.ask(0, {{"do", "put_all"}, {"seed", seed}, {"pages", options.pages}, {"batch", std::min(kExistsBatch, spec.rows)}, {"rows", spec.rows}});
    const std::uint64_t operations = std::max(options.operations / options.batch, std::uint64_t{1}) * options.batch;
    for (std::uint64_t i = 0; i < options.repeat; ++i) {
      Json command = asked_of(options, "exists", seed);
      command["operations"] = operations;
      std::vector<std::uint64_t> seeds;
      for (std::size_t r = 0; r < crew.size(); ++r) seeds.push_back(fresh_seed());
      command["questions"] = seeds;
      LimitMeter limit(options);
      limit.measure();
      const Stats before = crew.stage().runtime().stats();
      Crew::Timed timed = crew.timed(command);
      const Stats after = crew.stage().runtime().stats();
      std::uint64_t found = 0;
      std::uint64_t false_hits = 0;
      for (const Json& report : timed.reports) {
        found += report.at("found").get<std::uint64_t>();
        false_hits += report.at("false_hits").get<std::uint64_t>();
      }
      const std::uint64_t asked = operations * options.ranks;
      const std::uint64_t distinct = distinct_questions(seeds, operations, options.pages);
      Json run = exists_run_json(kPathShared, options, {distinct, asked}, found, false_hits);
      add_moved(run, {moved_of(timed), before, after});
      add_pace(run, {distinct, asked}, timed.seconds, timed.cpu.all(), timed.ack_us);
      run["copy_limit"] = limit.json();
      run["verdicts"] = verdicts_json({});
      run["verified"] = found == asked && false_hits == 0;
      runs.push_back(std::move(run));
      if (found != asked || false_hits != 0)
        throw Wrong{std::to_string(asked - found) + " resident keys were not found, " + std::to_string(false_hits) + " absent ones were"};
    }
    crew.end();
  });
}

Outcome run_idle_via(const Options& options) {
  return guarded(options, "cpu_percent", [&](std::vector<Json>& runs) {
    constexpr std::uint64_t kPages = 64;
    CrewSpec spec = crew_spec(options);
    spec.pages = kPages;
    spec.rows = kPages;
    Crew crew(options, spec);
    const std::uint64_t seed = fresh_seed();
    crew.ask_all({{"do", "fill"}, {"seed", seed}});
    // Idle is meant after work: every process has put.
    crew.ask_all({{"do", "put_all"}, {"seed", seed}, {"pages", kPages}, {"batch", kPages}, {"rows", kPages}});
    for (std::uint64_t i = 0; i < options.repeat; ++i) {
      LimitMeter limit(options);
      limit.measure();
      const CpuMark before = crew.cpu();
      const auto begin = Clock::now();
      const auto end = begin + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options.seconds));
      while (Clock::now() < end) {
        Interrupts::check();
        std::this_thread::sleep_for(std::min<Clock::duration>(end - Clock::now(), std::chrono::milliseconds{500}));
      }
      const CpuMark after = crew.cpu();
      const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
      const double store = after.store - before.store;
      const double ranks = after.ranks - before.ranks;
      runs.push_back({{"path", kPathShared},
                      {"pools", crew.size()},
                      {"operations", 0},
                      {"seconds", seconds},
                      {"cpu_seconds", store + ranks},
                      {"cpu_percent", store / seconds * 100},
                      {"clients_cpu_percent", ranks / seconds * 100},
                      {"copy_limit", limit.json()}});
    }
    crew.end();
  });
}

}  // namespace kvonce::bench
