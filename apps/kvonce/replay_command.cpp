// SPDX-License-Identifier: Apache-2.0
//
// kvonce replay: options, the passes over the trace, progress, and the result.
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <vector>

#include <unistd.h>

#include "apps/kvonce/command.hpp"
#include "apps/kvonce/replay_options.hpp"
#include "apps/kvonce/replay_report.hpp"
#include "apps/kvonce/replay_run.hpp"
#include "apps/workload/trace_source.hpp"
#include "protocol/units.hpp"

namespace kvonce::apps {
namespace {

constexpr std::string_view kReplayCommand = "replay";

/// The trace for several passes: read once, since standard input cannot be read again, and kept only where another pass follows.
class RequestFeed {
 public:
  RequestFeed(std::unique_ptr<workload::TraceSource> source, std::optional<std::uint64_t> limit, bool keep)
      : source_(std::move(source)), limit_(limit), keep_(keep) {}

  void rewind() noexcept { at_ = 0; }

  /// Null at the end, and when the trace is wrong (error()).
  const workload::TraceRequest* next() {
    if (limit_ && at_ >= *limit_)
      return nullptr;
    if (at_ < kept_.size())
      return &kept_[at_++];
    if (ended_)
      return nullptr;
    std::optional<workload::TraceRequest> read = source_->next();
    if (!read) {
      ended_ = true;
      return nullptr;
    }
    ++at_;
    if (keep_)
      return &kept_.emplace_back(std::move(*read));
    current_ = std::move(*read);
    return &current_;
  }
  const std::string& error() const { return source_->error(); }

 private:
  std::unique_ptr<workload::TraceSource> source_;
  std::optional<std::uint64_t> limit_;
  bool keep_;
  bool ended_ = false;
  std::uint64_t at_ = 0;
  std::vector<workload::TraceRequest> kept_;
  workload::TraceRequest current_;
};

/// One line on stderr that is written over, on a terminal only.
class Progress {
 public:
  Progress(const ReplayPlan& plan, bool quiet) : plan_(plan), shown_(!quiet && isatty(STDERR_FILENO) != 0) {}

  void begin(std::size_t run) {
    run_ = run;
    next_ = {};
  }
  void update(const ReplayRun& pass) {
    if (!shown_)
      return;
    const auto now = std::chrono::steady_clock::now();
    if (now < next_)
      return;
    next_ = now + std::chrono::milliseconds(200);
    const std::uint64_t done = pass.counted().requests;
    const ReplaySetup& setup = plan_.runs[run_];
    std::string line = "pass " + std::to_string(run_ + 1) + " of " + std::to_string(plan_.runs.size()) + ", keys per " +
                       to_string(setup.keys) + ", " + protocol::format_bytes(setup.capacity_bytes) + ": ";
    if (plan_.limit) {
      constexpr std::uint64_t kCells = 20;
      const std::uint64_t cells = std::min(done, *plan_.limit) * kCells / *plan_.limit;
      line += '[' + std::string(cells, '#') + std::string(kCells - cells, '.') + "] ";
    }
    line += protocol::format_count(done);
    if (plan_.limit)
      line += " of " + protocol::format_count(*plan_.limit);
    std::fprintf(stderr, "\r\033[K%s requests, hit rate %.1f %%", line.c_str(), pass.counted().hit_rate());
    std::fflush(stderr);
    drawn_ = true;
  }
  ~Progress() {
    if (drawn_)
      std::fputs("\r\033[K", stderr);
  }

