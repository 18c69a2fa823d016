// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/content.hpp"

#include <algorithm>
#include <cstring>

#include "tests/sim/random.hpp"

namespace kvonce::sim {
namespace {

std::uint64_t word_at(std::uint64_t seed, std::uint64_t index) {
  std::uint64_t x = seed + (index + 1) * 0x9e3779b97f4a7c15ULL;
  x ^= x >> 29;
  x *= 0xbf58476d1ce4e5b9ULL;
  return x ^ (x >> 32);
}

// Calls f(piece of at most 8 bytes, where it lies in the range) until it says false.
template <class F>
bool each_word(std::uint64_t seed, std::uint64_t offset, std::uint64_t bytes, F&& f) {
  std::uint64_t done = 0;
  while (done < bytes) {
    const std::uint64_t at = offset + done;
    const std::uint64_t skip = at % 8;
    const std::uint64_t count = std::min(8 - skip, bytes - done);
    const std::uint64_t word = word_at(seed, at / 8);
    if (!f(reinterpret_cast<const std::byte*>(&word) + skip, done, count)) return false;
    done += count;
  }
  return true;
}

}  // namespace

void make_content(std::uint64_t seed, std::uint64_t offset, std::byte* out, std::uint64_t bytes) {
  each_word(seed, offset, bytes, [&](const std::byte* word, std::uint64_t at, std::uint64_t count) {
    std::memcpy(out + at, word, count);
    return true;
  });
}

bool is_content(std::uint64_t seed, std::uint64_t offset, const std::byte* data, std::uint64_t bytes) {
  return each_word(seed, offset, bytes, [&](const std::byte* word, std::uint64_t at, std::uint64_t count) {
    return std::memcmp(data + at, word, count) == 0;
  });
}

std::uint64_t hash_of(const ContentKey& key) {
  std::uint64_t h = mix64(key.ns, key.pool);
  h = mix64(h, key.shards);
  h = mix64(h, key.shard);
  for (const std::uint64_t word : key.page.words) h = mix64(h, word);
  return h;
}

void Announced::add(const ContentKey& key, std::uint64_t content_seed) {
  auto& seeds = seeds_[hash_of(key)];
  if (std::find(seeds.begin(), seeds.end(), content_seed) == seeds.end()) seeds.push_back(content_seed);
}

const std::vector<std::uint64_t>* Announced::find(const ContentKey& key) const {
  const auto it = seeds_.find(hash_of(key));
  return it == seeds_.end() ? nullptr : &it->second;
}

bool slot_is_content(const storage::SlotShape::Pieces& pieces, const std::byte* arena, std::uint64_t seed) {
  for (const auto& piece : pieces.view()) {
    if (!is_content(seed, piece.payload_begin, arena + piece.arena_offset, piece.payload_end - piece.payload_begin))
      return false;
  }
  return true;
}

}  // namespace kvonce::sim
