#pragma once

#include <vector>

#include "nn/init.h"

namespace longspan::test {

inline const Init layer_init{.gen = Generator{3}, .dtype = DType::f64};

/// Returns hash-based values in [-1, 1), in f64.
inline Tensor hashed_numbers(const Shape& shape, uint64_t seed = 1) {
  std::vector<double> v(static_cast<size_t>(numel(shape)));
  for (size_t i = 0; i < v.size(); ++i) {
    v[i] = 2.0 * to_uniform(philox_word(seed, static_cast<int64_t>(i))) - 1.0;
  }
  return Tensor::from(v, shape);
}

}  // namespace longspan::test
