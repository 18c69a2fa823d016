// SPDX-License-Identifier: Apache-2.0
//
// How messages become bytes: fixed-width little-endian fields one after another, a 32-bit count before texts and lists.
// Reading checks every length before it allocates and every enumerator before it is used. No CAF in here.
#pragma once

#include <bit>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "protocol/catalog.hpp"
#include "protocol/store_core.hpp"
#include "protocol/wire.hpp"

namespace kvonce::messages {

static_assert(std::endian::native == std::endian::little, "the wire is little-endian and fields are copied as they lie");

// The greatest enumerator of each enum that travels.
constexpr std::uint64_t last_of(AckLevel) { return 2; }
constexpr std::uint64_t last_of(Verdict) { return kVerdictCount - 1; }
constexpr std::uint64_t last_of(Reason) { return kReasonCount - 1; }
constexpr std::uint64_t last_of(protocol::GrantOutcome) { return 2; }
constexpr std::uint64_t last_of(protocol::RemoveAsk::What) { return 3; }
constexpr std::uint64_t last_of(protocol::PoolInfo::Size) { return 2; }
constexpr std::uint64_t last_of(protocol::CatalogUpdate::Kind) { return 5; }
constexpr std::uint64_t last_of(protocol::ObjectEvent::Kind) { return 2; }

/// Plain structs without padding, enums and bools: any bytes are a value, so lists of them are copied as a whole.
template <class T>
inline constexpr bool kRaw = std::is_same_v<T, PageHash> || std::is_same_v<T, protocol::ChainPage> ||
                             std::is_same_v<T, storage::Extent> || std::is_same_v<T, protocol::StoreStats> ||
                             std::is_same_v<T, std::uint64_t> || std::is_same_v<T, std::uint32_t>;
static_assert(std::has_unique_object_representations_v<protocol::ChainPage>);
static_assert(std::has_unique_object_representations_v<PageHash>);
static_assert(std::has_unique_object_representations_v<storage::Extent>);
static_assert(std::has_unique_object_representations_v<protocol::StoreStats>);

// -- the fields of every struct that travels; V is a visitor that takes any number of them -----------------------------

#define KVONCE_FIELDS(Type, ...)                        \
  template <class V, class X>                           \
    requires std::is_same_v<std::remove_const_t<X>, Type> \
  bool each_field(V& visit, X& x) {                     \
    return visit(__VA_ARGS__);                          \
  }
KVONCE_FIELDS(LeaseId, x.high, x.low)
KVONCE_FIELDS(ShardCounts, x.tp, x.pp, x.cp)
KVONCE_FIELDS(HitPolicy, x.trailing_pages)
KVONCE_FIELDS(Error, x.reason, x.text)
KVONCE_FIELDS(protocol::Digest128, x.high, x.low)
KVONCE_FIELDS(protocol::ReadyItem, x.item, x.page, x.pool, x.bytes)
KVONCE_FIELDS(protocol::PageReady, x.sender, x.batch, x.level, x.time_left, x.has_parent, x.parent, x.pages, x.items)
KVONCE_FIELDS(protocol::PutItem, x.item, x.page, x.pool, x.shard, x.generation, x.bytes)
KVONCE_FIELDS(protocol::PutBatch, x.sender, x.batch, x.ns, x.level, x.time_left, x.has_parent, x.parent, x.pages, x.items)
KVONCE_FIELDS(protocol::GrantResult, x.claim, x.epoch, x.outcome, x.first_checksum, x.checksum_count)
KVONCE_FIELDS(protocol::BadObject, x.page, x.epoch, x.ns, x.pool, x.shard)
KVONCE_FIELDS(protocol::GrantResults, x.sender, x.results, x.checksums, x.bad)
KVONCE_FIELDS(protocol::Withdraw::Item, x.batch, x.item)
KVONCE_FIELDS(protocol::Withdraw, x.sender, x.items)
KVONCE_FIELDS(protocol::ChecksumAnswers::Answer, x.ask, x.first_checksum, x.checksum_count)
KVONCE_FIELDS(protocol::ChecksumAnswers, x.sender, x.answers, x.checksums)
KVONCE_FIELDS(protocol::RankName, x.sender, x.pid)
KVONCE_FIELDS(protocol::KeyConflict, x.ns, x.pool, x.first_of_key, x.writer, x.differing)
KVONCE_FIELDS(protocol::Grant, x.batch, x.item, x.claim, x.epoch, x.first_extent, x.extent_count)
KVONCE_FIELDS(protocol::ItemVerdict, x.batch, x.item, x.verdict, x.reason, x.retry_after_ms)
KVONCE_FIELDS(protocol::ChecksumAsk, x.ask, x.batch, x.item)
KVONCE_FIELDS(protocol::Redirect, x.batch, x.item, x.pool, x.generation)
KVONCE_FIELDS(protocol::StoreReply, x.partition, x.grants, x.extents, x.verdicts, x.asks, x.redirects)
KVONCE_FIELDS(protocol::LookupAsk, x.token, x.engine, x.group, x.has_request, x.request, x.digest, x.probe, x.time_left,
              x.lease_time, x.pages_asked, x.pages)
KVONCE_FIELDS(protocol::LookupAnswer, x.token, x.error, x.restorable_pages, x.resident_pages, x.every_stop, x.stops,
              x.leased_stops, x.lease, x.lease_left, x.first_missing, x.reason, x.missing_pool, x.missing_shard,
              x.retry_after_ms, x.optional_missing, x.redirect, x.repeated, x.kept, x.search_again)
KVONCE_FIELDS(protocol::PartLookupAsk, x.token, x.home, x.engine, x.group, x.lease, x.positions, x.pages)
KVONCE_FIELDS(protocol::PartPage, x.position, x.full_pools, x.reason, x.missing_pool, x.missing_shard, x.checkpoint_in_flight)
KVONCE_FIELDS(protocol::PartGap, x.position, x.pool, x.missing_shards, x.first_missing)
KVONCE_FIELDS(protocol::PartLookupAnswer, x.token, x.partition, x.pages, x.gaps)
KVONCE_FIELDS(protocol::PartNarrow, x.lease, x.stop, x.touch_pages, x.trailing_pages, x.stops)
KVONCE_FIELDS(protocol::LeaseCall, x.lease, x.engine, x.stop)
KVONCE_FIELDS(protocol::LoadBegin, x.load, x.sender, x.engine, x.lease, x.time_left)
KVONCE_FIELDS(protocol::LoadBegun, x.load, x.reason, x.leased_pages)
KVONCE_FIELDS(protocol::LoadEnd, x.load, x.sender, x.lease)
KVONCE_FIELDS(protocol::RemoveAsk, x.token, x.what, x.ns, x.pool, x.shard, x.pages)
KVONCE_FIELDS(protocol::RemoveAnswer, x.token, x.removed_objects, x.error)
KVONCE_FIELDS(protocol::FlushAsk, x.token, x.level)
KVONCE_FIELDS(protocol::FlushAnswer, x.token, x.error)
KVONCE_FIELDS(protocol::ObjectEvent, x.kind, x.ns, x.pool, x.shard, x.page)
KVONCE_FIELDS(protocol::AttachPool, x.sender, x.ns, x.pool, x.shard, x.attached)
// Whether it puts is known to the store: it gave the client its descriptors.
KVONCE_FIELDS(protocol::AttachSender, x.sender, x.client, x.engine)
KVONCE_FIELDS(protocol::PoolInfo, x.name, x.shards, x.policy, x.size, x.range_bytes, x.object_bytes, x.layout_digest,
              x.generation, x.splittable, x.demoted)
KVONCE_FIELDS(protocol::GroupPool, x.pool, x.optional)
KVONCE_FIELDS(protocol::GroupInfo, x.ns, x.name, x.pools, x.every_page, x.trailing, x.optional_pools, x.trailing_pages_max)
KVONCE_FIELDS(protocol::NamespaceAsk, x.text, x.find_only)
KVONCE_FIELDS(protocol::NamespaceClose, x.ns)
KVONCE_FIELDS(protocol::PoolAsk, x.ns, x.pool, x.ranks)
KVONCE_FIELDS(protocol::GroupPoolAsk, x.name, x.shards, x.ranks, x.policy, x.optional)
KVONCE_FIELDS(protocol::GroupAsk, x.ns, x.name, x.pools)
KVONCE_FIELDS(protocol::EpochAsk, x.name, x.known)
KVONCE_FIELDS(protocol::CatalogUpdate, x.kind, x.ns, x.pool, x.group, x.generation, x.text, x.info, x.group_info)
KVONCE_FIELDS(protocol::KnownPool, x.pool, x.name, x.shards, x.object_bytes)
KVONCE_FIELDS(protocol::RegisterAnswer, x.error, x.ns, x.pool, x.group, x.generation, x.demoted, x.pools, x.known, x.epoch)

// -- writing and reading -----------------------------------------------------------------------------------------------

class Writer {
 public:
  explicit Writer(std::string& out) : out_(out) {}
  template <class... Ts>
  bool operator()(const Ts&... xs) {
    (put(xs), ...);
    return true;
  }

