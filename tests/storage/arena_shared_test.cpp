// SPDX-License-Identifier: Apache-2.0
//
// Arenas that several processes share: memory files, named files, mappings of another's descriptor.
#include <doctest/doctest.h>

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "storage/arena.hpp"

using namespace kvonce::storage;

namespace {

constexpr std::uint64_t kUnit = Arena::kAlignment;

struct TemporaryDirectory {
  explicit TemporaryDirectory(const std::string& where) {
    std::string name = where + "/kvonce-arena-XXXXXX";
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path); }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  std::string path;
};

ArenaOptions file_options(const std::string& path, std::uint64_t bytes = 2 * kUnit) {
  ArenaOptions options;
  options.bytes = bytes;
  options.backing = Backing::file;
  options.huge_pages = HugePages::off;
  options.path = path;
  return options;
}

ArenaOptions memfd_options(std::uint64_t bytes = 2 * kUnit) {
  ArenaOptions options;
  options.bytes = bytes;
  options.backing = Backing::memfd;
  options.huge_pages = HugePages::off;
  return options;
}

// Runs `body` in a child and returns its wait status; the child ends with what `body` returns.
int in_child(const std::function<int()>& body) {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    signal(SIGSEGV, SIG_DFL);  // a sanitizer's handler would turn the signal into an exit
    signal(SIGBUS, SIG_DFL);
    _exit(body());
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  return status;
}

bool exited_with(int status, int code) { return WIFEXITED(status) && WEXITSTATUS(status) == code; }

}  // namespace

TEST_CASE("a memory file is shared with whoever maps its descriptor, and can neither shrink nor grow") {
  auto [arena, error] = Arena::create(memfd_options());
  REQUIRE_MESSAGE(arena, error);
  CHECK(arena->bytes() == 2 * kUnit);
  CHECK(reinterpret_cast<std::uintptr_t>(arena->base()) % kUnit == 0);
  CHECK(arena->identity());
  CHECK(ftruncate(arena->fd(), kUnit) == -1);
  CHECK(ftruncate(arena->fd(), 4 * kUnit) == -1);
  CHECK(fcntl(arena->fd(), F_ADD_SEALS, F_SEAL_WRITE) == -1);
  CHECK((fcntl(arena->fd(), F_GETFD) & FD_CLOEXEC) != 0);

  auto mapped = Arena::map(arena->fd(), arena->bytes(), {});
  REQUIRE_MESSAGE(mapped.arena, mapped.error);
  CHECK(reinterpret_cast<std::uintptr_t>(mapped.arena->base()) % kUnit == 0);
  CHECK(mapped.arena->fd() == -1);
  arena->base()[kUnit + 3] = std::byte{42};
  CHECK(mapped.arena->base()[kUnit + 3] == std::byte{42});
  mapped.arena->base()[7] = std::byte{9};
  CHECK(arena->base()[7] == std::byte{9});
  CHECK_FALSE(mapped.arena->populate(0, mapped.arena->bytes()));
  CHECK(mapped.arena->base()[7] == std::byte{9});

  Arena moved = *std::move(mapped.arena);
  mapped.arena.reset();
  arena.reset();
  CHECK(moved.base()[kUnit + 3] == std::byte{42});  // whoever has it mapped keeps it
}

