// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "bench/drive.hpp"
#include "bench/jobs.hpp"
#include "bench/questions.hpp"
#include "bench/results.hpp"
#include "bench/stage.hpp"

namespace kvonce::bench {
namespace {

using Json = nlohmann::ordered_json;

// Rows are only there to be put; which bytes a page has is of no matter to `exists`.
constexpr std::uint64_t kRows = 65'536;
constexpr std::uint64_t kPutBatch = 4'096;

// An answer that is there at once, in the shape that drive() asks for.
struct Answer {
  void wait() const {}
  std::vector<std::uint8_t> found;
};

// Stores all keys; empty when every page is stored.
std::string store_all(Stage& stage, const std::vector<PageHash>& keys, std::uint64_t rows) {
  std::uint64_t stored = 0;
  for (PutBatch& batch : make_put_batches(keys, std::min(kPutBatch, rows), stage.pool(0), rows)) {
    auto put = stage.rank(0).put(std::move(batch));
    if (!put) return "put refused: " + put.error.text;
    put.value->wait();
    stored += put.value->succeeded();
  }
  if (stored != keys.size()) return std::to_string(keys.size() - stored) + " pages could not be stored";
  return {};
}

}  // namespace

Outcome run_exists(const Options& options) {
  if (!options.via.empty()) return run_exists_via(options);
  StageSpec spec;
  spec.ranks = options.ranks;
  spec.pages = options.pages;
  spec.page_bytes = options.page_bytes;
  spec.rows = std::min(kRows, options.pages);
  spec.movers = options.movers;
  std::vector<RowMemory> memory;
  for (std::uint64_t r = 0; r < spec.ranks; ++r) memory.emplace_back(spec.rows * Stage::row_stride(spec));

  auto started = Stage::start(spec, memory);
  if (!started.stage) return {{}, started.error, {}};
  Stage& stage = *started.stage;
  const std::uint64_t seed = fresh_seed();
  const auto keys = make_keys(seed, options.pages);
  const auto absent = make_keys(seed + 1, std::min<std::uint64_t>(options.pages, 65'536));
  stage.fill_rows(seed);
  if (std::string error = store_all(stage, keys, spec.rows); !error.empty()) return {{}, error, {}};

  const std::uint64_t operations = std::max(options.operations / options.batch, std::uint64_t{1}) * options.batch;
  std::vector<Json> runs;
  for (std::uint64_t i = 0; i < options.repeat; ++i) {
    std::vector<std::vector<PageHash>> questions(options.ranks);
    std::vector<std::uint64_t> seeds;
    for (std::vector<PageHash>& one : questions) {
      Questions pages(seeds.emplace_back(fresh_seed()), keys.size());
      for (std::uint64_t n = 0; n < operations; ++n) one.push_back(keys[pages.next()]);
    }
    LimitMeter limit(options);
    limit.measure();
    const std::vector<std::uint64_t> moved_before = stage.moved_bytes();
    const Stats before = stage.runtime().stats();
    std::vector<std::uint64_t> found(options.ranks);
    Driven driven = drive(
        {options.ranks, operations / options.batch, 1, options.lockstep},
        [&](std::size_t r, std::size_t b, const Completion&) {
          auto answer = stage.rank(r).exists(stage.pool(r), std::span(questions[r]).subspan(b * options.batch, options.batch));
          Result<std::shared_ptr<Answer>> out;
          out.error = answer.error;
          out.value = std::make_shared<Answer>(Answer{std::move(answer.value)});
          return out;
        },
        [&](std::size_t r, const Answer& answer) {
          for (const std::uint8_t one : answer.found) found[r] += one;
        });
    const Stats after = stage.runtime().stats();
    if (!driven.error.empty()) return {{}, "exists refused: " + driven.error, {}};
    std::uint64_t found_all = 0;
    for (const std::uint64_t one : found) found_all += one;
    const std::uint64_t asked = operations * options.ranks;

    // Keys that were never put must not be there.
    auto other = stage.rank(0).exists(stage.pool(0), absent);
    std::uint64_t false_hits = 0;
    for (const std::uint8_t one : other.value) false_hits += one;

    const std::uint64_t distinct = distinct_questions(seeds, operations, keys.size());
    Json run = exists_run_json(kPathEmbedded, options, {distinct, asked}, found_all, false_hits);
    add_moved(run, {stage.moved_bytes(moved_before), before, after});
    add_pace(run, {distinct, asked}, driven.seconds, driven.cpu_seconds, driven.ack_us);
    run["copy_limit"] = limit.json();
    run["verdicts"] = verdicts_json({});
    const bool right = !other.error && found_all == asked && false_hits == 0;
    run["verified"] = right;
    runs.push_back(std::move(run));
    if (!right)
      return {report(options, runs, "seconds"), {},
              std::to_string(asked - found_all) + " resident keys were not found, " + std::to_string(false_hits) +
                  " absent ones were"};
  }
  return {report(options, runs, "seconds"), {}, {}};
}

}  // namespace kvonce::bench
