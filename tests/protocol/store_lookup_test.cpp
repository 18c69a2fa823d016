// SPDX-License-Identifier: Apache-2.0
#include <numeric>

#include "protocol/lookup_search.hpp"
#include "store_fixture.hpp"

using namespace kvonce;
using namespace kvonce::protocol;
using namespace kvonce::protocol::test;

namespace {
struct Hybrid : StoreFixture {
  PoolId kv = 0, state = 0;
  GroupId both = 0;
  SenderId a = 0, b = 0;
  void begin() {
    start();
    kv = pool("kv", 1, 4096, HitPolicy::every_page(), 2);
    state = pool("state", 2, 8192, HitPolicy::trailing(1));
    both = group("g", {{"kv", {1, 1, 1}, {2, 1, 1}, HitPolicy::every_page(), false},
                       {"state", {2, 1, 1}, {2, 1, 1}, HitPolicy::trailing(1), false}});
    a = rank(0, {{kv, 0}, {state, 0}});
    b = rank(1, {{kv, 0}, {state, 1}});
  }
  void store_pages(std::uint64_t first, std::uint64_t count) {
    put(batch(a, kv, 0, first, count));
    land_all();
  }
  void checkpoint(std::uint64_t page) {
    put(batch(a, state, 0, page, 1));
    put(batch(b, state, 1, page, 1));
    land_all();
  }
};
}  // namespace

TEST_CASE_FIXTURE(Hybrid, "a prefix is restorable at positions where every pool that it needs is there") {
  begin();
  store_pages(0, 100);
  CHECK(lookup(both, 0, 120).restorable_pages == 0);
  checkpoint(59);
  checkpoint(9);
  const LookupAnswer answer = lookup(both, 0, 120);
  CHECK(answer.restorable_pages == 60);
  CHECK(answer.resident_pages == 100);
  CHECK(answer.stops == std::vector<std::uint32_t>{10, 60});
  CHECK(answer.first_missing == 60);
  CHECK(answer.reason == Reason::group_incomplete);
  CHECK(answer.missing_pool == state);
  CHECK(bool(answer.lease));
}

TEST_CASE_FIXTURE(StoreFixture, "a model that keeps recurrent state alone is restorable where that is, with nothing at the pages between") {
  start();
  const PoolId state = pool("state", 1, 8192, HitPolicy::trailing(1));
  const GroupId alone = group("g", {{"state", {1, 1, 1}, {1, 1, 1}, HitPolicy::trailing(1), false}});
  const SenderId a = rank(0, {{state, 0}});
  CHECK(lookup(alone, 0, 200).restorable_pages == 0);
  for (const std::uint64_t page : {63, 127}) {
    put(batch(a, state, 0, page, 1));
    land_all();
  }
  const LookupAnswer answer = lookup(alone, 0, 200);
  CHECK(answer.restorable_pages == 128);
  CHECK(answer.resident_pages == 200);
  CHECK(answer.stops == std::vector<std::uint32_t>{64, 128});
  CHECK(answer.leased_stops == std::vector<std::uint32_t>{64, 128});
  CHECK(answer.reason == Reason::group_incomplete);
  CHECK(answer.missing_pool == state);
  CHECK(lookup(alone, 0, 127).restorable_pages == 64);
  // The search in the mapped index asks for all of them as well.
  const std::vector<IndexReader> readers{store->reader()};
  const Placement placement = Placement::local(1);
  LookupSearch search;
  search.readers = readers;
  search.placement = &placement;
  search.ns = ns;
  std::vector<PageHash> pages;
  for (std::uint64_t i = 0; i < 200; ++i) pages.push_back(page_hash(i));
  CHECK(pages_to_ask(search, pages) == 200);
  search.every_page = 1;
  CHECK(pages_to_ask(search, pages) == 1);
}

TEST_CASE_FIXTURE(Hybrid, "half a checkpoint is none") {
  begin();
  store_pages(0, 10);
  put(batch(a, state, 0, 9, 1));
  land_all();
  CHECK(lookup(both, 0, 10).restorable_pages == 0);
  put(batch(b, state, 1, 9, 1));
  land_all();
  CHECK(lookup(both, 0, 10).restorable_pages == 10);
}

