// SPDX-License-Identifier: Apache-2.0
//
// One pass of a replay: a store (embedded, a daemon of its own, or one that runs), all ranks of one engine, and requests played
// through them one after the other.
// The order is the trace's and nothing overlaps: two requests at once would change which one finds what.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <kvonce/runtime.hpp>

#include "apps/kvonce/replay_options.hpp"
#include "apps/kvonce/replay_rows.hpp"
#include "apps/workload/trace_source.hpp"
#include "bench/store_use.hpp"

namespace kvonce::apps {

/// Counts of one pass. Bytes are those really moved: of the scaled objects.
struct ReplayFigures {
  std::uint64_t requests = 0;
  std::uint64_t input_tokens = 0;     ///< asked
  std::uint64_t hit_tokens = 0;       ///< restorable by the lookup's answer, in full pages
  std::uint64_t resident_tokens = 0;  ///< pages there, whether or not a checkpoint makes them restorable
  std::uint64_t announced_bytes = 0;
  std::uint64_t moved_bytes = 0;
  std::vector<std::uint64_t> moved_bytes_by_rank;
  std::uint64_t stored_bytes = 0;  ///< became readable, over the whole pass
  std::uint64_t kept_bytes = 0;    ///< readable at the end
  std::uint64_t evicted_bytes = 0;
  std::uint64_t loaded_bytes = 0;
  std::uint64_t verified_bytes = 0;
  std::uint64_t wrong_bytes = 0;
  std::array<std::uint64_t, kVerdictCount> verdicts{};
  std::array<std::uint64_t, kReasonCount> put_reasons{};   ///< of what was not stored
  std::array<std::uint64_t, kReasonCount> load_reasons{};  ///< of what was not loaded although it was leased
  std::uint64_t optional_not_loaded = 0;                   ///< objects that the store may forget without losing the page
  std::uint64_t conflicts = 0;
  std::uint64_t demotions = 0;
  double seconds = 0;
  double cpu_seconds = 0;  ///< engine side, checks, and the store where it is embedded or spawned

  double hit_rate() const noexcept {
    return input_tokens == 0 ? 0 : 100.0 * static_cast<double>(hit_tokens) / static_cast<double>(input_tokens);
  }
  /// Something that a sound store never answers, whatever its size: wrong bytes, a lost copy, a false conflict.
  bool sound() const noexcept;
};

/// Whether a store can be set up so, before anything is started.
Error check_store(const ReplayPlan& plan, const ReplaySetup& setup);

class ReplayRun {
 public:
  /// `plan` must outlive the run. Empty `error` means that it can begin.
  ReplayRun(const ReplayPlan& plan, const ReplaySetup& setup);
  ~ReplayRun();
  ReplayRun(const ReplayRun&) = delete;
  ReplayRun& operator=(const ReplayRun&) = delete;

  const std::string& error() const noexcept { return error_; }

  /// False: the pass cannot go on; error() says why.
  bool play(const workload::TraceRequest& request);

  ReplayFigures figures() const;
  /// What this side counts; without the store's own counts and the times.
  const ReplayFigures& counted() const noexcept { return figures_; }

 private:
  struct RankSide {
    std::vector<ReplayRows> rows;  // by pool
    std::vector<PoolHandle> pools;
    std::shared_ptr<Rank> rank;
  };

  bool start();
  bool add_rank(GroupHandle group, std::uint32_t index);
  bool load(const workload::TraceRequest& request, const LookupResult& found);
  bool load_chunk(std::span<const std::uint64_t> pages, std::uint32_t first, std::uint32_t stop, LeaseId lease);
  bool put(const workload::TraceRequest& request, const LookupResult& found);
  bool put_chunk(std::span<const std::uint64_t> pages, std::uint32_t first, std::uint32_t resident, bool& full);
  void fill(std::size_t pool, std::uint64_t row, std::uint64_t page);
  std::uint32_t content_shard(std::size_t pool, std::uint32_t rank) const noexcept {
    return rank / plan_.model.pools[pool].ranks_per_shard;
  }
  bool fail(std::string_view what, const Error& error);

  const ReplayPlan& plan_;
  const ReplaySetup& setup_;
  std::string error_;
  ReplayFigures figures_;
  double started_seconds_ = 0;
  double started_cpu_seconds_ = 0;
  std::uint32_t chunk_pages_ = 0;  // most pages of one put or load: bounds the rows
  bool has_checkpoints_ = false;
  std::vector<PageHash> hashes_;              // of the request at hand
  std::vector<std::uint8_t> verified_ranks_;  // of the request at hand
  GroupHandle group_;
  NamespaceHandle ns_;
  Stats before_;  // of a store that had a life before this pass
  std::unique_ptr<bench::StoreUse> spawned_;
  // The rows come before the runtime that reads and writes them, so that they go after it.
  std::vector<RankSide> ranks_;
  std::unique_ptr<Runtime> runtime_;
};

}  // namespace kvonce::apps
