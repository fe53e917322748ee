#include "ops/attention/entmax_attention.h"

#include <gtest/gtest.h>

#include <cmath>

#include "autograd/engine.h"
#include "autograd/mode.h"
#include "autograd/node.h"
#include "core/memory.h"
#include "ops/attention/block_attention.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/entmax.h"
#include "ops/matmul.h"
#include "ops/reduce.h"
#include "ops/shape.h"
#include "tests/harness/messages.h"
#include "tests/harness/model_info.h"
#include "tests/harness/op_info.h"
#include "tests/ops/entmax_reference.h"

namespace longspan::test {
namespace {

/// Which keys a row sees, by the number of a sample.
enum Sight { dense, causal, local, both_sides };

AttentionPattern entmax_pattern(int kind) {
  switch (kind) {
    case causal:
      return patterns::causal();
    case local:
      return patterns::local(3);
    case both_sides:
      return patterns::local_bidirectional(4);
    default:
      return patterns::dense();
  }
}

/// Whether the query at position p sees key j.
bool entmax_sees(int kind, int64_t p, int64_t j) {
  switch (kind) {
    case causal:
      return j <= p;
    case local:
      return j <= p && p - j < 3;
    case both_sides:
      return std::abs(p - j) <= 2;
    default:
      return true;
  }
}

const Generator kDropped{11};

/// The factor of dropout of probability p.
double dropout_factor(double p, int64_t head, int64_t i, int64_t j) {
  if (p == 0) return 1;
  const Philox4 words = philox(kDropped.key, static_cast<uint32_t>(j / 4), static_cast<uint32_t>(i),
                               static_cast<uint32_t>(head), 0);
  return words.word[j % 4] >= drop_threshold(p) ? 1 / (1 - p) : 0;
}

/// Inputs: q, k, v, alpha, k_valid, k_begin, q_valid. Numbers: the kind, and the dropout.
Array naive_attention(Arrays in) {
  const Array &q = in[0], &k = in[1], &v = in[2], &alpha = in[3];
  const int64_t B = q.dim(0), H = q.dim(1), L = q.dim(2), T = k.dim(2), d = q.dim(3), w = v.dim(3);
  Array out({B, H, L, w});
  const auto bound = [](const Array& x, int64_t b, int64_t none) {
    return x ? static_cast<int64_t>(x[b]) : none;
  };
  for (int64_t b = 0; b < B; ++b) {
    for (int64_t h = 0; h < H; ++h) {
      for (int64_t i = 0; i < std::min(L, bound(in[6], b, L)); ++i) {
        std::vector<double> row;
        std::vector<int64_t> keys;
        for (int64_t j = bound(in[5], b, 0); j < std::min(T, bound(in[4], b, T)); ++j) {
          if (!entmax_sees(in.integer(0), i + T - L, j)) continue;
          double s = 0;
          for (int64_t c = 0; c < d; ++c) {
            s += q[((b * H + h) * L + i) * d + c] * k[((b * H + h) * T + j) * d + c];
          }
          row.push_back(s / std::sqrt(static_cast<double>(d)));
          keys.push_back(j);
        }
        entmax_row(row, alpha[alpha.size() == 1 ? 0 : h]);
        for (size_t n = 0; n < row.size(); ++n) {
          const double p = row[n] * dropout_factor(in.number(1), b * H + h, i, keys[n]);
          for (int64_t c = 0; c < w; ++c) {
            out[((b * H + h) * L + i) * w + c] += p * v[((b * H + h) * T + keys[n]) * w + c];
          }
        }
      }
    }
  }
  return out;
}

std::vector<Sample> entmax_attention_samples() {
  const auto each = as(DType::f64, uniform({2}, 1.2, 1.9));
  const auto one = [](double alpha) { return as(DType::f64, constant(full({1}, alpha))); };
  const auto lengths = [](std::vector<double> n) {
    return as(DType::i64, values({std::ssize(n)}, n));
  };
  const auto sized = [](int64_t B, int64_t L, int64_t T, int64_t d, int64_t w) {
    return std::vector<InputSpec>{2 * randn({B, 2, L, d}), randn({B, 2, T, d}),
                                  randn({B, 2, T, w})};
  };
  const auto sample = [&](const char* name, std::vector<InputSpec> inputs, const InputSpec& alpha,
                          double kind, std::vector<InputSpec> more = {}, double dropout = 0) {
    inputs.push_back(alpha);
    more.resize(3, none());
    inputs.insert(inputs.end(), more.begin(), more.end());
    return Sample{name, inputs, {kind, dropout}};
  };
  return {
      sample("dense", sized(2, 5, 7, 4, 3), each, dense),
      sample("softmax", sized(2, 5, 7, 4, 3), one(1), dense),
      sample("sparsemax", sized(2, 5, 7, 4, 3), one(2), dense),
      sample("1.5", sized(1, 6, 6, 3, 5), one(1.5), causal),
      sample("causal", sized(2, 7, 7, 4, 3), each, causal),
      sample("causal after a memory", sized(2, 3, 8, 4, 3), each, causal),
      sample("more queries than keys", sized(1, 6, 3, 4, 3), each, causal),
      sample("local", sized(1, 9, 9, 4, 3), each, local),
      sample("both sides", sized(1, 9, 9, 4, 3), each, both_sides),
      sample("lengths", sized(3, 5, 7, 4, 3), each, dense,
             {lengths({7, 0, 4}), none(), lengths({5, 2, 0})}),
      sample("begin", sized(2, 4, 7, 4, 3), each, causal, {none(), lengths({3, 7}), none()}),
      sample("dropout", sized(2, 5, 9, 4, 3), each, dense, {}, 0.25),
      sample("dropout, local", sized(2, 9, 9, 4, 3), each, local, {none(), lengths({0, 3}), none()},
             0.5),
      sample("dropout, softmax", sized(1, 7, 7, 4, 3), one(1), causal, {}, 0.25),
      // With one key the gradient of alpha is 0, beside which rounding has no size; causal samples
      // have such rows among others.
      sample("one", sized(1, 1, 1, 1, 1), one(1.3), causal),
      sample("no queries", sized(1, 0, 3, 4, 3), each, dense),
      sample("no keys", sized(1, 3, 0, 4, 3), each, dense),
      sample("no samples", sized(0, 3, 2, 4, 3), each, dense),
  };
}

EntmaxResult attend_entmax(Inputs in) {
  AttentionPattern p = entmax_pattern(in.integer(0));
  p.mask.k_valid = in[4];
  p.mask.k_begin = in[5];
  p.q_valid = in[6];
  const auto dropout = static_cast<float>(in.number(1));
  return entmax_attention(in[0], in[1], in[2], p, in[3], 0,
                          {dropout, {.training = true, .gen = kDropped}});
}

const Registered entmax_attention_info = OpInfo{
    .name = "entmax_attention",
    .run = [](Inputs in) { return attend_entmax(in).out; },
    .reference = [](Arrays in) { return naive_attention(in); },
    .samples = entmax_attention_samples(),
    .large = {{"large",
               {randn({1, 2, 300, 16}), randn({1, 2, 300, 16}), randn({1, 2, 300, 16}),
                as(DType::f64, full({2}, 1.5)), none(), none(), none()},
               {causal, 0.125}}},
    .rejects =
        {rejects<ShapeError>("widths",
                             {randn({1, 2, 3, 4}), randn({1, 2, 3, 5}), randn({1, 2, 3, 4}),
                              full({2}, 1.5), none(), none(), none()},
                             "expected q [B, H, L, d]", {dense, 0}),
         rejects<ValueError>("dropout",
                             {randn({1, 2, 3, 4}), randn({1, 2, 3, 4}), randn({1, 2, 3, 4}),
                              full({2}, 1.5), none(), none(), none()},
                             "dropout is 1; expected 0 <= p < 1", {dense, 1}),
         rejects<ShapeError>("heads",
                             {randn({1, 2, 3, 4}), randn({1, 2, 3, 4}), randn({1, 2, 3, 4}),
                              full({3}, 1.5), none(), none(), none()},
                             "[3]",
                             {dense, 0}),
         rejects<NotImplemented>(
             "pattern",
             {randn({1, 2, 8, 4}), randn({1, 2, 8, 4}), randn({1, 2, 8, 4}), full({2}, 1.5), none(),
              none(), none()},
             "the pattern is strided", {},
             [](Inputs
                    in) { entmax_attention(in[0], in[1], in[2], patterns::strided(2), in[3]); })},
    .saved_bytes =
        [](Inputs in) {
          const auto number = static_cast<int64_t>(size_of(accumulator_of(in[0].dtype())));
          std::vector<int64_t> bytes = {in[0].nbytes(), in[1].nbytes(), in[2].nbytes(),
                                        in[0].dim(1) * number,
                                        in[0].dim(0) * in[0].dim(1) * in[0].dim(2) * number};
          for (size_t i = 4; i < 7; ++i) {
            if (in[i]) bytes.push_back(in[i].nbytes());
          }
          return bytes;
        },
    .nan = {.inputs = {0}},
    .tolerance = 2,
    .gradient_tolerance = 8,
    .reason =
        "a probability is the difference of two numbers of up to 1, and its gradient has a root",
    .optional = {4, 5, 6},
    .expandable = false,
};

// The tiles of 128 rows and their groups of heads and samples make no difference.
TEST(EntmaxAttention, IsThatOfWholeMatrices) {
  for (const bool is_causal : {false, true}) {
    for (const auto& [B, H, L] : {std::array<int64_t, 3>{3, 4, 300}, {1, 5, 1100}, {2, 3, 128}}) {
      Tensor q = normals({B, H, L, 8}, 1, 2), k = normals({B, H, L, 8}, 2),
             v = normals({B, H, L, 4}, 3),
             alpha = Tensor::from(std::vector<double>{1, 1.3, 1.5, 1.8, 2}, {5});
      alpha = contiguous(narrow(alpha, 0, 0, H));
      const Tensor dy = normals({B, H, L, 4}, 4);
      for (Tensor* x : {&q, &k, &v, &alpha}) set_requires_grad(*x);
      const Tensor fused =
          entmax_attention(q, k, v, entmax_pattern(is_causal ? causal : dense), alpha).out;
      const std::array<Tensor, 4> in{q, k, v, alpha};
      const auto expected_of = [&] {
        Tensor s = mul(matmul(q, transpose(k, 2, 3)), 1 / std::sqrt(8.0));
        if (is_causal) {
          const Tensor i = longspan::iota(L);
          const Tensor hidden = cast(greater(unsqueeze(i, 0), unsqueeze(i, 1)), DType::f64);
          s = add(s, log(sub(1, hidden)));
        }
        return matmul(entmax(s, unsqueeze(alpha, 1)), v);
      };
      const Tensor whole = expected_of();
      EXPECT_LT(distance(fused.detach(), whole.detach()), 1e-12) << L;
      const auto got = gradients({&fused, 1}, {&dy, 1}, in),
                 want = gradients({&whole, 1}, {&dy, 1}, in);
      for (size_t i = 0; i < 4; ++i) EXPECT_LT(distance(got[i], want[i]), 1e-10) << L << " " << i;
    }
  }
}

// A tile of a window begins with the first key that its rows see.
TEST(EntmaxAttention, OfWindowsIsThatOfWholeMatrices) {
  const int64_t L = 400, width = 50;
  const Tensor q = normals({2, 3, L, 8}, 1, 2), k = normals({2, 3, L, 8}, 2),
               v = normals({2, 3, L, 4}, 3);
  AttentionPattern p = patterns::local(width);
  p.mask.k_begin = Tensor::from(std::vector<int64_t>{0, 170}, {2});
  p.mask.k_valid = Tensor::from(std::vector<int64_t>{350, 400}, {2});
  const Tensor i = unsqueeze(longspan::iota(L, DType::f64), 1), j = transpose(i, 0, 1);
  const auto ones_where = [](const Tensor& x) { return cast(x, DType::f64); };
  Tensor seen =
      mul(ones_where(greater_equal(i, j)), ones_where(less(sub(i, j), full_like(i, width))));
  const auto bounds = [](std::vector<double> x) { return Tensor::from(x, {2, 1, 1, 1}); };
  seen = mul(mul(seen, ones_where(greater_equal(j, bounds({0, 170})))),
             ones_where(less(j, bounds({350, 400}))));  // [B, 1, L, L]
  const Tensor s = add(mul(matmul(q, transpose(k, 2, 3)), 1 / std::sqrt(8.0)), log(seen));
  const Tensor fused = entmax_attention(q, k, v, p, longspan::full({1}, 1.5, DType::f64)).out;
  EXPECT_LT(distance(fused, matmul(entmax(s, 1.5), v)), 1e-12);
}

TEST(EntmaxAttention, KeepsNothingOfQuadraticSize) {
  const int64_t L = 2048;
  Tensor q = normals({1, 2, L, 8}, 1);
  set_requires_grad(q);
  memory_tracker().reset_peak();
  const int64_t before = memory_tracker().live().total();
  const Tensor y =
      entmax_attention(q, q, q, patterns::causal(), longspan::full({2}, 1.5, DType::f64)).out;
  backward(sum(y));
  // Two workspaces of 2^19 scores, and tensors of the size of q.
  EXPECT_LT(memory_tracker().peak().total() - before, 2 * 8 * (int64_t{1} << 19) + 16 * q.nbytes());
  EXPECT_LT(2 * 8 * (int64_t{1} << 19), 8 * 2 * L * L / 4);
}

TEST(EntmaxAttention, OfOneIsSoftmax) {
  const Tensor q = normals({2, 3, 40, 8}, 1), k = normals({2, 3, 40, 8}, 2),
               v = normals({2, 3, 40, 8}, 3);
  const auto entmax =
      entmax_attention(q, k, v, patterns::causal(), longspan::full({1}, 1, DType::f64));
  const auto softmax = block_attention(q, k, v, patterns::causal());
  EXPECT_LT(distance(entmax.out, softmax.out), 1e-13);
  // tau counts from the largest score of a row, lse from 0.
  const Tensor scores = mul(matmul(q, transpose(k, 2, 3)), 1 / std::sqrt(8.0));
  const Tensor i = longspan::iota(40);
  const Tensor hidden = cast(greater(unsqueeze(i, 0), unsqueeze(i, 1)), DType::f64);
  const Tensor largest = max(add(scores, log(sub(1, hidden))), -1).values;
  EXPECT_LT(distance(add(entmax.tau, largest), softmax.lse), 1e-13);
}

// Inf and NaN of a token reach the rows that see it, forward and back, and no others.
TEST(EntmaxAttention, NaNReachesOnlyWhatSeesIt) {
  constexpr int64_t L = 40, at = 25;
  AttentionPattern p = patterns::causal();
  p.mask.k_valid = Tensor::from(std::vector<int64_t>{L, 20}, {2});
  const Tensor inputs[] = {normals({2, 2, L, 8}, 1), normals({2, 2, L, 8}, 2),
                           normals({2, 2, L, 8}, 3), normals({2, 2, L, 8}, 4)};
  const auto results = [&](int spoiled, double value) {
    Tensor x[4];
    for (int n = 0; n < 4; ++n) {
      x[n] = inputs[n];
      if (n == spoiled) {
        const Tensor token = longspan::full({2, 2, 1, 8}, value, DType::f64);
        x[n] = concat({narrow(x[n], 2, 0, at), token, narrow(x[n], 2, at + 1, L - at - 1)}, 2);
      }
      x[n] = contiguous(x[n].detach());
      if (n < 3) set_requires_grad(x[n]);
    }
    const Tensor y =
        entmax_attention(x[0], x[1], x[2], p, longspan::full({1}, 1.5, DType::f64)).out;
    backward(y, x[3]);
    return std::vector<Tensor>{y.detach(), grad(x[0]), grad(x[1]), grad(x[2])};
  };
  const auto part = [](const Tensor& x, int64_t sample, int64_t from, int64_t to) {
    return contiguous(narrow(narrow(x, 0, sample, 1), 2, from, to - from));
  };
  const auto right = results(-1, 0);
  for (const int spoiled : {0, 1, 2, 3}) {  // q, k, v and the gradient of the result
    for (const double value : {NAN, INFINITY}) {
      SCOPED_TRACE(std::to_string(spoiled) + " " + std::to_string(value));
      const auto wrong = results(spoiled, value);
      const bool of_key = spoiled == 1 || spoiled == 2;
      for (const size_t n : {0, 1, 2, 3}) {
        SCOPED_TRACE(n);
        const auto same = [&](int64_t sample, int64_t from, int64_t to) {
          EXPECT_LE(distance(part(wrong[n], sample, from, to), part(right[n], sample, from, to)),
                    1e-12);
        };
        if (n < 2) same(0, 0, at);                  // queries before the token
        if (n >= 2 && !of_key) same(0, at + 1, L);  // keys behind it
        if (n >= 2) same(1, 20, L);                 // keys that do not exist
        if (n < 2 && of_key) same(1, 0, L);         // queries that such a key does not reach
      }
      if (spoiled == 3) continue;
      const auto own = part(wrong[0], 0, at, at + 1).to_vector<double>();
      if (std::isnan(value)) {
        for (const double v : own) EXPECT_TRUE(std::isnan(v));
      }
    }
  }
}

TEST(EntmaxAttention, CountsTheKeysThatItUses) {
  const Tensor q = normals({2, 2, 50, 8}, 1, 3), k = normals({2, 2, 50, 8}, 2);
  AttentionPattern p = patterns::causal();
  p.mask.k_valid = Tensor::from(std::vector<int64_t>{50, 20}, {2});
  const auto density = [&](double alpha) {
    return entmax_density(q, k, p, longspan::full({1}, alpha, DType::f64)).to_vector<double>();
  };
  const auto of_1 = density(1), of_15 = density(1.5), of_2 = density(2);
  double sum_15 = 0, sum_2 = 0;
  for (size_t i = 0; i < of_1.size(); ++i) {
    EXPECT_EQ(of_1[i], 1);
    EXPECT_GE(of_15[i], 1 / 50.0);
    sum_15 += of_15[i], sum_2 += of_2[i];
  }
  EXPECT_LT(sum_2, sum_15);
  EXPECT_LT(sum_15, 0.9 * 200);
  EXPECT_EQ(of_2[0], 1);  // the first query has one key
}

}  // namespace
}  // namespace longspan::test
