// SPDX-License-Identifier: Apache-2.0
#include "transport/checksum.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace {

using namespace kvonce::transport;

constexpr std::byte kUntouched{0xEE};

std::vector<Kernel> supported_kernels() {
  std::vector<Kernel> kernels;
  for (const Kernel kernel : {Kernel::portable, Kernel::avx2, Kernel::avx512, Kernel::automatic})
    if (kernel_supported(kernel)) kernels.push_back(kernel);
  return kernels;
}

std::vector<std::byte> random_bytes(std::size_t count, std::uint64_t seed = 1) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(count);
  std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<std::byte>(random()); });
  return bytes;
}

// A target with a margin on both sides, at a chosen distance from a 64-byte boundary.
class Target {
 public:
  explicit Target(std::size_t bytes, std::size_t misaligned = 0)
      : bytes_(bytes), memory_(bytes + 256, kUntouched) {
    const auto begin = reinterpret_cast<std::uintptr_t>(memory_.data()) + 64;
    offset_ = 64 + (64 - begin % 64) % 64 + misaligned;
  }
  std::byte* data() { return memory_.data() + offset_; }
  bool holds(const std::byte* expected) const {
    const auto at = memory_.begin() + static_cast<std::ptrdiff_t>(offset_);
    const auto end = at + static_cast<std::ptrdiff_t>(bytes_);
    const auto untouched = [](std::byte byte) { return byte == kUntouched; };
    return std::equal(at, end, expected) && std::all_of(memory_.begin(), at, untouched) &&
           std::all_of(end, memory_.end(), untouched);
  }

 private:
  std::size_t bytes_;
  std::vector<std::byte> memory_;
  std::size_t offset_ = 0;
};

std::vector<std::size_t> interesting_lengths() {
  std::vector<std::size_t> lengths;
  for (std::size_t length = 0; length <= 3200; ++length) lengths.push_back(length);
  for (const std::size_t near : {4096, 8192, 65536, 262144, 1048576, 3145728})
    for (std::size_t length = near - 66; length <= near + 66; length += 11) lengths.push_back(length);
  lengths.insert(lengths.end(), {4096, 65536, 262144, 1048576, 3145728, 5000001});
  return lengths;
}

}  // namespace

TEST_CASE("every kernel copies every length and gives its XXH3-64") {
  const auto source = random_bytes(5'100'000);
  for (const Kernel kernel : supported_kernels()) {
    CAPTURE(kernel_name(kernel));
    for (const std::size_t length : interesting_lengths()) {
      CAPTURE(length);
      const std::uint64_t expected = XXH3_64bits(source.data(), length);
      Target target(length);
      REQUIRE(copy_and_hash(target.data(), source.data(), length, kernel) == expected);
      REQUIRE(target.holds(source.data()));
      REQUIRE(hash(source.data(), length, kernel) == expected);
    }
  }
}

TEST_CASE("alignment of neither side changes what is copied or its checksum") {
  const auto source = random_bytes(20'000, 2);
  for (const Kernel kernel : supported_kernels()) {
    CAPTURE(kernel_name(kernel));
    for (const std::size_t length : {63U, 64U, 241U, 1024U, 4096U, 9001U}) {
      for (std::size_t shift = 0; shift < 64; shift += 3) {
        CAPTURE(length);
        CAPTURE(shift);
        const std::byte* const from = source.data() + (shift * 7) % 64;
        Target target(length, shift);
        REQUIRE(copy_and_hash(target.data(), from, length, kernel) == XXH3_64bits(from, length));
        REQUIRE(target.holds(from));
        Target plain(length, shift);
        copy(plain.data(), from, length, kernel);
        REQUIRE(plain.holds(from));
      }
    }
  }
}

TEST_CASE("a range taken in slices has the checksum of the whole") {
  const auto source = random_bytes(3'000'000, 3);
  std::mt19937_64 random(4);
  for (const Kernel kernel : supported_kernels()) {
    CAPTURE(kernel_name(kernel));
    for (int round = 0; round < 120; ++round) {
      const std::size_t slices = random() % 6;
      std::vector<std::size_t> lengths;
      std::size_t length = 0;
      for (std::size_t i = 0; i < slices; ++i) {
        lengths.push_back((random() % (round % 2 == 0 ? 4 : 256)) * kSliceGranule);
        length += lengths.back();
      }
      const std::size_t last = round % 5 == 0 ? 0 : random() % (round % 3 == 0 ? 70 : 5000);
      length += last;
      CAPTURE(length);
      CAPTURE(last);
      Target target(length, round % 4 == 0 ? 8 : 0);
      RangeHash copied;
      RangeHash read;
      std::size_t at = 0;
      for (const std::size_t slice : lengths) {
        copy_slice(copied, target.data() + at, source.data() + at, slice, kernel);
        hash_slice(read, source.data() + at, slice, kernel);
        at += slice;
      }
      const std::uint64_t expected = XXH3_64bits(source.data(), length);
      REQUIRE(copy_last(copied, target.data() + at, source.data() + at, last, kernel) == expected);
      REQUIRE(hash_last(read, source.data() + at, last, kernel) == expected);
      order_copies();
      REQUIRE(target.holds(source.data()));
    }
  }
}

TEST_CASE("slices of one range may be taken by different kernels") {
  const auto source = random_bytes(70'000, 5);
  const auto kernels = supported_kernels();
  RangeHash state;
  Target target(70'000);
  std::size_t at = 0;
  for (int i = 0; at + 4096 < 70'000; ++i, at += 4096)
    copy_slice(state, target.data() + at, source.data() + at, 4096, kernels[static_cast<std::size_t>(i) % kernels.size()]);
  CHECK(copy_last(state, target.data() + at, source.data() + at, 70'000 - at) == XXH3_64bits(source.data(), 70'000));
  order_copies();
  CHECK(target.holds(source.data()));
}

TEST_CASE("automatic is the best kernel of this machine") {
  CHECK(best_kernel() != Kernel::automatic);
  CHECK(kernel_supported(best_kernel()));
  CHECK(std::string(kernel_name(Kernel::automatic)) == kernel_name(best_kernel()));
}
