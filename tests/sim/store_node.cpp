// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/store_node.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "tests/sim/checkers.hpp"

namespace kvonce::sim {

StoreNode::StoreNode(Sim& sim, Checkers& checkers) : sim_(sim), checkers_(checkers) {
  index_bytes_ = storage::round_up(StoreCore::index_bytes(sim.knobs.store.index), 4096);
  start();
}
StoreNode::~StoreNode() = default;

std::uint64_t StoreNode::slots_offset(std::uint32_t partition) const {
  return index_bytes_ * partitions() + sim_.knobs.slots_bytes / 64 * 64 * partition;
}

void StoreNode::start() {
  const Knobs& knobs = sim_.knobs;
  auto life = std::make_shared<Life>();
  life->number = life_ ? life_->number + 1 : 1;
  life->incarnation = sim_.random.next() | 1;
  const std::uint64_t slots_bytes = knobs.slots_bytes / 64 * 64;
  const std::uint64_t total = slots_offset(knobs.partitions);
  const bool warm = life_ && life_->comes_back;
  life->lineage = warm ? life_->lineage : life->number;
  if (warm) {
    life->memory = life_->memory;
  } else if (life_ && knobs.same_memory) {
    life->memory = life_->memory;
    std::memset(life->memory->base(), 0, index_bytes_ * partitions());
  } else {
    storage::ArenaOptions options;
    options.bytes = total;
    options.huge_pages = storage::HugePages::off;
    auto made = storage::Arena::create(options);
    if (!made.arena) {
      sim_.violate(99, "no memory for the simulated arena: " + made.error);
      std::abort();
    }
    life->memory = std::make_shared<storage::Arena>(std::move(*made.arena));
    // Old headers and old bytes: what a new life finds must not be taken for its own.
    if (life_)
      std::memcpy(life->memory->base() + slots_offset(0), life_->memory->base() + slots_offset(0),
                  slots_bytes * partitions());
  }
  life_ = life;
  parts_.clear();
  parts_.resize(partitions());
  conflicts_ = ConflictBook(sim_.knobs.store.conflict_limit);
  round_ = RetireRound(partitions(), sim_.faults.retire);
  openings_.clear();
  last_between_.assign(partitions(), std::vector<Time>(partitions(), 0));
  checkers_.new_life(next_first_epoch_, warm);
  std::vector<StoreConfig> configs;
  for (std::uint32_t p = 0; p < partitions(); ++p) {
    StoreConfig config = knobs.store;
    config.partition = p;
    config.incarnation = life->incarnation;
    config.first_epoch = next_first_epoch_;
    config.arena = life->memory->base();
    config.index_offset = index_bytes_ * p;
    config.slots_offset = slots_offset(p);
    config.slots_bytes = slots_bytes;
    config.lease_seed[0] = sim_.random.next();
    config.lease_seed[1] = sim_.random.next();
    config.faults = sim_.faults.store;
    if (warm) config.first_epoch = 1;  // the snapshot knows better
    configs.push_back(config);
  }
  if (!warm)
    for (std::uint32_t p = 0; p < partitions(); ++p) parts_[p].core = std::make_unique<StoreCore>(configs[p]);
  else if (!restore(configs))
    return;
  for (Part& part : parts_) {
    part.core->want_events(true);
    life->readers.push_back(part.core->reader());
  }
  sim_.note("life", life->number, next_first_epoch_);
  if (!warm) return;
  checkers_.restored_namespaces();
  for (std::uint32_t p = 0; p < partitions(); ++p) {
    arm(p);
    keep_stepping(p);
  }
  // Whoever was connected to an earlier life is waited for.
  std::vector<std::pair<SenderId, Peer*>> known(peers_.begin(), peers_.end());
  std::sort(known.begin(), known.end());
  for (const auto& [sender, peer] : known)
    if (peer->life != life_) watch_fence(*peer, life->number, [peer = peer] { return peer->can_write(); });
}

bool StoreNode::restore(const std::vector<StoreConfig>& configs) {
  sim_.probes.hit(Probe::warm_restart);
  std::string why;
  auto cores = StoreCore::restore_all(configs, snapshots_, sim_.now(), &why);
  if (cores.size() != partitions()) {
    sim_.violate(9, "a warm restart was refused: " + why);
    for (std::uint32_t p = 0; p < partitions(); ++p) parts_[p].core = std::make_unique<StoreCore>(configs[p]);
    return false;
  }
  for (std::uint32_t p = 0; p < partitions(); ++p) {
    parts_[p].core = std::move(cores[p]);
    sim_.probes.hit(Probe::warm_lease, parts_[p].core->stats().leases_now);
    std::map<std::tuple<std::uint64_t, PoolId, std::uint32_t>, Epoch> back;
    parts_[p].core->for_each_object([&](const CanonicalKey& key, const ObjectLocation& at) {
      back[{mix_page(key.ns, key.page), key.pool, key.shard}] = at.epoch;
    });
    // A demotion whose news did not reach this partition makes its pool unreadable here as well.
    for (const auto& [key, at] : kept_[p]) {
      const PoolInfo* info = parts_[p].core->catalog().find_pool(key.ns, key.pool);
      const auto found = back.find({mix_page(key.ns, key.page), key.pool, key.shard});
      const bool same = found != back.end() && found->second == at.epoch;
      if (!same && info != nullptr && !info->demoted) sim_.violate(9, "a warm restart lost an object of epoch " + std::to_string(at.epoch));
    }
  }
  return true;
}

Duration StoreNode::delay() {
  Random& random = sim_.random;
  const Duration base = random.between(sim_.knobs.link_delay_min, sim_.knobs.link_delay_max);
  return random.chance(15) ? base * 12 : base;
}

void StoreNode::settle(std::uint32_t partition) {
  StoreActions out;
  std::swap(out, parts_[partition].actions);
  checkers_.after_call(partition, out);
  distribute(partition, out);
  arm(partition);
  if (sim_.knobs.places != 0) report_emptied(partition);
}

void StoreNode::arm(std::uint32_t partition) {
  Part& part = parts_[partition];
  const Time next = part.core->next_deadline();
  if (next == kNever || (part.armed != kNever && part.armed <= next && part.armed > sim_.now())) return;
  part.armed = std::max(next, sim_.now());
  const auto life = life_->number;
  const Time at = part.armed;
  sim_.schedule.at(at, [this, partition, life, at] {
    if (life_->number != life || !life_->up || parts_[partition].armed != at) return;
    parts_[partition].armed = kNever;
    call(partition, "advance", [](StoreCore& core, Time now, StoreActions& out) { core.advance(now, out); });
  });
}

void StoreNode::keep_stepping(std::uint32_t partition) {
  if (parts_[partition].stepping) return;
  parts_[partition].stepping = true;
  const auto life = life_->number;
  sim_.schedule.after(20 * kMicrosecond, [this, partition, life] {
    if (life_->number != life || !life_->up) return;
    parts_[partition].stepping = false;
    bool more = false;
    call(partition, "step", [&](StoreCore& core, Time now, StoreActions& out) { more = core.step(now, out); });
    if (more) keep_stepping(partition);
  });
}

// ---- messages --------------------------------------------------------------------------------------------------------

void StoreNode::deliver(std::uint32_t partition, Peer& peer, Action action) {
  Time& last = peer.last_from[partition];
  last = std::max(last + 1, sim_.now() + delay());
  sim_.schedule.at(last, [&peer, action = std::move(action)]() mutable {
    if (!peer.lost) peer.receive(std::move(action));
  });
}

void StoreNode::distribute(std::uint32_t partition, StoreActions& out) {
  const auto peer_of = [&](SenderId sender) -> Peer* {
    const auto it = peers_.find(sender);
    return it == peers_.end() ? nullptr : it->second;
  };
  for (auto& [sender, reply] : out.replies) {
    Peer* peer = peer_of(sender);
    if (peer == nullptr) continue;
    if (sim_.faults.sim.drop_verdicts && sim_.random.chance(100)) reply.verdicts.clear();
    deliver(partition, *peer, [peer, reply = std::move(reply)]() mutable { peer->on_reply(std::move(reply)); });
  }
  for (auto& [asker, answer] : out.lookups)
    if (Peer* peer = peer_of(asker)) deliver(partition, *peer, [peer, answer] { peer->on_lookup(answer); });
  for (auto& [sender, begun] : out.loads)
    if (Peer* peer = peer_of(sender)) deliver(partition, *peer, [peer, begun] { peer->on_load_begun(begun); });
  for (auto& [asker, answer] : out.removes)
    if (Peer* peer = peer_of(asker))
      deliver(partition, *peer, [peer, answer, partition] { peer->on_removed(answer, partition); });
  for (auto& [asker, answer] : out.flushes)
    if (Peer* peer = peer_of(asker))
      deliver(partition, *peer, [peer, answer, partition] { peer->on_flushed(answer, partition); });
  for (auto& [to, ask] : out.part_asks)
    between(partition, to, "part lookup",
            [ask](StoreCore& core, Time now, StoreActions& a) { core.part_lookup(ask, now, a); });
  for (auto& [to, answer] : out.part_answers) {
    between(partition, to, "part answer",
            [answer](StoreCore& core, Time now, StoreActions& a) { core.part_answer(answer, now, a); });
  }
  for (auto& [to, narrow] : out.part_narrows)
    between(partition, to, "part narrow",
            [narrow](StoreCore& core, Time now, StoreActions& a) { core.part_narrow(narrow, now, a); });
  for (const KeyConflict& conflict : out.conflicts)
    between(partition, 0, "conflict", [this, conflict](StoreCore&, Time, StoreActions&) { on_conflict(conflict); });
  for (const PersistOrder& order : out.persists) persist(partition, order);
}

void StoreNode::between(std::uint32_t from, std::uint32_t to, const char* what, Message message) {
  Time& last = last_between_[from][to];
  last = std::max(last + 1, sim_.now() + delay());
  const auto life = life_->number;
  sim_.schedule.at(last, [this, to, what, life, message = std::move(message)] {
    if (life_->number == life && life_->up) call(to, what, message);
  });
}

void StoreNode::persist(std::uint32_t partition, const PersistOrder& order) {
  const bool ok = !sim_.random.chance(sim_.knobs.disk_failure);
  const auto life = life_->number;
  sim_.schedule.after(sim_.random.between(1, sim_.knobs.disk_delay_max), [this, partition, order, ok, life] {
    if (life_->number != life || !life_->up) return;
    sim_.probes.hit(ok ? Probe::level_upgrade : Probe::persist_failure);
    call(partition, "persisted", [&](StoreCore& core, Time now, StoreActions& out) {
      core.persisted(order.operation, ok, now, out);
    });
  });
}

void StoreNode::connect(Peer& peer) {
  peer.life = life_;
  peer.cut.assign(partitions(), kNever);
  peer.last_to.assign(partitions(), 0);
  peer.last_from.assign(partitions(), 0);
  peers_[peer.sender] = &peer;
  for (std::uint32_t p = 0; p < partitions(); ++p) {
    post(peer, p, "hello", [this, &peer, p](StoreCore& core, Time now, StoreActions&) {
      checkers_.joined(p, peer);
      core.client_joined(peer.client, peer.engine, now);
      core.attach(AttachSender{peer.sender, peer.client, peer.engine}, now);
    });
  }
}

void StoreNode::post(Peer& peer, std::uint32_t partition, const char* what, Message message) {
  if (peer.lost) return;
  Time& last = peer.last_to[partition];
  last = std::max(last + 1, sim_.now() + delay());
  const auto life = peer.life;
  sim_.schedule.at(last, [this, partition, what, life, at = last, &peer, message = std::move(message)] {
    if (life_ == life && life->up && at < peer.cut[partition]) call(partition, what, message);
  });
}

void StoreNode::post_put(Peer& peer, std::uint32_t partition, PutBatch batch) {
  post(peer, partition, "put", [this, partition, batch = std::move(batch)](StoreCore& core, Time now, StoreActions& out) {
    checkers_.before_put(partition, batch);
    core.put(batch, now, out);
  });
}
void StoreNode::post_results(Peer& peer, std::uint32_t partition, GrantResults results) {
  post(peer, partition, "grants done",
       [this, partition, results = std::move(results)](StoreCore& core, Time now, StoreActions& out) {
         checkers_.before_results(partition, results);
         core.grants_done(results, now, out);
       });
}
void StoreNode::post_withdraw(Peer& peer, const Withdraw& withdraw) {
  for (std::uint32_t p = 0; p < partitions(); ++p) {
    post(peer, p, "withdraw", [this, p, withdraw](StoreCore& core, Time now, StoreActions& out) {
      checkers_.before_withdraw(p, withdraw);
      core.withdraw(withdraw, now, out);
    });
  }
}
void StoreNode::post_lookup(Peer& peer, std::uint32_t partition, LookupAsk ask, std::vector<PageHash> pages) {
  post(peer, partition, "lookup",
       [this, partition, &peer, ask = std::move(ask), pages = std::move(pages)](StoreCore& core, Time now, StoreActions& out) {
         checkers_.before_lookup(partition, peer.sender, ask, pages);
         core.lookup(peer.sender, ask, now, out);
       });
}
void StoreNode::post_remove(Peer& peer, std::uint32_t partition, RemoveAsk ask) {
  post(peer, partition, "remove",
       [this, partition, &peer, ask = std::move(ask)](StoreCore& core, Time now, StoreActions& out) {
         checkers_.before_remove(partition, peer.sender, ask);
         core.remove(peer.sender, ask, now, out);
         keep_stepping(partition);
       });
}
void StoreNode::post_release(Peer& peer, std::uint32_t partition, const LeaseCall& call_, bool whole) {
  post(peer, partition, whole ? "release" : "narrow",
       [this, call_, whole](StoreCore& core, Time now, StoreActions& out) {
         checkers_.before_release(call_, whole);
         const Reason reason = whole ? core.release(call_, now, out) : core.narrow(call_, now, out);
         checkers_.after_release(call_, reason);
       });
}

// ---- what goes wrong -------------------------------------------------------------------------------------------------

void StoreNode::watch_fence(Peer& peer, std::uint64_t life, std::function<bool()> can_write) {
  sim_.schedule.after(sim_.random.between(1, 20) * kMillisecond,
                      [this, &peer, life, can_write = std::move(can_write)]() mutable {
    if (life_->number != life || !life_->up) return;
    if (can_write()) return watch_fence(peer, life, std::move(can_write));
    for (std::uint32_t p = 0; p < partitions(); ++p) {
      call(p, "fenced", [&](StoreCore& core, Time now, StoreActions& out) {
        checkers_.fenced(peer.client);
        core.client_fenced(peer.client, now, out);
      });
    }
  });
}

void StoreNode::disconnect(Peer& peer, std::function<bool()> can_write) {
  if (life_ != peer.life || !life_->up) return;
  checkers_.leaves(peer.client);
  const auto life = life_;
  const auto missing = std::make_shared<std::uint32_t>(partitions());
  for (std::uint32_t p = 0; p < partitions(); ++p) {
    // What was on its way is lost from some moment on; the news of the end come later than that.
    peer.cut[p] = std::min(peer.cut[p], sim_.now() + sim_.random.below(2 * sim_.knobs.link_delay_max));
    const Time noticed = std::max(peer.cut[p], peer.last_to[p]) + sim_.random.between(1, 3000) * kMicrosecond;
    sim_.schedule.at(noticed, [this, p, life, &peer, can_write, missing] {
      if (life_ != life || !life->up) return;
      const bool fenced = !can_write() && sim_.random.chance(500);
      checkers_.before_leave(p, peer, fenced);
      if (p == 0) leave_registrar(peer.client);
      call(p, "client left", [&](StoreCore& core, Time now, StoreActions& out) {
        core.client_left(peer.client, fenced, now, out);
      });
      // News of the fence come after those of the end, everywhere.
      if (--*missing == 0) watch_fence(peer, life->number, can_write);
    });
  }
}

void StoreNode::crash() {
  if (!life_->up) return;
  life_->up = false;
  sim_.probes.hit(Probe::store_restart);
  sim_.note("crash", life_->number);
  for (Part& part : parts_) next_first_epoch_ = std::max(next_first_epoch_, part.core->last_epoch() + 1);
  next_first_epoch_ = std::max(next_first_epoch_, checkers_.highest_epoch() + 1) + sim_.random.below(3);
  life_->comes_back = sim_.random.chance(sim_.knobs.warm);
  snapshots_.clear();
  kept_.clear();
  for (Part& part : parts_) {
    if (!life_->comes_back) break;
    snapshots_.push_back(part.core->snapshot(sim_.now()));
    kept_.emplace_back();
    part.core->for_each_object([&](const CanonicalKey& key, const ObjectLocation& at) { kept_.back().emplace_back(key, at); });
  }
  std::vector<std::pair<SenderId, Peer*>> known(peers_.begin(), peers_.end());
  std::sort(known.begin(), known.end());  // the table's order is not the seed's
  for (const auto& [sender, peer] : known) {
    if (peer->life != life_ || peer->lost) continue;
    sim_.schedule.after(sim_.random.between(1, 5000) * kMicrosecond, [peer = peer, life = life_] {
      if (!peer->lost) peer->receive([peer] { peer->on_connection_lost(); });
    });
  }
  sim_.schedule.after(sim_.random.between(100, 20'000) * kMicrosecond, [this] { start(); });
}

void StoreNode::flip_bit() {
  if (!life_->up) return;
  const auto p = static_cast<std::uint32_t>(sim_.random.below(partitions()));
  std::vector<std::pair<CanonicalKey, ObjectLocation>> objects;
  parts_[p].core->for_each_object([&](const CanonicalKey& key, const ObjectLocation& at) { objects.emplace_back(key, at); });
  if (objects.empty()) return;
  const auto& [key, at] = objects[sim_.random.below(objects.size())];
  const storage::SlotShape* shape = parts_[p].core->catalog().shape(key.ns, key.pool);
  if (shape == nullptr) return;
  const auto pieces = shape->pieces(at.slot.view());
  if (!pieces || pieces->count == 0) return;
  const auto& piece = pieces->items[sim_.random.below(pieces->count)];
  if (piece.payload_end == piece.payload_begin) return;
  const std::uint64_t offset = piece.arena_offset + sim_.random.below(piece.payload_end - piece.payload_begin);
  life_->memory->base()[offset] ^= std::byte{1};
  checkers_.tainted(offset, 1);
  sim_.probes.hit(Probe::bit_flip);
  sim_.note("bit flip", offset);
}

bool StoreNode::idle_but_leases() const {
  for (const Part& part : parts_)
    if (part.core->next_deadline() != kNever && part.core->stats().leases_now == 0) return false;
  return true;
}

}  // namespace kvonce::sim
