// SPDX-License-Identifier: Apache-2.0
//
// The words that callers of kvonce speak: page hashes, shards, verdicts, reasons, levels, leases.
#pragma once

#if __cplusplus < 202002L
#error "the C++ headers of kvonce need C++20 (-std=c++20, CMAKE_CXX_STANDARD 20); C and older C++ have kvonce/kvonce.h"
#endif

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <kvonce/export.hpp>

namespace kvonce {

/// The engine's chained hash of one page: 32 bytes. Salt, LoRA and image inputs are already in it.
struct PageHash {
  std::array<std::uint64_t, 4> words{};  // the 32 bytes in memory order

  friend bool operator==(const PageHash&, const PageHash&) = default;
  friend auto operator<=>(const PageHash&, const PageHash&) = default;

  /// From exactly 32 raw bytes; nothing when the length is another one.
  KVONCE_API static std::optional<PageHash> from_bytes(std::string_view bytes) noexcept;
  /// From exactly 64 hexadecimal digits (either case); nothing otherwise.
  KVONCE_API static std::optional<PageHash> from_hex(std::string_view hex) noexcept;
  /// 64 lower-case hexadecimal digits.
  KVONCE_API std::string to_hex() const;
};

/// Takes 32 raw bytes or 64 hexadecimal digits. On failure `error` names the value's length and what is allowed.
KVONCE_API std::optional<PageHash> parse_page_hash(std::string_view text, std::string* error = nullptr);

/// One axis of a rank's place or of a pool's shard: `index` of `of`. A replicated axis is {0, 1}.
struct AxisPart {
  std::uint16_t index = 0;
  std::uint16_t of = 1;
  friend bool operator==(const AxisPart&, const AxisPart&) = default;
};

/// A place on the three axes tensor, pipeline and context parallel. Data parallelism is no axis: it changes nothing
/// in the bytes. Used for a rank's coordinates and for the shard that a pool declares.
struct Coordinates {
  AxisPart tp{};
  AxisPart pp{};
  AxisPart cp{};
  friend bool operator==(const Coordinates&, const Coordinates&) = default;

  /// Number of different places: tp.of * pp.of * cp.of.
  std::uint32_t count() const noexcept {
    return std::uint32_t{tp.of} * std::uint32_t{pp.of} * std::uint32_t{cp.of};
  }
  /// This place as one number below count(); tp runs fastest.
  std::uint32_t flat() const noexcept {
    return tp.index + std::uint32_t{tp.of} * (pp.index + std::uint32_t{pp.of} * cp.index);
  }
};

/// Number of shards (or of ranks) on each axis. What makes two declarations of one pool name the same pool.
struct ShardCounts {
  std::uint16_t tp = 1;
  std::uint16_t pp = 1;
  std::uint16_t cp = 1;
  std::uint32_t count() const noexcept { return std::uint32_t{tp} * std::uint32_t{pp} * std::uint32_t{cp}; }
  friend auto operator<=>(const ShardCounts&, const ShardCounts&) = default;
};

/// How durable an object must be before its sender is told so.
enum class AckLevel : std::uint8_t { memory = 0, disk = 1, replicated = 2 };

/// What a sender hears per item of a put.
enum class Verdict : std::uint8_t {
  none = 0,        ///< not decided yet (never delivered)
  stored,          ///< stored, from this sender's bytes
  joined,          ///< stored, from another sender's bytes
  already_stored,  ///< was stored at the asked level before; nothing moved
  rejected,        ///< not taken; see reason and retry_after
  conflict,        ///< not the object that is registered under this key (another size)
  failed,          ///< could not be stored; see reason
  unknown,         ///< own deadline passed, or the store was lost, before the outcome was known
};
inline constexpr std::size_t kVerdictCount = 8;

/// Why. One list for puts, lookups and loads, so that a reason means the same on every path.
enum class Reason : std::uint8_t {
  none = 0,
  absent,             ///< never stored here, or forgotten
  evicted,            ///< was stored and has been evicted lately (still in the ghost list)
  in_flight,          ///< being written right now
  busy,               ///< a limit is reached for the moment; see retry_after
  group_incomplete,   ///< the page is there, but a pool or shard of its group is not
  store_lost,         ///< the store has ended or was stopped
  deadline,           ///< the caller's deadline passed
  no_space,           ///< nothing (more) can be evicted for it
  removed,            ///< removed or cleared while it was being written or read
  unverified,         ///< this rank's bytes differ from another rank's for the same key
  level_unavailable,  ///< the store does not have the asked ack level
  unknown_namespace,  ///< the namespace is not registered
  unknown_pool,       ///< the pool is not registered, or has no bytes
  wrong_size,         ///< the object's size is not the registered pool's
  row_out_of_range,   ///< the row lies outside the pool's buffers
  lease_unknown,      ///< no such lease: forged, of another engine, or of another life of the store
  lease_expired,      ///< the lease's deadline has passed, or it was released
  checksum_mismatch,  ///< the bytes read are not those that were written; never handed out
  generation_changed, ///< the pool was demoted to per-rank keys in the meantime
  canceled,           ///< canceled by the caller
  copy_failed,        ///< the copy could not be made
  persist_failed,     ///< the asked level could not be reached (disk full, I/O error)
  closed,             ///< the runtime or pool is closed or closing
  too_many,           ///< above a stated limit
  bad_argument,       ///< the call itself is wrong; the error text names what
};
inline constexpr std::size_t kReasonCount = 26;

KVONCE_API std::string_view to_string(AckLevel level) noexcept;
KVONCE_API std::string_view to_string(Verdict verdict) noexcept;
KVONCE_API std::string_view to_string(Reason reason) noexcept;

/// True for stored, joined and already_stored: the page is readable at the level that was asked for.
constexpr bool is_success(Verdict verdict) noexcept {
  return verdict == Verdict::stored || verdict == Verdict::joined || verdict == Verdict::already_stored;
}

/// Which pages of a prefix a pool must have for the prefix to be restorable.
struct HitPolicy {
  /// 0: every page (attention KV). n > 0: only the last n pages before the stop (sliding window, recurrent state).
  std::uint16_t trailing_pages = 0;
  static constexpr HitPolicy every_page() noexcept { return {0}; }
  static constexpr HitPolicy trailing(std::uint16_t n) noexcept { return {n}; }
  bool is_trailing() const noexcept { return trailing_pages != 0; }
  friend bool operator==(const HitPolicy&, const HitPolicy&) = default;
};

/// Where a buffer lies.
enum class MemoryKind : std::uint8_t { host = 0, hip = 1 };

/// 128 random bits, bound to an engine and to one life of the store.
struct LeaseId {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  friend bool operator==(const LeaseId&, const LeaseId&) = default;
  explicit operator bool() const noexcept { return (high | low) != 0; }
};

/// An error of a call as a whole: what was wrong, with which value, and what is allowed.
struct Error {
  Reason reason = Reason::none;
  std::string text;
  explicit operator bool() const noexcept { return reason != Reason::none; }
};

}  // namespace kvonce

template <>
struct std::hash<kvonce::PageHash> {
  std::size_t operator()(const kvonce::PageHash& page) const noexcept {
    return static_cast<std::size_t>((page.words[0] ^ (page.words[2] << 1)) * 0x9e3779b97f4a7c15ULL ^ page.words[1]);
  }
};
template <>
struct std::hash<kvonce::LeaseId> {
  std::size_t operator()(const kvonce::LeaseId& id) const noexcept {
    return static_cast<std::size_t>(id.high ^ (id.low * 0x9e3779b97f4a7c15ULL));
  }
};
