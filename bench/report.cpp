// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "bench/jobs.hpp"
#include "bench/measure.hpp"
#include "protocol/units.hpp"

namespace kvonce::bench {
namespace {

using Json = nlohmann::ordered_json;

std::string number(double value, const char* format = "%.2f") {
  char text[64];
  std::snprintf(text, sizeof(text), format, value);
  return text;
}
std::string whole(double value) { return protocol::format_count(static_cast<std::uint64_t>(value + 0.5)); }

class Table {
 public:
  void line(const std::string& name, const std::string& value, const std::string& beside = {}) {
    text_ += "  " + name + std::string(name.size() < 26 ? 26 - name.size() : 1, ' ');
    text_ += std::string(value.size() < 14 ? 14 - value.size() : 1, ' ') + value;
    if (!beside.empty()) text_ += "   " + beside;
    text_ += '\n';
  }
  void prose(const std::string& text) { text_ += text + '\n'; }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

std::string count_of(std::uint64_t n, const char* one) {
  return protocol::format_count(n) + " " + one + (n == 1 ? "" : "s");
}

void put_get_lines(const Json& r, Table& table) {
  const Json& limit = r["copy_limit"];
  table.line("unique pages/s", whole(r["unique_pages_per_s"]));
  table.line("keys/s", whole(r["keys_per_s"]));
  const bool limited = limit["gib_per_s"] > 0;
  if (!limited) table.line("GiB/s", number(r["gib_per_s"]), "the copy limit was not measured");
  if (limited)
    table.line("GiB/s", number(r["gib_per_s"]),
               "copy limit " + number(limit["gib_per_s"]) + " (" + limit["kernel"].get<std::string>() + ", " +
                   count_of(limit["threads"].get<std::uint64_t>(), "thread") + "), " + number(r["ratio_to_copy_limit"]) +
                   " of it");
  if (limited)
    table.line("", "", "copy with checksums alone " + number(r["checksummed_copy"]["gib_per_s"]) + ", portable " +
                           number(r["checksummed_copy"]["portable_gib_per_s"]));
  if (limited && limit.contains("private_memory_gib_per_s"))
    table.line("", "", "that limit is " + limit["memory"].get<std::string>() + ", as here; between private memory " +
                           number(limit["private_memory_gib_per_s"]));
  table.line("CPU us per unique page", number(r["cpu_us_per_unique_page"]),
             limited ? "bare copy " + number(limit["cpu_us_per_page"]) : std::string());
  if (r.contains("cpu_us_per_unique_page_of")) {
    const Json& of = r["cpu_us_per_unique_page_of"];
    table.line("", "", "all processes: ranks " + number(of["ranks"]) + ", store " + number(of["store"]) + ", the bench itself " +
                           number(of["bench"]));
  }
  table.line("ack us p50 / p99 / max", whole(r["ack_us"]["p50"]) + " / " + whole(r["ack_us"]["p99"]) + " / " +
                                           whole(r["ack_us"]["max"]));
  const bool put = r["bench"] == "put";
  if (put) {
    table.line("announced", protocol::format_bytes(r["announced_bytes"]));
    table.line("moved", protocol::format_bytes(r["moved_bytes"]), "unique " + protocol::format_bytes(r["unique_bytes"]));
    table.line("stored", protocol::format_bytes(r["stored_bytes"]), "as the store counts");
    std::uint64_t most = 0;
    for (const Json& one : r["moved_bytes_by_rank"]) most = std::max(most, one.get<std::uint64_t>());
    table.line("rows compared", whole(r["checksum_samples"]), "checksums asked of ranks that did not write; the pool's first 64 keys before");
    table.line("most moved by one rank", protocol::format_bytes(most),
               number(static_cast<double>(most) / r["unique_bytes"].get<double>()) + " of the unique bytes");
  }
  std::string answers;
  for (const auto& [name, n] : (put ? r["verdicts"] : r["results"]).items())
    if (n != 0) answers += (answers.empty() ? "" : ", ") + name + " " + protocol::format_count(n);
  table.line(put ? "verdicts" : "results", "", answers);
}

void coalesce_lines(const Json& r, Table& table) {
  const auto line = [&](const char* name, const Json& us, const char* beside) {
    table.line(name, whole(us["p50"]) + " / " + whole(us["p99"]) + " / " + whole(us["max"]), beside);
  };
  table.line("pages announced", protocol::format_count(r["announced_pages"]), "unique " + protocol::format_count(r["unique_pages"]));
  table.line("moved", protocol::format_bytes(r["moved_bytes"]), "by the processes that lived; unique " + protocol::format_bytes(r["unique_bytes"]));
  table.line("stored", protocol::format_bytes(r["stored_bytes"]), "as the store counts");
  line("first ack us", r["without_kills"]["ack_us_first"], "p50 / p99 / max of the rounds without a kill, from the first announcement");
  line("last ack us", r["without_kills"]["ack_us_last"], "");
  if (r["kills"] != 0) {
    table.line("writers killed", protocol::format_count(r["kills"]),
               protocol::format_count(r["kills_in_grant"]) + " of them in a copy, with an open grant as the store said right before");
    table.line("grants passed on", protocol::format_count(r["promotions"]));
    line("first ack us", r["with_kills"]["ack_us_first"], "after the kill, of those that lived");
    line("last ack us", r["with_kills"]["ack_us_last"], "");
  }
  table.line("acked, not readable", protocol::format_count(r["acked_not_readable"]));
  table.line("wrong bytes", protocol::format_count(r["wrong_bytes"]));
  table.line("lost for survivors", protocol::format_count(r["lost_for_survivors"]));
  table.line("seconds", number(r["seconds"], "%.1f"));
}

void restart_lines(const Json& r, Table& table) {
  table.line("seconds to ready", number(r["seconds_to_ready"], "%.3f"), r["ready_line"].get<std::string>());
  table.line("seconds to end in order", number(r["seconds_to_end"], "%.3f"));
  table.line("cold start, seconds", number(r["cold_seconds_to_ready"], "%.3f"));
  table.line("pages back", protocol::format_count(r["pages_back"]), "of " + protocol::format_count(r["unique_pages"]) + ", " +
                                                                      protocol::format_count(r["wrong_pages"]) + " with other bytes");
}

}  // namespace

Json report(const Options& options, const std::vector<Json>& runs, const char* by) {
  Json out = {{"bench", to_string(options.job)}};
  Json asked = {{"ranks", options.ranks}, {"pages", options.pages}, {"page_bytes", options.page_bytes},
                {"batch", options.batch}, {"repeat", options.repeat}};
  if (options.job == Job::put || options.job == Job::get) {
    asked["depth"] = options.depth;
    asked["lockstep"] = options.lockstep;
    asked["movers"] = options.movers;
    asked["kernel"] = options.kernel;
    asked["inline_copy_bytes"] = options.inline_copy_bytes;
    asked["memory"] = options.via.empty() ? "arena and row buffers populated, huge pages advised, before the timed part" : kViaMemory;
  }
  if (!options.via.empty()) asked["via"] = options.via;
  if (options.job == Job::coalesce) {
    asked["kills"] = options.kills;
    asked["rounds"] = options.rounds;
  }
  if (options.job == Job::lookup) {
    asked["preset"] = options.preset;
    asked["checkpoint_pages"] = options.checkpoint_pages;
  }
  out["options"] = std::move(asked);
  const Json median = median_of(runs, by);
  for (const auto& [name, value] : median.items()) out[name] = value;
  out["runs"] = runs;
  return out;
}

std::string text_of(const Json& r) {
  Table table;
  const std::string job = r["bench"];
  const Json& asked = r["options"];
  std::string head = job + ": ";
  if (job == "put" || job == "get") {
    head += count_of(asked["ranks"], "rank") + ", " + protocol::format_count(asked["pages"]) + " pages of " +
            protocol::format_bytes(asked["page_bytes"]) + ", batches of " + protocol::format_count(asked["batch"]) +
            ", depth " + protocol::format_count(asked["depth"]) + (asked["lockstep"] ? ", lock step" : ", free");
  } else if (job == "exists") {
    head += protocol::format_count(asked["pages"]) + " resident keys at random, batches of " + protocol::format_count(asked["batch"]) +
            ", " + count_of(asked["ranks"], "rank");
  } else if (job == "lookup") {
    head += asked["preset"].get<std::string>() + ", " + count_of(asked["ranks"], "rank") + ", " +
            protocol::format_count(asked["pages"]) + " pages, " + protocol::format_count(r["stops"]) + " stops";
  } else if (job == "idle") {
    head += (asked.contains("via") ? "a store whose " + count_of(r["pools"], "client") + " have worked and have nothing to do"
                                   : "a runtime with " + count_of(r["pools"], "pool") + " that has worked and has nothing to do");
  } else if (job == "memory") {
    head += protocol::format_count(asked["pages"]) + " objects of " + protocol::format_bytes(asked["page_bytes"]);
  } else if (job == "allocator") {
    head += "objects of all presets (" + count_of(r["layouts"], "layout") + ") in a " + protocol::format_bytes(r["arena_bytes"]) +
            " arena held at " + number(r["full_share"].get<double>() * 100, "%.0f") + " % full, " +
            count_of(r["operations"], "operation");
  }
  const std::size_t runs = r["runs"].size();
  const bool via = asked.contains("via");
  if (job == "coalesce")
    head += protocol::format_count(asked["ranks"]) + " rank processes, " + protocol::format_count(asked["pages"]) + " pages of " +
            protocol::format_bytes(asked["page_bytes"]) + " in a batch, the same for all";
  if (job == "restart") head += protocol::format_count(r["unique_pages"]) + " pages of " + protocol::format_bytes(asked["page_bytes"]);
  if (via && job == "coalesce") head += ", store by " + asked["via"].get<std::string>();
  else if (via) head += std::string(job == "lookup" || job == "idle" ? "" : ", a process each") + ", store by " + asked["via"].get<std::string>();
  table.prose(head + (runs == 1 ? "; 1 run" : "; medians of " + std::to_string(runs) + " runs"));
  if (job == "put" || job == "get") {
    put_get_lines(r, table);
    if (via) {
      const bool evicted = r.value("evicted_bytes", std::uint64_t{0}) != 0;
      table.prose(std::string("Before the timed part: ") + kViaMemory + (evicted ? ".\nThe store was too small: pages were evicted" : ".\nNothing had to be evicted") +
                  (r.value("verified", true) ? "; every byte was compared after it, by " : "; not every page could be compared after it, by ") +
                  (job == "put" ? "a process that had put nothing." : "the process that had loaded it."));
      return table.take();
    }
    table.prose("Arena and row buffers were populated, with huge pages advised, before the timed part; nothing had to be "
                "evicted;\nevery byte was compared after it.");
  } else if (job == "exists") {
    table.line("keys/s", whole(r["keys_per_s"]));
    table.line("us per batch p50 / p99", number(r["ack_us"]["p50"]) + " / " + number(r["ack_us"]["p99"]));
    table.line("found", protocol::format_count(r["found_keys"]), "of " + protocol::format_count(r["asked_keys"]) + " asked");
  } else if (job == "lookup") {
    table.line("lookup us p50 / p99 / max", whole(r["lookup_us"]["p50"]) + " / " + whole(r["lookup_us"]["p99"]) + " / " +
                                                whole(r["lookup_us"]["max"]));
    table.line("pages/s", whole(r["keys_per_s"]));
  } else if (job == "idle") {
    table.line("CPU % of one core", number(r["cpu_percent"], "%.3f"),
               (via ? "of the store's process, over " : "over ") + number(r["seconds"], "%.1f") + " s");
    if (via) table.line("", number(r["clients_cpu_percent"], "%.3f"), "of its clients together");
  } else if (job == "coalesce") {
    coalesce_lines(r, table);
  } else if (job == "restart") {
    restart_lines(r, table);
  } else if (job == "memory") {
    table.line("bytes per object", number(r["bytes_per_object"], "%.1f"),
               "beside its payload, in one range: resident set less an empty process and the row buffers");
    table.line("less an empty runtime", number(r["bytes_per_object_less_empty_runtime"], "%.1f"),
               "whose code, threads and rounding to huge pages take " +
                   protocol::format_bytes(r["empty_runtime_bytes"].get<std::uint64_t>() -
                                          r["empty_process_bytes"].get<std::uint64_t>()) +
                   " once");
    table.line("per further range", number(r["bytes_per_further_range"], "%.2f"));
  } else {
    table.line("requests refused", protocol::format_count(r["refused"]));
    table.line("arena lost, most", number(r["lost_share_max"].get<double>() * 100, "%.3f") + " %",
               "free, but in pieces too small, when a request found no room");
    table.line("lost when filled", number(r["lost_share_when_filled"].get<double>() * 100, "%.3f") + " %",
               "on average, with payload up to the last byte instead");
    table.line("footers and rounding", number(r["overhead_share"].get<double>() * 100, "%.3f") + " %");
    table.line("operations/s", whole(r["operations_per_s"]));
  }
  return table.take();
}

Outcome run(const Options& options) {
  if (std::string error = check(options); !error.empty()) return {{}, error, {}};
  switch (options.job) {
    case Job::put: return run_put(options);
    case Job::get: return run_get(options);
    case Job::exists: return run_exists(options);
    case Job::lookup: return run_lookup(options);
    case Job::idle: return run_idle(options);
    case Job::memory: return run_memory(options);
    case Job::allocator: return run_allocator(options);
    case Job::coalesce: return run_coalesce(options);
    case Job::restart: return run_restart(options);
  }
  return {};
}

}  // namespace kvonce::bench
