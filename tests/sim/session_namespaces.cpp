// SPDX-License-Identifier: Apache-2.0
//
// The session and namespaces: its own, which it may be refused or leave, and guests that it opens for a while.
#include <algorithm>
#include <utility>

#include "tests/sim/checkers.hpp"
#include "tests/sim/session.hpp"

namespace kvonce::sim {

/// There was no place for its namespace: it tries again on another connection, while others may leave.
void Session::refused() {
  if (sim_.ending || closing_) return;
  sim_.schedule.after(sim_.random.between(5, 40) * kMillisecond, [this] {
    receive([this] {
      if (!lost && rank_.session() == this) close();
    });
  });
}

void Session::leave_namespace() {
  checkers_.leaves(client, ns_id_);
  for (const PoolState& pool : pools_) {
    for (const PoolKeying& keying : pool.keyings) {
      for (std::uint32_t p = 0; p < node_.partitions(); ++p) {
        node_.post(*this, p, "detach pool", [this, keying](StoreCore& core, Time now, StoreActions&) {
          core.attach_pool(AttachPool{sender, keying.ns, keying.pool, keying.shard, false}, now);
        });
      }
    }
  }
  node_.close_namespace(*this, ns_id_);
}

void Session::leave_hastily() {
  if (!ready() || hasty_) return;
  hasty_ = true;
  sim_.probes.hit(Probe::hasty_close);
  sim_.note("hasty", sender & 0xffff, ns_id_);
  leave_namespace();
  for (const LeaseId& lease : std::exchange(seen_leases_, {})) release(lease);
}

/// To ask again would be to open it again: what is redirected ends by its deadline.
void Session::keep_keys() {
  std::set<std::uint32_t> waiting;
  std::swap(waiting, rekeying_);
  for (const std::uint32_t pool : waiting)
    receive([this, pool] { run([pool](PoolCore& core, Time now, PoolActions& out) { core.on_rekeyed(pool, false, now, out); }); });
}

void Session::say_goodbye() {
  checkers_.leaves(client);
  for (std::uint32_t p = 0; p < node_.partitions(); ++p) {
    node_.post(*this, p, "goodbye", [this, p](StoreCore& core, Time now, StoreActions& a) {
      checkers_.before_leave(p, *this, true);
      if (p == 0) node_.leave_registrar(client);
      core.client_left(client, true, now, a);
    });
  }
  for (auto& [token, lookup] : lookups_) lookup.done(nullptr);
  lookups_.clear();
  lost = true;
  sim_.schedule.after(sim_.random.between(1, 5) * kMillisecond, [this] { receive([this] { rank_.connect(); }); });
}

void Session::open_guest(std::uint32_t ns, bool find_only) {
  const bool known = std::any_of(guests_.begin(), guests_.end(), [ns](const auto& guest) { return guest.second == ns; });
  if (lost || left_ || ns == ns_ || known) return;
  const std::uint64_t token = next_id();
  guests_[token] = ns;
  sim_.probes.hit(Probe::guest_opening);
  node_.open_namespace(*this, token, NamespaceAsk{namespace_text(ns), find_only});
}

void Session::on_opened(std::uint64_t token, const RegisterAnswer& answer) {
  if (lost || left_) return;
  if (answer.error) {
    guests_.erase(token);
    return;
  }
  checkers_.uses(*this, answer.ns);
  sim_.schedule.after(sim_.random.between(100, 30'000) * kMicrosecond, [this, token, ns = answer.ns] {
    receive([this, token, ns] {
      if (lost || left_) return;
      guests_.erase(token);
      checkers_.leaves(client, ns);
      node_.close_namespace(*this, ns);
    });
  });
}

}  // namespace kvonce::sim
