// SPDX-License-Identifier: Apache-2.0
//
// What a store tells a process that it lets in: how its arena is laid out. Rides in the handshake's welcome.
#pragma once

#include <cstdint>
#include <string>
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
  // By the names of kvonced's flags: what this store goes by.
  struct Setting {
    std::string name;
    std::string value;
  };
  std::vector<Setting> settings;
  // How this life of the store began.
  bool warm = false;
  std::string why_cold;
  std::uint64_t restored_objects = 0;
};
KVONCE_FIELDS(StoreInfo::Partition, x.index_offset, x.index_bytes, x.slots_offset, x.slots_bytes)
KVONCE_FIELDS(StoreInfo::Setting, x.name, x.value)
KVONCE_FIELDS(StoreInfo, x.arena_bytes, x.sealed, x.checksums, x.partitions, x.settings, x.warm, x.why_cold, x.restored_objects)

}  // namespace kvonce::runtime
