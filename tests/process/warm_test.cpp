// SPDX-License-Identifier: Apache-2.0
//
// Stores that are stopped in order and find their pages again, and writers of the old life that wake in the new one.
#include "tests/process/large.hpp"

#include <fstream>
#include <memory>
#include <string>

namespace kvonce::process_test {

namespace {

// A file system in memory: nothing else may hold the arena.
const char* const kMemory = "/dev/shm";

std::unique_ptr<Rank> server_on(const Folder& folder, const Folder& memory, const std::string& more) {
  return std::make_unique<Rank>(folder,
                                "serve=" + folder.store() + " engine=host arena_file=" + (memory / "arena") +
                                    " arena=" + std::to_string(24 * kMiB) + " " + more,
                                kLarge);
}

void end_in_order(Rank& server) {
  const Answer drained = server.ask("drain");
  CHECK_MESSAGE(drained.error.empty(), drained.text);
  CHECK(server.ask("stop").error.empty());
  server.tell("exit");
  CHECK(server.finish() == 0);
}

bool maps(int process, const std::string& path) {
  std::ifstream maps("/proc/" + std::to_string(process) + "/maps");
  for (std::string line; std::getline(maps, line);)
    if (line.find(path) != std::string::npos) return true;
  return false;
}

}  // namespace

TEST_CASE("a kvonced that is stopped and started again has all its pages, and leases hold") {
  for (const std::string partitions : {"1", "4"}) {
    CAPTURE(partitions);
    const Folder folder;
    const Folder memory(kMemory);
    const std::vector<std::string> flags{"--arena-file", memory / "arena", "--partitions", partitions, "--engine-grace", "60s"};
    auto daemon = std::make_unique<Daemon>(folder, flags);
    Rank one(folder, "engine=tp2", "of=2 rank=0");
    Rank two(folder, "engine=tp2", "of=2 rank=1");
    constexpr int kChains = 12;
    for (int chain = 1; chain <= kChains; ++chain) CHECK(one.ask("put count=32 chain=" + std::to_string(chain))["stored"] == 32);
    const Answer leased = two.ask("lookup count=32 chain=3 lease=3600000");
    REQUIRE(leased["pages"] == 32);
    const auto life = one.ask("state")["incarnation"];
    daemon->signal(SIGTERM);
    CHECK(daemon->finish() == 0);
    CHECK(eventually([&] { return one.ask("state")["connected"] == 0; }));
    // The memory of a store that is gone may be what the next one needs: nobody keeps it who is doing nothing with it.
    for (const Rank* rank : {&one, &two}) CHECK(eventually([&] { return !maps(rank->pid(), memory / "arena"); }));
    daemon = std::make_unique<Daemon>(folder, flags);
    CHECK(one.ask("wait_connected").error.empty());
    CHECK(two.ask("wait_connected").error.empty());
    CHECK(one.ask("state")["incarnation"] != life);
    CHECK(one.ask("stats")["objects"] == 32 * kChains);
    CHECK(one.ask("stats")["leases"] == 1);
    CHECK(one.ask("load count=32 chain=3 lease=" + leased.fields.at("lease"))["good"] == 32);
    for (int chain = 1; chain <= kChains; ++chain) CHECK(two.load_back("count=32 chain=" + std::to_string(chain)) == 32);
    CHECK(two.ask("put count=32 chain=1")["already_stored"] == 32);
    CHECK(two.ask("put count=8 chain=99")["stored"] == 8);
    Rank late(folder, "engine=late", "");
    CHECK(late.load_back("count=8 chain=99") == 8);
  }
}

TEST_CASE("a store that was killed starts cold and says so, in memory that nobody of the old life can write to") {
  const Folder folder;
  const Folder memory(kMemory);
  auto server = server_on(folder, memory, "");
  Rank victim(folder, "engine=tp2", kLarge + " of=2 rank=0");
  Rank other(folder, "engine=tp2", kLarge + " of=2 rank=1");
  CHECK(other.ask("put count=8 chain=1")["stored"] == 8);
  victim.ask("begin_put count=1 chain=2" + kHeld);
  REQUIRE(victim.ask("held").error.empty());
  server->kill9();
  server = server_on(folder, memory, "");
  CHECK(server->ask("state")["warm"] == 0);
  CHECK(other.ask("wait_connected").error.empty());
  CHECK(other.ask("lookup count=8 chain=1")["pages"] == 0);
  fill_to_capacity(other);
  victim.ask("let_go");
  CHECK(victim.ask("wait put=0")["unknown"] == 1);
  CHECK(victim.ask("wait_connected").error.empty());
  const Found found = look_at_everything(other);
  CHECK(found.resident > 0);
  CHECK(found.right == found.resident);
}

namespace {

/// A writer is stopped in the middle of its copy; the store ends in order, starts again, and is filled to capacity. Then the
/// writer wakes.
Found stopped_across_lives(const std::string& fault) {
  const Folder folder;
  const Folder memory(kMemory);
  auto server = server_on(folder, memory, "grant=100 rate=1073741824");
  StoppedWriter writer(folder);
  Rank& victim = writer.victim;
  Rank& other = writer.other;
  end_in_order(*server);
  server = server_on(folder, memory, "grant=100 rate=1073741824 " + fault);
  CHECK(server->ask("state")["warm"] == 1);
  CHECK(other.ask("wait_connected").error.empty());
  CHECK(other.load_back("count=1 chain=1") == 1);
  if (fault.empty()) CHECK(server->ask("stats")["quarantined"] >= kMiB);
  fill_to_capacity(other);
  if (fault.empty()) CHECK(server->ask("stats")["quarantined"] >= kMiB);
  writer.wake();
  const Answer own = victim.ask("wait put=0");
  // What it had heard of the first life when it was stopped decides which of the two.
  CHECK_MESSAGE(own["unknown"] + own["joined"] == 1, own.text);
  CHECK(victim.ask("wait_connected").error.empty());
  CHECK(eventually([&] { return server->ask("stats")["quarantined"] == 0; }));
  const Found found = look_at_everything(other);
  CHECK(found.resident > 0);
  return found;
}

}  // namespace

TEST_CASE("a writer that was stopped in the old life writes into its quarantined slot when it wakes in the new one") {
  const Found found = stopped_across_lives("");
  CHECK(found.right == found.resident);
}

TEST_CASE("control: without quarantine in the new life the late write of the old one is seen") {
  const Found found = stopped_across_lives("fault=free_quarantined");
  CHECK(found.right < found.resident);
}

namespace {

/// A reader stands in the middle of a copy; the store ends in order, starts again in the same memory, and gives the slot to
/// others, which it does by a fault only: it would know the load. Then the copy goes on. -> what became of the load
Answer read_across_lives(const std::string& fault) {
  const Folder folder;
  const Folder memory(kMemory);
  auto server = server_on(folder, memory, "fault=evict_leased");
  Rank reader(folder, "engine=reader " + fault, kLarge);
  Rank other(folder, "engine=other", kLarge);
  CHECK(other.ask("put count=1 chain=1")["stored"] == 1);
  const Answer found = reader.ask("lookup count=1 chain=1");
  REQUIRE(found["pages"] == 1);
  reader.ask("begin_load count=1 chain=1 lease=" + found.fields.at("lease") + kHeld);
  REQUIRE(reader.ask("held").error.empty());
  end_in_order(*server);
  server = server_on(folder, memory, "");
  CHECK(server->ask("state")["warm"] == 1);
  CHECK(other.ask("wait_connected").error.empty());
  CHECK(other.load_back("count=1 chain=1") == 1);
  fill_to_capacity(other);
  CHECK(other.ask("exists count=1 chain=1")["pages"] == 0);
  reader.ask("let_go");
  return reader.ask("wait_load load=0 count=1 chain=1");
}

}  // namespace

TEST_CASE("a copy out of the old life whose slot the new one has given to others is not handed over") {
  const Answer load = read_across_lives("");
  CHECK_MESSAGE(load["good"] == 0, load.text);
  CHECK(load["wrong"] == 0);
}

TEST_CASE("control: handed over unverified, the bytes of a copy across lives are seen to be others") {
  const Answer load = read_across_lives("fault=skip_load_verification");
  CHECK_MESSAGE(load["wrong"] == 1, load.text);
}

TEST_CASE("a writer of the old life that dies in its sleep gives its slot back in the new one") {
  const Folder folder;
  const Folder memory(kMemory);
  auto server = server_on(folder, memory, "grant=100 rate=1073741824");
  StoppedWriter writer(folder);
  end_in_order(*server);
  server = server_on(folder, memory, "");
  CHECK(server->ask("stats")["quarantined"] >= kMiB);
  writer.victim.kill9();
  CHECK(eventually([&] { return server->ask("stats")["quarantined"] == 0; }));
}

}  // namespace kvonce::process_test
