// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "storage/snapshot_file.hpp"

using namespace kvonce::storage;

namespace {

struct SnapshotDirectory {
  SnapshotDirectory() {
    std::string name = "/dev/shm/kvonce-snapshot-XXXXXX";
    REQUIRE(mkdtemp(name.data()) != nullptr);
    directory = name;
    path = directory + "/arena.snapshot";
  }
  ~SnapshotDirectory() { std::filesystem::remove_all(directory); }
  SnapshotDirectory(const SnapshotDirectory&) = delete;
  SnapshotDirectory& operator=(const SnapshotDirectory&) = delete;

  void write(const std::string& bytes) const { std::ofstream(path, std::ios::binary) << bytes; }
  std::string read() const {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  std::string directory, path;
};

constexpr FileIdentity kArena{11, 22};

void seal(std::string& bytes) {
  const std::uint64_t sum = XXH3_64bits(bytes.data(), bytes.size() - 8);
  std::memcpy(bytes.data() + bytes.size() - 8, &sum, 8);
}

}  // namespace

TEST_CASE_FIXTURE(SnapshotDirectory, "a snapshot is taken once, as it was written") {
  const std::vector<std::string> parts{std::string("one\0part", 8), "", std::string(3'000'000, 'x')};
  std::ofstream(path + ".new") << "left by a store that died while it wrote";
  std::ofstream(path) << "an older one";
  REQUIRE_FALSE(write_snapshot_file(path, kArena, parts));
  struct stat info {};
  REQUIRE(stat(path.c_str(), &info) == 0);
  CHECK((info.st_mode & 07777U) == 0600);
  CHECK_FALSE(std::filesystem::exists(path + ".new"));
  const TakenSnapshot taken = take_snapshot_file(path, kArena);
  CHECK(taken.why_not == "");
  CHECK(taken.parts == parts);
  CHECK(taken.same_processes);
  CHECK_FALSE(std::filesystem::exists(path));
  const TakenSnapshot again = take_snapshot_file(path, kArena);
  CHECK(again.parts.empty());
  CHECK(again.why_not == "there is no snapshot '" + path + "': the store before was not stopped cleanly");
}

TEST_CASE_FIXTURE(SnapshotDirectory, "what is wrong with a snapshot is told, and it is gone all the same") {
  REQUIRE_FALSE(write_snapshot_file(path, kArena, {"part one", "part two"}));
  const std::string right = read();
  const auto take = [&](const std::string& bytes) {
    write(bytes);
    const TakenSnapshot taken = take_snapshot_file(path, kArena);
    CHECK(taken.parts.empty() == !taken.why_not.empty());
    CHECK_FALSE(std::filesystem::exists(path));
    return taken.why_not;
  };
  CHECK(take(right) == "");
  for (std::size_t size = 0; size < right.size(); ++size) CHECK(take(right.substr(0, size)) != "");
  for (std::size_t i = 0; i < right.size() * 8; ++i) {
    std::string flipped = right;
    flipped[i / 8] = static_cast<char>(flipped[i / 8] ^ 1 << i % 8);
    CHECK(take(flipped) != "");
  }
  // Lengths that lead out of the file, with a right checksum.
  for (std::size_t at = 16; at + 16 <= right.size(); ++at) {
    for (const int value : {0x7f, 0xff}) {
      std::string bomb = right;
      bomb[at] = static_cast<char>(value);
      seal(bomb);
      take(bomb);
    }
  }
  std::string newer = right;
  newer[8] = 9;
  seal(newer);
  CHECK(take(newer) == "the snapshot '" + path + "' has format 9; this release reads formats 1 to 1");
  std::string rebooted = right;
  rebooted[24] = rebooted[24] == '0' ? '1' : '0';
  seal(rebooted);
  CHECK(take(rebooted) == "the snapshot '" + path + "' was written before the machine was started again");
  std::string elsewhere = right;
  elsewhere[24 + 36] = static_cast<char>(elsewhere[24 + 36] ^ 1);
  seal(elsewhere);
  write(elsewhere);
  CHECK_FALSE(take_snapshot_file(path, kArena).same_processes);

  write(right);
  CHECK(take_snapshot_file(path, {11, 23}).why_not == "the snapshot '" + path + "' belongs to another file than the arena that is there");
  REQUIRE_FALSE(write_snapshot_file(path, kArena, {}));
  CHECK(take_snapshot_file(path, kArena).why_not == "the snapshot '" + path + "' has no partition in it");
}

TEST_CASE_FIXTURE(SnapshotDirectory, "a snapshot of others, or by a link, is not read; one that cannot be written leaves nothing") {
  REQUIRE_FALSE(write_snapshot_file(path, kArena, {"part"}));
  REQUIRE(chmod(path.c_str(), 0666) == 0);
  CHECK(take_snapshot_file(path, kArena).why_not == "the snapshot '" + path + "' is no file that only this user can write");
  const std::string elsewhere = directory + "/elsewhere";
  REQUIRE_FALSE(write_snapshot_file(elsewhere, kArena, {"part"}));
  std::filesystem::create_symlink(elsewhere, path);
  CHECK(take_snapshot_file(path, kArena).parts.empty());
  CHECK(std::filesystem::exists(elsewhere));
  const auto nowhere = write_snapshot_file(directory + "/none/snapshot", kArena, {"part"});
  REQUIRE(nowhere);
  CHECK(nowhere->find("No such file or directory") != std::string::npos);
  std::filesystem::remove(path);
  std::filesystem::create_directories(path + "/full");
  CHECK(write_snapshot_file(path, kArena, {"part"}));
  CHECK_FALSE(std::filesystem::exists(path + ".new"));
  CHECK(take_snapshot_file(path, kArena).parts.empty());
}

TEST_CASE_FIXTURE(SnapshotDirectory, "a snapshot's size is not believed before its beginning and its lengths are") {
  REQUIRE_FALSE(write_snapshot_file(path, kArena, {"part"}));
  const std::string right = read();
  // Far more than this machine has: whoever took memory for it would end here.
  constexpr std::uintmax_t kHuge = std::uintmax_t{60} << 30;
  const auto take_huge = [&](const std::string& beginning) {
    write(beginning);
    std::filesystem::resize_file(path, kHuge);
    return take_snapshot_file(path, kArena).why_not;
  };
  CHECK(take_huge("") == "the snapshot '" + path + "' is none");
  CHECK(take_huge(right) == "the snapshot '" + path + "' is cut off or damaged: its lengths do not add up to its size");
  std::string bomb = right;
  const std::uint64_t part = kHuge - 64;
  std::memcpy(bomb.data() + bomb.size() - 20, &part, sizeof part);
  CHECK(take_huge(bomb) == "the snapshot '" + path + "' is cut off or damaged: its lengths do not add up to its size");
  write(right);
  CHECK(take_snapshot_file(path, kArena, right.size() - 1).why_not.find("at most " + std::to_string(right.size() - 1) + " are allowed") != std::string::npos);
  write(right);
  CHECK(take_snapshot_file(path, kArena, right.size()).parts.size() == 1);
}
