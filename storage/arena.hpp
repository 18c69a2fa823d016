// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace kvonce::storage {

// Where an arena's pages come from.
enum class Backing {
  anonymous,  // private memory of this process, gone with it
};

enum class HugePages {
  madvise,  // ask for huge pages; without any in the kernel, small ones are used
  off,
};

struct ArenaOptions {
  std::uint64_t bytes = 0;  // rounded up to Arena::kAlignment
  Backing backing = Backing::anonymous;
  HugePages huge_pages = HugePages::madvise;
  bool populate = false;  // take all memory now, so that a lack of it shows here
};

struct ArenaResult;

// The memory of a store, mapped as long as this object lives. Not inherited by forked children.
class Arena {
 public:
  // Alignment of the base address and unit of the size.
  static constexpr std::uint64_t kAlignment = std::uint64_t{2} << 20;

  static ArenaResult create(const ArenaOptions& options);

  Arena(Arena&& other) noexcept
      : base_(std::exchange(other.base_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Arena& operator=(Arena&& other) noexcept;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena();

  std::byte* base() const { return base_; }
  std::uint64_t bytes() const { return bytes_; }

  // Takes the memory behind [offset, offset + bytes) without changing what it holds; others may
  // read and write it meanwhile. The reason if it cannot be had; pages before may be taken then.
  std::optional<std::string> populate(std::uint64_t offset, std::uint64_t bytes);

 private:
  Arena(std::byte* base, std::uint64_t bytes) : base_(base), bytes_(bytes) {}

  std::byte* base_;
  std::uint64_t bytes_;
};

// The arena, or the reason why there is none.
struct ArenaResult {
  std::optional<Arena> arena;
  std::string error;
};

}  // namespace kvonce::storage
