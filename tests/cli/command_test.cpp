// SPDX-License-Identifier: Apache-2.0
//
// Help, version, and what bad input is told.
#include <algorithm>
#include <sstream>

#include <doctest/doctest.h>

#include "tests/cli/program.hpp"
#include "tests/kvonced/process.hpp"

using namespace kvonce::cli_test;

namespace {

bool has_part(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// Lines and the longest one's characters.
std::pair<std::size_t, std::size_t> page_size(const std::string& text) {
  std::istringstream in(text);
  std::size_t lines = 0;
  std::size_t longest = 0;
  for (std::string line; std::getline(in, line); ++lines)
    longest = std::max(longest, line.size());
  return {lines, longest};
}

struct Bad {
  std::vector<std::string> arguments;
  std::vector<std::string> told;  // each part must be in the message
};

void check_refused(const Bad& bad, const std::string& input = {}) {
  const ProgramResult result = run_program(bad.arguments, input);
  INFO(result.err);
  CHECK(result.exit_status == 2);
  CHECK(result.out.empty());
  CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
  for (const std::string& part : bad.told) {
    INFO(part);
    CHECK(has_part(result.err, part));
  }
}

}  // namespace

TEST_CASE("Help of the program and of replay fits a screen") {
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"--help"}, {"replay", "--help"}}) {
    const ProgramResult result = run_program(arguments);
    CHECK(result.exit_status == 0);
    CHECK(result.err.empty());
    CHECK(has_part(result.out, "Usage"));
    const auto [lines, longest] = page_size(result.out);
    CHECK(lines <= 24);
    CHECK(longest <= 110);
  }
}

TEST_CASE("`kvonce help` with a command's words is that command's --help") {
  for (const std::vector<std::string>& words : {std::vector<std::string>{}, {"put"}, {"bench"}, {"bench", "put"}, {"replay"}}) {
    std::vector<std::string> first{"help"}, last = words;
    first.insert(first.end(), words.begin(), words.end());
    last.emplace_back("--help");
    const ProgramResult result = run_program(first);
    CHECK(result.exit_status == 0);
    CHECK(result.err.empty());
    CHECK(has_part(result.out, words.size() == 2 ? "kvonce bench put" : "Usage"));
    CHECK(result.out == run_program(last).out);
  }
}

TEST_CASE("Help and version that nobody gets are errors that say why") {
  const std::pair<const char*, std::vector<std::string>> programs[] = {{KVONCE_PROGRAM, {"--help", "--version", "help", "bench --help"}},
                                                                      {KVONCED_PROGRAM, {"--help", "--version", "--help-all", "--dump-config"}}};
  for (const auto& [program, all] : programs) {
    for (const std::string& arguments : all) {
      const auto result = kvonce::kvonced_test::run("/bin/sh", {"-c", "exec " + std::string(program) + " " + arguments + " > /dev/full"});
      INFO(arguments << ": " << result.err);
      CHECK(result.status == 2);
      CHECK(has_part(result.err, "standard output: No space left on device"));
    }
  }
}

TEST_CASE("The version names the program and CAF") {
  const ProgramResult result = run_program({"--version"});
  CHECK(result.exit_status == 0);
  CHECK(result.out.starts_with("kvonce "));
  CHECK(has_part(result.out, "CAF"));
}

TEST_CASE("Without a command the help goes to standard error, as a usage error") {
  const ProgramResult result = run_program({});
  CHECK(result.exit_status == 2);
  CHECK(result.out.empty());
  CHECK(has_part(result.err, "replay"));
}

