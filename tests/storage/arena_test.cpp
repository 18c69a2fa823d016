// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "storage/arena.hpp"

using namespace kvonce::storage;

namespace {

// Whether the page at `at` has memory behind it.
bool resident(const std::byte* at) {
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  unsigned char state = 0;
  REQUIRE(mincore(const_cast<std::byte*>(at) - reinterpret_cast<std::uintptr_t>(at) % page, 1, &state) == 0);
  return (state & 1) != 0;
}

bool mapped(std::byte* at) {
  unsigned char state = 0;
  return mincore(at, 1, &state) == 0;
}

}  // namespace

TEST_CASE("an arena is aligned, rounded up, zeroed and writable to its last byte") {
  auto [arena, error] = Arena::create({.bytes = Arena::kAlignment + 1});
  REQUIRE(arena);
  CHECK(error.empty());
  CHECK(arena->bytes() == 2 * Arena::kAlignment);
  CHECK(reinterpret_cast<std::uintptr_t>(arena->base()) % Arena::kAlignment == 0);
  CHECK(arena->base()[arena->bytes() - 1] == std::byte{0});
  arena->base()[arena->bytes() - 1] = std::byte{7};
  CHECK(arena->base()[arena->bytes() - 1] == std::byte{7});
}

TEST_CASE("an arena is unmapped with its last owner") {
  std::byte* base = nullptr;
  {
    auto result = Arena::create({.bytes = Arena::kAlignment});
    REQUIRE(result.arena);
    base = result.arena->base();
    Arena other = *std::move(result.arena);
    result.arena.reset();
    CHECK(other.base() == base);
    CHECK(mapped(base));
  }
  CHECK_FALSE(mapped(base));
}

TEST_CASE("memory is taken when it is populated, and keeps its bytes") {
  auto result = Arena::create({.bytes = 2 * Arena::kAlignment, .huge_pages = HugePages::off});
  REQUIRE(result.arena);
  Arena& arena = *result.arena;
  std::byte* const second = arena.base() + Arena::kAlignment;
  CHECK_FALSE(resident(second));
  second[5] = std::byte{42};
  CHECK_FALSE(resident(second + Arena::kAlignment - 1));
  CHECK_FALSE(arena.populate(Arena::kAlignment + 1, Arena::kAlignment - 1));
  CHECK(resident(second + Arena::kAlignment - 1));
  CHECK(second[5] == std::byte{42});
  CHECK_FALSE(resident(arena.base()));
}

TEST_CASE("an arena can be populated from the start") {
  auto result = Arena::create({.bytes = Arena::kAlignment, .huge_pages = HugePages::off, .populate = true});
  REQUIRE(result.arena);
  CHECK(resident(result.arena->base()));
  CHECK(resident(result.arena->base() + Arena::kAlignment - 1));
}

// ThreadSanitizer's own handler takes the child's fault before its end can be seen.
#if !defined(__SANITIZE_THREAD__)
TEST_CASE("a forked child does not have the arena") {
  auto result = Arena::create({.bytes = Arena::kAlignment});
  REQUIRE(result.arena);
  std::byte* const base = result.arena->base();
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    unsigned char state = 0;
    _exit(mincore(base, 1, &state) == 0 ? 1 : 0);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}
#endif

TEST_CASE("what cannot be mapped or populated is told with its size") {
  CHECK(Arena::create({}).error == "an arena needs at least one byte");
  CHECK(Arena::create({.bytes = ~std::uint64_t{0}}).error ==
        "an arena of 18446744073709551615 bytes is beyond the address space");
  const auto huge = Arena::create({.bytes = std::uint64_t{1} << 60});
  CHECK_FALSE(huge.arena);
  CHECK(huge.error == "mapping 1152921504606846976 bytes of arena failed: Cannot allocate memory");
  auto result = Arena::create({.bytes = Arena::kAlignment});
  REQUIRE(result.arena);
  const auto error = result.arena->populate(Arena::kAlignment - 4'096, 8'192);
  REQUIRE(error);
  CHECK(*error == "populating 8192 bytes at 2093056: the arena has 2097152");
  CHECK_FALSE(result.arena->populate(Arena::kAlignment, 0));
}
