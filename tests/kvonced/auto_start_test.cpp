// SPDX-License-Identifier: Apache-2.0
// store = "auto" and kvonce stop: who starts a store, who waits, what is replaced, and what is left alone.
#include <doctest/doctest.h>

#include <csignal>
#include <filesystem>
#include <memory>

#include <nlohmann/json.hpp>

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/auto_store.hpp"
#include "tests/kvonced/process.hpp"

namespace kvonce::kvonced_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// An engine process that finds or starts a store as soon as its input ends.
std::unique_ptr<Process> engine(const std::string& timeout_ms = "30000", const std::string& kvonced = {}, const Environment& environment = {}) {
  std::vector<std::string> arguments{timeout_ms};
  if (!kvonced.empty()) arguments.push_back(kvonced);
  auto process = std::make_unique<Process>(KVONCED_STARTER, arguments, environment);
  CHECK(process->wait_out("here\n"));
  return process;
}

json result_of(Process& process) {
  process.finish();
  return json::parse(process.out.substr(process.out.find('\n') + 1), nullptr, false);
}

json find_or_start(const std::string& timeout_ms = "30000", const std::string& kvonced = {}, const Environment& environment = {}) {
  const auto process = engine(timeout_ms, kvonced, environment);
  return result_of(*process);
}

std::string error_of(const json& result) { return result.is_object() ? result["error"].get<std::string>() : std::string("no answer"); }

/// A script in place of kvonced.
std::string script(const RunFolder& folder, const std::string& name, const std::string& text) {
  write_file(folder / name, "#!/bin/sh\n" + text + "\n", 0700);
  return folder / name;
}

void make_folder(const RunFolder& folder) { fs::create_directory(folder / "kvonce"), chmod((folder / "kvonce").c_str(), 0700); }

bool locked(const std::string& path) { return fs::exists(path) && !HeldLock(path).held(); }

}  // namespace

TEST_CASE("eight processes at the same moment agree on one store, which keeps nothing of theirs and is nobody's child") {
  const RunFolder folder;
  const std::string kvonced = script(folder, "counted", "echo started >> " + folder / "starts" + "\nexec " + KVONCED_PROGRAM + " \"$@\"");
  std::vector<std::unique_ptr<Process>> engines;
  for (int i = 0; i < 8; ++i) engines.push_back(engine("30000", kvonced));
  for (const auto& one : engines) one->close_input();
  for (const auto& one : engines) {
    const json result = result_of(*one);
    INFO(result.dump());
    CHECK(result["store"] == "unix:" + folder.socket());
    CHECK(result["descriptors_kept"] == true);
    CHECK(result["childless"] == true);
  }
  CHECK(occurrences(read_file(folder / "starts"), "started") == 1);
  CHECK(occurrences(read_file(folder.log()), "is ready on") == 1);
  // It outlives them all, and takes signals as if it had been started by hand.
  CHECK(runtime::store_listens(folder.socket()));
  CHECK(find_or_start()["store"] == "unix:" + folder.socket());
  const Ended stopped = run(KVONCE_PROGRAM, {"stop"});
  CHECK(stopped.status == 0);
  CHECK_FALSE(runtime::store_holder(folder.socket()).held);
  CHECK_FALSE(fs::exists(folder.socket()));
  CHECK(read_file(folder.log()).find("ended") != std::string::npos);
}

TEST_CASE("a killed store is replaced by the next one who needs it") {
  const RunFolder folder;
  REQUIRE(error_of(find_or_start()).empty());
  const auto first = runtime::store_holder(folder.socket());
  REQUIRE(first.held);
  kill(static_cast<pid_t>(first.pid), SIGKILL);
  waitpid(static_cast<pid_t>(first.pid), nullptr, 0);
  CHECK(fs::exists(folder.socket()));
  CHECK_FALSE(runtime::store_listens(folder.socket()));
  CHECK(error_of(find_or_start()).empty());
  const auto second = runtime::store_holder(folder.socket());
  CHECK(second.held);
  CHECK(second.pid != first.pid);
  CHECK(run(KVONCE_PROGRAM, {"stop", "-q"}).status == 0);
}

