// SPDX-License-Identifier: Apache-2.0
//
// What the next life of a store takes over from the last one, what a full store says, and one that does not let anybody in.
#include "tests/process/large.hpp"

#include <memory>

namespace kvonce::process_test {

namespace {

const char* const kMemory = "/dev/shm";
constexpr std::uint64_t kPageBytes = 65'536;

void end_in_order(Daemon& daemon) {
  daemon.signal(SIGTERM);
  CHECK(daemon.finish() == 0);
}

/// The gauges of what is stored, as one text.
std::string gauges(const Answer& stats) {
  std::string text;
  for (const char* const name : {"objects", "pages", "payload", "slots", "free", "arena", "claims", "leases", "leased_bytes", "quarantined"})
    text += std::string(name) + "=" + stats.fields.at(name) + " ";
  return text;
}

}  // namespace

TEST_CASE("what was cleared or removed before an orderly end stays so in the next life") {
  for (const std::string partitions : {"1", "4"}) {
    CAPTURE(partitions);
    const Folder folder;
    const Folder memory(kMemory);
    const std::vector<std::string> flags{"--arena-file", memory / "arena", "--partitions", partitions};
    auto daemon = std::make_unique<Daemon>(folder, flags);
    Rank rank(folder, "engine=one", "");
    for (int chain = 1; chain <= 4; ++chain) CHECK(rank.ask("put count=16 chain=" + std::to_string(chain))["stored"] == 16);
    CHECK(rank.ask("admin what=clear")["count"] == 64);
    for (int chain = 11; chain <= 12; ++chain) CHECK(rank.ask("put count=16 chain=" + std::to_string(chain))["stored"] == 16);
    CHECK(rank.ask("admin what=remove count=16 chain=12")["count"] == 16);
    end_in_order(*daemon);
    daemon = std::make_unique<Daemon>(folder, flags);
    CHECK(rank.ask("wait_connected").error.empty());
    CHECK(rank.ask("stats")["objects"] == 16);
    for (const int chain : {1, 2, 3, 4, 12}) {
      const std::string what = "count=16 chain=" + std::to_string(chain);
      CHECK(rank.ask("exists " + what)["pages"] == 0);
      CHECK(rank.ask("lookup " + what)["pages"] == 0);
      CHECK(rank.ask("stat chain=" + std::to_string(chain))["found"] == 0);
    }
    CHECK(rank.load_back("count=16 chain=11") == 16);
    CHECK(rank.ask("put count=16 chain=1")["stored"] == 16);
    // A store that was cleared to its last page starts warm, with nothing in it.
    CHECK(rank.ask("admin what=clear")["count"] == 32);
    end_in_order(*daemon);
    daemon = std::make_unique<Daemon>(folder, flags);
    CHECK(rank.ask("wait_connected").error.empty());
    CHECK(rank.ask("state")["warm"] == 1);
    CHECK(rank.ask("stats")["objects"] == 0);
    CHECK(rank.ask("exists count=16 chain=11")["pages"] == 0);
  }
}

TEST_CASE("after a warm restart the gauges are those of before, and what a scan of all pages counts") {
  for (const std::string partitions : {"1", "4"}) {
    CAPTURE(partitions);
    const Folder folder;
    const Folder memory(kMemory);
    const std::vector<std::string> flags{"--arena-file", memory / "arena", "--partitions", partitions};
    auto daemon = std::make_unique<Daemon>(folder, flags);
    Rank rank(folder, "engine=one", "");
    // More than fits, so that some are evicted; some are removed, and a lease has ended.
    constexpr int kChains = 40;
    for (int chain = 1; chain <= kChains; ++chain) CHECK(rank.ask("put count=32 chain=" + std::to_string(chain))["good"] == 32);
    CHECK(rank.ask("stats")["evicted"] > 0);
    // From its end: a page that others continue keeps its place in the prefix, and is counted, without an object.
    CHECK(rank.ask("admin what=remove first=25 count=7 chain=" + std::to_string(kChains))["count"] == 7);
    CHECK(rank.ask("lookup count=8 lease=1 chain=" + std::to_string(kChains - 1))["pages"] == 8);
    CHECK(eventually([&] { return rank.ask("stats")["leases"] == 0; }));
    const std::string before = gauges(rank.ask("stats"));
    end_in_order(*daemon);
    daemon = std::make_unique<Daemon>(folder, flags);
    CHECK(rank.ask("wait_connected").error.empty());
    CHECK(rank.ask("state")["warm"] == 1);
    const Answer stats = rank.ask("stats");
    CHECK(gauges(stats) == before);
    std::uint64_t counted = 0;
    for (int chain = 1; chain <= kChains; ++chain) counted += rank.ask("exists count=32 chain=" + std::to_string(chain))["pages"];
    CHECK(counted == stats["objects"]);
    CHECK(counted == stats["pages"]);
    CHECK(counted == rank.ask("state")["restored"]);
    CHECK(counted * kPageBytes == stats["payload"]);
    CHECK(stats["slots"] + stats["free"] <= stats["arena"]);
    // All of it is given back.
    CHECK(rank.ask("admin what=clear")["count"] == counted);
    const Answer empty = rank.ask("stats");
    CHECK(empty["slots"] == 0);
    CHECK(empty["payload"] == 0);
    CHECK(empty["pages"] == 0);
    CHECK(empty["free"] == empty["arena"]);
  }
}

TEST_CASE("a store that is full of leased pages says no_space to whoever puts, and takes pages again when they are given back") {
  const Folder folder;
  const Daemon daemon(folder, {"--memory", "16MiB", "--index-pages", "1024", "--leased-bytes", "16MiB"});
  Rank holder(folder, "engine=holder", kLarge);
  Rank other(folder, "engine=other", kLarge + " ns=model");
  std::vector<std::string> leases;
  std::uint64_t held = 0;
  for (int chain = 1; chain <= 16; ++chain) {
    const std::string what = "count=1 chain=" + std::to_string(chain);
    const Answer put = holder.ask("put " + what);
    if (put["good"] == 0) {
      CHECK_MESSAGE(put["rejected"] == 1, put.text);
      CHECK(put.fields.at("reason") == "no_space");
      break;
    }
    const Answer found = holder.ask("lookup lease=3600000 " + what);
    REQUIRE_MESSAGE(found["pages"] == 1, found.text);
    leases.push_back(found.fields.at("lease"));
    ++held;
  }
  CHECK(held >= 8);
  CHECK(held < 16);
  const Answer full = other.ask("put count=2 chain=500");
  CHECK_MESSAGE(full["rejected"] == 2, full.text);
  CHECK(full.fields.at("reason") == "no_space");
  // Nothing that was leased has gone for it.
  for (std::uint64_t chain = 1; chain <= held; ++chain) CHECK(holder.ask("exists count=1 chain=" + std::to_string(chain))["pages"] == 1);
  CHECK(other.ask("stats")["claims"] == 0);
  CHECK(holder.ask("release lease=" + leases.front()).error.empty());
  CHECK(other.ask("put count=1 chain=500")["stored"] == 1);
  CHECK(other.load_back("count=1 chain=500") == 1);
  CHECK(holder.ask("exists count=1 chain=1")["pages"] == 0);
}

TEST_CASE("connecting to a kvonced that stands still ends by its deadline, and works when it goes on") {
  const Folder folder;
  Daemon daemon(folder);
  daemon.stop();
  {
    Rank late;
    const Answer started = late.ask("start engine=late connect=300 store=" + folder.store());
    CHECK_MESSAGE(started.error == "deadline", started.text);
  }
  // So many wait for it that the system lets no more in: still a deadline each.
  std::vector<std::unique_ptr<Rank>> many;
  for (int i = 0; i < 8; ++i) many.push_back(std::make_unique<Rank>());
  for (const auto& one : many) one->tell("start engine=many connect=300 store=" + folder.store());
  for (const auto& one : many) CHECK(one->hear().error == "deadline");
  daemon.go_on();
  Rank late(folder, "engine=late", "");
  CHECK(late.ask("put count=4 chain=1")["stored"] == 4);
  CHECK(eventually([&] { return late.ask("clients")["count"] == 1; }));
}

}  // namespace kvonce::process_test
