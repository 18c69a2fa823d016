// SPDX-License-Identifier: Apache-2.0
#include "tests/process/helper/rows.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <string>

namespace kvonce::process_test {

namespace {

constexpr std::uintptr_t kPage = 4096;

// What the signal handler sees.
volatile std::uintptr_t g_held = 0;
int g_told[2] = {-1, -1};
int g_release[2] = {-1, -1};

std::uint64_t mix(std::uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9ULL;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

std::uint64_t word_of(const PageHash& page, std::uint64_t salt, std::uint32_t layer, std::uint64_t i) {
  return mix(page.words[i % 4] + salt * 0x9e3779b97f4a7c15ULL + layer * 0x100000001b3ULL + i);
}

// The thread that copies stays in here, in the middle of its slice, until it may go on.
void on_fault(int, siginfo_t* info, void*) {
  const int saved = errno;
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  if (g_held == 0 || address < g_held || address >= g_held + kPage) {
    std::signal(SIGSEGV, SIG_DFL);  // a fault of its own: it comes again
    return;
  }
  char byte = 1;
  while (write(g_told[1], &byte, 1) < 0 && errno == EINTR) {}
  while (read(g_release[0], &byte, 1) < 0 && errno == EINTR) {}
  mprotect(reinterpret_cast<void*>(g_held), kPage, PROT_READ | PROT_WRITE);
  errno = saved;
}

}  // namespace

PageHash page_of(std::uint64_t chain, std::uint64_t i) {
  PageHash page;
  std::uint64_t x = chain * 0x9e3779b97f4a7c15ULL + i + 1;
  for (auto& word : page.words) word = x = mix(x + 0x632be59bd9b4e019ULL);
  return page;
}

RowMemory::RowMemory(std::uint64_t rows, std::uint64_t row_bytes, std::uint32_t layers)
    : rows_(rows), row_bytes_(row_bytes / 8 * 8), layers_(layers) {
  void* const at = mmap(nullptr, rows_ * object_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) std::abort();
  base_ = static_cast<unsigned char*>(at);
}

RowMemory::~RowMemory() { munmap(base_, rows_ * object_bytes()); }

Component RowMemory::component(const std::string& name) {
  Component made;
  made.name = name;
  for (std::uint32_t l = 0; l < layers_; ++l) made.layers.push_back({words(l, 0), row_bytes_, row_bytes_});
  return made;
}

std::uint64_t* RowMemory::words(std::uint32_t layer, std::uint64_t row) const {
  return reinterpret_cast<std::uint64_t*>(base_ + (layer * rows_ + row) * row_bytes_);
}

void RowMemory::fill(std::uint64_t row, const PageHash& page, std::uint64_t salt) {
  for (std::uint32_t l = 0; l < layers_; ++l)
    for (std::uint64_t i = 0; i < row_bytes_ / 8; ++i) words(l, row)[i] = word_of(page, salt, l, i);
}

bool RowMemory::holds(std::uint64_t row, const PageHash& page, std::uint64_t salt) const {
  for (std::uint32_t l = 0; l < layers_; ++l)
    for (std::uint64_t i = 0; i < row_bytes_ / 8; ++i)
      if (words(l, row)[i] != word_of(page, salt, l, i)) return false;
  return true;
}

void RowMemory::clear(std::uint64_t row) {
  for (std::uint32_t l = 0; l < layers_; ++l) std::fill_n(words(l, row), row_bytes_ / 8, std::uint64_t{0});
}

bool RowMemory::hold(std::uint64_t row, std::uint64_t at) {
  if (g_told[0] < 0) {
    if (pipe2(g_told, O_CLOEXEC) != 0 || pipe2(g_release, O_CLOEXEC) != 0) return false;
    struct sigaction action {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    if (sigaction(SIGSEGV, &action, nullptr) != 0) return false;
  }
  g_held = (reinterpret_cast<std::uintptr_t>(words(0, row)) + at) / kPage * kPage;
  return mprotect(reinterpret_cast<void*>(g_held), kPage, PROT_NONE) == 0;
}

bool RowMemory::wait_held(int timeout_ms) {
  pollfd look{g_told[0], POLLIN, 0};
  char byte = 0;
  return poll(&look, 1, timeout_ms) == 1 && read(g_told[0], &byte, 1) == 1;
}

void RowMemory::let_go() {
  const char byte = 1;
  while (write(g_release[1], &byte, 1) < 0 && errno == EINTR) {}
}

}  // namespace kvonce::process_test
