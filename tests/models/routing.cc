// The Routing Transformer against the golden files, and properties of its attention, its groups and
// its centroids.

#include "models/routing/routing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "autograd/engine.h"
#include "autograd/gradcheck.h"
#include "autograd/mode.h"
#include "core/memory.h"
#include "core/parallel.h"
#include "data/cluster_task.h"
#include "nn/after_step.h"
#include "nn/attention/divergence.h"
#include "nn/nearest.h"
#include "ops/attention/routing.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/index.h"
#include "ops/matmul.h"
#include "ops/norm.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/shape.h"
#include "ops/softmax.h"
#include "ops/sort.h"
#include "tests/harness/messages.h"
#include "tests/models/golden_file.h"

namespace longspan::test {
namespace {

Tensor buffer(Module& module, const std::string& name) {
  for (const NamedTensor& b : named_buffers(module)) {
    if (b.name == name) return b.tensor;
  }
  ADD_FAILURE() << "no buffer " << name;
  return {};
}

// --------------------------------------------------------------------------------------- goldens

class RoutingGoldens : public testing::TestWithParam<std::string> {};

RoutingTransformer from_file(const GoldenFile& golden, DType dtype) {
  auto model = golden.build<RoutingTransformer, RoutingConfig>(dtype);
  for (NamedTensor& b : named_buffers(model)) {
    if (!b.name.ends_with("means")) continue;
    const Tensor means = cast(golden["before." + b.name], dtype);
    write_buffer(b.tensor, means);
    Tensor sums = buffer(model, b.name.substr(0, b.name.size() - 5) + "sums");
    write_buffer(sums, means);
  }
  return model;
}

/// Compares outputs, every gradient, and the centroids after one step.
void expect_routing_golden(const std::string& name, DType dtype, double tolerance) {
  const GoldenFile golden("routing", name);
  RoutingTransformer model = from_file(golden, dtype);
  const Tensor tokens = golden["input.tokens"];
  const Tensor hidden = model.forward(tokens, training);
  golden.expect("output.hidden", hidden, tolerance);
  golden.expect("output.logits", model.head(hidden), tolerance);
  const LanguageModel::Losses losses = model.loss(tokens, golden["input.targets"], {}, training);
  golden.expect("output.loss", losses.loss, tolerance);
  ASSERT_EQ(losses.auxiliary.size(), 1u);
  EXPECT_EQ(losses.auxiliary[0].name, "commitment");
  golden.expect("output.commitment", losses.auxiliary[0].value, tolerance);
  backward(losses.total());
  golden.expect_gradients(model, tolerance);
  end_step(model, 0, Generator{1}, losses.statistics);
  for (const NamedTensor& b : named_buffers(model)) {
    if (b.name.ends_with("means")) golden.expect("after." + b.name, b.tensor, tolerance);
  }
}

TEST_P(RoutingGoldens, EveryOutputGradientAndCentroid) {
  expect_routing_golden(GetParam(), DType::f64, 1e-10);
}
TEST_P(RoutingGoldens, InF32) { expect_routing_golden(GetParam(), DType::f32, 2e-5); }

INSTANTIATE_TEST_SUITE_P(Routing, RoutingGoldens, testing::ValuesIn(golden_names("routing")),
                         own_name);

// The golden file of the authors' settings is the one of the others, but for what the variant sets.
TEST(Routing, TheOfficialVariantIsThatOfTheGoldenFile) {
  const auto settings = [](const char* name) {
    return GoldenFile("routing", name).config<RoutingConfig>();
  };
  const auto fields = [](RoutingConfig c) { return to_json(c); };
  EXPECT_EQ(fields(routing_variant(settings("separate"), RoutingVariant::official)),
            fields(settings("separate_official")));
  RoutingConfig narrow = settings("plain");
  narrow.d_embed = 7;
  EXPECT_EQ(fields(routing_variant(narrow, RoutingVariant::official)),
            fields(settings("official")));
}

// ----------------------------------------------------------------------------------------- layer

constexpr int64_t kRoutingWidth = 8, kRoutingHead = 4;

/// Two routing heads and no others, without relative positions.
RoutingOptions pure(int64_t clusters, int64_t window) {
  return {.d_model = kRoutingWidth,
          .d_head = kRoutingHead,
          .routing_heads = 2,
          .clusters = clusters,
          .window = window,
          .weights = Scheme::normal(0.5),
          .out_weights = Scheme::normal(0.5),
          .relative = Scheme::normal(0.5)};
}

const Init routing_init{.gen = Generator{4}, .dtype = DType::f64};

Tensor routing_rows(int64_t batch, int64_t length, uint64_t seed = 1) {
  Tensor x = normal({batch, length, kRoutingWidth}, Generator{seed}, 0, 1, DType::f64);
  return set_requires_grad(x);
}

/// [B, L, H d] -> [B, H, L, d].
Tensor heads_of(const Tensor& x) { return transpose(unflatten(x, -1, 2, kRoutingHead), 1, 2); }

/// Dense causal attention on LN0(q), with logits that are not scaled.
Tensor dense_routing(RoutingAttention& layer, const Tensor& x) {
  const auto linear_of = [&](const char* name, const Tensor& rows) {
    return linear(rows, parameter(layer, std::string(name) + ".weight"));
  };
  const Tensor q = layer_norm(heads_of(linear_of("q", x)), {}, {}, 1e-6);
  const int64_t length = x.dim(1);
  const Tensor at = iota(length);
  const Tensor hidden = greater(unsqueeze(at, 0), unsqueeze(at, 1));
  const Tensor scores = matmul(q, transpose(q));
  const Tensor seen = where(hidden, full_like(scores.detach(), -1e300), scores);
  const Tensor out = matmul(softmax(seen), heads_of(linear_of("v", x)));
  return linear_of("out", flatten(transpose(out, 1, 2), 2, 3));
}

std::vector<Tensor> with_gradients(Module& layer, const Tensor& x, const Tensor& y) {
  for (Tensor& p : parameters(layer)) set_grad(p, {});
  set_grad(x, {});
  const Tensor upstream = normal(y.shape(), Generator{9}, 0, 1, DType::f64);
  backward(sum(mul(y, upstream)));
  std::vector<Tensor> all{y.detach(), grad(x)};
  for (const Tensor& p : parameters(layer)) all.push_back(grad(p));
  return all;
}

void expect_dense_routing(RoutingAttention& layer, int64_t length) {
  const Tensor x = routing_rows(2, length);
  const auto expected = with_gradients(layer, x, dense_routing(layer, x));
  const auto found = with_gradients(layer, x, layer.forward(x, {}, Pass{}).y);
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_LE(distance(found[i], expected[i]), 1e-12) << i << " of " << length;
  }
}

TEST(Routing, OneClusterOfAllTokensIsDenseAttention) {
  for (const RoutingSelect select : {RoutingSelect::topw, RoutingSelect::argmax_recent}) {
    RoutingOptions o = pure(1, 64);
    o.select = select;
    RoutingAttention layer(o, routing_init);
    for (const int64_t length : {1, 2, 17, 64}) expect_dense_routing(layer, length);
  }
}

TEST(Routing, ClustersOfAllTokensAreDenseAttentionToo) {
  for (const int64_t clusters : {2, 5}) {
    RoutingAttention layer(pure(clusters, 40), routing_init);
    for (const int64_t length : {1, 23, 40}) expect_dense_routing(layer, length);
  }
}

Tensor lists(const std::vector<int32_t>& members, int64_t clusters) {
  const auto w = static_cast<int64_t>(members.size()) / clusters;
  const Tensor one = Tensor::from(members, {1, 1, clusters, w});
  return contiguous(expand(one, {1, 2, clusters, w}));
}

TEST(Routing, ATokenInNoGroupGivesZeroAndInTwoTheirMean) {
  RoutingOptions o = pure(2, 3);
  o.routing_clip = 2;
  RoutingAttention layer(o, routing_init);
  const Tensor x = routing_rows(1, 6);
  const auto of = [&](const std::vector<int32_t>& members) {
    LayerContext ctx;
    ctx.choices = {lists(members, 2)};
    return layer.forward(x, ctx, Pass{}).y;
  };
  const Tensor both = of({0, 1, 2, 1, 2, 4}), first = of({0, 1, 2, -1, -1, -1}),
               second = of({-1, -1, -1, 1, 2, 4});
  const auto row = [](const Tensor& y, int64_t i) { return contiguous(select(y, 1, i).detach()); };
  for (const int64_t none : {3, 5})
    EXPECT_EQ(distance(row(both, none), zeros({1, kRoutingWidth}, DType::f64)), 0);
  for (const int64_t two : {1, 2}) {
    EXPECT_LE(distance(row(both, two), mul(add(row(first, two), row(second, two)), 0.5)), 1e-14);
  }
  EXPECT_LE(distance(row(both, 0), row(first, 0)), 1e-14);
  EXPECT_LE(distance(row(both, 4), row(second, 4)), 1e-14);
  backward(sum(square(both)));
  const Tensor dx = grad(x);
  for (const int64_t none : {3, 5})
    EXPECT_EQ(distance(row(dx, none), zeros({1, kRoutingWidth}, DType::f64)), 0);
  EXPECT_GT(distance(row(dx, 1), zeros({1, kRoutingWidth}, DType::f64)), 1e-3);
  // With the authors' epsilon a token in one group is divided by 1.01.
  o.scatter_eps = 1e-2;
  RoutingAttention shrunk(o, routing_init);
  LayerContext ctx;
  ctx.choices = {lists({0, 1, 2, 1, 2, 4}, 2)};
  const Tensor y = shrunk.forward(x, ctx, Pass{}).y;
  EXPECT_LE(distance(row(y, 0), mul(row(both, 0), 1 / 1.01)), 1e-14);
  EXPECT_LE(distance(row(y, 1), mul(row(both, 1), 2 / 2.01)), 1e-14);
}

// ------------------------------------------------------------------------------------- centroids

/// The centroids of one head by scalar loops, with queries alone.
struct Scalars {
  std::vector<std::vector<double>> mu, sum;
  std::vector<double> n;
  double radius;

