// SPDX-License-Identifier: Apache-2.0
//
// Namespaces and their places: whose is used keeps its own (P8), what is retired is gone before its place is another's (P4),
// every opening ends (P6) with the right answer.
#include <algorithm>

#include "tests/sim/checkers.hpp"
#include "tests/sim/store_node.hpp"

namespace kvonce::sim {
namespace {

// A place that is on its way to its next owner waits for the last copies, checksums, leases and loads of the one before.
constexpr Duration kRoundMax = 12 * kSecond;

std::string name_of(NamespaceId ns) { return "namespace " + std::to_string(ns); }

}  // namespace

void Checkers::new_life_of_namespaces() {
  namespaces_.clear();
  freed_.clear();
  retired_.clear();
  uses_.clear();
  openings_.clear();
  round_progress_ = sim_.now();
}

void Checkers::restored_namespaces() {
  const Catalog& catalog = node_->core(0).catalog();
  for (std::uint32_t place = 0; place < kMaxNamespaces; ++place) {
    const NamespaceId ns = catalog.at_place(place);
    if (ns != kNoNamespace) namespaces_[ns] = {sim_.now(), sim_.now(), {}};
    for (std::uint32_t p = 1; p < sim_.knobs.partitions; ++p)
      if (node_->core(p).catalog().at_place(place) != ns)
        sim_.violate(9, "after a restart partition " + std::to_string(p) + " has " + name_of(node_->core(p).catalog().at_place(place)) +
                            " where the registrar has " + std::to_string(ns));
  }
}

void Checkers::uses(const Peer& peer, NamespaceId ns) {
  const bool connected = peer.life == node_->life() && std::all_of(peer.cut.begin(), peer.cut.end(), [](Time at) { return at == kNever; });
  if (!connected) return;
  uses_.insert({ns, peer.client});
  if (is_retired(0, ns)) sim_.violate(8, name_of(ns) + " was retired before the client heard that it is open");
}

void Checkers::leaves(ClientId client) {
  std::erase_if(uses_, [client](const auto& use) { return use.second == client; });
}

void Checkers::touched(NamespaceId ns) {
  const auto at = namespaces_.find(ns);
  if (at != namespaces_.end()) at->second.touched = sim_.now();
}

void Checkers::registrar_closed(ClientId client, NamespaceId ns) {
  const auto at = namespaces_.find(ns);
  if (at != namespaces_.end() && at->second.open.erase(client) != 0) at->second.closed = sim_.now();
}

void Checkers::registrar_left(ClientId client) {
  for (auto& [ns, state] : namespaces_)
    if (state.open.erase(client) != 0) state.closed = sim_.now();
}

NamespaceId Checkers::some_freed_namespace(Random& random) const {
  return freed_.empty() ? kNoNamespace : freed_[random.below(freed_.size())];
}

// ---- places ----------------------------------------------------------------------------------------------------------

void Checkers::changed(const CatalogUpdate& update) {
  using Kind = CatalogUpdate::Kind;
  if (update.kind == Kind::group) groups_[update.group] = update.ns;
  if (update.kind == Kind::ns) {
    const bool again = std::find(freed_.begin(), freed_.end(), update.ns) != freed_.end() && freed_.size() < kNamespaceTurns;
    if (again || namespaces_.contains(update.ns)) sim_.violate(4, name_of(update.ns) + " was given out twice");
    for (const auto& [other, state] : namespaces_)
      if (place_of(other) == place_of(update.ns)) sim_.violate(4, name_of(update.ns) + " got the place of " + std::to_string(other));
    const bool reused = std::any_of(freed_.begin(), freed_.end(), [&](NamespaceId ns) { return place_of(ns) == place_of(update.ns); });
    if (reused) sim_.probes.hit(Probe::place_reused);
    namespaces_[update.ns];
    if (sim_.knobs.places != 0 && namespaces_.size() > sim_.knobs.places)
      sim_.violate(8, std::to_string(namespaces_.size()) + " namespaces have " + std::to_string(sim_.knobs.places) + " places");
  }
  if (update.kind == Kind::retire) check_retired(update);
  if (update.kind == Kind::free) check_freed(update.ns);
}

void Checkers::applied(std::uint32_t partition, const CatalogUpdate& update) {
  if (update.kind != CatalogUpdate::Kind::retire) return;
  retired_.insert({partition, update.ns});
  const bool writing = std::any_of(grants_.begin(), grants_.end(), [&](const auto& grant) {
    return grant.second.open && grant.second.partition == partition && grant.second.key.ns == update.ns;
  });
  if (writing) sim_.probes.hit(Probe::retired_while_written);
  for (auto& [epoch, grant] : grants_)
    if (grant.partition == partition && grant.key.ns == update.ns) grant.removed = true;
  last_disturbance_ = sim_.now();
}

void Checkers::check_retired(const CatalogUpdate& update) {
  sim_.probes.hit(Probe::retirement);
  sim_.note("retire", update.ns);
  const auto user = uses_.lower_bound({update.ns, 0});
  const bool used = user != uses_.end() && user->first == update.ns;
  if (used) sim_.violate(8, name_of(update.ns) + " was retired while a client uses it");
  const auto state = namespaces_.find(update.ns);
  if (state == namespaces_.end()) return sim_.violate(8, name_of(update.ns) + " was retired and has no place");
  if (!state->second.open.empty()) sim_.violate(8, name_of(update.ns) + " was retired while the registrar knows that it is open");
  const bool full = std::any_of(present_.begin(), present_.end(), [&](const auto& entry) {
    return entry.second.present && entry.first.ns == update.ns;
  });
  if (full) sim_.probes.hit(Probe::retired_with_objects);
  // Whoever closed a namespace that it has leased has given the lease back.
  const bool leased = std::any_of(leases_.begin(), leases_.end(), [&](const auto& lease) {
    return lease.second.ns == update.ns && sim_.now() < lease.second.expires;
  });
  if (leased) sim_.probes.hit(Probe::retired_with_lease);
  std::erase_if(leases_, [&](const auto& lease) { return lease.second.ns == update.ns; });
}

// Before any partition hears of it: nothing may be left anywhere.
void Checkers::check_freed(NamespaceId ns) {
  sim_.note("free", ns);
  round_progress_ = sim_.now();
  for (std::uint32_t p = 0; p < sim_.knobs.partitions; ++p) {
    if (!is_retired(p, ns)) sim_.violate(4, name_of(ns) + " was freed before partition " + std::to_string(p) + " heard that it is retired");
    node_->core(p).for_each_object([&](const CanonicalKey& key, const ObjectLocation&) {
      if (key.ns == ns) sim_.violate(4, text(key) + " is readable, and the place of its namespace is free");
    });
  }
  for (const auto& [key, presence] : present_)
    if (key.ns == ns && presence.present) sim_.violate(4, text(key) + " was never told as gone, and the place of its namespace is free");
  for (const auto& [epoch, grant] : grants_)
    if (grant.key.ns == ns) sim_.violate(4, text(grant.key) + " may still be written to, and the place of its namespace is free");
  for (const auto& [key, book] : keys_)
    if (key.ns == ns && !book.waiting.empty()) sim_.violate(6, text(key) + " is waited for, and the place of its namespace is free");
  std::erase_if(present_, [ns](const auto& entry) { return entry.first.ns == ns; });
  std::erase_if(keys_, [ns](const auto& entry) { return entry.first.ns == ns; });
  std::erase_if(pages_, [ns](const auto& entry) { return entry.first.first == ns; });
  namespaces_.erase(ns);
  freed_.push_back(ns);
}

// ---- openings --------------------------------------------------------------------------------------------------------

void Checkers::opening_arrived(std::uint64_t number, const NamespaceAsk& ask) {
  if (sim_.knobs.places == 0) return;
  OpeningBook& book = openings_[number];
  book.ask = ask;
  book.at = sim_.now();
  for (std::uint32_t p = 0; p < sim_.knobs.partitions; ++p) {
    const auto use = node_->core(p).namespace_use();
    for (const auto& [ns, state] : namespaces_)
      if (use[place_of(ns)] == NamespaceUse::held) book.held.insert(ns);
  }
  // What a rogue never gives back goes with it.
  if (!sim_.knobs.rogue) watch_opening(number, sim_.now());
}

void Checkers::watch_opening(std::uint64_t number, Time since) {
  sim_.schedule.at(since + kRoundMax, [this, number, life = node_->life()->number] {
    if (node_->life()->number != life || !node_->up() || !openings_.contains(number)) return;
    const Time newest = std::max(openings_.at(number).at, round_progress_);
    if (sim_.now() >= newest + kRoundMax)
      sim_.violate(6, "the opening of '" + openings_.at(number).ask.text + "' was not answered, and no place was freed for it, for " +
                          std::to_string((sim_.now() - newest) / kMillisecond) + " ms");
    else
      watch_opening(number, newest);
  });
}

void Checkers::opening_answered(std::uint64_t number, ClientId client, const RegisterAnswer& answer) {
  const auto at = openings_.find(number);
  if (at == openings_.end()) {
    if (sim_.knobs.places != 0) sim_.violate(6, "an opening was answered twice, or after its client had left");
    return;
  }
  const OpeningBook book = std::move(at->second);
  openings_.erase(at);
  round_progress_ = sim_.now();
  sim_.note("opening answered", answer.ns, static_cast<std::uint64_t>(answer.error.reason));
  if (answer.error) return check_refused(book, answer.error.reason);
  if (book.at != sim_.now()) sim_.probes.hit(Probe::opening_waited);
  const NamespaceInfo* info = node_->core(0).catalog().find_namespace(answer.ns);
  if (info == nullptr || info->text != book.ask.text) sim_.violate(4, "an opening of '" + book.ask.text + "' got " + name_of(answer.ns));
  namespaces_[answer.ns].open.insert(client);
}

void Checkers::check_refused(const OpeningBook& opening, Reason reason) {
  if (reason == Reason::unknown_namespace && opening.ask.find_only) return;
  if (reason != Reason::too_many) return sim_.violate(8, "an opening was refused with " + std::string(to_string(reason)));
  sim_.probes.hit(Probe::opening_refused);
  if (opening.at != sim_.now()) sim_.probes.hit(Probe::refused_after_round);
  if (namespaces_.size() < sim_.knobs.places) sim_.violate(8, "an opening was refused although a place is free");
  for (const auto& [ns, state] : namespaces_) {
    const bool idle = state.open.empty() && state.closed < opening.at && state.touched < opening.at && !opening.held.contains(ns);
    if (idle) sim_.violate(8, "an opening was refused although " + name_of(ns) + " was in nobody's use since before it came");
  }
}

}  // namespace kvonce::sim
