#include "ops/attention/lsh.h"

#include <gtest/gtest.h>

#include <cstring>

#include "autograd/engine.h"
#include "autograd/gradcheck.h"
#include "autograd/mode.h"
#include "core/kernels/lsh_maths.h"
#include "core/parallel.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/shape.h"
#include "tests/harness/op_info.h"
#include "tests/ops/attention_oracle.h"
#include "tests/ops/lsh_oracle.h"

namespace longspan::lsh_test {
namespace {

using attention_test::leaf;
using attention_test::make;
using attention_test::random_values;
using attention_test::values_of;

size_t size(int64_t n) { return static_cast<size_t>(n); }

/// The inputs of a call and the upstream gradients.
struct Problem {
  Sizes n;
  LshOptions options;
  std::vector<double> q, v, dout, dlse;
  std::vector<int32_t> ids;

  Tensor ids_tensor() const { return Tensor::from(ids, {n.batch, n.heads, n.rounds, n.length}); }
};

std::vector<int32_t> random_ids(const Sizes& n, int64_t buckets, uint64_t seed) {
  std::vector<int32_t> ids(size(n.all_heads() * n.rounds * n.length));
  for (size_t i = 0; i < ids.size(); ++i) {
    const uint32_t word = philox_word(Generator{seed}.fork("ids").key, static_cast<int64_t>(i));
    ids[i] = static_cast<int32_t>(word % static_cast<uint32_t>(buckets));
  }
  return ids;
}

Problem problem(const Sizes& n, const LshOptions& options, uint64_t seed = 1) {
  Problem x{n, options, {}, {}, {}, {}, random_ids(n, options.buckets, seed)};
  const int64_t rows = n.all_heads() * n.length;
  x.q = random_values(rows * n.width, seed);
  x.v = random_values(rows * n.value_width, seed + 1);
  x.dout = random_values(rows * n.value_width, seed + 2);
  x.dlse = random_values(rows, seed + 3);
  for (double& value : x.q) value *= 3;
  return x;
}

Solution run(const Problem& x, DType dtype) {
  const Sizes& n = x.n;
  const Tensor q = leaf(make(x.q, {n.batch, n.heads, n.length, n.width}, dtype));
  const Tensor v = leaf(make(x.v, {n.batch, n.heads, n.length, n.value_width}, dtype));
  const AttentionResult y = lsh_attention(q, v, x.ids_tensor(), x.options);
  const Tensor dout = make(x.dout, {n.batch, n.heads, n.length, n.value_width}, dtype);
  const Tensor dlse =
      make(x.dlse, {n.batch, n.heads, n.length}, dtype == DType::f64 ? DType::f64 : DType::f32);
  backward(add(sum(mul(y.out, dout)), cast(sum(mul(y.lse, dlse)), dtype)));
  return {values_of(y.out), values_of(y.lse), values_of(grad(q)), values_of(grad(v))};
}

Solution solve(const Problem& x) {
  return lsh_test::solve(x.n, x.q, x.v, x.ids, x.options, x.dout, x.dlse);
}

/// Returns the largest difference relative to the largest value of b (at least 1).
double distance(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double worst = 0, scale = 1;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (!(std::abs(a[i] - b[i]) <= worst)) worst = std::abs(a[i] - b[i]);
    scale = std::max(scale, std::abs(b[i]));
  }
  return worst / scale;
}

void expect_near(const Solution& a, const Solution& b, double tolerance, const std::string& what) {
  EXPECT_LE(distance(a.out, b.out), tolerance) << what << " out";
  // A row that attends only to itself has lse = self, whose magnitude would hide errors of other
  // rows.
  for (size_t i = 0; i < a.lse.size(); ++i) {
    EXPECT_LE(distance({a.lse[i]}, {b.lse[i]}), tolerance) << what << " lse " << i;
  }
  EXPECT_LE(distance(a.dq, b.dq), tolerance) << what << " dq";
  EXPECT_LE(distance(a.dv, b.dv), tolerance) << what << " dv";
}

void expect_same(const Solution& a, const Solution& b, const std::string& what) {
  EXPECT_TRUE(a.out == b.out && a.lse == b.lse && a.dq == b.dq && a.dv == b.dv) << what;
}

std::string describe(const Problem& x) {
  const LshOptions& o = x.options;
  return fmt::format("L {} R {} d {} dv {} nb {} m {} a {} z {} wrap {} dup {} bucket {} causal {}",
                     x.n.length, x.n.rounds, x.n.width, x.n.value_width, o.buckets, o.chunk,
                     o.before, o.after, static_cast<int>(o.wrap), static_cast<int>(o.duplicates),
                     o.same_bucket, o.causal);
}

constexpr LshWrap kWraps[] = {LshWrap::none, LshWrap::round, LshWrap::global};
constexpr LshDuplicates kDuplicates[] = {LshDuplicates::first, LshDuplicates::log_count,
                                         LshDuplicates::off};

template <class F>
void for_rules(F f) {
  for (const LshWrap wrap : kWraps) {
    for (const bool same_bucket : {true, false}) {
      for (const bool causal : {true, false}) {
        LshOptions o;
        o.wrap = wrap;
        o.same_bucket = same_bucket;
        o.causal = causal;
        f(o);
      }
    }
  }
}

// ------------------------------------------------------------------------------------------ spec

TEST(Reformer, SortIsAStablePermutationForAnyThreads) {
  for (const int64_t length : {0, 1, 2, 37, 1000, 5000}) {
    for (const int64_t values : {1, 2, 7, 300}) {
      const Sizes n{2, 3, 2, length};
      const std::vector<int32_t> ids = random_ids(n, values, 5);
      std::vector<int32_t> before;
      for (const int threads : {1, 2, 3}) {
        set_num_threads(threads);
        const LshOrder sorted = lsh_sort(Tensor::from(ids, {2, 3, 2, length}), values);
        set_num_threads(1);
        const auto order = sorted.order.to_vector<int32_t>();
        const auto place = sorted.place.to_vector<int32_t>();
        for (int64_t row = 0; row < 12; ++row) {
          std::vector<int32_t> expected(size(length));
          for (size_t i = 0; i < expected.size(); ++i) expected[i] = static_cast<int32_t>(i);
          const int32_t* id = ids.data() + row * length;
          std::stable_sort(expected.begin(), expected.end(),
                           [&](int32_t a, int32_t b) { return id[a] < id[b]; });
          for (int64_t p = 0; p < length; ++p) {
            ASSERT_EQ(order[size(row * length + p)], expected[size(p)]);
            ASSERT_EQ(place[size(row * length + expected[size(p)])], p);
          }
        }
      }
    }
  }
}

TEST(Reformer, OneBucketEqualsDenseSharedQk) {
  for (const bool causal : {false, true}) {
    for (const int64_t length : {1, 2, 31, 64}) {
      LshOptions o;
      o.buckets = 1;
      o.causal = causal;
      o.chunk = 64;
      const Problem x = problem({2, 2, 1, length, 6, 5}, o);
      LshOptions everything = o;  // one chunk of all tokens
      everything.chunk = 1000;
      everything.same_bucket = false;
      const Solution dense = lsh_test::solve(x.n, x.q, x.v, x.ids, everything, x.dout, x.dlse);
      expect_near(run(x, DType::f64), dense, 1e-12, describe(x));
      if (!causal) continue;
      Problem two = x;
      two.options.chunk = (length + 1) / 2;
      expect_near(run(two, DType::f64), dense, 1e-12, "two chunks");
    }
  }
}

TEST(Reformer, UnionEqualsDenseMaskedOracle) {
  for_rules([](LshOptions o) {
    for (const LshDuplicates duplicates : kDuplicates) {
      o.duplicates = duplicates;
      o.buckets = 5;
      for (const int64_t chunk : {4, 7}) {
        for (const auto& [before, after] : {std::pair{1, 0}, {0, 0}, {1, 1}, {2, 0}, {0, 2}}) {
          o.chunk = chunk;
          o.before = before;
          o.after = after;
          const Problem x = problem({1, 2, 3, 41, 5, 7}, o);
          expect_near(run(x, DType::f64), solve(x), 1e-10, describe(x));
        }
      }
    }
  });
}

TEST(Reformer, UnionHoldsForEveryLengthAndWidth) {
  for_rules([](LshOptions o) {
    for (const int64_t length : {1, 2, 15, 16, 17, 63, 64, 65, 100, 257}) {
      o.chunk = 16;
      o.buckets = 6;
      const Problem x = problem({2, 1, 2, length, 9, 33}, o);
      expect_near(run(x, DType::f64), solve(x), 1e-10, describe(x));
      expect_near(run(x, DType::f32), solve(x), 1e-4, describe(x) + " f32");
    }
  });
}

TEST(Reformer, ChunksTwiceAroundTheCircleCountTwice) {
  for (const LshWrap wrap : {LshWrap::round, LshWrap::global}) {
    LshOptions o;
    o.wrap = wrap;
    o.same_bucket = false;
    o.duplicates = LshDuplicates::off;
    o.repeat_chunks = true;
    o.chunk = 8;
    o.before = 2;
    o.after = 1;
    for (const int64_t length : {5, 13, 20, 60}) {
      const Problem x = problem({1, 2, 2, length, 4, 3}, o);
      expect_near(run(x, DType::f64), solve(x), 1e-10, describe(x));
    }
  }
}

TEST(Reformer, IdenticalRoundsEqualOne) {
  for_rules([](LshOptions o) {
    if (o.wrap == LshWrap::global) return;  // would reach chunks of another round
    for (const LshDuplicates duplicates : kDuplicates) {
      o.duplicates = duplicates;
      o.buckets = 4;
      o.chunk = 8;
      Problem one = problem({1, 1, 1, 50, 6, 4}, o), many = one;
      one.dlse.assign(one.dlse.size(), 0);
      many.dlse = one.dlse;
      many.n.rounds = 3;
      for (int r = 1; r < 3; ++r) many.ids.insert(many.ids.end(), one.ids.begin(), one.ids.end());
      Solution a = run(one, DType::f64), b = run(many, DType::f64);
      if (duplicates == LshDuplicates::off) {
        for (double& x : a.lse) x += std::log(3.0);
      }
      expect_near(b, a, 1e-12, describe(many));
    }
  });
}

TEST(Reformer, FirstEqualsLogCount) {
  for_rules([](LshOptions o) {
    o.buckets = 3;
    o.chunk = 8;
    Problem x = problem({1, 2, 4, 50, 6, 4}, o);
    const Solution first = run(x, DType::f64);
    x.options.duplicates = LshDuplicates::log_count;
    expect_near(run(x, DType::f64), first, 1e-12, describe(x));
  });
}

TEST(Reformer, WithoutAnotherTargetATokenGetsItsOwnValue) {
  for (const DType dtype : {DType::f64, DType::f32}) {
    for (const LshDuplicates duplicates : kDuplicates) {
      LshOptions o;
      o.duplicates = duplicates;
      o.causal = true;
      o.buckets = 40;
      o.chunk = 8;
      const Problem x = problem({1, 2, 7, 50, 6, 5}, o);
      const std::vector<double> v = values_of(make(x.v, {100, 5}, dtype));
      const Solution y = run(x, dtype);
      int64_t alone = 0;
      for (int64_t h = 0; h < 2; ++h) {
        const auto count = lsh_test::count_pairs(&x.ids[size(h * 7 * 50)], 7, 50, o);
        for (int64_t i = 0; i < 50; ++i) {
          double others = 0;
          for (int64_t j = 0; j < 50; ++j) others += j == i ? 0 : count[size(i * 50 + j)];
          if (others > 0) continue;
          ++alone;
          for (int64_t c = 0; c < 5; ++c) {
            EXPECT_EQ(y.out[size((h * 50 + i) * 5 + c)], v[size((h * 50 + i) * 5 + c)]);
          }
        }
      }
      EXPECT_GT(alone, 2);
    }
  }
}

TEST(Reformer, HashLooksAtDirections) {
  for (const LshBuckets buckets : {LshBuckets{2, 1}, {14, 1}, {150, 1}, {8, 6}, {64, 34}}) {
    const Tensor q = normal({2, 3, 77, 9}, Generator{3}, 0, 1, DType::f64);
    const Tensor rotations = lsh_rotations(Generator{4}, 3, 2, 9, buckets, DType::f64);
    const auto ids = lsh_buckets(q, rotations, buckets).to_vector<int32_t>();
    const auto of = [&](double factor) {
      return lsh_buckets(mul(q, full_like(q, factor)), rotations, buckets).to_vector<int32_t>();
    };
    EXPECT_EQ(of(3.7), ids);
    EXPECT_EQ(of(0.01), ids);
    const auto opposite = of(-1);
    const auto first = static_cast<int32_t>(buckets.first);
    std::set<int32_t> used;
    for (size_t i = 0; i < ids.size(); ++i) {
      used.insert(ids[i]);
      ASSERT_GE(ids[i], 0);
      ASSERT_LT(ids[i], buckets.count());
      EXPECT_EQ((ids[i] % first + first / 2) % first, opposite[i] % first);
      if (buckets.second == 1) {
        EXPECT_EQ(std::abs(ids[i] - opposite[i]), first / 2);
      }
    }
    EXPECT_GT(used.size(), size(std::min<int64_t>(buckets.count(), 150) / 2));
  }
}

TEST(Reformer, HashIsTheArgmaxOfItsProjections) {
  const LshBuckets buckets{6, 4};
  const Tensor q = normal({2, 2, 70, 5}, Generator{3}, 0, 1, DType::f64);
  const Tensor rotations = lsh_rotations(Generator{4}, 2, 3, 5, buckets, DType::f64);
  const auto x = values_of(q), rotation = values_of(rotations);
  const auto ids = lsh_buckets(q, rotations, buckets).to_vector<int32_t>();
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t h = 0; h < 2; ++h) {
      for (int64_t r = 0; r < 3; ++r) {
        for (int64_t i = 0; i < 70; ++i) {
          std::vector<double> p(5, 0);
          for (int64_t k = 0; k < 5; ++k) {
            for (int64_t c = 0; c < 5; ++c) {
              p[size(k)] += x[size(((b * 2 + h) * 70 + i) * 5 + c)] *
                            rotation[size(((h * 3 + r) * 5 + c) * 5 + k)];
            }
          }
          const std::vector<double> one = {p[0], p[1], p[2], -p[0], -p[1], -p[2]};
          const std::vector<double> two = {p[3], p[4], -p[3], -p[4]};
          const auto best = [](const std::vector<double>& y) {
            return std::max_element(y.begin(), y.end()) - y.begin();
          };
          EXPECT_EQ(ids[size(((b * 2 + h) * 3 + r) * 70 + i)], best(one) + 6 * best(two));
        }
      }
    }
  }
}

