// SPDX-License-Identifier: Apache-2.0
#include "protocol/store_snapshot.hpp"

#include <xxhash.h>

#include <cstring>
#include <type_traits>

namespace kvonce::protocol {

namespace {

constexpr std::uint64_t kSnapshotMagic = 0x4e53'4543'4e4f'564bULL;  // "KVONCESN" in memory order

std::uint64_t checksum(std::string_view bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

// One description of each struct serves both directions: `io(x)` writes x, or reads it.
class Writer {
 public:
  static constexpr bool kReads = false;
  template <class T>
  void raw(const T& value) {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
    out.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void text(const std::string& value) {
    raw(static_cast<std::uint64_t>(value.size()));
    out.append(value);
  }
  template <class T, class F>
  void list(const std::vector<T>& values, std::uint64_t, F&& each) {
    raw(static_cast<std::uint64_t>(values.size()));
    for (const T& value : values) each(const_cast<T&>(value));
  }
  bool good() const { return true; }
  void fail() {}

  std::string out;
};

class Reader {
 public:
  static constexpr bool kReads = true;
  explicit Reader(std::string_view bytes) : left_(bytes) {}
  template <class T>
  void raw(T& value) {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
    if (left_.size() < sizeof value) return fail();
    if constexpr (std::is_same_v<T, bool>) {
      value = left_.front() != 0;
    } else {
      std::memcpy(&value, left_.data(), sizeof value);
    }
    left_.remove_prefix(sizeof value);
  }
  void text(std::string& value) {
    std::uint64_t size = 0;
    raw(size);
    if (size > left_.size()) return fail();
    value.assign(left_.substr(0, size));
    left_.remove_prefix(size);
  }
  /// `least_bytes` of one element bound what a wrong length makes us allocate.
  template <class T, class F>
  void list(std::vector<T>& values, std::uint64_t least_bytes, F&& each) {
    std::uint64_t size = 0;
    raw(size);
    if (size > left_.size() / least_bytes) return fail();
    values.resize(size);
    for (T& value : values) {
      each(value);
      if (!good_) return;
    }
  }
  bool good() const { return good_; }
  void fail() {
    good_ = false;
    left_ = {};
  }
  bool at_end() const { return left_.empty(); }

 private:
  std::string_view left_;
  bool good_ = true;
};

template <class Io>
void lease_id(Io& io, LeaseId& id) {
  io.raw(id.high);
  io.raw(id.low);
}
template <class Io>
void shards(Io& io, ShardCounts& counts) {
  io.raw(counts.tp);
  io.raw(counts.pp);
  io.raw(counts.cp);
}
template <class Io>
void request(Io& io, RequestKey& key) {
  io.raw(key.engine);
  for (Digest128* digest : {&key.request, &key.digest}) {
    io.raw(digest->high);
    io.raw(digest->low);
  }
}
template <class Io, class T>
void numbers(Io& io, std::vector<T>& values) {
  io.list(values, sizeof(T), [&](T& value) { io.raw(value); });
}

template <class Io>
void update(Io& io, CatalogUpdate& u) {
  io.raw(u.kind);
  io.raw(u.ns);
  io.raw(u.pool);
  io.raw(u.group);
  io.raw(u.generation);
  io.text(u.text);
  if (u.kind == CatalogUpdate::Kind::pool) {
    io.text(u.info.name);
    shards(io, u.info.shards);
    io.raw(u.info.policy.trailing_pages);
    io.raw(u.info.size);
    numbers(io, u.info.range_bytes);
    io.raw(u.info.object_bytes);
    io.raw(u.info.layout_digest);
    io.raw(u.info.generation);
    io.raw(u.info.splittable);
    io.raw(u.info.demoted);
  }
  if (u.kind == CatalogUpdate::Kind::group) {
    io.raw(u.group_info.ns);
    io.text(u.group_info.name);
    io.list(u.group_info.pools, 3, [&](GroupPool& pool) {
      io.raw(pool.pool);
      io.raw(pool.optional);
    });
  }
}

template <class Io>
void slot(Io& io, storage::Slot& s) {
  io.raw(s.count);
  if (s.count > storage::kMaxExtents) return io.fail();
  for (std::uint32_t i = 0; i < s.count; ++i) {
    io.raw(s.extents[i].offset);
    io.raw(s.extents[i].bytes);
  }
}

template <class Io>
void lease(Io& io, Lease& l) {
  io.raw(l.engine);
  io.raw(l.group);
  io.raw(l.expires);
  io.raw(l.ended);
  io.raw(l.stop);
  io.raw(l.narrowed_to);
  io.raw(l.bytes);
  numbers(io, l.stops);
  numbers(io, l.partitions);
  io.raw(l.has_request);
  request(io, l.request);
  io.list(l.loads, 24, [&](Lease::Load& load) {
    io.raw(load.sender);
    io.raw(load.load);
    io.raw(load.deadline);
  });
}

template <class Io>
void kept(Io& io, KeptAnswer& k) {
  io.raw(k.expires);
  lease_id(io, k.lease);
  LookupAnswer& a = k.answer;
  io.raw(a.error);
  io.raw(a.restorable_pages);
  io.raw(a.resident_pages);
  io.raw(a.every_stop);
  numbers(io, a.stops);
  numbers(io, a.leased_stops);
  lease_id(io, a.lease);
  io.raw(a.first_missing);
  io.raw(a.reason);
  io.raw(a.missing_pool);
  io.raw(a.missing_shard);
  io.raw(a.retry_after_ms);
  io.raw(a.optional_missing);
  io.raw(a.redirect);
}

template <class Io>
void layout(Io& io, SnapshotLayout& l) {
  io.raw(l.partition);
  io.raw(l.partitions);
  io.raw(l.index.max_pages);
  io.raw(l.index.max_members);
  io.raw(l.index.max_extent_blocks);
  io.raw(l.index_offset);
  io.raw(l.slots_offset);
  io.raw(l.slots_bytes);
}

template <class Io>
void body(Io& io, SnapshotContents& s) {
  layout(io, s.layout);
  io.raw(s.marks.records);
  io.raw(s.marks.record_limit);
  io.raw(s.marks.member_limit);
  io.raw(s.marks.extent_limit);
  io.raw(s.marks.incarnation);
  io.raw(s.marks.slot_incarnation);
  io.raw(s.marks.digest);
  io.raw(s.last_epoch);
  io.list(s.catalog, 21, [&](CatalogUpdate& u) { update(io, u); });
  io.raw(s.order.newest_stamp);
  io.list(s.order.groups, 16, [&](EvictionOrder::Saved::Group& group) {
    io.raw(group.stamp);
    io.raw(group.nodes);
    io.raw(group.candidates);
  });
  numbers(io, s.order.nodes);
  numbers(io, s.ghosts);
  io.list(s.incomplete, 21, [&](SnapshotContents::Incomplete& entry) {
    io.raw(entry.mixed);
    io.raw(entry.age);
    io.raw(entry.record);
    io.raw(entry.checkpoint);
  });
  io.list(s.sweeps, 17, [&](Sweep& sweep) {
    io.raw(sweep.what);
    io.raw(sweep.ns);
    io.raw(sweep.pool);
    io.raw(sweep.up_to);
    io.raw(sweep.cursor);
  });
  io.list(s.quarantined, 24, [&](SnapshotContents::Quarantined& q) {
    io.raw(q.epoch);
    io.raw(q.client);
    io.raw(q.ns);
    io.raw(q.pool);
    slot(io, q.slot);
  });
  io.list(s.processes, 20, [&](ClientProcess& process) {
    io.raw(process.client);
    io.raw(process.pid);
    io.raw(process.start_time);
  });
  io.list(s.leases, 64, [&](std::pair<LeaseId, Lease>& entry) {
    lease_id(io, entry.first);
    lease(io, entry.second);
  });
  io.list(s.pins, 24, [&](std::pair<LeaseId, PartLease>& entry) {
    lease_id(io, entry.first);
    io.list(entry.second.pages, 10, [&](PartLease::Page& page) {
      io.raw(page.position);
      io.raw(page.record);
      io.raw(page.page);
      io.raw(page.checkpoint);
    });
  });
  io.list(s.kept, 64, [&](std::pair<RequestKey, KeptAnswer>& entry) {
    request(io, entry.first);
    kept(io, entry.second);
  });
  io.list(s.ended_leases, 16, [&](LeaseId& id) { lease_id(io, id); });
}

}  // namespace

SnapshotLayout layout_of(const StoreConfig& config) {
  return {config.partition, config.partitions, config.index, config.index_offset, config.slots_offset, config.slots_bytes};
}

std::string encode_snapshot(const SnapshotContents& contents) {
  Writer out;
  out.raw(kSnapshotMagic);
  out.raw(kSnapshotVersion);
  body(out, const_cast<SnapshotContents&>(contents));  // the writer only reads it
  out.raw(checksum(out.out));
  return std::move(out.out);
}

std::optional<SnapshotContents> decode_snapshot(std::string_view bytes, std::string* why_not) {
  const auto none = [why_not](std::string why) {
    *why_not = std::move(why);
    return std::nullopt;
  };
  std::uint64_t magic = 0, sum = 0;
  std::uint32_t version = 0;
  constexpr std::size_t kFrame = sizeof magic + sizeof version + sizeof sum;
  if (bytes.size() < kFrame) return none("the snapshot has only " + std::to_string(bytes.size()) + " bytes");
  std::memcpy(&magic, bytes.data(), sizeof magic);
  std::memcpy(&version, bytes.data() + sizeof magic, sizeof version);
  std::memcpy(&sum, bytes.data() + bytes.size() - sizeof sum, sizeof sum);
  if (magic != kSnapshotMagic) return none("the bytes are no snapshot of a store");
  if (checksum(bytes.substr(0, bytes.size() - sizeof sum)) != sum) return none("the snapshot's checksum differs: it is cut off or damaged");
  if (version == 0 || version > kSnapshotVersion) {
    return none("the snapshot has format " + std::to_string(version) + "; this release reads formats 1 to " + std::to_string(kSnapshotVersion));
  }
  Reader in(bytes.substr(sizeof magic + sizeof version, bytes.size() - kFrame));
  std::optional<SnapshotContents> contents{std::in_place};
  body(in, *contents);
  if (!in.good() || !in.at_end()) return none("the snapshot contradicts itself: a length in it is wrong");
  return contents;
}

// -- taking one ----------------------------------------------------------------------------------------------------------

std::string StoreCore::snapshot(Time now) const {
  const Impl& s = *impl_;
  const auto left = [now](Time when) { return when > now ? when - now : 0; };
  SnapshotContents to;
  to.layout = layout_of(s.config);
  to.marks = s.index.marks();
  to.last_epoch = s.last_epoch;
  to.catalog = s.catalog.history();
  to.order = s.order.save();
  s.ghost.for_each([&](std::uint64_t fingerprint) { to.ghosts.push_back(fingerprint); });
  for (const auto& entry : s.incomplete) to.incomplete.push_back({entry.mixed, now > entry.since ? now - entry.since : 0, entry.record, entry.checkpoint});
  to.sweeps.assign(s.sweeps.begin(), s.sweeps.end());
  const auto quarantined = [&](const OpenGrant& grant) { to.quarantined.push_back({grant.epoch, grant.client, grant.ns, grant.pool, grant.slot}); };
  for (const Claim& claim : s.claims)
    if (claim.in_use)
      for (const OpenGrant& grant : claim.grants) quarantined(grant);
  for (const auto& [epoch, grant] : s.quarantine) quarantined(grant);
  for (const auto& [client, process] : s.processes) {
    const bool writes = std::any_of(to.quarantined.begin(), to.quarantined.end(), [c = client](const auto& q) { return q.client == c; });
    if (writes) to.processes.push_back(process);
  }
  for (const auto& [id, lease] : s.leases) {
    to.leases.emplace_back(id, lease);
    Lease& saved = to.leases.back().second;
    saved.expires = left(saved.expires);
    saved.end = LeaseBook::kNoNode;
    if (const GroupInfo* group = s.catalog.find_group(lease.group); group != nullptr)
      saved.bytes = lease.stop * s.nominal_bytes(*group, false) + lease.stops.size() * s.nominal_bytes(*group, true);
    for (Lease::Load& load : saved.loads) load.deadline = left(load.deadline);
  }
  to.pins.assign(s.part_leases.begin(), s.part_leases.end());
  for (const auto& [key, answer] : s.kept) {
    if (answer.expires <= now) continue;
    to.kept.emplace_back(key, answer);
    to.kept.back().second.expires = left(answer.expires);
  }
  to.ended_leases.assign(s.ended_leases.begin(), s.ended_leases.end());
  return encode_snapshot(to);
}

// -- before it -----------------------------------------------------------------------------------------------------------

void StoreCore::freeze(Time now, StoreActions& out) {
  Impl& s = *impl_;
  s.frozen = true;
  for (std::uint32_t c = 0; c < s.claims.size(); ++c)
    if (s.claims[c].in_use && s.claims[c].grants.empty()) s.fail_claim(c, Verdict::rejected, Reason::busy, kRetryMs, now, out);
  s.finish_flushes(out);
  s.flush_replies(out);
}

std::uint64_t StoreCore::open_writes() const {
  std::uint64_t open = 0;
  for (std::uint32_t c = impl_->granted_head; c != kNone; c = impl_->claims[c].granted_next) open += impl_->claims[c].grants.size();
  for (const auto& [epoch, grant] : impl_->quarantine) open += grant.sender != kNone ? 1 : 0;
  return open;
}

}  // namespace kvonce::protocol
