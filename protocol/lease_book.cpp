// SPDX-License-Identifier: Apache-2.0
#include "protocol/lease_book.hpp"

#include <algorithm>
#include <map>

namespace kvonce::protocol {

LeaseBook::LeaseBook() : nodes_(1) {}

LeaseBook::NodeId LeaseBook::new_node(NodeId parent, std::uint32_t begin) {
  NodeId id = static_cast<NodeId>(nodes_.size());
  if (free_.empty()) {
    nodes_.emplace_back();
  } else {
    id = free_.back();
    free_.pop_back();
  }
  nodes_[id].parent = parent;
  nodes_[id].begin = begin;
  return id;
}

LeaseBook::Counted LeaseBook::counted(std::span<const PageHash> pages) const {
  Counted counted;
  NodeId at = 0;
  while (counted.pages < pages.size()) {
    const auto next = nodes_[at].children.find(pages[counted.pages]);
    if (next == nodes_[at].children.end()) break;
    at = next->second;
    const Node& node = nodes_[at];
    const auto rest = pages.subspan(node.begin);
    const auto same = static_cast<std::uint32_t>(std::mismatch(node.pages.begin(), node.pages.end(), rest.begin(), rest.end()).first - node.pages.begin());
    counted.pages += same;
    for (const auto& [stop, leases] : node.stops)
      if (stop <= counted.pages) counted.stops.push_back(stop);
    if (same < node.pages.size()) break;
  }
  std::sort(counted.stops.begin(), counted.stops.end());
  return counted;
}

LeaseBook::NodeId LeaseBook::add(std::vector<PageHash> pages, std::span<const std::uint32_t> stops, std::uint64_t page_bytes,
                                 std::uint64_t stop_bytes) {
  NodeId at = 0;
  std::uint32_t done = 0;
  const auto count = static_cast<std::uint32_t>(pages.size());
  while (done < count) {
    const auto next = nodes_[at].children.find(pages[done]);
    if (next == nodes_[at].children.end()) {
      const NodeId id = new_node(at, done);
      nodes_[at].children.emplace(pages[done], id);
      Node& node = nodes_[id];
      node.page_bytes = page_bytes;
      node.stop_bytes = stop_bytes;
      if (done == 0 && pages.capacity() <= 2 * pages.size())
        node.pages = std::move(pages);
      else
        node.pages.assign(pages.begin() + done, pages.end());
      bytes_ += node.bytes();
      at = id;
    } else {
      at = next->second;
      const auto rest = std::span(pages).subspan(done);
      const Node& node = nodes_[at];
      const auto same = static_cast<std::uint32_t>(std::mismatch(node.pages.begin(), node.pages.end(), rest.begin(), rest.end()).first - node.pages.begin());
      if (same < node.pages.size()) at = split(at, done + same);
    }
    ++nodes_[at].leases;
    done = nodes_[at].end();
  }
  for (const std::uint32_t stop : stops) add_stop(holder(at, stop), stop);
  return at;
}

LeaseBook::NodeId LeaseBook::split(NodeId at, std::uint32_t stop) {
  const NodeId id = new_node(nodes_[at].parent, nodes_[at].begin);
  Node& upper = nodes_[id];
  Node& lower = nodes_[at];
  const auto cut = lower.pages.begin() + (stop - lower.begin);
  upper.leases = lower.leases;
  upper.page_bytes = lower.page_bytes;
  upper.stop_bytes = lower.stop_bytes;
  upper.pages.assign(lower.pages.begin(), cut);
  lower.pages.erase(lower.pages.begin(), cut);
  lower.begin = stop;
  lower.parent = id;
  const auto behind = std::partition(lower.stops.begin(), lower.stops.end(), [&](const auto& s) { return s.first > stop; });
  upper.stops.assign(behind, lower.stops.end());
  lower.stops.erase(behind, lower.stops.end());
  nodes_[upper.parent].children[upper.pages.front()] = id;
  upper.children.emplace(lower.pages.front(), at);
  return id;
}

void LeaseBook::join_child(NodeId at) {
  if (at == 0 || nodes_[at].children.size() != 1) return;
  const NodeId below = nodes_[at].children.begin()->second;
  Node& upper = nodes_[at];
  Node& lower = nodes_[below];
  // No lease ends between them, and what the one costs the other does too.
  if (lower.leases != upper.leases || lower.page_bytes != upper.page_bytes || lower.stop_bytes != upper.stop_bytes) return;
  lower.pages.insert(lower.pages.begin(), upper.pages.begin(), upper.pages.end());
  lower.stops.insert(lower.stops.end(), upper.stops.begin(), upper.stops.end());
  lower.begin = upper.begin;
  lower.parent = upper.parent;
  nodes_[lower.parent].children[lower.pages.front()] = below;
  nodes_[at] = Node{};
  free_.push_back(at);
}

LeaseBook::NodeId LeaseBook::holder(NodeId end, std::uint32_t stop) const {
  while (nodes_[end].begin >= stop) end = nodes_[end].parent;
  return end;
}

void LeaseBook::add_stop(NodeId at, std::uint32_t stop) {
  Node& node = nodes_[at];
  const auto found = std::find_if(node.stops.begin(), node.stops.end(), [&](const auto& s) { return s.first == stop; });
  if (found != node.stops.end()) {
    ++found->second;
  } else {
    node.stops.emplace_back(stop, 1);
    bytes_ += node.stop_bytes;
  }
}

void LeaseBook::drop_stop(NodeId at, std::uint32_t stop) {
  Node& node = nodes_[at];
  const auto found = std::find_if(node.stops.begin(), node.stops.end(), [&](const auto& s) { return s.first == stop; });
  if (found == node.stops.end() || --found->second != 0) return;
  *found = node.stops.back();
  node.stops.pop_back();
  bytes_ -= node.stop_bytes;
}

void LeaseBook::leave(NodeId end, NodeId last) {
  while (end != last) {
    const NodeId up = nodes_[end].parent;
    Node& node = nodes_[end];
    if (--node.leases == 0) {
      bytes_ -= node.bytes();
      nodes_[up].children.erase(node.pages.front());
      node = Node{};
      free_.push_back(end);
    } else {
      join_child(end);
    }
    end = up;
  }
}

LeaseBook::NodeId LeaseBook::narrow(NodeId end, std::uint32_t stop, std::span<const std::uint32_t> stops) {
  for (const std::uint32_t held : stops)
    if (held > stop) drop_stop(holder(end, held), held);
  NodeId at = holder(end, stop);
  if (nodes_[at].end() > stop) at = split(at, stop);
  leave(end, at);
  return at;
}

void LeaseBook::remove(NodeId end, std::span<const std::uint32_t> stops) {
  for (const std::uint32_t held : stops) drop_stop(holder(end, held), held);
  leave(end, 0);
}

std::string LeaseBook::audit(std::span<const std::pair<NodeId, std::vector<std::uint32_t>>> leases) const {
  std::vector<std::uint32_t> through(nodes_.size(), 0);
  std::map<std::pair<NodeId, std::uint32_t>, std::uint32_t> stops;
  for (const auto& [end, held] : leases) {
    if (end == 0 || end >= nodes_.size() || nodes_[end].leases == 0) return "a lease ends where no leased page is";
    for (NodeId at = end; at != 0; at = nodes_[at].parent) ++through[at];
    for (const std::uint32_t stop : held) {
      if (stop > nodes_[end].end()) return "a leased stop lies behind its lease";
      ++stops[{holder(end, stop), stop}];
    }
  }
  std::uint64_t bytes = 0;
  std::size_t counted = 0;
  for (NodeId id = 1; id < nodes_.size(); ++id) {
    const Node& node = nodes_[id];
    if (node.leases != through[id]) return "a run of leased pages counts other leases than hold it";
    if (node.leases == 0) continue;
    if (node.pages.empty() || node.begin != (node.parent == 0 ? 0 : nodes_[node.parent].end())) return "a run of leased pages does not follow on its parent";
    const auto named = nodes_[node.parent].children.find(node.pages.front());
    if (named == nodes_[node.parent].children.end() || named->second != id) return "a run of leased pages is unknown to its parent";
    for (const auto& [stop, count] : node.stops) {
      const auto found = stops.find({id, stop});
      if (found == stops.end() || found->second != count) return "a leased stop counts other leases than hold it";
      ++counted;
    }
    bytes += node.bytes();
  }
  if (counted != stops.size()) return "a leased stop is not counted";
  if (bytes != bytes_) return "leased bytes of one engine and group: the books say " + std::to_string(bytes_) + ", a scan says " + std::to_string(bytes);
  return {};
}

}  // namespace kvonce::protocol
