// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/faults.hpp"

namespace kvonce::sim {
namespace {

constexpr FaultInfo kFaults[] = {
    {"publish_before_landed", 60, [](Faults& f) { f.store.publish_before_landed = true; }, "readable as soon as granted"},
    {"ack_before_publish", 60, [](Faults& f) { f.store.ack_before_publish = true; }, "stored is told at the grant"},
    {"free_quarantined", 60, [](Faults& f) { f.store.free_quarantined = true; }, "a lost grant's slot is free at once"},
    {"ignore_epoch", 60, [](Faults& f) { f.store.ignore_epoch = true; }, "any landed counts, whatever its epoch"},
    {"restart_epochs", 60, [](Faults& f) { f.store.restart_epochs = true; }, "a new life begins at epoch 1"},
    {"evict_leased", 60, [](Faults& f) { f.store.evict_leased = true; }, "leases do not pin"},
    {"forget_waiters", 60, [](Faults& f) { f.store.forget_waiters = true; }, "only the writer is answered"},
    {"no_promotion", 60, [](Faults& f) { f.store.no_promotion = true; }, "nobody takes over from a lost writer"},
    {"leak_ledger", 60, [](Faults& f) { f.store.leak_ledger = true; }, "evictions do not give bytes back"},
    {"ignore_removal", 60, [](Faults& f) { f.store.ignore_removal = true; }, "what lands after a removal is published"},
    {"skip_verification", 60, [](Faults& f) { f.store.skip_verification = true; }, "differences of samples are ignored"},
    {"answer_busy_as_absent", 60, [](Faults& f) { f.store.answer_busy_as_absent = true; }, "busy is told as a miss"},
    {"trust_search", 60, [](Faults& f) { f.store.trust_search = true; }, "a short search is believed"},
    {"evict_parent_first", 60, [](Faults& f) { f.store.evict_parent_first = true; }, "shallowest first"},
    {"double_grant", 60, [](Faults& f) { f.store.double_grant = true; }, "every announcer is granted"},
    {"free_at_restart", 200, [](Faults& f) { f.store.free_at_restart = true; }, "a warm restart forgets late writers"},
    {"keep_turn", 20, [](Faults& f) { f.store.keep_turn = true; }, "a place's next namespace gets the last one's number"},
    {"free_before_emptied", 60, [](Faults& f) { f.retire.free_before_emptied = true; }, "one empty partition is enough"},
    {"retire_open", 20, [](Faults& f) { f.retire.retire_open = true; }, "open namespaces are retired"},
    {"deliver_while_reading", 60, [](Faults& f) { f.pool.deliver_while_reading = true; }, "verdict before the last read"},
    {"cancel_while_writing", 60, [](Faults& f) { f.pool.cancel_while_writing = true; }, "cancel before the last write"},
    {"land_after_deadline", 60, [](Faults& f) { f.pool.land_after_deadline = true; }, "an expired copy is told landed"},
    {"skip_load_verification", 60, [](Faults& f) { f.pool.skip_load_verification = true; }, "loads are not verified"},
    {"forget_deadline", 60, [](Faults& f) { f.pool.forget_deadline = true; }, "own deadlines end nothing"},
    {"unregister_early", 120, [](Faults& f) { f.pool.unregister_early = true; }, "unregister does not wait for rows"},
    {"corrupt_load", 60, [](Faults& f) { f.sim.corrupt_load = true; }, "a verified row is changed"},
    {"corrupt_slot", 60, [](Faults& f) { f.sim.corrupt_slot = true; }, "a wrong byte lands in a slot"},
    {"drop_verdicts", 60, [](Faults& f) { f.sim.drop_verdicts = true; }, "verdicts are lost on a whole connection"},
    {"reuse_row", 60, [](Faults& f) { f.sim.reuse_row = true; }, "rows are changed before their verdicts"},
};

}  // namespace

std::span<const FaultInfo> all_faults() { return kFaults; }

const FaultInfo* find_fault(std::string_view name) {
  for (const FaultInfo& fault : kFaults)
    if (name == fault.name) return &fault;
  return nullptr;
}

}  // namespace kvonce::sim
