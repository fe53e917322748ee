#include "ops/attention/routing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/kernels/routing.h"
#include "core/parallel.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/shape.h"
#include "tests/harness/op_info.h"

namespace longspan::test {
namespace {

/// Returns the scores [B, H, L, k] of x [B, H, L, d] and centroids [H, k, d].
Array scores_of(const Array& x, const Array& mu) {
  const int64_t batch = x.dim(0), heads = x.dim(1), length = x.dim(2), d = x.dim(3), k = mu.dim(1);
  Array a(Shape{batch, heads, length, k});
  for (int64_t i = 0; i < a.size(); ++i) {
    const int64_t c = i % k, token = i / k, h = token / length % heads;
    double sum = 0;
    for (int64_t j = 0; j < d; ++j) sum = std::fma(x[token * d + j], mu[(h * k + c) * d + j], sum);
    a[i] = sum >= std::numeric_limits<float>::lowest() ? sum : std::numeric_limits<float>::lowest();
  }
  return a;
}

int64_t there(Arrays in, int64_t b, int64_t length) {
  if (in.size() < 3 || !in[2]) return length;
  return std::clamp<int64_t>(static_cast<int64_t>(in[2][b]), 0, length);
}

Array members_of(Arrays in) {
  const Array a = scores_of(in[0], in[1]);
  const int64_t batch = a.dim(0), heads = a.dim(1), length = a.dim(2), k = a.dim(3);
  const int64_t w = std::min<int64_t>(in.integer(0), length);
  Array y(Shape{batch, heads, k, w}, -1);
  for (int64_t row = 0; row < batch * heads * k; ++row) {
    const int64_t bh = row / k, c = row % k, n = there(in, bh / heads, length);
    std::vector<int64_t> order(static_cast<size_t>(n));
    std::iota(order.begin(), order.end(), 0);
    const auto score = [&](int64_t t) { return a[(bh * length + t) * k + c]; };
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t s, int64_t t) { return score(s) > score(t); });
    order.resize(static_cast<size_t>(std::min(w, n)));
    std::sort(order.begin(), order.end());
    for (size_t i = 0; i < order.size(); ++i) {
      y[row * w + static_cast<int64_t>(i)] = static_cast<double>(order[i]);
    }
  }
  return y;
}

Array nearest_of(Arrays in) {
  const Array a = scores_of(in[0], in[1]);
  const int64_t heads = a.dim(1), length = a.dim(2), k = a.dim(3);
  Array y(Shape{a.dim(0), heads, length}, -1);
  for (int64_t i = 0; i < y.size(); ++i) {
    if (i % length >= there(in, i / length / heads, length)) continue;
    const auto row = a.values.begin() + i * k;
    y[i] = static_cast<double>(std::max_element(row, row + k) - row);
  }
  return y;
}

Tensor optional(Inputs in) { return in.size() > 2 ? in[2] : Tensor{}; }

const double inf = std::numeric_limits<double>::infinity();

InputSpec lengths(std::vector<double> numbers) {
  const auto n = static_cast<int64_t>(numbers.size());
  return as(DType::i64, values({n}, std::move(numbers)));
}

/// Small integers, so that many scores are equal, and exact in any order of sums.
InputSpec ties(const Shape& shape) {
  return {.shape = shape, .value = [](Generator gen, int64_t i) {
            return static_cast<double>(philox_word(gen.key, i) % 3) - 1;
          }};
}

const InputSpec special = values({1, 1, 8, 2}, {1, 0, NAN, 1, 0, 1, -inf, 0,  //
                                                inf, 0, -0.0, 0, 0, -1, NAN, NAN});

