#include "nn/adaptive.h"

#include <gtest/gtest.h>

#include <cmath>

#include "autograd/engine.h"
#include "autograd/gradcheck.h"
#include "autograd/mode.h"
#include "autograd/node.h"
#include "core/memory.h"
#include "ops/copy.h"
#include "ops/cost.h"
#include "ops/elementwise.h"
#include "ops/matmul.h"
#include "ops/reduce.h"
#include "ops/shape.h"
#include "tests/harness/messages.h"
#include "tests/harness/model_info.h"
#include "tests/nn/numbers.h"

namespace longspan {
namespace {

using test::assign;
using test::contains;
using test::distance;
using test::hashed_numbers;
using test::layer_init;
using test::message_of;
using test::same_bits;

using Ids = std::vector<int64_t>;

Tensor ids_of(const Ids& ids) { return Tensor::from(ids, {std::ssize(ids)}); }

/// An embedding and a softmax over the same clusters.
struct InputAndOutput : Module {
  InputAndOutput(const AdaptiveOptions& o, const AdaptiveSoftmaxOptions& s,
                 const Init& init = layer_init)
      : in(o, init.at("in")), out(o, s, init.at("out"), &in) {
    test::randomise(*this, 0.6, 5);
  }
  void visit(Visitor& v) override { v("in", in)("out", out); }
  /// The loss of predicting `targets` from f(ids), position by position.
  Tensor loss(const Tensor& ids, const Tensor& targets, Reduction reduction = Reduction::mean,
              LossGradient gradient = LossGradient::recompute) const {
    return out.loss(tanh(in.forward(ids)), targets, reduction, gradient);
  }

