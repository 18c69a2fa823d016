// SPDX-License-Identifier: Apache-2.0
// The daemon as its users see it: settings shown, ready, told to end, told to read again, idle, a second one.
#include <doctest/doctest.h>

#include <csignal>
#include <filesystem>
#include <regex>

#include <nlohmann/json.hpp>

#include <kvonce/runtime.hpp>
#include <sys/socket.h>
#include <unistd.h>

#include "apps/kvonced/settings.hpp"
#include "tests/kvonced/process.hpp"

namespace kvonce::kvonced_test {
namespace {

namespace fs = std::filesystem;

std::string ready_on(const std::string& socket) { return "is ready on unix:" + socket; }

/// What lies beside the socket.
std::vector<std::string> left_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  return names;
}

}  // namespace

TEST_CASE("--dump-config shows every setting with its source, and its status says whether they are valid") {
  const RunFolder folder;
  write_file(folder / "c.toml", "memory = \"128MiB\"\nidle-exit = \"7s\"\n");
  const Environment environment{{"KVONCED_IDLE_EXIT", "8s"}, {"KVONCED_CONFIG", folder / "c.toml"}};
  const Ended text = run(KVONCED_PROGRAM, {"--dump-config", "--drain-time", "9s"}, environment);
  CHECK(text.status == 0);
  CHECK(text.err.empty());
  CHECK(std::regex_search(text.out, std::regex("memory += 134217728 +# file " + folder.path() + "/c\\.toml")));
  CHECK(std::regex_search(text.out, std::regex("idle-exit += \"8s\" +# environment KVONCED_IDLE_EXIT")));
  CHECK(std::regex_search(text.out, std::regex("drain-time += \"9s\" +# flag")));
  CHECK(std::regex_search(text.out, std::regex("partitions += 1 +# default")));

  const Ended json = run(KVONCED_PROGRAM, {"--dump-config", "--json"}, environment);
  const auto value = nlohmann::json::parse(json.out, nullptr, false);
  REQUIRE(value.is_object());
  CHECK(value["valid"] == true);
  CHECK(value["settings"].size() == apps::all_settings().size());
  CHECK(value["settings"]["memory"]["value"] == 134'217'728);
  CHECK(value["settings"]["socket"]["value"] == folder.socket());

  CHECK(run(KVONCED_PROGRAM, {"--dump-config", "--format", "json"}, environment).out == json.out);
  CHECK(run(KVONCED_PROGRAM, {"--dump-config", "--format", "text", "--drain-time", "9s"}, environment).out == text.out);
  const Ended quiet = run(KVONCED_PROGRAM, {"--dump-config", "-q"}, environment);
  CHECK(quiet.status == 0);
  CHECK(quiet.out.empty());
  CHECK(quiet.err.empty());

  const Ended bad = run(KVONCED_PROGRAM, {"--dump-config", "--memory", "lots", "--partitions", "0"}, environment);
  CHECK(bad.status == 2);
  CHECK(bad.err.find("--memory: \"lots\"") != std::string::npos);
  CHECK(bad.err.find("--partitions: \"0\"") != std::string::npos);
  CHECK(bad.out.find("not valid") != std::string::npos);
}

TEST_CASE("to show the settings makes no folder; to start a store does") {
  const RunFolder folder;
  const fs::path run_time = fs::path(folder.socket()).parent_path();
  fs::remove_all(run_time);
  const Ended shown = run(KVONCED_PROGRAM, {"--dump-config"});
  CHECK(shown.status == 0);
  CHECK(shown.out.find(folder.socket()) != std::string::npos);
  CHECK_FALSE(fs::exists(run_time));
  Process daemon(KVONCED_PROGRAM, small());
  REQUIRE(daemon.wait_out(ready_on(folder.socket())));
  daemon.signal(SIGTERM);
  CHECK(daemon.finish() == 0);
}

TEST_CASE("bad calls are told in one line, at once, with what is allowed") {
  const RunFolder folder;
  for (const auto& [arguments, part] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"--memry", "1GiB"}, "--memry is no option; the nearest is --memory"},
           {{"--memory"}, "--memory"},
           {{"--memory", "1GiB", "--memory", "2GiB"}, "--memory"},
           {{"somewhere"}, "\"somewhere\" is not expected"},
           {{"--json"}, "--dump-config"},
           {{"--ready-fd", "77"}, "77 is no open descriptor"},
           {{"--parent", "0"}, "--parent"},
           {{"--config", folder / "absent"}, "absent cannot be read"},
           {{"--memory", "12"}, "from 1 MiB to"}}) {
    const Ended ended = run(KVONCED_PROGRAM, arguments);
    INFO(ended.err);
    CHECK(ended.status == 2);
    CHECK(ended.err.find(part) != std::string::npos);
    CHECK(occurrences(ended.err, "\n") == 1);
  }
  const Ended warned = run(KVONCED_PROGRAM, {"--dump-config"}, {{"KVONCED_MEMRY", "1GiB"}});
  CHECK(warned.status == 0);
  CHECK(warned.err.find("the nearest is KVONCED_MEMORY") != std::string::npos);
}

