// SPDX-License-Identifier: Apache-2.0
#include "bench/rank_process.hpp"

#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <memory>
#include <random>

#include "bench/board.hpp"
#include "bench/child.hpp"
#include "bench/drive.hpp"
#include "bench/gate.hpp"
#include "bench/questions.hpp"
#include "bench/results.hpp"
#include "bench/stage.hpp"

namespace kvonce::bench {
namespace {

using Clock = std::chrono::steady_clock;

// Longer than any step of a benchmark: a parent that is gone is noticed at once, by its socket.
constexpr std::chrono::hours kPatience{24};

std::int64_t ticks(Clock::time_point at) { return at.time_since_epoch().count(); }

struct Answer {
  void wait() const {}
  std::vector<std::uint8_t> found;
};

class RankProgram {
 public:
  RankProgram(int channel, int board) : channel_(Descriptor(channel)), board_(board) {}

  int run() {
    Json command;
    while (board_.get() != nullptr && channel_.receive(command, Clock::now() + kPatience) == Channel::Got::value) {
      Json answer = Json::object();
      try {
        const std::string what = command.at("do");
        if (what == "end") return 0;
        act(what, command, answer);
      } catch (const Failed& failed) {
        answer = {{"error", failed.text}};
      } catch (const std::exception& problem) {
        answer = {{"error", std::string("a rank process: ") + problem.what()}};
      }
      if (!channel_.send(answer)) return 1;
    }
    return 1;
  }

 private:
  void act(const std::string& what, const Json& command, Json& answer) {
    if (what == "start") return start(command, answer);
    if (!stage_) throw Failed{"a rank process was not started"};
    if (what == "fill") return stage_->fill_rows(command.at("seed"));
    if (what == "clear") return stage_->clear_rows(0);
    if (what == "put_all") return put_all(command);
    if (what == "put") return put(command);
    if (what == "get") return get(command);
    if (what == "exists") return exists(command);
    if (what == "coalesce") return coalesce(command);
    if (what == "wrong_rows") {
      answer["wrong"] = stage_->wrong_rows(0, command.at("seed"));
    } else if (what == "report") {
      answer = std::move(report_);
    } else {
      throw Failed{"a rank process knows no command '" + what + "'"};
    }
  }

  void start(const Json& command, Json& answer) {
    StageSpec spec;
    spec.pages = command.at("pages");
    spec.page_bytes = command.at("page_bytes");
    spec.rows = command.at("rows");
    spec.movers = command.at("movers");
    spec.kernel = command.at("kernel");
    spec.inline_copy_bytes = command.at("inline_copy_bytes");
    spec.populate = command.at("populate");
    spec.store = command.at("store");
    spec.engine = command.at("engine");
    spec.ns = command.at("ns");
    spec.first_rank = command.at("rank");
    spec.group_ranks = command.at("group_ranks");
    rank_ = spec.first_rank;
    page_bytes_ = spec.page_bytes;
    memory_.emplace_back(spec.rows * Stage::row_stride(spec));
    const auto begin = Clock::now();
    auto started = Stage::start(spec, memory_);
    if (!started.stage) throw Failed{"rank process " + std::to_string(rank_) + ": " + started.error};
    stage_ = std::move(started.stage);
    answer["seconds"] = std::chrono::duration<double>(Clock::now() - begin).count();
    answer["verified_path"] = stage_->runtime().connected() && stage_->runtime().config().store != "embedded";
  }

  // Untimed; every page must be stored.
  void put_all(const Json& command) {
    const std::uint64_t rows = command.at("rows");
    const auto keys = make_keys(command.at("seed"), command.at("pages"));
    std::uint64_t stored = 0;
    for (PutBatch& batch : make_put_batches(keys, command.at("batch"), stage_->pool(0), rows)) {
      auto put = stage_->rank(0).put(std::move(batch));
      if (!put) throw Failed{"put refused: " + put.error.text};
      put.value->wait();
      stored += put.value->succeeded();
    }
    if (stored != keys.size()) throw Failed{std::to_string(keys.size() - stored) + " pages could not be stored before the timed part"};
  }

  // Tells that all is prepared, waits for the others, does its part, and keeps what came out for "report": the processes' CPU is
  // read between.
  template <class Submit, class Done>
  DrivenRank timed(const Json& command, std::size_t batches, std::uint64_t depth, const Submit& submit, const Done& done) {
    const std::uint32_t number = command.at("number");
    const std::uint32_t ranks = command.at("lockstep") ? command.at("ranks").get<std::uint32_t>() : 0;
    if (!channel_.send({{"ready", true}})) throw Failed{"the benchmark has ended"};
    const std::uint64_t moved = stage_->rank(0).moved_bytes();
    DrivenRank driven = drive_rank(
        batches, depth, [&] { board_->wait_start(number); },
        [&] {
          if (ranks > 1) board_->step(ranks);
        },
        submit, done);
    report_ = {{"begin", ticks(driven.begin)},
               {"end", ticks(driven.end)},
               {"ack_us", driven.ack_us},
               {"moved_bytes", stage_->rank(0).moved_bytes() - moved}};
    if (!driven.error.empty()) report_["error"] = driven.error;
    return driven;
  }

  void put(const Json& command) {
    const auto keys = make_keys(command.at("seed"), command.at("pages"));
    auto batches = make_put_batches(keys, command.at("batch"), stage_->pool(0), command.at("pages"));
    VerdictCounts verdicts{};
    timed(
        command, batches.size(), command.at("depth"),
        [&](std::size_t b, Completion completion) {
          PutOptions options;
          options.completion = std::move(completion);
          return stage_->rank(0).put(std::move(batches[b]), std::move(options));
        },
        [&](PutOperation& operation) {
          for (const PutItemResult& item : operation.results()) ++verdicts[static_cast<std::size_t>(item.verdict)];
        });
    report_["verdicts"] = verdicts;
  }

