#include "ops/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "autograd/engine.h"
#include "autograd/mode.h"
#include "autograd/node.h"
#include "core/memory.h"
#include "core/scope.h"
#include "ops/attention/block_attention.h"
#include "ops/copy.h"
#include "ops/reduce.h"
#include "ops/shape.h"
#include "tests/harness/messages.h"
#include "tests/ops/picking.h"

namespace longspan::test {
namespace {

const Generator kGen = Generator{11}.fork("tests");

/// Scalar arguments of a sample: p and the first row.
const Registered dropout_info = OpInfo{
    .name = "dropout",
    .run =
        [](Inputs in) {
          return dropout(in[0], in.number(0),
                         {.training = true, .gen = kGen, .row = in.integer(1)});
        },
    .reference =
        [](Arrays in) {
          const double p = in.number(0);
          const int64_t width = in[0].shape.rank() > 0 ? in[0].dim(-1) : 1;
          Array y = in[0];
          for (int64_t i = 0; i < y.size(); ++i) {
            const uint32_t word = philox_word(kGen.key, in.integer(1) * width + i);
            y[i] = p == 0 ? y[i] : word >= p * 4294967296.0 ? y[i] / (1 - p) : 0.0;
          }
          return y;
        },
    .samples = {{"rows", {randn({5, 7})}, {0.3, 0}},
                {"later rows", {randn({4, 7})}, {0.3, 5}},
                {"rank 0", {randn({})}, {0.5, 1}},
                {"empty", {randn({0, 3})}, {0.5, 0}},
                {"keep all", {randn({3, 4})}, {0, 0}},
                {"drop all", {randn({3, 4})}, {1, 0}},
                {"deep", {randn({2, 3, 2, 5})}, {0.1, 3}},
                {"nearly all", {randn({4, 33})}, {0.999, 0}}},
    .large = {{"large", {randn({300, 257})}, {0.1, 3}}},
    .rejects = {rejects<ValueError>("above 1", {randn({3})}, "a probability of 1.5", {1.5, 0}),
                rejects<ValueError>("below 0", {randn({3})}, "needs 0 <= p <= 1", {-0.1, 0}),
                rejects<ValueError>("not a number", {randn({3})}, "a probability of nan", {NAN, 0}),
                rejects<DTypeError>("integers", {iota({3})}, "floating", {0.5, 0})},
};

/// Returns a draw, which takes its shape and dtype from the sample's input.
OpInfo drawer(std::string name, std::function<Results<Tensor>(Inputs)> run,
              std::function<double(int64_t, Arrays)> element) {
  return {
      .name = std::move(name),
      .run = std::move(run),
      .reference =
          [element](Arrays in) {
            Array y(in[0].shape);
            for (int64_t i = 0; i < y.size(); ++i) y[i] = element(i, in);
            return y;
          },
      .samples = {{"rows", {randn({5, 7})}},
                  {"rank 0", {randn({})}},
                  {"empty", {randn({0, 3})}},
                  {"odd", {randn({1, 3001})}}},
      .large = {{"large", {randn({300, 257})}}},
      .differentiable = false,
  };
}

const Registered uniform_info = drawer(
    "uniform",
    [](Inputs in) { return longspan::uniform(in[0].shape(), kGen, -2, 5, in[0].dtype()); },
    [](int64_t i, Arrays) {
      return double{rounded_add(-2.0f, 7.0f * to_uniform(philox_word(kGen.key, i)))};
    });

/// Computes the Box-Muller formula in f64 from the random words of element i.
double box_muller(int64_t i) {
  const float rounded_word = static_cast<float>(philox_word(kGen.key, i / 2 * 2)) + 0.5f;
  const double u = static_cast<double>(rounded_word) / 4294967296.0;
  const double t = to_uniform(philox_word(kGen.key, i / 2 * 2 + 1));
  const double r = std::sqrt(-2 * std::log(u)), angle = 6.283185307179586 * t;
  return r * (i % 2 == 0 ? std::cos(angle) : std::sin(angle));
}

OpInfo normal_entry() {
  OpInfo op = drawer(
      "normal", [](Inputs in) { return normal(in[0].shape(), kGen, 0.5, 3, in[0].dtype()); },
      [](int64_t i, Arrays) { return 0.5 + 3 * box_muller(i); });
  op.dtypes = {DType::f32, DType::f16, DType::bf16};  // values are computed in f32
  return op;
}
const Registered normal_info = normal_entry();

OpInfo truncated_entry() {
  OpInfo op = drawer(
      "truncated_normal",
      [](Inputs in) {
        return truncated_normal(in[0].shape(), kGen, -1, 2, -0.5, 1, in[0].dtype());
      },
      [](int64_t i, Arrays) {
        for (uint32_t attempt = 0;; ++attempt) {
          const float z = philox_normal(kGen.key, i, attempt);
          if (z >= -0.5f && z <= 1.0f) return double{rounded_add(-1.0f, 2.0f * z)};
        }
      });
  op.rejects = {rejects<ValueError>("unlikely", {}, "holds 0.13 % of the draws", {},
                                    [](Inputs) { truncated_normal({3}, kGen, 0, 1, 3, 9); }),
                rejects<ValueError>("nothing", {}, "needs 1 %", {},
                                    [](Inputs) { truncated_normal({3}, kGen, 0, 1, 1, -1); }),
                rejects<ValueError>("negative deviation", {}, "standard deviation -1", {},
                                    [](Inputs) { normal({3}, kGen, 0, -1); }),
                rejects<DTypeError>("integers", {}, "i64 is not floating", {},
                                    [](Inputs) { normal({3}, kGen, 0, 1, DType::i64); })};
  return op;
}
const Registered truncated_info = truncated_entry();

OpInfo bernoulli_entry() {
  OpInfo op = drawer(
      "bernoulli", [](Inputs in) { return bernoulli(in[0].shape(), kGen, 0.3, in[0].dtype()); },
      [](int64_t i, Arrays) { return philox_word(kGen.key, i) < 0.3 * 4294967296.0 ? 1.0 : 0.0; });
  op.dtypes = {DType::f32, DType::bf16, DType::i64, DType::i32, DType::u8};
  op.rejects = {rejects<ValueError>("above 1", {}, "a probability of 2", {},
                                    [](Inputs) { bernoulli({3}, kGen, 2); })};
  return op;
}
const Registered bernoulli_info = bernoulli_entry();

OpInfo randint_entry() {
  OpInfo op = drawer(
      "randint", [](Inputs in) { return randint(in[0].shape(), kGen, 3, 103, in[0].dtype()); },
      [](int64_t i, Arrays) {
        const double bits =
            philox_word(kGen.key, 2 * i + 1) + philox_word(kGen.key, 2 * i) / 4294967296.0;
        return 3 + std::floor(bits / 4294967296.0 * 100);
      });
  op.dtypes = {DType::i64, DType::i32, DType::u8};
  op.rejects = {rejects<ValueError>("empty", {}, "from 3 to below 3", {},
                                    [](Inputs) { randint({2}, kGen, 3, 3); }),
                rejects<ValueError>("too large", {}, "beyond u8", {},
                                    [](Inputs) { randint({2}, kGen, 0, 257, DType::u8); }),
                rejects<ValueError>("negative bytes", {}, "beyond u8", {},
                                    [](Inputs) { randint({2}, kGen, -1, 5, DType::u8); }),
                rejects<DTypeError>("floating", {}, "f32 is not integer", {},
                                    [](Inputs) { randint({2}, kGen, 0, 5, DType::f32); })};
  op.optional = {0};  // it only gives the shape and dtype
  return op;
}
const Registered randint_info = randint_entry();

TEST(Random, NormalIsNormal) {
  const int64_t n = 1 << 20;
  std::vector<float> x = normal({n}, kGen.fork("ks")).to_vector<float>();
  double mean = 0, square = 0, fourth = 0, neighbours = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double v = x[static_cast<size_t>(i)];
    mean += v / n;
    square += v * v / n;
    fourth += v * v * v * v / n;
    neighbours += v * x[static_cast<size_t>((i + 1) % n)] / n;
  }
  EXPECT_NEAR(mean, 0, 5 / std::sqrt(n));
  EXPECT_NEAR(square, 1, 5 * std::sqrt(2.0 / n));
  EXPECT_NEAR(fourth, 3, 5 * std::sqrt(96.0 / n));
  EXPECT_NEAR(neighbours, 0, 5 / std::sqrt(n));
  std::sort(x.begin(), x.end());
  double distance = 0;  // Kolmogorov-Smirnov distance
  for (int64_t i = 0; i < n; ++i) {
    const double expected = 0.5 * std::erfc(-x[static_cast<size_t>(i)] * std::sqrt(0.5));
    distance = std::max(distance, std::abs(expected - (i + 0.5) / n));
  }
  EXPECT_LT(distance * std::sqrt(n), 1.95);  // 0.1 %
}

TEST(Random, UniformAndIntegersAreUniform) {
  const int64_t n = 1 << 20, cells = 256;
  std::vector<int64_t> count(cells), whole(cells);
  for (const float v : longspan::uniform({n}, kGen.fork("cells")).to_vector<float>()) {
    ++count[static_cast<size_t>(v * cells)];
  }
  for (const int64_t v : randint({n}, kGen.fork("cells"), 0, cells).to_vector<int64_t>()) {
    ++whole[static_cast<size_t>(v)];
  }
  for (const auto& c : {count, whole}) {
    double chi = 0;
    for (const int64_t k : c) chi += std::pow(k - n / cells, 2) / (n / cells);
    EXPECT_NEAR(chi, cells - 1, 5 * std::sqrt(2.0 * (cells - 1)));
  }
}

TEST(Random, TruncatedStaysInsideWithTheRightSpread) {
  const int64_t n = 1 << 18;
  double square = 0;
  for (const float v : truncated_normal({n}, kGen.fork("cut")).to_vector<float>()) {
    ASSERT_LE(std::abs(v), 2.0f);
    square += v * v / n;
  }
  EXPECT_NEAR(square, 0.7737413, 0.01);  // variance of a normal truncated at two deviations
}

TEST(Random, PermutationHoldsEachOnceAndDependsOnTheKey) {
  for (const int64_t n : {0, 1, 2, 257, 10000}) {
    std::vector<int64_t> p = permutation(n, kGen).to_vector<int64_t>();
    EXPECT_EQ(p != permutation(n, kGen.fork(1)).to_vector<int64_t>(), n > 2);
    EXPECT_EQ(p, permutation(n, kGen).to_vector<int64_t>());
    std::sort(p.begin(), p.end());
    EXPECT_EQ(p, longspan::iota(n).to_vector<int64_t>());
  }
  // All 24 orders of four elements occur about equally often.
  std::map<std::vector<int32_t>, int> seen;
  for (uint64_t i = 0; i < 24000; ++i) {
    ++seen[permutation(4, kGen.fork(i), DType::i32).to_vector<int32_t>()];
  }
  EXPECT_EQ(seen.size(), 24u);
  for (const auto& [order, times] : seen) EXPECT_NEAR(times, 1000, 160);
}

TEST(Random, OrthogonalIsOrthogonal) {
  for (const Shape& shape : {Shape{5, 5}, Shape{7, 3}, Shape{3, 7}, Shape{1, 4}, Shape{4, 1},
                             Shape{6, 2, 5}, Shape{130, 70}, Shape{1, 1}}) {
    const int64_t rows = shape[0], columns = numel(shape) / rows;
    const std::vector<double> q =
        orthogonal(shape, kGen.fork("q"), 3.0, DType::f64).to_vector<double>();
    const bool wide = rows <= columns;
    const int64_t k = std::min(rows, columns), length = std::max(rows, columns);
    const auto at = [&](int64_t i, int64_t j) {
      return q[static_cast<size_t>(wide ? i * columns + j : j * columns + i)];
    };
    for (int64_t a = 0; a < k; ++a) {
      for (int64_t b = 0; b < k; ++b) {
        double dot = 0;
        for (int64_t j = 0; j < length; ++j) dot += at(a, j) * at(b, j);
        EXPECT_NEAR(dot, a == b ? 9 : 0, 1e-13 * static_cast<double>(length)) << to_string(shape);
      }
    }
  }
  EXPECT_EQ(numel(orthogonal({0, 4}, kGen).shape()), 0);
  EXPECT_THROW(orthogonal({4}, kGen), ShapeError);
}

TEST(Random, OrthogonalIsGramSchmidtOfTheNormalDraw) {
  const int64_t n = 6, m = 9;
  const std::vector<double> x = normal({n, m}, kGen, 0, 1, DType::f64).to_vector<double>();
  std::vector<std::vector<double>> rows;
  for (int64_t i = 0; i < n; ++i) {
    std::vector<double> v(x.begin() + i * m, x.begin() + (i + 1) * m);
    for (int twice = 0; twice < 2; ++twice) {
      for (const auto& u : rows) {
        double dot = 0;
        for (size_t j = 0; j < v.size(); ++j) dot += u[j] * v[j];
        for (size_t j = 0; j < v.size(); ++j) v[j] -= dot * u[j];
      }
    }
    double norm = 0;
    for (const double c : v) norm += c * c;
    for (double& c : v) c /= std::sqrt(norm);
    rows.push_back(v);
  }
  const std::vector<double> q = orthogonal({n, m}, kGen, 1, DType::f64).to_vector<double>();
  const std::vector<double> tall = orthogonal({m, n}, kGen, 1, DType::f64).to_vector<double>();
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < m; ++j) {
      const double want = rows[static_cast<size_t>(i)][static_cast<size_t>(j)];
      EXPECT_NEAR(q[static_cast<size_t>(i * m + j)], want, 1e-12);
      EXPECT_NEAR(tall[static_cast<size_t>(j * n + i)], want, 1e-12);
    }
  }
}

