#include "core/kernels/random.h"

#include <algorithm>
#include <cmath>

#include "core/generator.h"
#include "core/parallel.h"
#include "cpu/register.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/random.cc"
#include <hwy/foreach_target.h>
// foreach_target comes first.
#include <hwy/highway.h>

#include "cpu/philox-inl.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::cpu {
namespace HWY_NAMESPACE {

constexpr int64_t block = 2048;  // words generated at a time

/// Words first, first + 1, ... of a key, `block` at a time, in the L1 cache.
class Words {
 public:
  explicit Words(uint64_t key) : key_(key) {}
  /// Returns up to `block` - 4 words from `first` on.
  HWY_INLINE const uint32_t* get(int64_t first, int64_t n) {
    const int64_t skip = first % 4;
    philox_words(key_, static_cast<uint64_t>(first) / 4, (skip + n + 3) / 4, words_);
    return words_ + skip;
  }

 private:
  uint64_t key_;
  alignas(64) uint32_t words_[block + 64];
};

template <class T>
void drop(const T* x, uint64_t key, int64_t first, int64_t n, uint64_t threshold, double scale,
          T* y) {
  using A = Accumulator<T>;
  const auto factor = static_cast<A>(scale);
  if (threshold > 0xffffffffu) {  // p = 1
    std::fill(y, y + n, T(A{0}));
    return;
  }
  const auto least = static_cast<uint32_t>(threshold);
  Words words(key);
  for (int64_t i = 0; i < n; i += block - 4) {
    const int64_t count = std::min(block - 4, n - i);
    const uint32_t* w = words.get(first + i, count);
    for (int64_t j = 0; j < count; ++j) {
      const A kept = static_cast<A>(x[i + j]) * factor;
      y[i + j] = T(w[j] >= least ? kept : A{0});
    }
  }
}

template <class T>
void fill_uniform(uint64_t key, int64_t first, int64_t n, float low, float range, T* y) {
  Words words(key);
  for (int64_t i = 0; i < n; i += block - 4) {
    const int64_t count = std::min(block - 4, n - i);
    const uint32_t* w = words.get(first + i, count);
    for (int64_t j = 0; j < count; ++j) {
      y[i + j] = T(rounded_add(low, rounded_multiply(to_uniform(w[j]), range)));
    }
  }
}

/// Computes n standard normal values from element `first` on, which is even: to_normal() in steps
/// that the compiler can vectorise.
void normals(Words& words, int64_t first, int64_t n, float* z) {
  const int64_t pairs = (n + 1) / 2;
  const uint32_t* w = words.get(first, 2 * pairs);
  alignas(64) float radius[block / 2 + 16], cosine[block / 2], sine[block / 2];
  for (int64_t k = 0; k < pairs; ++k) {
    radius[k] = to_squared_radius(w[2 * k]);
    detail::circle(to_uniform(w[2 * k + 1]), cosine[k], sine[k]);
  }
  const hn::ScalableTag<float> d;
  for (int64_t k = 0; k < pairs; k += static_cast<int64_t>(hn::Lanes(d))) {
    hn::Store(hn::Sqrt(hn::Load(d, radius + k)), d, radius + k);
  }
  for (int64_t k = 0; k < pairs; ++k) {
    z[2 * k] = rounded_multiply(radius[k], cosine[k]);
    z[2 * k + 1] = rounded_multiply(radius[k], sine[k]);
  }
}

template <class T>
void fill_normal(uint64_t key, int64_t first, int64_t n, float mean, float deviation, float low,
                 float high, T* y) {
  Words words(key);
  float z[block];
  for (int64_t i = 0; i < n; i += block - 4) {
    const int64_t count = std::min(block - 4, n - i);
    normals(words, first + i, count, z);
    bool inside = true;
    for (int64_t j = 0; j < count; ++j) inside &= z[j] >= low && z[j] <= high;
    if (!inside) {
      for (int64_t j = 0; j < count; ++j) {
        for (uint32_t attempt = 1; !(z[j] >= low && z[j] <= high); ++attempt) {
          z[j] = philox_normal(key, first + i + j, attempt);
        }
      }
    }
    for (int64_t j = 0; j < count; ++j) {
      y[i + j] = T(rounded_add(mean, rounded_multiply(deviation, z[j])));
    }
  }
}

template <class T>
void fill_bernoulli(uint64_t key, int64_t first, int64_t n, uint64_t threshold, T* y) {
  Words words(key);
  for (int64_t i = 0; i < n; i += block - 4) {
    const int64_t count = std::min(block - 4, n - i);
    const uint32_t* w = words.get(first + i, count);
    for (int64_t j = 0; j < count; ++j) y[i + j] = w[j] < threshold ? T(1) : T(0);
  }
}

template <class T>
void fill_integers(uint64_t key, int64_t first, int64_t n, int64_t low, uint64_t range, T* y) {
  Words words(key);
  for (int64_t i = 0; i < n; i += block / 2 - 2) {
    const int64_t count = std::min(block / 2 - 2, n - i);
    const uint32_t* w = words.get(2 * (first + i), 2 * count);
    for (int64_t j = 0; j < count; ++j) {
      const uint64_t bits = uint64_t{w[2 * j + 1]} << 32 | w[2 * j];
      y[i + j] = static_cast<T>(low + static_cast<int64_t>(to_range(bits, range)));
    }
  }
}

#define LONGSPAN_FLOATING(f, ...)           \
  visit_floating(y.dtype, [&](auto tag) {   \
    using T = typename decltype(tag)::type; \
    f<T>(__VA_ARGS__);                      \
  })

void dropout_range(const ConstView& x, uint64_t key, int64_t first, uint64_t threshold,
                   double scale, const View& y, int64_t i, int64_t end) {
  LONGSPAN_FLOATING(drop, x.as<T>() + i, key, first + i, end - i, threshold, scale, y.as<T>() + i);
}

void uniform_range(uint64_t key, float low, float range, const View& y, int64_t i, int64_t end) {
  LONGSPAN_FLOATING(fill_uniform, key, i, end - i, low, range, y.as<T>() + i);
}

void normal_range(uint64_t key, float mean, float deviation, float low, float high, const View& y,
                  int64_t i, int64_t end) {
  LONGSPAN_FLOATING(fill_normal, key, i, end - i, mean, deviation, low, high, y.as<T>() + i);
}
#undef LONGSPAN_FLOATING

void bernoulli_range(uint64_t key, uint64_t threshold, const View& y, int64_t i, int64_t end) {
  visit_dtype(y.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    fill_bernoulli<T>(key, i, end - i, threshold, y.as<T>() + i);
  });
}

