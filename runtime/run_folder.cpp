// SPDX-License-Identifier: Apache-2.0
//
// Where a user's store is found on a host, and who has it.
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <system_error>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

#include "runtime/auto_store.hpp"
#include "transport/handshake.hpp"
#include "transport/socket_path.hpp"

namespace kvonce::runtime {
namespace {

std::string system_text(int code) { return std::generic_category().message(code); }

/// Whether `path` is a folder of this user that nobody else may change.
bool own_folder(const std::string& path, struct stat& found) {
  return lstat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode) && found.st_uid == geteuid() &&
         (found.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

/// Makes the folder where `make` says so, or looks at the one that is there. What is wrong with it, or empty.
std::string secure_folder(const std::string& path, bool make) {
  if (make && mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return path + " cannot be made: " + system_text(errno);
  struct stat found {};
  const bool there = lstat(path.c_str(), &found) == 0;
  if (!there && !make && errno == ENOENT) return {};
  if (!there) return path + " cannot be looked at: " + system_text(errno);
  if (S_ISLNK(found.st_mode)) return path + " is a symbolic link: a folder is needed, remove it";
  if (!S_ISDIR(found.st_mode)) return path + " is no folder: remove it";
  if (found.st_uid != geteuid()) {
    return path + " belongs to user " + std::to_string(found.st_uid) + ", not to user " + std::to_string(geteuid()) +
           ": set XDG_RUNTIME_DIR to a folder of your own";
  }
  if ((found.st_mode & (S_IRWXG | S_IRWXO)) != 0) return path + " is open to others: chmod 700 " + path;
  return {};
}

/// Of a lock file that this user may not open: the kernel tells everybody which files are locked, and by whom.
void look_from_outside(const std::string& socket_path, const std::string& lock_path, StoreHolder& holder) {
  struct stat lock {};
  if (lstat(lock_path.c_str(), &lock) != 0) {
    if (errno != ENOENT) holder.hidden = "user " + std::to_string(geteuid()) + " may not look at " + lock_path + ": " + system_text(errno);
    return;
  }
  char file[64];
  std::snprintf(file, sizeof file, "%02x:%02x:%llu", major(lock.st_dev), minor(lock.st_dev), static_cast<unsigned long long>(lock.st_ino));
  std::ifstream locks("/proc/locks");
  for (std::string line; std::getline(locks, line);) {  // "1: FLOCK  ADVISORY  WRITE 922 00:1a:33 0 EOF"
    std::istringstream words(line);
    std::string number, kind, how, access, where;
    long pid = 0;
    if (!(words >> number >> kind >> how >> access >> pid >> where) || kind != "FLOCK" || where != file) continue;
    holder.held = true;
    holder.pid = pid > 0 ? static_cast<std::uint32_t>(pid) : 0;
  }
  if (!holder.held) holder.held = store_listens(socket_path);
  if (!holder.held) return;
  holder.hidden = "a store of user " + std::to_string(lock.st_uid) + (holder.pid == 0 ? "" : " (process " + std::to_string(holder.pid) + ")") +
                  " has " + socket_path + ", and user " + std::to_string(geteuid()) + " may not stop it";
}

}  // namespace

std::string passed_over_folder() {
  const char* const set = std::getenv("XDG_RUNTIME_DIR");
  if (set == nullptr || set[0] == '\0') return {};
  struct stat found {};
  std::string begin = "XDG_RUNTIME_DIR is '" + std::string(set) + "', which is passed over: ";
  // One line, whatever it holds.
  std::replace_if(begin.begin(), begin.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, '?');
  if (set[0] != '/') return begin + "it is no absolute path";
  if (own_folder(set, found)) return {};
  if (lstat(set, &found) != 0) return begin + system_text(errno);
  if (!S_ISDIR(found.st_mode)) return begin + "it is no folder";
  if (found.st_uid != geteuid()) return begin + "it belongs to user " + std::to_string(found.st_uid);
  return begin + "others may write to it";
}

std::string auto_socket_path(std::string* why_not, bool make) {
  const std::string user = std::to_string(geteuid());
  std::string folder;
  struct stat found {};
  const char* const set = std::getenv("XDG_RUNTIME_DIR");
  if (set != nullptr && passed_over_folder().empty() && set[0] != '\0') {
    folder = std::string(set) + "/kvonce";
  } else if (own_folder("/run/user/" + user, found)) {
    folder = "/run/user/" + user + "/kvonce";
  } else {
    folder = std::string(P_tmpdir) + "/kvonce-" + user;
  }
  std::string wrong = secure_folder(folder, make);
  std::string path = folder + "/kvonced-w" + std::to_string(transport::kWireVersion) + ".sock";
  if (wrong.empty() && path.size() >= sizeof(sockaddr_un{}.sun_path)) {
    wrong = path + " is longer than the " + std::to_string(sizeof(sockaddr_un{}.sun_path) - 1) +
            " bytes that the system allows a socket: set XDG_RUNTIME_DIR to a shorter path";
  }
  if (wrong.empty()) return path;
  if (why_not != nullptr) *why_not = std::move(wrong);
  return {};
}

StoreHolder store_holder(const std::string& socket_path) {
  StoreHolder holder;
  const std::string lock_path = socket_path + ".lock";
  const int file = open(lock_path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (file < 0) {
    if (errno == EACCES || errno == EPERM) look_from_outside(socket_path, lock_path, holder);
    return holder;
  }
  // Shared and for no longer than this call, so that two that only look do not see one another.
  holder.held = flock(file, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  char text[32] = {};
  if (holder.held && pread(file, text, sizeof text - 1, 0) > 0) std::from_chars(text, text + std::strlen(text), holder.pid);
  close(file);
  return holder;
}

bool store_listens(const std::string& socket_path) {
  const transport::Listener listener = transport::find_listener(socket_path);
  return listener.listens && !listener.other_kind;
}

}  // namespace kvonce::runtime
