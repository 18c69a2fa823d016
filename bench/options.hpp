// SPDX-License-Identifier: Apache-2.0
//
// What a benchmark is asked to do, and the memory that takes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kvonce::workload {
struct ModelPreset;
}

namespace kvonce::bench {

enum class Job : std::uint8_t { put, get, exists, lookup, idle, memory, allocator, coalesce, restart };
const char* to_string(Job job);

inline constexpr std::uint64_t kRanksMax = 64;
inline constexpr std::uint64_t kPagesMax = 16'777'216;
inline constexpr std::uint64_t kPageBytesMax = 256ULL << 20;
inline constexpr std::uint64_t kBatchMax = 65'536;
inline constexpr std::uint64_t kDepthMax = 1'024;
inline constexpr std::uint64_t kMoversMax = 16;
inline constexpr std::uint64_t kInlineCopyMax = 1ULL << 30;
/// Ranges that `memory` cuts a page into, a byte each at least. A slot's record grows in steps of 64 bytes: over 16 ranges more than
/// one, at 8 bytes each, the steps come out even.
inline constexpr std::uint64_t kMemoryRanges = 17;
inline constexpr std::uint64_t kRepeatMax = 1'000;
inline constexpr std::uint64_t kKillPageBytesMin = 64ULL << 10;
inline constexpr std::uint64_t kKillsMax = 1'000'000;
inline constexpr std::uint64_t kOperationsMax = 1'000'000'000;

struct Options {
  Job job = Job::put;
  std::uint64_t ranks = 1;         // threads, each a rank with buffers of its own
  std::uint64_t pages = 4'096;     // unique pages
  std::uint64_t page_bytes = 64ULL << 10;
  std::uint64_t batch = 32;        // keys per call
  std::uint64_t depth = 1;         // batches in flight per rank
  std::uint64_t movers = 1;        // copying threads of the runtime
  std::uint64_t inline_copy_bytes = 512ULL << 10;  // batches up to this are copied by the thread that drives the actors
  std::string kernel = "auto";     // how the runtime copies: auto, avx512, avx2, portable
  bool lockstep = false;           // a barrier before each batch; else the ranks start together and run free
  std::uint64_t repeat = 1;
  double seconds = 10;             // idle: time measured
  double limit_seconds = 0.8;      // time for the copy limit, all of it before and after the timed part; 0: not measured
  std::uint64_t operations = 0;    // exists: keys asked per rank; lookup: lookups; allocator: puts
  std::string preset = "kimi-k3-draft";  // lookup
  std::uint64_t checkpoint_pages = 64;   // lookup: a checkpoint at every so-many-th page
  std::string via;                 // rank processes and a store of another process: "spawn" or "unix:PATH"; empty: all in this one
  std::string expect_path;         // "shm" or "memcpy": another one is an error; empty: any
  std::uint64_t kills = 0;         // coalesce: writers to kill
  std::uint64_t rounds = 20;       // coalesce: rounds without a kill
  std::string folder = "/dev/shm"; // restart: where the arena's file is made
};

/// The job's own defaults.
Options defaults(Job job);

/// What an option of a job may be, ends included; bytes for sizes. Some are bound by others too: check() tells those.
struct Limits {
  std::uint64_t least;
  std::uint64_t most;
};
/// `option` as it is typed, "--ranks". One without limits of its own has all numbers.
Limits limits_of(Job job, std::string_view option);

/// Empty, or the first option that is wrong, its value and what is allowed. Also compares the memory that the job
/// takes with what the machine has available.
std::string check(const Options& options);

/// Whether the job has --via: a store of another process.
bool can_go_via(Job job);

/// Whether a lookup of it ends at checkpoints only.
bool has_checkpoints(const workload::ModelPreset& preset);

/// Threads that copy: the movers, and every rank's thread while it waits for its batch; no more than there are cores.
std::uint64_t copying_threads(const Options& options);

/// Arena that holds all pages of one size without evicting; bytes.
std::uint64_t arena_bytes_for(std::uint64_t pages, std::uint64_t objects, std::uint64_t payload_bytes,
                              std::uint64_t ranges_per_object);

/// Bytes of memory that can be had without swapping; 0: the system does not tell.
std::uint64_t available_memory();

}  // namespace kvonce::bench
