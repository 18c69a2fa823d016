// SPDX-License-Identifier: Apache-2.0
//
// Canonicalizes keys: turns (rank, pool, page) into canonical keys and splits batches over the partitions that own the
// pages. Actor-free; the ShardKeyActor is a shell around it.
#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "protocol/placement.hpp"
#include "protocol/wire.hpp"

namespace kvonce::protocol {

class ShardKeyCore {
 public:
  explicit ShardKeyCore(Placement placement) : placement_(std::move(placement)) {}

  /// The keys of a rank's pool: set at registration, and again after a demotion.
  void set_pool(SenderId sender, std::uint32_t pool, const PoolKeying& keying);
  void forget_sender(SenderId sender);
  const PoolKeying* keying(SenderId sender, std::uint32_t pool) const;

  /// With one partition the page list is moved on, not copied. Items whose pool is unknown come back in `rejected`
  /// (rejected, unknown_pool).
  void canonicalize(PageReady&& ready, std::vector<std::pair<std::uint32_t, PutBatch>>& out,
                    std::vector<ItemVerdict>& rejected) const;
  /// The partition that fixes a lookup's answer: that of its first page.
  std::uint32_t home(NamespaceId ns, const PageHash& first_page) const { return placement_.owner(ns, first_page); }
  const Placement& placement() const { return placement_; }
  void set_placement(Placement placement) { placement_ = std::move(placement); }

  /// A lease names its home partition (lowest 6 bits), so that whoever holds one knows whom to ask.
  static std::uint32_t home_of(const LeaseId& lease) { return static_cast<std::uint32_t>(lease.low & 63U); }

 private:
  Placement placement_;
  std::unordered_map<SenderId, std::vector<PoolKeying>> pools_;
};

/// Digest of (group, hashes): what makes two lookups of one request the same question.
Digest128 lookup_digest(GroupId group, const std::vector<PageHash>& pages);
/// Digest of a text: request ids, engine ids.
Digest128 text_digest(std::string_view text);

}  // namespace kvonce::protocol
