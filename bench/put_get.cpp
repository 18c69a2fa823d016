// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "bench/drive.hpp"
#include "bench/jobs.hpp"
#include "bench/results.hpp"
#include "bench/stage.hpp"

namespace kvonce::bench {
namespace {

using Json = nlohmann::ordered_json;

StageSpec stage_spec(const Options& options) {
  StageSpec spec;
  spec.ranks = options.ranks;
  spec.pages = options.pages;
  spec.page_bytes = options.page_bytes;
  spec.rows = options.pages;
  spec.movers = options.movers;
  spec.kernel = options.kernel;
  spec.inline_copy_bytes = options.inline_copy_bytes;
  return spec;
}

std::vector<RowMemory> row_memory(const StageSpec& spec) {
  std::vector<RowMemory> memory;
  memory.reserve(spec.ranks);
  for (std::uint64_t r = 0; r < spec.ranks; ++r) memory.emplace_back(spec.rows * Stage::row_stride(spec));
  return memory;
}

struct OneRun {
  Json json;
  std::string error;
  std::string wrong;
};

// Every rank that announces one of a pool's first keys is asked for its checksum: once in a pool's life. Those keys are
// spent on pages that are not measured; of the measured ones the usual share is sampled.
std::string verify_first_keys(Stage& stage, const Options& options, std::uint64_t seed) {
  const auto keys = make_keys(~seed, std::min(options.pages, kFirstKeys));
  for (std::size_t r = 0; r < options.ranks; ++r) {
    for (PutBatch& batch : make_put_batches(keys, options.batch, stage.pool(r), options.pages)) {
      const std::size_t count = batch.items.size();
      auto put = stage.rank(r).put(std::move(batch));
      if (!put) return "put refused: " + put.error.text;
      put.value->wait();
      if (put.value->succeeded() != count) return "the pages before the measured ones were not stored";
    }
  }
  return {};
}

OneRun put_once(const Options& options, const std::vector<RowMemory>& memory) {
  auto started = Stage::start(stage_spec(options), memory);
  if (!started.stage) return {{}, started.error, {}};
  Stage& stage = *started.stage;
  const std::uint64_t seed = fresh_seed();
  const auto keys = make_keys(seed, options.pages);
  stage.fill_rows(seed);
  std::vector<std::vector<PutBatch>> batches;
  for (std::size_t r = 0; r < options.ranks; ++r)
    batches.push_back(make_put_batches(keys, options.batch, stage.pool(r), options.pages));

  if (const std::string error = verify_first_keys(stage, options, seed); !error.empty()) return {{}, error, {}};
  LimitMeter limit(options);
  limit.measure();
  const Stats before = stage.runtime().stats();
  const std::vector<std::uint64_t> moved_before = stage.moved_bytes();
  std::vector<VerdictCounts> verdicts(options.ranks);
  Driven driven = drive(
      {options.ranks, batches[0].size(), options.depth, options.lockstep},
      [&](std::size_t r, std::size_t b, Completion completion) {
        PutOptions put;
        put.completion = std::move(completion);
        return stage.rank(r).put(std::move(batches[r][b]), std::move(put));
      },
      [&](std::size_t r, PutOperation& operation) {
        for (const PutItemResult& item : operation.results()) ++verdicts[r][static_cast<std::size_t>(item.verdict)];
      });
  const Stats after = stage.runtime().stats();
  limit.measure();
  if (!driven.error.empty()) return {{}, "put refused: " + driven.error, {}};

  OneRun out;
  out.json = put_run_json(kPathEmbedded, options, {stage.moved_bytes(moved_before), before, after});
  add_rates(out.json, {static_cast<double>(options.pages * options.page_bytes), options.pages, options.pages * options.ranks}, driven.seconds,
            driven.cpu_seconds, driven.ack_us, limit);
  out.json["verdicts"] = verdicts_json(verdicts);
  out.wrong = stage.verify(keys, seed, options.batch);
  out.json["verified"] = out.wrong.empty();
  return out;
}

OneRun get_once(const Options& options, const std::vector<RowMemory>& memory) {
  auto started = Stage::start(stage_spec(options), memory);
  if (!started.stage) return {{}, started.error, {}};
  Stage& stage = *started.stage;
  const std::uint64_t seed = fresh_seed();
  const auto keys = make_keys(seed, options.pages);
  stage.fill_rows(seed);
  for (PutBatch& batch : make_put_batches(keys, options.batch, stage.pool(0), options.pages)) {
    const std::size_t count = batch.items.size();
    auto put = stage.rank(0).put(std::move(batch));
    if (!put) return {{}, "put refused: " + put.error.text, {}};
    put.value->wait();
    if (put.value->succeeded() != count) return {{}, {}, "not every page could be stored before the loads"};
  }
  for (std::size_t r = 0; r < options.ranks; ++r) stage.clear_rows(r);
  const Stage::Leases leases = stage.lease(keys, options.batch);
  if (!leases.error.empty()) return {{}, {}, leases.error};

  const std::uint64_t chain = chain_pages(options.batch);
  std::vector<std::vector<std::vector<LoadItem>>> batches(options.ranks);
  for (std::size_t r = 0; r < options.ranks; ++r) {
    for (std::uint64_t i = 0; i < options.pages; ++i) {
      if (i % options.batch == 0) batches[r].emplace_back();
      batches[r].back().push_back({keys[i], stage.pool(r), i});
    }
  }
  LimitMeter limit(options);
  limit.measure();
  const Stats before = stage.runtime().stats();
  const std::vector<std::uint64_t> moved_before = stage.moved_bytes();
  std::vector<ReasonCounts> reasons(options.ranks);
  Driven driven = drive(
      {options.ranks, batches[0].size(), options.depth, options.lockstep},
      [&](std::size_t r, std::size_t b, Completion completion) {
        LoadOptions load;
        load.completion = std::move(completion);
        return stage.rank(r).load(leases.by_chain[b * options.batch / chain], std::move(batches[r][b]), std::move(load));
      },
      [&](std::size_t r, LoadOperation& operation) {
        for (const Reason reason : operation.results()) ++reasons[r][static_cast<std::size_t>(reason)];
      });
  const Stats after = stage.runtime().stats();
  limit.measure();
  stage.release(leases);
  if (!driven.error.empty()) return {{}, "load refused: " + driven.error, {}};

  OneRun out;
  const std::uint64_t loaded = loaded_of(reasons);
  const std::uint64_t asked = options.pages * options.ranks;
  out.json = get_run_json(kPathEmbedded, options, loaded);
  add_moved(out.json, {stage.moved_bytes(moved_before), before, after});
  add_rates(out.json, {static_cast<double>(asked * options.page_bytes), options.pages, asked}, driven.seconds, driven.cpu_seconds,
            driven.ack_us, limit);
  out.json["results"] = results_json(reasons);
  out.json["verdicts"] = verdicts_json({});
  out.wrong = missing_loads(asked, loaded);
  for (std::size_t r = 0; r < options.ranks && out.wrong.empty(); ++r) {
    const std::uint64_t wrong = stage.wrong_rows(r, seed);
    if (wrong != 0) out.wrong = std::to_string(wrong) + " pages of rank " + std::to_string(r) + " have other bytes";
  }
  out.json["verified"] = out.wrong.empty();
  return out;
}

Outcome repeat(const Options& options, OneRun (*once)(const Options&, const std::vector<RowMemory>&)) {
  const std::vector<RowMemory> memory = row_memory(stage_spec(options));
  std::vector<Json> runs;
  for (std::uint64_t i = 0; i < options.repeat; ++i) {
    OneRun run = once(options, memory);
    if (!run.error.empty() || run.json.empty()) return {{}, run.error, run.wrong};
    runs.push_back(std::move(run.json));
    if (!run.wrong.empty()) return {report(options, runs, "seconds"), {}, run.wrong};
  }
  return {report(options, runs, "seconds"), {}, {}};
}

}  // namespace

Outcome run_put(const Options& options) { return options.via.empty() ? repeat(options, put_once) : run_put_via(options); }
Outcome run_get(const Options& options) { return options.via.empty() ? repeat(options, get_once) : run_get_via(options); }

}  // namespace kvonce::bench
