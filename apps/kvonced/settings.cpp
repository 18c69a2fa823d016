// SPDX-License-Identifier: Apache-2.0
#include "apps/kvonced/settings.hpp"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <memory>

#include <grp.h>
#include <sys/un.h>
#include <unistd.h>

#include "apps/nearest_word.hpp"
#include "protocol/units.hpp"
#include "runtime/auto_store.hpp"
#include "runtime/host_memory.hpp"

namespace kvonce::apps {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

constexpr std::uint64_t kKiB = 1ULL << 10;
constexpr std::uint64_t kMiB = 1ULL << 20;
constexpr std::uint64_t kGiB = 1ULL << 30;
constexpr std::uint64_t kTiB = 1ULL << 40;
constexpr milliseconds kHour = std::chrono::hours{1};

using Apply = decltype(Setting::apply);

std::string in_quotes(std::string_view text) { return '"' + std::string(text) + '"'; }

/// A value from `min` to `max`, or 0 where that means something else.
Apply bytes(std::uint64_t& (*field)(Settings&), std::uint64_t min, std::uint64_t max, bool or_zero = false) {
  return [=](std::string_view text, Settings& settings, std::string& settled, std::string& note) -> std::string {
    const bool zero = or_zero && text == "0";
    const auto parsed = protocol::parse_bytes(text, zero ? 0 : min, max);
    if (!parsed) return parsed.error + (or_zero ? ", or 0" : "");
    field(settings) = parsed.value;
    settled = std::to_string(parsed.value);
    if (parsed.value >= kKiB) note = protocol::format_bytes(parsed.value);
    return {};
  };
}

template <class Number>
Apply count(Number& (*field)(Settings&), std::uint64_t min, std::uint64_t max, bool or_zero = false) {
  return [=](std::string_view text, Settings& settings, std::string& settled, std::string&) -> std::string {
    const bool zero = or_zero && text == "0";
    const auto parsed = protocol::parse_u64(text, zero ? 0 : min, max);
    if (!parsed) return parsed.error + (or_zero ? ", or 0" : "");
    field(settings) = static_cast<Number>(parsed.value);
    settled = std::to_string(parsed.value);
    return {};
  };
}

std::string duration_text(milliseconds time) {
  const auto count_ms = time.count();
  if (count_ms % 3'600'000 == 0 && count_ms != 0) return std::to_string(count_ms / 3'600'000) + "h";
  if (count_ms % 60'000 == 0 && count_ms != 0) return std::to_string(count_ms / 60'000) + "m";
  return count_ms % 1'000 == 0 ? std::to_string(count_ms / 1'000) + "s" : std::to_string(count_ms) + "ms";
}

Apply duration(milliseconds& (*field)(Settings&), milliseconds min, milliseconds max) {
  return [=](std::string_view text, Settings& settings, std::string& settled, std::string&) -> std::string {
    const auto parsed = protocol::parse_duration(text, min, max);
    if (!parsed) return parsed.error;
    const auto whole = std::chrono::duration_cast<milliseconds>(parsed.value);
    if (whole != parsed.value) return in_quotes(text) + " is finer than the allowed whole milliseconds";
    field(settings) = whole;
    settled = in_quotes(duration_text(whole));
    return {};
  };
}

Apply yes_or_no(bool& (*field)(Settings&)) {
  return [=](std::string_view text, Settings& settings, std::string& settled, std::string&) -> std::string {
    const bool yes = text == "yes" || text == "true" || text == "on";
    if (!yes && text != "no" && text != "false" && text != "off") return in_quotes(text) + " is not allowed; allowed are yes and no";
    field(settings) = yes;
    settled = yes ? "true" : "false";
    return {};
  };
}

/// What the file format has no way to write, and what a terminal would obey.
std::string unwritable(std::string_view text) {
  const bool control = std::any_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
  return !control && text.find_first_of("\"\\") == std::string_view::npos
             ? std::string()
             : in_quotes(text) + " is not allowed; allowed are paths without quotes, backslashes, line ends and control characters";
}

