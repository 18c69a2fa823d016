// SPDX-License-Identifier: Apache-2.0
#include "protocol/eviction_order.hpp"

#include <algorithm>

namespace kvonce::protocol {

namespace {

constexpr std::uint32_t kCheckpointBit = EvictionOrder::kCheckpointNode;
// Stands in `prev` of a node that is in no list; kNone there is a list's head.
constexpr std::uint32_t kUnlinked = 0xffff'fffeU;

// Places, and the page fields that hold them.
constexpr unsigned kGroup = 0;
constexpr unsigned kPrev = 1;
constexpr unsigned kNext = 2;
constexpr unsigned kCheckpointField = 3;

}  // namespace

EvictionOrder::EvictionOrder(PageIndex& index) : index_(index), groups_(1) {}

std::uint32_t EvictionOrder::place(Link n, unsigned which) const noexcept {
  return n & kCheckpointBit ? checkpoints_[n & ~kCheckpointBit].place[which] : index_.field(n, which);
}

void EvictionOrder::set_place(Link n, unsigned which, std::uint32_t value) noexcept {
  if (n & kCheckpointBit)
    checkpoints_[n & ~kCheckpointBit].place[which] = value;
  else
    index_.set_field(n, which, value);
}

EvictionOrder::Link EvictionOrder::checkpoint_link(RecordId record) const noexcept {
  const std::uint32_t number = index_.field(record, kCheckpointField);
  return number == kNone ? kNone : number | kCheckpointBit;
}

NodeId EvictionOrder::node(Link n) const noexcept {
  return n & kCheckpointBit ? NodeId{checkpoints_[n & ~kCheckpointBit].record, true} : NodeId{n, false};
}

bool EvictionOrder::linked(Link n) const noexcept { return place(n, kGroup) != kNone && place(n, kPrev) != kUnlinked; }

std::uint64_t EvictionOrder::rank(Link n) const noexcept {
  const NodeId id = node(n);
  return std::uint64_t{index_.depth(id.record)} * 2 + (id.checkpoint ? 1 : 0);
}

// -- lists -----------------------------------------------------------------------------------------------------------

void EvictionOrder::link(Link n) {
  const GroupId g = place(n, kGroup);
  Group& group = groups_[g];
  const std::uint64_t own_rank = rank(n);
  Link before = kNone;
  Link after = group.head;
  if (after == kNone) {
    with_candidates_.emplace(group.stamp, g);
  } else if (own_rank < rank(group.tail)) {
    before = group.tail;
    after = kNone;
  } else {
    while (after != kNone && rank(after) > own_rank) {
      before = after;
      after = place(after, kNext);
    }
  }
  set_place(n, kPrev, before);
  set_place(n, kNext, after);
  if (before == kNone)
    group.head = n;
  else
    set_place(before, kNext, n);
  if (after == kNone)
    group.tail = n;
  else
    set_place(after, kPrev, n);
}

void EvictionOrder::unlink(Link n) {
  Group& group = groups_[place(n, kGroup)];
  const Link before = place(n, kPrev);
  const Link after = place(n, kNext);
  if (before == kNone)
    group.head = after;
  else
    set_place(before, kNext, after);
  if (after == kNone)
    group.tail = before;
  else
    set_place(after, kPrev, before);
  set_place(n, kPrev, kUnlinked);
  if (group.head == kNone) with_candidates_.erase(group.stamp);
}

void EvictionOrder::release(GroupId g) {
  if (--groups_[g].nodes != 0 || g == newest_) return;
  groups_[g].next_free = free_group_;
  free_group_ = g;
  ++free_groups_;
}

// -- touches ---------------------------------------------------------------------------------------------------------

std::uint64_t EvictionOrder::begin_touch() {
  open_group(last_stamp_ + 1);
  return last_stamp_;
}

void EvictionOrder::open_group(std::uint64_t stamp) {
  if (groups_[newest_].nodes != 0) {
    if (free_group_ != kNone) {
      newest_ = free_group_;
      free_group_ = groups_[newest_].next_free;
      --free_groups_;
    } else {
      newest_ = static_cast<GroupId>(groups_.size());
      groups_.emplace_back();
    }
  }
  groups_[newest_].stamp = last_stamp_ = stamp;
}

void EvictionOrder::touch(Link n) {
  if (last_stamp_ == 0) begin_touch();
  const GroupId old = place(n, kGroup);
  if (old == newest_) return;
  const bool candidate = old != kNone && place(n, kPrev) != kUnlinked;
  if (candidate) unlink(n);
  if (old == kNone) set_place(n, kPrev, kUnlinked);
  set_place(n, kGroup, newest_);
  ++groups_[newest_].nodes;
  if (old != kNone) release(old);
  if (candidate) link(n);
}

void EvictionOrder::touch_page(RecordId record) { touch(record); }

void EvictionOrder::touch_checkpoint(RecordId record) {
  Link n = checkpoint_link(record);
  if (n == kNone) {
    std::uint32_t number = free_checkpoint_;
    if (number != kNone) {
      free_checkpoint_ = checkpoints_[number].place[0];
    } else {
      number = static_cast<std::uint32_t>(checkpoints_.size());
      checkpoints_.emplace_back();
    }
    checkpoints_[number] = Checkpoint{};
    checkpoints_[number].record = record;
    index_.set_field(record, kCheckpointField, number);
    n = number | kCheckpointBit;
  }
  touch(n);
}

void EvictionOrder::forget(Link n) {
  const GroupId g = place(n, kGroup);
  if (g == kNone) return;
  if (linked(n)) unlink(n);
  release(g);
  for (const unsigned which : {kGroup, kPrev, kNext}) set_place(n, which, kNone);
}

void EvictionOrder::forget_page(RecordId record) { forget(record); }

void EvictionOrder::forget_checkpoint(RecordId record) {
  const Link n = checkpoint_link(record);
  if (n == kNone) return;
  forget(n);
  const std::uint32_t number = n & ~kCheckpointBit;
  checkpoints_[number].place[0] = free_checkpoint_;
  free_checkpoint_ = number;
  index_.set_field(record, kCheckpointField, kNone);
}

// -- candidates ------------------------------------------------------------------------------------------------------

void EvictionOrder::set_candidate(Link n, bool candidate) {
  if (place(n, kGroup) == kNone || linked(n) == candidate) return;
  if (candidate)
    link(n);
  else
    unlink(n);
}

void EvictionOrder::set_page_candidate(RecordId record, bool candidate) { set_candidate(record, candidate); }

void EvictionOrder::set_checkpoint_candidate(RecordId record, bool candidate) {
  const Link n = checkpoint_link(record);
  if (n != kNone) set_candidate(n, candidate);
}

bool EvictionOrder::is_page_candidate(RecordId record) const { return linked(record); }

bool EvictionOrder::is_checkpoint_candidate(RecordId record) const {
  const Link n = checkpoint_link(record);
  return n != kNone && linked(n);
}

bool EvictionOrder::has_checkpoint(RecordId record) const { return checkpoint_link(record) != kNone; }

// -- order -----------------------------------------------------------------------------------------------------------

std::optional<NodeId> EvictionOrder::first_of(std::map<std::uint64_t, GroupId>::const_iterator at) const {
  if (at == with_candidates_.end()) return std::nullopt;
  return node(groups_[at->second].head);
}

std::optional<NodeId> EvictionOrder::victim() const { return first_of(with_candidates_.begin()); }

std::optional<NodeId> EvictionOrder::next_victim(NodeId id) const {
  const Link n = id.checkpoint ? checkpoint_link(id.record) : id.record;
  if (n == kNone || !linked(n)) return std::nullopt;
  const Link after = place(n, kNext);
  if (after != kNone) return node(after);
  return first_of(with_candidates_.upper_bound(groups_[place(n, kGroup)].stamp));
}

std::uint64_t EvictionOrder::stamp(RecordId record) const {
  const GroupId g = place(record, kGroup);
  return g == kNone ? 0 : groups_[g].stamp;
}

std::uint64_t EvictionOrder::checkpoint_stamp(RecordId record) const {
  const Link n = checkpoint_link(record);
  return n == kNone ? 0 : groups_[place(n, kGroup)].stamp;
}

// -- later lives -----------------------------------------------------------------------------------------------------

EvictionOrder::Saved EvictionOrder::save() const {
  Saved saved;
  saved.newest_stamp = last_stamp_;
  std::vector<std::pair<std::uint64_t, Link>> others;  // by stamp: known, but no candidates
  const auto look = [&](Link n) {
    if (place(n, kGroup) != kNone && !linked(n)) others.emplace_back(groups_[place(n, kGroup)].stamp, n);
  };
  index_.for_each([&](RecordId record) {
    look(record);
    if (const Link n = checkpoint_link(record); n != kNone) look(n);
  });
  std::sort(others.begin(), others.end());
  const auto name = [this](Link n) { return n & kCheckpointBit ? checkpoints_[n & ~kCheckpointBit].record | kCheckpointNode : n; };
  auto other = others.begin();
  auto candidates = with_candidates_.begin();
  while (other != others.end() || candidates != with_candidates_.end()) {
    Saved::Group group;
    group.stamp = ~std::uint64_t{0};
    if (other != others.end()) group.stamp = other->first;
    if (candidates != with_candidates_.end()) group.stamp = std::min(group.stamp, candidates->first);
    if (candidates != with_candidates_.end() && candidates->first == group.stamp) {
      for (Link n = groups_[candidates->second].head; n != kNone; n = place(n, kNext), ++group.candidates) saved.nodes.push_back(name(n));
      ++candidates;
    }
    group.nodes = group.candidates;
    for (; other != others.end() && other->first == group.stamp; ++other, ++group.nodes) saved.nodes.push_back(name(other->second));
    saved.groups.push_back(group);
  }
  return saved;
}

bool EvictionOrder::restore(const Saved& saved) {
  std::size_t at = 0;
  for (const Saved::Group& group : saved.groups) {
    if (group.stamp <= last_stamp_ || group.candidates > group.nodes || group.nodes > saved.nodes.size() - at) return false;
    open_group(group.stamp);
    // Last first: each candidate then goes to the head of its list, and equals keep their order.
    for (std::size_t i = group.nodes; i-- > 0;) {
      const std::uint32_t node = saved.nodes[at + i];
      const RecordId record = node & ~kCheckpointNode;
      const bool checkpoint = (node & kCheckpointNode) != 0;
      if (!index_.in_use(record) || (checkpoint ? has_checkpoint(record) : index_.field(record, kGroup) != kNone)) return false;
      checkpoint ? touch_checkpoint(record) : touch_page(record);
      if (i < group.candidates) checkpoint ? set_checkpoint_candidate(record, true) : set_page_candidate(record, true);
    }
    at += group.nodes;
  }
  if (at != saved.nodes.size() || saved.newest_stamp < last_stamp_) return false;
  if (saved.newest_stamp > last_stamp_) open_group(saved.newest_stamp);
  return true;
}

}  // namespace kvonce::protocol
