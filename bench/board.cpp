// SPDX-License-Identifier: Apache-2.0
#include "bench/board.hpp"

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <ctime>

namespace kvonce::bench {
namespace {

// A process that waits for a word looks at it again after this.
constexpr std::chrono::milliseconds kBoardLook{200};

Board* map(int fd) {
  void* const got = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return got == MAP_FAILED ? nullptr : static_cast<Board*>(got);  // zeros are a Board's first state
}

}  // namespace

void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t seen, std::chrono::milliseconds time) noexcept {
  const timespec limit{static_cast<time_t>(time.count() / 1'000), static_cast<long>(time.count() % 1'000) * 1'000'000};
  const int kept = errno;
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, &limit, nullptr, 0);
  errno = kept;
}

void futex_wake_all(const std::atomic<std::uint32_t>& word) noexcept {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void Board::start(std::uint32_t number) noexcept {
  started.store(number, std::memory_order_release);
  futex_wake_all(started);
}

void Board::wait_start(std::uint32_t number) const noexcept {
  for (std::uint32_t seen = started.load(std::memory_order_acquire); seen < number; seen = started.load(std::memory_order_acquire))
    futex_wait(started, seen, kBoardLook);
}

void Board::step(std::uint32_t ranks_now) noexcept {
  const std::uint32_t passed = steps.load(std::memory_order_acquire);
  if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == ranks_now) {
    arrived.store(0, std::memory_order_relaxed);
    steps.store(passed + 1, std::memory_order_release);
    futex_wake_all(steps);
    return;
  }
  while (steps.load(std::memory_order_acquire) == passed) futex_wait(steps, passed, kBoardLook);
}

void Board::open_gates(std::uint32_t number) noexcept {
  gates_opened.store(number, std::memory_order_release);
  futex_wake_all(gates_opened);
}

SharedBoard::SharedBoard() : fd_(memfd_create("kvonce-bench", MFD_CLOEXEC)) {
  if (fd_ >= 0 && ftruncate(fd_, sizeof(Board)) == 0) board_ = map(fd_);
}

SharedBoard::SharedBoard(int fd) : board_(map(fd)) {}

SharedBoard::~SharedBoard() {
  if (board_ != nullptr) munmap(board_, sizeof(Board));
  if (fd_ >= 0) close(fd_);
}

}  // namespace kvonce::bench
