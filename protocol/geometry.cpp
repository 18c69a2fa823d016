// SPDX-License-Identifier: Apache-2.0
#include "protocol/geometry.hpp"

#include <xxhash.h>

#include <algorithm>
#include <queue>

#include "storage/slot_shape.hpp"

namespace kvonce::protocol {
namespace {

using storage::kMaxObjectBytes;
using storage::kMaxRanges;

// Every row of one range: row r is [first + r * stride, + bytes).
struct Span {
  std::uint64_t first = 0;
  std::uint64_t stride = 0;
  std::uint64_t bytes = 0;
  std::uint64_t end = 0;  // behind the last row
  std::string name;
};

// Layer-major rows: all spans of a cluster have one stride and lie side by side in it.
bool interleaved(std::vector<const Span*> spans) {
  const std::uint64_t stride = spans.front()->stride;
  for (const Span* span : spans)
    if (span->stride != stride) return false;
  std::sort(spans.begin(), spans.end(),
            [stride](const Span* a, const Span* b) { return a->first % stride < b->first % stride; });
  for (std::size_t i = 0; i < spans.size(); ++i) {
    const std::uint64_t begin = spans[i]->first % stride;
    const std::uint64_t next =
        i + 1 < spans.size() ? spans[i + 1]->first % stride : spans.front()->first % stride + stride;
    if (next - begin < spans[i]->bytes) return false;
  }
  return true;
}

// Walks the rows of all spans in address order; only for layouts that are neither apart nor plainly interleaved.
bool rows_overlap(const std::vector<const Span*>& spans, std::uint64_t rows, std::string* error) {
  struct Row {
    std::uint64_t begin;
    std::uint64_t row;
    const Span* span;
    bool operator>(const Row& other) const { return begin > other.begin; }
  };
  std::priority_queue<Row, std::vector<Row>, std::greater<>> next;
  for (const Span* span : spans) next.push({span->first, 0, span});
  std::uint64_t end = 0;
  Row last{0, 0, nullptr};
  while (!next.empty()) {
    const Row row = next.top();
    next.pop();
    if (last.span != nullptr && row.begin < end) {
      *error = "row " + std::to_string(row.row) + " of " + row.span->name + " overlaps row " + std::to_string(last.row) + " of " +
               last.span->name + "; rows must not share bytes";
      return true;
    }
    end = row.begin + row.span->bytes;
    last = row;
    if (row.row + 1 < rows) next.push({row.begin + row.span->stride, row.row + 1, row.span});
  }
  return false;
}

bool buffers_overlap(std::vector<Span>& spans, std::uint64_t rows, std::string* error) {
  std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.first < b.first; });
  for (std::size_t i = 0; i < spans.size();) {
    // A cluster: spans that hang together by their first and last bytes.
    std::vector<const Span*> cluster{&spans[i]};
    std::uint64_t end = spans[i].end;
    for (++i; i < spans.size() && spans[i].first < end; ++i) {
      cluster.push_back(&spans[i]);
      end = std::max(end, spans[i].end);
    }
    if (cluster.size() > 1 && !interleaved(cluster) && rows_overlap(cluster, rows, error)) return true;
  }
  return false;
}

void append(std::string& text, std::uint64_t value) {
  for (unsigned shift = 0; shift < 64; shift += 8) text.push_back(static_cast<char>((value >> shift) & 0xffU));
}

}  // namespace

bool PoolGeometry::create(std::vector<ComponentGeometry> components, std::uint64_t rows, PoolGeometry* out,
                          std::string* error) {
  std::string ignored;
  if (error == nullptr) error = &ignored;
  const auto fail = [error](std::string text) {
    *error = std::move(text);
    return false;
  };

  PoolGeometry pool;
  pool.rows_ = rows;
  if (rows == 0 && !components.empty()) return fail("a pool with 0 rows; at least 1 is needed");

  std::vector<Span> spans;
  std::string layout;  // what the digest covers; numbers as 8 bytes, lowest first, on every machine
  for (const ComponentGeometry& component : components) {
    const std::string name = "component '" + component.name + "'";
    if (component.layers.empty()) return fail(name + " has 0 layers; at least 1 is needed");
    append(layout, component.name.size());
    layout += component.name;
    append(layout, component.layers.size());
    for (std::size_t i = 0; i < component.layers.size(); ++i) {
      const LayerGeometry& layer = component.layers[i];
      const std::string where = name + " layer " + std::to_string(i);
      if (layer.base == nullptr) return fail(where + " has a null base; an address is needed");
      if (layer.row_bytes == 0) return fail(where + " has rows of 0 bytes; at least 1 is needed");
      if (layer.row_bytes > kMaxObjectBytes - pool.object_bytes_) {
        return fail(where + " with rows of " + std::to_string(layer.row_bytes) + " bytes makes the object larger than " +
                    std::to_string(kMaxObjectBytes) + " bytes, the most that is allowed");
      }
      if (layer.row_stride < layer.row_bytes) {
        return fail(where + " has a row stride of " + std::to_string(layer.row_stride) + " bytes; at least its row's " +
                    std::to_string(layer.row_bytes) + " bytes are needed");
      }
      if (pool.ranges_.size() == kMaxRanges) {
        return fail(where + " is one range too many; " + std::to_string(kMaxRanges) + " are allowed");
      }
      Span span{reinterpret_cast<std::uint64_t>(layer.base), layer.row_stride, layer.row_bytes, 0, where};
      std::uint64_t last_row = 0;
      if (__builtin_mul_overflow(rows - 1, layer.row_stride, &last_row) ||
          __builtin_add_overflow(span.first, last_row, &last_row) ||
          __builtin_add_overflow(last_row, layer.row_bytes, &span.end)) {
        return fail(where + " with " + std::to_string(rows) + " rows of stride " + std::to_string(layer.row_stride) +
                    " goes beyond the last address; fewer rows are allowed");
      }
      spans.push_back(std::move(span));
      pool.object_bytes_ += layer.row_bytes;
      pool.ranges_.push_back(layer);
      pool.layer_of_.push_back(static_cast<std::uint32_t>(i));
      append(layout, layer.row_bytes);
    }
    pool.layers_ = std::max(pool.layers_, static_cast<std::uint32_t>(component.layers.size()));
  }
  if (buffers_overlap(spans, rows, error)) return false;
  pool.layout_digest_ = XXH3_64bits(layout.data(), layout.size());
  *out = std::move(pool);
  return true;
}

std::vector<std::uint64_t> PoolGeometry::all_range_bytes() const {
  std::vector<std::uint64_t> bytes;
  bytes.reserve(ranges_.size());
  for (const LayerGeometry& range : ranges_) bytes.push_back(range.row_bytes);
  return bytes;
}

}  // namespace kvonce::protocol
