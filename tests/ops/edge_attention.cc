#include "ops/attention/edge_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "autograd/gradcheck.h"
#include "ops/copy.h"
#include "ops/cost.h"
#include "ops/elementwise.h"
#include "ops/patterns/edge_builder.h"
#include "ops/patterns/tree.h"
#include "ops/random.h"
#include "ops/shape.h"
#include "tests/harness/op_info.h"

namespace longspan::test {
namespace {

/// The layouts of samples, by their first number.
enum EdgeKind {
  tree,        // tokens, k, clip, causal
  leaves,      // the same, its leaves alone
  root,        // the same, its root alone
  two_trees,   // tokens of the first and the second, k
  some_nodes,  // tokens, k: nodes one by one
  by_hand,     // runs of every kind, rows without keys
  wide_rows    // single rows of more keys than are computed at a time
};

std::shared_ptr<const EdgeLayout> hand_made() {
  EdgeLayoutBuilder builder;
  const int64_t list = builder.label_list(std::vector<int32_t>{3, 1, 4, 1, 5, 9, 2, 6});
  const auto one = [](int64_t label) { return EdgeLayoutBuilder::one_label(label); };
  for (int64_t i = 0; i < 5; ++i) builder.add_row(std::vector<EdgeRun>{{i, 6, list + i % 3}});
  builder.add_row(std::vector<EdgeRun>{});
  builder.add_row(std::vector<EdgeRun>{{3, 0, list}, {9, 2, one(7)}});
  builder.end_group();
  // Rows together whose labels are one for each run, in the second run.
  for (int64_t i = 0; i < 19; ++i) {
    builder.add_row(std::vector<EdgeRun>{{i % 2, 5, list + 1}, {8, i == 3 ? 0 : 3, one(i % 4)}});
  }
  builder.end_group();
  builder.add_row(std::vector<EdgeRun>{{0, 12, one(0)}});
  return builder.build(12, 10);
}

std::shared_ptr<const EdgeLayout> rows_of_many_keys() {
  EdgeLayoutBuilder builder;
  const auto one = [](int64_t label) { return EdgeLayoutBuilder::one_label(label); };
  for (int64_t i = 0; i < 6; ++i) {
    builder.add_row(std::vector<EdgeRun>{{i, 150, one(0)}, {200, 400 - i, one(1)}});
    builder.end_group();
  }
  return builder.build(600, 2);
}

std::shared_ptr<const EdgeLayout> layout_of(std::span<const double> numbers) {
  const auto n = [&](size_t i) { return static_cast<int64_t>(numbers[i]); };
  const auto kind = static_cast<EdgeKind>(n(0));
  if (kind == by_hand) return hand_made();
  if (kind == wide_rows) return rows_of_many_keys();
  if (kind == two_trees) return tree_edges(std::vector{n(1), n(2)}, {.k = n(3), .clip = 1});
  if (kind == some_nodes) {
    std::vector<int64_t> nodes;
    for (int64_t i = 0; i < Tree{n(1)}.nodes(); i += 3) nodes.push_back(i);
    return tree_edges_of(n(1), {.k = n(2), .clip = 2, .causal = true}, nodes);
  }
  const TreeOptions o{.k = n(2), .clip = n(3), .causal = n(4) != 0, .span_self_loop = n(3) == 1};
  return tree_edges(std::vector{n(1)}, o,
                    kind == leaves ? TreeRows::leaves
                    : kind == root ? TreeRows::root
                                   : TreeRows::all);
}

template <class T>
std::vector<double> numbers_of(const Arguments<T>& in) {
  std::vector<double> numbers;
  for (size_t i = 0; i < in.numbers(); ++i) numbers.push_back(in.number(i));
  return numbers;
}

Array naive(Arrays in) {
  const Array &q = in[0], &k = in[1], &v = in[2], &relation = in[3];
  const int64_t B = q.dim(0), H = q.dim(1), R = q.dim(2), N = k.dim(2), d = q.dim(3), w = v.dim(3);
  Array out({B, H, R, w});
  const std::vector<Edge> edges = edges_of(*layout_of(numbers_of(in)));
  for (int64_t bh = 0; bh < B * H; ++bh) {
    for (size_t begin = 0, end = 0; begin < edges.size(); begin = end) {
      const int64_t row = edges[begin].row;
      std::vector<double> s;
      double top = -std::numeric_limits<double>::infinity(), total = 0;
      for (end = begin; end < edges.size() && edges[end].row == row; ++end) {
        const Edge& e = edges[end];
        double sum = 0;
        for (int64_t c = 0; c < d; ++c) {
          const double r = relation ? relation[e.label * d + c] : 0;
          sum += q[(bh * R + row) * d + c] * (k[(bh * N + e.key) * d + c] + r);
        }
        s.push_back(sum / std::sqrt(static_cast<double>(d)));
        top = std::max(top, s.back());
      }
      for (double& x : s) total += x = std::exp(x - top);
      for (size_t i = begin; i < end; ++i) {
        for (int64_t c = 0; c < w; ++c) {
          out[(bh * R + row) * w + c] += s[i - begin] / total * v[(bh * N + edges[i].key) * w + c];
        }
      }
    }
  }
  return out;
}

Sample edge_sample(std::string name, std::vector<double> numbers, int64_t batch, int64_t heads,
                   int64_t d, int64_t w, bool labels = true) {
  const auto layout = layout_of(numbers);
  return {
      std::move(name),
      {randn({batch, heads, layout->n_rows, d}), randn({batch, heads, layout->n_keys, d}),
       randn({batch, heads, layout->n_keys, w}), labels ? randn({layout->n_labels, d}) : none()},
      std::move(numbers)};
}

std::vector<InputSpec> inputs(int64_t rows, int64_t keys, int64_t d = 2, int64_t labels = 3) {
  return {randn({1, 1, rows, d}), randn({1, 1, keys, d}), randn({1, 1, keys, d}),
          randn({labels, d})};
}

std::vector<InputSpec> with_spec(std::vector<InputSpec> specs, size_t i, InputSpec spec) {
  specs[i] = std::move(spec);
  return specs;
}

Tensor run_edge_attention(Inputs in) {
  return edge_attention(in[0], in[1], in[2], in[3], layout_of(numbers_of(in)));
}

std::vector<int64_t> saved_bytes(Inputs in) {
  const int64_t wide = std::max<int64_t>(4, size_of(in[0].dtype()));
  std::vector<int64_t> bytes = {in[0].numel() * wide, in[1].numel() * wide, in[2].numel() * wide};
  if (in[3]) bytes.push_back(in[3].numel() * wide);
  const int64_t rows = in[0].dim(0) * in[0].dim(1) * in[0].dim(2);
  bytes.push_back(rows * in[2].dim(3) * wide);
  bytes.push_back(rows * wide);
  return bytes;
}

const Registered edge_attention_info = OpInfo{
    .name = "edge_attention",
    .run = run_edge_attention,
    .reference = naive,
    .samples =
        {edge_sample("one token", {tree, 1, 1, 0, 0}, 1, 1, 1, 1),
         edge_sample("two tokens", {tree, 2, 1, 0, 1}, 2, 1, 3, 2),
         edge_sample("odd", {tree, 13, 2, 1, 0}, 2, 3, 5, 4),
         edge_sample("causal", {tree, 21, 3, 9, 1}, 1, 2, 4, 4),
         edge_sample("no labels", {tree, 19, 1, 2, 0}, 1, 2, 3, 3, false),
         edge_sample("all leaves", {tree, 9, 9, 2, 0}, 1, 1, 2, 2),
         edge_sample("leaves", {leaves, 18, 2, 1, 1}, 2, 1, 3, 3),
         // Without labels: all pairs of a root have the same one, which changes no probability.
         edge_sample("root", {root, 11, 2, 3, 0}, 2, 2, 3, 3, false),
         edge_sample("two trees", {two_trees, 5, 17, 2}, 1, 2, 3, 2),
         edge_sample("no samples", {tree, 5, 1, 0, 0}, 0, 2, 3, 3)},
    .large = {edge_sample("large", {tree, 700, 4, 3, 0}, 2, 2, 32, 32),
              edge_sample("long runs", {tree, 3000, 2, 2, 1}, 1, 1, 17, 33),
              edge_sample("many neighbours", {leaves, 400, 64, 2, 0}, 1, 5, 64, 64)},
    .rejects = {rejects<ShapeError>("rows", inputs(6, 7), "the layout has 7 rows and 7 keys",
                                    {tree, 4, 1, 0, 0}),
                rejects<ShapeError>("keys", inputs(7, 6), "the layout has 7 rows and 7 keys",
                                    {tree, 4, 1, 0, 0}),
                rejects<ShapeError>("few labels", inputs(7, 7, 2, 2),
                                    "relation must be [3 or more, 2]", {tree, 4, 1, 0, 0}),
                rejects<ShapeError>("width of labels", with_spec(inputs(7, 7), 3, randn({3, 4})),
                                    "relation must be [3 or more, 2]", {tree, 4, 1, 0, 0}),
                rejects<ShapeError>("width", with_spec(inputs(7, 7), 1, randn({1, 1, 7, 3})),
                                    "q and k must have the same width", {tree, 4, 1, 0, 0}),
                rejects<ShapeError>("heads", with_spec(inputs(7, 7), 2, randn({1, 2, 7, 2})),
                                    "q, k and v must have the same batch and heads",
                                    {tree, 4, 1, 0, 0}),
                rejects<ShapeError>("rank", with_spec(inputs(7, 7), 0, randn({7, 2})),
                                    "q must have rank 4", {tree, 4, 1, 0, 0}),
                rejects<ShapeError>("no width", inputs(7, 7, 0), "widths must be 1 to",
                                    {tree, 4, 1, 0, 0}),
                rejects<DTypeError>("dtypes",
                                    with_spec(inputs(7, 7), 2, as(DType::f64, randn({1, 1, 7, 2}))),
                                    "dtypes differ: f32 and f64", {tree, 4, 1, 0, 0}),
                rejects<ValueError>(
                    "no layout", inputs(7, 7), "no layout is given; make one with tree_edges()", {},
                    [](Inputs in) { edge_attention(in[0], in[1], in[2], in[3], nullptr); }),
                rejects<ValueError>("dropout", inputs(7, 7),
                                    "dropout is 1; expected 0 or more, below 1", {tree, 4, 1, 0, 0},
                                    [](Inputs in) {
                                      edge_attention(in[0], in[1], in[2], in[3],
                                                     layout_of(numbers_of(in)), 0, {1, {}});
                                    }),
                rejects<ValueError>(
                    "scale", inputs(7, 7), "scale is -1; expected 0 or more", {tree, 4, 1, 0, 0},
                    [](Inputs in) {
                      edge_attention(in[0], in[1], in[2], in[3], layout_of(numbers_of(in)), -1);
                    })},
    .saved_bytes = saved_bytes,
    .nan = {.inputs = {0}},
    .tolerance = 4,
    .gradient_tolerance = 4,
    .reason = "hundreds of products are summed one after the other",
    .optional = {3},
};

// A layout that is made for each call is not on the device yet when a step is recorded.
const Registered edge_attention_once_info = OpInfo{
    .name = "edge_attention_once",
    .run = run_edge_attention,
    .reference = naive,
    .samples = {edge_sample("by hand", {by_hand}, 1, 2, 3, 4),
                edge_sample("by hand without labels", {by_hand}, 1, 1, 3, 2, false),
                edge_sample("some nodes", {some_nodes, 20, 2}, 1, 1, 3, 3)},
    .large = {edge_sample("large", {some_nodes, 300, 4}, 2, 2, 32, 32),
              edge_sample("wide rows", {wide_rows}, 2, 2, 16, 24)},
    .saved_bytes = saved_bytes,
    .unrecorded = true,
    .nan = {.inputs = {0}},
    .tolerance = 4,
    .gradient_tolerance = 4,
    .reason = "hundreds of products are summed one after the other",
    .optional = {3},
};

Tensor random(const Shape& shape, uint64_t seed) {
  return normal(shape, Generator(seed), 0, 1, DType::f32);
}

// A sample's results do not depend on the trees beside it.
TEST(EdgeAttention, TreesOfABatchDoNotTouchEachOther) {
  const std::vector<int64_t> lengths = {37, 5, 64, 1};
  const TreeOptions o{.k = 3, .clip = 2};
  const auto all = tree_edges(lengths, o);
  const Tensor q = random({1, 2, all->n_rows, 24}, 1), k = random({1, 2, all->n_keys, 24}, 2),
               v = random({1, 2, all->n_keys, 24}, 3), r = random({o.labels(), 24}, 4);
  const Tensor y = edge_attention(q, k, v, r, all);
  int64_t at = 0;
  for (const int64_t n : lengths) {
    const auto own = tree_edges(std::vector{n}, o);
    const auto part = [&](const Tensor& x) { return narrow(x, 2, at, own->n_rows); };
    const Tensor z = edge_attention(part(q), part(k), part(v), r, own);
    EXPECT_EQ(contiguous(z).to_vector<float>(), contiguous(part(y)).to_vector<float>()) << n;
    at += own->n_rows;
  }
}

// Rows computed one by one agree with those computed together.
TEST(EdgeAttention, SingleRowsAgreeWithBlocks) {
  const int64_t n = 150;
  const TreeOptions o{.k = 5, .clip = 2, .causal = true};
  const auto all = tree_edges(std::vector{n}, o);
  const Tensor q = random({2, 2, all->n_rows, 20}, 1), k = random({2, 2, all->n_keys, 20}, 2),
               v = random({2, 2, all->n_keys, 20}, 3), r = random({o.labels(), 20}, 4);
  const Tensor y = edge_attention(q, k, v, r, all);
  for (const int64_t node : {0, 1, 77, 149, 150, 200, 300}) {
    const auto one = tree_edges_of(n, o, std::span(&node, 1));
    const Tensor z = edge_attention(narrow(q, 2, node, 1), k, v, r, one);
    const std::vector<float> a = contiguous(z).to_vector<float>(),
                             b = contiguous(narrow(y, 2, node, 1)).to_vector<float>();
    for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 2e-6) << node;
  }
}

// Spans of the first layer have zero queries: they average their leaves.
TEST(EdgeAttention, ZeroQueriesAverageTheirKeys) {
  const auto layout = tree_edges(std::vector<int64_t>{8}, {.k = 2, .clip = 1});
  const Tensor q = Tensor::zeros({1, 1, 15, 4}), k = random({1, 1, 15, 4}, 1);
  const Tensor r = random({10, 4}, 2);
  std::vector<float> ones(15, 0);
  for (size_t i = 0; i < 8; ++i) ones[i] = static_cast<float>(i);
  const Tensor v = Tensor::from(ones, {1, 1, 15, 1});
  const std::vector<float> y = contiguous(edge_attention(q, k, v, r, layout)).to_vector<float>();
  EXPECT_FLOAT_EQ(y[8], 0.5F);
  EXPECT_FLOAT_EQ(y[11], 6.5F);
  EXPECT_FLOAT_EQ(y[12], 1.5F);
  EXPECT_FLOAT_EQ(y[14], 3.5F);
}

TEST(EdgeAttention, DropoutKeepsTheMeanAndItsGradientIsExact) {
  const auto layout = tree_edges(std::vector<int64_t>{40}, {.k = 3, .clip = 1});
  const auto draw = [](uint64_t seed) {
    Pass pass;
    pass.training = true;
    pass.gen = Generator(seed);
    return Dropout{0.25F, pass};
  };
  const auto wide = [](const Shape& shape, uint64_t seed) {
    return normal(shape, Generator(seed), 0, 1, DType::f64);
  };
  const int64_t nodes = layout->n_rows;
  const Tensor q = wide({1, 2, nodes, 3}, 1), k = wide({1, 2, nodes, 3}, 2),
               v = wide({1, 2, nodes, 3}, 3), r = wide({layout->n_labels, 3}, 4);
  const auto result = gradcheck(
      [&](const std::vector<Tensor>& in) {
        return edge_attention(in[0], in[1], in[2], in[3], layout, 0, draw(5));
      },
      {q, k, v, r});
  EXPECT_TRUE(result.ok) << result.message;

  const Tensor plain = edge_attention(q, k, v, r, layout);
  Tensor mean = zeros_like(plain);
  constexpr int kDraws = 400;
  for (int i = 0; i < kDraws; ++i) {
    const Tensor y = edge_attention(q, k, v, r, layout, 0, draw(static_cast<uint64_t>(i) + 10));
    mean = add(mean, mul(y, 1.0 / kDraws));
  }
  const std::vector<double> a = contiguous(mean).to_vector<double>(),
                            b = contiguous(plain).to_vector<double>();
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(a[i] - b[i]));
  EXPECT_LT(worst, 0.35);
  EXPECT_GT(worst, 0.001);
}

TEST(EdgeAttention, CountsItsPairs) {
  const auto layout = tree_edges(std::vector<int64_t>{64}, {.k = 4, .causal = true});
  const Tensor q = random({2, 3, layout->n_rows, 8}, 1), r = random({9, 8}, 2);
  MacCount count;
  edge_attention(q, q, q, r, layout);
  EXPECT_EQ(count.attention(), 2 * 3 * 1193 * (8 + 8 + 8));
}

}  // namespace
}  // namespace longspan::test
