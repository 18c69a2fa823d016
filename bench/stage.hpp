// SPDX-License-Identifier: Apache-2.0
//
// One runtime, with an embedded store or connected to one, and R ranks of one pool, for the jobs that move pages of one size.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <kvonce/runtime.hpp>

#include "bench/options.hpp"
#include "bench/rows.hpp"

namespace kvonce::bench {

inline constexpr const char* kPoolName = "kv";

/// Pages of one prefix. A prefix of 1 M pages is no prefix that any engine has; whole batches fit.
std::uint64_t chain_pages(std::uint64_t batch);

/// Batches of the chain's pages, in order, each with its parent. `rows`: row of page p is p modulo rows.
std::vector<PutBatch> make_put_batches(const std::vector<PageHash>& keys, std::uint64_t batch, PoolHandle pool,
                                       std::uint64_t rows);

/// Pages that are put before those that are measured: as many as a pool's first keys that every rank verifies.
inline constexpr std::uint64_t kFirstKeys = 64;

struct StageSpec {
  std::uint64_t ranks = 1;
  std::uint64_t pages = 0;        // in the store, at most
  std::uint64_t page_bytes = 0;
  std::uint64_t ranges = 1;       // that a page is cut into; at most page_bytes
  std::uint64_t rows = 0;         // of each rank
  std::string kernel = "auto";
  std::uint64_t movers = 1;
  std::uint64_t inline_copy_bytes = 512ULL << 10;
  bool populate = true;
  // A store of another process: "unix:PATH". Its ranks are first_rank .. first_rank + ranks - 1 of group_ranks.
  std::string store;
  std::string engine = "bench";
  std::string ns = "kvonce bench";
  std::uint64_t first_rank = 0;
  std::uint64_t group_ranks = 0;  // 0: as many as ranks
  bool read_only = false;
};

class Stage {
 public:
  struct Started {
    std::unique_ptr<Stage> stage;  // set exactly when there is no error
    std::string error;
  };
  /// `memory`: one per rank, each of rows * row_stride(spec) bytes; outlives the stage.
  static Started start(const StageSpec& spec, const std::vector<RowMemory>& memory);
  static std::uint64_t row_stride(const StageSpec& spec);

  Runtime& runtime() { return *runtime_; }
  Rank& rank(std::size_t index) { return *ranks_[index]; }
  PoolHandle pool(std::size_t index) const { return pools_[index]; }
  GroupHandle group() const { return group_; }
  NamespaceHandle ns() const { return ns_; }
  std::byte* row(std::size_t rank, std::uint64_t row) const { return memory_[rank].base() + row * row_stride(spec_); }
  std::size_t ranks() const { return ranks_.size(); }

  /// Every rank's rows hold the pages 0 .. rows-1 of this seed: in buffers of their own, the same bytes.
  void fill_rows(std::uint64_t seed);
  void clear_rows(std::size_t rank);
  /// Number of rows of the rank that are not, byte by byte, the seed's pages.
  std::uint64_t wrong_rows(std::size_t rank, std::uint64_t seed) const;

  /// Bytes that each rank has moved into the store, less those of `before` where it is given.
  std::vector<std::uint64_t> moved_bytes(const std::vector<std::uint64_t>& before = {}) const;

  /// A lease on each chain of the keys; the error names what is not restorable.
  struct Leases {
    std::vector<LeaseId> by_chain;
    std::string error;
  };
  Leases lease(const std::vector<PageHash>& keys, std::uint64_t batch);
  void release(const Leases& leases);

  /// Loads all keys into the first rank's rows and compares every byte. Empty: all right. `keys` at most rows.
  std::string verify(const std::vector<PageHash>& keys, std::uint64_t seed, std::uint64_t batch);

 private:
  Stage(const StageSpec& spec, const std::vector<RowMemory>& memory) : spec_(spec), memory_(memory) {}

  StageSpec spec_;
  const std::vector<RowMemory>& memory_;
  std::unique_ptr<Runtime> runtime_;
  NamespaceHandle ns_;
  GroupHandle group_;
  std::vector<std::shared_ptr<Rank>> ranks_;  // after the runtime: they end before it
  std::vector<PoolHandle> pools_;
};

}  // namespace kvonce::bench
