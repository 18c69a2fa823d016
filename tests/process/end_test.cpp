// SPDX-License-Identifier: Apache-2.0
//
// Orderly ends, forks, and what is left behind: nothing.
#include "tests/process/fleet.hpp"

#include <memory>

namespace kvonce::process_test {

TEST_CASE("an engine process that stops in order leaves no grant, quarantine or lease, and the next engine finds the pages") {
  const Folder folder;
  {
    Daemon daemon(folder, {"--engine-grace", "0"});
    Rank watcher(folder, "engine=watcher", "none");
    for (int life = 0; life < 3; ++life) {
      Rank rank(folder, "engine=life" + std::to_string(life), "");
      if (life == 0) CHECK(rank.ask("put count=32 chain=1")["stored"] == 32);
      else CHECK(rank.load_back("count=32 chain=1") == 32);
      CHECK(rank.ask("lookup count=32 chain=1 lease=3600000")["pages"] == 32);
      rank.ask("begin_put count=4 never chain=" + std::to_string(10 + life));
      CHECK(eventually([&] { return watcher.ask("stats")["claims"] == 4; }));
      CHECK(watcher.ask("stats")["leases"] == 1);
      CHECK(rank.ask("stop").error.empty());
      CHECK(rank.ask("wait put=0")["unknown"] == 4);
      CHECK(eventually([&] { return watcher.ask("clients")["count"] == 1; }));
      CHECK(eventually([&] {
        const Answer stats = watcher.ask("stats");
        return stats["claims"] == 0 && stats["quarantined"] == 0 && stats["leases"] == 0;
      }));
      rank.tell("exit");
      CHECK(rank.finish() == 0);
    }
    daemon.signal(SIGTERM);
    CHECK(daemon.finish() == 0);
  }
  CHECK(folder.empty());
}

TEST_CASE("a child of an engine process is told so at once, and its end disturbs nobody") {
  const Folder folder;
  const Daemon daemon(folder);
  Rank rank(folder, "engine=one", "");
  CHECK(rank.ask("put count=8 chain=1")["stored"] == 8);
  rank.ask("begin_put count=2 chain=2 row=8 never");
  CHECK(rank.ask("fork")["status"] == 0);
  CHECK(rank.ask("state")["connected"] == 1);
  CHECK(rank.load_back("count=8 chain=1") == 8);
  CHECK(rank.ask("put count=8 chain=3")["stored"] == 8);
  CHECK(rank.ask("clients")["count"] == 1);
  // The same in a process that serves.
  const Folder other;
  Rank server(other, "serve=" + other.store() + " engine=host", "");
  Rank peer(other, "engine=peer", "");
  CHECK(peer.ask("put count=8 chain=1")["stored"] == 8);
  CHECK(server.ask("fork")["status"] == 0);
  CHECK(server.load_back("count=8 chain=1") == 8);
  CHECK(peer.load_back("count=8 chain=1") == 8);
  Rank late(other, "engine=late", "");
  CHECK(late.load_back("count=8 chain=1") == 8);
}

TEST_CASE("a program that an engine process starts inherits no descriptor of kvonce") {
  const Folder folder;
  Rank server(folder, "serve=" + folder.store() + " engine=host", "");
  Rank peer(folder, "engine=peer", "");
  CHECK(peer.ask("put count=8 chain=1")["stored"] == 8);
  for (Rank* rank : {&server, &peer}) {
    const Answer answer = rank->ask("inherited");
    CHECK_MESSAGE(answer.error.empty(), answer.text);
  }
}

}  // namespace kvonce::process_test
