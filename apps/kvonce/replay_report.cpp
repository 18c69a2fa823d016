// SPDX-License-Identifier: Apache-2.0
#include "apps/kvonce/replay_report.hpp"

#include <algorithm>
#include <array>
#include <cstdio>

#include <nlohmann/json.hpp>

#include "apps/json_text.hpp"
#include "protocol/units.hpp"

namespace kvonce::apps {
namespace {

using nlohmann::ordered_json;
using protocol::format_count;
using workload::KeyMode;

template <class Value, std::size_t N>
ordered_json counts_json(const std::array<std::uint64_t, N>& counts, std::size_t first, bool zeros) {
  ordered_json out = ordered_json::object();
  for (std::size_t i = first; i < N; ++i) {
    if (zeros || counts[i] != 0)
      out[std::string(to_string(static_cast<Value>(i)))] = counts[i];
  }
  return out;
}

ordered_json run_json(const ReplaySetup& setup, const ReplayFigures& figures) {
  ordered_json out;
  out["keys"] = to_string(setup.keys);
  out["policy"] = setup.policy;
  out["capacity_bytes"] = setup.capacity_bytes;
  out["requests"] = figures.requests;
  out["input_tokens"] = figures.input_tokens;
  out["hit_tokens"] = figures.hit_tokens;
  out["hit_rate"] = figures.hit_rate();
  out["resident_tokens"] = figures.resident_tokens;
  out["announced_bytes"] = figures.announced_bytes;
  out["moved_bytes"] = figures.moved_bytes;
  out["moved_bytes_by_rank"] = figures.moved_bytes_by_rank;
  out["stored_bytes"] = figures.stored_bytes;
  out["kept_bytes"] = figures.kept_bytes;
  out["evicted_bytes"] = figures.evicted_bytes;
  out["loaded_bytes"] = figures.loaded_bytes;
  out["verified_bytes"] = figures.verified_bytes;
  out["wrong_bytes"] = figures.wrong_bytes;
  out["verdicts"] = counts_json<Verdict>(figures.verdicts, 1, true);
  out["put_reasons"] = counts_json<Reason>(figures.put_reasons, 0, false);
  out["load_reasons"] = counts_json<Reason>(figures.load_reasons, 0, false);
  out["optional_not_loaded"] = figures.optional_not_loaded;
  out["seconds"] = figures.seconds;
  out["cpu_seconds"] = figures.cpu_seconds;
  return out;
}

template <class... Values>
std::string format(const char* pattern, Values... values) {
  std::array<char, 256> text{};
  std::snprintf(text.data(), text.size(), pattern, values...);
  return text.data();
}

/// Full-size bytes in four significant digits.
std::string size_text(std::uint64_t scaled_bytes, std::uint64_t scale) {
  static constexpr std::array<const char*, 5> kUnits{"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(scaled_bytes) * static_cast<double>(scale);
  std::size_t unit = 0;
  while (value >= 1'000 && unit + 1 < kUnits.size()) {
    value /= 1'024;
    ++unit;
  }
  return format(value >= 100 || unit == 0 ? "%.0f %s" : value >= 10 ? "%.1f %s" : "%.2f %s", value, kUnits[unit]);
}

std::string rate_text(const ReplayFigures& figures) {
  return format("%.1f %%", figures.hit_rate());
}

std::vector<std::string> row_of(const ReplaySetup& setup, const ReplayFigures& figures, std::uint64_t scale) {
  const auto& by_rank = figures.moved_bytes_by_rank;
  const std::uint64_t most = by_rank.empty() ? 0 : *std::max_element(by_rank.begin(), by_rank.end());
  return {setup.keys == KeyMode::per_rank ? "per rank" : "per shard",
          setup.policy,
          size_text(setup.capacity_bytes, 1),
          rate_text(figures),
          size_text(figures.announced_bytes, scale),
          size_text(figures.moved_bytes, scale),
          size_text(most, scale),
          size_text(figures.kept_bytes, scale),
          size_text(figures.evicted_bytes, scale),
          size_text(figures.loaded_bytes, scale),
          figures.wrong_bytes == 0 ? (figures.verified_bytes == 0 ? "not checked" : "none")
                                   : format_count(figures.wrong_bytes) + " B",
          format("%.1f", figures.seconds)};
}

std::string aligned(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i)
      widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string space(widths[i] - row[i].size(), ' ');
      // Words to the left, numbers to the right.
      line += i < 2 ? row[i] + space : space + row[i];
      if (i + 1 < row.size())
        line += "  ";
    }
    out += line.substr(0, line.find_last_not_of(' ') + 1) + '\n';
  }
  return out;
}

