// SPDX-License-Identifier: Apache-2.0
#include "store_fixture.hpp"

using namespace kvonce;
using namespace kvonce::protocol;
using namespace kvonce::protocol::test;

TEST_CASE_FIXTURE(StoreFixture, "eight ranks that announce the same pages move each once, an eighth each, and all hear success") {
  start();
  const PoolId kv = pool("kv", 1, 4096, HitPolicy::every_page(), 8);
  std::vector<SenderId> ranks;
  for (std::uint64_t r = 0; r < 8; ++r) ranks.push_back(rank(r, {{kv, 0}}));
  for (const SenderId r : ranks) put(batch(r, kv, 0, 0, 32));
  for (const SenderId r : ranks) CHECK(inbox[r].grants.size() == 4);
  for (const SenderId r : ranks) CHECK(verdicts[r].empty());  // nobody is told before the bytes are there
  CHECK_FALSE(readable(kv, 0, 0));
  land_all();
  std::size_t stored = 0;
  for (const SenderId r : ranks) {
    CHECK(verdicts[r].size() == 32);
    stored += count(r, Verdict::stored);
    CHECK(count(r, Verdict::stored) + count(r, Verdict::joined) == 32);
  }
  CHECK(stored == 32);
  CHECK(store->stats().landed_bytes == 32 * 4096);
  CHECK(store->stats().payload_bytes_now == 32 * 4096);
  put(batch(ranks[3], kv, 0, 0, 32));
  CHECK(inbox[ranks[3]].grants.empty());
  CHECK(count(ranks[3], Verdict::already_stored) == 32);
  CHECK(store->next_deadline() == kNever);
}

TEST_CASE_FIXTURE(StoreFixture, "one rank alone moves all, its grants refilled as copies land") {
  config.window_bytes = 4 * 4096;
  start();
  const PoolId kv = pool("kv", 1, 4096, HitPolicy::every_page(), 8);
  const SenderId r = rank(0, {{kv, 0}});
  put(batch(r, kv, 0, 0, 10));
  CHECK(inbox[r].grants.size() == 4);
  CHECK(report(r, GrantOutcome::landed, 1) == 1);
  CHECK(inbox[r].grants.size() == 4);
  land_all();
  CHECK(count(r, Verdict::stored) == 10);
}

TEST_CASE_FIXTURE(StoreFixture, "a rank's window is over all its pools, and what becomes free goes to the pool that waits") {
  config.window_bytes = 4 * 4096;
  start();
  const PoolId kv = pool("kv", 1, 4096);
  const PoolId keys = pool("keys", 1, 1024);
  const SenderId r = rank(0, {{kv, 0}, {keys, 0}});
  const SenderId other = rank(1, {{kv, 0}, {keys, 0}}, 2);
  const auto open = [&](PoolId of) {
    const std::uint64_t bytes = store->catalog().find_pool(ns, of)->object_bytes;
    std::uint64_t grants = 0;
    for (const Grant& grant : inbox[r].grants) grants += inbox[r].extents[grant.first_extent].bytes / 1024 == bytes / 1024 ? 1 : 0;
    return grants;
  };
  put(batch(r, kv, 0, 0, 40));
  put(batch(r, keys, 0, 0, 40));
  CHECK(inbox[r].grants.size() == 4);
  CHECK(open(kv) == 4);
  report(r, GrantOutcome::landed, 1);
  CHECK(open(kv) == 3);
  CHECK(open(keys) == 4);
  std::uint64_t most = 0;
  while (report(r, GrantOutcome::landed, 1) == 1) {
    most = std::max(most, open(kv) * 4096 + open(keys) * 1024);
    if (count(r, Verdict::stored) != 30) continue;
    std::size_t of_kv = 0;
    for (std::uint64_t page = 0; page < 40; ++page) of_kv += readable(kv, 0, page) ? 1 : 0;
    CHECK(of_kv >= 6);  // a fifth of 30 has as many bytes as the rest
    CHECK(of_kv <= 24);
  }
  CHECK(most == config.window_bytes);
  CHECK(count(r, Verdict::stored) == 80);
  // Each rank has its own.
  put(batch(r, kv, 0, 100, 8));
  put(batch(other, keys, 0, 200, 4));
  CHECK(inbox[other].grants.size() == 2);  // the live ranks' share
  land_all();
}

