// SPDX-License-Identifier: Apache-2.0
#include "storage/snapshot_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <new>
#include <string_view>

#include "storage/arena_backing.hpp"

namespace kvonce::storage {

namespace {

using backing::failed;

constexpr std::uint64_t kMagic = 0x464e'5343'4e4f'564bULL;  // "KVONCSNF" in memory order

std::string quoted(const std::string& path) { return "'" + path + "'"; }

// Of this boot of the machine; empty where it cannot be known, then nothing is compared.
std::string boot_id() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id;
}

// Which processes a pid can name.
std::uint64_t process_space() {
  struct stat info {};
  return stat("/proc/self/ns/pid", &info) == 0 ? info.st_ino : 0;
}

void put(std::string& out, std::uint64_t value) { out.append(reinterpret_cast<const char*>(&value), sizeof value); }
void put(std::string& out, const std::string& text) {
  put(out, static_cast<std::uint64_t>(text.size()));
  out += text;
}

class Cutter {
 public:
  explicit Cutter(std::string_view bytes) : left_(bytes) {}
  std::uint64_t number() {
    std::uint64_t value = 0;
    if (left_.size() < sizeof value) return fail();
    std::memcpy(&value, left_.data(), sizeof value);
    left_.remove_prefix(sizeof value);
    return value;
  }
  std::string text() {
    const std::uint64_t size = number();
    if (size > left_.size()) return std::string(fail(), ' ');
    std::string value(left_.substr(0, size));
    left_.remove_prefix(size);
    return value;
  }
  bool done() const { return good_ && left_.empty(); }
  std::size_t left() const { return left_.size(); }

 private:
  std::uint64_t fail() {
    good_ = false;
    left_ = {};
    return 0;
  }
  std::string_view left_;
  bool good_ = true;
};

std::string directory_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

// So that the name is as safe as the bytes. tmpfs has nothing to do.
void sync_directory(const std::string& path) {
  const Descriptor directory(open(directory_of(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory) fsync(directory.get());
}

bool write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), std::min<std::size_t>(bytes.size(), std::size_t{1} << 30));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

bool read_all(int fd, std::string& bytes) {
  std::size_t at = 0;
  while (at < bytes.size()) {
    const ssize_t got = read(fd, bytes.data() + at, bytes.size() - at);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += static_cast<std::size_t>(got);
  }
  return true;
}

// Whether the file begins as a snapshot does, and the lengths in it add up to its own. What is wrong, as the end of a sentence.
std::optional<std::string> check_frame(int fd, std::uint64_t file_bytes) {
  constexpr std::uint64_t kWord = sizeof(std::uint64_t);
  const auto number_at = [&](std::uint64_t at) -> std::optional<std::uint64_t> {
    std::uint64_t value = 0;
    if (at + kWord > file_bytes || pread(fd, &value, kWord, static_cast<off_t>(at)) != static_cast<ssize_t>(kWord)) return std::nullopt;
    return value;
  };
  constexpr std::uint64_t kLeast = 3 * kWord;
  if (file_bytes < kLeast) return " has only " + std::to_string(file_bytes) + " bytes";
  if (number_at(0) != kMagic) return " is none";
  const std::uint64_t version = number_at(kWord).value_or(0);
  if (version == 0 || version > kSnapshotFileVersion) {
    return " has format " + std::to_string(version) + "; this release reads formats 1 to " + std::to_string(kSnapshotFileVersion);
  }
  constexpr std::uint64_t kMostParts = 4096;  // one a partition; read one by one
  const std::uint64_t body = file_bytes - kWord;
  std::uint64_t at = 2 * kWord;
  const auto skip_text = [&] {
    const auto size = number_at(at);
    if (!size || at + kWord > body || *size > body - at - kWord) return false;
    at += kWord + *size;
    return true;
  };
  const std::string damaged = " is cut off or damaged: its lengths do not add up to its size";
  if (!skip_text()) return damaged;  // the boot
  at += 3 * kWord;                   // the pid space, device and inode
  const auto count = number_at(at);
  if (!count || *count > kMostParts) return damaged;
  at += kWord;
  for (std::uint64_t i = 0; i < *count; ++i) {
    if (!skip_text()) return damaged;
  }
  return at == body ? std::nullopt : std::optional(damaged);
}

}  // namespace