TEST(Reformer, IdsBeyondTheDigitsOfF32AreExact) {
  const LshBuckets buckets{4098, 8196};  // 33.6 million
  ASSERT_GT(buckets.count(), 1 << 24);
  const Tensor q = normal({1, 1, 300, 3}, Generator{3});
  const Tensor rotations = lsh_rotations(Generator{4}, 1, 1, 3, buckets);
  const Tensor first = contiguous(narrow(rotations, 4, 0, buckets.first / 2));
  const Tensor second = contiguous(narrow(rotations, 4, buckets.first / 2, buckets.second / 2));
  const auto ids = lsh_buckets(q, rotations, buckets).to_vector<int32_t>();
  const auto one = lsh_buckets(q, first, {buckets.first, 1}).to_vector<int32_t>();
  const auto two = lsh_buckets(q, second, {buckets.second, 1}).to_vector<int32_t>();
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(ids[i], one[i] + static_cast<int32_t>(buckets.first) * two[i]);
  }
  EXPECT_GT(*std::max_element(ids.begin(), ids.end()), 1 << 24);
}

TEST(Reformer, TiesGoToTheFirstAndPaddingToABucketOfItsOwn) {
  const LshBuckets buckets{8, 4};
  const Tensor rotations = lsh_rotations(Generator{4}, 1, 2, 4, buckets);
  const Tensor q = Tensor::zeros({2, 1, 5, 4});
  const Tensor lengths = Tensor::from(std::vector<int64_t>{3, 5}, {2});
  const Tensor hidden = Tensor::from(std::vector<uint8_t>{0, 1, 0, 0, 0}, {1, 5});
  EXPECT_EQ(lsh_buckets(q, rotations, buckets, lengths, hidden).to_vector<int32_t>(),
            (std::vector<int32_t>{0, 32, 0, 32, 32, 0, 32, 0, 32, 32,  //
                                  0, 32, 0, 0,  0,  0, 32, 0, 0,  0}));
}

