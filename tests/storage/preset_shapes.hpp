// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <stdexcept>
#include <vector>

#include "storage/slot_shape.hpp"

namespace kvonce::storage {

// `layers` ranges of each component's bytes, component by component.
inline SlotShape shape_of(std::vector<std::uint64_t> components, std::size_t layers) {
  std::vector<std::uint64_t> ranges;
  for (const std::uint64_t bytes : components) ranges.insert(ranges.end(), layers, bytes);
  ShapeResult result = SlotShape::create(ranges);
  if (!result.shape) throw std::invalid_argument(result.error);
  return *std::move(result.shape);
}

inline SlotShape kimi_k3_kv() { return shape_of({73'728}, 24); }
inline SlotShape kimi_k3_state() { return shape_of({786'432, 9'216, 9'216, 9'216}, 69); }
inline SlotShape kimi_k3_draft() { return shape_of({73'728}, 5); }
inline SlotShape deepseek_v3_kv() { return shape_of({73'728}, 61); }

// Objects of real models at tensor parallelism 8, 34,560 B to 56,171,520 B.
inline std::vector<SlotShape> preset_shapes() {
  return {
      deepseek_v3_kv(),
      shape_of({36'864}, 61),                     // deepseek-v3 in fp8
      shape_of({41'984}, 61),                     // deepseek-v32 kv
      shape_of({8'448}, 61),                      // deepseek-v32 indexer
      shape_of({37'440}, 21),                     // deepseek-v4-flash c4
      shape_of({8'448}, 21),                      // c4_indexer
      shape_of({1'728}, 20),                      // c128
      shape_of({149'760}, 43),                    // swa
      shape_of({65'536}, 21),                     // c4_state
      shape_of({16'384}, 21),                     // c4_indexer_state
      kimi_k3_kv(),
      kimi_k3_state(),
      kimi_k3_draft(),
      shape_of({73'728}, 7),                      // kimi-linear-48b kv
      shape_of({262'144, 3'072, 3'072, 3'072}, 20),  // its state at TP8
      shape_of({524'288, 6'144, 6'144, 6'144}, 20),  // and at TP4
      shape_of({32'768, 32'768}, 12),             // qwen3-next kv
      shape_of({262'144, 6'144}, 36),             // qwen3-next state
      shape_of({16'384, 16'384}, 32),             // llama-gqa-8: one KV head per rank
  };
}

}  // namespace kvonce::storage
