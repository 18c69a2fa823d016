// SPDX-License-Identifier: Apache-2.0
//
// A page whose parent is kept by its other child alone, in an index that is full: room is made by evicting that child.
#include "tests/protocol/store_fixture.hpp"

using namespace kvonce;
using namespace kvonce::protocol;
using namespace kvonce::protocol::test;

namespace {

struct FullIndex : StoreFixture {
  PoolId kv = 0;
  SenderId a = 0;
  std::uint64_t filler = 1'000'000;

  FullIndex() { config.index = IndexLimits{48, 4096, 16}; }
  void begin() {
    start();
    kv = pool("kv", 1, 64, HitPolicy::every_page());
    a = rank(0, {{kv, 0}});
  }
  PutBatch child(std::uint64_t page, std::uint64_t parent, std::uint32_t depth) {
    PutBatch put = batch(a, kv, 0, page, 1);
    put.pages[0].depth = depth;
    put.pages[0].parent = kExternalParent;
    put.has_parent = true;
    put.parent = page_hash(parent);
    return put;
  }
  /// Pages that stand alone, until the index has no record left.
  void fill() {
    for (std::uint64_t i = store->stats().records_now; i < config.index.max_pages; ++i) {
      PutBatch put = batch(a, kv, 0, 0, 1);
      put.pages[0].hash = page_hash(filler++);
      this->put(put);
    }
    land_all();
    REQUIRE(store->stats().records_now == config.index.max_pages);
  }
  void remove_page(std::uint64_t page) {
    RemoveAsk ask;
    ask.what = RemoveAsk::What::page;
    ask.ns = ns;
    ask.pages = {page_hash(page)};
    store->remove(1, ask, now, actions);
    collect();
  }
};

}  // namespace

TEST_CASE_FIXTURE(FullIndex, "a parent that its evicted child alone had kept is still there for the child to come") {
  begin();
  put(batch(a, kv, 0, 0, 2));  // page 0 and its child 1
  land_all();
  remove_page(0);  // page 0 has no object now: page 1 keeps its record
  fill();
  put(child(500, 0, 1));  // evicts page 1, the oldest
  land_all();
  CHECK(!readable(kv, 0, 1));
  CHECK(readable(kv, 0, 500));
  // Every record is one page's: whatever comes next takes none that is in use.
  const std::uint64_t before = store->stats().evicted_page_sets;
  for (std::uint64_t i = 0; i < 3; ++i) {
    put(child(600 + i, 500, 2));
    land_all();
    CHECK(readable(kv, 0, 500));
    CHECK(readable(kv, 0, 600 + i));
  }
  CHECK(store->stats().evicted_page_sets == before + 3);
}

TEST_CASE_FIXTURE(FullIndex, "a page that finds no record takes nothing along: neither its parent nor the pages before it in its batch") {
  config.index = IndexLimits{48, 4, 16};  // four objects, all of them claimed below
  begin();
  PutBatch held = batch(a, kv, 0, 0, 3);
  put(held);
  PutBatch more = batch(a, kv, 0, 3, 4);  // one more finds a place
  put(more);
  CHECK(count(a, Verdict::rejected, Reason::no_space) == 3);
  land_all();
  for (std::uint64_t page = 0; page < 4; ++page) CHECK(readable(kv, 0, page));
  for (std::uint64_t page = 4; page < 7; ++page) CHECK(!readable(kv, 0, page));
}
