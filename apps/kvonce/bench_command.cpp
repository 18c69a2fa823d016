// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <deque>
#include <memory>
#include <string>

#include "apps/json_text.hpp"
#include "apps/kvonce/command.hpp"
#include "bench/jobs.hpp"
#include "bench/rank_process.hpp"
#include "protocol/units.hpp"

namespace kvonce::apps {
namespace {

using bench::Job;
using bench::Options;

// One subcommand's options. Numbers are kept as text: CLI11 would take "0x10" and "-1" for some of them.
struct Command {
  explicit Command(Job job) : options(bench::defaults(job)) {}

  Options options;
  std::string seconds;
  CLI::Option* seconds_option = nullptr;
  std::string limit;
  CLI::Option* limit_option = nullptr;
  OutputOptions output;
  struct Number {
    const char* name;
    std::string text;
    std::uint64_t* value;
    bool bytes;
    CLI::Option* option;
  };
  std::deque<Number> numbers;  // a deque: CLI11 keeps pointers to the texts

  void number(CLI::App& app, const char* name, std::uint64_t& value, const std::string& help, bool bytes = false) {
    Number& one = numbers.emplace_back(Number{name, {}, &value, bytes, nullptr});
    one.option = app.add_option(name, one.text,
                                help + " [" + (bytes ? protocol::format_bytes(value) : protocol::format_count(value)) + "]")
                     ->option_text(bytes ? "SIZE" : "N");
  }
};

// The texts into the options; what is wrong with the first bad one.
std::string read_options(Command& command) {
  for (const Command::Number& one : command.numbers) {
    if (one.option->count() == 0) continue;
    const bench::Limits allowed = bench::limits_of(command.options.job, one.name);
    const auto parsed = one.bytes ? protocol::parse_bytes(one.text, allowed.least, allowed.most)
                                  : protocol::parse_u64(one.text, allowed.least, allowed.most);
    if (!parsed) return std::string(one.name) + ": " + parsed.error;
    *one.value = parsed.value;
  }
  if (command.limit_option != nullptr && command.limit_option->count() != 0) {
    const auto parsed = protocol::parse_duration(command.limit, std::chrono::milliseconds{0}, std::chrono::hours{1});
    if (!parsed) return "--limit-time: " + parsed.error;
    command.options.limit_seconds = std::chrono::duration<double>(parsed.value).count();
  }
  if (command.seconds_option != nullptr && command.seconds_option->count() != 0) {
    const auto parsed = protocol::parse_duration(command.seconds, std::chrono::milliseconds{1}, std::chrono::hours{1});
    if (!parsed) return "--time: " + parsed.error;
    command.options.seconds = std::chrono::duration<double>(parsed.value).count();
  }
  return {};
}

int run_command(Command& command) {
  const std::string name = std::string("bench ") + bench::to_string(command.options.job);
  if (const std::string error = read_options(command); !error.empty()) return tell_error(name, error);
  const bench::Outcome outcome = bench::run(command.options);
  if (!outcome.error.empty()) return tell_error(name, outcome.error);
  if (!command.output.quiet && !outcome.result.empty()) {
    const std::string text = command.output.format == OutputFormat::json
                                 ? json_text(outcome.result) + "\n"
                                 : bench::text_of(outcome.result);
    std::fwrite(text.data(), 1, text.size(), stdout);
  }
  if (outcome.wrong.empty()) return kExitDone;
  static_cast<void>(tell_error(name, outcome.wrong));
  return kExitSomeFailed;
}

void add_job_options(CLI::App& app, Command& command) {
  Options& options = command.options;
  const Job job = options.job;
  const bool moves = job == Job::put || job == Job::get;
  if (moves || job == Job::exists || job == Job::lookup || job == Job::idle)
    command.number(app, "--ranks", options.ranks, job == Job::idle ? "Ranks, a pool each" : "Ranks, a thread and buffers each");
  if (job == Job::coalesce) command.number(app, "--ranks", options.ranks, "Rank processes");
  if (job != Job::idle && job != Job::allocator)
    command.number(app, "--pages", options.pages, job == Job::coalesce ? "Pages that all put at once" : "Unique pages");
  if (moves || job == Job::exists || job == Job::memory || job == Job::coalesce || job == Job::restart)
    command.number(app, "--page-bytes", options.page_bytes, "Bytes of a page", true);
  if (moves || job == Job::exists || job == Job::memory || job == Job::restart) command.number(app, "--batch", options.batch, "Keys per call");
  if (moves) {
    command.number(app, "--depth", options.depth, "Batches in flight per rank");
    command.number(app, "--movers", options.movers, "Copying threads; the copy limit is measured with as many");
    app.add_option("--kernel", options.kernel, "How to copy: auto (default), avx512, avx2, portable")->option_text("KERNEL");
    command.number(app, "--inline-copy", options.inline_copy_bytes, "Largest batch that the calling thread copies itself", true);
    app.add_flag("--lockstep", options.lockstep, "A barrier before each batch; else ranks start together and run free");
  }
  if (moves || job == Job::exists || job == Job::lookup || job == Job::idle)
    command.limit_option = app.add_option("--limit-time", command.limit,
                                          std::string("Time to measure the copy limit, ") +
                                              (moves ? "before and after; 0ms: not at all [800ms]" : "before; 0ms: not at all [200ms]"))
                               ->option_text("TIME");
  if (job == Job::exists) command.number(app, "--operations", options.operations, "Keys asked by each rank");
  if (job == Job::lookup) {
    command.number(app, "--operations", options.operations, "Lookups");
    app.add_option("--preset", options.preset, "Model whose pools are looked up [" + options.preset + "]")->option_text("PRESET");
    command.number(app, "--checkpoint-pages", options.checkpoint_pages, "A checkpoint at every so-many-th page");
  }
  if (job == Job::idle) command.seconds_option = app.add_option("--time", command.seconds, "Time to measure, as 10s [10s]")->option_text("TIME");
  if (job == Job::allocator) command.number(app, "--operations", options.operations, "Objects put, one after the other");
  if (job == Job::coalesce) {
    command.number(app, "--kills", options.kills, "Writers killed in the middle of a copy, a round each");
    command.number(app, "--rounds", options.rounds, "Rounds before that, without a kill");
  }
  if (job == Job::restart)
    app.add_option("--folder", options.folder, "Where the store's file is made: on tmpfs [" + options.folder + "]")->option_text("FOLDER");
  // Not shown where there is none: bench::check then says so.
  app.add_option("--via", options.via,
                 "unix:PATH: a process per rank, and the store that listens there; spawn: a kvonced for this run" +
                     (options.via.empty() ? std::string() : " [" + options.via + "]"))
      ->option_text("STORE")
      ->group(bench::can_go_via(job) ? "Options" : "");
  if (moves || job == Job::exists)
    app.add_option("--expect-path", options.expect_path, "Fail unless page bytes go by this: shm (with --via) or memcpy")->option_text("PATH");
  if (job != Job::coalesce) command.number(app, "--repeat", options.repeat, "Runs, of which medians are told");
  add_output_options(app, command.output);
}

}  // namespace

void add_bench_commands(CLI::App& app, CommandChoice& choice) {
  struct Listed {
    Job job;
    const char* help;
  };
  static constexpr Listed kJobs[] = {
      {Job::put, "Ranks put the same pages at once: what moves, how fast, at what CPU cost"},
      {Job::get, "Ranks load stored pages into their rows"},
      {Job::exists, "Asks resident keys at random"},
      {Job::lookup, "How long a prefix of a model's pages takes to be looked up and leased"},
      {Job::idle, "CPU of a runtime that has nothing to do"},
      {Job::memory, "Memory that the store takes beside the payload"},
      {Job::coalesce, "Rank processes put the same pages at once; with --kills, while their writers are killed"},
      {Job::restart, "A store that ends in order and starts again over its arena file: how long, and what is back"},
      {Job::allocator, "Space lost while objects of all models come and go in a full arena"},
  };
  CLI::App* bench = app.add_subcommand("bench", "Measure this machine and this build; bytes and answers are verified");
  bench->require_subcommand(1);
  // A process of the others, started by them.
  CLI::App* const rank = bench->add_subcommand(bench::kRankCommand, "")->group("");
  const auto parent = std::make_shared<int>(0);
  rank->add_option("parent", *parent)->required();
  rank->callback([parent, &choice] {
    choice.run = [parent] { return bench::run_rank_process(bench::kRankChannelFd, bench::kRankBoardFd, *parent); };
  });
  for (const Listed& listed : kJobs) {
    CLI::App* const job = bench->add_subcommand(bench::to_string(listed.job), listed.help);
    const auto command = std::make_shared<Command>(listed.job);
    add_job_options(*job, *command);
    job->callback([command, &choice] { choice.run = [command] { return run_command(*command); }; });
  }
}

}  // namespace kvonce::apps