/// One sentence for each capacity and policy that was run both ways.
std::string comparison(const ReplayPlan& plan, const ReplayOutcome& outcome) {
  std::string out;
  for (std::size_t i = 0; i < outcome.runs.size(); ++i) {
    for (std::size_t j = 0; j < outcome.runs.size(); ++j) {
      const ReplaySetup& rank = plan.runs[i];
      const ReplaySetup& shard = plan.runs[j];
      if (rank.keys != KeyMode::per_rank || shard.keys != KeyMode::per_shard || rank.capacity_bytes != shard.capacity_bytes ||
          rank.policy != shard.policy || outcome.runs[i].requests != outcome.runs[j].requests) {
        continue;
      }
      const ReplayFigures& before = outcome.runs[i];
      const ReplayFigures& after = outcome.runs[j];
      out += size_text(rank.capacity_bytes, 1) + ", " + rank.policy + ": keeping once what is the same on all ranks moved " +
             size_text(after.moved_bytes, plan.scale) + " instead of " + size_text(before.moved_bytes, plan.scale) +
             ",\n  and of the prompts' " + format_count(after.input_tokens) + " tokens the store had " + rate_text(after);
      if (before.hit_tokens == after.hit_tokens) {
        out += " either way.\n";
        continue;
      }
      out += " instead of " + rate_text(before) + ": " + format_count(before.input_tokens - before.hit_tokens) +
             " tokens to compute become " + format_count(after.input_tokens - after.hit_tokens) + ".\n";
    }
  }
  return out;
}

std::string unusual(const ReplayPlan& plan, const ReplayOutcome& outcome) {
  std::string out;
  for (std::size_t i = 0; i < outcome.runs.size(); ++i) {
    const ReplayFigures& figures = outcome.runs[i];
    std::string line;
    const auto add = [&line](std::uint64_t count, std::string_view what) {
      if (count != 0)
        line += (line.empty() ? "" : ", ") + format_count(count) + ' ' + std::string(what);
    };
    for (std::size_t r = 0; r < kReasonCount; ++r) {
      add(figures.put_reasons[r], "announcements not stored (" + std::string(to_string(static_cast<Reason>(r))) + ')');
      add(figures.load_reasons[r], "objects not loaded (" + std::string(to_string(static_cast<Reason>(r))) + ')');
    }
    add(figures.optional_not_loaded, "optional objects no longer there to load");
    add(figures.conflicts, "keys on which ranks differed");
    add(figures.demotions, "pools demoted");
    if (!line.empty()) {
      out += std::string("keys per ") + to_string(plan.runs[i].keys) + ", " + size_text(plan.runs[i].capacity_bytes, 1) + ": " +
             line + ".\n";
    }
  }
  return out;
}

}  // namespace

std::string replay_json(const ReplayPlan& plan, const ReplayOutcome& outcome) {
  ordered_json out;
  out["trace"] = plan.trace;
  out["seed"] = plan.seed;
  out["via"] = plan.via;
  out["preset"] = plan.model.name;
  out["ranks"] = plan.model.ranks;
  out["page_tokens"] = plan.model.page_tokens;
  out["scale"] = plan.scale;
  out["load_share"] = plan.load_share;
  out["verify_share"] = plan.verify_share;
  out["interrupted"] = outcome.interrupted;
  out["objects"] = ordered_json::array();
  for (std::size_t i = 0; i < plan.model.pools.size(); ++i) {
    out["objects"].push_back({{"pool", plan.model.pools[i].name},
                              {"bytes", plan.model.pools[i].object_bytes()},
                              {"full_bytes", plan.full_model.pools[i].object_bytes()}});
  }
  out["runs"] = ordered_json::array();
  for (std::size_t i = 0; i < outcome.runs.size(); ++i)
    out["runs"].push_back(run_json(plan.runs[i], outcome.runs[i]));
  return json_text(out) + '\n';
}

std::string replay_table(const ReplayPlan& plan, const ReplayOutcome& outcome) {
  std::string out = "Replay of " + plan.trace;
  if (plan.trace.starts_with("builtin:"))
    out += " (seed " + std::to_string(plan.seed) + ')';
  out += " through " + std::to_string(plan.model.ranks) + (plan.model.ranks == 1 ? " rank of " : " ranks of ") + plan.model.name;
  if (!outcome.runs.empty()) {
    const ReplayFigures& first = outcome.runs.front();
    out += ": " + format_count(first.requests) + " requests asked for " + format_count(first.input_tokens) + " tokens";
  }
  out += ".\n";
  if (plan.scale != 1) {
    out += "Bytes are those of the full model; real ones were moved and kept at 1/" + format_count(plan.scale) + " of them.\n";
  }
  out += '\n';
  std::vector<std::vector<std::string>> rows{{"keys", "policy", "store", "hit rate", "announced", "moved", "most by a rank",
                                              "kept at end", "evicted", "loaded", "wrong bytes", "seconds"}};
  for (std::size_t i = 0; i < outcome.runs.size(); ++i)
    rows.push_back(row_of(plan.runs[i], outcome.runs[i], plan.scale));
  out += aligned(rows);
  out +=
      "\n  keys       per rank: every rank's copy is an object of its own; per shard: one object where ranks hold the same "
      "bytes\n"
      "  hit rate   tokens of the prompts that the store could give back, of all tokens asked for\n"
      "  announced  bytes that all ranks together offered to keep; moved: those that were copied into the store\n"
      "  loaded     bytes copied back to the ranks; wrong bytes: those that were not what had been put there\n\n";
  const std::string compared = comparison(plan, outcome);
  if (!compared.empty())
    out += compared;
  out += unusual(plan, outcome);
  if (outcome.interrupted)
    out += "Interrupted: the last line is of the requests done until then.\n";
  return out;
}

}  // namespace kvonce::apps
