// SPDX-License-Identifier: Apache-2.0
//
// The memory of a store in this process: new, or as the last life of the store has left it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "protocol/store_core.hpp"
#include "runtime/core.hpp"

namespace kvonce::runtime {

class StoreMemory {
 public:
  /// Sets core.arena.
  Error open(Core& core);
  const std::vector<PartitionLayout>& layout() const { return layout_; }
  std::unique_ptr<protocol::StoreCore> make_store(const protocol::StoreConfig& config, std::uint32_t partition);
  const StoreStart& outcome() const { return outcome_; }

 private:
  std::vector<PartitionLayout> layout_;
  StoreStart outcome_;
};

/// After the store's last word: what its next life needs, one part a partition, beside core.config.arena_file.
Error write_snapshot(const Core& core, const std::vector<std::string>& parts);

}  // namespace kvonce::runtime
