#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "core/tensor.h"
#include "ops/copy.h"

namespace longspan::test {

/// Memory layout of a matrix: row-major, column-major, or strided along both axes.
enum class Lies { rows, columns, apart };

/// Returns `values` [rows, columns] in the given layout, at an odd offset. The memory around the
/// elements holds NaN, which must not be read.
template <class T>
Tensor laid(const std::vector<T>& values, int64_t rows, int64_t columns, Lies how, DType dtype) {
  int64_t row = columns + 3, column = 1;
  if (how == Lies::columns) row = 1, column = rows + 4;
  if (how == Lies::apart) row = 2 * columns + 1, column = 2;
  std::vector<T> all(static_cast<size_t>(rows * row + columns * column + 8),
                     std::numeric_limits<T>::quiet_NaN());
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      all[static_cast<size_t>(1 + i * row + j * column)] =
          values[static_cast<size_t>(i * columns + j)];
    }
  }
  const Tensor buffer = cast(Tensor::from(all, {static_cast<int64_t>(all.size())}), dtype);
  return buffer.alias({rows, columns}, {row, column}, 1);
}

/// Returns the values of a tensor of any dtype.
inline std::vector<float> floats_of(const Tensor& x) {
  return cast(x, DType::f32).to_vector<float>();
}

inline void expect_same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0);
}

}  // namespace longspan::test
