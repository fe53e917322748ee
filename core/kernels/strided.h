#pragma once

#include <cstdint>

#include "core/host_device.h"
#include "core/shape.h"

namespace longspan::kernels {

/// Divides 32-bit integers by a divisor known at run time, with a multiplication (Granlund and
/// Montgomery 1994). For integers below 2^31.
struct Divider {
  uint32_t divisor = 1, multiplier = 0, shift = 0;

  Divider() = default;
  explicit Divider(uint32_t d) : divisor(d) {
    while (shift < 32 && (uint64_t{1} << shift) < d) ++shift;
    multiplier =
        static_cast<uint32_t>(((uint64_t{1} << 32) * ((uint64_t{1} << shift) - d)) / d + 1);
  }
  LONGSPAN_HD uint32_t quotient(uint32_t n) const {
#if defined(__CUDA_ARCH__)
    const uint32_t high = __umulhi(n, multiplier);
#else
    const auto high = static_cast<uint32_t>((uint64_t{n} * multiplier) >> 32);
#endif
    return (high + n) >> shift;
  }
};

/// N strided layouts of the same shape. Neighbouring axes are merged if all layouts allow it, so
/// that loops are as long as possible. Never of rank 0; axes of size 1 are removed.
template <int N>
struct Layouts {
  int rank = 0;
  int64_t numel = 1;
  int64_t size[max_rank] = {};
  int64_t stride[N][max_rank] = {};

  Layouts() = default;
  /// `strides` points to N lists, one for each layout.
  Layouts(const Shape& shape, const Strides* const (&strides)[N]) {
    for (int i = 0; i < shape.rank(); ++i) {
      numel *= shape[i];
      if (shape[i] == 1) continue;
      bool merges = rank > 0;
      for (int k = 0; merges && k < N; ++k) {
        merges = stride[k][rank - 1] == shape[i] * (*strides[k])[i];
      }
      if (merges) {
        size[rank - 1] *= shape[i];
        for (int k = 0; k < N; ++k) stride[k][rank - 1] = (*strides[k])[i];
      } else {
        size[rank] = shape[i];
        for (int k = 0; k < N; ++k) stride[k][rank] = (*strides[k])[i];
        ++rank;
      }
    }
    if (rank == 0) {
      rank = 1;
      size[0] = 1;
      for (int k = 0; k < N; ++k) stride[k][0] = 1;
    }
  }

  /// Rows run along the last axis: length() is their length, rows() their number, step(k) the
  /// stride.
  int64_t length() const { return size[rank - 1]; }
  int64_t rows() const { return numel > 0 ? numel / length() : 0; }
  int64_t step(int k) const { return stride[k][rank - 1]; }
  /// Computes the offset of row r in each layout.
  void row(int64_t r, int64_t (&offset)[N]) const {
    for (int k = 0; k < N; ++k) offset[k] = 0;
    for (int i = rank - 2; i >= 0; --i) {
      const int64_t index = r % size[i];
      r /= size[i];
      for (int k = 0; k < N; ++k) offset[k] += index * stride[k][i];
    }
  }

  /// Whether all layouts are one contiguous range.
  bool contiguous() const {
    if (rank != 1) return false;
    for (int k = 0; k < N; ++k) {
      if (stride[k][0] != 1 && size[0] != 1) return false;
    }
    return true;
  }
  /// Whether 32 bits hold every index and every offset.
  bool small() const {
    if (numel >= int64_t{1} << 31) return false;
    for (int k = 0; k < N; ++k) {
      int64_t reach = 0;
      for (int i = 0; i < rank; ++i) {
        const int64_t step = stride[k][i] < 0 ? -stride[k][i] : stride[k][i];
        reach += step * (size[i] - 1);
      }
      if (reach >= int64_t{1} << 31) return false;
    }
    return true;
  }
};

/// How a sum over axes traverses x: the axes that stay and those that are summed (size 1 in y but
/// not in x), each group merged. y is row-major over the axes that stay.
struct SummedAxes {
  Layouts<1> kept, summed;

  SummedAxes(const Shape& x, const Strides& strides, const Shape& y)
      : kept(part(x, strides, y, true)), summed(part(x, strides, y, false)) {}

 private:
  static Layouts<1> part(const Shape& x, const Strides& strides, const Shape& y, bool stays) {
    Shape shape;
    Strides steps;
    for (int i = 0; i < x.rank(); ++i) {
      if (x[i] == 1 || (y[i] == x[i]) != stays) continue;
      shape.push_back(x[i]);
      steps.push_back(strides[i]);
    }
    return {shape, {&steps}};
  }
};

/// Layouts in the form for kernels: the offset of element i in each layout. Index is int32_t for
/// small() layouts, else int64_t. The last axis comes first, so that every subscript is a constant.
template <int N, class Index>
struct Offsets {
  int rank = 1;
  Index size[max_rank] = {};
  Index stride[N][max_rank] = {};
  Divider divider[max_rank];

  explicit Offsets(const Layouts<N>& layouts) : rank(layouts.rank) {
    for (int j = 0; j < rank; ++j) {
      const int i = rank - 1 - j;
      size[j] = static_cast<Index>(layouts.size[i]);
      for (int k = 0; k < N; ++k) stride[k][j] = static_cast<Index>(layouts.stride[k][i]);
      if (sizeof(Index) == 4 && size[j] > 0) divider[j] = Divider(static_cast<uint32_t>(size[j]));
    }
  }

  LONGSPAN_HD void at(Index element, Index (&offset)[N]) const {
    for (int k = 0; k < N; ++k) offset[k] = 0;
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
    for (int j = 0; j < max_rank; ++j) {
      if (j >= rank) break;
      Index rest = 0;
      if (j + 1 < rank) {
        if constexpr (sizeof(Index) == 4) {
          rest = static_cast<Index>(divider[j].quotient(static_cast<uint32_t>(element)));
        } else {
          rest = element / size[j];
        }
      }
      const Index index = element - rest * size[j];
      element = rest;
      for (int k = 0; k < N; ++k) offset[k] += index * stride[k][j];
    }
  }
};

}  // namespace longspan::kernels