/// Checks how every device breaks ties: of equal projections the first is taken, and a projection
/// before the negative of another.
TEST(LshBuckets, OfEqualProjectionsTheFirstIsTaken) {
  const auto argmax = [](const std::vector<float>& p, int64_t from = 0) {
    const auto n = static_cast<int64_t>(p.size()) - from;
    return kernels::lsh_argmax([&](int64_t k) { return p[size(k)]; }, from, n);
  };
  EXPECT_EQ(argmax({2, 2, 1}), 0);
  EXPECT_EQ(argmax({1, 2, 2}), 1);
  EXPECT_EQ(argmax({-2, -2, 1}), 3);  // -p of the first two
  EXPECT_EQ(argmax({1, -2, -2}), 4);
  EXPECT_EQ(argmax({-2, 1, 2}), 2);  // 2 and -(-2)
  EXPECT_EQ(argmax({0, 0, 0}), 0);
  EXPECT_EQ(argmax({-0.0f, 0}), 0);
  EXPECT_EQ(argmax({9, 1, 2, 2}, 1), 1);
  EXPECT_EQ(argmax({NAN, 1, -5}), 0);
  EXPECT_EQ(argmax({1, NAN, -5}), 5);
  const auto bucket = [](const std::vector<float>& p, int64_t first, int64_t second) {
    return kernels::lsh_bucket([&](int64_t k) { return p[size(k)]; }, first, second);
  };
  EXPECT_EQ(bucket({1, 1, 9}, 4, 1), 0);
  EXPECT_EQ(bucket({-1, -1, 3, 3}, 4, 4), 2 + 4 * 0);
  EXPECT_EQ(bucket({1, 1, -3, -3}, 4, 4), 0 + 4 * 2);

  // The kernel agrees with the definition. With these rotations the projections are the tokens
  // themselves.
  const LshBuckets buckets{6, 4};
  std::vector<float> identity(25, 0);
  for (size_t i = 0; i < 5; ++i) identity[6 * i] = 1;
  std::vector<float> q;
  for (int64_t i = 0; i < 243; ++i) {  // each of -1, 0, 1 in each column
    for (int64_t c = 0, rest = i; c < 5; ++c, rest /= 3) {
      q.push_back(static_cast<float>(rest % 3 - 1));
    }
  }
  for (const DType dtype : {DType::f32, DType::f64}) {
    const auto ids = lsh_buckets(cast(Tensor::from(q, {1, 1, 243, 5}), dtype),
                                 cast(Tensor::from(identity, {1, 1, 1, 5, 5}), dtype), buckets)
                         .to_vector<int32_t>();
    for (size_t i = 0; i < 243; ++i) {
      const auto p = [&](int64_t k) { return q[5 * i + size(k)]; };
      ASSERT_EQ(ids[i], kernels::lsh_bucket(p, buckets.first, buckets.second)) << i;
    }
  }
}