  AdaptiveEmbedding in;
  AdaptiveSoftmax out;
};

AdaptiveOptions clusters(Ids cutoffs, int64_t div_value = 1, int64_t d_embed = 0) {
  return {.vocab = 12,
          .d_model = 6,
          .d_embed = d_embed,
          .cutoffs = std::move(cutoffs),
          .div_value = div_value,
          .tables = Scheme::normal(1),
          .projections = Scheme::normal(1)};
}

struct Case {
  const char* name;
  AdaptiveOptions clusters;
  AdaptiveSoftmaxOptions softmax;
};

std::vector<Case> cases() {
  return {{"plain", clusters({}), {.bias = true}},
          {"plain, narrow", clusters({}, 1, 4), {.tie_weights = true, .tie_projections = {0}}},
          {"no projections", clusters({3, 7}), {.bias = true}},
          {"no projections, tied", clusters({3, 7}), {.bias = true, .tie_weights = true}},
          {"one width", clusters({4, 6}, 1, 5), {.tie_projections = {1}}},
          {"first alone", clusters({1}, 2), {.bias = true, .tie_weights = true}},
          {"last alone", clusters({11}, 2), {.tie_projections = {0, 1}}},
          {"four clusters",
           clusters({2, 5, 9}, 2, 9),
           {.bias = true, .tie_weights = true, .tie_projections = {1, 2, 3}}},
          {"reversed",
           clusters({2, 5, 9}, 2, 8),
           {.bias = true, .cluster_order = ClusterOrder::reversed}},
          {"quarter", clusters({1, 11}, 4, 16), {.bias = true, .tie_projections = {1, 2}}}};
}

/// Ids and targets.
const std::vector<std::pair<Ids, Ids>>& batches() {
  static const std::vector<std::pair<Ids, Ids>> all{
      {{0, 11, 4, 8, 2, 11, 6, 1}, {11, 4, 8, 2, 11, 6, 1, 0}},
      {{0, 0, 0}, {0, 0, 0}},                                  // the other clusters are empty
      {{11, 10}, {11, 11}},                                    // the first one is empty
      {{5}, {9}},                                              // one token
      {{3, 7, 2, 9}, {ignored_target, 8, ignored_target, 0}},  // ignored targets
      {{3, 7}, {ignored_target, ignored_target}}};             // nothing counts
  return all;
}

double at(const Tensor& x, int64_t i, int64_t j) {
  return x.to_vector<double>()[static_cast<size_t>(i * x.dim(1) + j)];
}

double log_of_sum(const std::vector<double>& z) {
  double sum = 0;
  for (const double v : z) sum += std::exp(v);
  return std::log(sum);
}

/// log p(x) by the definition, entry by entry.
double log_probability(const AdaptiveSoftmax& s, const std::vector<double>& h, int64_t x) {
  const AdaptiveOptions& o = s.options;
  const int64_t n = o.clusters() - 1;
  const auto logit = [&](int64_t c, const Linear& table, int64_t row) {
    double z = table.bias ? table.bias.to_vector<double>()[static_cast<size_t>(row)] : 0;
    for (int64_t k = 0; k < o.width(c); ++k) {
      double p = o.projects() ? 0 : h[static_cast<size_t>(k)];
      for (int64_t d = 0; o.projects() && d < o.d_model; ++d) {
        p += at(s.projections[static_cast<size_t>(c)].weight, d, k) * h[static_cast<size_t>(d)];
      }
      z += at(table.weight, row, k) * p;
    }
    return z;
  };
  const auto row = [&](int64_t c) {
    return s.softmax.cluster_order == ClusterOrder::reversed ? n - c : c - 1;
  };
  std::vector<double> head;
  for (int64_t i = 0; i < o.size(0); ++i) head.push_back(logit(0, s.tables[0], i));
  for (int64_t c = 1; c <= n; ++c) head.push_back(logit(0, s.cluster, row(c)));
  if (x < o.size(0)) return head[static_cast<size_t>(x)] - log_of_sum(head);
  int64_t c = 1;
  while (x >= o.begin(c + 1)) ++c;
  const auto i = static_cast<size_t>(c);
  std::vector<double> tail;
  for (int64_t k = 0; k < o.size(c); ++k) tail.push_back(logit(c, s.tables[i], k));
  return head[static_cast<size_t>(o.size(0) + c - 1)] - log_of_sum(head) +
         tail[static_cast<size_t>(x - o.begin(c))] - log_of_sum(tail);
}

TEST(AdaptiveSoftmax, IsItsDefinition) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    const InputAndOutput model(c.clusters, c.softmax);
    const int64_t D = c.clusters.d_model, V = c.clusters.vocab;
    const Tensor hidden = hashed_numbers({3, D});
    const std::vector<double> h = hidden.to_vector<double>();
    const Tensor all = model.out.log_probabilities(hidden);
    EXPECT_LT(distance(sum(exp(all), {1}), ones({3}, DType::f64)), 1e-14);
    for (int64_t t = 0; t < 3; ++t) {
      const std::vector<double> row(h.begin() + t * D, h.begin() + (t + 1) * D);
      for (int64_t x = 0; x < V; ++x) {
        const double expected = log_probability(model.out, row, x);
        EXPECT_NEAR(at(all, t, x), expected, 1e-13) << t << ", " << x;
        const Tensor one = slice(hidden, 0, t, t + 1);
        EXPECT_NEAR(model.out.loss(one, ids_of({x})).item(), -expected, 1e-13) << t << ", " << x;
      }
    }
  }
}

TEST(AdaptiveSoftmax, LossesAreInTheOrderOfTheTargets) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    const InputAndOutput model(c.clusters, c.softmax);
    for (const auto& [ids, targets] : batches()) {
      const int64_t T = std::ssize(ids);
      const Tensor hidden = hashed_numbers({T, c.clusters.d_model}), y = ids_of(targets);
      const Tensor all = model.out.log_probabilities(hidden);
      const std::vector<double> each =
          model.out.loss(hidden, y, Reduction::none).to_vector<double>();
      double total = 0;
      int64_t count = 0;
      for (int64_t t = 0; t < T; ++t) {
        const int64_t target = targets[static_cast<size_t>(t)];
        const double expected = target == ignored_target ? 0 : -at(all, t, target);
        EXPECT_NEAR(each[static_cast<size_t>(t)], expected, 1e-13) << t;
        total += expected;
        count += target == ignored_target ? 0 : 1;
      }
      const double mean = total / static_cast<double>(std::max<int64_t>(count, 1));
      for (const LossGradient g : {LossGradient::recompute, LossGradient::in_forward}) {
        EXPECT_NEAR(model.out.loss(hidden, y, Reduction::sum, g).item(), total, 1e-12);
        EXPECT_NEAR(model.out.loss(hidden, y, Reduction::mean, g).item(), mean, 1e-13);
      }
      // Other dtypes and ranks of the targets.
      const Tensor matrix = reshape(hidden, {1, T, c.clusters.d_model});
      EXPECT_EQ(model.out.loss(matrix, cast(reshape(y, {1, T}), DType::i32)).item(),
                model.out.loss(hidden, y).item());
    }
  }
}

