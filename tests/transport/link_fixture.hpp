// SPDX-License-Identifier: Apache-2.0
//
// Servers, clients and other processes for the tests of the control link.
#pragma once

#include "transport/link_client.hpp"
#include "transport/link_parts.hpp"
#include "transport/link_server.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace kvonce::transport::link_test {

// Ends a wait for something that never comes, so that the test fails instead of hanging; nothing is measured with it.
inline constexpr std::chrono::seconds kPatience{60};

inline std::chrono::steady_clock::time_point patiently() { return std::chrono::steady_clock::now() + kPatience; }

// Removed with all that is in it.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  std::string path(const std::string& name) const { return name_ + "/" + name; }
  const std::string& name() const { return name_; }
  std::vector<std::string> entries() const;

 private:
  std::string name_;
};

std::size_t open_descriptors();
// True when the number of open descriptors comes down to `count` (those of a server's thread go a moment later).
bool descriptors_return_to(std::size_t count);

// A value that other threads change, and that can be waited for.
template <class T>
class Watched {
 public:
  template <class F>
  void change(F f) {
    {
      const std::lock_guard lock(mutex_);
      f(value_);
    }
    changed_.notify_all();
  }
  template <class F>
  bool wait_until(F f) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return f(value_); });
  }
  T get() {
    const std::lock_guard lock(mutex_);
    return value_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  T value_{};
};

// What a server's callbacks were told.
struct Seen {
  std::vector<std::shared_ptr<Link>> opened;
  std::vector<std::pair<std::uint64_t, LinkEnd>> closed;  // client id
  std::vector<std::uint64_t> gone;                        // client id
  std::vector<std::string> order;                         // "opened 7", "closed 7", "gone 7"
  std::uint64_t frames = 0;
  std::uint64_t turns = 0;
  std::string last_frame;
};

// Echoes each frame, unless told otherwise. `info` of its welcome is "for " and that of the hello.
struct TestServer {
  explicit TestServer(std::string path, std::function<void(LinkServerConfig&, LinkServerCallbacks&)> adjust = {});
  bool has_opened(std::size_t count) {
    return seen.wait_until([count](const Seen& s) { return s.opened.size() >= count; });
  }
  bool has_closed(std::size_t count) {
    return seen.wait_until([count](const Seen& s) { return s.closed.size() >= count; });
  }
  bool counts(const std::function<bool(const LinkServerStats&)>& enough);

  Watched<Seen> seen;
  LinkServer::Started started;
  LinkServer& server() { return *started.server; }
};

std::uint64_t fresh_number();
Hello hello_of(std::uint64_t client);
Connected connect(const std::string& path, std::uint64_t client);
// Sends a frame and waits for the same to come back.
bool echoes(Link& link, std::string_view frame);

// A raw connection, for what connect_link would never send.
UniqueFd raw_connect(const std::string& path);
// The refusal that comes back, or reason none when the connection ends without one.
Refuse raw_answer(int socket);

// This program as another process, in the role of a test case named "peer: <role>".
class PeerProgram {
 public:
  PeerProgram(const std::string& role, const std::string& argument);
  ~PeerProgram();
  PeerProgram(const PeerProgram&) = delete;
  PeerProgram& operator=(const PeerProgram&) = delete;

  bool says(char expected);  // waits for the next byte that it writes
  void go_on();              // lets its next wait_for_word() return
  void kill();               // with SIGKILL, and waits for its end
  int join();                // exit status; 128 + the signal
  pid_t pid() const { return pid_; }

  // In the other process:
  static std::string argument();
  static void say(char word);
  static bool wait_for_word();  // false: the tester has gone

 private:
  pid_t pid_ = -1;
  UniqueFd to_;
  UniqueFd from_;
};

// Two ends of a link in one process, without a server.
struct LinkPair {
  explicit LinkPair(std::uint64_t ring_bytes = kMinRingBytes, std::uint64_t backlog_limit = kDefaultBacklogBytes);
  std::unique_ptr<Link> server;
  std::unique_ptr<Link> client;
  RingMemory spy;  // a third mapping of the rings, to damage them
};

}  // namespace kvonce::transport::link_test
