// Linear attention: what its forward and backward pass share. Tokens are processed in chunks of up
// to kChunk rows, whose features exist for one chunk at a time. Included once per SIMD target.
//
// Packed shapes, with N = kPanel<T> columns to a panel:
//   rows     [ceil(width / N)][kChunk][N]  rows of a chunk: x, u, features, values
//   columns  [ceil(rows / N)][width][N]    their transpose: one panel holds N rows
// Slot half * padded + r holds feature r of a half, where `padded` is m rounded up to N; slots from
// m on are no features. Exponents and logarithms are to base 2.

#if defined(LONGSPAN_CPU_LINEAR_FEATURES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LONGSPAN_CPU_LINEAR_FEATURES_INL_H_
#undef LONGSPAN_CPU_LINEAR_FEATURES_INL_H_
#else
#define LONGSPAN_CPU_LINEAR_FEATURES_INL_H_
#endif

#include <hwy/highway.h>

#include <type_traits>

#include "core/kernels/linear_attention.h"
#include "cpu/attention/tile-inl.h"
#include "cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::cpu {
namespace HWY_NAMESPACE {
namespace {

using kernels::FeatureMap;
using kernels::LinearAttentionInputs;

// Rows of a chunk without causality, and the most that buffers hold.
inline constexpr int64_t kChunk = kTileRows;
// Rows of a causal chunk: a shorter one spends less on pairs, but loads and stores the sums more
// often.
inline constexpr int64_t kCausalChunk = 64;
static_assert(kChunk % kGroup == 0 && kCausalChunk <= kChunk && kChunk <= kBlock);
// The exponent of a key that no query sees: far below kNoKeys.
inline constexpr double kHiddenKey = 2 * kernels::kNoKeys;
// A chunk is cut in half if a row's terms lie further than this below the largest exponents of the
// chunk, where they would lose digits or vanish. A chunk of one row is exact.
template <class T>
inline constexpr T kSlack = sizeof(T) == 4 ? 40 : 300;

/// Calls f(constant of the map) for maps that are neither exponential nor trigonometric.
template <class F>
void visit_map(FeatureMap map, F&& f) {
#define LONGSPAN_MAP(name) \
  case FeatureMap::name:   \
    return f(std::integral_constant<FeatureMap, FeatureMap::name>());
  switch (map) {
    LONGSPAN_MAP(phase)
    LONGSPAN_MAP(relu)
    LONGSPAN_MAP(elu_plus_one)
    LONGSPAN_MAP(abs)
    LONGSPAN_MAP(square)
    LONGSPAN_MAP(gelu)
    LONGSPAN_MAP(sigmoid)
    LONGSPAN_MAP(tanh)
    LONGSPAN_MAP(identity)
    default:
      return;
  }
#undef LONGSPAN_MAP
}

/// Computes y = f(u) and, if kSlope, its derivative.
template <FeatureMap kMap, bool kSlope, class D>
HWY_INLINE void map_feature(D d, hn::Vec<D> u, hn::Vec<D>& y, hn::Vec<D>& slope) {
  const auto zero = hn::Zero(d), one = simd::constant(d, 1);
  const auto positive = hn::Gt(u, zero);
  if constexpr (kMap == FeatureMap::phase) {
    y = simd::cos(d, u);
    if (kSlope) slope = hn::Neg(simd::sin(d, u));
  } else if constexpr (kMap == FeatureMap::relu) {
    y = hn::IfThenElse(hn::Lt(u, zero), zero, u);  // NaN stays NaN
    if (kSlope) slope = hn::IfThenElseZero(positive, one);
  } else if constexpr (kMap == FeatureMap::elu_plus_one) {
    const auto below = simd::exp(d, hn::IfThenElse(positive, zero, u));
    y = hn::IfThenElse(positive, hn::Add(u, one), below);
    if (kSlope) slope = hn::IfThenElse(positive, one, below);
  } else if constexpr (kMap == FeatureMap::abs) {
    y = hn::Abs(u);
    if (kSlope) {
      slope = hn::IfThenElse(positive, one, hn::IfThenElseZero(hn::Lt(u, zero), hn::Neg(one)));
    }
  } else if constexpr (kMap == FeatureMap::square) {
    y = hn::Mul(u, u);
    if (kSlope) slope = hn::Add(u, u);
  } else if constexpr (kMap == FeatureMap::gelu) {
    simd::gelu(d, u, y, slope);
  } else if constexpr (kMap == FeatureMap::sigmoid) {
    y = simd::sigmoid(d, u);
    if (kSlope) slope = hn::Mul(y, hn::Sub(one, y));
  } else if constexpr (kMap == FeatureMap::tanh) {
    y = simd::tanh(d, u);
    if (kSlope) slope = hn::NegMulAdd(y, y, one);
  } else {
    y = u;
    if (kSlope) slope = one;
  }
}

/// One head of one sample: sizes, rows and the packed projection.
template <class T>
class LinearHead {
 public:
  static constexpr int64_t N = kPanel<T>;
  static constexpr int64_t V = kLanes<T>;

