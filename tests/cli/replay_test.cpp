// SPDX-License-Identifier: Apache-2.0
//
// Replays by the built program: what they report, that a seed decides them, and that they hit what the rules say.
#include <cmath>
#include <csignal>
#include <set>

#include <doctest/doctest.h>

#include "apps/workload/presets.hpp"
#include "apps/workload/reference_lru.hpp"
#include "apps/workload/trace_source.hpp"
#include "tests/cli/program.hpp"

using namespace kvonce::cli_test;
using namespace kvonce::workload;
using nlohmann::json;

namespace {

json replay(std::vector<std::string> arguments, const std::string& input = {}) {
  arguments.insert(arguments.begin(), "replay");
  arguments.push_back("--json");
  const ProgramResult result = run_program(arguments, input);
  INFO(result.err);
  CHECK(result.exit_status == 0);
  json out = result.json();
  REQUIRE(out.is_object());
  return out;
}

std::uint64_t sum_of(const json& counts) {
  std::uint64_t sum = 0;
  for (const json& count : counts)
    sum += count.get<std::uint64_t>();
  return sum;
}

double reference_rate(const std::string& trace, std::uint64_t seed, std::size_t requests, const std::string& preset, KeyMode keys,
                      std::uint64_t capacity) {
  const ModelPreset model = for_trace_pages(*find_preset(preset, 8).preset);
  ReferenceLru reference({model.page_bytes(keys), model.checkpoint_bytes(keys), capacity});
  const OpenedTrace opened = open_trace(trace, seed);
  for (std::size_t i = 0; i < requests; ++i)
    reference.request(*opened.source->next());
  return 100 * reference.totals().hit_share();
}

/// Both keyings and three sizes of store: far too small, short, and ample.
void check_against_reference(const std::string& trace, std::size_t requests, const std::string& preset) {
  const std::string seed = "7";
  const json result = replay({"--trace", trace, "--limit", std::to_string(requests), "--preset", preset, "--seed", seed,
                              "--scale", "32768", "--capacity", "30GiB", "120GiB", "960GiB", "--verify", "0.25"});
  REQUIRE(result["runs"].size() == 6);
  std::set<long> different;
  for (const json& run : result["runs"]) {
    const KeyMode keys = run["keys"] == "rank" ? KeyMode::per_rank : KeyMode::per_shard;
    const double wanted = reference_rate(trace, 7, requests, preset, keys, run["capacity_bytes"].get<std::uint64_t>());
    INFO(run["keys"] << ' ' << run["capacity_bytes"] << ": " << run["hit_rate"] << " instead of " << wanted);
    CHECK(std::abs(run["hit_rate"].get<double>() - wanted) <= 1.0);
    CHECK(run["requests"] == requests);
    CHECK(run["wrong_bytes"] == 0);
    different.insert(std::lround(wanted));
  }
  // Otherwise the sizes would test nothing.
  CHECK(different.size() >= 3);
}

}  // namespace

TEST_CASE("The JSON of a replay has every promised field, as numbers, and they add up") {
  const json result = replay({"--trace", "builtin:chat", "--limit", "60", "--capacity", "40GiB", "80GiB", "--ranks", "4"});
  CHECK(result["preset"] == "kimi-k3-draft");
  CHECK(result["ranks"] == 4);
  CHECK(result["scale"] == 1024);
  CHECK(result["interrupted"] == false);
  REQUIRE(result["runs"].size() == 4);
  for (const json& run : result["runs"]) {
    for (const char* name :
         {"capacity_bytes", "requests", "input_tokens", "hit_tokens", "hit_rate", "announced_bytes", "moved_bytes",
          "stored_bytes", "loaded_bytes", "verified_bytes", "wrong_bytes", "seconds", "cpu_seconds"}) {
      INFO(name);
      CHECK(run[name].is_number());
    }
    CHECK(run["policy"] == "lru");
    CHECK(run["requests"] == 60);
    CHECK(run["moved_bytes_by_rank"].size() == 4);
    CHECK(sum_of(run["moved_bytes_by_rank"]) == run["moved_bytes"].get<std::uint64_t>());
    CHECK(run["moved_bytes"] == run["stored_bytes"]);
    CHECK(run["kept_bytes"].get<std::uint64_t>() <= run["capacity_bytes"].get<std::uint64_t>() / 1024);
    CHECK(run["verdicts"].size() == 7);
    CHECK(run["verdicts"]["stored"].get<std::uint64_t>() > 0);
    CHECK(run["verdicts"]["failed"] == 0);
    CHECK(run["verdicts"]["unknown"] == 0);
    CHECK(run["verdicts"]["conflict"] == 0);
    CHECK(run["hit_rate"].get<double>() ==
          doctest::Approx(100.0 * run["hit_tokens"].get<double>() / run["input_tokens"].get<double>()));
  }
}

