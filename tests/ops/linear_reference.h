#pragma once

#include "tests/harness/op_info.h"

namespace longspan::test {

/// Computes x W^T + b for x [.., in], W [out, in], b [out] or undefined.
inline Array linear_reference(const Array& x, const Array& weight, const Array& bias) {
  const int64_t in = weight.dim(1), out = weight.dim(0);
  Shape shape = x.shape;
  shape[shape.rank() - 1] = out;
  Array y(shape);
  for (int64_t i = 0; i < (out > 0 ? y.size() / out : 0); ++i) {
    for (int64_t j = 0; j < out; ++j) {
      double sum = bias ? bias[j] : 0;
      for (int64_t k = 0; k < in; ++k) sum += x[i * in + k] * weight[j * in + k];
      y[i * out + j] = sum;
    }
  }
  return y;
}

/// Returns y plus `onto`, if that is defined.
inline Array sum_reference(Array y, const Array& onto) {
  for (int64_t i = 0; onto && i < y.size(); ++i) y[i] += onto[i];
  return y;
}

}  // namespace longspan::test
