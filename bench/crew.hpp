// SPDX-License-Identifier: Apache-2.0
//
// The processes of one benchmark: a store, N rank processes, and this one, which tells them what to do, holds the watch, and looks
// afterwards, as one more client, whether all is as it must be.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/board.hpp"
#include "bench/child.hpp"
#include "bench/options.hpp"
#include "bench/stage.hpp"
#include "bench/store_use.hpp"

namespace kvonce::bench {

struct CrewSpec {
  std::uint64_t ranks = 1;
  std::uint64_t pages = 0;       // in the store at a time, at most
  std::uint64_t page_bytes = 0;
  std::uint64_t rows = 0;        // of each rank process
  std::uint64_t own_rows = 1;    // of this process
  bool populate = true;          // the clients' view of the store's memory
};

/// CPU seconds of all processes so far.
struct CpuMark {
  double ranks = 0;
  double store = 0;
  double self = 0;
  double all() const { return ranks + store + self; }
};

class Crew {
 public:
  /// Everything is started and connected; throws Failed.
  Crew(const Options& options, const CrewSpec& spec);
  /// Everything is ended, the pages are removed.
  ~Crew();
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  std::size_t size() const { return members_.size(); }
  Stage& stage() { return *stage_; }
  Board& board() { return *board_.get(); }
  pid_t pid(std::size_t rank) const { return members_[rank].process.pid(); }
  /// Every rank process's client view was populated, and the processes were started, in so many seconds; the longest.
  double seconds_to_start() const { return seconds_to_start_; }

  /// To one or all of them; what they answer, by rank. Throws Failed when one answers with an error, dies, or is late.
  Json ask(std::size_t rank, const Json& command);
  std::vector<Json> ask_all(const Json& command);
  void tell(std::size_t rank, const Json& command);
  Json answer(std::size_t rank);
  /// Whether an answer (or the end of it) has come from the rank.
  bool answered(std::size_t rank) { return members_[rank].channel.pending(std::chrono::milliseconds{0}); }

  /// A timed part: all are prepared by `command`, begin together, and end; then their reports.
  struct Timed {
    std::vector<Json> reports;
    double seconds = 0;  // first begin to last end
    CpuMark cpu;         // meanwhile
    std::vector<double> ack_us;
  };
  Timed timed(Json command);

  /// A new number for a timed part or round.
  std::uint32_t next_number() { return ++number_; }
  /// SIGKILL, and waited for: the process is gone when this returns.
  void kill(std::size_t rank);
  /// A new process in the place of one that was killed. It is connected after finish_restart.
  void begin_restart(std::size_t rank);
  void finish_restart(std::size_t rank);

  CpuMark cpu() const;
  /// Pages that are no longer needed make room.
  void remove(const std::vector<PageHash>& keys);
  /// In order: the rank processes, this one's connection, the store. Throws Failed when one does not end as it should.
  void end();

 private:
  struct Member {
    ChildProcess process;
    Channel channel;
  };
  void start_member(std::size_t rank);
  Json start_command(std::size_t rank) const;
  [[noreturn]] void fail(std::size_t rank, const std::string& what);
  void end_members();

  const Options& options_;
  const CrewSpec spec_;
  std::string engine_;
  SharedBoard board_;
  std::unique_ptr<StoreUse> store_;
  std::vector<RowMemory> memory_;
  std::unique_ptr<Stage> stage_;      // reads what was stored
  std::unique_ptr<Runtime> cleaner_;  // removes it; no rank either that the store would count among those that put
  NamespaceHandle cleaned_{};
  std::vector<Member> members_;  // after the store: they end before it
  std::uint32_t number_ = 0;
  double seconds_to_start_ = 0;
};

}  // namespace kvonce::bench
