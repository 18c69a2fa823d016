// SPDX-License-Identifier: Apache-2.0
//
// One rank driven by hand: the test plays the store, the mover and the clock.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "protocol/pool_core.hpp"

namespace kvonce::protocol::test {

inline PageHash page(std::uint64_t number) { return PageHash{{number, number * 7919, 3, 5}}; }

class FakeLocator final : public ObjectLocator {
 public:
  ReadStatus locate(std::uint32_t pool, const PageHash& hash, std::uint32_t* partition, PoolKeying* keying,
                    ObjectLocation* out) override {
    const auto at = status.find({pool, hash.words[0]});
    if (at != status.end() && at->second != ReadStatus::found) return at->second;
    *partition = 1;
    *keying = {2, static_cast<PoolId>(pool + 10), 4, 0};
    out->epoch = 1000 + hash.words[0];
    out->slot.count = 1;
    out->slot.extents[0] = {hash.words[0] * 4096, 4096};
    return ReadStatus::found;
  }
  std::map<std::pair<std::uint32_t, std::uint64_t>, ReadStatus> status;  // (pool, first word); else found
};

struct Rank {
  static constexpr std::uint64_t kRows = 100;
  static constexpr std::uint32_t kLayers = 6;

  explicit Rank(PoolFaults faults = {}, std::uint32_t max_open_items = 1000, std::uint64_t load_part_bytes = 0) {
    PoolCoreConfig config;
    config.sender = 77;
    config.engine = 88;
    config.max_open_items = max_open_items;
    config.load_part_bytes = load_part_bytes;
    config.faults = faults;
    core = std::make_unique<PoolCore>(config, locator);
    core->add_pool(4096, kRows, kLayers);
    core->add_pool(512, kRows, 2);
    core->add_pool(0, kRows, 0);  // a pool without bytes
  }

  /// One item per page in pool 0, rows counted up from 0; pages counted up from first_page.
  static PutOrder order(std::uint64_t id, std::uint32_t pages, Time deadline = kNever, std::uint64_t first_page = 1) {
    PutOrder put;
    put.id = id;
    put.deadline = deadline;
    for (std::uint32_t i = 0; i < pages; ++i) {
      put.pages.push_back(page(first_page + i));
      put.items.push_back({i, 0, i});
    }
    return put;
  }
  static LoadOrder load_order(std::uint64_t id, std::uint32_t pages, Time deadline = kNever) {
    LoadOrder load;
    load.id = id;
    load.lease = {5, 6};
    load.deadline = deadline;
    for (std::uint32_t i = 0; i < pages; ++i) load.items.push_back({page(1 + i), 0, i});
    return load;
  }

  // Each call clears what came before: `out` is what this event led to.
  PoolActions& next() {
    out.clear();
    return out;
  }
  void put(PutOrder order) { core->put(std::move(order), now, next()); }
  void load(LoadOrder order) { core->load(std::move(order), now, next()); }
  void reply(const StoreReply& reply) { core->on_reply(reply, now, next()); }
  void verdict(std::uint64_t batch, std::uint32_t item, Verdict verdict, Reason reason = Reason::none) {
    StoreReply message;
    message.verdicts.push_back({batch, item, verdict, reason, 0});
    reply(message);
  }
  static StoreReply grants(std::uint64_t batch, std::vector<std::uint32_t> items, Epoch first_epoch,
                           std::uint32_t partition = 0) {
    StoreReply message;
    message.partition = partition;
    for (const std::uint32_t item : items) {
      message.grants.push_back({batch, item, 500 + item, first_epoch++,
                                static_cast<std::uint32_t>(message.extents.size()), 1});
      message.extents.push_back({item * std::uint64_t{8192}, 8192});
    }
    return message;
  }
  /// Grants items and gives the copy operation's number.
  std::uint64_t grant(std::uint64_t batch, std::vector<std::uint32_t> items, Epoch first_epoch = 1) {
    reply(grants(batch, std::move(items), first_epoch));
    return out.copies.empty() ? 0 : out.copies.back().operation;
  }
  std::uint64_t ask(std::uint64_t batch, std::uint32_t item, std::uint64_t name) {
    StoreReply message;
    message.asks.push_back({name, batch, item});
    reply(message);
    return out.copies.empty() ? 0 : out.copies.back().operation;
  }
  void redirect(std::uint64_t batch, std::vector<std::uint32_t> items, Generation generation = 1, PoolId pool = 9) {
    StoreReply message;
    for (const std::uint32_t item : items) message.redirects.push_back({batch, item, pool, generation});
    reply(message);
  }
  /// Every done item has one checksum, 900 + its place.
  void done(std::uint64_t operation, const std::vector<CopyOutcome>& outcomes) {
    std::vector<std::uint32_t> counts;
    std::vector<std::uint64_t> sums;
    for (std::size_t i = 0; i < outcomes.size(); ++i) {
      counts.push_back(outcomes[i] == CopyOutcome::done ? 1 : 0);
      if (outcomes[i] == CopyOutcome::done) sums.push_back(900 + i);
    }
    core->copy_done(operation, outcomes, counts, sums, now, next());
  }
  void more(std::uint64_t load) { core->load_more(load, now, next()); }
  void begun(std::uint64_t load, Reason reason = Reason::none) { core->on_load_begun({load, reason, 0}, now, next()); }
  void advance(Time to) {
    now = to;
    core->advance(now, next());
  }
  void rekeyed(std::uint32_t pool, bool ok) { core->on_rekeyed(pool, ok, now, next()); }

  /// "stored none, failed copy_failed": the one put that this event ended; "" when none did.
  std::string put_result() const {
    std::string text;
    for (const PoolActions::PutDone& put : out.puts_done)
      for (const ItemResult& item : put.items) {
        if (!text.empty()) text += ", ";
        text += std::string(to_string(item.verdict)) + " " + std::string(to_string(item.reason));
      }
    return text;
  }
  std::string load_result() const {
    std::string text;
    for (const PoolActions::LoadDone& load : out.loads_done)
      for (const Reason reason : load.items) {
        if (!text.empty()) text += ", ";
        text += to_string(reason);
      }
    return text;
  }
  /// "landed, abandoned": what the store is told of grants.
  std::string grant_results() const {
    std::string text;
    for (const auto& [partition, results] : out.results)
      for (const GrantResult& result : results.results) {
        if (!text.empty()) text += ", ";
        text += result.outcome == GrantOutcome::landed      ? "landed"
                : result.outcome == GrantOutcome::abandoned ? "abandoned"
                                                            : "failed";
      }
    return text;
  }
  std::vector<std::uint32_t> withdrawn() const {
    std::vector<std::uint32_t> items;
    for (const Withdraw& withdraw : out.withdraws)
      for (const Withdraw::Item& item : withdraw.items) items.push_back(item.item);
    return items;
  }
  bool nothing() const {
    return out.ready.empty() && out.results.empty() && out.withdraws.empty() && out.checksums.empty() &&
           out.load_begins.empty() && out.load_ends.empty() && out.copies.empty() && out.load_more.empty() && out.cancel_copies.empty() &&
           out.puts_done.empty() && out.load_progress.empty() && out.loads_done.empty() && out.rekeys.empty() &&
           out.unregistered.empty();
  }

  FakeLocator locator;
  std::unique_ptr<PoolCore> core;
  PoolActions out;
  Time now = 1000;
};

using Items = std::vector<std::uint32_t>;
using Operations = std::vector<std::uint64_t>;

}  // namespace kvonce::protocol::test
