// SPDX-License-Identifier: Apache-2.0
// RuntimeConfig from keyword arguments.
#pragma once

#include <kvonce/config.hpp>

#include "python/src/process.hpp"

namespace kvonce::python {

/// Every field of RuntimeConfig by its name: durations as seconds, sizes as int or text ("1GiB"). An unknown name is refused,
/// with the nearest one.
RuntimeConfig read_options(const std::string& engine_id, const std::string& store, const nanobind::kwargs& options);

}  // namespace kvonce::python
