// SPDX-License-Identifier: Apache-2.0
//
// A kvonced that is told to end while somebody still writes, and what it never has: ports, and memory that grows with requests.
#include "tests/process/large.hpp"

#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>

#include <sys/socket.h>
#include <unistd.h>

namespace kvonce::process_test {

TEST_CASE("a kvonced that is told to end while a stopped writer holds a grant ends in order, and its next life reads no wrong byte") {
  const Folder folder;
  const Folder memory("/dev/shm");
  // Nothing but the drain time ends the wait for the writer.
  const std::vector<std::string> flags{"--arena-file", memory / "arena", "--memory", "24MiB", "--grant-deadline", "10m", "--drain-time", "200ms"};
  auto daemon = std::make_unique<Daemon>(folder, flags);
  Rank victim(folder, "engine=tp2", kLarge + " of=2 rank=0");
  Rank other(folder, "engine=tp2", kLarge + " of=2 rank=1");
  CHECK(other.ask("put count=2 chain=2")["stored"] == 2);
  victim.ask("begin_put count=1 chain=1" + kHeld);
  REQUIRE(victim.ask("held").error.empty());
  victim.stop();
  REQUIRE(other.ask("clients")[of(victim, "grants")] == 1);
  daemon->signal(SIGTERM);
  CHECK(daemon->finish() == 0);  // 1: it had to be forced
  CHECK(victim.stopped());

  daemon = std::make_unique<Daemon>(folder, flags);
  CHECK(other.ask("wait_connected").error.empty());
  CHECK(other.ask("state")["warm"] == 1);
  CHECK(other.load_back("count=2 chain=2") == 2);
  CHECK(other.ask("exists count=1 chain=1")["pages"] == 0);
  CHECK(other.ask("stats")["quarantined"] >= kMiB);
  fill_to_capacity(other);
  CHECK(other.ask("stats")["quarantined"] >= kMiB);
  victim.go_on();
  victim.ask("let_go");
  CHECK(victim.ask("wait put=0")["unknown"] == 1);
  CHECK(victim.ask("wait_connected").error.empty());
  CHECK(eventually([&] { return other.ask("stats")["quarantined"] == 0; }));
  const Found found = look_at_everything(other);
  CHECK(found.resident > 0);
  CHECK(found.right == found.resident);
}

namespace {

/// Numbers of the sockets among a process's descriptors.
std::set<std::string> sockets_of(pid_t pid) {
  std::set<std::string> found;
  std::error_code code;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd", code)) {
    const std::string target = std::filesystem::read_symlink(entry.path(), code).string();
    if (target.starts_with("socket:[")) found.insert(target.substr(8, target.size() - 9));
  }
  return found;
}

/// Those of them that the system lists in a table of /proc/PID/net.
std::size_t listed_in(pid_t pid, const std::string& table, const std::set<std::string>& sockets) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/net/" + table);
  std::set<std::string> listed;
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    for (std::string word; words >> word;)
      if (sockets.contains(word)) listed.insert(word);
  }
  return listed.size();
}

std::size_t network_sockets_of(pid_t pid) {
  const auto sockets = sockets_of(pid);
  std::size_t count = 0;
  for (const char* const table : {"tcp", "tcp6", "udp", "udp6", "udplite", "raw", "raw6", "packet"}) count += listed_in(pid, table, sockets);
  return count;
}

}  // namespace

TEST_CASE("neither a kvonced with clients nor a client has a socket of any network: Unix sockets are all there is") {
  const Folder folder;
  const Daemon daemon(folder, {"--partitions", "2"});
  Rank one(folder, "engine=one", "");
  Rank two(folder, "engine=two", "");
  CHECK(one.ask("put count=8 chain=1")["stored"] == 8);
  CHECK(two.load_back("count=8 chain=1") == 8);
  for (const pid_t pid : {daemon.pid(), one.pid(), two.pid()}) {
    const auto sockets = sockets_of(pid);
    CHECK_FALSE(sockets.empty());
    CHECK(network_sockets_of(pid) == 0);
    CHECK(listed_in(pid, "unix", sockets) == sockets.size());
  }
  // The control: what is looked at would show one.
  const std::size_t before = network_sockets_of(getpid());
  const int tcp = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (tcp < 0) return;
  REQUIRE(listen(tcp, 1) == 0);  // on a port of the system's choice
  CHECK(network_sockets_of(getpid()) == before + 1);
  close(tcp);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // sanitizers keep what was freed
TEST_CASE("many short requests leave the memory of store and client as it was") {
  const Folder folder;
  const Daemon daemon(folder, {"--memory", "16MiB"});
  Rank rank(folder, "engine=one", "bytes=4096 rows=16");
  const auto requests = [&](int rounds) {
    for (int round = 0; round < rounds; ++round) {
      const std::string what = " count=8 chain=" + std::to_string(1 + round % 400);  // of which not all fit
      CHECK(rank.ask("put" + what)["good"] == 8);
      CHECK(rank.load_back(what) == 8);
      rank.ask("exists" + what);
      rank.ask("stat chain=1");
    }
  };
  requests(1'000);  // until everything that has a bound has reached it
  const auto store = daemon.resident_bytes();
  const auto client = rank.resident_bytes();
  requests(6'000);
  // Less than 90 bytes a request.
  CHECK(daemon.resident_bytes() < store + (2ULL << 20));
  CHECK(rank.resident_bytes() < client + (2ULL << 20));
}
#endif

}  // namespace kvonce::process_test
