#include "ops/attention/linear_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "autograd/engine.h"
#include "autograd/gradcheck.h"
#include "autograd/mode.h"
#include "core/parallel.h"
#include "ops/copy.h"
#include "ops/cost.h"
#include "ops/elementwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/shape.h"
#include "tests/harness/op_info.h"
#include "tests/ops/attention_oracle.h"
#include "tests/ops/linear_oracle.h"

namespace longspan::linear_test {
namespace {

using attention_test::leaf;
using attention_test::values_of;
using test::to_array;

constexpr FeatureMap kMaps[] = {
    FeatureMap::positive, FeatureMap::hyperbolic, FeatureMap::trigonometric, FeatureMap::phase,
    FeatureMap::exp,      FeatureMap::relu,       FeatureMap::elu_plus_one,  FeatureMap::abs,
    FeatureMap::square,   FeatureMap::gelu,       FeatureMap::sigmoid,       FeatureMap::tanh,
    FeatureMap::identity};
static_assert(std::size(kMaps) == kernels::feature_map_count);

struct Sizes {
  int64_t batch = 1, heads = 1, queries = 1, keys = 1, width = 1, value_width = 1, m = 0;
};

bool signed_features(FeatureMap map) {
  return map == FeatureMap::gelu || map == FeatureMap::tanh || map == FeatureMap::identity ||
         map == FeatureMap::phase || map == FeatureMap::trigonometric;
}

/// A call: tensors in f64, and the options.
struct Call {
  Tensor q, k, v, projection;
  LinearAttentionOptions options;
};

Call call(const Sizes& n, FeatureMap map, bool causal, double size = 1, uint64_t seed = 1) {
  const Generator gen{seed};
  const auto draw = [&](const Shape& shape, const char* name, double deviation) {
    return normal(shape, gen.fork(name), 0, deviation, DType::f64);
  };
  Call x;
  x.options.features = map;
  x.options.causal = causal;
  // Kernels that may have either sign get inputs that keep denominators away from 0.
  const bool positive = signed_features(map) && !kernels::is_oscillating(map);
  const double deviation = kernels::is_oscillating(map) ? 0.4 * size : size;
  x.q = draw({n.batch, n.heads, n.queries, n.width}, "q", deviation);
  x.k = draw({n.batch, n.heads, n.keys, n.width}, "k", deviation);
  x.v = draw({n.batch, n.heads, n.keys, n.value_width}, "v", 1);
  if (positive) {
    x.q = add(abs(x.q), full_like(x.q, 0.2));
    x.k = add(abs(x.k), full_like(x.k, 0.2));
  }
  if (n.m > 0) {
    x.projection = draw({n.m, n.width}, "projection", 1);
    if (positive) x.projection = abs(x.projection);
    if (map == FeatureMap::phase) {
      x.options.phase = uniform({n.m}, gen.fork("phase"), 0, 6.283, DType::f64);
    }
  }
  return x;
}

Tensor wide(const Tensor& x, DType dtype) { return x ? cast(x, accumulator_of(dtype)) : Tensor{}; }

LinearAttentionResult run(const Call& x, DType dtype) {
  LinearAttentionOptions o = x.options;
  o.phase = wide(o.phase, dtype);
  o.state = {wide(o.state.sums, dtype), wide(o.state.top, dtype)};
  return linear_attention(cast(x.q, dtype), cast(x.k, dtype), cast(x.v, dtype),
                          wide(x.projection, dtype), o);
}

Array array_of(const Tensor& x) { return x ? to_array(x) : linear_test::absent(); }

Solution solve(const Call& x) {
  Problem p;
  p.q = array_of(x.q), p.k = array_of(x.k), p.v = array_of(x.v);
  p.projection = array_of(x.projection), p.phase = array_of(x.options.phase);
  p.lengths = array_of(x.options.key_lengths), p.hidden = array_of(x.options.hidden_keys);
  p.sums = array_of(x.options.state.sums), p.top = array_of(x.options.state.top);
  p.map = x.options.features;
  p.causal = x.options.causal;
  p.scale = x.options.scale != 0             ? x.options.scale
            : kernels::norm_sign(p.map) != 0 ? std::pow(static_cast<double>(x.q.dim(3)), -0.25)
                                             : 1;
  p.epsilon = x.options.epsilon;
  p.floor = x.options.floor >= 0 ? x.options.floor : kernels::is_oscillating(p.map) ? 1e-6 : 0;
  return linear_test::solve(p);
}

/// Returns the largest difference relative to the largest value of b (at least 1).
double distance(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double worst = 0, scale = 1;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double d = a[i] == b[i] ? 0 : std::abs(a[i] - b[i]);
    if (!(d <= worst) && !std::isnan(worst)) worst = d;
    if (std::isfinite(b[i])) scale = std::max(scale, std::abs(b[i]));
  }
  return worst / scale;
}

std::string describe(const Call& x) {
  return fmt::format("map {} causal {} q {} k {} v {} projection {}",
                     static_cast<int>(x.options.features), x.options.causal, to_string(x.q.shape()),
                     to_string(x.k.shape()), to_string(x.v.shape()),
                     x.projection ? to_string(x.projection.shape()) : "none");
}

void expect_near(const LinearAttentionResult& y, const Solution& want, double tolerance,
                 const std::string& what) {
  EXPECT_LE(distance(values_of(y.out), want.out.values), tolerance) << what << " out";
  EXPECT_LE(distance(values_of(y.normalizer), want.normalizer.values), tolerance)
      << what << " normalizer";
  if (!y.state.sums) return;
  const Tensor sums = cast(y.state.sums, DType::f64), top = cast(y.state.top, DType::f64);
  const Tensor whole = mul(sums, exp(mul(unsqueeze(top, 3), full({}, std::log(2.0), DType::f64))));
  EXPECT_LE(distance(values_of(whole), want.sums.values), tolerance) << what << " state";
}

bool needs_projection(FeatureMap map) { return kernels::norm_sign(map) != 0; }

/// Calls f(map, m) for every map, with a projection and, where it may be left out, without.
template <class F>
void for_maps(int64_t m, F f) {
  for (const FeatureMap map : kMaps) {
    f(map, m);
    if (!needs_projection(map)) f(map, 0);
  }
}

// ------------------------------------------------------------------------------------- the oracle

TEST(LinearAttention, EqualsTheKernelOfEveryPair) {
  for_maps(9, [](FeatureMap map, int64_t m) {
    for (const int64_t length : {1, 2, 11, 12, 13, 31, 33, 63, 64, 65, 96, 97, 200}) {
      for (const bool causal : {false, true}) {
        const Call x = call({1, 2, length, causal ? length : length + 5, 7, 5, m}, map, causal);
        expect_near(run(x, DType::f64), solve(x), 1e-12, describe(x));
        expect_near(run(x, DType::f32), solve(x), 2e-5, describe(x) + " f32");
      }
    }
  });
}

TEST(LinearAttention, EveryWidth) {
  for (const FeatureMap map : {FeatureMap::positive, FeatureMap::trigonometric, FeatureMap::relu}) {
    for (const int64_t width : {1, 15, 16, 17, 33, 64, 100}) {
      for (const int64_t m : {1, 4, 31, 32, 33, 70}) {
        const Call x = call({1, 1, 40, 40, width, 103 - width, m}, map, true, 0.5);
        expect_near(run(x, DType::f64), solve(x), 1e-12, describe(x));
        expect_near(run(x, DType::f32), solve(x), 5e-5, describe(x) + " f32");
      }
    }
  }
}

TEST(LinearAttention, ProjectionsOfEachHead) {
  for (const FeatureMap map : {FeatureMap::positive, FeatureMap::phase}) {
    Call x = call({2, 3, 50, 50, 6, 4, 8}, map, true);
    x.projection = normal({3, 8, 6}, Generator{8}, 0, 1, DType::f64);
    if (map == FeatureMap::phase) {
      x.options.phase = uniform({3, 8}, Generator{9}, 0, 6, DType::f64);
    }
    expect_near(run(x, DType::f64), solve(x), 1e-11, describe(x));
  }
}

TEST(LinearAttention, HiddenKeys) {
  for_maps(9, [](FeatureMap map, int64_t m) {
    for (const bool causal : {false, true}) {
      Call x = call({2, 2, 120, 120, 5, 4, m}, map, causal);
      x.options.keep_state = true;
      std::vector<uint8_t> hidden(240);
      for (size_t i = 0; i < hidden.size(); ++i)
        hidden[i] = i < 3 || i % 7 == 3 || i == 120 ? 1 : 0;
      x.options.hidden_keys = Tensor::from(hidden, {2, 120});
      x.options.key_lengths = Tensor::from(std::vector<int64_t>{77, 120}, {2});
      expect_near(run(x, DType::f64), solve(x), 1e-12, describe(x));
      expect_near(run(x, DType::f32), solve(x), 2e-5, describe(x) + " f32");
    }
  });
}

TEST(LinearAttention, WithoutAKeyTheOutputIsZero) {
  for (const FeatureMap map : kMaps) {
    for (const bool causal : {false, true}) {
      Call x = call({2, 1, 30, 30, 4, 3, 6}, map, causal);
      x.options.key_lengths = Tensor::from(std::vector<int64_t>{0, 30}, {2});
      set_requires_grad(x.q), set_requires_grad(x.k), set_requires_grad(x.v);
      const LinearAttentionResult y = run(x, DType::f64);
      backward(sum(y.out));
      for (const Tensor& t : {y.out, grad(x.q), grad(x.k), grad(x.v)}) {
        const std::vector<double> none = values_of(contiguous(select(t.detach(), 0, 0)));
        EXPECT_EQ(none, std::vector<double>(none.size(), 0)) << describe(x);
      }
      EXPECT_LE(distance(values_of(y.out), solve(x).out.values), 1e-12) << describe(x);
    }
  }
}

/// A query that is not a number reaches no result without a key, no key that does not exist, and
/// with causality no later one.
TEST(LinearAttention, NaNReachesOnlyWhatItSees) {
  constexpr int64_t at = 9;  // not the last of a group of rows
  for (const FeatureMap map : kMaps) {
    for (const bool causal : {false, true}) {
      Call x = call({2, 1, 30, 30, 4, 3, 6}, map, causal);
      x.options.key_lengths = Tensor::from(std::vector<int64_t>{0, 20}, {2});
      Call wrong = x;
      const Tensor row = full({2, 1, 1, 4}, NAN, DType::f64);
      wrong.q = concat({narrow(x.q, 2, 0, at), row, narrow(x.q, 2, at + 1, 29 - at)}, 2);
      const auto results = [](Call c) {
        for (Tensor* t : {&c.q, &c.k, &c.v}) *t = leaf(contiguous(*t));
        const Tensor out = run(c, DType::f64).out;
        backward(sum(mul(out, add(out, 1.0))));
        return std::vector<Tensor>{out.detach(), grad(c.q), grad(c.k), grad(c.v)};
      };
      const auto with = results(wrong), without = results(x);
      for (size_t n = 0; n < with.size(); ++n) {
        SCOPED_TRACE(describe(x) + " " + std::to_string(n));
        const auto rows = [n](const std::vector<Tensor>& all, int64_t sample, int64_t from,
                              int64_t to) {
          return values_of(contiguous(narrow(select(all[n], 0, sample), 1, from, to - from)));
        };
        const std::vector<double> blind = rows(with, 0, 0, 30);
        EXPECT_EQ(blind, std::vector<double>(blind.size(), 0));
        const bool of_keys = n > 1;
        const std::vector<double> missing = rows(with, 1, 20, 30);
        if (of_keys) {
          EXPECT_EQ(missing, std::vector<double>(missing.size(), 0));
        }
        if (of_keys && !causal) continue;  // it sees them all
        EXPECT_LE(distance(rows(with, 1, at + 1, 30), rows(without, 1, at + 1, 30)), 1e-12);
        if (!of_keys) {
          EXPECT_LE(distance(rows(with, 1, 0, at), rows(without, 1, 0, at)), 1e-12);
        }
        for (const double v : rows(with, 1, at, at + 1)) EXPECT_TRUE(std::isnan(v));
      }
    }
  }
}

/// Padding may hold anything, even what is not a number.
TEST(LinearAttention, PaddedKeysChangeNothing) {
  for (const FeatureMap map : kMaps) {
    for (const bool causal : {false, true}) {
      Call x = call({1, 2, 70, 70, 5, 4, 6}, map, causal);
      Call padded = x;
      const Tensor junk = full({1, 2, 30, 5}, NAN, DType::f64);
      padded.q = concat({x.q, normal({1, 2, 30, 5}, Generator{4}, 0, 1, DType::f64)}, 2);
      padded.k = concat({x.k, junk}, 2);
      padded.v = concat({x.v, narrow(junk, 3, 0, 4)}, 2);
      padded.options.key_lengths = Tensor::from(std::vector<int64_t>{70}, {1});
      const auto grads = [](Call c) {
        for (Tensor* t : {&c.q, &c.k, &c.v}) *t = leaf(contiguous(*t));
        const Tensor out = narrow(run(c, DType::f64).out, 2, 0, 70);
        backward(sum(mul(out, out)));
        std::vector<std::vector<double>> all = {values_of(contiguous(out))};
        for (const Tensor& t : {c.q, c.k, c.v}) {
          all.push_back(values_of(contiguous(narrow(grad(t), 2, 0, 70))));
        }
        return all;
      };
      const auto a = grads(padded), b = grads(x);
      for (size_t i = 0; i < a.size(); ++i) {
        EXPECT_LE(distance(a[i], b[i]), 1e-12) << describe(x) << " " << i;
      }
    }
  }
}

// -------------------------------------------------------------------------------- the stabilisers

/// Norms of thousands: all but a few pairs have kernels of 0, and every row differs in its largest.
TEST(LinearAttention, LargeInputsLoseNothing) {
  for (const FeatureMap map : {FeatureMap::positive, FeatureMap::hyperbolic, FeatureMap::exp}) {
    for (const bool causal : {false, true}) {
      const Call x = call({1, 2, 110, 110, 16, 4, 12}, map, causal, 30);
      const Solution want = solve(x);
      expect_near(run(x, DType::f64), want, 1e-9, describe(x));
      // In f32 the exponents, of thousands, are rounded to steps of 2^-12: check what that allows.
      const LinearAttentionResult y = run(x, DType::f32);
      for (const double value : values_of(y.out)) EXPECT_TRUE(std::isfinite(value));
      for (const double value : values_of(y.normalizer)) EXPECT_TRUE(std::isfinite(value));
    }
  }
}

/// Keys whose exponents rise by `step` nats from one to the next, by their norms where these count.
Call rising(FeatureMap map, double step, int64_t length) {
  Call x = call({1, 1, length, length, 4, 3, 6}, map, true, 0.5);
  std::vector<double> k = values_of(x.k);
  const int sign = kernels::norm_sign(map);
  for (int64_t j = 0; j < length; ++j) {
    const auto rank = static_cast<double>(sign < 0 ? length - j : j);
    for (int64_t c = 0; c < 4; ++c) {
      double& at = k[static_cast<size_t>(j * 4 + c)];
      at = sign == 0 ? at + (c == 0 ? rank * step : 0) : at * 0.05 + std::sqrt(rank * step);
    }
  }
  x.k = Tensor::from(k, {1, 1, length, 4});
  if (map == FeatureMap::exp) {  // the first column raises all features
    std::vector<double> w = values_of(x.projection);
    for (size_t r = 0; r < 6; ++r) w[4 * r] = 1;
    x.projection = Tensor::from(w, {6, 4});
  }
  if (kernels::is_oscillating(map)) x.options.floor = 1e-300;
  return x;
}
constexpr FeatureMap kWithExponents[] = {FeatureMap::positive, FeatureMap::hyperbolic,
                                         FeatureMap::exp, FeatureMap::trigonometric,
                                         FeatureMap::phase};

/// Each key dwarfs all earlier ones by e^20 and more, so that the largest exponent of a chunk says
/// nothing of what its first rows see.
TEST(LinearAttention, RisingExponentsLoseNothing) {
  for (const FeatureMap map : kWithExponents) {
    for (const double step : {0.5, 20.0, 300.0}) {
      const Call x = rising(map, step, 130);
      const Solution want = solve(x);
      expect_near(run(x, DType::f64), want, 1e-9, describe(x));
      const LinearAttentionResult y = run(x, DType::f32);
      for (const double value : values_of(y.out)) ASSERT_TRUE(std::isfinite(value)) << describe(x);
      if (step < 1 && !kernels::is_oscillating(map)) {
        expect_near(y, want, 1e-3, describe(x) + " f32");
      }
    }
  }
}

/// Their gradients are those of one token after the other, which have no chunks.
TEST(LinearAttention, RisingExponentsHaveTheirGradients) {
  for (const FeatureMap map : kWithExponents) {
    for (const double step : {0.5, 20.0, 300.0}) {
      const int64_t length = 70;
      const Call x = rising(map, step, length);
      const auto grads = [&](int64_t count, DType dtype) {
        Call c = x;
        for (Tensor* t : {&c.q, &c.k, &c.v}) *t = leaf(cast(*t, dtype));
        c.options.keep_state = true;
        std::vector<Tensor> out;
        LinearAttentionState state;
        for (int64_t at = 0; at < length; at += count) {
          Call piece = c;
          for (Tensor* t : {&piece.q, &piece.k, &piece.v}) *t = narrow(*t, 2, at, count);
          piece.options.state = state;
          const LinearAttentionResult y = run(piece, dtype);
          out.push_back(y.out);
          state = y.state;
        }
        const Tensor all = concat(out, 2);
        backward(sum(mul(all, normal(all.shape(), Generator{5}, 0, 1, dtype))));
        return std::vector<std::vector<double>>{values_of(grad(c.q)), values_of(grad(c.k)),
                                                values_of(grad(c.v))};
      };
      const auto whole = grads(length, DType::f64), single = grads(1, DType::f64);
      for (size_t i = 0; i < 3; ++i) {
        EXPECT_LE(distance(whole[i], single[i]), 1e-8)
            << describe(x) << " step " << step << " " << i;
      }
      for (const std::vector<double>& g : grads(length, DType::f32)) {
        for (const double value : g) ASSERT_TRUE(std::isfinite(value)) << describe(x) << step;
      }
    }
  }
}

/// A constant value comes out unchanged: weights sum to 1 in every row.
TEST(LinearAttention, WeightsSumToOne) {
  for_maps(9, [](FeatureMap map, int64_t m) {
    for (const bool causal : {false, true}) {
      Call x = call({1, 2, 100, 100, 6, 3, m}, map, causal);
      x.v = full({1, 2, 100, 3}, 0.7, DType::f64);
      for (const double value : values_of(run(x, DType::f64).out)) {
        if (value == 0 && map == FeatureMap::relu) continue;  // a query without any feature
        ASSERT_NEAR(value, 0.7, 1e-12) << describe(x);
      }
    }
  });
}

TEST(LinearAttention, SmallDenominatorsAreReplaced) {
  Call x = call({1, 1, 60, 60, 4, 3, 2}, FeatureMap::trigonometric, true, 3);
  x.options.floor = 0.5;
  const Solution want = solve(x);
  const auto replaced = [](const std::vector<double>& r) {
    return std::count_if(r.begin(), r.end(), [](double v) { return std::abs(v) == 0.5; });
  };
  const LinearAttentionResult y = run(x, DType::f64);
  expect_near(y, want, 1e-12, describe(x));
  EXPECT_EQ(replaced(values_of(y.normalizer)), replaced(want.normalizer.values));
  EXPECT_GT(replaced(want.normalizer.values), 5);
  // The floor is relative to the largest key, whose gradient is left out: the keys are held fixed.
  const GradcheckResult result = gradcheck(
      [&](const std::vector<Tensor>& in) {
        Call c = x;
        c.q = in[0], c.v = in[1];
        return std::vector<Tensor>{run(c, DType::f64).out};
      },
      {x.q, x.v});
  EXPECT_TRUE(result.ok) << result.message;
}

// -------------------------------------------------------------------------------------- causality

TEST(LinearAttention, NothingReachesEarlierRows) {
  for (const FeatureMap map : kMaps) {
    const Call x = call({1, 1, 120, 120, 5, 4, 6}, map, true);
    for (const int64_t i : {0, 11, 50, 63, 64, 118}) {
      Call one = x;
      for (Tensor* t : {&one.q, &one.k, &one.v}) *t = leaf(cast(*t, DType::f32));
      const Tensor out = run(one, DType::f32).out;
      backward(sum(narrow(out, 2, i, 1)));
      for (const Tensor& t : {one.k, one.v}) {
        const auto later = values_of(contiguous(narrow(grad(t), 2, i + 1, 119 - i)));
        EXPECT_EQ(later, std::vector<double>(later.size(), 0)) << describe(x) << " row " << i;
      }
      // Later tokens may be anything.
      Call other = x;
      const auto spoil = [&](const Tensor& t, double value) {
        const Tensor rest = full({1, 1, 119 - i, t.dim(3)}, value, DType::f64);
        return concat({narrow(t, 2, 0, i + 1), rest}, 2);
      };
      other.k = spoil(x.k, map == FeatureMap::exp ? 60 : 9);
      other.v = spoil(x.v, std::numeric_limits<double>::infinity());
      const auto head = [&](const Tensor& t) {
        return values_of(contiguous(narrow(t, 2, 0, i + 1)));
      };
      EXPECT_LE(distance(head(run(other, DType::f64).out), head(run(x, DType::f64).out)), 1e-12)
          << describe(x) << " row " << i;
      other.k = spoil(x.k, NAN);
      EXPECT_LE(distance(head(run(other, DType::f64).out), head(run(x, DType::f64).out)), 1e-12)
          << describe(x) << " row " << i << " NaN";
    }
  }
}

// -------------------------------------------------------------------------------------- the state

Call part_of(const Call& x, int64_t first, int64_t count) {
  Call y = x;
  for (Tensor* t : {&y.q, &y.k, &y.v}) *t = narrow(*t, 2, first, count);
  if (x.options.hidden_keys)
    y.options.hidden_keys = contiguous(narrow(x.options.hidden_keys, 1, first, count));
  return y;
}

/// Any cuts give the results of one pass, one token at a time included.
TEST(LinearAttention, SegmentsEqualOnePass) {
  for_maps(7, [](FeatureMap map, int64_t m) {
    Call x = call({2, 2, 130, 130, 5, 4, m}, map, true);
    std::vector<uint8_t> hidden(130);
    for (size_t i = 0; i < hidden.size(); ++i) hidden[i] = i < 2 || i % 9 == 5 ? 1 : 0;
    x.options.hidden_keys = Tensor::from(hidden, {1, 130});
    x.options.keep_state = true;
    const LinearAttentionResult whole = run(x, DType::f64);
    for (const std::vector<int64_t>& cuts : {std::vector<int64_t>(130, 1),
                                             {1, 96, 33},
                                             {97, 33},
                                             {0, 60, 0, 70},
                                             {64, 66},
                                             {65, 65}}) {
      Call piece = x;
      std::vector<Tensor> out;
      LinearAttentionState state;
      int64_t at = 0;
      for (const int64_t count : cuts) {
        piece = part_of(x, at, count);
        piece.options.state = state;
        const LinearAttentionResult y = run(piece, DType::f64);
        out.push_back(y.out);
        state = y.state;
        at += count;
      }
      ASSERT_EQ(at, 130);
      EXPECT_LE(distance(values_of(contiguous(concat(out, 2))), values_of(contiguous(whole.out))),
                1e-12)
          << describe(x);
      EXPECT_LE(distance(values_of(state.sums), values_of(whole.state.sums)), 1e-11) << describe(x);
      EXPECT_LE(distance(values_of(state.top), values_of(whole.state.top)), 1e-12) << describe(x);
    }
  });
}

/// The state carries gradients, so that a sequence in segments has those of the whole.
TEST(LinearAttention, SegmentsHaveTheGradientsOfOnePass) {
  for_maps(7, [](FeatureMap map, int64_t m) {
    const Call x = call({1, 2, 130, 130, 5, 4, m}, map, true);
    const Tensor weights = normal({1, 2, 130, 4}, Generator{7}, 0, 1, DType::f64);
    const auto grads = [&](const std::vector<int64_t>& cuts) {
      Call c = x;
      for (Tensor* t : {&c.q, &c.k, &c.v}) *t = leaf(contiguous(*t));
      c.options.keep_state = true;
      std::vector<Tensor> out;
      LinearAttentionState state;
      int64_t at = 0;
      for (const int64_t count : cuts) {
        Call piece = part_of(c, at, count);
        piece.options.state = state;
        const LinearAttentionResult y = run(piece, DType::f64);
        out.push_back(y.out);
        state = y.state;
        at += count;
      }
      backward(sum(mul(concat(out, 2), weights)));
      return std::vector<Tensor>{grad(c.q), grad(c.k), grad(c.v)};
    };
    const auto whole = grads({130}), cut = grads({50, 1, 79});
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_LE(distance(values_of(cut[i]), values_of(whole[i])), 1e-11) << describe(x) << " " << i;
    }
  });
}

