// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "protocol/epoch_book.hpp"

namespace kvonce::protocol {
namespace {

constexpr Duration kGrace = 2 * kSecond;
constexpr EngineId kEngineOne = 11, kEngineTwo = 22;

struct Book : EpochBook {
  Book() : EpochBook(kGrace) {}
  std::uint64_t given = 0;
  /// Each asking brings another fresh value.
  RegisterAnswer ask(ClientId client, const std::string& name, Time now = 0, Digest128 known = {}) {
    return EpochBook::ask(client, {name, known}, {++given, 7}, now);
  }
  std::uint64_t value(ClientId client, const std::string& name, Time now = 0) {
    const RegisterAnswer answer = ask(client, name, now);
    CHECK_MESSAGE(!answer.error, answer.error.text);
    return answer.epoch.high;
  }
};

}  // namespace

TEST_CASE("all processes of an engine get one value for a name, another name or engine has another") {
  Book book;
  book.client_joined(1, kEngineOne, 0);
  book.client_joined(2, kEngineOne, 0);
  book.client_joined(3, kEngineTwo, 0);
  const std::uint64_t first = book.value(1, "weights 1");
  CHECK(book.value(2, "weights 1") == first);
  CHECK(book.value(1, "weights 1") == first);
  CHECK(book.value(2, "weights 2") != first);
  CHECK(book.value(3, "weights 1") != first);
  CHECK(book.value(3, "weights 1") == book.value(3, "weights 1"));
}

TEST_CASE("an engine that is gone for the grace has its values forgotten, one that comes back sooner finds them") {
  Book book;
  book.client_joined(1, kEngineOne, 0);
  book.client_joined(2, kEngineOne, 0);
  const std::uint64_t first = book.value(1, "w");
  book.client_left(1, 5 * kSecond);
  // One process is left, for as long as it likes.
  CHECK(book.value(2, "w", 500 * kSecond) == first);
  book.client_left(2, 500 * kSecond);
  book.client_left(2, 501 * kSecond);  // said twice: only the first counts
  book.client_joined(3, kEngineOne, 500 * kSecond + kGrace - 1);
  CHECK(book.value(3, "w", 502 * kSecond) == first);
  book.client_left(3, 600 * kSecond);
  book.client_joined(4, kEngineOne, 600 * kSecond + kGrace);
  CHECK(book.value(4, "w", 603 * kSecond) != first);
}

TEST_CASE("nothing is kept of an engine that does not come back") {
  Book book;
  for (ClientId client = 1; client <= 100; ++client) {
    const Time now = client * 10 * kSecond;
    book.client_joined(client, client, now);
    book.value(client, "w", now);
    book.client_left(client, now + kSecond);
    CHECK(book.engines() <= 1);
  }
  Book without_grace;
  static_cast<EpochBook&>(without_grace) = EpochBook(0);
  without_grace.client_joined(1, kEngineOne, 0);
  const std::uint64_t first = without_grace.value(1, "w");
  without_grace.client_left(1, 5);
  CHECK(without_grace.engines() == 0);
  without_grace.client_joined(2, kEngineOne, 5);
  CHECK(without_grace.value(2, "w", 5) != first);
}

TEST_CASE("an engine's newest 1,024 epochs stay what they were; one that went for newer ones is an error, never another value") {
  Book book;
  book.client_joined(1, kEngineOne, 0);
  book.client_joined(2, kEngineTwo, 0);
  book.client_joined(3, kEngineOne, 0);
  constexpr std::size_t kAsked = 3 * kMaxEpochsPerEngine;
  std::vector<std::uint64_t> values;
  for (std::size_t i = 0; i < kAsked; ++i) {
    values.push_back(book.value(1, std::to_string(i)));
    // Whoever of the engine asks for one of the newest gets the same.
    const std::size_t back = i - std::min(i, kMaxEpochsPerEngine - 1);
    REQUIRE(book.value(3, std::to_string(back)) == values[back]);
  }
  for (std::size_t i = 0; i < kAsked; ++i) {
    const RegisterAnswer again = book.ask(i % 2 == 0 ? 1 : 3, std::to_string(i));
    if (i + kMaxEpochsPerEngine >= kAsked) {
      REQUIRE(again.epoch.high == values[i]);
      continue;
    }
    REQUIRE(again.error.reason == Reason::too_many);
    REQUIRE(again.error.text.find("'" + std::to_string(i) + "' was dropped") != std::string::npos);
    REQUIRE(again.epoch == Digest128{});
    REQUIRE(book.ask(1, std::to_string(i), 0, Digest128{values[i], 1}).error.reason == Reason::too_many);
  }
  CHECK(book.value(2, "0") != values[0]);
}

TEST_CASE("what is told from an earlier life pushes nothing out") {
  Book book;
  book.client_joined(1, kEngineOne, 0);
  const std::uint64_t first = book.value(1, "0");
  for (std::size_t i = 1; i < kMaxEpochsPerEngine; ++i) book.value(1, std::to_string(i));
  CHECK(book.ask(1, "old", 0, Digest128{5, 6}).error.reason == Reason::too_many);
  CHECK(book.value(1, "0") == first);
  CHECK(!book.ask(1, "new").error);
  CHECK(book.ask(1, "0").error.reason == Reason::too_many);
}

TEST_CASE("what is kept of an engine's dropped names has a bound") {
  Book book;
  book.client_joined(1, kEngineOne, 0);
  std::size_t given = 0;
  while (given <= kMaxEpochsPerEngine + kMaxDroppedEpochs && !book.ask(1, std::to_string(given)).error) ++given;
  CHECK(given == kMaxEpochsPerEngine + kMaxDroppedEpochs);
  CHECK(!book.ask(1, std::to_string(given - 1)).error);
}

TEST_CASE("a name has 1 to 255 bytes, and who is not connected gets none") {
  Book book;
  book.client_joined(1, kEngineOne, 0);
  CHECK(book.ask(1, "").error.reason == Reason::bad_argument);
  CHECK(book.ask(1, std::string(256, 'x')).error.text.find("256 bytes") != std::string::npos);
  CHECK(!book.ask(1, std::string(255, 'x')).error);
  CHECK(book.ask(2, "w").error.reason == Reason::closed);
}

TEST_CASE("a new life of the store takes over the first value that it is told, and keeps to it") {
  Book book;
  book.client_joined(1, kEngineOne, 0);
  book.client_joined(2, kEngineOne, 0);
  const Digest128 old{5, 6};
  CHECK(book.ask(1, "w", 0, old).epoch == old);
  CHECK(book.ask(2, "w").epoch == old);
  CHECK(book.ask(2, "w", 0, Digest128{8, 9}).epoch == old);
}

}  // namespace kvonce::protocol
