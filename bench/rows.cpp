// SPDX-License-Identifier: Apache-2.0
#include "bench/rows.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>

namespace kvonce::bench {
namespace {

constexpr std::uint64_t kHugePage = 2ULL << 20;

constexpr std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}
constexpr std::uint64_t kStep = 0x9e3779b97f4a7c15ULL;

constexpr std::size_t kChunkWords = 512;
using Chunk = std::array<std::uint64_t, kChunkWords>;

// The `index`-th chunk of a page.
void make_chunk(Chunk& chunk, std::uint64_t seed, std::uint64_t page, std::uint64_t index) {
  const std::uint64_t begin = mixed(mixed(seed) + page * kStep) + index * kChunkWords * kStep;
  for (std::size_t i = 0; i < kChunkWords; ++i) chunk[i] = mixed(begin + i * kStep);
}

}  // namespace

RowMemory::RowMemory(std::uint64_t bytes) : bytes_((bytes + kHugePage - 1) / kHugePage * kHugePage) {
  void* const got = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (got == MAP_FAILED) return;
  base_ = static_cast<std::byte*>(got);
  // Refused advice leaves small pages: slower, still right.
  static_cast<void>(madvise(got, bytes_, MADV_HUGEPAGE));
  std::memset(got, 0, bytes_);
}

RowMemory::~RowMemory() {
  if (base_ != nullptr) munmap(base_, bytes_);
}

void fill_row(std::byte* row, std::uint64_t bytes, std::uint64_t seed, std::uint64_t page) {
  Chunk chunk;
  for (std::uint64_t at = 0, index = 0; at < bytes; at += sizeof(Chunk), ++index) {
    make_chunk(chunk, seed, page, index);
    std::memcpy(row + at, chunk.data(), std::min<std::uint64_t>(sizeof(Chunk), bytes - at));
  }
}

bool row_is(const std::byte* row, std::uint64_t bytes, std::uint64_t seed, std::uint64_t page) {
  Chunk chunk;
  for (std::uint64_t at = 0, index = 0; at < bytes; at += sizeof(Chunk), ++index) {
    make_chunk(chunk, seed, page, index);
    if (std::memcmp(row + at, chunk.data(), std::min<std::uint64_t>(sizeof(Chunk), bytes - at)) != 0) return false;
  }
  return true;
}

std::uint64_t fresh_seed() {
  std::random_device device;
  return std::uint64_t{device()} << 32U | device();
}

std::vector<PageHash> make_keys(std::uint64_t seed, std::uint64_t pages) {
  std::vector<PageHash> keys(pages);
  std::uint64_t state = mixed(seed ^ kStep);
  for (PageHash& key : keys)
    for (std::uint64_t& word : key.words) word = mixed(state += kStep);
  return keys;
}

}  // namespace kvonce::bench