/// "tcp" of "tcp:1.2.3.4:5"; empty: it is a path.
std::string scheme_of(std::string_view text) {
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos || colon == 0 || text.substr(0, colon).find('/') != std::string_view::npos) return {};
  return std::string(text.substr(0, colon));
}

std::string apply_socket(std::string_view text, Settings& settings, std::string& settled, std::string& note) {
  std::string path(text);
  if (path.starts_with("unix:")) {
    path.erase(0, 5);
    if (path.empty()) return in_quotes(text) + " names no path; allowed are PATH and unix:PATH";
  } else if (const std::string scheme = scheme_of(text); !scheme.empty()) {
    return in_quotes(text) + " is not allowed: a store has no " + scheme + " socket; allowed are PATH and unix:PATH (./" + path +
           " where a file is meant)";
  }
  if (path.empty()) {
    std::string why_not;
    path = runtime::auto_socket_path(&why_not, false);  // made when a store is started, not when settings are shown
    if (path.empty()) return "there is no default: " + why_not;
    note = runtime::passed_over_folder();
    if (note.empty()) note = "this user's run-time folder";
  }
  if (std::string wrong = unwritable(path); !wrong.empty()) return wrong;
  path = fs::absolute(path).lexically_normal().string();
  constexpr std::size_t kMost = sizeof(sockaddr_un{}.sun_path) - 1;
  if (path.size() > kMost)
    return in_quotes(path) + " has " + std::to_string(path.size()) + " bytes; the system allows a socket's path " + std::to_string(kMost);
  settings.socket = path;
  settings.runtime.serve = "unix:" + path;
  settled = in_quotes(path);
  return {};
}

std::string apply_memory(std::string_view text, Settings& settings, std::string& settled, std::string& note) {
  constexpr std::uint64_t kUnit = 2 * kMiB;
  std::uint64_t value = 0;
  if (text.ends_with('%')) {
    const auto share = protocol::parse_share(text);
    if (!share) return share.error;
    const std::uint64_t available = runtime::available_memory();
    if (available == 0) return "the system does not tell how much memory is available: a size is needed, such as 4GiB";
    value = static_cast<std::uint64_t>(static_cast<double>(available) * share.value) / kUnit * kUnit;
    note = std::string(text) + " of the " + protocol::format_bytes(available) + " available";
    if (value < kMiB) return in_quotes(text) + " is " + note + ", less than the allowed 1 MiB";
  } else {
    const auto parsed = protocol::parse_bytes(text, kMiB, 64 * kTiB);
    if (!parsed) return parsed.error + ", or a share of what is available, such as 25%";
    value = parsed.value;
    note = protocol::format_bytes(value);
  }
  settings.runtime.arena_bytes = value;
  settled = std::to_string(value);
  return {};
}

std::string apply_arena_file(std::string_view text, Settings& settings, std::string& settled, std::string&) {
  if (std::string wrong = unwritable(text); !wrong.empty()) return wrong;
  settings.runtime.arena_file = text.empty() ? std::string() : fs::absolute(text).lexically_normal().string();
  settled = in_quotes(settings.runtime.arena_file);
  return {};
}

std::string apply_numa(std::string_view text, Settings& settings, std::string& settled, std::string&) {
  if (text == "none") {
    settings.runtime.numa_node = -1;
    settled = in_quotes(text);
    return {};
  }
  const auto parsed = protocol::parse_u64(text, 0, 1023);
  if (!parsed) return parsed.error + ", or none";
  if (!fs::exists("/sys/devices/system/node/node" + std::to_string(parsed.value)))
    return in_quotes(text) + " is no node of this machine; /sys/devices/system/node lists them";
  settings.runtime.numa_node = static_cast<int>(parsed.value);
  settled = std::to_string(parsed.value);
  return {};
}

std::string apply_group(std::string_view text, Settings& settings, std::string& settled, std::string&) {
  if (!text.empty()) {
    const std::string name(text);
    const auto number = protocol::parse_u64(text, 0, std::numeric_limits<gid_t>::max() - 1);
    if (!number && getgrnam(name.c_str()) == nullptr) return in_quotes(text) + " is no group of this system; allowed are a name and a number";
  }
  settings.runtime.serve_group = text;
  settled = in_quotes(text);
  return {};
}