// ------------------------------------------------------------------------------- costs and devices

int64_t peak_of(const Call& x, Device device, bool gradients) {
  Call c = x;
  for (Tensor* t : {&c.q, &c.k, &c.v}) *t = leaf(Tensor::zeros(t->shape(), DType::f32, device));
  c.projection = Tensor::zeros(x.projection.shape(), DType::f32, device);
  MemoryTracker& tracker = memory_tracker(device);
  tracker.reset_peak();
  const int64_t before = tracker.live().total();
  if (gradients) {
    backward(sum(linear_attention(c.q, c.k, c.v, c.projection, c.options).out));
  } else {
    const NoGrad none;
    linear_attention(c.q, c.k, c.v, c.projection, c.options);
  }
  return tracker.peak().total() - before;
}

/// Memory beyond results grows neither with L nor with L times features, and the meta device
/// predicts every byte.
TEST(LinearAttention, WorkspaceDoesNotGrowWithTheLength) {
  for (const FeatureMap map : {FeatureMap::positive, FeatureMap::trigonometric}) {
    for (const bool causal : {false, true}) {
      const auto shaped = [&](int64_t length) {
        return call({1, 2, length, length, 8, 16, 64}, map, causal);
      };
      const int64_t a = peak_of(shaped(1024), {}, false), b = peak_of(shaped(4096), {}, false);
      // out, normalizer and, for features that oscillate, the references
      const int64_t row = 4 * (16 + 1 + (map == FeatureMap::trigonometric ? 1 : 0));
      EXPECT_EQ(b - a, 2 * (4096 - 1024) * row);
      const int64_t c = peak_of(shaped(1024), {}, true), d = peak_of(shaped(4096), {}, true);
      EXPECT_LE(d - c, 2 * (4096 - 1024) * (row + 4 * (1 + 16 + 2 * 8 + 2 * 16)));
      for (const int64_t length : {1, 300}) {
        for (const bool gradients : {false, true}) {
          EXPECT_EQ(peak_of(shaped(length), meta_device, gradients),
                    peak_of(shaped(length), {}, gradients));
        }
      }
    }
  }
}