TEST_CASE("With one object per shard the replicated bytes move once, with one per rank they move by every rank") {
  const std::string trace = growing_trace(12);
  const json result = replay({"--trace", "-", "--preset", "kimi-k2", "--ranks", "8", "--capacity", "480GiB"}, trace);
  const json& rank = result["runs"][0];
  const json& shard = result["runs"][1];
  REQUIRE(rank["keys"] == "rank");
  REQUIRE(shard["keys"] == "shard");
  CHECK(rank["hit_tokens"] == shard["hit_tokens"]);
  CHECK(rank["announced_bytes"] == shard["announced_bytes"]);
  CHECK(rank["announced_bytes"] == rank["moved_bytes"]);
  CHECK(8 * shard["moved_bytes"].get<std::uint64_t>() == rank["moved_bytes"].get<std::uint64_t>());
  CHECK(shard["verdicts"]["stored"] == 12);
  CHECK(shard["verdicts"]["joined"].get<int>() + shard["verdicts"]["already_stored"].get<int>() == 7 * 12);
}

TEST_CASE("Every request continues the one before: all of its pages but the last are loaded by all ranks and are right") {
  const json result = replay({"--trace", "-", "--preset", "kimi-k3-draft", "--capacity", "480GiB"}, growing_trace(9));
  const std::uint64_t hit_pages = 9 * 8 / 2;
  for (const json& run : result["runs"]) {
    CHECK(run["hit_tokens"] == hit_pages * 512);
    const std::uint64_t page = 14'155'776 / 1024 + 2'949'120 / 1024;
    const std::uint64_t checkpoint = 56'171'520 / 1024;
    CHECK(run["loaded_bytes"] == 8 * (hit_pages * page + 8 * checkpoint));
    CHECK(run["verified_bytes"] == run["loaded_bytes"]);
    CHECK(run["wrong_bytes"] == 0);
  }
}

TEST_CASE("A prompt that does not fit keeps its beginning, and what it continues is not pushed out for it") {
  // The store holds 11 pages. The second prompt continues the first one's 6 pages by 14.
  const std::string trace = prompt_line(0, 6) + prompt_line(0, 20) + prompt_line(0, 20);
  const json result = replay({"--trace", "-", "--preset", "kimi-k2", "--keys", "shard", "--capacity", "400MiB"}, trace);
  const json& run = result["runs"][0];
  CHECK(run["hit_tokens"] == (6 + 11) * 512);
  CHECK(run["verdicts"]["rejected"].get<int>() > 0);
  CHECK(run["put_reasons"]["no_space"] == run["verdicts"]["rejected"]);
  CHECK(run["wrong_bytes"] == 0);
}

