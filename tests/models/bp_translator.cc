// BP-Transformer as an encoder-decoder, and all of its models against the golden files.

#include "models/bp_transformer/bp_translator.h"

#include <gtest/gtest.h>

#include "autograd/engine.h"
#include "autograd/mode.h"
#include "models/bp_transformer/bp_encoder.h"
#include "models/bp_transformer/bp_transformer.h"
#include "models/evaluate.h"
#include "models/generate.h"
#include "nn/attention/edge_multi_head.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/loss.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/shape.h"
#include "tests/harness/messages.h"
#include "tests/models/costs.h"
#include "tests/models/golden_file.h"
#include "train/optimizer.h"

namespace longspan::test {
namespace {

BpTranslator bp_translator(
    const std::function<void(BpTranslatorConfig&)>& change = [](auto&) {},
    DType dtype = DType::f64) {
  BpTranslatorConfig c = bp_translator_preset("tiny");
  change(c);
  return randomised<BpTranslator>(c, Init{.gen = Generator{1}, .dtype = dtype}, 0.3, 7);
}

/// Two sources of 14 tokens, of which 14 and 9 are valid. Token 3 ends sentences.
SourceTokens documents() {
  const std::vector<int64_t> tokens = {5, 6, 3, 7, 8, 9, 3, 4, 5, 3, 1, 2, 3, 0,
                                       9, 3, 8, 7, 6, 3, 5, 4, 3, 3, 3, 3, 3, 3};
  return {.tokens = Tensor::from(tokens, {2, 14}),
          .lengths = Tensor::from(std::vector<int64_t>{14, 9}, {2})};
}

/// Inputs of the decoder, which begin with token 3.
Tensor translator_inputs() {
  const std::vector<int64_t> tokens = {3, 7, 3, 8, 8, 3, 9, 3, 6, 3, 1,
                                       3, 3, 5, 6, 3, 7, 3, 3, 2, 3, 4};
  return Tensor::from(tokens, {2, 11});
}

void of_sentences(BpTranslatorConfig& c) { c.sentence_end = 3; }

using Keys = std::vector<std::pair<int64_t, int64_t>>;  // first key and number of each row
Keys visible_keys(const EdgeRows& rows) {
  Keys all(static_cast<size_t>(rows.layout->n_rows), {-1, 0});
  for (const Edge& e : edges_of(*rows.layout)) {
    auto& [first, count] = all[static_cast<size_t>(e.row)];
    if (count++ == 0) first = e.key;
  }
  return all;
}

TEST(BpTransformer, APositionBelongsToTheSentenceThatItPredicts) {
  const SourceSentences source = sentences_of("test", documents(), 3);
  EXPECT_EQ(source.rows, 23);
  const Keys first = {{0, 3}, {3, 4}, {7, 3}, {10, 3}, {13, 1}};
  ASSERT_EQ(source.of_sample[0].size(), first.size());
  const std::vector<int64_t> sentence =
      sentences_of_targets("test", translator_inputs(), 3, {0, 0}, true);
  EXPECT_EQ(sentence, (std::vector<int64_t>{0, 0, 1, 1, 1, 2, 2, 3, 3, 4, 4,  //
                                            0, 1, 1, 1, 2, 2, 3, 4, 4, 5, 5}));
  const Keys keys = visible_keys(*sentence_rows(source, {0, 1}, sentence));
  for (size_t i = 0; i < 11; ++i) EXPECT_EQ(keys[i], first[size_t(sentence[i])]) << i;
  // The second source has sentences of 2, 4 and 3 tokens; its target has more.
  EXPECT_EQ(keys[11], (std::pair<int64_t, int64_t>{14, 2}));
  EXPECT_EQ(keys[12], (std::pair<int64_t, int64_t>{16, 4}));
  for (size_t i = 15; i < 22; ++i) EXPECT_EQ(keys[i], (std::pair<int64_t, int64_t>{20, 3}));
  // When decoding goes on, the first input may end a sentence.
  EXPECT_EQ(
      sentences_of_targets("test", Tensor::from(std::vector<int64_t>{3, 1}, {1, 2}), 3, {4}, false),
      (std::vector<int64_t>{5, 5}));
}

TEST(BpTransformer, NoGradientReachesOtherSentencesThroughAttentionBetweenThem) {
  const EdgeMultiHead between({.d_model = 8, .n_head = 2, .cross = true},
                              Init{.gen = Generator{3}, .dtype = DType::f64});
  const std::vector<int64_t> ids = {5, 6, 3, 7, 8, 3};
  const SourceTokens source{.tokens = Tensor::from(ids, {1, 6})};
  const Tensor target = Tensor::from(std::vector<int64_t>{3, 1, 3, 2, 4}, {1, 5});
  LayerContext ctx;
  ctx.encoder_output = normal({1, 6, 8}, Generator{4}, 0, 1, DType::f64);
  set_requires_grad(ctx.encoder_output);
  ctx.own.set(EdgeContext{nullptr, nullptr,
                          sentence_rows(sentences_of("test", source, 3), {0},
                                        sentences_of_targets("test", target, 3, {0}, true))});
  const Tensor x = normal({1, 9, 8}, Generator{5}, 0, 1, DType::f64);  // 5 leaves and 4 spans
  for (int64_t i = 0; i < 9; ++i) {
    set_grad(ctx.encoder_output, {});
    const Tensor y = select(between.forward(x, ctx, Pass{}).y, 1, i);
    if (i >= 5) {
      for (const double v : contiguous(y.detach()).to_vector<double>()) EXPECT_EQ(v, 0);
      continue;
    }
    backward(sum(flatten(y), {0}));
    const std::vector<double> dx = grad(ctx.encoder_output).to_vector<double>();
    const bool second = i >= 2;  // input 3 at position 2 predicts the second sentence's first token
    for (int64_t j = 0; j < 6; ++j) {
      double largest = 0;
      for (int64_t c = 0; c < 8; ++c) largest = std::max(largest, std::abs(dx[size_t(j * 8 + c)]));
      EXPECT_EQ(largest > 0, (j >= 3) == second) << i << " " << j;
    }
  }
}

TEST(BpTransformer, GradientsOfTheWholeTranslator) {
  for (const int64_t n : {1, 2, 3, 5, 8, 13}) {
    BpTranslator model = bp_translator([&](BpTranslatorConfig& c) {
      c.dropout = 0.1f;
      c.label_smoothing = 0.1;
      c.sentence_end = n % 2 == 1 ? 3 : -1;
    });
    const SourceTokens source{.tokens = some_tokens(2, 13, 17),
                              .lengths = Tensor::from(std::vector<int64_t>{n, 13}, {2})};
    const Tensor tokens = some_tokens(2, n, 17, 3), targets = some_tokens(2, n, 17, 4);
    EXPECT_EQ(
        check_parameter_gradients(
            model, [&] { return model.sequence_loss(source, tokens, targets, training).total(); },
            5, 1e-6),
        "")
        << n;
  }
}

TEST(BpTranslator, DecodesAsItIsTaught) {
  const NoGrad off;
  for (const bool whole : {true, false}) {
    const BpTranslator model = whole ? bp_translator() : bp_translator(of_sentences);
    const Tensor tokens = translator_inputs();
    const Tensor logits = model.head(model.forward(documents(), tokens, Pass{}));  // [B, L, V]
    for (const int64_t piece : {1, 4}) {
      const auto state = model.start_after(documents());
      for (int64_t t = 0; t < 11; t += piece) {
        const int64_t n = std::min<int64_t>(piece, 11 - t);
        const Tensor y = model.decode(contiguous(narrow(tokens, 1, t, n)), *state);
        EXPECT_LE(distance(y, contiguous(select(logits, 1, t + n - 1))), 1e-12) << t;
      }
      EXPECT_EQ(state->position, 11);
    }
  }
}

TEST(BpTranslator, BeamsKeepTheirSourceAndTheirSentence) {
  const NoGrad off;
  const BpTranslator model = bp_translator(of_sentences);
  const Tensor start = full({2, 1}, 3, DType::i64);
  const Beams beams = beam_search(model, start, model.start_after(documents()), 12, {.beams = 3});
  for (int64_t beam = 0; beam < 3; ++beam) {
    const Tensor made = contiguous(select(beams.tokens, 1, beam));  // [2, 12]
    const Tensor text = concat({start, made}, 1);
    const Tensor inputs = contiguous(narrow(text, 1, 0, 12));
    const Tensor logits = model.head(model.forward(documents(), inputs, Pass{}));
    for (int64_t b = 0; b < 2; ++b) {
      const Tensor nll = cross_entropy(select(logits, 0, b), contiguous(select(made, 0, b)));
      EXPECT_NEAR(-nll.item(), beams.scores.to_vector<double>()[size_t(b * 3 + beam)], 1e-10);
    }
  }
}

TEST(BpTranslator, PaddingOfTheSourceAndOtherSamplesChangeNoBit) {
  const NoGrad off;
  const BpTranslator model = bp_translator(of_sentences, DType::f32);
  const SourceTokens source = documents();
  const Tensor before = model.forward(source, translator_inputs(), Pass{});
  SourceTokens padded = source;
  padded.tokens = concat({source.tokens, some_tokens(2, 9, 17, 3)}, 1);
  EXPECT_TRUE(same_bits(model.forward(padded, translator_inputs(), Pass{}), before));
  const SourceTokens second{.tokens = contiguous(narrow(narrow(source.tokens, 0, 1, 1), 1, 0, 9))};
  const Tensor own = contiguous(narrow(translator_inputs(), 0, 1, 1));
  EXPECT_TRUE(same_bits(model.forward(second, own, Pass{}), contiguous(narrow(before, 0, 1, 1))));
}

TEST(BpTranslator, SourcesSideBySideHaveTheGradientsOfEachAlone) {
  const std::vector<int64_t> lengths = {500, 512, 430};
  const Tensor source = some_tokens(3, 512, 17), tokens = some_tokens(3, 20, 17, 4);
  BpTranslator model = bp_translator(
      [](BpTranslatorConfig& c) {
        c.d_model = 64;
        c.k = 4;
        c.clip = 4;
      },
      DType::f32);
  const auto gradients_of = [&](const std::function<Tensor()>& hidden) {
    for (const Tensor& p : parameters(model)) set_grad(p, {});
    const Tensor y = hidden();
    backward(y, normal(y.shape(), Generator{9}, 0, 1, DType::f32));
    std::vector<Tensor> all;
    for (const Tensor& p : parameters(model)) {
      if (grad(p)) all.push_back(grad(p));
    }
    return all;
  };
  const std::vector<Tensor> together = gradients_of([&] {
    return model.forward({source, Tensor::from(lengths, {3})}, tokens, Pass{});
  });
  const std::vector<Tensor> alone = gradients_of([&] {
    std::vector<Tensor> rows;
    for (int64_t b = 0; b < 3; ++b) {
      const Tensor own = narrow(narrow(source, 0, b, 1), 1, 0, lengths[size_t(b)]);
      rows.push_back(model.forward({contiguous(own)}, contiguous(narrow(tokens, 0, b, 1)), Pass{}));
    }
    return concat(rows, 0);
  });
  ASSERT_EQ(together.size(), alone.size());
  for (size_t i = 0; i < together.size(); ++i) {
    double scale = 1e-3;
    for (const float g : alone[i].to_vector<float>()) {
      scale = std::max(scale, std::abs(static_cast<double>(g)));
    }
    EXPECT_LE(distance(together[i], alone[i]), 1e-4 * scale) << i;
  }
}

TEST(BpTranslator, IsASequenceModel) {
  const NoGrad off;
  const BpTranslator model = bp_translator();
  const LanguageModel& general = model;
  const Tensor targets = some_tokens(2, 11, 17, 8);
  EXPECT_EQ(general.objective(), Objective::sequence);
  EXPECT_EQ(score(general, documents(), translator_inputs(), targets).count, 22);
  EXPECT_THROW(general.logits(translator_inputs(), Pass{}), NotImplemented);
  EXPECT_THROW(general.loss(translator_inputs(), targets, {}, Pass{}), NotImplemented);
  EXPECT_EQ(ask<ContinuesSequences>(general), nullptr);
  EXPECT_EQ(forward_macs(BpTranslator(model.config(), Init{.device = meta_device}), 21),
            macs_of(model.config(), 21));
  const AttentionOutline outline = model.attention_outline(1, 14);
  const Tensor map = model.attention_map(contiguous(narrow(documents().tokens, 0, 0, 1)), 1);
  EXPECT_EQ(map.dim(1), outline.rows);
  int64_t seen = 0;
  for (const float p : map.to_vector<float>()) seen += p > 0 ? 1 : 0;
  EXPECT_EQ(seen, 2 * count_pairs(outline, 0).attended);
}

// Documents of two sentences of four tokens, each to be copied with its tokens one higher.
TEST(BpTranslator, LearnsToWriteSentencesOfItsSource) {
  BpTranslatorConfig c = bp_translator_preset("tiny");
  c.d_model = 32;
  c.d_ff = 64;
  c.sentence_end = 0;
  BpTranslator model(c, Init{.gen = Generator{1}});
  Adam adam(named_parameters(model));
  const auto losses_of = [&](uint64_t seed, Pass pass) {
    std::vector<int64_t> source, tokens, targets;
    for (int64_t i = 0; i < 16 * 10; ++i) {
      const bool end = i % 5 == 4;
      source.push_back(end ? 0 : 1 + static_cast<int64_t>(philox_word(seed, i) % 15));
      targets.push_back(end ? 0 : source.back() + 1);
      tokens.push_back(i % 10 == 0 ? 0 : targets[static_cast<size_t>(i) - 1]);
    }
    const auto rows = [](const std::vector<int64_t>& x) { return Tensor::from(x, {16, 10}); };
    return model.sequence_loss({.tokens = rows(source)}, rows(tokens), rows(targets), pass).loss;
  };
  for (uint64_t step = 0; step < 300; ++step) {
    backward(losses_of(step, {.training = true, .gen = Generator{2}.fork(step)}));
    clip_gradients(adam, 1.0);
    adam.step(3e-3);
  }
  const NoGrad off;
  EXPECT_LT(losses_of(1'000'000, Pass{}).item(), 0.1);
}

TEST(BpTranslator, SaysWhatDoesNotFitTogether) {
  EXPECT_THROW(bp_translator([](auto& c) { c.sentence_end = 17; }), ValueError);
  EXPECT_THROW(bp_translator([](auto& c) { c.label_smoothing = 1; }), ValueError);
  EXPECT_THROW(bp_translator([](auto& c) { c.k = 0; }), ValueError);
  const BpTranslator model = bp_translator();
  SourceTokens source = documents();
  EXPECT_THROW(model.forward(source, some_tokens(3, 4, 17), Pass{}), ShapeError);
  EXPECT_THROW(model.forward(source, zeros({2, 0}, DType::i64), Pass{}), ShapeError);
  source.lengths = Tensor::from(std::vector<int64_t>{14, 15}, {2});
  EXPECT_THROW(model.forward(source, translator_inputs(), Pass{}), ValueError);
  const auto state = model.start_after(documents());
  EXPECT_TRUE(contains(message_of<ShapeError>([&] { model.decode(some_tokens(3, 1, 17), *state); }),
                       "decoding takes tokens [2, n]"));
}

// --------------------------------------------------------------------------------------- goldens

class BpTransformerGoldens : public testing::TestWithParam<std::string> {
 public:
  static void expect_golden(DType dtype, double tolerance) {
    const GoldenFile golden("bp_transformer", GetParam());
    if (golden.model == "bp_transformer") return language_model(golden, dtype, tolerance);
    if (golden.model == "bp_encoder") return encoder(golden, dtype, tolerance);
    auto model = golden.build<BpTranslator, BpTranslatorConfig>(dtype);
    const SourceTokens source{.tokens = golden["input.source"], .lengths = golden["input.lengths"]};
    const Tensor tokens = golden["input.tokens"];
    golden.expect("output.logits", model.head(model.forward(source, tokens, training)), tolerance);
    const auto losses = model.sequence_loss(source, tokens, golden["input.targets"], training);
    golden.expect("output.loss", losses.loss, tolerance);
    backward(losses.total());
    golden.expect_gradients(model, tolerance);
  }

