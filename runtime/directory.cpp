// SPDX-License-Identifier: Apache-2.0
#include "runtime/directory.hpp"

namespace kvonce::runtime {

namespace {

bool same_group(const protocol::GroupAsk& a, const protocol::GroupAsk& b) {
  if (a.name != b.name || a.pools.size() != b.pools.size()) return false;
  for (std::size_t i = 0; i < a.pools.size(); ++i) {
    const auto& x = a.pools[i];
    const auto& y = b.pools[i];
    if (x.name != y.name || x.shards != y.shards || x.ranks != y.ranks || !(x.policy == y.policy) || x.optional != y.optional)
      return false;
  }
  return true;
}

}  // namespace

int GroupRecord::find(std::string_view name) const {
  for (std::size_t i = 0; i < ask.pools.size(); ++i)
    if (ask.pools[i].name == name) return static_cast<int>(i);
  return -1;
}

std::string GroupRecord::name_of(protocol::PoolId pool) const {
  for (std::size_t i = 0; i < pools.size() && i < ask.pools.size(); ++i)
    if (pools[i] == pool) return ask.pools[i].name;
  return {};
}

std::uint32_t Directory::add_namespace(std::string_view text, protocol::NamespaceId ns) {
  const std::lock_guard lock(mutex_);
  for (std::uint32_t i = 0; i < namespaces_.size(); ++i) {
    if (namespaces_[i].text != text) continue;
    namespaces_[i].ns = ns;
    return i;
  }
  namespaces_.push_back({std::string(text), ns});
  return static_cast<std::uint32_t>(namespaces_.size() - 1);
}

std::optional<protocol::NamespaceId> Directory::namespace_at(std::uint64_t handle) const {
  const std::lock_guard lock(mutex_);
  if (handle >= namespaces_.size() || namespaces_[handle].ns >= protocol::kNoNamespace) return std::nullopt;
  return static_cast<protocol::NamespaceId>(namespaces_[handle].ns);
}

std::optional<std::string> Directory::namespace_text(std::uint64_t handle) const {
  const std::lock_guard lock(mutex_);
  if (handle >= namespaces_.size() || namespaces_[handle].text.empty()) return std::nullopt;
  return namespaces_[handle].text;
}

void Directory::move_namespace(std::uint64_t handle, std::uint32_t ns) {
  const std::lock_guard lock(mutex_);
  if (handle < namespaces_.size()) namespaces_[handle].ns = ns;
}

std::uint32_t Directory::namespaces() const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::uint32_t>(namespaces_.size());
}

void Directory::close_namespace(std::uint64_t handle) {
  const std::lock_guard lock(mutex_);
  if (handle >= namespaces_.size()) return;
  Namespace& closed = namespaces_[handle];
  if (closed.ns < protocol::kNoNamespace) {
    const auto ns = static_cast<protocol::NamespaceId>(closed.ns);
    pools_.erase(pools_.lower_bound({ns, protocol::PoolId{0}}), pools_.upper_bound({ns, protocol::PoolId{0xffff}}));
  }
  std::string().swap(closed.text);
  closed.ns = protocol::kNoNamespace;
  static const GroupPtr nothing = [] {
    GroupRecord record;
    record.ask.ns = protocol::kNoNamespace;
    record.id = protocol::kNoGroup;
    return std::make_shared<const GroupRecord>(std::move(record));
  }();
  for (GroupPtr& group : groups_)
    if (group->ns_handle == handle) group = nothing;
}

std::uint32_t Directory::handle_of(protocol::NamespaceId ns) const {
  const std::lock_guard lock(mutex_);
  for (std::uint32_t i = 0; i < namespaces_.size(); ++i)
    if (namespaces_[i].ns == ns) return i;
  return 0xffffffffU;
}

std::uint32_t Directory::groups() const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::uint32_t>(groups_.size());
}

std::uint32_t Directory::add_group(GroupRecord record) {
  const std::lock_guard lock(mutex_);
  for (std::uint32_t i = 0; i < groups_.size(); ++i) {
    if (groups_[i]->ns_handle != record.ns_handle || !same_group(groups_[i]->ask, record.ask)) continue;
    groups_[i] = std::make_shared<const GroupRecord>(std::move(record));
    return i;
  }
  groups_.push_back(std::make_shared<const GroupRecord>(std::move(record)));
  return static_cast<std::uint32_t>(groups_.size() - 1);
}

void Directory::replace_group(std::uint32_t index, GroupRecord record) {
  const std::lock_guard lock(mutex_);
  groups_[index] = std::make_shared<const GroupRecord>(std::move(record));
}

GroupPtr Directory::group(std::uint64_t index) const {
  const std::lock_guard lock(mutex_);
  return index < groups_.size() ? groups_[index] : nullptr;
}

std::vector<std::uint32_t> Directory::groups_with(protocol::NamespaceId ns, std::string_view pool) const {
  const std::lock_guard lock(mutex_);
  std::vector<std::uint32_t> found;
  for (std::uint32_t i = 0; i < groups_.size(); ++i)
    if (groups_[i]->ask.ns == ns && groups_[i]->find(pool) >= 0) found.push_back(i);
  return found;
}

void Directory::add_pool(protocol::NamespaceId ns, protocol::PoolId pool, const KnownPool& known) {
  const std::lock_guard lock(mutex_);
  KnownPool& entry = pools_[{ns, pool}];
  entry.name = known.name;
  entry.shards = known.shards;
  if (known.object_bytes != 0) entry.object_bytes = known.object_bytes;
}

KnownPool Directory::pool(protocol::NamespaceId ns, protocol::PoolId pool) const {
  const std::lock_guard lock(mutex_);
  const auto it = pools_.find({ns, pool});
  return it == pools_.end() ? KnownPool{} : it->second;
}

std::vector<KnownPool> Directory::pools_of(protocol::NamespaceId ns) const {
  const std::lock_guard lock(mutex_);
  std::vector<KnownPool> found;
  for (auto it = pools_.lower_bound({ns, protocol::PoolId{0}}); it != pools_.end() && it->first.first == ns; ++it)
    found.push_back(it->second);
  return found;
}

}  // namespace kvonce::runtime
