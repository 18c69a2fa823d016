// SPDX-License-Identifier: Apache-2.0
//
// Numbers that are told: exact for known events, equal to what is there, never going backwards.
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "tests/faults/fixture.hpp"

namespace faults_test {

namespace {

std::vector<std::uint64_t> counters(const Stats& s) {
  std::vector<std::uint64_t> all(std::begin(s.verdicts), std::end(s.verdicts));
  all.insert(all.end(), std::begin(s.misses), std::end(s.misses));
  for (const std::uint64_t n :
       {s.announced_items, s.announced_bytes, s.moved_bytes, s.stored_objects, s.stored_bytes, s.loaded_items, s.loaded_bytes,
        s.load_failures, s.promotions, s.conflicts, s.divergent, s.demotions, s.samples, s.unverified, s.lookups, s.lookup_pages_asked,
        s.lookup_pages_hit, s.evicted_objects, s.evicted_bytes, s.evicted_page_sets, s.evicted_checkpoint_sets, s.events_dropped})
    all.push_back(n);
  return all;
}

bool gauges_are_possible(const Stats& s) {
  return s.payload_bytes_now <= s.slot_bytes_now && s.slot_bytes_now <= s.arena_slot_bytes && s.free_bytes_now <= s.arena_slot_bytes &&
         s.objects_now <= s.stored_objects && s.pages_now < 1'000'000 && s.leased_bytes_now <= s.arena_slot_bytes &&
         s.quarantined_bytes_now <= s.arena_slot_bytes && s.rows_lent_now < 1'000'000 && s.claims_now < 1'000'000 &&
         s.leases_now < 1'000'000;
}

}  // namespace

TEST_CASE("each counter moves by exactly what happened") {
  Engine engine(2);
  const std::uint64_t object = engine.ranks[0].rows->object_bytes();
  const auto at = [](const Stats& s, Verdict v) { return s.verdicts[static_cast<std::size_t>(v)]; };
  const auto miss = [](const Stats& s, Reason r) { return s.misses[static_cast<std::size_t>(r)]; };
  Stats stats = engine.runtime->stats();
  for (const std::uint64_t n : counters(stats)) CHECK(n == 0);
  CHECK(stats.objects_now == 0);
  CHECK(stats.free_bytes_now == stats.arena_slot_bytes);

  engine.put(0, 1, 0, 8)->wait();
  engine.put(1, 1, 0, 8)->wait();
  PutOptions replicated;
  replicated.level = AckLevel::replicated;
  engine.put(0, 2, 0, 3, replicated)->wait();
  PutOptions never;
  never.after = Event::make();
  const auto canceled = engine.put(0, 3, 0, 2, never);
  canceled->cancel();
  canceled->wait();
  stats = engine.runtime->stats();
  CHECK(at(stats, Verdict::stored) == 8);
  CHECK(at(stats, Verdict::already_stored) == 8);
  CHECK(at(stats, Verdict::rejected) == 3);
  CHECK(at(stats, Verdict::unknown) == 2);
  CHECK(at(stats, Verdict::joined) == 0);
  CHECK(at(stats, Verdict::conflict) == 0);
  CHECK(at(stats, Verdict::failed) == 0);
  CHECK(stats.announced_items == 21);
  CHECK(stats.announced_bytes == 21 * object);
  CHECK(stats.moved_bytes == 8 * object);
  CHECK(stats.stored_objects == 8);
  CHECK(stats.stored_bytes == 8 * object);
  CHECK(stats.objects_now == 8);
  CHECK(stats.payload_bytes_now == 8 * object);
  CHECK(stats.promotions == 0);

  const auto found = engine.lookup(1, 10);
  CHECK(found.restorable_pages == 8);
  stats = engine.runtime->stats();
  CHECK(stats.lookups == 1);
  CHECK(stats.lookup_pages_asked == 10);
  CHECK(stats.lookup_pages_hit == 8);
  CHECK(miss(stats, Reason::absent) == 1);
  CHECK(stats.leases_now == 1);
  CHECK(stats.leased_bytes_now == 8 * object);

  engine.load(0, found.lease, 1, 8)->wait();
  engine.load(0, found.lease, 77, 2)->wait();
  stats = engine.runtime->stats();
  CHECK(stats.loaded_items == 8);
  CHECK(stats.loaded_bytes == 8 * object);
  CHECK(stats.load_failures == 2);

  CHECK(!engine.runtime->release(found.lease));
  (*engine.runtime->remove_pages(engine.ns, {page_of(1, 7)}))->wait();
  stats = engine.runtime->stats();
  CHECK(stats.leases_now == 0);
  CHECK(stats.leased_bytes_now == 0);
  CHECK(stats.objects_now == 7);
  CHECK(stats.pages_now == 7);
  CHECK(stats.payload_bytes_now == 7 * object);
  CHECK(stats.stored_objects == 8);
  CHECK(stats.evicted_objects == 0);
  CHECK(stats.claims_now == 0);
  CHECK(stats.rows_lent_now == 0);
  CHECK(stats.events_dropped == 0);
}

TEST_CASE("gauges are a scan of the truth after puts, evictions, removals and a clear, and counters never go back") {
  for (const std::uint32_t partitions : {1U, 4U}) {
    auto config = small_config();
    config.arena_bytes = 8ULL << 20;
    config.index_pages = 4096;
    config.partitions = partitions;
    auto runtime = start(config);
    Model model(*runtime, "m", {{"kv", false, 4096, 2}, {"state", true, 1000, 1, HitPolicy::trailing(1)}}, 2, 16);
    const auto scan = [&] {
      std::uint64_t objects = 0;
      std::uint64_t bytes = 0;
      for (std::uint64_t chain = 0; chain < 60; ++chain)
        for (const auto& page : chain_of(chain, 16)) {
          const auto stat = *runtime->stat(model.ns, page);
          objects += stat.objects.size();
          for (const auto& object : stat.objects) bytes += object.bytes;
        }
      const Stats stats = runtime->stats();
      CHECK(stats.objects_now == objects);
      CHECK(stats.payload_bytes_now == bytes);
      CHECK(stats.slot_bytes_now + stats.free_bytes_now == stats.arena_slot_bytes);
      return objects;
    };
    std::vector<LeaseId> leases;
    std::atomic<bool> over{false};
    std::atomic<std::uint64_t> backwards{0};
    std::atomic<std::uint64_t> impossible{0};
    std::thread watcher([&] {
      std::vector<std::uint64_t> last = counters(runtime->stats());
      while (!over) {
        const Stats stats = runtime->stats();
        const auto now = counters(stats);
        for (std::size_t i = 0; i < now.size(); ++i) backwards += now[i] < last[i] ? 1 : 0;
        if (partitions == 1 && !gauges_are_possible(stats)) ++impossible;
        last = now;
      }
    });
    for (std::uint64_t chain = 0; chain < 60; ++chain) {
      for (std::size_t r = 0; r < 2; ++r) model.put(r, chain_of(chain, 16), {0, 1})->wait();
      const auto found = model.lookup(chain_of(chain / 2, 16));
      if (found.lease) leases.push_back(found.lease);
      if (leases.size() > 3) {
        CHECK(!runtime->release(leases.front()));
        leases.erase(leases.begin());
      }
      if (chain % 5 == 0) (*runtime->remove_key(model.group, "kv", 0, page_of(chain, 15)))->wait();
      if (chain % 7 == 0) (*runtime->remove_pages(model.ns, {page_of(chain, 3), page_of(chain, 9)}))->wait();
    }
    // What was removed under a lease is freed with the lease.
    for (const LeaseId& lease : leases) CHECK(!runtime->release(lease));
    (*runtime->flush())->wait();
    CHECK(scan() > 0);
    (*runtime->clear())->wait();
    CHECK(scan() == 0);
    model.put(0, chain_of(1, 16), {0})->wait();
    CHECK(scan() == 16);
    over = true;
    watcher.join();
    CHECK(backwards == 0);
    CHECK(impossible == 0);
  }
}

TEST_CASE("events that a subscriber does not take are kept up to a bound, and those beyond it are counted") {
  constexpr std::uint64_t kPages = 2'048;
  constexpr std::uint64_t kRounds = 20;
  constexpr std::uint64_t kEvents = 2 * kPages * kRounds;  // stored and removed
  auto runtime = start();
  Model model(*runtime, "m", {{"kv", false, 64, 1}}, 1, kPages);
  std::mutex mutex;
  std::condition_variable changed;
  bool open = false;
  std::uint64_t heard = 0;
  runtime->subscribe([&](std::span<const StoreEvent> events) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return open; });
    heard += events.size();
    changed.notify_all();
  });
  for (std::uint64_t round = 0; round < kRounds; ++round) {
    model.put(0, chain_of(round, kPages), {0})->wait();
    (*runtime->clear())->wait();
  }
  const std::uint64_t dropped = runtime->stats().events_dropped;
  // What waits is bounded: 65,536, beside those that the subscriber was given and sits on.
  CHECK(dropped > 0);
  CHECK(dropped <= kEvents - 65'536);
  {
    const std::lock_guard lock(mutex);
    open = true;
  }
  changed.notify_all();
  std::unique_lock lock(mutex);
  CHECK(changed.wait_for(lock, std::chrono::seconds(60), [&] { return heard + dropped >= kEvents; }));
  CHECK(heard + dropped == kEvents);
  lock.unlock();
  runtime->subscribe({});
  CHECK(runtime->stats().events_dropped == dropped);
}

}  // namespace faults_test
