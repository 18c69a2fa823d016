// SPDX-License-Identifier: Apache-2.0
#include <kvonce/config.hpp>

#include "runtime/core.hpp"
#include "runtime/store_settings.hpp"

#include <array>
#include <climits>
#include <cmath>

#include "storage/slot_shape.hpp"

namespace kvonce {

namespace {

constexpr std::uint64_t kKiB = 1ULL << 10;
constexpr std::uint64_t kMiB = 1ULL << 20;
constexpr std::uint64_t kGiB = 1ULL << 30;
constexpr std::uint64_t kTiB = 1ULL << 40;

Error wrong(const std::string& field, const std::string& value, const std::string& allowed) {
  return {Reason::bad_argument, field + " is " + value + ": " + allowed};
}

struct Range {
  const char* name;
  std::uint64_t value;
  std::uint64_t least;
  std::uint64_t most;
  const char* allowed;
};

bool is_socket(const std::string& where) { return where.starts_with("unix:") && where.size() > 5; }

struct Span {
  const char* name;
  std::chrono::milliseconds value;
  std::chrono::milliseconds least;
  const char* allowed;
};

}  // namespace

transport::Kernel runtime::kernel_of(std::string_view name) noexcept {
  if (name == "avx512") return transport::Kernel::avx512;
  if (name == "avx2") return transport::Kernel::avx2;
  return name == "portable" ? transport::Kernel::portable : transport::Kernel::automatic;
}

Error RuntimeConfig::check() const {
  if (engine_id.empty() || engine_id.size() > 255)
    return wrong("engine_id", std::to_string(engine_id.size()) + " bytes long", "must be 1 to 255 bytes");
  const bool embedded = store == "embedded";
  if (!embedded && store != "auto" && !is_socket(store))
    return wrong("store", "'" + store + "'", "must be 'embedded', 'unix:PATH' or 'auto'");
  if (!serve.empty() && !is_socket(serve)) return wrong("serve", "'" + serve + "'", "must be 'unix:PATH', or empty");
  if (!embedded && !serve.empty()) return wrong("serve", "'" + serve + "'", "needs store 'embedded': only its owner can serve a store");
  if (!embedded && !arena_file.empty())
    return wrong("arena_file", "'" + arena_file + "'", "needs store 'embedded': the arena belongs to the store's process");
  if (!arena_file.empty()) {
    // What lies beside the file: PATH.lock, PATH.new, PATH.snapshot, and this one, which is the longest.
    constexpr std::string_view kLongest = ".snapshot.new";
    const std::size_t name = arena_file.size() - (arena_file.rfind('/') == std::string::npos ? 0 : arena_file.rfind('/') + 1);
    if (name + kLongest.size() > NAME_MAX || arena_file.size() + kLongest.size() >= PATH_MAX)
      return wrong("arena_file", "'" + arena_file + "'",
                   "the name of the file has " + std::to_string(name) + " bytes, and its path " + std::to_string(arena_file.size()) +
                       "; with the " + std::to_string(kLongest.size()) + " of the snapshot's ending " + std::string(kLongest) +
                       " the system allows " + std::to_string(NAME_MAX) + " and " + std::to_string(PATH_MAX - 1));
  }
  if (store == "auto" && !serve_group.empty())
    return wrong("serve_group", "'" + serve_group + "'", "needs a store with a socket of its own: that of 'auto' is for this user alone");
  if (embedded && read_only) return wrong("read_only", "true", "needs a store of another process");
  if (numa_node < -1 || numa_node > 1023) return wrong("numa_node", std::to_string(numa_node), "must be a node's number, or -1 for none");
  if (auto_bytes != 0 && (auto_bytes < kMiB || auto_bytes > 64 * kTiB))
    return wrong("auto_bytes", std::to_string(auto_bytes), "must be 1 MiB to 64 TiB, or 0 for a share of what is available");
  const std::array<Range, 12> ranges{{
      {"max_clients", max_clients, 1, 65'536, "must be 1 to 65,536"},
      {"arena_bytes", arena_bytes, kMiB, 64 * kTiB, "must be 1 MiB to 64 TiB"},
      {"partitions", partitions, 1, 64, "must be 1 to 64"},
      {"ghost_entries", ghost_entries, 0, 16'777'216, "must be 0 to 16,777,216"},
      {"window_bytes", window_bytes, 64 * kKiB, kGiB, "must be 64 KiB to 1 GiB"},
      {"least_rate", least_rate, kKiB, kTiB, "must be 1 KiB/s to 1 TiB/s"},
      {"conflict_limit", conflict_limit, 1, 1'000'000, "must be 1 to 1,000,000"},
      {"leased_stops", leased_stops, 1, 64, "must be 1 to 64"},
      {"scheduler_threads", scheduler_threads, 1, 64, "must be 1 to 64"},
      {"mover_threads", mover_threads, 1, 16, "must be 1 to 16"},
      {"inline_copy_bytes", inline_copy_bytes, 0, kGiB, "must be 0 to 1 GiB"},
      {"leased_bytes", leased_bytes, 0, 64 * kTiB, "must be 0 to 64 TiB"},
  }};
  for (const Range& range : ranges) {
    if (range.value < range.least || range.value > range.most)
      return wrong(range.name, std::to_string(range.value), range.allowed);
  }
  // Of a store that "auto" starts with a share of what is available, kvonced tells.
  const std::uint64_t memory = embedded ? arena_bytes : store == "auto" ? runtime::given_store_memory(*this) : 0;
  if (memory != 0 && capacity_bytes > memory)
    return wrong("capacity_bytes", std::to_string(capacity_bytes),
                 std::string("must be at most ") + (!embedded && auto_bytes != 0 ? "auto_bytes" : "arena_bytes") + " (" + std::to_string(memory) +
                     "), or 0 for no limit of its own");
  if (capacity_bytes > 64 * kTiB) return wrong("capacity_bytes", std::to_string(capacity_bytes), "must be at most 64 TiB");
  if (index_pages != 0 && (index_pages < 1024 || index_pages > (1ULL << 31)))
    return wrong("index_pages", std::to_string(index_pages), "must be 1,024 to 2,147,483,648, or 0 to choose by arena_bytes");
  if (copy_kernel != "auto" && copy_kernel != "avx512" && copy_kernel != "avx2" && copy_kernel != "portable")
    return wrong("copy_kernel", "'" + copy_kernel + "'", "must be 'auto', 'avx512', 'avx2' or 'portable'");
  if (!transport::kernel_supported(runtime::kernel_of(copy_kernel)))
    return wrong("copy_kernel", "'" + copy_kernel + "'", "must be one that this CPU has; 'auto' chooses");
  if (policy != "lru") return wrong("policy", "'" + policy + "'", "must be 'lru'");
  if (auto_idle < std::chrono::milliseconds{100} || auto_idle > std::chrono::hours{24})
    return wrong("auto_idle", std::to_string(auto_idle.count()) + " ms", "must be 100 ms to 24 h");
  const std::array<Span, 5> spans{{
      {"connect_timeout", connect_timeout, std::chrono::milliseconds{1}, "must be 1 ms to 1 h"},
      {"engine_grace", engine_grace, std::chrono::milliseconds{0}, "must be 0 ms to 1 h"},
      {"grant_base", grant_base, std::chrono::milliseconds{1}, "must be 1 ms to 1 h"},
      {"verify_window", verify_window, std::chrono::milliseconds{1}, "must be 1 ms to 1 h"},
      {"lease_time", lease_time, std::chrono::milliseconds{10}, "must be 10 ms to 1 h"},
  }};
  for (const Span& span : spans) {
    if (span.value < span.least || span.value > std::chrono::hours{1})
      return wrong(span.name, std::to_string(span.value.count()) + " ms", span.allowed);
  }
  return {};
}

}  // namespace kvonce
