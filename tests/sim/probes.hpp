// SPDX-License-Identifier: Apache-2.0
//
// Counters of rare branches: they prove that the runs reached them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace kvonce::sim {

enum class Probe : std::uint8_t {
  put_items,
  stored,
  joined,
  already_stored,
  conflict_verdict,
  unknown_verdict,
  rejected_busy,
  rejected_removed,
  rejected_unverified,
  level_unavailable,
  persist_failed_verdict,
  duplicate_in_batch,
  wrong_size,
  grants,
  promotion,
  late_landed,
  abandoned,
  copy_failed,
  quarantine,
  no_space,
  index_full,
  several_extents,
  samples,
  conflict,
  divergence,
  demotion,
  redirect,
  level_upgrade,
  persist_failure,
  eviction,
  checkpoint_eviction,
  incomplete_eviction,
  lookups,
  stops_by_trailing,
  stop_over_nothing,
  repeated_lookup,
  search_again,
  in_flight_answer,
  busy_answer,
  evicted_answer,
  absent_answer,
  incomplete_answer,
  incomplete_checkpoint,
  optional_missing,
  narrow,
  release,
  lease_forged,
  lease_expired_with_load,
  loads_started,
  pages_loaded,
  layer_groups,
  load_part,
  load_mismatch,
  load_canceled,
  put_canceled,
  zombie_slots,
  clear,
  flush,
  bit_flip,
  rank_death,
  rank_stop,
  connection_loss,
  late_writer,
  store_restart,
  restart_with_late_writer,
  warm_restart,
  warm_late_writer,
  warm_lease,
  forged_results,
  gated_copy,
  copy_expired,
  unregister,
  flood,
  guest_opening,
  namespace_close,
  hasty_close,
  opening_waited,
  opening_refused,
  refused_after_round,
  retirement,
  retired_with_objects,
  retired_while_written,
  retired_with_lease,
  place_reused,
  late_put,
  late_lookup,
  late_result,
  count_
};
inline constexpr std::size_t kProbeCount = static_cast<std::size_t>(Probe::count_);

struct ProbeInfo {
  const char* name;
  /// The probe must be reached in any range of so many seeds; 0: not asked for.
  std::uint32_t within_seeds;
};
const ProbeInfo& info(Probe probe);

class Probes {
 public:
  void hit(Probe probe, std::uint64_t times = 1) { counts_[static_cast<std::size_t>(probe)] += times; }
  std::uint64_t count(Probe probe) const { return counts_[static_cast<std::size_t>(probe)]; }
  void add(const Probes& other) {
    for (std::size_t i = 0; i < kProbeCount; ++i) counts_[i] += other.counts_[i];
  }

 private:
  std::array<std::uint64_t, kProbeCount> counts_{};
};

}  // namespace kvonce::sim