  LinearHead(const LinearAttentionInputs& call, int64_t sample, int64_t number, Slab<T>& slab)
      : in(call),
        b(sample),
        h(number),
        map(call.numbers.features),
        width(call.q.dim(3)),
        value_width(call.v.dim(3)),
        queries(call.q.dim(2)),
        keys(call.k.dim(2)),
        m(call.projection ? call.projection.dim(1) : width),
        padded(round_up(m, N)),
        halves(kernels::feature_halves(map)),
        slots(halves * padded),
        exponential(kernels::is_exponential(map)),
        oscillating(kernels::is_oscillating(map)),
        q(head_rows<T>(call.q, sample, number, nullptr)),
        k(head_rows<T>(call.k, sample, number, nullptr)),
        v(head_rows<T>(call.v, sample, number, nullptr)),
        scale(static_cast<T>(call.numbers.scale)),
        norm_factor(static_cast<T>(kernels::norm_sign(map) * kLog2E / 2 * call.numbers.scale *
                                   call.numbers.scale)),
        unit(static_cast<T>(call.numbers.scale * (exponential ? kLog2E : 1))),
        amplitude(amplitude_of()),
        epsilon(static_cast<T>(call.numbers.epsilon)),
        over_width(over_panels<T>(width, kChunk * N)),
        columns(slab.take(call.projection ? padded * width : 0)),
        rows_(slab.take(N * width)) {
    for (int64_t half = 0; half < halves; ++half) {
      for (InnerRange part : over_panels<T>(m, kChunk * N)) {
        part.a += half * padded * kChunk;
        part.b += half * padded * N;
        over_features.push_back(part);
      }
    }
  }

  /// Packs the projection, times `unit`, for project().
  void pack_projection() {
    if (!in.projection) return;
    const RowSource<T> w = projection();
    for (int64_t r = 0; r < padded; r += N) {
      pack_columns(w, r, std::clamp<int64_t>(m - r, 0, N), rows_, columns + r * width);
    }
    for (int64_t i = 0; i < padded * width; ++i) columns[i] *= unit;
  }
  /// Returns the projection's rows.
  RowSource<T> projection() const {
    const int64_t head = in.projection.dim(0) == 1 ? 0 : h;
    RowSource<T> w;
    w.base = reinterpret_cast<const char*>(in.projection.as<T>() + head * m * width);
    w.dtype = dtype_of<T>;
    w.stride = w.width = width;
    return w;
  }
  const T* phase() const {
    return in.phase ? in.phase.as<T>() + (in.phase.dim(0) == 1 ? 0 : h * m) : nullptr;
  }

  bool exists(int64_t j) const {
    if (in.k_valid && j >= in.k_valid.as<int64_t>()[b]) return false;
    return !in.k_hidden ||
           in.k_hidden.as<uint8_t>()[(in.k_hidden.dim(0) == 1 ? 0 : b * keys) + j] == 0;
  }
  bool masked() const { return in.k_valid || in.k_hidden; }