TEST_CASE("help fits one screen, --help-all has every setting, and the version is the library's") {
  const Ended help = run(KVONCED_PROGRAM, {"--help"});
  CHECK(help.status == 0);
  CHECK(occurrences(help.out, "\n") <= 25);
  CHECK(help.out.find("--partitions") == std::string::npos);
  CHECK(help.out.find("--detach ") != std::string::npos);
  const Ended all = run(KVONCED_PROGRAM, {"--help-all"});
  CHECK(all.status == 0);
  for (const apps::Setting& setting : apps::all_settings()) CHECK(all.out.find("--" + std::string(setting.name) + " ") != std::string::npos);
  const std::string version = run(KVONCED_PROGRAM, {"--version"}).out;
  CHECK(version.substr(version.find(' ')) == run(KVONCE_PROGRAM, {"--version"}).out.substr(std::string("kvonce").size()));
}

TEST_CASE("what is wrong on the command line is told in words that a user has") {
  const RunFolder folder;
  const std::vector<std::pair<std::vector<std::string>, std::string>> all{
      {{"--memory", "1GiB", "--memory", "2GiB"}, "--memory is given more than once; allowed is one value"},
      {{"--config"}, "--config needs a value"},
      {{"--memory"}, "--memory needs a value"},
      {{"--dump-config", "--format", "xml"}, "--format: \"xml\" is not allowed; allowed are text and json"},
      {{"--format", "json"}, "--format is of use with --dump-config only"},
      {{"--json"}, "--json is of use with --dump-config only"},
      {{"-q"}, "-q is of use with --dump-config only; a store logs less with --log-level error"},
      {{"--socket", "tcp:1.2.3.4:5"}, "--socket: \"tcp:1.2.3.4:5\" is not allowed: a store has no tcp socket"},
      {{"--policy", "\x1b[2J"}, "--policy: \"\\x1b[2J\""}};
  for (const auto& [words, told] : all) {
    const Ended ended = run(KVONCED_PROGRAM, words);
    INFO(ended.err);
    CHECK(ended.status == 2);
    CHECK(ended.out.find('\x1b') == std::string::npos);
    CHECK(ended.err.find("kvonced: " + told) != std::string::npos);
    CHECK(occurrences(ended.err, "\n") == 1);
  }
}

TEST_CASE("a run-time folder that cannot be used is passed over with a word, unless the socket is named") {
  const RunFolder folder;
  write_file(folder / "file", "");
  for (const auto& [set, why] : {std::pair<std::string, std::string>{"relative", "it is no absolute path"},
                                 {folder / "none", "No such file or directory"},
                                 {folder / "file", "it is no folder"}}) {
    const std::string told = "XDG_RUNTIME_DIR is '" + set + "', which is passed over: " + why;
    const Ended shown = run(KVONCED_PROGRAM, {"--dump-config"}, {{"XDG_RUNTIME_DIR", set}});
    CHECK(shown.err.find("kvonced: warning: " + told) != std::string::npos);
    if (shown.status == 0) CHECK(shown.out.find(told) != std::string::npos);  // the folder that is taken instead may be unfit
    const Ended named = run(KVONCED_PROGRAM, {"--dump-config", "--socket", folder / "s"}, {{"XDG_RUNTIME_DIR", set}});
    CHECK(named.status == 0);
    CHECK(named.err.empty());
  }
}