void randint_range(uint64_t key, int64_t low, uint64_t range, const View& y, int64_t i,
                   int64_t end) {
  switch (y.dtype) {
    case DType::i64:
      return fill_integers(key, i, end - i, low, range, y.as<int64_t>() + i);
    case DType::i32:
      return fill_integers(key, i, end - i, low, range, y.as<int32_t>() + i);
    default:
      return fill_integers(key, i, end - i, low, range, y.as<uint8_t>() + i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace longspan::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longspan::cpu {

HWY_EXPORT(dropout_range);
HWY_EXPORT(uniform_range);
HWY_EXPORT(normal_range);
HWY_EXPORT(bernoulli_range);
HWY_EXPORT(randint_range);

namespace {

constexpr int64_t grain = 1 << 14;  // elements per task; a multiple of 4

void dropout(ConstView x, DeviceScalar<uint64_t> key, int64_t first, double p, View y) {
  const uint64_t threshold = drop_threshold(p);
  const double scale = 1.0 / (1.0 - p);
  parallel_ranges(y.numel(), grain, [&](int64_t i, int64_t end) {
    HWY_DYNAMIC_DISPATCH(dropout_range)(x, key, first, threshold, scale, y, i, end);
  });
}

void uniform(DeviceScalar<uint64_t> key, double low, double high, View y) {
  parallel_ranges(y.numel(), grain, [&](int64_t i, int64_t end) {
    HWY_DYNAMIC_DISPATCH(uniform_range)
    (key, static_cast<float>(low), static_cast<float>(high - low), y, i, end);
  });
}

void normal(DeviceScalar<uint64_t> key, double mean, double deviation, double low, double high,
            View y) {
  parallel_ranges(y.numel(), grain, [&](int64_t i, int64_t end) {
    HWY_DYNAMIC_DISPATCH(normal_range)
    (key, static_cast<float>(mean), static_cast<float>(deviation), static_cast<float>(low),
     static_cast<float>(high), y, i, end);
  });
}

void bernoulli(DeviceScalar<uint64_t> key, double p, View y) {
  parallel_ranges(y.numel(), grain, [&](int64_t i, int64_t end) {
    HWY_DYNAMIC_DISPATCH(bernoulli_range)(key, drop_threshold(p), y, i, end);
  });
}

void randint(DeviceScalar<uint64_t> key, int64_t low, int64_t high, View y) {
  const uint64_t range = static_cast<uint64_t>(high) - static_cast<uint64_t>(low);
  parallel_ranges(y.numel(), grain, [&](int64_t i, int64_t end) {
    HWY_DYNAMIC_DISPATCH(randint_range)(key, low, range, y, i, end);
  });
}

/// Returns the dot product in eight lanes; the order of the sum depends only on n.
double dot(const double* a, const double* b, int64_t n) {
  double lane[8] = {};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int64_t l = 0; l < 8; ++l) lane[l] += a[i + l] * b[i + l];
  }
  for (int64_t l = 0; i + l < n; ++l) lane[l] += a[i + l] * b[i + l];
  return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

/// y -= 2 v (v.y) / (v.v), for rows `first` to n of `rows`, from element k on.
void reflect(const double* v, double norm, double* rows, int64_t first, int64_t n, int64_t m,
             int64_t k) {
  if (norm == 0) return;
  const int64_t length = m - k;
  parallel_ranges(n - first, std::max<int64_t>(1, grain / length), [&](int64_t i, int64_t end) {
    for (; i < end; ++i) {
      double* y = rows + (first + i) * m + k;
      const double factor = 2.0 * dot(v, y, length) / norm;
      for (int64_t j = 0; j < length; ++j) y[j] -= factor * v[j];
    }
  });
}

void orthonormalize(View x, double gain, View q) {
  const int64_t n = x.dim(0), m = x.dim(1);
  auto* a = x.as<double>();
  auto* out = q.as<double>();
  std::fill(out, out + n * m, 0.0);
  // Reflection k maps the remainder of row k to a multiple of e_k; its vector replaces the row from
  // element k on. The sign of that multiple is stored at the first element of the result's row k
  // and becomes the sign of the row.
  for (int64_t k = 0; k < n; ++k) {
    double* v = a + k * m + k;
    const double length = std::sqrt(dot(v, v, m - k));
    const double image = v[0] > 0 ? -length : length;  // opposite to v[0]: no cancellation
    v[0] -= image;
    out[k * m + k] = image < 0 ? -gain : gain;
    reflect(v, dot(v, v, m - k), a, k + 1, n, m, k);
  }
  for (int64_t k = n - 1; k >= 0; --k) {
    const double* v = a + k * m + k;
    reflect(v, dot(v, v, m - k), out, k, n, m, k);
  }
}

}  // namespace

void register_random() {
  kernels::dropout.set(DeviceKind::cpu, dropout);
  kernels::uniform.set(DeviceKind::cpu, uniform);
  kernels::normal.set(DeviceKind::cpu, normal);
  kernels::bernoulli.set(DeviceKind::cpu, bernoulli);
  kernels::randint.set(DeviceKind::cpu, randint);
  kernels::orthonormalize.set(DeviceKind::cpu, orthonormalize);
}

}  // namespace longspan::cpu
#endif
