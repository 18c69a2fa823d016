// SPDX-License-Identifier: Apache-2.0
//
// Ids and the canonical key. One function builds a key, for put, lookup, load and remove alike; keys are never hashed
// again, and no writer's rank is in them unless the shard says so.
#pragma once

#include <cstdint>

#include <kvonce/types.hpp>

namespace kvonce::protocol {

/// Names a namespace, given out by the catalog of one store: its place among kMaxNamespaces in the low bits, above them how
/// often the place was given to another one. So a number comes again only after 63 other owners of its place.
using NamespaceId = std::uint16_t;
/// Ordinal of a pool within its namespace. Limit: kMaxPoolsPerNamespace.
using PoolId = std::uint16_t;
/// How often the pool has been demoted. A key of an old generation is answered `redirect`.
using Generation = std::uint32_t;
/// Store-wide number of one grant or publish; never restarts.
using Epoch = std::uint64_t;
/// One life of a store.
using Incarnation = std::uint64_t;
/// Digest of an engine's id text.
using EngineId = std::uint64_t;
/// One rank and page group of one client, attached to the store: 64 random bits, chosen by the client.
using SenderId = std::uint64_t;
/// One process connected to the store: 64 random bits, chosen by it.
using ClientId = std::uint64_t;
/// One page group, registered with the store.
using GroupId = std::uint32_t;

inline constexpr std::uint32_t kMaxNamespaces = 1024;  // at a time
inline constexpr std::uint32_t kNamespaceTurns = 63;   // owners of one place before a number comes again
inline constexpr NamespaceId kNoNamespace = 0xffff;    // never given out
inline constexpr std::uint32_t kMaxPoolsPerNamespace = 64;
inline constexpr std::uint32_t kMaxShardsPerPool = 4096;

constexpr std::uint32_t place_of(NamespaceId ns) noexcept { return ns % kMaxNamespaces; }
constexpr std::uint32_t turn_of(NamespaceId ns) noexcept { return ns / kMaxNamespaces; }
static_assert(turn_of(kNoNamespace) == kNamespaceTurns);

struct CanonicalKey {
  PageHash page;
  NamespaceId ns = 0;
  PoolId pool = 0;
  std::uint32_t shard = 0;
  Generation generation = 0;
  friend bool operator==(const CanonicalKey&, const CanonicalKey&) = default;
};

/// What a registration tells about a pool, as far as keys are concerned.
struct PoolKeying {
  NamespaceId ns = 0;
  PoolId pool = 0;
  Generation generation = 0;
  std::uint32_t shard = 0;  // this rank's shard, flat
};

/// The one place where a canonical key is made.
constexpr CanonicalKey make_key(const PoolKeying& pool, const PageHash& page) noexcept {
  return CanonicalKey{page, pool.ns, pool.pool, pool.shard, pool.generation};
}

/// 64 well-mixed bits of (namespace, page): the index's hash, placement and the ghost list all start from it.
constexpr std::uint64_t mix_page(NamespaceId ns, const PageHash& page) noexcept {
  std::uint64_t x = page.words[0] ^ (page.words[1] * 0x9e3779b97f4a7c15ULL) ^ (page.words[2] << 1) ^
                    (page.words[3] * 0xc2b2ae3d27d4eb4fULL) ^ (std::uint64_t{ns} << 48);
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93ULL;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93ULL;
  x ^= x >> 32;
  return x;
}

}  // namespace kvonce::protocol
