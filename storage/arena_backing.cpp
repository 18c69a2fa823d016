// SPDX-License-Identifier: Apache-2.0
#include "storage/arena_backing.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <system_error>

namespace kvonce::storage::backing {

namespace {

// linux/magic.h is not everywhere.
constexpr std::uint64_t kTmpfs = 0x0102'1994;
constexpr std::uint64_t kHugetlbfs = 0x9584'58f6;
constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;
constexpr mode_t kOwnerOnly = 0600;

std::string quoted(const std::string& text) { return "'" + text + "'"; }

// Asked before: the system would tell by SIGXFSZ, which ends a process that does not expect it.
std::string above_file_limit(std::uint64_t bytes) {
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || bytes <= limit.rlim_cur) return {};
  return "this process may make files of " + std::to_string(limit.rlim_cur) + " bytes at most (ulimit -f)";
}

std::uint64_t file_system(const struct statfs& info) {
  return static_cast<std::uint64_t>(info.f_type) & 0xffff'ffffULL;
}

int retry_open(int directory, const char* name, int flags, mode_t mode) {
  int fd = -1;
  do {
    fd = openat(directory, name, flags, mode);
  } while (fd < 0 && errno == EINTR);
  return fd;
}

std::string owner_of(int lock) {
  std::array<char, 24> text{};
  const ssize_t got = pread(lock, text.data(), text.size() - 1, 0);
  std::string pid;
  for (ssize_t i = 0; i < got && text[static_cast<std::size_t>(i)] >= '0' && text[static_cast<std::size_t>(i)] <= '9'; ++i)
    pid.push_back(text[static_cast<std::size_t>(i)]);
  return pid.empty() ? "another process" : "process " + pid;
}

// A regular file of this user that nobody else may write.
std::optional<std::string> check_ours(int fd, const std::string& path) {
  struct stat info {};
  if (fstat(fd, &info) != 0) return failed("looking at " + quoted(path), errno);
  if (!S_ISREG(info.st_mode)) return quoted(path) + " is no regular file; only one is allowed there";
  if (info.st_uid != geteuid()) {
    return quoted(path) + " belongs to user " + std::to_string(info.st_uid) + "; only a file of user " +
           std::to_string(geteuid()) + " is allowed";
  }
  if ((info.st_mode & 022) != 0) {
    std::array<char, 8> mode{};
    std::snprintf(mode.data(), mode.size(), "%04o", info.st_mode & 07777U);
    return quoted(path) + " has mode " + mode.data() + "; others must not be allowed to write it";
  }
  return std::nullopt;
}

}  // namespace

std::string failed(const std::string& what, int error) {
  return what + " failed: " + std::generic_category().message(error);
}

std::optional<Memory> make_memfd(std::uint64_t bytes, bool reserved_huge_pages, std::string* error) {
  const std::string what = " a memory file of " + std::to_string(bytes) + " bytes for the arena";
  Memory memory;
  const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING | (reserved_huge_pages ? MFD_HUGETLB : 0U);
  memory.fd = Descriptor(memfd_create("kvonce-arena", flags));
  struct statfs info {};
  if (!memory.fd || fstatfs(memory.fd.get(), &info) != 0) {
    *error = failed("making" + what + (reserved_huge_pages ? " from reserved huge pages" : ""), errno);
    return std::nullopt;
  }
  memory.page_bytes = reserved_huge_pages ? static_cast<std::uint64_t>(info.f_bsize) : static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  memory.bytes = (bytes + memory.page_bytes - 1) / memory.page_bytes * memory.page_bytes;
  if (std::string wrong = above_file_limit(memory.bytes); !wrong.empty()) {
    *error = "making" + what + " failed: " + wrong;
    return std::nullopt;
  }
  // A memfd can be opened by everybody at first. Who may only read must not find it writable by its name in /proc.
  if (fchmod(memory.fd.get(), kOwnerOnly) != 0 || ftruncate(memory.fd.get(), static_cast<off_t>(memory.bytes)) != 0) {
    *error = failed("sizing" + what, errno);
    return std::nullopt;
  }
  if (fcntl(memory.fd.get(), F_ADD_SEALS, kSizeSeals | F_SEAL_SEAL) != 0) {
    *error = failed("sealing" + what, errno);
    return std::nullopt;
  }
  return memory;
}

