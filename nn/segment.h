#pragma once

#include <cstdint>
#include <vector>

#include "core/tensor.h"

namespace longspan {

/// What one layer keeps from earlier segments, always without history. It goes in as an argument
/// and comes back as a result. Which members are used is the model's own affair.
struct LayerMemory {
  Tensor states;  ///< [B, M, D]: inputs of the layer, the newest last
  /// Keys and values of decoding, [B, H, slots, d]: slots 0 to count - 1 hold the positions
  /// first to first + count - 1. Slots beyond are free; a state may be continued only once, for
  /// continuations share its slots.
  Tensor keys, values;
  int64_t first = 0, count = 0;
  /// Keys and values of the context, [B, H, S, d], computed once.
  Tensor context_keys, context_values;
};

/// The newest `slots` rows of [states; x], without history; `states` may be undefined.
///   x  [B, L, D]   returns [B, min(slots, M + L), D], in Category::memory
Tensor latest_states(const Tensor& states, const Tensor& x, int64_t slots);

/// What the layers of a model keep, in their order.
struct SegmentMemory {
  std::vector<LayerMemory> layers;
};

/// Memory whose row b is row rows[b] (i64 [B']) of this one; `context` too, unless it stays put.
SegmentMemory take_rows(const SegmentMemory& memory, const Tensor& rows, bool context);

}  // namespace longspan