TEST_CASE_FIXTURE(StoreFixture, "an object larger than the window is not passed over for ever by the small ones of another pool") {
  config.window_bytes = 4 * 4096;
  start();
  const PoolId kv = pool("kv", 1, 4096);
  const PoolId state = pool("state", 1, 65536);
  const SenderId r = rank(0, {{kv, 0}, {state, 0}});
  put(batch(r, kv, 0, 0, 40));
  put(batch(r, state, 0, 0, 2));
  CHECK(inbox[r].grants.size() == 4);
  for (std::size_t left = 3; left > 0; --left) {
    report(r, GrantOutcome::landed, 1);
    CHECK(inbox[r].grants.size() == left);  // room is being made for it
  }
  report(r);
  REQUIRE(inbox[r].grants.size() == 1);
  report(r);
  CHECK(readable(state, 0, 0));
  CHECK(inbox[r].grants.size() == 4);  // and then it is the others' turn
  land_all();
  CHECK(count(r, Verdict::stored) == 42);
}

TEST_CASE_FIXTURE(StoreFixture, "of a put that is announced in many small messages a rank may copy its share of the whole at once") {
  start();
  const PoolId kv = pool("kv", 1, 4096, HitPolicy::every_page(), 2);
  const SenderId a = rank(0, {{kv, 0}});
  rank(1, {{kv, 0}});  // lives, and puts nothing
  for (std::uint32_t first = 0; first < 32; first += 2) put(batch(a, kv, 0, first, 2));
  CHECK(inbox[a].grants.size() == 16);
  land_all();
  CHECK(count(a, Verdict::stored) == 32);
}

TEST_CASE_FIXTURE(StoreFixture, "a rank that only reads has no share of a put's copies") {
  start();
  const PoolId kv = pool("kv", 1, 4096, HitPolicy::every_page(), 2);
  const SenderId a = rank(0, {{kv, 0}});
  store->client_joined(900, 9, now);
  store->attach(AttachSender{9000, 900, 9, false}, now);
  store->attach_pool(AttachPool{9000, ns, kv, 0, true}, now);
  put(batch(a, kv, 0, 0, 8));
  CHECK(inbox[a].grants.size() == 8);
  land_all();
  // Nor does it take one along when it goes.
  store->attach_pool(AttachPool{9000, ns, kv, 0, false}, now);
  store->detach(9000, true, now, actions);
  collect();
  rank(1, {{kv, 0}});
  put(batch(a, kv, 0, 100, 8));
  CHECK(inbox[a].grants.size() == 4);
  land_all();
}

TEST_CASE_FIXTURE(StoreFixture, "a wrong size is that sender's conflict and nobody else's, an unknown pool or shard is rejected") {
  start();
  const PoolId kv = pool("kv", 1, 4096, HitPolicy::every_page(), 8);
  const SenderId a = rank(0, {{kv, 0}});
  const SenderId b = rank(1, {{kv, 0}});
  PutBatch wrong = batch(a, kv, 0, 0, 5);
  wrong.items[1].bytes = 4095;
  wrong.items[2].pool = 9;
  wrong.items[3].shard = 1;
  wrong.items[4].page = 77;
  put(wrong);
  put(batch(b, kv, 0, 0, 5));
  land_all();
  CHECK(count(a, Verdict::stored) + count(a, Verdict::joined) == 1);
  CHECK(count(a, Verdict::conflict, Reason::wrong_size) == 1);
  CHECK(count(a, Verdict::rejected, Reason::unknown_pool) == 1);
  CHECK(count(a, Verdict::rejected, Reason::bad_argument) == 2);
  CHECK(count(b, Verdict::stored) + count(b, Verdict::joined) == 5);
}

