// SPDX-License-Identifier: Apache-2.0
#include "apps/workload/page_chains.hpp"

namespace kvonce::workload {
namespace {

std::string contradiction(std::uint64_t id, const std::string& here, const std::string& before) {
  return "field \"hash_ids\": id " + std::to_string(id) + ' ' + here + ", and before it " + before +
         "; allowed are ids that stand for their page and all pages before it";
}

}  // namespace

std::string PageChains::add(std::span<const std::uint64_t> ids) {
  if (ids.empty()) return {};
  const std::uint64_t first = ids.front();
  if (first_.insert(first).second) {
    if (const auto found = id_before_.find(first); found != id_before_.end())
      return contradiction(first, "begins the prompt", "followed " + std::to_string(found->second));
  }
  for (std::size_t i = 1; i < ids.size(); ++i) {
    const auto [found, added] = id_before_.try_emplace(ids[i], ids[i - 1]);
    if (found->second != ids[i - 1]) return contradiction(ids[i], "follows " + std::to_string(ids[i - 1]), "followed " + std::to_string(found->second));
    if (added && first_.contains(ids[i])) return contradiction(ids[i], "follows " + std::to_string(ids[i - 1]), "began a prompt");
  }
  return {};
}

}  // namespace kvonce::workload
