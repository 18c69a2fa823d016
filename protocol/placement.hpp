// SPDX-License-Identifier: Apache-2.0
//
// Which partition owns a page: highest random weight over (namespace, page hash), never of pool or shard, so that all
// objects of a page live together and a lookup asks once per page.
#pragma once

#include <cstdint>
#include <vector>

#include "protocol/key.hpp"

namespace kvonce::protocol {

class Placement {
 public:
  /// `view` is the number of this membership; `stores` are their lasting ids (here: one per partition).
  Placement(std::uint32_t view, std::vector<std::uint64_t> stores) : view_(view), stores_(std::move(stores)) {}
  /// Partitions 0..count-1 of one node.
  static Placement local(std::uint32_t count) {
    std::vector<std::uint64_t> ids(count);
    for (std::uint32_t i = 0; i < count; ++i) ids[i] = i;
    return Placement(1, std::move(ids));
  }
  std::uint32_t view() const { return view_; }
  std::uint32_t partitions() const { return static_cast<std::uint32_t>(stores_.size()); }
  std::uint32_t owner(NamespaceId ns, const PageHash& page) const {
    if (stores_.size() == 1) return 0;
    const std::uint64_t mixed = mix_page(ns, page);
    std::uint32_t best = 0;
    std::uint64_t best_weight = 0;
    for (std::uint32_t i = 0; i < stores_.size(); ++i) {
      std::uint64_t weight = mixed ^ ((stores_[i] + 1) * 0x9e3779b97f4a7c15ULL);
      weight ^= weight >> 31;
      weight *= 0xbf58476d1ce4e5b9ULL;
      weight ^= weight >> 29;
      if (i == 0 || weight > best_weight) {
        best = i;
        best_weight = weight;
      }
    }
    return best;
  }

 private:
  std::uint32_t view_;
  std::vector<std::uint64_t> stores_;
};

}  // namespace kvonce::protocol
