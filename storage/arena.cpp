// SPDX-License-Identifier: Apache-2.0
#include "storage/arena.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <fstream>
#include <limits>
#include <system_error>
#include <utility>

#include "storage/arena_backing.hpp"

namespace kvonce::storage {

namespace {

// Of memory, before it is asked again whether to go on: some tens of milliseconds.
constexpr std::uint64_t kTakenAtOnce = std::uint64_t{64} << 20;

std::string failed(const char* what, std::uint64_t bytes, int error) {
  return std::string(what) + " " + std::to_string(bytes) +
         " bytes of arena failed: " + std::generic_category().message(error);
}

// What a lack of reserved huge pages is told with.
std::string reserved_pages_left() {
  std::ifstream in("/proc/meminfo");
  std::string free = "not known how many";
  std::string size = "their size";
  for (std::string line; std::getline(in, line);) {
    const std::size_t at = line.find_first_of("0123456789");
    if (at == std::string::npos) continue;
    if (line.starts_with("HugePages_Free:")) free = line.substr(at);
    if (line.starts_with("Hugepagesize:")) size = line.substr(at);
  }
  return "; of the reserved huge pages " + free + " of " + size + " are free (vm.nr_hugepages sets how many there are)";
}

// For kernels before 5.14. Adding zero makes the page writable and leaves its bytes alone, also
// when somebody writes to them at this moment.
void touch(std::byte* begin, std::byte* end, std::uint64_t page) {
  for (std::byte* at = begin; at < end; at += page) {
    std::atomic_ref<unsigned char>(*reinterpret_cast<unsigned char*>(at)).fetch_add(0, std::memory_order_relaxed);
  }
}

std::string refused_size(std::uint64_t bytes) {
  if (bytes == 0) return "an arena needs at least one byte";
  if (bytes > static_cast<std::uint64_t>(std::numeric_limits<std::ptrdiff_t>::max()) - 2 * Arena::kAlignment) {
    return "an arena of " + std::to_string(bytes) + " bytes is beyond the address space";
  }
  return {};
}

// What a named file's pages are its file system decides.
std::string refused_pages(const ArenaOptions& options, const backing::NamedFile& file) {
  if (options.huge_pages != HugePages::reserved || file.page_bytes() > static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE))) return {};
  return "reserved huge pages are asked for the arena's file '" + options.path + "', which lies on no hugetlbfs; name a file on one";
}

std::uint64_t round_to(std::uint64_t bytes, std::uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

// -- Descriptor ------------------------------------------------------------------------------------------------------

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}
Descriptor::~Descriptor() {
  if (fd_ >= 0) close(fd_);
}
int Descriptor::release() { return std::exchange(fd_, -1); }

// -- making ----------------------------------------------------------------------------------------------------------