TEST(AdaptiveEmbedding, IsARowTimesAProjection) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    const InputAndOutput model(c.clusters, c.softmax);
    const AdaptiveOptions& o = c.clusters;
    for (const auto& [ids, targets] : batches()) {
      std::vector<Tensor> rows;
      for (const int64_t id : ids) {
        size_t i = 0;
        while (id >= o.begin(static_cast<int64_t>(i) + 1)) ++i;
        const Tensor row =
            slice(model.in.tables[i].weight, 0, id - o.begin(static_cast<int64_t>(i)),
                  id - o.begin(static_cast<int64_t>(i)) + 1);
        rows.push_back(o.projects() ? linear(row, model.in.projections[i].weight) : row);
      }
      const Tensor expected = concat(rows, 0);
      EXPECT_LT(distance(model.in.forward(ids_of(ids)), expected), 1e-15);
      const Tensor matrix = reshape(cast(ids_of(ids), DType::u8), {1, std::ssize(ids)});
      EXPECT_LT(distance(model.in.forward(matrix), unsqueeze(expected, 0)), 1e-15);
    }
  }
}

TEST(Adaptive, Gradients) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    InputAndOutput model(c.clusters, c.softmax);
    for (const auto& [ids, targets] : batches()) {
      SCOPED_TRACE(targets.size());
      const Tensor x = ids_of(ids), y = ids_of(targets);
      for (const LossGradient g : {LossGradient::recompute, LossGradient::in_forward}) {
        EXPECT_EQ(test::check_parameter_gradients(
                      model, [&] { return model.loss(x, y, Reduction::mean, g); }, 6),
                  "");
      }
      const auto each = [&](const std::vector<Tensor>& in) {
        return model.out.loss(in[0], y, Reduction::none);
      };
      const Tensor hidden = hashed_numbers({std::ssize(ids), c.clusters.d_model});
      const GradcheckResult result = gradcheck(each, {hidden});
      EXPECT_TRUE(result) << result.message;
      const auto all = [&](const std::vector<Tensor>& in) {
        return model.out.log_probabilities(in[0]);
      };
      const GradcheckResult full = gradcheck(all, {hidden});
      EXPECT_TRUE(full) << full.message;
    }
  }
}

// Gradients of all softmaxes at once would raise the peak: automatic is recompute here.
TEST(Adaptive, AutomaticGradientsAreRecomputed) {
  const InputAndOutput model(clusters({3, 7}, 2), {});
  const auto saved = [&](LossGradient g) {
    const int64_t before = memory_tracker().live()[Category::saved];
    const Tensor loss = model.loss(ids_of({0, 2, 8}), ids_of({8, 1, 11}), Reduction::mean, g);
    return memory_tracker().live()[Category::saved] - before;
  };
  EXPECT_EQ(saved(LossGradient::automatic), saved(LossGradient::recompute));
  EXPECT_NE(saved(LossGradient::in_forward), saved(LossGradient::recompute));
}

