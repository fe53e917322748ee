#pragma once

#include <cmath>
#include <limits>
#include <type_traits>

#include "cuda/attention/general.h"
#include "cuda/tile.cuh"

/// Building blocks of attention on tensor cores: row copies to and from shared memory, warp-level
/// products, sums of softmax weights, and the handling of nonfinite values.
namespace longspan::cuda {

/// One warp's accumulators of a 16 m x 8 n matrix, in the register layout of multiply().
template <int m, int n>
using Fragments = float[m][n][4];

/// Calls f(std::integral_constant<int, W>) with the smallest W of 32, 64 and 128 that holds `width`
/// columns.
template <class F>
void visit_width(int32_t width, F f) {
  if (width <= 32) {
    f(std::integral_constant<int, 32>{});
  } else if (width <= 64) {
    f(std::integral_constant<int, 64>{});
  } else {
    f(std::integral_constant<int, 128>{});
  }
}

/// Returns 0 for every valid index. The compiler cannot prove it, so values that depend on it are
/// recomputed in each step instead of occupying registers that the accumulators need.
LONGSPAN_HD inline int unknown_zero(int32_t place) { return place >> 31; }

/// The steps of a block, in shared memory. One thread advances the iterator two steps ahead of
/// their use, so that its state occupies no registers of the other threads.
template <class Walk, class Step>
struct StepQueue {
  Walk walk;
  Step steps[4];

