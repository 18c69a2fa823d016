// SPDX-License-Identifier: Apache-2.0
#include "transport/ring.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>

#include "transport/handshake.hpp"
#include "transport/link.hpp"

namespace kvonce::transport {
namespace {

constexpr std::uint64_t kControlBytes = 4096;
constexpr std::size_t kHeaderBytes = sizeof(std::uint32_t);
constexpr std::size_t kKeptFrameBytes = 64U << 10U;  // a longer frame's buffer is given back after it
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

std::uint64_t mapped_bytes(std::uint64_t ring_bytes) { return kControlBytes + 2 * ring_bytes; }

void* map_shared(int fd, std::uint64_t ring_bytes) {
  void* base = ::mmap(nullptr, mapped_bytes(ring_bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) return nullptr;
  return base;
}

// What was copied out of shared memory is not read from there a second time, whatever the other process does to it meanwhile.
void compiler_barrier() { std::atomic_signal_fence(std::memory_order_seq_cst); }

}  // namespace

RingMemory::RingMemory(RingMemory&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)), ring_bytes_(other.ring_bytes_) {}

RingMemory& RingMemory::operator=(RingMemory&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(ring_bytes_, other.ring_bytes_);
  return *this;
}

RingMemory::~RingMemory() {
  if (base_ != nullptr) ::munmap(base_, mapped_bytes(ring_bytes_));
}

std::uint64_t RingMemory::round_up(std::uint64_t ring_bytes) {
  return std::bit_ceil(std::clamp(ring_bytes, kMinRingBytes, kMaxRingBytes));
}

RingMemory RingMemory::create(std::uint64_t ring_bytes, UniqueFd& fd) {
  RingMemory memory;
  fd = UniqueFd{::memfd_create("kvonce-link", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
  if (!fd) return memory;
  if (::ftruncate(fd.get(), static_cast<off_t>(mapped_bytes(ring_bytes))) != 0) return memory;
  if (::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) return memory;
  memory.base_ = map_shared(fd.get(), ring_bytes);
  memory.ring_bytes_ = ring_bytes;
  return memory;
}

RingMemory RingMemory::map(int fd, std::uint64_t ring_bytes) {
  RingMemory memory;
  if (ring_bytes < kMinRingBytes || ring_bytes > kMaxRingBytes || !std::has_single_bit(ring_bytes)) return memory;
  struct stat status {};
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || ::fstat(fd, &status) != 0 ||
      static_cast<std::uint64_t>(status.st_size) < mapped_bytes(ring_bytes)) {
    return memory;
  }
  memory.base_ = map_shared(fd, ring_bytes);
  memory.ring_bytes_ = ring_bytes;
  return memory;
}

// The zeros of a new memfd are the controls' first values; the objects are only named here.
RingPlace RingMemory::to_server() const {
  auto* bytes = static_cast<std::byte*>(base_);
  return {std::launder(reinterpret_cast<RingControl*>(bytes)), bytes + kControlBytes, ring_bytes_};
}
RingPlace RingMemory::to_client() const {
  auto* bytes = static_cast<std::byte*>(base_);
  return {std::launder(reinterpret_cast<RingControl*>(bytes + sizeof(RingControl))), bytes + kControlBytes + ring_bytes_,
          ring_bytes_};
}

// -- writer ----------------------------------------------------------------------------------------------------------------

std::uint64_t RingWriter::room() {
  const std::uint64_t used = head_ - seen_tail_;
  if (used > place_.bytes) {
    broken_ = true;
    return 0;
  }
  return place_.bytes - used;
}

std::size_t RingWriter::write(std::string_view bytes) {
  if (broken_) return 0;
  if (room() < bytes.size()) { seen_tail_ = place_.control->tail.load(std::memory_order_acquire); }
  const std::size_t count = std::min<std::uint64_t>(bytes.size(), room());
  if (count == 0) return 0;
  const std::uint64_t at = head_ & (place_.bytes - 1);
  const std::size_t first = std::min<std::uint64_t>(count, place_.bytes - at);
  std::memcpy(place_.data + at, bytes.data(), first);
  if (count != first) std::memcpy(place_.data, bytes.data() + first, count - first);
  head_ += count;
  return count;
}

bool RingWriter::publish() {
  // Sequentially consistent, as is the look at reader_sleeps after it: the reader sets its flag and then looks at the head. One
  // of the two sees the other's store, so no frame is left lying beside a sleeping reader.
  place_.control->head.store(head_, std::memory_order_seq_cst);
  return place_.control->reader_sleeps.load(std::memory_order_seq_cst) != 0 &&
         place_.control->reader_sleeps.exchange(0, std::memory_order_seq_cst) != 0;
}

bool RingWriter::wait_for_room() {
  place_.control->writer_waits.store(1, std::memory_order_seq_cst);
  seen_tail_ = place_.control->tail.load(std::memory_order_seq_cst);  // after the flag: see RingReader::publish
  if (room() == 0 && !broken_) return false;
  place_.control->writer_waits.store(0, std::memory_order_relaxed);
  return true;
}

// -- reader ----------------------------------------------------------------------------------------------------------------

bool RingReader::look() {
  if (broken_) return false;
  const std::uint64_t head = place_.control->head.load(std::memory_order_seq_cst);
  // Never back, and never further than the writer has been told that there is room.
  if (head - tail_ < seen_head_ - tail_ || head - told_tail_ > place_.bytes) {
    broken_ = true;
    return false;
  }
  seen_head_ = head;
  return true;
}

void RingReader::copy_out(void* target, std::size_t bytes) {
  const std::uint64_t at = tail_ & (place_.bytes - 1);
  const std::size_t first = std::min<std::uint64_t>(bytes, place_.bytes - at);
  std::memcpy(target, place_.data + at, first);
  if (bytes != first) std::memcpy(static_cast<std::byte*>(target) + first, place_.data, bytes - first);
  compiler_barrier();
  tail_ += bytes;
}

void RingReader::publish() {
  if (told_tail_ == tail_) return;
  told_tail_ = tail_;
  place_.control->tail.store(tail_, std::memory_order_seq_cst);  // before the look at writer_waits, as in RingWriter::publish
}

int RingReader::read(const Take& take, int max_frames) {
  int taken = 0;
  if (!look()) return 0;
  while (taken < max_frames && tail_ != seen_head_) {
    std::uint64_t left = seen_head_ - tail_;
    if (frame_bytes_ == 0) {
      const std::size_t count = std::min<std::uint64_t>(left, kHeaderBytes - header_have_);
      copy_out(reinterpret_cast<char*>(&header_) + header_have_, count);
      header_have_ += count;
      if (header_have_ != kHeaderBytes) break;
      if (header_ == 0 || header_ > kMaxFrameBytes) {
        broken_ = true;
        break;
      }
      frame_bytes_ = header_;
      header_have_ = 0;
      frame_.clear();
      left = seen_head_ - tail_;
    }
    // Grows with what has arrived, not with what was announced.
    const std::size_t have = frame_.size();
    const std::size_t count = std::min<std::uint64_t>(left, frame_bytes_ - have);
    frame_.resize(have + count);
    if (count != 0) copy_out(frame_.data() + have, count);
    if (tail_ - told_tail_ >= place_.bytes / 4) publish();
    if (frame_.size() != frame_bytes_) break;
    frame_bytes_ = 0;
    ++taken;
    if (!take(frame_)) {
      broken_ = true;
      break;
    }
    if (frame_.capacity() > kKeptFrameBytes) std::string{}.swap(frame_);
  }
  publish();
  return taken;
}

bool RingReader::writer_waits() {
  if (place_.control->writer_waits.load(std::memory_order_seq_cst) == 0) return false;
  // Half a ring at a time, so that a full ring does not cost a bell for each frame. What is left is read later, and asked here.
  if (seen_head_ - told_tail_ > place_.bytes / 2) return false;
  return place_.control->writer_waits.exchange(0, std::memory_order_seq_cst) != 0;
}

bool RingReader::prepare_sleep() {
  place_.control->reader_sleeps.store(1, std::memory_order_seq_cst);
  if (place_.control->head.load(std::memory_order_seq_cst) == tail_ && !broken_) return true;
  cancel_sleep();
  return false;
}

void RingReader::cancel_sleep() { place_.control->reader_sleeps.store(0, std::memory_order_relaxed); }

}  // namespace kvonce::transport