TEST(Adaptive, AClusterWithoutTokensHasZeroGradients) {
  InputAndOutput model(clusters({3, 7}, 2), {.bias = true});
  backward(model.loss(ids_of({0, 2, 8}), ids_of({8, 1, 11})));
  for (const NamedTensor& p : named_parameters(model)) {
    const bool empty = contains(p.name, "table.1") || contains(p.name, "projection.1");
    ASSERT_TRUE(grad(p.tensor)) << p.name;
    const double largest = distance(grad(p.tensor), zeros_like(p.tensor.detach()));
    EXPECT_EQ(largest == 0, empty) << p.name;
  }
}

// The head's projection meets such a row in a product, which would turn 0 times NaN into NaN.
TEST(AdaptiveSoftmax, RowsOfIgnoredTargetsReachNothing) {
  for (const int64_t d_embed : {6, 4}) {
    InputAndOutput model(clusters({3, 7}, 1, d_embed), {.bias = true});
    const Tensor good = hashed_numbers({4, 6}), y = ids_of({9, ignored_target, 1, ignored_target});
    std::vector<double> h = good.to_vector<double>();
    std::fill(h.begin() + 6, h.begin() + 12, std::nan(""));
    std::fill(h.begin() + 18, h.end(), std::nan(""));
    Tensor bad = Tensor::from(h, {4, 6});
    set_requires_grad(bad);
    const Tensor loss = model.out.loss(bad, y);
    EXPECT_TRUE(same_bits(loss, model.out.loss(good, y)));
    backward(loss);
    for (const NamedTensor& p : named_parameters(model.out)) {
      if (!grad(p.tensor)) continue;
      for (const double g : grad(p.tensor).to_vector<double>()) EXPECT_TRUE(std::isfinite(g));
    }
    for (const double g : grad(bad).to_vector<double>()) EXPECT_TRUE(std::isfinite(g));
  }
}

TEST(AdaptiveSoftmax, ReversedOrderHasTheRowsOfTheClustersUpsideDown) {
  const AdaptiveOptions o = clusters({2, 5, 9}, 2, 8);
  InputAndOutput model(o, {.bias = true});
  InputAndOutput other(o, {.bias = true, .cluster_order = ClusterOrder::reversed});
  test::copy_parameters(model, other);
  const Tensor hidden = hashed_numbers({5, 6}), y = ids_of({0, 3, 11, 7, 4});
  EXPECT_GT(distance(model.out.log_probabilities(hidden), other.out.log_probabilities(hidden)),
            0.01);
  assign(other.out.cluster.weight, flip(model.out.cluster.weight.detach(), 0).to_vector<double>());
  assign(other.out.cluster.bias, flip(model.out.cluster.bias.detach(), 0).to_vector<double>());
  EXPECT_LT(distance(model.out.log_probabilities(hidden), other.out.log_probabilities(hidden)),
            1e-15);
  EXPECT_LT(distance(model.out.loss(hidden, y), other.out.loss(hidden, y)), 1e-15);
}

TEST(Adaptive, TiedTensorsAreTheSame) {
  const AdaptiveOptions o = clusters({2, 5}, 2, 8);
  InputAndOutput tied(o, {.tie_weights = true, .tie_projections = {1, 2}}), apart(o, {});
  const auto same = [](const Tensor& a, const Tensor& b) { return a.view().data == b.view().data; };
  for (size_t c = 0; c < 3; ++c) {
    EXPECT_TRUE(same(tied.in.tables[c].weight, tied.out.tables[c].weight));
    EXPECT_EQ(same(tied.in.projections[c].weight, tied.out.projections[c].weight), c > 0);
    EXPECT_FALSE(same(apart.in.tables[c].weight, apart.out.tables[c].weight));
    EXPECT_FALSE(same(apart.in.projections[c].weight, apart.out.projections[c].weight));
  }
  const int64_t tables = 2 * 8 + 3 * 4 + 7 * 2, projections = 6 * (8 + 4 + 2), entries = 2 * 8;
  EXPECT_EQ(parameter_count(tied), tables + projections + 6 * 8 + entries);
  EXPECT_EQ(parameter_count(apart), 2 * (tables + projections) + entries);
}