TEST_CASE("the example file is valid, has every key, and shows the defaults") {
  const RunFolder folder;
  const std::string example = std::string(KVONCE_SOURCE_DIR) + "/packaging/kvonced.toml";
  CHECK(run(KVONCED_PROGRAM, {"--config", example, "--dump-config"}).status == 0);

  write_file(folder / "all.toml", std::regex_replace(read_file(example), std::regex("(^|\n)#([a-z-]+ = )"), "$1$2"));
  const auto shown = nlohmann::json::parse(run(KVONCED_PROGRAM, {"--config", folder / "all.toml", "--dump-config", "--json"}).out, nullptr, false);
  const auto defaults = nlohmann::json::parse(run(KVONCED_PROGRAM, {"--dump-config", "--json"}).out, nullptr, false);
  REQUIRE(shown.is_object());
  CHECK(shown["valid"] == true);
  for (const apps::Setting& setting : apps::all_settings()) {
    INFO(setting.name);
    CHECK(shown["settings"][setting.name]["origin"] == "file " + folder / "all.toml");
    if (std::string(setting.name) != "socket" && std::string(setting.name) != "memory")
      CHECK(shown["settings"][setting.name]["value"] == defaults["settings"][setting.name]["value"]);
  }
}

TEST_CASE("it says once that it is ready, can be connected to then, ends by SIGTERM with status 0, and leaves nothing behind") {
  const RunFolder folder;
  for (const int number : {SIGTERM, SIGINT}) {
    Process daemon(KVONCED_PROGRAM, small());
    REQUIRE(daemon.wait_out("arena-file\n"));
    CHECK(daemon.out.find(ready_on(folder.socket()) + ": 64 MiB of memory, 1 partition, cold start: no arena-file") != std::string::npos);
    const int connected = connect_to(folder.socket());
    CHECK(connected >= 0);
    close(connected);
    daemon.signal(number);
    CHECK(daemon.finish() == 0);
    CHECK(occurrences(daemon.out, "\n") == 1);
    CHECK(daemon.err.find(number == SIGTERM ? "SIGTERM: ending" : "SIGINT: ending") != std::string::npos);
    CHECK(daemon.err.find("ended") != std::string::npos);
    CHECK(left_in(fs::path(folder.socket()).parent_path().string()) == std::vector<std::string>{"kvonced-w5.start"});
  }
}

TEST_CASE("a second daemon on the same socket is refused, and told who has it") {
  const RunFolder folder;
  Process first(KVONCED_PROGRAM, small());
  REQUIRE(first.wait_out(ready_on(folder.socket())));
  const Ended second = run(KVONCED_PROGRAM, small());
  CHECK(second.status == 2);
  CHECK(second.out.empty());
  CHECK(second.err.find(std::to_string(first.pid())) != std::string::npos);
  CHECK(second.err.find(folder.socket()) != std::string::npos);
  CHECK(second.err.find("kvonce stop --store unix:" + folder.socket() + " ends it, or another --socket") != std::string::npos);
  CHECK(occurrences(second.err, "\n") == 1);
  // The first one has not noticed.
  const int connected = connect_to(folder.socket());
  CHECK(connected >= 0);
  close(connected);
  first.signal(SIGTERM);
  CHECK(first.finish() == 0);
}

TEST_CASE("the socket of a killed daemon is taken over") {
  const RunFolder folder;
  {
    Process killed(KVONCED_PROGRAM, small());
    REQUIRE(killed.wait_out(ready_on(folder.socket())));
    killed.signal(SIGKILL);
    CHECK(killed.finish() == 128 + SIGKILL);
  }
  CHECK(fs::exists(folder.socket()));
  Process next(KVONCED_PROGRAM, small());
  CHECK(next.wait_out(ready_on(folder.socket())));
  next.signal(SIGTERM);
  CHECK(next.finish() == 0);
}

TEST_CASE("an arena file has one store, gives its pages back after an orderly end, and says why not after another one") {
  const RunFolder folder;
  const SharedMemoryFolder memory;
  if (!memory.there()) {
    MESSAGE("no tmpfs at /dev/shm: not tested");
    return;
  }
  const std::vector<std::string> arguments = small({"--arena-file", memory / "arena"});
  {
    Process first(KVONCED_PROGRAM, arguments);
    CHECK(first.wait_out("cold start: "));
    const Ended second = run(KVONCED_PROGRAM, small({"--arena-file", memory / "arena", "--socket", folder / "other.sock"}));
    CHECK(second.status == 2);
    CHECK(second.err.find(memory / "arena") != std::string::npos);
    CHECK(second.err.find(std::to_string(first.pid())) != std::string::npos);
    CHECK(second.err.find("another --arena-file") != std::string::npos);
    CHECK(occurrences(second.err, "\n") == 1);
    first.signal(SIGTERM);
    CHECK(first.finish() == 0);
  }
  {
    Process warm(KVONCED_PROGRAM, arguments);
    CHECK(warm.wait_out("warm start: 0 objects are back\n"));
    warm.signal(SIGKILL);
    CHECK(warm.finish() == 128 + SIGKILL);
  }
  Process cold(KVONCED_PROGRAM, arguments);
  CHECK(cold.wait_out("not stopped cleanly\n"));
  cold.signal(SIGTERM);
  CHECK(cold.finish() == 0);
}

