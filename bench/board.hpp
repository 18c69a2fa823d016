// SPDX-License-Identifier: Apache-2.0
//
// A page of memory that a benchmark's processes share: who may start, who waits at a barrier, whose copy stands still.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>

namespace kvonce::bench {

/// Waits until the word is no longer `seen`, or the time is over. Between processes, and safe in a signal handler.
void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t seen, std::chrono::milliseconds time) noexcept;
void futex_wake_all(const std::atomic<std::uint32_t>& word) noexcept;

/// Lies in memory that all processes map; all zero at first.
struct Board {
  static constexpr std::size_t kRanksMax = 64;

  std::atomic<std::uint32_t> started;       // number of the last timed part that may begin
  std::atomic<std::uint32_t> steps;         // barriers passed in lock step
  std::atomic<std::uint32_t> arrived;       // of the next one
  std::atomic<std::uint32_t> gates_opened;  // number of the last round whose copies may go on
  struct alignas(64) PerRank {
    std::atomic<std::uint32_t> at_gate;     // number of the round whose copy stands still
  };
  std::array<PerRank, kRanksMax> ranks;

  void start(std::uint32_t number) noexcept;
  void wait_start(std::uint32_t number) const noexcept;
  /// A barrier of `ranks` processes.
  void step(std::uint32_t ranks) noexcept;
  void open_gates(std::uint32_t number) noexcept;
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

/// A Board in a memory file. Not there (`get() == nullptr`) when the system has none.
class SharedBoard {
 public:
  SharedBoard();                  ///< a new one
  explicit SharedBoard(int fd);   ///< of another process; the descriptor stays the caller's
  ~SharedBoard();
  SharedBoard(const SharedBoard&) = delete;
  SharedBoard& operator=(const SharedBoard&) = delete;
  Board* get() const { return board_; }
  Board* operator->() const { return board_; }
  int fd() const { return fd_; }

 private:
  int fd_ = -1;  // of a new one
  Board* board_ = nullptr;
};

}  // namespace kvonce::bench