TEST(Reformer, NoGradientReachesLaterTokens) {
  LshOptions o;
  o.causal = true;
  o.chunk = 8;
  for (const bool same_bucket : {true, false}) {
    for (const LshWrap wrap : kWraps) {
      o.same_bucket = same_bucket;
      o.wrap = wrap;
      o.buckets = 3;
      const Problem x = problem({1, 1, 3, 40, 4, 3}, o);
      for (const int64_t i : {0, 7, 20, 39}) {
        Problem one = x;
        for (int64_t k = 0; k < 40; ++k) {
          if (k == i) continue;
          std::fill_n(one.dout.begin() + k * 3, 3, 0.0);
          one.dlse[size(k)] = 0;
        }
        const Solution y = run(one, DType::f32);
        for (int64_t j = i + 1; j < 40; ++j) {
          for (int64_t c = 0; c < 4; ++c) EXPECT_EQ(y.dq[size(j * 4 + c)], 0);
          for (int64_t c = 0; c < 3; ++c) EXPECT_EQ(y.dv[size(j * 3 + c)], 0);
        }
      }
    }
  }
}

TEST(Reformer, PaddingChangesNothing) {
  const int64_t length = 45, padded = 64, chunk = 8;
  const LshBuckets buckets{6, 1};
  const Tensor rotations = lsh_rotations(Generator{4}, 2, 3, 5, buckets);
  const Tensor q = normal({1, 2, length, 5}, Generator{5}, 0, 2);
  const Tensor v = normal({1, 2, length, 4}, Generator{6});
  // The values in the padding must not matter.
  const Tensor q_more = concat({q, full({1, 2, padded - length, 5}, 1e30)}, 2);
  const Tensor v_more = concat({v, full({1, 2, padded - length, 4}, NAN)}, 2);
  const Tensor lengths = Tensor::from(std::vector<int64_t>{length}, {1});
  const Tensor ids = lsh_buckets(q, rotations, buckets);
  const Tensor ids_more = lsh_buckets(q_more, rotations, buckets, lengths);
  EXPECT_EQ(values_of(cast(narrow(ids_more, 3, 0, length), DType::f64)),
            values_of(cast(ids, DType::f64)));
  for_rules([&](LshOptions o) {
    if (o.wrap != LshWrap::none) return;  // padding changes the last chunk
    o.buckets = buckets.count();
    o.chunk = chunk;
    o.after = 1;
    for (const LshDuplicates duplicates : kDuplicates) {
      o.duplicates = duplicates;
      const auto grads = [&](const Tensor& x, const Tensor& y, const Tensor& at) {
        const Tensor a = leaf(contiguous(x)), b = leaf(contiguous(y));
        const AttentionResult result = lsh_attention(a, b, at, o);
        const Tensor out = narrow(result.out, 2, 0, length);
        backward(sum(mul(out, out)));
        return Solution{values_of(out), values_of(narrow(result.lse, 2, 0, length)),
                        values_of(narrow(grad(a), 2, 0, length)),
                        values_of(narrow(grad(b), 2, 0, length))};
      };
      expect_same(grads(q_more, v_more, ids_more), grads(q, v, ids), "padded");
    }
  });
}