TEST(Adaptive, WidthsAndClusters) {
  const AdaptiveOptions o{
      .vocab = 267735, .d_model = 1024, .cutoffs = {20000, 40000, 200000}, .div_value = 4};
  for (const auto& [c, width, size] : std::vector<std::array<int64_t, 3>>{
           {0, 1024, 20000}, {1, 256, 20000}, {2, 64, 160000}, {3, 16, 67735}}) {
    EXPECT_EQ(o.width(c), width);
    EXPECT_EQ(o.size(c), size);
  }
  EXPECT_TRUE(o.projects());
  EXPECT_FALSE(clusters({3}).projects());
  EXPECT_TRUE(clusters({3}, 1, 4).projects());
  EXPECT_FALSE(clusters({}, 4).projects());
}

/// The products of the softmaxes and projections that a batch needs, and no others.
TEST(Adaptive, ComputesOnlyTheRowsOfEachCluster) {
  const InputAndOutput model(clusters({3, 7}, 2, 8), {});  // sizes 3, 4, 5; widths 8, 4, 2
  const auto macs = [&](const Ids& ids, const Ids& targets) {
    const MacCount count;
    model.loss(ids_of(ids), ids_of(targets));
    return count.products();
  };
  const auto in = [](int64_t a, int64_t b, int64_t c) { return 6 * (8 * a + 4 * b + 2 * c); };
  const auto out = [](int64_t n, int64_t b, int64_t c) {
    return n * 8 * (6 + 3 + 2) + b * 4 * (6 + 4) + c * 2 * (6 + 5);
  };
  EXPECT_EQ(macs({0, 1, 2}, {0, 1, 2}), in(3, 0, 0) + out(3, 0, 0));
  EXPECT_EQ(macs({0, 5, 6, 11}, {11, 10, 1, 5}), in(1, 2, 1) + out(4, 1, 2));
  EXPECT_EQ(macs({9, 9, 9, 3}, {ignored_target, 10, ignored_target, 1}),
            in(0, 1, 3) + out(2, 0, 1));
}

/// Returns the largest sum of live bytes during a step of `model` on T tokens, beyond that before.
int64_t peak_of(const InputAndOutput& model, int64_t T) {
  std::vector<int32_t> ids(static_cast<size_t>(T)), targets(ids.size());
  for (size_t t = 0; t < ids.size(); ++t) {
    ids[t] = static_cast<int32_t>(t * 37 % 6000);
    targets[t] = static_cast<int32_t>(t * 53 % 6000);
  }
  MemoryTracker& tracker = memory_tracker();
  const Tensor x = Tensor::from(ids, {T}), y = Tensor::from(targets, {T});
  backward(model.loss(x, y));  // makes the gradients
  tracker.reset_peak();
  const int64_t before = tracker.live().total();
  backward(model.loss(x, y));
  return tracker.peak().total() - before;
}

TEST(Adaptive, NeverHoldsTheLogitsOfABatch) {
  const AdaptiveOptions o{.vocab = 6000, .d_model = 16, .cutoffs = {2000, 4000}, .div_value = 2};
  const InputAndOutput model(o, {.bias = true, .tie_weights = true}, Init{.gen = Generator{1}});
  const int64_t few = peak_of(model, 1024), many = peak_of(model, 4096);
  EXPECT_GT(few, 1024 * 16 * 4);
  // A row needs some vectors and ids; its logits alone would be 24000 bytes.
  EXPECT_LT(many - few, 3072 * 2000);
}

