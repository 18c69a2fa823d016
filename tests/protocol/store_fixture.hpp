// SPDX-License-Identifier: Apache-2.0
//
// A StoreCore with memory, ranks that answer its grants by hand, and a clock that stands still.
#pragma once

#include <doctest/doctest.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "protocol/shard_key_core.hpp"
#include "protocol/store_core.hpp"

namespace kvonce::protocol::test {

inline PageHash page_hash(std::uint64_t n) {
  PageHash hash;
  hash.words = {n * 0x9e3779b97f4a7c15ULL + 1, n, ~n, n ^ 0x5555};
  return hash;
}

struct StoreFixture {
  static constexpr std::uint64_t kSlots = 4ULL << 20;
  StoreConfig config;
  std::unique_ptr<std::byte, decltype(&std::free)> memory{nullptr, &std::free};
  std::unique_ptr<StoreCore> store;
  StoreActions actions;
  Time now = 1000 * kSecond;
  std::uint64_t next_batch = 1;
  std::map<SenderId, StoreReply> inbox;
  std::map<SenderId, std::vector<ItemVerdict>> verdicts;
  NamespaceId ns = 0;

  StoreFixture() {
    config.incarnation = 77;
    config.index = IndexLimits{4096, 32768, 256};
    config.slots_bytes = kSlots;
    config.verify_sample = 0;
  }
  void start() {
    config.slots_offset = (StoreCore::index_bytes(config.index) + 4095) / 4096 * 4096;
    const std::uint64_t bytes = config.slots_offset + config.slots_bytes;
    memory.reset(static_cast<std::byte*>(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096)));
    std::memset(memory.get(), 0, bytes);
    config.arena = memory.get();
    store = std::make_unique<StoreCore>(config);
    std::vector<CatalogUpdate> updates;
    ns = store->catalog().ask(NamespaceAsk{"model"}, updates).ns;
    apply(updates);
  }
  void apply(const std::vector<CatalogUpdate>& updates) {
    for (const CatalogUpdate& update : updates) store->apply(update, now, actions);
    collect();
  }
  PoolId pool(const std::string& name, std::uint16_t shards, std::uint64_t bytes, HitPolicy policy = HitPolicy::every_page(),
              std::uint16_t ranks = 0) {
    PoolAsk ask;
    ask.ns = ns;
    ask.pool.name = name;
    ask.pool.shards.tp = shards;
    ask.pool.policy = policy;
    ask.pool.size = PoolInfo::Size::known;
    ask.pool.range_bytes = {bytes};
    ask.ranks.tp = ranks != 0 ? ranks : shards;
    std::vector<CatalogUpdate> updates;
    const RegisterAnswer answer = store->catalog().ask(ask, updates);
    REQUIRE_MESSAGE(!answer.error, answer.error.text);
    apply(updates);
    return answer.pool;
  }
  GroupId group(const std::string& name, std::vector<GroupPoolAsk> pools) {
    std::vector<CatalogUpdate> updates;
    GroupAsk ask;
    ask.ns = ns;
    ask.name = name;
    ask.pools = std::move(pools);
    const RegisterAnswer answer = store->catalog().ask(ask, updates);
    REQUIRE_MESSAGE(!answer.error, answer.error.text);
    apply(updates);
    return answer.group;
  }
  /// Sender r of engine e, as client e * 100 + r, attached to (pool, shard).
  SenderId rank(std::uint64_t r, std::vector<std::pair<PoolId, std::uint32_t>> pools, EngineId engine = 1) {
    const SenderId id = engine * 1000 + r;
    store->client_joined(engine * 100 + r, engine, now);
    store->attach(AttachSender{id, engine * 100 + r, engine}, now);
    for (const auto& [pool, shard] : pools) store->attach_pool(AttachPool{id, ns, pool, shard, true}, now);
    return id;
  }
  PutBatch batch(SenderId sender, PoolId pool, std::uint32_t shard, std::uint64_t first, std::uint64_t count,
                 AckLevel level = AckLevel::memory) {
    PutBatch put;
    put.sender = sender;
    put.batch = next_batch++;
    put.ns = ns;
    put.level = level;
    put.time_left = 30 * kSecond;
    const PoolInfo* info = store->catalog().find_pool(ns, pool);
    if (first > 0) {
      put.has_parent = true;
      put.parent = page_hash(first - 1);
    }
    for (std::uint64_t i = 0; i < count; ++i) {
      const auto n = static_cast<std::uint32_t>(i);
      put.pages.push_back({page_hash(first + i), static_cast<std::uint32_t>(first + i), i == 0 ? (first > 0 ? kExternalParent : kNoParent) : n - 1});
      put.items.push_back({n, n, pool, shard, info->generation, info->object_bytes});
    }
    return put;
  }
  void put(const PutBatch& put) {
    store->put(put, now, actions);
    collect();
  }
  void collect() {
    for (auto& to : actions.replies) {
      StoreReply& box = inbox[to.sender];
      const auto base = static_cast<std::uint32_t>(box.extents.size());
      for (Grant grant : to.reply.grants) {
        grant.first_extent += base;
        box.grants.push_back(grant);
      }
      for (const auto& extent : to.reply.extents) box.extents.push_back(extent);
      for (const auto& verdict : to.reply.verdicts) verdicts[to.sender].push_back(verdict);
      for (const auto& ask : to.reply.asks) box.asks.push_back(ask);
      for (const auto& redirect : to.reply.redirects) box.redirects.push_back(redirect);
    }
    actions.replies.clear();
    audit();
  }
  void audit() {
    const std::string wrong = store->audit();
    CHECK_MESSAGE(wrong.empty(), wrong);
  }
  /// Reports the oldest `most` grants of a sender; returns how many.
  std::size_t report(SenderId sender, GrantOutcome outcome = GrantOutcome::landed, std::size_t most = ~std::size_t{0},
                     std::uint64_t checksum = 42) {
    auto grants = std::move(inbox[sender].grants);
    inbox[sender].grants.clear();
    GrantResults results;
    results.sender = sender;
    for (std::size_t i = 0; i < grants.size(); ++i) {
      if (i >= most) {
        inbox[sender].grants.push_back(grants[i]);
        continue;
      }
      results.results.push_back({grants[i].claim, grants[i].epoch, outcome, static_cast<std::uint32_t>(results.checksums.size()), 1});
      results.checksums.push_back(checksum);
    }
    store->grants_done(results, now, actions);
    collect();
    return results.results.size();
  }
  void land_all() {
    for (bool more = true; more;) {
      more = false;
      std::vector<SenderId> senders;
      for (const auto& [id, box] : inbox) senders.push_back(id);
      for (const SenderId id : senders) more |= report(id) > 0;
    }
  }
  std::size_t count(SenderId sender, Verdict verdict, Reason reason = Reason::none) {
    std::size_t n = 0;
    for (const ItemVerdict& v : verdicts[sender]) n += v.verdict == verdict && (reason == Reason::none || v.reason == reason) ? 1 : 0;
    return n;
  }
  bool readable(PoolId pool, std::uint32_t shard, std::uint64_t page) {
    ObjectLocation location;
    return store->reader().locate(ns, page_hash(page), pool, shard, &location) == ReadStatus::found;
  }
  void advance(Duration by) {
    now += by;
    store->advance(now, actions);
    collect();
  }
  LookupAnswer lookup(GroupId group, std::uint64_t first, std::uint64_t count, const char* request = nullptr, EngineId engine = 1,
                      bool probe = false) {
    LookupAsk ask;
    ask.engine = engine;
    ask.group = group;
    ask.probe = probe;
    ask.time_left = kSecond;
    for (std::uint64_t i = 0; i < count; ++i) ask.pages.push_back(page_hash(first + i));
    if (request != nullptr) {
      ask.has_request = true;
      ask.request = text_digest(request);
      ask.digest = lookup_digest(group, ask.pages);
    }
    return answer_of(ask);
  }
  LookupAnswer answer_of(const LookupAsk& ask) {
    actions.lookups.clear();
    store->lookup(1, ask, now, actions);
    REQUIRE(actions.lookups.size() == 1);
    const LookupAnswer answer = actions.lookups.front().second;
    actions.lookups.clear();
    collect();
    return answer;
  }
  Reason begin_load(SenderId sender, std::uint64_t load, LeaseId lease, EngineId engine = 1, Duration time = 10 * kSecond) {
    actions.loads.clear();
    store->load_begin(LoadBegin{load, sender, engine, lease, time}, now, actions);
    REQUIRE(actions.loads.size() == 1);
    const Reason reason = actions.loads.front().second.reason;
    actions.loads.clear();
    return reason;
  }
};

}  // namespace kvonce::protocol::test
