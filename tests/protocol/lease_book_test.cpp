// SPDX-License-Identifier: Apache-2.0
//
// The tree that counts a page once for many leases, against sets that count one by one.
#include <algorithm>
#include <random>
#include <set>

#include <doctest/doctest.h>

#include "protocol/lease_book.hpp"

using namespace kvonce;
using namespace kvonce::protocol;

namespace {

constexpr std::uint64_t kPage = 1000, kStop = 7;

struct Held {
  std::vector<PageHash> pages;
  std::vector<std::uint32_t> stops;
  LeaseBook::NodeId end = LeaseBook::kNoNode;
};

/// As hashes of prefixes are: what stands behind other pages is another page.
std::vector<PageHash> chain(std::uint64_t trunk, std::uint64_t branch, std::uint32_t fork, std::uint32_t count) {
  std::vector<PageHash> pages(count);
  for (std::uint32_t i = 0; i < count; ++i) pages[i].words[0] = (i < fork ? trunk : (trunk * 100 + branch) * 100 + fork) * 10'000 + i;
  return pages;
}

std::uint64_t bytes_of(const std::vector<Held>& all) {
  std::set<std::uint64_t> pages;
  std::set<std::pair<std::uint64_t, std::uint32_t>> stops;
  for (const Held& held : all) {
    for (const PageHash& page : held.pages) pages.insert(page.words[0]);
    for (const std::uint32_t stop : held.stops) stops.emplace(held.pages[stop - 1].words[0], stop);
  }
  return pages.size() * kPage + stops.size() * kStop;
}

std::string audit(const LeaseBook& book, const std::vector<Held>& all) {
  std::vector<std::pair<LeaseBook::NodeId, std::vector<std::uint32_t>>> leases;
  for (const Held& held : all) leases.emplace_back(held.end, held.stops);
  return book.audit(leases);
}

}  // namespace

TEST_CASE("leases that come, narrow and go in any order are counted as sets would count them") {
  for (std::uint32_t seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const auto below = [&random](std::uint32_t most) { return static_cast<std::uint32_t>(random() % most); };
    LeaseBook book;
    std::vector<Held> all;
    for (int step = 0; step < 300; ++step) {
      const std::uint32_t what = below(5);
      if (what < 2 || all.empty()) {
        Held held;
        const std::uint32_t count = 1 + below(30);
        held.pages = chain(1 + below(2), 10 + below(3), 10 * below(4), count);
        for (std::uint32_t stop = 1; stop <= count; ++stop)
          if (below(8) == 0) held.stops.push_back(stop);
        const LeaseBook::Counted counted = book.counted(held.pages);
        const std::uint64_t before = book.bytes();
        held.end = book.add(held.pages, held.stops, kPage, kStop);
        const auto more_stops = std::count_if(held.stops.begin(), held.stops.end(), [&](std::uint32_t stop) {
          return !std::binary_search(counted.stops.begin(), counted.stops.end(), stop);
        });
        // What it told to be counted is what the lease did not cost.
        REQUIRE(book.bytes() - before == (count - counted.pages) * kPage + static_cast<std::uint64_t>(more_stops) * kStop);
        all.push_back(std::move(held));
      } else {
        Held& held = all[random() % all.size()];
        if (what == 2 && held.pages.size() > 1) {
          const std::uint32_t stop = 1 + below(static_cast<std::uint32_t>(held.pages.size()));
          held.end = book.narrow(held.end, stop, held.stops);
          held.pages.resize(stop);
          std::erase_if(held.stops, [&](std::uint32_t s) { return s > stop; });
        } else if (what > 2) {
          book.remove(held.end, held.stops);
          std::swap(held, all.back());
          all.pop_back();
        }
      }
      REQUIRE(book.bytes() == bytes_of(all));
      REQUIRE(audit(book, all) == "");
    }
    for (const Held& held : all) book.remove(held.end, held.stops);
    CHECK(book.bytes() == 0);
    CHECK(book.empty());
  }
}

TEST_CASE("sixty thousand leases, each a page longer than the one before, come and go without a deep call") {
  LeaseBook book;
  const std::vector<PageHash> pages = chain(1, 1, 0, 2'000);
  std::vector<LeaseBook::NodeId> ends;
  for (std::uint32_t i = 0; i < 60'000; ++i) ends.push_back(book.add({pages.begin(), pages.begin() + 1 + i % 2'000}, {}, kPage, kStop));
  CHECK(book.bytes() == 2'000 * kPage);
  for (const LeaseBook::NodeId end : ends) book.remove(end, {});
  CHECK(book.bytes() == 0);
  CHECK(book.empty());
}
