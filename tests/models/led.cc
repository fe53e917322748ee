// Longformer: LED against the dense oracle and the package, decoding, and conversion.

#include "models/longformer/led.h"

#include <gtest/gtest.h>

#include "autograd/engine.h"
#include "autograd/mode.h"
#include "models/convert.h"
#include "models/evaluate.h"
#include "models/generate.h"
#include "models/longformer/global_tokens.h"
#include "nn/objective.h"
#include "ops/copy.h"
#include "ops/random.h"
#include "ops/shape.h"
#include "tests/harness/model_info.h"
#include "tests/models/costs.h"
#include "tests/models/golden_file.h"

namespace longspan::test {
namespace {

Led small_led(const std::function<void(LedConfig&)>& change = [](LedConfig&) {}) {
  LedConfig c = led_preset("tiny");
  change(c);
  return randomised<Led>(c, Init{.gen = Generator{1}, .dtype = DType::f64}, 0.3, 7);
}

SequenceInputs led_inputs() {
  return {.source = some_tokens(2, 29, 23),
          .lengths = Tensor::from(std::vector<int64_t>{29, 13}, {2}),
          .tokens = some_tokens(2, 11, 23, 5)};
}

TEST(Longformer, DecodingStepByStepIsTeacherForcing) {
  const NoGrad off;
  const Led model = small_led();
  const SequenceInputs in = led_inputs();
  const Tensor logits = model.head(model.forward(in, Pass{}));  // [B, L, V]
  const auto state = model.start_decoding(in);
  for (int64_t t = 0; t < 11; ++t) {
    const Tensor step = model.decode(contiguous(narrow(in.tokens, 1, t, 1)), *state);
    EXPECT_LE(distance(step, contiguous(select(logits, 1, t))), 1e-12) << t;
  }
}

TEST(Longformer, OneBeamIsGreedy) {
  const NoGrad off;
  const Led model = small_led();
  const SequenceInputs in = led_inputs();
  const Tensor start = full({2, 1}, 2, DType::i64);
  const Beams one = beam_search(model, start, model.start_decoding(in), 9, {.beams = 1});
  const auto state = model.start_decoding(in);
  Tensor token = start;
  for (int64_t t = 0; t < 9; ++t) {
    token = unsqueeze(sample(model.decode(token, *state), {.temperature = 0}, Generator{1}), 1);
    EXPECT_EQ(flatten(token).to_vector<int64_t>(),
              contiguous(select(select(one.tokens, 1, 0), 1, t)).to_vector<int64_t>());
  }
  const Beams many = beam_search(model, start, model.start_decoding(in), 9,
                                 {.beams = 4, .length_penalty = 2, .no_repeat_ngram = 2, .end = 3});
  EXPECT_EQ(to_string(many.tokens.shape()), "[2, 4, 9]");
}

TEST(Longformer, PaddingOfTheSourceChangesNoBit) {
  const NoGrad off;
  const Led model = small_led();
  SequenceInputs in = led_inputs();
  const Tensor before = model.forward(in, Pass{});
  in.source = concat({in.source, some_tokens(2, 9, 23, 3)}, 1);
  EXPECT_TRUE(same_bits(model.forward(in, Pass{}), before));
}

TEST(Longformer, LedGradients) {
  Led model = small_led([](LedConfig& c) {
    c.dropout = 0.1f;
    c.label_smoothing = 0.1;
    c.position_offset = 2;
  });
  const SequenceInputs in = led_inputs();
  const Tensor targets = some_tokens(2, 11, 23, 8);
  const Pass pass{.training = true, .gen = Generator{6}};
  EXPECT_EQ(check_parameter_gradients(
                model, [&] { return model.loss(model.forward(in, pass), targets, pass); }),
            "");
}

TEST(Led, StartsFromBart) {
  LedConfig c = led_preset("tiny");
  c.position_offset = 2;
  c.n_max = 40;
  c.n_max_target = 16;
  c.one_sided_window = {40};
  c.globals = GlobalDefault::none;
  Transformer bart(bart_for(c, 16), Init{.dtype = DType::f64});
  randomise(bart, 0.3, 2);
  Led model(c, Init{.dtype = DType::f64});
  start_from(model, bart, 2);
  const NoGrad off;
  const Tensor source = some_tokens(2, 16, 23), tokens = some_tokens(2, 9, 23, 4);
  const Tensor expected = bart.forward({.tokens = tokens, .source = source}, Pass{});
  EXPECT_LE(distance(model.forward({.source = source, .tokens = tokens}, Pass{}), expected), 1e-12);
  // Global tokens with copied projections give the same result as dense attention.
  const Tensor global = global_mask(2, 16, {0, 5});
  EXPECT_LE(distance(model.forward({.source = source, .global = global, .tokens = tokens}, Pass{}),
                     expected),
            1e-12);
}

TEST(Led, IsASequenceModel) {
  const NoGrad off;
  const Led model = small_led();
  const LanguageModel& general = model;
  const auto& writer = need<WritesSequences>(general);
  const SequenceInputs in = led_inputs();
  const SourceTokens source{in.source, in.lengths};
  const Tensor targets = some_tokens(2, 11, 23, 8);
  EXPECT_TRUE(same_bits(writer.sequence_loss(source, in.tokens, targets, Pass{}).loss,
                        model.loss(model.forward(in, Pass{}), targets, Pass{})));
  const Score s = score(general, source, in.tokens, targets);
  EXPECT_EQ(s.count, 22);
  const Tensor first = contiguous(narrow(in.tokens, 1, 0, 1));
  EXPECT_TRUE(same_bits(writer.decode(first, *writer.start_after(source)),
                        model.decode(first, *model.start_decoding(in))));
  EXPECT_EQ(writer.max_source_length(), 48);
  EXPECT_EQ(general.max_length(), 24);
}

TEST(Led, OutlinesTheAttentionOfItsEncoder) {
  for (const GlobalDefault globals : {GlobalDefault::first, GlobalDefault::none}) {
    const Led model = small_led([&](LedConfig& c) { c.globals = globals; });
    const Tensor p = model.attention_map(some_tokens(1, 29, 23), 1);  // [H, L, L]
    const std::vector<float> shares = p.to_vector<float>();
    const AttentionOutline outline = model.attention_outline(1, 29);
    for (int64_t head = 0; head < 2; ++head) {
      std::vector<int> seen(29 * 29, 0);
      count_pairs(outline, head, [&](int64_t i, int64_t j) { ++seen[size_t(i * 29 + j)]; });
      for (size_t i = 0; i < seen.size(); ++i) {
        EXPECT_EQ(seen[i], shares[size_t(head) * seen.size() + i] > 0 ? 1 : 0) << head << " " << i;
      }
    }
  }
}

TEST(Led, ShiftsTargetsToTheRight) {
  const Tensor targets = Tensor::from(std::vector<int64_t>{5, 6, ignored_target, 7, 8, 9}, {2, 3});
  EXPECT_EQ(shifted_right(targets, 2).to_vector<int64_t>(),
            (std::vector<int64_t>{2, 5, 6, 2, 7, 8}));
}

TEST(Led, Rejects) {
  EXPECT_THROW(small_led([](LedConfig& c) { c.one_sided_window = {0}; }), ValueError);
  EXPECT_THROW(small_led([](LedConfig& c) { c.n_head = 3; }), ValueError);
  EXPECT_THROW(small_led([](LedConfig& c) { c.dropout = 1; }), ValueError);
  const Led model = small_led();
  SequenceInputs in = led_inputs();
  in.global = global_mask(2, 5, {0});
  EXPECT_THROW(model.forward(in, Pass{}), ShapeError);
  in.global = {};
  in.source = some_tokens(2, 49, 23);
  EXPECT_THROW(model.forward(in, Pass{}), ValueError);  // beyond the position table
  EXPECT_EQ(ask<ContinuesSequences>(model), nullptr);
}

// A source and a target of the same length.
TEST(Led, Macs) {
  for (const GlobalDefault globals : {GlobalDefault::first, GlobalDefault::none}) {
    LedConfig c = led_preset("tiny");
    c.globals = globals;
    c.one_sided_window = {3, 2};
    EXPECT_EQ(forward_macs(Led(c, Init{.device = meta_device}), 21), macs_of(c, 21));
  }
}

class LedGoldens : public testing::TestWithParam<std::string> {
 public:
  static void expect_golden(DType dtype, const std::string& prefix, double tolerance) {
    const GoldenFile golden("long_documents", "led_" + GetParam());
    Led model = golden.build<Led, LedConfig>(dtype);
    const Tensor hidden = model.forward({.source = golden["input.source"],
                                         .lengths = golden["input.lengths"],
                                         .global = golden["input.global"],
                                         .tokens = golden["input.tokens"]},
                                        training);
    golden.expect(prefix + "output.hidden", hidden, tolerance);
    golden.expect(prefix + "output.logits", model.head(hidden), tolerance);
    const Tensor loss = model.loss(hidden, golden["input.targets"], training);
    golden.expect(prefix + "output.loss", loss, tolerance);
    backward(loss);
    golden.expect_gradients(model, tolerance, prefix);
  }
};

TEST_P(LedGoldens, OracleInF64) { expect_golden(DType::f64, "", 1e-11); }
TEST_P(LedGoldens, OracleInF32) { expect_golden(DType::f32, "", 1e-5); }
// The package computes in f32 too, so both sides round.
TEST_P(LedGoldens, TransformersInF32) { expect_golden(DType::f32, "package.", 2e-5); }

INSTANTIATE_TEST_SUITE_P(Longformer, LedGoldens,
                         testing::Values("first_token", "ragged", "no_globals"), own_name);

}  // namespace
}  // namespace longspan::test
