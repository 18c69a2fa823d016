// SPDX-License-Identifier: Apache-2.0
//
// kvonce put, get, exists, rm, stat, clear, flush on a store of another process, and what they say where there is none.
#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>

#include <doctest/doctest.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "tests/cli/store_fixture.hpp"

using namespace kvonce::cli_test;
using kvonce::kvonced_test::BoundSocket;
using kvonce::kvonced_test::read_file;
using kvonce::kvonced_test::write_file;
using nlohmann::json;
using Words = std::vector<std::string>;

namespace {

const std::string kHash(64, 'a');

void refused(const Words& arguments, const Words& told, const std::string& input = {}) {
  const ProgramResult result = run_program(arguments, input);
  INFO(arguments.front() << ": " << result.err);
  CHECK(result.exit_status == 2);
  CHECK(result.out.empty());
  CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
  for (const std::string& part : told) {
    INFO(part);
    CHECK(contains(result.err, part));
  }
}

void put(const std::string& page, const std::string& file) { REQUIRE(run_program({"put", page, file}).exit_status == 0); }

}  // namespace

TEST_CASE("Help of every command on a store fits a screen") {
  for (const char* command : {"put", "get", "exists", "rm", "stat", "clear", "flush"}) {
    const ProgramResult result = run_program({command, "--help"});
    INFO(command);
    CHECK(result.exit_status == 0);
    CHECK(std::count(result.out.begin(), result.out.end(), '\n') <= 24);
  }
}

TEST_CASE("Where no store runs every command says so, and starts none") {
  const RunFolder folder;
  write_file(folder / "file", "x");
  for (const Words& arguments : {Words{"put", "name:a", folder / "file"}, Words{"get", "name:a"}, Words{"exists", "name:a"},
                                 Words{"rm", "name:a"}, Words{"stat"}, Words{"clear", "--yes"}, Words{"flush"}}) {
    refused(arguments, {"no store runs on unix:" + folder.socket(), "start one with kvonced"});
    Words elsewhere = arguments;
    elsewhere.insert(elsewhere.end(), {"--store", "unix:" + (folder / "none")});
    refused(elsewhere, {"no store runs on unix:" + (folder / "none"), "kvonced --socket " + (folder / "none")});
  }
  write_file(folder / "file", "x");
  refused({"stat", "--store", "unix:" + (folder / "file")}, {folder / "file", "no socket"});
  refused({"stat", "--store", "tcp:host"}, {"\"tcp:host\"", "auto and unix:PATH"});
  CHECK_FALSE(std::filesystem::exists(folder.socket()));
}

TEST_CASE("What is wrong with pages, files and times is said before anything is asked") {
  const RunFolder folder;
  write_file(folder / "a", bytes_of(100, 1));
  write_file(folder / "b", bytes_of(101, 1));
  write_file(folder / "empty", "");
  const std::string a = folder / "a";
  refused({"get", "abc"}, {"\"abc\"", "64 hexadecimal digits"});
  refused({"get", "name:"}, {"\"name:\""});
  refused({"exists", "name:a", kHash, kHash}, {kHash, "twice"});
  refused({"put", "name:a"}, {"name:a", "without a file"});
  refused({"put", "name:a", folder / "none"}, {"none: No such file"});
  refused({"put", "name:a", folder.path()}, {"is a directory"});
  refused({"put", "name:a", folder / "empty"}, {"empty has 0 B", "1 B to 256 MiB"});
  refused({"put", "name:a", a, "name:b", folder / "b"}, {"101 B", "100 B", "--pool"});
  refused({"put", "name:a", "-", "name:b", "-"}, {"standard input is given twice"}, "x");
  refused({"put", "name:a", "-"}, {"standard input has 0 B"});
  refused({"rm"}, {"--namespace-all"});
  refused({"rm", "name:a", "--namespace-all"}, {"--namespace-all"});
  refused({"clear"}, {"--yes"});
  refused({"flush", "--level", "tape"}, {"tape", "disk"});
  refused({"get", "name:a", "--json"}, {"-o"});
  refused({"stat", ""}, {"PAGE", "is empty"});
  refused({"exists", "name:a", "--pool", ""}, {"--pool", "is empty"});
  refused({"get", "name:a", "--pool", ""}, {"--pool", "is empty"});
  refused({"stat", "--timeout", "0"}, {"--timeout"});
  refused({"stat", "--format", "xml"}, {"xml"});
}

