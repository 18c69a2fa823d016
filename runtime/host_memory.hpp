// SPDX-License-Identifier: Apache-2.0
//
// How much memory a process started here may still take.
#pragma once

#include <cstdint>
#include <string>

namespace kvonce::runtime {

/// Bytes: the least of what the system has available and what each control group of this process (v2 and v1, the outer ones
/// too) leaves below its limit. 0 when the system does not tell. Files are read below `root`, "/" but for tests.
std::uint64_t available_memory(const std::string& root = {});

/// The share of it that a store takes unless told otherwise: a quarter, in whole 2 MiB.
std::uint64_t default_store_bytes(std::uint64_t available);

}  // namespace kvonce::runtime
