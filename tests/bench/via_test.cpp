// SPDX-License-Identifier: Apache-2.0
//
// The built program with rank processes and a kvonced of its own. Whatever becomes of a run, nothing of it is left.
#include <doctest/doctest.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/cli/program.hpp"

namespace {

namespace fs = std::filesystem;
using kvonce::cli_test::LiveProgram;
using kvonce::cli_test::ProgramResult;
using kvonce::cli_test::run_program;
using PlainJson = nlohmann::json;

// The folder for temporary files of one test: empty again at its end, and no process is left that was started with it.
class Place {
 public:
  explicit Place(const fs::path& parent = fs::temp_directory_path()) : path_((parent / "kvonce-via-XXXXXX").string()) {
    REQUIRE(mkdtemp(path_.data()) != nullptr);
    if (const char* const before = std::getenv("TMPDIR")) before_ = before;
    setenv("TMPDIR", path_.c_str(), 1);
  }
  ~Place() {
    if (before_.empty())
      unsetenv("TMPDIR");
    else
      setenv("TMPDIR", before_.c_str(), 1);
    std::error_code code;
    fs::remove_all(path_, code);
  }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;
  const std::string& path() const { return path_; }

  void check_nothing_left() const {
    CHECK(fs::is_empty(path_));
    const std::string mark = "TMPDIR=" + path_;
    for (const auto& entry : fs::directory_iterator("/proc")) {
      std::ifstream file(entry.path() / "environ", std::ios::binary);
      std::ostringstream text;
      if (file) text << file.rdbuf();
      CHECK_MESSAGE(text.str().find(mark) == std::string::npos, entry.path().string());
    }
  }

 private:
  std::string path_;
  std::string before_;
};

PlainJson run_to_end(const std::vector<std::string>& arguments) {
  const ProgramResult result = run_program(arguments);
  CHECK_MESSAGE(result.exit_status == 0, result.err);
  CHECK(result.err == "");
  const PlainJson json = result.json();
  REQUIRE(json.is_object());
  return json;
}

std::uint64_t sum_of(const PlainJson& counts) {
  std::uint64_t sum = 0;
  for (const PlainJson& one : counts) sum += one.get<std::uint64_t>();
  return sum;
}

}  // namespace

