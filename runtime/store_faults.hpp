// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "protocol/pool_core.hpp"
#include "protocol/store_core.hpp"

namespace kvonce::runtime {

/// Deliberate faults of every store, and of every rank, that this process starts from now on: for controls, in which a check has
/// to fail. All off unless a test switches one on.
protocol::StoreFaults& store_faults() noexcept;
protocol::PoolFaults& pool_faults() noexcept;

}  // namespace kvonce::runtime
