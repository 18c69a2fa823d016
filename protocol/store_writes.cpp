// SPDX-License-Identifier: Apache-2.0
//
// StoreCore: who may be writing to its slots.
#include <map>

#include "protocol/store_impl.hpp"

namespace kvonce::protocol {

std::vector<ClientWrites> StoreCore::writes_by_client() const {
  std::map<ClientId, ClientWrites> found;
  for (std::uint32_t c = impl_->granted_head; c != kNone; c = impl_->claims[c].granted_next)
    for (const OpenGrant& grant : impl_->claims[c].grants) ++found[grant.client].open_grants;
  for (const auto& [epoch, grant] : impl_->quarantine) found[grant.client].quarantined_bytes += grant.slot.bytes();
  std::vector<ClientWrites> list;
  for (auto& [client, writes] : found) {
    writes.client = client;
    list.push_back(writes);
  }
  return list;
}

}  // namespace kvonce::protocol
