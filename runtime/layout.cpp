// SPDX-License-Identifier: Apache-2.0
#include "runtime/layout.hpp"

#include <algorithm>

#include "protocol/store_core.hpp"
#include "storage/slot_shape.hpp"

namespace kvonce::runtime {

namespace {

constexpr std::uint64_t kHugePage = 2ULL << 20;
constexpr std::uint64_t kSmallPage = 4096;
// Shares below this would lose too much of themselves to huge-page borders.
constexpr std::uint64_t kHugeShare = 64ULL << 20;
constexpr std::uint64_t kBytesPerPage = 16ULL << 10;
constexpr std::uint64_t kLeastPages = 65'536;
constexpr std::uint64_t kMembersPerPage = 4;
// What one page takes of the index, members included, rounded up.
constexpr std::uint64_t kIndexBytesPerPage = 200;

constexpr std::uint64_t down(std::uint64_t bytes, std::uint64_t unit) { return bytes / unit * unit; }
constexpr std::uint64_t up(std::uint64_t bytes, std::uint64_t unit) { return down(bytes + unit - 1, unit); }

}  // namespace

Layout plan_layout(const RuntimeConfig& config, std::uint64_t arena_bytes) {
  Layout layout;
  const std::uint64_t unit = arena_bytes / config.partitions >= kHugeShare ? kHugePage : kSmallPage;
  const std::uint64_t share = down(arena_bytes / config.partitions, unit);
  std::uint64_t pages = (config.index_pages + config.partitions - 1) / config.partitions;
  if (config.index_pages == 0) {
    const std::uint64_t wanted = std::max(arena_bytes / kBytesPerPage, kLeastPages) / config.partitions;
    pages = std::clamp(wanted, std::uint64_t{1024}, std::max<std::uint64_t>(share / 8 / kIndexBytesPerPage, 1024));
  }
  constexpr std::uint64_t kMost = 0x7fffffffU;
  PartitionLayout part;
  part.index.max_pages = static_cast<std::uint32_t>(std::min(pages, kMost));
  part.index.max_members = static_cast<std::uint32_t>(std::min(pages * kMembersPerPage, kMost));
  // Only objects above kContiguousBytes can have several extents.
  part.index.max_extent_blocks =
      static_cast<std::uint32_t>(std::min(share / storage::kContiguousBytes + 16, std::uint64_t{part.index.max_members}));
  part.index_bytes = up(protocol::StoreCore::index_bytes(part.index), unit);
  if (part.index_bytes + kSmallPage > share) {
    layout.error = {Reason::bad_argument, "arena_bytes is " + std::to_string(config.arena_bytes) + ": an index of " +
                                              std::to_string(pages) + " pages takes " + std::to_string(part.index_bytes) +
                                              " of the " + std::to_string(share) + " bytes" +
                                              (config.partitions == 1 ? std::string() : " of each of " + std::to_string(config.partitions) + " partitions") +
                                              " and leaves no room for slots; raise arena_bytes or lower index_pages"};
    return layout;
  }
  part.slots_bytes = share - part.index_bytes;
  for (std::uint32_t p = 0; p < config.partitions; ++p) {
    part.index_offset = p * share;
    part.slots_offset = part.index_offset + part.index_bytes;
    layout.partitions.push_back(part);
  }
  return layout;
}

}  // namespace kvonce::runtime
