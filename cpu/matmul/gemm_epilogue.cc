#include "cpu/matmul/gemm_epilogue.h"

#include <algorithm>
#include <type_traits>

#include "cpu/spans.h"

namespace longspan::cpu {
namespace {

using kernels::Binary;
using kernels::Epilogue;
using kernels::Unary;

constexpr int64_t staged = 512;  // elements that are converted at a time

/// Element (row, column) of a matrix.
template <class T>
const T* element(const ConstView& v, int64_t row, int64_t column) {
  return v.as<T>() + row * v.stride(0) + column;
}

/// Returns n elements as A, in place if they are that already.
template <class A, class T>
const A* widened(const T* from, int64_t n, A* buffer) {
  if constexpr (std::is_same_v<A, T>) {
    return from;
  } else {
    widen_span(from, buffer, n);
    return buffer;
  }
}

/// Rounds sums to T.
template <class T, class A>
void round_sums(A* sums, int64_t n) {
  if constexpr (!std::is_same_v<A, T>) {
    T narrow[staged];
    narrow_span(sums, narrow, n);
    widen_span(narrow, sums, n);
  }
}

template <class T, class A>
void finish_staged(const Epilogue& e, int64_t row, int64_t column, int64_t n, A* sums) {
  alignas(64) A buffer[staged];
  if (e.function) round_sums<T>(sums, n);
  if (e.slope) {
    T* slope = static_cast<T*>(e.slope.data) + row * e.slope.stride(0) + column;
    if constexpr (std::is_same_v<A, T>) {
      unary_slope_span(*e.function, sums, sums, slope, n);
    } else {
      unary_slope_span(*e.function, sums, sums, buffer, n);
      narrow_span(buffer, slope, n);
    }
  } else if (e.function) {
    unary_span(*e.function, 0, 0, sums, sums, n);
  }
  if (e.factor) {
    round_sums<T>(sums, n);
    const A* factor = widened(element<T>(e.factor, row, column), n, buffer);
    binary_span(Binary::mul, sums, factor, sums, n);
  }
  if (e.positive) {
    round_sums<T>(sums, n);
    const A* y = widened(element<T>(e.positive, row, column), n, buffer);
    unary_gradient_span(Unary::relu, 0, 0, y, sums, sums, n);
  }
  if (e.addend) {
    round_sums<T>(sums, n);
    const A* addend = widened(element<T>(e.addend, row, column), n, buffer);
    binary_span(Binary::add, addend, sums, sums, n);
  }
}

}  // namespace

template <class A>
void finish_sums(const Epilogue& e, DType dtype, int64_t row, int64_t column, int64_t n, A* sums) {
  for (int64_t i = 0; i < n; i += staged) {
    const int64_t count = std::min(staged, n - i);
    visit_floating(dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      if constexpr (std::is_same_v<Accumulator<T>, A>) {
        finish_staged<T>(e, row, column + i, count, sums + i);
      }
    });
  }
}

template void finish_sums(const Epilogue& e, DType dtype, int64_t row, int64_t column, int64_t n,
                          float* sums);
template void finish_sums(const Epilogue& e, DType dtype, int64_t row, int64_t column, int64_t n,
                          double* sums);

}  // namespace longspan::cpu
