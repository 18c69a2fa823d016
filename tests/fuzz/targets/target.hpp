// SPDX-License-Identifier: Apache-2.0
//
// What each fuzz target and its driver share. A target is one function with libFuzzer's name; it is linked with libFuzzer
// (clang, KVONCE_LIBFUZZER) or with driver.cpp (any compiler).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

// Also in release builds: what does not hold ends the run.
#define KVONCE_FUZZ_CHECK(condition)                                                      \
  do {                                                                                    \
    if (!(condition)) {                                                                   \
      std::fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                       \
    }                                                                                     \
  } while (false)