TEST(Reformer, Gradcheck) {
  for_rules([](LshOptions o) {
    for (const double factor : {1.0, 1e-4}) {
      o.chunk = 4;
      o.buckets = 3;
      const Tensor ids = Tensor::from(random_ids({1, 2, 2, 13}, 3, 9), {1, 2, 2, 13});
      const Tensor q = leaf(make(random_values(26 * 3, 1), {1, 2, 13, 3}, DType::f64));
      const Tensor v = leaf(make(random_values(26 * 2, 2), {1, 2, 13, 2}, DType::f64));
      o.self = -2;  // so that its constant logit takes part
      const GradcheckResult result = gradcheck(
          [&](const std::vector<Tensor>& in) {
            const Tensor small = mul(in[0], full_like(in[0], factor));
            const AttentionResult y = lsh_attention(small, in[1], ids, o);
            return std::vector<Tensor>{y.out, y.lse};
          },
          {q.detach(), v.detach()});
      EXPECT_TRUE(result.ok) << result.message;
    }
  });
}

// -------------------------------------------------------------------------------------- the rest

TEST(LshAttention, BucketRules) {
  EXPECT_EQ(lsh_auto_buckets(0, 64), (LshBuckets{2, 1}));
  EXPECT_EQ(lsh_auto_buckets(128, 16), (LshBuckets{16, 1}));
  EXPECT_EQ(lsh_auto_buckets(4096, 64), (LshBuckets{128, 1}));
  EXPECT_EQ(lsh_auto_buckets(16384, 64), (LshBuckets{32, 16}));
  EXPECT_EQ(lsh_auto_buckets(65536, 128), (LshBuckets{32, 32}));
  EXPECT_EQ(lsh_auto_buckets(12288, 128), (LshBuckets{16, 12}));
  EXPECT_EQ(lsh_auto_buckets_hf(4096, 64, 4096), (LshBuckets{128, 1}));
  EXPECT_EQ(lsh_auto_buckets_hf(65536, 64, 65536), (LshBuckets{32, 64}));
  EXPECT_EQ(lsh_auto_buckets_hf(96, 16, 4096), (LshBuckets{8, 1}));
}

