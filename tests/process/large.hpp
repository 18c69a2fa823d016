// SPDX-License-Identifier: Apache-2.0
//
// Objects of a mebibyte, whose copies can be held in the middle, and a store that is filled with them.
#pragma once

#include "tests/process/fleet.hpp"

namespace kvonce::process_test {

inline constexpr std::uint64_t kMiB = 1ULL << 20;
inline const std::string kLarge = "bytes=1048576 rows=16";
// In the middle of a slice.
inline const std::string kHeld = " hold_row=0 hold_at=600000";

inline std::string of(const Rank& rank, const std::string& what) { return what + std::to_string(rank.pid()); }

inline constexpr int kFirstFill = 100;
inline constexpr int kFills = 12;
/// Puts chains until the store has had to evict, several times over.
void fill_to_capacity(Rank& rank);

struct Found {
  std::uint64_t resident = 0;
  std::uint64_t right = 0;
};
/// What is there of chain 1 and of those chains, and how much of it has the right bytes. Wrong bytes that are handed over fail
/// the test.
Found look_at_everything(Rank& rank);

/// A writer that stands in the middle of its copy of page 0 of chain 1, which another process has stored in its place.
struct StoppedWriter {
  explicit StoppedWriter(const Folder& folder);
  /// It goes on with its copy; what became of its put is to be asked for.
  void wake();
  Rank victim;
  Rank other;
};

}  // namespace kvonce::process_test