  void get(const Json& command) {
    const auto keys = make_keys(command.at("seed"), command.at("pages"));
    const std::uint64_t batch = command.at("batch");
    const std::uint64_t chain = chain_pages(batch);
    std::vector<LeaseId> leases;
    for (const Json& one : command.at("leases")) leases.push_back({one.at(0), one.at(1)});
    std::vector<std::vector<LoadItem>> batches;
    for (std::uint64_t i = 0; i < keys.size(); ++i) {
      if (i % batch == 0) batches.emplace_back();
      batches.back().push_back({keys[i], stage_->pool(0), i});
    }
    ReasonCounts reasons{};
    timed(
        command, batches.size(), command.at("depth"),
        [&](std::size_t b, Completion completion) {
          LoadOptions options;
          options.completion = std::move(completion);
          return stage_->rank(0).load(leases.at(b * batch / chain), std::move(batches[b]), std::move(options));
        },
        [&](LoadOperation& operation) {
          for (const Reason reason : operation.results()) ++reasons[static_cast<std::size_t>(reason)];
        });
    report_["reasons"] = reasons;
  }

  void exists(const Json& command) {
    const auto keys = make_keys(command.at("seed"), command.at("pages"));
    const auto absent = make_keys(command.at("seed").get<std::uint64_t>() + 1, std::min<std::uint64_t>(keys.size(), 65'536));
    const std::uint64_t batch = command.at("batch");
    std::vector<PageHash> questions(command.at("operations").get<std::uint64_t>());
    Questions numbers(command.at("questions").at(rank_), keys.size());
    for (PageHash& one : questions) one = keys[numbers.next()];
    std::uint64_t found = 0;
    timed(
        command, questions.size() / batch, 1,
        [&](std::size_t b, const Completion&) {
          auto answer = stage_->rank(0).exists(stage_->pool(0), std::span(questions).subspan(b * batch, batch));
          Result<std::shared_ptr<Answer>> out;
          out.error = answer.error;
          out.value = std::make_shared<Answer>(Answer{std::move(answer.value)});
          return out;
        },
        [&](const Answer& answer) {
          for (const std::uint8_t one : answer.found) found += one;
        });
    const auto other = stage_->rank(0).exists(stage_->pool(0), absent);
    std::uint64_t false_hits = 0;
    for (const std::uint8_t one : other.value) false_hits += one;
    report_["found"] = found;
    report_["false_hits"] = other.error ? absent.size() : false_hits;
  }

  // One batch of pages that no process has put before. With "gate" every row stops whoever copies it, at a random page of it.
  void coalesce(const Json& command) {
    const std::uint64_t pages = command.at("pages");
    const std::uint32_t number = command.at("number");
    const std::uint64_t seed = command.at("seed");
    const auto keys = make_keys(seed, pages);
    for (std::uint64_t p = 0; p < pages; ++p) fill_row(stage_->row(0, p), page_bytes_, seed, p);
    if (command.at("gate")) close_gate(number, pages);
    auto batches = make_put_batches(keys, pages, stage_->pool(0), pages);
    const std::uint64_t moved = stage_->rank(0).moved_bytes();
    if (!channel_.send({{"ready", true}})) throw Failed{"the benchmark has ended"};
    board_->wait_start(number);
    const auto begin = Clock::now();
    auto put = stage_->rank(0).put(std::move(batches.front()));
    if (!put) throw Failed{"put refused: " + put.error.text};
    put.value->wait();
    const auto end = Clock::now();
    if (gate_) gate_->open();
    std::vector<int> verdicts;
    for (const PutItemResult& item : put.value->results()) verdicts.push_back(static_cast<int>(item.verdict));
    report_ = {{"begin", ticks(begin)},
               {"end", ticks(end)},
               {"verdicts", verdicts},
               {"moved_bytes", stage_->rank(0).moved_bytes() - moved}};
  }

  void close_gate(std::uint32_t number, std::uint64_t pages) {
    if (!gate_) gate_ = std::make_unique<Gate>(*board_.get(), rank_);
    const auto system_page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
    std::vector<std::byte*> gates;
    std::mt19937_64 dice(fresh_seed());
    // Never a row's first page: the copy has begun when it comes to the gate.
    for (std::uint64_t p = 0; p < pages; ++p) {
      std::byte* const row = stage_->row(0, p);
      const std::uint64_t first = (reinterpret_cast<std::uintptr_t>(row) + system_page) / system_page;
      const std::uint64_t last = (reinterpret_cast<std::uintptr_t>(row) + page_bytes_ - 1) / system_page;
      gates.push_back(reinterpret_cast<std::byte*>((first + dice() % (last - first + 1)) * system_page));
    }
    if (!gate_->close(number, gates)) throw Failed{"the system does not let a page of memory be closed"};
  }

  Channel channel_;
  SharedBoard board_;
  std::size_t rank_ = 0;
  std::uint64_t page_bytes_ = 0;
  std::vector<RowMemory> memory_;
  std::unique_ptr<Stage> stage_;
  std::unique_ptr<Gate> gate_;
  Json report_;
};

}  // namespace

int run_rank_process(int channel, int board, int parent) {
  // Not without the one that started it, whatever became of that.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) return 1;
  return RankProgram(channel, board).run();
}

}  // namespace kvonce::bench
