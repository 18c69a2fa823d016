// SPDX-License-Identifier: Apache-2.0
#include "protocol/lookup_search.hpp"

#include "store_fixture.hpp"

using namespace kvonce;
using namespace kvonce::protocol;
using namespace kvonce::protocol::test;

namespace {

struct Searched : StoreFixture {
  static constexpr std::uint64_t kAsked = 200;
  PoolId kv = 0, indexer = 0, state = 0;
  GroupId all = 0;
  SenderId a = 0;
  std::vector<PageHash> pages;
  std::vector<IndexReader> readers;
  const Placement placement = Placement::local(1);

  void begin() {
    start();
    kv = pool("kv", 1, 4096);
    indexer = pool("indexer", 1, 128);
    state = pool("state", 1, 8192, HitPolicy::trailing(1));
    all = group("g", {{"kv", {1, 1, 1}, {1, 1, 1}, HitPolicy::every_page(), false},
                      {"indexer", {1, 1, 1}, {1, 1, 1}, HitPolicy::every_page(), false},
                      {"state", {1, 1, 1}, {1, 1, 1}, HitPolicy::trailing(1), false}});
    a = rank(0, {{kv, 0}, {indexer, 0}, {state, 0}});
    for (std::uint64_t i = 0; i < kAsked; ++i) pages.push_back(page_hash(i));
    readers = {store->reader()};
  }
  void store_pages(PoolId pool, std::uint64_t first, std::uint64_t count) {
    put(batch(a, pool, 0, first, count));
    land_all();
  }
  LookupSearch search() const {
    LookupSearch found;
    found.readers = readers;
    found.placement = &placement;
    found.ns = ns;
    found.every_page = std::uint64_t{1} << kv | std::uint64_t{1} << indexer;
    return found;
  }
  LookupAnswer ask(std::size_t sent) {
    LookupAsk ask;
    ask.engine = 1;
    ask.group = all;
    ask.time_left = kSecond;
    ask.pages_asked = static_cast<std::uint32_t>(pages.size());
    ask.pages.assign(pages.begin(), pages.begin() + static_cast<std::ptrdiff_t>(sent));
    return answer_of(ask);
  }
};

void check_same(const LookupAnswer& one, const LookupAnswer& other) {
  CHECK(one.restorable_pages == other.restorable_pages);
  CHECK(one.resident_pages == other.resident_pages);
  CHECK(one.stops == other.stops);
  CHECK(one.leased_stops == other.leased_stops);
  CHECK(one.first_missing == other.first_missing);
  CHECK(one.reason == other.reason);
  CHECK(one.missing_pool == other.missing_pool);
  CHECK_FALSE(one.search_again);
  CHECK_FALSE(other.search_again);
}

}  // namespace

TEST_CASE_FIXTURE(Searched, "the store is asked for what is there and for the page behind it, and answers as if asked for all") {
  begin();
  CHECK(pages_to_ask(search(), pages) == 1);
  CHECK(ask(1).reason == Reason::absent);
  store_pages(kv, 0, 120);
  CHECK(pages_to_ask(search(), pages) == 1);  // half a page is none
  store_pages(indexer, 0, 100);
  store_pages(state, 59, 1);
  const std::size_t sent = pages_to_ask(search(), pages);
  CHECK(sent == 101);
  const LookupAnswer answer = ask(sent);
  CHECK(answer.restorable_pages == 60);
  CHECK(answer.resident_pages == 100);
  check_same(answer, ask(pages.size()));
  CHECK(store->stats().lookup_pages_asked == 3 * kAsked);
}

TEST_CASE_FIXTURE(Searched, "whatever comes or goes after the search, the answer is that of all pages, or to search again") {
  begin();
  store_pages(kv, 0, 100);
  store_pages(indexer, 0, 100);
  const std::size_t sent = pages_to_ask(search(), pages);
  REQUIRE(sent == 101);

  // Came: nothing is leased and nothing counted, for all of it is asked again.
  store_pages(kv, 100, 1);
  store_pages(indexer, 100, 1);
  store_pages(state, 99, 1);
  const LookupAnswer again = ask(sent);
  CHECK(again.search_again);
  CHECK_FALSE(bool(again.lease));
  CHECK(store->stats().leases_now == 0);
  CHECK(store->stats().lookups == 0);
  CHECK(store->stats().lookup_pages_asked == 0);
  CHECK(ask(pages.size()).restorable_pages == 100);

  // Went: a hole, which the search may jump over.
  RemoveAsk hole;
  hole.what = RemoveAsk::What::page;
  hole.ns = ns;
  hole.pages = {page_hash(10)};
  store->remove(1, hole, now, actions);
  collect();
  check_same(ask(sent), ask(pages.size()));
  CHECK(ask(sent).resident_pages == 10);
  check_same(ask(pages_to_ask(search(), pages)), ask(pages.size()));
}

TEST_CASE_FIXTURE(Searched, "pages that are all there, few pages and a store that cannot be searched are asked for whole") {
  begin();
  const std::vector<PageHash> few(pages.begin(), pages.begin() + 16);
  CHECK(pages_to_ask(search(), few) == few.size());
  CHECK(pages_to_ask(LookupSearch{}, pages) == pages.size());
  readers = {IndexReader{}};
  CHECK(pages_to_ask(search(), pages) == pages.size());
  readers = {store->reader()};
  store_pages(kv, 0, kAsked);
  store_pages(indexer, 0, kAsked);
  CHECK(pages_to_ask(search(), pages) == pages.size());
}