TEST_CASE_FIXTURE(Hybrid, "a checkpoint that lacks one shard is named rather than pages that have none, by the shard that is not there") {
  begin();
  store_pages(0, 100);
  checkpoint(9);
  LookupAnswer answer = lookup(both, 0, 120);
  CHECK(answer.reason == Reason::group_incomplete);
  CHECK(answer.missing_shard == 0);  // behind page 9 no page has any
  put(batch(a, state, 0, 59, 1));
  put(batch(b, state, 1, 79, 1));
  land_all();
  answer = lookup(both, 0, 120);
  CHECK(answer.restorable_pages == 10);
  CHECK(answer.first_missing == 10);
  CHECK(answer.reason == Reason::group_incomplete);
  CHECK(answer.missing_pool == state);
  CHECK(answer.missing_shard == 1);  // of page 59: page 79 lacks as many, but comes later
  put(batch(b, state, 1, 59, 1));
  land_all();
  answer = lookup(both, 0, 120);
  CHECK(answer.restorable_pages == 60);
  CHECK(answer.missing_shard == 0);  // of page 79
}

TEST_CASE_FIXTURE(StoreFixture, "of several trailing pools the one is named that keeps the nearest stop from being legal") {
  start();
  const PoolId kv = pool("kv", 1, 4096);
  const PoolId near = pool("window", 1, 256, HitPolicy::trailing(3));  // the lowest number, and there before most stops
  const PoolId state = pool("state", 3, 8192, HitPolicy::trailing(1));
  const GroupId all = group("g", {{"kv", {1, 1, 1}, {3, 1, 1}, HitPolicy::every_page(), false},
                                  {"window", {1, 1, 1}, {3, 1, 1}, HitPolicy::trailing(3), false},
                                  {"state", {3, 1, 1}, {3, 1, 1}, HitPolicy::trailing(1), false}});
  std::vector<SenderId> ranks;
  for (std::uint32_t r = 0; r < 3; ++r) ranks.push_back(rank(r, {{kv, 0}, {near, 0}, {state, r}}));
  const auto store_at = [&](std::uint32_t r, PoolId of, std::uint64_t first, std::uint64_t count) {
    put(batch(ranks[r], of, of == state ? r : 0, first, count));
    land_all();
  };
  const auto named = [&](std::uint32_t pages) {
    const LookupAnswer answer = lookup(all, 0, pages, nullptr, 1, true);
    CHECK(answer.reason == Reason::group_incomplete);
    return std::pair(answer.missing_pool, answer.missing_shard);
  };
  store_at(0, kv, 0, 40);
  CHECK(named(40) == std::pair(near, 0U));  // nothing of any: the first page, which needs one of `window` and three of `state`
  store_at(0, near, 0, 20);
  CHECK(named(40) == std::pair(state, 0U));
  store_at(0, state, 15, 1);
  store_at(1, state, 15, 1);
  CHECK(named(40) == std::pair(state, 2U));
  for (std::uint32_t r = 0; r < 3; ++r) store_at(r, state, 20, 1);
  CHECK(named(40) == std::pair(state, 2U));  // page 20 lacks one of `window`, page 15 one of `state`: the first
  store_at(2, state, 15, 1);
  CHECK(named(40) == std::pair(near, 0U));   // a stop behind page 15; page 20 has the state and lacks its own window
  CHECK(lookup(all, 0, 40).restorable_pages == 16);
}

TEST_CASE_FIXTURE(Hybrid, "in flight, evicted and absent are told apart") {
  config.capacity_bytes = 20 * 4096;
  begin();
  CHECK(lookup(both, 0, 4).reason == Reason::absent);
  put(batch(a, kv, 0, 0, 1));
  CHECK(lookup(both, 0, 4).reason == Reason::in_flight);
  land_all();
  store_pages(1000, 20);
  CHECK(lookup(both, 0, 4).reason == Reason::evicted);
}

