// SPDX-License-Identifier: Apache-2.0
// Settings without a process: how sources are settled, what is refused, and how much memory there is.
#include <doctest/doctest.h>

#include <algorithm>
#include <csignal>
#include <filesystem>

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "apps/kvonced/settings.hpp"
#include "apps/kvonced/signals.hpp"
#include "runtime/host_memory.hpp"
#include "tests/kvonced/process.hpp"

namespace kvonce::apps {
namespace {

using kvonced_test::RunFolder;
using kvonced_test::write_file;

const SettledLine& line_of(const Settled& settled, const std::string& name) {
  const auto found = std::find_if(settled.lines.begin(), settled.lines.end(), [&](const SettledLine& l) { return l.setting->name == name; });
  REQUIRE(found != settled.lines.end());
  return *found;
}

bool names(const std::vector<std::string>& errors, const std::string& word) {
  return std::any_of(errors.begin(), errors.end(), [&](const std::string& error) { return error.find(word) != std::string::npos; });
}

std::vector<std::string> errors_of_file(const RunFolder& folder, const std::string& text) {
  write_file(folder / "f.toml", text);
  std::vector<std::string> errors;
  read_config_file(folder / "f.toml", errors);
  return errors;
}

}  // namespace

TEST_CASE("a flag goes before the environment, that before the file, that before the default") {
  const RunFolder folder;
  Sources sources;
  sources.file_path = "the-file";
  sources.file = {{"memory", "1GiB"}, {"capacity", "1MiB"}, {"drain-time", "1s"}};
  sources.environment = {{"memory", "2GiB"}, {"capacity", "2MiB"}};
  sources.flags = {{"memory", "3GiB"}};
  const Settled settled = settle(sources);
  REQUIRE(settled.errors.empty());
  CHECK(settled.settings.runtime.arena_bytes == 3ULL << 30);
  CHECK(settled.settings.runtime.capacity_bytes == 2ULL << 20);
  CHECK(settled.settings.drain_time == std::chrono::seconds{1});
  CHECK(settled.settings.idle_exit.count() == 0);
  CHECK(line_of(settled, "memory").origin == "flag");
  CHECK(line_of(settled, "capacity").origin == "environment KVONCED_CAPACITY");
  CHECK(line_of(settled, "drain-time").origin == "file the-file");
  CHECK(line_of(settled, "idle-exit").origin == "default");
}

TEST_CASE("every setting refuses nonsense, and names itself") {
  const RunFolder folder;
  for (const Setting& setting : all_settings()) {
    const std::string name = setting.name;
    if (name == "socket" || name == "arena-file") continue;  // nearly everything is a path
    INFO(name);
    Sources sources;
    sources.flags = {{name, "no such value!"}};
    const Settled settled = settle(sources);
    CHECK(settled.errors.size() == 1);
    CHECK(names(settled.errors, "--" + name + ": "));
  }
}

TEST_CASE("every range has its ends") {
  const RunFolder folder;
  struct Case {
    const char* name;
    const char* good;
    const char* bad;
  };
  for (const Case& c : {Case{"memory", "1MiB", "1023KiB"}, Case{"memory", "64TiB", "65TiB"}, Case{"memory", "50%", "101%"},
                        Case{"max-clients", "65536", "65537"}, Case{"max-clients", "1", "0"}, Case{"numa-node", "none", "1024"},
                        Case{"idle-exit", "0", "721h"}, Case{"idle-exit", "720h", "-1s"}, Case{"drain-time", "1h", "61m"},
                        Case{"index-pages", "0", "1023"}, Case{"index-pages", "1024", "2147483649"}, Case{"partitions", "64", "65"},
                        Case{"partitions", "1", "0"}, Case{"engine-grace", "0", "61m"}, Case{"grant-deadline", "1ms", "999us"},
                        Case{"lease-time", "10ms", "9ms"}, Case{"leased-bytes", "64TiB", "65TiB"}, Case{"verify-sample", "0", "4294967296"},
                        Case{"populate", "no", "2"}, Case{"huge-pages", "reserved", "1"},
                        Case{"huge-pages", "no", "large"}, Case{"log-level", "error", "debug"}, Case{"policy", "lru", "mru"},
                        Case{"capacity", "0", "65TiB"}, Case{"least-rate", "1KiB", "1023"}, Case{"window", "64KiB", "63KiB"},
                        Case{"conflict-limit", "1", "0"}, Case{"leased-stops", "64", "65"}, Case{"drain-time", "1.5s", "1us"},
                        Case{"group", "0", "no-such-group-here"}}) {
    INFO(c.name << " " << c.good << " " << c.bad);
    Sources sources;
    sources.flags = {{c.name, c.good}};
    CHECK(settle(sources).errors.empty());
    sources.flags = {{c.name, c.bad}};
    CHECK(names(settle(sources).errors, std::string("--") + c.name + ": "));
  }
}

TEST_CASE("values that only together are wrong are refused") {
  const RunFolder folder;
  Sources sources;
  sources.flags = {{"memory", "64MiB"}, {"capacity", "65MiB"}};
  CHECK(names(settle(sources).errors, "capacity"));
  sources.flags = {{"socket", "/" + std::string(107, 'x')}};
  CHECK(names(settle(sources).errors, "107"));
}

TEST_CASE("a file's unknown keys, tables, lists, repetitions and open quotes are refused") {
  const RunFolder folder;
  CHECK(errors_of_file(folder, "memory = \"1GiB\"  # all of it\n\n# note\nidle-exit = '5s'\npopulate = false\n").empty());
  CHECK(names(errors_of_file(folder, "memroy = \"1GiB\"\n"), "the nearest is memory; allowed are socket, memory"));
  CHECK(names(errors_of_file(folder, "idle_exit = \"5s\"\n"), "the nearest is idle-exit"));
  CHECK(names(errors_of_file(folder, "[store]\nmemory = \"1GiB\"\n"), "[store]"));
  CHECK(names(errors_of_file(folder, "store.memory = \"1GiB\"\n"), "store"));
  CHECK(names(errors_of_file(folder, "memory = [\"1GiB\", \"2GiB\"]\n"), "more than one value"));
  CHECK(names(errors_of_file(folder, "memory = \"1GiB\"\nmemory = \"2GiB\"\n"), "line 2, memory: "));
  CHECK(names(errors_of_file(folder, "memory = \"1GiB\"\npartitions = 2\nmemory = \"2GiB\"\n"), "line 3, memory: "));
  CHECK(names(errors_of_file(folder, "# note\nmemroy = \"1GiB\"\n"), "line 2: \"memroy\" is no setting"));
  CHECK(names(errors_of_file(folder, "\n[store]\n"), "line 2: [store] is not allowed"));
  CHECK(names(errors_of_file(folder, "\n\nmemory = \"16MiB\" trailing\n"), "line 3, memory: "));
  CHECK(names(errors_of_file(folder, "memory = [\"16MiB\"]\n"), "line 1: memory has a list or table"));
  CHECK(names(errors_of_file(folder, "memory = {a = 1}\n"), "line 1: memory has a list or table"));
  CHECK(names(errors_of_file(folder, "memory = 2026-12-01\n"), "line 1: memory has a date or time"));
  CHECK(names(errors_of_file(folder, "socket = \"/run/\\u001b[2J\"\n"), "line 1: socket has a control character"));
  for (const char* const value : {"\"/run/x", "1GiB", "= 3", "", "# nothing", "1GiB 2GiB", "1,5GiB", "16__0", "_16", "16_"})
    CHECK(names(errors_of_file(folder, "partitions = 2\nmemory = " + std::string(value) + "\n"), "line 2, memory: no TOML: "));
  const auto both = errors_of_file(folder, "memory = [1]\n[store]\nmemroy = 1\nsocket = 2026-12-01\n");
  CHECK((names(both, "line 1: memory has a list") && names(both, "line 2: [store]") && both.size() == 2));
  CHECK(errors_of_file(folder, "memory = \"\"\"16MiB\"\"\"\nsocket = \"/run/\\u0041\"\n").empty());
  CHECK(errors_of_file(folder, std::string(10'000, 'x') + "\n").size() == 1);
  std::string wrong;
  for (int i = 0; i < 1'000; ++i) wrong += "wrong" + std::to_string(i) + " = 1\n";
  CHECK(errors_of_file(folder, wrong).size() == 20);
  CHECK(names(errors_of_file(folder, "populate\n"), "line 1"));
  CHECK(names(errors_of_file(folder, "ab\n"), "line 1"));
  CHECK(names(errors_of_file(folder, std::string(2 << 20, '#')), "larger than the allowed 1 MiB"));
  std::string lines;
  while (lines.size() <= 1 << 20) lines += "# a line of a comment\n";
  CHECK(names(errors_of_file(folder, lines), "larger than the allowed 1 MiB"));
  CHECK(errors_of_file(folder, lines.substr(0, 1 << 20)).empty());
  std::vector<std::string> errors;
  read_config_file("/dev/zero", errors);
  CHECK(names(errors, "/dev/zero is larger than the allowed 1 MiB"));
  errors.clear();
  read_config_file(folder / "absent.toml", errors);
  CHECK(names(errors, "absent.toml cannot be read: No such file"));
  errors.clear();
  REQUIRE(mkfifo((folder / "pipe").c_str(), 0600) == 0);
  read_config_file(folder / "pipe", errors);
  CHECK(names(errors, "pipe is no plain file"));
}

TEST_CASE("a # in quotes, spaces and commas belong to the value") {
  const RunFolder folder;
  write_file(folder / "f.toml", "arena-file = \"/dev/shm/a # b, c/d\"  # comment\n");
  std::vector<std::string> errors;
  const GivenTexts given = read_config_file(folder / "f.toml", errors);
  CHECK(errors.empty());
  CHECK(given.at("arena-file") == "/dev/shm/a # b, c/d");
}

TEST_CASE("numbers with underscores, a byte order mark, line ends of other systems and quoted keys are TOML too") {
  const RunFolder folder;
  write_file(folder / "f.toml", "\xef\xbb\xbfmemory = 16_777_216\r\n'partitions' = 2\r\n\"idle-exit\" = '1m'\t# so\r\narena-file = '/dev/shm/\xc3\xa9'");
  std::vector<std::string> errors;
  const GivenTexts given = read_config_file(folder / "f.toml", errors);
  CHECK(errors.empty());
  CHECK(given.at("memory") == "16777216");
  CHECK(given.at("partitions") == "2");
  CHECK(given.at("idle-exit") == "1m");
  CHECK(given.at("arena-file") == "/dev/shm/\xc3\xa9");
}

TEST_CASE("a file that is no text is refused with one line, which has none of its bytes") {
  const RunFolder folder;
  for (const std::string& text : {std::string("memory = \"1\0GiB\"\n", 16), std::string("memory = \"\x1b[2J\"\n"), std::string("\xff\xfe memory"),
                                  std::string("a = \"\xc3\"\n"), std::string("a = \"\xed\xa0\x80\"\n"), std::string("# \xc0\xaf\n"),
                                  std::string("socket = \"\xc2\x9b[2J\"\n")}) {
    const auto errors = errors_of_file(folder, text);
    REQUIRE(errors.size() == 1);
    CHECK(names(errors, "line 1"));
    for (const char c : errors.front()) CHECK((c >= ' ' && c < 0x7f));
  }
}

TEST_CASE("a socket is a path: any other scheme is refused") {
  const RunFolder folder;
  for (const char* const bad : {"tcp:1.2.3.4:5", "tcp://host/x", "http://host", "UNIX:/x", "unix:"}) {
    Sources sources;
    sources.flags = {{"socket", bad}};
    CHECK(names(settle(sources).errors, std::string("--socket: \"") + bad + "\""));
  }
  for (const std::string& good : {folder / "a:b", std::string("./a:b"), "unix:" + folder / "s", std::string("a")}) {
    Sources sources;
    sources.flags = {{"socket", good}};
    CHECK(settle(sources).errors.empty());
  }
}

TEST_CASE("what is dumped can be read back as a file, and gives the same") {
  const RunFolder folder;
  Sources sources;
  sources.flags = {{"memory", "96MiB"}, {"idle-exit", "1500ms"}, {"arena-file", "/dev/shm/a b"}, {"demote", "no"}};
  const Settled settled = settle(sources);
  REQUIRE(settled.errors.empty());
  write_file(folder / "f.toml", dump_text(settled));
  std::vector<std::string> errors;
  Sources again;
  again.file_path = folder / "f.toml";
  again.file = read_config_file(again.file_path, errors);
  CHECK(errors.empty());
  const Settled back = settle(again);
  CHECK(back.errors.empty());
  REQUIRE(back.lines.size() == settled.lines.size());
  for (std::size_t i = 0; i < back.lines.size(); ++i) {
    CHECK(back.lines[i].settled == settled.lines[i].settled);
    CHECK(back.lines[i].origin == "file " + again.file_path);
  }
}

TEST_CASE("available memory is the least that the system and any control group leaves") {
  const RunFolder folder;
  const std::string root = folder / "root";
  namespace fs = std::filesystem;
  fs::create_directories(root + "/proc/self");
  fs::create_directories(root + "/sys/fs/cgroup/a/b");
  fs::create_directories(root + "/sys/fs/cgroup/memory/c");
  CHECK(runtime::available_memory(root) == 0);
  write_file(root + "/proc/meminfo", "MemTotal:  9000 kB\nMemAvailable:    8000 kB\n");
  CHECK(runtime::available_memory(root) == 8'000 * 1'024);

  write_file(root + "/proc/self/cgroup", "0::/a/b\n");
  write_file(root + "/sys/fs/cgroup/a/b/memory.max", "max\n");
  CHECK(runtime::available_memory(root) == 8'000 * 1'024);
  write_file(root + "/sys/fs/cgroup/a/memory.max", "5000000\n");
  write_file(root + "/sys/fs/cgroup/a/memory.current", "3000000\n");
  write_file(root + "/sys/fs/cgroup/a/memory.stat", "anon 5\ninactive_file 1000000\n");
  CHECK(runtime::available_memory(root) == 3'000'000);
  write_file(root + "/sys/fs/cgroup/a/memory.current", "7000000\n");
  CHECK(runtime::available_memory(root) == 0);

  write_file(root + "/proc/self/cgroup", "4:cpu,memory:/c\n2:cpu:/\n");
  CHECK(runtime::available_memory(root) == 8'000 * 1'024);
  write_file(root + "/sys/fs/cgroup/memory/c/memory.limit_in_bytes", "4000000\n");
  write_file(root + "/sys/fs/cgroup/memory/c/memory.usage_in_bytes", "1000000\n");
  CHECK(runtime::available_memory(root) == 3'000'000);
  // A container sees its own group as the root, whatever the path says.
  write_file(root + "/proc/self/cgroup", "4:memory:/not/there\n");
  write_file(root + "/sys/fs/cgroup/memory/memory.limit_in_bytes", "2000000\n");
  CHECK(runtime::available_memory(root) == 2'000'000);

  CHECK(runtime::default_store_bytes(8ULL << 30) == 2ULL << 30);
  CHECK(runtime::default_store_bytes((8ULL << 30) + 12345) == 2ULL << 30);
}

namespace {

/// In a process of its own, which ends by what `body` sets off.
template <class Body>
int status_of_process(Body body) {
  const pid_t child = fork();
  if (child == 0) {
    body();
    _exit(99);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

TEST_CASE("the second signal ends at once; an end that takes too long is forced; one in time is not") {
  CHECK(status_of_process([] {
          Signals::block();
          Signals signals(std::chrono::hours{1}, std::chrono::milliseconds{0});
          kill(getpid(), SIGTERM);
          if (signals.wait(std::chrono::milliseconds{-1}) != Signals::Request::end) _exit(98);
          kill(getpid(), SIGINT);
          for (;;) pause();
        }) == 128 + SIGINT);
  CHECK(status_of_process([] {
          Signals::block();
          Signals signals(std::chrono::hours{1}, std::chrono::hours{1});
          kill(getpid(), SIGTERM);
          if (signals.wait(std::chrono::milliseconds{-1}) != Signals::Request::end) _exit(98);
          kill(getpid(), SIGTERM);  // the same wish, told twice
          const auto taken = [] {
            sigset_t waiting;
            sigpending(&waiting);
            return sigismember(&waiting, SIGTERM) == 0;
          };
          _exit(kvonced_test::eventually(taken) ? 0 : 97);
        }) == 0);
  CHECK(status_of_process([] {
          Signals::block();
          Signals signals(std::chrono::milliseconds{1});
          kill(getpid(), SIGTERM);
          for (;;) pause();
        }) == kExitForced);
  CHECK(status_of_process([] {
          Signals::block();
          Signals signals(std::chrono::milliseconds{1});
          signals.begin_end();
          for (;;) pause();
        }) == kExitForced);
  CHECK(status_of_process([] {
          Signals::block();
          {
            Signals signals(std::chrono::hours{1});
            kill(getpid(), SIGHUP);
            if (signals.wait(std::chrono::milliseconds{-1}) != Signals::Request::reload) _exit(97);
            if (signals.wait(std::chrono::milliseconds{0}) != Signals::Request::none) _exit(96);
            kill(getpid(), SIGTERM);
            if (signals.wait(std::chrono::milliseconds{-1}) != Signals::Request::end) _exit(98);
          }
          _exit(0);
        }) == 0);
}

}  // namespace kvonce::apps
