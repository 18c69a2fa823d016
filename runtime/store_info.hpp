// SPDX-License-Identifier: Apache-2.0
//
// What a store tells a process that it lets in: how its arena is laid out. Rides in the handshake's welcome.
#pragma once

#include <cstdint>
#include <vector>

#include "messages/codec.hpp"
#include "runtime/layout.hpp"

namespace kvonce::runtime {

struct StoreInfo {
  std::uint64_t arena_bytes = 0;
  bool sealed = true;     // a memory file that cannot shrink; false: a named file
  bool checksums = true;  // loads are compared with them
  struct Partition {
    std::uint64_t index_offset = 0;
    std::uint64_t index_bytes = 0;
    std::uint64_t slots_offset = 0;
    std::uint64_t slots_bytes = 0;
  };
  std::vector<Partition> partitions;
};
KVONCE_FIELDS(StoreInfo::Partition, x.index_offset, x.index_bytes, x.slots_offset, x.slots_bytes)
KVONCE_FIELDS(StoreInfo, x.arena_bytes, x.sealed, x.checksums, x.partitions)

}  // namespace kvonce::runtime