// -- named files -----------------------------------------------------------------------------------------------------

std::optional<NamedFile> NamedFile::lock(const std::string& path, std::string* error) {
  NamedFile file;
  file.path_ = path;
  const std::size_t slash = path.rfind('/');
  file.name_ = slash == std::string::npos ? path : path.substr(slash + 1);
  const std::string directory = slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
  if (file.name_.empty() || file.name_ == "." || file.name_ == "..") {
    *error = "the arena's file is " + quoted(path) + "; the path of a file is needed";
    return std::nullopt;
  }
  file.directory_ = Descriptor(retry_open(AT_FDCWD, directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0));
  struct statfs info {};
  if (!file.directory_ || fstatfs(file.directory_.get(), &info) != 0) {
    *error = failed("opening the directory " + quoted(directory) + " of the arena's file", errno);
    return std::nullopt;
  }
  const std::uint64_t kind = file_system(info);
  if (kind != kTmpfs && kind != kHugetlbfs) {
    std::array<char, 24> number{};
    std::snprintf(number.data(), number.size(), "0x%llx", static_cast<unsigned long long>(kind));
    *error = "the arena's file " + quoted(path) + " lies on a file system of type " + number.data() +
             "; only tmpfs and hugetlbfs are allowed, since a disk would be written all the time";
    return std::nullopt;
  }
  file.page_bytes_ = kind == kHugetlbfs ? static_cast<std::uint64_t>(info.f_bsize) : static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));

  // Never removed: whoever waits for a removed lock would share the file with whoever makes a new one.
  const std::string lock_name = file.name_ + ".lock";
  file.lock_ = Descriptor(retry_open(file.directory_.get(), lock_name.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, kOwnerOnly));
  if (!file.lock_) {
    *error = failed("opening the lock " + quoted(path + ".lock"), errno);
    return std::nullopt;
  }
  if (auto wrong = check_ours(file.lock_.get(), path + ".lock")) {
    *error = *std::move(wrong);
    return std::nullopt;
  }
  if (flock(file.lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    *error = errno == EWOULDBLOCK ? "the arena's file " + quoted(path) + " is in use by " + owner_of(file.lock_.get()) +
                                        "; each store needs a file of its own"
                                  : failed("locking " + quoted(path + ".lock"), errno);
    return std::nullopt;
  }
  if (auto wrong = file.lock_named()) {
    *error = *std::move(wrong);
    return std::nullopt;
  }
  // For the message above only; a file system that cannot keep it leaves the owner unnamed.
  const std::string pid = std::to_string(getpid()) + "\n";
  if (ftruncate(file.lock_.get(), 0) == 0) {
    [[maybe_unused]] const ssize_t written = pwrite(file.lock_.get(), pid.data(), pid.size(), 0);
  }
  return file;
}

std::optional<std::string> NamedFile::lock_named() {
  Descriptor named(retry_open(directory_.get(), name_.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0));
  struct stat info {};
  if (!named || fstat(named.get(), &info) != 0 || !S_ISREG(info.st_mode)) return std::nullopt;  // told of elsewhere
  if (flock(named.get(), LOCK_EX | LOCK_NB) == 0) {
    own_lock_ = std::move(named);
    return std::nullopt;
  }
  if (errno != EWOULDBLOCK) return failed("locking " + quoted(path_), errno);
  return "the arena's file " + quoted(path_) + " is in use by another process, though its lock " + quoted(path_ + ".lock") +
         " was removed; each store needs a file of its own";
}