TEST(LinearAttention, CountsMultiplyAdds) {
  const int64_t length = 200, width = 8, values = 5, m = 7;
  for (const bool causal : {false, true}) {
    const Call x = call({2, 3, length, length, width, values, m}, FeatureMap::hyperbolic, causal);
    const MacCount macs;
    run(x, DType::f32);
    EXPECT_EQ(macs.products(), 6 * 2 * length * m * width);
    const int64_t pairs = causal ? 3 * (64 * 65 / 2) + 8 * 9 / 2 : 0;
    EXPECT_EQ(macs.attention(), 6 * (2 * length * 2 * m * values + pairs * (2 * m + values)));
  }
}

TEST(LinearAttention, SameBitsForAnyThreads) {
  for (const bool causal : {false, true}) {
    Call x = call({2, 3, 220, 220, 16, 16, 40}, FeatureMap::positive, causal);
    const auto bits = [&] {
      Call c = x;
      for (Tensor* t : {&c.q, &c.k, &c.v}) *t = leaf(cast(*t, DType::f32));
      const Tensor out = run(c, DType::f32).out;
      backward(sum(mul(out, out)));
      return std::vector<std::vector<double>>{values_of(out), values_of(grad(c.q)),
                                              values_of(grad(c.k)), values_of(grad(c.v))};
    };
    const auto one = bits();
    for (const int threads : {2, 5}) {
      set_num_threads(threads);
      const auto y = bits();
      set_num_threads(1);
      EXPECT_EQ(y, one);
    }
  }
}

}  // namespace
}  // namespace longspan::linear_test

