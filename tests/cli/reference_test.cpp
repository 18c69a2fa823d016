// SPDX-License-Identifier: Apache-2.0
//
// Recorded traces against the published hit rates of leaf-first LRU on them. Run with KVONCE_TRACES=<folder of the traces>,
// --no-skip.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "tests/cli/program.hpp"

using namespace kvonce::cli_test;

namespace {

struct Row {
  std::vector<std::string> arguments;
  std::vector<double> rank;  // hit rate in percent at 120, 240, 480, 960 GiB
  std::vector<double> shard;
};

void check_row(const char* file, const Row& row) {
  const char* folder = std::getenv("KVONCE_TRACES");
  if (folder == nullptr || *folder == '\0') {
    std::puts("KVONCE_TRACES is not set to the folder of the recorded traces: not checked");
    return;
  }
  // Sizes keep their ratios to 0.02 %, and bytes stay real; loads do not change what is hit.
  std::vector<std::string> arguments{"replay", "--trace",    std::string(folder) + '/' + file, "--scale", "32768", "--load", "0",
                                     "--json", "--capacity", "120GiB,240GiB,480GiB,960GiB"};
  arguments.insert(arguments.end(), row.arguments.begin(), row.arguments.end());
  const ProgramResult result = run_program(arguments);
  INFO(result.err);
  CHECK(result.exit_status == 0);
  const auto out = result.json();
  REQUIRE(out["runs"].size() == 8);
  for (std::size_t i = 0; i < 8; ++i) {
    const auto& run = out["runs"][i];
    const double wanted = run["keys"] == "rank" ? row.rank[i / 2] : row.shard[i / 2];
    std::printf("%s %s %s %.0f GiB: %.2f %%, published %.1f %%, %.1f s\n", file, row.arguments[1].c_str(),
                run["keys"].get<std::string>().c_str(), run["capacity_bytes"].get<double>() / 0x1p30,
                run["hit_rate"].get<double>(), wanted, run["seconds"].get<double>());
    INFO(run["keys"] << ' ' << run["capacity_bytes"] << ": " << run["hit_rate"] << " instead of " << wanted);
    CHECK(std::abs(run["hit_rate"].get<double>() - wanted) <= 1.0);
  }
}

}  // namespace

TEST_SUITE("reference") {
  TEST_CASE("The recorded chat trace hits what was published for a model without checkpoints" * doctest::skip()) {
    check_row("conversation_trace.jsonl.xz", {{"--preset", "kimi-k2"}, {4.3, 4.5, 5.4, 8.3}, {8.3, 17.2, 26.0, 33.3}});
  }
  TEST_CASE("The recorded chat trace hits what was published for a model with checkpoints" * doctest::skip()) {
    check_row("conversation_trace.jsonl.xz", {{"--preset", "kimi-k3-draft"}, {4.4, 5.0, 6.9, 15.0}, {5.6, 9.7, 18.9, 26.6}});
  }
  TEST_CASE("The recorded agents' trace hits what was published, first 4,000 requests" * doctest::skip()) {
    check_row("agentic_trace.jsonl.xz",
              {{"--preset", "kimi-k3-draft", "--limit", "4000"}, {8.0, 37.3, 90.7, 95.9}, {77.8, 95.9, 95.9, 96.0}});
  }
}
