// SPDX-License-Identifier: Apache-2.0
//
// What leaf-first LRU makes of a trace, worked out without the store: the oracle that a replay is held against. It shares no code with the
// store's index on purpose.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "apps/workload/trace_source.hpp"

namespace kvonce::workload {

struct ReferenceSizes {
  std::uint64_t page_bytes = 0;        ///< all objects of one page, over all pools that keep every page; not 0
  std::uint64_t checkpoint_bytes = 0;  ///< all objects of one checkpoint over all ranks; 0: the model has none, and any page is a stop
  std::uint64_t capacity_bytes = 0;    ///< one budget for pages and checkpoints
};

struct ReferenceOutcome {
  std::uint64_t resident_pages = 0;  ///< found from the prompt's beginning
  std::uint64_t restored_pages = 0;  ///< of these, up to the stop that is restored from
};

struct ReferenceTotals {
  std::uint64_t requests = 0;
  std::uint64_t asked_tokens = 0;  ///< all input tokens, partial pages too
  std::uint64_t hit_tokens = 0;    ///< restored, in full pages
  std::uint64_t evicted_pages = 0;
  std::uint64_t evicted_checkpoints = 0;  ///< with their page or on their own
  double hit_share() const noexcept {
    return asked_tokens == 0 ? 0.0 : static_cast<double>(hit_tokens) / static_cast<double>(asked_tokens);
  }
};

/// The rules. Per request: find the resident pages from the root, R of them, and the deepest checkpoint at or before R (without checkpoints:
/// R itself). Store all pages; store checkpoints after page R, where that lies behind the one restored from, and after the last page. Touch
/// all pages of the prompt, deepest first, and of the checkpoints only those stored and the one restored from, each just after its page.
/// Then evict the least recently touched page or checkpoint until the budget is kept. A page takes its checkpoint along.
/// A page never goes before those that continue it, since every touch covers the whole chain; a request that does not fit keeps its beginning.
class ReferenceLru {
public:
  explicit ReferenceLru(const ReferenceSizes& sizes);

  ReferenceOutcome request(const TraceRequest& request);

  const ReferenceTotals& totals() const noexcept { return totals_; }
  std::uint64_t used_bytes() const noexcept { return used_bytes_; }
  bool has_page(std::uint64_t page) const;
  bool has_checkpoint(std::uint64_t page) const;

private:
  // Page i of the order of first sight is unit 2i, its checkpoint 2i + 1; unit 0 is the head of the recency ring.
  using Unit = std::uint32_t;
  static bool is_checkpoint(Unit unit) noexcept { return (unit & 1) != 0; }

  Unit unit_of(std::uint64_t page);
  void store(Unit unit);
  void touch(Unit unit);
  void drop(Unit unit);
  void evict_oldest();

  struct Links {
    Unit older = 0;
    Unit newer = 0;
    bool resident = false;
  };

  ReferenceSizes sizes_;
  ReferenceTotals totals_;
  std::uint64_t used_bytes_ = 0;
  std::unordered_map<std::uint64_t, Unit> units_;
  std::vector<Links> links_;
  std::vector<Unit> chain_;
};

}  // namespace kvonce::workload