 private:
  static void language_model(const GoldenFile& golden, DType dtype, double tolerance) {
    auto model = golden.build<BpTransformer, BpTransformerConfig>(dtype);
    const Tensor tokens = golden["input.tokens"];
    golden.expect("output.logits", model.logits(tokens, training), tolerance);
    const auto losses = model.loss(tokens, golden["input.targets"], {}, training);
    golden.expect("output.loss", losses.loss, tolerance);
    golden.expect("output.total", losses.total(), tolerance);
    backward(losses.total());
    golden.expect_gradients(model, tolerance);
  }

  static void encoder(const GoldenFile& golden, DType dtype, double tolerance) {
    auto model = golden.build<BpEncoder, BpEncoderConfig>(dtype);
    const SourceTokens cut{.tokens = golden["input.tokens"], .lengths = golden["input.lengths"]},
        whole{.tokens = golden["input.tokens"]};
    const Tensor classes = model.class_logits({cut.tokens, cut.lengths}, training),
                 pairs = model.pair_logits(cut, whole, training);
    golden.expect("output.classes", classes, tolerance);
    golden.expect("output.pairs", pairs, tolerance);
    golden.expect("output.logits", model.logits(whole.tokens, training), tolerance);
    const Tensor loss = model.loss(whole.tokens, golden["input.targets"], {}, training).loss;
    golden.expect("output.loss", loss, tolerance);
    const auto mean_square = [](const Tensor& x) {
      return mul(sum(flatten(mul(x, x)), {0}), 1.0 / static_cast<double>(x.numel()));
    };
    backward(add(loss, add(mean_square(classes), mean_square(pairs))));
    golden.expect_gradients(model, tolerance);
  }
};

TEST_P(BpTransformerGoldens, EveryOutputAndGradientInF64) { expect_golden(DType::f64, 1e-10); }
TEST_P(BpTransformerGoldens, InF32) { expect_golden(DType::f32, 2e-5); }
INSTANTIATE_TEST_SUITE_P(Files, BpTransformerGoldens,
                         testing::ValuesIn(golden_names("bp_transformer")), own_name);

}  // namespace
}  // namespace longspan::test
