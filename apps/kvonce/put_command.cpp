// SPDX-License-Identifier: Apache-2.0
//
// kvonce put: files become pages of a store, and are read back and compared.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <thread>

#include "apps/kvonce/byte_file.hpp"
#include "apps/kvonce/store_client.hpp"
#include "protocol/units.hpp"

namespace kvonce::apps {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr std::string_view kPutCommand = "put";
// Bytes in rows at a time, unless one object is larger.
constexpr std::uint64_t kRowBytes = 64ULL << 20;
constexpr std::uint64_t kRowsMost = 4'096;
constexpr milliseconds kRetry{20};
// For reading back: a store whose leases are all taken must not hold up the rest.
constexpr milliseconds kReadBackTime{1'000};

struct PutOptionsGiven {
  StoreOptions store;
  std::vector<std::string> pairs;
  std::string pool = "bytes";
  bool chain = false;
};

enum class ReadBack : std::uint8_t { not_read, same, differs };

struct Outcome {
  Verdict verdict = Verdict::none;
  Reason reason = Reason::none;
  std::uint32_t retry_after_ms = 0;
  ReadBack read_back = ReadBack::not_read;
  Reason not_read = Reason::none;
  bool done() const { return is_success(verdict) && read_back != ReadBack::differs; }
};

struct Work {
  std::vector<PageKey> keys;
  std::vector<ByteFile> files;
  std::vector<Outcome> outcomes;
  std::uint64_t object_bytes = 0;
};

std::string find_work(const PutOptionsGiven& options, Work& work) {
  if (options.pairs.size() % 2 != 0)
    return "a page without a file: " + options.pairs.back() + "; give PAGE FILE for each (kvonce put --help)";
  std::vector<std::string> keys;
  for (std::size_t i = 0; i < options.pairs.size(); i += 2) keys.push_back(options.pairs[i]);
  ParsedKeys parsed = parse_keys(keys);
  if (!parsed.error.empty()) return parsed.error;
  work.keys = std::move(parsed.keys);
  bool has_input = false;
  for (std::size_t i = 1; i < options.pairs.size(); i += 2) {
    const std::string& path = options.pairs[i];
    if (path == "-" && has_input) return "standard input is given twice";
    has_input = has_input || path == "-";
    if (std::string wrong = work.files.emplace_back().open(path); !wrong.empty()) return wrong;
    const ByteFile& first = work.files.front();
    const ByteFile& file = work.files.back();
    if (file.bytes() != first.bytes()) {
      return file.name() + " has " + protocol::format_count(file.bytes()) + " B and " + first.name() + " " +
             protocol::format_count(first.bytes()) + " B: all objects of a pool have one size; put others into another --pool";
    }
  }
  work.object_bytes = work.files.front().bytes();
  work.outcomes.resize(work.keys.size());
  return {};
}

/// Announces the items [first, end) of the work, whose bytes are in the pool's rows from 0 on.
Error put_rows(ShellPool& pool, const StoreClient& client, Work& work, bool chain, std::size_t first, std::size_t end) {
  std::vector<std::pair<std::size_t, std::shared_ptr<PutOperation>>> operations;
  const auto announce = [&](std::size_t from, std::size_t to) -> Error {
    PutBatch batch;
    for (std::size_t i = from; i < to; ++i) {
      batch.items.push_back({static_cast<std::uint32_t>(i - from), pool.handle(), i - first});
      batch.pages.push_back(work.keys[i].hash);
    }
    if (chain && from != 0) batch.parent = work.keys[from - 1].hash;
    batch.first_depth = chain ? static_cast<std::uint32_t>(from) : 0;
    PutOptions options;
    options.timeout = client.left();
    auto operation = pool.rank().put(std::move(batch), std::move(options));
    if (operation) operations.emplace_back(from, std::move(*operation));
    return operation.error;
  };
  Error error;
  if (chain) {
    error = announce(first, end);
  } else {
    for (std::size_t i = first; i < end && !error; ++i) {
      if (!is_success(work.outcomes[i].verdict)) error = announce(i, i + 1);
    }
  }
  for (auto& [from, operation] : operations) {
    operation->wait();
    for (std::size_t k = 0; k < operation->results().size(); ++k) {
      const PutItemResult& result = operation->results()[k];
      Outcome& outcome = work.outcomes[from + k];
      if (is_success(outcome.verdict)) continue;  // announced again with its chain
      outcome = {result.verdict, result.reason, result.retry_after_ms};
    }
  }
  return error;
}

/// Again, as long as the store asks for it and there is time.
Error put_batch(ShellPool& pool, const StoreClient& client, Work& work, bool chain, std::size_t first, std::size_t end) {
  for (;;) {
    if (Error error = put_rows(pool, client, work, chain, first, end)) return error;
    milliseconds wait{0};
    for (std::size_t i = first; i < end; ++i) {
      const Outcome& outcome = work.outcomes[i];
      if (outcome.verdict == Verdict::rejected && outcome.reason == Reason::busy)
        wait = std::max({wait, kRetry, milliseconds{outcome.retry_after_ms}});
    }
    if (wait.count() == 0 || wait >= client.left()) return {};
    std::this_thread::sleep_for(wait);
  }
}

Error read_back(ShellPool& pool, Work& work, std::size_t first, std::size_t end, std::uint64_t spare_row) {
  const auto until = Clock::now() + kReadBackTime;
  for (std::size_t i = first; i < end; ++i) {
    Outcome& outcome = work.outcomes[i];
    if (!is_success(outcome.verdict)) continue;
    const ShellPool::Loaded loaded = pool.load(work.keys[i].hash, spare_row, until);
    if (loaded.error) return loaded.error;
    outcome.not_read = loaded.reason;
    if (loaded.reason != Reason::none) continue;
    outcome.read_back =
        std::memcmp(pool.row(spare_row), pool.row(i - first), work.object_bytes) == 0 ? ReadBack::same : ReadBack::differs;
  }
  return {};
}

std::string put_all(StoreClient& client, const PutOptionsGiven& options, Work& work) {
  const auto ns = client.runtime().open_namespace(options.store.ns, client.left());
  if (!ns) return ns.error.text;
  const auto pools = client.runtime().pools(ns.value);
  if (!pools) return pools.error.text;
  if (const KnownPool* known = find_shell_pool(pools.value, options.pool);
      known != nullptr && known->object_bytes != 0 && known->object_bytes != work.object_bytes) {
    return work.files.front().name() + " has " + protocol::format_count(work.object_bytes) + " B, and objects of pool \"" +
           options.pool + "\" in namespace \"" + options.store.ns + "\" have " + protocol::format_count(known->object_bytes) +
           " B: give another --pool or --namespace";
  }
  const std::uint64_t rows =
      std::clamp<std::uint64_t>(kRowBytes / work.object_bytes, 1, std::min<std::uint64_t>(work.keys.size(), kRowsMost));
  ShellPool pool(client, ns.value, options.pool, work.object_bytes, rows + 1);
  if (pool.error()) return pool.error().text;
  for (std::size_t first = 0; first < work.keys.size(); first += rows) {
    const std::size_t end = std::min(work.keys.size(), first + rows);
    for (std::size_t i = first; i < end; ++i) {
      if (std::string wrong = work.files[i].read(pool.row(i - first)); !wrong.empty()) return wrong;
    }
    if (const Error error = put_batch(pool, client, work, options.chain, first, end)) return error.text;
    if (const Error error = read_back(pool, work, first, end, rows)) return error.text;
  }
  return {};
}

const char* read_back_text(ReadBack read_back) {
  constexpr std::array<const char*, 3> kTexts{"not_read", "same", "differs"};
  return kTexts[static_cast<std::size_t>(read_back)];
}

void tell(const StoreClient& client, const PutOptionsGiven& options, const Work& work) {
  std::array<std::uint64_t, kVerdictCount> verdicts{};
  std::uint64_t differs = 0;
  for (const Outcome& outcome : work.outcomes) {
    ++verdicts[static_cast<std::size_t>(outcome.verdict)];
    differs += outcome.read_back == ReadBack::differs ? 1 : 0;
  }
  if (options.store.output.format == OutputFormat::json) {
    nlohmann::ordered_json out{{"store", client.address()},
                               {"namespace", options.store.ns},
                               {"pool", options.pool},
                               {"object_bytes", work.object_bytes}};
    for (std::size_t v = 1; v < kVerdictCount; ++v)
      out["verdicts"][std::string(kvonce::to_string(static_cast<Verdict>(v)))] = verdicts[v];
    out["differing"] = differs;
    out["pages"] = nlohmann::ordered_json::array();
    for (std::size_t i = 0; i < work.keys.size(); ++i) {
      const Outcome& outcome = work.outcomes[i];
      nlohmann::ordered_json page{{"page", work.keys[i].given},
                                  {"hash", work.keys[i].hash.to_hex()},
                                  {"file", work.files[i].path()},
                                  {"verdict", kvonce::to_string(outcome.verdict)},
                                  {"reason", kvonce::to_string(outcome.reason)},
                                  {"read_back", read_back_text(outcome.read_back)}};
      if (outcome.not_read != Reason::none) page["not_read_reason"] = kvonce::to_string(outcome.not_read);
      out["pages"].push_back(std::move(page));
    }
    print_json(out);
    return;
  }
  for (std::size_t i = 0; i < work.keys.size(); ++i) {
    const Outcome& outcome = work.outcomes[i];
    std::string line = work.keys[i].given + ": " + std::string(kvonce::to_string(outcome.verdict));
    if (outcome.reason != Reason::none) line += " (" + std::string(kvonce::to_string(outcome.reason)) + ")";
    if (outcome.read_back == ReadBack::same)
      line += ", " + protocol::format_count(work.object_bytes) + " B read back and compared";
    if (outcome.read_back == ReadBack::differs) line += ", but what the store has differs from " + work.files[i].name();
    if (outcome.not_read != Reason::none) line += ", not read back (" + std::string(kvonce::to_string(outcome.not_read)) + ")";
    print_line("%s", line.c_str());
  }
}

int run_put(const PutOptionsGiven& options) {
  Work work;
  if (const std::string wrong = find_work(options, work); !wrong.empty()) return tell_error(kPutCommand, wrong);
  const auto opened = StoreClient::open(options.store, StoreClient::Use::write);
  if (!opened.client) return tell_error(kPutCommand, opened.error);
  if (const std::string wrong = put_all(*opened.client, options, work); !wrong.empty()) return tell_error(kPutCommand, wrong);
  if (!options.store.output.quiet) tell(*opened.client, options, work);
  const bool done =
      std::all_of(work.outcomes.begin(), work.outcomes.end(), [](const Outcome& outcome) { return outcome.done(); });
  return done ? kExitDone : kExitSomeFailed;
}

}  // namespace

void add_put_command(CLI::App& app, CommandChoice& choice) {
  const auto options = std::make_shared<PutOptionsGiven>();
  CLI::App* const command = app.add_subcommand("put", "Store files as pages; what was stored is read back and compared");
  command->add_option("PAGE", options->pairs, "Pages (64 hex digits, or name:TEXT), each with its file; -: standard input")
      ->option_text("FILE ...")
      ->required();
  command->add_option("--pool", options->pool, "Pool; its objects have one size (default bytes)")->option_text("NAME")->check(pool_name_error);
  command->add_flag("--chain", options->chain, "Each page continues the one before it: a prompt's pages, from its first on");
  add_store_options(*command, options->store, true);
  command->callback([options, &choice] { choice.run = [options] { return run_put(*options); }; });
}

}  // namespace kvonce::apps
