// SPDX-License-Identifier: Apache-2.0
// Random orders under a store and a mover that say everything at the wrong time, twice, or of things that are not there.
#include <doctest/doctest.h>

#include <map>
#include <random>
#include <set>

#include "tests/protocol/pool_core_fixture.hpp"

namespace kvonce::protocol::test {
namespace {

class Storm {
 public:
  explicit Storm(std::uint64_t seed) : random_(seed), rank_({}, 200) {}

  std::string run(int steps) {
    for (int i = 0; i < steps && error_.empty(); ++i) step();
    if (below(2) == 0) {
      rank_.core->on_store_lost(rank_.now, rank_.next());
      look();
    }
    rank_.core->close(rank_.now, rank_.next());
    look();
    while (error_.empty() && !copies_.empty()) end_copy(copies_.begin()->first);
    if (!error_.empty()) return error_;
    if (!rank_.core->idle()) return "not idle at the end";
    if (!puts_.empty()) return "a put was never answered";
    if (!loads_.empty()) return "a load was never answered";
    if (!grants_.empty()) return "a grant was never answered";
    if (rank_.core->rows_lent(0) + rank_.core->rows_lent(1) != 0) return "rows are lent at the end";
    if (rank_.core->next_deadline() != kNever) return "a deadline is left over";
    return {};
  }
  std::uint64_t landed() const { return landed_; }
  std::uint64_t announced_again() const { return announced_again_; }
  std::uint64_t puts_done() const { return puts_done_; }

 private:
  std::uint64_t below(std::uint64_t n) { return random_() % n; }
  void fail(const std::string& text) {
    if (error_.empty()) error_ = text;
  }
  std::uint64_t some_batch() { return below(20) == 0 ? below(5000) : 1 + below(next_id_ + 1); }

  void step() {
    rank_.now += below(40);
    switch (below(12)) {
      case 0: {
        PutOrder order = Rank::order(next_id_, static_cast<std::uint32_t>(below(6)), deadline(), below(30));
        for (PutOrderItem& item : order.items) {
          item.pool = static_cast<std::uint32_t>(below(4));
          item.row = below(Rank::kRows + 5);
          if (below(4) == 0) item.page = 0;
        }
        puts_[next_id_++] = {order.items.size(), order.deadline};
        rank_.put(order);
        break;
      }
      case 1: {
        LoadOrder order = Rank::load_order(next_id_, 1 + static_cast<std::uint32_t>(below(4)), deadline());
        order.layers_per_group = static_cast<std::uint32_t>(below(4));
        loads_[next_id_++] = order.items.size();
        rank_.load(order);
        break;
      }
      case 2:
      case 3:
      case 4:
        rank_.reply(reply());
        break;
      case 5:
        rank_.begun(some_batch(), below(4) == 0 ? Reason::lease_expired : Reason::none);
        break;
      case 6:
        rank_.rekeyed(static_cast<std::uint32_t>(below(3)), below(4) != 0);
        break;
      case 7:
        if (below(2) == 0) {
          rank_.core->cancel_put(some_batch(), rank_.now, rank_.next());
        } else {
          rank_.core->cancel_load(some_batch(), rank_.now, rank_.next());
        }
        break;
      case 8:
        rank_.advance(rank_.now);
        look();
        for (const auto& [id, put] : puts_)
          if (put.second <= rank_.now && !read(id)) fail("a put outlives its deadline");
        return;
      default:
        if (copies_.empty()) return;
        end_copy(std::next(copies_.begin(), static_cast<std::ptrdiff_t>(below(copies_.size())))->first);
        return;
    }
    look();
  }

  Time deadline() { return below(3) == 0 ? kNever : rank_.now + below(600); }

