#include "ops/attention/routing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "autograd/gradcheck.h"
#include "core/kernels/routing.h"
#include "core/parallel.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/shape.h"
#include "tests/harness/messages.h"
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

const InputSpec special_vectors = values({1, 1, 8, 2}, {1, 0, NAN, 1, 0, 1, -inf, 0,  //
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
                {"special", {special_vectors, values({1, 2, 2}, {1, 0, 0, 1})}, {5}},
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
                {"special", {special_vectors, values({1, 2, 2}, {1, 0, 0, 1})}},
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

TEST(Routing, MembersAreSortedUniqueAndTheSameForCentroidsOfAnyLength) {
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

// --------------------------------------------------------------------------------------- attention

/// The lists of a call as [rows, groups, w].
struct Lists {
  std::vector<int32_t> queries, keys;
  int64_t groups, width;
};

/// out [B, H, L, dv] by plain loops: scores scale q . k, no terms.
std::vector<double> plainly(const Array& q, const Array& k, const Array& v, const Lists& lists,
                            double epsilon, double scale, OwnKey own = OwnKey::seen) {
  const int64_t rows = q.dim(0) * q.dim(1), length = q.dim(2), d = q.dim(3), e = v.dim(3);
  std::vector<double> out(static_cast<size_t>(rows * length * e));
  for (int64_t row = 0; row < rows; ++row) {
    std::vector<int64_t> times(static_cast<size_t>(length));
    for (int64_t g = 0; g < lists.groups; ++g) {
      const int64_t base = (row * lists.groups + g) * lists.width;
      for (int64_t a = 0; a < lists.width; ++a) {
        const int64_t i = lists.queries[static_cast<size_t>(base + a)];
        if (i < 0) continue;
        ++times[static_cast<size_t>(i)];
        std::vector<int64_t> seen;
        std::vector<double> scores;
        for (int64_t b = 0; b < lists.width; ++b) {
          const int64_t j = lists.keys[static_cast<size_t>(base + b)];
          if (j >= 0 && j <= i && (own == OwnKey::seen || j != i)) seen.push_back(j);
        }
        if (own == OwnKey::alone && seen.empty()) seen.push_back(i);
        for (const int64_t j : seen) {
          double score = 0;
          for (int64_t c = 0; c < d; ++c) {
            score += q[(row * length + i) * d + c] * k[(row * length + j) * d + c];
          }
          scores.push_back(scale * score);
        }
        double total = 0;
        std::vector<double> sum(static_cast<size_t>(e));
        for (size_t n = 0; n < seen.size(); ++n) {
          const double weight =
              std::exp(scores[n] - *std::max_element(scores.begin(), scores.end()));
          total += weight;
          for (int64_t c = 0; c < e; ++c) {
            sum[static_cast<size_t>(c)] += weight * v[(row * length + seen[n]) * e + c];
          }
        }
        for (int64_t c = 0; c < e && total > 0; ++c) {
          out[static_cast<size_t>((row * length + i) * e + c)] +=
              sum[static_cast<size_t>(c)] / total;
        }
      }
    }
    for (int64_t i = 0; i < length; ++i) {
      const auto n = static_cast<double>(times[static_cast<size_t>(i)]);
      for (int64_t c = 0; c < e && n > 0; ++c) {
        out[static_cast<size_t>((row * length + i) * e + c)] /= n + epsilon;
      }
    }
  }
  return out;
}

double furthest(const Tensor& x, const std::vector<double>& y) {
  const std::vector<double> values = x.to_vector<double>();
  EXPECT_EQ(values.size(), y.size());
  double most = 0;
  for (size_t i = 0; i < std::min(values.size(), y.size()); ++i) {
    most = std::max(most, std::abs(values[i] - y[i]));
  }
  return most;
}

TEST(Routing, GroupsOfQueriesAndKeysAgreeWithLoops) {
  for (const int64_t length : {0, 1, 2, 13, 30}) {
    const Shape shape{2, 3, length, 5};
    const Tensor q = normals(shape, 1), k = normals(shape, 2), v = normals({2, 3, length, 4}, 3);
    const Tensor mu = normals({3, 4, 5}, 4);
    const Tensor lengths = Tensor::from(std::vector<int64_t>{length, length / 2}, {2});
    for (const int64_t w : {1, 6, 40}) {
      const Tensor queries = routing_members(q, mu, w, lengths);
      const Tensor keys = routing_members(k, mu, w, lengths);
      const int64_t width = queries.dim(3);
      const auto members = [](const Tensor& x) { return x.to_vector<int32_t>(); };
      ScoreTerms half;
      half.scale = 0.5;
      const auto check = [&](const Tensor& own_k, const Tensor& own_keys,
                             OwnKey own = OwnKey::seen) {
        const GroupAttention y =
            attend_in_groups(q, own_k, v, queries, own_keys, 0.25, half, {}, own);
        const Lists lists{members(queries), members(own_keys ? own_keys : queries), 4, width};
        const Array others = to_array(own_k ? own_k : q);
        EXPECT_LE(furthest(y.out,
                           plainly(to_array(q), others, to_array(v), lists, 0.25, half.scale, own)),
                  1e-12)
            << length << " " << w;
        EXPECT_EQ(y.groups.shape(), (Shape{2, 3, length, 1}));
      };
      // With a scale of 1,000 a token's own logit is thousands above those of others.
      for (const double scale : {1000.0, 0.5}) {
        half.scale = scale;
        check({}, {}, OwnKey::alone);
        check(k, {}, OwnKey::alone);
      }
      check({}, {});
      check(k, {});
      check({}, keys);
      check(k, keys);
    }
  }
}

TEST(Routing, RecentMembersAgreeWithLoops) {
  for (const int64_t length : {0, 1, 2, 13, 30}) {
    const Shape shape{2, 3, length, 5};
    const Tensor q = normals(shape, 1), k = normals(shape, 2), v = normals({2, 3, length, 4}, 3);
    const Tensor lengths = Tensor::from(std::vector<int64_t>{length, length / 2}, {2});
    const Tensor nearest = nearest_centroids(q, normals({3, 4, 5}, 4), lengths);
    const std::vector<int32_t> ids = nearest.to_vector<int32_t>();
    for (const int64_t w : {1, 3, 40}) {
      // Each token is the query of a group of its own.
      Lists lists{{}, {}, length, w};
      for (int64_t at = 0; at < 6 * length; ++at) {
        const int64_t row = at / std::max<int64_t>(length, 1) * length, i = at - row;
        std::vector<int32_t> keys;
        for (int64_t j = i; j >= 0 && std::ssize(keys) < w; --j) {
          if (ids[static_cast<size_t>(row + j)] == ids[static_cast<size_t>(at)]) {
            keys.push_back(static_cast<int32_t>(j));
          }
        }
        keys.resize(static_cast<size_t>(w), -1);
        lists.keys.insert(lists.keys.end(), keys.begin(), keys.end());
        lists.queries.push_back(ids[static_cast<size_t>(at)] < 0 ? -1 : static_cast<int32_t>(i));
        lists.queries.resize(lists.keys.size(), -1);
      }
      ScoreTerms one;
      one.scale = 1;
      for (const Tensor& own_k : {Tensor{}, k}) {
        for (const auto& [own, scale] :
             {std::pair{OwnKey::seen, 1.0}, {OwnKey::alone, 1.0}, {OwnKey::alone, 1000.0}}) {
          one.scale = scale;
          const GroupAttention y = attend_to_recent(q, own_k, v, nearest, 4, w, 0, one, {}, own);
          const Array others = to_array(own_k ? own_k : q);
          EXPECT_LE(
              furthest(y.out, plainly(to_array(q), others, to_array(v), lists, 0, scale, own)),
              1e-12)
              << length << " " << w;
        }
      }
    }
  }
}

TEST(Routing, GradientsOfAttentionWithinGroups) {
  const Tensor mu = normals({2, 3, 4}, 4);
  const std::vector<Tensor> in{normals({2, 2, 9, 4}, 1), normals({2, 2, 9, 4}, 2),
                               normals({2, 2, 9, 3}, 3), normals({7, 4}, 5), normals({7, 3}, 6)};
  const Tensor queries = routing_members(in[0], mu, 4), keys = routing_members(in[1], mu, 4);
  const Tensor nearest = nearest_centroids(in[0], mu);
  const auto terms = [](const std::vector<Tensor>& x) {
    ScoreTerms t;
    t.id = {3, 3};
    t.relation_key = x[3];
    t.relation_value = x[4];
    return t;
  };
  using Function = std::function<Tensor(const std::vector<Tensor>&)>;
  const Function functions[] = {
      [&](const std::vector<Tensor>& x) {
        return attend_in_groups(x[0], x[1], x[2], queries, keys, 0.1, terms(x)).out;
      },
      [&](const std::vector<Tensor>& x) {
        return attend_in_groups(x[0], {}, x[2], queries, {}, 0, terms(x)).out;
      },
      [&](const std::vector<Tensor>& x) {
        return attend_to_recent(x[0], x[1], x[2], nearest, 3, 3, 0.1, terms(x)).out;
      },
      [&](const std::vector<Tensor>& x) {
        return attend_to_recent(x[0], {}, x[2], nearest, 3, 3, 0, terms(x)).out;
      },
      [&](const std::vector<Tensor>& x) {
        return attend_in_groups(x[0], {}, x[2], queries, {}, 0, terms(x), {}, OwnKey::alone).out;
      },
      [&](const std::vector<Tensor>& x) {
        return attend_to_recent(x[0], x[1], x[2], nearest, 3, 3, 0, terms(x), {}, OwnKey::alone)
            .out;
      }};
  for (const Function& f : functions) {
    const GradcheckResult result = gradcheck(f, in);
    EXPECT_TRUE(result) << result.message;
  }
}

TEST(Routing, AttentionRefusesListsOfOtherSizes) {
  const Tensor q = normals({1, 2, 6, 4}, 1), v = normals({1, 2, 6, 3}, 2);
  const auto lists = [](const Shape& shape) { return zeros(shape, DType::i32); };
  const auto refuses = [&](const Tensor& k, const Tensor& queries, const Tensor& keys) {
    EXPECT_THROW(attend_in_groups(q, k, v, queries, keys, 0), ShapeError);
  };
  refuses({}, lists({2, 2, 3, 2}), {});
  refuses({}, lists({1, 3, 3, 2}), {});
  refuses({}, lists({1, 2, 6}), {});
  refuses({}, lists({1, 2, 3, 2}), lists({1, 2, 2, 2}));
  refuses(normals({1, 2, 5, 4}, 1), lists({1, 2, 3, 2}), {});
  EXPECT_THROW(attend_in_groups(q, {}, v, zeros({1, 2, 3, 2}, DType::i64), {}, 0), DTypeError);
  EXPECT_THROW(attend_in_groups(q, {}, v, full({1, 2, 6, 1}, 6, DType::i32), {}, 0), ValueError);
  EXPECT_THROW(attend_in_groups(q, {}, v, lists({1, 2, 3, 2}), lists({1, 2, 3, 2}), 0, {}, {},
                                OwnKey::alone),
               ValueError);
  EXPECT_THROW(attend_to_recent(q, {}, v, lists({1, 2, 5}), 3, 2, 0), ShapeError);
  EXPECT_THROW(attend_to_recent(q, {}, v, lists({1, 2, 6}), 3, 0, 0), ValueError);
  EXPECT_THROW(attend_to_recent(q, {}, v, full({1, 2, 6}, 3, DType::i32), 3, 2, 0), ValueError);
}

// A position that is twice in a list would count twice, and order decides what causal rows see.
TEST(Routing, AttentionRefusesListsThatDoNotAscend) {
  const Tensor q = normals({1, 1, 6, 4}, 1), v = normals({1, 1, 6, 3}, 2);
  const auto lists = [](const std::vector<int32_t>& at) { return Tensor::from(at, {1, 1, 2, 3}); };
  const Tensor right = lists({0, 3, 4, 2, 5, -1});
  attend_in_groups(q, {}, v, right, lists({-1, -1, -1, 1, 2, 3}), 0);
  for (const Tensor& wrong :
       {lists({0, 3, 3, 2, 5, -1}), lists({0, 3, 4, 5, 2, -1}), lists({0, 3, 4, 2, -1, 5})}) {
    for (const bool keys : {false, true}) {
      const std::string message = message_of<ValueError>(
          [&] { attend_in_groups(q, {}, v, keys ? right : wrong, keys ? wrong : Tensor{}, 0); });
      EXPECT_TRUE(contains(message, keys ? "attend_in_groups: keys has position"
                                         : "attend_in_groups: queries has position"))
          << message;
      EXPECT_TRUE(contains(message, "expected them ascending")) << message;
    }
  }
}

}  // namespace
}  // namespace longspan::test
