// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstring>

#include <kvonce/types.hpp>

#include "python/src/handles.hpp"

namespace kvonce::python {

/// A LeaseId as Python sees it: 16 bytes that other processes of the engine may use too.
struct Lease {
  LeaseId id;

  std::array<char, 16> bytes() const {
    std::array<char, 16> bytes;
    std::memcpy(bytes.data(), &id.high, 8);
    std::memcpy(bytes.data() + 8, &id.low, 8);
    return bytes;
  }
};

/// A Lease, or its 16 bytes; raises.
LeaseId lease_of(nb::handle lease);

/// A kvonce.Rank.
nb::object make_rank(RankPtr rank);

/// The pool behind a kvonce.Pool; raises.
PoolPtr pool_of(nb::handle pool, const std::string& name = "rows: a key");

}  // namespace kvonce::python