TEST_CASE("rank processes that put the same pages move each byte once, whatever the order") {
  const Place place;
  for (const std::string depth : {"1", "4"}) {
    const bool limit = depth == "1";
    const PlainJson r = run_to_end({"bench", "put", "--via", "spawn", "--ranks", "3", "--pages", "203", "--page-bytes", "5000", "--batch", "20", "--depth",
                         depth, "--repeat", "2", "--expect-path", "shm", "--limit-time", limit ? "20ms" : "0ms", "--json"});
    REQUIRE(r["runs"].size() == 2);
    for (const PlainJson& run : r["runs"]) {
      CHECK(run["unique_bytes"] == 203 * 5'000);
      CHECK(run["announced_bytes"] == 3 * 203 * 5'000);
      CHECK(run["moved_bytes"] == run["unique_bytes"]);
      CHECK(run["stored_bytes"] == run["unique_bytes"]);
      CHECK(run["evicted_bytes"] == 0);
      CHECK(run["moved_bytes_by_rank"].size() == 3);
      CHECK(sum_of(run["moved_bytes_by_rank"]) == run["moved_bytes"]);
      CHECK(run["verdicts"]["stored"] == 203);
      CHECK(sum_of(run["verdicts"]) == 3 * 203);
      CHECK(run["verified"] == true);
      CHECK(run["path"] == "shm");
      if (limit) CHECK(run["ratio_to_copy_limit"] > 0);
      CHECK(run["copy_limit"]["memory"] == "into shared memory");
      if (limit) CHECK(run["copy_limit"]["private_memory_gib_per_s"] > 0);
      for (const char* who : {"ranks", "store"}) CHECK(run["cpu_us_per_unique_page_of"][who] > 0);
      for (const char* name : {"seconds", "cpu_seconds", "unique_pages_per_s", "cpu_us_per_unique_page", "keys_per_s"}) CHECK(run[name] > 0);
      for (const char* name : {"p50", "p99", "max"}) CHECK(run["ack_us"][name] > 0);
    }
    place.check_nothing_left();
  }
}

TEST_CASE("rank processes in lock step share the work") {
  const Place place;
  const PlainJson r = run_to_end({"bench", "put", "--via", "spawn", "--ranks", "2", "--pages", "64", "--page-bytes", "4KiB", "--batch", "8", "--lockstep", "--limit-time", "0ms", "--json"});
  CHECK(r["moved_bytes"] == r["unique_bytes"]);
  CHECK(r["verified"] == true);
  place.check_nothing_left();
}

TEST_CASE("rank processes load every page with a lease that another process took") {
  const Place place;
  const PlainJson r = run_to_end({"bench", "get", "--via", "spawn", "--ranks", "2", "--pages", "203", "--page-bytes", "5000", "--batch", "20", "--depth", "2",
                       "--repeat", "2", "--limit-time", "0ms", "--json"});
  CHECK(r["asked_bytes"] == 2 * 203 * 5'000);
  CHECK(r["loaded_bytes"] == r["asked_bytes"]);
  CHECK(r["results"]["loaded"] == 2 * 203);
  CHECK(r["copy_limit"]["memory"] == "from shared memory");
  for (const char* name : {"announced_bytes", "moved_bytes", "stored_bytes"}) CHECK(r[name] == 0);
  CHECK(r["moved_bytes_by_rank"] == PlainJson::array({0, 0}));
  CHECK(sum_of(r["verdicts"]) == 0);
  CHECK(r["verified"] == true);
  place.check_nothing_left();
}

TEST_CASE("exists, lookup and idle go through a store of another process") {
  const Place place;
  const PlainJson exists = run_to_end({"bench", "exists", "--via", "spawn", "--ranks", "2", "--pages", "5000", "--operations", "1000", "--json"});
  CHECK(exists["asked_keys"] == 2 * 896);  // whole batches of 128
  CHECK(exists["found_keys"] == exists["asked_keys"]);
  CHECK(exists["false_hits"] == 0);
  CHECK(exists["asked_unique_pages"] <= exists["asked_keys"]);
  CHECK(exists["unique_bytes"] == 5'000 * 64);
  CHECK(exists["moved_bytes_by_rank"] == PlainJson::array({0, 0}));
  const PlainJson lookup =
      run_to_end({"bench", "lookup", "--via", "spawn", "--ranks", "2", "--pages", "200", "--checkpoint-pages", "16", "--operations", "5", "--json"});
  CHECK(lookup["restorable_pages"] == 192);
  CHECK(lookup["path"] == "shm");
  CHECK(lookup["ack_us"] == lookup["lookup_us"]);
  for (const PlainJson& one : {exists, lookup}) {
    for (const char* name : {"announced_bytes", "moved_bytes", "stored_bytes"}) CHECK(one[name] == 0);
    for (const char* name : {"unique_pages_per_s", "cpu_us_per_unique_page", "unique_bytes"}) CHECK(one[name] > 0);
    CHECK(sum_of(one["verdicts"]) == 0);
  }
  const PlainJson idle = run_to_end({"bench", "idle", "--via", "spawn", "--ranks", "2", "--time", "50ms", "--json"});
  CHECK(idle["pools"] == 2);
  CHECK(idle["seconds"] >= 0.05);
  CHECK(idle.contains("clients_cpu_percent"));
  CHECK(exists["operations"] == 2 * 7);
  CHECK(lookup["operations"] == 5);
  CHECK(idle["operations"] == 0);
  for (const PlainJson& one : {exists, lookup, idle}) {
    CHECK(one["copy_limit"]["gib_per_s"] > 0);
    CHECK(one["copy_limit"]["kernel"].is_string());
    CHECK_FALSE(one.contains("ratio_to_copy_limit"));
  }
  place.check_nothing_left();
}

TEST_CASE("writers that are killed in the middle of a copy lose nothing for the others") {
  const Place place;
  const PlainJson r = run_to_end({"bench", "coalesce", "--ranks", "3", "--pages", "3", "--page-bytes", "512KiB", "--rounds", "3", "--kills", "5", "--json"});
  CHECK(r["kills"] == 5);
  CHECK(r["kills_in_grant"] == 5);
  CHECK(r["promotions"] >= 5);
  CHECK(r["announced_pages"] == 3 * 3 * 8);
  CHECK(r["unique_pages"] == 3 * 8);
  CHECK(r["moved_bytes"] >= r["unique_bytes"]);
  CHECK(r["without_kills"]["moved_bytes"] == 3 * 3 * 512 * 1024);
  CHECK(r["without_kills"]["stored_bytes"] == 3 * 3 * 512 * 1024);
  CHECK(r["stored_bytes"] == r["unique_bytes"]);
  CHECK(r["without_kills"]["verdicts"]["stored"] == 3 * 3);
  CHECK(sum_of(r["with_kills"]["verdicts"]) == 5 * 3 * 2);  // of those that live
  CHECK(r["acked_not_readable"] == 0);
  CHECK(r["wrong_bytes"] == 0);
  CHECK(r["lost_for_survivors"] == 0);
  CHECK(r["quarantined_bytes_at_end"] == 0);
  CHECK(r["ack_us_first"] > 0);
  CHECK(r["ack_us_last"] >= r["ack_us_first"]);
  place.check_nothing_left();
}

TEST_CASE("a store that ends in order has all its pages back") {
  if (!fs::is_directory("/dev/shm")) return;  // an arena's file must be on tmpfs
  const Place place("/dev/shm");
  const PlainJson r = run_to_end({"bench", "restart", "--pages", "300", "--page-bytes", "20000", "--folder", place.path(), "--json"});
  CHECK(r["pages_back"] == 300);
  CHECK(r["wrong_pages"] == 0);
  CHECK(r["objects_back"] == r["objects_before"]);
  CHECK(r["ready_line"].get<std::string>().find("warm start") != std::string::npos);
  place.check_nothing_left();
}

TEST_CASE("an interrupted run ends all its processes") {
  const Place place;
  for (const int number : {SIGINT, SIGTERM}) {
    LiveProgram program({"bench", "coalesce", "--ranks", "2", "--pages", "1", "--page-bytes", "64KiB", "--kills", "1000000"});
    REQUIRE(program.wait_for_terminal("kills 10 of"));
    program.signal(number);
    const ProgramResult result = program.finish();
    CHECK(result.exit_status == 2);
    CHECK(result.err.find("interrupted (SIG") != std::string::npos);
    place.check_nothing_left();
  }
}

TEST_CASE("a store that is not there is told, and nothing is left") {
  const Place place;
  const ProgramResult result = run_program({"bench", "put", "--via", "unix:" + place.path() + "/none", "--pages", "16", "--limit-time", "0ms"});
  CHECK(result.exit_status == 2);
  CHECK(result.out == "");
  CHECK(result.err.find("no store runs on unix:" + place.path() + "/none; start one with kvonced --socket " + place.path() + "/none") != std::string::npos);
  place.check_nothing_left();
}
