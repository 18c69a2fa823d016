// SPDX-License-Identifier: Apache-2.0
//
// The signature of this store: rank processes that announce the same pages at once, moved once between them; and the same while the
// process that was granted the writing is killed in the middle of it.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <random>
#include <thread>

#include "bench/crew.hpp"
#include "bench/jobs.hpp"
#include "bench/results.hpp"

namespace kvonce::bench {
namespace {

using Clock = std::chrono::steady_clock;

// Rounds whose pages may lie in the store at once: removed pages of ended processes take a moment.
constexpr std::uint64_t kRoomRounds = 8;
constexpr std::chrono::seconds kAnnounceTime{10};
constexpr std::chrono::seconds kVictimTime{2};
constexpr std::chrono::seconds kSettleTime{10};

struct Totals {
  std::uint64_t rounds = 0;
  std::uint64_t announced_pages = 0;
  std::uint64_t unique_pages = 0;
  std::uint64_t moved_bytes = 0;
  std::uint64_t stored_bytes = 0;  // as the store counts
  std::uint64_t acked_not_readable = 0;
  std::uint64_t wrong_bytes = 0;
  std::uint64_t lost_for_survivors = 0;
  VerdictCounts verdicts{};
  std::vector<double> ack_us_first;
  std::vector<double> ack_us_last;
};

class Coalesce {
 public:
  Coalesce(const Options& options, Crew& crew) : options_(options), crew_(crew), dice_(fresh_seed()) {}

  void quiet_round() {
    const std::uint32_t number = begin_round(false);
    crew_.board().start(number);
    std::vector<std::size_t> all;
    for (std::size_t r = 0; r < crew_.size(); ++r) all.push_back(r);
    finish_round(quiet_, all, {});
  }

  void kill_round() {
    const std::uint64_t announced = crew_.stage().runtime().stats().announced_items + options_.ranks * options_.pages;
    const std::uint32_t number = begin_round(true);
    crew_.board().start(number);
    // Everybody waits for the pages: then the death of one must help, not hurt, the others.
    const auto deadline = Clock::now() + kAnnounceTime;
    while (crew_.stage().runtime().stats().announced_items < announced) {
      Interrupts::check();
      if (Clock::now() >= deadline) throw Failed{"not every rank process has announced its pages in time"};
    }
    const std::size_t victim = choose(number);
    const auto killed = Clock::now();
    crew_.kill(victim);
    crew_.board().open_gates(number);
    ++kills_;
    crew_.begin_restart(victim);
    std::vector<std::size_t> survivors;
    for (std::size_t r = 0; r < crew_.size(); ++r)
      if (r != victim) survivors.push_back(r);
    finish_round(killing_, survivors, killed);
    crew_.finish_restart(victim);
  }

  void run() {
    const auto begin = Clock::now();
    const Stats before = crew_.stage().runtime().stats();
    for (std::uint64_t i = 0; i < options_.rounds; ++i) quiet_round();
    const Stats between = crew_.stage().runtime().stats();
    quiet_.stored_bytes = between.stored_bytes - before.stored_bytes;
    const bool told = options_.kills >= 100 && isatty(STDERR_FILENO) != 0;
    for (std::uint64_t i = 0; i < options_.kills; ++i) {
      kill_round();
      if (told && (i + 1) % 10 == 0) std::fprintf(stderr, "\rkills %llu of %llu", static_cast<unsigned long long>(i + 1), static_cast<unsigned long long>(options_.kills));
    }
    if (told) std::fputc('\n', stderr);
    const Stats after = crew_.stage().runtime().stats();
    killing_.stored_bytes = after.stored_bytes - between.stored_bytes;
    promotions_ = after.promotions - between.promotions;
    // Slots of the dead are free again once the kernel has said that they are dead.
    const auto deadline = Clock::now() + kSettleTime;
    while ((quarantined_ = crew_.stage().runtime().stats().quarantined_bytes_now) != 0 && Clock::now() < deadline) {
      Interrupts::check();
      std::this_thread::sleep_for(std::chrono::milliseconds{5});
    }
    seconds_ = std::chrono::duration<double>(Clock::now() - begin).count();
  }