TEST_CASE("Every bad option is refused with its name, its value and what is allowed") {
  const std::vector<Bad> all{
      {{"frobnicate"}, {"\"frobnicate\"", "replay"}},
      {{"bench", "nosuch"}, {"\"nosuch\" is no command", "allowed are put, get, exists", "kvonce bench --help"}},
      {{"bench"}, {"a command is missing", "allowed are put, get, exists", "kvonce bench --help"}},
      {{"benhc"}, {"\"benhc\" is no command; the nearest is bench; allowed are put, get"}},
      {{"bench", "exist"}, {"\"exist\" is no command; the nearest is exists; allowed are put, get, exists"}},
      {{"bench", "put", "--pagez", "3"}, {"kvonce bench put: --pagez is no option; the nearest is --pages (kvonce bench put --help)"}},
      {{"bench", "put", "--page-byte=3"}, {"--page-byte is no option; the nearest is --page-bytes"}},
      {{"--store", "auto", "stat"}, {"kvonce stat: --store stands before the command: options come after it (kvonce stat --help)"}},
      {{"-q", "stat"}, {"-q stands before the command"}},
      {{"--versoin"}, {"kvonce: --versoin is no option; the nearest is --version (kvonce --help)"}},
      {{"bench", "--hlep"}, {"--hlep is no option; the nearest is --help (kvonce bench --help)"}},
      {{"get", "name:x", "-x"}, {"-x is no option (kvonce get --help)"}},
      {{"help", "benhc"}, {"kvonce help: \"benhc\" is no command; the nearest is bench; allowed are put, get"}},
      {{"help", "put", "get"}, {"kvonce help: \"get\" is not expected: put has no commands of its own"}},
      {{"replay", "--frobnicate"}, {"--frobnicate is no option (kvonce replay --help)"}},
      {{"replay", "--capacity", "-1"}, {"--capacity", "\"-1\"", "such as 64MiB"}},
      {{"replay", "--capacity", "0x10"}, {"--capacity", "\"0x10\"", "allowed"}},
      {{"replay", "--capacity", "12abc"}, {"--capacity", "\"12abc\"", "allowed"}},
      {{"replay", "--capacity", ""}, {"--capacity", "\"\"", "allowed"}},
      {{"replay", "--capacity", "480GiB", "nonsense"}, {"--capacity", "\"nonsense\"", "allowed"}},
      {{"replay", "--capacity", "1MiB"}, {"--capacity", "1MiB", "does not hold one page", "130.50 MiB"}},
      {{"replay", "--scale", "0"}, {"--scale", "\"0\"", "from 1"}},
      {{"replay", "--scale", "65536"}, {"--scale", "65536", "at least 64 B", "32768"}},
      {{"replay", "--preset", "deepseek-v4-flash", "--scale", "1024"}, {"--scale", "0.1 %"}},
      {{"replay", "--ranks", "3"}, {"--ranks", "3", "1, 2, 4, 8 and 16"}},
      {{"replay", "--preset", "gpt"}, {"--preset", "\"gpt\"", "kimi-k3-draft"}},
      {{"replay", "--keys", "all"}, {"--keys", "\"all\"", "shard, rank and both"}},
      {{"replay", "--policy", "lru,magic"}, {"--policy", "'magic'", "'lru'"}},
      {{"replay", "--load", "1.5"}, {"--load", "\"1.5\"", "from 0 to 1"}},
      {{"replay", "--verify", "x"}, {"--verify", "\"x\"", "from 0 to 1"}},
      {{"replay", "--seed", "-1"}, {"--seed", "\"-1\"", "decimal integer"}},
      {{"replay", "--limit", "0"}, {"--limit", "\"0\"", "from 1"}},
      {{"replay", "--format", "yaml"}, {"--format", "yaml", "json"}},
      {{"replay", "--format", "1"}, {"--format", "1", "json"}},
      {{"replay", "--trace", "/does/not/exist"}, {"--trace", "/does/not/exist", "No such file"}},
      {{"replay", "--trace", "/"}, {"/", "directory"}},
      {{"replay", "--trace", "builtin:poetry"}, {"--trace", "builtin:poetry", "builtin:chat"}},
  };
  for (const Bad& bad : all)
    check_refused(bad);
}

TEST_CASE("The help of a benchmark shows what each option takes, and no process of its own") {
  const std::string all = run_program({"bench", "--help"}).out;
  CHECK_FALSE(has_part(all, "rank "));
  for (const char* const job : {"put", "get", "exists", "lookup", "idle", "memory", "coalesce", "restart", "allocator"}) {
    const std::string help = run_program({"bench", job, "--help"}).out;
    INFO(help);
    CHECK_FALSE(has_part(help, " TEXT"));
    CHECK(has_part(help, " N "));
  }
}

TEST_CASE("--format takes text and json, and json is what --json gives") {
  const std::vector<std::pair<std::vector<std::string>, std::string>> all{
      {{"replay", "--keys", "shard", "--preset", "kimi-k2", "--capacity", "1GiB", "--trace", "-"}, growing_trace(2)},
      {{"bench", "put", "--pages", "16", "--page-bytes", "4KiB", "--limit-time", "0ms"}, {}}};
  for (const auto& [words, input] : all) {
    INFO(words[1]);
    const auto formatted = [&, &words = words, &input = input](const std::string& format) {
      std::vector<std::string> arguments = words;
      arguments.insert(arguments.end(), {"--format", format});
      return run_program(arguments, input);
    };
    const ProgramResult text = formatted("text");
    CHECK(text.exit_status == 0);
    CHECK(text.err == "");
    CHECK_FALSE(text.out.empty());
    CHECK_FALSE(text.json().is_object());
    const ProgramResult json = formatted("json");
    CHECK(json.exit_status == 0);
    CHECK(json.err == "");
    CHECK(json.json().is_object());
  }
}

TEST_CASE("A size with a fraction is taken") {
  const ProgramResult result =
      run_program({"replay", "--capacity", "1.5GiB", "--keys", "shard", "--trace", "-", "--json"}, growing_trace(1));
  CHECK(result.exit_status == 0);
  CHECK(result.json()["runs"][0]["capacity_bytes"] == 1'610'612'736);
}

TEST_CASE("A trace that is wrong is told with its line, and gives no result") {
  const std::string good = growing_trace(2);
  const std::vector<std::pair<std::string, std::string>> all{
      {good.substr(0, good.size() - 10), ":2:"},
      {good + "hello\n", ":3:"},
      {good + R"({"timestamp":1,"input_length":-5,"output_length":1,"hash_ids":[]})" + "\n", "-5"},
      {good + R"({"timestamp":1,"input_length":1024,"output_length":1,"hash_ids":[1.5,2]})" + "\n", "1.5"},
      {good + R"({"timestamp":1,"input_length":1024,"output_length":1,"hash_ids":[1,1]})" + "\n", ":3:"},
      {"", "no request"},
  };
  for (const auto& [trace, told] : all)
    check_refused({{"replay", "--keys", "shard", "--trace", "-", "--json"}, {"standard input", told}}, trace);
}
