// SPDX-License-Identifier: Apache-2.0
//
// Namespaces, pools and page groups that are registered with a store. The registrar (partition 0) decides and gives out
// ordinals; every partition holds a copy, changed only by applying the registrar's updates in order.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <optional>
#include <vector>

#include "protocol/key.hpp"
#include "protocol/wire.hpp"
#include "storage/slot_shape.hpp"

namespace kvonce::protocol {

/// Page groups of one namespace.
inline constexpr std::uint32_t kMaxGroupsPerNamespace = 1024;
/// Numbers of groups are never given twice in a life of the store.
inline constexpr GroupId kNoGroup = 0xffffffffU;

struct PoolInfo {
  std::string name;
  ShardCounts shards;
  HitPolicy policy;
  enum class Size : std::uint8_t { unknown, none, known } size = Size::unknown;  // unknown: only groups named it so far
  std::vector<std::uint64_t> range_bytes;  // component x layer, in the object's order; empty unless known
  std::uint64_t object_bytes = 0;
  std::uint64_t layout_digest = 0;  // of component names, layers and range bytes
  Generation generation = 0;        // raised by each demotion
  bool splittable = false;          // some rank that registered it has more ranks than the pool has shards
  bool demoted = false;             // answered `redirect`: ranks use the pool of the same name sharded by rank
};

struct NamespaceInfo {
  std::string text;
  std::vector<PoolInfo> pools;  // by PoolId
};

struct GroupPool {
  PoolId pool = 0;
  bool optional = false;
};
struct GroupInfo {
  NamespaceId ns = 0;
  std::string name;
  std::vector<GroupPool> pools;
  // Made from the pools: which bits of full_pools a page needs.
  std::uint64_t every_page = 0;           // required pools with HitPolicy every page
  std::uint64_t trailing = 0;             // required trailing pools
  std::uint64_t optional_pools = 0;
  std::uint16_t trailing_pages_max = 0;   // the longest n
};

// -- asking the registrar ----------------------------------------------------------------------------------------------

struct NamespaceAsk {
  std::string text;        // 1 to 4,096 bytes
  bool find_only = false;  // one that is not registered is an error
};
/// The asking process uses it no more. No answer.
struct NamespaceClose {
  NamespaceId ns = kNoNamespace;
};
struct PoolAsk {
  NamespaceId ns = 0;
  PoolInfo pool;     // name, shards, policy, size, range_bytes, layout_digest
  ShardCounts ranks; // of the asking rank's engine: what the shards become if the pool is demoted
};
/// One pool of a group, described without memory. `ranks` is what the pool's shards become if it is demoted.
struct GroupPoolAsk {
  std::string name;
  ShardCounts shards;
  ShardCounts ranks;
  HitPolicy policy;
  bool optional = false;
};
struct GroupAsk {
  NamespaceId ns = 0;
  std::string name;
  std::vector<GroupPoolAsk> pools;  // 1 to 64
};
/// The value of an epoch's name, for the asking process's engine (epoch_book.hpp).
struct EpochAsk {
  std::string name;  // 1 to 255 bytes
  Digest128 known;   // what it was in the store's last life; zero: not known
};

/// One change of the catalog; applying the same updates in the same order gives the same catalog everywhere.
struct CatalogUpdate {
  // retire: nothing is taken in or found there any more; free: nothing is left of it, its place may be another's.
  enum class Kind : std::uint8_t { ns, pool, group, demote, retire, free } kind = Kind::ns;
  NamespaceId ns = 0;
  PoolId pool = 0;
  GroupId group = 0;
  Generation generation = 0;
  std::string text;
  PoolInfo info;
  GroupInfo group_info;
};

/// A pool as somebody is told of it who has no part in it.
struct KnownPool {
  PoolId pool = 0;
  std::string name;
  ShardCounts shards;
  std::uint64_t object_bytes = 0;  // 0: not known yet, or without bytes
};

struct RegisterAnswer {
  Error error;            // empty: done
  NamespaceId ns = 0;
  PoolId pool = 0;
  GroupId group = 0;
  Generation generation = 0;
  bool demoted = false;   // pool: register the pool sharded by rank instead
  std::vector<GroupPool> pools;  // group: the pools' ids, in the asked order (a demoted pool's successor where there is one)
  std::vector<KnownPool> known;  // namespace: the pools that it has
  Digest128 epoch;               // epoch: its value
};

class Catalog {
 public:
  /// `max_namespaces`: places, 1 to kMaxNamespaces. keep_turn: a deliberate fault, a place's next owner gets the number of the last.
  explicit Catalog(std::uint32_t max_namespaces = kMaxNamespaces, bool keep_turn = false)
      : max_namespaces_(max_namespaces), keep_turn_(keep_turn) {}

