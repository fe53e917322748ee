// Losses, dropout and precision of the Transformer, beyond what baselines.cc tests.

#include "models/transformer/transformer.h"

#include <gtest/gtest.h>

#include <cmath>

#include "autograd/engine.h"
#include "autograd/mode.h"
#include "autograd/node.h"
#include "core/memory.h"
#include "core/parallel.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/shape.h"
#include "tests/harness/model_info.h"
#include "tests/models/small_models.h"

namespace longspan::test {
namespace {

TEST(Transformer, HalfLossCountsTheSecondHalf) {
  TransformerConfig c = transformer_preset("tiny");
  const Transformer plain = randomised<Transformer>(c);
  c.half_loss = true;
  const Transformer half = randomised<Transformer>(c);
  const NoGrad off;
  const Tensor tokens = some_tokens(2, 9, c.vocab), y = some_tokens(2, 9, c.vocab, 2);
  Tensor second = clone(y);
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t i = 0; i < 4; ++i) second.mut().as<int64_t>()[b * 9 + i] = ignored_target;
  }
  EXPECT_LT(distance(half.loss(tokens, y, {}, training).loss,
                     plain.loss(tokens, second, {}, training).loss),
            1e-13);
  EXPECT_LT(distance(half.loss(tokens, y, {}, Pass{}).loss, plain.loss(tokens, y, {}, Pass{}).loss),
            1e-13);
}

TEST(Transformer, SmoothingIsForTraining) {
  TransformerConfig c = transformer_preset("tiny");
  const Transformer plain = randomised<Transformer>(c);
  c.label_smoothing = 0.3;
  const Transformer smoothed = randomised<Transformer>(c);
  const NoGrad off;
  const Tensor x = some_tokens(2, 9, c.vocab), y = some_tokens(2, 9, c.vocab, 2);
  EXPECT_TRUE(same_bits(plain.loss(x, y, {}, Pass{}).loss, smoothed.loss(x, y, {}, Pass{}).loss));
  EXPECT_FALSE(
      same_bits(plain.loss(x, y, {}, training).loss, smoothed.loss(x, y, {}, training).loss));
}

TEST(Transformer, DropoutSitesAreIndependent) {
  const Tensor x = some_tokens(2, 12, 17);
  const NoGrad off;
  const auto loss = [&](const std::function<void(TransformerConfig&)>& change, const Pass& pass) {
    TransformerConfig c = transformer_preset("tiny");
    change(c);
    return randomised<Transformer>(c).logits(x, pass);
  };
  const Pass pass{.training = true, .gen = Generator{1}},
      other{.training = true, .gen = Generator{2}};
  const Tensor plain = loss([](TransformerConfig&) {}, pass);
  const std::vector<std::function<void(TransformerConfig&)>> sites{
      [](TransformerConfig& c) { c.dropout_emb = 0.3f; },
      [](TransformerConfig& c) { c.dropout_attn = 0.3f; },
      [](TransformerConfig& c) { c.dropout_ffn_act = 0.3f; },
      [](TransformerConfig& c) {
        c.dropout = 0.3f;
        c.dropout_emb = c.dropout_attn = c.dropout_ffn_act = 0;
      }};
  for (const auto& site : sites) {
    EXPECT_FALSE(same_bits(plain, loss(site, pass)));
    EXPECT_TRUE(same_bits(loss(site, pass), loss(site, pass)));
    EXPECT_FALSE(same_bits(loss(site, pass), loss(site, other)));
    EXPECT_TRUE(same_bits(plain, loss(site, Pass{})));
  }
}

TEST(Transformer, HalfPrecisionComputesNearF32) {
  TransformerConfig c = transformer_preset("tiny");
  Transformer full = randomised<Transformer>(c, in_f32);
  const Tensor x = some_tokens(2, 12, 17), y = some_tokens(2, 12, 17, 2);
  const Tensor exact = full.loss(x, y, {}, Pass{}).loss;
  for (const Precision precision : {Precision::bf16, Precision::f16}) {
    c.precision = precision;
    Transformer half = randomised<Transformer>(c, in_f32);
    EXPECT_EQ(name_of(half.forward({.tokens = x}, Pass{}).dtype()), name_of_value(precision));
    const Tensor loss = half.loss(x, y, {}, Pass{}).loss;
    EXPECT_LT(distance(loss, exact), precision == Precision::bf16 ? 0.1 : 0.01);
    backward(loss);
    for (const Tensor& p : parameters(half)) {
      if (grad(p)) {
        EXPECT_EQ(grad(p).dtype(), DType::f32);
      }
    }
    EXPECT_TRUE(grad(parameter(half, "layers.0.attention.q.weight")));
  }
}

