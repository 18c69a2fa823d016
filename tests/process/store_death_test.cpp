// SPDX-License-Identifier: Apache-2.0
//
// The store's process is killed, stopped, started again; its clients go on.
#include "tests/process/fleet.hpp"

#include <memory>

namespace kvonce::process_test {

TEST_CASE("a kvonced that is killed: calls end with store_lost, accepted loads finish, and its successor is found") {
  for (const std::string partitions : {"1", "4"}) {
    CAPTURE(partitions);
    const Folder folder;
    const std::vector<std::string> flags{"--grant-deadline", "10m", "--partitions", partitions};
    auto daemon = std::make_unique<Daemon>(folder, flags);
    Rank one(folder, "engine=tp2", "of=2 rank=0 bytes=262144");
    Rank two(folder, "engine=tp2", "of=2 rank=1 bytes=262144");
    Rank reader(folder, "engine=reader ro=1", "bytes=262144");
    CHECK(one.ask("put count=8 chain=1")["stored"] == 8);
    const auto life = one.ask("state")["incarnation"];
    CHECK(two.ask("state")["incarnation"] == life);

    // Open at the moment of death: a put in mid-copy, one that waits for it, a load in mid-copy.
    one.ask("begin_put count=1 chain=2 hold_row=0 hold_at=70000");
    REQUIRE(one.ask("held").error.empty());
    two.ask("begin_put count=1 chain=2");
    CHECK(eventually([&] { return two.ask("stats")["announced"] == 10; }));
    const Answer found = reader.ask("lookup count=8 chain=1");
    REQUIRE(found["pages"] == 8);
    reader.ask("begin_load count=8 chain=1 lease=" + found.fields.at("lease") + " hold_row=3 hold_at=70000");
    REQUIRE(reader.ask("held").error.empty());
    // And a load that was accepted here, and that the store has not heard of.
    const Answer leased = two.ask("lookup count=8 chain=1");
    REQUIRE(leased["pages"] == 8);
    daemon->stop();
    two.ask("begin_load count=8 chain=1 lease=" + leased.fields.at("lease"));
    daemon->kill9();
    const Answer unpinned = two.ask("wait_load load=0 count=8 chain=1");
    CHECK_MESSAGE(unpinned["good"] == 8, unpinned.text);
    CHECK(unpinned["wrong"] == 0);

    const Answer waiter = two.ask("wait put=0");
    CHECK_MESSAGE(waiter["unknown"] == 1, waiter.text);
    CHECK(waiter.fields.at("reason") == "store_lost");
    for (const std::string call : {"lookup count=8 chain=1", "exists count=8 chain=1", "stat chain=1", "clients", "admin what=clear",
                             "admin what=flush", "namespace ns=more"}) {
      CAPTURE(call);
      CHECK(two.ask(call).error == "store_lost");
    }
    const Answer missed = two.ask("put count=2 chain=3");
    CHECK(missed["unknown"] == 2);
    CHECK(missed.fields.at("reason") == "store_lost");
    CHECK(two.ask("state")["connected"] == 0);
    // Accepted before: it has its bytes from the mapping.
    reader.ask("let_go");
    const Answer loaded = reader.ask("wait_load load=0 count=8 chain=1");
    CHECK_MESSAGE(loaded["good"] == 8, loaded.text);
    CHECK(loaded["wrong"] == 0);

    // Somebody else is first in the new life, so that names have other numbers there.
    daemon = std::make_unique<Daemon>(folder, flags);
    Rank early(folder, "engine=early", "ns=another bytes=4096");
    for (const char* ns : {"x", "y", "z"}) CHECK(early.ask(std::string("namespace ns=") + ns).error.empty());
    CHECK(two.ask("wait_connected").error.empty());
    CHECK(reader.ask("wait_connected").error.empty());
    CHECK(two.ask("state")["incarnation"] != life);
    CHECK(two.ask("state")["incarnation"] == early.ask("state")["incarnation"]);
    CHECK(two.ask("lookup count=8 chain=1")["pages"] == 0);
    const Answer again = two.ask("put count=8 chain=1 salt=4");
    CHECK_MESSAGE(again["stored"] == 8, again.text);
    CHECK(reader.load_back("count=8 chain=1 salt=4") == 8);
    CHECK(two.ask("exists count=9 chain=1")["pages"] == 8);
    CHECK(two.ask("stat chain=1")["objects"] == 1);

    // The copy of the old life ends only now, into memory of the old life.
    one.ask("let_go");
    const Answer late = one.ask("wait put=0");
    CHECK_MESSAGE(late["unknown"] == 1, late.text);
    CHECK(one.ask("wait_connected").error.empty());
    CHECK(one.load_back("count=8 chain=1 salt=4") == 8);
    CHECK(one.ask("put count=4 chain=2")["stored"] == 4);
    CHECK(reader.load_back("count=4 chain=2") == 4);
    const Answer stats = two.ask("stats");
    CHECK(stats["quarantined"] == 0);
    CHECK(stats["claims"] == 0);
    CHECK(two.ask("clients")["count"] == 4);
  }
}

TEST_CASE("kvonced dies again and again while four processes put and load") {
  const Folder folder;
  auto daemon = std::make_unique<Daemon>(folder);
  std::vector<std::unique_ptr<Rank>> ranks;
  for (int r = 0; r < 4; ++r) ranks.push_back(std::make_unique<Rank>(folder, "engine=tp4", "of=4 rank=" + std::to_string(r)));
  for (int life = 1; life <= 10; ++life) {
    for (int chain = life * 10; chain < life * 10 + 4; ++chain)
      for (const auto& rank : ranks) rank->tell("put count=16 chain=" + std::to_string(chain));
    if (life % 2 == 0) {
      daemon->kill9();
    } else {
      daemon->signal(SIGTERM);
      CHECK(daemon->finish() == 0);
    }
    // Every item has one honest end.
    for (int chain = 0; chain < 4; ++chain)
      for (const auto& rank : ranks) {
        const Answer answer = rank->hear();
        CHECK_MESSAGE(answer.error.empty(), answer.text);
        CHECK_MESSAGE(answer["good"] + answer["unknown"] + answer["rejected"] == 16, answer.text);
      }
    daemon = std::make_unique<Daemon>(folder);
    for (const auto& rank : ranks) REQUIRE(rank->ask("wait_connected").error.empty());
    const std::string chain = "count=16 chain=" + std::to_string(life * 10 + 5);
    for (const auto& rank : ranks) rank->tell("put " + chain);
    for (const auto& rank : ranks) CHECK(rank->hear()["good"] == 16);
    for (const auto& rank : ranks) CHECK(rank->load_back(chain) == 16);
  }
}

TEST_CASE("a kvonced that stands still: calls end by their deadlines, and go on when it does") {
  const Folder folder;
  Daemon daemon(folder);
  Rank rank(folder, "engine=one", "");
  CHECK(rank.ask("put count=8 chain=1")["stored"] == 8);
  const Answer leased = rank.ask("lookup count=8 chain=1 lease=600000");
  daemon.stop();
  const Answer put = rank.ask("put count=4 chain=2 timeout=200");
  CHECK_MESSAGE(put["unknown"] == 4, put.text);
  CHECK(put.fields.at("reason") == "deadline");
  CHECK(rank.ask("lookup count=8 chain=1 timeout=200").error == "deadline");
  CHECK(rank.ask("admin what=flush timeout=200").error == "deadline");
  const Answer load = rank.ask("load count=8 chain=1 timeout=200 lease=" + leased.fields.at("lease"));
  CHECK_MESSAGE(load["good"] == 0, load.text);
  CHECK(load.fields.at("reason") == "deadline");
  for (const std::string& call : {std::string("namespace ns=late"), std::string("find ns=late"), "release lease=" + leased.fields.at("lease")}) {
    const Answer answer = rank.ask(call + " timeout=200");
    CHECK_MESSAGE(answer.error == "deadline", answer.text);
    CHECK_MESSAGE(answer.text.find("within 200 ms") != std::string::npos, answer.text);
  }
  // What is in the mapping needs nobody.
  CHECK(rank.ask("exists count=9 chain=1")["pages"] == 8);
  CHECK(rank.ask("stat chain=1")["found"] == 1);
  CHECK(rank.ask("state")["connected"] == 1);
  daemon.go_on();
  CHECK(rank.ask("put count=4 chain=2")["good"] == 4);
  CHECK(rank.load_back("count=8 chain=1") == 8);
  CHECK(rank.load_back("count=4 chain=2") == 4);
}

TEST_CASE("a call waits for a kvonced that stands still as long as its own time, and others do not shorten it") {
  const Folder folder;
  Daemon daemon(folder);
  Rank patient(folder, "engine=patient", ""), hasty(folder, "engine=hasty", "");
  CHECK(patient.ask("put count=2 chain=1")["stored"] == 2);
  daemon.stop();
  patient.tell("admin what=pages count=2 chain=1 timeout=600000");
  // What is given up is no less asked: the store does it when it goes on.
  for (const char* const what : {"pages count=2 chain=1", "namespace", "clear"}) {
    CAPTURE(what);
    CHECK(hasty.ask("admin timeout=200 what=" + std::string(what)).error == "deadline");
  }
  daemon.go_on();
  const Answer removed = patient.hear();
  CHECK_MESSAGE(removed.error.empty(), removed.text);
}

TEST_CASE("namespaces whose opening was given up take no place in the store") {
  const Folder folder;
  Daemon daemon(folder);
  Rank hasty(folder, "engine=hasty", ""), other(folder, "engine=other", "");
  daemon.stop();
  for (int i = 0; i < 1'100; ++i) CHECK(hasty.ask("namespace timeout=1 ns=given-up-" + std::to_string(i)).error == "deadline");
  daemon.go_on();
  for (int i = 0; i < 8; ++i) {
    CAPTURE(i);
    CHECK(eventually([&] { return other.ask("namespace ns=kept-" + std::to_string(i)).error.empty(); }));
  }
}

TEST_CASE("a store that stands still is not lost by what is asked of it: it is busy, and answers when it goes on") {
  const Folder folder;
  Daemon daemon(folder);
  Rank rank(folder, "engine=large", "rows=65536 bytes=64");
  daemon.stop();
  constexpr int kPuts = 24;
  for (int i = 0; i < kPuts; ++i) {
    const Answer begun = rank.ask("begin_put keep=1 count=65536 timeout=600000 chain=" + std::to_string(i));
    REQUIRE_MESSAGE(begun.error.empty(), begun.text);
  }
  std::uint64_t refused = 0;
  for (int i = 0; i < kPuts; ++i) {
    const Answer told = rank.ask("wait for=1 put=" + std::to_string(i));
    if (!told.error.empty()) continue;
    CHECK_MESSAGE(told.fields.at("reason") == "busy", told.text);
    ++refused;
  }
  CHECK(refused >= kPuts - 16);
  CHECK(refused < kPuts);
  // Lookups that are given up are no less on their way.
  for (int i = 0; i < 4'000; ++i) {
    const Answer told = rank.ask("lookup timeout=1 count=4096 chain=" + std::to_string(i));
    if (told.error != "deadline") CHECK_MESSAGE(told.fields.at("reason") == "busy", told.text);
  }
  CHECK(rank.ask("state")["connected"] == 1);
  daemon.go_on();
  for (int i = 0; i < kPuts; ++i) {
    const Answer told = rank.ask("wait for=120000 put=" + std::to_string(i));
    CHECK_MESSAGE(told.error.empty(), told.text);
    CHECK(told["unknown"] == 0);
  }
  CHECK(rank.ask("state")["connected"] == 1);
}

}  // namespace kvonce::process_test
