// SPDX-License-Identifier: Apache-2.0
//
// Names and numbers that this process has learned from its store: the ShardKeyActor writes, calls read.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "protocol/catalog.hpp"

namespace kvonce::runtime {

/// A page group as it is registered now. Immutable; a demotion replaces it.
struct GroupRecord {
  protocol::GroupAsk ask;  // ask.ns: with the store now
  std::uint32_t ns_handle = 0xffffffffU;
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
  // Namespaces have a number here, which lasts, and one with the store, which is another one when the store is.
  /// The number here; the one of an equal text that is open when there is one.
  std::uint32_t add_namespace(std::string_view text, protocol::NamespaceId ns);
  /// With the store now. Nothing: no such handle, or it could not be registered with this store.
  std::optional<protocol::NamespaceId> namespace_at(std::uint64_t handle) const;
  std::optional<std::string> namespace_text(std::uint64_t handle) const;
  /// Numbers given out; those that were closed have no text.
  std::uint32_t namespaces() const;
  /// Forgets the text, the groups and the pools; the number stays, and means nothing any more.
  void close_namespace(std::uint64_t handle);
  /// kNoNamespace: not with this store.
  void move_namespace(std::uint64_t handle, std::uint32_t ns);
  /// The handle of one of the store's numbers; 0xffffffff: not opened here.
  std::uint32_t handle_of(protocol::NamespaceId ns) const;

  /// The index of an equal group when there is one.
  std::uint32_t add_group(GroupRecord record);
  void replace_group(std::uint32_t index, GroupRecord record);
  GroupPtr group(std::uint64_t index) const;  // null: no such group
  std::uint32_t groups() const;
  /// Groups of `ns` that name the pool.
  std::vector<std::uint32_t> groups_with(protocol::NamespaceId ns, std::string_view pool) const;

  void add_pool(protocol::NamespaceId ns, protocol::PoolId pool, const KnownPool& known);
  KnownPool pool(protocol::NamespaceId ns, protocol::PoolId pool) const;
  std::vector<KnownPool> pools_of(protocol::NamespaceId ns) const;

 private:
  mutable std::mutex mutex_;
  struct Namespace {
    std::string text;
    std::uint32_t ns = 0;  // with the store
  };
  std::vector<Namespace> namespaces_;
  std::vector<GroupPtr> groups_;
  std::map<std::pair<protocol::NamespaceId, protocol::PoolId>, KnownPool> pools_;
};

}  // namespace kvonce::runtime