 private:
  const ReplayPlan& plan_;
  bool shown_;
  bool drawn_ = false;
  std::size_t run_ = 0;
  std::chrono::steady_clock::time_point next_{};
};

/// Empty, or why the replay as a whole has no result.
std::string play_all(const ReplayPlan& plan, RequestFeed& feed, bool quiet, ReplayOutcome& outcome) {
  Progress progress(plan, quiet);
  for (std::size_t i = 0; i < plan.runs.size() && !outcome.interrupted; ++i) {
    feed.rewind();
    progress.begin(i);
    ReplayRun pass(plan, plan.runs[i]);
    if (!pass.error().empty())
      return pass.error();
    while (!interrupted()) {
      const workload::TraceRequest* request = feed.next();
      if (request == nullptr)
        break;
      if (!pass.play(*request))
        return pass.error();
      progress.update(pass);
    }
    outcome.interrupted = interrupted();
    // An interrupt ends a read, and then the trace seems cut.
    if (!outcome.interrupted && !feed.error().empty())
      return feed.error();
    outcome.runs.push_back(pass.figures());
  }
  return {};
}

int run_replay(const ReplayOptions& options, bool capacity_given, const OutputOptions& output) {
  PlannedReplay planned = plan_replay(options);
  if (!planned.plan)
    return tell_error(kReplayCommand, planned.error);
  if (options.via.starts_with("unix:")) {
    const auto capacity = bench::store_capacity(options.via);
    if (!capacity)
      return tell_error(kReplayCommand, "--via: " + capacity.error.text);
    if (const std::string wrong = take_store_capacity(*planned.plan, capacity_given, capacity.value); !wrong.empty())
      return tell_error(kReplayCommand, wrong);
  }
  const ReplayPlan& plan = *planned.plan;
  for (const ReplaySetup& setup : plan.runs) {
    if (const Error wrong = check_store(plan, setup))
      return tell_error(kReplayCommand, (wrong.text.starts_with("policy ") ? "--policy: " : "the store: ") + wrong.text);
  }
  workload::OpenedTrace trace = workload::open_trace(plan.trace, plan.seed);
  if (!trace.source)
    return tell_error(kReplayCommand, "--trace: " + trace.error);
  RequestFeed feed(std::move(trace.source), plan.limit, plan.runs.size() > 1);

  catch_interrupts();
  ReplayOutcome outcome;
  if (const std::string error = play_all(plan, feed, output.quiet, outcome); !error.empty())
    return tell_error(kReplayCommand, error);

  if (!output.quiet) {
    const std::string text = output.format == OutputFormat::json ? replay_json(plan, outcome) : replay_table(plan, outcome);
    const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
    if (!written)
      return tell_error(kReplayCommand, "the result cannot be written to standard output");
  }
  bool sound = !outcome.interrupted;
  for (const ReplayFigures& figures : outcome.runs)
    sound = sound && figures.sound();
  return sound ? kExitDone : kExitSomeFailed;
}

}  // namespace

void add_replay_command(CLI::App& app, CommandChoice& choice) {
  struct Bound {
    ReplayOptions options;
    OutputOptions output;
  };
  auto bound = std::make_shared<Bound>();
  CLI::App* command = app.add_subcommand("replay", "Play a request trace through all ranks and a store; tell what it hits");
  ReplayOptions& options = bound->options;
  command->add_option("--trace", options.trace, "JSON lines (.xz or plain), - or builtin:chat|agentic (default)")
      ->option_text("FILE");
  command->add_option("--preset", options.preset, "Model: kimi-k3-draft (default), kimi-k2, qwen3-next ...")->option_text("NAME");
  command->add_option("--ranks", options.ranks, "Tensor-parallel ranks: 1, 2, 4, 8 (default), 16")->option_text("N");
  command->add_option("--keys", options.keys, "rank: all per rank, shard: replicated once, both (default)")->option_text("WHICH");
  command->add_option("--capacity", options.capacities, "Payload kept, one run each (default 480GiB)")
      ->option_text("SIZE ...")
      ->delimiter(',')
      ->expected(1, 64);
  command->add_option("--policy", options.policies, "Eviction policy, one run each (default lru)")
      ->option_text("NAME ...")
      ->delimiter(',')
      ->expected(1, 64);
  command->add_option("--scale", options.scale, "Divides capacity and objects (default 1024)")->option_text("N");
  command->add_option("--limit", options.limit, "Only the first N requests (builtin: 1500)")->option_text("N");
  command->add_option("--load", options.load, "Share of hits that all ranks load (default 1)")->option_text("SHARE");
  command->add_option("--verify", options.verify, "Share of loads compared byte by byte (default 1)")->option_text("SHARE");
  command->add_option("--seed", options.seed, "Decides built-in traces and all bytes (default 1)")->option_text("N");
  command->add_option("--via", options.via, "Store: embedded (default), spawn: a kvonced of its own, unix:PATH")->option_text("WHERE");
  add_output_options(*command, bound->output);
  command->callback([bound, command, &choice] {
    const bool capacity_given = command->count("--capacity") != 0;
    choice.run = [bound, capacity_given] { return run_replay(bound->options, capacity_given, bound->output); };
  });
}

}  // namespace kvonce::apps