  /// Produces the first two steps. A barrier must follow.
  LONGSPAN_HD void begin(const Walk& from) {
    if (thread_index() != 0) return;
    walk = from;
    walk.next(steps[0]);
    walk.next(steps[1]);
  }
  /// Produces step t + 2 while other threads use t and t + 1. It is visible after the next barrier.
  LONGSPAN_HD void walk_on(int t) {
    if (thread_index() == 0) walk.next(steps[(t + 2) % 4]);
  }
  LONGSPAN_HD const Step& at(int t) const { return steps[t % 4]; }
};

/// Copies `rows` rows of `width` columns: row index(r), or zeros if that is negative.
template <class T, int W, int rows, int threads, class Index>
LONGSPAN_HD inline void copy_rows(const T* base, int64_t row, int32_t width, Index index,
                                  SharedRows<W> to) {
  LONGSPAN_ROLLED for (int i = thread_index(); i < rows * SharedRows<W>::chunks; i += threads) {
    const int r = i / SharedRows<W>::chunks, c = i % SharedRows<W>::chunks;
    const int32_t at = index(r);
    const bool take = at >= 0 && c * 8 < width;
    copy16(to.at(r, c), take ? base + at * row + c * 8 : base, take);
  }
}

/// Writes 16 m rows of W columns, as T or unconverted. row(i, half, factor) returns the offset of a
/// row and sets the factor that scales it; a row with a negative offset is not written.
template <class T, int W, int m, class To, class Row>
LONGSPAN_HD inline void write_rows(const Fragments<m, W / 8>& sum, int32_t width, Row row, To* to) {
  const int t = thread_index() % 4 * 2;
  LONGSPAN_UNROLL for (int i = 0; i < m; ++i) {
    LONGSPAN_UNROLL for (int half = 0; half < 2; ++half) {
      float scale = 1;
      const int64_t at = row(i, half, scale);
      if (at < 0) continue;
      LONGSPAN_UNROLL for (int n = 0; n < W / 8; ++n) {
        if (8 * n >= width) continue;
        const float x0 = sum[i][n][2 * half] * scale, x1 = sum[i][n][2 * half + 1] * scale;
        if constexpr (std::is_same_v<To, float>) {
          to[at + 8 * n + t] = x0;
          to[at + 8 * n + t + 1] = x1;
        } else {
          const uint32_t pair = pack<T>(x0, x1);
          memcpy(to + at + 8 * n + t, &pair, 4);
        }
      }
    }
  }
}

/// Computes a b^T for one warp: c[i][n] += rows a_row + 16 i of a times rows b_row + 8 n of b.
template <class T, int W, int m, int n>
LONGSPAN_HD inline void multiply_rows(const SharedRows<W>& a, int a_row, const SharedRows<W>& b,
                                      int b_row, Fragments<m, n>& c) {
  // Further unrolling keeps the operands of many products live and leaves too few registers for the
  // accumulators.
  LONGSPAN_UNROLL_2 for (int k = 0; k < W / 16; ++k) {
    uint32_t x[m][4];
    LONGSPAN_UNROLL for (int i = 0; i < m; ++i) a.load_a(a_row + 16 * i, k, x[i]);
    LONGSPAN_UNROLL for (int j = 0; j < n / 2; ++j) {
      uint32_t y[4];
      b.load_b(b_row + 16 * j, k, y);
      LONGSPAN_UNROLL for (int i = 0; i < m; ++i) {
        multiply<T>(c[i][2 * j], x[i], y[0], y[1]);
        multiply<T>(c[i][2 * j + 1], x[i], y[2], y[3]);
      }
    }
  }
}

/// c += p b, p [16 m, 8 n] rounded to T, b rows b_row .. b_row + 8 n.
template <class T, int W, int m, int n>
LONGSPAN_HD inline void multiply_values(const Fragments<m, n>& p, const SharedRows<W>& b, int b_row,
                                        Fragments<m, W / 8>& c) {
  LONGSPAN_UNROLL for (int k = 0; k < n / 2; ++k) {
    uint32_t x[m][4];
    LONGSPAN_UNROLL for (int i = 0; i < m; ++i) {
      x[i][0] = pack<T>(p[i][2 * k][0], p[i][2 * k][1]);
      x[i][1] = pack<T>(p[i][2 * k][2], p[i][2 * k][3]);
      x[i][2] = pack<T>(p[i][2 * k + 1][0], p[i][2 * k + 1][1]);
      x[i][3] = pack<T>(p[i][2 * k + 1][2], p[i][2 * k + 1][3]);
    }
    LONGSPAN_UNROLL for (int j = 0; j < W / 16; ++j) {
      uint32_t y[4];
      b.load_b_rows(b_row + 16 * k, j, y);
      LONGSPAN_UNROLL for (int i = 0; i < m; ++i) {
        multiply<T>(c[i][2 * j], x[i], y[0], y[1]);
        multiply<T>(c[i][2 * j + 1], x[i], y[2], y[3]);
      }
    }
  }
}

template <int m, int n>
LONGSPAN_HD inline void clear(Fragments<m, n>& c) {
  LONGSPAN_UNROLL for (int i = 0; i < m; ++i) {
    LONGSPAN_UNROLL for (int j = 0; j < n; ++j) {
      LONGSPAN_UNROLL for (int e = 0; e < 4; ++e) c[i][j][e] = 0;
    }
  }
}

/// Folds a value over the four lanes that share a row; every lane gets the result.
template <class F>
LONGSPAN_HD inline float over_row(float value, F f) {
  value = f(value, exchange(value, 1));
  return f(value, exchange(value, 2));
}

/// Raises the reference of a row to its largest score if that exceeds it by more than 8 (a factor
/// of 2^8), and rescales the row's sums.
template <int W, int m, int n>
LONGSPAN_HD inline void raise(float factor, const Fragments<m, n>& s, float (&reference)[m][2],
                              float (&total)[m][2], Fragments<m, W / 8>& sum) {
  float top[m][2];
  bool rises = false;
  LONGSPAN_UNROLL for (int i = 0; i < m; ++i) {
    LONGSPAN_UNROLL for (int half = 0; half < 2; ++half) {
      float high = s[i][0][2 * half];
      LONGSPAN_UNROLL for (int j = 0; j < n; ++j) {
        high = fmaxf(high, fmaxf(s[i][j][2 * half], s[i][j][2 * half + 1]));
      }
      top[i][half] = over_row(high, [](float a, float b) { return fmaxf(a, b); }) * factor;
      rises = rises || top[i][half] > reference[i][half] + 8;
    }
  }
  if (!any_lane(rises)) return;
  LONGSPAN_UNROLL for (int i = 0; i < m; ++i) {
    LONGSPAN_UNROLL for (int half = 0; half < 2; ++half) {
      const bool up = top[i][half] > reference[i][half] + 8;
      const float change = up ? fast_exp2(reference[i][half] - top[i][half]) : 1.0f;
      if (up) reference[i][half] = top[i][half];
      total[i][half] *= change;
      LONGSPAN_UNROLL for (int j = 0; j < W / 8; ++j) {
        sum[i][j][2 * half] *= change;
        sum[i][j][2 * half + 1] *= change;
      }
    }
  }
}

/// Whether any accumulator is nonfinite.
template <int m, int n>
LONGSPAN_HD inline bool nonfinite(const Fragments<m, n>& sum) {
  float zero = 0;
  LONGSPAN_UNROLL for (int i = 0; i < m; ++i) {
    LONGSPAN_UNROLL for (int j = 0; j < n; ++j) {
      LONGSPAN_UNROLL for (int e = 0; e < 4; ++e) zero = fused(sum[i][j][e], 0.0f, zero);
    }
  }
  return zero != 0;  // NaN
}

/// Applies f to both 16-bit halves of a word.
template <class F>
LONGSPAN_HD inline uint32_t halves(uint32_t word, F f) {
  return f(word & 0xffffu) | f(word >> 16) << 16;
}
/// Bit patterns of 16-bit floats.
template <class T>
struct HalfBits {
  static constexpr bool wide = std::is_same_v<T, bf16>;
  static constexpr uint32_t infinity = wide ? 0x7f80 : 0x7c00, one = wide ? 0x3f80 : 0x3c00,
                            many = wide ? 0x4280 : 0x5400;  // 64
  LONGSPAN_HD static bool finite(uint32_t x) { return (x & infinity) != infinity; }
};

/// c += a b for the operands b of two products. A nonfinite element of b contributes only where the
/// element of a is not 0.
template <class T>
LONGSPAN_HD inline void multiply_with_care(const uint32_t (&a)[4], uint32_t (&b)[4], float (&c0)[4],
                                           float (&c1)[4]) {
  using Bits = HalfBits<T>;
  // For nonfinite elements: kind is 1 for Inf and 64 for NaN, sign is +-1 for Inf and 0 for NaN.
  uint32_t kind[4], sign[4];
  bool any = false;
  LONGSPAN_UNROLL for (int i = 0; i < 4; ++i) {
    kind[i] = halves(b[i], [](uint32_t x) {
      if (Bits::finite(x)) return 0u;
      return (x & 0x7fffu) == Bits::infinity ? Bits::one : Bits::many;
    });
    sign[i] = halves(b[i], [](uint32_t x) {
      return (x & 0x7fffu) == Bits::infinity ? Bits::one | (x & 0x8000u) : 0u;
    });
    b[i] = halves(b[i], [](uint32_t x) { return Bits::finite(x) ? x : 0u; });
    any = any || kind[i] != 0;
  }
  multiply<T>(c0, a, b[0], b[1]);
  multiply<T>(c1, a, b[2], b[3]);
  if (!any_lane(any)) return;
  uint32_t there[4], signs[4];
  LONGSPAN_UNROLL for (int i = 0; i < 4; ++i) {
    there[i] = halves(a[i], [](uint32_t x) { return (x & 0x7fffu) == 0 ? 0u : Bits::one; });
    signs[i] = there[i] | (a[i] & 0x80008000u);
  }
  LONGSPAN_UNROLL for (int side = 0; side < 2; ++side) {
    float counts[4] = {}, balance[4] = {};
    multiply<T>(counts, there, kind[2 * side], kind[2 * side + 1]);
    multiply<T>(balance, signs, sign[2 * side], sign[2 * side + 1]);
    float(&c)[4] = side == 0 ? c0 : c1;
    LONGSPAN_UNROLL for (int e = 0; e < 4; ++e) {
      if (counts[e] == 0) continue;
      const float infinity = std::numeric_limits<float>::infinity();
      c[e] += balance[e] == counts[e] ? infinity : (balance[e] == -counts[e] ? -infinity : NAN);
    }
  }
}

/// c += a b: one operand a, rows b_row .. b_row + 16 of b. `careful` selects multiply_with_care().
template <class T, int W>
LONGSPAN_HD inline void multiply_operand(const uint32_t (&a)[4], const SharedRows<W>& b, int b_row,
                                         bool careful, Fragments<1, W / 8>& c) {
  LONGSPAN_UNROLL for (int j = 0; j < W / 16; ++j) {
    uint32_t y[4];
    b.load_b_rows(b_row, j, y);
    if (careful) {
      multiply_with_care<T>(a, y, c[0][2 * j], c[0][2 * j + 1]);
    } else {
      multiply<T>(c[0][2 * j], a, y[0], y[1]);
      multiply<T>(c[0][2 * j + 1], a, y[2], y[3]);
    }
  }
}

/// c += p b, with p [16, 8 n] rounded to T.
template <class T, int W, int n>
LONGSPAN_HD inline void multiply_weights(const Fragments<1, n>& p, const SharedRows<W>& b,
                                         bool careful, Fragments<1, W / 8>& c) {
  LONGSPAN_UNROLL for (int k = 0; k < n / 2; ++k) {
    const uint32_t a[4] = {pack<T>(p[0][2 * k][0], p[0][2 * k][1]),
                           pack<T>(p[0][2 * k][2], p[0][2 * k][3]),
                           pack<T>(p[0][2 * k + 1][0], p[0][2 * k + 1][1]),
                           pack<T>(p[0][2 * k + 1][2], p[0][2 * k + 1][3])};
    multiply_operand<T, W>(a, b, 16 * k, careful, c);
  }
}

}  // namespace longspan::cuda
