// SPDX-License-Identifier: Apache-2.0
//
// One engine process, driven by lines: each command is a word and fields `name=value`; each answer is one line of fields, or
// `error=REASON text`.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <kvonce/runtime.hpp>

#include "tests/process/helper/rows.hpp"

namespace kvonce::process_test {

class Line {
 public:
  explicit Line(const std::string& text);
  const std::string& word() const { return word_; }
  std::string text(const std::string& name, const std::string& otherwise = {}) const;
  std::uint64_t number(const std::string& name, std::uint64_t otherwise = 0) const;
  std::chrono::milliseconds time(const std::string& name, std::uint64_t otherwise_ms) const {
    return std::chrono::milliseconds(number(name, otherwise_ms));
  }
  bool has(const std::string& name) const { return fields_.contains(name); }

 private:
  std::string word_;
  std::map<std::string, std::string> fields_;
};

/// Holds a thread of kvonce in a callback.
class Gate {
 public:
  void pass() {
    std::unique_lock lock(mutex_);
    taken_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_; });
  }
  bool wait_taken() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(60), [this] { return taken_; });
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool taken_ = false;
  bool open_ = false;
};

/// Descriptors that a program started by this one would get, beside the standard streams. misdeeds.cpp
std::string kept_by_exec();

class Program {
 public:
  /// False: the program ends.
  bool obey(const Line& line);

 private:
  // commands.cpp
  std::string start(const Line& line);
  std::string setup(const Line& line);
  std::string leave();
  std::string put(const Line& line, bool wait);
  std::string wait(const Line& line);
  std::string lookup(const Line& line);
  std::string load(const Line& line, bool wait);
  std::string wait_load(const Line& line);
  std::string exists(const Line& line);
  std::string stat(const Line& line);
  std::string stats();
  std::string clients();
  std::string report(const Line& line);
  std::string epoch(const Line& line);
  std::string admin(const Line& line);
  std::string release(const Line& line);
  std::string told(const PutOperation& put) const;
  std::string told(const LoadOperation& load, const Line& line) const;
  // misdeeds.cpp
  std::string flood(const Line& line);
  std::string hang_up();
  std::string write_arena();
  std::string fork_child();
  std::string fork_sleeper();

  Gate gate_;
  const std::string kept_at_start_ = kept_by_exec();  // what this process has got itself
  std::unique_ptr<Runtime> runtime_;
  NamespaceHandle ns_;
  GroupHandle group_;
  std::shared_ptr<Rank> rank_;
  PoolHandle pool_;
  std::unique_ptr<RowMemory> rows_;
  std::vector<std::shared_ptr<PutOperation>> puts_;
  std::vector<std::shared_ptr<LoadOperation>> loads_;
};

std::string error_text(const Error& error);
/// What a broken client can do to the store at a socket. misdeeds.cpp
std::string wild(const Line& line);
std::string forge(const Line& line);

}  // namespace kvonce::process_test
