// SPDX-License-Identifier: Apache-2.0
//
// Configuration of a Runtime. Every field that has a range is checked; check() names the first that is wrong.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include <kvonce/types.hpp>

namespace kvonce {

/// Pages larger than the system's usual ones for the arena. A bool is accepted: true is transparent, false is off.
class HugePages {
 public:
  enum Kind : std::uint8_t {
    off,
    transparent,  ///< asked for; the system gives them where it has some and where its settings allow it
    reserved,     ///< those that the administrator keeps aside (vm.nr_hugepages); too few of them: the store does not start
  };
  constexpr HugePages(Kind kind) noexcept : kind_(kind) {}
  constexpr HugePages(bool on) noexcept : kind_(on ? transparent : off) {}
  constexpr Kind kind() const noexcept { return kind_; }
  friend constexpr bool operator==(HugePages, HugePages) noexcept = default;

 private:
  Kind kind_;
};

struct RuntimeConfig {
  /// Names the serving instance that all its rank and scheduler processes share: 1 to 255 bytes.
  std::string engine_id;
  /// Where the store is. "embedded": in this process. "unix:PATH": a kvonced, or a Runtime that serves, on this host.
  /// "auto": this user's kvonced on this host, started when none answers.
  std::string store = "embedded";
  /// Time to connect (and, with "auto", to start a store) before Runtime::start gives up: 1 ms to 1 h.
  std::chrono::milliseconds connect_timeout{5'000};
  /// Only looks up and loads: the arena is mapped read-only. Not with an embedded store.
  bool read_only = false;

  // -- serving other processes on this host (embedded store only) ------------------------------------------------------
  /// "unix:PATH": the socket that other processes connect to; empty: none.
  std::string serve;
  /// Processes of this group may connect too, by name or number; empty: of this user only. Not with "auto".
  std::string serve_group;
  std::uint32_t max_clients = 1'024;              ///< connected processes: 1 to 65,536
  /// Leases outlive the last connection of their engine by this: 0 ms to 1 h.
  std::chrono::milliseconds engine_grace{2'000};
  /// A file on tmpfs that holds the arena, so that a store stopped in order finds its pages again (on a hugetlbfs it never does:
  /// no snapshot can be written beside it); empty: the memory has no name and is gone with the process.
  std::string arena_file;
  /// NUMA node whose memory the arena takes; -1: wherever the system puts it.
  int numa_node = -1;

  // -- store = "auto" --------------------------------------------------------------------------------------------------
  // The store that is started is given every setting below that kvonced has too and that differs from its default: capacity_bytes to
  // demote, lease_time to leased_stops, and max_clients, engine_grace, numa_node. (Not populate, which this process then does for the
  // memory that it maps; not checksums: a kvonced always has them; not the threads.) A store that runs already keeps its own: where one
  // differs from what is given here, a warning names both values, once.
  /// Arena of a store that is started: 1 MiB to 64 TiB; 0: arena_bytes where that is not its default, else a quarter of the memory that
  /// is available to this process.
  std::uint64_t auto_bytes = 0;
  /// It ends by itself after this time without clients: 100 ms to 24 h.
  std::chrono::milliseconds auto_idle{60'000};
  /// The kvonced to start; empty: KVONCE_KVONCED, or beside the library or program, or by PATH.
  std::string kvonced_path;

  // -- the embedded store --------------------------------------------------------------------------------------------
  /// Bytes of memory for slots and index together: 1 MiB to 64 TiB. Reserved at start.
  std::uint64_t arena_bytes = 1ULL << 30;
  /// Most payload bytes kept; 0: only the arena limits. At most arena_bytes.
  std::uint64_t capacity_bytes = 0;
  /// Most pages in the index; 0: one per 16 KiB of arena, at least 65,536 but no more than an eighth of the arena holds.
  /// 1,024 to 2^31.
  std::uint64_t index_pages = 0;
  /// Takes all memory at start, instead of page by page as it is first touched. A client of another process's store enters
  /// that store's memory into its own page tables.
  bool populate = false;
  /// Of an embedded store; a client of another process's store maps what that has. With `reserved` an arena_file has to lie
  /// on a hugetlbfs.
  HugePages huge_pages = HugePages::transparent;
  /// StoreActors, each with its share of arena and budget: 1 to 64.
  std::uint32_t partitions = 1;
  /// Evicted pages that are remembered, so that a miss can say `evicted`: 0 to 16,777,216.
  std::uint32_t ghost_entries = 65'536;
  /// Eviction policy. "lru": one shared budget, by stamp, then deepest first.
  std::string policy = "lru";
  /// Range checksums: made in every copy, compared on every load.
  bool checksums = true;

  // -- puts ----------------------------------------------------------------------------------------------------------
  /// Most bytes of open grants of one rank in one partition, over all its pools, but always one object: 64 KiB to 1 GiB. What
  /// a rank takes over from one that has failed comes on top.
  std::uint64_t window_bytes = 8ULL << 20;
  /// A grant passes on to the next waiter after grant_base + bytes / least_rate. 1 ms to 1 h; 1 KiB/s to 1 TiB/s.
  std::chrono::milliseconds grant_base{1'000};
  std::uint64_t least_rate = 64ULL << 20;
  /// verify_window: 1 ms to 1 h.
  /// One key in so many is checked on every rank that announces it; 0: off, 1: all. The first 64 keys of each pool always are.
  std::uint32_t verify_sample = 256;
  std::chrono::milliseconds verify_window{10'000};
  /// So many keys on which ranks of one engine differ demote the pool to per-rank keys: 1 to 1,000,000.
  std::uint32_t conflict_limit = 3;
  /// false: only warn, keep the key and the pool.
  bool demote = true;

  // -- lookups -------------------------------------------------------------------------------------------------------
  std::chrono::milliseconds lease_time{10'000};   ///< 10 ms to 1 h
  /// Most payload bytes that one engine may have leased, at most 64 TiB; 0: half of the budget for one engine alone, and
  /// 3 / (2 + 4 n) of it each for n engines that lease as much as they can. What several leases of one page group begin with
  /// counts once.
  std::uint64_t leased_bytes = 0;
  /// Deepest stops of trailing pools that a lease covers: 1 to 64.
  std::uint32_t leased_stops = 4;

  // -- threads -------------------------------------------------------------------------------------------------------
  std::uint32_t scheduler_threads = 1;            ///< actor threads: 1 to 64
  std::uint32_t mover_threads = 1;                ///< copying threads: 1 to 16
  /// How bytes are copied and summed: "auto" (what the CPU has), "avx512", "avx2" or "portable".
  std::string copy_kernel = "auto";
  /// Batches of at most so many bytes are copied by the thread that drives the actors; 0: never; at most 1 GiB.
  std::uint64_t inline_copy_bytes = 512ULL << 10;
  /// The calling thread runs the actors' work of its own call where they are idle, instead of waking another thread.
  bool caller_runs = true;

  /// Empty, or the first field that is wrong, its value and what is allowed.
  KVONCE_API Error check() const;
};

}  // namespace kvonce
