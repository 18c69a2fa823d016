// SPDX-License-Identifier: Apache-2.0
//
// What engine processes count of their own accord, as a kvonced and `kvonce stat` show it.
#include "tests/process/fleet.hpp"

#include <memory>
#include <string>

namespace kvonce::process_test {
namespace {

/// Of the store: how many counters a process is known to have told, and their sum.
std::pair<std::uint64_t, std::uint64_t> told(Rank& asker, const Rank& of) {
  const Answer clients = asker.ask("clients");
  const std::string pid = std::to_string(of.pid());
  if (clients.fields.count("counters" + pid) == 0) return {0, 0};
  return {clients["counters" + pid], clients["sum" + pid]};
}
using Told = std::pair<std::uint64_t, std::uint64_t>;

/// A line of the program's output that holds `text`.
std::string line_with(const std::vector<std::string>& arguments, const std::string& text) {
  Child program(KVONCE_PROGRAM, arguments);
  for (int i = 0; i < 200; ++i) {
    const std::string line = program.read_line();
    if (line.find(text) != std::string::npos) return line;
  }
  return {};
}

}  // namespace

TEST_CASE("a process's reports are seen by all, replaced by its next ones, and go with it") {
  const Folder folder;
  const Daemon daemon(folder, {"--partitions", "2"});
  auto one = std::make_unique<Rank>(folder, "engine=one");
  Rank two(folder, "engine=one");
  Rank reader(folder, "engine=reader ro=1");
  CHECK(one->ask("report label=tp0 count=3 value=5").error.empty());
  CHECK(one->ask("report label=tp1 count=2 value=7").error.empty());
  CHECK(two.ask("report label=tp0 count=64 value=1").error.empty());
  REQUIRE(eventually([&] { return told(reader, *one) == Told{5, 29}; }));
  REQUIRE(eventually([&] { return told(reader, two) == Told{64, 64}; }));
  CHECK(told(reader, reader) == Told{0, 0});
  CHECK(one->ask("report label=tp0 count=1 value=100").error.empty());
  REQUIRE(eventually([&] { return told(reader, *one) == Told{3, 114}; }));
  CHECK(one->ask("report label=tp1 count=0").error.empty());
  REQUIRE(eventually([&] { return told(two, *one) == Told{1, 100}; }));
  one->kill9();
  REQUIRE(eventually([&] { return reader.ask("clients")["count"] == 2; }));
  CHECK(told(reader, *one) == Told{0, 0});
  CHECK(told(reader, two) == Told{64, 64});
}

TEST_CASE("a store that comes back knows nothing of reports until they are told again") {
  const Folder folder;
  auto daemon = std::make_unique<Daemon>(folder);
  Rank one(folder, "engine=one");
  CHECK(one.ask("report label=tp0 count=3 value=5").error.empty());
  REQUIRE(eventually([&] { return told(one, one) == Told{3, 15}; }));
  daemon->kill9();
  REQUIRE(eventually([&] { return one.ask("state")["connected"] == 0; }));
  CHECK(one.ask("report label=tp0 count=3 value=6").error == "store_lost");
  daemon = std::make_unique<Daemon>(folder);
  REQUIRE(one.ask("wait_connected").error.empty());
  CHECK(told(one, one) == Told{0, 0});
  CHECK(one.ask("report label=tp0 count=3 value=7").error.empty());
  REQUIRE(eventually([&] { return told(one, one) == Told{3, 21}; }));
}

TEST_CASE("kvonce stat shows reports under their process") {
  const Folder folder;
  const Daemon daemon(folder);
  Rank one(folder, "engine=one");
  CHECK(one.ask("report label=tp3 count=2 value=12345").error.empty());
  REQUIRE(eventually([&] { return told(one, one) == Told{2, 24'690}; }));
  const std::string text = line_with({"stat", "--store", folder.store()}, "tp3");
  CHECK_MESSAGE(text.find("tp3: c0 12,345, c1 12,345") != std::string::npos, text);
  CHECK(line_with({"stat", "--json", "--store", folder.store()}, "\"tp3\"").find("\"tp3\": {") != std::string::npos);
  CHECK(line_with({"stat", "--json", "--store", folder.store()}, "\"c1\"").find("\"c1\": 12345") != std::string::npos);
}

}  // namespace kvonce::process_test