std::string apply_huge_pages(std::string_view text, Settings& settings, std::string& settled, std::string&) {
  // yes and no: as the setting was before it had a third value.
  if (text == "transparent" || text == "yes" || text == "true") settings.runtime.huge_pages = HugePages::transparent;
  else if (text == "off" || text == "no" || text == "false") settings.runtime.huge_pages = HugePages::off;
  else if (text == "reserved") settings.runtime.huge_pages = HugePages::reserved;
  else return in_quotes(text) + " is not allowed; allowed are off, transparent and reserved";
  const HugePages kind = settings.runtime.huge_pages;
  settled = kind == HugePages::off ? "\"off\"" : kind == HugePages::reserved ? "\"reserved\"" : "\"transparent\"";
  return {};
}

std::string apply_level(std::string_view text, Settings& settings, std::string& settled, std::string&) {
  if (text == "error") settings.log_level = telemetry::Level::error;
  else if (text == "warning") settings.log_level = telemetry::Level::warning;
  else if (text == "info") settings.log_level = telemetry::Level::info;
  else return in_quotes(text) + " is not allowed; allowed are error, warning and info";
  settled = in_quotes(text);
  return {};
}

std::string apply_policy(std::string_view text, Settings& settings, std::string& settled, std::string&) {
  if (text != "lru") return in_quotes(text) + " is unknown; allowed is lru";
  settings.runtime.policy = text;
  settled = in_quotes(text);
  return {};
}

// The field of a setting, as a function that can be kept in the table.
#define KVONCED_FIELD(expression) [](Settings & s) -> auto& { return s.expression; }

