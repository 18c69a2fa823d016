// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include "storage/churn.hpp"
#include "tests/storage/preset_shapes.hpp"

using namespace kvonce::storage;

namespace {

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

}  // namespace

TEST_CASE("objects of all models held at 95 % of the arena never lose more than a twentieth of it") {
  auto shapes = preset_shapes();
  shapes.push_back(shape_of({4'096}, 1));
  shapes.push_back(shape_of({65'536}, 1));
  for (const std::uint64_t seed : {1, 2}) {
    CAPTURE(seed);
    const ChurnReport report = run_allocator_churn(16 * kGiB, 0.95, 100'000, seed, shapes);
    CHECK(report.operations == 100'000);
    CHECK(report.refused == 0);
    CHECK(report.lost_share_max <= 0.05);
    CHECK(report.overhead_share_mean < 0.001);
    CHECK(report.resident_share_mean > 0.94);
    CHECK(report.evictions_for_share > 50'000);
    CHECK(report.extents_mean < 1.1);
  }
}

TEST_CASE("an arena filled to the last byte refuses nothing and loses a twentieth of it on average at most") {
  const ChurnReport report = run_allocator_churn(16 * kGiB, 1.0, 100'000, 1, preset_shapes());
  CHECK(report.refused == 0);
  CHECK(report.evictions_for_fragmentation > 0);
  CHECK(report.lost_share_mean <= 0.05);
  CHECK(report.resident_share_mean > 0.95);
  CHECK(report.extents_max <= kMaxExtents);
}

TEST_CASE("objects of one small size lose nothing") {
  const ChurnReport report = run_allocator_churn(kGiB, 0.95, 200'000, 3, std::vector{shape_of({4'096}, 1)});
  CHECK(report.refused == 0);
  CHECK(report.evictions_for_fragmentation == 0);
  CHECK(report.evictions_for_space == 0);
  CHECK(report.resident_share_mean > 0.949);
}

TEST_CASE("an object larger than the arena is refused after everything has left, and counted") {
  const ChurnReport report = run_allocator_churn(kMaxObjectBytes, 1.0, 10, 1, std::vector{shape_of({kMaxObjectBytes}, 1)});
  CHECK(report.refused == 10);
}

TEST_CASE("the same arguments give the same report") {
  const auto first = run_allocator_churn(kGiB, 1.0, 20'000, 5, preset_shapes());
  const auto second = run_allocator_churn(kGiB, 1.0, 20'000, 5, preset_shapes());
  const auto other = run_allocator_churn(kGiB, 1.0, 20'000, 6, preset_shapes());
  CHECK(first.evictions_for_fragmentation == second.evictions_for_fragmentation);
  CHECK(first.lost_share_max == second.lost_share_max);
  CHECK(first.extents_mean == second.extents_mean);
  CHECK(first.extents_mean != other.extents_mean);
}