TEST_CASE_FIXTURE(Hybrid, "all ranks get one answer for one request id, until its lease ends") {
  begin();
  store_pages(0, 10);
  checkpoint(4);
  const LookupAnswer first = lookup(both, 0, 10, "request 1");
  checkpoint(9);
  const LookupAnswer second = lookup(both, 0, 10, "request 1");
  CHECK(second.repeated);
  CHECK(second.restorable_pages == first.restorable_pages);
  CHECK(second.lease == first.lease);
  CHECK(lookup(both, 0, 10, "request 2").restorable_pages == 10);
  CHECK(lookup(both, 0, 9, "request 1").restorable_pages == 5);  // other pages: another question
  CHECK(store->release(LeaseCall{first.lease, 1, 0}, now, actions) == Reason::none);
  CHECK(lookup(both, 0, 10, "request 1").restorable_pages == 10);
  // An empty answer is kept too, for a second.
  CHECK(lookup(both, 500, 3, "request 3").restorable_pages == 0);
  store_pages(500, 3);
  checkpoint(502);
  CHECK(lookup(both, 500, 3, "request 3").restorable_pages == 0);
  advance(2 * kSecond);
  CHECK(lookup(both, 500, 3, "request 3").restorable_pages == 3);
}

TEST_CASE_FIXTURE(StoreFixture, "ranks that join one lookup wait for the other partitions as long as the most patient of them") {
  config.partitions = 2;
  start();
  pool("kv", 1, 4096);
  const GroupId group = this->group("g", {{"kv", {1, 1, 1}, {1, 1, 1}, HitPolicy::every_page(), false}});
  LookupAsk ask;
  ask.engine = 1;
  ask.group = group;
  ask.token = 7;
  ask.has_request = true;
  ask.request = text_digest("r");
  for (std::uint64_t i = 0; i < 8; ++i) ask.pages.push_back(page_hash(i));
  ask.digest = lookup_digest(group, ask.pages);
  const auto ask_with = [&](std::uint64_t asker, Duration time) {
    ask.time_left = time;
    store->lookup(asker, ask, now, actions);
  };
  ask_with(1, 10 * kMillisecond);
  ask_with(2, kSecond);
  ask_with(3, 20 * kMillisecond);
  REQUIRE(actions.part_asks.size() == 1);
  CHECK(actions.lookups.empty());
  const PartLookupAsk part = actions.part_asks.front().second;
  actions.part_asks.clear();
  advance(500 * kMillisecond);
  CHECK(actions.lookups.empty());
  PartLookupAnswer answer;
  answer.token = part.token;
  answer.partition = 1;
  store->part_answer(answer, now, actions);
  REQUIRE(actions.lookups.size() == 3);
  for (const auto& [asker, told] : actions.lookups) CHECK(told.reason == Reason::absent);
  actions.lookups.clear();
  // Of those that nobody answers the last one's time decides.
  ask.request = text_digest("s");
  ask_with(1, 10 * kMillisecond);
  ask_with(2, 200 * kMillisecond);
  advance(100 * kMillisecond);
  CHECK(actions.lookups.empty());
  advance(150 * kMillisecond);
  CHECK(actions.lookups.size() == 2);
}

TEST_CASE_FIXTURE(Hybrid, "what is leased is not evicted, and a put that cannot get space says so at once") {
  config.capacity_bytes = 10 * 4096 + 16384;
  config.leased_bytes_per_engine = 1 << 30;
  begin();
  store_pages(0, 10);
  checkpoint(9);
  const LookupAnswer answer = lookup(both, 0, 10);
  REQUIRE(answer.restorable_pages == 10);
  put(batch(b, kv, 0, 100, 1));
  CHECK(count(b, Verdict::rejected, Reason::no_space) == 1);
  CHECK(lookup(both, 0, 10, nullptr, 1, true).restorable_pages == 10);
  CHECK(store->release(LeaseCall{answer.lease, 1, 0}, now, actions) == Reason::none);
  CHECK(store->release(LeaseCall{answer.lease, 1, 0}, now, actions) == Reason::none);  // twice is no error
  put(batch(b, kv, 0, 100, 1));
  land_all();
  CHECK(readable(kv, 0, 100));
}