// ----------------------------------------------------------------------------------------- table

namespace longspan::test {
namespace {

/// Tensors: q, k, v, projection, phase, key lengths, hidden keys, state sums, state top. Numbers:
/// map, causal, keep_state, epsilon, scale.
LinearAttentionOptions linear_options(const Inputs& in) {
  const DType dtype = in[0] ? accumulator_of(in[0].dtype()) : DType::f32;
  const auto wide = [&](const Tensor& x) { return x && x.dtype() != dtype ? cast(x, dtype) : x; };
  LinearAttentionOptions o;
  o.features = static_cast<FeatureMap>(in.integer(0));
  o.causal = in.integer(1) != 0;
  o.keep_state = in.integer(2) != 0;
  o.epsilon = in.number(3);
  o.scale = in.number(4);
  o.phase = wide(in[4]);
  o.key_lengths = in[5];
  o.hidden_keys = in[6];
  o.state = {wide(in[7]), wide(in[8])};
  return o;
}

Results<Tensor> run_linear(Inputs in) {
  const LinearAttentionOptions o = linear_options(in);
  const DType dtype = in[0] ? accumulator_of(in[0].dtype()) : DType::f32;
  const Tensor w = in[3] && in[3].dtype() != dtype ? cast(in[3], dtype) : in[3];
  const LinearAttentionResult y = linear_attention(in[0], in[1], in[2], w, o);
  if (!o.keep_state) return y.out;
  const Tensor factor = exp(mul(y.state.top, full_like(y.state.top, std::log(2.0))));
  return {y.out, mul(y.state.sums, unsqueeze(factor, 3))};
}

Results<Array> linear_attention_reference(Arrays in) {
  linear_test::Problem x;
  x.q = in[0], x.k = in[1], x.v = in[2], x.projection = in[3], x.phase = in[4];
  x.lengths = in[5], x.hidden = in[6], x.sums = in[7], x.top = in[8];
  x.map = static_cast<FeatureMap>(in.integer(0));
  x.causal = in.integer(1) != 0;
  x.epsilon = in.number(3);
  x.scale = in.number(4);
  if (x.scale == 0) {
    x.scale = kernels::norm_sign(x.map) != 0 ? std::pow(static_cast<double>(x.q.dim(3)), -0.25) : 1;
  }
  x.floor = kernels::is_oscillating(x.map) ? 1e-6 : 0;
  const linear_test::Solution y = linear_test::solve(x);
  if (in.integer(2) == 0) return y.out;
  return {y.out, y.sums};
}

struct Features {
  FeatureMap map;
  int64_t m = 0;
  double epsilon = 0, scale = 0;
};

/// A positive projection whose features differ: alike, they would leave next to no gradients of q.
InputSpec distinct_rows(int64_t m, int64_t d) {
  std::vector<double> w;
  for (int64_t r = 0; r < m; ++r) {
    for (int64_t c = 0; c < d; ++c) w.push_back(c == r % d ? 1.5 : 0.0625 * static_cast<double>(r));
  }
  return values({m, d}, std::move(w));
}

/// Sums of values, and positive ones of weights in the last column.
InputSpec state_sums(const Shape& shape) {
  InputSpec spec = randn(shape);
  const int64_t columns = shape.back();
  spec.value = [draw = spec.value, columns](Generator gen, int64_t i) {
    const double x = draw(gen, i);
    return i % columns == columns - 1 ? 0.5 + std::abs(x) : x;
  };
  return spec;
}

/// A call with sizes [B, H, L, d], T keys and values of width dv.
Sample linear_attention_sample(std::string name, const Shape& q, int64_t keys, int64_t width,
                               const Features& f, bool causal, bool state = false,
                               InputSpec lengths = none(), InputSpec hidden = none()) {
  const bool waves = kernels::is_oscillating(f.map);
  const bool either_sign =
      f.map == FeatureMap::gelu || f.map == FeatureMap::tanh || f.map == FeatureMap::identity;
  const auto rows = [&](const Shape& shape) {
    if (either_sign) return uniform(shape, 0.05, 2.5);
    return waves ? 0.3 * randn(shape) : randn(shape);
  };
  const int64_t halves = kernels::feature_halves(f.map);
  const int64_t features = halves * (f.m > 0 ? f.m : q[3]);
  InputSpec w = none(), phase = none(), sums = none(), top = none();
  if (f.m > 0) w = constant(either_sign ? distinct_rows(f.m, q[3]) : randn({f.m, q[3]}));
  if (f.map == FeatureMap::phase) phase = constant(uniform({f.m}, -0.3, 0.3));
  if (state) {
    sums = state_sums({q[0], q[1], features, width + 1});
    top = constant(kernels::is_exponential(f.map) ? randn({q[0], q[1], features})
                                                  : full({q[0], q[1], features}, waves ? 0.5 : 0));
  }
  return {std::move(name),
          {rows(q), rows({q[0], q[1], keys, q[3]}), randn({q[0], q[1], keys, width}), w, phase,
           std::move(lengths), std::move(hidden), sums, top},
          {static_cast<double>(f.map), causal ? 1.0 : 0.0, state ? 1.0 : 0.0, f.epsilon, f.scale}};
}

/// The same without gradients of q and k.
Sample without_gradients(Sample s) {
  for (const size_t i : {0, 1}) s.inputs[i] = constant(s.inputs[i]);
  return s;
}

std::vector<Sample> linear_attention_samples() {
  std::vector<Sample> all;
  for (int map = 0; map < kernels::feature_map_count; ++map) {
    const auto kind = static_cast<FeatureMap>(map);
    const bool plain = map > static_cast<int>(FeatureMap::exp);
    all.push_back(linear_attention_sample(fmt::format("map {}", map), {1, 2, 5, 3}, 7, 2,
                                          {kind, 4, plain ? 0.01 : 0}, false));
    all.push_back(linear_attention_sample(fmt::format("map {} causal", map), {2, 1, 7, 2}, 7, 3,
                                          {kind, 3, plain ? 0.01 : 0}, true));
    all.push_back(linear_attention_sample(fmt::format("map {} with a state", map), {1, 1, 4, 2}, 4,
                                          2, {kind, 3, plain ? 0.01 : 0}, map % 2 == 0, true));
    if (kernels::norm_sign(kind) == 0) {
      all.push_back(linear_attention_sample(fmt::format("map {} without projection", map),
                                            {1, 1, 4, 3}, 4, 2, {kind, 0, plain ? 0.01 : 0, 0.7},
                                            true));
    }
  }
  const Features pos{FeatureMap::positive, 4}, trig{FeatureMap::trigonometric, 4};
  const InputSpec lengths = as(DType::i64, values({2}, {3, 0}));
  // One key has all the weight: the gradients of q and k are 0, but for rounding.
  all.push_back(
      without_gradients(linear_attention_sample("one token", {1, 1, 1, 3}, 1, 2, pos, true)));
  all.push_back(without_gradients(linear_attention_sample("one of each", {1, 1, 1, 1}, 1, 1,
                                                          {FeatureMap::positive, 1}, false)));
  all.push_back(linear_attention_sample("lengths", {2, 1, 5, 2}, 5, 2, pos, true, false, lengths));
  all.push_back(linear_attention_sample("hidden keys", {2, 1, 5, 2}, 6, 2, trig, false, false,
                                        none(), as(DType::u8, values({1, 6}, {1, 0, 0, 1, 0, 1}))));
  all.push_back(linear_attention_sample("no keys", {1, 2, 3, 2}, 0, 2, pos, false));
  all.push_back(linear_attention_sample("no queries", {1, 2, 0, 2}, 3, 2, pos, false, true));
  all.push_back(linear_attention_sample("no tokens", {1, 2, 0, 2}, 0, 2, pos, true));
  all.push_back(linear_attention_sample("empty batch", {0, 2, 3, 2}, 3, 2, pos, true));
  return all;
}

Sample wrong(const std::function<void(Sample&)>& change) {
  Sample s = linear_attention_sample("", {1, 2, 6, 3}, 6, 4, {FeatureMap::positive, 5}, true, true);
  change(s);
  return s;
}
template <class E>
Reject bad(const std::string& name, const std::string& message,
           const std::function<void(Sample&)>& change) {
  Sample s = wrong(change);
  return rejects<E>(name, std::move(s.inputs), message, std::move(s.numbers));
}

const Registered linear_attention_info = OpInfo{
    .name = "linear_attention",
    .run = run_linear,
    .reference = linear_attention_reference,
    .samples = linear_attention_samples(),
    .large = {linear_attention_sample("large", {2, 3, 400, 40}, 400, 33, {FeatureMap::positive, 50},
                                      true),
              linear_attention_sample("large, both directions", {1, 2, 300, 64}, 350, 64,
                                      {FeatureMap::relu, 64, 0.01}, false),
              linear_attention_sample("large, oscillating", {1, 2, 250, 16}, 250, 20,
                                      {FeatureMap::trigonometric, 24}, true)},
    .rejects = {bad<ShapeError>("rank", "q",
                                [](Sample& s) {
                                  s.inputs[0] = randn({2, 6, 3});
                                }),
                bad<ShapeError>("heads", "batch and heads",
                                [](Sample& s) {
                                  s.inputs[1] = randn({1, 1, 6, 3});
                                }),
                bad<ShapeError>("lengths of k and v", "k and v must have the same length",
                                [](Sample& s) {
                                  s.inputs[2] = randn({1, 2, 5, 4});
                                }),
                bad<ShapeError>("width", "q and k must have the same width",
                                [](Sample& s) {
                                  s.inputs[1] = randn({1, 2, 6, 2});
                                }),
                bad<ShapeError>("causal", "as many keys as queries",
                                [](Sample& s) {
                                  s.inputs[1] = randn({1, 2, 7, 3});
                                  s.inputs[2] = randn({1, 2, 7, 4});
                                }),
                bad<ShapeError>("too wide", "widths must be 1 to 1024",
                                [](Sample& s) {
                                  s.inputs[2] = randn({1, 2, 6, 1025});
                                }),
                bad<ShapeError>("projection", "projection must be [m, 3] or [2, m, 3]",
                                [](Sample& s) {
                                  s.inputs[3] = constant(randn({5, 4}));
                                }),
                bad<ShapeError>("projection of heads", "projection must be",
                                [](Sample& s) {
                                  s.inputs[3] = constant(randn({3, 5, 3}));
                                }),
                bad<ValueError>("no projection", "projection is not given",
                                [](Sample& s) { s.inputs[3] = none(); }),
                bad<ValueError>("phase", "only the features `phase`",
                                [](Sample& s) { s.inputs[4] = constant(randn({5})); }),
                bad<ValueError>("no phase", "phase is not given",
                                [](Sample& s) { s.numbers[0] = 3; }),
                bad<DTypeError>("lengths", "key_lengths is i32",
                                [](Sample& s) { s.inputs[5] = as(DType::i32, full({1}, 2)); }),
                bad<ShapeError>("one length too many", "key_lengths has shape [2]",
                                [](Sample& s) { s.inputs[5] = as(DType::i64, full({2}, 2)); }),
                bad<ShapeError>("hidden", "hidden_keys has shape [1, 5]",
                                [](Sample& s) {
                                  s.inputs[6] = as(DType::u8, full({1, 5}, 0));
                                }),
                bad<ShapeError>("state", "the state of these features must be [1, 2, 5, 5]",
                                [](Sample& s) {
                                  s.inputs[7] = randn({1, 2, 5, 4});
                                }),
                bad<ValueError>("half a state", "top of the state is not given",
                                [](Sample& s) { s.inputs[8] = none(); }),
                bad<ValueError>("epsilon", "epsilon is 0.1", [](Sample& s) { s.numbers[3] = 0.1; }),
                bad<ValueError>("scale", "scale is -1", [](Sample& s) { s.numbers[4] = -1; })},
    .saved_bytes =
        [](Inputs in) {
          const int64_t rows = in[0].dim(0) * in[0].dim(1) * in[0].dim(2);
          const int64_t wide = in[0].dtype() == DType::f64 ? 8 : 4;
          const auto map = static_cast<FeatureMap>(in.integer(0));
          std::vector<int64_t> bytes;
          for (const size_t i : {0, 1, 2}) bytes.push_back(in[i].nbytes());
          for (const size_t i : {3, 4, 7, 8}) {
            if (in[i]) bytes.push_back(in[i].numel() * wide);
          }
          for (const size_t i : {5, 6}) {
            if (in[i]) bytes.push_back(in[i].nbytes());
          }
          bytes.push_back(rows * wide);
          if (kernels::is_oscillating(map)) bytes.push_back(rows * wide);
          if (in[8]) {  // top of the new state, and the factor of its sums
            for (int i = 0; i < 2; ++i) bytes.push_back(in[8].numel() * wide);
          }
          return bytes;
        },
    .tolerance = 8,
    .gradient_tolerance = 8,
    .reason =
        "exponents of several units, sums of hundreds of terms; 16-bit gradients come from "
        "out as stored",
    .host_kernel = &kernels::linear_attention_forward,
    .optional = {3, 4, 5, 6, 7, 8},
};

}  // namespace
}  // namespace longspan::test