TEST_CASE("what is no arena of the announced size is not mapped") {
  auto made = Arena::create(memfd_options());
  REQUIRE(made.arena);
  const int fd = made.arena->fd();
  CHECK(Arena::map(fd, kUnit, {}).error == "the descriptor of the arena has 4194304 bytes; 2097152 were announced");
  CHECK(Arena::map(fd, 0, {}).error == "an arena needs at least one byte");
  CHECK(Arena::map(fd, ~std::uint64_t{0}, {}).error == "an arena of 18446744073709551615 bytes is beyond the address space");
  CHECK(Arena::map(-1, kUnit, {}).error == "looking at the descriptor of the arena failed: Bad file descriptor");
  MapOptions beyond;
  beyond.protect = {{kUnit, 2 * kUnit}};
  CHECK(Arena::map(fd, 2 * kUnit, beyond).error == "protecting 4194304 bytes at 2097152: the arena has 4194304");

  const Descriptor unsealed(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(ftruncate(unsealed.get(), kUnit) == 0);
  const auto open = Arena::map(unsealed.get(), kUnit, {});
  CHECK_FALSE(open.arena);
  CHECK(open.error.find("it must be sealed against shrinking and growing") != std::string::npos);
  MapOptions named;
  named.sealed = false;
  CHECK(Arena::map(unsealed.get(), kUnit, named).arena);

  int pipes[2];
  REQUIRE(pipe(pipes) == 0);
  CHECK(Arena::map(pipes[0], kUnit, {}).error.find("is no memory") != std::string::npos);
  close(pipes[0]);
  close(pipes[1]);
}

TEST_CASE("a descriptor for reading cannot be mapped writable") {
  std::string error;
  auto made = Arena::create(memfd_options());
  REQUIRE(made.arena);
  made.arena->base()[5] = std::byte{17};
  const Descriptor reading = made.arena->read_only_fd(&error);
  REQUIRE_MESSAGE(reading, error);
  CHECK(mmap(nullptr, kUnit, PROT_READ | PROT_WRITE, MAP_SHARED, reading.get(), 0) == MAP_FAILED);
  CHECK(errno == EACCES);
  CHECK_FALSE(Arena::map(reading.get(), 2 * kUnit, {}).arena);
  MapOptions options;
  options.read_only = true;
  auto mapped = Arena::map(reading.get(), 2 * kUnit, options);
  REQUIRE_MESSAGE(mapped.arena, mapped.error);
  CHECK(mapped.arena->base()[5] == std::byte{17});
  CHECK_FALSE(mapped.arena->populate(0, 2 * kUnit));
  CHECK(mprotect(mapped.arena->base(), kUnit, PROT_READ | PROT_WRITE) == -1);
  // Another user cannot open it anew by /proc either.
  struct stat info {};
  REQUIRE(fstat(reading.get(), &info) == 0);
  CHECK((info.st_mode & 07777U) == 0600);

  auto anonymous = Arena::create({.bytes = kUnit});
  REQUIRE(anonymous.arena);
  CHECK_FALSE(anonymous.arena->read_only_fd(&error));
  CHECK(error == "an arena without a descriptor of its own cannot be handed to others");
  CHECK_FALSE(anonymous.arena->identity());
}

TEST_CASE("a client that writes to a protected range faults, and nowhere else") {
  auto made = Arena::create(memfd_options());
  REQUIRE(made.arena);
  const int fd = made.arena->fd();
  MapOptions options;
  options.protect = {{0, 8'192}, {kUnit + 100, 4'096 + 50}};  // of the second, no page lies wholly inside
  std::byte* const own = made.arena->base();
  const auto write_at = [&](std::uint64_t offset) {
    return in_child([&, offset] {
      auto mapped = Arena::map(fd, 2 * kUnit, options);
      if (!mapped.arena) return 1;
      volatile std::byte* const at = mapped.arena->base() + offset;
      *at = std::byte{1};
      return 0;
    });
  };
  for (const std::uint64_t offset : {std::uint64_t{0}, std::uint64_t{8'191}}) {
    const int status = write_at(offset);
    CHECK(WIFSIGNALED(status));
    CHECK((WIFSIGNALED(status) ? WTERMSIG(status) : 0) == SIGSEGV);
    CHECK(own[offset] == std::byte{0});
  }
  for (const std::uint64_t offset : {std::uint64_t{8'192}, kUnit - 1, kUnit + 200, 2 * kUnit - 1}) {
    CHECK(exited_with(write_at(offset), 0));
    CHECK(own[offset] == std::byte{1});
  }
}

// In a child ThreadSanitizer takes memory of its own, also where the arena was.
#if !defined(__SANITIZE_THREAD__)
TEST_CASE("a forked child has neither the arena nor a mapping of it") {
  auto made = Arena::create(memfd_options());
  REQUIRE(made.arena);
  auto mapped = Arena::map(made.arena->fd(), 2 * kUnit, {});
  REQUIRE(mapped.arena);
  std::byte* const first = made.arena->base();
  std::byte* const second = mapped.arena->base();
  CHECK(exited_with(in_child([first, second] {
          unsigned char state = 0;
          return mincore(first, 1, &state) == 0 || mincore(second, 1, &state) == 0 ? 1 : 0;
        }),
        0));
}
#endif

TEST_CASE("a named file outlives its owner with its bytes") {
  const TemporaryDirectory directory("/dev/shm");
  const std::string path = directory.path + "/arena";
  FileIdentity first;
  {
    auto made = Arena::create(file_options(path));
    REQUIRE_MESSAGE(made.arena, made.error);
    struct stat info {};
    REQUIRE(stat(path.c_str(), &info) == 0);
    CHECK((info.st_mode & 07777U) == 0600);
    CHECK(static_cast<std::uint64_t>(info.st_size) == 2 * kUnit);
    CHECK(static_cast<std::uint64_t>(info.st_blocks) * 512 >= 2 * kUnit);  // all of its memory is taken
    CHECK_FALSE(std::filesystem::exists(path + ".new"));
    made.arena->base()[kUnit] = std::byte{33};
    first = *made.arena->identity();
  }
  {
    auto again = Arena::open_existing(file_options(path));
    REQUIRE_MESSAGE(again.arena, again.error);
    CHECK(again.arena->base()[kUnit] == std::byte{33});
    CHECK(*again.arena->identity() == first);
  }
  CHECK(Arena::open_existing(file_options(path, 3 * kUnit)).error ==
        "the arena's file '" + path + "' has 4194304 bytes; 6291456 are needed");
  CHECK(Arena::open_existing(file_options(path + "x")).error ==
        "opening the arena's file '" + path + "x' failed: No such file or directory");
  CHECK_FALSE(Arena::open_existing(memfd_options()).arena);
  // What somebody took out of the file is there again, as zeroes, before it is mapped.
  REQUIRE(truncate(path.c_str(), 0) == 0);
  REQUIRE(truncate(path.c_str(), 2 * kUnit) == 0);
  auto refilled = Arena::open_existing(file_options(path));
  REQUIRE(refilled.arena);
  struct stat info {};
  REQUIRE(stat(path.c_str(), &info) == 0);
  CHECK(static_cast<std::uint64_t>(info.st_blocks) * 512 >= 2 * kUnit);
}

TEST_CASE("a new arena never takes the file that another process may still write to") {
  const TemporaryDirectory directory("/dev/shm");
  const std::string path = directory.path + "/arena";
  Descriptor old_fd;
  FileIdentity first;
  {
    auto made = Arena::create(file_options(path));
    REQUIRE(made.arena);
    old_fd = Descriptor(dup(made.arena->fd()));
    first = *made.arena->identity();
    made.arena->base()[0] = std::byte{1};
  }
  std::ofstream(path + ".new") << "left by an owner that died";
  auto fresh = Arena::create(file_options(path));
  REQUIRE_MESSAGE(fresh.arena, fresh.error);
  CHECK_FALSE(*fresh.arena->identity() == first);
  CHECK(fresh.arena->base()[0] == std::byte{0});
  MapOptions named;
  named.sealed = false;
  auto late = Arena::map(old_fd.get(), 2 * kUnit, named);
  REQUIRE_MESSAGE(late.arena, late.error);
  CHECK(late.arena->base()[0] == std::byte{1});
  late.arena->base()[9] = std::byte{99};
  CHECK(fresh.arena->base()[9] == std::byte{0});
}

TEST_CASE("a second owner of a named file is refused, by the first one's process id") {
  const TemporaryDirectory directory("/dev/shm");
  const std::string path = directory.path + "/arena";
  auto made = Arena::create(file_options(path));
  REQUIRE(made.arena);
  const std::string refusal =
      "the arena's file '" + path + "' is in use by process " + std::to_string(getpid()) + "; each store needs a file of its own";
  CHECK(Arena::create(file_options(path)).error == refusal);
  CHECK(Arena::open_existing(file_options(path)).error == refusal);
  made.arena->base()[1] = std::byte{5};
  CHECK(Arena::create(file_options(path + "-other")).arena);

  // An owner that is killed gives it back.
  made.arena.reset();
  int pipes[2];
  REQUIRE(pipe(pipes) == 0);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    auto held = Arena::open_existing(file_options(path));
    const char told = held.arena ? 'y' : 'n';
    if (write(pipes[1], &told, 1) == 1) pause();
    _exit(1);
  }
  char told = 0;
  REQUIRE(read(pipes[0], &told, 1) == 1);
  CHECK(told == 'y');
  CHECK(Arena::open_existing(file_options(path)).error.find("is in use by process " + std::to_string(child)) != std::string::npos);
  REQUIRE(kill(child, SIGKILL) == 0);
  REQUIRE(waitpid(child, nullptr, 0) == child);
  auto taken = Arena::open_existing(file_options(path));
  REQUIRE_MESSAGE(taken.arena, taken.error);
  CHECK(taken.arena->base()[1] == std::byte{5});
  close(pipes[0]);
  close(pipes[1]);
}

TEST_CASE("a named file on a disk, by a link or of others is refused") {
  const TemporaryDirectory directory("/dev/shm");
  const std::string path = directory.path + "/arena";
  struct statfs info {};
  // The build's own directory lies on a disk on nearly every machine.
  REQUIRE(statfs(".", &info) == 0);
  if (static_cast<std::uint64_t>(info.f_type) != 0x0102'1994) {
    const auto disk = Arena::create(file_options("kvonce-arena-on-disk"));
    CHECK_FALSE(disk.arena);
    CHECK(disk.error.find("only tmpfs and hugetlbfs are allowed") != std::string::npos);
    CHECK_FALSE(std::filesystem::exists("kvonce-arena-on-disk.lock"));
  }
  const std::string elsewhere = directory.path + "/elsewhere";
  std::ofstream(elsewhere) << std::string(2 * kUnit, 'x');
  std::filesystem::create_symlink(elsewhere, path);
  CHECK(Arena::open_existing(file_options(path)).error == "opening the arena's file '" + path + "' failed: Too many levels of symbolic links");
  {
    auto replaced = Arena::create(file_options(path));  // the link goes, what it names stays
    REQUIRE_MESSAGE(replaced.arena, replaced.error);
    CHECK_FALSE(std::filesystem::is_symlink(path));
  }
  char first = 0;
  std::ifstream(elsewhere).get(first);
  CHECK(first == 'x');
  std::filesystem::remove(path + ".lock");
  std::filesystem::create_symlink(elsewhere, path + ".lock");
  CHECK(Arena::create(file_options(path)).error == "opening the lock '" + path + ".lock' failed: Too many levels of symbolic links");
  std::filesystem::remove(path + ".lock");
  REQUIRE(chmod(path.c_str(), 0622) == 0);
  CHECK(Arena::open_existing(file_options(path)).error == "'" + path + "' has mode 0622; others must not be allowed to write it");
  REQUIRE(chmod(path.c_str(), 0600) == 0);
  std::filesystem::remove(path);
  std::filesystem::create_directory(path);
  CHECK_FALSE(Arena::open_existing(file_options(path)).arena);
  CHECK_FALSE(Arena::create(file_options(path)).arena);
  CHECK_FALSE(std::filesystem::exists(path + ".new"));
  CHECK_FALSE(Arena::create(file_options("")).arena);
  CHECK_FALSE(Arena::create(file_options(directory.path + "/")).arena);
  CHECK(Arena::create(file_options(directory.path + "/none/arena")).error.find("No such file or directory") != std::string::npos);
}

TEST_CASE("a lack of memory shows when a named file is made, not later, and leaves nothing behind") {
  const TemporaryDirectory directory("/dev/shm");
  const std::string path = directory.path + "/arena";
  const auto huge = Arena::create(file_options(path, std::uint64_t{1} << 46));
  CHECK_FALSE(huge.arena);
  CHECK(huge.error.find("the arena's file '" + path + "' of 70368744177664 bytes has no room on its file system, which has ") == 0);
  CHECK_FALSE(std::filesystem::exists(path));
  CHECK_FALSE(std::filesystem::exists(path + ".new"));
}

TEST_CASE("a NUMA node is taken where there is one, and refused by name where there is none") {
  ArenaOptions options = memfd_options();
  options.numa_node = 1000;
  const auto refused = Arena::create(options);
  CHECK_FALSE(refused.arena);
  CHECK(refused.error.find("the arena's NUMA node is 1000; this machine has") == 0);
  options.numa_node = -2;
  CHECK_FALSE(Arena::create(options).arena);
  if (!std::filesystem::exists("/sys/devices/system/node/node0")) return;
  options.numa_node = 0;
  options.populate = true;
  const auto bound = Arena::create(options);
  // A container may forbid it; then the reason names the call.
  if (!bound.arena) CHECK(bound.error.find("binding the arena to NUMA node 0 failed") == 0);
}

TEST_CASE("taking memory ends soon when it is not wanted any more, and leaves no file") {
  const TemporaryDirectory directory("/dev/shm");
  for (const Backing backing : {Backing::memfd, Backing::file}) {
    ArenaOptions options = backing == Backing::file ? file_options(directory.path + "/arena", 64 * kUnit) : memfd_options(64 * kUnit);
    options.populate = true;
    int asked = 0;
    options.canceled = [&asked] { return ++asked > 1; };
    CHECK(Arena::create(options).error == kTakingCanceled);
    CHECK(asked > 1);
  }
  CHECK_FALSE(std::filesystem::exists(directory.path + "/arena"));
  CHECK_FALSE(std::filesystem::exists(directory.path + "/arena.new"));
}

TEST_CASE("an arena's file is its owner's also when the lock beside it was removed") {
  const TemporaryDirectory directory("/dev/shm");
  const std::string path = directory.path + "/arena";
  {
    const auto first = Arena::create(file_options(path));
    REQUIRE_MESSAGE(first.arena, first.error);
    for (int i = 0; i < 2; ++i) {
      REQUIRE(std::filesystem::remove(path + ".lock"));
      const auto second = i == 0 ? Arena::create(file_options(path)) : Arena::open_existing(file_options(path));
      CHECK_FALSE(second.arena);
      CHECK(second.error.find("is in use by another process, though its lock '" + path + ".lock' was removed") != std::string::npos);
    }
    // A client holds on what it was handed, and no lock by that.
    const int handed = dup(first.arena->fd());
    REQUIRE(handed >= 0);
  }
  const auto next = Arena::open_existing(file_options(path));
  CHECK_MESSAGE(next.arena, next.error);
}

TEST_CASE("reserved huge pages are used for a memory file, or their lack is told") {
  ArenaOptions options = memfd_options();
  options.huge_pages = HugePages::reserved;
  const auto made = Arena::create(options);
  if (made.arena)
    CHECK(made.arena->bytes() >= 2 * kUnit);
  else
    CHECK(made.error.find("failed") != std::string::npos);
  options.backing = Backing::anonymous;
  CHECK(Arena::create(options).error.find("reserved huge pages are asked for an arena that is no memory file") == 0);
}
