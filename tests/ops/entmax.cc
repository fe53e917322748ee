#include "ops/entmax.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "autograd/engine.h"
#include "autograd/node.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/softmax.h"
#include "tests/harness/model_info.h"
#include "tests/harness/op_info.h"
#include "tests/ops/entmax_reference.h"

namespace longspan::test {
namespace {

Array entmax_reference(const Array& x, const std::function<double(int64_t)>& alpha) {
  int64_t r = 0;
  return naive::rows(x, [&](std::vector<double>& row) {
    entmax_row(row, alpha(r));
    ++r;
  });
}

std::vector<Sample> with_alphas() {
  std::vector<Sample> all;
  for (const double alpha : {1.0, 1.2, 1.5, 1.8, 2.0}) {
    const auto named = [&](const char* name) { return fmt::format("{} of {}", name, alpha); };
    all.push_back({named("rows"), {randn({5, 7})}, {alpha}});
    all.push_back({named("one column"), {randn({3, 1})}, {alpha}});
    all.push_back({named("vector"), {randn({9})}, {alpha}});
    all.push_back({named("deep"), {randn({2, 3, 2, 5})}, {alpha}});
    all.push_back({named("vectors and a bit"), {0.1 * randn({3, 37})}, {alpha}});
    all.push_back({named("long"), {randn({2, 130})}, {alpha}});
    all.push_back({named("wide range"), {5 * randn({4, 9})}, {alpha}});
    all.push_back({named("huge"), {constant(1e4 * randn({4, 9}))}, {alpha}});
    all.push_back({named("equal"), {constant(full({2, 21}, 3))}, {alpha}});
    all.push_back({named("masked"),
                   {constant(values({3, 3}, {-inf, 1, 1.2, -inf, -inf, -inf, 0, -inf, -inf}))},
                   {alpha}});
    all.push_back({named("infinite"),
                   {constant(values({3, 3}, {inf, 0, 1, -inf, 2, inf, 0, 1, 2}))},
                   {alpha}});
    all.push_back({named("empty"), {randn({0, 3})}, {alpha}});
    all.push_back({named("no columns"), {randn({3, 0})}, {alpha}});
  }
  return all;
}

std::vector<Sample> entmax_offset_samples() {
  std::vector<Sample> all;
  for (const double alpha : {1.0, 1.05, 1.2, 1.5, 1.8, 2.0}) {
    const auto named = [&](const char* name) { return fmt::format("{} of {}", name, alpha); };
    all.push_back({named("rows"), {randn({5, 7})}, {alpha}});
    all.push_back({named("equal"), {longspan::test::full({2, 21}, 3)}, {alpha}});
    all.push_back({named("long"), {randn({2, 130})}, {alpha}});
  }
  return all;
}

const Registered fixed_info = OpInfo{
    .name = "entmax",
    .run = [](Inputs in) { return entmax(in[0], in.number(0)); },
    .reference =
        [](Arrays in) { return entmax_reference(in[0], [&](int64_t) { return in.number(0); }); },
    .samples = with_alphas(),
    .large = {{"square", {randn({300, 257})}, {1.5}},
              {"sparse", {0.1 * randn({300, 257})}, {2}},
              {"any", {randn({9, 5000})}, {1.3}}},
    .rejects =
        {rejects<ShapeError>("rank 0", {scalar(1)}, "rank 1", {1.5}),
         rejects<DTypeError>("integers", {iota({3})}, "must be floating", {1.5}),
         rejects<ValueError>("below 1", {randn({3})}, "alpha is 0.9; expected 1 to 2", {0.9}),
         rejects<ValueError>("above 2", {randn({3})}, "alpha is 2.1; expected 1 to 2", {2.1}),
         rejects<ValueError>("not a number", {randn({3})}, "expected 1 to 2", {std::nan("")})},
    .saved_bytes =
        [](Inputs in) {
          const int64_t rows = in[0].numel() == 0 ? in[0].dim(0) * (in[0].dim(-1) == 0)
                                                  : in[0].numel() / in[0].dim(-1);
          const auto each = static_cast<int64_t>(size_of(accumulator_of(in[0].dtype())));
          return std::vector<int64_t>{in[0].nbytes(), rows * each};
        },
    .row_inputs = {0},
    .offset = {.inputs = {0}, .samples = entmax_offset_samples()},
    .nan = {.inputs = {0}},
    .tolerance = 2,
    .gradient_tolerance = 8,
    .reason = "y is the difference of two numbers of up to 1, and its gradient has a root of y",
};

const Registered learned_info = OpInfo{
    .name = "entmax of a tensor",
    .run = [](Inputs in) { return entmax(in[0], in[1]); },
    .reference =
        [](Arrays in) {
          Shape rows = in[0].shape;
          rows.erase(rows.rank() - 1);
          const Array alpha = naive::expand(in[1], rows);
          return entmax_reference(in[0], [&](int64_t r) { return alpha[r]; });
        },
    .samples = {{"each row", {randn({4, 9}), as(DType::f64, uniform({4}, 1.2, 1.9))}},
                {"each head", {randn({2, 3, 5, 8}), as(DType::f64, uniform({3, 1}, 1.2, 1.9))}},
                {"one", {randn({3, 21}), as(DType::f64, scalar(1.7))}},
                {"of one column", {randn({3, 1}), as(DType::f64, scalar(1.7))}},
                {"softmax and beyond 2",
                 {randn({3, 5}), as(DType::f64, constant(values({3}, {1.001, 2.5, 1.5})))}},
                {"empty", {randn({0, 3}), as(DType::f64, scalar(1.5))}}},
    .large = {{"large", {randn({300, 257}), as(DType::f64, uniform({300}, 1.2, 1.9))}}},
    .rejects = {rejects<ShapeError>("rows", {randn({4, 9}), uniform({3}, 1, 2)}, "[3]"),
                rejects<DTypeError>("integers", {randn({4, 9}), iota({4})}, "must be floating")},
    .saved_bytes =
        [](Inputs in) {
          const auto each = static_cast<int64_t>(size_of(accumulator_of(in[0].dtype())));
          const int64_t rows = in[0].numel() == 0 ? 0 : in[0].numel() / in[0].dim(-1);
          return std::vector<int64_t>{in[0].nbytes(), rows * each};
        },
    .offset = {.inputs = {0},
               .samples = {{"each row", {randn({4, 9}), as(DType::f64, uniform({4}, 1.2, 1.9))}}}},
    .nan = {.inputs = {0}},
    .tolerance = 2,
    .gradient_tolerance = 8,
    .reason = "y is the difference of two numbers of up to 1, and its gradient has a root of y",
    .expandable = false,
};

/// p . z - z_y + H(p), from the definition.
Array naive_loss(const Array& z, const Array& targets, double alpha) {
  Array losses(targets.shape);
  const int64_t n = z.dim(-1);
  for (int64_t r = 0; r < losses.size(); ++r) {
    std::vector<double> p(z.values.begin() + r * n, z.values.begin() + (r + 1) * n);
    const double own = z[r * n + static_cast<int64_t>(targets[r])];
    entmax_row(p, alpha);
    double powers = 0, entropy = 0;
    for (int64_t i = 0; i < n; ++i) {
      const double x = p[static_cast<size_t>(i)];
      losses[r] += x * (z[r * n + i] - own);
      powers += std::pow(x, alpha);
      entropy -= x > 0 ? x * std::log(x) : x;
    }
    losses[r] += alpha < 1.01 ? entropy : (1 - powers) / (alpha * (alpha - 1));
  }
  return losses;
}

std::vector<Sample> loss_samples() {
  std::vector<Sample> all;
  for (const double alpha : {1.0, 1.01, 1.2, 1.5, 2.0}) {
    const auto named = [&](const char* name) { return fmt::format("{} of {}", name, alpha); };
    all.push_back({named("rows"), {randn({5, 7}), integers({5}, 0, 6)}, {alpha}});
    all.push_back({named("two equal"), {full({1, 2}, 0), integers({1}, 0, 1)}, {alpha}});
    all.push_back({named("deep"), {randn({2, 3, 19}), integers({2, 3}, 0, 18)}, {alpha}});
  }
  return all;
}

const Registered loss_info = OpInfo{
    .name = "entmax_loss",
    .run = [](Inputs in) { return entmax_loss(in[0], in[1], in.number(0)); },
    .reference = [](Arrays in) { return naive_loss(in[0], in[1], in.number(0)); },
    .samples = loss_samples(),
    .large = {{"large", {randn({300, 257}), integers({300}, 0, 256)}, {1.5}}},
    .rejects = {rejects<ShapeError>("targets", {randn({3, 4}), integers({4}, 0, 3)},
                                    "targets must have the shape", {1.5})},
    .saved_bytes =
        [](Inputs in) {
          const auto number = static_cast<int64_t>(size_of(accumulator_of(in[0].dtype())));
          if (in.number(0) == 1) {
            return std::vector<int64_t>{in[0].nbytes(), in[1].nbytes()};
          }
          return std::vector<int64_t>{number * in[0].numel(), in[1].nbytes()};
        },
    .offset = {.inputs = {0}, .samples = loss_samples()},
    .nan = {.inputs = {0}},
    .tolerance = 8,
    .gradient_tolerance = 8,
    .reason = "the entropy is a difference of powers of p, divided by alpha - 1",
    .expandable = false,
};

Tensor entmax_numbers(const Shape& shape, double factor = 1) { return normals(shape, 4, factor); }

TEST(Entmax, IsTheNearestPointOfTheSimplexForTwo) {
  // sparsemax minimises |p - x|^2: x_i - p_i is one tau on the support, and x_i <= tau elsewhere.
  const Tensor x = entmax_numbers({20, 31}, 0.3), p = sparsemax(x);
  const auto xs = x.to_vector<double>(), ps = p.to_vector<double>();
  for (size_t r = 0; r < 20; ++r) {
    double tau = 0, sum = 0, support = 0;
    for (size_t i = 31 * r; i < 31 * (r + 1); ++i) {
      sum += ps[i];
      if (ps[i] > 0) tau += xs[i] - ps[i], ++support;
    }
    tau /= support;
    EXPECT_NEAR(sum, 1, 4e-16 * 31);
    EXPECT_GT(support, 1);
    EXPECT_LT(support, 31);
    for (size_t i = 31 * r; i < 31 * (r + 1); ++i) {
      EXPECT_GE(ps[i], 0);
      EXPECT_LE(xs[i] - ps[i], tau + 1e-14);
      EXPECT_GE(ps[i] > 0 ? xs[i] - ps[i] : tau, tau - 1e-14);
    }
  }
}

TEST(Entmax, KeepsOrderAndIgnoresShifts) {
  const Tensor x = entmax_numbers({6, 50});
  for (const double alpha : {1.0, 1.3, 1.5, 2.0}) {
    const Tensor p = entmax(x, alpha);
    EXPECT_LT(distance(entmax(add(x, 100), alpha), p), 1e-12) << alpha;
    const auto xs = x.to_vector<double>(), ps = p.to_vector<double>();
    for (size_t i = 0; i < 50; ++i) {
      for (size_t j = 0; j < 50; ++j) {
        EXPECT_TRUE(xs[i] <= xs[j] || ps[i] >= ps[j]) << alpha;
      }
    }
  }
}

TEST(Entmax, IsOneHotWhereTheLargestIsFarAhead) {
  const Tensor x = Tensor::from(std::vector<double>{0.5, 3, 2, -1}, {4});
  EXPECT_EQ(sparsemax(x).to_vector<double>(), (std::vector<double>{0, 1, 0, 0}));
  // For alpha the gap must be 1 / (alpha - 1).
  EXPECT_EQ(entmax(mul(x, 2), 1.5).to_vector<double>(), (std::vector<double>{0, 1, 0, 0}));
  EXPECT_GT(entmax(x, 1.5).to_vector<double>()[2], 0);
  EXPECT_EQ(entmax(mul(x, 100), 1.1).to_vector<double>(), (std::vector<double>{0, 1, 0, 0}));
}

TEST(Entmax, ComesNearSoftmax) {
  const Tensor x = entmax_numbers({8, 64});
  EXPECT_LT(distance(entmax(x, 1.009), softmax(x)), 1e-15);
  // They part in proportion to alpha - 1.
  const double near = distance(entmax(x, 1.01), softmax(x)),
               far = distance(entmax(x, 1.02), softmax(x));
  EXPECT_GT(near, 1e-5);
  EXPECT_NEAR(far / near, 2, 0.1);
}

TEST(Entmax, HasNoGradientOfAlphasThatCountAsOthers) {
  Tensor x = entmax_numbers({4, 9}, 0.3),
         alpha = Tensor::from(std::vector<double>{1.005, 1.5, 2, 2.5}, {4});
  set_requires_grad(alpha);
  const Tensor p = entmax(x, alpha);
  backward(p, entmax_numbers({4, 9}, 2));
  const auto slope = grad(alpha).to_vector<double>();
  EXPECT_EQ(slope[0], 0);
  EXPECT_NE(slope[1], 0);
  EXPECT_NE(slope[2], 0);
  EXPECT_EQ(slope[3], 0);
}

// A row whose result is NaN has a gradient of NaN, for every power.
TEST(Entmax, GivesNaNBackWhereItGivesNaN) {
  for (const double alpha : {1.0, 1.05, 1.5, 1.9, 2.0}) {
    Tensor x = Tensor::from(std::vector<float>{INFINITY, 0, 0, 1, 0, 0}, {2, 3});
    Tensor a = longspan::full({}, alpha);
    set_requires_grad(x);
    set_requires_grad(a);
    const Tensor y = entmax(x, a);
    backward(y, Tensor::from(std::vector<float>{1, 2, 4, 1, 2, 4}, {2, 3}));
    const auto out = y.detach().to_vector<float>(), dx = grad(x).to_vector<float>();
    for (size_t i = 0; i < 6; ++i) {
      EXPECT_EQ(std::isnan(out[i]), i < 3) << alpha;
      EXPECT_EQ(std::isnan(dx[i]), i < 3) << alpha;
    }
    EXPECT_EQ(std::isnan(grad(a).item()), alpha > 1) << alpha;
  }
}

// In f32 the formula with differences divided by (alpha - 1)^2 has errors of 2e-4 at 1.0101, and of
// 7e-2 with an offset of dy of 100.
TEST(Entmax, HasAnAccurateGradientOfAlphaNearSoftmax) {
  for (const double alpha : {1.0101, 1.02, 1.1, 1.5, 2.0}) {
    for (const double offset : {0.0, 100.0}) {  // a common offset of dy is no part of it
      std::vector<double> slopes[2];
      for (const DType dtype : {DType::f64, DType::f32}) {
        const auto given = [&](double factor, uint64_t seed) {
          return make(factor * randn({40, 50}), Generator{seed},
                      {dtype, DType::f32, Layout::contiguous, {}});
        };
        const Tensor x = given(1, 4), dy = add(given(1, 5), offset);
        Tensor a = longspan::full({40}, static_cast<float>(alpha), dtype);
        set_requires_grad(a);
        backward(entmax(x, a), dy);
        slopes[dtype == DType::f32] = cast(grad(a), DType::f64).to_vector<double>();
      }
      double squares = 0, errors = 0;
      for (size_t i = 0; i < 40; ++i) {
        squares += slopes[0][i] * slopes[0][i];
        errors += std::pow(slopes[1][i] - slopes[0][i], 2);
      }
      EXPECT_LT(std::sqrt(errors / squares), 2e-5) << alpha << " " << offset;
    }
  }
}

TEST(Entmax, GivesNaNForNaNAndPlusInfinity) {
  for (const double alpha : {1.0, 1.3, 1.5, 2.0}) {
    const Tensor x = Tensor::from(std::vector<double>{1, NAN, 0, 1, inf, 0, 1, 2, 3}, {3, 3});
    const auto y = entmax(x, alpha).to_vector<double>();
    for (size_t i = 0; i < 6; ++i) EXPECT_TRUE(std::isnan(y[i])) << alpha;
    for (size_t i = 6; i < 9; ++i) EXPECT_TRUE(std::isfinite(y[i])) << alpha;
  }
}

}  // namespace
}  // namespace longspan::test
