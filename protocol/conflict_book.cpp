// SPDX-License-Identifier: Apache-2.0
#include "protocol/conflict_book.hpp"

#include <algorithm>
#include <cstdio>

namespace kvonce::protocol {

namespace {

// A namespace's text may be 4 KiB long and hold anything; a log line is one line.
std::string one_line(const std::string& text) {
  constexpr std::size_t kMost = 128;
  std::string out = "'";
  for (const char c : text.substr(0, kMost)) out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  return out + (text.size() > kMost ? "...'" : "'");
}

}  // namespace

void ConflictBook::Ranks::add(const RankName& rank) {
  if (rank.sender == 0 || std::find(named.begin(), named.end(), rank) != named.end()) return;
  if (named.size() < kMaxRanks)
    named.push_back(rank);
  else
    more = true;
}

std::string ConflictBook::Ranks::text() const {
  if (named.empty()) return "a rank that has left";
  std::string text;
  for (const RankName& rank : named) {
    char name[64];
    std::snprintf(name, sizeof name, "%srank %016llx", text.empty() ? "" : ", ", static_cast<unsigned long long>(rank.sender));
    text += name;
    if (rank.pid != 0) text += " of process " + std::to_string(rank.pid);
  }
  return more ? text + " and others" : text;
}

std::optional<ConflictBook::Finding> ConflictBook::add(const KeyConflict& conflict, const Catalog& catalog) {
  const PoolInfo* const info = catalog.find_pool(conflict.ns, conflict.pool);
  if (info == nullptr) return std::nullopt;
  Pool& pool = pools_[{conflict.ns, conflict.pool}];
  pool.writers.add(conflict.writer);
  pool.differing.add(conflict.differing);
  if (!conflict.first_of_key) return std::nullopt;
  ++pool.keys;
  // Once demoted, what is still found of the old generation changes nothing.
  if (pool.keys != 1 && pool.keys != limit_) return std::nullopt;
  const NamespaceInfo* const ns = catalog.find_namespace(conflict.ns);
  Finding finding;
  finding.at_limit = pool.keys == limit_;
  finding.text = "pool " + one_line(info->name) + (ns != nullptr ? " of namespace " + one_line(ns->text) : std::string()) +
                 ": ranks of one engine announced different bytes under " + std::to_string(pool.keys) +
                 (pool.keys == 1 ? " key" : " keys") + " (stored by " + pool.writers.text() + "; other bytes from " +
                 pool.differing.text() + ")";
  return finding;
}

void ConflictBook::forget(NamespaceId ns) {
  std::erase_if(pools_, [&](const auto& entry) { return entry.first.first == ns; });
}

}  // namespace kvonce::protocol
