// SPDX-License-Identifier: Apache-2.0
//
// Header and trailer of a slot: 32 bytes, then one checksum per range, right behind the payload. Stamped by the store
// at grant, publish and free; readers compare epoch and incarnation before and after their copy, and the checksums.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "protocol/key.hpp"
#include "storage/slot_shape.hpp"

namespace kvonce::protocol {

enum class SlotState : std::uint32_t { free = 0, granted = 1, published = 2 };

struct SlotHeader {
  std::uint64_t epoch;
  std::uint64_t incarnation;
  std::uint32_t state;          // SlotState
  std::uint32_t ranges;
  std::uint64_t object_bytes;
};
static_assert(sizeof(SlotHeader) == storage::kSlotHeaderBytes);

inline SlotHeader* header_at(std::byte* arena, std::uint64_t footer_offset) {
  return reinterpret_cast<SlotHeader*>(arena + footer_offset);
}

/// Writer (the store): state and epoch are the last words written.
inline void stamp_slot(SlotHeader* header, Epoch epoch, Incarnation incarnation, SlotState state, std::uint32_t ranges,
                       std::uint64_t object_bytes) {
  std::atomic_ref(header->incarnation).store(incarnation, std::memory_order_relaxed);
  std::atomic_ref(header->ranges).store(ranges, std::memory_order_relaxed);
  std::atomic_ref(header->object_bytes).store(object_bytes, std::memory_order_relaxed);
  std::atomic_ref(header->epoch).store(epoch, std::memory_order_release);
  std::atomic_ref(header->state).store(static_cast<std::uint32_t>(state), std::memory_order_release);
}
inline void write_checksum(SlotHeader* header, std::uint32_t range, std::uint64_t checksum) {
  auto* sums = reinterpret_cast<std::uint64_t*>(header + 1);
  std::atomic_ref(sums[range]).store(checksum, std::memory_order_relaxed);
}
inline std::uint64_t read_checksum(const SlotHeader* header, std::uint32_t range) {
  auto* sums = reinterpret_cast<std::uint64_t*>(const_cast<SlotHeader*>(header) + 1);
  return std::atomic_ref(sums[range]).load(std::memory_order_relaxed);
}
/// Reader: is this still the object that was located?
inline bool slot_is(const SlotHeader* header, Epoch epoch, Incarnation incarnation) {
  auto* h = const_cast<SlotHeader*>(header);
  return std::atomic_ref(h->state).load(std::memory_order_acquire) == static_cast<std::uint32_t>(SlotState::published) &&
         std::atomic_ref(h->epoch).load(std::memory_order_acquire) == epoch &&
         std::atomic_ref(h->incarnation).load(std::memory_order_acquire) == incarnation;
}

}  // namespace kvonce::protocol