  StoreReply reply() {
    StoreReply reply;
    reply.partition = static_cast<std::uint32_t>(below(2));
    for (std::uint64_t n = below(6); n-- > 0;) {
      const std::uint64_t batch = some_batch();
      const auto item = static_cast<std::uint32_t>(below(6));
      switch (below(6)) {
        case 0:
        case 1:
        case 2: {
          const Epoch epoch = next_epoch_++;
          reply.grants.push_back({batch, item, 9, epoch, 0, below(20) == 0 ? 40U : 1U});
          grants_.insert(epoch);
          break;
        }
        case 3:
          reply.verdicts.push_back({batch, item, static_cast<Verdict>(below(kVerdictCount)), Reason::none, 0});
          break;
        case 4:
          reply.asks.push_back({next_epoch_++, batch, item});
          break;
        default:
          reply.redirects.push_back({batch, item, 7, static_cast<Generation>(below(4))});
      }
    }
    reply.extents.push_back({0, 4096});
    return reply;
  }

  bool read(std::uint64_t owner) const {
    for (const auto& [operation, copy] : copies_)
      if (copy.owner == owner) return true;
    return false;
  }

  void end_copy(std::uint64_t operation) {
    const std::size_t items = copies_.at(operation).items.size();
    copies_.erase(operation);
    std::vector<CopyOutcome> outcomes;
    for (std::size_t i = 0; i < items; ++i)
      outcomes.push_back(below(2) == 0 ? CopyOutcome::done : static_cast<CopyOutcome>(below(5)));
    rank_.done(operation, outcomes);
    look();
    if (below(4) == 0) {
      rank_.done(operation, outcomes);  // and again
      if (!rank_.nothing()) fail("an operation was told done twice, and heard");
    }
  }

  void look() {
    for (const CopyOrder& copy : rank_.out.copies) {
      for (const CopyOrder::Item& item : copy.items)
        if (item.pool > 1 || item.row >= Rank::kRows) fail("a copy outside the pools");
      copies_[copy.operation] = copy;
    }
    for (const auto& [partition, results] : rank_.out.results)
      for (const GrantResult& result : results.results) {
        if (grants_.erase(result.epoch) == 0) fail("a grant was answered twice");
        landed_ += result.outcome == GrantOutcome::landed ? 1 : 0;
      }
    for (const PageReady& ready : rank_.out.ready) announced_again_ += !announced_.insert(ready.batch).second ? 1 : 0;
    for (const PoolActions::PutDone& put : rank_.out.puts_done) {
      ++puts_done_;
      const auto at = puts_.find(put.id);
      if (at == puts_.end()) return fail("a put was answered twice");
      if (at->second.first != put.items.size()) fail("a put's answer has another number of items");
      if (read(put.id)) fail("a verdict while the row is being read");
      for (const ItemResult& item : put.items)
        if (item.verdict == Verdict::none) fail("a verdict that is none");
      puts_.erase(at);
    }
    for (const PoolActions::LoadDone& load : rank_.out.loads_done) {
      const auto at = loads_.find(load.id);
      if (at == loads_.end()) return fail("a load was answered twice");
      if (at->second != load.items.size()) fail("a load's answer has another number of items");
      if (read(load.id)) fail("a load's answer while its rows are being written");
      loads_.erase(at);
    }
  }

  std::mt19937_64 random_;
  Rank rank_;
  std::uint64_t next_id_ = 1;
  Epoch next_epoch_ = 1;
  std::map<std::uint64_t, std::pair<std::size_t, Time>> puts_;  // items, deadline
  std::map<std::uint64_t, std::size_t> loads_;
  std::map<std::uint64_t, CopyOrder> copies_;
  std::set<Epoch> grants_;  // not answered yet
  std::set<std::uint64_t> announced_;
  std::uint64_t landed_ = 0, announced_again_ = 0, puts_done_ = 0;
  std::string error_;
};

}  // namespace

TEST_CASE("whatever the store and the mover say, every order and grant is answered once and no row is left lent") {
  std::uint64_t landed = 0, again = 0, done = 0;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    Storm storm(seed);
    const std::string error = storm.run(600);
    INFO("seed ", seed);
    CHECK(error == "");
    landed += storm.landed();
    again += storm.announced_again();
    done += storm.puts_done();
  }
  // The rare branches were reached.
  CHECK(landed > 100);
  CHECK(again > 100);
  CHECK(done > 5000);
}

}  // namespace kvonce::protocol::test