std::optional<Descriptor> NamedFile::make(std::uint64_t bytes, std::string* error) {
  if (std::string wrong = above_file_limit(bytes); !wrong.empty()) {
    *error = "making " + quoted(path_ + ".new") + " failed: " + wrong;
    return std::nullopt;
  }
  const std::string fresh = name_ + ".new";
  unlinkat(directory_.get(), fresh.c_str(), 0);  // of an owner that died while it made one
  Descriptor fd(retry_open(directory_.get(), fresh.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, kOwnerOnly));
  if (!fd) {
    *error = failed("making " + quoted(path_ + ".new"), errno);
    return std::nullopt;
  }
  if (fchmod(fd.get(), kOwnerOnly) != 0 || ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    *error = failed("sizing " + quoted(path_ + ".new") + " to " + std::to_string(bytes) + " bytes", errno);
    discard();
    return std::nullopt;
  }
  // By a descriptor of its own: clients are handed the other, and would hold the lock on when this process has ended.
  Descriptor locked(retry_open(directory_.get(), fresh.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC, 0));
  if (!locked || flock(locked.get(), LOCK_EX | LOCK_NB) != 0) {
    *error = failed("locking " + quoted(path_ + ".new"), errno);
    discard();
    return std::nullopt;
  }
  own_lock_ = std::move(locked);  // that of the file before, which stays in place until publish(), is given up by that
  return fd;
}

std::optional<std::string> NamedFile::make_room(std::uint64_t bytes) {
  const auto room = [this]() -> std::uint64_t {
    struct statfs info {};
    if (fstatfs(directory_.get(), &info) != 0) return 0;
    // A tmpfs without a limit says 0 of 0.
    return info.f_blocks == 0 ? ~std::uint64_t{0} : static_cast<std::uint64_t>(info.f_bavail) * static_cast<std::uint64_t>(info.f_bsize);
  };
  if (page_bytes_ > static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE))) {
    // A hugetlbfs tells of no room, and can hold no snapshot: its old file is of no use, and keeps its pages from the new one.
    unlinkat(directory_.get(), name_.c_str(), 0);
    return std::nullopt;
  }
  if (room() >= bytes) return std::nullopt;
  // What would not help is not done: with the file as large as this no room could be made.
  struct stat old {};
  const bool has_old = fstatat(directory_.get(), name_.c_str(), &old, AT_SYMLINK_NOFOLLOW) == 0;
  const std::uint64_t held = has_old ? static_cast<std::uint64_t>(old.st_blocks) * 512 : 0;
  if (room() + held < bytes)
    return "the arena's file " + quoted(path_) + " of " + std::to_string(bytes) + " bytes has no room on its file system, which has " +
           std::to_string(room()) + " left" + (held != 0 ? ", and " + std::to_string(held) + " in the old file, which is left as it is" : "");
  // The file that is replaced holds memory too, and is of no use any more.
  unlinkat(directory_.get(), name_.c_str(), 0);
  own_lock_ = Descriptor();  // or it would keep the file, and its memory, until this process ends
  const std::uint64_t left = room();
  if (left >= bytes) return std::nullopt;
  return "the arena's file " + quoted(path_) + " of " + std::to_string(bytes) + " bytes has no room on its file system, which has " +
         std::to_string(left) + " left";
}

std::optional<std::string> NamedFile::allocate(int fd, std::uint64_t bytes, const std::function<bool()>& canceled) {
  constexpr std::uint64_t kAtOnce = std::uint64_t{64} << 20;
  for (std::uint64_t at = 0; at < bytes; at += kAtOnce) {
    if (canceled && canceled()) return kTakingCanceled;
    int error = 0;
    do {
      error = fallocate(fd, 0, static_cast<off_t>(at), static_cast<off_t>(std::min(kAtOnce, bytes - at))) == 0 ? 0 : errno;
    } while (error == EINTR);
    if (error != 0) return failed("taking " + std::to_string(bytes) + " bytes of memory for " + quoted(path_), error);
  }
  return std::nullopt;
}

std::optional<std::string> NamedFile::publish() {
  const std::string fresh = name_ + ".new";
  if (renameat(directory_.get(), fresh.c_str(), directory_.get(), name_.c_str()) == 0) return std::nullopt;
  const std::string error = failed("renaming " + quoted(path_ + ".new") + " to " + quoted(path_), errno);
  discard();
  return error;
}

