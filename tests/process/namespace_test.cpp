// SPDX-License-Identifier: Apache-2.0
//
// More namespaces than a store has places for, in real processes.
#include "tests/process/fleet.hpp"

#include <memory>
#include <string>

namespace kvonce::process_test {
namespace {

void update_weights(Rank& engine, std::uint64_t from, std::uint64_t to) {
  for (std::uint64_t i = from; i < to; ++i) {
    const Answer made = engine.ask("setup ns=weights-" + std::to_string(i) + " rows=2 bytes=4096");
    REQUIRE_MESSAGE(made.error.empty(), made.text);
    const Answer put = engine.ask("put chain=1 count=2");
    REQUIRE_MESSAGE(put["good"] == 2, put.text);
    const Answer left = engine.ask("leave");
    REQUIRE_MESSAGE(left.error.empty(), left.text);
  }
}

}  // namespace

TEST_CASE("an engine goes through 1,500 namespaces in one store; those that others use stay") {
  const Folder folder;
  const Daemon daemon(folder);
  Rank steady(folder, "engine=steady", "ns=steady");
  REQUIRE(steady.ask("put chain=7 count=10")["good"] == 10);
  // Open, with no pool in it.
  Rank reader(folder, "engine=reader");
  REQUIRE(reader.ask("namespace ns=weights-3").error.empty());
  Rank engine(folder, "engine=one");
  update_weights(engine, 0, 1'500);
  CHECK(steady.load_back("chain=7 count=10") == 10);
  const auto pages = [&](const std::string& ns) {
    const Answer made = engine.ask("setup ns=" + ns + " rows=2 bytes=4096");
    REQUIRE_MESSAGE(made.error.empty(), made.text);
    const std::uint64_t found = engine.ask("exists chain=1 count=2")["pages"];
    REQUIRE(engine.ask("leave").error.empty());
    return found;
  };
  CHECK(pages("weights-1499") == 2);
  CHECK(pages("weights-700") == 2);
  CHECK(pages("weights-3") == 2);
  CHECK(pages("weights-0") == 0);  // its place is another's
  CHECK(pages("weights-400") == 0);
}

TEST_CASE("with several partitions a namespace's place is free when all of them have let it go") {
  const Folder folder;
  const Daemon daemon(folder, {"--partitions", "3"});
  Rank steady(folder, "engine=steady", "ns=steady");
  REQUIRE(steady.ask("put chain=7 count=10")["good"] == 10);
  Rank engine(folder, "engine=one");
  update_weights(engine, 0, 1'100);
  CHECK(steady.load_back("chain=7 count=10") == 10);
}

TEST_CASE("a process that never closes its namespaces takes the places, and gives them back when it ends") {
  const Folder folder;
  const Daemon daemon(folder);
  Rank other(folder, "engine=other");
  {
    Rank greedy(folder, "engine=greedy");
    for (int i = 0; i < 1'023; ++i) {  // beside the ranks' own
      const Answer opened = greedy.ask("namespace ns=mine-" + std::to_string(i));
      REQUIRE_MESSAGE(opened.error.empty(), opened.text);
    }
    CHECK(greedy.ask("namespace ns=mine-1023").error == "too_many");
    CHECK(other.ask("namespace ns=more").error == "too_many");
    CHECK(other.ask("namespace ns=mine-5").error.empty());
    greedy.kill9();
  }
  REQUIRE(eventually([&] { return other.ask("clients")["count"] == 1; }));
  CHECK(other.ask("setup ns=more").error.empty());
  CHECK(other.ask("put chain=1 count=2")["good"] == 2);
}

TEST_CASE("a kvonced that is killed is asked for no namespace that was closed") {
  const Folder folder;
  auto daemon = std::make_unique<Daemon>(folder);
  Rank engine(folder, "engine=one");
  update_weights(engine, 0, 3);
  REQUIRE(engine.ask("setup ns=weights-3 rows=2 bytes=4096").error.empty());
  daemon->kill9();
  REQUIRE(eventually([&] { return engine.ask("state")["connected"] == 0; }));
  daemon = std::make_unique<Daemon>(folder);
  REQUIRE(engine.ask("wait_connected").error.empty());
  CHECK(engine.ask("put chain=1 count=2")["good"] == 2);
  Rank other(folder, "engine=two");
  CHECK(other.ask("find ns=weights-2").error == "unknown_namespace");
  CHECK(other.ask("find ns=weights-3").error.empty());
}

}  // namespace kvonce::process_test
