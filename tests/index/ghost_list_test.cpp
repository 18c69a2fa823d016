// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <random>

#include "protocol/ghost_list.hpp"
#include "tests/index/index_fixture.hpp"

using kvonce::protocol::GhostList;
using kvonce::protocol::test::scramble;

TEST_CASE("the ghost list remembers what the last N additions named, less what was erased") {
  for (const std::uint32_t capacity : {1U, 2U, 7U, 64U, 100U}) {
    CAPTURE(capacity);
    GhostList list(capacity);
    std::deque<std::optional<std::uint64_t>> last;  // newest at the back; nothing where erased or added again
    const auto forget = [&](std::uint64_t fingerprint) {
      bool was = false;
      for (auto& entry : last)
        if (entry == fingerprint) {
          entry.reset();
          was = true;
        }
      return was;
    };
    std::mt19937_64 rng(capacity);
    // Fingerprints of few homes, so that probes collide and wrap round.
    const auto any = [&] { return scramble(rng() % (3 * capacity)) << 5 | (rng() % 2 ? 31U : 0U); };
    for (int i = 0; i < 20'000; ++i) {
      const std::uint64_t fingerprint = any();
      if (rng() % 3 != 0) {
        forget(fingerprint);
        last.emplace_back(fingerprint);
        if (last.size() > capacity) last.pop_front();
        list.add(fingerprint);
      } else {
        REQUIRE(list.erase(fingerprint) == forget(fingerprint));
      }
      const std::uint64_t asked = any();
      REQUIRE(list.contains(asked) == (std::find(last.begin(), last.end(), asked) != last.end()));
      REQUIRE(list.size() == static_cast<std::uint32_t>(std::count_if(last.begin(), last.end(), [](auto& e) { return e.has_value(); })));
    }
  }
}

TEST_CASE("a ghost list of size zero remembers nothing") {
  GhostList list(0);
  list.add(1);
  CHECK_FALSE(list.contains(1));
  CHECK_FALSE(list.erase(1));
  CHECK(list.size() == 0);
  CHECK(GhostList().capacity() == 65'536);
}

TEST_CASE("fingerprint zero is a fingerprint like others") {
  GhostList list(4);
  CHECK_FALSE(list.contains(0));
  list.add(0);
  CHECK(list.contains(0));
  for (std::uint64_t i = 1; i <= 4; ++i) list.add(i);
  CHECK_FALSE(list.contains(0));
}