void NamedFile::discard() { unlinkat(directory_.get(), (name_ + ".new").c_str(), 0); }

std::optional<Descriptor> NamedFile::open_existing(std::uint64_t bytes, const std::function<bool()>& canceled, std::string* error) {
  Descriptor fd(retry_open(directory_.get(), name_.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0));
  if (!fd) {
    *error = failed("opening the arena's file " + quoted(path_), errno);
    return std::nullopt;
  }
  if (auto wrong = check_ours(fd.get(), path_)) {
    *error = *std::move(wrong);
    return std::nullopt;
  }
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) {
    *error = failed("looking at " + quoted(path_), errno);
    return std::nullopt;
  }
  if (static_cast<std::uint64_t>(info.st_size) != bytes) {
    *error = "the arena's file " + quoted(path_) + " has " + std::to_string(info.st_size) + " bytes; " + std::to_string(bytes) + " are needed";
    return std::nullopt;
  }
  // Whatever punched holes into it: no access may fail for the lack of memory.
  if (auto wrong = allocate(fd.get(), bytes, canceled)) {
    *error = *std::move(wrong);
    return std::nullopt;
  }
  return fd;
}

// -- others' ---------------------------------------------------------------------------------------------------------

std::optional<std::string> check_foreign(int fd, std::uint64_t bytes, bool sealed, std::uint64_t* page_bytes) {
  const std::string what = "the descriptor of the arena";
  struct stat info {};
  struct statfs system {};
  if (fstat(fd, &info) != 0 || fstatfs(fd, &system) != 0) return failed("looking at " + what, errno);
  const std::uint64_t kind = file_system(system);
  if (!S_ISREG(info.st_mode) || (kind != kTmpfs && kind != kHugetlbfs)) {
    return what + " is no memory: only a memory file, or a file on tmpfs or hugetlbfs, is allowed";
  }
  if (static_cast<std::uint64_t>(info.st_size) != bytes) {
    return what + " has " + std::to_string(info.st_size) + " bytes; " + std::to_string(bytes) + " were announced";
  }
  if (sealed) {
    const int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & kSizeSeals) != kSizeSeals) {
      return what + " has the seals " + std::to_string(std::max(seals, 0)) +
             "; it must be sealed against shrinking and growing, since a shorter one would kill whoever reads it";
    }
  }
  *page_bytes = kind == kHugetlbfs ? static_cast<std::uint64_t>(system.f_bsize) : static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  return std::nullopt;
}

std::optional<std::string> bind_to_node(void* base, std::uint64_t bytes, int node) {
  constexpr int kMostNodes = 1024;
  constexpr int kBind = 2;  // MPOL_BIND; numaif.h comes with libnuma only
  std::string online;
  std::ifstream("/sys/devices/system/node/online") >> online;
  const std::string allowed = online.empty() ? "; this machine has no NUMA nodes, only -1 (none) is allowed"
                                             : "; this machine has the nodes " + online + ", or -1 for none";
  if (node < 0 || node >= kMostNodes) return "the arena's NUMA node is " + std::to_string(node) + allowed;
  struct stat info {};
  const std::string directory = "/sys/devices/system/node/node" + std::to_string(node);
  if (stat(directory.c_str(), &info) != 0) return "the arena's NUMA node is " + std::to_string(node) + allowed;
  std::array<unsigned long, kMostNodes / (8 * sizeof(unsigned long))> mask{};
  constexpr std::size_t kBits = 8 * sizeof(unsigned long);
  mask[static_cast<std::size_t>(node) / kBits] |= 1UL << (static_cast<std::size_t>(node) % kBits);
  // The kernel takes one bit less than it is told.
  if (syscall(SYS_mbind, base, bytes, kBind, mask.data(), static_cast<unsigned long>(kMostNodes) + 1, 0U) != 0) {
    return failed("binding the arena to NUMA node " + std::to_string(node), errno) + allowed;
  }
  return std::nullopt;
}

}  // namespace kvonce::storage::backing
