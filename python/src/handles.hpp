// SPDX-License-Identifier: Apache-2.0
//
// What the Python objects hold: the Runtime, Ranks and pools, each with the process it belongs to. All are destroyed with the
// interpreter's lock held; in a forked child, and when the interpreter ends, what they hold stays as it is.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <unistd.h>

#include <kvonce/runtime.hpp>

#include "python/src/arrays.hpp"
#include "python/src/errors.hpp"
#include "python/src/process.hpp"

namespace kvonce::python {

/// One Runtime, shared by all objects that were made from it. The box itself is for threads with the lock; a call that another
/// thread makes holds the Runtime.
class RuntimeBox : public std::enable_shared_from_this<RuntimeBox> {
 public:
  explicit RuntimeBox(std::shared_ptr<Runtime> runtime);
  ~RuntimeBox();
  RuntimeBox(const RuntimeBox&) = delete;
  RuntimeBox& operator=(const RuntimeBox&) = delete;

  /// The Runtime, for a call; raises Forked or Closed.
  Runtime& use() const { return *shared(); }
  const std::shared_ptr<Runtime>& shared() const;
  void check_process() const;
  bool closed() const noexcept { return closed_.load(); }
  pid_t pid() const noexcept { return pid_; }
  void mark_closed() noexcept { closed_.store(true); }
  /// Without the interpreter's lock.
  void stop(std::chrono::milliseconds timeout) noexcept;

 private:
  std::shared_ptr<Runtime> runtime_;
  const pid_t pid_ = getpid();
  std::atomic<bool> closed_{false};
};
using RuntimePtr = std::shared_ptr<RuntimeBox>;

/// What stops all runtimes of this process, for the end of the interpreter.
EndCall stop_all();

struct GroupState {
  RuntimePtr runtime;
  NamespaceHandle ns;
  GroupHandle handle;
  GroupSpec spec;

  /// The pool's counts of shards, by name; raises.
  ShardCounts shards_of(const std::string& pool) const;
};
using GroupPtr = std::shared_ptr<const GroupState>;

/// One Rank and the memory of its pools, which stays referenced until the pool is unregistered or the rank is closed.
class RankBox {
 public:
  RankBox(GroupPtr group, std::shared_ptr<Rank> rank) : group_(std::move(group)), rank_(std::move(rank)) {}
  ~RankBox();
  RankBox(const RankBox&) = delete;
  RankBox& operator=(const RankBox&) = delete;

  Rank& use() const { return *shared(); }
  const std::shared_ptr<Rank>& shared() const;
  const GroupState& group() const { return *group_; }
  const RuntimePtr& runtime() const { return group_->runtime; }
  void keep(PoolHandle pool, std::vector<std::unique_ptr<Keeper>> keepers);
  void forget(PoolHandle pool) { keepers_.erase(pool.id); }
  /// Raises Deadline, and keeps the memory, when rows are still lent.
  void close(std::chrono::milliseconds timeout);

 private:
  GroupPtr group_;
  std::shared_ptr<Rank> rank_;
  std::map<std::uint32_t, std::vector<std::unique_ptr<Keeper>>> keepers_;
  std::atomic<bool> closed_{false};
};
using RankPtr = std::shared_ptr<RankBox>;

/// Calls `end(slice)` as long as it answers Deadline, for `timeout` at most. Raises what else it answers; Deadline when `what` is
/// still so after the whole time.
void end_in_slices(std::chrono::milliseconds timeout, const std::string& what,
                   const std::function<Error(std::chrono::milliseconds)>& end);

struct PoolState {
  RankPtr rank;
  PoolHandle handle;
  std::string name;
  std::uint64_t rows = 0;
  std::uint64_t object_bytes = 0;
  std::uint32_t layers = 0;
  std::uint32_t unit = 1;
  std::atomic<bool> unregistered{false};
};
using PoolPtr = std::shared_ptr<PoolState>;

void bind_runtime(nb::module_& module);
void bind_rank(nb::module_& module);

}  // namespace kvonce::python
