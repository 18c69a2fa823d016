// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/workload.hpp"

#include <algorithm>

namespace kvonce::sim {
namespace {

constexpr std::uint64_t kEventsMin = 2'600;   // a run has at least 2,000 events; the rest is spare
constexpr std::uint32_t kActionsMax = 4'000;

}  // namespace

Workload::Workload(Sim& sim, StoreNode& node, std::vector<std::unique_ptr<Rank>>& ranks)
    : sim_(sim), node_(node), ranks_(ranks), chains_(sim.knobs.namespaces) {}

void Workload::start() {
  if (sim_.knobs.hasty != 0) node_.on_round = [this] { hurry(); };
  for (auto& rank : ranks_) {
    sim_.schedule.after(sim_.random.between(1, 2000) * kMicrosecond, [&rank] { rank->connect(); });
  }
  sim_.schedule.after(5 * kMillisecond, [this] { tick(); });
}

void Workload::tick() {
  if (sim_.failed()) return;
  const bool enough = actions_ >= sim_.knobs.actions && sim_.schedule.events() >= kEventsMin;
  if (enough || actions_ >= kActionsMax) return end();
  ++actions_;
  do_something();
  sim_.schedule.after(sim_.random.between(1, 2 * sim_.knobs.action_gap), [this] { tick(); });
}

// A rank that holds what it was granted for ever ends with its death.
void Workload::end() {
  finished_ = true;
  sim_.ending = true;
  if (sim_.knobs.rogue) ranks_.front()->kill();
}

Rank& Workload::any_rank() { return *sim_.random.pick(ranks_); }

std::vector<PageHash> Workload::some_pages(std::uint32_t ns) {
  Random& random = sim_.random;
  // Where namespaces take each other's places, they have the same pages with other bytes.
  auto& chains = chains_[sim_.knobs.places != 0 ? 0 : ns];
  if (chains.size() < 3 || random.chance(120)) {
    std::vector<PageHash> chain;
    if (!chains.empty() && random.chance(700)) {
      const auto& from = random.pick(chains);
      chain.assign(from.begin(), from.begin() + static_cast<std::ptrdiff_t>(random.below(from.size() + 1)));
    }
    if (chain.size() > 2 * sim_.knobs.pages_max) chain.resize(sim_.knobs.pages_max);
    const auto more = random.between(1, sim_.knobs.pages_max);
    for (std::uint64_t i = 0; i < more; ++i)
      chain.push_back(PageHash{{random.next(), random.next(), random.next(), random.next()}});
    if (chains.size() < 24)
      chains.push_back(chain);
    else
      random.pick(chains) = chain;
    return chain;
  }
  const auto& chain = random.pick(chains);
  if (random.chance(600)) return chain;
  return {chain.begin(), chain.begin() + static_cast<std::ptrdiff_t>(random.between(1, chain.size()))};
}

void Workload::do_something() {
  const Knobs& knobs = sim_.knobs;
  Random& random = sim_.random;
  if (knobs.places != 0 && change_namespaces()) return;
  if (go_wrong()) return;
  if (random.chance(knobs.remove + knobs.clear + knobs.flush)) return administrate();
  if (random.chance(knobs.cancel)) return cancel_something();
  if (random.chance(knobs.unregister)) {
    Rank& rank = any_rank();
    if (!rank.ready()) return;
    rank.session()->unregister(static_cast<std::uint32_t>(random.below(rank.pools.size())));
    sim_.schedule.after(random.between(5, 200) * kMillisecond, [&rank, process = rank.process] {
      rank.receive(process, [&rank] { rank.reconnect(); });
    });
    return;
  }
  prompt(static_cast<std::uint32_t>(random.below(knobs.engines.size())));
}

bool Workload::change_namespaces() {
  const Knobs& knobs = sim_.knobs;
  Random& random = sim_.random;
  const auto some = [&] { return static_cast<std::uint32_t>(random.below(knobs.namespaces)); };
  if (random.chance(knobs.guest)) {
    Rank& rank = any_rank();
    if (!rank.dead && !rank.stopped && rank.session() != nullptr) rank.session()->open_guest(some(), random.chance(100));
    return true;
  }
  if (random.chance(knobs.move)) {
    const auto engine = random.below(knobs.engines.size());
    const std::uint32_t ns = some();
    const bool all = random.chance(800);
    for (auto& rank : ranks_)
      if (rank->engine == engine && rank->ready() && (all || random.chance(500))) rank->move_to(ns);
    return true;
  }
  if (random.chance(knobs.hasty)) {
    const auto engine = random.below(knobs.engines.size());
    if (knobs.rogue && engine == 0) return true;
    const std::uint32_t ns = some();
    const Duration stay = random.between(5, 200) * kMillisecond;
    for (auto& rank : ranks_) {
      if (rank->engine != engine || !rank->ready()) continue;
      rank->session()->leave_hastily();
      sim_.schedule.after(stay + random.below(5 * kMillisecond), [&rank = *rank, process = rank->process, ns] {
        rank.receive(process, [&rank, ns] { rank.move_to(ns); });
      });
    }
    return true;
  }
  return false;
}

/// Whoever said that it uses its namespace no more does so again while the partitions are asked what they have of it.
void Workload::hurry() {
  Random& random = sim_.random;
  if (!random.chance(300)) return;  // not always: what comes before the question keeps the namespace
  for (auto& rank : ranks_) {
    if (!rank->ready() || !rank->session()->hasty() || random.chance(500)) continue;
    sim_.schedule.after(random.below(2 * sim_.knobs.link_delay_max), [this, &rank = *rank] {
      if (!rank.ready() || !rank.session()->hasty()) return;
      auto prompt = std::make_shared<Prompt>();
      prompt->pages = some_pages(rank.ns());
      if (sim_.random.chance(500))
        begin(rank, prompt);
      else
        announce(rank, *prompt, 0);
    });
  }
}

bool Workload::go_wrong() {
  const Knobs& knobs = sim_.knobs;
  Random& random = sim_.random;
  if (random.chance(knobs.kill)) {
    Rank& rank = any_rank();
    rank.kill();
    sim_.schedule.after(random.between(5, 80) * kMillisecond, [&rank] { rank.revive(); });
    return true;
  }
  if (random.chance(knobs.stop)) {
    Rank& rank = any_rank();
    rank.stop();
    sim_.schedule.after(random.between(1, 120) * kMillisecond, [&rank] { rank.wake(); });
    return true;
  }
  if (random.chance(knobs.connection_loss)) {
    any_rank().lose_connection();
    return true;
  }
  if (random.chance(knobs.crash)) {
    node_.crash();
    return true;
  }
  if (random.chance(knobs.bit_flip)) {
    node_.flip_bit();
    return true;
  }
  if (random.chance(knobs.forge)) {
    Rank& rank = any_rank();
    if (rank.ready()) rank.session()->forge();
    return true;
  }
  if (knobs.rogue && random.chance(30)) {
    Rank& rank = *ranks_.front();
    if (rank.ready()) rank.session()->flood(some_pages(rank.ns()));
    return true;
  }
  return false;
}

void Workload::administrate() {
  const Knobs& knobs = sim_.knobs;
  Random& random = sim_.random;
  Rank& rank = any_rank();
  if (!rank.ready()) return;
  const auto at = random.below(knobs.remove + knobs.clear + knobs.flush);
  if (at >= knobs.remove + knobs.clear) return rank.session()->flush(random.pick({AckLevel::memory, knobs.store.max_level}));
  RemoveAsk ask;
  if (at < knobs.remove) {
    const auto pages = some_pages(rank.ns());
    ask.pages = {pages[random.below(pages.size())]};
    ask.what = random.chance(500) ? RemoveAsk::What::page : RemoveAsk::What::key;
    ask.pool = static_cast<PoolId>(random.below(knobs.pools.size()));
  } else {
    ask.what = random.chance(500) ? RemoveAsk::What::ns : RemoveAsk::What::all;
  }
  rank.session()->remove(std::move(ask));
}

void Workload::cancel_something() {
  Random& random = sim_.random;
  for (int tries = 0; tries < 6; ++tries) {
    Rank& rank = any_rank();
    if (!rank.ready()) continue;
    auto loads = rank.session()->open_loads();
    if (!loads.empty()) return rank.session()->cancel_load(random.pick(loads));
    auto puts = rank.session()->open_puts();
    if (!puts.empty()) return rank.session()->cancel_put(random.pick(puts));
  }
}

// ---- prompts ---------------------------------------------------------------------------------------------------------

void Workload::prompt(std::uint32_t engine) {
  Random& random = sim_.random;
  auto prompt = std::make_shared<Prompt>();
  prompt->pages = some_pages(sim_.knobs.engines[engine].ns);
  prompt->request = random.chance(850) ? random.next() | 1 : 0;
  prompt->probe = random.chance(60);
  prompt->load = random.chance(850);
  prompt->release = random.chance(850);
  prompt->spread = random.pick<Duration>({0, 50 * kMicrosecond, 4 * kMillisecond});
  if (random.chance(100)) prompt->narrow_to = static_cast<std::uint32_t>(random.between(1, prompt->pages.size()));
  const bool all = random.chance(850);
  const bool look_first = random.chance(600);
  for (auto& rank : ranks_) {
    if (rank->engine != engine || (!all && random.chance(500))) continue;
    sim_.schedule.after(random.below(prompt->spread + 1), [this, &rank = *rank, prompt, look_first] {
      if (!rank.ready() || rank.session()->hasty()) return;
      if (look_first)
        begin(rank, prompt);
      else
        announce(rank, *prompt, 0);
    });
  }
}

void Workload::begin(Rank& rank, const std::shared_ptr<Prompt>& prompt) {
  rank.session()->lookup(prompt->pages, prompt->request, prompt->probe,
                         [this, &rank, prompt](const LookupAnswer* answer) { answered(rank, prompt, answer); });
}

void Workload::answered(Rank& rank, const std::shared_ptr<Prompt>& prompt, const LookupAnswer* answer) {
  Random& random = sim_.random;
  if (!rank.ready()) return;
  if (answer == nullptr || answer->error != Reason::none) return announce(rank, *prompt, 0);
  std::uint32_t stop = answer->restorable_pages;
  if (answer->lease && prompt->narrow_to != 0 && prompt->narrow_to < stop) {
    const bool legal =
        answer->every_stop || std::find(answer->stops.begin(), answer->stops.end(), prompt->narrow_to) != answer->stops.end();
    if (legal) {
      stop = prompt->narrow_to;
      rank.session()->narrow(answer->lease, stop);
    }
  }
  const std::uint32_t from = stop;
  const LeaseId lease = answer->lease;
  if (lease && prompt->load) {
    LoadPlan plan;
    plan.lease = lease;
    plan.time = random.between(2, 200) * kMillisecond;
    plan.layers_per_group = random.chance(500) ? 1 : 0;
    if (random.chance(100)) plan.layer_begin = 1;
    for (std::uint32_t pool = 0; pool < rank.pools.size(); ++pool) {
      const std::uint32_t trailing = sim_.knobs.pools[pool].trailing;
      const std::uint32_t first = trailing == 0 ? 0 : stop - std::min(stop, trailing);
      for (std::uint32_t i = first; i < stop; ++i) plan.items.emplace_back(prompt->pages[i], pool);
    }
    ++prompt->loading;
    rank.session()->load(plan, [this, &rank, prompt, lease] { done_with_lease(rank, prompt, lease); });
  } else if (lease && prompt->release) {
    if (prompt->loading == 0) rank.session()->release(lease);
  }
  if (from < prompt->pages.size() && rank.ready())
    announce(rank, *prompt, random.chance(800) ? from : static_cast<std::uint32_t>(random.below(from + 1)));
}

void Workload::done_with_lease(Rank& rank, const std::shared_ptr<Prompt>& prompt, const LeaseId& lease) {
  if (--prompt->loading != 0 || !prompt->release) return;
  if (rank.ready() && !(sim_.knobs.rogue && rank.engine == 0)) rank.session()->release(lease);
}

void Workload::announce(Rank& rank, const Prompt& prompt, std::uint32_t from) {
  Random& random = sim_.random;
  const Knobs& knobs = sim_.knobs;
  const auto count = static_cast<std::uint32_t>(prompt.pages.size());
  if (from >= count) return;
  PutPlan plan;
  plan.level = knobs.store.max_level == AckLevel::disk ? random.pick({AckLevel::memory, AckLevel::memory, AckLevel::disk})
                                                       : (random.chance(15) ? AckLevel::disk : AckLevel::memory);
  plan.time = random.between(knobs.put_deadline_min, knobs.put_deadline_max);
  plan.first_depth = from;
  plan.has_parent = from > 0;
  if (from > 0) plan.parent = prompt.pages[from - 1];
  plan.pages.assign(prompt.pages.begin() + from, prompt.pages.end());
  plan.repeat_first = random.chance(40);
  if (random.chance(knobs.gate))
    plan.gate = random.chance(150) ? kNever / 4 : random.between(1, 20) * kMillisecond;
  for (std::uint32_t i = from; i < count; ++i) {
    for (std::uint32_t pool = 0; pool < knobs.pools.size(); ++pool) {
      const std::uint64_t dice = mix64(prompt.pages[i].words[1], pool);
      const PoolKnobs& own = knobs.pools[pool];
      if (own.optional && dice % 2 == 0) continue;
      if (own.trailing != 0 && i + own.trailing < count && dice % 5 != 0) continue;
      if (!knobs.calm && random.chance(8)) continue;  // this rank leaves one out
      plan.items.emplace_back(i - from, pool);
    }
  }
  if (!plan.items.empty()) rank.session()->put(plan);
}

}  // namespace kvonce::sim
