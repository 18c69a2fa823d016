// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <kvonce/export.hpp>

namespace kvonce {

/// Version, commit, CAF version, and whether assertions are compiled in: "0.1.0 (1a2b3c4d5e6f, CAF 0.17.6, Release, checks off)".
KVONCE_API std::string version();

}  // namespace kvonce
