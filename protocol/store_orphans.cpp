// SPDX-License-Identifier: Apache-2.0
//
// StoreCore: pages that were stored while the page before them was not there. When it comes, they hang on it again, so that it
// does not leave before them.
#include "protocol/store_impl.hpp"

namespace kvonce::protocol {

void StoreCore::Impl::want_parent(RecordId record, const PageHash& parent) {
  const auto [at, is_new] = parent_wanted.try_emplace(record, parent);
  if (!is_new) return;  // the first word counts
  parentless.emplace(parent, record);
}

void StoreCore::Impl::forget_orphan(RecordId record) {
  if (parent_wanted.empty()) return;
  const auto at = parent_wanted.find(record);
  if (at == parent_wanted.end()) return;
  const auto [first, last] = parentless.equal_range(at->second);
  for (auto it = first; it != last; ++it) {
    if (it->second != record) continue;
    parentless.erase(it);
    break;
  }
  parent_wanted.erase(at);
}

void StoreCore::Impl::adopt_orphans(RecordId parent) {
  if (parentless.empty()) return;
  const PageHash hash = index.hash(parent);
  std::vector<RecordId> waiting;
  const auto [first, last] = parentless.equal_range(hash);
  for (auto it = first; it != last; ++it) waiting.push_back(it->second);
  bool adopted = false;
  for (const RecordId child : waiting) {
    // A child that claims to lie before its parent is not believed.
    if (index.ns(child) != index.ns(parent) || child == parent || index.parent(child) != kNone ||
        index.depth(parent) >= index.depth(child))
      continue;
    forget_orphan(child);
    index.set_parent(child, parent);
    adopted = true;
  }
  if (adopted) refresh(parent);
}

}  // namespace kvonce::protocol
