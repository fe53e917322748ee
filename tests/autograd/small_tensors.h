#pragma once

#include <vector>

#include "autograd/node.h"
#include "ops/random.h"

namespace longspan::test {

/// Returns a vector that requires its gradient.
inline Tensor leaf(const std::vector<double>& values) {
  Tensor x = Tensor::from(values, {std::ssize(values)});
  return set_requires_grad(x);
}

/// Returns the values of a tensor, none of an undefined one.
inline std::vector<double> values_of(const Tensor& x) {
  return x ? x.to_vector<double>() : std::vector<double>{};
}

/// Returns standard normal values in f64.
inline Tensor draw(const Shape& shape, uint64_t key = 1) {
  return normal(shape, Generator{key}, 0, 1, DType::f64);
}

}  // namespace longspan::test
