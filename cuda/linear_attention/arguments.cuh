#pragma once

#include <cmath>
#include <cstdint>

#include "core/kernels/linear_attention.h"
#include "core/kernels/maths.h"
#include "cuda/product.cuh"

/// What the kernels of linear attention are given: rows, sizes, segments and states.
namespace longspan::cuda {

using kernels::FeatureMap;

inline constexpr int linear_threads = product_threads;
inline constexpr int chunk_rows = product_tile;  // tokens whose features exist at a time
inline constexpr int64_t most_segments = 32;
inline constexpr int64_t least_segment = 256;  // tokens
/// The exponent of a key that no query sees: far below kNoKeys.
inline constexpr double hidden_exponent = 2 * kernels::kNoKeys;
/// A chunk is cut in half if a row's terms lie further than this below the largest exponents of the
/// chunk, where they would lose digits or vanish. A chunk of one row is exact.
template <class A>
inline constexpr A linear_slack = sizeof(A) == 4 ? A(40) : A(300);

/// 2^x and log2(x).
__device__ inline float power_of_two(float x) { return exp2f(x); }
__device__ inline double power_of_two(double x) { return exp2(x); }
__device__ inline float binary_logarithm(float x) { return log2f(x); }
__device__ inline double binary_logarithm(double x) { return log2(x); }

/// Addresses of rows [B, H, rows, width], whose elements are adjacent.
template <class T>
struct LinearRows {
  T* data = nullptr;
  int64_t sample = 0, head = 0, row = 0;

  template <class V>
  static LinearRows of(const V& x) {
    if (!x) return {};
    return {static_cast<T*>(x.data), x.stride(0), x.stride(1), x.stride(2)};
  }
  __device__ T* at(int64_t b, int64_t h, int64_t i) const {
    return data + b * sample + h * head + i * row;
  }
};

/// The tokens of a head are divided into segments, which different blocks process. How many depends
/// on the length alone, so that the bits of a sample depend on neither the batch nor the device.
struct Segments {
  int64_t length = 0, tokens = 0, count = 0;

  static Segments of(int64_t length) {
    Segments s;
    s.length = length;
    s.tokens = (length + most_segments - 1) / most_segments;
    s.tokens = (s.tokens + chunk_rows - 1) / chunk_rows * chunk_rows;
    if (s.tokens < least_segment) s.tokens = least_segment;
    s.count = (length + s.tokens - 1) / s.tokens;
    return s;
  }
  __device__ int64_t end(int64_t segment) const {
    const int64_t last = (segment + 1) * tokens;
    return last < length ? last : length;
  }
};

/// Sums over tokens: sums [.., F, dv + 1] times 2^top [.., F], for each segment of each head.
template <class A>
struct LinearStates {
  A *sums = nullptr, *top = nullptr;
};

/// Arguments of all kernels; A is the type in which they compute.
template <class T>
struct LinearArguments {
  using A = Accumulator<T>;
  FeatureMap map = FeatureMap::positive;
  bool causal = false, exponential = false, oscillating = false;
  int halves = 1, norm_sign = 0;
  int64_t batch = 0, heads = 0, queries = 0, keys = 0;
  int width = 0, value_width = 0;
  int m = 0, features = 0;  // rows of the projection, features
  A scale = 1, unit = 1, norm_factor = 0, amplitude = 1, epsilon = 0, floor = 0;
  LinearRows<const T> q, k, v, dout;
  LinearRows<T> out, dq, dk, dv;
  const A *projection = nullptr, *phase = nullptr;
  int64_t projection_head = 0, phase_head = 0;  // strides
  const int64_t* k_valid = nullptr;
  const uint8_t* k_hidden = nullptr;
  int64_t hidden_sample = 0;
  A *normalizer = nullptr, *reference = nullptr, *means = nullptr;  // [B, H, L]
  Segments query_segments, key_segments;

  LONGSPAN_HD int columns() const { return value_width + 1; }  // of a state

  __device__ bool exists(int64_t b, int64_t j) const {
    if (k_valid != nullptr && j >= k_valid[b]) return false;
    return k_hidden == nullptr || k_hidden[b * hidden_sample + j] == 0;
  }
};

/// f(u) and its derivative, for maps that are neither exponential nor trigonometric.
template <class A>
__device__ void map_feature(FeatureMap map, A u, A& y, A& slope) {
  using kernels::Unary;
  y = u;
  slope = 1;
  switch (map) {
    case FeatureMap::phase:
      y = kernels::unary_value(Unary::cos, A(0), A(0), u);
      slope = -kernels::unary_value(Unary::sin, A(0), A(0), u);
      return;
    case FeatureMap::relu:
      y = u < 0 ? A(0) : u;  // NaN stays NaN
      slope = u > 0 ? A(1) : A(0);
      return;
    case FeatureMap::elu_plus_one:
      y = u > 0 ? u + 1 : kernels::exponential(u);
      slope = u > 0 ? A(1) : y;
      return;
    case FeatureMap::abs:
      y = u < 0 ? -u : u;
      slope = u > 0 ? A(1) : u < 0 ? A(-1) : A(0);
      return;
    case FeatureMap::square:
      y = u * u;
      slope = u + u;
      return;
    case FeatureMap::gelu:
      return kernels::unary_both(Unary::gelu_erf, u, y, slope);
    case FeatureMap::sigmoid:
      y = kernels::logistic(u);
      slope = y * (1 - y);
      return;
    case FeatureMap::tanh:
      y = kernels::unary_value(Unary::tanh, A(0), A(0), u);
      slope = 1 - y * y;
      return;
    default:
      return;
  }
}

}  // namespace longspan::cuda