TEST(Dropout, AChunkDrawsWhatTheWholeWould) {
  const Tensor x = longspan::ones({40, 13});
  const Pass pass{.training = true, .gen = kGen};
  const Tensor whole = dropout(x, 0.4, pass);
  for (const auto& [begin, end] : {std::pair{0, 7}, std::pair{7, 8}, std::pair{8, 40}}) {
    Pass part = pass;
    part.row = begin;
    EXPECT_EQ(dropout(slice(x, 0, begin, end), 0.4, part).to_vector<float>(),
              slice(whole, 0, begin, end).to_vector<float>());
  }
}

TEST(Dropout, WithoutTrainingOrChanceItIsX) {
  const Tensor x = longspan::ones({4, 5});
  const int64_t before = memory_tracker().allocations();
  EXPECT_TRUE(dropout(x, 0.5, Pass{}).shares_storage(x));
  EXPECT_TRUE(dropout(x, 0.0, {.training = true, .gen = kGen}).shares_storage(x));
  EXPECT_EQ(memory_tracker().allocations(), before);
}

TEST(RngReuseCheck, NamesBothSitesOfOneLabel) {
  const Pass pass{.training = true, .gen = kGen};
  const Tensor x = ones({4, 6});
  const auto drop = [&](const char* scope, const Pass& site) {
    const Scope inside(scope);
    dropout(x, 0.5, site);
  };
  {
    const RngReuseCheck watch;
    drop("first", pass.at("a"));
    drop("second", pass.at("b"));
    EXPECT_EQ(watch.draws(), 2u);
    const std::string text = message_of<ValueError>([&] { drop("third", pass.at("a")); });
    EXPECT_NE(text.find("dropout: the same random numbers are drawn twice, before in first and now "
                        "in third"),
              std::string::npos)
        << text;
    EXPECT_THROW(uniform({3}, pass.at("b").gen), ValueError);
    const Tensor q = ones({1, 1, 4, 2});
    EXPECT_THROW(block_attention(q, q, q, patterns::causal(), {}, {0.5, pass.at("a")}), ValueError);
    const Replay again;
    EXPECT_NO_THROW(drop("third", pass.at("a")));
  }
  drop("third", pass.at("a"));  // no check is active
}