const Registered members_info = OpInfo{
    .name = "routing_members",
    .run = [](Inputs in) { return routing_members(in[0], in[1], in.integer(0), optional(in)); },
    .reference = [](Arrays in) { return members_of(in); },
    .samples = {{"odd", {randn({2, 3, 13, 5}), randn({3, 7, 5})}, {4}},
                {"one of each", {randn({1, 1, 1, 1}), randn({1, 1, 1})}, {1}},
                {"all tokens", {randn({1, 2, 9, 4}), randn({2, 3, 4})}, {9}},
                {"more than all", {randn({1, 2, 9, 4}), randn({2, 3, 4})}, {100}},
                {"one member", {randn({1, 2, 37, 6}), randn({2, 18, 6})}, {1}},
                {"no tokens", {randn({2, 2, 0, 3}), randn({2, 4, 3})}, {5}},
                {"no samples", {randn({0, 2, 6, 3}), randn({2, 4, 3})}, {5}},
                {"no width", {randn({1, 1, 6, 0}), randn({1, 2, 0})}, {3}},
                {"ties", {ties({2, 2, 50, 3}), ties({2, 9, 3})}, {7}},
                {"special", {special, values({1, 2, 2}, {1, 0, 0, 1})}, {5}},
                {"lengths", {randn({4, 2, 11, 4}), randn({2, 5, 4}), lengths({11, 3, 0, 7})}, {4}},
                {"lengths out of range",
                 {randn({2, 1, 6, 4}), randn({1, 5, 4}), lengths({-3, 99})},
                 {4}}},
    .large = {{"large", {randn({2, 2, 3001, 16}), randn({2, 37, 16})}, {70}},
              {"many ties", {ties({1, 2, 4000, 4}), ties({2, 65, 4})}, {33}}},
    .rejects =
        {rejects<ValueError>("no window", {randn({1, 1, 4, 2}), randn({1, 3, 2})},
                             "window is 0; expected 1 or more", {0}),
         rejects<ShapeError>("rank", {randn({4, 2}), randn({1, 3, 2})}, "x must have rank 4", {2}),
         rejects<ShapeError>("heads", {randn({1, 2, 4, 2}), randn({1, 3, 2})},
                             "centroids must be [2, k, 2], k >= 1", {2}),
         rejects<ShapeError>("width", {randn({1, 1, 4, 2}), randn({1, 3, 5})},
                             "centroids must be [1, k, 2]", {2}),
         rejects<ShapeError>("no centroid", {randn({1, 1, 4, 2}), randn({1, 0, 2})}, "k >= 1", {2}),
         rejects<DTypeError>("integers", {as(DType::i32, ties({1, 1, 4, 2})), randn({1, 3, 2})},
                             "x is i32; expected f32 or f64", {2}),
         rejects<DTypeError>("16 bits", {as(DType::bf16, randn({1, 1, 4, 2})), randn({1, 3, 2})},
                             "x is bf16; expected f32 or f64", {2}),
         rejects<DTypeError>("lengths of another dtype",
                             {randn({1, 1, 4, 2}), randn({1, 3, 2}), as(DType::i32, lengths({4}))},
                             "lengths is i32; expected i64", {2}),
         rejects<ShapeError>("lengths of other samples",
                             {randn({1, 1, 4, 2}), randn({1, 3, 2}), lengths({4, 4})},
                             "lengths has shape [2]; expected [1]", {2})},
    .dtypes = {DType::f64, DType::f32},
    .differentiable = false,
    .host_kernel = &kernels::routing_members,
    .optional = {2},
    .expandable = false,
};

const Registered nearest_info = OpInfo{
    .name = "nearest_centroids",
    .run = [](Inputs in) { return nearest_centroids(in[0], in[1], optional(in)); },
    .reference = [](Arrays in) { return nearest_of(in); },
    .samples = {{"odd", {randn({2, 3, 13, 5}), randn({3, 7, 5})}},
                {"one of each", {randn({1, 1, 1, 1}), randn({1, 1, 1})}},
                {"many centroids", {randn({1, 2, 7, 3}), randn({2, 70, 3})}},
                {"no tokens", {randn({2, 2, 0, 3}), randn({2, 4, 3})}},
                {"no width", {randn({1, 1, 6, 0}), randn({1, 2, 0})}},
                {"ties", {ties({2, 2, 50, 3}), ties({2, 19, 3})}},
                {"special", {special, values({1, 2, 2}, {1, 0, 0, 1})}},
                {"lengths", {randn({4, 2, 11, 4}), randn({2, 5, 4}), lengths({11, 3, 0, 7})}}},
    .large = {{"large", {randn({2, 2, 3001, 16}), randn({2, 37, 16})}}},
    .rejects = {rejects<ShapeError>("width", {randn({1, 1, 4, 2}), randn({1, 3, 5})},
                                    "centroids must be [1, k, 2]")},
    .dtypes = {DType::f64, DType::f32},
    .differentiable = false,
    .host_kernel = &kernels::nearest_centroid,
    .optional = {2},
    .expandable = false,
};

