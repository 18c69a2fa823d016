// SPDX-License-Identifier: Apache-2.0
#include "storage/arena.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <limits>
#include <system_error>

namespace kvonce::storage {

namespace {

std::string failed(const char* what, std::uint64_t bytes, int error) {
  return std::string(what) + " " + std::to_string(bytes) +
         " bytes of arena failed: " + std::generic_category().message(error);
}

// For kernels before 5.14. Adding zero makes the page writable and leaves its bytes alone, also
// when somebody writes to them at this moment.
void touch(std::byte* begin, std::byte* end, std::uint64_t page) {
  for (std::byte* at = begin; at < end; at += page) {
    std::atomic_ref<unsigned char>(*reinterpret_cast<unsigned char*>(at)).fetch_add(0, std::memory_order_relaxed);
  }
}

}  // namespace

ArenaResult Arena::create(const ArenaOptions& options) {
  if (options.bytes == 0) return {std::nullopt, "an arena needs at least one byte"};
  if (options.bytes > static_cast<std::uint64_t>(std::numeric_limits<std::ptrdiff_t>::max()) - 2 * kAlignment) {
    return {std::nullopt, "an arena of " + std::to_string(options.bytes) + " bytes is beyond the address space"};
  }
  const std::uint64_t bytes = (options.bytes + kAlignment - 1) / kAlignment * kAlignment;
  // One alignment more than needed; what lies before and behind the aligned part is given back.
  // No swap is reserved: whether the memory is there is the caller's budget, populate() shows it.
  void* const mapped = mmap(nullptr, bytes + kAlignment, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return {std::nullopt, failed("mapping", bytes, errno)};
  auto* const begin = static_cast<std::byte*>(mapped);
  const std::uint64_t skip = (kAlignment - reinterpret_cast<std::uintptr_t>(begin) % kAlignment) % kAlignment;
  if (skip > 0) munmap(begin, skip);
  munmap(begin + skip + bytes, kAlignment - skip);
  Arena arena(begin + skip, bytes);

  if (madvise(arena.base_, bytes, MADV_DONTFORK) != 0) {
    return {std::nullopt, failed("keeping children away from", bytes, errno)};
  }
  // Advice: a kernel without transparent huge pages refuses it, and small pages work as well.
  if (options.huge_pages == HugePages::madvise) madvise(arena.base_, bytes, MADV_HUGEPAGE);
  if (options.huge_pages == HugePages::off) madvise(arena.base_, bytes, MADV_NOHUGEPAGE);
  if (options.populate) {
    if (auto error = arena.populate(0, bytes)) return {std::nullopt, *std::move(error)};
  }
  return {std::move(arena), {}};
}

Arena& Arena::operator=(Arena&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Arena::~Arena() {
  if (base_ != nullptr) munmap(base_, bytes_);
}

std::optional<std::string> Arena::populate(std::uint64_t offset, std::uint64_t bytes) {
  if (offset > bytes_ || bytes > bytes_ - offset) {
    return "populating " + std::to_string(bytes) + " bytes at " + std::to_string(offset) + ": the arena has " +
           std::to_string(bytes_);
  }
  const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  std::byte* const begin = base_ + offset / page * page;
  std::byte* const end = base_ + (offset + bytes + page - 1) / page * page;
  if (bytes == 0) return std::nullopt;
#ifdef MADV_POPULATE_WRITE
  int error = 0;
  do {
    error = madvise(begin, static_cast<std::size_t>(end - begin), MADV_POPULATE_WRITE) == 0 ? 0 : errno;
  } while (error == EINTR || error == EAGAIN);
  if (error == 0) return std::nullopt;
  if (error != EINVAL) return failed("populating", bytes, error);
#endif
  touch(begin, end, page);
  return std::nullopt;
}

}  // namespace kvonce::storage
