// SPDX-License-Identifier: Apache-2.0
//
// Memory for an index under test: exactly as long as asked for, so that AddressSanitizer sees the first byte too many.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>

#include "protocol/page_index.hpp"
#include "protocol/page_index_layout.hpp"

namespace kvonce::protocol::test {

class Region {
 public:
  explicit Region(std::uint64_t bytes)
      : bytes_(bytes), data_(static_cast<std::byte*>(std::aligned_alloc(64, static_cast<std::size_t>(bytes)))) {
    std::memset(data_.get(), 0, static_cast<std::size_t>(bytes));
  }
  std::byte* data() const { return data_.get(); }
  std::uint64_t size() const { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::uint64_t bytes_;
  std::unique_ptr<std::byte, Free> data_;
};

struct Fixture {
  explicit Fixture(const IndexLimits& limits)
      : region(PageIndex::region_bytes(limits)), index(region.data(), limits, 77), sections(layout::Sections::of(limits)) {}

  template <class T>
  T* at(std::uint64_t offset) {
    return reinterpret_cast<T*>(region.data() + offset);
  }
  layout::Hot& hot(RecordId record) { return at<layout::Hot>(sections.hot)[record]; }
  layout::Member& member(MemberId id) { return at<layout::Member>(sections.members)[id]; }

  Region region;
  PageIndex index;
  layout::Sections sections;
};

inline std::uint64_t scramble(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ x >> 27) * 0x94d049bb133111ebULL;
  return x ^ x >> 31;
}
inline PageHash page_of(std::uint64_t number) {
  PageHash page;
  for (unsigned i = 0; i < 4; ++i) page.words[i] = scramble(number * 4 + i);
  return page;
}

/// A slot of 1 to 16 extents that follows from a seed.
inline storage::Slot slot_from(std::uint64_t seed, std::uint32_t max_extents = storage::kMaxExtents) {
  storage::Slot slot;
  slot.count = static_cast<std::uint32_t>(scramble(seed) % max_extents) + 1;
  for (std::uint32_t i = 0; i < slot.count; ++i) {
    const std::uint64_t x = scramble(seed ^ (std::uint64_t{i} + 1) << 56);
    slot.extents[i] = {(x & layout::kMaxOffsetGranules) * storage::kGranuleBytes,
                       (x >> layout::kOffsetBits) * storage::kGranuleBytes};
  }
  return slot;
}
inline bool same(const storage::Slot& a, const storage::Slot& b) {
  return a.count == b.count && std::equal(a.view().begin(), a.view().end(), b.view().begin());
}

}  // namespace kvonce::protocol::test