 private:
  void raw(const void* bytes, std::size_t count) { out_.append(static_cast<const char*>(bytes), count); }
  template <class T>
  void put(const T& x) {
    if constexpr (std::is_enum_v<T>) {
      put(static_cast<std::underlying_type_t<T>>(x));
    } else if constexpr (std::is_same_v<T, bool>) {
      put(static_cast<std::uint8_t>(x));
    } else if constexpr (std::is_integral_v<T> || kRaw<T>) {
      raw(&x, sizeof(T));
    } else if constexpr (std::is_same_v<T, std::string>) {
      put(static_cast<std::uint32_t>(x.size()));
      raw(x.data(), x.size());
    } else {
      each_field(*this, x);
    }
  }
  template <class T>
  void put(const std::vector<T>& xs) {
    put(static_cast<std::uint32_t>(xs.size()));
    if constexpr (kRaw<T>) {
      raw(xs.data(), xs.size() * sizeof(T));
    } else {
      for (const T& x : xs) put(x);
    }
  }

  std::string& out_;
};

class Reader {
 public:
  explicit Reader(std::string_view in) : at_(in.data()), end_(in.data() + in.size()) {}
  template <class... Ts>
  bool operator()(Ts&... xs) {
    return (get(xs) && ...);
  }
  bool at_end() const { return at_ == end_; }