TEST_CASE("Files that were put come back whole, under hashes and under names") {
  const RunFolder folder;
  LiveStore store(folder);
  REQUIRE(store.ready());
  const std::string a = bytes_of(5'000, 1);
  const std::string b = bytes_of(5'000, 2);
  write_file(folder / "a", a);
  write_file(folder / "b", b);

  const json put = run_json({"put", kHash, folder / "a", "name:b", folder / "b"});
  CHECK(put["store"] == "unix:" + folder.socket());
  CHECK(put["namespace"] == "shell");
  CHECK(put["pool"] == "bytes");
  CHECK(put["object_bytes"] == 5'000);
  CHECK(put["verdicts"]["stored"] == 2);
  CHECK(put["verdicts"]["rejected"] == 0);
  CHECK(put["differing"] == 0);
  REQUIRE(put["pages"].size() == 2);
  CHECK(put["pages"][0]["hash"] == kHash);
  CHECK(put["pages"][1]["page"] == "name:b");
  CHECK(put["pages"][1]["hash"].get<std::string>().size() == 64);
  CHECK(put["pages"][1]["verdict"] == "stored");
  CHECK(put["pages"][1]["read_back"] == "same");

  CHECK(run_program({"get", kHash}).out == a);
  CHECK(run_program({"get", put["pages"][1]["hash"], "-o", "-"}).out == b);
  CHECK(run_program({"stat", "--format", "json"}).json().is_object());
  CHECK(contains(run_program({"stat", "--format", "text"}).out, "store     unix:"));
  const json got = run_json({"get", "name:b", "-o", folder / "b2"});
  CHECK(got["found"] == true);
  CHECK(got["object_bytes"] == 5'000);
  CHECK(got["file"] == folder / "b2");
  CHECK(read_file(folder / "b2") == b);
  const ProgramResult text = run_program({"get", kHash, "-o", folder / "a2"});
  CHECK(contains(text.out, "5,000 B"));
  CHECK(read_file(folder / "a2") == a);
  for (const Words& quiet : {Words{"get", kHash, "-q"}, Words{"put", kHash, folder / "a", "-q"}, Words{"exists", kHash, "-q"},
                             Words{"stat", "-q"}, Words{"flush", "-q"}}) {
    const ProgramResult result = run_program(quiet);
    CHECK(result.exit_status == 0);
    CHECK((result.out + result.err).empty());
  }
  refused({"get", kHash, "-o", folder / "no/such"}, {"no/such", "No such file"});
}

TEST_CASE("What is already stored is no failure, but other bytes under its hash are told") {
  const RunFolder folder;
  LiveStore store(folder);
  REQUIRE(store.ready());
  write_file(folder / "a", bytes_of(64, 1));
  write_file(folder / "b", bytes_of(64, 2));
  put(kHash, folder / "a");
  CHECK(run_json({"put", kHash, folder / "a"})["verdicts"]["already_stored"] == 1);
  const json other = run_json({"put", kHash, folder / "b"}, 1);
  CHECK(other["differing"] == 1);
  CHECK(other["pages"][0]["read_back"] == "differs");
  CHECK(contains(run_program({"put", kHash, folder / "b"}).out, "differs from"));
  CHECK(run_program({"get", kHash}).out == bytes_of(64, 1));
}

TEST_CASE("A pool has one size: another is refused with both, another pool takes it") {
  const RunFolder folder;
  LiveStore store(folder);
  REQUIRE(store.ready());
  write_file(folder / "a", bytes_of(4'096, 1));
  write_file(folder / "b", bytes_of(100, 1));
  put("name:a", folder / "a");
  refused({"put", "name:b", folder / "b"}, {"100 B", "4,096 B", "\"bytes\"", "--pool"});
  CHECK(run_program({"exists", "name:b"}).exit_status == 1);
  CHECK(run_json({"put", "name:b", folder / "b", "--pool", "small"})["object_bytes"] == 100);
  CHECK(run_json({"put", "name:b", folder / "b", "--namespace", "mine"})["namespace"] == "mine");
  CHECK(run_program({"get", "name:b", "--pool", "small"}).out == bytes_of(100, 1));
  const ProgramResult wrong_pool = run_program({"get", "name:a", "--pool", "small"});
  CHECK(wrong_pool.exit_status == 1);
  CHECK(contains(wrong_pool.err, "not in this pool"));
  // Nor in one that nobody has put anything into.
  CHECK(run_json({"get", "name:a", "--pool", "none", "-o", folder / "c"}, 1)["reason"] == "group_incomplete");
  CHECK(run_json({"get", "name:none", "--pool", "none", "-o", folder / "c"}, 1)["reason"] == "absent");
  const json pools = run_json({"stat", "--namespace", "shell"})["pools"];
  REQUIRE(pools.size() == 2);
  CHECK(pools[0] == json{{"pool", "bytes"}, {"shards", 1}, {"object_bytes", 4'096}});
}

TEST_CASE("A miss says why, and makes no file and no namespace") {
  const RunFolder folder;
  LiveStore store(folder, {"--capacity", "1MiB"});
  REQUIRE(store.ready());
  const ProgramResult miss = run_program({"get", "name:a", "-o", folder / "out"});
  CHECK(miss.exit_status == 1);
  CHECK(miss.out.empty());
  CHECK(contains(miss.err, "never stored, was removed, or is forgotten"));
  const json absent = run_json({"get", "name:a", "-o", folder / "out"}, 1);
  CHECK(absent["found"] == false);
  CHECK(absent["reason"] == "absent");
  CHECK_FALSE(std::filesystem::exists(folder / "out"));
  CHECK(contains(run_program({"rm", "--namespace-all"}).out, "no namespace"));
  CHECK(run_program({"stat", "--namespace", "shell"}).exit_status == 1);

  // Three do not fit.
  for (int i = 0; i < 3; ++i) {
    write_file(folder / "big", bytes_of(400'000, i));
    put("name:" + std::to_string(i), folder / "big");
  }
  const json evicted = run_json({"get", "name:0", "-o", folder / "out"}, 1);
  CHECK(evicted["reason"] == "evicted");
  CHECK(contains(run_program({"get", "name:0"}).err, "evicted"));
  CHECK_FALSE(std::filesystem::exists(folder / "out"));
  CHECK(run_program({"get", "name:2"}).out == bytes_of(400'000, 2));

  // A file that cannot be written to its end is not left behind: half a page looks like one. One that was there before stays.
  const auto limited = [&](const std::string& file) {
    const std::string command = "trap '' XFSZ; ulimit -f 100; exec '" KVONCE_PROGRAM "' get name:2 -o '" + file + "' 2> '" + (folder / "why") + "'";
    return std::system(command.c_str());
  };
  write_file(folder / "before", "x");
  for (const char* const name : {"out", "before"}) {
    const int status = limited(folder / name);
    CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 2));
    CHECK(contains(read_file(folder / "why"), "File too large"));
  }
  CHECK_FALSE(std::filesystem::exists(folder / "out"));
  CHECK(std::filesystem::exists(folder / "before"));

  write_file(folder / "huge", bytes_of(1'500'000, 1));
  const json huge = run_json({"put", "name:huge", folder / "huge", "--pool", "huge"}, 1);
  CHECK(huge["verdicts"]["rejected"] == 1);
  CHECK(huge["pages"][0]["reason"] == "no_space");
}

TEST_CASE("exists and rm tell of each page, and by their status of all") {
  const RunFolder folder;
  LiveStore store(folder);
  REQUIRE(store.ready());
  write_file(folder / "a", bytes_of(10, 1));
  put("name:a", folder / "a");
  put("name:b", folder / "a");
  const json both = run_json({"exists", "name:a", "name:b"});
  CHECK(both["found_pages"] == 2);
  const json some = run_json({"exists", "name:a", "name:x"}, 1);
  CHECK(some["found_pages"] == 1);
  CHECK(some["missing_pages"] == 1);
  CHECK(some["pages"][1]["found"] == false);
  CHECK(run_program({"exists", "name:a", "--pool", "other"}).exit_status == 1);
  CHECK(run_program({"exists", "name:a", "--pool", "bytes"}).out == "name:a: yes\n");

  const json removed = run_json({"rm", "name:a", "name:x"}, 1);
  CHECK(removed["removed_objects"] == 1);
  CHECK(removed["missing_pages"] == 1);
  CHECK(removed["pages"][0]["found"] == true);
  CHECK(run_program({"exists", "name:a"}).exit_status == 1);
  const ProgramResult gone = run_program({"get", "name:a"});
  CHECK(gone.exit_status == 1);
  CHECK(contains(gone.err, "was removed"));
  CHECK(run_program({"rm", "name:b"}).out == "name:b: removed\n");

  put("name:a", folder / "a");
  REQUIRE(run_program({"put", "name:c", folder / "a", "--namespace", "other"}).exit_status == 0);
  CHECK(run_json({"rm", "--namespace-all"})["removed_objects"] == 1);
  CHECK(run_program({"exists", "name:c", "--namespace", "other"}).exit_status == 0);
  CHECK(contains(run_program({"clear", "--yes"}).out, "1 object removed from unix:"));
  CHECK(run_program({"exists", "name:c", "--namespace", "other"}).exit_status == 1);
}

TEST_CASE("stat tells a page's place and objects, and a chain's depths") {
  const RunFolder folder;
  LiveStore store(folder);
  REQUIRE(store.ready());
  write_file(folder / "a", bytes_of(300, 1));
  REQUIRE(run_program({"put", "--chain", "name:0", folder / "a", "name:1", folder / "a", "name:2", "-"}, bytes_of(300, 2))
              .exit_status == 0);
  const json page = run_json({"stat", "name:2"});
  CHECK(page["found"] == true);
  CHECK(page["depth_pages"] == 2);
  REQUIRE(page["objects"].size() == 1);
  CHECK(page["objects"][0] == json{{"pool", "bytes"}, {"shard", 0}, {"object_bytes", 300}, {"level", "memory"}});
  CHECK(run_program({"get", "name:2"}).out == bytes_of(300, 2));
  CHECK(run_json({"stat", "name:3"}, 1)["found"] == false);
  CHECK(run_json({"stat", "name:2", "--namespace", "none"}, 1)["found"] == false);
  CHECK(contains(run_program({"stat", "name:2"}).out, "300 B"));
}

TEST_CASE("stat tells of the store: memory, counters, its process, its clients") {
  const RunFolder folder;
  LiveStore store(folder, {"--capacity", "32MiB"});
  REQUIRE(store.ready());
  write_file(folder / "a", bytes_of(1'000, 1));
  put("name:a", folder / "a");
  static_cast<void>(run_program({"get", "name:x"}));
  const json out = run_json({"stat"});
  CHECK(out["store"] == "unix:" + folder.socket());
  CHECK(out["pid"] == store.pid());
  CHECK(out["incarnation"].get<std::string>().size() == 16);
  CHECK(out["start"]["warm"] == false);
  CHECK(out["memory"]["capacity_bytes"] == 32 << 20);
  CHECK(out["memory"]["payload_bytes"] == 1'000);
  CHECK(out["objects"] == 1);
  CHECK(out["since_start"]["stored_bytes"] == 1'000);
  CHECK(out["since_start"]["misses"]["absent"] == 1);
  CHECK(out["clients"].empty());  // itself it does not count
  const ProgramResult text = run_program({"stat"});
  CHECK(contains(text.out, "process " + std::to_string(store.pid())));
  CHECK(contains(text.out, "1,000 B of payload"));
  CHECK(contains(text.out, "clients   none"));

  // A replay that waits for its trace stays connected: its lookups have been answered when it asks for more.
  LiveProgram replay({"replay", "--trace", "-", "--preset", "kimi-k2", "--keys", "shard", "--via", "unix:" + folder.socket()});
  replay.write(growing_trace(1));
  REQUIRE(replay.wait_for_terminal("1 requests,"));
  const json with = run_json({"stat"});
  REQUIRE(with["clients"].size() == 1);
  CHECK(with["clients"][0]["engine"] == "replay");
  CHECK(with["clients"][0]["ranks"] == 8);
  CHECK(with["clients"][0]["open_grants"] == 0);
  replay.signal(SIGTERM);
  CHECK(replay.finish().exit_status == 1);
}

TEST_CASE("flush is done at levels that the store has") {
  const RunFolder folder;
  LiveStore store(folder);
  REQUIRE(store.ready());
  const json out = run_json({"flush"});
  CHECK(out["level"] == "memory");
  CHECK(out["seconds"].is_number());
  refused({"flush", "--level", "disk"}, {"disk", folder.socket(), "it has memory only"});
}

TEST_CASE("A result that nobody can get is told as an error: output that is full, and output that is closed") {
  const RunFolder folder;
  LiveStore store(folder);
  REQUIRE(store.ready());
  write_file(folder / "a", "x");
  put("name:a", folder / "a");
  for (const std::string command : {"stat", "stat --json", "exists name:a", "get name:a", "flush", "flush --json"}) {
    for (const std::string output : {">/dev/full", ">&-"}) {
      const auto result = kvonce::kvonced_test::run("/bin/sh", {"-c", std::string(KVONCE_PROGRAM) + " " + command + " " + output});
      INFO(command << output);
      CHECK(result.status == 2);
      CHECK(contains(result.err, "standard output"));
    }
  }
  CHECK(kvonce::kvonced_test::run("/bin/sh", {"-c", std::string(KVONCE_PROGRAM) + " flush -q >&-"}).status == 0);
}

TEST_CASE("Names with control characters are shown escaped, and JSON with names that are no UTF-8 is JSON") {
  const RunFolder folder;
  LiveStore store(folder);
  REQUIRE(store.ready());
  write_file(folder / "a", "x");
  // Clears a screen, in both ways; writes from right to left; and a byte that is none of UTF-8.
  const std::string name = "k\x1b[2J\xc2\x9b" "2J\xe2\x80\xae" "l\xff\xc3\xa4";
  const std::string shown = "k\\x1b[2J\\xc2\\x9b" "2J\\xe2\\x80\\xae" "l\\xff\xc3\xa4";
  REQUIRE(run_program({"put", "name:" + name, folder / "a", "--pool", name, "--namespace", name}).exit_status == 0);
  const Words commands[] = {{"stat", "--namespace", name}, {"stat", "name:" + name, "--namespace", name}, {"exists", "name:" + name, "--namespace", name},
                            {"rm", "name:" + name, "--namespace", name}, {"rm", "--namespace-all", "--namespace", name}};
  for (const Words& command : commands) {
    INFO(command.front());
    Words as_json = command;
    as_json.emplace_back("--json");
    const ProgramResult shown_json = run_program(as_json);
    CHECK(shown_json.json()["namespace"] == "k\x1b[2J\xc2\x9b" "2J\xe2\x80\xae" "l\xef\xbf\xbd\xc3\xa4");
    for (const char* const part : {"\x1b", "\xc2\x9b", "\xe2\x80\xae"}) CHECK_FALSE(contains(shown_json.out, part));
    CHECK(contains(shown_json.out, "k\\u001b[2J\\u009b2J\\u202el"));
    if (command.front() == "rm") REQUIRE(run_program({"put", "name:" + name, folder / "a", "--pool", name, "--namespace", name}).exit_status == 0);
    const ProgramResult text = run_program(command);
    CHECK(text.exit_status == 0);
    CHECK(contains(text.out, shown));
    CHECK_FALSE(contains(text.out, "\x1b"));
  }
  const ProgramResult missing = run_program({"get", "name:" + name, "--namespace", name});
  CHECK(missing.exit_status == 1);
  CHECK(contains(missing.err, shown));
  CHECK_FALSE(contains(missing.err, "\x1b"));
}

TEST_CASE("A pool's name is as long as put can write it, and a longer one is refused with its option") {
  const RunFolder folder;
  LiveStore store(folder);
  REQUIRE(store.ready());
  write_file(folder / "a", "x");
  const std::string longest(249, 'p');
  CHECK(run_program({"put", "name:a", folder / "a", "--pool", longest}).exit_status == 0);
  CHECK(run_program({"get", "name:a", "--pool", longest}).out == "x");
  refused({"put", "name:a", folder / "a", "--pool", longest + "p"}, {"--pool", "250 bytes", "1 to 249"});
  refused({"get", "name:a", "--pool", longest + "p"}, {"--pool", "250 bytes", "1 to 249"});
}

TEST_CASE("A store that is stopped or dead does not hold a command up") {
  const RunFolder folder;
  LiveStore store(folder);
  REQUIRE(store.ready());
  store.signal(SIGSTOP);
  refused({"stat", "--timeout", "200ms"}, {folder.socket(), "in time"});
  store.signal(SIGKILL);
  CHECK(store.finish() == 128 + SIGKILL);
  refused({"stat"}, {"no store runs"});
  // Somebody who is no store.
  const BoundSocket other(folder / "other", SOCK_SEQPACKET);
  REQUIRE(other.ready());
  refused({"stat", "--timeout", "200ms", "--store", "unix:" + (folder / "other")}, {"in time"});
}

TEST_CASE("--store auto starts this user's store, for the next command too") {
  const RunFolder folder;
  write_file(folder / "a", bytes_of(10, 1));
  REQUIRE(run_program({"put", "name:a", folder / "a", "--store", "auto"}).exit_status == 0);
  CHECK(run_program({"get", "name:a"}).out == bytes_of(10, 1));
  CHECK(run_program({"stop"}).exit_status == 0);
}

TEST_CASE("A benchmark that a store cannot hold is refused before it begins, and leaves nothing in it") {
  const RunFolder folder;
  LiveStore store(folder);
  REQUIRE(store.ready());
  const std::string address = "unix:" + folder.socket();
  for (const char* const job : {"put", "get", "exists"})
    refused({"bench", job, "--via", address, "--pages", "65536", "--page-bytes", "64KiB"},
            {address + " keeps at most ", "this benchmark needs 4 GiB at once"});
  CHECK(run_json({"stat"})["objects"] == 0);
  CHECK(run_json({"stat"})["since_start"]["announced_objects"] == 0);
}
