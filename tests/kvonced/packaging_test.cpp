// SPDX-License-Identifier: Apache-2.0
// What packaging/ says about running kvonced is what kvonced takes.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <regex>
#include <sstream>

#include "tests/kvonced/process.hpp"

namespace kvonce::kvonced_test {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

const std::string kPackaging = std::string(KVONCE_SOURCE_DIR) + "/packaging/";
// Of an end, beyond drain-time, until it is forced.
constexpr int kForcedAfterSeconds = 15;
constexpr int kDrainSeconds = 5;

Words words_of(const std::string& text) {
  std::istringstream in(text);
  Words words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

/// The commands in the comment at the head of a file, each in one line.
std::vector<std::string> commands_in_head(const std::string& text) {
  std::vector<std::string> commands;
  std::istringstream in(text);
  bool goes_on = false;
  for (std::string line; std::getline(in, line) && line.starts_with("#");) {
    if (!line.starts_with("#   ") && !goes_on) continue;
    const std::string part = line.substr(line.find_first_not_of("# "));
    if (goes_on) commands.back() += ' ' + part;
    else commands.push_back(part);
    goes_on = part.ends_with("\\");
    if (goes_on) commands.back().pop_back();
  }
  return commands;
}

std::string one_match(const std::string& text, const std::string& pattern) {
  std::smatch match;
  REQUIRE_MESSAGE(std::regex_search(text, match, std::regex(pattern)), pattern);
  return match[1];
}

void check_valid(const Words& arguments, const Environment& environment = {}) {
  Words all = arguments;
  all.push_back("--dump-config");
  const Ended ended = run(KVONCED_PROGRAM, all, environment);
  CHECK_MESSAGE(ended.status == 0, ended.err);
  CHECK(ended.err == "");
}

}  // namespace

TEST_CASE("the systemd unit starts kvonced with settings that are valid, where the unit lets it, and waits for its end") {
  const RunFolder folder;
  const std::string unit = read_file(kPackaging + "kvonced.service");
  Words start = words_of(one_match(unit, "\nExecStart=(.*)"));
  REQUIRE(start.size() > 1);
  CHECK(start.front() == "/usr/bin/kvonced");
  start.erase(start.begin());
  const auto config = std::find(start.begin(), start.end(), "/etc/kvonce/kvonced.toml");
  REQUIRE(config != start.end());
  *config = kPackaging + "kvonced.toml";
  check_valid(start);
  // The folder that the unit makes for it.
  CHECK(read_file(*config).find("\nsocket = \"/run/" + one_match(unit, "\nRuntimeDirectory=(.*)") + "/") != std::string::npos);
  CHECK(std::stoi(one_match(unit, "\nTimeoutStopSec=([0-9]+)s")) > kDrainSeconds + kForcedAfterSeconds);
  CHECK(one_match(unit, "\nType=(.*)") == "notify");
  if (!fs::exists("/usr/bin/systemd-analyze")) return;
  const std::string copy = folder / "kvonced.service";
  write_file(copy, std::regex_replace(unit, std::regex("/usr/bin/kvonced"), KVONCED_PROGRAM));
  const Ended verified = run("/usr/bin/systemd-analyze", {"verify", "--man=no", copy});
  INFO(verified.err);
  CHECK(verified.status == 0);
  CHECK(verified.err.find("kvonced.service:") == std::string::npos);
}

TEST_CASE("the container's commands give kvonced valid settings, and each folder is made, mounted and used") {
  const RunFolder folder;
  const std::string file = read_file(kPackaging + "Containerfile");
  CHECK(one_match(file, "\nENTRYPOINT \\[\"(.*)\"\\]") == "kvonced");
  const std::string socket = one_match(file, "\nENV KVONCED_SOCKET=(.*)");
  std::vector<std::string> made;
  std::size_t runs = 0;
  for (const std::string& command : commands_in_head(file)) {
    const Words words = words_of(command);
    if (command.starts_with("install -d ")) {
      made.clear();
      std::copy_if(words.begin(), words.end(), std::back_inserter(made), [](const std::string& word) { return word.starts_with("/"); });
      CHECK(command.find(" -o 1000 -g 1000 ") != std::string::npos);
    }
    if (!command.starts_with("docker run ")) continue;
    ++runs;
    INFO(command);
    const auto name = std::find(words.begin(), words.end(), "--name");
    REQUIRE(name != words.end());
    const auto image = std::find(name + 2, words.end(), "kvonced");
    REQUIRE(image != words.end());
    const Words arguments(image + 1, words.end());
    check_valid(arguments, {{"KVONCED_SOCKET", socket}});
    CHECK(command.find(" --user 1000:1000 ") != std::string::npos);
    CHECK(command.find("--tmpfs") == std::string::npos);
    CHECK(std::stoi(one_match(command, "--stop-timeout ([0-9]+)")) > kDrainSeconds + kForcedAfterSeconds);
    std::vector<std::string> used{fs::path(socket).parent_path().string()};
    for (const std::string& argument : arguments)
      if (argument.starts_with("/")) used.push_back(fs::path(argument).parent_path().string());
    std::vector<std::string> mounted;
    for (auto at = words.begin(); at != image; ++at) {
      if (*at != "-v") continue;
      const std::string& volume = *(at + 1);
      const std::string host = volume.substr(0, volume.find(':'));
      CHECK(volume == host + ":" + host);
      mounted.push_back(host);
    }
    CHECK(mounted == used);
    CHECK(made == used);
  }
  CHECK(runs == 2);
}

TEST_CASE("a checkout's build folders do not go into the container's build") {
  const std::string ignored = "\n" + read_file(std::string(KVONCE_SOURCE_DIR) + "/.dockerignore");
  for (const std::string name : {"build", "dist", ".cache"}) CHECK(ignored.find("\n" + name + "\n") != std::string::npos);
  CHECK(ignored.find("\n.git\n") == std::string::npos);  // the commit is told by --version
}

}  // namespace kvonce::kvonced_test
