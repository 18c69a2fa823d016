// SPDX-License-Identifier: Apache-2.0
//
// A store with real bytes in its slots, driven at random, that can be stopped and started again over the same memory.
#pragma once

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <utility>

#include "protocol/slot_format.hpp"
#include "store_fixture.hpp"

namespace kvonce::protocol::test {

struct WarmFixture : StoreFixture {
  struct OpenCopy {
    SenderId sender = 0;
    Grant grant;
    PoolId pool = 0;
    std::uint32_t shard = 0;
    std::uint64_t page = 0;
    storage::Slot slot{};
  };
  struct Seen {
    Epoch epoch = 0;
    std::uint64_t offset = 0;
    friend bool operator==(const Seen&, const Seen&) = default;
  };
  using Objects = std::map<std::tuple<std::uint64_t, PoolId, std::uint32_t>, Seen>;  // (page, pool, shard)

  std::mt19937_64 random{1};
  PoolId kv = 0, sharded = 0, checkpoints = 0, large = 0;
  GroupId all = 0;
  std::vector<SenderId> ranks;
  std::map<std::pair<SenderId, std::uint64_t>, PutBatch> batches;
  std::vector<OpenCopy> copies;  // granted, neither landed nor abandoned
  std::vector<std::pair<LeaseId, EngineId>> held_leases;
  std::uint64_t next_rank = 0;

  std::uint64_t below(std::uint64_t n) { return random() % n; }

