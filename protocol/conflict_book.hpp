// SPDX-License-Identifier: Apache-2.0
//
// The registrar's count of keys on which ranks of one engine differ, per pool, and which ranks they were: what is said of it,
// and when the pool is demoted. Without clock or log of its own.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "protocol/store_core.hpp"

namespace kvonce::protocol {

class ConflictBook {
 public:
  /// Ranks of a pool that are remembered by name on each side; of the rest only that there were some.
  static constexpr std::size_t kMaxRanks = 8;

  explicit ConflictBook(std::uint32_t limit = 1) : limit_(limit) {}

  struct Finding {
    bool at_limit = false;  // conflict_limit keys: the pool is to be demoted, or left as it is
    std::string text;       // for the operator: pool, namespace, number of keys, ranks; no full stop
  };
  /// A finding with the pool's first key and with the one that reaches the limit, else nothing: what is said is bounded.
  std::optional<Finding> add(const KeyConflict& conflict, const Catalog& catalog);
  void forget(NamespaceId ns);

 private:
  struct Ranks {
    std::vector<RankName> named;
    bool more = false;
    void add(const RankName& rank);
    std::string text() const;
  };
  struct Pool {
    std::uint32_t keys = 0;
    Ranks writers, differing;
  };
  std::uint32_t limit_;
  std::map<std::pair<NamespaceId, PoolId>, Pool> pools_;
};

}  // namespace kvonce::protocol
