// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace kvonce::storage {

// Where an arena's pages come from.
enum class Backing {
  anonymous,  // private memory of this process, gone with it
  memfd,      // shared with whoever is handed fd(); it can neither shrink nor grow; gone with its last user
  file,       // a named file on tmpfs or hugetlbfs, which outlives its owner: for warm restarts
};

enum class HugePages {
  madvise,   // ask for huge pages; without any in the kernel, small ones are used
  off,
  reserved,  // memfd only: the pages that the system keeps for it (hugetlb); an error when they are too few
};

struct ArenaOptions {
  std::uint64_t bytes = 0;  // rounded up to Arena::kAlignment, or to the huge page of a hugetlbfs
  Backing backing = Backing::anonymous;
  HugePages huge_pages = HugePages::madvise;
  bool populate = false;  // take all memory now, so that a lack of it shows here. A file's memory is always taken
  int numa_node = -1;     // all pages on this node; -1: where the kernel puts them
  std::string path{};     // of the file; PATH.lock beside it says who owns it, and stays
  // Looked at while memory is taken: true ends that with the error kTakingCanceled. Empty: never.
  std::function<bool()> canceled{};
};

inline constexpr const char* kTakingCanceled = "taking the memory was canceled";

struct ByteRange {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

// How somebody else's arena is mapped.
struct MapOptions {
  bool read_only = false;
  bool sealed = true;  // it is a memfd: refused when it could shrink under its readers. False for a named file
  // These can be read only, whatever `read_only` says; pages that lie wholly inside, so never more than is named. They keep this
  // process from accidents: it could map the descriptor once more.
  std::vector<ByteRange> protect{};
  HugePages huge_pages = HugePages::madvise;
};

struct ArenaResult;

// Owns a file descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor();

  int get() const { return fd_; }
  int release();
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// Which file this is: another one of the same name has another identity.
struct FileIdentity {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
};

// The memory of a store, mapped as long as this object lives. Not inherited by forked children.
//
// A named file belongs to one arena of one process at a time: a lock on PATH.lock, and one on the file itself for the case that
// somebody removes the first; both are gone with the process. A lock is the open file's: a child that is forked without an exec
// holds it on.
class Arena {
 public:
  // Alignment of the base address and unit of the size.
  static constexpr std::uint64_t kAlignment = std::uint64_t{2} << 20;

  // New, zeroed memory. A named file is a new one too: whoever still has the old one mapped keeps that.
  static ArenaResult create(const ArenaOptions& options);
  // The file of an earlier owner, as it left it: `options.bytes` must be its size.
  static ArenaResult open_existing(const ArenaOptions& options);
  // Somebody else's arena by its descriptor, which stays the caller's; it must have exactly this size.
  static ArenaResult map(int fd, std::uint64_t bytes, const MapOptions& options);

  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena();

  std::byte* base() const { return base_; }
  std::uint64_t bytes() const { return bytes_; }
  // What others map; -1: anonymous, or mapped from another's descriptor.
  int fd() const { return fd_.get(); }
  // For those who may only read: nothing can be mapped writable by it. Processes of the same user can open the memory again
  // by /proc, as they can do anything else to its owner; others cannot.
  Descriptor read_only_fd(std::string* error) const;
  // Of the named file or memfd.
  std::optional<FileIdentity> identity() const;

  // Takes the memory behind [offset, offset + bytes) without changing what it holds; others may
  // read and write it meanwhile. The reason if it cannot be had; pages before may be taken then.
  std::optional<std::string> populate(std::uint64_t offset, std::uint64_t bytes, const std::function<bool()>& canceled = {});

 private:
  struct Mapping {
    Descriptor fd;   // -1: anonymous
    int borrowed = -1;  // somebody else's instead
    std::uint64_t bytes = 0;
    std::uint64_t alignment = kAlignment;
    int protection = 0;
    HugePages huge_pages = HugePages::madvise;
    int numa_node = -1;
  };
  static ArenaResult map_memory(Mapping mapping);

  Arena(std::byte* base, std::uint64_t bytes) : base_(base), bytes_(bytes) {}

  std::byte* base_;
  std::uint64_t bytes_;
  Descriptor fd_;
  Descriptor lock_;
  Descriptor own_lock_;  // of the file itself, by a descriptor that nobody else is handed
  bool foreign_ = false;  // maybe not writable
};

// The arena, or the reason why there is none.
struct ArenaResult {
  std::optional<Arena> arena;
  std::string error;
};

}  // namespace kvonce::storage
