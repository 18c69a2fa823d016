// SPDX-License-Identifier: Apache-2.0
//
// Leases between processes.
#include "tests/process/fleet.hpp"

#include <memory>

namespace kvonce::process_test {

TEST_CASE("a lease that one process has taken is used by another of its engine, and by nobody else") {
  for (const std::string partitions : {"1", "4"}) {
    CAPTURE(partitions);
    const Folder folder;
    const Daemon daemon(folder, {"--partitions", partitions, "--engine-grace", "200ms"});
    Rank scheduler(folder, "engine=one ro=1", "of=2 rank=0");
    Rank worker(folder, "engine=one", "of=2 rank=1");
    Rank stranger(folder, "engine=two", "");
    CHECK(worker.ask("put count=16 chain=1")["stored"] == 16);
    const Answer found = scheduler.ask("lookup count=16 chain=1 lease=3600000");
    REQUIRE(found["pages"] == 16);
    const std::string load = "load count=16 chain=1 lease=" + found.fields.at("lease");
    CHECK(worker.ask(load)["good"] == 16);
    const Answer refused = stranger.ask(load);
    CHECK(refused["good"] == 0);
    CHECK(refused.fields.at("reason") == "lease_unknown");
    // To let go of what one does not have is no error, and changes nothing.
    stranger.ask("release lease=" + found.fields.at("lease"));
    CHECK(stranger.ask("stats")["leases"] == 1);

    // The taker dies; its engine lives on in the other process.
    scheduler.kill9();
    CHECK(eventually([&] { return worker.ask("clients")["count"] == 2; }));
    // More than the grace: the engine still has a connection.
    for (int chain = 100; chain < 140; ++chain)
      CHECK(stranger.ask("put count=32 row=0 chain=" + std::to_string(chain))["good"] == 32);
    CHECK(stranger.ask("stats")["evicted"] > 0);
    CHECK(worker.ask(load)["good"] == 16);
    CHECK(worker.ask("stats")["leases"] == 1);
    // The engine's last connection ends.
    worker.kill9();
    CHECK(eventually([&] { return stranger.ask("stats")["leases"] == 0; }));
    // A process that comes under its name has no use for it any more.
    Rank heir(folder, "engine=one", "of=2 rank=1");
    CHECK(heir.ask(load)["good"] == 0);
  }
}

TEST_CASE("a rank that gives up its lookup leaves the lease of the request to the other ranks") {
  const Folder folder;
  Daemon daemon(folder);
  Rank impatient(folder, "engine=one", "of=2 rank=0");
  Rank patient(folder, "engine=one", "of=2 rank=1");
  CHECK(patient.ask("put count=16 chain=1")["stored"] == 16);
  daemon.stop();
  patient.tell("lookup count=16 chain=1 request=r");
  CHECK(impatient.ask("lookup count=16 chain=1 request=r timeout=50").error == "deadline");
  daemon.go_on();
  const Answer found = patient.hear();
  REQUIRE(found["pages"] == 16);
  // Behind the answer that nobody waits for, and behind what its process has to say of it.
  for (int i = 0; i < 3; ++i) CHECK(impatient.ask("stats")["leases"] == 1);
  CHECK(patient.ask("load count=16 chain=1 lease=" + found.fields.at("lease"))["good"] == 16);
}

TEST_CASE("a process that is killed in the middle of a load pins nothing any more") {
  for (const std::string partitions : {"1", "4"}) {
    CAPTURE(partitions);
    const Folder folder;
    const Daemon daemon(folder, {"--partitions", partitions, "--engine-grace", "0"});
    Rank writer(folder, "engine=writer", "bytes=262144");
    Rank reader(folder, "engine=reader ro=1", "bytes=262144");
    CHECK(writer.ask("put count=8 chain=1")["stored"] == 8);
    const Answer found = reader.ask("lookup count=8 chain=1 lease=3600000");
    REQUIRE(found["pages"] == 8);
    reader.ask("begin_load count=8 chain=1 timeout=3600000 hold_row=0 hold_at=70000 lease=" + found.fields.at("lease"));
    REQUIRE(reader.ask("held").error.empty());
    CHECK(writer.ask("stats")["leases"] == 1);
    reader.kill9();
    CHECK(eventually([&] { return writer.ask("stats")["leases"] == 0; }));
    CHECK(writer.ask("stats")["leased_bytes"] == 0);
  }
}

TEST_CASE("an engine that comes back within the grace finds its leases") {
  const Folder folder;
  const Daemon daemon(folder, {"--engine-grace", "10m"});
  auto rank = std::make_unique<Rank>(folder, "engine=one", "");
  CHECK(rank->ask("put count=8 chain=1")["stored"] == 8);
  const Answer found = rank->ask("lookup count=8 chain=1 lease=3600000");
  rank->kill9();
  rank = std::make_unique<Rank>(folder, "engine=one", "");
  CHECK(rank->ask("load count=8 chain=1 lease=" + found.fields.at("lease"))["good"] == 8);
}

TEST_CASE("an engine that holds leases for ever has its share of the store, and the others have theirs") {
  const Folder folder;
  const Daemon daemon(folder);
  Rank hoarder(folder, "engine=hoarder", "");
  Rank other(folder, "engine=other", "");
  // Everything that it can get, without end.
  int kept = 0;
  for (int chain = 1; chain <= 60; ++chain) {
    CHECK(hoarder.ask("put count=32 chain=" + std::to_string(chain))["good"] == 32);
    const Answer found = hoarder.ask("lookup count=32 lease=3600000 chain=" + std::to_string(chain));
    kept += found["pages"] == 32 ? 1 : 0;
    if (found["pages"] < 32) CHECK_MESSAGE(found.fields.at("reason") == "busy", found.text);
  }
  CHECK(kept > 0);
  CHECK(kept < 60);
  const Answer stats = other.ask("stats");
  CHECK(stats["leased_bytes"] > 0);
  CHECK(stats["leased_bytes"] <= stats["arena"] / 2);
  for (int chain = 1'000; chain < 1'020; ++chain) {
    const std::string what = "count=32 chain=" + std::to_string(chain);
    const Answer put = other.ask("put " + what);
    CHECK_MESSAGE(put["good"] == 32, put.text);
    CHECK(other.load_back(what) == 32);
  }
}

TEST_CASE("however many names a hoarder has, puts find room, and a further engine leases what it reads") {
  const Folder folder;
  const Daemon daemon(folder);
  Rank one(folder, "engine=one", "");
  Rank two(folder, "engine=two", "");
  Rank three(folder, "engine=three", "");
  Rank other(folder, "engine=other", "");
  Rank* const hoarders[] = {&one, &two, &three};
  for (int chain = 1; chain <= 120; ++chain) {
    Rank& hoarder = *hoarders[chain % 3];
    CHECK(hoarder.ask("put count=32 chain=" + std::to_string(chain))["good"] == 32);
    hoarder.ask("lookup count=32 lease=3600000 chain=" + std::to_string(chain));
  }
  const Answer stats = other.ask("stats");
  CHECK(stats["leased_bytes"] > stats["arena"] / 3);
  CHECK(stats["leased_bytes"] < stats["arena"] / 4 * 3);
  CHECK(other.ask("put count=32 chain=1000")["good"] == 32);
  CHECK(other.load_back("count=32 chain=1000") == 32);
}

TEST_CASE("a fixed share for each name is what all names get") {
  const Folder folder;
  const Daemon daemon(folder, {"--leased-bytes", "8MiB"});
  Rank one(folder, "engine=one", "");
  Rank two(folder, "engine=two", "");
  for (int chain = 1; chain <= 120; ++chain) {
    Rank& hoarder = chain % 2 == 0 ? one : two;
    CHECK(hoarder.ask("put count=32 chain=" + std::to_string(chain))["good"] == 32);
    hoarder.ask("lookup count=32 lease=3600000 chain=" + std::to_string(chain));
  }
  const Answer stats = one.ask("stats");
  CHECK(stats["leased_bytes"] > 8ULL << 20);
  CHECK(stats["leased_bytes"] <= 16ULL << 20);
}

}  // namespace kvonce::process_test