  // Deciding (registrar only). Appends the updates that all partitions (this one included) have to apply.
  /// too_many: all places are taken. One has to be retired and, when it is empty, freed (retire_round.hpp).
  RegisterAnswer ask(const NamespaceAsk& ask, std::vector<CatalogUpdate>& updates) const;
  RegisterAnswer ask(const PoolAsk& ask, std::vector<CatalogUpdate>& updates) const;
  /// Pools that nobody has registered yet are registered here without bytes known (`range_bytes` empty, size unset);
  /// the first rank that registers memory fills them in.
  RegisterAnswer ask(const GroupAsk& ask, std::vector<CatalogUpdate>& updates) const;
  /// A pool whose ranks were seen to differ. No update when it is sharded by nothing that could be split, or demoted already.
  void demote(NamespaceId ns, PoolId pool, std::vector<CatalogUpdate>& updates) const;

  void apply(const CatalogUpdate& update);

  /// The updates that make this catalog from an empty one. A retired namespace is an ordinary one again in it.
  std::vector<CatalogUpdate> history() const;

  // Reading. What is retired is found until it is freed: books are kept over what is left of it.
  /// Whether anything may be asked of the namespace: it is registered and not retired.
  bool accepts(NamespaceId ns) const;
  std::vector<NamespaceId> retired() const;
  bool is_free(NamespaceId ns) const;  // nobody has its place
  /// Who has that place; kNoNamespace: nobody.
  NamespaceId at_place(std::uint32_t place) const;
  const NamespaceInfo* find_namespace(NamespaceId ns) const;
  const PoolInfo* find_pool(NamespaceId ns, PoolId pool) const;
  const GroupInfo* find_group(GroupId group) const;
  /// Null: unknown, or a pool without bytes. A pointer that was given out stays right until the namespace is freed.
  const storage::SlotShape* shape(NamespaceId ns, PoolId pool) const;
  std::size_t namespaces() const { return places_.size() - free_places_.size(); }
  std::size_t groups() const { return groups_.size(); }
  GroupId next_group() const { return next_group_; }
  /// The registered groups of one namespace.
  const std::vector<GroupId>& groups_of(NamespaceId ns) const;

 private:
  struct Place {
    NamespaceId id = kNoNamespace;  // of its owner now
    bool retired = false;
    std::uint32_t turn = 0;  // of the next owner
    NamespaceInfo info;
    std::vector<GroupId> groups;
    std::vector<std::optional<storage::SlotShape>> shapes;
  };
  const Place* find_place(NamespaceId ns) const;
  void add_namespace(const CatalogUpdate& update);
  void free_namespace(NamespaceId ns);

  std::uint32_t max_namespaces_;
  bool keep_turn_;
  std::vector<Place> places_;              // as many as ever were taken at a time
  std::deque<std::uint32_t> free_places_;  // the one that has been free for longest first: numbers come again as late as can be
  std::map<GroupId, GroupInfo> groups_;
  GroupId next_group_ = 0;
  std::size_t retired_ = 0;
};

}  // namespace kvonce::protocol
