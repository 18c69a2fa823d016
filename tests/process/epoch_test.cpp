// SPDX-License-Identifier: Apache-2.0
//
// Weight epochs between processes and a kvonced.
#include "tests/process/fleet.hpp"

#include <memory>

namespace kvonce::process_test {
namespace {

std::string value(Rank& rank, const std::string& name) {
  const Answer answer = rank.ask("epoch name=" + name);
  CHECK_MESSAGE(answer.error.empty(), answer.text);
  return answer.error.empty() ? answer.fields.at("value") : std::string();
}

}  // namespace

TEST_CASE("ranks of one engine name their weights alike, and a new life of the engine names them anew") {
  const Folder folder;
  const Daemon daemon(folder, {"--engine-grace", "0"});
  auto scheduler = std::make_unique<Rank>(folder, "engine=one ro=1", "of=2 rank=0");
  auto worker = std::make_unique<Rank>(folder, "engine=one", "of=2 rank=1");
  Rank stranger(folder, "engine=two", "");
  const std::string first = value(*scheduler, "weights-1");
  CHECK(first.size() == 32);
  CHECK(value(*worker, "weights-1") == first);
  CHECK(value(*worker, "weights-2") == value(*scheduler, "weights-2"));
  CHECK(value(*worker, "weights-2") != first);
  CHECK(value(stranger, "weights-1") != first);
  // One process of the engine is left, then none.
  scheduler->kill9();
  REQUIRE(eventually([&] { return stranger.ask("clients")["count"] == 2; }));
  CHECK(value(*worker, "weights-1") == first);
  worker->kill9();
  REQUIRE(eventually([&] { return stranger.ask("clients")["count"] == 1; }));
  Rank heir(folder, "engine=one", "of=2 rank=1");
  CHECK(value(heir, "weights-1") != first);
}

TEST_CASE("an engine that comes back within the grace keeps its epochs") {
  const Folder folder;
  const Daemon daemon(folder, {"--engine-grace", "10m"});
  auto rank = std::make_unique<Rank>(folder, "engine=one", "");
  const std::string first = value(*rank, "w");
  rank->kill9();
  rank = std::make_unique<Rank>(folder, "engine=one", "");
  CHECK(value(*rank, "w") == first);
}

TEST_CASE("a kvonced that is killed and started again learns the epochs from those who know them") {
  const Folder folder;
  auto daemon = std::make_unique<Daemon>(folder);
  Rank one(folder, "engine=one", "");
  const std::string first = value(one, "w");
  daemon->kill9();
  REQUIRE(eventually([&] { return one.ask("state")["connected"] == 0; }));
  CHECK(one.ask("epoch name=w").error == "store_lost");
  daemon = std::make_unique<Daemon>(folder);
  REQUIRE(one.ask("wait_connected").error.empty());
  Rank two(folder, "engine=one", "");
  CHECK(value(two, "w") == first);
}

}  // namespace kvonce::process_test