TEST_CASE_FIXTURE(StoreFixture, "a late writer is passed over at its deadline, and what it still writes cannot hurt") {
  start();
  const PoolId kv = pool("kv", 1, 4096, HitPolicy::every_page(), 2);
  const SenderId a = rank(0, {{kv, 0}});
  const SenderId b = rank(1, {{kv, 0}});
  put(batch(a, kv, 0, 0, 1));
  put(batch(b, kv, 0, 0, 1));
  REQUIRE(inbox[a].grants.size() == 1);
  CHECK(inbox[b].grants.empty());
  advance(config.grant_base + kSecond);
  REQUIRE(inbox[b].grants.size() == 1);
  CHECK(store->stats().promotions == 1);
  CHECK(inbox[a].extents[0].offset != inbox[b].extents[0].offset);
  report(b);
  CHECK(count(b, Verdict::stored) == 1);
  CHECK(count(a, Verdict::joined) == 1);
  CHECK(store->stats().quarantined_slots_now == 1);
  report(a);
  CHECK(store->stats().quarantined_slots_now == 0);
  CHECK(store->stats().late_landed_items == 1);
  CHECK(store->stats().objects_now == 1);
}

TEST_CASE_FIXTURE(StoreFixture, "a late grant that lands first wins, so slow ranks cannot starve a key") {
  start();
  const PoolId kv = pool("kv", 1, 4096, HitPolicy::every_page(), 2);
  const SenderId a = rank(0, {{kv, 0}});
  const SenderId b = rank(1, {{kv, 0}});
  put(batch(a, kv, 0, 0, 1));
  put(batch(b, kv, 0, 0, 1));
  advance(config.grant_base + kSecond);
  REQUIRE(inbox[b].grants.size() == 1);
  report(a);
  CHECK(count(a, Verdict::stored) == 1);
  CHECK(count(b, Verdict::joined) == 1);
  report(b, GrantOutcome::abandoned);
  CHECK(store->stats().quarantined_slots_now == 0);
}

TEST_CASE_FIXTURE(StoreFixture, "when the granted writer dies the next waiter is granted at once, and the slot waits for the fence") {
  start();
  const PoolId kv = pool("kv", 1, 4096, HitPolicy::every_page(), 2);
  const SenderId a = rank(0, {{kv, 0}});
  const SenderId b = rank(1, {{kv, 0}});
  put(batch(a, kv, 0, 0, 3));
  put(batch(b, kv, 0, 0, 3));
  const std::size_t mine = inbox[a].grants.size();
  REQUIRE(mine >= 1);
  store->client_left(100, false, now, actions);
  collect();
  CHECK(store->stats().quarantined_slots_now == mine);
  land_all();
  CHECK(count(b, Verdict::stored) == 3);
  store->client_fenced(100, now, actions);
  collect();
  CHECK(store->stats().quarantined_slots_now == 0);
}

TEST_CASE_FIXTURE(StoreFixture, "a failed copy passes the key on; only when no sender can copy does anybody hear failed") {
  start();
  const PoolId kv = pool("kv", 1, 4096, HitPolicy::every_page(), 2);
  const SenderId a = rank(0, {{kv, 0}});
  const SenderId b = rank(1, {{kv, 0}});
  put(batch(a, kv, 0, 0, 1));
  put(batch(b, kv, 0, 0, 1));
  report(a, GrantOutcome::failed);
  CHECK(verdicts[a].empty());
  REQUIRE(inbox[b].grants.size() == 1);
  report(b);
  CHECK(count(b, Verdict::stored) == 1);
  CHECK(count(a, Verdict::joined) == 1);
  put(batch(a, kv, 0, 5, 1));
  put(batch(b, kv, 0, 5, 1));
  report(a, GrantOutcome::failed);
  report(b, GrantOutcome::failed);
  CHECK(count(a, Verdict::failed, Reason::copy_failed) == 1);
  CHECK(count(b, Verdict::failed, Reason::copy_failed) == 1);
  CHECK(store->stats().claims_now == 0);
}

TEST_CASE_FIXTURE(StoreFixture, "withdrawn waits end, and the key passes to whoever is left") {
  start();
  const PoolId kv = pool("kv", 1, 4096, HitPolicy::every_page(), 2);
  const SenderId a = rank(0, {{kv, 0}});
  const SenderId b = rank(1, {{kv, 0}});
  const PutBatch first = batch(a, kv, 0, 0, 1);
  put(first);
  put(batch(b, kv, 0, 0, 1));
  report(a, GrantOutcome::abandoned);
  store->withdraw(Withdraw{a, {{first.batch, 0}}}, now, actions);
  collect();
  land_all();
  CHECK(count(b, Verdict::stored) == 1);
  CHECK(verdicts[a].empty());
  CHECK(store->stats().claims_now == 0);
}

