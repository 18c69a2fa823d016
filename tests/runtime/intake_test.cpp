// SPDX-License-Identifier: Apache-2.0
//
// What of the clients' messages may wait in a store's mailboxes.
#include "actors/intake.hpp"

#include <doctest/doctest.h>

#include <optional>

namespace runtime_test {

using kvonce::actors::Intake;
using kvonce::actors::IntakeLimits;
using kvonce::messages::IntakeMark;

TEST_CASE("an intake is full with as many messages or bytes as it may have, in any partition, and wakes once when they are gone") {
  const auto intake = std::make_shared<Intake>(2, IntakeLimits{40, 4'000});
  int wakes = 0;
  intake->set_wake([&wakes] { ++wakes; });
  std::vector<IntakeMark> mailbox;
  const auto message = [&](std::uint32_t partition, std::uint64_t bytes) {
    if (intake->count(partition, bytes)) mailbox.push_back(intake->mark(partition));
  };
  for (int i = 0; i < 39; ++i) message(1, 10);
  CHECK(!intake->full());
  message(1, 10);
  CHECK(intake->full());
  CHECK(mailbox.size() == 4);
  CHECK(wakes == 0);
  // Whoever handles it has copies of it; the last one tells.
  std::optional<IntakeMark> handled = mailbox.front();
  mailbox.erase(mailbox.begin());
  CHECK(intake->full());
  handled.reset();
  CHECK(wakes == 1);
  CHECK(!intake->full());
  // A mailbox that ends with everything in it.
  mailbox.clear();
  CHECK(wakes == 1);
  for (int i = 0; i < 4; ++i) message(0, 1'000);
  CHECK(intake->full());
  intake->set_wake({});
  mailbox.clear();
  CHECK(wakes == 1);
  CHECK(!intake->full());
}

}  // namespace runtime_test
