// SPDX-License-Identifier: Apache-2.0
//
// What one bad process costs the others: nothing but its share.
#include "tests/process/fleet.hpp"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <random>

namespace kvonce::process_test {

namespace {

/// Processes put the same pages and load them back; every answer is as it should be. With `churn` somebody else's pages may have
/// pushed them out in between: what comes back is right all the same.
void work(std::vector<std::unique_ptr<Rank>>& ranks, int first_chain, int chains, bool churn = false) {
  for (int chain = first_chain; chain < first_chain + chains; ++chain) {
    const std::string what = "count=16 chain=" + std::to_string(chain);
    for (const auto& rank : ranks) rank->tell("put timeout=60000 " + what);
    for (const auto& rank : ranks) {
      const Answer put = rank->hear();
      CHECK_MESSAGE(put["good"] == 16, put.text);
    }
    for (const auto& rank : ranks) {
      const auto right = rank->load_back(what);
      CHECK((churn || right == 16));
    }
  }
}

}  // namespace

TEST_CASE("one process floods, stands still and holds leases for ever; seven others go on") {
  const Folder folder;
  const Daemon daemon(folder, {"--grant-deadline", "500ms"});
  std::vector<std::unique_ptr<Rank>> ranks;
  for (int r = 0; r < 7; ++r) ranks.push_back(std::make_unique<Rank>(folder, "engine=tp7", "of=7 rank=" + std::to_string(r)));
  Rank abuser(folder, "engine=abuser", "rows=64");
  for (int chain = 1; chain <= 4; ++chain) CHECK(abuser.ask("put count=32 chain=" + std::to_string(chain))["good"] == 32);
  CHECK(abuser.ask("flood chain=1 chains=4").error.empty());
  work(ranks, 10'000, 6, true);
  CHECK(eventually([&] { return abuser.ask("flood count=1")["lookups"] > 2'000; }));
  work(ranks, 11'000, 6, true);
  // It reads nothing any more, in the middle of whatever it does.
  abuser.stop();
  work(ranks, 12'000, 6);
  abuser.go_on();
  work(ranks, 13'000, 3, true);
  abuser.stop();
  const auto stood = daemon.resident_bytes();
  work(ranks, 14'000, 3);
  // What waits for it is bounded: the backlog of one link, and what its puts may have open.
  CHECK(daemon.resident_bytes() < stood + (128ULL << 20));
  MESSAGE("memory of the store's process: " << (stood >> 20U) << " MiB, then " << (daemon.resident_bytes() >> 20U) << " MiB");
  abuser.kill9();
  const auto& watcher = ranks.front();
  CHECK(eventually([&] { return watcher->ask("clients")["count"] == 7; }));
  CHECK(eventually([&] { return watcher->ask("stats")["claims"] == 0; }));
  CHECK(eventually([&] { return watcher->ask("stats")["quarantined"] == 0; }));
  CHECK(eventually([&] { return watcher->ask("stats")["leases"] == 0; }));
  work(ranks, 15'000, 3);
}

TEST_CASE("each of seven ranks has all its calls answered while one asks without end and is answered too") {
  const Folder folder;
  const Daemon daemon(folder, {"--grant-deadline", "500ms"});
  std::vector<std::unique_ptr<Rank>> ranks;
  for (int r = 0; r < 7; ++r) ranks.push_back(std::make_unique<Rank>(folder, "engine=tp7", "of=7 rank=" + std::to_string(r)));
  Rank abuser(folder, "engine=abuser", "rows=64");
  for (int chain = 1; chain <= 4; ++chain) CHECK(abuser.ask("put count=32 chain=" + std::to_string(chain))["good"] == 32);
  CHECK(abuser.ask("flood lookups=1 chain=1 chains=4").error.empty());
  CHECK(eventually([&] { return abuser.ask("flood count=1")["lookups"] > 2'000; }));
  const auto resident = daemon.resident_bytes();
  // A lookup is a message: how many of a rank the store answers, and how many of the abuser in the same time. How the one relates
  // to the other is the system's scheduler's to say too; that both go on is the store's.
  constexpr std::uint64_t kOfAbuser = 500;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    CAPTURE(r);
    const auto before = ranks[r]->ask("stats")["lookups"];
    std::uint64_t own = 0;
    std::uint64_t of_abuser = 0;
    CHECK(eventually([&] {
      const Answer found = ranks[r]->ask("lookup probe=1 timeout=60000 count=1 chain=" + std::to_string(20'000 + own++));
      CHECK_MESSAGE(found.error.empty(), found.text);
      of_abuser = ranks[r]->ask("stats")["lookups"] - before - own;
      return own >= 40 && of_abuser >= kOfAbuser;
    }));
    MESSAGE("rank " << r << ": " << own << " answered, " << of_abuser << " of the abuser meanwhile");
  }
  // All seven put the same pages while it goes on: each is told of each.
  const auto asked = abuser.ask("flood count=1")["lookups"];
  work(ranks, 16'000, 4, true);
  CHECK(abuser.ask("flood count=1")["lookups"] > asked);
  // What it asks waits with itself, and no more there than it may have open.
  CHECK(daemon.resident_bytes() < resident + (32ULL << 20));
  CHECK(abuser.resident_bytes() < (512ULL << 20));
}

TEST_CASE("what many clients have asked while a store stood still waits with them when it goes on") {
  const Folder folder;
  Daemon daemon(folder);
  constexpr std::uint64_t kClients = 6;
  constexpr std::uint64_t kLookups = 12'000;  // of 32 pages, about 1 KiB each: 80 MiB in all
  std::vector<std::unique_ptr<Rank>> ranks;
  for (std::uint64_t r = 0; r < kClients; ++r) ranks.push_back(std::make_unique<Rank>(folder, "engine=e" + std::to_string(r), "rows=64"));
  CHECK(ranks.front()->ask("put count=32 chain=1")["good"] == 32);
  const auto before = daemon.resident_bytes();
  std::uint64_t most = 0;
  // Whether the store or the server of its links is faster is the system's scheduler's to say, anew each time.
  for (std::uint64_t round = 1; round <= 6; ++round) {
    daemon.stop();
    for (const auto& rank : ranks) CHECK(rank->ask("flood lookups=1 probe=1 chain=1 chains=1 most=" + std::to_string(kLookups)).error.empty());
    CHECK(eventually([&] {
      return std::all_of(ranks.begin(), ranks.end(), [&](const auto& rank) { return rank->ask("flood count=1")["lookups"] == round * kLookups; });
    }));
    daemon.go_on();
    CHECK(eventually([&] {
      most = std::max(most, daemon.resident_bytes());
      return ranks.front()->ask("stats")["lookups"] >= round * kClients * kLookups;
    }));
  }
  CHECK_MESSAGE(most < before + (32ULL << 20), most, " bytes, before ", before);
  MESSAGE("memory of the store's process: " << (before >> 20U) << " MiB, then at most " << (most >> 20U) << " MiB");
}

TEST_CASE("what a broken client of the same user says or scribbles ends its own link and nothing else") {
  const char* const given = std::getenv("KVONCE_TEST_SEED");
  const std::uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 0) : std::random_device{}();
  MESSAGE("KVONCE_TEST_SEED=" << seed);
  for (const std::string partitions : {"1", "4"}) {
    CAPTURE(partitions);
    const Folder folder;
    const Daemon daemon(folder, {"--partitions", partitions});
    Rank good(folder, "engine=good", "");
    CHECK(good.ask("put count=16 chain=500")["stored"] == 16);
    std::vector<std::unique_ptr<Rank>> wild;
    for (int i = 0; i < 2; ++i) wild.push_back(std::make_unique<Rank>());
    std::uint64_t after_first = 0;
    for (int round = 0; round < 6; ++round) {
      for (std::size_t i = 0; i < wild.size(); ++i)
        wild[i]->tell("wild socket=" + (folder / "store") +
                      " rounds=25 seed=" + std::to_string(seed + static_cast<std::uint64_t>(round) * 2 + i));
      const std::string what = "count=16 chain=" + std::to_string(600 + round);
      CHECK(good.ask("put " + what)["good"] == 16);
      CHECK(good.load_back(what) == 16);
      for (const auto& one : wild) CHECK(one->hear()["let_in"] > 0);
      if (round == 1) after_first = daemon.resident_bytes();
    }
    CHECK(daemon.resident_bytes() < after_first + (96ULL << 20));
    CHECK(good.ask("state")["connected"] == 1);
    CHECK(good.load_back("count=16 chain=500") == 16);
    wild.clear();
    CHECK(eventually([&] { return good.ask("clients")["count"] == 1; }));
    CHECK(eventually([&] { return good.ask("stats")["claims"] == 0; }));
    CHECK(eventually([&] { return good.ask("stats")["quarantined"] == 0; }));
  }
}

TEST_CASE("messages in the name of another process's rank end the link that they came on, and change nothing") {
  const Folder folder;
  const Daemon daemon(folder, {"--grant-deadline", "10m"});
  Rank writer(folder, "engine=tp2", "of=2 rank=0 bytes=262144");
  Rank waiter(folder, "engine=tp2", "of=2 rank=1 bytes=262144");
  writer.ask("begin_put count=4 chain=1 hold_row=0 hold_at=70000");
  REQUIRE(writer.ask("held").error.empty());
  waiter.ask("begin_put count=4 chain=1");
  CHECK(eventually([&] { return waiter.ask("stats")["announced"] == 8; }));
  Rank forger;
  for (Rank* const one : {&writer, &waiter}) {
    const Answer forged = forger.ask("forge socket=" + (folder / "store") + " sender=" + one->ask("sender").fields.at("sender"));
    CHECK_MESSAGE(forged["ended"] == forged["tried"], forged.text);
  }
  CHECK(waiter.ask("stats")["claims"] > 0);
  CHECK(waiter.ask("exists count=4 chain=1")["pages"] < 4);
  writer.ask("let_go");
  const Answer one = writer.ask("wait put=0");
  CHECK_MESSAGE(one["good"] == 4, one.text);
  const Answer two = waiter.ask("wait put=0");
  CHECK_MESSAGE(two["good"] == 4, two.text);
  CHECK(waiter.load_back("count=4 chain=1") == 4);
  CHECK(writer.load_back("count=4 chain=1") == 4);
}

}  // namespace kvonce::process_test
