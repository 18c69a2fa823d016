// SPDX-License-Identifier: Apache-2.0
//
// A store that is ended in order and started again over its arena file: how long until it is ready, and whether every page is back.
#include <sys/statvfs.h>

#include <algorithm>
#include <optional>

#include "bench/jobs.hpp"
#include "bench/measure.hpp"
#include "bench/stage.hpp"
#include "bench/store_use.hpp"
#include "protocol/units.hpp"

namespace kvonce::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kRows = 1'024;  // pages are made, put and compared by so many

struct Client {
  std::unique_ptr<Stage> stage;
  Client(const Options& options, const std::string& address, const std::vector<RowMemory>& memory) {
    StageSpec spec;
    spec.pages = options.pages;
    spec.page_bytes = options.page_bytes;
    spec.rows = std::min(kRows, options.pages);
    spec.populate = false;
    spec.store = address;
    spec.engine = "kvonce bench restart";
    spec.ns = spec.engine;
    auto started = Stage::start(spec, memory);
    if (!started.stage) throw Failed{started.error};
    stage = std::move(started.stage);
  }
};

// Calls body(first page, keys) by chunks of rows.
template <class Body>
void by_chunks(const Options& options, std::uint64_t seed, const Body& body) {
  const auto keys = make_keys(seed, options.pages);
  for (std::uint64_t begin = 0; begin < keys.size(); begin += kRows) {
    Interrupts::check();
    const auto first = keys.begin() + static_cast<std::ptrdiff_t>(begin);
    body(begin, std::vector<PageHash>(first, first + static_cast<std::ptrdiff_t>(std::min<std::uint64_t>(kRows, keys.size() - begin))));
  }
}

std::uint64_t fill(const Options& options, Stage& stage, std::uint64_t seed) {
  std::uint64_t stored = 0;
  by_chunks(options, seed, [&](std::uint64_t begin, const std::vector<PageHash>& keys) {
    for (std::uint64_t i = 0; i < keys.size(); ++i) fill_row(stage.row(0, i), options.page_bytes, seed, begin + i);
    for (PutBatch& batch : make_put_batches(keys, options.batch, stage.pool(0), kRows)) {
      auto put = stage.rank(0).put(std::move(batch));
      if (!put) throw Failed{"put refused: " + put.error.text};
      put.value->wait();
      stored += put.value->succeeded();
    }
  });
  return stored;
}

struct Back {
  std::uint64_t pages = 0;
  std::uint64_t wrong_pages = 0;
};

Back compare(const Options& options, Stage& stage, std::uint64_t seed) {
  Back back;
  by_chunks(options, seed, [&](std::uint64_t begin, const std::vector<PageHash>& keys) {
    auto lookup = stage.runtime().lookup(stage.group(), keys);
    if (!lookup) throw Failed{"lookup refused: " + lookup.error.text};
    lookup.value->wait();
    const LookupResult& found = lookup.value->result();
    std::vector<LoadItem> items;
    for (std::uint64_t i = 0; i < found.restorable_pages; ++i) items.push_back({keys[i], stage.pool(0), i});
    if (items.empty()) return;
    stage.clear_rows(0);
    auto load = stage.rank(0).load(found.lease, std::move(items));
    if (!load) throw Failed{"load refused: " + load.error.text};
    load.value->wait();
    const auto results = load.value->results();
    for (std::uint64_t i = 0; i < results.size(); ++i) {
      if (results[i] != Reason::none) continue;
      ++back.pages;
      if (!row_is(stage.row(0, i), options.page_bytes, seed, begin + i)) ++back.wrong_pages;
    }
    static_cast<void>(stage.runtime().release(found.lease));
  });
  return back;
}

Json restart_once(const Options& options, const std::vector<RowMemory>& memory, std::string& wrong) {
  const TemporaryFolder folder(options.folder);
  OwnStore::Spec spec;
  spec.memory_bytes = arena_bytes_for(options.pages, options.pages, options.pages * options.page_bytes, 1);
  spec.index_pages = std::max<std::uint64_t>(options.pages + 1'024, 4'096);
  spec.arena_file = folder.path() + "/arena";
  struct statvfs room {};
  if (statvfs(folder.path().c_str(), &room) == 0 && room.f_bavail * room.f_frsize < spec.memory_bytes)
    throw Failed{options.folder + " has room for " + protocol::format_bytes(room.f_bavail * room.f_frsize) + ", and this job needs " +
                 protocol::format_bytes(spec.memory_bytes) + ": give it fewer --pages or another --folder"};
  const std::uint64_t seed = fresh_seed();
  Json run = {{"unique_pages", options.pages}, {"unique_bytes", options.pages * options.page_bytes}, {"memory_bytes", spec.memory_bytes}};
  {
    OwnStore store(folder.path(), spec.settings());
    run["cold_seconds_to_ready"] = store.seconds_to_ready();
    {
      const Client client(options, store.address(), memory);
      const std::uint64_t stored = fill(options, *client.stage, seed);
      if (stored != options.pages) throw Failed{std::to_string(options.pages - stored) + " pages could not be stored"};
      run["objects_before"] = client.stage->runtime().stats().objects_now;
    }
    const auto begin = Clock::now();
    store.end();
    run["seconds_to_end"] = std::chrono::duration<double>(Clock::now() - begin).count();
  }
  OwnStore store(folder.path(), spec.settings());
  run["seconds_to_ready"] = store.seconds_to_ready();
  run["ready_line"] = store.ready_line();
  {
    const Client client(options, store.address(), memory);
    run["objects_back"] = client.stage->runtime().stats().objects_now;
    const Back back = compare(options, *client.stage, seed);
    run["pages_back"] = back.pages;
    run["share_back"] = static_cast<double>(back.pages) / static_cast<double>(options.pages);
    run["wrong_pages"] = back.wrong_pages;
    if (back.pages != options.pages || back.wrong_pages != 0)
      wrong = std::to_string(options.pages - back.pages) + " of " + std::to_string(options.pages) + " pages were not back, " +
              std::to_string(back.wrong_pages) + " had other bytes; " + store.ready_line();
  }
  store.end();
  run["verified"] = wrong.empty();
  return run;
}

}  // namespace

Outcome run_restart(const Options& options) {
  const Interrupts interrupts;
  std::vector<Json> runs;
  std::string wrong;
  try {
    StageSpec rows;
    rows.page_bytes = options.page_bytes;
    std::vector<RowMemory> memory;
    memory.emplace_back(std::min(kRows, options.pages) * Stage::row_stride(rows));
    for (std::uint64_t i = 0; i < options.repeat && wrong.empty(); ++i) runs.push_back(restart_once(options, memory, wrong));
  } catch (const Failed& failed) {
    return {{}, failed.text, {}};
  }
  return {report(options, runs, "seconds_to_ready"), {}, wrong};
}

}  // namespace kvonce::bench