TransformerConfig seq2seq() {
  TransformerConfig c = transformer_preset("tiny");
  c.wiring = Wiring::encoder_decoder;
  c.source_vocab = 23;
  c.shaw_share_layers = true;
  c.d_embed = 6;
  c.head_bias = true;
  c.dropout = 0.1f;
  return c;
}

TEST(EncoderDecoder, VisitsEveryByteOfItsParameters) {
  const int64_t before = memory_tracker().live()[Category::parameter];
  Transformer model(seq2seq(), in_f32);
  int64_t visited = 0;
  for (const Tensor& p : parameters(model)) visited += memory::block_bytes(p.nbytes());
  EXPECT_EQ(memory_tracker().live()[Category::parameter] - before, visited);
  Transformer plan(seq2seq(), Init{.meta = true});
  EXPECT_EQ(parameter_count(plan), parameter_count(model));
}

TEST(EncoderDecoder, HasTheSameBitsForAnyNumberOfThreads) {
  const int before = num_threads();
  std::vector<std::vector<Tensor>> runs;
  for (const int n : {1, 2, 3}) {
    set_num_threads(n);
    Transformer model(seq2seq(), in_f32);
    const TransformerInputs in{.tokens = some_tokens(3, 9, 17),
                               .lengths = Tensor::from(std::vector<int64_t>{11, 4, 0}, {3}),
                               .source = some_tokens(3, 11, 23, 2)};
    const Pass pass{.training = true, .gen = Generator{11}};
    const Tensor loss = model.loss(model.forward(in, pass), some_tokens(3, 9, 17, 3), pass);
    backward(loss);
    runs.push_back({loss.detach()});
    for (const Tensor& p : parameters(model)) {
      ASSERT_TRUE(grad(p));
      runs.back().push_back(grad(p));
    }
  }
  set_num_threads(before);
  for (size_t i = 0; i < runs[0].size(); ++i) {
    EXPECT_TRUE(same_bits(runs[0][i], runs[1][i]) && same_bits(runs[0][i], runs[2][i])) << i;
  }
}

// Every target position sees targets up to itself and the whole source, whatever the padding holds.
TEST(EncoderDecoder, SeesTheWholeSourceButNoPadding) {
  const Transformer model = randomised<Transformer>(seq2seq());
  const NoGrad off;
  const Tensor tokens = some_tokens(1, 5, 17), source = some_tokens(1, 7, 23, 2);
  const Tensor lengths = Tensor::from(std::vector<int64_t>{6}, {1});
  const auto run = [&](const Tensor& t, const Tensor& s) {
    return model.forward({.tokens = t, .lengths = lengths, .source = s}, Pass{});
  };
  const auto changed = [](const Tensor& ids, int64_t place) {
    Tensor other = clone(ids);
    other.mut().as<int64_t>()[place] = (ids.view().as<int64_t>()[place] + 1) % 17;
    return other;
  };
  const Tensor whole = run(tokens, source);
  EXPECT_TRUE(same_bits(whole, run(tokens, changed(source, 6))));
  const Tensor late = run(changed(tokens, 3), source), other = run(tokens, changed(source, 5));
  for (int64_t i = 0; i < 5; ++i) {
    EXPECT_EQ(same_bits(select(whole, 1, i), select(late, 1, i)), i < 3) << i;
    EXPECT_FALSE(same_bits(select(whole, 1, i), select(other, 1, i))) << i;
  }
}

TransformerConfig with_auxiliary_losses() {
  TransformerConfig c = transformer_preset("tiny");
  c.n_layer = 4;
  c.layer_loss = true;
  c.n_target = 2;
  return c;
}

// The golden files check the values of the terms. This test checks when they apply.
TEST(AuxiliaryLoss, LowerLayersStopSooner) {
  Transformer model = randomised<Transformer>(with_auxiliary_losses());
  const Tensor x = some_tokens(2, 9, 17), y = some_tokens(2, 9, 17, 2);
  double before = 1e300;
  for (const auto& [progress, first] : {std::pair{0.0f, 1},
                                        {0.124f, 1},
                                        {0.125f, 2},  // layer 1 of 4 stops at 1 / 8
                                        {0.25f, 3},
                                        {0.374f, 3},
                                        {0.375f, 4},
                                        {1.0f, 4}}) {
    const Pass pass{.training = true, .gen = Generator{1}, .progress = progress};
    const auto losses = model.loss(x, y, {}, pass);
    const Tensor auxiliary = losses.auxiliary.at(0).value;
    backward(auxiliary);
    for (int layer = 1; layer <= 4; ++layer) {
      const std::string name = fmt::format("auxiliary.{}.targets.0.weight", layer - 1);
      EXPECT_EQ(static_cast<bool>(grad(parameter(model, name))), layer >= first)
          << name << " at " << progress;
    }
    for (const Tensor& p : parameters(model)) set_grad(p, {});
    EXPECT_EQ(losses.auxiliary.size(), 1u);
    EXPECT_LE(auxiliary.item(), before);
    before = auxiliary.item();
  }
}

