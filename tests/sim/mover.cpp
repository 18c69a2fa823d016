// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/mover.hpp"

#include <algorithm>
#include <cstring>

#include <xxhash.h>

#include "protocol/slot_format.hpp"
#include "tests/sim/checkers.hpp"
#include "tests/sim/rank.hpp"
#include "tests/sim/session.hpp"

namespace kvonce::sim {
namespace {

constexpr Duration kSlowFactor = 8;

}  // namespace

Duration Mover::slice_time() {
  return sim_.random.between(sim_.knobs.slice_min, sim_.knobs.slice_max) * (rank_.slow ? kSlowFactor : 1);
}
Duration Mover::slice_bound() const { return sim_.knobs.slice_max * (rank_.slow ? kSlowFactor : 1); }

void Mover::start(Session& session, CopyOrder order) {
  auto copy = std::make_unique<Copy>();
  copy->session = &session;
  copy->order = std::move(order);
  const Id id = next_++;
  const Time gate = rank_.gate_of(copy->order.owner);
  if (gate > sim_.now() && copy->order.kind != CopyOrder::Kind::from_slot) sim_.probes.hit(Probe::gated_copy);
  sim_.note("copy begins", copy->order.owner, session.sender & 0xffff, static_cast<std::uint64_t>(copy->order.kind));
  copies_.emplace(id, std::move(copy));
  wake_later(id, kMicrosecond);
}

void Mover::cancel(Session& session, std::uint64_t operation) {
  for (auto& [id, copy] : copies_) {
    if (copy->session != &session || copy->order.operation != operation) continue;
    copy->canceled = true;
    // Noticed after the present slice; one that waits for its event is woken.
    if (!copy->running) wake_later(id, kMicrosecond);
  }
}

bool Mover::writes_for(const Session& session) const {
  return std::any_of(copies_.begin(), copies_.end(), [&](const auto& entry) {
    return entry.second->session == &session && entry.second->order.kind == CopyOrder::Kind::to_slot;
  });
}

void Mover::stop_all() { copies_.clear(); }

void Mover::wake_later(Id id, Duration delay) {
  const std::uint64_t wake = ++copies_.at(id)->wake;
  sim_.schedule.after(delay, [this, id, wake, process = rank_.process] {
    rank_.receive(process, [this, id, wake] {
      const auto at = copies_.find(id);
      if (at != copies_.end() && at->second->wake == wake) slice(id);
    });
  });
}

// A slice moves its bytes when it ends; deadline and cancellation are looked at before the next one begins.
void Mover::slice(Id id) {
  Copy& copy = *copies_.at(id);
  const std::size_t before = copy.outcomes.size();
  if (copy.running) {
    copy.running = false;
    move_bytes(copy);
    if (sim_.failed()) return;
    if (copy.outcomes.size() == copy.order.items.size()) return finish(id);
  }
  if (copy.canceled) {
    end_rest(copy, CopyOutcome::canceled);
    return finish(id);
  }
  if (sim_.now() >= copy.order.deadline) {
    sim_.probes.hit(Probe::copy_expired);
    end_rest(copy, CopyOutcome::expired);
    return finish(id);
  }
  const Time gate = copy.order.kind == CopyOrder::Kind::from_slot ? 0 : rank_.gate_of(copy.order.owner);
  if (gate > sim_.now()) return wake_later(id, std::min(gate, copy.order.deadline) - sim_.now());
  copy.running = true;
  wake_later(id, slice_time());
  if (copy.outcomes.size() == before || copy.order.kind != CopyOrder::Kind::from_slot) return;
  copy.session->run([&](PoolCore& core, Time now, PoolActions& out) {
    core.copy_progress(copy.order.operation, static_cast<std::uint32_t>(copy.outcomes.size()), copy.outcomes, now, out);
  });
}

bool Mover::row_is_lent(const Copy& copy, const CopyOrder::Item& item) const {
  const auto wanted = copy.order.kind == CopyOrder::Kind::from_slot ? RowState::load : RowState::put;
  const Row& row = rank_.pools[item.pool].rows[item.row];
  return row.state == wanted && row.order == copy.order.owner;
}

bool Mover::check_load(const Copy& copy, const CopyOrder::Item& item) const {
  const Session& session = *copy.session;
  const IndexReader& reader = session.life->readers[item.partition];
  const storage::SlotShape& shape = rank_.pools[item.pool].shape;
  const SlotHeader* header = header_at(session.life->memory->base(), shape.footer_offset(item.location.slot.view()));
  if (!slot_is(header, item.location.epoch, reader.slot_incarnation())) return false;
  std::size_t next = 0;
  for (std::uint32_t range = 0; range < shape.ranges(); ++range) {
    const std::uint32_t layer = rank_.pools[item.pool].layer_of(range);
    if (layer < item.layer_begin || layer >= item.layer_end) continue;
    if (next >= copy.item_sums.size() || copy.item_sums[next++] != read_checksum(header, range)) return false;
  }
  return reader.generation(item.ns, item.store_pool) == item.generation;
}

// One slice: about one part of an object, across as many ranges as it takes.
void Mover::move_bytes(Copy& copy) {
  const CopyOrder::Item& item = copy.order.items[copy.item];
  RankPool& pool = rank_.pools[item.pool];
  const storage::SlotShape& shape = pool.shape;
  const bool to_slot = copy.order.kind == CopyOrder::Kind::to_slot;
  const bool from_slot = copy.order.kind == CopyOrder::Kind::from_slot;
  std::byte* arena = copy.session->life->memory->base();

  if (!copy.item_begun) {
    copy.item_begun = true;
    copy.range = 0;
    copy.done_of_range = 0;
    copy.item_sums.clear();
    if ((to_slot && sim_.random.chance(sim_.knobs.broken_copy)) || (!copy.session->life->memory)) {
      return end_item(copy, CopyOutcome::failed);
    }
    if (copy.order.kind != CopyOrder::Kind::hash_row && !shape.pieces(item.location.slot.view()))
      return end_item(copy, from_slot ? CopyOutcome::mismatch : CopyOutcome::failed);
    if (from_slot) {
      const SlotHeader* header = header_at(arena, shape.footer_offset(item.location.slot.view()));
      const IndexReader& reader = copy.session->life->readers[item.partition];
      if (!slot_is(header, item.location.epoch, reader.slot_incarnation())) return end_item(copy, CopyOutcome::mismatch);
    }
  }
  if (!row_is_lent(copy, item)) {
    sim_.violate(from_slot ? 4 : 4, std::string(from_slot ? "a row was written by a load" : "a row was read by a put") +
                                        " after its answer had been delivered");
    return;
  }
  const bool late_life = to_slot && !(copy.session->life->up && copy.session->life == rank_.present_life());
  const bool late_session = to_slot && copy.session->cut[item.partition] <= sim_.now();
  // The next life over the same arena keeps the slot in quarantine: this must hurt nobody.
  const auto present = rank_.present_life();
  const bool quarantined = late_life && copy.session->life->lineage == present->lineage && (present->up || present->comes_back);
  if (quarantined && present->up) sim_.probes.hit(Probe::warm_late_writer);
  if (late_life) sim_.probes.hit(Probe::restart_with_late_writer);
  else if (late_session) sim_.probes.hit(Probe::late_writer);

  std::uint64_t budget = shape.payload_bytes() / sim_.knobs.slices_per_object + 1;
  while (copy.range < shape.ranges()) {
    const std::uint32_t layer = pool.layer_of(copy.range);
    const std::uint64_t bytes = shape.range_bytes(copy.range);
    if (layer < item.layer_begin || layer >= item.layer_end) {
      ++copy.range;
      continue;
    }
    if (budget == 0) return;
    const std::uint64_t count = std::min(budget, bytes - copy.done_of_range);
    std::byte* row = pool.at(item.row) + shape.range_offset(copy.range) + copy.done_of_range;
    std::byte* slot = nullptr;
    if (to_slot || from_slot) slot = arena + shape.locate(item.location.slot.view(), copy.range) + copy.done_of_range;
    const std::byte* source = from_slot ? slot : row;
    copy.taken.resize(copy.done_of_range);
    copy.taken.insert(copy.taken.end(), source, source + count);
    if (to_slot) {
      std::memcpy(slot, row, count);
      if (sim_.faults.sim.corrupt_slot && sim_.random.chance(20)) *slot ^= std::byte{0x40};
      if (late_life && !quarantined) rank_.checkers().tainted(static_cast<std::uint64_t>(slot - arena), count);
    } else if (from_slot) {
      std::memcpy(row, slot, count);
    }
    copy.done_of_range += count;
    budget -= count;
    if (copy.done_of_range == bytes) {
      copy.item_sums.push_back(XXH3_64bits(copy.taken.data(), copy.taken.size()));
      copy.taken.clear();
      copy.done_of_range = 0;
      ++copy.range;
    }
  }
  if (from_slot && !check_load(copy, item)) {
    sim_.probes.hit(Probe::load_mismatch);
    return end_item(copy, CopyOutcome::mismatch);
  }
  end_item(copy, sim_.now() <= copy.order.deadline ? CopyOutcome::done : CopyOutcome::expired);
}

void Mover::end_item(Copy& copy, CopyOutcome outcome) {
  copy.outcomes.push_back(outcome);
  const bool done = outcome == CopyOutcome::done;
  copy.counts.push_back(done ? static_cast<std::uint32_t>(copy.item_sums.size()) : 0);
  if (done) copy.sums.insert(copy.sums.end(), copy.item_sums.begin(), copy.item_sums.end());
  copy.item_sums.clear();
  copy.taken.clear();
  copy.item_begun = false;
  ++copy.item;
}

void Mover::end_rest(Copy& copy, CopyOutcome outcome) {
  while (copy.outcomes.size() < copy.order.items.size()) end_item(copy, outcome);
}

void Mover::finish(Id id) {
  const auto at = copies_.find(id);
  const std::unique_ptr<Copy> copy = std::move(at->second);
  copies_.erase(at);
  sim_.note("copy ends", copy->order.owner, copy->session->sender & 0xffff, static_cast<std::uint64_t>(copy->order.kind));
  copy->session->run([&](PoolCore& core, Time now, PoolActions& out) {
    core.copy_done(copy->order.operation, copy->outcomes, copy->counts, copy->sums, now, out);
  });
}

}  // namespace kvonce::sim
