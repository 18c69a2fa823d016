// SPDX-License-Identifier: Apache-2.0
#include "bench/gate.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>

namespace kvonce::bench {
namespace {

// What the handler needs; it may run on any thread that copies.
struct Closed {
  std::atomic<Board*> board{nullptr};
  std::atomic<std::size_t> rank{0};
  std::atomic<std::uint32_t> round{0};
  std::atomic<const std::byte*> begin{nullptr};  // of the rows' memory that has closed pages
  std::atomic<const std::byte*> end{nullptr};
  std::size_t page_bytes = 4'096;
};
Closed g_closed;
struct sigaction g_before;

constexpr std::chrono::milliseconds kGateLook{200};

void on_fault(int number, siginfo_t* info, void* context) {
  auto* const at = static_cast<std::byte*>(info->si_addr);
  Board* const board = g_closed.board.load(std::memory_order_acquire);
  if (board == nullptr || at < g_closed.begin.load(std::memory_order_relaxed) || at >= g_closed.end.load(std::memory_order_relaxed)) {
    // Somebody else's fault: as if this handler had never been there.
    sigaction(SIGSEGV, &g_before, nullptr);
    if ((g_before.sa_flags & SA_SIGINFO) != 0 && g_before.sa_sigaction != nullptr) g_before.sa_sigaction(number, info, context);
    return;
  }
  const std::uint32_t round = g_closed.round.load(std::memory_order_relaxed);
  board->ranks[g_closed.rank.load(std::memory_order_relaxed)].at_gate.store(round, std::memory_order_release);
  for (std::uint32_t seen = board->gates_opened.load(std::memory_order_acquire); seen < round;
       seen = board->gates_opened.load(std::memory_order_acquire))
    futex_wait(board->gates_opened, seen, kGateLook);
  const auto address = reinterpret_cast<std::uintptr_t>(at) / g_closed.page_bytes * g_closed.page_bytes;
  mprotect(reinterpret_cast<void*>(address), g_closed.page_bytes, PROT_READ | PROT_WRITE);
}

}  // namespace

Gate::Gate(Board& board, std::size_t rank) {
  g_closed.page_bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  g_closed.rank.store(rank);
  g_closed.board.store(&board);
  struct sigaction action {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, &g_before);
}

Gate::~Gate() {
  open();
  g_closed.board.store(nullptr);
  sigaction(SIGSEGV, &g_before, nullptr);
}

bool Gate::close(std::uint32_t round, const std::vector<std::byte*>& pages) {
  open();
  if (pages.empty()) return true;
  g_closed.round.store(round);
  g_closed.begin.store(pages.front());
  g_closed.end.store(pages.front() + g_closed.page_bytes);
  for (std::byte* const page : pages) {
    if (page < g_closed.begin.load()) g_closed.begin.store(page);
    if (page + g_closed.page_bytes > g_closed.end.load()) g_closed.end.store(page + g_closed.page_bytes);
  }
  for (std::byte* const page : pages) {
    if (mprotect(page, g_closed.page_bytes, PROT_NONE) != 0) return false;
    pages_.push_back(page);
  }
  return true;
}

void Gate::open() {
  for (std::byte* const page : pages_) mprotect(page, g_closed.page_bytes, PROT_READ | PROT_WRITE);
  pages_.clear();
}

}  // namespace kvonce::bench
