// SPDX-License-Identifier: Apache-2.0
//
// What the bytes of an object must be, worked out from page, pool and shard alone, so that a loaded object can be checked without
// keeping a copy. Word i of an object is base + i * step: as quick as a copy, and bytes of another object, or at another place of
// the same one, differ.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <kvonce/types.hpp>

namespace kvonce::apps {

inline std::uint64_t mix_bits(std::uint64_t value) noexcept {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}

struct Content {
  std::uint64_t base = 0;
  std::uint64_t step = 1;  // odd

  static Content of(std::uint64_t seed, std::uint64_t page, std::uint64_t pool, std::uint64_t shard) noexcept {
    const std::uint64_t base = mix_bits(mix_bits(seed + 0x9e3779b97f4a7c15ULL * (page + 1)) + (pool << 32) + shard);
    return {base, mix_bits(base + 0x9e3779b97f4a7c15ULL) | 1};
  }
};

inline void write_content(std::byte* out, std::size_t bytes, const Content& content) noexcept {
  std::uint64_t word = content.base;
  std::size_t at = 0;
  for (; at + sizeof word <= bytes; at += sizeof word, word += content.step)
    std::memcpy(out + at, &word, sizeof word);
  std::memcpy(out + at, &word, bytes - at);
}

/// Number of bytes that are not what they must be.
inline std::uint64_t count_wrong_bytes(const std::byte* data, std::size_t bytes, const Content& content) noexcept {
  std::uint64_t word = content.base;
  std::uint64_t wrong = 0;
  for (std::size_t at = 0; at < bytes; at += sizeof word, word += content.step) {
    const std::size_t size = bytes - at < sizeof word ? bytes - at : sizeof word;
    std::uint64_t found = word;
    std::memcpy(&found, data + at, size);
    for (std::uint64_t difference = found ^ word; difference != 0; difference >>= 8)
      wrong += (difference & 0xff) != 0 ? 1 : 0;
  }
  return wrong;
}

/// The hash that an engine would give the page: trace ids are chained already.
inline PageHash page_hash(std::uint64_t seed, std::uint64_t page) noexcept {
  PageHash hash;
  std::uint64_t state = mix_bits(seed ^ 0x6b766f6e63650000ULL) + page;
  for (std::uint64_t& word : hash.words)
    word = state = mix_bits(state + 0x9e3779b97f4a7c15ULL);
  return hash;
}

}  // namespace kvonce::apps