  /// u = unit * x W^T (+ phase) of `count` rows; x, u are rows.
  void project(const T* x, int64_t count, T* u) const {
    const Tag<T> d;
    if (!in.projection) {
      const Vec<T> factor = hn::Set(d, unit);
      for (int64_t p = 0; p < padded / N; ++p) {
        for (int64_t i = p * kChunk * N; i < (p * kChunk + count) * N; i += V) {
          hn::Store(hn::Mul(hn::Load(d, x + i), factor), d, u + i);
        }
      }
      return;
    }
    for (int64_t r = 0; r < padded; r += N) {
      product<2, N, T>(count, x, 1, columns + r * width, over_width, u + r * kChunk, N, false);
    }
    if (const T* const b0 = phase()) {
      for (int64_t i = 0; i < count; ++i) {
        for (int64_t r = 0; r < m; ++r) u[r / N * N * kChunk + i * N + r % N] += b0[r];
      }
    }
  }

  /// Computes the part of the exponents of keys that depends on their norms; kHiddenKey if they do
  /// not exist. x: rows.
  void norms_of_keys(const T* x, int64_t first, int64_t count, T* exponents) const {
    const Tag<T> d;
    for (int64_t j = 0; j < count; ++j) {
      Vec<T> sum = hn::Zero(d);
      for (int64_t c = 0; c < width; c += V) {
        const Vec<T> part = hn::Load(d, x + (c / N * kChunk + j) * N + c % N);
        sum = hn::MulAdd(part, part, sum);
      }
      exponents[j] =
          exists(first + j) ? norm_factor * simd::sum_lanes(d, sum) : static_cast<T>(kHiddenKey);
    }
  }

  /// Copies rows of keys or values, with zeros in those that do not exist.
  void pack_existing(const RowSource<T>& x, int64_t first, int64_t count, T* to,
                     bool& finite) const {
    finite = pack_rows(x, first, count, count, T{1}, to, kChunk);
    if (!masked()) return;
    finite = true;
    for (int64_t j = 0; j < count; ++j) {
      if (exists(first + j)) continue;
      for (int64_t c = 0; c < x.width; c += N) std::fill_n(to + (c / N * kChunk + j) * N, N, T{0});
    }
    for (int64_t j = 0; j < count && finite; ++j) {
      for (int64_t c = 0; c < x.width && finite; ++c) {
        finite = std::isfinite(to[(c / N * kChunk + j) * N + c % N]);
      }
    }
  }

  // ------------------------------------------------------------------------ features of rows

  /// Raises each slot to the largest exponent of any row: u (or -u) + row[i]. Exponential features.
  void raise_slots(const T* u, int64_t count, const T* row, const T* slot, T* raised) const {
    const Tag<T> d;
    for (int64_t r = 0; r < padded; r += V) {
      const T* const at = u + r / N * N * kChunk + r % N;
      Vec<T> high = hn::Load(d, slot + r),
             low = halves == 2 ? hn::Load(d, slot + padded + r) : high;
      for (int64_t i = 0; i < count; ++i) {
        const Vec<T> x = hn::Load(d, at + i * N), shift = hn::Set(d, row[i]);
        high = hn::Max(high, hn::Add(shift, x));
        if (halves == 2) low = hn::Max(low, hn::Sub(shift, x));
      }
      hn::Store(high, d, raised + r);
      if (halves == 2) hn::Store(low, d, raised + padded + r);
    }
    clear_pads(raised);
  }
  /// Gives the slots that are no features the exponent kNoKeys.
  void clear_pads(T* slot) const {
    for (int64_t half = 0; half < halves; ++half) {
      std::fill(slot + half * padded + m, slot + (half + 1) * padded,
                static_cast<T>(kernels::kNoKeys));
    }
  }

  /// Returns the largest exponent of row i: u (or -u) + slot[r].
  T top_of_row(const T* u, int64_t i, const T* slot) const {
    const Tag<T> d;
    Vec<T> high = hn::Set(d, static_cast<T>(kHiddenKey));
    for (int64_t r = 0; r < padded; r += V) {
      const Vec<T> x = hn::Load(d, u + (r / N * kChunk + i) * N + r % N);
      high = hn::Max(high, hn::Add(hn::Load(d, slot + r), x));
      if (halves == 2) high = hn::Max(high, hn::Sub(hn::Load(d, slot + padded + r), x));
    }
    return simd::max_lanes(d, high);
  }