std::optional<std::string> write_snapshot_file(const std::string& path, const FileIdentity& arena, const std::vector<std::string>& parts) {
  std::string bytes;
  std::size_t size = 4096;
  for (const std::string& part : parts) size += part.size() + sizeof(std::uint64_t);
  bytes.reserve(size);
  put(bytes, kMagic);
  put(bytes, kSnapshotFileVersion);
  put(bytes, boot_id());
  put(bytes, process_space());
  put(bytes, arena.device);
  put(bytes, arena.inode);
  put(bytes, static_cast<std::uint64_t>(parts.size()));
  for (const std::string& part : parts) put(bytes, part);
  put(bytes, static_cast<std::uint64_t>(XXH3_64bits(bytes.data(), bytes.size())));

  const std::string fresh = path + ".new";
  unlink(fresh.c_str());  // of a store that died while it wrote
  Descriptor fd(open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!fd) return failed("making the snapshot " + quoted(fresh), errno);
  const auto give_up = [&](const std::string& what) {
    const int error = errno;
    unlink(fresh.c_str());
    return failed(what, error);
  };
  if (!write_all(fd.get(), bytes) || fsync(fd.get()) != 0) return give_up("writing " + std::to_string(bytes.size()) + " bytes of snapshot to " + quoted(fresh));
  if (rename(fresh.c_str(), path.c_str()) != 0) return give_up("renaming " + quoted(fresh) + " to " + quoted(path));
  sync_directory(path);
  return std::nullopt;
}

TakenSnapshot take_snapshot_file(const std::string& path, const FileIdentity& arena, std::uint64_t most_bytes) {
  TakenSnapshot taken;
  const auto none = [&taken](std::string why) {
    taken.parts.clear();
    taken.why_not = std::move(why);
    return std::move(taken);
  };
  const Descriptor fd(open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!fd) {
    return none(errno == ENOENT ? "there is no snapshot " + quoted(path) + ": the store before was not stopped cleanly"
                                : failed("opening the snapshot " + quoted(path), errno));
  }
  struct stat info {};
  const bool looked = fstat(fd.get(), &info) == 0;
  const int error = errno;
  if (unlink(path.c_str()) != 0) return none(failed("removing the snapshot " + quoted(path) + ", which would be read twice,", errno));
  sync_directory(path);
  if (!looked) return none(failed("looking at the snapshot " + quoted(path), error));
  if (!S_ISREG(info.st_mode) || info.st_uid != geteuid() || (info.st_mode & 022) != 0)
    return none("the snapshot " + quoted(path) + " is no file that only this user can write");
  const std::string what = "the snapshot " + quoted(path);
  const auto file_bytes = static_cast<std::uint64_t>(info.st_size);
  if (file_bytes > most_bytes)
    return none(what + " has " + std::to_string(file_bytes) + " bytes; at most " + std::to_string(most_bytes) + " are allowed");
  // Before memory is taken for what the file's size says.
  if (auto wrong = check_frame(fd.get(), file_bytes)) return none(what + *wrong);
  std::string bytes;
  try {
    bytes.resize(static_cast<std::size_t>(file_bytes));
  } catch (const std::bad_alloc&) {
    return none(what + " has " + std::to_string(file_bytes) + " bytes, for which there is no memory");
  }
  if (!read_all(fd.get(), bytes)) return none(what + " could not be read to its end");

  const std::string_view body(bytes.data(), bytes.size() - sizeof(std::uint64_t));
  std::uint64_t sum = 0;
  std::memcpy(&sum, bytes.data() + body.size(), sizeof sum);
  Cutter cut(body);
  cut.number();  // the magic
  cut.number();  // the format: checked with the frame
  if (XXH3_64bits(body.data(), body.size()) != sum) return none(what + " is cut off or damaged: its checksum differs");
  const std::string boot = cut.text();
  const std::uint64_t processes = cut.number();
  FileIdentity owner;
  owner.device = cut.number();
  owner.inode = cut.number();
  const std::uint64_t count = cut.number();
  if (count > cut.left() / sizeof(std::uint64_t)) return none(what + " contradicts itself");
  taken.parts.reserve(count);
  for (std::uint64_t i = 0; i < count; ++i) taken.parts.push_back(cut.text());
  if (!cut.done()) return none(what + " contradicts itself");
  if (boot != boot_id()) return none(what + " was written before the machine was started again");
  if (owner != arena) return none(what + " belongs to another file than the arena that is there");
  if (taken.parts.empty()) return none(what + " has no partition in it");
  taken.same_processes = processes != 0 && processes == process_space();
  return taken;
}

}  // namespace kvonce::storage
