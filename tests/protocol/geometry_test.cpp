// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "protocol/geometry.hpp"

namespace kvonce::protocol {
namespace {

std::byte* at(std::uint64_t address) { return reinterpret_cast<std::byte*>(address); }

// The error, or "" when the geometry is right.
std::string error_of(std::vector<ComponentGeometry> components, std::uint64_t rows = 8) {
  PoolGeometry pool;
  std::string error;
  const bool ok = PoolGeometry::create(std::move(components), rows, &pool, &error);
  CHECK(ok == error.empty());
  return error;
}
bool names(const std::string& error, const std::string& part) { return error.find(part) != std::string::npos; }

constexpr std::uint64_t kMiB = 1 << 20;

}  // namespace

TEST_CASE("ranges follow component by component, layer by layer") {
  PoolGeometry pool;
  REQUIRE(PoolGeometry::create({{"k", {{at(0x1000), 64, 48}, {at(0x2000), 64, 48}}}, {"v", {{at(0x3000), 32, 32}}}}, 8,
                               &pool, nullptr));
  CHECK(pool.rows() == 8);
  CHECK(pool.ranges() == 3);
  CHECK(pool.layers() == 2);
  CHECK(pool.object_bytes() == 128);
  CHECK(pool.all_range_bytes() == std::vector<std::uint64_t>{48, 48, 32});
  CHECK(pool.range_row(1, 3) == at(0x2000 + 3 * 64));
  CHECK(pool.layer_of(1) == 1);
  CHECK(pool.layer_of(2) == 0);
}

TEST_CASE("the layout digest is of names, layers and bytes, not of addresses and strides") {
  const auto digest = [](std::vector<ComponentGeometry> components, std::uint64_t rows) {
    PoolGeometry pool;
    REQUIRE(PoolGeometry::create(std::move(components), rows, &pool, nullptr));
    return pool.layout_digest();
  };
  const auto first = digest({{"k", {{at(0x1000), 64, 48}}}}, 8);
  CHECK(first == digest({{"k", {{at(0x9000), 128, 48}}}}, 3));
  CHECK(first != digest({{"v", {{at(0x1000), 64, 48}}}}, 8));
  CHECK(first != digest({{"k", {{at(0x1000), 64, 40}}}}, 8));
  CHECK(first != digest({{"k", {{at(0x1000), 64, 24}, {at(0x2000), 64, 24}}}}, 8));
  CHECK(digest({{"a", {{at(0x1000), 64, 8}}}, {"b", {{at(0x2000), 64, 8}}}}, 8) !=
        digest({{"a", {{at(0x1000), 64, 8}, {at(0x2000), 64, 8}}}}, 8));
}

TEST_CASE("a pool with no component is a pool without bytes") {
  PoolGeometry pool;
  REQUIRE(PoolGeometry::create({}, 0, &pool, nullptr));
  CHECK(pool.object_bytes() == 0);
  CHECK(pool.ranges() == 0);
  CHECK(pool.layers() == 0);
}

TEST_CASE("every bad description is refused with the thing, the value and what is allowed") {
  CHECK(names(error_of({{"k", {}}}), "component 'k' has 0 layers; at least 1"));
  CHECK(names(error_of({{"k", {{at(0x1000), 64, 64}, {nullptr, 64, 64}}}}), "'k' layer 1 has a null base"));
  CHECK(names(error_of({{"k", {{at(0x1000), 64, 0}}}}), "rows of 0 bytes"));
  CHECK(names(error_of({{"k", {{at(0x1000), 63, 64}}}}), "stride of 63 bytes; at least its row's 64"));
  CHECK(names(error_of({{"k", {{at(0x1000), 64, 64}}}}, 0), "0 rows; at least 1"));
  CHECK(names(error_of({{"k", {{at(0x1000), 257 * kMiB, 257 * kMiB}}}}), "269484032 bytes"));
  CHECK(names(error_of({{"k", {{at(0x1000), 300 * kMiB, 256 * kMiB}, {at(0x1000 + 256 * kMiB), 300 * kMiB, 1}}}}),
              "larger than 268435456 bytes"));
  CHECK(error_of({{"k", {{at(0x1000), 256 * kMiB, 256 * kMiB}}}}).empty());
  CHECK(names(error_of({{"k", {{at(0x1000), ~std::uint64_t{0} / 2, 64}}}}), "beyond the last address"));
  CHECK(names(error_of({{"k", std::vector<LayerGeometry>(65537, {at(0x1000), 64, 1})}}), "65536 are allowed"));
}

TEST_CASE("buffers that overlap are refused") {
  CHECK(names(error_of({{"k", {{at(0x1000), 64, 64}, {at(0x1000), 64, 64}}}}), "overlaps"));
  CHECK(names(error_of({{"k", {{at(0x1000), 64, 64}}}, {"v", {{at(0x1000 + 8 * 64 - 1), 64, 64}}}}),
              "row 0 of component 'v' layer 0 overlaps row 7 of component 'k' layer 0"));
  CHECK(error_of({{"k", {{at(0x1000), 64, 64}, {at(0x1000 + 8 * 64), 64, 64}}}}).empty());
  // One buffer lies within the other's span, under another stride.
  CHECK(names(error_of({{"k", {{at(0x1000), 4096, 64}, {at(0x1000 + 2048), 1024, 64}}}}), "overlaps"));
  CHECK(error_of({{"k", {{at(0x1000), 4096, 64}, {at(0x1000 + 2048), 1024, 64}}}}, 2).empty());
}

TEST_CASE("layers whose rows lie side by side in one stride are right") {
  std::vector<LayerGeometry> layers;
  for (std::uint64_t i = 0; i < 4; ++i) layers.push_back({at(0x1000 + i * 64), 256, 64});
  CHECK(error_of({{"k", layers}}).empty());
  layers[3].base = at(0x1000 + 3 * 64 + 1);  // touches the next row of layer 0
  CHECK(names(error_of({{"k", layers}}), "overlaps"));
  // The same place in the stride, but never at the same time: a chain of spans.
  CHECK(error_of({{"k", {{at(0x1000), 256, 64}, {at(0x1000 + 8 * 256), 256, 64}, {at(0x1000 + 4 * 256 + 64), 256, 64}}}})
            .empty());
}

}  // namespace kvonce::protocol
