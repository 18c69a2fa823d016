// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace kvonce::apps {

/// Insertions, deletions and changes that make one of the other.
inline std::size_t word_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t changed = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, changed});
    }
  }
  return row[b.size()];
}

/// The one of `words` that was most likely meant, of equals the first; empty when none is near. Words without their dashes.
inline std::string nearest_word(std::string_view given, const std::vector<std::string>& words) {
  constexpr std::size_t kLongest = 64;
  given = given.substr(0, kLongest);
  std::string best;
  std::size_t least = std::max<std::size_t>(2, given.size() / 3) + 1;
  for (const std::string& word : words) {
    const std::size_t away = word_distance(given, word);
    if (away >= least) continue;
    least = away;
    best = word;
  }
  return best;
}

/// "; the nearest is --pages", or nothing.
inline std::string nearest_text(std::string_view dashes, const std::string& near) {
  return near.empty() ? std::string() : "; the nearest is " + std::string(dashes) + near;
}

}  // namespace kvonce::apps
