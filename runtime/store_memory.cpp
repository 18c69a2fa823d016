// SPDX-License-Identifier: Apache-2.0
#include "runtime/store_memory.hpp"

#include <utility>

namespace kvonce::runtime {

Error StoreMemory::open(Core& core) {
  const RuntimeConfig& config = core.config;
  storage::ArenaOptions options;
  options.bytes = config.arena_bytes;
  options.huge_pages = config.huge_pages ? storage::HugePages::madvise : storage::HugePages::off;
  options.populate = config.populate;
  options.numa_node = config.numa_node;
  options.path = config.arena_file;
  options.backing = !config.arena_file.empty() ? storage::Backing::file
                    : !config.serve.empty()    ? storage::Backing::memfd
                                               : storage::Backing::anonymous;
  auto arena = storage::Arena::create(options);
  if (!arena.arena) return {Reason::no_space, "arena_bytes is " + std::to_string(config.arena_bytes) + ": " + arena.error};
  core.arena = std::move(arena.arena);
  Layout layout = plan_layout(config, core.arena->bytes());
  if (layout.error) return layout.error;
  layout_ = std::move(layout.partitions);
  return {};
}

std::unique_ptr<protocol::StoreCore> StoreMemory::make_store(const protocol::StoreConfig& config, std::uint32_t) {
  return std::make_unique<protocol::StoreCore>(config);
}

Error write_snapshot(const Core&, const std::vector<std::string>&) { return {}; }

}  // namespace kvonce::runtime