ArenaResult Arena::map_memory(Mapping mapping) {
  // One alignment more than needed; what lies before and behind the aligned part is given back. No swap is reserved: whether
  // the memory is there is the caller's budget, populate() shows it.
  const int fd = mapping.borrowed >= 0 ? mapping.borrowed : mapping.fd.get();
  const std::uint64_t bytes = mapping.bytes;
  void* const reserved = mmap(nullptr, bytes + mapping.alignment, fd < 0 ? mapping.protection : PROT_NONE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return {std::nullopt, failed("mapping", bytes, errno)};
  auto* const begin = static_cast<std::byte*>(reserved);
  const std::uint64_t skip = (mapping.alignment - reinterpret_cast<std::uintptr_t>(begin) % mapping.alignment) % mapping.alignment;
  if (skip > 0) munmap(begin, skip);
  munmap(begin + skip + bytes, mapping.alignment - skip);
  Arena arena(begin + skip, bytes);
  if (fd >= 0 && mmap(arena.base_, bytes, mapping.protection, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
    std::string why = failed("mapping", bytes, errno);
    if (mapping.huge_pages == HugePages::reserved && mapping.borrowed < 0) why += reserved_pages_left();
    return {std::nullopt, std::move(why)};
  }
  if (madvise(arena.base_, bytes, MADV_DONTFORK) != 0) {
    return {std::nullopt, failed("keeping children away from", bytes, errno)};
  }
  // Advice: a kernel without transparent huge pages refuses it, and small pages work as well.
  if (mapping.huge_pages == HugePages::madvise) madvise(arena.base_, bytes, MADV_HUGEPAGE);
  if (mapping.huge_pages == HugePages::off) madvise(arena.base_, bytes, MADV_NOHUGEPAGE);
  if (mapping.numa_node != -1) {
    if (auto error = backing::bind_to_node(arena.base_, bytes, mapping.numa_node)) return {std::nullopt, *std::move(error)};
  }
  arena.fd_ = std::move(mapping.fd);
  return {std::move(arena), {}};
}

ArenaResult Arena::create(const ArenaOptions& options) {
  if (std::string refused = refused_size(options.bytes); !refused.empty()) return {std::nullopt, std::move(refused)};
  if (options.huge_pages == HugePages::reserved && options.backing == Backing::anonymous) {
    return {std::nullopt, "reserved huge pages are asked for an arena that is no memory file"};
  }
  Mapping mapping;
  mapping.bytes = round_to(options.bytes, kAlignment);
  mapping.protection = PROT_READ | PROT_WRITE;
  mapping.huge_pages = options.huge_pages;
  mapping.numa_node = options.numa_node;
  std::string error;
  std::optional<backing::NamedFile> file;
  if (options.backing == Backing::memfd) {
    auto memory = backing::make_memfd(mapping.bytes, options.huge_pages == HugePages::reserved, &error);
    if (!memory) return {std::nullopt, std::move(error)};
    mapping.bytes = memory->bytes;
    mapping.alignment = std::max(kAlignment, memory->page_bytes);
    mapping.fd = std::move(memory->fd);
  } else if (options.backing == Backing::file) {
    file = backing::NamedFile::lock(options.path, &error);
    if (!file) return {std::nullopt, std::move(error)};
    if (std::string wrong = refused_pages(options, *file); !wrong.empty()) return {std::nullopt, std::move(wrong)};
    mapping.alignment = std::max(kAlignment, file->page_bytes());
    mapping.bytes = round_to(options.bytes, mapping.alignment);
    if (auto why = file->make_room(mapping.bytes)) return {std::nullopt, *std::move(why)};
    auto fresh = file->make(mapping.bytes, &error);
    if (!fresh) return {std::nullopt, std::move(error)};
    mapping.fd = *std::move(fresh);
  }
  ArenaResult result = map_memory(std::move(mapping));
  if (file) {
    Arena* const arena = result.arena ? &*result.arena : nullptr;
    if (arena != nullptr) {
      // By the mapping first: it gets huge pages and the right node. What this cannot take the next step tells of.
      static_cast<void>(arena->populate(0, arena->bytes_, options.canceled));
      if (auto why = file->allocate(arena->fd_.get(), arena->bytes_, options.canceled)) result = {std::nullopt, *std::move(why)};
    }
    if (!result.arena) {
      file->discard();
      return result;
    }
    if (auto why = file->publish()) return {std::nullopt, *std::move(why)};
    result.arena->lock_ = file->take_lock();
    result.arena->own_lock_ = file->take_own_lock();
  }
  if (result.arena && options.populate) {
    if (auto why = result.arena->populate(0, result.arena->bytes_, options.canceled)) return {std::nullopt, *std::move(why)};
  }
  return result;
}

ArenaResult Arena::open_existing(const ArenaOptions& options) {
  if (std::string refused = refused_size(options.bytes); !refused.empty()) return {std::nullopt, std::move(refused)};
  if (options.backing != Backing::file) return {std::nullopt, "only a named file outlives its owner; no other arena can be opened again"};
  std::string error;
  auto file = backing::NamedFile::lock(options.path, &error);
  if (!file) return {std::nullopt, std::move(error)};
  if (std::string wrong = refused_pages(options, *file); !wrong.empty()) return {std::nullopt, std::move(wrong)};
  Mapping mapping;
  mapping.alignment = std::max(kAlignment, file->page_bytes());
  mapping.bytes = round_to(options.bytes, mapping.alignment);
  mapping.protection = PROT_READ | PROT_WRITE;
  mapping.huge_pages = options.huge_pages;
  mapping.numa_node = options.numa_node;
  auto existing = file->open_existing(mapping.bytes, options.canceled, &error);
  if (!existing) return {std::nullopt, std::move(error)};
  mapping.fd = *std::move(existing);
  ArenaResult result = map_memory(std::move(mapping));
  if (!result.arena) return result;
  result.arena->lock_ = file->take_lock();
  result.arena->own_lock_ = file->take_own_lock();
  if (options.populate) {
    if (auto why = result.arena->populate(0, result.arena->bytes_, options.canceled)) return {std::nullopt, *std::move(why)};
  }
  return result;
}

ArenaResult Arena::map(int fd, std::uint64_t bytes, const MapOptions& options) {
  if (std::string refused = refused_size(bytes); !refused.empty()) return {std::nullopt, std::move(refused)};
  Mapping mapping;
  std::uint64_t page = 0;
  if (auto why = backing::check_foreign(fd, bytes, options.sealed, &page)) return {std::nullopt, *std::move(why)};
  if (bytes % page != 0) {
    return {std::nullopt, "an arena of " + std::to_string(bytes) + " bytes is announced; whole pages of " + std::to_string(page) + " are needed"};
  }
  mapping.borrowed = fd;
  mapping.bytes = bytes;
  mapping.alignment = std::max(kAlignment, page);
  mapping.protection = PROT_READ | (options.read_only ? 0 : PROT_WRITE);
  mapping.huge_pages = options.huge_pages;
  ArenaResult result = map_memory(std::move(mapping));
  if (!result.arena) return result;
  result.arena->foreign_ = true;
  for (const ByteRange& range : options.protect) {
    if (range.offset > bytes || range.bytes > bytes - range.offset) {
      return {std::nullopt, "protecting " + std::to_string(range.bytes) + " bytes at " + std::to_string(range.offset) +
                                ": the arena has " + std::to_string(bytes)};
    }
    const std::uint64_t begin = round_to(range.offset, page);
    const std::uint64_t end = (range.offset + range.bytes) / page * page;
    if (begin >= end) continue;
    if (mprotect(result.arena->base_ + begin, end - begin, PROT_READ) != 0) {
      return {std::nullopt, failed("protecting", end - begin, errno)};
    }
  }
  return result;
}

// -- Arena -----------------------------------------------------------------------------------------------------------

Arena::Arena(Arena&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      fd_(std::move(other.fd_)),
      lock_(std::move(other.lock_)),
      own_lock_(std::move(other.own_lock_)),
      foreign_(other.foreign_) {}

Arena& Arena::operator=(Arena&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(bytes_, other.bytes_);
  std::swap(fd_, other.fd_);
  std::swap(lock_, other.lock_);
  std::swap(own_lock_, other.own_lock_);
  std::swap(foreign_, other.foreign_);
  return *this;
}

Arena::~Arena() {
  if (base_ != nullptr) munmap(base_, bytes_);
}

Descriptor Arena::read_only_fd(std::string* error) const {
  if (!fd_) {
    *error = "an arena without a descriptor of its own cannot be handed to others";
    return {};
  }
  const std::string path = "/proc/self/fd/" + std::to_string(fd_.get());
  Descriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) *error = backing::failed("opening the arena for reading by " + path, errno);
  return fd;
}

std::optional<FileIdentity> Arena::identity() const {
  struct stat info {};
  if (!fd_ || fstat(fd_.get(), &info) != 0) return std::nullopt;
  return FileIdentity{info.st_dev, info.st_ino};
}

std::optional<std::string> Arena::populate(std::uint64_t offset, std::uint64_t bytes, const std::function<bool()>& canceled) {
  if (offset > bytes_ || bytes > bytes_ - offset) {
    return "populating " + std::to_string(bytes) + " bytes at " + std::to_string(offset) + ": the arena has " +
           std::to_string(bytes_);
  }
  const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  std::byte* const begin = base_ + offset / page * page;
  std::byte* const end = base_ + (offset + bytes + page - 1) / page * page;
  if (bytes == 0) return std::nullopt;
  for (std::byte* at = begin; at < end;) {
    if (canceled && canceled()) return kTakingCanceled;
    std::byte* const next = at + std::min<std::uint64_t>(kTakenAtOnce, static_cast<std::uint64_t>(end - at));
#ifdef MADV_POPULATE_WRITE
    int error = 0;
    do {
      // What another made is there; here it only enters the page table, also where this process may not write.
      error = madvise(at, static_cast<std::size_t>(next - at), foreign_ ? MADV_POPULATE_READ : MADV_POPULATE_WRITE) == 0 ? 0 : errno;
    } while (error == EINTR || error == EAGAIN);
    if (error != 0 && error != EINVAL) return failed("populating", bytes, error);
    if (error == EINVAL && !foreign_) touch(at, next, page);
#else
    if (!foreign_) touch(at, next, page);
#endif
    at = next;
  }
  return std::nullopt;
}

}  // namespace kvonce::storage
