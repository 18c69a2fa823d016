// SPDX-License-Identifier: Apache-2.0
//
// A page whose record is under change for longer than a reader looks: no miss.
#include <atomic>
#include <cstring>

#include "fixture.hpp"
#include "runtime/core.hpp"

namespace runtime_test {

namespace {

/// The sequence word of a page's record in the mapped index: it lies before the hash, in one cache line.
std::uint32_t* sequence_of(const Engine& engine, const PageHash& page) {
  const auto view = engine.runtime->impl().core->view();
  for (std::uint64_t at = 0; at + 64 <= view->bytes; at += 64)
    if (std::memcmp(view->base + at + 8, page.words.data(), sizeof(page.words)) == 0) return reinterpret_cast<std::uint32_t*>(view->base + at);
  return nullptr;
}

}  // namespace

TEST_CASE("a page under change is waited for, and then busy; it is never told as a miss") {
  Engine engine;
  engine.put(0, 1, 0, 2)->wait();
  const PageHash page = page_of(1, 1);
  std::uint32_t* const sequence = sequence_of(engine, page);
  REQUIRE(sequence != nullptr);
  const std::atomic_ref<std::uint32_t> word(*sequence);
  REQUIRE(word % 2 == 0);
  ++word;  // as its writer leaves it while it stands still
  const auto stat = engine.runtime->stat(engine.ns, page);
  CHECK(stat.error.reason == Reason::busy);
  const std::vector<PageHash> pages = chain_of(1, 2);
  CHECK(engine.runtime->exists(engine.group, "latent", 0, pages).error.reason == Reason::busy);
  CHECK(engine.ranks[0].rank->exists(engine.ranks[0].pool, pages).error.reason == Reason::busy);
  ++word;
  auto found = engine.runtime->stat(engine.ns, page);
  CHECK(found->found);
  CHECK(found->objects.size() == 1);
  CHECK(*engine.runtime->exists(engine.group, "latent", 0, pages) == std::vector<std::uint8_t>{1, 1});
  // One that is there again before the time is over is found.
  int looks = 0;
  CHECK(kvonce::runtime::settle([&looks] { return ++looks == 50; }));
  CHECK(looks == 50);
}

}  // namespace runtime_test
