// SPDX-License-Identifier: Apache-2.0
#include "protocol/retire_round.hpp"

#include <algorithm>
#include <utility>

namespace kvonce::protocol {

void RetireRound::client_left(ClientId client) {
  book_.client_left(client);
  const auto of_client = [client](const Waiting& waiting) { return waiting.opening.client == client; };
  std::erase_if(arrived_, of_client);
  std::erase_if(waiting_, of_client);
}

void RetireRound::use(std::uint32_t partition, std::uint64_t round, std::span<const NamespaceUse> use) {
  if (!asking_ || round != round_ || partition >= told_.size() || told_[partition]) return;
  told_[partition] = true;
  for (std::size_t place = 0; place < use_.size() && place < use.size(); ++place) use_[place] = std::max(use_[place], use[place]);
}

void RetireRound::emptied(std::uint32_t partition, NamespaceId ns) {
  if (ns == retiring_ && partition < emptied_.size()) emptied_[partition] = true;
}

bool RetireRound::all_emptied() const {
  const auto count = static_cast<std::size_t>(std::count(emptied_.begin(), emptied_.end(), true));
  return count == emptied_.size() || (faults_.free_before_emptied && count > 0);
}

std::optional<RetireRound::Step> RetireRound::step(const Catalog& catalog) {
  if (retiring_ != kNoNamespace && all_emptied()) return free_emptied();
  if (auto answered = answer_arrived(catalog)) return answered;
  if (asking_ && std::find(told_.begin(), told_.end(), false) == told_.end()) return choose(catalog);
  if (asking_ || retiring_ != kNoNamespace || waiting_.empty()) return {};
  asking_ = true;
  told_.assign(partitions_, false);
  use_.assign(kMaxNamespaces, NamespaceUse::none);
  Step step;
  step.ask_use = ++round_;
  return step;
}

std::optional<RetireRound::Step> RetireRound::free_emptied() {
  Step step;
  step.freed = retiring_;
  CatalogUpdate free;
  free.kind = CatalogUpdate::Kind::free;
  free.ns = retiring_;
  step.updates.push_back(std::move(free));
  book_.forget(retiring_);
  retiring_ = kNoNamespace;
  // Before whatever came meanwhile: the order of openings is kept.
  arrived_.insert(arrived_.begin(), std::make_move_iterator(waiting_.begin()), std::make_move_iterator(waiting_.end()));
  waiting_.clear();
  return step;
}

/// One at a time: an opening that makes a namespace changes the catalog that the next one is looked up in.
std::optional<RetireRound::Step> RetireRound::answer_arrived(const Catalog& catalog) {
  while (!arrived_.empty()) {
    Waiting next = std::move(arrived_.front());
    arrived_.pop_front();
    Step step;
    RegisterAnswer answer = catalog.ask(next.opening.ask, step.updates);
    if (answer.error.reason == Reason::too_many && waiting_.size() < kMaxWaiting) {
      next.after_round = round_;
      waiting_.push_back(std::move(next));
      continue;
    }
    if (!answer.error) book_.opened(next.opening.client, answer.ns);
    step.answers.push_back({std::move(next.opening), std::move(answer)});
    return step;
  }
  return {};
}

std::optional<RetireRound::Step> RetireRound::choose(const Catalog& catalog) {
  asking_ = false;
  if (waiting_.empty()) return {};  // who asked for the place has left
  const NamespaceBook nobody;
  const auto oldest = (faults_.retire_open ? nobody : book_).oldest(catalog, use_);
  Step step;
  if (oldest) {
    retiring_ = *oldest;
    emptied_.assign(partitions_, false);
    CatalogUpdate retire;
    retire.kind = CatalogUpdate::Kind::retire;
    retire.ns = retiring_;
    step.updates.push_back(std::move(retire));
    return step;
  }
  // All are in use. Who came while the partitions were being asked gets a round of its own: one may have become free since.
  std::deque<Waiting> younger;
  for (Waiting& waits : std::exchange(waiting_, {})) {
    if (waits.after_round >= round_) {
      younger.push_back(std::move(waits));
      continue;
    }
    std::vector<CatalogUpdate> none;  // all places are taken
    RegisterAnswer answer = catalog.ask(waits.opening.ask, none);
    step.answers.push_back({std::move(waits.opening), std::move(answer)});
  }
  waiting_ = std::move(younger);
  return step;
}

std::vector<NamespaceId> EmptiedReport::newly_emptied(const StoreCore& core) {
  const std::vector<NamespaceId> retired = core.catalog().retired();
  std::erase_if(told_, [&](NamespaceId ns) { return std::find(retired.begin(), retired.end(), ns) == retired.end(); });
  std::vector<NamespaceId> fresh;
  for (const NamespaceId ns : retired) {
    if (std::find(told_.begin(), told_.end(), ns) != told_.end() || !core.is_empty(ns)) continue;
    told_.push_back(ns);
    fresh.push_back(ns);
  }
  return fresh;
}

}  // namespace kvonce::protocol
