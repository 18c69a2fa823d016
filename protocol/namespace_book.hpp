// SPDX-License-Identifier: Apache-2.0
//
// Which processes have which namespaces open, and which namespace goes when a new one needs its place. The registrar's; without
// clock, thread or message of its own.
//
//   all places taken -> one that nobody has open is retired (retire_round.hpp) -> its objects leave -> freed -> its place is the
//   new one's
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <unordered_set>

#include "protocol/catalog.hpp"
#include "protocol/key.hpp"

namespace kvonce::protocol {

/// What a partition has of a namespace.
enum class NamespaceUse : std::uint8_t {
  none = 0,
  objects,  // that could be removed
  held,     // claims, leases, quarantined slots, a rank's pools: it cannot go now
};

class NamespaceBook {
 public:
  /// Once per process, however often it opens the namespace.
  void opened(ClientId client, NamespaceId ns);
  void closed(ClientId client, NamespaceId ns);
  void client_left(ClientId client);
  /// The namespace has been freed.
  void forget(NamespaceId ns);
  bool is_open(NamespaceId ns) const { return open_at_[place_of(ns)].processes != 0; }
  /// The one to be retired: open nowhere and held by no partition; one without objects before one with, then the one whose last
  /// process left first. `use`: by place, the most that any partition says. Nothing: all are in use.
  std::optional<NamespaceId> oldest(const Catalog& catalog, std::span<const NamespaceUse> use) const;

 private:
  void left(NamespaceId ns);

  struct Place {
    std::uint32_t processes = 0;
    std::uint64_t left_at = 0;  // 0: not opened in this life of the store
  };
  std::array<Place, kMaxNamespaces> open_at_{};
  std::unordered_map<ClientId, std::unordered_set<NamespaceId>> open_;
  std::uint64_t last_ = 0;
};

}  // namespace kvonce::protocol
