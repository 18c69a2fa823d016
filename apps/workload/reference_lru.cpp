// SPDX-License-Identifier: Apache-2.0
#include "apps/workload/reference_lru.hpp"

namespace kvonce::workload {

ReferenceLru::ReferenceLru(const ReferenceSizes& sizes) : sizes_(sizes), links_(2) {}

ReferenceOutcome ReferenceLru::request(const TraceRequest& request) {
  chain_.clear();
  for (const std::uint64_t page : request.pages) chain_.push_back(unit_of(page));
  const std::size_t count = chain_.size();

  std::size_t resident = 0;
  while (resident < count && links_[chain_[resident]].resident) ++resident;
  const bool has_checkpoints = sizes_.checkpoint_bytes != 0;
  std::size_t restored = resident;
  if (has_checkpoints) {
    while (restored > 0 && !links_[chain_[restored - 1] + 1].resident) --restored;
  }

  for (const Unit page : chain_) store(page);
  if (has_checkpoints) {
    if (resident > restored) store(chain_[resident - 1] + 1);
    if (count > 0) store(chain_[count - 1] + 1);
  }
  for (std::size_t depth = count; depth > 0; --depth) {
    touch(chain_[depth - 1]);
    // `resident` is either where a checkpoint was stored just now or the one restored from.
    if (has_checkpoints && (depth == count || depth == resident || depth == restored)) touch(chain_[depth - 1] + 1);
  }
  while (used_bytes_ > sizes_.capacity_bytes) evict_oldest();

  ++totals_.requests;
  totals_.asked_tokens += request.input_tokens;
  totals_.hit_tokens += restored * kTracePageTokens;
  return {resident, restored};
}

bool ReferenceLru::has_page(std::uint64_t page) const {
  const auto found = units_.find(page);
  return found != units_.end() && links_[found->second].resident;
}

bool ReferenceLru::has_checkpoint(std::uint64_t page) const {
  const auto found = units_.find(page);
  return found != units_.end() && links_[found->second + 1].resident;
}

ReferenceLru::Unit ReferenceLru::unit_of(std::uint64_t page) {
  const auto [entry, is_new] = units_.try_emplace(page, static_cast<Unit>(links_.size()));
  if (is_new) links_.resize(links_.size() + 2);
  return entry->second;
}

void ReferenceLru::store(Unit unit) {
  Links& links = links_[unit];
  if (links.resident) return;
  links.resident = true;
  links.older = links.newer = unit;
  used_bytes_ += is_checkpoint(unit) ? sizes_.checkpoint_bytes : sizes_.page_bytes;
}

void ReferenceLru::touch(Unit unit) {
  Links& links = links_[unit];
  links_[links.older].newer = links.newer;
  links_[links.newer].older = links.older;
  const Unit newest = links_[0].older;
  links.older = newest;
  links.newer = 0;
  links_[newest].newer = unit;
  links_[0].older = unit;
}

void ReferenceLru::drop(Unit unit) {
  Links& links = links_[unit];
  links_[links.older].newer = links.newer;
  links_[links.newer].older = links.older;
  links.resident = false;
  if (is_checkpoint(unit)) {
    used_bytes_ -= sizes_.checkpoint_bytes;
    ++totals_.evicted_checkpoints;
  } else {
    used_bytes_ -= sizes_.page_bytes;
    ++totals_.evicted_pages;
  }
}

void ReferenceLru::evict_oldest() {
  const Unit oldest = links_[0].newer;
  if (!is_checkpoint(oldest) && links_[oldest + 1].resident) drop(oldest + 1);
  drop(oldest);
}

}  // namespace kvonce::workload