  Json json() {
    Json run = {{"path", kPathShared},
                {"kills", kills_},
                {"kills_in_grant", in_grant_},
                {"promotions", promotions_},
                {"announced_pages", quiet_.announced_pages + killing_.announced_pages},
                {"unique_pages", quiet_.unique_pages + killing_.unique_pages},
                {"unique_bytes", (quiet_.unique_pages + killing_.unique_pages) * options_.page_bytes},
                {"moved_bytes", quiet_.moved_bytes + killing_.moved_bytes},
                {"stored_bytes", quiet_.stored_bytes + killing_.stored_bytes},
                {"acked_not_readable", quiet_.acked_not_readable + killing_.acked_not_readable},
                {"wrong_bytes", quiet_.wrong_bytes + killing_.wrong_bytes},
                {"lost_for_survivors", quiet_.lost_for_survivors + killing_.lost_for_survivors},
                {"ack_us_first", quantile(quiet_.ack_us_first, 0.5)},
                {"ack_us_last", quantile(quiet_.ack_us_last, 0.5)},
                {"seconds", seconds_},
                {"quarantined_bytes_at_end", quarantined_}};
    run["without_kills"] = part(quiet_);
    run["with_kills"] = part(killing_);
    run["with_kills"]["after_the_kill"] = "acknowledgements are timed from the kill";
    return run;
  }

  std::string wrong() const {
    const std::uint64_t not_readable = quiet_.acked_not_readable + killing_.acked_not_readable;
    const std::uint64_t bytes = quiet_.wrong_bytes + killing_.wrong_bytes;
    const std::uint64_t lost = quiet_.lost_for_survivors + killing_.lost_for_survivors;
    if (not_readable + bytes + lost == 0) return {};
    return std::to_string(not_readable) + " acknowledged pages were not readable, " + std::to_string(bytes) + " bytes were wrong, " +
           std::to_string(lost) + " pages of survivors were lost";
  }

 private:
  std::uint32_t begin_round(bool gate) {
    const std::uint32_t number = crew_.next_number();
    seed_ = fresh_seed();
    keys_ = make_keys(seed_, options_.pages);
    crew_.ask_all({{"do", "coalesce"}, {"number", number}, {"seed", seed_}, {"pages", options_.pages}, {"gate", gate}});
    return number;
  }

  // At random among the processes whose copy stands still in the middle of a page and that hold an open grant, as the store itself
  // says now; any process when there is none.
  std::size_t choose(std::uint32_t number) {
    const auto deadline = Clock::now() + kVictimTime;
    while (Clock::now() < deadline) {
      Interrupts::check();
      std::vector<std::size_t> copying;
      for (std::size_t r = 0; r < crew_.size(); ++r)
        if (crew_.board().ranks[r].at_gate.load(std::memory_order_acquire) == number) copying.push_back(r);
      const auto clients = crew_.stage().runtime().clients();
      if (!clients) throw Failed{"the store does not tell its clients: " + clients.error.text};
      std::erase_if(copying, [&](std::size_t r) {
        return std::none_of(clients.value.begin(), clients.value.end(), [&](const ClientInfo& client) {
          return client.pid == static_cast<std::uint32_t>(crew_.pid(r)) && client.open_grants > 0;
        });
      });
      if (copying.empty()) continue;
      ++in_grant_;
      return copying[dice_() % copying.size()];
    }
    return dice_() % crew_.size();
  }

  // `from`: time that acknowledgements are counted from; when there is none, from the first announcement.
  void finish_round(Totals& totals, const std::vector<std::size_t>& ranks, Clock::time_point from) {
    std::vector<Json> reports;
    for (const std::size_t r : ranks) static_cast<void>(crew_.answer(r));
    for (const std::size_t r : ranks) reports.push_back(crew_.ask(r, {{"do", "report"}}));
    ++totals.rounds;
    totals.announced_pages += options_.pages * options_.ranks;
    totals.unique_pages += options_.pages;
    std::int64_t begin = reports.front().at("begin");
    std::int64_t first = reports.front().at("end");
    std::int64_t last = first;
    std::vector<bool> acked(options_.pages, false);
    for (const Json& report : reports) {
      begin = std::min(begin, report.at("begin").get<std::int64_t>());
      first = std::min(first, report.at("end").get<std::int64_t>());
      last = std::max(last, report.at("end").get<std::int64_t>());
      totals.moved_bytes += report.at("moved_bytes").get<std::uint64_t>();
      for (std::size_t p = 0; p < options_.pages; ++p) {
        const auto verdict = static_cast<Verdict>(report.at("verdicts").at(p).get<int>());
        ++totals.verdicts[static_cast<std::size_t>(verdict)];
        if (is_success(verdict)) acked[p] = true;
      }
    }
    if (from != Clock::time_point{}) begin = from.time_since_epoch().count();
    const auto us = [&](std::int64_t at) { return std::chrono::duration<double, std::micro>(Clock::duration(at - begin)).count(); };
    totals.ack_us_first.push_back(us(first));
    totals.ack_us_last.push_back(us(last));
    look(totals, acked);
    crew_.remove(keys_);
  }

