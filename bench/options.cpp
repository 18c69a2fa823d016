// SPDX-License-Identifier: Apache-2.0
#include "bench/options.hpp"

#include <algorithm>
#include <array>
#include <fstream>
#include <thread>
#include <limits>

#include "apps/workload/presets.hpp"
#include "protocol/units.hpp"
#include "storage/slot_shape.hpp"

namespace kvonce::bench {
namespace {

struct Number {
  const char* option;
  std::uint64_t value;
};

std::uint64_t memory_needed(const Options& options) {
  switch (options.job) {
    case Job::put:
    case Job::get:
      return options.ranks * options.pages * options.page_bytes +
             arena_bytes_for(options.pages, options.pages, options.pages * options.page_bytes, 1);
    case Job::exists:
    case Job::memory: return arena_bytes_for(options.pages, options.pages, options.pages * options.page_bytes, 1);
    case Job::coalesce: return options.ranks * options.pages * options.page_bytes * 10;
    case Job::restart: return arena_bytes_for(options.pages, options.pages, options.pages * options.page_bytes, 1);
    case Job::lookup:
    case Job::idle:
    case Job::allocator: break;
  }
  return 0;
}

std::string check_via(const Options& options) {
  if (options.job == Job::coalesce && options.via.empty()) return "--via is empty: allowed are spawn and unix:PATH";
  if (options.via.empty() && options.expect_path.empty()) return {};
  if (!can_go_via(options.job)) return std::string("--via is not for ") + to_string(options.job) + ": this benchmark has no --via" + (options.job == Job::restart ? ", it always starts a kvonced of its own" : ", its store is in its own process");
  if (!options.via.empty() && options.via != "spawn" && !(options.via.starts_with("unix:") && options.via.size() > 5))
    return "--via is '" + options.via + "': allowed are spawn and unix:PATH";
  const std::string path = options.via.empty() ? "memcpy" : "shm";
  if (options.expect_path.empty() || options.expect_path == path) return {};
  if (options.expect_path != "shm" && options.expect_path != "memcpy")
    return "--expect-path is '" + options.expect_path + "': allowed are shm and memcpy";
  return "--expect-path is " + options.expect_path + ", but page bytes go by " + path +
         (options.via.empty() ? ": with --via they would go through shared memory" : ": without --via they would stay in one process");
}

std::string check_coalesce(const Options& options) {
  // A killed writer's copy stands still in the middle of a page; none of the rank's grants may wait for its window.
  if (options.kills != 0 && options.page_bytes < kKillPageBytesMin)
    return "--page-bytes is " + protocol::format_count(options.page_bytes) + ": with --kills at least " +
           protocol::format_bytes(kKillPageBytesMin);
  return {};
}

std::string check_lookup(const Options& options) {
  const auto found = workload::find_preset(options.preset, static_cast<std::uint32_t>(options.ranks));
  if (!found.preset) return (found.error.starts_with("preset") ? "--preset: " : "--ranks: ") + found.error;
  if (has_checkpoints(*found.preset) && options.pages < options.checkpoint_pages)
    return "--pages is " + protocol::format_count(options.pages) + ": with a checkpoint at every " +
           protocol::format_count(options.checkpoint_pages) + "th page (--checkpoint-pages) nothing of " + options.preset +
           " could be restored; allowed are as many pages, or more";
  return {};
}

}  // namespace

bool can_go_via(Job job) {
  return job == Job::put || job == Job::get || job == Job::exists || job == Job::lookup || job == Job::idle || job == Job::coalesce;
}

bool has_checkpoints(const workload::ModelPreset& preset) {
  return std::any_of(preset.pools.begin(), preset.pools.end(),
                     [](const auto& pool) { return pool.hit_policy.is_trailing() && !pool.optional; });
}

Limits limits_of(Job job, std::string_view option) {
  const bool one_call = job == Job::lookup || job == Job::coalesce;  // all pages in one
  if (option == "--ranks") return {job == Job::coalesce ? 2U : 1U, kRanksMax};
  if (option == "--pages") return {1, one_call ? kBatchMax : kPagesMax};
  if (option == "--page-bytes") return {job == Job::memory ? kMemoryRanges : 1, kPageBytesMax};
  if (option == "--batch") return {1, kBatchMax};
  if (option == "--depth") return {1, kDepthMax};
  if (option == "--movers") return {1, kMoversMax};
  if (option == "--inline-copy") return {0, kInlineCopyMax};
  if (option == "--repeat") return {1, kRepeatMax};
  if (option == "--operations") return {job == Job::exists || job == Job::lookup || job == Job::allocator ? 1U : 0U, kOperationsMax};
  if (option == "--kills") return {0, kKillsMax};
  if (option == "--rounds") return {1, kKillsMax};
  if (option == "--checkpoint-pages") return {1, kBatchMax};
  return {0, std::numeric_limits<std::uint64_t>::max()};
}

const char* to_string(Job job) {
  switch (job) {
    case Job::put: return "put";
    case Job::get: return "get";
    case Job::exists: return "exists";
    case Job::lookup: return "lookup";
    case Job::idle: return "idle";
    case Job::memory: return "memory";
    case Job::allocator: return "allocator";
    case Job::coalesce: return "coalesce";
    case Job::restart: return "restart";
  }
  return "";
}

Options defaults(Job job) {
  // Told beside the result there, which does not depend on it.
  constexpr double kShortLimitSeconds = 0.2;
  Options options;
  options.job = job;
  switch (job) {
    case Job::put: break;
    case Job::get: options.batch = 128; break;
    case Job::exists:
      options.pages = 1'000'000;
      options.page_bytes = 64;
      options.batch = 128;
      options.operations = 8'000'000;
      options.limit_seconds = kShortLimitSeconds;
      break;
    case Job::lookup:
      options.ranks = 8;
      options.operations = 200;
      options.limit_seconds = kShortLimitSeconds;
      break;
    case Job::idle:
      options.ranks = 8;
      options.limit_seconds = kShortLimitSeconds;
      break;
    case Job::memory:
      options.pages = 1'000'000;
      options.page_bytes = 256;
      options.batch = 128;
      break;
    case Job::allocator: options.operations = 1'000'000; break;
    case Job::coalesce:
      options.ranks = 4;
      options.pages = 4;
      options.page_bytes = 1ULL << 20;
      options.via = "spawn";
      break;
    case Job::restart:
      options.pages = 65'536;
      options.batch = 128;
      break;
  }
  return options;
}

std::string check(const Options& options) {
  const std::array<Number, 12> numbers{{
      {"--ranks", options.ranks},
      {"--pages", options.pages},
      {"--page-bytes", options.page_bytes},
      {"--batch", options.batch},
      {"--depth", options.depth},
      {"--movers", options.movers},
      {"--inline-copy", options.inline_copy_bytes},
      {"--repeat", options.repeat},
      {"--operations", options.operations},
      {"--kills", options.kills},
      {"--rounds", options.rounds},
      {"--checkpoint-pages", options.checkpoint_pages},
  }};
  for (const Number& number : numbers) {
    const Limits allowed = limits_of(options.job, number.option);
    if (number.value < allowed.least || number.value > allowed.most)
      return std::string(number.option) + " is " + protocol::format_count(number.value) + ": allowed are " +
             protocol::format_count(allowed.least) + " to " + protocol::format_count(allowed.most);
  }
  if (options.kernel != "auto" && options.kernel != "avx512" && options.kernel != "avx2" && options.kernel != "portable")
    return "--kernel is '" + options.kernel + "': allowed are auto, avx512, avx2 and portable";
  if (options.job == Job::lookup) {
    if (std::string error = check_lookup(options); !error.empty()) return error;
  }
  if (std::string error = check_via(options); !error.empty()) return error;
  if (options.job == Job::coalesce) {
    if (std::string error = check_coalesce(options); !error.empty()) return error;
  }
  // With --via one process more has buffers: the one that looks at what was stored.
  const std::uint64_t needed = memory_needed(options) + (options.via.empty() ? 0 : options.pages * options.page_bytes);
  const std::uint64_t available = available_memory();
  if (available != 0 && needed > available)
    return "this job needs " + protocol::format_bytes(needed) + " of memory (arena and every rank's row buffers) and " +
           protocol::format_bytes(available) + " is available: give it fewer --pages, --ranks or --page-bytes";
  return {};
}

std::uint64_t copying_threads(const Options& options) {
  return std::min<std::uint64_t>(options.movers + options.ranks, std::max(1U, std::thread::hardware_concurrency()));
}

std::uint64_t arena_bytes_for(std::uint64_t pages, std::uint64_t objects, std::uint64_t payload_bytes,
                              std::uint64_t ranges_per_object) {
  // Measured needs are below: an eighth for the allocator's fragments, footers and rounding by object, and room for an
  // index with its members.
  const std::uint64_t footers =
      objects * (storage::kSlotHeaderBytes + storage::kChecksumBytes * ranges_per_object + storage::kGranuleBytes);
  const std::uint64_t index = pages * 512 + objects * 64;
  return payload_bytes + payload_bytes / 8 + footers + index + (64ULL << 20);
}

std::uint64_t available_memory() {
  std::ifstream file("/proc/meminfo");
  std::string word;
  while (file >> word) {
    if (word == "MemAvailable:") {
      std::uint64_t kib = 0;
      return file >> kib ? kib * 1024 : 0;
    }
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return 0;
}

}  // namespace kvonce::bench
