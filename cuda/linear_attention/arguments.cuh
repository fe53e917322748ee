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

/// Rows [B, H, rows, width] of any dtype that is computed with in A; elements of a row are
/// adjacent. The dtype is a number of the call, not a type, so that there is one set of kernels for
/// A.
template <class A>
struct LinearRows {
  void* data = nullptr;
  int64_t sample = 0, head = 0, row = 0;
  DType dtype = dtype_of<A>;

  template <class V>
  static LinearRows of(const V& x) {
    if (!x) return {};
    return {const_cast<void*>(static_cast<const void*>(x.data)), x.stride(0), x.stride(1),
            x.stride(2), x.dtype};
  }
  __device__ int64_t at(int64_t b, int64_t h, int64_t i, int c) const {
    return b * sample + h * head + i * row + c;
  }
  __device__ A load(int64_t b, int64_t h, int64_t i, int c) const {
    const int64_t e = at(b, h, i, c);
    if constexpr (sizeof(A) == 4) {
      if (dtype == DType::bf16) return static_cast<A>(static_cast<const bf16*>(data)[e]);
      if (dtype == DType::f16) return static_cast<A>(static_cast<const f16*>(data)[e]);
    }
    return static_cast<const A*>(data)[e];
  }
  __device__ void store(int64_t b, int64_t h, int64_t i, int c, A value) const {
    const int64_t e = at(b, h, i, c);
    if constexpr (sizeof(A) == 4) {
      if (dtype == DType::bf16) {
        static_cast<bf16*>(data)[e] = bf16(value);
        return;
      }
      if (dtype == DType::f16) {
        static_cast<f16*>(data)[e] = f16(value);
        return;
      }
    }
    static_cast<A*>(data)[e] = value;
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
template <class A>
struct LinearArguments {
  FeatureMap map = FeatureMap::positive;
  bool causal = false, exponential = false, oscillating = false;
  int halves = 1, norm_sign = 0;
  int64_t batch = 0, heads = 0, queries = 0, keys = 0;
  int width = 0, value_width = 0;
  int m = 0, features = 0;  // rows of the projection, features
  A scale = 1, unit = 1, norm_factor = 0, amplitude = 1, epsilon = 0, floor = 0;
  LinearRows<A> q, k, v, dout, out, dq, dk, dv;
  const A *projection = nullptr, *phase = nullptr;
  int64_t projection_head = 0, phase_head = 0;  // strides
  const int64_t* k_valid = nullptr;
  const uint8_t* k_hidden = nullptr;
  int64_t hidden_sample = 0;
  bool has_start = false;        // whether there are sums of earlier keys
  const A* start_top = nullptr;  // their exponents [B, H, F]
  A *normalizer = nullptr, *reference = nullptr, *means = nullptr;  // [B, H, L]
  Segments query_segments, key_segments;

  LONGSPAN_HD int columns() const { return value_width + 1; }  // of a state

  __device__ bool exists(int64_t b, int64_t j) const {
    if (k_valid != nullptr && j >= k_valid[b]) return false;
    return k_hidden == nullptr || k_hidden[b * hidden_sample + j] == 0;
  }
};

/// A value of a function and of its derivative.
template <class A>
struct ValueAndSlope {
  A value, slope;
};

/// f(u) and f'(u), for maps that are not exponential; of `trigonometric` the cosine.
template <class A>
__device__ ValueAndSlope<A> map_feature(FeatureMap map, A u) {
  using kernels::Unary;
  switch (map) {
    case FeatureMap::trigonometric:
    case FeatureMap::phase:
      return {kernels::unary_value(Unary::cos, A(0), A(0), u),
              -kernels::unary_value(Unary::sin, A(0), A(0), u)};
    case FeatureMap::relu:
      return {u < 0 ? A(0) : u, u > 0 ? A(1) : A(0)};  // NaN stays NaN
    case FeatureMap::elu_plus_one: {
      const A below = kernels::exponential(u > 0 ? A(0) : u);
      return {u > 0 ? u + 1 : below, below};
    }
    case FeatureMap::abs:
      return {u < 0 ? -u : u, u > 0 ? A(1) : u < 0 ? A(-1) : A(0)};
    case FeatureMap::square:
      return {u * u, u + u};
    case FeatureMap::gelu: {
      ValueAndSlope<A> both;
      kernels::unary_both(Unary::gelu_erf, u, both.value, both.slope);
      return both;
    }
    case FeatureMap::sigmoid: {
      const A y = kernels::logistic(u);
      return {y, y * (1 - y)};
    }
    case FeatureMap::tanh: {
      const A y = kernels::unary_value(Unary::tanh, A(0), A(0), u);
      return {y, 1 - y * y};
    }
    default:
      return {u, A(1)};
  }
}

}  // namespace longspan::cuda
