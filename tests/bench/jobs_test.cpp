// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <set>
#include <string>
#include <vector>

#include "bench/jobs.hpp"
#include "bench/questions.hpp"
#include "bench/stage.hpp"

using namespace kvonce::bench;
using kvonce::PutBatch;
using Json = nlohmann::ordered_json;

namespace {

Options small(Job job) {
  Options options = defaults(job);
  options.ranks = 4;
  options.pages = 203;
  options.page_bytes = 5'000;
  options.batch = 20;  // the last batch is a short one
  options.limit_seconds = 0;
  return options;
}

std::uint64_t sum_of(const Json& counts) {
  std::uint64_t sum = 0;
  for (const Json& one : counts) sum += one.get<std::uint64_t>();
  return sum;
}

void check_done(const Outcome& outcome) {
  CHECK(outcome.error == "");
  CHECK(outcome.wrong == "");
  REQUIRE(outcome.result.is_object());
  CHECK_FALSE(text_of(outcome.result).empty());
}

}  // namespace

TEST_CASE("ranks that put the same pages move each byte once, and every verdict is counted") {
  for (const bool lockstep : {false, true}) {
    for (const std::uint64_t depth : {1, 3}) {
      CAPTURE(lockstep);
      CAPTURE(depth);
      Options options = small(Job::put);
      options.lockstep = lockstep;
      options.depth = depth;
      const Outcome outcome = run(options);
      check_done(outcome);
      const Json& r = outcome.result;
      CHECK(r["unique_pages"] == 203);
      CHECK(r["unique_bytes"] == 203 * 5'000);
      CHECK(r["announced_bytes"] == 4 * 203 * 5'000);
      CHECK(r["moved_bytes"] == r["unique_bytes"]);
      CHECK(r["stored_bytes"] == r["unique_bytes"]);
      CHECK(r["evicted_bytes"] == 0);
      CHECK(r["moved_bytes_by_rank"].size() == 4);
      CHECK(sum_of(r["moved_bytes_by_rank"]) == r["moved_bytes"]);
      CHECK(sum_of(r["verdicts"]) == 4 * 203);
      CHECK(r["verdicts"]["stored"] == 203);
      CHECK(r["verified"] == true);
    }
  }
}

TEST_CASE("the result of put has every promised field, also of each run") {
  Options options = small(Job::put);
  options.repeat = 3;
  options.limit_seconds = 0.02;
  const Outcome outcome = run(options);
  check_done(outcome);
  REQUIRE(outcome.result["runs"].size() == 3);
  std::vector<Json> all = outcome.result["runs"].get<std::vector<Json>>();
  all.push_back(outcome.result);
  for (const Json& r : all) {
    for (const char* name : {"unique_pages", "unique_bytes", "announced_bytes", "moved_bytes", "stored_bytes", "seconds",
                             "cpu_seconds", "unique_pages_per_s", "cpu_us_per_unique_page", "keys_per_s", "ratio_to_copy_limit"}) {
      CAPTURE(name);
      REQUIRE(r.contains(name));
      CHECK(r[name].is_number());
      CHECK(r[name] > 0);
    }
    CHECK(r["moved_bytes_by_rank"].is_array());
    for (const char* name : {"p50", "p99", "max"}) CHECK(r["ack_us"][name] > 0);
    for (const char* name : {"stored", "joined", "already_stored", "rejected", "conflict", "failed", "unknown"})
      CHECK(r["verdicts"][name].is_number_unsigned());
    CHECK(r["copy_limit"]["gib_per_s"] > 0);
    CHECK(r["copy_limit"]["cpu_us_per_page"] > 0);
    CHECK(r["copy_limit"]["kernel"].is_string());
    CHECK(r["copy_limit"]["threads"] == 1);
    CHECK(r["checksummed_copy"]["gib_per_s"] > 0);
    CHECK(r["checksummed_copy"]["portable_gib_per_s"] > 0);
  }
}

TEST_CASE("put, get, exists and lookup have the same fields; what is not announced or moved is 0") {
  for (const Job job : {Job::put, Job::get, Job::exists, Job::lookup}) {
    CAPTURE(to_string(job));
    Options options = job == Job::lookup ? defaults(job) : small(job);
    options.ranks = 4;
    options.pages = 203;
    options.operations = 20;
    const Outcome outcome = run(options);
    check_done(outcome);
    const Json& r = outcome.result;
    for (const char* name : {"unique_pages", "unique_bytes", "seconds", "cpu_seconds", "unique_pages_per_s", "cpu_us_per_unique_page", "keys_per_s"}) {
      CAPTURE(name);
      REQUIRE(r.contains(name));
      CHECK(r[name] > 0);
    }
    for (const char* name : {"p50", "p99", "max"}) CHECK(r["ack_us"][name] > 0);
    CHECK(r["unique_pages"] == 203);
    const bool put = job == Job::put;
    for (const char* name : {"announced_bytes", "moved_bytes", "stored_bytes", "evicted_bytes"}) {
      CAPTURE(name);
      REQUIRE(r.contains(name));
      CHECK((r[name] > 0) == (put && name != std::string("evicted_bytes")));
    }
    CHECK(r["moved_bytes_by_rank"].size() == 4);
    CHECK(sum_of(r["moved_bytes_by_rank"]) == r["moved_bytes"]);
    CHECK(sum_of(r["verdicts"]) == (put ? 4 * 203 : 0));
    // Nothing is copied there that could be compared with the limit, which is told all the same.
    const bool copies = put || job == Job::get;
    for (const char* name : {"gib_per_s", "checksummed_copy", "ratio_to_copy_limit"}) CHECK(r.contains(name) == copies);
    CHECK(r["copy_limit"]["kernel"].is_string());
    CHECK(r["copy_limit"]["threads"] == options.movers);
    for (const char* name : {"gib_per_s", "cpu_us_per_page"}) CHECK((r["copy_limit"][name] > 0) == (options.limit_seconds > 0));
    CHECK(r["operations"].is_number_unsigned());
    CHECK(r["operations"] == (job == Job::lookup   ? 20
                              : job == Job::exists ? 4 * (20 / options.batch)
                                                   : 4 * ((203 + options.batch - 1) / options.batch)));
  }
}

TEST_CASE("pages that were asked at random are counted once each") {
  CHECK(distinct_questions({1, 2}, 100'000, 50) == 50);
  CHECK(distinct_questions({1}, 1, 50) == 1);
  CHECK(distinct_questions({1, 1}, 1, 50) == 1);
  std::set<std::uint64_t> seen;
  for (const std::uint64_t seed : {7, 8}) {
    Questions questions(seed, 1'000);
    for (int i = 0; i < 300; ++i) seen.insert(questions.next());
  }
  CHECK(distinct_questions({7, 8}, 300, 1'000) == seen.size());
}

TEST_CASE("stored pages that are not those that were put are found out") {
  StageSpec spec;
  spec.ranks = 2;
  spec.pages = 50;
  spec.page_bytes = 3'000;
  spec.rows = 50;
  std::vector<RowMemory> memory;
  for (int r = 0; r < 2; ++r) memory.emplace_back(spec.rows * Stage::row_stride(spec));
  auto started = Stage::start(spec, memory);
  REQUIRE_MESSAGE(started.stage, started.error);
  Stage& stage = *started.stage;
  const auto keys = make_keys(fresh_seed(), 50);
  stage.fill_rows(7);
  stage.row(1, 33)[2'999] ^= std::byte{1};
  for (PutBatch& batch : make_put_batches(keys, 16, stage.pool(1), 50)) {
    auto put = stage.rank(1).put(std::move(batch));
    REQUIRE(put);
    put.value->wait();
    CHECK(put.value->succeeded() == put.value->results().size());
  }
  CHECK(stage.verify(keys, 7, 16) == "1 of 50 pages came back with other bytes");
  CHECK(stage.verify(keys, 8, 16) == "50 of 50 pages came back with other bytes");
  const auto absent = make_keys(fresh_seed(), 50);
  CHECK(stage.verify(absent, 7, 16).find("0 of 50 pages restorable") != std::string::npos);
}

TEST_CASE("every rank loads every page, byte for byte") {
  Options options = small(Job::get);
  options.ranks = 2;
  options.depth = 2;
  const Outcome outcome = run(options);
  check_done(outcome);
  const Json& r = outcome.result;
  CHECK(r["asked_bytes"] == 2 * 203 * 5'000);
  CHECK(r["loaded_bytes"] == r["asked_bytes"]);
  CHECK(r["results"]["loaded"] == 2 * 203);
  CHECK(r["verified"] == true);
}

TEST_CASE("exists finds what is resident and nothing else") {
  Options options = small(Job::exists);
  options.pages = 5'000;
  options.page_bytes = 64;
  options.operations = 1'000;
  const Outcome outcome = run(options);
  check_done(outcome);
  CHECK(outcome.result["asked_keys"] == 4 * 1'000);
  CHECK(outcome.result["found_keys"] == 4 * 1'000);
  CHECK(outcome.result["false_hits"] == 0);
}

TEST_CASE("a looked up prefix ends at its last checkpoint") {
  Options options = defaults(Job::lookup);
  options.pages = 200;
  options.checkpoint_pages = 16;
  options.operations = 5;
  options.ranks = 2;
  const Outcome outcome = run(options);
  check_done(outcome);
  CHECK(outcome.result["restorable_pages"] == 192);
  CHECK(outcome.result["stops"] == 12);
  CHECK(outcome.result["lookup_us"]["p50"] > 0);
}

TEST_CASE("an idle runtime's CPU is told as a share of one core") {
  Options options = defaults(Job::idle);
  options.ranks = 2;
  options.seconds = 0.05;
  options.repeat = 2;
  const Outcome outcome = run(options);
  check_done(outcome);
  CHECK(outcome.result["pools"] == 2);
  const Json& r = outcome.result["runs"][0];
  CHECK(r["seconds"] >= 0.05);
  CHECK(r["operations"] == 0);
  CHECK(r["copy_limit"]["gib_per_s"] > 0);
  CHECK_FALSE(r.contains("ratio_to_copy_limit"));
  CHECK(r["cpu_percent"].get<double>() ==
        doctest::Approx(r["cpu_seconds"].get<double>() / r["seconds"].get<double>() * 100));
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // sanitizers keep memory of their own
TEST_CASE("memory beside the payload counts at least a slot's header and what the index keeps") {
  Options options = defaults(Job::memory);
  options.pages = 100'000;
  const Outcome outcome = run(options);
  check_done(outcome);
  CHECK(outcome.result["objects"] == 100'000);
  CHECK(outcome.result["bytes_per_object"] > 64);
  CHECK(outcome.result["bytes_per_object"] < 1'000);
}
#endif

TEST_CASE("the allocator's churn refuses nothing") {
  Options options = defaults(Job::allocator);
  options.operations = 3'000;
  const Outcome outcome = run(options);
  check_done(outcome);
  CHECK(outcome.result["operations"] == 3'000);
  CHECK(outcome.result["refused"] == 0);
  CHECK(outcome.result["layouts"] > 10);
  CHECK(outcome.result["lost_share_max"] <= 0.05);
}
