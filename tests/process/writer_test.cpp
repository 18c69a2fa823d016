// SPDX-License-Identifier: Apache-2.0
//
// Writers that die, stop, hang up or dawdle in the middle of a granted copy.
#include "tests/process/large.hpp"

#include <memory>

namespace kvonce::process_test {

namespace {

std::unique_ptr<Rank> small_server(const Folder& folder, const std::string& more) {
  return std::make_unique<Rank>(
      folder, "serve=" + folder.store() + " engine=host arena=" + std::to_string(24 * kMiB) + " " + more, kLarge);
}

}  // namespace

TEST_CASE("a writer killed in the middle of its copy: the next waiter is granted at once, nobody else notices") {
  for (const std::string partitions : {"1", "4"}) {
    CAPTURE(partitions);
    const Folder folder;
    // No deadline helps here: the kernel has to tell.
    const Daemon daemon(folder, {"--grant-deadline", "10m", "--memory", "128MiB", "--partitions", partitions});
    Rank victim(folder, "engine=tp4", kLarge + " of=4 rank=0");
    std::vector<std::unique_ptr<Rank>> others;
    for (int r = 1; r < 4; ++r)
      others.push_back(std::make_unique<Rank>(folder, "engine=tp4", kLarge + " of=4 rank=" + std::to_string(r)));
    victim.ask("begin_put count=4 chain=1" + kHeld);
    REQUIRE(victim.ask("held").error.empty());
    for (const auto& other : others) other->tell("put count=4 chain=1");
    Rank watcher(folder, "engine=watcher", "none");
    CHECK(eventually([&] { return watcher.ask("stats")["announced"] == 16; }));
    const Answer before = watcher.ask("clients");
    CHECK(before[of(victim, "grants")] > 0);
    victim.kill9();
    std::uint64_t stored = 0;
    for (const auto& other : others) {
      const Answer answer = other->hear();
      CHECK_MESSAGE(answer["good"] == 4, answer.text);
      stored += answer["stored"];
    }
    CHECK(stored >= 1);
    CHECK(stored <= 4);
    for (const auto& other : others) CHECK(other->load_back("count=4 chain=1") == 4);
    // Its process is gone, and with it whatever it could have written.
    CHECK(eventually([&] { return watcher.ask("stats")["quarantined"] == 0; }));
    CHECK(watcher.ask("clients")["count"] == 4);
    CHECK(watcher.ask("stats")["claims"] == 0);
  }
}

TEST_CASE("a writer that is killed while a child of it keeps its descriptors: its waiter is granted at once all the same") {
  const Folder folder;
  const Daemon daemon(folder, {"--grant-deadline", "10m"});
  Rank victim(folder, "engine=tp2", kLarge + " of=2 rank=0");
  Rank other(folder, "engine=tp2", kLarge + " of=2 rank=1");
  CHECK(victim.ask("fork_sleeper").error.empty());
  victim.ask("begin_put count=1 chain=1" + kHeld);
  REQUIRE(victim.ask("held").error.empty());
  other.ask("begin_put count=1 chain=1");
  CHECK(eventually([&] { return other.ask("stats")["announced"] == 2; }));
  victim.kill9();
  CHECK(other.ask("wait put=0")["stored"] == 1);
  CHECK(eventually([&] { return other.ask("stats")["quarantined"] == 0; }));
  CHECK(other.ask("clients")["count"] == 1);
}

TEST_CASE("a process that hangs up in the middle of its copy loses its grant, but its slot waits for the process") {
  for (const bool killed : {true, false}) {
    CAPTURE(killed);
    const Folder folder;
    const auto server = small_server(folder, "");
    Rank victim(folder, "engine=tp2", kLarge + " of=2 rank=0");
    Rank other(folder, "engine=tp2", kLarge + " of=2 rank=1");
    victim.ask("begin_put count=1 chain=1" + kHeld);
    REQUIRE(victim.ask("held").error.empty());
    other.tell("put count=1 chain=1");
    CHECK(eventually([&] { return server->ask("stats")["announced"] == 2; }));
    CHECK(victim.ask("hang_up")["ended"] == 1);
    CHECK(other.hear()["stored"] == 1);
    // The process lives and may write on.
    CHECK(server->ask("stats")["quarantined"] >= kMiB);
    fill_to_capacity(other);
    CHECK(server->ask("stats")["quarantined"] >= kMiB);
    CHECK(server->ask("clients")["count"] == 1);
    if (killed) {
      victim.kill9();
    } else {
      // It ends its copy, then comes back by itself and says that it writes nothing any more.
      victim.ask("let_go");
      CHECK(victim.ask("wait put=0")["unknown"] == 1);
      CHECK(victim.ask("wait_connected").error.empty());
      CHECK(victim.ask("put count=2 chain=2")["good"] == 2);
    }
    CHECK(eventually([&] { return server->ask("stats")["quarantined"] == 0; }));
    const Found found = look_at_everything(other);
    CHECK(found.resident > 0);
    CHECK(found.right == found.resident);
  }
}

TEST_CASE("a process whose rank has not heard of the loss does not come back saying that it writes nothing") {
  const Folder folder;
  const auto server = small_server(folder, "");
  Rank first(folder, "engine=tp2", kLarge + " of=2 rank=0");
  Rank victim(folder, "engine=tp2 workers_run", kLarge + " of=2 rank=1");
  Rank other(folder, "engine=other", kLarge);
  first.ask("begin_put count=1 chain=1" + kHeld);
  REQUIRE(first.ask("held").error.empty());
  victim.ask("begin_put count=1 chain=1");
  CHECK(eventually([&] { return server->ask("stats")["announced"] == 2; }));
  // A row that there is not: the put ends without the store, and its caller keeps the actors' thread.
  victim.ask("begin_put count=1 chain=2 row=1000 keep block");
  REQUIRE(victim.ask("blocked").error.empty());
  first.kill9();
  // The grant is on its way to a rank that looks at nothing.
  CHECK(eventually([&] { return server->ask("clients")[of(victim, "grants")] == 1; }));
  CHECK(victim.ask("hang_up")["ended"] == 1);
  CHECK(eventually([&] { return server->ask("stats")["quarantined"] >= kMiB; }));
  fill_to_capacity(other);
  CHECK(server->ask("stats")["quarantined"] >= kMiB);
  victim.ask("unblock");
  CHECK(victim.ask("wait put=0")["unknown"] == 1);
  CHECK(victim.ask("wait_connected").error.empty());
  CHECK(eventually([&] { return server->ask("stats")["quarantined"] == 0; }));
  const Found found = look_at_everything(other);
  CHECK(found.resident > 0);
  CHECK(found.right == found.resident);
}

namespace {

/// A writer is stopped in the middle of its copy, its grant passes on, the store is filled to capacity, and then it wakes.
Found stopped_writer(const std::string& fault) {
  const Folder folder;
  const auto server = small_server(folder, "grant=100 rate=1073741824 " + fault);
  StoppedWriter writer(folder);
  Rank& victim = writer.victim;
  Rank& other = writer.other;
  CHECK(server->ask("stats")["promotions"] >= 1);
  if (fault.empty()) CHECK(server->ask("clients")[of(victim, "quarantined")] >= kMiB);
  fill_to_capacity(other);
  if (fault.empty()) CHECK(server->ask("clients")[of(victim, "quarantined")] >= kMiB);
  writer.wake();
  // Its bytes were another's when it heard of it.
  const Answer own = victim.ask("wait put=0");
  CHECK_MESSAGE(own["joined"] == 1, own.text);
  CHECK(eventually([&] { return server->ask("stats")["quarantined"] == 0; }));
  CHECK(server->ask("clients")[of(victim, "grants")] == 0);
  const Found found = look_at_everything(other);
  CHECK(found.resident > 0);
  return found;
}

}  // namespace

TEST_CASE("a writer stopped in the middle of its copy writes only into its quarantined slot when it wakes") {
  const Found found = stopped_writer("");
  CHECK(found.right == found.resident);
}

TEST_CASE("control: without quarantine the late write of a stopped writer is seen") {
  const Found found = stopped_writer("fault=free_quarantined");
  CHECK(found.right < found.resident);
}

TEST_CASE("a stopped writer that dies in its sleep gives its slot back") {
  const Folder folder;
  const auto server = small_server(folder, "grant=100 rate=1073741824");
  StoppedWriter writer(folder);
  CHECK(server->ask("stats")["quarantined"] >= kMiB);
  writer.victim.kill9();
  CHECK(eventually([&] { return server->ask("stats")["quarantined"] == 0; }));
  CHECK(writer.other.load_back("count=1 chain=1") == 1);
}

TEST_CASE("a hundred writers are killed at their copies, and nothing that was acknowledged is lost") {
  const Folder folder;
  const Daemon daemon(folder, {"--grant-deadline", "10m"});
  Rank survivor(folder, "engine=tp3", "of=3 rank=0 bytes=262144");
  Rank other(folder, "engine=tp3", "of=3 rank=1 bytes=262144");
  for (int chain = 1; chain <= 100; ++chain) {
    CAPTURE(chain);
    Rank victim(folder, "engine=tp3", "of=3 rank=2 bytes=262144 rows=8");
    const std::string put = "put count=8 chain=" + std::to_string(chain);
    // Half of them in the middle of a slice, the others wherever they are.
    if (chain % 2 == 0) {
      victim.ask("begin_" + put + " hold_row=0 hold_at=70000");
      REQUIRE(victim.ask("held").error.empty());
    } else {
      victim.tell(put);
    }
    survivor.tell(put);
    other.tell(put);
    victim.kill9();
    const Answer one = survivor.hear();
    const Answer two = other.hear();
    CHECK_MESSAGE(one["good"] == 8, one.text);
    CHECK_MESSAGE(two["good"] == 8, two.text);
    CHECK(survivor.load_back("count=8 chain=" + std::to_string(chain)) == 8);
  }
  CHECK(eventually([&] { return survivor.ask("stats")["quarantined"] == 0; }));
  CHECK(survivor.ask("stats")["claims"] == 0);
}

}  // namespace kvonce::process_test
