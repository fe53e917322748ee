// Entmax: the op against the package, and Transformers whose attention it is.

#include "ops/entmax.h"

#include <gtest/gtest.h>

#include <cmath>

#include "autograd/engine.h"
#include "autograd/mode.h"
#include "models/transformer/transformer.h"
#include "nn/attention/entmax.h"
#include "ops/elementwise.h"
#include "ops/index.h"
#include "ops/loss.h"
#include "ops/matmul.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/shape.h"
#include "tests/harness/messages.h"
#include "tests/models/golden_file.h"

namespace longspan::test {
namespace {

TransformerConfig tiny_entmax(Wiring wiring = Wiring::decoder) {
  TransformerConfig c = transformer_preset("tiny");
  c.wiring = wiring;
  c.n_max = 32;
  c.positions = Positions::sinusoid;
  c.alpha = 1.5;
  return c;
}

// tests/oracles/entmax.py: rows of five alphas and three widths of scores.
TEST(Entmax, AgreesWithThePackage) {
  const GoldenFile golden("entmax", "entmax");
  Tensor x = golden["x"], alpha = golden["alpha"];
  set_requires_grad(x);
  set_requires_grad(alpha);
  const Tensor y = entmax(x, alpha);
  backward(y, golden["dy"]);
  EXPECT_LT(distance(y.detach(), golden["y"]), 1e-11);
  EXPECT_LT(distance(grad(x), golden["dx"]), 1e-10);
  EXPECT_LT(distance(grad(alpha), golden["dalpha"]), 1e-10);
}

TEST(Entmax, LossesAgreeWithThePackage) {
  const GoldenFile golden("entmax", "entmax");
  for (const auto& [alpha, name] : {std::pair{1.5, "losses_1_5"}, {2.0, "losses_2"}}) {
    Tensor z = golden["x"].detach();
    set_requires_grad(z);
    const Tensor losses = entmax_loss(z, golden["targets"], alpha);
    EXPECT_LT(distance(losses.detach(), golden[name]), 1e-11) << alpha;
    backward(sum(losses));
    const Tensor classes = iota(z.dim(1));
    const Tensor right =
        cast(equal(unsqueeze(golden["targets"], 1), unsqueeze(classes, 0)), DType::f64);
    EXPECT_LT(distance(grad(z), sub(entmax(z.detach(), alpha), right)), 1e-15) << alpha;
  }
}

TEST(Entmax, LossOfOneIsCrossEntropy) {
  const GoldenFile golden("entmax", "entmax");
  const Tensor z = golden["x"].detach(), y = golden["targets"];
  EXPECT_LT(distance(entmax_loss(z, y, 1), cross_entropy(z, y, {.reduction = Reduction::none})),
            1e-12);
  const Tensor ahead = Tensor::from(std::vector<double>{0, 2, -1}, {1, 3});
  EXPECT_EQ(entmax_loss(ahead, Tensor::from(std::vector<int64_t>{1}, {1}), 1.5).item(), 0);
  EXPECT_GT(entmax_loss(ahead, Tensor::from(std::vector<int64_t>{0}, {1}), 1.5).item(), 1);
  EXPECT_THROW(entmax_loss(z, narrow(y, 0, 0, 3), 1.5), ShapeError);
  EXPECT_THROW(entmax_loss(z, y, 3), ValueError);
  EXPECT_THROW(entmax_loss(ahead, Tensor::from(std::vector<int64_t>{3}, {1}), 1.5), ValueError);
}

TEST(EntmaxTransformer, KeepsAlphasBetweenSoftmaxAndSparsemax) {
  EntmaxAttention layer({.d_model = 8, .n_head = 4}, {.learned = true}, in_f64);
  Tensor a = parameter(layer, "alpha");
  assign(a, {-30, 0, std::log(0.25), 30});
  const auto alpha = layer.alpha().to_vector<double>();
  const double expected[] = {1.01, 1.5, 1.2, 2};
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(alpha[i], expected[i], 1e-12);
  const Tensor x = normal({1, 6, 8}, Generator{5}, 0, 3, DType::f64);
  LayerContext ctx;
  ctx.pattern = patterns::causal();
  const Tensor share = layer.density(x, ctx);
  EXPECT_EQ(to_string(share.shape()), "[1, 4, 6]");
  EXPECT_LT(mean(select(share, 1, 3)).item(), mean(select(share, 1, 0)).item());
}

TEST(EntmaxTransformer, DoesNotRoundAnAlphaThatIsGiven) {
  const NoGrad off;
  EntmaxAttention layer({.d_model = 8, .n_head = 2}, {.alpha = 1.3}, in_f64);
  EXPECT_EQ(layer.alpha().to_vector<double>(), std::vector<double>{1.3});
  // f32 would have 1.29999995, whose results differ by 1e-8.
  const Tensor x = normal({1, 6, 8}, Generator{5}, 0, 3, DType::f64);
  LayerContext ctx;
  ctx.pattern = patterns::causal();
  const auto linear_of = [&](const char* name) {
    const Tensor y = linear(x, parameter(layer, std::string(name) + ".weight"));
    return transpose(unflatten(y, -1, 2, 4), 1, 2);
  };
  const Tensor scores = mul(matmul(linear_of("q"), transpose(linear_of("k"))), 0.5);
  const Tensor at = iota(6);
  const Tensor hidden = greater(unsqueeze(at, 0), unsqueeze(at, 1));
  const double never = -std::numeric_limits<double>::infinity();
  const Tensor p = entmax(where(hidden, full_like(scores, never), scores), 1.3);
  EXPECT_LT(distance(layer.probabilities(x, ctx), p), 1e-14);
}

TEST(EntmaxTransformer, LearnsItsAlphasInEveryKindOfAttention) {
  for (const Wiring wiring : {Wiring::decoder, Wiring::encoder, Wiring::encoder_decoder}) {
    TransformerConfig c = tiny_entmax(wiring);
    c.learn_alpha = true;
    Transformer model = randomised<Transformer>(c);
    const Tensor tokens = some_tokens(2, 7, c.vocab);
    TransformerInputs in{.tokens = tokens};
    if (wiring == Wiring::encoder_decoder) in.source = some_tokens(2, 5, c.vocab, 3);
    if (wiring != Wiring::decoder) in.lengths = Tensor::from(std::vector<int64_t>{5, 3}, {2});
    const Tensor weights = normal({2, 7, c.d_model}, Generator{5}, 0, 1, DType::f64);
    EXPECT_EQ(check_parameter_gradients(
                  model, [&] { return sum(mul(model.forward(in, Pass{}), weights)); }),
              "");
    int alphas = 0;
    for (const NamedTensor& p : named_parameters(model)) alphas += p.name.ends_with(".alpha");
    EXPECT_EQ(alphas, c.n_layer * (wiring == Wiring::encoder_decoder ? 3 : 1));
  }
}

TEST(EntmaxTransformer, DecodesWhatOnePassGives) {
  for (const double alpha : {1.2, 1.5, 2.0}) {
    TransformerConfig c = tiny_entmax(Wiring::encoder_decoder);
    c.alpha = alpha;
    const Transformer model = randomised<Transformer>(c);
    const NoGrad off;
    const Tensor source = some_tokens(2, 7, c.vocab, 3), tokens = some_tokens(2, 6, c.vocab);
    const Tensor lengths = Tensor::from(std::vector<int64_t>{7, 4}, {2});
    const Tensor whole =
        model.head(model.forward({.tokens = tokens, .lengths = lengths, .source = source}, Pass{}));
    const auto state = model.start_decoding(source, lengths);
    for (int64_t t = 0; t < 6; ++t) {
      const Tensor y = model.decode(contiguous(narrow(tokens, 1, t, 1)), *state);
      EXPECT_LT(distance(y, contiguous(select(whole, 1, t))), 1e-12) << alpha;
    }
  }
}

TEST(EntmaxTransformer, OfWindowsIsThatOfWideOnes) {
  const NoGrad off;
  TransformerConfig c = tiny_entmax();
  const Tensor tokens = some_tokens(2, 12, c.vocab);
  const Tensor full = randomised<Transformer>(c).logits(tokens, Pass{});
  c.local = Locality::exact;
  c.window = 12;
  EXPECT_LT(distance(randomised<Transformer>(c).logits(tokens, Pass{}), full), 1e-13);
  c.window = 3;
  EXPECT_GT(distance(randomised<Transformer>(c).logits(tokens, Pass{}), full), 1e-6);
}

// Dropout leaves out some of the probabilities, and the mean over many draws is what none leaves.
TEST(EntmaxTransformer, DropsProbabilitiesInTraining) {
  const NoGrad off;
  const EntmaxAttention plain({.d_model = 8, .n_head = 2}, {}, in_f64),
      dropping({.d_model = 8, .n_head = 2, .dropout = 0.3f}, {}, in_f64);
  const Tensor x = normal({1, 9, 8}, Generator{5}, 0, 3, DType::f64);
  LayerContext ctx;
  ctx.pattern = patterns::causal();
  const Tensor whole = plain.forward(x, ctx, Pass{}).y;
  EXPECT_EQ(distance(dropping.forward(x, ctx, Pass{}).y, whole), 0);
  Tensor total = zeros_like(whole), squares = total;
  const int draws = 2000;
  for (uint64_t i = 0; i < draws; ++i) {
    const Tensor one = dropping.forward(x, ctx, {.training = true, .gen = Generator{i}}).y;
    if (i < 5) {
      EXPECT_GT(distance(one, whole), 1e-3);
    }
    total = add(total, one);
    squares = add(squares, square(sub(one, whole)));
  }
  const auto apart = sub(mul(total, 1.0 / draws), whole).to_vector<double>(),
             variance = mul(squares, 1.0 / draws).to_vector<double>();
  for (size_t i = 0; i < apart.size(); ++i) {
    EXPECT_LE(std::abs(apart[i]), 5 * std::sqrt(variance[i] / draws)) << i;
  }
}

TEST(EntmaxTransformer, ComputesIn16BitsWithThresholdsOfF32) {
  TransformerConfig c = tiny_entmax();
  c.learn_alpha = true;
  const Transformer wide = randomised<Transformer>(c, in_f32);
  for (const Precision precision : {Precision::f16, Precision::bf16}) {
    c.precision = precision;
    const Transformer narrow = randomised<Transformer>(c, in_f32);
    const NoGrad off;
    const Tensor tokens = some_tokens(2, 9, c.vocab);
    const double apart = distance(narrow.logits(tokens, Pass{}), wide.logits(tokens, Pass{}));
    EXPECT_GT(apart, 0);
    EXPECT_LT(apart, precision == Precision::f16 ? 0.02 : 0.2);
  }
}

TEST(EntmaxTransformer, DrawsOnlyPairsThatCount) {
  TransformerConfig c = tiny_entmax();
  c.alpha = 2;
  Transformer model(c, in_f64);
  randomise(model, 1, 21);
  const auto p = model.attention_map(some_tokens(1, 11, c.vocab), 0).to_vector<float>();
  int zeros = 0;
  for (size_t row = 0; row < p.size() / 11; ++row) {
    double sum = 0;
    for (size_t j = 0; j <= row % 11; ++j) {
      sum += p[row * 11 + j];
      zeros += p[row * 11 + j] == 0;
    }
    EXPECT_NEAR(sum, 1, 1e-6);
  }
  EXPECT_GT(zeros, 20);  // of 132 pairs
}

TEST(EntmaxTransformer, SaysWhatDoesNotGoTogether) {
  const auto message = [](const std::function<void(TransformerConfig&)>& change) {
    TransformerConfig c = tiny_entmax();
    change(c);
    return message_of<ValueError>([&] { Transformer(c, in_f64); });
  };
  EXPECT_TRUE(contains(message([](auto& c) { c.alpha = 2.5; }), "alpha is 2.5; expected 1 to 2"));
  EXPECT_TRUE(contains(message([](auto& c) { c.positions = Positions::shaw; }),
                       "set positions to sinusoid or learned"));
  EXPECT_TRUE(contains(message([](auto& c) {
                         c.local = Locality::block;
                         c.window = 4;
                       }),
                       "not for local = block"));
}

}  // namespace
}  // namespace longspan::test
