// Performer: attention by features against whole matrices, projections that are drawn anew,
// decoding with a state, weights of a Transformer, and files that another implementation made.

#include "models/performer/performer.h"

#include <gtest/gtest.h>

#include <cmath>

#include "autograd/engine.h"
#include "autograd/mode.h"
#include "core/memory.h"
#include "core/parallel.h"
#include "models/convert.h"
#include "nn/after_step.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/index.h"
#include "ops/matmul.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/shape.h"
#include "tests/harness/messages.h"
#include "tests/models/costs.h"
#include "tests/models/golden_file.h"

namespace longspan::test {
namespace {

using PerformerChange = std::function<void(PerformerConfig&)>;

PerformerConfig tiny_performer(const PerformerChange& change = {}) {
  PerformerConfig c = performer_preset("tiny");
  if (change) change(c);
  return c;
}

void encode(PerformerConfig& c) {
  c.wiring = Wiring::encoder;
  c.vocab = 18;
  c.mlm_head = c.head_bias = true;
}

ModelInfo performer_info(const std::string& name, const PerformerChange& change) {
  PerformerConfig c = tiny_performer([&](PerformerConfig& x) {
    x.init_std = 0.3;
    change(x);
  });
  ModelInfo m = entry_of<Performer>(name, c);
  const bool encoder = c.wiring == Wiring::encoder;
  m.sees = [encoder](int64_t i, int64_t j) { return encoder || j <= i; };
  m.macs = [c](int64_t l) { return macs_of(c, l); };
  m.task = encoder ? period_three : successor;
  m.masked = encoder;
  m.decodes = !encoder;
  m.counted_from = encoder ? 0 : 1;
  m.steps = encoder ? 400 : 250;
  return m;
}

const RegisteredModel performer_decoder =
    performer_info("performer_decoder", [](PerformerConfig&) {});
const RegisteredModel performer_decoder_hyperbolic_post =
    performer_info("performer_decoder_hyperbolic_post", [](auto& c) {
      c.features = FeatureMap::hyperbolic;
      c.norm = NormPlace::post;
      c.projection_per_head = true;
      c.positions = Positions::learned;
    });
const RegisteredModel performer_decoder_relu =
    performer_info("performer_decoder_relu", [](PerformerConfig& c) {
      c.features = FeatureMap::relu;
      c.feature_epsilon = 1e-2;
      c.qk_norm = true;
    });
const RegisteredModel performer_encoder =
    performer_info("performer_encoder", [](PerformerConfig& c) { encode(c); });
const RegisteredModel performer_encoder_elu =
    performer_info("performer_encoder_elu", [](PerformerConfig& c) {
      encode(c);
      c.features = FeatureMap::elu_plus_one;
      c.projected = false;
      c.n_features = 0;
    });

// ------------------------------------------------------------------------ layers against matrices

/// Returns f(u) / sqrt(m) + epsilon for u = scale x W^T.
Tensor feature_rows(const Tensor& x, const Tensor& w, double scale, double epsilon,
                    const std::function<Tensor(const Tensor&)>& f) {
  const Tensor u = mul(w ? matmul(x, transpose(w)) : x, scale);
  const double ratio = w ? 1 / std::sqrt(static_cast<double>(w.dim(0))) : 1;
  return add(mul(f(u), ratio), epsilon);
}

/// Returns the outputs of heads from the whole matrix of weights.
Tensor attended(const Tensor& q, const Tensor& k, const Tensor& v, bool causal) {
  const int64_t n = q.dim(2);
  const Tensor at = iota(n);
  Tensor weights = matmul(q, transpose(k));  // [B, H, L, L]
  if (causal) {
    const Tensor seen = cast(greater_equal(unsqueeze(at, 1), unsqueeze(at, 0)), DType::f64);
    weights = mul(weights, seen);
  }
  return div(matmul(weights, v), sum(weights, {3}, true));
}

TEST(Performer, ExactKernelsAreComputedExactly) {
  const NoGrad off;
  const AttentionOptions attention{.d_model = 12, .n_head = 2, .weights = Scheme::normal(0.4)};
  const auto relu_of = [](const Tensor& x) { return relu(x); };
  const auto same = [](const Tensor& x) { return x; };
  const auto squared = [](const Tensor& x) { return square(x); };
  const std::tuple<FeatureMap, std::function<Tensor(const Tensor&)>, double> kinds[] = {
      {FeatureMap::relu, relu_of, 1e-2},
      {FeatureMap::identity, same, 0.0},
      {FeatureMap::square, squared, 0.0}};
  for (const auto& [map, f, epsilon] : kinds) {
    for (const bool causal : {false, true}) {
      for (const bool projected : {false, true}) {
        const PerformerAttention layer(
            attention, {.features = map, .projected = projected, .feature_epsilon = epsilon},
            causal, in_f64);
        Tensor x = normal({2, 70, 12}, Generator{3}, 0, 1, DType::f64);
        const Projected p = layer.project(x);
        const auto of = [&, f = f, epsilon = epsilon](const Tensor& y) {
          return feature_rows(y, layer.projection(), 1, epsilon, f);
        };
        LayerContext ctx;
        const Tensor y = layer.forward(x, ctx, Pass{}).y;
        const Tensor expected = layer.merge(attended(of(p.q), of(p.k), p.v, causal));
        // Kernels of either sign have denominators near 0, which magnify rounding.
        double scale = 1;
        for (const double e : expected.to_vector<double>()) scale = std::max(scale, std::abs(e));
        EXPECT_LT(distance(y, expected), (map == FeatureMap::identity ? 1e-8 : 1e-12) * scale)
            << static_cast<int>(map) << causal << projected;
      }
    }
  }
}

// Softmax features of many rows are close to a Transformer with the same weights, whose attention
// is exact; the layer says how close.
TEST(Performer, ApproximatesATransformerWhereNormsAreSmall) {
  const NoGrad off;
  const Tensor tokens = some_tokens(2, 20, 17);
  double last = 1e9;
  for (const int64_t features : {16, 256, 4096}) {
    PerformerConfig c = tiny_performer([&](PerformerConfig& x) { x.n_features = features; });
    Performer model(c, in_f64);
    randomise(model, 0.1, 21);
    Transformer exact(c, in_f64);
    randomise(exact, 0.1, 21);
    const double error = distance(model.logits(tokens, Pass{}), exact.logits(tokens, Pass{}));
    EXPECT_LT(error, last / 2) << features;
    last = error;
    const std::vector<FeatureError> reported = model.feature_errors(tokens);
    ASSERT_EQ(reported.size(), 2u);
    for (const FeatureError& e : reported) {
      EXPECT_LT(e.query_norm, e.largest_norm);
      EXPECT_LT(e.output, 3 / std::sqrt(static_cast<double>(features)));
      EXPECT_GT(e.output, 0);
    }
    EXPECT_EQ(model.report(tokens).size(), 2u);
  }
  EXPECT_LT(last, 0.02);
}

// With a scale of their own, features approximate the softmax of that scale.
TEST(Performer, ScalesWhatItApproximates) {
  for (const double scale : {0.0, 0.3, 0.6}) {
    for (const bool causal : {false, true}) {
      const PerformerAttention layer({.d_model = 8, .n_head = 2, .weights = Scheme::normal(0.15)},
                                     {.n_features = 8192, .feature_scale = scale}, causal, in_f64);
      LayerContext ctx;
      ctx.pattern = causal ? patterns::causal() : patterns::dense();
      const Tensor x = normal({1, 40, 8}, Generator{3}, 0, 1, DType::f64);
      const FeatureError e = layer.error(x, ctx);
      EXPECT_LT(e.output, 0.02) << scale << causal;
      const Projected p = layer.project(x);
      const double squared = scale == 0 ? 0.5 : scale * scale;
      EXPECT_NEAR(e.query_norm, squared * mean(sum(square(p.q), {3})).item(), 1e-12);
      EXPECT_NEAR(e.key_norm, squared * mean(sum(square(p.k), {3})).item(), 1e-12);
    }
  }
}

TEST(Performer, ShortSequencesAreExact) {
  const NoGrad off;
  PerformerConfig c = tiny_performer([](PerformerConfig& x) { x.exact_up_to = 9; });
  const Performer model = randomised<Performer>(c);
  Transformer exact(c, in_f64);
  randomise(exact, 0.3, 21);
  const Tensor tokens = some_tokens(2, 20, 17);
  const Tensor nine = contiguous(narrow(tokens, 1, 0, 9)),
               ten = contiguous(narrow(tokens, 1, 0, 10));
  EXPECT_TRUE(same_bits(model.logits(nine, Pass{}), exact.logits(nine, Pass{})));
  EXPECT_GT(distance(model.logits(ten, Pass{}), exact.logits(ten, Pass{})), 1e-3);
  EXPECT_TRUE(contains(model.remark(9), "9 tokens are attended to exactly"));
  EXPECT_TRUE(contains(model.remark(10), "10 tokens are attended to by 8 features = positive"));
  // Decoding is exact for as long, and then goes on by features: one layer has both as one pass.
  c.n_layer = 1;
  c.qk_norm = true;
  const Performer single = randomised<Performer>(c);
  const auto state = single.start_decoding(2);
  for (int64_t t = 0; t < 20; ++t) {
    const Tensor y = single.decode(contiguous(narrow(tokens, 1, t, 1)), *state);
    const Tensor so_far = contiguous(narrow(tokens, 1, 0, t + 1));
    const Tensor whole = contiguous(select(single.logits(so_far, Pass{}), 1, -1));
    EXPECT_LT(distance(y, whole), 1e-12) << t;
  }
}

TEST(Performer, IsExactWhereThatIsFaster) {
  for (const bool causal : {false, true}) {
    const PerformerAttention layer({.d_model = 16, .n_head = 2},
                                   {.n_features = 64, .exact_up_to = -1}, causal, in_f64);
    const int64_t longest = causal ? 320 : 128;
    EXPECT_EQ(crossover_length(64, causal), longest);
    EXPECT_TRUE(layer.exact(longest));
    EXPECT_FALSE(layer.exact(longest + 1));
  }
}

// ------------------------------------------------------------------------------------ the redraw

std::vector<std::vector<double>> performer_buffers(Module& model) {
  std::vector<std::vector<double>> all;
  for (const NamedTensor& b : named_buffers(model)) all.push_back(b.tensor.to_vector<double>());
  return all;
}

TEST(Performer, ProjectionsAreDrawnAnew) {
  const auto c = tiny_performer([](PerformerConfig& x) {
    x.features = FeatureMap::phase;
    x.projection_per_head = true;
  });
  const auto drawn = [&](int threads) {
    const int before = num_threads();
    set_num_threads(threads);
    Performer model(c, in_f64);
    std::vector<std::vector<std::vector<double>>> steps{performer_buffers(model)};
    for (int64_t step = 0; step < 7; ++step) {
      const Tensor tokens = some_tokens(2, 9, 17);
      model.logits(tokens, Pass{});  // evaluation draws nothing
      end_step(model, step, Generator{9}.fork(static_cast<uint64_t>(step)), {});
      steps.push_back(performer_buffers(model));
    }
    set_num_threads(before);
    return steps;
  };
  const auto steps = drawn(1);
  ASSERT_EQ(steps[0].size(), 4u);  // a projection and phases in each of two layers
  for (size_t step = 0; step < 7; ++step) {
    for (size_t b = 0; b < 4; ++b) {
      EXPECT_EQ(steps[step + 1][b] != steps[step][b], step == 2 || step == 5) << step << " " << b;
    }
  }
  EXPECT_NE(steps[3][0], steps[3][2]) << "layers have projections of their own";
  EXPECT_EQ(steps, drawn(3));
  const std::vector<double>& w = steps[0][0];  // [2 heads, 8, 8]
  EXPECT_NE(std::vector(w.begin(), w.begin() + 64), std::vector(w.begin() + 64, w.end()));
}

TEST(Performer, ProjectionsThatStay) {
  for (const bool relu : {false, true}) {
    Performer model(tiny_performer([&](PerformerConfig& x) {
                      x.redraw_interval = 0;
                      if (relu) x.features = FeatureMap::relu;
                    }),
                    in_f64);
    const auto before = performer_buffers(model);
    for (int64_t step = 0; step < 5; ++step) end_step(model, step, Generator{3}, {});
    EXPECT_EQ(performer_buffers(model), before);
  }
}

// ---------------------------------------------------------------------- weights of a Transformer

TEST(Performer, TakesTheWeightsOfATransformer) {
  const NoGrad off;
  PerformerConfig c = tiny_performer([](PerformerConfig& x) { x.exact_up_to = 24; });
  Transformer trained(c, in_f64);
  randomise(trained, 0.3, 33);
  Performer model(c, in_f64);
  const std::vector<std::string> kept = start_from(model, trained, 0);
  EXPECT_EQ(kept, (std::vector<std::string>{"layers.0.attention.projection",
                                            "layers.1.attention.projection"}));
  const Tensor tokens = some_tokens(2, 20, 17);
  EXPECT_TRUE(same_bits(model.logits(tokens, Pass{}), trained.logits(tokens, Pass{})));
  Transformer back(c, Init{.gen = Generator{8}, .dtype = DType::f64});
  EXPECT_TRUE(start_from(back, model, 0).empty());
  EXPECT_TRUE(same_bits(back.logits(tokens, Pass{}), trained.logits(tokens, Pass{})));
  // From a Performer, projections come with the parameters.
  Performer other(c, Init{.gen = Generator{8}, .dtype = DType::f64});
  EXPECT_NE(performer_buffers(other), performer_buffers(model));
  EXPECT_TRUE(start_from(other, model, 0).empty());
  EXPECT_EQ(performer_buffers(other), performer_buffers(model));
}

// --------------------------------------------------------------------------------- whole models

// Every kind of features, in both directions, with lengths: gradients against differences.
TEST(Performer, GradientsOfEveryKind) {
  for (int kind = 0; kind < kernels::feature_map_count; ++kind) {
    for (const Wiring wiring : {Wiring::decoder, Wiring::encoder}) {
      const PerformerConfig c = tiny_performer([&](PerformerConfig& x) {
        x.wiring = wiring;
        x.features = static_cast<FeatureMap>(kind);
        x.n_layer = 1;
        x.qk_norm = kind % 2 == 0;
        const bool free = kernels::norm_sign(x.features) == 0 && x.features != FeatureMap::exp;
        if (free) x.feature_epsilon = 0.7;  // keeps kernels of either sign away from 0
      });
      Performer model(c, in_f64);
      randomise(model, 0.2, 13);
      TransformerInputs in{.tokens = some_tokens(2, 9, c.vocab)};
      if (wiring == Wiring::encoder) in.lengths = Tensor::from(std::vector<int64_t>{9, 4}, {2});
      const Tensor weights =
          where(less(iota(9), reshape(in.lengths ? in.lengths : full({2}, 9, DType::i64), {2, 1})),
                normal({2, 9}, Generator{5}, 0, 1, DType::f64), zeros({2, 9}, DType::f64));
      EXPECT_EQ(check_parameter_gradients(model,
                                          [&] {
                                            const Tensor y = model.forward(in, Pass{});
                                            return sum(mul(sum(square(y), {2}), weights));
                                          }),
                "")
          << name_of_value(c.features) << " " << name_of_value(wiring);
    }
  }
}

TEST(Performer, PaddingChangesNothing) {
  const NoGrad off;
  for (const FeatureMap map : {FeatureMap::positive, FeatureMap::relu}) {
    const Performer model = randomised<Performer>(tiny_performer([&](PerformerConfig& x) {
      encode(x);
      x.features = map;
      if (map == FeatureMap::relu) x.feature_epsilon = 1e-3;
    }));
    const Tensor tokens = some_tokens(2, 12, 18);
    const Tensor lengths = Tensor::from(std::vector<int64_t>{12, 5}, {2});
    const Tensor y = model.forward({.tokens = tokens, .lengths = lengths}, Pass{});
    const Tensor five = contiguous(narrow(narrow(tokens, 0, 1, 1), 1, 0, 5));
    const Tensor alone = model.forward({.tokens = five}, Pass{});
    EXPECT_LT(distance(contiguous(narrow(narrow(y, 0, 1, 1), 1, 0, 5)), alone), 1e-12);
  }
}

TEST(Performer, DecodesAfterASource) {
  const NoGrad off;
  const Performer model = randomised<Performer>(tiny_performer([](PerformerConfig& x) {
    x.wiring = Wiring::encoder_decoder;
    x.exact_up_to = 3;
  }));
  const Tensor source = some_tokens(2, 7, 17, 3), tokens = some_tokens(2, 12, 17);
  const Tensor lengths = Tensor::from(std::vector<int64_t>{7, 4}, {2});
  const auto state = model.start_after({source, lengths});
  for (int64_t t = 0; t < 12; ++t) {
    const Tensor y = model.decode(contiguous(narrow(tokens, 1, t, 1)), *state);
    EXPECT_EQ(to_string(y.shape()), "[2, 17]");
    const Tensor so_far = contiguous(narrow(tokens, 1, 0, t + 1));
    if (t >= 3)
      continue;  // two layers: what the first gave exactly stays in the state of the second
    const Tensor whole =
        model.head(model.forward({.tokens = so_far, .lengths = lengths, .source = source}, Pass{}));
    EXPECT_LT(distance(y, contiguous(select(whole, 1, t))), 1e-12) << t;
  }
  state->take_rows(Tensor::from(std::vector<int64_t>{1, 1}, {2}), false);
  const Tensor y = model.decode(
      contiguous(narrow(some_tokens(1, 1, 17), 0, 0, 1)).alias({2, 1}, {0, 1}, 0), *state);
  EXPECT_LT(distance(contiguous(select(y, 0, 0)), contiguous(select(y, 0, 1))), 1e-15);
}

// What decoding keeps does not grow, and beams may select their rows.
TEST(Performer, DecodesWithConstantMemory) {
  const NoGrad off;
  const Performer model = randomised<Performer>(tiny_performer());
  const Tensor tokens = some_tokens(3, 24, 17);
  const auto state = model.start_decoding(3);
  const auto bytes = [&] {
    int64_t all = 0;
    for (const NamedTensor& t : named_tensors(dynamic_cast<StreamState&>(*state).memory)) {
      all += t.tensor.nbytes();
    }
    return all;
  };
  model.decode(contiguous(narrow(tokens, 1, 0, 1)), *state);
  const int64_t first = bytes();
  EXPECT_EQ(first, 2 * 3 * 2 * 8 * (8 + 2) * 8);  // layers, samples, heads, features, sums and top
  for (int64_t t = 1; t < 20; ++t) model.decode(contiguous(narrow(tokens, 1, t, 1)), *state);
  EXPECT_EQ(bytes(), first);
  const Tensor rows = Tensor::from(std::vector<int64_t>{2, 0}, {2});
  state->take_rows(rows, false);
  const Tensor y = model.decode(contiguous(take(narrow(tokens, 1, 20, 1), rows)), *state);
  const Tensor whole = model.logits(contiguous(narrow(take(tokens, rows), 1, 0, 21)), Pass{});
  EXPECT_LT(distance(y, contiguous(select(whole, 1, 20))), 1e-12);
}

TEST(Performer, WorksInBf16) {
  PerformerConfig c = tiny_performer();
  const Tensor tokens = some_tokens(2, 20, 17);
  const NoGrad off;
  Performer wide(c, Init{.gen = Generator{7}});
  c.precision = Precision::bf16;
  Performer narrow(c, Init{.gen = Generator{7}});
  EXPECT_LT(distance(wide.logits(tokens, Pass{}), narrow.logits(tokens, Pass{})), 0.05);
}

TEST(Performer, SaysWhatDoesNotGoTogether) {
  const auto message = [](const PerformerChange& change) {
    const PerformerConfig c = tiny_performer(change);
    return message_of<ValueError>([&] { Performer(c, in_f64); });
  };
  const std::pair<PerformerChange, const char*> cases[] = {
      {[](auto& c) { c.positions = Positions::shaw; }, "have no features"},
      {[](auto& c) { c.local = Locality::exact, c.window = 3; }, "set it to none"},
      {[](auto& c) { c.alpha = 1.5; }, "set alpha to 1"},
      {[](auto& c) { c.n_features = -1; }, "n_features is -1"},
      {[](auto& c) { c.projected = false; }, "features = positive need a projection"},
      {[](auto& c) { c.features = FeatureMap::relu, c.projected = false; }, "leave it at 0"},
      {[](auto& c) { c.features = FeatureMap::hyperbolic, c.n_features = 7; }, "an even number"},
      {[](auto& c) { c.redraw_interval = -1; }, "redraw_interval is -1"},
      {[](auto& c) { c.feature_epsilon = 1; }, "features = positive take none"},
      {[](auto& c) { c.feature_scale = -1; }, "feature_scale is -1"},
      {[](auto& c) { c.exact_up_to = -2; }, "exact_up_to is -2"},
  };
  for (const auto& [change, part] : cases) {
    EXPECT_TRUE(contains(message(change), part)) << message(change);
  }
  const Performer relu = randomised<Performer>(
      tiny_performer([](PerformerConfig& c) { c.features = FeatureMap::relu; }));
  EXPECT_THROW(relu.feature_errors(some_tokens(1, 5, 17)), NotImplemented);
  EXPECT_TRUE(relu.report(some_tokens(1, 5, 17)).empty());
}

// --------------------------------------------------------------- files of another implementation

class PerformerGoldens : public testing::TestWithParam<std::string> {};

/// tests/oracles/performer.py: outputs and gradients of Transformers with the attention of
/// performer-pytorch.
TEST_P(PerformerGoldens, AgreeWithThePackage) {
  const GoldenFile golden("performer", GetParam());
  Performer model = golden.build<Performer, PerformerConfig>(DType::f64);
  for (NamedTensor& b : named_buffers(model)) {
    const Tensor w = golden["buffer." + b.name];
    ASSERT_TRUE(w) << b.name;
    write_buffer(b.tensor, w);
  }
  const TransformerInputs in{.tokens = golden["input.tokens"],
                             .lengths = golden["input.lengths"],
                             .source = golden["input.source"]};
  const Tensor hidden = model.forward(in, training);
  const Tensor lengths = in.source ? Tensor{} : in.lengths;
  golden.expect("output.hidden", without_padding(hidden, lengths), 1e-11);
  golden.expect("output.logits", without_padding(model.head(hidden), lengths), 1e-11);
  const Tensor loss = model.loss(hidden, golden["input.targets"], training);
  golden.expect("output.loss", loss, 1e-11);
  backward(loss);
  golden.expect_gradients(model, 1e-10);
}

INSTANTIATE_TEST_SUITE_P(Package, PerformerGoldens, testing::ValuesIn(golden_names("performer")),
                         own_name);

}  // namespace
}  // namespace longspan::test
