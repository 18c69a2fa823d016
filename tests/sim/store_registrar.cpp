// SPDX-License-Identifier: Apache-2.0
//
// The registrar of the simulated store: namespaces and the rounds that give their places back, pools, groups, demotions; how
// changes of the catalog reach the other partitions.
#include "tests/sim/checkers.hpp"
#include "tests/sim/store_node.hpp"

namespace kvonce::sim {

void StoreNode::register_pools(Peer& peer, RegisterOrder order) {
  post(peer, 0, "register", [this, &peer, order = std::move(order)](StoreCore&, Time, StoreActions&) {
    open(peer, 0, NamespaceAsk{order.ns_text}, order);
    keep_stepping(0);
  });
}

void StoreNode::open_namespace(Peer& peer, std::uint64_t token, NamespaceAsk ask) {
  post(peer, 0, "open namespace", [this, &peer, token, ask = std::move(ask)](StoreCore&, Time, StoreActions&) {
    open(peer, token, ask, {});
  });
}

void StoreNode::close_namespace(Peer& peer, NamespaceId ns) {
  post(peer, 0, "close namespace", [this, &peer, ns](StoreCore&, Time, StoreActions&) {
    sim_.probes.hit(Probe::namespace_close);
    checkers_.registrar_closed(peer.client, ns);
    round_.closed(peer.client, ns);
  });
}

void StoreNode::leave_registrar(ClientId client) {
  std::erase_if(openings_, [&](const auto& opening) {
    if (opening.second.peer->client != client) return false;
    checkers_.opening_dropped(opening.first);
    return true;
  });
  checkers_.registrar_left(client);
  round_.client_left(client);
}

// ---- rounds ----------------------------------------------------------------------------------------------------------

void StoreNode::open(Peer& peer, std::uint64_t token, const NamespaceAsk& ask, std::optional<RegisterOrder> order) {
  const std::uint64_t number = ++last_opening_;
  openings_[number] = {&peer, token, std::move(order)};
  checkers_.opening_arrived(number, ask);
  round_.open({peer.client, number, ask});
  go_round();
}

void StoreNode::go_round() {
  while (auto step = round_.step(parts_[0].core->catalog())) {
    apply_here(step->updates);
    if (step->freed) conflicts_.forget(*step->freed);
    if (step->ask_use) ask_use(*step->ask_use);
    if (step->answers.empty()) {
      if (step->updates.empty()) continue;
      keep_stepping(0);
      spread(std::move(step->updates), [] {});
      continue;
    }
    for (auto& [to, answer] : step->answers) answer_opening(to, answer, std::exchange(step->updates, {}));
  }
}

void StoreNode::ask_use(std::uint64_t round) {
  sim_.note("round", round);
  if (on_round) on_round();
  for (std::uint32_t p = 1; p < partitions(); ++p) {
    between(0, p, "use ask", [this, p, round](StoreCore& core, Time, StoreActions&) {
      between(p, 0, "use answer", [this, p, round, use = core.namespace_use()](StoreCore&, Time, StoreActions&) {
        round_.use(p, round, use);
        go_round();
      });
    });
  }
  round_.use(0, round, parts_[0].core->namespace_use());
}

void StoreNode::report_emptied(std::uint32_t partition) {
  for (const NamespaceId ns : parts_[partition].emptied.newly_emptied(*parts_[partition].core)) {
    const auto emptied = [this, partition, ns](StoreCore&, Time, StoreActions&) {
      round_.emptied(partition, ns);
      go_round();
    };
    if (partition == 0)
      call(0, "emptied", emptied);
    else
      between(partition, 0, "emptied", emptied);
  }
}

void StoreNode::answer_opening(const NamespaceOpening& to, const RegisterAnswer& answer, std::vector<CatalogUpdate> updates) {
  const auto node = openings_.extract(to.token);
  checkers_.opening_answered(to.token, to.client, answer);
  if (!node) return;
  Peer* const peer = node.mapped().peer;
  if (!node.mapped().order) {
    spread(std::move(updates), [this, peer, token = node.mapped().token, answer] {
      deliver(0, *peer, [peer, token, answer] { peer->on_opened(token, answer); });
    });
    return;
  }
  const Registered done = decide(*node.mapped().order, answer, updates);
  if (done.error && (done.error.reason != Reason::too_many || sim_.knobs.places == 0))
    sim_.violate(99, "the registrar refused a right registration: " + done.error.text);
  spread(std::move(updates), [this, peer, done] { deliver(0, *peer, [peer, done] { peer->on_registered(done); }); });
}

// ---- the catalog -----------------------------------------------------------------------------------------------------

void StoreNode::apply_here(const std::vector<CatalogUpdate>& updates) {
  for (const CatalogUpdate& update : updates) {
    checkers_.changed(update);
    checkers_.applied(0, update);
    parts_[0].core->apply(update, sim_.now(), parts_[0].actions);
  }
}

/// Pools and group of one whose namespace has been opened.
Registered StoreNode::decide(RegisterOrder& order, const RegisterAnswer& ns, std::vector<CatalogUpdate>& updates) {
  Registered answer;
  answer.ns = ns.ns;
  answer.error = ns.error;
  if (ns.error) return answer;
  const Catalog& catalog = parts_[0].core->catalog();
  std::vector<CatalogUpdate> made;
  const auto take = [&] {
    apply_here(made);
    for (auto& update : made) updates.push_back(std::move(update));
    made.clear();
  };
  for (PoolAsk& ask : order.pools) {
    ask.ns = ns.ns;
    RegisterAnswer pool = catalog.ask(ask, made);
    take();
    bool per_rank = false;
    if (!pool.error && pool.demoted && ask.pool.shards != ask.ranks) {
      ask.pool.shards = ask.ranks;
      pool = catalog.ask(ask, made);
      take();
      per_rank = true;
    }
    if (pool.error) answer.error = pool.error;
    answer.pools.push_back({pool.pool, pool.generation, per_rank});
  }
  order.group.ns = ns.ns;
  const RegisterAnswer group = catalog.ask(order.group, made);
  take();
  if (group.error) answer.error = group.error;
  answer.group = group.group;
  return answer;
}

// Every partition knows of a change before the one who asked does: else its first put could come too early. Also who asked
// for nothing new waits: the change may be another's, and still under way.
void StoreNode::spread(std::vector<CatalogUpdate> updates, std::function<void()> done) {
  if (partitions() == 1) return done();
  auto missing = std::make_shared<std::uint32_t>(partitions() - 1);
  for (std::uint32_t p = 1; p < partitions(); ++p) {
    between(0, p, "catalog", [this, p, updates, missing, done](StoreCore& core, Time now, StoreActions& out) {
      for (const CatalogUpdate& update : updates) {
        checkers_.applied(p, update);
        core.apply(update, now, out);
      }
      if (!updates.empty()) keep_stepping(p);
      between(p, 0, "catalog applied", [missing, done](StoreCore&, Time, StoreActions&) {
        if (--*missing == 0) done();
      });
    });
  }
}

void StoreNode::on_conflict(const KeyConflict& conflict) {
  sim_.probes.hit(Probe::conflict);
  StoreCore& core = *parts_[0].core;
  const auto found = conflicts_.add(conflict, core.catalog());
  if (!found || !found->at_limit || !sim_.knobs.store.demote) return;
  std::vector<CatalogUpdate> updates;
  core.catalog().demote(conflict.ns, conflict.pool, updates);
  if (updates.empty()) return;
  sim_.probes.hit(Probe::demotion);
  sim_.note("demote", conflict.ns, conflict.pool);
  for (const CatalogUpdate& update : updates) {
    checkers_.demoted(update);
    core.apply(update, sim_.now(), parts_[0].actions);
  }
  keep_stepping(0);
  spread(std::move(updates), [] {});
}

}  // namespace kvonce::sim
