// SPDX-License-Identifier: Apache-2.0
//
// Real processes in a run-time folder of their own.
#pragma once

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <sys/types.h>

namespace kvonce::kvonced_test {

/// A folder made by mkdtemp, gone with its contents at the end; $XDG_RUNTIME_DIR names it meanwhile. Stores that were started in it
/// and detached are this process's to wait for, and ended.
class RunFolder {
 public:
  RunFolder();
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  /// Of the store that `auto` means.
  std::string socket() const { return path_ + "/kvonce/kvonced-w5.sock"; }
  std::string log() const { return path_ + "/kvonce/kvonced-w5.log"; }

 private:
  std::string path_;
};

using Environment = std::vector<std::pair<std::string, std::string>>;  // an empty value unsets

/// A program with pipes for its standard streams.
class Process {
 public:
  Process(const std::string& program, const std::vector<std::string>& arguments, const Environment& environment = {});
  ~Process();  // kills it when it still runs
  Process(Process&& other) noexcept;
  Process& operator=(Process&&) = delete;
  Process(const Process&) = delete;

  pid_t pid() const { return pid_; }
  /// Reads until the text has come; false when the stream ended, or 60 s passed, before. Also what comes with it is kept in out, err.
  bool wait_out(const std::string& text) { return wait_stream(out_fd_, out, text); }
  bool wait_err(const std::string& text) { return wait_stream(err_fd_, err, text); }
  void signal(int number) const;
  void close_input();
  /// Reads both streams to their ends, then waits: the exit status, 128 + signal when one ended it.
  int finish();

  std::string out;
  std::string err;

 private:
  static bool wait_stream(int fd, std::string& seen, const std::string& text);
  pid_t pid_ = -1;
  int in_fd_ = -1;
  int out_fd_ = -1;
  int err_fd_ = -1;
};

struct Ended {
  int status = -1;
  std::string out;
  std::string err;
};
Ended run(const std::string& program, const std::vector<std::string>& arguments, const Environment& environment = {});

/// A folder on tmpfs; empty: there is none.
class SharedMemoryFolder {
 public:
  SharedMemoryFolder() {
    std::string name = "/dev/shm/kvonced-test-XXXXXX";
    if (mkdtemp(name.data()) != nullptr) path_ = name;
  }
  ~SharedMemoryFolder() {
    std::error_code code;
    if (!path_.empty()) std::filesystem::remove_all(path_, code);
  }
  SharedMemoryFolder(const SharedMemoryFolder&) = delete;
  SharedMemoryFolder& operator=(const SharedMemoryFolder&) = delete;
  bool there() const { return !path_.empty(); }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

/// A kvonced with little memory that is not populated.
std::vector<std::string> small(std::vector<std::string> more = {});

/// Looks again and again, for 60 s at most.
bool eventually(const std::function<bool()>& holds);

void write_file(const std::string& path, const std::string& text, int mode = 0600);
std::string read_file(const std::string& path);
std::size_t occurrences(const std::string& text, const std::string& word);

/// An exclusive flock, as long as it lives.
class HeldLock {
 public:
  explicit HeldLock(const std::string& path, const std::string& text = {});
  ~HeldLock();
  HeldLock(const HeldLock&) = delete;
  HeldLock& operator=(const HeldLock&) = delete;
  bool held() const { return held_; }

 private:
  int fd_;
  bool held_;
};

/// A named pipe that takes no byte more: who writes there waits.
class FullPipe {
 public:
  explicit FullPipe(const std::string& path);
  ~FullPipe();
  FullPipe(const FullPipe&) = delete;
  FullPipe& operator=(const FullPipe&) = delete;

 private:
  int fd_;
};

/// A Unix socket that is bound, and listens unless it is for datagrams.
class BoundSocket {
 public:
  /// A name that starts with @ is abstract.
  BoundSocket(const std::string& name, int type);
  ~BoundSocket();
  BoundSocket(const BoundSocket&) = delete;
  BoundSocket& operator=(const BoundSocket&) = delete;
  bool ready() const { return ready_; }
  /// The next datagram; empty when none came within 60 s.
  std::string receive() const;

 private:
  int fd_;
  bool ready_;
};

/// Connects as a client does; the descriptor, or -1.
int connect_to(const std::string& path);

}  // namespace kvonce::kvonced_test