  /// Computes the features of `count` rows from u, which may be y: exponential ones as 2^(+-u +
  /// slot[r] + row[i]), others times row[i]; with `slope` also their derivatives by u.
  void features(const T* u, int64_t count, const T* slot, const T* row, T* y, T* slope) const {
    if (exponential) {
      return slope != nullptr ? exponentials<true>(u, count, slot, row, y, slope)
                              : exponentials<false>(u, count, slot, row, y, slope);
    }
    if (map == FeatureMap::trigonometric) return waves(u, count, row, y, slope);
    visit_map(map, [&](auto kind) {
      if (slope != nullptr) {
        mapped<decltype(kind)::value, true>(u, count, row, y, slope);
      } else {
        mapped<decltype(kind)::value, false>(u, count, row, y, slope);
      }
    });
  }

  const LinearAttentionInputs& in;
  const int64_t b, h;
  const FeatureMap map;
  const int64_t width, value_width, queries, keys;
  const int64_t m, padded, halves, slots;
  const bool exponential, oscillating;
  const RowSource<T> q, k, v;
  const T scale, norm_factor, unit, amplitude, epsilon;
  const std::vector<InnerRange> over_width;
  std::vector<InnerRange> over_features;
  T* const columns;  // the projection times unit

 private:
  T amplitude_of() const {
    const auto count = static_cast<double>(m);
    if (exponential || !in.projection) return T{1};
    return static_cast<T>(map == FeatureMap::phase ? std::sqrt(2 / count) : 1 / std::sqrt(count));
  }

  template <bool kSlope>
  void exponentials(const T* u, int64_t count, const T* slot, const T* row, T* y, T* slope) const {
    const Tag<T> d;
    const int64_t second = padded * kChunk;
    for (int64_t r = 0; r < padded; r += V) {
      const Vec<T> high = hn::Load(d, slot + r), low = hn::Load(d, slot + slots - padded + r);
      int64_t at = r / N * N * kChunk + r % N;
      for (int64_t i = 0; i < count; ++i, at += N) {
        const Vec<T> x = hn::Load(d, u + at), shift = hn::Set(d, row[i]);
        if (halves == 2) {
          const Vec<T> down = exp2(d, hn::Add(hn::Sub(low, x), shift));
          hn::Store(down, d, y + second + at);
          if (kSlope) hn::Store(hn::Neg(down), d, slope + second + at);
        }
        const Vec<T> up = exp2(d, hn::Add(hn::Add(high, x), shift));
        hn::Store(up, d, y + at);
        if (kSlope) hn::Store(up, d, slope + at);
      }
    }
  }

  void waves(const T* u, int64_t count, const T* row, T* y, T* slope) const {
    const Tag<T> d;
    const int64_t second = padded * kChunk;
    for (int64_t r = 0; r < padded; r += V) {
      int64_t at = r / N * N * kChunk + r % N;
      for (int64_t i = 0; i < count; ++i, at += N) {
        const Vec<T> x = hn::Load(d, u + at), weight = hn::Set(d, amplitude * row[i]);
        const Vec<T> cosine = hn::Mul(weight, simd::cos(d, x));
        const Vec<T> sine = hn::Mul(weight, simd::sin(d, x));
        hn::Store(cosine, d, y + at);
        hn::Store(sine, d, y + second + at);
        if (slope == nullptr) continue;
        hn::Store(hn::Neg(sine), d, slope + at);
        hn::Store(cosine, d, slope + second + at);
      }
    }
  }

  template <FeatureMap kMap, bool kSlope>
  void mapped(const T* u, int64_t count, const T* row, T* y, T* slope) const {
    const Tag<T> d;
    const Vec<T> a = hn::Set(d, amplitude), more = hn::Set(d, epsilon);
    for (int64_t r = 0; r < padded; r += V) {
      int64_t at = r / N * N * kChunk + r % N;
      for (int64_t i = 0; i < count; ++i, at += N) {
        const Vec<T> weight = hn::Set(d, row[i]);
        Vec<T> f, g = weight;
        map_feature<kMap, kSlope>(d, hn::Load(d, u + at), f, g);
        hn::Store(hn::Mul(hn::MulAdd(f, a, more), weight), d, y + at);
        if (kSlope) hn::Store(hn::Mul(hn::Mul(g, a), weight), d, slope + at);
      }
    }
  }

  T* const rows_;  // rows on their way into columns
};

/// Returns 2^x for x that may be too small for any type.
template <class T>
T power(T x) {
  return x == T{0} ? T{1} : exp2(x);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace longspan::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