TEST_CASE_FIXTURE(Hybrid, "pages leave from the end of their chain, and a checkpoint never outlives its page") {
  config.capacity_bytes = 30 * 4096 + 2 * 8192;
  begin();
  store_pages(0, 30);
  checkpoint(29);
  for (std::uint64_t n = 0; n < 10; ++n) {
    store_pages(1000 + 10 * n, 1);
    std::uint64_t resident = 0;
    while (resident < 30 && readable(kv, 0, resident)) ++resident;
    for (std::uint64_t page = resident; page < 30; ++page) CHECK_FALSE(readable(kv, 0, page));
    if (!readable(kv, 0, 29)) CHECK_FALSE(readable(state, 0, 29));
  }
  CHECK_FALSE(readable(kv, 0, 29));
  CHECK(readable(kv, 0, 0));
}

TEST_CASE_FIXTURE(Hybrid, "a narrowed lease gives back what lies behind its stop") {
  config.capacity_bytes = 20 * 4096 + 4 * 8192;
  config.leased_bytes_per_engine = 1 << 30;
  begin();
  store_pages(0, 20);
  checkpoint(9);
  checkpoint(19);
  const LookupAnswer answer = lookup(both, 0, 20);
  CHECK(answer.leased_stops == std::vector<std::uint32_t>{10, 20});
  CHECK(store->narrow(LeaseCall{answer.lease, 1, 10}, now, actions) == Reason::none);
  collect();
  store_pages(1000, 14);
  CHECK(lookup(both, 0, 10, nullptr, 1, true).restorable_pages == 10);
  CHECK_FALSE(readable(kv, 0, 19));
  CHECK(store->narrow(LeaseCall{answer.lease, 2, 10}, now, actions) == Reason::lease_unknown);
}

TEST_CASE_FIXTURE(Hybrid, "expired, foreign and forged leases load nothing") {
  begin();
  store_pages(0, 10);
  checkpoint(9);
  const LookupAnswer answer = lookup(both, 0, 10);
  CHECK(begin_load(a, 1, answer.lease) == Reason::none);
  CHECK(begin_load(a, 2, answer.lease, 2) == Reason::lease_unknown);
  LeaseId forged = answer.lease;
  forged.high ^= 1;
  CHECK(begin_load(a, 3, forged) == Reason::lease_unknown);
  advance(config.lease_time + kSecond);
  CHECK(begin_load(a, 4, answer.lease) == Reason::lease_expired);
}

TEST_CASE_FIXTURE(Hybrid, "a load that has started keeps its objects beyond the lease, until its end") {
  config.capacity_bytes = 10 * 4096 + 16384;
  config.leased_bytes_per_engine = 1 << 30;
  begin();
  store_pages(0, 5);
  checkpoint(4);
  const LookupAnswer answer = lookup(both, 0, 5);
  REQUIRE(answer.restorable_pages == 5);
  CHECK(begin_load(a, 1, answer.lease, 1, 60 * kSecond) == Reason::none);
  advance(config.lease_time + kSecond);
  store_pages(1000, 12);
  CHECK(readable(kv, 0, 4));
  store->load_end(LoadEnd{1, a, answer.lease}, now, actions);
  collect();
  CHECK(store->stats().leases_now == 0);
  store_pages(2000, 10);
  CHECK_FALSE(readable(kv, 0, 4));
}

TEST_CASE_FIXTURE(Hybrid, "a shortage of lease budget says busy, and shortens the answer") {
  begin();
  config.leased_bytes_per_engine = 0;
  std::vector<LookupAnswer> answers;
  for (std::uint64_t first = 0; first < 80 * 100 && (answers.empty() || answers.back().reason == Reason::none); first += 100) {
    store_pages(first, 10);
    checkpoint(first + 4);
    checkpoint(first + 9);
    answers.push_back(lookup(both, first, 10));
  }
  REQUIRE(answers.size() > 1);
  const LookupAnswer& last = answers.back();
  CHECK(last.reason == Reason::busy);
  CHECK(last.retry_after_ms > 0);
  CHECK(last.restorable_pages < 10);
  CHECK(last.resident_pages == 10);
}

