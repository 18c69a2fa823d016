// SPDX-License-Identifier: Apache-2.0
//
// What the engines do, and what goes wrong around them.
#pragma once

#include <memory>
#include <vector>

#include "tests/sim/rank.hpp"
#include "tests/sim/session.hpp"

namespace kvonce::sim {

class Workload {
 public:
  Workload(Sim& sim, StoreNode& node, std::vector<std::unique_ptr<Rank>>& ranks);
  /// Runs until enough has happened, then lets everything come to its end.
  void start();
  bool finished() const { return finished_; }

 private:
  /// One prompt: all ranks of an engine look up, load and announce it.
  struct Prompt {
    std::vector<PageHash> pages;
    std::uint64_t request = 0;
    bool probe = false;
    bool load = true;
    bool release = true;
    std::uint32_t loading = 0;  // ranks that use the lease
    Duration spread = 0;        // how far the ranks are apart
    std::uint32_t narrow_to = 0;
  };

  void tick();
  void do_something();
  bool go_wrong();
  bool change_namespaces();
  void hurry();
  void prompt(std::uint32_t engine);
  void begin(Rank& rank, const std::shared_ptr<Prompt>& prompt);
  void answered(Rank& rank, const std::shared_ptr<Prompt>& prompt, const LookupAnswer* answer);
  void announce(Rank& rank, const Prompt& prompt, std::uint32_t from);
  void done_with_lease(Rank& rank, const std::shared_ptr<Prompt>& prompt, const LeaseId& lease);
  std::vector<PageHash> some_pages(std::uint32_t ns);
  Rank& any_rank();
  void administrate();
  void cancel_something();
  void end();

  Sim& sim_;
  StoreNode& node_;
  std::vector<std::unique_ptr<Rank>>& ranks_;
  std::vector<std::vector<std::vector<PageHash>>> chains_;  // by namespace
  std::uint32_t actions_ = 0;
  bool finished_ = false;
};

}  // namespace kvonce::sim
