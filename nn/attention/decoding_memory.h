#pragma once

#include <cstdint>

#include "nn/layer_memory.h"

namespace longspan {

/// Keys and values of decoding.
struct KeyValues {
  /// [B, H, slots, d]: slots 0 to count - 1 hold positions first to first + count - 1. The
  /// remaining slots are free; they may be continued only once, because continuations write into
  /// the same slots.
  Tensor keys, values;
  int64_t first = 0, count = 0;

  void visit(const StateVisitor& v) {
    v({"keys", keys});
    v({"values", values});
  }
};

/// Keys and values of an encoder's output, [B, H, S, d], computed once.
struct SourceKeyValues {
  Tensor keys, values;

  void visit(const StateVisitor& v) {
    v({"context_keys", keys, StateKind::source});
    v({"context_values", values, StateKind::source});
  }
};

/// Returns a view of slots begin to begin + length - 1 of [B, H, slots, d].
Tensor memory_slots(const Tensor& cache, int64_t begin, int64_t length);

/// Returns `old` with the keys and values [B, H, n, d] of rows position to position + n - 1
/// appended, in free slots if they suffice; rows before `keep_from` may be dropped. Throws
/// ValueError if `old` does not end at `position`.
KeyValues remember(const KeyValues& old, const Tensor& k, const Tensor& v, int64_t position,
                   int64_t keep_from);

}  // namespace longspan
