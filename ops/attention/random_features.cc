#include "ops/attention/random_features.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>
#include <vector>

#include "ops/copy.h"
#include "ops/random.h"

namespace longspan {
namespace {

constexpr const char* kRandomProjection = "random_projection";
constexpr int64_t kMostColumns = 1 << 20;

void check(int64_t m, int64_t d, DType dtype) {
  require(m >= 1 && d >= 1 && d <= kMostColumns, kRandomProjection,
          "{} rows and {} columns; expected at least one row and 1 to {} columns", m, d,
          kMostColumns);
  require<DTypeError>(dtype == DType::f32 || dtype == DType::f64, kRandomProjection,
                      "{}; expected f32 or f64", name_of(dtype));
}

/// A square matrix, row-major.
struct Square {
  int64_t n;
  std::vector<double> values;

  double* row(int64_t i) { return values.data() + i * n; }
};

Square identity_with_signs(int64_t n, Generator gen) {
  Square x{n, std::vector<double>(static_cast<size_t>(n * n), 0)};
  for (int64_t i = 0; i < n; ++i) x.row(i)[i] = (philox_word(gen.key, i) & 1u) != 0 ? 1 : -1;
  return x;
}

Square random_orthogonal(int64_t n, Generator gen) {
  return {n, orthogonal({n, n}, gen, 1.0, DType::f64).to_vector<double>()};
}

/// x H for the normalised Hadamard matrix, by butterflies.
void multiply_hadamard(Square& x) {
  const double half = std::sqrt(0.5);
  for (int64_t i = 0; i < x.n; ++i) {
    double* const row = x.row(i);
    for (int64_t step = 1; step < x.n; step *= 2) {
      for (int64_t j = 0; j < x.n; ++j) {
        if ((j & step) != 0) continue;
        const double a = row[j], b = row[j + step];
        row[j] = half * (a + b);
        row[j + step] = half * (a - b);
      }
    }
  }
}

/// H D1 H D2 H D3.
Square random_hadamard(int64_t n, Generator gen) {
  Square x{n, std::vector<double>(static_cast<size_t>(n * n), 0)};
  for (int64_t i = 0; i < n; ++i) x.row(i)[i] = 1;
  for (uint64_t factor = 0; factor < 3; ++factor) {
    multiply_hadamard(x);
    const Generator signs = gen.fork(factor);
    for (int64_t j = 0; j < n; ++j) {
      if ((philox_word(signs.key, j) & 1u) != 0) continue;
      for (int64_t i = 0; i < n; ++i) x.row(i)[j] = -x.row(i)[j];
    }
  }
  return x;
}

Square random_rotations(int64_t n, Generator gen) {
  Square x = identity_with_signs(n, gen.fork("signs"));
  if (n == 1) return x;
  const auto rounds = static_cast<int64_t>(std::ceil(std::log(static_cast<double>(n))));
  const Generator planes = gen.fork("planes"), angles = gen.fork("angles");
  for (int64_t r = 0; r < 3 * n * rounds; ++r) {
    const auto size = static_cast<uint64_t>(n);
    const auto word = [&](int64_t i) { return uint64_t{philox_word(planes.key, 4 * r + i)}; };
    const auto i = static_cast<int64_t>(to_range(word(0) << 32 | word(1), size));
    auto j = static_cast<int64_t>(to_range(word(2) << 32 | word(3), size - 1));
    if (j >= i) ++j;  // two different rows
    const double angle = 2 * std::numbers::pi * to_uniform(philox_word(angles.key, r));
    const double c = std::cos(angle), s = std::sin(angle);
    for (int64_t k = 0; k < n; ++k) {
      const double a = x.row(i)[k], b = x.row(j)[k];
      x.row(i)[k] = c * a - s * b;
      x.row(j)[k] = s * a + c * b;
    }
  }
  return x;
}

Square random_block(int64_t n, ProjectionRows rows, Generator gen) {
  switch (rows) {
    case ProjectionRows::hadamard:
      return random_hadamard(n, gen);
    case ProjectionRows::givens:
      return random_rotations(n, gen);
    default:
      return random_orthogonal(n, gen);
  }
}

}  // namespace

Tensor random_projection(int64_t m, int64_t d, Generator gen, ProjectionRows rows,
                         ProjectionNorms norms, DType dtype, Device device) {
  check(m, d, dtype);
  const int64_t n = rows == ProjectionRows::hadamard
                        ? static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(d)))
                        : d;
  std::vector<double> w;
  for (int64_t block = 0; block * n < m; ++block) {
    const Generator own = gen.fork(static_cast<uint64_t>(block));
    const int64_t count = std::min(n, m - block * n);
    // A row of normal numbers: the row itself, or its norm.
    const std::vector<double> drawn =
        normal({count, n}, own.fork("normal"), 0, 1, DType::f64).to_vector<double>();
    Square q{n, {}};
    if (rows != ProjectionRows::iid) q = random_block(n, rows, own.fork("block"));
    for (int64_t i = 0; i < count; ++i) {
      const double* const z = drawn.data() + i * n;
      double squares = 0;
      for (int64_t c = 0; c < n; ++c) squares += z[c] * z[c];
      const bool iid = rows == ProjectionRows::iid;
      double factor =
          norms == ProjectionNorms::normal ? std::sqrt(squares) : std::sqrt(static_cast<double>(n));
      if (iid) factor = norms == ProjectionNorms::normal ? 1 : factor / std::sqrt(squares);
      for (int64_t c = 0; c < d; ++c) w.push_back(factor * (iid ? z[c] : q.row(i)[c]));
    }
  }
  return to_device(cast(Tensor::from(w, {m, d}), dtype), device);
}

Tensor random_phases(int64_t m, Generator gen, DType dtype, Device device) {
  check(m, 1, dtype);
  return uniform({m}, gen, 0, 2 * std::numbers::pi, dtype, device);
}

int64_t default_features(int64_t d) {
  require(d >= 1, "default_features", "width {}; expected 1 or more", d);
  const auto width = static_cast<double>(d);
  return std::max<int64_t>(1, static_cast<int64_t>(width * std::log(width)));
}

}  // namespace longspan
