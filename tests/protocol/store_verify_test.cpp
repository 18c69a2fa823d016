// SPDX-License-Identifier: Apache-2.0
#include "store_fixture.hpp"

using namespace kvonce;
using namespace kvonce::protocol;
using namespace kvonce::protocol::test;

namespace {
struct Sampled : StoreFixture {
  PoolId kv = 0;
  void begin() {
    config.verify_sample = 1;
    start();
    kv = pool("kv", 1, 4096, HitPolicy::every_page(), 2);
  }
  void answer_asks(SenderId sender, std::vector<std::uint64_t> sums) {
    auto asks = std::move(inbox[sender].asks);
    inbox[sender].asks.clear();
    ChecksumAnswers answers;
    answers.sender = sender;
    for (const auto& ask : asks) {
      answers.answers.push_back({ask.ask, static_cast<std::uint32_t>(answers.checksums.size()), static_cast<std::uint32_t>(sums.size())});
      answers.checksums.insert(answers.checksums.end(), sums.begin(), sums.end());
    }
    store->checksums(answers, now, actions);
    collect();
  }
  void registrar() {
    std::vector<CatalogUpdate> updates;
    store->catalog().demote(ns, kv, updates);
    REQUIRE_FALSE(updates.empty());
    apply(updates);
  }
};
}  // namespace

TEST_CASE_FIXTURE(Sampled, "further announcers of a sampled key are asked for their checksum, and only their verdicts wait") {
  begin();
  const SenderId a = rank(0, {{kv, 0}});
  const SenderId b = rank(1, {{kv, 0}});
  put(batch(a, kv, 0, 0, 1));
  put(batch(b, kv, 0, 0, 1));
  report(a);
  CHECK(count(a, Verdict::stored) == 1);
  CHECK(verdicts[b].empty());
  REQUIRE(inbox[b].asks.size() == 1);
  answer_asks(b, {42});
  CHECK(count(b, Verdict::joined) == 1);
  put(batch(b, kv, 0, 0, 1));
  REQUIRE(inbox[b].asks.size() == 1);
  answer_asks(b, {});  // could not be read: unverified, not wrong
  CHECK(count(b, Verdict::already_stored) == 1);
  CHECK(store->stats().unverified == 1);
  CHECK(store->stats().unverified_pools_now == 0);
}

TEST_CASE_FIXTURE(Sampled, "silence counts as unverified and delays nobody beyond the window") {
  begin();
  const SenderId a = rank(0, {{kv, 0}});
  const SenderId b = rank(1, {{kv, 0}});
  put(batch(a, kv, 0, 0, 1));
  put(batch(b, kv, 0, 0, 1));
  report(a);
  CHECK(store->stats().unverified_pools_now == 1);
  advance(config.verify_window + kSecond);
  CHECK(count(b, Verdict::joined) == 1);
  CHECK(store->stats().unverified == 1);
  put(batch(b, kv, 0, 0, 1));
  CHECK(count(b, Verdict::already_stored) == 1);  // behind the window: not asked
  CHECK(store->next_deadline() == kNever);
}

TEST_CASE_FIXTURE(Sampled, "a difference between engines is divergent: both may be right, the key stays") {
  begin();
  const SenderId a = rank(0, {{kv, 0}}, 1);
  const SenderId b = rank(0, {{kv, 0}}, 2);
  put(batch(a, kv, 0, 0, 1));
  report(a);
  put(batch(b, kv, 0, 0, 1));
  answer_asks(b, {43});
  CHECK(count(b, Verdict::already_stored) == 1);
  CHECK(store->stats().divergent == 1);
  CHECK(readable(kv, 0, 0));
}

TEST_CASE_FIXTURE(Sampled, "a difference within one engine unpublishes the key; without a demotion the sender hears unverified") {
  begin();
  const SenderId a = rank(0, {{kv, 0}});
  const SenderId b = rank(1, {{kv, 0}});
  put(batch(a, kv, 0, 0, 1));
  report(a);
  put(batch(b, kv, 0, 0, 1));
  answer_asks(b, {43});
  CHECK_FALSE(readable(kv, 0, 0));
  CHECK(actions.conflicts.size() == 1);
  CHECK(verdicts[b].empty());
  advance(config.conflict_hold + kSecond);
  CHECK(count(b, Verdict::rejected, Reason::unverified) == 1);
  CHECK(count(b, Verdict::conflict) == 0);
}

TEST_CASE_FIXTURE(Sampled, "one key counts as one conflict, however many ranks differ on it and however often") {
  config.demote = false;
  begin();
  std::vector<SenderId> ranks;
  for (std::uint64_t r = 0; r < 8; ++r) ranks.push_back(rank(r, {{kv, 0}}));
  // The odd one is first, so that the seven others differ.
  put(batch(ranks[0], kv, 0, 0, 2));
  land_all();
  for (std::size_t r = 1; r < 8; ++r) {
    put(batch(ranks[r], kv, 0, 0, 1));
    answer_asks(ranks[r], {43});
    CHECK(count(ranks[r], Verdict::already_stored) == 1);
  }
  CHECK(store->stats().conflicts == 1);
  REQUIRE(actions.conflicts.size() == 7);  // all are told to the registrar, for their names
  CHECK(std::count_if(actions.conflicts.begin(), actions.conflicts.end(), [](const KeyConflict& c) { return c.first_of_key; }) == 1);
  CHECK(actions.conflicts[6].writer == RankName{ranks[0], 0});
  CHECK(actions.conflicts[6].differing == RankName{ranks[7], 0});
  put(batch(ranks[1], kv, 0, 1, 1));
  answer_asks(ranks[1], {43});
  CHECK(store->stats().conflicts == 2);
}

TEST_CASE_FIXTURE(Sampled, "a key that was unpublished and differs again is still one conflict") {
  begin();
  const SenderId a = rank(0, {{kv, 0}});
  const SenderId b = rank(1, {{kv, 0}});
  for (int i = 0; i < 3; ++i) {
    put(batch(a, kv, 0, 0, 1));
    report(a);
    put(batch(b, kv, 0, 0, 1));
    answer_asks(b, {43});
    CHECK_FALSE(readable(kv, 0, 0));
    advance(config.conflict_hold + kSecond);
  }
  CHECK(count(b, Verdict::rejected, Reason::unverified) == 3);
  CHECK(store->stats().conflicts == 1);
}

TEST_CASE_FIXTURE(Sampled, "a demoted pool redirects waits, held verdicts and new puts; its objects are gone") {
  begin();
  const SenderId a = rank(0, {{kv, 0}});
  const SenderId b = rank(1, {{kv, 0}});
  put(batch(a, kv, 0, 0, 2));
  land_all();
  put(batch(b, kv, 0, 0, 1));
  answer_asks(b, {43});
  put(batch(a, kv, 0, 50, 1));
  put(batch(b, kv, 0, 50, 1));
  registrar();
  while (store->step(now, actions)) audit();
  audit();
  CHECK(inbox[b].redirects.size() == 2);
  CHECK(inbox[a].redirects.size() == 1);
  CHECK(inbox[a].redirects[0].generation == 1);
  CHECK(store->reader().generation(ns, kv) == 1);
  CHECK(store->stats().objects_now == 0);
  report(a);  // what was being written lands on nothing
  CHECK(store->stats().quarantined_slots_now == 0);
  PutBatch old = batch(a, kv, 0, 60, 1);
  old.items[0].generation = 0;
  put(old);
  CHECK(inbox[a].redirects.size() == 2);
  std::vector<CatalogUpdate> none;
  store->catalog().demote(ns, kv, none);
  CHECK(none.empty());
}