TEST(RngReuseCheck, OtherRowsAndWhatDrawsNothingAreFine) {
  const RngReuseCheck watch;
  Pass pass{.training = true, .gen = kGen};
  Tensor x = ones({4, 6});
  set_requires_grad(x);
  for (const int64_t row : {0, 4, 8}) {
    pass.row = row;
    backward(sum(dropout(x, 0.5, pass)));  // backward draws the same values again
  }
  dropout(x, 0.0, pass);
  pass.training = false;
  dropout(x, 0.5, pass);
  EXPECT_EQ(watch.draws(), 3u);
  pass.training = true;
  pass.row = 7;
  EXPECT_THROW(dropout(x, 0.5, pass), ValueError);
  const RngReuseCheck inner;
  EXPECT_NO_THROW(dropout(x, 0.5, pass));
}

TEST(Dropout, KeepsTheMeanAndHoldsNothing) {
  Tensor x = longspan::ones({1000, 100});
  set_requires_grad(x);
  const int64_t before = memory_tracker().live()[Category::saved];
  const Tensor y = dropout(x, 0.1, {.training = true, .gen = kGen});
  EXPECT_EQ(memory_tracker().live()[Category::saved], before);
  double mean = 0;
  for (const float v : y.to_vector<float>()) mean += v / 1e5;
  EXPECT_NEAR(mean, 1, 0.01);
  backward(y, ones_like(y));
  EXPECT_EQ(grad(x).to_vector<float>(), y.to_vector<float>());  // the same mask again
}

}  // namespace
}  // namespace longspan::test