 private:
  std::size_t left() const { return static_cast<std::size_t>(end_ - at_); }
  bool raw(void* bytes, std::size_t count) {
    if (count > left()) return false;
    if (count != 0) std::memcpy(bytes, at_, count);
    at_ += count;
    return true;
  }
  template <class T>
  bool get(T& x) {
    if constexpr (std::is_enum_v<T>) {
      std::underlying_type_t<T> number{};
      if (!get(number) || number > last_of(T{})) return false;
      x = static_cast<T>(number);
      return true;
    } else if constexpr (std::is_same_v<T, bool>) {
      std::uint8_t number = 0;
      if (!get(number) || number > 1) return false;
      x = number != 0;
      return true;
    } else if constexpr (std::is_integral_v<T> || kRaw<T>) {
      return raw(&x, sizeof(T));
    } else if constexpr (std::is_same_v<T, std::string>) {
      std::uint32_t count = 0;
      if (!get(count) || count > left()) return false;
      x.assign(at_, count);
      at_ += count;
      return true;
    } else {
      return each_field(*this, x);
    }
  }
  template <class T>
  bool get(std::vector<T>& xs) {
    std::uint32_t count = 0;
    if (!get(count)) return false;
    if constexpr (kRaw<T>) {
      if (count > left() / sizeof(T)) return false;
      xs.resize(count);
      return raw(xs.data(), count * sizeof(T));
    } else {
      // No element takes less than 5 bytes, so a claimed count cannot allocate much more than what has arrived.
      constexpr std::size_t kLeastBytes = std::is_same_v<T, protocol::GroupPool> ? 3 : 5;
      if (count > left() / kLeastBytes) return false;
      xs.clear();
      xs.reserve(count);
      for (std::uint32_t i = 0; i < count; ++i) {
        T x{};
        if (!get(x)) return false;
        xs.push_back(std::move(x));
      }
      return true;
    }
  }

  const char* at_;
  const char* end_;
};

template <class T>
std::string encode(const T& x) {
  std::string out;
  Writer write(out);
  each_field(write, x);
  return out;
}

/// False when the bytes are no such message, or more than one; `x` may be changed then.
template <class T>
bool decode(std::string_view bytes, T& x) {
  Reader read(bytes);
  return each_field(read, x) && read.at_end();
}

template <class T>
concept Packed = requires(Writer& write, const T& x) {
  { each_field(write, x) } -> std::same_as<bool>;
};

}  // namespace kvonce::messages