TEST_CASE("a store that cannot write its snapshot says so, and by its status") {
  const RunFolder folder;
  const SharedMemoryFolder memory;
  if (!memory.there()) {
    MESSAGE("no tmpfs at /dev/shm: not tested");
    return;
  }
  // With the log at its quietest.
  Process daemon(KVONCED_PROGRAM, small({"--arena-file", memory / "arena", "--log-level", "error"}));
  REQUIRE(daemon.wait_out("cold start: "));
  fs::create_directories(memory / "arena.snapshot.new/in the way");
  daemon.signal(SIGTERM);
  CHECK(daemon.finish() == 1);
  CHECK_MESSAGE(daemon.err.find("arena.snapshot") != std::string::npos, daemon.err);
  CHECK(daemon.err.find("the next life will start cold") != std::string::npos);
}

TEST_CASE("a store ends with its parent, also one that was gone before it began, and its folder goes with it") {
  const RunFolder folder;
  for (const bool before : {false, true}) {
    CAPTURE(before);
    const std::string own = folder / "own";
    fs::create_directories(own);
    Process parent("/bin/sleep", {"1000"});
    const std::string pid = std::to_string(parent.pid());
    const auto end_parent = [&] {
      parent.signal(SIGKILL);
      CHECK(parent.finish() == 128 + SIGKILL);
    };
    if (before) end_parent();
    Process daemon(KVONCED_PROGRAM, small({"--socket", own + "/store", "--parent", pid}));
    if (!before) {
      REQUIRE(daemon.wait_out(ready_on(own + "/store")));
      end_parent();
    }
    CHECK(daemon.finish() == 0);
    CHECK(daemon.err.find("the parent has ended") != std::string::npos);
    CHECK_FALSE(fs::exists(own));
  }
  // What is not the store's stays, and keeps the folder.
  fs::create_directories(folder / "own");
  write_file(folder / "own/mine", "precious");
  Process other("/bin/sleep", {"1000"});
  Process beside(KVONCED_PROGRAM, small({"--socket", folder / "own/store", "--parent", std::to_string(other.pid())}));
  REQUIRE(beside.wait_out(ready_on(folder / "own/store")));
  other.signal(SIGKILL);
  CHECK(beside.finish() == 0);
  CHECK(left_in(folder / "own") == std::vector<std::string>{"mine"});
  fs::remove_all(folder / "own");

  // Another store's socket and arena are not its own, whether its parent is there or not.
  fs::create_directories(folder / "own");
  Process living(KVONCED_PROGRAM, small({"--socket", folder / "own/store"}));
  REQUIRE(living.wait_out(ready_on(folder / "own/store")));
  Process late(KVONCED_PROGRAM, small({"--socket", folder / "own/store", "--parent", std::to_string(other.pid())}));
  late.finish();
  CHECK(left_in(folder / "own").size() == 2);  // the socket and its lock
  living.signal(SIGTERM);
  CHECK(living.finish() == 0);
  fs::remove_all(folder / "own");

  // Ended otherwise, it leaves the folder to whoever made it.
  fs::create_directories(folder / "own");
  Process daemon(KVONCED_PROGRAM, small({"--socket", folder / "own/store", "--parent", std::to_string(getpid())}));
  REQUIRE(daemon.wait_out(ready_on(folder / "own/store")));
  daemon.signal(SIGTERM);
  CHECK(daemon.finish() == 0);
  CHECK(fs::exists(folder / "own"));
}

TEST_CASE("a service manager hears that it is ready, reads again, and stops: by a path and by an abstract name") {
  const RunFolder folder;
  write_file(folder / "c.toml", "log-level = \"info\"\n");
  for (const std::string& name : {folder / "notify", "@kvonced-test-" + std::to_string(getpid())}) {
    const BoundSocket manager(name, SOCK_DGRAM);
    REQUIRE(manager.ready());
    Process daemon(KVONCED_PROGRAM, small({"--config", folder / "c.toml"}), {{"NOTIFY_SOCKET", name}});
    const std::string ready = manager.receive();
    CHECK(ready.find("READY=1\n") == 0);
    CHECK(ready.find("STATUS=kvonced ") != std::string::npos);
    const int connected = connect_to(folder.socket());
    CHECK(connected >= 0);
    close(connected);
    daemon.signal(SIGHUP);
    const std::string reloading = manager.receive();
    CHECK(reloading.find("RELOADING=1\n") == 0);
    CHECK(reloading.find("MONOTONIC_USEC=") != std::string::npos);
    CHECK(manager.receive() == "READY=1");
    daemon.signal(SIGTERM);
    CHECK(manager.receive() == "STOPPING=1");
    CHECK(daemon.finish() == 0);
  }
}

