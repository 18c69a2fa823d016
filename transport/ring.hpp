// SPDX-License-Identifier: Apache-2.0
//
// A byte ring in shared memory, one writer and one reader, in two processes that do not trust each other. Frames are
// [bytes, u32][bytes ...] one after another; a frame may be longer than the ring, as it is written and read piece by piece.
//
// What each side keeps for itself counts: its own index never comes from shared memory, and the other's is checked at each look.
// Frames are copied out before anybody looks into them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "transport/fd.hpp"

namespace kvonce::transport {

// One direction's shared words. All values are allowed to be garbage at any time.
struct RingControl {
  alignas(64) std::atomic<std::uint64_t> head;           // bytes ever published; the writer's
  alignas(64) std::atomic<std::uint64_t> tail;           // bytes ever taken; the reader's
  alignas(64) std::atomic<std::uint32_t> reader_sleeps;  // the writer rings when it has published
  alignas(64) std::atomic<std::uint32_t> writer_waits;   // the reader rings when there is room again
};
static_assert(sizeof(RingControl) == 256);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free);

// Where one direction lies.
struct RingPlace {
  RingControl* control = nullptr;
  std::byte* data = nullptr;
  std::uint64_t bytes = 0;  // a power of two
};

// The mapping of both directions: a page with their controls, then the bytes of each.
class RingMemory {
 public:
  RingMemory() = default;
  RingMemory(RingMemory&& other) noexcept;
  RingMemory& operator=(RingMemory&& other) noexcept;
  ~RingMemory();

  // A new sealed memfd (it can neither shrink nor grow). Nothing is mapped when the system refuses; errno says why.
  static RingMemory create(std::uint64_t ring_bytes, UniqueFd& fd);
  // Maps what another process made; only when it is sealed against shrinking and of the right size.
  static RingMemory map(int fd, std::uint64_t ring_bytes);

  explicit operator bool() const { return base_ != nullptr; }
  RingPlace to_server() const;
  RingPlace to_client() const;
  // A power of two from kMinRingBytes to kMaxRingBytes.
  static std::uint64_t round_up(std::uint64_t ring_bytes);

 private:
  void* base_ = nullptr;
  std::uint64_t ring_bytes_ = 0;
};

class RingWriter {
 public:
  explicit RingWriter(RingPlace place) : place_(place) {}

  // Copies as much as there is room for; returns how much. 0 when there is no room or the ring is broken.
  std::size_t write(std::string_view bytes);
  // Lets the reader see what was written. True when it sleeps and has to be woken; then it is taken as awake.
  bool publish();
  // True once the other side's index made no sense.
  bool broken() const { return broken_; }
  // After publish: asks to be rung when there is room. True: there is some already.
  bool wait_for_room();

 private:
  std::uint64_t room();

  RingPlace place_;
  std::uint64_t head_ = 0;
  std::uint64_t seen_tail_ = 0;
  bool broken_ = false;
};

class RingReader {
 public:
  explicit RingReader(RingPlace place) : place_(place) {}

  using Take = std::function<bool(std::string_view)>;
  // Up to max_frames of what is published by now; returns how many. Stops, as broken, when the ring makes no sense or `take`
  // answers false.
  int read(const Take& take, int max_frames);
  bool broken() const { return broken_; }
  // After read: true when the writer waits for room and there is enough; then it is taken as told.
  bool writer_waits();
  // False: there is something to read (or the ring is broken), so do not sleep.
  bool prepare_sleep();
  void cancel_sleep();

 private:
  bool look();
  void copy_out(void* target, std::size_t bytes);
  void publish();

  RingPlace place_;
  std::uint64_t tail_ = 0;
  std::uint64_t told_tail_ = 0;  // what the writer has been told
  std::uint64_t seen_head_ = 0;
  bool broken_ = false;
  std::uint32_t frame_bytes_ = 0;  // of the frame that is being read; 0: its header is not complete
  std::uint32_t header_ = 0;
  std::size_t header_have_ = 0;
  std::string frame_;
};

}  // namespace kvonce::transport