TEST_CASE("a half-started store is waited for") {
  const RunFolder folder;
  make_folder(folder);
  const HeldLock half_started(folder.socket() + ".lock", std::to_string(getpid()) + "\n");
  REQUIRE(half_started.held());
  const auto waiting = engine();
  waiting->close_input();
  REQUIRE(eventually([&] { return locked(folder / "kvonce/kvonced-w5.start"); }));
  const BoundSocket listens(folder.socket(), SOCK_SEQPACKET);
  REQUIRE(listens.ready());
  const json result = result_of(*waiting);
  CHECK(error_of(result).empty());
  CHECK(result["store"] == "unix:" + folder.socket());
  CHECK_FALSE(fs::exists(folder.log()));  // nothing was started
}

TEST_CASE("a half-started store that dies is replaced") {
  const RunFolder folder;
  make_folder(folder);
  auto half_started = std::make_unique<HeldLock>(folder.socket() + ".lock", std::to_string(getpid()) + "\n");
  REQUIRE(half_started->held());
  const auto waiting = engine();
  waiting->close_input();
  REQUIRE(eventually([&] { return locked(folder / "kvonce/kvonced-w5.start"); }));
  half_started.reset();
  const json result = result_of(*waiting);
  CHECK(error_of(result).empty());
  CHECK(runtime::store_listens(folder.socket()));
  CHECK(run(KVONCE_PROGRAM, {"stop", "-q"}).status == 0);
}

TEST_CASE("a half-started store that stays so is named when the time is over") {
  const RunFolder folder;
  make_folder(folder);
  const HeldLock half_started(folder.socket() + ".lock", std::to_string(getpid()) + "\n");
  const std::string error = error_of(find_or_start("50"));
  INFO(error);
  CHECK(error.find("pid " + std::to_string(getpid())) != std::string::npos);
  CHECK((error.find("within 50 ms") != std::string::npos || error.find("within 49 ms") != std::string::npos));
  CHECK(error.find("kvonce stop") != std::string::npos);
}

TEST_CASE("a starter that hangs is waited for no longer than the deadline") {
  const RunFolder folder;
  make_folder(folder);
  const HeldLock starts(folder / "kvonce/kvonced-w5.start");
  const std::string error = error_of(find_or_start("50"));
  INFO(error);
  CHECK(error.find("another process starts a kvonced") != std::string::npos);
  CHECK(error.find(folder.log()) != std::string::npos);
}

TEST_CASE("a store that dies before it is ready gives its last words") {
  const RunFolder folder;
  const std::string error = error_of(find_or_start("30000", script(folder, "broken", "echo the reason why >&2; exit 3")));
  INFO(error);
  CHECK(error.find("ended with status 3 before it was ready") != std::string::npos);
  CHECK(error.find("the reason why") != std::string::npos);
  CHECK(error.find(folder.log()) != std::string::npos);
  // The daemon's own: a setting of the environment that is wrong.
  const std::string setting = error_of(find_or_start("30000", {}, {{"KVONCED_PARTITIONS", "99"}}));
  CHECK(setting.find("KVONCED_PARTITIONS: \"99\"") != std::string::npos);
}

TEST_CASE("a store that a signal ends while it starts is started once more, and then the signal is told") {
  const RunFolder folder;
  const std::string told = "was ended by signal 9 (Killed) before it was ready";
  const std::string error = error_of(find_or_start("30000", script(folder, "early", "echo started >> " + folder / "starts" + "\nkill -9 $$")));
  INFO(error);
  CHECK(error.find(told) != std::string::npos);
  CHECK(occurrences(read_file(folder / "starts"), "started") == 2);

  // One that has detached itself, too: it listens, and cannot say so.
  {
    const FullPipe full(folder / "full");
    const auto waiting = engine("30000", script(folder, "late", std::string("exec ") + KVONCED_PROGRAM + " \"$@\" > " + folder / "full"));
    waiting->close_input();
    std::uint32_t last = 0;
    for (int life = 0; life < 2; ++life) {
      REQUIRE(eventually([&] {
        const auto holder = runtime::store_holder(folder.socket());
        return holder.held && holder.pid != last && runtime::store_listens(folder.socket());
      }));
      last = runtime::store_holder(folder.socket()).pid;
      CHECK(kill(static_cast<pid_t>(last), SIGKILL) == 0);
    }
    const std::string late = error_of(result_of(*waiting));
    INFO(late);
    CHECK(late.find(told) != std::string::npos);
  }

  // The second one may live.
  const std::string once = script(folder, "once", "test -e " + folder / "again" + " || { touch " + folder / "again" + "; kill -9 $$; }\nexec " +
                                                      KVONCED_PROGRAM + " \"$@\"");
  CHECK(error_of(find_or_start("30000", once)).empty());
  CHECK(run(KVONCE_PROGRAM, {"stop", "-q"}).status == 0);
}

