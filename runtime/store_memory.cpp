// SPDX-License-Identifier: Apache-2.0
#include "runtime/store_memory.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "runtime/clock.hpp"
#include "runtime/start_interrupt.hpp"
#include "storage/snapshot_file.hpp"

namespace kvonce::runtime {

namespace {

std::string snapshot_path(const RuntimeConfig& config) { return config.arena_file + ".snapshot"; }

/// It holds what the index holds, which lies in the arena, and names and leases besides.
std::uint64_t snapshot_bytes_max(std::uint64_t arena_bytes) {
  constexpr std::uint64_t kBesides = std::uint64_t{64} << 20;
  return std::min(arena_bytes + kBesides, storage::kMostSnapshotBytes);
}

storage::ArenaOptions arena_options(const RuntimeConfig& config) {
  storage::ArenaOptions options;
  options.bytes = config.arena_bytes;
  options.huge_pages = huge_pages_of(config.huge_pages);
  options.populate = config.populate;
  options.numa_node = config.numa_node;
  options.path = config.arena_file;
  const bool as_file = !config.serve.empty() || config.huge_pages == HugePages::reserved;
  options.backing = !config.arena_file.empty() ? storage::Backing::file : as_file ? storage::Backing::memfd : storage::Backing::anonymous;
  options.canceled = [] { return start_interrupted().load(std::memory_order_relaxed); };
  return options;
}

/// The field that has asked for what could not be had.
std::string asked_for(const RuntimeConfig& config, const std::string& error) {
  const auto tells = [&](const std::string& part) { return error.find(part) != std::string::npos; };
  if (tells("NUMA node")) return "numa_node is " + std::to_string(config.numa_node);
  if (!config.arena_file.empty() && (tells(config.arena_file) || tells("the arena's file"))) return "arena_file";
  if (config.huge_pages == HugePages::reserved && tells("reserved huge pages")) return "huge_pages is reserved";
  return "arena_bytes is " + std::to_string(config.arena_bytes);
}

/// Whether what was asked for can never be had here; else there is too little of something for now.
bool is_wrong(const RuntimeConfig& config, const std::string& error) {
  const auto tells = [&](const std::string& part) { return error.find(part) != std::string::npos; };
  for (const int scarce : {ENOSPC, ENOMEM, EMFILE, ENFILE, EDQUOT})
    if (tells(std::generic_category().message(scarce))) return false;
  if (tells("NUMA node")) return true;
  return !config.arena_file.empty() && tells("the arena's file") && !tells("in use");
}

Error interrupted() { return {Reason::canceled, "the start was interrupted before the store was there"}; }

}  // namespace

storage::HugePages huge_pages_of(HugePages asked) noexcept {
  if (asked == HugePages::reserved) return storage::HugePages::reserved;
  return asked == HugePages::off ? storage::HugePages::off : storage::HugePages::madvise;
}

Error StoreMemory::plan(Core& core) {
  Layout layout = plan_layout(core.config, core.arena->bytes());
  if (layout.error) return layout.error;
  core.layout = std::move(layout.partitions);
  return {};
}

Error StoreMemory::open_cold(Core& core) {
  auto arena = storage::Arena::create(arena_options(core.config));
  if (!arena.arena) return {is_wrong(core.config, arena.error) ? Reason::bad_argument : Reason::no_space, asked_for(core.config, arena.error) + ": " + arena.error};
  core.arena = std::move(arena.arena);
  return plan(core);
}

/// Whatever contradicts anything makes a cold start, which says why.
bool StoreMemory::open_warm(Core& core, const MakeConfig& make_config) {
  std::string& why = core.store_start.why_cold;
  if (access(core.config.arena_file.c_str(), F_OK) != 0) {
    why = core.config.arena_file + " is not there yet";
    return false;
  }
  auto arena = storage::Arena::open_existing(arena_options(core.config));
  if (!arena.arena) {
    why = arena.error;
    return false;
  }
  core.arena = std::move(arena.arena);
  const auto identity = core.arena->identity();
  if (!identity) {
    why = core.config.arena_file + " cannot be told from others of its name";
    return false;
  }
  storage::TakenSnapshot snapshot = storage::take_snapshot_file(snapshot_path(core.config), *identity, snapshot_bytes_max(core.arena->bytes()));
  if (snapshot.parts.empty()) {
    why = snapshot.why_not;
    return false;
  }
  if (const Error error = plan(core)) {
    why = error.text;
    return false;
  }
  if (snapshot.parts.size() != core.config.partitions) {
    why = "the last life had " + std::to_string(snapshot.parts.size()) + " partitions, this one has " +
          std::to_string(core.config.partitions);
    return false;
  }
  std::vector<protocol::StoreConfig> configs;
  for (std::uint32_t p = 0; p < core.config.partitions; ++p) configs.push_back(make_config(p));
  stores = protocol::StoreCore::restore_all(configs, snapshot.parts, runtime::now(), &why);
  if (stores.empty()) return false;
  why.clear();
  core.store_start.warm = true;
  for (const auto& store : stores) {
    core.store_start.restored_objects += store->stats().objects_now;
    if (!snapshot.same_processes) continue;
    for (const auto& process : store->quarantined_processes()) writers.push_back(process);
  }
  return true;
}

/// What stands at the arena's path and was made by nobody of us is not ours to replace. A store leaves its lock beside its file.
Error check_path(const RuntimeConfig& config) {
  struct stat info {};
  if (lstat(config.arena_file.c_str(), &info) != 0) return {};
  if (!S_ISREG(info.st_mode)) return bad("arena_file is '" + config.arena_file + "': there is something that is no plain file; it is left as it is");
  if (info.st_uid != geteuid()) return bad("arena_file is '" + config.arena_file + "': the file there belongs to another user; it is left as it is");
  if (info.st_size != 0 && access((config.arena_file + ".lock").c_str(), F_OK) != 0)
    return bad("arena_file is '" + config.arena_file +
               "': the file there is not known to be a store's (no lock file lies beside it); it is left as it is. Remove it, or name another path");
  return {};
}

Error StoreMemory::open(Core& core, const MakeConfig& make_config) {
  if (!core.config.arena_file.empty())
    if (Error error = check_path(core.config)) return error;
  constexpr std::uint64_t kUnit = storage::Arena::kAlignment;
  // A start that cannot be leaves the last life's file and snapshot as they are.
  if (core.config.huge_pages != HugePages::reserved)
    if (Error error = plan_layout(core.config, (core.config.arena_bytes + kUnit - 1) / kUnit * kUnit).error) return error;
  if (!core.config.arena_file.empty() && open_warm(core, make_config)) return {};
  // Before the old file is replaced: its snapshot has not been read, and the next start finds it.
  if (start_interrupted()) return interrupted();
  core.arena.reset();
  if (Error error = open_cold(core)) return start_interrupted() ? interrupted() : error;
  for (std::uint32_t p = 0; p < core.config.partitions; ++p)
    stores.push_back(std::make_unique<protocol::StoreCore>(make_config(p)));
  return {};
}

Error write_snapshot(const Core& core, const std::vector<std::string>& parts) {
  if (parts.empty()) return {Reason::deadline, "the store did not end in time: its next life will start cold"};
  const auto identity = core.arena->identity();
  if (!identity) return {Reason::persist_failed, "the arena's file cannot be told from others: the next life will start cold"};
  if (const auto why = storage::write_snapshot_file(snapshot_path(core.config), *identity, parts))
    return {Reason::persist_failed, *why + ": the next life will start cold"};
  return {};
}

}  // namespace kvonce::runtime
