// SPDX-License-Identifier: Apache-2.0
// How a start that cannot succeed ends: with one sentence, at once, in the words that the user wrote; and who may end one.
#include <doctest/doctest.h>

#include <csignal>
#include <filesystem>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/auto_store.hpp"
#include "tests/kvonced/process.hpp"

namespace kvonce::kvonced_test {
namespace {

namespace fs = std::filesystem;

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// kvonced under a limit of the shell's ulimit.
Ended limited(const std::string& limit, const std::string& more = {}) {
  return run("/bin/sh", {"-c", "ulimit -c 0; ulimit " + limit + "; exec " + KVONCED_PROGRAM + " --memory 64MiB " + more});
}

}  // namespace

TEST_CASE("a second daemon is refused before it asks for memory or touches the arena file that it names") {
  const RunFolder folder;
  const SharedMemoryFolder memory;
  Process first(KVONCED_PROGRAM, small());
  REQUIRE(first.wait_out("is ready on"));
  std::vector<std::string> arguments{"--memory", "64TiB", "--populate", "yes"};
  if (memory.there()) arguments.insert(arguments.end(), {"--arena-file", memory / "arena"});
  const Ended second = run(KVONCED_PROGRAM, arguments);
  INFO(second.err);
  CHECK(second.status == 2);
  CHECK(has(second.err, "(process " + std::to_string(first.pid()) + ") already serves " + folder.socket()));
  if (memory.there()) CHECK(fs::is_empty(fs::path(memory / "arena").parent_path()));
  first.signal(SIGTERM);
  CHECK(first.finish() == 0);
}

TEST_CASE("kvonce stop finds a store that takes its memory, and it ends with status 0 and leaves nothing") {
  const RunFolder folder;
  Process starting(KVONCED_PROGRAM, {"--memory", "1GiB"});
  REQUIRE(eventually([&] { return runtime::store_holder(folder.socket()).pid != 0; }));
  const Ended stopped = run(KVONCE_PROGRAM, {"stop"});
  CHECK(stopped.status == 0);
  CHECK(has(stopped.out, std::to_string(starting.pid())));
  CHECK(starting.finish() == 0);
  CHECK((has(starting.err, "ended before the store was ready") || has(starting.err, "ending; open copies have")));
  CHECK_FALSE(fs::exists(folder.socket()));
  CHECK_FALSE(fs::exists(folder.socket() + ".lock"));
}

TEST_CASE("errors name what the user wrote: the flag, the variable, or the key and its file") {
  const RunFolder folder;
  write_file(folder / "c.toml", "memory = \"1MiB\"\nindex-pages = 1000000\n");
  const Ended by_file = run(KVONCED_PROGRAM, {"--config", folder / "c.toml"});
  INFO(by_file.err);
  CHECK(by_file.status == 2);
  CHECK(has(by_file.err, "kvonced: memory in " + folder / "c.toml" + " is 1MiB: "));
  CHECK(has(by_file.err, "lower index-pages in " + folder / "c.toml"));
  const Ended by_flag = run(KVONCED_PROGRAM, {"--memory", "1MiB"}, {{"KVONCED_INDEX_PAGES", "1000000"}});
  CHECK(has(by_flag.err, "kvonced: --memory is 1MiB: "));
  CHECK(has(by_flag.err, "lower KVONCED_INDEX_PAGES"));
  CHECK_FALSE(has(by_flag.err, "arena_bytes"));
  const Ended no_memory_file = run(KVONCED_PROGRAM, small({"--arena-file", folder / "arena_file"}));
  CHECK(no_memory_file.status == 2);
  CHECK(has(no_memory_file.err, "kvonced: --arena-file: "));
  CHECK(has(no_memory_file.err, "'" + folder / "arena_file'"));  // a path is left as it is
  if (fs::is_directory("/dev/shm")) {
    const Ended no_folder = run(KVONCED_PROGRAM, small({"--arena-file", "/dev/shm/kvonced-no-such-folder/x"}));
    INFO(no_folder.err);
    CHECK(no_folder.status == 2);
    CHECK(has(no_folder.err, "kvonced: --arena-file: "));
    CHECK(has(no_folder.err, "'/dev/shm/kvonced-no-such-folder'"));
    CHECK_FALSE(has(no_folder.err, "--memory"));
  }
  const Ended capacity = run(KVONCED_PROGRAM, {"--memory", "64MiB", "--capacity", "65MiB"});
  CHECK(has(capacity.err, "kvonced: --capacity: "));
  CHECK(has(capacity.err, "(--memory)"));
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they need terabytes of address space
TEST_CASE("a limit of the address space that is too low is told, and one that is high enough suffices") {
  const RunFolder folder;
  for (const char* const limit : {"-v 100000", "-v 110000", "-v 200000"}) {
    const Ended ended = limited(limit);
    INFO(limit << ": " << ended.err);
    CHECK(ended.status == 2);
    CHECK(has(ended.err, "of address space (ulimit -v)"));
    CHECK(occurrences(ended.err, "\n") == 1);
  }
  Process enough("/bin/sh", {"-c", std::string("ulimit -v 458752; exec ") + KVONCED_PROGRAM + " --memory 64MiB"});
  CHECK(enough.wait_out("is ready on"));
  enough.signal(SIGTERM);
  CHECK(enough.finish() == 0);
}
#endif

TEST_CASE("a limit of open files, or of the size of one, that is too low is told at once") {
  const RunFolder folder;
  const Ended few = limited("-n 9");
  INFO(few.err);
  CHECK(few.status == 2);
  CHECK(has(few.err, "this process may open 9 files (ulimit -n)"));
  CHECK(occurrences(few.err, "\n") == 1);
  const Ended small_files = limited("-f 10");
  INFO(small_files.err);
  CHECK(small_files.status == 2);
  CHECK(has(small_files.err, "--memory is 64MiB: "));
  CHECK(has(small_files.err, "(ulimit -f)"));
  const SharedMemoryFolder memory;
  if (!memory.there()) return;
  const Ended named = limited("-f 10", "--arena-file " + memory / "arena");
  CHECK(named.status == 2);
  CHECK(has(named.err, "(ulimit -f)"));
}

TEST_CASE("a soft limit of open files is raised to what the clients need") {
  const RunFolder folder;
  Process daemon("/bin/sh", {"-c", std::string("ulimit -Sn 16; exec ") + KVONCED_PROGRAM + " --memory 64MiB --populate no --max-clients 40"});
  REQUIRE(daemon.wait_out("is ready on"));
  CHECK(has(read_file("/proc/" + std::to_string(daemon.pid()) + "/limits"), "Max open files            264 "));
  daemon.signal(SIGTERM);
  CHECK(daemon.finish() == 0);
}

TEST_CASE("a detached store that a signal ends before it is ready is told with the signal") {
  const RunFolder folder;
  // Its standard output is full: it listens, and then cannot say that it is ready.
  const std::string pipe = folder / "full";
  const FullPipe full(pipe);
  Process caller("/bin/sh", {"-c", std::string("exec ") + KVONCED_PROGRAM + " --detach --memory 64MiB --populate no > " + pipe + " 2> " + folder / "log"});
  REQUIRE(eventually([&] { return runtime::store_listens(folder.socket()); }));
  const auto store = static_cast<pid_t>(runtime::store_holder(folder.socket()).pid);
  REQUIRE(store > 0);
  CHECK(kill(store, SIGKILL) == 0);
  CHECK(caller.finish() == 2);
  const std::string said = read_file(folder / "log");
  INFO(said);
  CHECK(has(said, "the store (process " + std::to_string(store) + ") was ended by signal 9 (Killed) before it was ready"));
}

TEST_CASE("a group that cannot enter the socket's folder is told so, and one that can connects") {
  const RunFolder folder;
  const std::string group = geteuid() == 0 ? "12345" : std::to_string(getegid());
  const Ended closed = run(KVONCED_PROGRAM, small({"--group", group}));
  INFO(closed.err);
  CHECK(closed.status == 2);
  CHECK(has(closed.err, "kvonced: --group is '" + group + "': members of it may not enter the folder " + folder.path()));
  if (geteuid() != 0 || !fs::exists("/usr/bin/setpriv")) return;

  REQUIRE(chown(folder.path().c_str(), 0, 12'345) == 0);
  REQUIRE(chmod(folder.path().c_str(), 0750) == 0);
  Process daemon(KVONCED_PROGRAM, small({"--group", group, "--socket", folder / "s"}));
  REQUIRE(daemon.wait_out("is ready on"));
  const fs::path kvonce = fs::path(folder.path()) / "kvonce-copy";  // the build's folder may be closed to others
  fs::copy_file(KVONCE_PROGRAM, kvonce);
  chmod(kvonce.c_str(), 0755);
  const auto as_other = [&](std::vector<std::string> words) {
    std::vector<std::string> all{"--reuid=65534", "--regid=65534", "--groups=12345", kvonce.string()};
    all.insert(all.end(), words.begin(), words.end());
    all.insert(all.end(), {"--store", "unix:" + folder / "s"});
    return run("/usr/bin/setpriv", all);
  };
  const Ended stat = as_other({"stat", "--json"});
  INFO(stat.err);
  CHECK(stat.status == 0);
  // It may use the store, but not end it, and hears that there is one.
  const Ended stop = as_other({"stop"});
  INFO(stop.err);
  CHECK(stop.status == 2);
  CHECK(has(stop.err, "process " + std::to_string(daemon.pid())));
  CHECK(has(stop.err, "user 65534 may not stop it"));
  REQUIRE(chmod(folder.path().c_str(), 0700) == 0);
  const Ended blind = run("/usr/bin/setpriv", {"--reuid=65534", "--regid=65534", "--clear-groups", "/bin/cat", folder / "s.lock"});
  CHECK(blind.status != 0);  // the case that was meant
  daemon.signal(SIGTERM);
  CHECK(daemon.finish() == 0);
}

TEST_CASE("a lock file that was removed by hand lets no second daemon in, and the first one can still be stopped") {
  const RunFolder folder;
  Process first(KVONCED_PROGRAM, small());
  REQUIRE(first.wait_out("is ready on"));
  REQUIRE(fs::remove(folder.socket() + ".lock"));
  const Ended second = run(KVONCED_PROGRAM, small());
  INFO(second.err);
  CHECK(second.status == 2);
  CHECK(has(second.err, "(process " + std::to_string(first.pid()) + ") already serves"));
  CHECK(has(second.err, "was removed"));
  CHECK_FALSE(fs::exists(folder.socket() + ".lock"));
  const int connected = connect_to(folder.socket());
  CHECK(connected >= 0);
  close(connected);
  CHECK(run(KVONCE_PROGRAM, {"stop"}).status == 0);
  CHECK(first.finish() == 0);
}

TEST_CASE("an arena file whose lock was removed by hand lets no second store in") {
  const RunFolder folder;
  const SharedMemoryFolder memory;
  if (!memory.there()) return;
  Process first(KVONCED_PROGRAM, small({"--arena-file", memory / "arena"}));
  REQUIRE(first.wait_out("is ready on"));
  REQUIRE(fs::remove(memory / "arena.lock"));
  const auto second_store = [&] { return run(KVONCED_PROGRAM, small({"--arena-file", memory / "arena", "--socket", folder / "other"})); };
  Ended second = second_store();
  INFO(second.err);
  CHECK(second.status == 2);
  // Without its lock the file is not known to be a store's.
  CHECK(has(second.err, "it is left as it is"));
  write_file(memory / "arena.lock", "");
  second = second_store();
  CHECK(second.status == 2);
  CHECK(has(second.err, "is in use by another process, though its lock"));
  first.signal(SIGTERM);
  CHECK(first.finish() == 0);
  Process warm(KVONCED_PROGRAM, small({"--arena-file", memory / "arena"}));
  CHECK(warm.wait_out("warm start: 0 objects are back"));
  warm.signal(SIGTERM);
  CHECK(warm.finish() == 0);
}

TEST_CASE("a share of the memory keeps an arena-file's size: another number of bytes would be a cold start") {
  const RunFolder folder;
  const SharedMemoryFolder memory;
  if (!memory.there()) return;
  const auto start = [&](const std::string& size) {
    return Process(KVONCED_PROGRAM, {"--memory", size, "--populate", "no", "--arena-file", memory / "arena"});
  };
  for (const char* const size : {"1%", "2%", "0.5%"}) {
    CAPTURE(size);
    Process store = start(size);
    CHECK(store.wait_out(std::string(size) == "1%" ? "cold start" : "warm start: 0 objects are back"));
    store.signal(SIGTERM);
    CHECK(store.finish() == 0);
  }
  // A size is meant as it is given.
  Process other = start("66MiB");
  CHECK(other.wait_out("cold start: the arena's file"));
  other.signal(SIGTERM);
  CHECK(other.finish() == 0);
  CHECK(has(run(KVONCED_PROGRAM, {"--memory", "25%", "--arena-file", memory / "arena", "--dump-config"}).out, "69206016"));
}

TEST_CASE("a start that is refused leaves the last life's pages as they are") {
  const RunFolder folder;
  const SharedMemoryFolder memory;
  if (!memory.there()) return;
  const std::vector<std::string> right = small({"--arena-file", memory / "arena"});
  {
    Process daemon(KVONCED_PROGRAM, right);
    REQUIRE(daemon.wait_out("is ready on"));
    daemon.signal(SIGTERM);
    REQUIRE(daemon.finish() == 0);
  }
  write_file(folder / "plain", "x");
  const std::vector<std::pair<std::vector<std::string>, std::string>> wrong{
      {{"--socket", folder / "plain"}, "exists and is no socket"},
      {{"--index-pages", "2000000"}, "leaves no room for slots"},
      {{"--index-pages", "2000000", "--partitions", "2"}, "leaves no room for slots"}};
  for (const auto& [options, why] : wrong) {
    std::vector<std::string> arguments{"--arena-file", memory / "arena"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    const Ended refused = run(KVONCED_PROGRAM, small(arguments));
    INFO(refused.err);
    CHECK(refused.status == 2);
    CHECK(has(refused.err, why));
  }
  Process warm(KVONCED_PROGRAM, right);
  CHECK(warm.wait_out("warm start: 0 objects are back"));
  warm.signal(SIGTERM);
  CHECK(warm.finish() == 0);
}

TEST_CASE("an arena file's name leaves room for what lies beside it") {
  const RunFolder folder;
  const SharedMemoryFolder memory;
  if (!memory.there()) return;
  const Ended longer = run(KVONCED_PROGRAM, small({"--arena-file", memory / std::string(243, 'a')}));
  INFO(longer.err);
  CHECK(longer.status == 2);
  CHECK(has(longer.err, "kvonced: --arena-file is '"));
  CHECK(has(longer.err, "243 bytes"));
  for (const char* const start : {"cold start", "warm start: 0 objects are back"}) {
    Process daemon(KVONCED_PROGRAM, small({"--arena-file", memory / std::string(242, 'a')}));
    CHECK(daemon.wait_out(start));
    daemon.signal(SIGTERM);
    CHECK(daemon.finish() == 0);
    CHECK_FALSE(has(daemon.err, "cold"));
  }
}

TEST_CASE("reserved huge pages are used, or their lack ends the start with a sentence; nothing else is taken instead") {
  const RunFolder folder;
  Process daemon(KVONCED_PROGRAM, {"--memory", "64MiB", "--huge-pages", "reserved"});
  if (daemon.wait_out("is ready on")) {
    daemon.signal(SIGTERM);
    CHECK(daemon.finish() == 0);
  } else {
    CHECK(daemon.finish() == 2);
    INFO(daemon.err);
    CHECK(has(daemon.err, "kvonced: --huge-pages is reserved: "));
    CHECK_FALSE(has(daemon.err, "--memory"));
    CHECK(has(daemon.err, "reserved huge pages"));
    CHECK(has(daemon.err, "vm.nr_hugepages"));
  }
  const SharedMemoryFolder memory;
  if (!memory.there()) return;
  const Ended named = run(KVONCED_PROGRAM, small({"--huge-pages", "reserved", "--arena-file", memory / "arena"}));
  CHECK(named.status == 2);
  CHECK(has(named.err, "lies on no hugetlbfs"));
}

}  // namespace kvonce::kvonced_test
