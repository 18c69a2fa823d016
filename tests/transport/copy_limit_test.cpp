// SPDX-License-Identifier: Apache-2.0
#include "transport/copy_limit.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <string>

using namespace kvonce::transport;

TEST_CASE("the copy limit names its way and gives a rate") {
  const CopyRate rate = measure_copy_limit(65'536, 4U << 20U, 2, 0.02);
  CHECK(rate.gib_per_s > 0);
  CHECK(rate.cpu_us_per_block > 0);
  CHECK(rate.threads == 2);
  const std::string kernel = rate.kernel;
  CHECK((kernel == "memcpy" || kernel == "stream-avx512" || kernel == "stream-avx2"));
}

TEST_CASE("a measurement that makes no sense gives zero") {
  CHECK(measure_copy_limit(0, 1U << 20U, 1, 0.01).gib_per_s == 0);
  CHECK(measure_copy_limit(4096, 1U << 20U, 0, 0.01).gib_per_s == 0);
  CHECK(measure_copy_limit(2U << 20U, 1U << 20U, 1, 0.01).gib_per_s == 0);
}

TEST_CASE("a measured copy is asked for whole blocks within the working set") {
  std::atomic<int> wrong{0};
  std::atomic<int> calls{0};
  const std::byte* lowest = nullptr;  // of the targets; one thread copies
  const std::byte* highest = nullptr;
  const auto copy_block = [&](std::byte* target, const std::byte* source, std::size_t bytes) {
    // Two buffers of the working set's size, wherever they lie: no block reaches from one into the other.
    const auto apart = target < source ? source - target : target - source;
    if (bytes != 4096 || apart < 4096) ++wrong;
    if (lowest == nullptr || target < lowest) lowest = target;
    if (highest == nullptr || target + bytes > highest) highest = target + bytes;
    std::memcpy(target, source, bytes);
    ++calls;
  };
  const CopyCandidate candidates[] = {{"mine", copy_block}};
  const auto rates = measure_copy_rates(candidates, 4096, 1U << 20U, 1, 0.01);
  REQUIRE(rates.size() == 1);
  const CopyRate rate = rates[0];
  CHECK(wrong == 0);
  CHECK(calls > 0);
  CHECK(highest - lowest <= 1 << 20);
  CHECK(rate.gib_per_s > 0);
  CHECK(std::string(rate.kernel) == "mine");
}