TEST_CASE_FIXTURE(StoreFixture, "removal under a claim: waiters hear removed, and what lands is dropped") {
  start();
  const PoolId kv = pool("kv", 1, 4096, HitPolicy::every_page(), 2);
  const SenderId a = rank(0, {{kv, 0}});
  const SenderId b = rank(1, {{kv, 0}});
  put(batch(a, kv, 0, 0, 1));
  put(batch(b, kv, 0, 0, 1));
  RemoveAsk ask;
  ask.what = RemoveAsk::What::page;
  ask.ns = ns;
  ask.pages = {page_hash(0)};
  store->remove(1, ask, now, actions);
  collect();
  CHECK(count(a, Verdict::rejected, Reason::removed) == 1);
  CHECK(count(b, Verdict::rejected, Reason::removed) == 1);
  report(a);
  CHECK_FALSE(readable(kv, 0, 0));
  CHECK(store->stats().objects_now == 0);
  CHECK(store->stats().quarantined_slots_now == 0);
  put(batch(b, kv, 0, 0, 1));
  land_all();
  CHECK(readable(kv, 0, 0));
}

TEST_CASE_FIXTURE(StoreFixture, "a level that the store lacks is rejected at once, a higher one waits without moving bytes") {
  config.max_level = AckLevel::disk;
  start();
  const PoolId kv = pool("kv", 1, 4096, HitPolicy::every_page(), 2);
  const SenderId a = rank(0, {{kv, 0}});
  put(batch(a, kv, 0, 0, 1, AckLevel::replicated));
  CHECK(count(a, Verdict::rejected, Reason::level_unavailable) == 1);
  put(batch(a, kv, 0, 0, 1));
  land_all();
  CHECK(count(a, Verdict::stored) == 1);
  put(batch(a, kv, 0, 0, 1, AckLevel::disk));
  CHECK(inbox[a].grants.empty());
  CHECK(count(a, Verdict::already_stored) == 0);
  REQUIRE(actions.persists.size() == 1);
  store->persisted(actions.persists[0].operation, true, now, actions);
  actions.persists.clear();
  collect();
  CHECK(count(a, Verdict::already_stored) == 1);
  put(batch(a, kv, 0, 1, 1, AckLevel::disk));
  report(a);
  REQUIRE(actions.persists.size() == 1);
  CHECK(count(a, Verdict::stored) == 1);
  store->persisted(actions.persists[0].operation, false, now, actions);
  collect();
  CHECK(count(a, Verdict::failed, Reason::persist_failed) == 1);
  CHECK(readable(kv, 0, 1));
}

TEST_CASE_FIXTURE(StoreFixture, "a flush waits for what was claimed before it and for nothing else") {
  start();
  const PoolId kv = pool("kv", 1, 4096, HitPolicy::every_page(), 2);
  const SenderId a = rank(0, {{kv, 0}});
  put(batch(a, kv, 0, 0, 1));
  store->flush(5, FlushAsk{9, AckLevel::memory}, now, actions);
  CHECK(actions.flushes.empty());
  put(batch(a, kv, 0, 10, 1));
  report(a, GrantOutcome::landed, 1);
  REQUIRE(actions.flushes.size() == 1);
  CHECK(actions.flushes[0].second.token == 9);
  store->flush(5, FlushAsk{10, AckLevel::disk}, now, actions);
  CHECK(actions.flushes.back().second.error == Reason::level_unavailable);
}

