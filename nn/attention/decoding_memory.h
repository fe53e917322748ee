#pragma once

#include <cstdint>

#include "nn/segment.h"

namespace longspan {

/// Returns a view of slots begin to begin + length - 1 of [B, H, slots, d].
Tensor memory_slots(const Tensor& cache, int64_t begin, int64_t length);

/// Returns the memory with the keys and values of rows position to position + n - 1 appended, in
/// free slots if they suffice; rows before `keep_from` may be dropped. Throws ValueError if the
/// memory does not end at `position`.
///   k, v   [B, H, n, d]
///   spans  [B, n], for LayerMemory::spans; undefined: there are none
LayerMemory remember(const LayerMemory& old, const Tensor& k, const Tensor& v, int64_t position,
                     int64_t keep_from, const Tensor& spans = {});

}  // namespace longspan
