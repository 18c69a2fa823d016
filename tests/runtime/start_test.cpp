// SPDX-License-Identifier: Apache-2.0
// Starts of a store that somebody else has the place of, that are interrupted, or that a group could not reach.
#include <doctest/doctest.h>

#include <sys/stat.h>
#include <unistd.h>

#include "runtime/start_interrupt.hpp"
#include "tests/runtime/remote_fixture.hpp"

using namespace runtime_test;

namespace {

/// A start is interrupted for as long as this lives.
struct Interrupted {
  Interrupted() { kvonce::runtime::start_interrupted() = true; }
  ~Interrupted() { kvonce::runtime::start_interrupted() = false; }
};

/// On tmpfs.
struct MemoryFolder {
  std::string folder = "/dev/shm/kvonce-start-XXXXXX";
  MemoryFolder() { REQUIRE(mkdtemp(folder.data()) != nullptr); }
  ~MemoryFolder() {
    std::error_code code;
    std::filesystem::remove_all(folder, code);
  }
};

}  // namespace

TEST_CASE("a second store of a socket is refused before it takes memory") {
  const Place place;
  const MemoryFolder memory;
  const auto first = serve(serving(place));
  RuntimeConfig config = serving(place);
  config.arena_bytes = 64ULL << 40;
  config.arena_file = memory.folder + "/arena";
  const auto second = Runtime::start(config);
  CHECK_FALSE(second);
  CHECK_MESSAGE(second.error.text.find("already serves") != std::string::npos, second.error.text);
  CHECK(std::filesystem::is_empty(memory.folder));
}

TEST_CASE("an interrupted start ends with canceled, leaves no socket, and the last life's pages wait for the next one") {
  const Place place;
  const MemoryFolder memory;
  RuntimeConfig config = serving(place);
  config.arena_file = memory.folder + "/arena";
  {
    const Interrupted interrupted;
    const auto none = Runtime::start(config);
    CHECK_FALSE(none);
    CHECK(none.error.reason == Reason::canceled);
  }
  {
    const auto first = serve(config);
    CHECK_FALSE(first->store_start().warm);
    CHECK(!first->drain(std::chrono::seconds(60)));
  }
  {
    const Interrupted interrupted;
    CHECK(Runtime::start(config).error.reason == Reason::canceled);
  }
  const auto warm = serve(config);
  CHECK_MESSAGE(warm->store_start().warm, warm->store_start().why_cold);
}

TEST_CASE("a group that could not reach the socket is refused with the folder") {
  const Place place;
  RuntimeConfig config = serving(place);
  config.serve_group = std::to_string(getegid());
  REQUIRE(chmod(place.folder.c_str(), 0700) == 0);
  const auto closed = Runtime::start(config);
  CHECK_FALSE(closed);
  CHECK_MESSAGE(closed.error.text.find("serve_group is '" + config.serve_group + "': members of it may not enter the folder " + place.folder) == 0,
                closed.error.text);
  REQUIRE(chmod(place.folder.c_str(), 0710) == 0);
  CHECK(serve(config));
}

TEST_CASE("huge pages are off, transparent or reserved; a bool means the first two") {
  RuntimeConfig config;
  CHECK(config.huge_pages == HugePages::transparent);
  config.huge_pages = false;
  CHECK(config.huge_pages == HugePages::off);
  config.huge_pages = true;
  CHECK(config.huge_pages == HugePages::transparent);
  // Also where no other process shares the memory: the pages, or an error that tells of them.
  RuntimeConfig own = small_config();
  own.huge_pages = HugePages::reserved;
  const auto started = Runtime::start(own);
  if (!started) CHECK_MESSAGE(started.error.text.find("reserved huge pages") != std::string::npos, started.error.text);
}
