// SPDX-License-Identifier: Apache-2.0
//
// Results of asynchronous calls: as a future that is waited on, through a queue that is polled or waited on, or by a
// callback. Every operation ends by its deadline (plus one 256 KiB slice of copying).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <kvonce/types.hpp>

namespace kvonce {

class CompletionQueue;

/// Where a result goes besides the returned operation. A callback runs on a thread of kvonce (or, with caller_runs or where a call ends at once, on
/// the thread that made a call): it must not block.
struct Completion {
  std::shared_ptr<CompletionQueue> queue;
  std::uint64_t user_data = 0;
  std::function<void()> callback;
};

enum class OperationKind : std::uint8_t { put, load, lookup, flush, remove };

/// Common part of all operations; use through the derived classes.
class KVONCE_API Operation {
 public:
  virtual ~Operation();
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  OperationKind kind() const noexcept;
  std::uint64_t id() const noexcept;
  bool done() const noexcept;
  /// True when done within the time. Never longer, whatever happens to the store. Not to be called from a callback.
  bool wait_for(std::chrono::nanoseconds time) const;
  /// Until done: bounded by the operation's own deadline.
  void wait() const;

  struct Impl;
  /// For the runtime's own use.
  explicit Operation(std::unique_ptr<Impl> impl);
  Impl& impl() const noexcept { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

struct PutItemResult {
  Verdict verdict = Verdict::none;
  Reason reason = Reason::none;
  std::uint32_t retry_after_ms = 0;  // of rejected(busy | no_space)
};

class KVONCE_API PutOperation : public Operation {
 public:
  using Operation::Operation;
  /// One per item, in order, on every path. Empty until done.
  std::span<const PutItemResult> results() const noexcept;
  /// Items that are stored now, by whomever.
  std::uint64_t succeeded() const noexcept;
  /// Ends what is not decided: unknown(canceled), after the last read of its rows.
  void cancel();
};

class KVONCE_API LoadOperation : public Operation {
 public:
  using Operation::Operation;
  /// One per item, in order: none = loaded and verified, else why not. Empty until done.
  std::span<const Reason> results() const noexcept;
  std::uint64_t loaded() const noexcept;
  /// All items' layers below this are in place and verified (items that failed are named at the end).
  std::uint32_t layers_done() const noexcept;
  /// True when layers_done() >= layers (or the operation is done) within the time.
  bool wait_layers(std::uint32_t layers, std::chrono::nanoseconds time) const;
  /// Stops what has not begun. The operation is done only after the last write to its rows.
  void cancel();
};

/// Which prefix lengths are restorable, and why no more.
struct LookupResult {
  Error error;                               ///< set: no answer (unknown group, store lost, deadline)
  std::uint32_t restorable_pages = 0;        ///< deepest legal stop
  std::uint32_t resident_pages = 0;          ///< leading pages with all their every-page pools; >= restorable_pages
  bool every_stop = false;                   ///< each length up to restorable_pages is legal
  std::vector<std::uint32_t> stops;          ///< otherwise all legal stops, ascending
  std::vector<std::uint32_t> leased_stops;   ///< those whose trailing pools the lease covers
  LeaseId lease;                             ///< zero: nothing leased
  std::chrono::milliseconds lease_left{0};
  std::uint32_t first_missing = 0;           ///< the first page that is not restorable ...
  Reason reason = Reason::none;              ///< ... and why (none: all are)
  /// Of group_incomplete: what that page lacks. Where the pages go on but no stop does: what the stop lacks, of those behind
  /// the prefix, that lacks the fewest objects of trailing pools (of equals the first).
  std::string missing_pool;
  std::uint32_t missing_shard = 0;           ///< the first shard of that pool that is not readable
  std::uint32_t retry_after_ms = 0;          ///< of busy
  std::vector<std::string> optional_missing; ///< optional pools that do not cover the whole prefix
};

class KVONCE_API LookupOperation : public Operation {
 public:
  using Operation::Operation;
  const LookupResult& result() const noexcept;
};

/// flush and remove.
class KVONCE_API AdminOperation : public Operation {
 public:
  using Operation::Operation;
  const Error& error() const noexcept;
  std::uint64_t count() const noexcept;  ///< objects removed
};

/// Completions of many operations. Bounded: 65,536 entries unless asked otherwise; an operation that finds it full is
/// not lost (its own done() tells), and counted in dropped().
class KVONCE_API CompletionQueue {
 public:
  static std::shared_ptr<CompletionQueue> create(std::size_t limit = 65'536);
  ~CompletionQueue();
  CompletionQueue(const CompletionQueue&) = delete;
  CompletionQueue& operator=(const CompletionQueue&) = delete;

  struct Entry {
    OperationKind kind = OperationKind::put;
    std::uint64_t operation = 0;
    std::uint64_t user_data = 0;
  };
  /// Never blocks. Number of entries written.
  std::size_t poll(std::span<Entry> entries);
  /// Waits at most so long for at least one.
  std::size_t wait(std::span<Entry> entries, std::chrono::nanoseconds time);
  /// An eventfd that is readable while entries are there; owned by the queue.
  int fd() const noexcept;
  std::uint64_t dropped() const noexcept;

  struct Impl;
  Impl& impl() noexcept { return *impl_; }

 private:
  explicit CompletionQueue(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvonce
