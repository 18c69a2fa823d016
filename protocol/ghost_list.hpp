// SPDX-License-Identifier: Apache-2.0
//
// Remembers the pages evicted last, so that a lookup can say `evicted` instead of `absent`. Holds fingerprints (mix_page), not
// hashes: two pages share one with probability 2^-64, which costs a wrong reason, nothing else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvonce::protocol {

class GhostList {
 public:
  static constexpr std::uint32_t kDefaultCapacity = 65'536;
  /// Remembers what the last `capacity` calls of add() named (0: nothing), at most 2^30. Memory: 16 to 24 bytes each.
  explicit GhostList(std::uint32_t capacity = kDefaultCapacity);

  /// A page that is remembered already becomes the newest.
  void add(std::uint64_t fingerprint);
  bool contains(std::uint64_t fingerprint) const;
  /// The page is stored again. False when it was not remembered.
  bool erase(std::uint64_t fingerprint);

  /// Calls f for each fingerprint, oldest first.
  template <class F>
  void for_each(F&& f) const {
    for (std::size_t i = 0; i < ring_.size(); ++i) {
      const std::size_t at = (next_ + i) % ring_.size();
      if (table_[find(ring_[at])] == at) f(ring_[at]);
    }
  }

  std::uint32_t size() const noexcept { return size_; }
  std::uint32_t capacity() const noexcept { return capacity_; }

 private:
  std::size_t home(std::uint64_t fingerprint) const noexcept { return static_cast<std::size_t>(fingerprint) & mask_; }
  std::size_t find(std::uint64_t fingerprint) const noexcept;  // its table entry, or the empty one that ends the search
  void remove(std::size_t entry) noexcept;

  std::uint32_t capacity_;
  std::vector<std::uint64_t> ring_;   // fingerprints in the order of add(); gone where the table does not point back
  std::vector<std::uint32_t> table_;  // places in the ring, by fingerprint; at most half full, linear probing
  std::size_t mask_ = 0;
  std::uint32_t next_ = 0;  // place of the next add()
  std::uint32_t size_ = 0;
};

}  // namespace kvonce::protocol