TEST(LshAttention, MoreRoundsRepeatTheFirstRotations) {
  const LshBuckets buckets{8, 4};
  const Tensor two = lsh_rotations(Generator{1}, 3, 2, 5, buckets);
  const Tensor four = lsh_rotations(Generator{1}, 3, 4, 5, buckets);
  EXPECT_EQ(four.shape(), (Shape{1, 3, 4, 5, 6}));
  EXPECT_EQ(values_of(narrow(four, 2, 0, 2)), values_of(two));
  EXPECT_NE(values_of(narrow(four, 2, 2, 2)), values_of(two));
}

TEST(LshAttention, SameBitsForAnyThreads) {
  for_rules([](LshOptions o) {
    o.buckets = 12;
    o.chunk = 16;
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const Problem x = problem({1, 3, 3, 300, 32, 16}, o);
      const Solution one = run(x, dtype);
      for (const int threads : {2, 3, 8}) {  // 8 exceeds the number of heads
        set_num_threads(threads);
        const Solution y = run(x, dtype);
        set_num_threads(1);
        expect_same(y, one, describe(x));
      }
    }
  });
}

TEST(LshAttention, EmptyBatchesAndLengths) {
  LshOptions o;
  for (const Sizes& n :
       {Sizes{0, 2, 2, 5, 3, 3}, Sizes{2, 0, 2, 5, 3, 3}, Sizes{2, 2, 2, 0, 3, 3}}) {
    const Solution y = run(problem(n, o), DType::f32);
    EXPECT_TRUE(y.out.empty() && y.dq.empty());
  }
}

TEST(LshAttention, SamplesWithoutTokensGiveTheirOwnValues) {
  for_rules([](LshOptions o) {
    o.buckets = 3;
    o.chunk = 8;
    for (const LshDuplicates duplicates : kDuplicates) {
      o.duplicates = duplicates;
      Problem x = problem({1, 2, 2, 21, 4, 5}, o);
      std::fill(x.ids.begin(), x.ids.end(), 3);
      for (const DType dtype : {DType::f64, DType::f32}) {
        const Solution y = run(x, dtype);
        EXPECT_EQ(y.out, values_of(make(x.v, {1, 2, 21, 5}, dtype))) << describe(x);
        EXPECT_EQ(y.dq, std::vector<double>(x.q.size(), 0)) << describe(x);
        EXPECT_LE(distance(y.dv, values_of(make(x.dout, {1, 2, 21, 5}, dtype))), 1e-6)
            << describe(x);
      }
    }
  });
}