TEST_CASE_FIXTURE(Hybrid, "engines that lease all they can leave a quarter of the budget to puts, and something for whoever comes next") {
  begin();
  config.leased_bytes_per_engine = 0;
  const GroupId plain = group("plain", {{"kv", {1, 1, 1}, {2, 1, 1}, HitPolicy::every_page(), false}});
  constexpr std::uint64_t kChain = 10;
  const std::uint64_t budget_pages = store->stats().capacity_bytes / 4096;
  const std::uint64_t chains = budget_pages * 8 / 10 / kChain;
  for (std::uint64_t chain = 0; chain < chains; ++chain) store_pages(chain * 100, kChain);
  std::vector<std::uint64_t> leased;  // pages, by engine
  std::uint64_t chain = 0;
  for (EngineId engine = 1; engine <= 6; ++engine) {
    leased.push_back(0);
    for (LookupAnswer answer; answer.reason != Reason::busy; leased.back() += answer.restorable_pages) {
      REQUIRE(chain < chains);
      answer = lookup(plain, 100 * chain++, kChain, nullptr, engine);
    }
    CHECK(leased.back() > 0);
  }
  CHECK(leased.front() == budget_pages / 2);
  CHECK(leased[1] < leased[0]);
  const std::uint64_t all = std::accumulate(leased.begin(), leased.end(), std::uint64_t{0});
  CHECK(store->stats().leased_bytes_now == all * 4096);
  CHECK(all < budget_pages / 4 * 3);
  for (std::uint64_t i = 0; i < budget_pages / 5 / kChain; ++i) {
    store_pages(1'000'000 + i * 100, kChain);
    CHECK(readable(kv, 0, 1'000'000 + i * 100 + kChain - 1));
  }
}

TEST_CASE_FIXTURE(Hybrid, "an answer that belongs to a request says so: its lease is not one rank's to release") {
  begin();
  store_pages(0, 10);
  checkpoint(9);
  CHECK_FALSE(lookup(both, 0, 10).kept);
  const LookupAnswer first = lookup(both, 0, 10, "r");
  CHECK(first.kept);
  const LookupAnswer second = lookup(both, 0, 10, "r");
  CHECK(second.kept);
  CHECK(second.repeated);
  CHECK(second.lease == first.lease);
}

TEST_CASE_FIXTURE(Hybrid, "leases of few bytes are bounded by what they cost the store: pages, and their own memory") {
  config.index = IndexLimits{256, 4096, 256};
  begin();
  const PoolId small = pool("small", 1, 64);
  const GroupId tiny = group("tiny", {{"small", {1, 1, 1}, {2, 1, 1}, HitPolicy::every_page(), false}});
  const SenderId c = rank(7, {{small, 0}});
  put(batch(c, small, 0, 0, 200));
  land_all();
  // 200 of 256 pages are more than half of the index, however small they are.
  const LookupAnswer most = lookup(tiny, 0, 200);
  CHECK(most.restorable_pages == 128);
  CHECK(most.reason == Reason::busy);
  std::uint64_t pages = most.restorable_pages;
  for (LookupAnswer answer; answer.reason != Reason::busy || answer.restorable_pages != 0; pages += answer.restorable_pages) {
    REQUIRE(pages < 1 << 20);
    answer = lookup(tiny, 0, 100);
  }
  CHECK(pages == 4 * 256);
  CHECK(store->stats().leased_bytes_now <= store->stats().capacity_bytes / 2);
  // Another engine is not kept from the same pages.
  CHECK(lookup(tiny, 0, 100, nullptr, 2).restorable_pages > 0);
}