std::vector<Setting> make_settings() {
  constexpr auto kMax32 = std::numeric_limits<std::uint32_t>::max();
  return {
      {"socket", "PATH", "", "Unix socket to listen on; default: in this user's run-time folder", "serve", true, false, apply_socket},
      {"memory", "SIZE|SHARE", "25%", "Memory of the store, as 4GiB, or share of what is available", "arena_bytes", true, false, apply_memory},
      {"capacity", "SIZE", "0", "Most payload kept; 0: only the memory limits", "capacity_bytes", true, false,
       bytes(KVONCED_FIELD(runtime.capacity_bytes), 1, 64 * kTiB, true)},
      {"arena-file", "PATH", "", "File on tmpfs: pages outlive an orderly restart", "arena_file", true, false, apply_arena_file},
      {"group", "GROUP", "", "Processes of this group may connect too; default: this user's only", "serve_group", true, false, apply_group},
      {"max-clients", "N", "1024", "Most connected processes", "max_clients", true, false, count<std::uint32_t>(KVONCED_FIELD(runtime.max_clients), 1, 65'536)},
      {"numa-node", "N|none", "none", "Node whose memory the store takes", "numa_node", true, false, apply_numa},
      {"idle-exit", "TIME", "0", "End after so long without clients, as 60s; 0: never", "", true, true,
       duration(KVONCED_FIELD(idle_exit), milliseconds{0}, 720 * kHour)},
      {"drain-time", "TIME", "5s", "Most time that the end may take after SIGTERM", "", true, true,
       duration(KVONCED_FIELD(drain_time), milliseconds{0}, kHour)},
      {"log-level", "LEVEL", "info", "error, warning or info", "", true, true, apply_level},
      {"index-pages", "N", "0", "Most pages in the index; 0: by memory", "index_pages", false, false,
       count<std::uint64_t>(KVONCED_FIELD(runtime.index_pages), 1'024, 1ULL << 31, true)},
      {"partitions", "N", "1", "Store actors, each with its share of memory and budget", "partitions", false, false,
       count<std::uint32_t>(KVONCED_FIELD(runtime.partitions), 1, 64)},
      {"scheduler-threads", "N", "1", "Threads that run the actors", "scheduler_threads", false, false,
       count<std::uint32_t>(KVONCED_FIELD(runtime.scheduler_threads), 1, 64)},
      {"huge-pages", "KIND", "transparent", "off, transparent (where the system has them) or reserved", "huge_pages", false, false, apply_huge_pages},
      {"populate", "yes|no", "yes", "Take all memory at the start", "populate", false, false, yes_or_no(KVONCED_FIELD(runtime.populate))},
      {"policy", "NAME", "lru", "Eviction policy: lru", "policy", false, false, apply_policy},
      {"ghost-entries", "N", "65536", "Evicted pages that are remembered, so that a miss can say so", "ghost_entries", false, false,
       count<std::uint32_t>(KVONCED_FIELD(runtime.ghost_entries), 0, 16'777'216)},
      {"engine-grace", "TIME", "2s", "Leases outlive an engine's last connection by this", "engine_grace", false, false,
       duration(KVONCED_FIELD(runtime.engine_grace), milliseconds{0}, kHour)},
      {"grant-deadline", "TIME", "1s", "A writer has this and its bytes' time at least-rate", "grant_base", false, false,
       duration(KVONCED_FIELD(runtime.grant_base), milliseconds{1}, kHour)},
      {"least-rate", "SIZE", "64MiB", "Bytes per second that a writer is trusted with", "least_rate", false, false,
       bytes(KVONCED_FIELD(runtime.least_rate), kKiB, kTiB)},
      {"window", "SIZE", "8MiB", "Most bytes of open grants of one rank, over all its pools", "window_bytes", false, false,
       bytes(KVONCED_FIELD(runtime.window_bytes), 64 * kKiB, kGiB)},
      {"lease-time", "TIME", "10s", "A lease's life unless the lookup names one", "lease_time", false, false,
       duration(KVONCED_FIELD(runtime.lease_time), milliseconds{10}, kHour)},
      {"leased-bytes", "SIZE", "0", "Most payload leased by one engine; 0: half of the budget, less beside others", "leased_bytes", false, false,
       bytes(KVONCED_FIELD(runtime.leased_bytes), 1, 64 * kTiB, true)},
      {"leased-stops", "N", "4", "Deepest stops of trailing pools that a lease covers", "leased_stops", false, false,
       count<std::uint32_t>(KVONCED_FIELD(runtime.leased_stops), 1, 64)},
      {"verify-sample", "N", "256", "One key in N is compared between ranks; 0: none, 1: all", "verify_sample", false, false,
       count<std::uint32_t>(KVONCED_FIELD(runtime.verify_sample), 0, kMax32)},
      {"verify-window", "TIME", "10s", "Announcers within it are compared", "verify_window", false, false,
       duration(KVONCED_FIELD(runtime.verify_window), milliseconds{1}, kHour)},
      {"conflict-limit", "N", "3", "Keys on which ranks differ before a pool is kept per rank", "conflict_limit", false, false,
       count<std::uint32_t>(KVONCED_FIELD(runtime.conflict_limit), 1, 1'000'000)},
      {"demote", "yes|no", "yes", "no: only warn of such a pool", "demote", false, false, yes_or_no(KVONCED_FIELD(runtime.demote))},
  };
}

#undef KVONCED_FIELD

}  // namespace

const std::vector<Setting>& all_settings() {
  static const std::vector<Setting> settings = make_settings();
  return settings;
}

std::string environment_name(std::string_view setting) {
  std::string name = "KVONCED_";
  for (const char c : setting) name += c == '-' ? '_' : static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  return name;
}

std::string nearest_setting(std::string_view given) {
  std::string plain(given);
  std::replace(plain.begin(), plain.end(), '_', '-');
  std::vector<std::string> names;
  for (const Setting& setting : all_settings()) names.emplace_back(setting.name);
  return nearest_word(plain, names);
}

std::string unknown_setting(std::string_view given) {
  std::string text = in_quotes(given) + " is no setting";
  text += nearest_text("", nearest_setting(given)) + "; allowed are ";
  for (const Setting& setting : all_settings()) text += (&setting == &all_settings().front() ? "" : ", ") + std::string(setting.name);
  return text;
}

}  // namespace kvonce::apps
