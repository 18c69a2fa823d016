// SPDX-License-Identifier: Apache-2.0
// Results that come later: waited for, called back, or awaited.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "python/src/handles.hpp"

namespace kvonce::python {

/// Tells when an operation is done; shared by the operation's completion and its future.
class Done {
 public:
  /// By kvonce, on any thread.
  void finish();
  /// Posts `call` when done; at once when it is.
  void add(std::function<void()> call);

 private:
  std::mutex mutex_;
  bool done_ = false;
  std::vector<std::function<void()>> calls_;
};
using DonePtr = std::shared_ptr<Done>;

/// A completion that tells `done`.
Completion tell(const DonePtr& done);

/// Where the items of a batch of pages x pools are.
struct ItemMap {
  std::vector<PoolPtr> pools;
  std::size_t pages = 0;
  std::vector<std::int32_t> items;  // [pool][page] -> item, -1: none

  /// By Pool or by name; raises.
  std::size_t index_of(nb::handle pool) const;
  /// One byte a page: value(item), 0 where there is none.
  template <class Value>
  nb::bytes per_page(nb::handle pool, const Value& value) const;
};
using ItemMapPtr = std::shared_ptr<const ItemMap>;

class Future {
 public:
  Future(RuntimePtr runtime, std::shared_ptr<Operation> operation, DonePtr done)
      : runtime_(std::move(runtime)), operation_(std::move(operation)), done_(std::move(done)) {}
  virtual ~Future();
  Future(const Future&) = delete;
  Future& operator=(const Future&) = delete;

  void check_process() const { runtime_->check_process(); }
  bool done() const;
  bool wait(std::optional<double> timeout) const;
  /// Waits; raises Deadline when it is not done by then.
  nb::object result(std::optional<double> timeout) const;
  void cancel() const;
  void add_done_callback(nb::handle self, nb::handle call) const;
  std::string repr() const;

 protected:
  virtual nb::object make_result() const = 0;
  virtual void cancel_operation() const {}
  virtual const char* kind() const = 0;
  /// What repr says beside the kind.
  virtual std::string state(bool done) const = 0;
  Operation& operation() const { return *operation_; }
  const std::shared_ptr<Operation>& shared_operation() const { return operation_; }
  const RuntimePtr& runtime() const { return runtime_; }

 private:
  RuntimePtr runtime_;
  std::shared_ptr<Operation> operation_;
  DonePtr done_;
};

class LookupFuture : public Future {
 public:
  using Future::Future;

 private:
  nb::object make_result() const override;
  const char* kind() const override { return "LookupFuture"; }
  std::string state(bool done) const override;
};

class PutFuture : public Future {
 public:
  PutFuture(RankPtr rank, std::shared_ptr<PutOperation> operation, DonePtr done, ItemMapPtr map)
      : Future(rank->runtime(), std::move(operation), std::move(done)), rank_(std::move(rank)), map_(std::move(map)) {}

 private:
  nb::object make_result() const override;
  const char* kind() const override { return "PutFuture"; }
  std::string state(bool done) const override;
  void cancel_operation() const override;
  RankPtr rank_;  // its pools' memory stays while rows are lent
  ItemMapPtr map_;
};

class LoadFuture : public Future {
 public:
  LoadFuture(RankPtr rank, std::shared_ptr<LoadOperation> operation, DonePtr done, ItemMapPtr map)
      : Future(rank->runtime(), std::move(operation), std::move(done)), rank_(std::move(rank)), map_(std::move(map)) {}
  std::uint32_t layers_done() const;
  bool wait_layers(std::uint32_t layers, std::optional<double> timeout) const;

 private:
  LoadOperation& load() const { return static_cast<LoadOperation&>(operation()); }
  nb::object make_result() const override;
  const char* kind() const override { return "LoadFuture"; }
  std::string state(bool done) const override;
  void cancel_operation() const override;
  RankPtr rank_;
  ItemMapPtr map_;
};

/// Until `timeout` seconds from now; without one: for ever.
std::optional<Clock::time_point> until_of(const std::optional<double>& timeout);

void bind_futures(nb::module_& module);

}  // namespace kvonce::python
