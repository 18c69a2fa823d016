// SPDX-License-Identifier: Apache-2.0
//
// What one engine's leases of one page group hold: a page counts once, however many of them begin with it. A tree of the
// leased pages, one node for each run of pages that the same leases hold. Costs a page's hash for each leased page.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <kvonce/types.hpp>

namespace kvonce::protocol {

class LeaseBook {
 public:
  using NodeId = std::uint32_t;
  static constexpr NodeId kNoNode = 0xffff'ffffU;

  /// What is counted already of these pages: the first so many, and the stops among them.
  struct Counted {
    std::uint32_t pages = 0;
    std::vector<std::uint32_t> stops;  // ascending
  };

  LeaseBook();

  Counted counted(std::span<const PageHash> pages) const;
  /// A lease of all these pages (at least one; kept without a copy where none of them is there) and of these stops (ascending, at most pages.size()). Returns where it ends.
  NodeId add(std::vector<PageHash> pages, std::span<const std::uint32_t> stops, std::uint64_t page_bytes, std::uint64_t stop_bytes);
  /// The lease that ends there holds `stop` pages now, at least one, and of its stops only those up to there.
  NodeId narrow(NodeId end, std::uint32_t stop, std::span<const std::uint32_t> stops);
  void remove(NodeId end, std::span<const std::uint32_t> stops);

  std::uint64_t bytes() const noexcept { return bytes_; }
  bool empty() const noexcept { return nodes_[0].children.empty(); }

  /// Whether the tree is what these leases make of it: (end, stops) of each. Empty when it is. For tests.
  std::string audit(std::span<const std::pair<NodeId, std::vector<std::uint32_t>>> leases) const;

 private:
  struct Node {
    NodeId parent = kNoNode;  // kNoNode: the root, or not in use
    std::uint32_t begin = 0;  // pages before it
    std::uint32_t leases = 0;
    std::uint64_t page_bytes = 0, stop_bytes = 0;
    std::vector<PageHash> pages;
    std::vector<std::pair<std::uint32_t, std::uint32_t>> stops;  // (stop, leases that hold it), begin < stop <= end()
    std::unordered_map<PageHash, NodeId> children;               // by their first page
    std::uint32_t end() const { return begin + static_cast<std::uint32_t>(pages.size()); }
    std::uint64_t bytes() const { return pages.size() * page_bytes + stops.size() * stop_bytes; }
  };

  NodeId new_node(NodeId parent, std::uint32_t begin);
  /// The pages up to `stop` become a node of their own, which is returned; what is behind keeps its number, and its leases' ends.
  NodeId split(NodeId at, std::uint32_t stop);
  NodeId holder(NodeId end, std::uint32_t stop) const;  // the node on the way to `end` that has this stop
  void add_stop(NodeId at, std::uint32_t stop);
  void drop_stop(NodeId at, std::uint32_t stop);
  /// One lease less from `end` up to `last`, which is left alone.
  void leave(NodeId end, NodeId last);
  void join_child(NodeId at);  // its pages become the first ones of its only child's, if the same leases hold both

  std::deque<Node> nodes_;  // the root first
  std::vector<NodeId> free_;
  std::uint64_t bytes_ = 0;
};

}  // namespace kvonce::protocol
