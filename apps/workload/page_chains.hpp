// SPDX-License-Identifier: Apache-2.0
//
// Whether the ids of a trace are chained: equal ids mean equal content of the page and of all before it, so an id has one id before it,
// wherever it stands. Memory grows with the number of different ids, 40 B or so each.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>

namespace kvonce::workload {

class PageChains {
public:
  /// Ids of one prompt, from its first page on. Empty; or what contradicts the prompts before, or the prompt itself.
  std::string add(std::span<const std::uint64_t> ids);

private:
  std::unordered_set<std::uint64_t> first_;                       // that begin a prompt
  std::unordered_map<std::uint64_t, std::uint64_t> id_before_;  // of every other
};

}  // namespace kvonce::workload
