#pragma once

#include <cstdint>
#include <vector>

#include "core/tensor.h"

namespace longspan {

/// What one layer keeps from earlier segments, always without history. It is passed in as an
/// argument and returned as a result. Each model decides which members it uses.
struct LayerMemory {
  Tensor states;  ///< [B, M, D]: inputs of the layer, the newest last
  /// Keys and values of decoding, [B, H, slots, d]: slots 0 to count - 1 hold positions first to
  /// first + count - 1. The remaining slots are free; a state may be continued only once, because
  /// continuations write into the same slots.
  Tensor keys, values;
  int64_t first = 0, count = 0;
  /// Keys and values of the encoder output, [B, H, S, d], computed once.
  Tensor context_keys, context_values;
};

/// Returns the newest `slots` rows of [states; x], without history; `states` may be undefined.
///   x  [B, L, D]   returns [B, min(slots, M + L), D], in Category::memory
Tensor latest_states(const Tensor& states, const Tensor& x, int64_t slots);

/// The memories of a model's layers, in their order.
struct SegmentMemory {
  std::vector<LayerMemory> layers;
};

/// Returns the memory whose row b is row rows[b] (i64 [B']) of this one; `context` selects the rows
/// of the context keys and values too.
SegmentMemory take_rows(const SegmentMemory& memory, const Tensor& rows, bool context);

}  // namespace longspan