  static double length(const std::vector<double>& x) {
    double all = 0;
    for (const double v : x) all += v * v;
    return std::sqrt(all);
  }
  void step(CentroidUpdate update, double l, const std::vector<std::vector<double>>& sums,
            const std::vector<double>& counts) {
    const size_t k = mu.size(), d = mu[0].size();
    double total = 0;
    for (size_t c = 0; c < k; ++c) {
      n[c] = l * n[c] + (1 - l) * counts[c];
      total += n[c];
      for (size_t j = 0; j < d; ++j) sum[c][j] = l * sum[c][j] + (1 - l) * sums[c][j];
    }
    for (size_t c = 0; c < k; ++c) {
      const double now = length(sum[c]), of_step = length(sums[c]);
      for (size_t j = 0; j < d; ++j) {
        double& x = mu[c][j];
        switch (update) {
          case CentroidUpdate::spherical:
            if (now > 0) x = radius * sum[c][j] / now;
            break;
          case CentroidUpdate::counts_raw: {
            const double smooth = (n[c] + 1e-5) / (total + static_cast<double>(k) * 1e-5) * total;
            if (smooth > 0) x = sum[c][j] / smooth;
            break;
          }
          case CentroidUpdate::paper_sum:
            x = l * x + (1 - l) / 2 * sums[c][j] + (1 - l) / 2 * sums[c][j];
            break;
          case CentroidUpdate::lucid:
            if (of_step > 0) x = l * x + (1 - l) * sums[c][j] / of_step;
            break;
        }
      }
    }
  }
};

constexpr CentroidUpdate kUpdates[] = {CentroidUpdate::spherical, CentroidUpdate::counts_raw,
                                       CentroidUpdate::paper_sum, CentroidUpdate::lucid};

/// Tokens near some of `clusters` directions, [1, 1, tokens, width].
Tensor tokens_near(int64_t tokens, int64_t width, uint64_t seed) {
  return normal({1, 1, tokens, width}, Generator{seed}, 0.3, 1, DType::f64);
}

Statistics sums_of(const Centroids& centroids, const Tensor& x) {
  const Tensor nearest = nearest_centroids(x, centroids.means());
  return centroids.statistics({x}, {nearest}, ones({1, 1, x.dim(2)}, DType::f64));
}

TEST(Routing, CentroidsFollowAScalarReference) {
  constexpr int64_t k = 5, d = 3;
  for (const CentroidUpdate update : kUpdates) {
    for (const double decay : {0.9, 0.999}) {
      Centroids centroids(
          {.clusters = k, .width = d, .update = update, .decay = decay, .radius = 2}, routing_init);
      Scalars scalars;
      const std::vector<double> first = centroids.means().to_vector<double>();
      for (int64_t c = 0; c < k; ++c) {
        scalars.mu.emplace_back(first.begin() + c * d, first.begin() + (c + 1) * d);
        EXPECT_NEAR(Scalars::length(scalars.mu.back()), 2, 1e-12);
      }
      scalars.sum = scalars.mu;
      scalars.n.assign(k, update == CentroidUpdate::counts_raw ? 0 : 1);
      scalars.radius = 2;
      for (int64_t step = 0; step < 50; ++step) {
        const Tensor x = tokens_near(12, d, static_cast<uint64_t>(100 + step));
        const Statistics s = sums_of(centroids, x);
        const std::vector<int32_t> nearest =
            nearest_centroids(x, centroids.means()).to_vector<int32_t>();
        const std::vector<double> values = x.to_vector<double>();
        std::vector<std::vector<double>> sums(k, std::vector<double>(d));
        std::vector<double> counts(k);
        for (size_t t = 0; t < nearest.size(); ++t) {
          const auto c = static_cast<size_t>(nearest[t]);
          counts[c] += 1;
          for (size_t j = 0; j < d; ++j) sums[c][j] += values[t * d + j];
        }
        scalars.step(update, decay, sums, counts);
        centroids.after_step({.step = step, .statistics = s.sums});
        const std::vector<double> found = centroids.means().to_vector<double>();
        const std::vector<double> n = centroids.counts().to_vector<double>();
        for (size_t c = 0; c < k; ++c) {
          const double scale = std::max(1.0, Scalars::length(scalars.mu[c]));
          for (size_t j = 0; j < d; ++j) {
            ASSERT_NEAR(found[c * d + j], scalars.mu[c][j], 1e-12 * scale)
                << static_cast<int>(update) << " step " << step;
          }
          ASSERT_NEAR(n[c], scalars.n[c], 1e-12);
        }
      }
    }
  }
}

TEST(Routing, DecayOfZeroGivesTheBatchAndOfOneNothing) {
  constexpr int64_t k = 3, d = 4;
  const Tensor x = tokens_near(30, d, 3);
  for (const CentroidUpdate update : kUpdates) {
    Centroids still({.clusters = k, .width = d, .update = update, .decay = 1}, routing_init);
    const Tensor before = clone(still.means());
    still.after_step({.statistics = sums_of(still, x).sums});
    EXPECT_LE(distance(still.means(), before), 1e-15) << static_cast<int>(update);

    Centroids fresh({.clusters = k, .width = d, .update = update, .decay = 0}, routing_init);
    const std::vector<Tensor> sums = sums_of(fresh, x).sums;
    fresh.after_step({.statistics = sums});
    const Tensor count = unsqueeze(sums[0], 2), mean = div(sums[1], count);
    for (const double n : sums[0].to_vector<double>()) ASSERT_GT(n, 0);
    const Tensor direction = div(mean, sqrt(sum(square(mean), {-1}, true)));
    switch (update) {
      case CentroidUpdate::spherical:
      case CentroidUpdate::lucid:
        EXPECT_LE(distance(fresh.means(), direction), 1e-14);
        break;
      case CentroidUpdate::counts_raw:  // up to the smoothing of counts
        EXPECT_LE(distance(fresh.means(), mean), 1e-5);
        break;
      case CentroidUpdate::paper_sum:
        EXPECT_LE(distance(fresh.means(), sums[1]), 1e-14);
    }
  }
}

TEST(Routing, AnEmptyClusterKeepsItsDirectionAndTokensAreCounted) {
  constexpr int64_t k = 3, d = 4;
  for (const CentroidUpdate update : kUpdates) {
    Centroids centroids({.clusters = k, .width = d, .update = update, .decay = 0.5}, routing_init);
    const Tensor first = clone(centroids.means());
    const std::vector<double> mu = first.to_vector<double>();
    // All tokens are the first centroid, longer ones and shorter ones.
    std::vector<double> tokens;
    for (int i = 1; i <= 6; ++i) {
      for (int64_t j = 0; j < d; ++j) tokens.push_back(i * mu[static_cast<size_t>(j)]);
    }
    const Tensor x = Tensor::from(tokens, {1, 1, 6, d});
    double total = sum(centroids.counts()).to_vector<double>()[0];
    for (int step = 0; step < 3; ++step) {
      const Statistics s =
          centroids.statistics({x}, {zeros({1, 1, 6}, DType::i32)}, ones({1, 1, 6}, DType::f64));
      centroids.after_step({.statistics = s.sums});
      total = 0.5 * total + 0.5 * 6;
      EXPECT_NEAR(sum(centroids.counts()).to_vector<double>()[0], total, 1e-12);
    }
    const auto direction = [](const Tensor& means) {
      const Tensor empty = narrow(means, 1, 1, k - 1);
      return div(empty, sqrt(sum(square(empty), {-1}, true)));
    };
    EXPECT_LE(distance(direction(centroids.means()), direction(first)), 1e-14)
        << static_cast<int>(update);
  }
}

// Ten steps of k-means from random tokens, which more would change, and the statistics of the
// batch: the centroids of each kind are those after an update with decay 0.
TEST(Routing, CentroidsStartWhereAScalarReferencePutsThem) {
  constexpr size_t k = 16, d = 3, B = 2, H = 2, L = 2000, short_one = 900;
  const Tensor x = normal({B, H, L, d}, Generator{6}, 0.3, 1, DType::f64);
  const Tensor lengths = Tensor::from(std::vector<int64_t>{L, short_one}, {B});
  const std::vector<double> values = x.to_vector<double>();
  const auto row = [&](size_t b, size_t h, size_t t) {
    const double* const from = values.data() + ((b * H + h) * L + t) * d;
    return std::vector<double>(from, from + d);
  };
  for (const CentroidUpdate update : kUpdates) {
    Centroids centroids(
        {.heads = H, .clusters = k, .width = d, .update = update, .decay = 0.9, .radius = 2},
        routing_init);
    centroids.start_from({x}, lengths, Generator{12});
    const std::vector<double> found = centroids.means().to_vector<double>(),
                              counted = centroids.counts().to_vector<double>();
    for (size_t h = 0; h < H; ++h) {
      std::vector<std::vector<double>> tokens;
      for (size_t t = 0; t < L; ++t) tokens.push_back(row(0, h, t));
      for (size_t t = 0; t < short_one; ++t) tokens.push_back(row(1, h, t));
      const std::vector<int64_t> order =
          permutation(std::ssize(tokens), Generator{12}.fork(h)).to_vector<int64_t>();
      Scalars scalars;
      scalars.radius = 2;
      for (size_t c = 0; c < k; ++c) scalars.mu.push_back(tokens[static_cast<size_t>(order[c])]);
      std::vector<std::vector<double>> sums;
      std::vector<double> counts;
      for (int step = 0; step < 11; ++step) {
        for (std::vector<double>& mu : scalars.mu) {
          const double length = Scalars::length(mu);
          for (double& m : mu) m *= 2 / length;
        }
        sums.assign(k, std::vector<double>(d));
        counts.assign(k, 0);
        for (const std::vector<double>& token : tokens) {
          size_t best = 0;
          double most = -HUGE_VAL;
          for (size_t c = 0; c < k; ++c) {
            double dot = 0;
            for (size_t j = 0; j < d; ++j) dot += token[j] * scalars.mu[c][j];
            if (dot > most) most = dot, best = c;
          }
          counts[best] += 1;
          for (size_t j = 0; j < d; ++j) sums[best][j] += token[j];
        }
        for (size_t c = 0; c < k && step < 10; ++c) {
          if (counts[c] > 0) scalars.mu[c] = sums[c];
        }
      }
      for (size_t c = 0; c < k; ++c) {
        if (counts[c] == 0) counts[c] = 1, sums[c] = scalars.mu[c];
      }
      scalars.sum.assign(k, std::vector<double>(d));
      scalars.n.assign(k, 0);
      scalars.step(update, 0, sums, counts);
      for (size_t c = 0; c < k; ++c) {
        EXPECT_EQ(counted[h * k + c], counts[c]) << static_cast<int>(update);
        const double scale = std::max(1.0, Scalars::length(scalars.mu[c]));
        for (size_t j = 0; j < d; ++j) {
          EXPECT_NEAR(found[(h * k + c) * d + j], scalars.mu[c][j], 1e-12 * scale)
              << static_cast<int>(update);
        }
      }
    }
  }
  Centroids many({.clusters = 12, .width = d}, routing_init);
  const std::string message =
      message_of<ValueError>([&] { many.start_from({tokens_near(11, d, 3)}, {}, Generator{12}); });
  EXPECT_TRUE(contains(message, "12 clusters start at tokens of a batch, which has 11")) << message;
}

TEST(Routing, AnEmptyClusterTakesHalfOfTheFullestIfAsked) {
  Centroids centroids({.clusters = 4, .width = 6, .decay = 0, .radius = 3, .reseed_below = 1},
                      routing_init);
  const Tensor x = normal({1, 1, 40, 6}, Generator{8}, 2, 0.1, DType::f64);
  const Statistics s =
      centroids.statistics({x}, {zeros({1, 1, 40}, DType::i32)}, ones({1, 1, 40}, DType::f64));
  centroids.after_step({.gen = Generator{3}, .statistics = s.sums});
  const std::vector<double> n = centroids.counts().to_vector<double>();
  EXPECT_NEAR(n[0] + n[1] + n[2] + n[3], 40, 1e-12);
  EXPECT_GE(*std::min_element(n.begin(), n.end()), 10 - 1e-12);
  const Tensor mu = centroids.means();
  const Tensor lengths = sqrt(sum(square(mu), {-1}));
  for (const double length : lengths.to_vector<double>()) EXPECT_NEAR(length, 3, 1e-12);
  const std::vector<int32_t> nearest = nearest_centroids(x, mu).to_vector<int32_t>();
  EXPECT_GT(std::count_if(nearest.begin(), nearest.end(), [](int32_t c) { return c != 0; }), 0);
}

/// 512 tokens of one head in 16 well-separated clusters, [1, 1, 512, 32] after LN0.
Tensor separated(uint64_t seed) {
  const ClusterTask task{.length = 512, .groups = 16, .symbols = 4};
  const Sample sample = task.sample({.index = seed});
  std::vector<int64_t> group;
  for (const int32_t token : sample.tokens) group.push_back(token / 4);
  const Tensor directions = normal({16, 32}, Generator{77}, 0, 1, DType::f64);
  const Tensor rows = take(directions, Tensor::from(group, {512}));
  const Tensor noise = normal({512, 32}, Generator{seed}, 0, 0.2, DType::f64);
  return reshape(layer_norm(add(rows, noise), {}, {}, 1e-6), {1, 1, 512, 32});
}

/// Returns which share of the 16 nearest keys of each token is in a group with it, after 500
/// updates of 16 centroids with groups of 48 tokens.
double recall_of_nearest(double reseed_below, uint64_t seed) {
  constexpr int64_t tokens = 512, k = 16, w = 48, near = 16;
  Centroids centroids({.clusters = k,
                       .width = 32,
                       .decay = 0.9,
                       .radius = std::sqrt(32.0),
                       .reseed_below = reseed_below},
                      Init{.gen = Generator{seed}, .dtype = DType::f64});
  for (int64_t step = 0; step < 500; ++step) {
    centroids.after_step({.step = step,
                          .gen = Generator{seed}.fork(static_cast<uint64_t>(step)),
                          .statistics = sums_of(centroids, separated(1000 + step)).sums});
  }
  const Tensor x = separated(1);
  const std::vector<int32_t> members =
      routing_members(x, centroids.means(), w).to_vector<int32_t>();
  std::vector<std::vector<bool>> together(tokens, std::vector<bool>(tokens));
  for (size_t c = 0; c < k; ++c) {
    for (size_t a = c * w; a < (c + 1) * w; ++a) {
      for (size_t b = c * w; b < (c + 1) * w; ++b) {
        together[static_cast<size_t>(members[a])][static_cast<size_t>(members[b])] = true;
      }
    }
  }
  const Tensor keys = reshape(x, {tokens, 32});
  const std::vector<int64_t> best =
      topk(matmul(keys, transpose(keys)), near).indices.to_vector<int64_t>();
  double found = 0;
  for (size_t i = 0; i < best.size(); ++i) {
    found += together[i / near][static_cast<size_t>(best[i])] ? 1 : 0;
  }
  return found / static_cast<double>(best.size());
}

// Random groups of 48 of 512 tokens would hold 9 % of the pairs. Without reseeding some centroids
// get no token, and others collect those of two clusters, more than their groups can hold.
TEST(Routing, CentroidsOfSeparatedClustersFindTheNearestKeys) {
  for (const uint64_t seed : {1, 2}) EXPECT_GE(recall_of_nearest(4, seed), 0.95) << seed;
  const double without = recall_of_nearest(0, 1);
  EXPECT_GT(without, 0.7);
  EXPECT_LT(without, 0.97);
}

// ----------------------------------------------------------------------------------- whole models

RoutingConfig tiny_routing() {
  RoutingConfig c = routing_preset("tiny");
  c.vocab = 32;
  c.window = 5;
  c.local_block = 6;
  c.decay = 0.8;
  c.commitment = 0.1;
  return c;
}

RoutingTransformer randomised_routing(const RoutingConfig& c, DType dtype = DType::f64) {
  return randomised<RoutingTransformer>(c, Init{.gen = Generator{4}, .dtype = dtype}, 0.3, 9);
}

TEST(Routing, NothingFlowsBackWithinChosenGroups) {
  for (const bool share : {true, false}) {
    RoutingConfig c = tiny_routing();
    c.share_qk = share;
    RoutingTransformer model = randomised_routing(c);
    const Tensor tokens = unsqueeze(iota(27), 0);  // each token occurs once
    Tensor table = parameter(model, "embed.token.weight");
    for (const int64_t i : {0, 1, 7, 20, 26}) {
      set_grad(table, {});
      backward(sum(square(select(model.forward(tokens, Pass{}), 1, i))));
      const std::vector<double> dx = grad(table).to_vector<double>();
      for (size_t at = 0; at < dx.size(); ++at) {
        if (static_cast<int64_t>(at) / 16 <= i) continue;
        ASSERT_EQ(dx[at], 0.0) << i << " from " << at / 16;
      }
    }
  }
}

/// Returns the largest change of the rows before `at` when the tokens from there on change.
double change_before(const RoutingTransformer& model, int64_t at) {
  const NoGrad off;
  const Tensor tokens = some_tokens(2, 27, 32);
  const Tensor other = concat(
      {narrow(tokens, 1, 0, at), contiguous(narrow(some_tokens(2, 27, 32, 8), 1, at, 27 - at))}, 1);
  const auto rows = [&](const Tensor& in) {
    return contiguous(narrow(model.forward(in, Pass{}), 1, 0, at));
  };
  return distance(rows(tokens), rows(other));
}

// Later tokens compete for the places of a group, and so decide which earlier ones are in it; where
// each token joins a cluster and sees the last members, they decide nothing.
TEST(Routing, LaterTokensDecideWhoIsInAGroup) {
  RoutingConfig c = tiny_routing();
  EXPECT_GT(change_before(randomised_routing(c), 14), 1e-3);
  c.window = 27;
  EXPECT_LE(change_before(randomised_routing(c), 14), 1e-13);
  c.window = 5;
  c.select = RoutingSelect::argmax_recent;
  EXPECT_LE(change_before(randomised_routing(c), 14), 1e-13);
}

TEST(Routing, RanksAreDistancesWhereOneGroupHoldsAllTokens) {
  for (const RoutingSelect select : {RoutingSelect::topw, RoutingSelect::argmax_recent}) {
    RoutingOptions o = pure(1, 30);
    o.select = select;
    o.routing_clip = 7;
    RoutingAttention layer(o, routing_init);
    const Tensor x = routing_rows(2, 30);
    const auto linear_of = [&](const char* name, const Tensor& rows) {
      return linear(rows, parameter(layer, std::string(name) + ".weight"));
    };
    const Tensor q = layer_norm(heads_of(linear_of("q", x)), {}, {}, 1e-6);
    const Tensor at = iota(30);
    const Tensor place = cast(at, DType::f64);
    const Tensor distance_ij = sub(unsqueeze(place, 0), unsqueeze(place, 1));  // j - i
    const Tensor row = cast(clamp(add(distance_ij, 7), 0, 7), DType::i64);
    const auto table = [&](const char* name) {
      return embedding(parameter(layer, std::string("routing.relative_") + name + ".weight"), row);
    };
    const Tensor keys = sum(mul(unsqueeze(q, 3), table("key")), {-1});  // [B, H, L, L]
    const Tensor scores = add(matmul(q, transpose(q)), keys);
    const Tensor hidden = greater(distance_ij, zeros_like(distance_ij));
    const Tensor p = softmax(where(hidden, full_like(scores.detach(), -1e300), scores));
    const Tensor out = add(matmul(p, heads_of(linear_of("v", x))),
                           sum(mul(unsqueeze(p, -1), table("value")), {3}));
    const Tensor expected = linear_of("out", flatten(transpose(out, 1, 2), 2, 3));
    EXPECT_LE(distance(layer.forward(x, {}, Pass{}).y, expected), 1e-12);
  }
}

// Keys of length 1 and queries of any length: a token's own logit, |q|, passes all others by
// hundreds. A logit of -300 for itself did not hide it.
TEST(Routing, HidesATokenFromItselfHoweverLargeItsLogitIs) {
  const NoGrad off;
  constexpr int64_t length = 12;
  for (const RoutingSelect select : {RoutingSelect::topw, RoutingSelect::argmax_recent}) {
    for (const int64_t clip : {-1, 4}) {
      RoutingOptions o = pure(1, length);
      o.select = select;
      o.norm = RoutingNorm::unit_keys;
      o.mask_self = true;
      o.routing_clip = clip;
      o.weights = Scheme::normal(500);
      RoutingAttention layer(o, routing_init);
      const Tensor x = routing_rows(1, length);
      const std::vector<double> p = flatten(layer.probabilities(x, {})).to_vector<double>();
      for (int64_t h = 0; h < 2; ++h) {
        for (int64_t i = 0; i < length; ++i) {
          double sum = 0;
          for (int64_t j = 0; j < length; ++j) {
            const double share = p[static_cast<size_t>((h * length + i) * length + j)];
            sum += share;
            if (j == i) {
              EXPECT_EQ(share, i == 0 ? 1 : 0) << i;
            }
          }
          EXPECT_NEAR(sum, 1, 1e-12) << i;
        }
      }
      const Output whole = layer.forward(x, {}, Pass{});
      LayerContext ctx;
      ctx.decoding = true;
      std::vector<Tensor> rows;
      for (int64_t i = 0; i < length; ++i) {
        ctx.position = i;
        const Output y = layer.forward(narrow(x, 1, i, 1), ctx, Pass{});
        ctx.memory = y.memory;
        rows.push_back(y.y);
      }
      const double size = longspan::max(flatten(abs(whole.y)), 0).values.item();
      EXPECT_LE(distance(concat(rows, 1), whole.y), 1e-12 * size);
    }
  }
}

/// The statistics of a batch, without its graph.
std::vector<Statistics> counted(const RoutingTransformer& model, const Tensor& tokens) {
  return model.loss(tokens, tokens, {}, training).statistics;
}

TEST(Routing, StatisticsOfPartsAddUpToThoseOfTheBatch) {
  for (const bool share : {true, false}) {
    RoutingConfig c = tiny_routing();
    c.share_qk = share;
    RoutingTransformer model = randomised_routing(c), other = randomised_routing(c);
    const Tensor tokens = some_tokens(4, 29, 32);
    std::vector<Statistics> parts;
    for (int64_t b = 0; b < 4; ++b) {
      add_statistics(parts, counted(model, contiguous(narrow(tokens, 0, b, 1))));
    }
    end_step(model, 0, Generator{1}, parts);
    end_step(other, 0, Generator{1}, counted(other, tokens));
    const TensorList a = named_buffers(model), b = named_buffers(other);
    for (size_t i = 0; i < a.size(); ++i) {
      EXPECT_LE(distance(a[i].tensor, b[i].tensor), 1e-12) << a[i].name;
    }
  }
}

std::vector<std::vector<double>> routing_buffers(Module& module) {
  std::vector<std::vector<double>> all;
  for (const NamedTensor& b : named_buffers(module)) {
    all.push_back(cast(b.tensor, DType::f64).to_vector<double>());
  }
  return all;
}

TEST(Routing, OnlyTheEndOfAStepMovesCentroids) {
  std::vector<std::vector<double>> expected;
  for (const char* policy : {"standard", "checkpoint", "checkpoint:2", "lean", "selective",
                             "reversible", "reversible:exact"}) {
    RoutingConfig c = tiny_routing();
    c.memory = policy;
    RoutingTransformer model = randomised_routing(c, DType::f32);
    const auto before = routing_buffers(model);
    const Tensor tokens = some_tokens(2, 29, 32);
    model.loss(tokens, tokens, {}, Pass{});
    model.logits(tokens, Pass{});
    {
      const NoGrad off;
      model.loss(tokens, tokens, {}, training);
    }
    const LanguageModel::Losses losses = model.loss(tokens, tokens, {}, training);
    backward(losses.total());
    EXPECT_EQ(routing_buffers(model), before) << policy;
    EXPECT_EQ(losses.statistics.size(), 2u);
    end_step(model, 0, Generator{1}, losses.statistics);
    const auto after = routing_buffers(model);
    EXPECT_NE(after, before);
    // Reversible layers are another function; all others count the same, bit for bit.
    if (expected.empty()) expected = after;
    if (std::string(policy).starts_with("reversible")) continue;
    EXPECT_EQ(after, expected) << policy;
  }
}

TEST(Routing, CentroidsOfEachLayerStartFromItsRowsIfAsked) {
  for (const bool share : {true, false}) {
    RoutingConfig c = tiny_routing();
    c.share_qk = share;
    RoutingTransformer still = randomised_routing(c);
    c.centroid_init = CentroidInit::data;
    RoutingTransformer model = randomised_routing(c);
    const Tensor tokens = some_tokens(2, 23, 32);
    const auto means = [](const RoutingTransformer& of, int64_t layer) {
      return clone(of.attention(layer).centroids().means());
    };
    const Tensor before[] = {means(model, 0), means(model, 1)};
    still.begin_training(tokens, Generator{5});
    model.begin_training(tokens, Generator{5});
    for (int64_t layer = 0; layer < 2; ++layer) {
      EXPECT_EQ(distance(means(still, layer), before[layer]), 0);
      EXPECT_GT(distance(means(model, layer), before[layer]), 0.1);
      const Tensor n = model.attention(layer).centroids().counts();
      EXPECT_GE(sum(n).item(), (share ? 1 : 2) * 2 * 23);
      EXPECT_LT(sum(n).item(), (share ? 1 : 2) * 2 * 23 + c.clusters);
    }
    // The same tokens and the same draws place them there again.
    const Tensor first = means(model, 0);
    model.begin_training(tokens, Generator{5});
    EXPECT_EQ(distance(means(model, 0), first), 0);
  }
}

TEST(Routing, ReversibleGradientsAreThoseOfTheSameStreamsStored) {
  const auto step = [](const char* policy) {
    RoutingConfig c = tiny_routing();
    c.memory = policy;
    RoutingTransformer model = randomised_routing(c);
    const Tensor tokens = some_tokens(2, 29, 32);
    const LanguageModel::Losses losses = model.loss(tokens, tokens, {}, training);
    backward(losses.total());
    std::vector<Tensor> all{losses.loss.detach(), losses.auxiliary[0].value.detach()};
    for (const Tensor& p : parameters(model)) all.push_back(grad(p));
    return all;
  };
  const std::vector<Tensor> stored = step("reversible:stored"), back = step("reversible");
  for (size_t i = 0; i < stored.size(); ++i) EXPECT_LE(distance(back[i], stored[i]), 1e-9) << i;
}

TEST(Routing, PaddingChangesNeitherRowsNorCentroids) {
  for (const RoutingSelect select : {RoutingSelect::topw, RoutingSelect::argmax_recent}) {
    for (const bool share : {true, false}) {
      if (!share && select == RoutingSelect::argmax_recent) continue;
      RoutingOptions o = pure(3, 4);
      o.select = select;
      o.share_qk = share;
      o.local_heads = 1;
      o.routing_clip = o.local_clip = 3;
      RoutingAttention layer(o, routing_init);
      const Tensor x = routing_rows(1, 20).detach();
      LayerContext ctx;
      ctx.pattern = patterns::local_block(4);
      for (const int64_t length : {1, 3, 13, 20}) {
        const Tensor part = contiguous(narrow(x, 1, 0, length));
        const Output alone = layer.forward(part, ctx, training);
        LayerContext padded = ctx;
        padded.lengths = full({1}, static_cast<double>(length), DType::i64);
        const Output with = layer.forward(x, padded, training);
        EXPECT_LE(distance(contiguous(narrow(with.y, 1, 0, length)), alone.y), 1e-13) << length;
        ASSERT_EQ(with.statistics[0].sums.size(), alone.statistics[0].sums.size());
        for (size_t i = 0; i < alone.statistics[0].sums.size(); ++i) {
          EXPECT_LE(distance(with.statistics[0].sums[i], alone.statistics[0].sums[i]), 1e-12) << i;
        }
      }
    }
  }
}

TEST(Routing, StepsHaveTheSameBitsForAnyNumberOfThreads) {
  std::vector<std::vector<double>> expected;
  const int before = num_threads();
  for (const int threads : {1, 2, 3, 2}) {
    set_num_threads(threads);
    RoutingTransformer model = randomised_routing(tiny_routing(), DType::f32);
    std::vector<std::vector<double>> all;
    for (int64_t step = 0; step < 3; ++step) {
      const Tensor tokens = some_tokens(2, 61, 32, static_cast<uint64_t>(step));
      const LanguageModel::Losses losses = model.loss(tokens, tokens, {}, training);
      backward(losses.total());
      end_step(model, step, Generator{1}, losses.statistics);
    }
    for (const Tensor& p : parameters(model)) {
      all.push_back(cast(grad(p), DType::f64).to_vector<double>());
    }
    for (auto& b : routing_buffers(model)) all.push_back(std::move(b));
    if (expected.empty()) expected = all;
    EXPECT_EQ(all, expected) << threads;
  }
  set_num_threads(before);
}

TEST(Routing, GradientsOfTheWholeTinyModel) {
  for (const RoutingVariant variant : {RoutingVariant::official, RoutingVariant::lucid}) {
    for (const RoutingSelect select : {RoutingSelect::topw, RoutingSelect::argmax_recent}) {
      for (const bool share : {true, false}) {
        if (!share && (variant == RoutingVariant::lucid || select != RoutingSelect::topw)) continue;
        RoutingConfig c = routing_variant(tiny_routing(), variant);
        c.select = select;
        c.share_qk = share;
        RoutingTransformer model = randomised_routing(c);
        const Tensor tokens = some_tokens(2, 21, 32), targets = some_tokens(2, 21, 32, 5);
        const auto loss = [&] { return model.loss(tokens, targets, {}, training).total(); };
        EXPECT_EQ(check_parameter_gradients(model, loss), "")
            << static_cast<int>(variant) << static_cast<int>(select) << share;
      }
    }
  }
}

TEST(Routing, GradientsOfALayerWithChosenGroups) {
  for (const bool share : {true, false}) {
    RoutingOptions o = pure(3, 4);
    o.share_qk = share;
    o.local_heads = 1;
    o.local_clip = o.routing_clip = 2;
    o.commitment = 0.5;
    o.dropout = 0.2f;
    RoutingAttention layer(o, routing_init);
    LayerContext ctx;
    ctx.pattern = patterns::local_block(4);
    ctx.choices = layer.forward(routing_rows(2, 11), ctx, training).choices;
    const auto loss = [&](const std::vector<Tensor>& in) {
      const Output out = layer.forward(in[0], ctx, training);
      return std::vector<Tensor>{out.y, out.losses[0].value};
    };
    const GradcheckResult result = gradcheck(loss, {routing_rows(2, 11)});
    EXPECT_TRUE(result) << result.message;
  }
}

// --------------------------------------------------------------------------------------- decoding

/// Returns the largest difference between token-by-token decoding and one pass over all tokens so
/// far.
double routing_decoding_error(const RoutingTransformer& model, const Tensor& tokens,
                              int64_t prompt) {
  const NoGrad off;
  const auto state = model.start_decoding(tokens.dim(0));
  double worst = 0;
  for (int64_t t = 0; t < tokens.dim(1);) {
    const int64_t n = t == 0 ? prompt : std::min<int64_t>(1 + t % 3, tokens.dim(1) - t);
    const Tensor y = model.decode(contiguous(narrow(tokens, 1, t, n)), *state);
    t += n;
    const Tensor all = model.logits(contiguous(narrow(tokens, 1, 0, t)), Pass{});
    worst = std::max(worst, distance(y, contiguous(select(all, 1, -1))));
  }
  return worst;
}

TEST(Routing, RecentMembersAreDecodedAsTrained) {
  const Tensor tokens = some_tokens(3, 40, 32);
  for (const int64_t window : {1, 2, 5, 50}) {
    for (const RoutingVariant variant : {RoutingVariant::official, RoutingVariant::lucid}) {
      RoutingConfig c = routing_variant(tiny_routing(), variant);
      c.select = RoutingSelect::argmax_recent;
      c.window = window;
      for (const int64_t prompt : {1, 9}) {
        EXPECT_LE(routing_decoding_error(randomised_routing(c), tokens, prompt), 1e-12)
            << window << " " << prompt;
      }
    }
  }
}

// In one layer the newest token of a text is in the groups that one pass over the text gives it,
// because it is the last to compete. Rows before it may have been in other groups, so that with
// more layers, or with several tokens at once, decoding differs.
TEST(Routing, TheNearestTokensAreDecodedAsIfEachTokenWereTheLast) {
  const Tensor tokens = some_tokens(3, 40, 32);
  RoutingConfig c = tiny_routing();
  c.n_layer = 1;
  const auto error = [&](const RoutingTransformer& model) {
    const NoGrad off;
    const auto state = model.start_decoding(3);
    double worst = 0;
    for (int64_t t = 1; t <= 40; ++t) {
      const Tensor y = model.decode(contiguous(narrow(tokens, 1, t - 1, 1)), *state);
      const Tensor all = model.logits(contiguous(narrow(tokens, 1, 0, t)), Pass{});
      worst = std::max(worst, distance(y, contiguous(select(all, 1, -1))));
    }
    return worst;
  };
  EXPECT_LE(error(randomised_routing(c)), 1e-12);
  c.share_qk = false;  // queries and keys are in groups of their own, with ranks on both sides
  EXPECT_LE(error(randomised_routing(c)), 1e-12);
  c.routing_clip = -1;
  EXPECT_LE(error(randomised_routing(c)), 1e-12);
  c.routing_clip = 8;
  c.share_qk = true;
  c.scatter_eps = 0.01;
  c.mask_self = true;
  EXPECT_LE(error(randomised_routing(c)), 1e-12);
  c.n_layer = 2;
  EXPECT_GT(error(randomised_routing(c)), 1e-6);
  c.window = 40;  // all tokens are in all groups
  EXPECT_LE(error(randomised_routing(c)), 1e-12);
}

TEST(Routing, BeamsTakeTheirGroupsAlong) {
  const NoGrad off;
  RoutingConfig c = tiny_routing();
  c.select = RoutingSelect::argmax_recent;
  const RoutingTransformer model = randomised_routing(c);
  const Tensor tokens = some_tokens(2, 20, 32);
  const auto state = model.start_decoding(2);
  model.decode(tokens, *state);
  const Tensor rows = Tensor::from(std::vector<int64_t>{1, 1, 0}, {3});
  state->take_rows(rows, false);
  dynamic_cast<StreamState&>(*state).batch = 3;
  const Tensor next = Tensor::from(std::vector<int64_t>{4, 5, 6}, {3, 1});
  const Tensor y = model.decode(next, *state);
  const Tensor all = concat({take(tokens, rows), next}, 1);
  EXPECT_LE(distance(y, contiguous(select(model.logits(all, Pass{}), 1, -1))), 1e-12);
}

TEST(Routing, AModelWithoutTrainingDecodes) {
  const NoGrad off;
  const RoutingTransformer model(routing_preset("tiny"), Init{});
  const auto state = model.start_decoding(1);
  for (int32_t t = 0; t < 12; ++t) {
    const Tensor y = model.decode(Tensor::from(std::vector<int32_t>{t}, {1, 1}), *state);
    for (const float v : y.to_vector<float>()) EXPECT_TRUE(std::isfinite(v));
  }
}

// ------------------------------------------------------------------------------------------ other

TEST(Routing, MapsAreTheProbabilitiesOfGroups) {
  const RoutingTransformer model = randomised_routing(tiny_routing());
  const Tensor tokens = some_tokens(1, 23, 32);
  const Tensor map = model.attention_map(tokens, 1);  // a local and a routing head
  ASSERT_EQ(map.shape(), (Shape{2, 23, 23}));
  const Tensor groups = model.groups(tokens, 1);
  const std::vector<int32_t> members = groups.to_vector<int32_t>();
  const std::vector<float> p = map.to_vector<float>();
  for (int64_t i = 0; i < 23; ++i) {
    std::vector<bool> seen(23);
    bool in_any = false;
    for (int64_t c = 0; c < 4; ++c) {
      const auto* const from = members.data() + c * 5;
      if (std::find(from, from + 5, i) == from + 5) continue;
      in_any = true;
      for (int64_t n = 0; n < 5; ++n) seen[static_cast<size_t>(from[n])] = true;
    }
    double total = 0;
    for (int64_t j = 0; j < 23; ++j) {
      const float v = p[static_cast<size_t>((23 + i) * 23 + j)];
      total += v;
      const bool sees = seen[static_cast<size_t>(j)] && j <= i;
      EXPECT_TRUE(sees || v == 0) << i << " " << j;
    }
    EXPECT_NEAR(total, in_any ? 1 : 0, 1e-6) << i;
  }
}

TEST(Routing, ReportsHowDifferentlyHeadsAttend) {
  RoutingConfig c = tiny_routing();
  c.d_head = 8;
  c.local_heads = c.routing_heads = 2;
  const RoutingTransformer model = randomised_routing(c);
  const Tensor tokens = some_tokens(1, 23, 32);
  const std::vector<std::string> lines = model.report(tokens);
  ASSERT_EQ(lines.size(), 2u);
  const std::vector<double> d = head_divergence(model.attention_map(tokens, 1)).to_vector<double>();
  const double both = (d[2] + d[3] + d[6] + d[7]) / 4;
  EXPECT_EQ(
      lines[1],
      fmt::format("divergence of heads in layer 1: {:.3f} two local heads, {:.3f} a local and "
                  "a routing one, {:.3f} two routing ones (0: they attend alike, 0.693: never "
                  "to the same token)",
                  d[1], both, d[11]));
  c.routing_layers = 1;
  EXPECT_EQ(randomised_routing(c).report(tokens).size(), 1u);
  c.local_heads = 0;  // nothing to compare
  EXPECT_TRUE(randomised_routing(c).report(tokens).empty());
}

TEST(Routing, SaysHowFullClustersAre) {
  RoutingTransformer model = randomised_routing(tiny_routing());
  const Tensor tokens = some_tokens(2, 30, 32);
  end_step(model, 0, Generator{1}, counted(model, tokens));
  const ClusterOccupancy now = model.occupancy();
  EXPECT_NEAR(now.in_none + now.in_one + now.in_several, 1, 1e-12);
  EXPECT_GT(now.in_none, 0.1);  // 4 groups of 5 hold at most 20 of 30 tokens
  EXPECT_LE(now.least, now.most);
  // Each layer counts every token once: 60 tokens with weight 0.2 and 4 clusters that began with 1.
  double total = 0;
  for (const double n : model.attention(0).centroids().counts().to_vector<double>()) total += n;
  EXPECT_NEAR(total, 0.8 * 4 + 0.2 * 60, 1e-12);
  EXPECT_EQ(model.log_values().size(), 6u);
  EXPECT_NE(model.remark(40).find("4 groups of 5 tokens hold 0.50 times the 40"),
            std::string::npos);
  RoutingConfig c = tiny_routing();
  c.routing_layers = 0;
  EXPECT_TRUE(randomised_routing(c).log_values().empty());
  EXPECT_THROW(randomised_routing(c).occupancy(), NotImplemented);
}

TEST(Routing, MapsOfLocalHeadsAreProbabilitiesWhateverTheirRelativeValues) {
  const RoutingTransformer model =
      randomised_routing(routing_variant(tiny_routing(), RoutingVariant::official));
  const Tensor map = model.attention_map(some_tokens(1, 21, 32), 1);  // [H, L, L]
  const Tensor sums = sum(contiguous(narrow(map, 0, 0, model.config().local_heads)), {2});
  for (const double total : cast(sums, DType::f64).to_vector<double>()) {
    EXPECT_NEAR(total, 1, 1e-6);
  }
}

TEST(Routing, SaysWhatDoesNotFitTogether) {
  const auto refuses = [](const auto& change) {
    RoutingConfig c = routing_preset("tiny");
    change(c);
    EXPECT_THROW(RoutingTransformer(c, Init{}), ValueError);
  };
  refuses([](RoutingConfig& c) { c.clusters = 0; });
  refuses([](RoutingConfig& c) { c.window = 0; });
  refuses([](RoutingConfig& c) { c.local_heads = c.routing_heads = 0; });
  refuses([](RoutingConfig& c) { c.local_heads = 2; });  // 3 heads of 16 / 3
  refuses([](RoutingConfig& c) { c.routing_layers = 3; });
  refuses([](RoutingConfig& c) { c.decay = 1.5; });
  refuses([](RoutingConfig& c) { c.commitment = -1; });
  refuses([](RoutingConfig& c) { c.dropout = 1; });
  refuses([](RoutingConfig& c) { c.routing_clip = -2; });
  refuses([](RoutingConfig& c) { c.d_embed = -1; });
  refuses([](RoutingConfig& c) { c.qk_norm_eps = 0; });
  refuses([](RoutingConfig& c) {
    c.local_values = true;
    c.local_clip = -1;
  });
  refuses([](RoutingConfig& c) {
    c.share_qk = false;
    c.select = RoutingSelect::argmax_recent;
  });
  refuses([](RoutingConfig& c) {
    c.share_qk = false;
    c.mask_self = true;
  });
  refuses([](RoutingConfig& c) {
    c.routing_clip = 0;
    c.mask_self = true;
  });
  refuses([](RoutingConfig& c) {
    c.share_qk = false;
    c.norm_qk = RoutingNorm::unit_keys;
  });
  const RoutingTransformer model(routing_preset("tiny"), Init{});
  EXPECT_THROW(model.attention_outline(0, 8), NotImplemented);
  EXPECT_THROW(model.attention(2), ValueError);
}

}  // namespace
}  // namespace longspan::test
