// SPDX-License-Identifier: Apache-2.0
#include "protocol/namespace_book.hpp"

#include <algorithm>
#include <tuple>
#include <vector>

namespace kvonce::protocol {

void NamespaceBook::left(NamespaceId ns) {
  Place& place = open_at_[place_of(ns)];
  if (place.processes != 0 && --place.processes == 0) place.left_at = ++last_;
}

void NamespaceBook::opened(ClientId client, NamespaceId ns) {
  if (open_[client].insert(ns).second) ++open_at_[place_of(ns)].processes;
}

void NamespaceBook::closed(ClientId client, NamespaceId ns) {
  const auto at = open_.find(client);
  if (at == open_.end() || at->second.erase(ns) == 0) return;
  if (at->second.empty()) open_.erase(at);
  left(ns);
}

void NamespaceBook::client_left(ClientId client) {
  const auto node = open_.extract(client);
  if (!node) return;
  // All at one moment: then the order of numbers decides, not that of a hash table.
  std::vector<NamespaceId> all(node.mapped().begin(), node.mapped().end());
  std::sort(all.begin(), all.end());
  for (const NamespaceId ns : all) left(ns);
}

void NamespaceBook::forget(NamespaceId ns) { open_at_[place_of(ns)] = {}; }

std::optional<NamespaceId> NamespaceBook::oldest(const Catalog& catalog, std::span<const NamespaceUse> use) const {
  using Order = std::tuple<NamespaceUse, std::uint64_t, NamespaceId>;
  std::optional<Order> best;
  for (std::uint32_t at = 0; at < kMaxNamespaces && at < use.size(); ++at) {
    const NamespaceId ns = catalog.at_place(at);
    if (ns == kNoNamespace || !catalog.accepts(ns) || is_open(ns) || use[at] == NamespaceUse::held) continue;
    const Order order{use[at], open_at_[at].left_at, ns};
    if (!best || order < *best) best = order;
  }
  if (!best) return {};
  return std::get<2>(*best);
}

}  // namespace kvonce::protocol
