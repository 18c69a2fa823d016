// SPDX-License-Identifier: Apache-2.0
//
// Those fields of a RuntimeConfig that a store alone uses, as kvonced takes them: handed to one that "auto" starts, and compared
// with what one has that ran already.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <kvonce/config.hpp>

#include "runtime/store_info.hpp"

namespace kvonce::runtime {

/// Every setting of a store with this configuration, by the name of kvonced's flag. For StoreInfo.
std::vector<StoreInfo::Setting> store_settings(const RuntimeConfig& config);

/// "--verify-sample", "1": of each that has another value than the default. `memory` is not among them.
std::vector<std::string> given_store_arguments(const RuntimeConfig& config);

/// What the user of "auto" has given for a store's memory, in auto_bytes or else arena_bytes; 0: nothing.
std::uint64_t given_store_memory(const RuntimeConfig& config);

/// `verify_sample (1 here, 256 there)`: what `config` gives and a store does not have, in one list; empty: nothing.
std::string settings_not_met(const RuntimeConfig& config, const StoreInfo& store);

}  // namespace kvonce::runtime
