// SPDX-License-Identifier: Apache-2.0
//
// Where one rank's objects of one pool lie: components x layers of buffers with rows. Describe it once, then name rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <kvonce/types.hpp>

namespace kvonce::protocol {

/// One layer of one component: row r lies at base + r * row_stride and `row_bytes` of it are used.
struct LayerGeometry {
  std::byte* base = nullptr;
  std::uint64_t row_stride = 0;
  std::uint64_t row_bytes = 0;
};
struct ComponentGeometry {
  std::string name;
  std::vector<LayerGeometry> layers;
};

class PoolGeometry {
 public:
  /// Checks everything: no layer, null or overlapping buffers (rows that overlap, or two layers' spans that do, unless
  /// their strides interleave without touching), stride < bytes, sizes of zero or above 256 MiB, too many ranges, no
  /// rows. A pool with no component at all is a pool without bytes. `error` names the thing, the value, what is allowed.
  static bool create(std::vector<ComponentGeometry> components, std::uint64_t rows, PoolGeometry* out, std::string* error);

  std::uint64_t rows() const { return rows_; }
  std::uint64_t object_bytes() const { return object_bytes_; }
  std::uint32_t ranges() const { return static_cast<std::uint32_t>(ranges_.size()); }
  std::uint32_t layers() const { return layers_; }  // of the component that has most
  /// Range order: component by component, layer by layer.
  std::uint64_t range_bytes(std::uint32_t range) const { return ranges_[range].row_bytes; }
  std::byte* range_row(std::uint32_t range, std::uint64_t row) const {
    return ranges_[range].base + row * ranges_[range].row_stride;
  }
  std::uint32_t layer_of(std::uint32_t range) const { return layer_of_[range]; }
  std::vector<std::uint64_t> all_range_bytes() const;
  /// Of component names, layers and bytes (not of addresses or strides): equal on all ranks that may share objects.
  std::uint64_t layout_digest() const { return layout_digest_; }

 private:
  std::vector<LayerGeometry> ranges_;
  std::vector<std::uint32_t> layer_of_;
  std::uint64_t rows_ = 0;
  std::uint64_t object_bytes_ = 0;
  std::uint64_t layout_digest_ = 0;
  std::uint32_t layers_ = 0;
};

}  // namespace kvonce::protocol
