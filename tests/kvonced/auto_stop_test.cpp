// SPDX-License-Identifier: Apache-2.0
// store = "auto" while stores come and go: every engine gets a store, or an error that says what is in the way, by its deadline.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <set>

#include <nlohmann/json.hpp>

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/auto_store.hpp"
#include "tests/kvonced/process.hpp"
#include "transport/handshake.hpp"

namespace kvonce::kvonced_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::unique_ptr<Process> starting_engine(const std::string& timeout_ms, const std::string& kvonced = {}) {
  std::vector<std::string> arguments{timeout_ms};
  if (!kvonced.empty()) arguments.push_back(kvonced);
  auto process = std::make_unique<Process>(KVONCED_STARTER, arguments);
  CHECK(process->wait_out("here\n"));
  return process;
}

json starter_result(Process& process) {
  process.finish();
  const std::size_t line = process.out.find('\n');
  return line == std::string::npos ? json() : json::parse(process.out.substr(line + 1), nullptr, false);
}

std::string script(const RunFolder& folder, const std::string& text) {
  write_file(folder / "script", "#!/bin/sh\necho started >> " + folder / "starts" + "\n" + text + "\n", 0700);
  return folder / "script";
}

std::set<std::string> names_in(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

int rounds_wanted() {
  const char* const given = std::getenv("KVONCE_AUTO_ROUNDS");
  return given == nullptr ? 10 : std::max(std::atoi(given), 1);
}

}  // namespace

TEST_CASE("eight engines that look for a store while one is stopped: each finds one or is told why not, and nothing is left behind") {
  const RunFolder folder;
  const std::string place = fs::path(folder.socket()).parent_path().string();
  int found = 0;
  int told = 0;
  for (int round = 0; round < rounds_wanted(); ++round) {
    std::vector<std::unique_ptr<Process>> engines;
    for (int i = 0; i < 8; ++i) engines.push_back(starting_engine("30000"));
    for (std::size_t i = 0; i < 4; ++i) engines[i]->close_input();
    Process stop(KVONCE_PROGRAM, {"stop"});
    for (const auto& one : engines) one->close_input();
    Process stop_again(KVONCE_PROGRAM, {"stop"});
    for (const auto& one : engines) {
      const json result = starter_result(*one);
      INFO("round " << round << ": " << result.dump());
      REQUIRE(result.is_object());
      CHECK(result["descriptors_kept"] == true);
      CHECK(result["childless"] == true);
      if (result["error"] == "") {
        CHECK(result["store"] == "unix:" + folder.socket());
        ++found;
      } else {
        CHECK(result["error"].get<std::string>().find(folder.socket()) != std::string::npos);
        ++told;
      }
    }
    for (Process* const one : {&stop, &stop_again}) {
      const int status = one->finish();
      INFO("round " << round << ": " << one->err);
      CHECK((status == 0 || status == 1));
    }
    std::set<std::string> left = names_in(place);
    for (const char* const ending : {".sock", ".sock.lock", ".start", ".log"})
      left.erase("kvonced-w" + std::to_string(transport::kWireVersion) + ending);
    CHECK(left.empty());
  }
  // The time is long enough for all of them.
  CHECK(told == 0);
  CHECK(found == 8 * rounds_wanted());
  CHECK(run(KVONCE_PROGRAM, {"stop", "-q"}).status <= 1);
  CHECK_FALSE(fs::exists(folder.socket()));
  CHECK_FALSE(fs::exists(folder.socket() + ".lock"));
  // Every store that was started here is this process's to wait for: none runs on.
  CHECK(eventually([] { return waitpid(-1, nullptr, WNOHANG) < 0; }));
}

TEST_CASE("a store that is told to end while it starts is no error: another one is started") {
  const RunFolder folder;
  const std::string once = script(folder, "if [ $(wc -l < " + folder / "starts" + ") -lt 3 ]; then echo ended >&3; exit 0; fi\nexec " + KVONCED_PROGRAM + " \"$@\"");
  const auto one = starting_engine("30000", once);
  const json result = starter_result(*one);
  INFO(result.dump());
  CHECK(result["store"] == "unix:" + folder.socket());
  CHECK(occurrences(read_file(folder / "starts"), "started") == 3);
  CHECK(run(KVONCE_PROGRAM, {"stop", "-q"}).status == 0);
}

TEST_CASE("a store that always ends as soon as it is ready is started again with pauses, and told when the time is over") {
  const RunFolder folder;
  const auto one = starting_engine("1000", script(folder, "echo ready " + std::to_string(transport::kWireVersion) + " >&3"));
  const json result = starter_result(*one);
  INFO(result.dump());
  const std::string error = result["error"];
  CHECK(error.find("each ended as soon as it was ready") != std::string::npos);
  CHECK(error.find(folder.log()) != std::string::npos);
  const std::size_t starts = occurrences(read_file(folder / "starts"), "started");
  CHECK(starts >= 2);
  CHECK(starts <= 8);  // 10, 20, 40 ... 640 ms between them
}

TEST_CASE("a store that another is starting by hand is waited for, not told as an error") {
  const RunFolder folder;
  // What the engine starts finds the socket taken by then.
  const std::string beaten = script(folder, std::string(KVONCED_PROGRAM) + " --detach --memory 64MiB --populate no > /dev/null\nexec " + KVONCED_PROGRAM + " \"$@\"");
  const auto one = starting_engine("30000", beaten);
  const json result = starter_result(*one);
  INFO(result.dump());
  CHECK(result["store"] == "unix:" + folder.socket());
  CHECK(run(KVONCE_PROGRAM, {"stop", "-q"}).status == 0);
}

}  // namespace kvonce::kvonced_test
