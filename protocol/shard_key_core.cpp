// SPDX-License-Identifier: Apache-2.0
#include "protocol/shard_key_core.hpp"

#include <xxhash.h>

#include <algorithm>

namespace kvonce::protocol {
namespace {

// A rank's pool numbers count up for its life; a forged number must not make a huge table.
constexpr std::uint32_t kMaxPoolNumbers = 65536;
constexpr NamespaceId kUnset = kNoNamespace;  // a pool number in a gap that nobody has registered

PutItem keyed(const ReadyItem& item, std::uint32_t page, const PoolKeying& pool) {
  return PutItem{item.item, page, pool.pool, pool.shard, pool.generation, item.bytes};
}

}  // namespace

void ShardKeyCore::set_pool(SenderId sender, std::uint32_t pool, const PoolKeying& keying) {
  if (pool >= kMaxPoolNumbers) return;
  auto& pools = pools_[sender];
  if (pool >= pools.size()) pools.resize(pool + 1, PoolKeying{kUnset, 0, 0, 0});
  pools[pool] = keying;
}

void ShardKeyCore::forget_sender(SenderId sender) { pools_.erase(sender); }

const PoolKeying* ShardKeyCore::keying(SenderId sender, std::uint32_t pool) const {
  const auto found = pools_.find(sender);
  if (found == pools_.end() || pool >= found->second.size() || found->second[pool].ns == kUnset) return nullptr;
  return &found->second[pool];
}

void ShardKeyCore::canonicalize(PageReady&& ready, std::vector<std::pair<std::uint32_t, PutBatch>>& out,
                                std::vector<ItemVerdict>& rejected) const {
  const auto found = pools_.find(ready.sender);
  const auto pool_of = [&](const ReadyItem& item) -> const PoolKeying* {
    if (found == pools_.end() || item.pool >= found->second.size()) return nullptr;
    const PoolKeying& pool = found->second[item.pool];
    return pool.ns == kUnset ? nullptr : &pool;
  };
  const auto head = [&ready](NamespaceId ns) {
    PutBatch batch;
    batch.sender = ready.sender;
    batch.batch = ready.batch;
    batch.ns = ns;
    batch.level = ready.level;
    batch.time_left = ready.time_left;
    return batch;
  };

  std::vector<NamespaceId> spaces;  // a sender's pools belong to one page group, hence nearly always one namespace
  std::size_t good = 0;
  for (const ReadyItem& item : ready.items) {
    const PoolKeying* pool = pool_of(item);
    if (pool == nullptr || item.page >= ready.pages.size()) {
      rejected.push_back({ready.batch, item.item, Verdict::rejected,
                          pool == nullptr ? Reason::unknown_pool : Reason::bad_argument, 0});
      continue;
    }
    if (spaces.empty() || (spaces.back() != pool->ns && std::find(spaces.begin(), spaces.end(), pool->ns) == spaces.end()))
      spaces.push_back(pool->ns);
    ready.items[good++] = item;
  }
  ready.items.resize(good);
  if (good == 0) return;

  if (placement_.partitions() == 1 && spaces.size() == 1) {
    PutBatch batch = head(spaces.front());
    batch.has_parent = ready.has_parent;
    batch.parent = ready.parent;
    batch.items.reserve(good);
    for (const ReadyItem& item : ready.items) batch.items.push_back(keyed(item, item.page, *pool_of(item)));
    batch.pages = std::move(ready.pages);
    out.emplace_back(0, std::move(batch));
    return;
  }

  const std::uint32_t partitions = placement_.partitions();
  std::vector<std::uint32_t> owner(ready.pages.size());
  std::vector<std::uint32_t> place(ready.pages.size());  // of the page in its partition's list
  for (const NamespaceId ns : spaces) {
    std::vector<PutBatch> parts(partitions, head(ns));
    if (ready.has_parent) {
      PutBatch& part = parts[placement_.owner(ns, ready.parent)];
      part.has_parent = true;
      part.parent = ready.parent;
    }
    for (std::size_t i = 0; i < ready.pages.size(); ++i) {
      owner[i] = placement_.owner(ns, ready.pages[i].hash);
      place[i] = static_cast<std::uint32_t>(parts[owner[i]].pages.size());
      parts[owner[i]].pages.push_back(ready.pages[i]);
    }
    for (std::size_t i = 0; i < ready.pages.size(); ++i) {
      PutBatch& part = parts[owner[i]];
      std::uint32_t& parent = part.pages[place[i]].parent;
      if (parent == kExternalParent) {
        if (!part.has_parent) parent = kNoParent;
      } else if (parent < ready.pages.size() && owner[parent] == owner[i]) {
        parent = place[parent];
      } else {
        parent = kNoParent;
      }
    }
    for (const ReadyItem& item : ready.items) {
      const PoolKeying& pool = *pool_of(item);
      if (pool.ns == ns) parts[owner[item.page]].items.push_back(keyed(item, place[item.page], pool));
    }
    for (std::uint32_t i = 0; i < partitions; ++i)
      if (!parts[i].items.empty()) out.emplace_back(i, std::move(parts[i]));
  }
}

Digest128 lookup_digest(GroupId group, const std::vector<PageHash>& pages) {
  const XXH128_hash_t hash = XXH3_128bits_withSeed(pages.data(), pages.size() * sizeof(PageHash), group);
  return {hash.high64, hash.low64};
}

Digest128 text_digest(std::string_view text) {
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return {hash.high64, hash.low64};
}

}  // namespace kvonce::protocol
