// Longformer: Longformer against the dense oracle and the package, and the properties of its
// windows.

#include "models/longformer/longformer.h"

#include <gtest/gtest.h>

#include "autograd/engine.h"
#include "autograd/mode.h"
#include "models/blockbert/blockbert.h"
#include "models/convert.h"
#include "models/longformer/global_tokens.h"
#include "nn/attention/multi_head.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/loss.h"
#include "ops/matmul.h"
#include "ops/patterns/pairs.h"
#include "ops/patterns/window.h"
#include "ops/random.h"
#include "ops/shape.h"
#include "tests/harness/messages.h"
#include "tests/harness/model_info.h"
#include "tests/models/costs.h"
#include "tests/models/golden_file.h"

namespace longspan::test {
namespace {

// ---- The table that tests every model. ----

ModelInfo longformer_info(const std::string& name,
                          const std::function<void(LongformerConfig&)>& change) {
  LongformerConfig c = longformer_preset("tiny");
  c.init_std = 0.3;
  c.tie_embedding = false;
  change(c);
  ModelInfo m = entry_of<Longformer>(name, c);
  m.sees = [c](int64_t i, int64_t j) {
    if (c.globals == GlobalDefault::first && (i == 0 || j == 0)) return true;
    const int64_t w = c.one_sided_window[0], s = c.dilation[0], distance = std::abs(i - j);
    const bool plain = s == 1 || c.dilated_heads < c.n_head;
    return (plain && distance <= w) || (distance % s == 0 && distance <= w * s);
  };
  m.macs = [c](int64_t l) { return macs_of(c, l); };
  m.task = period_three;
  m.masked = true;
  m.decodes = false;
  m.steps = 400;
  return m;
}

const RegisteredModel longformer_window =
    longformer_info("longformer_window", [](LongformerConfig&) {});
const RegisteredModel longformer_first_token_global = [] {
  ModelInfo m = longformer_info("longformer_first_token_global", [](LongformerConfig& c) {
    c.one_sided_window = {2};
    c.globals = GlobalDefault::first;
    c.position_offset = 2;
    c.token_types = 1;
  });
  m.steps = 800;  // with 400, rounding decides whether it learns
  return m;
}();
const RegisteredModel longformer_one_head_dilated =
    longformer_info("longformer_one_head_dilated", [](LongformerConfig& c) {
      c.one_sided_window = {1};
      c.dilation = {3};
      c.dilated_heads = 1;
    });

// ---- One layer. ----

constexpr int64_t kLongWidth = 16, kLongHeads = 2;

LongformerAttention layer(int64_t reach, int64_t dilation = 1, int64_t dilated_heads = kLongHeads) {
  LongformerAttention a({.d_model = kLongWidth,
                         .n_head = kLongHeads,
                         .one_sided_window = reach,
                         .dilation = dilation,
                         .dilated_heads = dilated_heads},
                        Init{.dtype = DType::f64});
  randomise(a, 0.3, 11);
  return a;
}

Tensor states(int64_t batch, int64_t length) {
  return normal({batch, length, kLongWidth}, Generator{3}, 0.0, 1.0, DType::f64);
}

/// Computes dense attention with the same sliding projections.
Tensor dense_multi_head(LongformerAttention& a, const Tensor& x, const Tensor& lengths = {}) {
  MultiHead m({.d_model = kLongWidth, .n_head = kLongHeads, .qkv_bias = true, .out_bias = true}, {},
              Init{.dtype = DType::f64});
  for (NamedTensor& p : named_parameters(m)) {
    assign(p.tensor, parameter(a, p.name).to_vector<double>());
  }
  LayerContext ctx;
  ctx.pattern = with_lengths(patterns::dense(), lengths, lengths);
  return m.forward(x, ctx, Pass{}).y;
}

LayerContext with_globals(int64_t batch, int64_t length, const std::vector<int64_t>& positions) {
  LayerContext ctx;
  ctx.own.set(global_tokens(global_mask(batch, length, positions), {}));
  return ctx;
}

TEST(Longformer, AWindowOverAllIsDense) {
  const NoGrad off;
  for (const int64_t length : {1, 2, 17, 65}) {
    LongformerAttention a = layer(std::max<int64_t>(length - 1, 1));
    const Tensor x = states(2, length);
    EXPECT_LE(distance(a.forward(x, LayerContext{}, Pass{}).y, dense_multi_head(a, x)), 1e-12)
        << length;
  }
}

TEST(Longformer, AllGlobalWithEqualProjectionsIsDense) {
  const NoGrad off;
  LongformerAttention a = layer(1);
  copy_global_projections(a);
  const Tensor x = states(2, 23);
  std::vector<int64_t> all;
  for (int64_t i = 0; i < 23; ++i) all.push_back(i);
  EXPECT_LE(distance(a.forward(x, with_globals(2, 23, all), Pass{}).y, dense_multi_head(a, x)),
            1e-12);
  // A window that covers everything, with some global tokens as well.
  LongformerAttention wide = layer(30);
  copy_global_projections(wide);
  EXPECT_LE(
      distance(wide.forward(x, with_globals(2, 23, {0, 7}), Pass{}).y, dense_multi_head(wide, x)),
      1e-12);
}

TEST(Longformer, PairsAreTheClosedFormulas) {
  EXPECT_EQ(patterns::window_pairs(4096, 256), 2'035'456);
  EXPECT_EQ(attended_pairs(patterns::window_and_globals(101, 7, {1, 2}, {}), 2, 2, 101, 101),
            2 * (patterns::window_and_global_pairs(101, 7, 1, {}) +
                 patterns::window_and_global_pairs(101, 7, 2, {})));
  for (const int64_t length : {1, 2, 3, 47, 48, 49, 97, 130}) {
    for (const int64_t reach : {1, 3, 60}) {
      for (const int64_t dilation : {1, 2, 5}) {
        for (const std::vector<int64_t>& globals :
             {std::vector<int64_t>{}, {0}, {0, 1, 2}, {0, length / 2, length - 1}}) {
          std::vector<int64_t> g = globals;
          std::erase_if(g, [&](int64_t p) { return p >= length; });
          g.erase(std::unique(g.begin(), g.end()), g.end());
          int64_t brute = 0;
          const auto is_global = [&](int64_t p) { return std::count(g.begin(), g.end(), p) > 0; };
          for (int64_t i = 0; i < length; ++i) {
            for (int64_t j = 0; j < length; ++j) {
              const int64_t d = std::abs(i - j);
              brute += is_global(i) || is_global(j) || (d % dilation == 0 && d <= reach * dilation);
            }
          }
          const std::string at = std::to_string(length) + " " + std::to_string(reach) + " " +
                                 std::to_string(dilation) + " " + std::to_string(g.size());
          EXPECT_EQ(patterns::window_and_global_pairs(length, reach, dilation, g), brute) << at;
        }
      }
    }
  }
  const int64_t l = 100, w = 4, g = 5;  // the formula if the global tokens are a prefix
  EXPECT_EQ(patterns::window_and_global_pairs(l, w, 1, {0, 1, 2, 3, 4}),
            patterns::window_pairs(l - g, w) + (l - g) * g + g * l);
}

TEST(Longformer, PaddingChangesNoBit) {
  const NoGrad off;
  LongformerConfig c = longformer_preset("tiny");
  c.dilation = {1, 2};
  c.dilated_heads = 1;
  Longformer model(c, Init{.gen = Generator{1}});
  randomise(model, 0.3, 5);
  const Tensor tokens = some_tokens(1, 23, 18);
  const Tensor global = global_mask(1, 23, {0, 9});
  const Tensor alone = model.forward({.tokens = tokens, .global = global}, Pass{});
  const Tensor lengths = Tensor::from(std::vector<int64_t>{23}, {1});
  for (const int64_t more : {1, 9, 40}) {
    // The content of the padding, global marks included, has no effect.
    const Tensor padded = concat({tokens, some_tokens(1, more, 18, 77)}, 1);
    const Tensor marks = concat({global, full({1, more}, 1, DType::u8)}, 1);
    const Tensor y = model.forward({.tokens = padded, .lengths = lengths, .global = marks}, Pass{});
    EXPECT_TRUE(same_bits(contiguous(narrow(y, 1, 0, 23)), alone)) << more;
  }
}

TEST(Longformer, ReceptiveFieldGrowsByTheWindowALayer) {
  for (const int64_t s : {1, 2}) {
    LongformerConfig c = longformer_preset("tiny");
    c.n_layer = 3;
    c.one_sided_window = {2};
    c.dilation = {s};
    Longformer model(c, Init{.dtype = DType::f64});
    randomise(model, 0.3, 9);
    const NoGrad off;
    const Tensor tokens = some_tokens(1, 33, 18);
    const Tensor before = model.forward({.tokens = tokens}, Pass{});
    const int64_t changed = 15;
    std::vector<int64_t> ids = cast(tokens, DType::i64).to_vector<int64_t>();
    ids[changed] = (ids[changed] + 1) % 18;
    const Tensor after = model.forward({.tokens = Tensor::from(ids, {1, 33})}, Pass{});
    for (int64_t i = 0; i < 33; ++i) {
      const int64_t d = std::abs(i - changed);
      const bool reached = d % s == 0 && d <= 3 * 2 * s;
      EXPECT_EQ(distance(select(before, 1, i), select(after, 1, i)) > 0, reached) << s << " " << i;
    }
  }
}

TEST(Longformer, DilationTwoIsTheWindowOnEitherHalf) {
  const NoGrad off;
  LongformerAttention two = layer(3, 2), one = layer(3);
  for (const int64_t length : {1, 2, 37, 110}) {
    const Tensor x = states(2, length);
    const Tensor y = two.forward(x, LayerContext{}, Pass{}).y;
    for (int64_t half = 0; half < std::min<int64_t>(2, length); ++half) {
      const Tensor expected =
          one.forward(contiguous(slice(x, 1, half, to_end, 2)), LayerContext{}, Pass{}).y;
      EXPECT_LE(distance(slice(y, 1, half, to_end, 2), expected), 1e-12) << length;
    }
  }
}

TEST(Longformer, AGlobalKeyInsideTheWindowCountsOnce) {
  const NoGrad off;
  LongformerAttention a = layer(40);
  const Tensor x = states(1, 31), y = a.forward(x, with_globals(1, 31, {12}), Pass{}).y;
  const Tensor all = dense_multi_head(a, x);
  for (int64_t i = 0; i < 31; ++i) {
    const double d = distance(select(y, 1, i), select(all, 1, i));
    if (i == 12) {
      EXPECT_GT(d, 1e-3);  // because of its separate projections
    } else {
      EXPECT_LE(d, 1e-12) << i;
    }
  }
}

TEST(Longformer, PositionTablesRepeat) {
  const Tensor old = normal({2 + 5, 3}, Generator{1}, 0.0, 1.0, DType::f64);
  const Tensor extended = extended_positions(old, 2, 13);
  ASSERT_EQ(to_string(extended.shape()), "[15, 3]");
  for (int64_t r = 0; r < 15; ++r) {
    const int64_t from = r < 2 ? r : 2 + (r - 2) % 5;
    EXPECT_TRUE(same_bits(select(extended, 0, r), select(old, 0, from))) << r;
  }
  EXPECT_THROW(extended_positions(old, 7, 4), ShapeError);
  EXPECT_THROW(extended_positions(old, 2, 0), ValueError);
}

TEST(Longformer, GradientsWithGlobalTokens) {
  LongformerConfig c = longformer_preset("tiny");
  c.dropout = 0.1f;
  c.dilation = {1, 2};
  c.dilated_heads = 1;
  Longformer model(c, Init{.dtype = DType::f64});
  randomise(model, 0.3, 4);
  const Tensor tokens = some_tokens(2, 13, 18), targets = some_tokens(2, 13, 18, 8);
  const Tensor global = Tensor::from(std::vector<uint8_t>{1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0,
                                                          0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
                                     {2, 13});
  const Tensor lengths = Tensor::from(std::vector<int64_t>{13, 9}, {2});
  const Pass pass{.training = true, .gen = Generator{6}};
  EXPECT_EQ(check_parameter_gradients(
                model,
                [&] {
                  const Tensor h =
                      model.forward({.tokens = tokens, .lengths = lengths, .global = global}, pass);
                  return model.loss(narrow(h, 1, 0, 9), contiguous(narrow(targets, 1, 0, 9)));
                }),
            "");
}

TEST(Longformer, NoGlobalTokensLeaveTheirProjectionsOut) {
  Longformer model(longformer_preset("tiny"), Init{});
  const Tensor tokens = some_tokens(2, 9, 18);
  backward(model.loss(tokens, tokens, {}, Pass{}).loss);
  EXPECT_FALSE(grad(parameter(model, "layers.0.attention.q_global.weight")));
  EXPECT_TRUE(grad(parameter(model, "layers.0.attention.q.weight")));
}

TEST(Longformer, Rejects) {
  const auto build = [](const std::function<void(LongformerConfig&)>& change) {
    LongformerConfig c = longformer_preset("tiny");
    change(c);
    return Longformer(c, Init{});
  };
  const auto says = [&](const std::function<void(LongformerConfig&)>& change,
                        const std::string& part) {
    const std::string message = message_of<ValueError>([&] { build(change); });
    EXPECT_TRUE(contains(message, part)) << message;
  };
  says([](auto& c) { c.one_sided_window = {0}; }, "one_sided_window is 0; expected 1 to");
  says([](auto& c) { c.one_sided_window = {3, -1}; }, "one_sided_window is -1; expected 1 to");
  says([](auto& c) { c.one_sided_window = {}; }, "one_sided_window is empty");
  says([](auto& c) { c.one_sided_window = {int64_t{1} << 40}; }, "expected 1 to 2147483647");
  says([](auto& c) { c.one_sided_window = {1 << 30}, c.dilation = {4}; }, "1 to 536870911");
  says([](auto& c) { c.dilation = {0}; }, "dilation is 0; expected 1 to");
  for (const int64_t dilation : {1, 2}) {  // whether or not the layer is dilated
    says([=](auto& c) { c.dilation = {dilation}, c.dilated_heads = 3; },
         "dilated_heads is 3; expected 0 to n_head = 2");
    says([=](auto& c) { c.dilation = {dilation}, c.dilated_heads = -2; }, "dilated_heads is -2");
  }
  build([](LongformerConfig& c) { c.n_head = 1, c.dilation = {2}; });  // all heads may be dilated
  build([](LongformerConfig& c) { c.one_sided_window = {2'147'483'647}; });
  EXPECT_TRUE(contains(message_of<ValueError>([] { global_mask(1, 4, {4}); }), "4"));
  EXPECT_THROW(patterns::window_and_globals(4, 1, {1}, {{4}}), ValueError);
  EXPECT_THROW(patterns::window_and_globals(4, 1, {1}, {{2, 1}}), ValueError);

  const Longformer model = build([](LongformerConfig& c) { c.classes = 2; });
  const Tensor tokens = some_tokens(2, 5, 18);
  EXPECT_THROW(model.forward({.tokens = tokens}, Pass{}), ValueError);  // which are global?
  EXPECT_THROW(model.forward({.tokens = tokens, .global = global_mask(2, 4, {0})}, Pass{}),
               ShapeError);
  EXPECT_EQ(
      model
          .classify(model.forward({.tokens = tokens, .global = global_mask(2, 5, {0})}, Pass{}),
                    Pass{})
          .dim(1),
      2);
}

// ---- Conversion. ----

/// A window that covers everything and no global tokens: RoBERTa's encoder.
TEST(Longformer, StartsFromAModelWithFullAttention) {
  LongformerConfig c = longformer_preset("tiny");
  c.position_offset = 2;
  c.n_max = 16;
  c.one_sided_window = {16};
  Longformer base(c, Init{.dtype = DType::f64});
  randomise(base, 0.3, 2);
  LongformerConfig longer = c;
  longer.n_max = 41;
  Longformer model(longer, Init{.dtype = DType::f64});
  start_from(model, base, 2);
  const NoGrad off;
  const Tensor tokens = some_tokens(2, 16, 18);
  EXPECT_LE(distance(model.logits(tokens, Pass{}), base.logits(tokens, Pass{})), 1e-12);
  // NewPositions::keep leaves the new rows as they are and preserves the outputs.
  Longformer kept(longer, Init{.dtype = DType::f64});
  const Tensor own = contiguous(narrow(parameter(kept, "embed.position.weight"), 0, 18, 25));
  start_from(kept, base, 2, {.beyond = NewPositions::keep});
  EXPECT_LE(distance(kept.logits(tokens, Pass{}), base.logits(tokens, Pass{})), 1e-12);
  EXPECT_TRUE(
      same_bits(contiguous(narrow(parameter(kept, "embed.position.weight"), 0, 18, 25)), own));
  // Refuses a base model that lacks layers or has another width.
  longer.n_layer = 3;
  Longformer deeper(longer, Init{.dtype = DType::f64});
  const std::string lacks = message_of<ValueError>([&] { start_from(deeper, base, 2); });
  EXPECT_TRUE(contains(lacks, "lacks layers.2.norm1.weight, layers.2.norm1.bias, ")) << lacks;
  EXPECT_TRUE(contains(lacks, "and 14 more")) << lacks;
  longer.n_layer = 2;
  longer.d_ff = 8;
  Longformer narrower(longer, Init{.dtype = DType::f64});
  EXPECT_THROW(start_from(narrower, base, 2), ShapeError);
}

TEST(Longformer, StartsWithHeadsAndTokensOfItsOwn) {
  LongformerConfig c = longformer_preset("tiny");
  Longformer base(c, Init{.dtype = DType::f64});
  randomise(base, 0.3, 2);
  LongformerConfig asked = c;
  asked.mlm_head = false;
  asked.vocab = 20;
  asked.choice_head = asked.span_head = true;
  asked.classes = 3;
  Longformer model(asked, Init{.dtype = DType::f64});
  const Tensor own = contiguous(narrow(parameter(model, "embed.token.weight"), 0, 18, 2));
  const Tensor head = parameter(model, "choice.weight").detach();
  const std::vector<std::string> drawn = start_from(model, base, 0);
  EXPECT_NE(std::find(drawn.begin(), drawn.end(), "choice.weight"), drawn.end());
  EXPECT_EQ(drawn.size(), 7u);  // weight and bias of pool, classifier and spans; weight of choice
  EXPECT_TRUE(same_bits(parameter(model, "choice.weight"), head));
  const Tensor tokens = parameter(model, "embed.token.weight");
  EXPECT_TRUE(same_bits(contiguous(narrow(tokens, 0, 18, 2)), own));
  EXPECT_TRUE(
      same_bits(contiguous(narrow(tokens, 0, 0, 18)), parameter(base, "embed.token.weight")));
  EXPECT_TRUE(same_bits(parameter(model, "layers.1.norm1.weight"),
                        parameter(base, "layers.1.norm1.weight")));
  // A base model that has the heads passes them on. A base model with fewer tokens is an error.
  randomise(model, 0.3, 5);
  Longformer again(asked, Init{.dtype = DType::f64});
  EXPECT_TRUE(start_from(again, model, 0).empty());
  EXPECT_TRUE(same_bits(parameter(again, "choice.weight"), parameter(model, "choice.weight")));
  EXPECT_THROW(start_from(base, model, 0), Error);
}

TEST(Longformer, StartsWithTheGlobalProjectionsThatThereAre) {
  LongformerConfig c = longformer_preset("tiny");
  c.position_offset = 2;
  BlockBertConfig plain = blockbert_preset("tiny");  // one block, that is full attention
  static_cast<EncoderConfig&>(plain) = c;
  plain.n_block = 1;
  plain.heads_per_shift = {c.n_head};
  BlockBert base(plain, Init{.dtype = DType::f64});
  randomise(base, 0.3, 2);
  Longformer trained(c, Init{.dtype = DType::f64});
  start_from(trained, base, 2);
  const auto name = [](const char* kind) { return std::string("layers.1.attention.") + kind; };
  for (const char* kind : {"q", "k", "v"}) {
    EXPECT_TRUE(same_bits(parameter(trained, name(kind) + "_global.weight"),
                          parameter(base, name(kind) + ".weight")));
  }
  randomise(trained, 0.3, 3);  // emulates training with global tokens
  Longformer again(c, Init{.dtype = DType::f64});
  start_from(again, trained, 2);
  for (const char* kind : {"q", "k", "v"}) {
    EXPECT_TRUE(same_bits(parameter(again, name(kind) + "_global.weight"),
                          parameter(trained, name(kind) + "_global.weight")));
  }
}

// ---- Files of other implementations. ----

class LongformerGoldens : public testing::TestWithParam<std::string> {
 public:
  static void expect_golden(DType dtype, const std::string& prefix, double tolerance) {
    const GoldenFile golden("long_documents", "longformer_" + GetParam());
    Longformer model = golden.build<Longformer, LongformerConfig>(dtype);
    expect_golden_encoder(golden, model, tolerance, prefix);
  }
};

TEST_P(LongformerGoldens, OracleInF64) { expect_golden(DType::f64, "", 1e-11); }
TEST_P(LongformerGoldens, OracleInF32) { expect_golden(DType::f32, "", 1e-5); }

INSTANTIATE_TEST_SUITE_P(Longformer, LongformerGoldens,
                         testing::Values("several_globals", "ragged", "no_globals", "question",
                                         "dilated", "one_token"),
                         own_name);

/// Compares with the package, which has no dilation.
class LongformerPackage : public LongformerGoldens {};

TEST_P(LongformerPackage, TransformersInF32) { expect_golden(DType::f32, "package.", 1e-5); }

INSTANTIATE_TEST_SUITE_P(Longformer, LongformerPackage,
                         testing::Values("several_globals", "ragged", "no_globals", "question",
                                         "one_token"),
                         own_name);

}  // namespace
}  // namespace longspan::test