  // By this process, which has put nothing: every page back into rows of its own.
  void look(Totals& totals, const std::vector<bool>& acked) {
    Stage& stage = crew_.stage();
    std::vector<bool> loaded(options_.pages, false);
    load(0, options_.pages, loaded);
    for (std::size_t p = 0; p < options_.pages; ++p) {
      if (!loaded[p]) load(p, p + 1, loaded);  // what lies behind a missing page is no prefix: asked for by itself
      if (!loaded[p]) {
        ++totals.lost_for_survivors;
        if (acked[p]) ++totals.acked_not_readable;
      } else if (!row_is(stage.row(0, p), options_.page_bytes, seed_, p)) {
        totals.wrong_bytes += options_.page_bytes;
      }
    }
  }

  void load(std::size_t begin, std::size_t end, std::vector<bool>& loaded) {
    Stage& stage = crew_.stage();
    const auto first = keys_.begin() + static_cast<std::ptrdiff_t>(begin);
    auto lookup = stage.runtime().lookup(stage.group(), {first, keys_.begin() + static_cast<std::ptrdiff_t>(end)});
    if (!lookup) throw Failed{"lookup refused: " + lookup.error.text};
    lookup.value->wait();
    const LookupResult& found = lookup.value->result();
    if (found.restorable_pages == 0) return;
    std::vector<LoadItem> items;
    for (std::size_t p = begin; p < begin + found.restorable_pages; ++p) items.push_back({keys_[p], stage.pool(0), p});
    auto loads = stage.rank(0).load(found.lease, std::move(items));
    if (!loads) throw Failed{"load refused: " + loads.error.text};
    loads.value->wait();
    const auto results = loads.value->results();
    for (std::size_t i = 0; i < results.size(); ++i) loaded[begin + i] = results[i] == Reason::none;
    static_cast<void>(stage.runtime().release(found.lease));
  }

  Json part(Totals& totals) const {
    return {{"rounds", totals.rounds},
            {"announced_pages", totals.announced_pages},
            {"unique_pages", totals.unique_pages},
            {"moved_bytes", totals.moved_bytes},
            {"stored_bytes", totals.stored_bytes},
            {"verdicts", verdicts_json({totals.verdicts})},
            {"ack_us_first", spread(totals.ack_us_first)},
            {"ack_us_last", spread(totals.ack_us_last)}};
  }

  const Options& options_;
  Crew& crew_;
  std::mt19937_64 dice_;
  std::uint64_t seed_ = 0;
  std::vector<PageHash> keys_;
  Totals quiet_;
  Totals killing_;
  std::uint64_t kills_ = 0;
  std::uint64_t in_grant_ = 0;
  std::uint64_t promotions_ = 0;
  std::uint64_t quarantined_ = 0;
  double seconds_ = 0;
};

}  // namespace

Outcome run_coalesce(const Options& options) {
  const Interrupts interrupts;
  try {
    CrewSpec spec;
    spec.ranks = options.ranks;
    spec.pages = options.pages * kRoomRounds;
    spec.page_bytes = options.page_bytes;
    spec.rows = options.pages;
    spec.own_rows = options.pages;
    // Processes come and go: each touches only what it writes.
    spec.populate = options.kills == 0;
    Crew crew(options, spec);
    Coalesce coalesce(options, crew);
    coalesce.run();
    crew.end();
    Outcome out;
    out.result = report(options, {coalesce.json()}, "seconds");
    out.wrong = coalesce.wrong();
    return out;
  } catch (const Failed& failed) {
    return {{}, failed.text, {}};
  } catch (const std::exception& problem) {
    return {{}, std::string("the benchmark failed: ") + problem.what(), {}};
  }
}

}  // namespace kvonce::bench