TEST_CASE_FIXTURE(Hybrid, "what many leases of one engine begin with counts once, and as long as one of them holds it") {
  // Ten pages, two checkpoints in two shards each, and four pages more of another chain.
  config.leased_bytes_per_engine = 14 * 4096 + 2 * 16384;
  begin();
  store_pages(0, 10);
  checkpoint(4);
  checkpoint(9);
  std::vector<LookupAnswer> answers;
  for (int i = 0; i < 80; ++i) answers.push_back(lookup(both, 0, 10));
  for (const LookupAnswer& answer : answers) REQUIRE(answer.restorable_pages == 10);
  const std::uint64_t whole = 10 * 4096 + 2 * 16384;
  CHECK(store->stats().leased_bytes_now == whole);
  // A shorter one costs nothing either; another chain does, and another engine pays for itself.
  answers.push_back(lookup(both, 0, 5));
  CHECK(store->stats().leased_bytes_now == whole);
  store_pages(100, 10);
  checkpoint(102);
  CHECK(lookup(both, 100, 10).reason == Reason::busy);
  const LookupAnswer other = lookup(both, 0, 10, nullptr, 2);
  CHECK(other.restorable_pages == 10);
  CHECK(store->stats().leased_bytes_now == 2 * whole);
  CHECK(store->release(LeaseCall{other.lease, 2, 0}, now, actions) == Reason::none);
  audit();
  // What the last one keeps is counted until it goes.
  for (std::size_t i = 1; i < answers.size() - 1; ++i) CHECK(store->release(LeaseCall{answers[i].lease, 1, 0}, now, actions) == Reason::none);
  CHECK(store->stats().leased_bytes_now == whole);
  CHECK(store->narrow(LeaseCall{answers[0].lease, 1, 7}, now, actions) == Reason::none);
  CHECK(store->stats().leased_bytes_now == 7 * 4096 + 16384);
  CHECK(store->release(LeaseCall{answers[0].lease, 1, 0}, now, actions) == Reason::none);
  CHECK(store->stats().leased_bytes_now == 5 * 4096 + 16384);
  audit();
  CHECK(store->release(LeaseCall{answers.back().lease, 1, 0}, now, actions) == Reason::none);
  CHECK(store->stats().leased_bytes_now == 0);
  audit();
}

TEST_CASE_FIXTURE(Hybrid, "clear removes what was there, in steps; leased slots stay until release, but nobody sees them") {
  config.clear_step = 3;
  begin();
  store_pages(0, 10);
  checkpoint(9);
  const LookupAnswer answer = lookup(both, 0, 10);
  RemoveAsk ask;
  ask.what = RemoveAsk::What::all;
  store->remove(1, ask, now, actions);
  store_pages(100, 2);  // put after the clear was asked
  while (store->step(now, actions)) audit();
  audit();
  REQUIRE(actions.removes.size() == 1);
  CHECK(actions.removes[0].second.removed_objects == 12);
  CHECK_FALSE(readable(kv, 0, 0));
  CHECK(readable(kv, 0, 100));
  CHECK(lookup(both, 0, 10).restorable_pages == 0);
  const std::uint64_t free_before = store->stats().free_bytes_now;
  CHECK(store->release(LeaseCall{answer.lease, 1, 0}, now, actions) == Reason::none);
  audit();
  CHECK(store->stats().free_bytes_now > free_before);
  CHECK(store->stats().records_now == 2);
}

TEST_CASE_FIXTURE(Hybrid, "an incomplete set goes first after its grace") {
  config.capacity_bytes = 10 * 4096 + 16384;
  begin();
  put(batch(a, state, 0, 500, 1));  // half of a checkpoint whose page never comes
  land_all();
  store_pages(0, 10);
  advance(config.incomplete_grace + kSecond);
  REQUIRE(readable(state, 0, 500));
  store_pages(100, 3);
  CHECK_FALSE(readable(state, 0, 500));
  CHECK(readable(kv, 0, 9));
}

TEST_CASE_FIXTURE(Hybrid, "leases end with the engine's last connection, after the grace") {
  begin();
  store_pages(0, 10);
  checkpoint(9);
  const LookupAnswer answer = lookup(both, 0, 10);
  store->client_left(100, true, now, actions);
  advance(config.engine_grace * 2);
  CHECK(store->stats().leases_now == 1);
  store->client_left(101, true, now, actions);
  advance(config.engine_grace / 2);
  CHECK(store->stats().leases_now == 1);
  advance(config.engine_grace);
  CHECK(store->stats().leases_now == 0);
  CHECK(begin_load(a, 1, answer.lease) == Reason::lease_expired);
}

TEST_CASE_FIXTURE(Hybrid, "a checkpoint that is being written is in flight, not missing") {
  begin();
  store_pages(0, 10);
  put(batch(a, state, 0, 9, 1));
  CHECK(lookup(both, 0, 10, nullptr, 1, true).reason == Reason::in_flight);
  land_all();
  CHECK(lookup(both, 0, 10, nullptr, 1, true).reason == Reason::group_incomplete);  // the other rank's half is not announced
}