TEST_CASE("an engine that may open no more files is told at once, and not tried for until the time is over") {
  const RunFolder folder;
  Process few("/bin/sh", {"-c", std::string("ulimit -n 8; exec ") + KVONCED_STARTER + " 30000 " + KVONCED_PROGRAM});
  CHECK(few.wait_out("here\n"));
  few.close_input();
  const std::string error = error_of(result_of(few));
  INFO(error);
  CHECK(error.find("could not be started") != std::string::npos);
  CHECK(error.find("Too many open files") != std::string::npos);
  CHECK(error.find("within") == std::string::npos);
}

TEST_CASE("a program that is never ready is given up at the deadline, and not left as a child") {
  const RunFolder folder;
  const json result = find_or_start("300", script(folder, "sleeper", "echo $$ > " + folder / "pid" + "\nexec sleep 1000"));
  INFO(result.dump());
  CHECK(error_of(result).find("is not ready yet") != std::string::npos);
  CHECK(result["childless"] == true);
}

TEST_CASE("another wire version is told, with what helps") {
  const RunFolder folder;
  const std::string error = error_of(find_or_start("30000", script(folder, "newer", "echo 'ready 7' >&3")));
  INFO(error);
  CHECK(error.find("wire version 7") != std::string::npos);
  CHECK(error.find("KVONCE_KVONCED") != std::string::npos);
}

TEST_CASE("a kvonced that is not where it was said to be, or nowhere, is told with the places looked at") {
  const RunFolder folder;
  CHECK(error_of(find_or_start("30000", folder / "absent")).find("kvonced_path is '" + folder / "absent" + "'") != std::string::npos);
  CHECK(error_of(find_or_start("30000", {}, {{"KVONCE_KVONCED", folder / "gone"}})).find("KVONCE_KVONCED is '") != std::string::npos);

  // Away from the build's folder nothing lies beside it.
  fs::create_directory(folder / "lib");
  fs::copy_file(KVONCED_STARTER, folder / "lib/engine");
  Process lonely(folder / "lib/engine", {"30000"}, {{"PATH", folder / "empty"}});
  const std::string error = error_of(result_of(lonely));
  INFO(error);
  for (const char* const place : {"lib/kvonced", "bin/kvonced", "empty/kvonced"}) CHECK(error.find(folder / place) != std::string::npos);
  CHECK(error.find("set KVONCE_KVONCED=PATH") != std::string::npos);

  fs::create_directory(folder / "bin");
  script(folder, "bin/kvonced", std::string("exec ") + KVONCED_PROGRAM + " \"$@\"");
  Process found(folder / "lib/engine", {"30000"}, {{"PATH", folder / "empty"}});
  CHECK(error_of(result_of(found)).empty());
  CHECK(run(KVONCE_PROGRAM, {"stop", "-q"}).status == 0);
}

