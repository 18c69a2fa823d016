// SPDX-License-Identifier: Apache-2.0
//
// Figures, printed and not judged. Skipped unless asked for: test_index --no-skip --test-case="*figures*"
#include <doctest/doctest.h>

#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <ctime>
#include <vector>

#include "protocol/eviction_order.hpp"
#include "tests/index/index_fixture.hpp"

using namespace kvonce;
using namespace kvonce::protocol;
using namespace kvonce::protocol::test;

namespace {

// Of this thread's CPU time: the machine may be shared.
double cpu_now() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}
template <class F>
double nanoseconds(F&& f) {
  const double begin = cpu_now();
  f();
  return cpu_now() - begin;
}

struct Mapped {
  Mapped(std::uint64_t size, bool huge) : bytes(size) {
    // Aligned to a huge page by hand, so that the first one can be one.
    constexpr std::uint64_t kHuge = 2U << 20;
    base = mmap(nullptr, bytes + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(base != MAP_FAILED);
    const auto at = (reinterpret_cast<std::uintptr_t>(base) + kHuge - 1) & ~(kHuge - 1);
    data = reinterpret_cast<std::byte*>(at);
    madvise(data, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    mapped = bytes + kHuge;
  }
  ~Mapped() { munmap(base, mapped); }
  std::uint64_t resident() const {
    const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
    std::vector<unsigned char> in((bytes + page - 1) / page);
    REQUIRE(mincore(data, bytes, in.data()) == 0);
    std::uint64_t pages = 0;
    for (const unsigned char p : in) pages += p & 1U;
    return pages * page;
  }
  void* base = nullptr;
  std::byte* data = nullptr;
  std::uint64_t bytes, mapped = 0;
};

}  // namespace

TEST_CASE("figures: exists, insert, touch, bytes per page" * doctest::skip()) {
  constexpr std::uint32_t kPages = 1'000'000;
  constexpr std::uint32_t kChain = 4096;
  const IndexLimits limits{kPages, 4 * kPages, kPages};
  for (const bool huge : {false, true}) {
    Mapped region(PageIndex::region_bytes(limits), huge);
    PageIndex index(region.data, limits, 1);
    index.set_pool(0, 0, 1, HitPolicy::every_page(), 0);
    std::vector<PageHash> pages;
    for (std::uint32_t i = 0; i < kPages; ++i) pages.push_back(page_of(i));

    // As a put does it: the next pages' buckets are under way.
    const double insert = nanoseconds([&] {
      RecordId parent = kNone;
      for (std::uint32_t i = 0; i < kPages; ++i) {
        if (i + 16 < kPages) index.prefetch(0, pages[i + 16]);
        if (i % kChain == 0) parent = kNone;
        const RecordId record = index.insert(0, pages[i], parent, i % kChain);
        index.publish(record, index.add_claimed(record, 0, 0, i), i, slot_from(i, 1), AckLevel::memory);
        parent = record;
      }
    });

    std::mt19937_64 rng(1);
    constexpr std::size_t kBatch = 128;
    constexpr std::size_t kAsked = 1 << 20;
    std::vector<PageHash> asked;
    for (std::size_t i = 0; i < kAsked; ++i) asked.push_back(pages[rng() % kPages]);
    std::vector<PageHash> strangers;
    for (std::size_t i = 0; i < kAsked; ++i) strangers.push_back(page_of(kPages + i));
    const IndexReader reader = index.reader();
    std::uint64_t found = 0;
    const auto ask = [&](const std::vector<PageHash>& keys) {
      std::uint8_t there[kBatch];
      return nanoseconds([&] {
        for (std::size_t i = 0; i < kAsked; i += kBatch) {
          reader.exists(0, 0, 0, std::span(keys).subspan(i, kBatch), there);
          for (const std::uint8_t t : there) found += t;
        }
      });
    };
    double exists = 1e18;
    for (int run = 0; run < 3; ++run) exists = std::min(exists, ask(asked));
    CHECK(found == 3 * kAsked);
    const double missing = ask(strangers);
    CHECK(found == 3 * kAsked);

    EvictionOrder order(index);
    const auto touch_all = [&] {
      return nanoseconds([&] {
        for (std::uint32_t i = 0; i < kPages; ++i) {
          if (i % kChain == 0) order.begin_touch();
          order.touch_page(i);
        }
      });
    };
    touch_all();
    const double touch_long = touch_all();
    const double touch_hot = nanoseconds([&] {
      for (int round = 0; round < 200; ++round) {
        order.begin_touch();
        for (std::uint32_t i = 0; i < kChain; ++i) order.touch_page(i);
      }
    });
    for (std::uint32_t i = 0; i < kPages; ++i)
      if (index.children(i) == 0) order.set_page_candidate(i, true);
    std::uint32_t evicted = 0;
    const double evict = nanoseconds([&] {
      while (const auto victim = order.victim()) {
        const RecordId record = victim->record;
        const RecordId parent = index.parent(record);
        order.forget_page(record);
        index.drop_member(record, index.first_member(record));
        index.erase(record);
        if (parent != kNone && index.children(parent) == 0) order.set_page_candidate(parent, true);
        ++evicted;
      }
    });
    CHECK(evicted == kPages);
    std::printf("huge pages %d: exists %.1f M keys/s (absent %.1f), insert+publish %.0f ns, touch %.1f ns (chain in cache %.1f), "
                "evict %.0f ns, resident %.1f MB = %.1f B a page\n",
                huge, kAsked * 1e3 / exists, kAsked * 1e3 / missing, insert / kPages, touch_long / kPages,
                touch_hot / (200.0 * kChain), evict / kPages, static_cast<double>(region.resident()) / 1e6,
                static_cast<double>(region.resident()) / kPages);
  }
}
