#pragma once

#include <cstdint>

#include "core/shape.h"

namespace longspan::cpu {

/// Two strided layouts of one shape with neighbouring axes merged where both allow it, so that
/// loops are as long as can be.
struct Merged {
  Shape shape;
  Strides a, b;
};

inline Merged merge_axes(const Shape& shape, const Strides& a, const Strides& b) {
  Merged m;
  for (int i = 0; i < shape.rank(); ++i) {
    if (shape[i] == 1) continue;
    const int last = m.shape.rank() - 1;
    if (last >= 0 && m.a[last] == shape[i] * a[i] && m.b[last] == shape[i] * b[i]) {
      m.shape[last] *= shape[i];
      m.a[last] = a[i];
      m.b[last] = b[i];
    } else {
      m.shape.push_back(shape[i]);
      m.a.push_back(a[i]);
      m.b.push_back(b[i]);
    }
  }
  if (m.shape.rank() == 0) {
    m.shape.push_back(1);
    m.a.push_back(1);
    m.b.push_back(1);
  }
  return m;
}

/// Calls row(offset_a, offset_b) for row `r` of the merged layout, whose rows are its last axis.
inline void row_offsets(const Merged& m, int64_t r, int64_t& a, int64_t& b) {
  a = b = 0;
  for (int i = m.shape.rank() - 2; i >= 0; --i) {
    const int64_t index = r % m.shape[i];
    r /= m.shape[i];
    a += index * m.a[i];
    b += index * m.b[i];
  }
}

}  // namespace longspan::cpu
