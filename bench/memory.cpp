// SPDX-License-Identifier: Apache-2.0
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "bench/jobs.hpp"
#include "bench/measure.hpp"
#include "bench/stage.hpp"

namespace kvonce::bench {
namespace {

// What a child tells its parent. Plain, since it goes through a pipe.
struct Told {
  std::uint64_t ok = 0;
  std::uint64_t resident_bytes = 0;  // less the row buffers
  std::uint64_t objects = 0;
  std::array<char, 256> error{};
};

void set_error(Told& told, const std::string& text) {
  const std::size_t count = std::min(text.size(), told.error.size() - 1);
  std::copy_n(text.begin(), count, told.error.begin());
}

// 0 pages: a runtime without objects.
Told measure_child(const Options& options, std::uint64_t ranges, std::uint64_t pages) {
  Told told;
  StageSpec spec;
  spec.pages = options.pages;
  spec.page_bytes = options.page_bytes;
  spec.ranges = ranges;
  spec.rows = std::min(options.batch, options.pages);
  spec.populate = false;  // so that only what is used counts
  std::vector<RowMemory> memory;
  memory.emplace_back(spec.rows * Stage::row_stride(spec));
  auto started = Stage::start(spec, memory);
  if (!started.stage) {
    set_error(told, started.error);
    return told;
  }
  Stage& stage = *started.stage;
  const std::uint64_t seed = fresh_seed();
  stage.fill_rows(seed);
  // Keys are made by chains and dropped again: they are the engine's memory, not the store's.
  const std::uint64_t chain = chain_pages(spec.rows);
  for (std::uint64_t begin = 0; begin < pages; begin += chain) {
    const auto keys = make_keys(seed + begin + 1, std::min(chain, pages - begin));
    for (PutBatch& batch : make_put_batches(keys, spec.rows, stage.pool(0), spec.rows)) {
      auto put = stage.rank(0).put(std::move(batch));
      if (!put) {
        set_error(told, "put refused: " + put.error.text);
        return told;
      }
      put.value->wait();
    }
  }
  told.objects = stage.runtime().stats().objects_now;
  told.resident_bytes = resident_bytes() - memory[0].bytes();
  told.ok = 1;
  return told;
}

Told in_child(const Options& options, std::uint64_t ranges, std::uint64_t pages) {
  Told told;
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0) {
    set_error(told, "no pipe to a child process can be made");
    return told;
  }
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    const Told mine = measure_child(options, ranges, pages);
    const ssize_t written = write(ends[1], &mine, sizeof(mine));
    _exit(written == ssize_t{sizeof(mine)} ? 0 : 1);
  }
  close(ends[1]);
  ssize_t got = 0;
  if (child > 0) {
    got = read(ends[0], &told, sizeof(told));
    int status = 0;
    waitpid(child, &status, 0);
  }
  close(ends[0]);
  if (got != ssize_t{sizeof(told)}) {
    told = {};
    set_error(told, "a child process ended without an answer");
  }
  return told;
}

}  // namespace

// Must be called while the process has no other thread.
Outcome run_memory(const Options& options) {
  std::vector<nlohmann::ordered_json> runs;
  for (std::uint64_t i = 0; i < options.repeat; ++i) {
    // The empty process is this one: program and libraries loaded, no runtime ever started in it. (A forked child would
    // not do: it holds no library pages until it touches them.)
    Told empty;
    empty.resident_bytes = resident_bytes();
    empty.ok = 1;
    const Told idle = in_child(options, 1, 0);
    const Told one = in_child(options, 1, options.pages);
    const Told many = in_child(options, kMemoryRanges, options.pages);
    for (const Told& told : {empty, idle, one, many})
      if (told.ok == 0) return {{}, told.error.data(), {}};
    const std::uint64_t payload = options.pages * options.page_bytes;
    const double pages = static_cast<double>(options.pages);
    const auto beside = [&](const Told& told) {
      return static_cast<double>(told.resident_bytes) - static_cast<double>(empty.resident_bytes + payload);
    };
    runs.push_back({{"objects", one.objects},
                    {"payload_bytes", payload},
                    {"empty_process_bytes", empty.resident_bytes},
                    {"empty_runtime_bytes", idle.resident_bytes},
                    {"resident_bytes", one.resident_bytes},
                    {"resident_bytes_many_ranges", many.resident_bytes},
                    {"ranges_many", kMemoryRanges},
                    {"bytes_per_object", beside(one) / pages},
                    {"bytes_per_object_less_empty_runtime",
                     (beside(one) - static_cast<double>(idle.resident_bytes - empty.resident_bytes)) / pages},
                    {"bytes_per_further_range", (beside(many) - beside(one)) / pages / double{kMemoryRanges - 1}}});
    const bool right = one.objects == options.pages && many.objects == options.pages;
    runs.back()["verified"] = right;
    if (!right) return {report(options, runs, "bytes_per_object"), {}, "not every object is in the store"};
  }
  return {report(options, runs, "bytes_per_object"), {}, {}};
}

}  // namespace kvonce::bench
