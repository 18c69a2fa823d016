// SPDX-License-Identifier: Apache-2.0
#include "protocol/conflict_book.hpp"

#include "store_fixture.hpp"

using namespace kvonce;
using namespace kvonce::protocol;
using namespace kvonce::protocol::test;

namespace {
struct Booked : StoreFixture {
  PoolId kv = 0;
  Booked() {
    start();
    kv = pool("latent", 1, 4096, HitPolicy::every_page(), 8);
  }
  KeyConflict conflict(RankName writer, RankName differing, bool first_of_key = true) const {
    return {ns, kv, first_of_key, writer, differing};
  }
};
}  // namespace

TEST_CASE_FIXTURE(Booked, "the first key and the one at the limit are told, with pool, namespace and ranks") {
  ConflictBook book(3);
  const RankName writer{0xabc, 70}, odd{0xdef, 71}, other{0x123, 0};
  const auto first = book.add(conflict(writer, odd), store->catalog());
  REQUIRE(first);
  CHECK_FALSE(first->at_limit);
  CHECK(first->text ==
        "pool 'latent' of namespace 'model': ranks of one engine announced different bytes under 1 key (stored by rank "
        "0000000000000abc of process 70; other bytes from rank 0000000000000def of process 71)");
  for (int i = 0; i < 5; ++i) CHECK_FALSE(book.add(conflict(writer, other, false), store->catalog()));  // the same key
  CHECK_FALSE(book.add(conflict(writer, odd), store->catalog()));
  const auto third = book.add(conflict({}, odd), store->catalog());
  REQUIRE(third);
  CHECK(third->at_limit);
  CHECK(third->text ==
        "pool 'latent' of namespace 'model': ranks of one engine announced different bytes under 3 keys (stored by rank "
        "0000000000000abc of process 70; other bytes from rank 0000000000000def of process 71, rank 0000000000000123)");
  for (int i = 0; i < 5; ++i) CHECK_FALSE(book.add(conflict(writer, odd), store->catalog()));
}

TEST_CASE_FIXTURE(Booked, "a line stays short, whatever the namespace's text and however many ranks differ") {
  std::vector<CatalogUpdate> updates;
  ns = store->catalog().ask(NamespaceAsk{std::string(4000, 'n') + "\n"}, updates).ns;
  apply(updates);
  kv = pool("kv", 1, 4096, HitPolicy::every_page(), 8);
  ConflictBook book(2);
  for (std::uint64_t r = 1; r <= 100; ++r) book.add(conflict({}, {r, 1}, r == 1), store->catalog());
  const auto told = book.add(conflict({}, {1, 1}), store->catalog());
  REQUIRE(told);
  CHECK(told->at_limit);
  CHECK(told->text.size() < 1024);
  CHECK(told->text.find("nnn...': ranks") != std::string::npos);
  CHECK(told->text.find("(stored by a rank that has left;") != std::string::npos);
  CHECK(told->text.find("rank 0000000000000008 of process 1 and others)") != std::string::npos);
  CHECK(told->text.find('\n') == std::string::npos);
}

TEST_CASE_FIXTURE(Booked, "a limit of one key tells once, and a namespace that was freed is counted from its beginning") {
  ConflictBook book(1);
  const auto told = book.add(conflict({1, 0}, {2, 0}), store->catalog());
  REQUIRE(told);
  CHECK(told->at_limit);
  CHECK_FALSE(book.add(conflict({1, 0}, {2, 0}), store->catalog()));
  book.forget(ns);
  CHECK(book.add(conflict({1, 0}, {2, 0}), store->catalog()));
  KeyConflict unknown = conflict({1, 0}, {2, 0});
  unknown.pool = 63;
  CHECK_FALSE(book.add(unknown, store->catalog()));
}