TEST(Adaptive, BadInputIsNamed) {
  const InputAndOutput model(clusters({3, 7}, 2), {});
  const auto embedding = [&](const Tensor& ids) {
    return message_of<Error>([&] { model.in.forward(ids); });
  };
  EXPECT_TRUE(contains(embedding(ids_of({1, 12})),
                       "adaptive_embedding: ids holds 12 at [1]; it must be at least 0 and less"));
  EXPECT_TRUE(contains(embedding(ids_of({-1})), "ids holds -1 at [0]"));
  EXPECT_TRUE(contains(embedding(zeros({2})), "adaptive_embedding: "));

  const Tensor h = hashed_numbers({2, 6});
  const auto loss = [&](const Tensor& hidden, const Tensor& targets) {
    return message_of<Error>([&] { model.out.loss(hidden, targets); });
  };
  EXPECT_TRUE(contains(loss(h, ids_of({1, 12})),
                       "adaptive_softmax: target 12 at position 1 is not in [0, 12) and not the "
                       "ignored value -100"));
  EXPECT_TRUE(contains(loss(h, ids_of({-1, 2})), "target -1 at position 0"));
  const std::string narrow = loss(hashed_numbers({2, 5}), ids_of({1, 2}));
  EXPECT_TRUE(contains(narrow, "hidden has 5 features, the softmax takes 6; pass [..., 6]"))
      << narrow;
  EXPECT_TRUE(contains(narrow, "[2, 5]")) << narrow;
  EXPECT_TRUE(contains(loss(h, ids_of({1})), "adaptive_softmax: targets"));
  EXPECT_TRUE(contains(loss(h, zeros({2})), "adaptive_softmax: targets"));
  EXPECT_TRUE(contains(loss(ids_of({1, 2}), ids_of({1, 2})), "adaptive_softmax: hidden"));
  EXPECT_TRUE(
      contains(message_of<ValueError>([&] {
                 model.out.loss(h, ids_of({1, 2}), Reduction::none, LossGradient::in_forward);
               }),
               "gradients in forward need one loss"));
  EXPECT_TRUE(contains(message_of<ShapeError>([&] {
                         model.out.log_probabilities(hashed_numbers({2, 7}));
                       }),
                       "hidden has 7 features, the softmax takes 6"));
}

TEST(Adaptive, BadOptionsAreNamed) {
  const auto error = [](auto change) {
    AdaptiveOptions o = clusters({3, 7}, 2);
    AdaptiveSoftmaxOptions s;
    change(o, s);
    return message_of<ValueError>([&] { InputAndOutput(o, s); });
  };
  const char* order = "expected ids that increase, from 1 to vocab - 1 = 11";
  for (const Ids& cutoffs : std::vector<Ids>{{0, 3}, {3, 3}, {7, 3}, {-2}, {12}, {3, 4000}}) {
    EXPECT_TRUE(contains(error([&](auto& o, auto&) { o.cutoffs = cutoffs; }), order));
  }
  EXPECT_TRUE(contains(error([](auto& o, auto&) { o.div_value = 0; }), "div_value is 0"));
  EXPECT_TRUE(contains(error([](auto& o, auto&) { o.div_value = 4; }),
                       "cluster 2 has no width: 6 / 4^2 is below 1; lower div_value"));
  EXPECT_TRUE(contains(error([](auto& o, auto&) { o.d_embed = -1; }), "d_embed is -1"));
  EXPECT_TRUE(contains(error([](auto& o, auto&) { o.vocab = 0; }), "vocab is 0"));
  EXPECT_TRUE(contains(error([](auto& o, auto&) { o.d_model = 0; }), "d_model is 0"));
  EXPECT_TRUE(contains(error([](auto&, auto& s) { s.tie_projections = {3}; }),
                       "tie_projections are [3]; expected clusters from 0 to 2"));
  EXPECT_TRUE(contains(error([](auto& o, auto& s) {
                         o.div_value = 1;
                         s.tie_projections = {1};
                       }),
                       "but no cluster has a projection"));
  const AdaptiveEmbedding other(clusters({3}, 2), layer_init);
  EXPECT_TRUE(
      contains(message_of<ValueError>([&] {
                 AdaptiveSoftmax(clusters({3, 7}, 2), {.tie_weights = true}, layer_init, &other);
               }),
               "the embedding to tie to has other sizes"));
  EXPECT_TRUE(contains(message_of<ValueError>([&] {
                         AdaptiveSoftmax(clusters({3, 7}, 2), {.tie_weights = true}, layer_init);
                       }),
                       "need an embedding to tie to"));
}

}  // namespace
}  // namespace longspan