/// Uniform in [low, high).
InputSpec clusters(const Shape& shape, int64_t low, int64_t high) {
  return as(DType::i32, integers(shape, low, high - 1));
}

const Registered order_info = OpInfo{
    .name = "cluster_order",
    .run =
        [](Inputs in) {
          const TokensByCluster all = cluster_order(in[0], in.integer(0));
          return Results<Tensor>{all.order, all.begin};
        },
    .reference =
        [](Arrays in) {
          const Array& ids = in[0];
          const int64_t n = ids.dim(-1);
          Array order(ids.shape, -1), begin(ids.shape);
          for (int64_t row = 0; n > 0 && row < ids.size() / n; ++row) {
            int64_t at = row * n;
            for (int c = 0; c < in.integer(0); ++c) {
              const int64_t first = at;
              for (int64_t i = 0; i < n; ++i) {
                if (ids[row * n + i] != c) continue;
                order[at] = static_cast<double>(i);
                begin[at++] = static_cast<double>(first - row * n);
              }
            }
            for (; at < (row + 1) * n; ++at) begin[at] = static_cast<double>(at - row * n);
          }
          return Results<Array>{order, begin};
        },
    .samples = {{"rows", {clusters({3, 2, 17}, 0, 4)}, {4}},
                {"some without", {clusters({2, 30}, -1, 3)}, {3}},
                {"all without", {clusters({2, 5}, -1, 0)}, {3}},
                {"one", {clusters({1}, 0, 1)}, {1}},
                {"empty rows", {clusters({3, 0}, 0, 1)}, {2}},
                {"empty clusters", {clusters({40}, 5, 7)}, {200}}},
    .large = {{"large", {clusters({5, 20'000}, -1, 100)}, {100}}},
    .rejects = {rejects<ValueError>("out of range", {as(DType::i32, values({2}, {0, 4}))},
                                    "clusters holds 4 at [1]", {4}),
                rejects<ValueError>("below -1", {as(DType::i32, values({2}, {0, -2}))},
                                    "clusters holds -2 at [1]", {4}),
                rejects<DTypeError>("i64", {longspan::test::iota({3})},
                                    "clusters is i64; expected i32", {4}),
                rejects<ShapeError>("rank", {as(DType::i32, scalar(0))}, "rank 1 or more", {4})},
    .dtypes = {DType::f32},
    .differentiable = false,
    .host_kernel = &kernels::cluster_order,
};

/// Rows of ascending positions, the last ones -1.
InputSpec positions(int64_t rows, int64_t w, int64_t free) {
  return as(DType::i32, {.shape = {rows, w}, .value = [w, free](Generator gen, int64_t i) {
                           const int64_t at = i % w;
                           if (at >= w - free) return -1.0;
                           return static_cast<double>(3 * at + philox_word(gen.key, i) % 3);
                         }});
}

const Registered keys_info = OpInfo{
    .name = "keys_not_after",
    .run = [](Inputs in) { return keys_not_after(in[0], in[1]); },
    .reference =
        [](Arrays in) {
          const Array &q = in[0], &k = in[1];
          Array n(q.shape);
          const int64_t w = q.dim(-1);
          for (int64_t i = 0; i < q.size(); ++i) {
            for (int64_t j = i / w * w; j < (i / w + 1) * w; ++j) n[i] += k[j] >= 0 && k[j] <= q[i];
          }
          return n;
        },
    .samples = {{"rows", {positions(5, 9, 0), positions(5, 9, 0)}},
                {"free places", {positions(4, 9, 3), positions(4, 9, 2)}},
                {"no places", {positions(4, 6, 6), positions(4, 6, 1)}},
                {"one", {positions(1, 1, 0), positions(1, 1, 0)}},
                {"empty", {clusters({3, 0}, 0, 1), clusters({3, 0}, 0, 1)}}},
    .large = {{"large", {positions(60, 3000, 5), positions(60, 3000, 0)}}},
    .rejects = {rejects<ShapeError>("shapes", {positions(2, 3, 0), positions(3, 2, 0)}, "queries"),
                rejects<DTypeError>("i64", {longspan::test::iota({3}), longspan::test::iota({3})},
                                    "queries is i64; expected i32")},
    .dtypes = {DType::f32},
    .differentiable = false,
    .host_kernel = &kernels::keys_not_after,
    .expandable = false,
};

// ------------------------------------------------------------------------------------------ spec

TEST(Routing, Test3_MembersAreSortedUniqueAndTheSameForCentroidsOfAnyLength) {
  Making f64;
  const Tensor x = make(randn({2, 2, 41, 8}), Generator{3}, f64);
  const Tensor mu = make(randn({2, 6, 8}), Generator{4}, f64);
  for (const int64_t w : {1, 7, 40, 41, 90}) {
    const Tensor members = routing_members(x, mu, w);
    const std::vector<int32_t> all = members.to_vector<int32_t>();
    const int64_t each = std::min<int64_t>(w, 41);
    ASSERT_EQ(members.shape(), (Shape{2, 2, 6, each}));
    for (size_t i = 0; i < all.size(); ++i) {
      ASSERT_TRUE(all[i] >= 0 && all[i] < 41);
      const bool first = i % static_cast<size_t>(each) == 0;
      ASSERT_TRUE(first || all[i - 1] < all[i]);
    }
    for (const double factor : {1e-3, 0.5, 1e4}) {
      const Tensor scaled = routing_members(x, mul(mu, factor), w);
      EXPECT_EQ(scaled.to_vector<int32_t>(), all) << w << " " << factor;
    }
  }
  // Equal scores: the earlier tokens are chosen, also after a better one has come.
  const Tensor same = Tensor::from(std::vector<double>{1, 1, 2, 1, 1, 2, 1, 1}, {1, 1, 8, 1});
  const Tensor one = full({1, 1, 1}, 1, DType::f64);
  EXPECT_EQ(routing_members(same, one, 3).to_vector<int32_t>(), (std::vector<int32_t>{0, 2, 5}));
  EXPECT_EQ(routing_members(same, one, 5).to_vector<int32_t>(),
            (std::vector<int32_t>{0, 1, 2, 3, 5}));
}

TEST(Routing, AnyNumberOfThreadsChoosesTheSameTokens) {
  Making f32;
  f32.dtype = DType::f32;
  const Tensor x = make(randn({2, 3, 1003, 32}), Generator{5}, f32);
  const Tensor mu = make(randn({3, 45, 32}), Generator{6}, f32);
  std::vector<int32_t> members, nearest;
  const int before = num_threads();
  for (const int threads : {1, 2, 3}) {
    set_num_threads(threads);
    const std::vector<int32_t> m = routing_members(x, mu, 50).to_vector<int32_t>();
    const std::vector<int32_t> n = nearest_centroids(x, mu).to_vector<int32_t>();
    if (threads == 1) members = m, nearest = n;
    EXPECT_TRUE(m == members && n == nearest) << threads;
  }
  set_num_threads(before);
  // A token's nearest centroid does not depend on the other tokens.
  for (const int64_t t : {0, 1, 500, 1002}) {
    const std::vector<int32_t> own = nearest_centroids(narrow(x, 2, t, 1), mu).to_vector<int32_t>();
    for (size_t row = 0; row < own.size(); ++row) {
      EXPECT_EQ(own[row], nearest[row * 1003 + static_cast<size_t>(t)]);
    }
  }
}

}  // namespace
}  // namespace longspan::test