TEST_CASE_FIXTURE(StoreFixture, "late, stale and forged messages change nothing") {
  start();
  const PoolId kv = pool("kv", 1, 4096, HitPolicy::every_page(), 2);
  const SenderId a = rank(0, {{kv, 0}});
  put(batch(a, kv, 0, 0, 1));
  const Grant grant = inbox[a].grants[0];
  GrantResults forged;
  forged.sender = a;
  forged.results = {{grant.claim, grant.epoch + 1, GrantOutcome::landed, 0, 1}, {999, grant.epoch, GrantOutcome::landed, 5, 1}};
  forged.checksums = {1};
  store->grants_done(forged, now, actions);
  collect();
  CHECK_FALSE(readable(kv, 0, 0));
  PutBatch stranger = batch(a, kv, 0, 0, 1);
  stranger.sender = 4711;
  put(stranger);
  report(a);
  CHECK(readable(kv, 0, 0));
  GrantResults again;
  again.sender = a;
  again.results = {{grant.claim, grant.epoch, GrantOutcome::landed, 0, 1}};
  again.checksums = {7};
  store->grants_done(again, now, actions);
  collect();
  CHECK(store->stats().objects_now == 1);
  CHECK(store->stats().stale_messages == 4);
}

TEST_CASE_FIXTURE(StoreFixture, "a sender that stalls holds three quarters of the index at most, and displaces nobody's readable pages") {
  start();
  const PoolId kv = pool("kv", 1, 64, HitPolicy::every_page(), 2);
  const SenderId a = rank(0, {{kv, 0}});
  const SenderId b = rank(1, {{kv, 0}});
  put(batch(b, kv, 0, 0, 100));
  land_all();
  put(batch(a, kv, 0, 10'000, 6'000));  // and never lands any
  CHECK(count(a, Verdict::rejected, Reason::busy) == 6'000 - config.index.max_pages / 4 * 3);
  CHECK(readable(kv, 0, 0));
  CHECK(readable(kv, 0, 99));
  inbox[a].grants.clear();
  put(batch(b, kv, 0, 200, 100));
  land_all();
  CHECK(count(b, Verdict::stored) == 200);
}

TEST_CASE_FIXTURE(StoreFixture, "beside others a client announces its share of the index at most, however many ranks it has") {
  start();
  const PoolId kv = pool("kv", 1, 64, HitPolicy::every_page(), 8);
  const SenderId other = rank(50, {{kv, 0}}, 2);
  store->client_joined(7, 1, now);
  std::vector<SenderId> ranks;
  for (std::uint64_t r = 0; r < 8; ++r) {
    ranks.push_back(9000 + r);
    store->attach(AttachSender{ranks.back(), 7, 1}, now);
    store->attach_pool(AttachPool{ranks.back(), ns, kv, 0, true}, now);
  }
  // 4,096 pages fit into the index. Each rank announces another 1,000 and never writes one.
  for (std::uint64_t r = 0; r < 8; ++r) put(batch(ranks[r], kv, 0, 10'000 * (r + 1), 1'000));
  std::size_t busy = 0;
  for (const SenderId r : ranks) busy += count(r, Verdict::rejected);
  CHECK(busy == 8 * 1'000 - 4096 / 4 * 3);
  put(batch(other, kv, 0, 500'000, 100));
  CHECK(count(other, Verdict::rejected) == 0);
  CHECK_FALSE(inbox[other].grants.empty());
}

TEST_CASE_FIXTURE(StoreFixture, "a page that was stored without the page before it does not outlive it later") {
  start();
  const PoolId kv = pool("kv", 1, 64 << 10);
  const SenderId r = rank(0, {{kv, 0}});
  put(batch(r, kv, 0, 11, 1));  // names page 10, which is not there
  land_all();
  put(batch(r, kv, 0, 10, 1));  // alone
  land_all();
  CHECK(readable(kv, 0, 10));
  CHECK(readable(kv, 0, 11));
  // Page 12 makes the page before it new again, long after page 10 was; and 10 with it, if they hang together.
  for (std::uint64_t n = 0; n < 24; ++n) {
    put(batch(r, kv, 0, 500'000 + 100 * n, 1));
    land_all();
  }
  put(batch(r, kv, 0, 12, 1));
  land_all();
  for (std::uint64_t n = 0; n < 200; ++n) {
    put(batch(r, kv, 0, 1000 + 100 * n, 1));
    land_all();
    CHECK((readable(kv, 0, 10) || !readable(kv, 0, 11)));
  }
  CHECK_FALSE(readable(kv, 0, 11));
}