TEST(LshAttention, DropoutIsDrawnByOriginalPositions) {
  LshOptions o;
  o.buckets = 4;
  o.chunk = 8;
  o.dropout = 0.3f;
  o.pass = {true, Generator{77}};
  for (const bool causal : {true, false}) {
    o.causal = causal;
    const Problem x = problem({2, 2, 2, 60, 5, 4}, o);
    const Solution y = lsh_test::solve(
        x.n, x.q, x.v, x.ids, o, x.dout, x.dlse, [&](int64_t h, int64_t i, int64_t j) {
          const Philox4 words = philox(o.pass.gen.key, static_cast<uint32_t>(j / 4),
                                       static_cast<uint32_t>(i), static_cast<uint32_t>(h), 0);
          return words.word[j % 4] >= drop_threshold(o.dropout) ? 1 / (1 - double{o.dropout}) : 0;
        });
    expect_near(run(x, DType::f64), y, 1e-10, describe(x));
    expect_near(run(x, DType::f32), y, 1e-4, describe(x));
  }
}

TEST(LshAttention, DropoutOfEveryKindHasItsGradient) {
  for (const LshDuplicates duplicates : kDuplicates) {
    for (const bool broadcast : {false, true}) {
      LshOptions o;
      o.buckets = 2;
      o.chunk = 4;
      o.dropout = 0.4f;
      o.dropout_broadcast = broadcast;
      o.duplicates = duplicates;
      o.pass = {true, Generator{7}};
      const Problem x = problem({1, 2, 3, 15, 3, 2}, o);
      const GradcheckResult result = gradcheck(
          [&](const std::vector<Tensor>& in) {
            return std::vector<Tensor>{lsh_attention(in[0], in[1], x.ids_tensor(), o).out};
          },
          {make(x.q, {1, 2, 15, 3}, DType::f64), make(x.v, {1, 2, 15, 2}, DType::f64)});
      EXPECT_TRUE(result.ok) << result.message;
      Problem without = x;
      without.options.pass.training = false;
      EXPECT_GT(distance(run(x, DType::f64).out, run(without, DType::f64).out), 0.1);
    }
  }
}

TEST(LshAttention, CountsPairs) {
  LshOptions o;
  o.buckets = 4;
  o.chunk = 8;
  for (const bool same_bucket : {true, false}) {
    o.same_bucket = same_bucket;
    const Problem x = problem({2, 2, 3, 45, 1, 1}, o);
    LshPairs expected;
    for (int64_t h = 0; h < 4; ++h) {
      for (const double n : lsh_test::count_pairs(&x.ids[size(h * 3 * 45)], 3, 45, o)) {
        expected.visits += static_cast<int64_t>(n);
        expected.distinct += n > 0 ? 1 : 0;
      }
    }
    const LshPairs pairs = count_lsh_pairs(x.ids_tensor(), o);
    EXPECT_EQ(pairs.visits, expected.visits);
    EXPECT_EQ(pairs.distinct, expected.distinct);
  }
}

}  // namespace
}  // namespace longspan::lsh_test

// ----------------------------------------------------------------------------------------- table

