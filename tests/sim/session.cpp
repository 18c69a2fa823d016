// SPDX-License-Identifier: Apache-2.0
//
// The shell around PoolCore and ShardKeyCore: what they say is sent, what arrives is handed to them.
#include "tests/sim/session.hpp"

#include <algorithm>

#include "tests/sim/checkers.hpp"

namespace kvonce::sim {

Session::Session(Sim& sim, Rank& rank, StoreNode& node, Checkers& checkers)
    : sim_(sim), rank_(rank), node_(node), checkers_(checkers), process_(rank.process), ns_(rank.ns()),
      keys_(Placement::local(sim.knobs.partitions)),
      core_([&] {
        PoolCoreConfig config;
        sender = sim.random.next() | 1;
        client = sim.random.next() | 1;
        engine = rank.engine_id();
        config.sender = sender;
        config.engine = engine;
        config.faults = sim.faults.pool;
        config.load_part_bytes = sim.knobs.load_part_bytes;
        return config;
      }(), *this),
      pools_(sim.knobs.pools.size()) {
  for (const RankPool& pool : rank.pools) core_.add_pool(pool.shape.payload_bytes(), pool.rows.size(), pool.layers);
  node.connect(*this);
  register_pools();
}

// A session that does not know of its end yet may still begin copies.
bool Session::can_write() const { return !rank_.dead && rank_.process == process_ && (!lost || rank_.mover.writes_for(*this)); }

void Session::receive(Action action) { rank_.receive(process_, std::move(action)); }

void Session::register_pools() {
  if (registering_ || lost) return;
  if (hasty_) return keep_keys();
  registering_ = true;
  RegisterOrder order;
  order.ns_text = namespace_text(ns_);
  order.group.name = "group-" + std::to_string(rank_.ranks());
  const ShardCounts ranks{static_cast<std::uint16_t>(rank_.ranks()), 1, 1};
  for (std::size_t i = 0; i < pools_.size(); ++i) {
    const PoolKnobs& knobs = sim_.knobs.pools[i];
    const ShardCounts shards{static_cast<std::uint16_t>(rank_.pools[i].shards), 1, 1};
    PoolAsk ask;
    ask.pool.name = knobs.name;
    ask.pool.shards = pools_[i].per_rank ? ranks : shards;
    ask.pool.policy = HitPolicy{knobs.trailing};
    ask.pool.size = PoolInfo::Size::known;
    ask.pool.range_bytes = knobs.range_bytes;
    ask.pool.layout_digest = i + 1;
    ask.ranks = ranks;
    order.pools.push_back(std::move(ask));
    order.group.pools.push_back({knobs.name, shards, ranks, HitPolicy{knobs.trailing}, knobs.optional});
  }
  node_.register_pools(*this, std::move(order));
}

void Session::on_registered(const Registered& answer) {
  registering_ = false;
  if (lost) return;
  if (answer.error) return refused();
  ns_id_ = answer.ns;
  if (!hasty_ && !left_) checkers_.uses(*this, ns_id_);  // asked before it left: closed by now
  group_ = answer.group;
  for (std::uint32_t i = 0; i < pools_.size(); ++i) {
    PoolState& pool = pools_[i];
    const Registered::Pool& got = answer.pools[i];
    pool.per_rank |= got.per_rank;
    const PoolKeying keying{answer.ns, got.pool, got.generation, pool.per_rank ? rank_.index : rank_.pools[i].shard};
    const bool changed = pool.keyings.empty() || pool.keying.pool != keying.pool || pool.keying.generation != keying.generation;
    if (!changed) continue;
    pool.keying = keying;
    pool.keyings.push_back(keying);
    keys_.set_pool(sender, i, keying);
    for (std::uint32_t p = 0; p < node_.partitions(); ++p) {
      node_.post(*this, p, "attach pool", [this, keying](StoreCore& core, Time now, StoreActions&) {
        checkers_.touched(keying.ns);
        core.attach_pool(AttachPool{sender, keying.ns, keying.pool, keying.shard, true}, now);
      });
    }
  }
  ready_ = true;
  std::set<std::uint32_t> waiting;
  std::swap(waiting, rekeying_);
  for (const std::uint32_t pool : waiting) {
    const bool ok = pools_[pool].per_rank;
    run([&](PoolCore& core, Time now, PoolActions& out) { core.on_rekeyed(pool, ok, now, out); });
  }
}

// ---- what PoolCore says ----------------------------------------------------------------------------------------------

void Session::settle(PoolActions& out) {
  for (PageReady& ready : out.ready) send_ready(std::move(ready));
  for (auto& [partition, results] : out.results) node_.post_results(*this, partition, std::move(results));
  for (const Withdraw& withdraw : out.withdraws) node_.post_withdraw(*this, withdraw);
  for (auto& [partition, answers] : out.checksums) {
    node_.post(*this, partition, "checksums",
               [this, partition = partition, answers = std::move(answers)](StoreCore& core, Time now, StoreActions& a) {
                 checkers_.before_checksums(partition, answers);
                 core.checksums(answers, now, a);
               });
  }
  for (const LoadBegin& begin : out.load_begins) {
    const std::uint32_t home = std::min(ShardKeyCore::home_of(begin.lease), node_.partitions() - 1);
    node_.post(*this, home, "load begin",
               [begin](StoreCore& core, Time now, StoreActions& a) { core.load_begin(begin, now, a); });
  }
  for (const LoadEnd& end : out.load_ends) {
    const std::uint32_t home = std::min(ShardKeyCore::home_of(end.lease), node_.partitions() - 1);
    node_.post(*this, home, "load end", [end](StoreCore& core, Time now, StoreActions& a) { core.load_end(end, now, a); });
  }
  for (CopyOrder& order : out.copies) start_copy(std::move(order));
  for (const std::uint64_t load : out.load_more) {
    sim_.probes.hit(Probe::load_part);
    sim_.schedule.after(sim_.random.between(0, sim_.knobs.load_part_gap), [this, load] {
      receive([this, load] { run([load](PoolCore& core, Time now, PoolActions& o) { core.load_more(load, now, o); }); });
    });
  }
  for (const std::uint64_t operation : out.cancel_copies) rank_.mover.cancel(*this, operation);
  for (const auto& progress : out.load_progress) {
    const auto load = loads_.find(progress.id);
    if (load == loads_.end()) continue;
    sim_.probes.hit(Probe::layer_groups);
    load->second.layers_done = progress.layers_done;
    // These layers may be used from now on.
    for (const LoadOrderItem& item : load->second.items) {
      const auto key = load->second.keys.find(item.pool * 100'000 + item.row);
      if (key != load->second.keys.end()) check_loaded(load->second, item, key->second, progress.layers_done);
    }
  }
  for (const auto& done : out.puts_done) finish_put(done);
  for (const auto& done : out.loads_done) finish_load(done);
  for (const auto& rekey : out.rekeys) {
    rekeying_.insert(rekey.pool);
    registering_ = false;
    register_pools();
  }
  for (const std::uint32_t pool : out.unregistered) {
    sim_.probes.hit(Probe::unregister);
    pools_[pool].gone = true;
    if (rank_.session() != this) continue;  // the rows are the next session's by now
    // The engine takes the buffers away, but for rows that an earlier connection's copies still use.
    for (Row& row : rank_.pools[pool].rows)
      if (row.state == RowState::free || puts_.contains(row.order) || loads_.contains(row.order))
        row = Row{RowState::gone, 0, 0};
  }
  if (closing_ && quiet() && !left_ && !lost) {
    left_ = true;
    if (sim_.knobs.places == 0 || !ready_) {
      say_goodbye();
    } else {
      // The process lives on for a while, as one that has other namespaces open.
      leave_namespace();
      sim_.schedule.after(sim_.random.between(0, 20) * kMillisecond, [this] {
        receive([this] { if (!lost) say_goodbye(); });
      });
    }
  }
  arm();
}

void Session::arm() {
  const Time next = core_.next_deadline();
  if (next == kNever || (armed_ <= next && armed_ > sim_.now())) return;
  armed_ = std::max(next, sim_.now());
  sim_.schedule.at(armed_, [this, at = armed_] {
    if (armed_ != at) return;
    armed_ = kNever;
    receive([this] { run([](PoolCore& core, Time now, PoolActions& out) { core.advance(now, out); }); });
  });
}

void Session::send_ready(PageReady&& ready) {
  const auto put = puts_.find(ready.batch);
  for (const ReadyItem& item : ready.items) {
    const PageHash& page = ready.pages[item.page].hash;
    std::uint64_t seed = rank_.content_seed(ns_, item.pool, page);
    if (put != puts_.end() && item.item < put->second.items.size())
      seed = rank_.pools[item.pool].rows[put->second.items[item.item].row].content;
    sim_.announced.add(rank_.content_key(ns_, item.pool, page, pools_[item.pool].per_rank), seed);
  }
  std::vector<std::pair<std::uint32_t, PutBatch>> batches;
  std::vector<ItemVerdict> rejected;
  keys_.canonicalize(std::move(ready), batches, rejected);
  for (auto& [partition, batch] : batches) node_.post_put(*this, partition, std::move(batch));
  if (rejected.empty()) return;
  StoreReply reply;
  reply.verdicts = std::move(rejected);
  receive([this, reply = std::move(reply)]() mutable { on_reply(std::move(reply)); });
}

void Session::start_copy(CopyOrder&& order) {
  if (order.kind == CopyOrder::Kind::from_slot) {
    const auto load = loads_.find(order.owner);
    if (load != loads_.end()) {
      sim_.probes.hit(Probe::loads_started);
      for (const LoadOrderItem& item : load->second.items) {
        const bool copied = std::any_of(order.items.begin(), order.items.end(), [&](const CopyOrder::Item& copy) {
          return copy.pool == item.pool && copy.row == item.row;
        });
        if (copied)
          load->second.keys.emplace(item.pool * 100'000 + item.row,
                                    rank_.content_key(ns_, item.pool, item.page, pools_[item.pool].per_rank));
      }
    }
  }
  rank_.mover.start(*this, std::move(order));
}

void Session::finish_put(const PoolActions::PutDone& done) {
  const auto at = puts_.find(done.id);
  if (at == puts_.end()) {
    sim_.violate(6, "a put was answered twice");
    return;
  }
  const OpenPut put = std::move(at->second);
  puts_.erase(at);
  if (done.items.size() != put.items.size()) {
    sim_.violate(6, "a put of " + std::to_string(put.items.size()) + " items got " + std::to_string(done.items.size()) +
                        " verdicts");
    return;
  }
  for (std::size_t i = 0; i < put.items.size(); ++i) {
    const PutOrderItem& item = put.items[i];
    const ItemResult& result = done.items[i];
    if (result.verdict == Verdict::none) sim_.violate(2, "a put ended without a verdict for one of its items");
    if (result.reason == Reason::canceled) sim_.probes.hit(Probe::put_canceled);
    std::vector<CanonicalKey> keys;
    for (const PoolKeying& keying : pools_[item.pool].keyings) keys.push_back(make_key(keying, put.pages[item.page]));
    if (!keys.empty()) checkers_.delivered(*this, keys, result.verdict, result.reason, put.announced);
    const Row& row = rank_.pools[item.pool].rows[item.row];
    if (row.state == RowState::put && row.order == done.id) rank_.give_row(item.pool, item.row);
  }
  rank_.gates.erase(done.id);
  sim_.note("put done", done.id, sender & 0xffff, put.items.size());
}

void Session::check_loaded(const OpenLoad& load, const LoadOrderItem& item, const ContentKey& key, std::uint32_t layer_end) {
  RankPool& pool = rank_.pools[item.pool];
  if (load.plan.layer_begin >= pool.layers) return;  // none of its layers was asked for
  const auto* seeds = sim_.announced.find(key);
  bool known = false;
  for (std::size_t s = 0; seeds != nullptr && s < seeds->size() && !known; ++s) {
    known = true;
    for (std::uint32_t range = 0; known && range < pool.shape.ranges(); ++range) {
      const std::uint32_t layer = pool.layer_of(range);
      if (layer < load.plan.layer_begin || layer >= layer_end) continue;
      const std::uint64_t offset = pool.shape.range_offset(range);
      known = is_content((*seeds)[s], offset, pool.at(item.row) + offset, pool.shape.range_bytes(range));
    }
  }
  if (!known)
    sim_.violate(4, "a load of page " + page_name(item.page) + ", pool " + std::to_string(item.pool) +
                        ", left bytes in its row that were never announced for it");
}

void Session::finish_load(const PoolActions::LoadDone& done) {
  const auto at = loads_.find(done.id);
  if (at == loads_.end()) {
    sim_.violate(6, "a load was answered twice");
    return;
  }
  const OpenLoad load = std::move(at->second);
  loads_.erase(at);
  sim_.note("load done", done.id, sender & 0xffff, load.items.size());
  for (std::size_t i = 0; i < load.items.size() && i < done.items.size(); ++i) {
    const LoadOrderItem& item = load.items[i];
    if (done.items[i] == Reason::none) {
      sim_.probes.hit(Probe::pages_loaded);
      if (sim_.faults.sim.corrupt_load) rank_.pools[item.pool].at(item.row)[0] ^= std::byte{1};
      const auto key = load.keys.find(item.pool * 100'000 + item.row);
      if (key == load.keys.end() && load.plan.layer_begin < rank_.pools[item.pool].layers)
        sim_.violate(4, "a load says that an item is loaded, and nothing was copied");
      else if (key != load.keys.end())
        check_loaded(load, item, key->second, load.plan.layer_end);
    } else if (done.items[i] == Reason::canceled) {
      sim_.probes.hit(Probe::load_canceled);
    } else if (done.items[i] == Reason::lease_expired) {
      sim_.probes.hit(Probe::lease_expired_with_load);
    } else if (sim_.knobs.calm && done.items[i] == Reason::checksum_mismatch) {
      sim_.violate(4, "a load found wrong checksums in a run without faults");
    }
    if (rank_.pools[item.pool].rows[item.row].order == done.id) rank_.give_row(item.pool, item.row);
  }
  if (load.done) load.done();
}

// ---- what arrives ----------------------------------------------------------------------------------------------------

void Session::on_reply(StoreReply&& reply) {
  if (lost) return;
  if (rogue_) std::erase_if(reply.grants, [this](const Grant& grant) { return !puts_.contains(grant.batch); });
  sim_.note("reply", sender & 0xffff, reply.grants.size(), reply.verdicts.size());
  run([&](PoolCore& core, Time now, PoolActions& out) { core.on_reply(reply, now, out); });
}

void Session::on_load_begun(const LoadBegun& begun) {
  if (lost) return;
  sim_.note("load begun", begun.load, sender & 0xffff, static_cast<std::uint64_t>(begun.reason));
  run([&](PoolCore& core, Time now, PoolActions& out) { core.on_load_begun(begun, now, out); });
}

void Session::on_lookup(const LookupAnswer& answer) {
  const auto at = lookups_.find(answer.token);
  if (at == lookups_.end()) return;
  OpenLookup lookup = std::move(at->second);
  lookups_.erase(at);
  if (answer.search_again) {
    LookupAsk ask = lookup.ask;
    ask.token = next_id();
    ask.pages = lookup.pages;
    return post_lookup(std::move(ask), std::move(lookup));
  }
  if (answer.redirect) {
    // A pool of the group was demoted: the group is described again.
    register_pools();
    return lookup.done(nullptr);
  }
  if (answer.lease) seen_leases_.push_back(answer.lease);
  lookup.done(&answer);
}

void Session::on_removed(const RemoveAnswer& answer, std::uint32_t) {
  const auto at = calls_.find(answer.token);
  if (at != calls_.end() && --at->second == 0) calls_.erase(at);
}
void Session::on_flushed(const FlushAnswer& answer, std::uint32_t) {
  const auto at = calls_.find(answer.token);
  if (at != calls_.end() && --at->second == 0) calls_.erase(at);
}

void Session::on_connection_lost() {
  lost = true;
  sim_.note("store lost", sender & 0xffff);
  run([](PoolCore& core, Time now, PoolActions& out) { core.on_store_lost(now, out); });
  std::map<std::uint64_t, OpenLookup> open;
  std::swap(open, lookups_);
  for (auto& [token, lookup] : open) lookup.done(nullptr);
  calls_.clear();
  sim_.schedule.after(sim_.random.between(1, 8) * kMillisecond, [this] { receive([this] { rank_.connect(); }); });
}

ReadStatus Session::locate(std::uint32_t pool, const PageHash& page, std::uint32_t* partition, PoolKeying* keying,
                           ObjectLocation* out) {
  const PoolKeying* known = keys_.keying(sender, pool);
  if (known == nullptr) return ReadStatus::absent;
  *keying = *known;
  *partition = keys_.placement().owner(known->ns, page);
  return life->readers[*partition].locate(known->ns, page, known->pool, known->shard, out);
}

}  // namespace kvonce::sim
