// SPDX-License-Identifier: Apache-2.0
//
// Real processes for one test: a store (a kvonced, or an engine process that serves) and ranks that are told what to do, line by
// line. Whatever a test leaves running is ended with it.
#pragma once

#include <doctest/doctest.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <sys/types.h>

namespace kvonce::process_test {

/// A folder made by mkdtemp; its contents go with it.
class Folder {
 public:
  /// In the system's temporary folder, or in another one.
  explicit Folder(const std::string& in = {});
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  std::string store() const { return "unix:" + path_ + "/store"; }
  bool empty() const;

 private:
  std::string path_;
};

/// A child process with pipes for its standard streams.
class Child {
 public:
  Child(const std::string& program, const std::vector<std::string>& arguments);
  ~Child();  // kills it when it still runs
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  void write(const std::string& text) const;
  /// The next line of its output; fails the test when none came within 120 s.
  std::string read_line();
  void signal(int number) const;
  /// Its state in /proc is T: it runs nothing.
  bool stopped() const;
  void stop();  // SIGSTOP, and waits until it stands
  void go_on() const { signal(SIGCONT); }
  void kill9();  // and waits for its end
  /// Waits: the exit status, 128 + signal when one ended it.
  int finish();
  std::uint64_t resident_bytes() const;

 private:
  pid_t pid_ = -1;
  int in_fd_ = -1;
  int out_fd_ = -1;
  std::string pending_;
};

/// A kvonced, ready.
class Daemon : public Child {
 public:
  Daemon(const Folder& folder, std::vector<std::string> more = {});
};

struct Answer {
  std::map<std::string, std::string> fields;
  std::string error;  // its reason, empty when there is none
  std::string text;   // all of it
  std::uint64_t operator[](const std::string& name) const;
};

/// An engine process. `start` is its start command without the word.
class Rank : public Child {
 public:
  Rank() : Child(KVONCE_PROCESS_RANK, {}) {}
  Rank(const Folder& folder, const std::string& start, const std::string& setup = {});

  void tell(const std::string& line) const { write(line + "\n"); }
  Answer hear();
  Answer ask(const std::string& line) {
    tell(line);
    return hear();
  }
  /// Looks up, loads, releases: how many pages came back right. Wrong ones fail the test.
  std::uint64_t load_back(const std::string& what);
};

/// Looks again and again, for 60 s at most.
bool eventually(const std::function<bool()>& holds);

}  // namespace kvonce::process_test