TEST(AuxiliaryLoss, IsForTrainingAndLeavesTheLossAlone) {
  TransformerConfig c = with_auxiliary_losses();
  Transformer model = randomised<Transformer>(c);
  c.layer_loss = false;
  c.n_target = 1;
  Transformer plain(c, in_f64);
  for (NamedTensor& p : named_parameters(plain)) {
    assign(p.tensor, parameter(model, p.name).to_vector<double>());
  }
  const NoGrad off;
  const Tensor x = some_tokens(2, 9, 17), y = some_tokens(2, 9, 17, 2);
  EXPECT_TRUE(model.loss(x, y, {}, Pass{}).auxiliary.empty());
  EXPECT_TRUE(plain.loss(x, y, {}, training).auxiliary.empty());
  EXPECT_TRUE(same_bits(model.loss(x, y, {}, training).loss, plain.loss(x, y, {}, training).loss));
}

TEST(AuxiliaryLoss, OfATargetBeyondTheEndIsNothing) {
  TransformerConfig c = with_auxiliary_losses();
  c.layer_loss = false;
  c.n_target = 3;
  const Transformer model = randomised<Transformer>(c);
  const NoGrad off;
  const Tensor one = some_tokens(2, 1, 17);
  EXPECT_EQ(model.loss(one, one, {}, training).auxiliary.at(0).value.item(), 0);
}

/// Returns the share of the tokens whose embedding got a gradient. Each token occurs at one
/// position only.
double read_share(const TransformerConfig& c, const Pass& pass) {
  Transformer model = randomised<Transformer>(c);
  const Tensor tokens = reshape(iota(c.vocab), {1, c.vocab});
  backward(model.loss(tokens, zeros({1, c.vocab}, DType::i64), {}, pass).loss);
  const std::vector<double> dx = grad(parameter(model, "embed.token.weight")).to_vector<double>();
  double read = 0;
  for (size_t row = 0; row < static_cast<size_t>(c.vocab); ++row) {
    bool any = false;
    for (size_t d = 0; d < 16; ++d) any = any || dx[row * 16 + d] != 0;
    read += any ? 1 : 0;
  }
  return read / static_cast<double>(c.vocab);
}

TEST(Transformer, DroppedTokensAreReadAsNothing) {
  TransformerConfig c = transformer_preset("tiny");
  c.vocab = 400;
  c.dropout_token = 0.25f;
  EXPECT_NEAR(read_share(c, {.training = true, .gen = Generator{1}}), 0.75, 0.07);
  EXPECT_EQ(read_share(c, {.gen = Generator{1}}), 1);

  c.dropout_token = 0.99999f;
  const Transformer model = randomised<Transformer>(c);
  const NoGrad off;
  const Tensor a = some_tokens(2, 9, c.vocab, 1), b = some_tokens(2, 9, c.vocab, 2);
  EXPECT_TRUE(same_bits(model.logits(a, training), model.logits(b, training)));
  EXPECT_FALSE(same_bits(model.logits(a, Pass{}), model.logits(b, Pass{})));
}

TEST(Transformer, SinusoidsGoOnBeyondTheirTable) {
  TransformerConfig c = transformer_preset("tiny");
  c.positions = Positions::sinusoid;
  const NoGrad off;
  const Tensor tokens = some_tokens(2, 13, 17);
  c.n_max = 100;
  const Tensor y = randomised<Transformer>(c).logits(tokens, Pass{});
  c.n_max = 4;
  const Transformer model = randomised<Transformer>(c);
  EXPECT_TRUE(same_bits(y, model.logits(tokens, Pass{})));
  const auto state = model.start_decoding(2);
  for (int64_t t = 0; t < 13; ++t) {
    const Tensor z = model.decode(contiguous(narrow(tokens, 1, t, 1)), *state);
    EXPECT_LT(distance(z, contiguous(select(y, 1, t))), 1e-12);
  }
}

TEST(Transformer, ASourceMayHaveATableOfItsOwn) {
  TransformerConfig c = transformer_preset("tiny");
  c.wiring = Wiring::encoder_decoder;
  const auto run = [&](int64_t id) {
    const Transformer model = randomised<Transformer>(c);
    const Tensor source = full({1, 5}, static_cast<double>(id), DType::i64);
    return model.forward({.tokens = some_tokens(1, 4, 17), .source = source}, Pass{});
  };
  EXPECT_THROW(run(19), ValueError);
  c.source_vocab = 20;
  EXPECT_NO_THROW(run(19));
  EXPECT_THROW(run(20), ValueError);
}

}  // namespace
}  // namespace longspan::test
