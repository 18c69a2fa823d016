// SPDX-License-Identifier: Apache-2.0
//
// Who leaves next: one order over page sets and checkpoint sets, by (stamp of the last touch, deepest first); of a page and
// its checkpoint with one stamp the checkpoint comes first.
//
// A touch opens a group; touched nodes refer to it. Only candidates (what may leave now; the store says so) are linked into
// their group's list, so touching a long chain costs a few words a page. Nothing is kept per page but record fields 0 to 3.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "protocol/page_index.hpp"

namespace kvonce::protocol {

struct NodeId {
  RecordId record = kNone;
  bool checkpoint = false;
  friend bool operator==(const NodeId&, const NodeId&) = default;
};

class EvictionOrder {
 public:
  explicit EvictionOrder(PageIndex& index);  // the index outlives this

  /// Opens a new group and returns its stamp; stamps only grow and start at 1.
  std::uint64_t begin_touch();
  std::uint64_t newest_stamp() const noexcept { return last_stamp_; }
  /// Moves the node into the newest group; what was no candidate stays none. A node's first touch makes it known.
  void touch_page(RecordId);
  void touch_checkpoint(RecordId);
  /// Before the record is erased, or when its checkpoint set is gone. Unknown nodes are left alone.
  void forget_page(RecordId);
  void forget_checkpoint(RecordId);

  /// Unknown nodes cannot be candidates: nothing happens. Linking looks for its place from the group's deepest on: one step
  /// for a leaf or for a parent that just became one, at worst a step per deeper candidate of the same touch.
  void set_page_candidate(RecordId, bool candidate);
  void set_checkpoint_candidate(RecordId, bool candidate);
  bool is_page_candidate(RecordId) const;
  bool is_checkpoint_candidate(RecordId) const;
  bool has_checkpoint(RecordId) const;  // known to the order

  /// The first candidate, and the one after a candidate; nothing when there is none.
  std::optional<NodeId> victim() const;
  std::optional<NodeId> next_victim(NodeId) const;

  /// Stamp of the last touch; 0 for an unknown node.
  std::uint64_t stamp(RecordId) const;
  std::uint64_t checkpoint_stamp(RecordId) const;

  /// All of it in a form that needs no record field: for a later life.
  struct Saved {
    struct Group {
      std::uint64_t stamp = 0;
      std::uint32_t nodes = 0;
      std::uint32_t candidates = 0;  // the first of its nodes, in their order
    };
    std::uint64_t newest_stamp = 0;
    std::vector<Group> groups;         // by stamp
    std::vector<std::uint32_t> nodes;  // of one group after another: a record, with kCheckpointNode its checkpoint
  };
  static constexpr std::uint32_t kCheckpointNode = 0x8000'0000U;
  Saved save() const;
  /// Into a fresh order, over an index whose record fields are as at insert(). False when it contradicts the index or itself.
  bool restore(const Saved& saved);

  /// Groups that some node refers to (and the newest), for checks and telemetry.
  std::uint32_t groups() const noexcept { return static_cast<std::uint32_t>(groups_.size()) - free_groups_; }

 private:
  // A page's record id, or a checkpoint's number with the top bit set.
  using Link = std::uint32_t;
  using GroupId = std::uint32_t;

  struct Group {
    std::uint64_t stamp = 0;
    Link head = kNone;        // deepest
    Link tail = kNone;
    std::uint32_t nodes = 0;  // that refer to it, linked or not
    GroupId next_free = kNone;
  };
  struct Checkpoint {
    RecordId record = kNone;
    std::uint32_t place[3] = {kNone, kNone, kNone};  // group, prev, next: as the page's fields 0 to 2
  };

  std::uint32_t place(Link, unsigned which) const noexcept;
  void set_place(Link, unsigned which, std::uint32_t value) noexcept;
  Link checkpoint_link(RecordId) const noexcept;  // kNone: has none
  NodeId node(Link) const noexcept;
  bool linked(Link) const noexcept;
  std::uint64_t rank(Link) const noexcept;

  void open_group(std::uint64_t stamp);
  void link(Link);
  void unlink(Link);
  void touch(Link);
  void forget(Link);
  void set_candidate(Link, bool candidate);
  void release(GroupId);
  std::optional<NodeId> first_of(std::map<std::uint64_t, GroupId>::const_iterator) const;

  PageIndex& index_;
  std::vector<Group> groups_;
  std::vector<Checkpoint> checkpoints_;
  GroupId newest_ = 0;
  GroupId free_group_ = kNone;
  std::uint32_t free_groups_ = 0;
  std::uint32_t free_checkpoint_ = kNone;  // chained through place[0]
  std::uint64_t last_stamp_ = 0;
  // Groups with candidates, by stamp. Groups without any can be many (pinned pages), so they must not be walked over.
  std::map<std::uint64_t, GroupId> with_candidates_;
};

}  // namespace kvonce::protocol
