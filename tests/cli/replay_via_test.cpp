// SPDX-License-Identifier: Apache-2.0
//
// A replay through the store of another process says what it says with one of its own.
#include <csignal>
#include <cstdlib>
#include <filesystem>

#include <doctest/doctest.h>

#include "tests/cli/store_fixture.hpp"

using namespace kvonce::cli_test;
using nlohmann::json;
using Words = std::vector<std::string>;

namespace {

const Words kReplay{"replay", "--trace", "builtin:chat", "--limit", "120", "--preset", "kimi-k3-draft", "--scale", "8192"};

json replay_chat(const Words& more) {
  Words arguments = kReplay;
  arguments.insert(arguments.end(), more.begin(), more.end());
  return run_json(arguments);
}

/// All that does not depend on which rank came first, and on time.
json lasting(const json& out) {
  json runs = json::array();
  for (json run : out["runs"]) {
    for (const char* name : {"seconds", "cpu_seconds", "moved_bytes_by_rank"}) run.erase(name);
    // Who is told `joined` and who `already_stored` is a matter of microseconds.
    run["verdicts"]["had"] = run["verdicts"]["joined"].get<int>() + run["verdicts"]["already_stored"].get<int>();
    run["verdicts"].erase("joined");
    run["verdicts"].erase("already_stored");
    runs.push_back(std::move(run));
  }
  return runs;
}

class TemporaryFiles {
 public:
  explicit TemporaryFiles(const std::string& folder) { setenv("TMPDIR", folder.c_str(), 1); }
  ~TemporaryFiles() { unsetenv("TMPDIR"); }
};

}  // namespace

TEST_CASE("A replay with a store that is spawned hits and moves what it does with an embedded one, and leaves nothing") {
  const RunFolder folder;
  std::filesystem::create_directory(folder / "tmp");
  const json embedded = replay_chat({"--capacity", "40GiB"});
  json spawned;
  {
    const TemporaryFiles there(folder / "tmp");
    spawned = replay_chat({"--capacity", "40GiB", "--via", "spawn"});
  }
  CHECK(embedded["via"] == "embedded");
  CHECK(spawned["via"] == "spawn");
  REQUIRE(spawned["runs"].size() == 2);
  CHECK(spawned["runs"][1]["hit_tokens"].get<int>() > 0);
  CHECK(spawned["runs"][1]["evicted_bytes"].get<std::uint64_t>() > 0);
  CHECK(lasting(spawned) == lasting(embedded));
  CHECK(std::filesystem::is_empty(folder / "tmp"));
}

TEST_CASE("A replay that is killed leaves neither its store nor a folder") {
  const RunFolder folder;
  std::filesystem::create_directory(folder / "tmp");
  {
    const TemporaryFiles there(folder / "tmp");
    LiveProgram replay({"replay", "--trace", "-", "--preset", "kimi-k2", "--keys", "shard", "--scale", "8192", "--via", "spawn"});
    replay.write(growing_trace(1));
    REQUIRE(replay.wait_for_terminal("1 requests,"));
    REQUIRE_FALSE(std::filesystem::is_empty(folder / "tmp"));
    replay.signal(SIGKILL);
    CHECK(replay.finish().exit_status == 128 + SIGKILL);
  }
  // The last that the store does.
  CHECK(kvonce::kvonced_test::eventually([&] { return std::filesystem::is_empty(folder / "tmp"); }));
}

TEST_CASE("A replay on a store that runs has its size, and leaves its pages to nobody") {
  const RunFolder folder;
  LiveStore store(folder, {"--memory", "256MiB", "--capacity", "20MiB", "--leased-bytes", "20MiB"});
  REQUIRE(store.ready());
  const std::string via = "unix:" + folder.socket();
  const json on_it = replay_chat({"--via", via});
  // 20 MiB of 1/8192.
  CHECK(on_it["runs"][0]["capacity_bytes"] == 160ULL << 30);
  CHECK(lasting(on_it) == lasting(replay_chat({"--capacity", "160GiB"})));
  CHECK(run_json({"stat"})["memory"]["payload_bytes"] == 0);
  CHECK(lasting(replay_chat({"--via", via, "--capacity", "160GiB"})) == lasting(on_it));  // a second one finds nothing of the first

  const auto refused = [](Words arguments, const Words& told) {
    arguments.insert(arguments.begin(), "replay");
    const ProgramResult result = run_program(arguments);
    INFO(result.err);
    CHECK(result.exit_status == 2);
    CHECK(result.out.empty());
    for (const std::string& part : told) CHECK(contains(result.err, part));
  };
  refused({"--via", via, "--scale", "8192", "--capacity", "80GiB"}, {"10 MiB", "20 MiB", "--capacity"});
  refused({"--via", via, "--policy", "lru,lru"}, {"one policy"});
  refused({"--via", "tcp"}, {"--via", "\"tcp\"", "spawn"});
  refused({"--via", "unix:" + (folder / "none")}, {"--via", folder / "none"});
}
