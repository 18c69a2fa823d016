// SPDX-License-Identifier: Apache-2.0
#include "runtime/store_settings.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "protocol/units.hpp"

namespace kvonce::runtime {
namespace {

std::string written(std::uint64_t number) { return std::to_string(number); }
std::string written(std::uint32_t number) { return std::to_string(number); }
std::string written(int node) { return node < 0 ? "none" : std::to_string(node); }
std::string written(bool yes) { return yes ? "yes" : "no"; }
std::string written(const std::string& text) { return text; }
std::string written(std::chrono::milliseconds time) { return std::to_string(time.count()) + "ms"; }
std::string written(HugePages pages) {
  if (pages == HugePages::off) return "off";
  return pages == HugePages::reserved ? "reserved" : "transparent";
}

struct Field {
  const char* name;  ///< in RuntimeConfig
  const char* flag;  ///< of kvonced, without its dashes
  std::string (*value)(const RuntimeConfig&);
};

#define KVONCE_FIELD(name, flag)                                                  \
  Field {                                                                         \
#name, flag, [](const RuntimeConfig& config) { return written(config.name); } \
  }

// Not among them: threads, which are each process's own; populate, as a client with it enters the memory itself; checksums, which
// every kvonced has; names of files and sockets, and serve_group, which only an embedded store may have.
const Field kFields[] = {
    KVONCE_FIELD(capacity_bytes, "capacity"),
    KVONCE_FIELD(max_clients, "max-clients"),
    KVONCE_FIELD(numa_node, "numa-node"),
    KVONCE_FIELD(index_pages, "index-pages"),
    KVONCE_FIELD(partitions, "partitions"),
    KVONCE_FIELD(huge_pages, "huge-pages"),
    KVONCE_FIELD(policy, "policy"),
    KVONCE_FIELD(ghost_entries, "ghost-entries"),
    KVONCE_FIELD(engine_grace, "engine-grace"),
    KVONCE_FIELD(grant_base, "grant-deadline"),
    KVONCE_FIELD(least_rate, "least-rate"),
    KVONCE_FIELD(window_bytes, "window"),
    KVONCE_FIELD(lease_time, "lease-time"),
    KVONCE_FIELD(leased_bytes, "leased-bytes"),
    KVONCE_FIELD(leased_stops, "leased-stops"),
    KVONCE_FIELD(verify_sample, "verify-sample"),
    KVONCE_FIELD(verify_window, "verify-window"),
    KVONCE_FIELD(conflict_limit, "conflict-limit"),
    KVONCE_FIELD(demote, "demote"),
};
#undef KVONCE_FIELD

}  // namespace

std::vector<StoreInfo::Setting> store_settings(const RuntimeConfig& config) {
  std::vector<StoreInfo::Setting> all;
  for (const Field& field : kFields) all.push_back({field.flag, field.value(config)});
  return all;
}

std::vector<std::string> given_store_arguments(const RuntimeConfig& config) {
  const RuntimeConfig plain;
  std::vector<std::string> given;
  for (const Field& field : kFields) {
    std::string value = field.value(config);
    if (value == field.value(plain)) continue;
    given.push_back("--" + std::string(field.flag));
    given.push_back(std::move(value));
  }
  return given;
}

std::uint64_t given_store_memory(const RuntimeConfig& config) {
  if (config.auto_bytes != 0) return config.auto_bytes;
  return config.arena_bytes == RuntimeConfig{}.arena_bytes ? 0 : config.arena_bytes;
}

std::string settings_not_met(const RuntimeConfig& config, const StoreInfo& store) {
  const RuntimeConfig plain;
  std::string list;
  const auto add = [&](const std::string& name, const std::string& here, const std::string& there) {
    list += (list.empty() ? "" : ", ") + name + " (" + here + " here, " + there + " there)";
  };
  // The store's own is rounded up to the system's pages, of which the largest usual ones have 2 MiB.
  const std::uint64_t memory = given_store_memory(config);
  constexpr std::uint64_t kRounding = 2ULL << 20;
  if (memory != 0 && (store.arena_bytes < memory || store.arena_bytes - memory >= kRounding))
    add(config.auto_bytes != 0 ? "auto_bytes" : "arena_bytes", protocol::format_bytes(memory),
        protocol::format_bytes(store.arena_bytes));
  for (const Field& field : kFields) {
    const std::string here = field.value(config);
    if (here == field.value(plain)) continue;
    const auto there =
        std::find_if(store.settings.begin(), store.settings.end(), [&](const auto& one) { return one.name == field.flag; });
    if (there != store.settings.end() && there->value != here) add(field.name, here, there->value);
  }
  if (!config.checksums && store.checksums) add("checksums", written(config.checksums), written(store.checksums));
  return list;
}

}  // namespace kvonce::runtime