  void begin(std::uint64_t seed) {
    random.seed(seed);
    config.window_bytes = 1ULL << 20;
    config.lease_time = 100 * kSecond;
    config.incomplete_grace = 5 * kSecond;
    start();
    kv = pool("kv", 1, 4096, HitPolicy::every_page(), 4);
    sharded = pool("sharded", 2, 2048, HitPolicy::every_page(), 4);
    checkpoints = pool("state", 1, 1024, HitPolicy::trailing(1), 4);
    PoolAsk ask;
    ask.ns = ns;
    ask.pool.name = "large";
    ask.pool.size = PoolInfo::Size::known;
    ask.pool.range_bytes.assign(10, 30'000);  // more than one extent may hold
    std::vector<CatalogUpdate> updates;
    large = store->catalog().ask(ask, updates).pool;
    apply(updates);
    const ShardCounts one{1, 1, 1}, two{2, 1, 1}, four{4, 1, 1};
    all = group("all", {{"kv", one, four, HitPolicy::every_page(), false},
                        {"sharded", two, four, HitPolicy::every_page(), false},
                        {"state", one, four, HitPolicy::trailing(1), false}});
    for (int r = 0; r < 4; ++r) new_rank();
  }
  SenderId new_rank() {
    const std::uint64_t r = next_rank++;
    const EngineId engine = 1 + r % 2;
    const SenderId id = engine * 1000 + r;
    store->client_joined(engine * 100 + r, engine, now, static_cast<std::uint32_t>(5000 + r), 90'000 + r);
    store->attach(AttachSender{id, engine * 100 + r, engine}, now);
    for (const PoolId p : {kv, sharded, checkpoints, large})
      for (std::uint32_t shard = 0; shard < (p == sharded ? 2U : 1U); ++shard) store->attach_pool(AttachPool{id, ns, p, shard, true}, now);
    ranks.push_back(id);
    return id;
  }
  static ClientId client_of(SenderId id) { return id / 1000 * 100 + id % 1000; }
  static EngineId engine_of(SenderId id) { return id / 1000; }

  // -- bytes -----------------------------------------------------------------------------------------------------------
  static std::byte content(std::uint64_t page, PoolId pool, std::uint32_t shard, std::uint64_t at) {
    return static_cast<std::byte>((page * 31 + pool * 7 + shard * 3 + at * 11 + (at >> 8)) & 0xff);
  }
  const storage::SlotShape& shape(PoolId pool) const { return *store->catalog().shape(ns, pool); }
  void write(const OpenCopy& copy, bool right) {
    const auto pieces = shape(copy.pool).pieces(copy.slot.view());
    REQUIRE(pieces);
    for (const auto& piece : pieces->view())
      for (std::uint64_t i = piece.payload_begin; i < piece.payload_end; ++i)
        memory.get()[piece.arena_offset + i - piece.payload_begin] = right ? content(copy.page, copy.pool, copy.shard, i) : std::byte{0xEE};
  }
  bool right_bytes(std::uint64_t page, PoolId pool, std::uint32_t shard, const ObjectLocation& at) {
    const storage::SlotShape& s = shape(pool);
    const auto pieces = s.pieces(at.slot.view());
    if (!pieces) return false;
    if (!slot_is(header_at(memory.get(), s.footer_offset(at.slot.view())), at.epoch, store->reader().slot_incarnation())) return false;
    for (const auto& piece : pieces->view())
      for (std::uint64_t i = piece.payload_begin; i < piece.payload_end; ++i)
        if (memory.get()[piece.arena_offset + i - piece.payload_begin] != content(page, pool, shard, i)) return false;
    return true;
  }
  /// Everything readable; `wrong` counts what has not its own bytes.
  Objects objects(std::size_t* wrong = nullptr) {
    Objects found;
    store->for_each_object([&](const CanonicalKey& key, const ObjectLocation& at) {
      const std::uint64_t page = key.page.words[1];
      found[{page, key.pool, key.shard}] = {at.epoch, at.slot.extents[0].offset};
      ObjectLocation read;
      const bool same = store->reader().locate(key.ns, key.page, key.pool, key.shard, &read) == ReadStatus::found &&
                        read.epoch == at.epoch && right_bytes(page, key.pool, key.shard, read);
      if (!same && wrong != nullptr) ++*wrong;
    });
    return found;
  }

  // -- steps -----------------------------------------------------------------------------------------------------------
  void announce(SenderId rank_, PoolId pool_, std::uint32_t shard, std::uint64_t first, std::uint64_t count) {
    const PutBatch made = batch(rank_, pool_, shard, first, count);
    batches[{rank_, made.batch}] = made;
    put(made);
    take_grants();
  }
  void take_grants() {
    for (auto& [sender, box] : inbox) {
      for (const Grant& grant : box.grants) {
        const PutBatch& from = batches.at({sender, grant.batch});
        OpenCopy copy;
        copy.sender = sender;
        copy.grant = grant;
        copy.pool = from.items[grant.item].pool;
        copy.shard = from.items[grant.item].shard;
        copy.page = from.pages[from.items[grant.item].page].hash.words[1];
        copy.slot.count = grant.extent_count;
        for (std::uint32_t i = 0; i < grant.extent_count; ++i) copy.slot.extents[i] = box.extents[grant.first_extent + i];
        copies.push_back(copy);
      }
      box.grants.clear();
      box.extents.clear();
    }
  }
  bool connected(SenderId id) const { return std::find(ranks.begin(), ranks.end(), id) != ranks.end(); }
  void finish(std::size_t which, GrantOutcome outcome) {
    const OpenCopy copy = copies[which];
    if (!connected(copy.sender)) return write(copy, false);  // what it writes, and says, counts for nothing any more
    copies.erase(copies.begin() + static_cast<std::ptrdiff_t>(which));
    if (outcome == GrantOutcome::landed) write(copy, true);
    GrantResults results;
    results.sender = copy.sender;
    results.results.push_back({copy.grant.claim, copy.grant.epoch, outcome, 0, 0});
    store->grants_done(results, now, actions);
    collect();
    take_grants();
  }
  void finish_all() {
    for (bool more = true; more;) {
      std::map<SenderId, GrantResults> results;
      std::vector<OpenCopy> kept;
      for (const OpenCopy& copy : copies) {
        if (!connected(copy.sender)) {
          kept.push_back(copy);
          continue;
        }
        write(copy, true);
        results[copy.sender].sender = copy.sender;
        results[copy.sender].results.push_back({copy.grant.claim, copy.grant.epoch, GrantOutcome::landed, 0, 0});
      }
      copies = std::move(kept);
      more = !results.empty();
      for (const auto& [sender, result] : results) store->grants_done(result, now, actions);
      collect();
      take_grants();
    }
  }
  void step_all() {
    while (store->step(now, actions)) {
    }
    collect();
  }
  void random_step() {
    const SenderId who = ranks[below(ranks.size())];
    // Chains of 12 pages; a page's number is its position in one long prefix per hundred.
    const std::uint64_t chain = below(40) * 100;
    switch (below(14)) {
      case 0: case 1: case 2: announce(who, kv, 0, chain, 1 + below(12)); break;
      case 3: case 4: announce(who, sharded, static_cast<std::uint32_t>(below(2)), chain, 1 + below(12)); break;
      case 5: announce(who, checkpoints, 0, chain + below(12), 1); break;
      case 6: announce(who, large, 0, chain, 1); break;
      case 7: case 8: case 9:
        for (std::size_t n = below(12) + 4; n > 0 && !copies.empty(); --n)
          finish(below(copies.size()), below(10) == 0 ? GrantOutcome::abandoned : GrantOutcome::landed);
        break;
      case 10: {
        const std::string name = "request" + std::to_string(below(20));
        const LookupAnswer answer = lookup(all, chain, 12, name.c_str(), engine_of(who), below(4) == 0);
        if (answer.lease && !answer.repeated) held_leases.emplace_back(answer.lease, engine_of(who));
        if (answer.lease && below(2) == 0) begin_load(who, random(), answer.lease, engine_of(who), below(50) * kSecond);
        break;
      }
      case 11:
        if (!held_leases.empty()) {
          const std::size_t i = below(held_leases.size());
          store->release(LeaseCall{held_leases[i].first, held_leases[i].second, 0}, now, actions);
          held_leases.erase(held_leases.begin() + static_cast<std::ptrdiff_t>(i));
          collect();
        }
        break;
      case 12: {
        RemoveAsk ask;
        ask.ns = ns;
        ask.pages.push_back(page_hash(chain + below(12)));
        store->remove(1, ask, now, actions);
        actions.removes.clear();
        collect();
        break;
      }
      default:
        if (below(4) == 0) {
          // Its copies go on: nobody has said that they ended.
          store->client_left(client_of(who), false, now, actions);
          std::erase(ranks, who);
          new_rank();
          collect();
          take_grants();
        } else {
          advance(below(3) * kSecond);
          take_grants();
        }
    }
  }

  // -- the next life ---------------------------------------------------------------------------------------------------
  /// Takes a snapshot and ends this life; nothing of its ranks is known afterwards.
  std::string stop() {
    std::string snapshot = store->snapshot(now);
    store.reset();
    inbox.clear();
    verdicts.clear();
    ranks.clear();
    actions.clear();
    return snapshot;
  }
  /// Empty, or why the store would start cold.
  std::string resume(const std::string& snapshot) {
    config.incarnation += 1000;
    now += 1'000'000 * kSecond;  // another clock
    std::string why;
    store = StoreCore::restore(config, snapshot, now, &why);
    return why;
  }
};

}  // namespace kvonce::protocol::test
