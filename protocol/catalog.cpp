// SPDX-License-Identifier: Apache-2.0
#include "protocol/catalog.hpp"

#include <algorithm>
#include <string_view>

namespace kvonce::protocol {
namespace {

constexpr std::size_t kMaxNameBytes = 255;
constexpr std::size_t kMaxTextBytes = 4096;

std::string number(std::uint64_t value) { return std::to_string(value); }

std::string shards_text(const ShardCounts& shards) {
  return "tp " + number(shards.tp) + ", pp " + number(shards.pp) + ", cp " + number(shards.cp);
}
std::string pool_text(const std::string& name, const ShardCounts& shards) {
  return "pool '" + name + "' (" + shards_text(shards) + ")";
}
std::string policy_text(const HitPolicy& policy) {
  return policy.is_trailing() ? "trailing " + number(policy.trailing_pages) : std::string("every page");
}
std::string size_text(const PoolInfo& pool) {
  return pool.size == PoolInfo::Size::none ? std::string("no bytes") : number(pool.object_bytes) + " bytes";
}

Error name_error(std::string_view thing, const std::string& name) {
  if (!name.empty() && name.size() <= kMaxNameBytes) return {};
  return {Reason::bad_argument, "the name of a " + std::string(thing) + " has " + number(name.size()) +
                                    " bytes; 1 to " + number(kMaxNameBytes) + " are allowed"};
}

// Empty when every axis has a shard and there are not too many in all. The product of three 16-bit numbers needs 48 bits.
Error shards_error(const std::string& of, const ShardCounts& shards) {
  const std::uint64_t count = std::uint64_t{shards.tp} * shards.pp * shards.cp;
  if (count >= 1 && count <= kMaxShardsPerPool) return {};
  return {Reason::bad_argument, of + " (" + shards_text(shards) + ") are " + number(count) + "; 1 to " +
                                    number(kMaxShardsPerPool) + " are allowed"};
}

Error unknown_namespace(NamespaceId ns, std::size_t registered) {
  return {Reason::unknown_namespace, "namespace " + number(ns) + " is not registered, or was freed; there are " + number(registered)};
}

std::optional<PoolId> find_pool_id(const NamespaceInfo& ns, const std::string& name, const ShardCounts& shards) {
  for (std::size_t i = 0; i < ns.pools.size(); ++i)
    if (ns.pools[i].shards == shards && ns.pools[i].name == name) return static_cast<PoolId>(i);
  return std::nullopt;
}

bool name_was_demoted(const NamespaceInfo& ns, const std::string& name) {
  return std::any_of(ns.pools.begin(), ns.pools.end(),
                     [&name](const PoolInfo& pool) { return pool.demoted && pool.name == name; });
}

// What is registered stays while its namespace is, whatever is removed from it.
constexpr std::string_view kWayOut = "; another one needs another pool name or another namespace: removing pages does not end a registration";

// Why `pool` cannot be the one that stands under the same name and shards; empty when it can.
Error clash(const PoolInfo& registered, const PoolInfo& pool) {
  const std::string what = pool_text(pool.name, pool.shards);
  if (registered.policy != pool.policy) {
    return {Reason::bad_argument, what + " is asked with hit policy " + policy_text(pool.policy) +
                                      "; registered, and so allowed, is " + policy_text(registered.policy) + std::string(kWayOut)};
  }
  if (registered.size == PoolInfo::Size::unknown || pool.size == PoolInfo::Size::unknown) return {};
  if (registered.size != pool.size || registered.object_bytes != pool.object_bytes) {
    return {Reason::wrong_size, what + " is asked with " + size_text(pool) +
                                    " an object; registered, and so allowed, are " + size_text(registered) + std::string(kWayOut)};
  }
  if (registered.layout_digest != pool.layout_digest || registered.range_bytes != pool.range_bytes) {
    return {Reason::bad_argument, what + " is asked with layout digest " + number(pool.layout_digest) + " and " +
                                      number(pool.range_bytes.size()) + " ranges; registered, and so allowed, are " +
                                      number(registered.layout_digest) + " and " +
                                      number(registered.range_bytes.size()) + " ranges of their own bytes" + std::string(kWayOut)};
  }
  return {};
}

// A group's pools by name: what a registered and an asked group are compared by.
struct NamedPool {
  const std::string* name;
  GroupPool pool;
};
std::vector<NamedPool> by_name(const std::vector<GroupPool>& pools, const std::vector<PoolInfo>& infos) {
  std::vector<NamedPool> named;
  for (const GroupPool& pool : pools) named.push_back({&infos[pool.pool].name, pool});
  std::sort(named.begin(), named.end(), [](const NamedPool& a, const NamedPool& b) {
    return *a.name != *b.name ? *a.name < *b.name : a.pool.pool < b.pool.pool;
  });
  return named;
}

void make_masks(GroupInfo& group, const NamespaceInfo& ns) {
  group.every_page = group.trailing = group.optional_pools = 0;
  group.trailing_pages_max = 0;
  for (const GroupPool& entry : group.pools) {
    const PoolInfo& pool = ns.pools[entry.pool];
    if (pool.size == PoolInfo::Size::none) continue;
    const std::uint64_t bit = std::uint64_t{1} << entry.pool;
    if (entry.optional) {
      group.optional_pools |= bit;
    } else if (pool.policy.is_trailing()) {
      group.trailing |= bit;
      group.trailing_pages_max = std::max(group.trailing_pages_max, pool.policy.trailing_pages);
    } else {
      group.every_page |= bit;
    }
  }
}

}  // namespace

RegisterAnswer Catalog::ask(const NamespaceAsk& ask, std::vector<CatalogUpdate>& updates) const {
  RegisterAnswer answer;
  if (ask.text.empty() || ask.text.size() > kMaxTextBytes) {
    answer.error = {Reason::bad_argument, "the text of a namespace has " + number(ask.text.size()) + " bytes; 1 to " +
                                              number(kMaxTextBytes) + " are allowed"};
    return answer;
  }
  for (const Place& place : places_) {
    if (place.id == kNoNamespace || place.retired || place.info.text != ask.text) continue;
    answer.ns = place.id;
    for (const PoolInfo& pool : place.info.pools)
      answer.known.push_back({static_cast<PoolId>(answer.known.size()), pool.name, pool.shards, pool.object_bytes});
    return answer;
  }
  if (ask.find_only) {
    answer.error = {Reason::unknown_namespace, "namespace '" + ask.text.substr(0, kMaxNameBytes) + "' is not registered"};
    return answer;
  }
  if (places_.size() >= max_namespaces_ && free_places_.empty()) {
    answer.error = {Reason::too_many, "namespace '" + ask.text.substr(0, kMaxNameBytes) + "' is one too many; " +
                                          number(max_namespaces_) + " are allowed at a time, and all are in use"};
    return answer;
  }
  // New places first, then those that were given back.
  const bool grow = places_.size() < max_namespaces_;
  const std::uint32_t place = grow ? static_cast<std::uint32_t>(places_.size()) : free_places_.front();
  answer.ns = static_cast<NamespaceId>((grow ? 0 : places_[place].turn) * kMaxNamespaces + place);
  CatalogUpdate update;
  update.kind = CatalogUpdate::Kind::ns;
  update.ns = answer.ns;
  update.text = ask.text;
  updates.push_back(std::move(update));
  return answer;
}

RegisterAnswer Catalog::ask(const PoolAsk& ask, std::vector<CatalogUpdate>& updates) const {
  RegisterAnswer answer;
  answer.ns = ask.ns;
  const NamespaceInfo* ns = find_namespace(ask.ns);
  if (!accepts(ask.ns)) {
    answer.error = unknown_namespace(ask.ns, namespaces());
    return answer;
  }
  if ((answer.error = name_error("pool", ask.pool.name))) return answer;
  const std::string what = pool_text(ask.pool.name, ask.pool.shards);
  if ((answer.error = shards_error("the shards of pool '" + ask.pool.name + "'", ask.pool.shards))) return answer;
  if ((answer.error = shards_error("the ranks of pool '" + ask.pool.name + "'", ask.ranks))) return answer;

  PoolInfo pool = ask.pool;
  pool.generation = 0;
  pool.demoted = false;
  pool.splittable = ask.ranks.count() > pool.shards.count();
  pool.object_bytes = 0;
  if (pool.size == PoolInfo::Size::known) {
    const storage::ShapeResult made = storage::SlotShape::create(pool.range_bytes);
    if (!made.shape) {
      answer.error = {Reason::wrong_size, what + ": " + made.error};
      return answer;
    }
    pool.object_bytes = made.shape->payload_bytes();
  } else if (pool.size == PoolInfo::Size::unknown || !pool.range_bytes.empty()) {
    answer.error = {Reason::bad_argument, what + " is asked with " + number(pool.range_bytes.size()) +
                                              " ranges, but not as known; allowed are ranges of known bytes, or a pool "
                                              "without bytes"};
    return answer;
  }

  const auto id = find_pool_id(*ns, pool.name, pool.shards);
  if (!id && ns->pools.size() == kMaxPoolsPerNamespace) {
    answer.error = {Reason::too_many, what + " is one too many for its namespace; " + number(kMaxPoolsPerNamespace) +
                                          " are allowed"};
    return answer;
  }
  answer.pool = id ? *id : static_cast<PoolId>(ns->pools.size());
  bool changed = true;
  if (id) {
    const PoolInfo& registered = ns->pools[*id];
    if ((answer.error = clash(registered, pool))) return answer;
    answer.generation = registered.generation;
    answer.demoted = registered.demoted;
    changed = registered.size == PoolInfo::Size::unknown || (pool.splittable && !registered.splittable);
    pool.generation = registered.generation;
    pool.demoted = registered.demoted;
    pool.splittable = pool.splittable || registered.splittable;
  }
  if (changed) {
    CatalogUpdate update;
    update.kind = CatalogUpdate::Kind::pool;
    update.ns = ask.ns;
    update.pool = answer.pool;
    update.generation = answer.generation;
    update.info = std::move(pool);
    updates.push_back(std::move(update));
  }
  return answer;
}

RegisterAnswer Catalog::ask(const GroupAsk& ask, std::vector<CatalogUpdate>& updates) const {
  RegisterAnswer answer;
  answer.ns = ask.ns;
  const NamespaceInfo* ns = find_namespace(ask.ns);
  if (!accepts(ask.ns)) {
    answer.error = unknown_namespace(ask.ns, namespaces());
    return answer;
  }
  if ((answer.error = name_error("page group", ask.name))) return answer;
  const std::string what = "page group '" + ask.name + "'";
  if (ask.pools.empty() || ask.pools.size() > kMaxPoolsPerNamespace) {
    answer.error = {ask.pools.empty() ? Reason::bad_argument : Reason::too_many,
                    what + " has " + number(ask.pools.size()) + " pools; 1 to " + number(kMaxPoolsPerNamespace) +
                        " are allowed"};
    return answer;
  }

  // Nothing is handed out before the whole group is found right.
  NamespaceInfo draft = *ns;
  std::vector<CatalogUpdate> made;
  const auto find_or_make = [&](const GroupPoolAsk& wanted, const ShardCounts& shards) -> std::optional<PoolId> {
    if (const auto id = find_pool_id(draft, wanted.name, shards)) return id;
    if (draft.pools.size() == kMaxPoolsPerNamespace) return std::nullopt;
    PoolInfo pool;
    pool.name = wanted.name;
    pool.shards = shards;
    pool.policy = wanted.policy;
    CatalogUpdate update;
    update.kind = CatalogUpdate::Kind::pool;
    update.ns = ask.ns;
    update.pool = static_cast<PoolId>(draft.pools.size());
    update.info = pool;
    made.push_back(std::move(update));
    draft.pools.push_back(std::move(pool));
    return static_cast<PoolId>(draft.pools.size() - 1);
  };
  GroupInfo group;
  group.ns = ask.ns;
  group.name = ask.name;
  for (const GroupPoolAsk& wanted : ask.pools) {
    if ((answer.error = name_error("pool", wanted.name))) return answer;
    if ((answer.error = shards_error("the shards of pool '" + wanted.name + "'", wanted.shards))) return answer;
    if ((answer.error = shards_error("the ranks of pool '" + wanted.name + "'", wanted.ranks))) return answer;
    auto id = find_or_make(wanted, wanted.shards);
    if (id && draft.pools[*id].demoted && wanted.ranks != wanted.shards) id = find_or_make(wanted, wanted.ranks);
    if (!id) {
      answer.error = {Reason::too_many, pool_text(wanted.name, wanted.shards) + " of " + what +
                                            " is one too many for its namespace; " + number(kMaxPoolsPerNamespace) +
                                            " are allowed"};
      return answer;
    }
    PoolInfo asked;
    asked.name = wanted.name;
    asked.shards = draft.pools[*id].shards;
    asked.policy = wanted.policy;
    if ((answer.error = clash(draft.pools[*id], asked))) return answer;
    for (const GroupPool& other : group.pools) {
      if (other.pool == *id) {
        answer.error = {Reason::bad_argument,
                        pool_text(wanted.name, asked.shards) + " stands twice in " + what + "; once is allowed"};
        return answer;
      }
    }
    group.pools.push_back({*id, wanted.optional});
  }
  answer.pools = group.pools;

  // A name may stand for several groups only where a pool of it has been demoted: engines with other numbers of ranks
  // then have other successors. The old group stays, for those that still ask by it.
  const auto mine = by_name(group.pools, draft.pools);
  bool taken = false;
  for (const GroupId id : groups_of(ask.ns)) {
    const GroupInfo& other = groups_.at(id);
    if (other.name != ask.name) continue;
    const auto theirs = by_name(other.pools, draft.pools);
    bool same = mine.size() == theirs.size();
    bool related = same;
    for (std::size_t i = 0; i < mine.size() && related; ++i) {
      const bool alike = *mine[i].name == *theirs[i].name && mine[i].pool.optional == theirs[i].pool.optional;
      const bool equal = alike && mine[i].pool.pool == theirs[i].pool.pool;
      same = same && equal;
      related = equal || (alike && name_was_demoted(*ns, *mine[i].name));
    }
    if (same && related) {
      answer.group = id;
      return answer;
    }
    taken = taken || !related;
  }
  if (taken) {
    answer.error = {Reason::bad_argument, what + " is asked with " + number(ask.pools.size()) +
                                              " pools that are not those it is registered with; only the registered "
                                              "content, or another name, is allowed"};
    answer.pools.clear();
    return answer;
  }
  if (groups_of(ask.ns).size() == kMaxGroupsPerNamespace) {
    answer.error = {Reason::too_many,
                    what + " is one too many for its namespace; " + number(kMaxGroupsPerNamespace) + " are allowed"};
    answer.pools.clear();
    return answer;
  }
  answer.group = next_group_;
  CatalogUpdate update;
  update.kind = CatalogUpdate::Kind::group;
  update.ns = ask.ns;
  update.group = answer.group;
  update.group_info = std::move(group);
  made.push_back(std::move(update));
  for (CatalogUpdate& each : made) updates.push_back(std::move(each));
  return answer;
}

void Catalog::demote(NamespaceId ns, PoolId pool, std::vector<CatalogUpdate>& updates) const {
  const PoolInfo* info = find_pool(ns, pool);
  if (info == nullptr || info->demoted || !info->splittable) return;
  CatalogUpdate update;
  update.kind = CatalogUpdate::Kind::demote;
  update.ns = ns;
  update.pool = pool;
  update.generation = info->generation + 1;
  updates.push_back(std::move(update));
}

void Catalog::add_namespace(const CatalogUpdate& update) {
  if (update.ns == kNoNamespace || turn_of(update.ns) >= kNamespaceTurns || !is_free(update.ns)) return;  // told before
  const std::uint32_t at = place_of(update.ns);
  while (places_.size() <= at) {
    free_places_.push_back(static_cast<std::uint32_t>(places_.size()));
    places_.emplace_back();
  }
  std::erase(free_places_, at);
  Place& place = places_[at];
  place.id = update.ns;
  place.turn = turn_of(update.ns);
  place.info.text = update.text;
  place.shapes.reserve(kMaxPoolsPerNamespace);  // shape() promises that nothing moves
}

void Catalog::free_namespace(NamespaceId ns) {
  Place& place = places_[place_of(ns)];
  for (const GroupId group : place.groups) groups_.erase(group);
  const std::uint32_t next = keep_turn_ ? turn_of(ns) : (turn_of(ns) + 1) % kNamespaceTurns;
  retired_ -= place.retired ? 1 : 0;
  place = Place{};
  place.turn = next;
  free_places_.push_back(place_of(ns));
}

void Catalog::apply(const CatalogUpdate& update) {
  if (update.kind == CatalogUpdate::Kind::ns) {
    add_namespace(update);
    return;
  }
  if (find_place(update.ns) == nullptr) return;
  Place& place = places_[place_of(update.ns)];
  NamespaceInfo& ns = place.info;
  switch (update.kind) {
    case CatalogUpdate::Kind::ns:
      return;
    case CatalogUpdate::Kind::pool: {
      if (update.pool > ns.pools.size() || update.pool >= kMaxPoolsPerNamespace) return;
      if (update.pool == ns.pools.size()) {
        ns.pools.emplace_back();
        place.shapes.emplace_back();
      }
      ns.pools[update.pool] = update.info;
      // Made once: the registered bytes never change, and others hold pointers to it.
      if (update.info.size == PoolInfo::Size::known && !place.shapes[update.pool])
        place.shapes[update.pool] = storage::SlotShape::create(update.info.range_bytes).shape;
      for (const GroupId id : place.groups) make_masks(groups_.at(id), ns);
      return;
    }
    case CatalogUpdate::Kind::group: {
      if (update.group < next_group_ || update.group == kNoGroup) return;
      for (const GroupPool& pool : update.group_info.pools)
        if (pool.pool >= ns.pools.size()) return;
      next_group_ = update.group + 1;
      place.groups.push_back(update.group);
      make_masks(groups_.emplace(update.group, update.group_info).first->second, ns);
      return;
    }
    case CatalogUpdate::Kind::demote:
      if (update.pool >= ns.pools.size()) return;
      ns.pools[update.pool].generation = update.generation;
      ns.pools[update.pool].demoted = true;
      return;
    case CatalogUpdate::Kind::retire:
      retired_ += place.retired ? 0 : 1;
      place.retired = true;
      return;
    case CatalogUpdate::Kind::free:
      free_namespace(update.ns);
      return;
  }
}

std::vector<CatalogUpdate> Catalog::history() const {
  std::vector<CatalogUpdate> updates;
  for (const Place& place : places_) {
    if (place.id == kNoNamespace) continue;
    CatalogUpdate update;
    update.kind = CatalogUpdate::Kind::ns;
    update.ns = place.id;
    update.text = place.info.text;
    updates.push_back(update);
    update.kind = CatalogUpdate::Kind::pool;
    update.text.clear();
    for (std::size_t pool = 0; pool < place.info.pools.size(); ++pool) {
      update.pool = static_cast<PoolId>(pool);
      update.info = place.info.pools[pool];
      update.generation = update.info.generation;
      updates.push_back(update);
    }
  }
  for (const auto& [id, group] : groups_) {
    CatalogUpdate update;
    update.kind = CatalogUpdate::Kind::group;
    update.ns = group.ns;
    update.group = id;
    update.group_info = group;
    updates.push_back(std::move(update));
  }
  return updates;
}

const Catalog::Place* Catalog::find_place(NamespaceId ns) const {
  const std::uint32_t at = place_of(ns);
  return ns != kNoNamespace && at < places_.size() && places_[at].id == ns ? &places_[at] : nullptr;
}
bool Catalog::accepts(NamespaceId ns) const {
  const Place* const place = find_place(ns);
  return place != nullptr && !place->retired;
}
std::vector<NamespaceId> Catalog::retired() const {
  std::vector<NamespaceId> found;
  if (retired_ == 0) return found;
  for (const Place& place : places_)
    if (place.retired) found.push_back(place.id);
  return found;
}
bool Catalog::is_free(NamespaceId ns) const { return at_place(place_of(ns)) == kNoNamespace; }
NamespaceId Catalog::at_place(std::uint32_t place) const { return place < places_.size() ? places_[place].id : kNoNamespace; }
const NamespaceInfo* Catalog::find_namespace(NamespaceId ns) const {
  const Place* const place = find_place(ns);
  return place != nullptr ? &place->info : nullptr;
}
const PoolInfo* Catalog::find_pool(NamespaceId ns, PoolId pool) const {
  const NamespaceInfo* info = find_namespace(ns);
  return info != nullptr && pool < info->pools.size() ? &info->pools[pool] : nullptr;
}
const GroupInfo* Catalog::find_group(GroupId group) const {
  const auto at = groups_.find(group);
  return at != groups_.end() ? &at->second : nullptr;
}
const storage::SlotShape* Catalog::shape(NamespaceId ns, PoolId pool) const {
  if (find_pool(ns, pool) == nullptr) return nullptr;
  const auto& shape = places_[place_of(ns)].shapes[pool];
  return shape ? &*shape : nullptr;
}
const std::vector<GroupId>& Catalog::groups_of(NamespaceId ns) const {
  static const std::vector<GroupId> none;
  const Place* const place = find_place(ns);
  return place != nullptr ? place->groups : none;
}

}  // namespace kvonce::protocol