TEST_CASE("The share of loads that are made and verified can be lowered, and hits stay the same") {
  const std::vector<std::string> common{"--trace", "builtin:chat", "--limit", "200",     "--capacity",
                                        "60GiB",   "--keys",       "shard",   "--scale", "32768"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), common.begin(), common.end());
    return replay(more)["runs"][0];
  };
  const json all = with({});
  const json none = with({"--load", "0"});
  const json some = with({"--verify", "25%"});
  CHECK(all["loaded_bytes"].get<std::uint64_t>() > 0);
  CHECK(all["verified_bytes"] == all["loaded_bytes"]);
  CHECK(none["loaded_bytes"] == 0);
  CHECK(some["loaded_bytes"] == all["loaded_bytes"]);
  CHECK(some["verified_bytes"].get<double>() > 0.05 * all["loaded_bytes"].get<double>());
  CHECK(some["verified_bytes"].get<double>() < 0.6 * all["loaded_bytes"].get<double>());
  CHECK(none["hit_tokens"] == all["hit_tokens"]);
}

TEST_CASE("A seed decides a replay") {
  const auto with_seed = [](const char* seed) {
    json out = replay({"--trace", "builtin:agentic", "--limit", "40", "--capacity", "100GiB", "--keys", "shard", "--scale",
                       "32768", "--seed", seed});
    json& run = out["runs"][0];
    return json{run["input_tokens"], run["hit_tokens"], run["announced_bytes"], run["stored_bytes"], run["kept_bytes"]};
  };
  const json first = with_seed("3");
  CHECK(first == with_seed("3"));
  CHECK(first != with_seed("4"));
}

TEST_CASE("Chat traffic hits what leaf-first LRU hits: no checkpoints") {
  check_against_reference("builtin:chat", 1'500, "kimi-k2");
}

TEST_CASE("Chat traffic hits what leaf-first LRU hits: with checkpoints and drafts") {
  check_against_reference("builtin:chat", 1'500, "kimi-k3-draft");
}

TEST_CASE("Agent traffic hits what leaf-first LRU hits: with checkpoints and drafts") {
  check_against_reference("builtin:agentic", 250, "kimi-k3-draft");
}

TEST_CASE("A model of grouped heads is replayed with shards of its own") {
  const json result =
      replay({"--trace", "builtin:chat", "--limit", "100", "--preset", "qwen3-next", "--capacity", "60GiB", "--keys", "shard"});
  CHECK(result["runs"][0]["wrong_bytes"] == 0);
  CHECK(result["runs"][0]["hit_tokens"].get<std::uint64_t>() > 0);
}

TEST_CASE("The table tells a stranger what happened, and -q nothing") {
  const std::vector<std::string> arguments{"replay", "--trace", "builtin:chat", "--limit", "50", "--scale", "32768"};
  const ProgramResult shown = run_program(arguments);
  CHECK(shown.exit_status == 0);
  CHECK(shown.err.empty());  // no progress where there is no terminal
  for (const char* part :
       {"50 requests", "per rank", "per shard", "hit rate", "announced", "moved", "kept", "480 GiB", "either way"}) {
    INFO(part);
    CHECK(shown.out.find(part) != std::string::npos);
  }
  std::vector<std::string> quiet_arguments = arguments;
  quiet_arguments.push_back("-q");
  const ProgramResult quiet = run_program(quiet_arguments);
  CHECK(quiet.exit_status == 0);
  CHECK(quiet.out.empty());
  CHECK(quiet.err.empty());
}

TEST_CASE("Ctrl-C ends a replay with what was done so far, even while its trace is waited for") {
  for (const int number : {SIGINT, SIGTERM}) {
    LiveProgram program({"replay", "--trace", "-", "--keys", "shard", "--json"});
    program.write(growing_trace(1));
    // The progress bar shows the first request, so from here on the program waits for the second one.
    REQUIRE(program.wait_for_terminal("1 requests,"));
    program.signal(number);
    const ProgramResult result = program.finish();
    CHECK(result.exit_status == 1);
    const json out = result.json();
    REQUIRE(out.is_object());
    CHECK(out["interrupted"] == true);
    REQUIRE(out["runs"].size() == 1);
    CHECK(out["runs"][0]["requests"] == 1);
    CHECK(out["runs"][0]["verdicts"]["stored"].get<int>() > 0);
  }
}