TEST_CASE("SIGHUP applies what can be, tells what needs a restart, and keeps everything when the file is wrong") {
  const RunFolder folder;
  write_file(folder / "c.toml", "idle-exit = \"1h\"\npartitions = 1\n");
  Process daemon(KVONCED_PROGRAM, small({"--config", folder / "c.toml"}));
  REQUIRE(daemon.wait_out(ready_on(folder.socket())));

  write_file(folder / "c.toml", "idle-exit = \"2h\"\npartitions = 2\nmemory = \"1GiB\"\n");
  daemon.signal(SIGHUP);
  CHECK(daemon.wait_err("needs a restart to take effect: partitions = 2\n"));  // memory: the flag goes before the file
  CHECK(daemon.err.find("is read again; idle-exit = \"2h\"") != std::string::npos);

  write_file(folder / "c.toml", "idle-exit = \"forever\"\n");
  daemon.signal(SIGHUP);
  CHECK(daemon.wait_err("nothing is changed: idle-exit in " + folder / "c.toml: \"forever\""));

  // Nobody is connected: the new time makes it end by itself.
  write_file(folder / "c.toml", "idle-exit = \"50ms\"\n");
  daemon.signal(SIGHUP);
  CHECK(daemon.finish() == 0);
  CHECK(daemon.err.find("no clients for 50 ms (idle-exit): ending") != std::string::npos);
  CHECK_FALSE(fs::exists(folder.socket()));
}

TEST_CASE("the log level holds, and can be changed while it runs") {
  const RunFolder folder;
  write_file(folder / "c.toml", "log-level = \"error\"\n");
  Process daemon(KVONCED_PROGRAM, small({"--config", folder / "c.toml"}));
  REQUIRE(daemon.wait_out(ready_on(folder.socket())));
  write_file(folder / "c.toml", "log-level = \"info\"\n");
  daemon.signal(SIGHUP);
  CHECK(daemon.wait_err("is read again; log-level = \"info\""));
  daemon.signal(SIGTERM);
  CHECK(daemon.finish() == 0);
  CHECK(daemon.err.find("ended") != std::string::npos);

  Process quiet(KVONCED_PROGRAM, small({"--log-level", "error"}));
  REQUIRE(quiet.wait_out(ready_on(folder.socket())));
  quiet.signal(SIGTERM);
  CHECK(quiet.finish() == 0);
  CHECK(quiet.err.empty());
}

TEST_CASE("an idle daemon ends by itself, but not while a client is there") {
  const RunFolder folder;
  Process daemon(KVONCED_PROGRAM, small({"--idle-exit", "2s"}));
  REQUIRE(daemon.wait_out(ready_on(folder.socket())));
  RuntimeConfig config;
  config.engine_id = "engine";
  config.store = "unix:" + folder.socket();
  auto client = Runtime::start(config);
  INFO(client.error.text);
  REQUIRE(client);
  REQUIRE(client->get()->wait_connected(std::chrono::seconds{30}));
  // Two that have nobody come and go meanwhile: then this one's time would have passed too, were it not for the client.
  for (int i = 0; i < 2; ++i) {
    Process other(KVONCED_PROGRAM, small({"--idle-exit", "2s", "--socket", folder / "other.sock"}));
    CHECK(other.finish() == 0);
  }
  CHECK(client->get()->connected());
  client->get()->stop();
  CHECK(daemon.finish() == 0);
  CHECK(daemon.err.find("no clients for 2000 ms") != std::string::npos);
}

TEST_CASE("--detach returns when the store is ready, and fails when it cannot be") {
  const RunFolder folder;
  const std::string log = folder / "log";
  // By a shell, since the daemon keeps the streams that it was started with.
  const auto detached = [&](const std::string& more) {
    return run("/bin/sh", {"-c", std::string(KVONCED_PROGRAM) + " --detach --memory 64MiB --populate no " + more + " > " + log + " 2>&1"});
  };
  CHECK(detached("").status == 0);
  CHECK(read_file(log).find(ready_on(folder.socket())) != std::string::npos);
  CHECK(detached("").status == 2);
  CHECK(run(KVONCE_PROGRAM, {"stop", "-q"}).status == 0);
}

}  // namespace kvonce::kvonced_test