TEST_CASE("a run-time folder that others could have made is refused") {
  const RunFolder folder;
  const std::string mine = folder / "kvonce";
  fs::create_directory(folder / "elsewhere");
  fs::create_symlink(folder / "elsewhere", mine);
  std::string why_not;
  CHECK(runtime::auto_socket_path(&why_not).empty());
  CHECK(why_not.find("symbolic link") != std::string::npos);
  CHECK(error_of(find_or_start()).find("symbolic link") != std::string::npos);
  CHECK(run(KVONCED_PROGRAM, small()).status == 2);
  fs::remove(mine);

  fs::create_directory(mine);
  chmod(mine.c_str(), 0755);
  CHECK(runtime::auto_socket_path(&why_not).empty());
  CHECK(why_not.find("chmod 700 " + mine) != std::string::npos);
  if (geteuid() == 0) {
    chmod(mine.c_str(), 0700);
    REQUIRE(chown(mine.c_str(), 12'345, 12'345) == 0);
    CHECK(runtime::auto_socket_path(&why_not).empty());
    CHECK(why_not.find("belongs to user 12345") != std::string::npos);
  }
  fs::remove(mine);
  write_file(mine, "");
  CHECK(runtime::auto_socket_path(&why_not).empty());
  CHECK(why_not.find("is no folder") != std::string::npos);
  fs::remove(mine);

  CHECK(runtime::auto_socket_path(&why_not) == folder.socket());
  struct stat made {};
  REQUIRE(stat(mine.c_str(), &made) == 0);
  CHECK((made.st_mode & 0777) == 0700);

  const std::string deep = folder / std::string(90, 'd');
  fs::create_directory(deep);
  setenv("XDG_RUNTIME_DIR", deep.c_str(), 1);
  CHECK(runtime::auto_socket_path(&why_not).empty());
  CHECK(why_not.find("longer than the 107 bytes") != std::string::npos);
}

TEST_CASE("kvonce stop ends the store of a socket, tells when none runs, and when it cannot") {
  const RunFolder folder;
  Ended none = run(KVONCE_PROGRAM, {"stop", "--json"});
  CHECK(none.status == 1);
  CHECK(json::parse(none.out, nullptr, false)["was_running"] == false);
  CHECK(run(KVONCE_PROGRAM, {"stop", "-q"}).out.empty());

  Process daemon(KVONCED_PROGRAM, small({"--socket", folder / "own.sock"}));
  REQUIRE(daemon.wait_out("is ready on"));
  CHECK(run(KVONCE_PROGRAM, {"stop"}).status == 1);  // this user's: another one
  const Ended stopped = run(KVONCE_PROGRAM, {"stop", "--json", "--store", "unix:" + folder / "own.sock"});
  CHECK(stopped.status == 0);
  CHECK(json::parse(stopped.out, nullptr, false)["pid"] == daemon.pid());
  CHECK(daemon.finish() == 0);

  write_file(folder / "file", "x");
  const Ended no_socket = run(KVONCE_PROGRAM, {"stop", "--store", "unix:" + folder / "file"});
  CHECK(no_socket.status == 2);
  CHECK(no_socket.err.find(folder / "file" + " is no socket") != std::string::npos);

  for (const auto& arguments : std::vector<std::vector<std::string>>{{"stop", "--store", "tcp:1"}, {"stop", "--timeout", "soon"}}) {
    const Ended wrong = run(KVONCE_PROGRAM, arguments);
    CHECK(wrong.status == 2);
    CHECK(wrong.err.find("allowed") != std::string::npos);
  }
}

TEST_CASE("kvonce stop touches neither a process that no longer holds the lock nor one that is no kvonced") {
  const RunFolder folder;
  make_folder(folder);
  Process bystander("/bin/sleep", {"1000"});
  const std::string lock = folder.socket() + ".lock";
  write_file(lock, std::to_string(bystander.pid()) + "\n");
  CHECK(run(KVONCE_PROGRAM, {"stop"}).status == 1);  // nobody holds it: what it says is old
  {
    const HeldLock held(lock, std::to_string(bystander.pid()) + "\n");
    const Ended other = run(KVONCE_PROGRAM, {"stop"});
    CHECK(other.status == 2);
    CHECK(other.err.find("does not seem to hold it") != std::string::npos);
  }
  const HeldLock held(lock, std::to_string(getpid()) + "\n");  // as an engine that serves its peers
  const Ended engine_process = run(KVONCE_PROGRAM, {"stop"});
  CHECK(engine_process.status == 2);
  CHECK(engine_process.err.find("is no kvonced") != std::string::npos);
  CHECK(kill(bystander.pid(), 0) == 0);
  bystander.signal(SIGTERM);
  CHECK(bystander.finish() == 128 + SIGTERM);
}

}  // namespace kvonce::kvonced_test
