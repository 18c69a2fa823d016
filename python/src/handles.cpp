// SPDX-License-Identifier: Apache-2.0
#include "python/src/handles.hpp"

#include <algorithm>

namespace kvonce::python {
namespace {

// Touched with the interpreter's lock only; for the end of the interpreter. Never destroyed.
std::vector<RuntimeBox*>& all_runtimes() {
  static auto* const kAll = new std::vector<RuntimeBox*>;
  return *kAll;
}

}  // namespace

RuntimeBox::RuntimeBox(std::shared_ptr<Runtime> runtime) : runtime_(std::move(runtime)) { all_runtimes().push_back(this); }

RuntimeBox::~RuntimeBox() {
  std::erase(all_runtimes(), this);
  if (foreign(pid_)) {
    new std::shared_ptr<Runtime>(std::move(runtime_));
    return;
  }
  unlocked([&] { runtime_.reset(); });
}

void RuntimeBox::check_process() const {
  stay_when_ending();
  if (pid_ != getpid()) raise_forked();
}

const std::shared_ptr<Runtime>& RuntimeBox::shared() const {
  check_process();
  if (closed()) raise_closed("the runtime");
  return runtime_;
}

void RuntimeBox::stop(std::chrono::milliseconds timeout) noexcept {
  closed_.store(true);
  runtime_->stop(timeout);
}

EndCall stop_all() {
  std::vector<RuntimePtr> open;
  for (RuntimeBox* const runtime : all_runtimes())
    if (!foreign(runtime->pid())) open.push_back(runtime->shared_from_this());
  return [open = std::move(open)](std::chrono::milliseconds time) {
    const auto until = Clock::now() + time;
    for (const RuntimePtr& runtime : open) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now());
      runtime->stop(std::max(left, std::chrono::milliseconds{1}));
    }
  };
}

ShardCounts GroupState::shards_of(const std::string& pool) const {
  for (const GroupPool& known : spec.pools)
    if (known.name == pool) return known.shards.value_or(spec.ranks);
  std::string names;
  for (const GroupPool& known : spec.pools) names += (names.empty() ? "'" : ", '") + known.name + "'";
  raise({Reason::unknown_pool, "pool '" + pool + "' is not in group '" + spec.name + "', which has " + names});
}

RankBox::~RankBox() {
  if (foreign(runtime()->pid())) {
    new std::shared_ptr<Rank>(std::move(rank_));
    for (auto& [id, keepers] : keepers_)
      for (auto& keeper : keepers) static_cast<void>(keeper.release());
    return;
  }
  const bool back = unlocked([&] {
    const bool ended = !rank_->close(kDefaultTimeout);
    rank_.reset();
    return ended;
  });
  // Rows that somebody may still write to must stay where they are.
  if (!back)
    for (auto& [id, keepers] : keepers_)
      for (auto& keeper : keepers) static_cast<void>(keeper.release());
}

const std::shared_ptr<Rank>& RankBox::shared() const {
  runtime()->use();
  if (closed_.load()) raise_closed("the rank");
  return rank_;
}

void RankBox::keep(PoolHandle pool, std::vector<std::unique_ptr<Keeper>> keepers) {
  // Registered again with the same memory: the first ones stay.
  auto& kept = keepers_[pool.id];
  for (auto& keeper : keepers) kept.push_back(std::move(keeper));
}

void RankBox::close(std::chrono::milliseconds timeout) {
  runtime()->check_process();
  closed_.store(true);
  end_in_slices(timeout, "the rank is still closing", [&](std::chrono::milliseconds time) { return rank_->close(time); });
  keepers_.clear();
}

void end_in_slices(std::chrono::milliseconds timeout, const std::string& what,
                   const std::function<Error(std::chrono::milliseconds)>& end) {
  Error error;
  const bool ended = wait_in_slices(Clock::now() + timeout, [&](std::chrono::nanoseconds time) {
    error = end(std::max(std::chrono::ceil<std::chrono::milliseconds>(time), std::chrono::milliseconds{1}));
    return error.reason != Reason::deadline;
  });
  if (!ended) error.text = what + " after " + number_text(std::chrono::duration<double>(timeout).count()) + " s";
  check(error);
}

}  // namespace kvonce::python
