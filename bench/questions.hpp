// SPDX-License-Identifier: Apache-2.0
//
// Which pages a rank asks for when it asks at random: decided by a seed, so that whoever knows it can say how many different ones
// were asked.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

namespace kvonce::bench {

class Questions {
 public:
  Questions(std::uint64_t seed, std::uint64_t pages) : dice_(seed), pages_(pages) {}
  /// Number of a page, below `pages`.
  std::uint64_t next() { return dice_() % pages_; }

 private:
  std::mt19937_64 dice_;
  std::uint64_t pages_;
};

/// Different pages among `operations` questions of each seed.
inline std::uint64_t distinct_questions(const std::vector<std::uint64_t>& seeds, std::uint64_t operations, std::uint64_t pages) {
  std::vector<bool> asked(pages);
  std::uint64_t distinct = 0;
  for (const std::uint64_t seed : seeds) {
    Questions questions(seed, pages);
    for (std::uint64_t i = 0; i < operations && distinct < pages; ++i) {
      const std::uint64_t page = questions.next();
      distinct += asked[page] ? 0 : 1;
      asked[page] = true;
    }
  }
  return distinct;
}

}  // namespace kvonce::bench
