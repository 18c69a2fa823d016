// SPDX-License-Identifier: Apache-2.0
//
// The round that gives a namespace's place to another one: who is asked, who is chosen, when the place is free, who gets it.
#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#include "protocol/retire_round.hpp"
#include "store_fixture.hpp"

namespace kvonce::protocol::test {
namespace {

using Kind = CatalogUpdate::Kind;
using Use = NamespaceUse;

// A registrar with two places over three partitions. Client n asks with token n * 10.
struct Registrar {
  Catalog catalog{2};
  RetireRound round{3};
  std::uint64_t asked = 0;  // number of the newest round
  std::vector<NamespaceId> retired, freed;
  std::vector<std::pair<ClientId, RegisterAnswer>> answers;

  void go() {
    while (auto step = round.step(catalog)) {
      for (const CatalogUpdate& update : step->updates) {
        catalog.apply(update);
        if (update.kind == Kind::retire) retired.push_back(update.ns);
        if (update.kind == Kind::free) {
          freed.push_back(update.ns);
          CHECK(step->freed == update.ns);
        }
      }
      if (step->ask_use) asked = *step->ask_use;
      for (auto& [to, answer] : step->answers) {
        CHECK(to.token == to.client * 10);
        answers.emplace_back(to.client, std::move(answer));
      }
    }
  }
  void open(ClientId client, const std::string& text, bool find_only = false) {
    round.open({client, client * 10, NamespaceAsk{text, find_only}});
    go();
  }
  /// Opened and answered at once.
  NamespaceId opened(ClientId client, const std::string& text) {
    const std::size_t before = answers.size();
    open(client, text);
    REQUIRE(answers.size() == before + 1);
    REQUIRE_FALSE(answers.back().second.error);
    return answers.back().second.ns;
  }
  void close(ClientId client, NamespaceId ns) {
    round.closed(client, ns);
    go();
  }
  void leave(ClientId client) {
    round.client_left(client);
    go();
  }
  void use(std::uint32_t partition, Use first, Use second, std::uint64_t of = 0) {
    const Use use[] = {first, second};
    round.use(partition, of == 0 ? asked : of, use);
    go();
  }
  void use_everywhere(Use first, Use second) {
    for (std::uint32_t p = 0; p < 3; ++p) use(p, first, second);
  }
  void emptied(std::uint32_t partition, NamespaceId ns) {
    round.emptied(partition, ns);
    go();
  }
  void emptied_everywhere(NamespaceId ns) {
    for (std::uint32_t p = 0; p < 3; ++p) emptied(p, ns);
  }
  Reason last_reason() const { return answers.back().second.error.reason; }
};

}  // namespace

TEST_CASE("while there are places, and for what has one, an opening is answered at once") {
  Registrar r;
  const NamespaceId a = r.opened(1, "a");
  CHECK(r.opened(2, "a") == a);
  CHECK(r.opened(2, "b") != a);
  r.open(3, "c", true);
  CHECK(r.last_reason() == Reason::unknown_namespace);
  r.open(3, "");
  CHECK(r.last_reason() == Reason::bad_argument);
  CHECK(r.asked == 0);
  CHECK(r.round.waiting() == 0);
}

TEST_CASE("the place is another's when every partition has been asked and every partition has emptied it") {
  Registrar r;
  const NamespaceId a = r.opened(1, "a");
  const NamespaceId b = r.opened(1, "b");
  r.close(1, a);
  r.open(2, "c");
  REQUIRE(r.asked == 1);
  r.use(0, Use::none, Use::none);
  r.use(2, Use::objects, Use::none);
  CHECK(r.retired.empty());
  r.use(1, Use::none, Use::none);
  CHECK(r.retired == std::vector<NamespaceId>{a});
  CHECK(r.round.retiring() == a);
  r.emptied(2, a);
  r.emptied(0, a);
  r.emptied(0, a);  // said twice is said once
  r.emptied(7, a);  // no partition of this store
  r.emptied(1, b);  // not the one that goes
  CHECK(r.freed.empty());
  CHECK(r.round.waiting() == 1);
  r.emptied(1, a);
  CHECK(r.freed == std::vector<NamespaceId>{a});
  REQUIRE(r.answers.size() == 3);
  CHECK(r.answers.back().first == 2);
  const NamespaceId c = r.answers.back().second.ns;
  CHECK(place_of(c) == place_of(a));
  CHECK(c != a);
  CHECK(r.round.waiting() == 0);
  CHECK(r.round.retiring() == kNoNamespace);
  r.emptied_everywhere(a);  // told late: nothing of it
  CHECK(r.freed.size() == 1);
}

TEST_CASE("one that a process has open is never chosen, also when it was opened while the partitions were being asked") {
  Registrar r;
  const NamespaceId a = r.opened(1, "a");
  const NamespaceId b = r.opened(1, "b");
  r.leave(1);  // closes both
  r.open(2, "c");
  r.use(0, Use::none, Use::none);
  r.use(1, Use::none, Use::none);
  CHECK(r.opened(3, "a") == a);
  r.use(2, Use::none, Use::none);
  CHECK(r.retired == std::vector<NamespaceId>{b});
  r.emptied_everywhere(b);
  CHECK(r.answers.back().first == 2);
  // Now both are open: refused, but only after the partitions were asked.
  r.open(4, "d");
  CHECK(r.answers.back().first == 2);
  r.use_everywhere(Use::none, Use::none);
  CHECK(r.answers.back().first == 4);
  CHECK(r.last_reason() == Reason::too_many);
  CHECK(r.retired.size() == 1);
}

TEST_CASE("what one partition holds is not chosen, whatever the others say") {
  Registrar r;
  const NamespaceId a = r.opened(1, "a");
  const NamespaceId b = r.opened(1, "b");
  r.close(1, a);
  r.close(1, b);
  r.open(2, "c");
  r.use(0, Use::none, Use::objects);
  r.use(1, Use::held, Use::none);
  r.use(2, Use::none, Use::none);
  CHECK(r.retired == std::vector<NamespaceId>{b});
}

TEST_CASE("answers of an earlier round, or told twice, or of no partition, count for nothing") {
  Registrar r;
  const NamespaceId a = r.opened(1, "a");
  r.opened(1, "b");
  r.open(2, "c");
  r.use_everywhere(Use::held, Use::held);
  CHECK(r.last_reason() == Reason::too_many);
  r.close(1, a);
  r.open(2, "c");
  REQUIRE(r.asked == 2);
  for (std::uint32_t p = 0; p < 3; ++p) r.use(p, Use::held, Use::held, 1);
  r.use(0, Use::none, Use::none);
  r.use(0, Use::held, Use::none);
  r.use(9, Use::held, Use::none);
  r.use(1, Use::none, Use::none);
  CHECK(r.retired.empty());
  r.use(2, Use::none, Use::none);
  CHECK(r.retired == std::vector<NamespaceId>{a});
}

TEST_CASE("an opening that comes while the partitions are being asked is not refused by what they said before it came") {
  Registrar r;
  const NamespaceId a = r.opened(1, "a");
  r.opened(1, "b");
  r.close(1, a);
  r.open(2, "c");
  r.use(0, Use::held, Use::none);  // has become free since
  r.open(3, "d");
  r.use(1, Use::none, Use::none);
  r.use(2, Use::none, Use::none);
  CHECK(r.answers.back().first == 2);
  CHECK(r.last_reason() == Reason::too_many);
  REQUIRE(r.asked == 2);  // for the other
  CHECK(r.round.waiting() == 1);
  r.use_everywhere(Use::none, Use::none);
  r.emptied_everywhere(a);
  CHECK(r.answers.back().first == 3);
  CHECK_FALSE(r.answers.back().second.error);
  CHECK(r.round.waiting() == 0);
}

TEST_CASE("places go to openings in the order in which they came; those of one text share theirs") {
  Registrar r;
  const NamespaceId a = r.opened(1, "a");
  const NamespaceId b = r.opened(1, "b");
  r.leave(1);
  r.open(2, "c");
  r.open(3, "d");
  r.open(4, "c");
  r.open(5, "e");
  r.use_everywhere(Use::none, Use::none);
  r.emptied_everywhere(a);
  REQUIRE(r.answers.size() == 4);
  CHECK(r.answers[2].first == 2);
  CHECK(r.answers[3].first == 4);
  CHECK(r.answers[2].second.ns == r.answers[3].second.ns);
  // The others have not been answered: a round goes on for them.
  REQUIRE(r.asked == 2);
  r.use_everywhere(Use::none, Use::none);
  CHECK(r.retired == std::vector<NamespaceId>{a, b});
  r.emptied_everywhere(b);
  CHECK(r.answers[4].first == 3);
  REQUIRE(r.asked == 3);
  r.use_everywhere(Use::none, Use::none);
  CHECK(r.answers.back().first == 5);
  CHECK(r.last_reason() == Reason::too_many);
}

TEST_CASE("who leaves while it waits is not answered, and nothing goes for it") {
  Registrar r;
  const NamespaceId a = r.opened(1, "a");
  r.opened(1, "b");
  r.leave(1);
  r.open(2, "c");
  r.leave(2);
  CHECK(r.round.waiting() == 0);
  r.use_everywhere(Use::none, Use::none);
  CHECK(r.retired.empty());
  CHECK(r.answers.size() == 2);
  // Left when one was on its way out already: its place is free for the next.
  r.open(3, "d");
  r.use_everywhere(Use::none, Use::none);
  REQUIRE(r.retired == std::vector<NamespaceId>{a});
  r.leave(3);
  r.emptied_everywhere(a);
  CHECK(r.freed == std::vector<NamespaceId>{a});
  CHECK(r.answers.size() == 2);
  CHECK(place_of(r.opened(4, "e")) == place_of(a));
}

TEST_CASE("one that is asked for while it is on its way out comes back in a place of its own") {
  Registrar r;
  const NamespaceId a = r.opened(1, "a");
  r.opened(1, "b");
  r.close(1, a);
  r.open(2, "c");
  r.use_everywhere(Use::objects, Use::objects);
  r.open(3, "a");
  CHECK(r.round.waiting() == 2);
  r.emptied_everywhere(a);
  CHECK(r.answers.back().first == 2);
  r.use_everywhere(Use::none, Use::none);
  CHECK(r.answers.back().first == 3);
  CHECK(r.last_reason() == Reason::too_many);
}

TEST_CASE("openings beyond those that may wait are too_many at once") {
  Registrar r;
  r.opened(1, "a");
  r.opened(1, "b");
  for (std::size_t i = 0; i < RetireRound::kMaxWaiting; ++i) r.open(2, "c");
  CHECK(r.answers.size() == 2);
  r.open(3, "c");
  CHECK(r.answers.back().first == 3);
  CHECK(r.last_reason() == Reason::too_many);
  CHECK(r.round.waiting() == RetireRound::kMaxWaiting);
}

TEST_CASE("a partition tells once of each retired namespace that nothing is left of it") {
  StoreFixture f;
  f.start();
  EmptiedReport report;
  const PoolId kv = f.pool("kv", 1, 4096);
  const SenderId rank = f.rank(1, {{kv, 0}});
  f.put(f.batch(rank, kv, 0, 0, 2));
  f.land_all();
  CHECK(report.newly_emptied(*f.store).empty());
  CatalogUpdate retire;
  retire.kind = Kind::retire;
  retire.ns = f.ns;
  f.apply({retire});
  CHECK(report.newly_emptied(*f.store).empty());
  while (f.store->step(f.now, f.actions)) {
  }
  CHECK(report.newly_emptied(*f.store) == std::vector<NamespaceId>{f.ns});
  CHECK(report.newly_emptied(*f.store).empty());
}

}  // namespace kvonce::protocol::test
