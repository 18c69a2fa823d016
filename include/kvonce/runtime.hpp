// SPDX-License-Identifier: Apache-2.0
//
// The embedding API: a Runtime starts the actors of an engine process (and, embedded, the store itself).
// All calls may be made from any thread. Every call that waits has a deadline: `timeout`, 1 ms to 1 h unless said. Bad calls get an
// Error that names what was wrong.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <kvonce/config.hpp>
#include <kvonce/event.hpp>
#include <kvonce/operation.hpp>
#include <kvonce/pool.hpp>
#include <kvonce/types.hpp>

namespace kvonce {

/// A value, or why there is none.
template <class T>
struct Result {
  T value{};
  Error error;
  explicit operator bool() const noexcept { return !error; }
  T& operator*() noexcept { return value; }
  T* operator->() noexcept { return &value; }
};

inline constexpr std::size_t kMaxBatchItems = 65'536;
/// Of one runtime, not answered yet; each call counts as at least 64 of the pages and items. A call beyond ends at once as `busy`.
inline constexpr std::size_t kMaxOpenCalls = 16'384;
inline constexpr std::size_t kMaxOpenItems = std::size_t{1} << 20U;
inline constexpr std::chrono::milliseconds kDefaultTimeout{30'000};
/// Of calls that only ask the store for a number, or tell it one.
inline constexpr std::chrono::milliseconds kControlTimeout{10'000};
inline constexpr std::chrono::milliseconds kStatsTimeout{2'000};
inline constexpr std::chrono::milliseconds kMaxTimeout{3'600'000};
inline constexpr std::chrono::milliseconds kStopTimeout{5'000};

/// A registered namespace or page group; values, valid for the life of the Runtime that gave them.
struct NamespaceHandle {
  std::uint32_t id = 0xffffffffU;
};
struct GroupHandle {
  std::uint32_t id = 0xffffffffU;
};
/// One pool of one rank.
struct PoolHandle {
  std::uint32_t id = 0xffffffffU;
};

struct PutItem {
  std::uint32_t page = 0;  ///< index into PutBatch::pages
  PoolHandle pool;
  std::uint64_t row = 0;
};
/// Pages of one chain that are ready in this rank's pools.
struct PutBatch {
  std::vector<PageHash> pages;      ///< each page's parent is the one before it
  std::optional<PageHash> parent;   ///< of the first page, when it continues a prefix
  std::uint32_t first_depth = 0;    ///< pages before the first one in its prefix
  std::vector<PutItem> items;       ///< 1 to 65,536
};
struct PutOptions {
  Event after;                      ///< no byte of a row is read before it has fired
  AckLevel level = AckLevel::memory;
  std::chrono::milliseconds timeout = kDefaultTimeout;  ///< 1 ms to 1 h
  Completion completion;
};

struct LoadItem {
  PageHash page;
  PoolHandle pool;
  std::uint64_t row = 0;
};
struct LoadOptions {
  std::uint32_t layer_begin = 0;
  std::uint32_t layer_end = 0xffffffffU;   ///< exclusive; beyond the last layer: all
  std::uint32_t layers_per_group = 0;      ///< progress is told per so many layers; 0: one group
  Event after;                             ///< no byte of a row is written before it has fired
  std::chrono::milliseconds timeout = kDefaultTimeout;
  Completion completion;
  std::function<void(std::uint32_t layers_done)> progress;
};

struct LookupOptions {
  std::string request_id;   ///< answers with one are kept by the store, so ranks cannot disagree; at most 4,096 bytes
  bool probe = false;       ///< no lease, does not count as use
  std::chrono::milliseconds lease_time{0};  ///< 0: the store's default
  std::chrono::milliseconds timeout{5'000};
  Completion completion;
};

/// One pool of a namespace.
struct KnownPool {
  std::string name;
  ShardCounts shards;
  std::uint64_t object_bytes = 0;  ///< 0: not known yet, or without bytes
};

/// What is known of one page.
struct PageStat {
  bool found = false;
  std::uint32_t depth = 0;
  struct Object {
    std::string pool;
    std::uint32_t shard = 0;
    std::uint64_t bytes = 0;
    AckLevel level = AckLevel::memory;
  };
  std::vector<Object> objects;
};

struct StoreEvent {
  enum class Kind : std::uint8_t { stored, evicted, removed } kind = Kind::stored;
  std::uint32_t ns = 0;  ///< NamespaceHandle::id
  std::string pool;
  std::uint32_t shard = 0;
  PageHash page;
};

/// Counters since the start unless named `_now`. Bytes are payload bytes unless said.
struct Stats {
  std::uint64_t verdicts[kVerdictCount] = {};  ///< by Verdict
  std::uint64_t announced_items = 0, announced_bytes = 0;
  std::uint64_t moved_bytes = 0;               ///< copied from rows into slots, repeats included
  std::uint64_t stored_objects = 0, stored_bytes = 0;
  std::uint64_t loaded_items = 0, loaded_bytes = 0, load_failures = 0;
  std::uint64_t promotions = 0, conflicts = 0, divergent = 0, demotions = 0, samples = 0, unverified = 0;
  std::uint64_t lookups = 0, lookup_pages_asked = 0, lookup_pages_hit = 0;
  std::uint64_t misses[kReasonCount] = {};     ///< by Reason
  std::uint64_t evicted_objects = 0, evicted_bytes = 0, evicted_page_sets = 0, evicted_checkpoint_sets = 0;
  std::uint64_t objects_now = 0, pages_now = 0, payload_bytes_now = 0, slot_bytes_now = 0, capacity_bytes = 0,
                arena_slot_bytes = 0, free_bytes_now = 0;
  std::uint64_t claims_now = 0, leases_now = 0, leased_bytes_now = 0, quarantined_bytes_now = 0, rows_lent_now = 0,
                unverified_pools_now = 0;
  std::uint64_t events_dropped = 0;            ///< store events that no subscriber took in time
  bool store_answered = false;                 ///< false: lost or slow; what the store counts is short or left out
};

/// What a process counts of its own accord, by name; see Runtime::report.
struct ClientReport {
  std::string label;
  std::vector<std::pair<std::string, std::uint64_t>> counters;
};
inline constexpr std::size_t kMaxReportLabelBytes = 255;
inline constexpr std::size_t kMaxReportCounters = 64;
inline constexpr std::size_t kMaxReportNameBytes = 64;
inline constexpr std::size_t kMaxReportsPerClient = 8;

/// One process that is connected to a store that this Runtime serves.
struct ClientInfo {
  std::uint32_t pid = 0;
  std::string engine_id;
  bool read_only = false;
  std::uint32_t ranks = 0;
  std::uint64_t open_grants = 0;       ///< slots that it may be writing to right now
  std::uint64_t quarantined_bytes = 0; ///< of its grants that were lost
  std::vector<ClientReport> reports;   ///< by label; left out where a list of very many clients becomes too long
};
/// How the store came up.
struct StoreStart {
  bool warm = false;                  ///< with the pages of its last life
  std::string why_cold;               ///< arena_file was set, but nothing could be taken over
  std::uint64_t restored_objects = 0;
};

/// One rank of the engine in this process: its pools, puts and loads. Ends with close() or its last reference.
class KVONCE_API Rank {
 public:
  ~Rank();
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  Result<PoolHandle> register_pool(const PoolSpec& spec, std::chrono::milliseconds timeout = kControlTimeout);
  /// Refuses new work for the pool at once and waits until no row of it is lent. On error `deadline` the pool is still
  /// closing: its rows must stay where they are; call again.
  Error unregister_pool(PoolHandle pool, std::chrono::milliseconds timeout = kDefaultTimeout);

  Result<std::shared_ptr<PutOperation>> put(PutBatch batch, PutOptions options = {});
  /// Two items with one row and different pages are refused: bad_argument.
  Result<std::shared_ptr<LoadOperation>> load(LeaseId lease, std::vector<LoadItem> items, LoadOptions options = {});
  /// One byte per page: 1 readable, 0 not. Reads the index in the arena: no actor is asked.
  Result<std::vector<std::uint8_t>> exists(PoolHandle pool, std::span<const PageHash> pages) const;
  /// Bytes that this rank has moved into the store.
  std::uint64_t moved_bytes() const noexcept;
  /// Unregisters all pools and ends the rank.
  Error close(std::chrono::milliseconds timeout = kDefaultTimeout);

  struct Impl;
  explicit Rank(std::shared_ptr<Impl> impl);

 private:
  std::shared_ptr<Impl> impl_;
};

class KVONCE_API Runtime {
 public:
  /// Starts the actors (and the embedded store). Nothing is left behind on failure.
  static Result<std::unique_ptr<Runtime>> start(const RuntimeConfig& config);
  /// stop() with the default time.
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  /// Open operations end with unknown(closed) or reason closed; then the actors, movers and the arena go. Idempotent.
  /// From a completion callback: new calls are refused from here on, the rest is left to the next stop() or the end of this object,
  /// which must not happen in a callback.
  void stop(std::chrono::milliseconds timeout = kStopTimeout);

  const RuntimeConfig& config() const noexcept;

  /// The text says all that decides the bytes besides hash, pool and shard: model, revision, dtype, page tokens, tenant.
  Result<NamespaceHandle> open_namespace(std::string_view text, std::chrono::milliseconds timeout = kControlTimeout);
  /// As open_namespace, but one that nobody has opened yet is the error unknown_namespace, and is not made.
  Result<NamespaceHandle> find_namespace(std::string_view text, std::chrono::milliseconds timeout = kControlTimeout);
  /// This process uses the namespace no more; to be called as often as it was opened or found here. After the last time the
  /// handle and the groups made of it mean nothing, and pools of ranks may not be registered in it any more (else `busy`).
  /// What is stored stays. A store has room for 1,024 namespaces: when a new one needs the place, the one goes, with its
  /// objects, that no connected process has had open for longest; namespaces that are never closed stay open until their
  /// process disconnects, and too_many is the answer when all are open.
  Error close_namespace(NamespaceHandle ns, std::chrono::milliseconds timeout = kControlTimeout);
  /// 16 random bytes that the store gives out once per (engine id, name): all processes of one engine get the same for one
  /// name, another engine, or a later life of this one, gets others. Name: 1 to 255 bytes, such as "weights 3" for what an
  /// engine computes after its third weight update; put the value into the text of the namespace. The newest 1,024 names of an
  /// engine have values: an older one is too_many for whoever asks again, never another value. The store forgets them `engine_grace` after the engine's last process has left. When the store is
  /// lost, those who know a value tell it the store's next life.
  Result<std::array<std::uint8_t, 16>> epoch(std::string_view name,
                                             std::chrono::milliseconds timeout = std::chrono::milliseconds{5'000});
  /// The pools of a namespace: those that were registered with the store when it was opened here, and this process's own.
  Result<std::vector<KnownPool>> pools(NamespaceHandle ns) const;
  Result<GroupHandle> register_group(NamespaceHandle ns, const GroupSpec& spec,
                                     std::chrono::milliseconds timeout = kControlTimeout);
  Result<std::shared_ptr<Rank>> add_rank(GroupHandle group, const Coordinates& rank);

  /// At most 65,536 pages, a prefix from its first page on.
  Result<std::shared_ptr<LookupOperation>> lookup(GroupHandle group, std::vector<PageHash> pages, LookupOptions options = {});
  /// Gives back what lies behind `stop` pages (0: everything).
  Error narrow(LeaseId lease, std::uint32_t stop, std::chrono::milliseconds timeout = kControlTimeout);
  /// Releasing twice is no error.
  Error release(LeaseId lease, std::chrono::milliseconds timeout = kControlTimeout);

  /// As Rank::exists, for any pool of a group and any shard of it.
  Result<std::vector<std::uint8_t>> exists(GroupHandle group, std::string_view pool, std::uint32_t shard,
                                           std::span<const PageHash> pages) const;
  /// Both read the index themselves, and neither tells a page under change as a miss: `busy` when it has been so for a second.
  Result<PageStat> stat(NamespaceHandle ns, const PageHash& page) const;

  Result<std::shared_ptr<AdminOperation>> remove_key(GroupHandle group, std::string_view pool, std::uint32_t shard,
                                                     const PageHash& page, Completion completion = {},
                                                     std::chrono::milliseconds timeout = kDefaultTimeout);
  Result<std::shared_ptr<AdminOperation>> remove_pages(NamespaceHandle ns, std::vector<PageHash> pages, Completion completion = {},
                                                       std::chrono::milliseconds timeout = kDefaultTimeout);
  Result<std::shared_ptr<AdminOperation>> remove_namespace(NamespaceHandle ns, Completion completion = {},
                                                           std::chrono::milliseconds timeout = kDefaultTimeout);
  Result<std::shared_ptr<AdminOperation>> clear(Completion completion = {}, std::chrono::milliseconds timeout = kDefaultTimeout);
  /// Done when everything accepted or claimed when it was called has been decided at that level.
  Result<std::shared_ptr<AdminOperation>> flush(AckLevel level = AckLevel::memory,
                                                std::chrono::milliseconds timeout = kDefaultTimeout,
                                                Completion completion = {});
  /// Waits no longer than `timeout` (0 to 1 h) for what the store counts: see store_answered.
  Stats stats(std::chrono::milliseconds timeout = kStatsTimeout) const;

  // -- a store of another process --------------------------------------------------------------------------------------
  /// False while the store is lost: calls end with store_lost, and a connection is tried again and again.
  bool connected() const noexcept;
  /// Random number of this life of the store; 0 while it is lost.
  std::uint64_t incarnation() const noexcept;
  /// True when connected; false when the time passed first.
  bool wait_connected(std::chrono::milliseconds timeout) const;

  // -- serving ---------------------------------------------------------------------------------------------------------
  /// The processes that are connected to the store, on either side of it.
  Result<std::vector<ClientInfo>> clients(std::chrono::milliseconds timeout = kControlTimeout) const;
  /// Gives counters of this process to the store, for clients() and `kvonce stat` to show. They replace those of the same label
  /// (0 to 255 bytes, say "rank 3"), and go with the connection: tell them again from time to time. No counters: the label is
  /// forgotten. At most 8 labels a process (then too_many), 64 counters, names of 1 to 64 bytes; printable ASCII only. Sends,
  /// and waits for nothing. An embedded store, which only its own process asks, keeps none.
  Error report(std::string_view label, std::vector<std::pair<std::string, std::uint64_t>> counters);
  /// Of the store here, or of the one that this process is, or was last, connected to.
  StoreStart store_start() const;
  /// Before stop(): no new connections and grants, waits for open copies no longer than this, tells the clients that the
  /// store is ending, and with an arena_file writes down what the next life needs.
  Error drain(std::chrono::milliseconds timeout = std::chrono::milliseconds{5'000});

  /// Stored, evicted and removed objects, in batches, on a thread of kvonce. An empty function ends it.
  void subscribe(std::function<void(std::span<const StoreEvent>)> callback);

  struct Impl;
  /// For the runtime's own use.
  Impl& impl() const noexcept { return *impl_; }

 private:
  explicit Runtime(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvonce
