#include "ops/attention/random_features.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "core/error.h"
#include "ops/attention/linear_attention.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/matmul.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/shape.h"
#include "ops/softmax.h"

namespace longspan {
namespace {

using Vector = std::vector<double>;

constexpr ProjectionRows kRows[] = {ProjectionRows::iid, ProjectionRows::gram_schmidt,
                                    ProjectionRows::hadamard, ProjectionRows::givens};
constexpr FeatureMap kRandomMaps[] = {FeatureMap::positive, FeatureMap::hyperbolic,
                                      FeatureMap::trigonometric, FeatureMap::phase};

std::string name(ProjectionRows rows, FeatureMap map) {
  return fmt::format("rows {} map {}", static_cast<int>(rows), static_cast<int>(map));
}

double dot(const double* a, const Vector& b) {
  double sum = 0;
  for (size_t i = 0; i < b.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// The estimate of e^(x . y) by one row w of the projection, of phase b.
double estimate(FeatureMap map, const double* w, double b, const Vector& x, const Vector& y) {
  const double norms = (dot(x.data(), x) + dot(y.data(), y)) / 2, u = dot(w, x), v = dot(w, y);
  switch (map) {
    case FeatureMap::positive:
      return std::exp(u + v - norms);
    case FeatureMap::hyperbolic:
      return std::cosh(u + v) * std::exp(-norms);
    case FeatureMap::trigonometric:
      return std::cos(u - v) * std::exp(norms);
    default:
      return 2 * std::cos(u + b) * std::cos(v + b) * std::exp(norms);
  }
}

struct Moments {
  double mean = 0, error = 0, squares = 0;  // standard error of the mean; mean squared error
};

/// Estimates by blocks of m rows of w, which are independent of each other.
Moments moments(FeatureMap map, const Vector& w, const Vector& phases, int64_t m, const Vector& x,
                const Vector& y) {
  const auto d = static_cast<int64_t>(x.size());
  const int64_t draws = static_cast<int64_t>(w.size()) / (m * d);
  const double exact = dot(x.data(), y);
  double sum = 0, squares = 0, away = 0;
  for (int64_t n = 0; n < draws; ++n) {
    double k = 0;
    for (int64_t r = n * m; r < (n + 1) * m; ++r) {
      k += estimate(map, w.data() + r * d, phases[static_cast<size_t>(r)], x, y);
    }
    k /= static_cast<double>(m);
    sum += k;
    squares += k * k;
    away += (k - std::exp(exact)) * (k - std::exp(exact));
  }
  const auto count = static_cast<double>(draws);
  const double mean = sum / count;
  return {mean, std::sqrt(std::max(0.0, squares / count - mean * mean) / count), away / count};
}

Vector projection(int64_t blocks, int64_t d, ProjectionRows rows, uint64_t seed = 1) {
  return random_projection(blocks * d, d, Generator{seed}, rows, ProjectionNorms::normal,
                           DType::f64)
      .to_vector<double>();
}
Vector phases(int64_t m) { return random_phases(m, Generator{2}, DType::f64).to_vector<double>(); }

/// Pairs of points with |x + y|^2 <= 2, two of them along the first axis, where signs that are not
/// random show.
std::vector<std::pair<Vector, Vector>> vector_pairs(size_t d) {
  Vector x(d), y(d), first(d, 0), other(d, 0);
  for (size_t i = 0; i < d; ++i) {
    x[i] = 0.3 * std::sin(1.0 + 2.0 * static_cast<double>(i));
    y[i] = 0.25 * std::cos(3.0 * static_cast<double>(i));
  }
  first[0] = 0.5;
  other[0] = 0.2;
  return {{x, y}, {first, first}, {first, other}};
}

/// Rows as a Householder QR leaves them (as LAPACK does), without the correction of signs.
Vector raw_projection(int64_t blocks, int64_t d) {
  const auto at = [d](int64_t i, int64_t j) { return static_cast<size_t>(i * d + j); };
  Vector all;
  for (int64_t block = 0; block < blocks; ++block) {
    const Generator gen = Generator{3}.fork(static_cast<uint64_t>(block));
    Vector a(static_cast<size_t>(d * d)), q(a.size(), 0);
    for (size_t i = 0; i < a.size(); ++i) {
      a[i] = static_cast<double>(philox_normal(gen.fork("a").key, static_cast<int64_t>(i)));
    }
    for (int64_t i = 0; i < d; ++i) q[at(i, i)] = 1;
    for (int64_t j = 0; j < d; ++j) {
      Vector h(static_cast<size_t>(d), 0);
      double norm = 0;
      for (int64_t i = j; i < d; ++i) norm += a[at(i, j)] * a[at(i, j)];
      norm = std::sqrt(norm);
      for (int64_t i = j; i < d; ++i) h[static_cast<size_t>(i)] = a[at(i, j)];
      h[static_cast<size_t>(j)] += std::copysign(norm, a[at(j, j)]);
      const double squares = dot(h.data(), h);
      const auto reflect = [&](double* column) {
        double along = 0;
        for (int64_t i = 0; i < d; ++i) along += column[i * d] * h[static_cast<size_t>(i)];
        for (int64_t i = 0; i < d; ++i)
          column[i * d] -= 2 * along / squares * h[static_cast<size_t>(i)];
      };
      for (int64_t c = 0; c < d; ++c) reflect(a.data() + c);
      for (int64_t c = 0; c < d; ++c) reflect(q.data() + c);  // q becomes Q^T
    }
    for (int64_t r = 0; r < d; ++r) {
      double squares = 0;
      for (int64_t c = 0; c < d; ++c) {
        const double z = philox_normal(gen.fork("norm").key, r * d + c);
        squares += z * z;
      }
      for (int64_t c = 0; c < d; ++c) all.push_back(std::sqrt(squares) * q[at(r, c)]);
    }
  }
  return all;
}

TEST(RandomFeatures, EstimatesAreUnbiased) {
  constexpr int64_t d = 8, draws = 20000;
  const Vector b = phases(draws * d);
  for (const ProjectionRows rows : kRows) {
    const Vector w = projection(draws, d, rows);
    for (const FeatureMap map : kRandomMaps) {
      for (const auto& [x, y] : vector_pairs(d)) {
        const Moments m = moments(map, w, b, d, x, y);
        EXPECT_LE(std::abs(m.mean - std::exp(dot(x.data(), y))), 4 * m.error + 1e-12)
            << name(rows, map);
      }
    }
  }
}

/// The test above sees what it should: the Q of a QR as it is fails for positive features along the
/// first axis, by 9 % (and passes for those that are even in w).
TEST(RandomFeatures, SignsOfAHouseholderQrAreBiased) {
  constexpr int64_t d = 8, draws = 20000;
  const Vector w = raw_projection(draws, d), b = phases(draws * d);
  const auto [x, y] = vector_pairs(d)[1];
  const double exact = std::exp(dot(x.data(), y));
  const Moments positive = moments(FeatureMap::positive, w, b, d, x, y);
  EXPECT_GT(std::abs(positive.mean - exact), 8 * positive.error);
  EXPECT_NEAR(positive.mean / exact, 0.91, 0.015);
  const Moments even = moments(FeatureMap::hyperbolic, w, b, d, x, y);
  EXPECT_LE(std::abs(even.mean - exact), 4 * even.error);
}

/// Hadamard blocks of the next power of two, cut to d columns, are unbiased too.
TEST(RandomFeatures, HadamardBlocksOfOtherWidthsAreUnbiased) {
  constexpr int64_t d = 6, block = 8, draws = 20000;
  const Vector w = random_projection(draws * block, d, Generator{5}, ProjectionRows::hadamard,
                                     ProjectionNorms::normal, DType::f64)
                       .to_vector<double>();
  const Vector b = phases(draws * block);
  for (const FeatureMap map : kRandomMaps) {
    for (const auto& [x, y] : vector_pairs(d)) {
      const Moments m = moments(map, w, b, block, x, y);
      EXPECT_LE(std::abs(m.mean - std::exp(dot(x.data(), y))), 4 * m.error + 1e-12);
    }
  }
}

/// Mean squared errors of independent rows (lemma 2), and smaller ones of orthogonal rows.
TEST(RandomFeatures, ErrorsAreThoseOfTheTheory) {
  constexpr int64_t d = 16, draws = 20000;
  Vector x(d), y(d);
  for (size_t i = 0; i < d; ++i) {
    x[i] = 0.18 * std::sin(1.0 + 2.0 * static_cast<double>(i));
    y[i] = 0.18 * std::sin(0.4 + 2.0 * static_cast<double>(i));
  }
  Vector z(d), difference(d);
  for (size_t i = 0; i < d; ++i) z[i] = x[i] + y[i], difference[i] = x[i] - y[i];
  const double zz = dot(z.data(), z), dd = dot(difference.data(), difference);
  const double norms = dot(x.data(), x) + dot(y.data(), y), exact = std::exp(dot(x.data(), y));
  const auto predicted = [&](FeatureMap map, double m) {
    const double positive = std::exp(zz) * exact * exact * (1 - std::exp(-zz)) / m;
    if (map == FeatureMap::positive) return positive;
    if (map == FeatureMap::hyperbolic) return positive * (1 - std::exp(-zz)) / 2;
    return std::exp(norms) * std::pow(1 - std::exp(-dd), 2) / (2 * m);
  };
  const Vector w = projection(draws, d, ProjectionRows::iid), b = phases(draws * d);
  for (const FeatureMap map :
       {FeatureMap::positive, FeatureMap::hyperbolic, FeatureMap::trigonometric}) {
    const double error = moments(map, w, b, d, x, y).squares;
    EXPECT_NEAR(error / predicted(map, d), 1, 0.1) << static_cast<int>(map);
    const double more = moments(map, w, b, 8 * d, x, y).squares;
    EXPECT_NEAR(std::log(more / error) / std::log(8.0), -1, 0.05) << static_cast<int>(map);
    for (const ProjectionRows rows :
         {ProjectionRows::gram_schmidt, ProjectionRows::hadamard, ProjectionRows::givens}) {
      const double less = moments(map, projection(draws, d, rows), b, d, x, y).squares;
      EXPECT_LT(less, 0.9 * error) << name(rows, map);
    }
  }
}

TEST(RandomFeatures, RowsOfABlockAreOrthogonal) {
  for (const ProjectionRows rows :
       {ProjectionRows::gram_schmidt, ProjectionRows::hadamard, ProjectionRows::givens}) {
    for (const int64_t d : {1, 2, 8, 16}) {
      const Vector w =
          random_projection(3 * d, d, Generator{7}, rows, ProjectionNorms::constant, DType::f64)
              .to_vector<double>();
      for (int64_t i = 0; i < 3 * d; ++i) {
        for (int64_t j = i / d * d; j < (i / d + 1) * d; ++j) {
          double sum = 0;
          for (int64_t c = 0; c < d; ++c) {
            sum += w[static_cast<size_t>(i * d + c)] * w[static_cast<size_t>(j * d + c)];
          }
          EXPECT_NEAR(sum, i == j ? static_cast<double>(d) : 0, 1e-12 * static_cast<double>(d));
        }
      }
      if (d > 1) {  // blocks differ
        EXPECT_FALSE(std::equal(w.begin(), w.begin() + d * d, w.begin() + d * d));
      }
    }
  }
}

/// Squared norms have the distribution function 1 - e^(-t) (1 + t + ... + t^(d/2 - 1) / (d/2 - 1)!)
/// at 2 t: Kolmogorov and Smirnov's statistic at a level of 0.1 %.
TEST(RandomFeatures, NormsAreThoseOfNormalVectors) {
  constexpr int64_t d = 8, m = 4000;
  for (const ProjectionRows rows : kRows) {
    const Vector w =
        random_projection(m, d, Generator{9}, rows, ProjectionNorms::normal, DType::f64)
            .to_vector<double>();
    Vector f;
    for (int64_t i = 0; i < m; ++i) {
      double t = 0, term = 1, below = 0;
      for (int64_t c = 0; c < d; ++c) {
        t += w[static_cast<size_t>(i * d + c)] * w[static_cast<size_t>(i * d + c)] / 2;
      }
      for (int k = 0; k < d / 2; term *= t / ++k) below += term;
      f.push_back(1 - std::exp(-t) * below);
    }
    std::sort(f.begin(), f.end());
    double worst = 0;
    for (size_t i = 0; i < f.size(); ++i) {
      const auto n = static_cast<double>(f.size());
      worst = std::max(
          {worst, f[i] - static_cast<double>(i) / n, static_cast<double>(i + 1) / n - f[i]});
    }
    EXPECT_LT(worst * std::sqrt(static_cast<double>(m)), 1.95) << static_cast<int>(rows);
  }
}

TEST(RandomFeatures, MoreRowsKeepTheFirstOnes) {
  for (const ProjectionRows rows : kRows) {
    for (const int64_t d : {1, 5, 8}) {
      const auto draw = [&](int64_t m, DType dtype) {
        return random_projection(m, d, Generator{4}, rows, ProjectionNorms::normal, dtype);
      };
      const Vector few = draw(11, DType::f64).to_vector<double>();
      const Vector many = draw(40, DType::f64).to_vector<double>();
      EXPECT_TRUE(std::equal(few.begin(), few.end(), many.begin())) << static_cast<int>(rows);
      EXPECT_EQ(draw(11, DType::f32).to_vector<float>(),
                cast(draw(11, DType::f64), DType::f32).to_vector<float>());
      const Vector other =
          random_projection(11, d, Generator{5}, rows, ProjectionNorms::normal, DType::f64)
              .to_vector<double>();
      EXPECT_NE(few, other);
    }
  }
}

TEST(RandomFeatures, WrongSizesAreErrors) {
  EXPECT_THROW(random_projection(0, 4, Generator{}), ValueError);
  EXPECT_THROW(random_projection(4, 0, Generator{}), ValueError);
  EXPECT_THROW(random_projection(4, 4, Generator{}, ProjectionRows::iid, ProjectionNorms::normal,
                                 DType::bf16),
               DTypeError);
  EXPECT_THROW(random_phases(0, Generator{}), ValueError);
  EXPECT_THROW(default_features(0), ValueError);
  EXPECT_EQ(default_features(64), 266);
  EXPECT_EQ(default_features(1), 1);
}

/// The error of linear attention with random features relative to softmax attention.
double softmax_error(FeatureMap map, int64_t m, double deviation) {
  constexpr int64_t length = 256, d = 16;
  double error = 0, whole = 0;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    const Generator gen = Generator{11}.fork(seed);
    const auto draw = [&](const char* what, double size) {
      return normal({1, 1, length, d}, gen.fork(what), 0, size, DType::f64);
    };
    const Tensor q = draw("q", deviation), k = draw("k", deviation), v = draw("v", 1);
    LinearAttentionOptions o;
    o.features = map;
    const Tensor w = random_projection(m, d, gen.fork("w"), ProjectionRows::gram_schmidt,
                                       ProjectionNorms::normal, DType::f64);
    const Tensor got = contiguous(linear_attention(q, k, v, w, o).out);
    const Tensor scores = matmul(q, transpose(k));
    const Tensor want = matmul(softmax(mul(scores, full_like(scores, 0.25))), v);
    const auto squares = [](const Tensor& x) { return sum(mul(x, x)).item(); };
    error += squares(sub(got, want));
    whole += squares(want);
  }
  return std::sqrt(error / whole);
}

/// More features approximate softmax better where norms are small; where they are not, a thousand
/// features are far from it.
TEST(RandomFeatures, ApproximateSoftmaxWhereNormsAreSmall) {
  for (const FeatureMap map : {FeatureMap::positive, FeatureMap::trigonometric}) {
    double last = 1;
    for (const int64_t m : {16, 64, 256, 1024}) {
      const double error = softmax_error(map, m, 0.5);
      EXPECT_LT(error, 0.8 * last) << m;
      last = error;
    }
    EXPECT_LT(last, 0.1);
    EXPECT_GT(softmax_error(map, 1024, 1), 0.5);
  }
}

}  // namespace
}  // namespace longspan