namespace longspan::test {
namespace {

/// Scalar arguments: buckets, chunk, before, after, wrap, duplicates, same_bucket, causal.
LshOptions lsh_options(const auto& in) {
  LshOptions o;
  o.buckets = in.integer(0);
  o.chunk = in.integer(1);
  o.before = in.integer(2);
  o.after = in.integer(3);
  o.wrap = static_cast<LshWrap>(in.integer(4));
  o.duplicates = static_cast<LshDuplicates>(in.integer(5));
  o.same_bucket = in.integer(6) != 0;
  o.causal = in.integer(7) != 0;
  o.self = -50;  // representable in f16
  return o;
}

Results<Array> lsh_reference(Arrays in) {
  const Array &q = in[0], &v = in[1], &ids = in[2];
  const std::vector<int32_t> buckets(ids.values.begin(), ids.values.end());
  const lsh_test::Sizes n{q.dim(0), q.dim(1), ids.dim(2), q.dim(2), q.dim(3), v.dim(3)};
  const lsh_test::Solution y = lsh_test::solve(n, q.values, v.values, buckets, lsh_options(in));
  return {Array(v.shape, y.out), Array({q.dim(0), q.dim(1), q.dim(2)}, y.lse)};
}

InputSpec bucket_ids(const Shape& shape, int64_t high) {
  return as(DType::i32, integers(shape, 0, high));
}

Sample lsh_sample(std::string name, const Shape& q, int64_t width, int64_t rounds,
                  std::vector<double> numbers) {
  const auto most = static_cast<int64_t>(numbers[0]);
  return {
      std::move(name),
      {randn(q), randn({q[0], q[1], q[2], width}), bucket_ids({q[0], q[1], rounds, q[2]}, most)},
      std::move(numbers)};
}

const InputSpec q4 = randn({1, 2, 6, 3}), v4 = randn({1, 2, 6, 3});
const InputSpec ids4 = bucket_ids({1, 2, 2, 6}, 3);
const std::vector<double> usual = {4, 4, 1, 0, 0, 0, 1, 0};

const Registered lsh_info = OpInfo{
    .name = "lsh_attention",
    .run =
        [](Inputs in) {
          const AttentionResult y = lsh_attention(in[0], in[1], in[2], lsh_options(in));
          return Results<Tensor>{y.out, y.lse};
        },
    .reference = lsh_reference,
    .samples = {lsh_sample("one token", {1, 1, 1, 3}, 2, 2, usual),
                lsh_sample("shorter than a chunk", {2, 1, 3, 2}, 5, 1, usual),
                lsh_sample("ragged", {1, 2, 11, 3}, 2, 3, usual),
                lsh_sample("causal", {1, 2, 10, 2}, 3, 2, {3, 4, 1, 0, 0, 0, 1, 1}),
                lsh_sample("rows of 16 bytes", {1, 2, 21, 8}, 16, 2, usual),
                lsh_sample("other buckets", {1, 1, 10, 3}, 3, 2, {3, 4, 1, 0, 0, 0, 0, 0}),
                lsh_sample("wrapped", {1, 1, 9, 2}, 2, 2, {3, 2, 1, 1, 1, 1, 0, 1}),
                lsh_sample("around all rounds", {1, 1, 9, 2}, 2, 2, {3, 2, 1, 1, 2, 2, 0, 0}),
                lsh_sample("empty batch", {0, 2, 5, 3}, 3, 2, usual),
                lsh_sample("no tokens", {2, 1, 0, 3}, 3, 2, usual)},
    .large = {lsh_sample("large", {2, 3, 700, 40}, 33, 3, {24, 64, 1, 0, 0, 0, 1, 1}),
              lsh_sample("large, rows of 16 bytes", {1, 2, 300, 64}, 40, 2,
                         {12, 64, 1, 0, 0, 0, 1, 1}),
              lsh_sample("large, two ways", {1, 2, 500, 16}, 70, 2, {9, 32, 1, 1, 1, 2, 0, 0})},
    .rejects = {rejects<ShapeError>("rank", {randn({2, 6, 3}), v4, ids4}, "q", usual),
                rejects<ShapeError>("length", {q4, randn({1, 2, 5, 3}), ids4},
                                    "batch, heads and length of q", usual),
                rejects<ShapeError>("ids", {q4, v4, bucket_ids({1, 2, 2, 5}, 3)},
                                    "ids must be [1, 2, R, 6]", usual),
                rejects<DTypeError>("ids as i64", {q4, v4, integers({1, 2, 2, 6}, 0, 3)},
                                    "expected i32", usual),
                rejects<ValueError>("bucket", {q4, v4, as(DType::i32, full({1, 2, 2, 6}, 5))},
                                    "ids", usual),
                rejects<ValueError>("chunk", {q4, v4, ids4}, "chunk is 0",
                                    {4, 0, 1, 0, 0, 0, 1, 0}),
                rejects<ValueError>("window", {q4, v4, ids4}, "2^30 keys or fewer",
                                    {4, 1 << 30, 1, 0, 0, 0, 1, 0}),
                rejects<ValueError>("look-back", {q4, v4, ids4}, "0 or more",
                                    {4, 4, -1, 0, 0, 0, 1, 0})},
    .saved_bytes =
        [](Inputs in) {
          const int64_t rows = in[0].dim(0) * in[0].dim(1) * in[0].dim(2);
          return std::vector<int64_t>{in[0].nbytes(), in[1].nbytes(), in[2].nbytes(),
                                      in[1].nbytes(), rows * (in[0].dtype() == DType::f64 ? 8 : 4)};
        },
    .tolerance = 2,
    .gradient_tolerance = 4,
    .reason = "sums of hundreds of terms; 16-bit gradients come from out as stored",
};

}  // namespace
}  // namespace longspan::test
