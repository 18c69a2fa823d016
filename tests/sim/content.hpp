// SPDX-License-Identifier: Apache-2.0
//
// What the bytes of an object are: a 64-bit seed decides all of them, so that they are made and compared without being
// kept anywhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include <kvonce/types.hpp>

#include "storage/slot_shape.hpp"

namespace kvonce::sim {

/// Fills bytes [offset, offset + bytes) of the object.
void make_content(std::uint64_t seed, std::uint64_t offset, std::byte* out, std::uint64_t bytes);
bool is_content(std::uint64_t seed, std::uint64_t offset, const std::byte* data, std::uint64_t bytes);

/// The key of an object in the simulator's own words, apart from the ids that a catalog gives out.
struct ContentKey {
  std::uint32_t ns = 0;
  std::uint32_t pool = 0;
  std::uint32_t shards = 1;
  std::uint32_t shard = 0;
  PageHash page;
  friend bool operator==(const ContentKey&, const ContentKey&) = default;
};
std::uint64_t hash_of(const ContentKey& key);

/// All that was ever announced, by key.
class Announced {
 public:
  void add(const ContentKey& key, std::uint64_t content_seed);
  /// Null: nothing.
  const std::vector<std::uint64_t>* find(const ContentKey& key) const;

 private:
  std::unordered_map<std::uint64_t, std::vector<std::uint64_t>> seeds_;
};

/// An object's bytes lie in these pieces of the arena.
bool slot_is_content(const storage::SlotShape::Pieces& pieces, const std::byte* arena, std::uint64_t seed);

}  // namespace kvonce::sim
