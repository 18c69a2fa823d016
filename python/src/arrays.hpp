// SPDX-License-Identifier: Apache-2.0
// What callers give as pages, as row indices and as memory, read without a loop in Python.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <kvonce/runtime.hpp>

#include "python/src/process.hpp"

namespace kvonce::python {

/// Bytes-like of n * 32, a list of 32-byte bytes or 64-digit hex texts, or an (n, 32) uint8 array.
std::vector<PageHash> read_pages(nb::handle pages);
/// 32 bytes or 64 hex digits; `name` in errors.
PageHash read_page(nb::handle page, const std::string& name = "a page hash");

/// One row for each of `pages` pages from an integer array with `unit` entries a page; -1: the page has no row. `what` names the
/// argument in errors.
std::vector<std::int64_t> read_rows(nb::handle indices, std::size_t pages, std::uint32_t unit, const std::string& what);

/// Given memory as it is: kvonce.Layer.
struct Layer {
  std::uint64_t ptr = 0;
  std::uint64_t row_stride = 0;
  std::uint64_t row_bytes = 0;
  std::uint64_t rows = 0;  // 0: not told
};

/// Keeps somebody's memory where it is until it is destroyed, which needs the interpreter's lock.
class Keeper {
 public:
  Keeper() = default;
  virtual ~Keeper() = default;
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;
};

struct Memory {
  LayerBuffer buffer;
  std::uint64_t rows = 0;  // 0: not told
  std::unique_ptr<Keeper> keeper;
};

/// A layer: kvonce.Layer, or an array whose rows lie along its first axis, each of them contiguous and writable. `hip`: device
/// memory.
Memory read_layer(nb::handle layer, bool hip, const std::string& what);

}  // namespace kvonce::python
