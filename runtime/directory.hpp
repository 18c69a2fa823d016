// SPDX-License-Identifier: Apache-2.0
//
// Names and numbers that this process has learned from its store: the ShardKeyActor writes, calls read.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "protocol/catalog.hpp"

namespace kvonce::runtime {

/// A page group as it is registered now. Immutable; a demotion replaces it.
struct GroupRecord {
  protocol::GroupAsk ask;
  ShardCounts ranks;
  protocol::GroupId id = 0;
  std::vector<protocol::PoolId> pools;  // in the order of ask.pools
  std::vector<ShardCounts> shards;      // of each pool now

  /// Index into ask.pools; -1: no such pool.
  int find(std::string_view name) const;
  std::string name_of(protocol::PoolId pool) const;
};
using GroupPtr = std::shared_ptr<const GroupRecord>;

struct KnownPool {
  std::string name;
  ShardCounts shards;
  std::uint64_t object_bytes = 0;  // 0: not known here
};

class Directory {
 public:
  void add_namespace(protocol::NamespaceId ns);
  bool has_namespace(std::uint64_t ns) const;

  /// The index of an equal group when there is one.
  std::uint32_t add_group(GroupRecord record);
  void replace_group(std::uint32_t index, GroupRecord record);
  GroupPtr group(std::uint64_t index) const;  // null: no such group
  /// Groups of `ns` that name the pool.
  std::vector<std::uint32_t> groups_with(protocol::NamespaceId ns, std::string_view pool) const;

  void add_pool(protocol::NamespaceId ns, protocol::PoolId pool, const KnownPool& known);
  KnownPool pool(protocol::NamespaceId ns, protocol::PoolId pool) const;

 private:
  mutable std::mutex mutex_;
  std::set<protocol::NamespaceId> namespaces_;
  std::vector<GroupPtr> groups_;
  std::map<std::pair<protocol::NamespaceId, protocol::PoolId>, KnownPool> pools_;
};

}  // namespace kvonce::runtime
