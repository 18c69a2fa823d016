// SPDX-License-Identifier: Apache-2.0
//
// The memory of a store in this process, and the StoreCores over it: new, or as the last life of the store has left them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "protocol/store_core.hpp"
#include "runtime/core.hpp"

namespace kvonce::runtime {

class StoreMemory {
 public:
  using MakeConfig = std::function<protocol::StoreConfig(std::uint32_t partition)>;

  /// Sets core.arena, core.layout and core.store_start. `make_config` is asked when these are set.
  Error open(Core& core, const MakeConfig& make_config);
  /// By partition; to be taken out.
  std::vector<std::unique_ptr<protocol::StoreCore>> stores;
  /// Processes of the last life that may still write to slots, as far as they can be told apart here.
  std::vector<protocol::ClientProcess> writers;

 private:
  Error open_cold(Core& core);
  Error plan(Core& core);
  bool open_warm(Core& core, const MakeConfig& make_config);
};

storage::HugePages huge_pages_of(HugePages asked) noexcept;

/// After the store's last word: what its next life needs, one part a partition, beside core.config.arena_file.
Error write_snapshot(const Core& core, const std::vector<std::string>& parts);

}  // namespace kvonce::runtime
