// Longformer: the causal model's windows, dilations and relative positions.

#include "models/longformer/longformer_lm.h"

#include <gtest/gtest.h>

#include <cmath>

#include "autograd/mode.h"
#include "models/all/registry.h"
#include "models/convert.h"
#include "models/generate.h"
#include "nn/attention/relative.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/matmul.h"
#include "ops/patterns/pairs.h"
#include "ops/random.h"
#include "ops/shape.h"
#include "ops/softmax.h"
#include "tests/harness/messages.h"
#include "tests/harness/model_info.h"
#include "tests/models/costs.h"
#include "tests/models/small_models.h"

namespace longspan::test {
namespace {

ModelInfo longformer_lm_info(const std::string& name,
                             const std::function<void(LongformerLMConfig&)>& change) {
  LongformerLMConfig c = longformer_lm_preset("tiny");
  c.init_std = 0.3;
  c.tie_embedding = false;
  change(c);
  ModelInfo m = entry_of<LongformerLM>(name, c);
  m.sees = [c](int64_t i, int64_t j) {
    const int64_t w = c.window[0], s = c.dilation[0], d = i - j;
    if (d < 0) return false;
    const bool plain = s == 1 || c.dilated_heads < c.n_head;
    return (plain && d <= w) || (d % s == 0 && d <= w * s);
  };
  m.macs = [c](int64_t l) { return macs_of(c, l); };
  m.task = successor;
  m.counted_from = 1;
  return m;
}

const RegisteredModel longformer_lm_window =
    longformer_lm_info("longformer_lm_window", [](LongformerLMConfig& c) {
      c.dilation = {1};
      c.emb_scale = false;
    });
const RegisteredModel longformer_lm_dilated_head =
    longformer_lm_info("longformer_lm_dilated_head", [](LongformerLMConfig& c) {
      c.window = {2};
      c.dilation = {2};
    });

constexpr int64_t kRelativeWidth = 16, kRelativeHeads = 2;

/// Computes the formula of the class with a dense matrix. `seen` [L, L] marks the visible keys.
Tensor by_the_formula(RelativeMultiHead& a, const Tensor& u, const Tensor& v, const Tensor& x,
                      const std::vector<std::vector<bool>>& seen) {
  const int64_t n = x.dim(1), d = kRelativeWidth / kRelativeHeads;
  const auto heads = [&](const Tensor& y) {
    return contiguous(transpose(unflatten(y, -1, kRelativeHeads, d), 1, 2)).to_vector<double>();
  };
  const Projected p = a.project(x);
  const auto q = contiguous(p.q).to_vector<double>(), k = contiguous(p.k).to_vector<double>(),
             values = contiguous(p.v).to_vector<double>();
  const Tensor table = sinusoid(0, n, kRelativeWidth, SinusoidLayout::halves, DType::f64, Device{});
  const auto r = heads(unsqueeze(linear(table, parameter(a, "relative.weight"), {}), 0));
  const auto us = u.to_vector<double>(), vs = v.to_vector<double>();
  std::vector<double> out(static_cast<size_t>(kRelativeHeads * n * d), 0.0);
  const auto at = [&](int64_t h, int64_t i) { return static_cast<size_t>((h * n + i) * d); };
  for (int64_t h = 0; h < kRelativeHeads; ++h) {
    for (int64_t i = 0; i < n; ++i) {
      std::vector<double> e(static_cast<size_t>(n), 0.0);
      double sum = 0;
      for (int64_t j = 0; j <= i; ++j) {
        if (!seen[static_cast<size_t>(i)][static_cast<size_t>(j)]) continue;
        double s = 0;
        for (size_t c = 0; c < static_cast<size_t>(d); ++c) {
          const size_t hc = static_cast<size_t>(h * d) + c;
          s += (q[at(h, i) + c] + us[hc]) * k[at(h, j) + c];
          s += (q[at(h, i) + c] + vs[hc]) * r[at(h, i - j) + c];
        }
        sum += e[static_cast<size_t>(j)] = std::exp(s / std::sqrt(static_cast<double>(d)));
      }
      for (int64_t j = 0; j <= i; ++j) {
        for (size_t c = 0; c < static_cast<size_t>(d); ++c) {
          out[at(h, i) + c] += e[static_cast<size_t>(j)] / sum * values[at(h, j) + c];
        }
      }
    }
  }
  return a.merge(Tensor::from(out, {1, kRelativeHeads, n, d}));
}

TEST(Longformer, RelativePositionsAreThoseOfTransformerXL) {
  const NoGrad off;
  for (const int64_t dilation : {1, 3}) {
    const int64_t w = 4, n = 23, reach = w * dilation;
    const Init init{.dtype = DType::f64};
    const Tensor u =
        init.at("u").make({kRelativeHeads, kRelativeWidth / kRelativeHeads}, Scheme::normal(0.5));
    const Tensor v =
        init.at("v").make({kRelativeHeads, kRelativeWidth / kRelativeHeads}, Scheme::normal(0.5));
    RelativeMultiHead a({.d_model = kRelativeWidth, .n_head = kRelativeHeads}, reach, u, v, init);
    randomise(a, 0.3, 3);
    const Tensor x = normal({1, n, kRelativeWidth}, Generator{5}, 0.0, 1.0, DType::f64);
    std::vector<std::vector<bool>> seen(static_cast<size_t>(n),
                                        std::vector<bool>(static_cast<size_t>(n)));
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j <= i; ++j) {
        seen[static_cast<size_t>(i)][static_cast<size_t>(j)] =
            (i - j) % dilation == 0 && i - j <= reach;
      }
    }
    LayerContext ctx;
    ctx.own.set(Distances{DistanceTable(reach, kRelativeWidth, init).rows(n)});
    ctx.pattern = dilation == 1 ? patterns::local(w + 1) : patterns::dilated(w, 0, dilation);
    EXPECT_LE(distance(a.forward(x, ctx, Pass{}).y, by_the_formula(a, u, v, x, seen)), 1e-12);
  }
}

TEST(Longformer, ACausalWindowOverAllIsCausal) {
  const NoGrad off;
  LongformerLMConfig c = longformer_lm_preset("tiny");
  c.dilation = {1};
  c.window = {11};
  LongformerLM narrow_one(c, Init{.dtype = DType::f64});
  randomise(narrow_one, 0.3, 1);
  c.window = {500};
  LongformerLM wide(c, Init{.dtype = DType::f64});
  start_from(wide, narrow_one, 0);
  const Tensor tokens = some_tokens(2, 12, 17);
  EXPECT_LE(distance(narrow_one.logits(tokens, Pass{}), wide.logits(tokens, Pass{})), 1e-12);
}

TEST(Longformer, CausalPairs) {
  for (const int64_t n : {1, 5, 48, 97}) {
    for (const int64_t s : {1, 2, 3}) {
      int64_t expected = 0;
      for (int64_t i = 0; i < n; ++i) expected += std::min<int64_t>(i / s, 7) + 1;
      const AttentionPattern p = patterns::dilated(7, 0, s);
      EXPECT_EQ(attended_pairs(p, 1, 1, n, n), expected) << n << " " << s;
    }
  }
}

TEST(Longformer, GradientsOfTheLanguageModel) {
  LongformerLMConfig c = longformer_lm_preset("tiny");
  c.dropout = 0.1f;
  LongformerLM model(c, Init{.dtype = DType::f64});
  randomise(model, 0.3, 4);
  for (const char* name : {"u", "v", "layers.1.attention.relative.weight"}) parameter(model, name);
  const Tensor tokens = some_tokens(2, 11, 17), targets = some_tokens(2, 11, 17, 8);
  const Pass pass{.training = true, .gen = Generator{6}};
  EXPECT_EQ(
      check_parameter_gradients(model, [&] { return model.loss(tokens, targets, {}, pass).loss; }),
      "");
}

TEST(Longformer, BaseModelsHaveThePublishedSizes) {
  // Table 3 has 41M and 102M. Our vocabulary has 256 bytes.
  EXPECT_NEAR(static_cast<double>(find_model("longformer_lm:base")->parameters()), 41e6, 0.5e6);
  EXPECT_NEAR(static_cast<double>(find_model("longformer_lm:large")->parameters()), 102e6, 1e6);
}

TEST(Longformer, PhasesKeepTheParameters) {
  const NoGrad off;
  const LongformerLMConfig c = longformer_lm_preset("tiny");
  LongformerLM first(c, Init{.dtype = DType::f64});
  randomise(first, 0.3, 1);
  LongformerLM second(with_windows_times(c, 2), Init{.gen = Generator{9}, .dtype = DType::f64});
  EXPECT_EQ(second.config().window, (std::vector<int64_t>{6}));
  start_from(second, first, 0);
  const Tensor tokens = some_tokens(1, 4, 17);  // shorter than either window
  const auto logits = [&](const LongformerLM& m) { return m.logits(tokens, Pass{}); };
  EXPECT_LE(distance(logits(first), logits(second)), 1e-12);
  EXPECT_TRUE(same_bits(parameter(first, "layers.1.attention.relative.weight"),
                        parameter(second, "layers.1.attention.relative.weight")));
}

TEST(Longformer, LanguageModelRejects) {
  const auto build = [](const std::function<void(LongformerLMConfig&)>& change) {
    LongformerLMConfig c = longformer_lm_preset("tiny");
    change(c);
    return LongformerLM(c, Init{});
  };
  const auto says = [&](const std::function<void(LongformerLMConfig&)>& change,
                        const std::string& part) {
    const std::string message = message_of<ValueError>([&] { build(change); });
    EXPECT_TRUE(contains(message, part)) << message;
  };
  says([](auto& c) { c.window = {0}; }, "window is 0; expected 1 to");
  says([](auto& c) { c.window = {}; }, "window is empty");
  says([](auto& c) { c.window = {int64_t{1} << 60}; }, "expected 1 to");
  says([](auto& c) { c.dilation = {-1}; }, "dilation is -1; expected 1 to");
  says([](auto& c) { c.dilation = {1}, c.dilated_heads = 3; },
       "dilated_heads is 3; expected 0 to n_head = 2");
  says([](auto& c) { c.n_head = 3; }, "n_head 3");
  EXPECT_THROW(with_windows_times(longformer_lm_preset("tiny"), int64_t{1} << 62), ValueError);
  EXPECT_THROW(with_windows_times(longformer_lm_preset("tiny"), 0), ValueError);
}

// The memory of a window depends on the distances in the sequence, not on the window's size.
TEST(Longformer, HugeWindowsAreCausal) {
  const NoGrad off;
  LongformerLMConfig c = longformer_lm_preset("tiny");
  c.n_layer = c.n_head = 1;
  c.dilation = {1};
  c.window = {2'000'000'000};
  const LongformerLM huge(c, Init{});
  c.window = {16'399};
  const LongformerLM exact(c, Init{});
  const Tensor tokens = some_tokens(1, 16'400, 17);  // more distances than the model stores
  EXPECT_TRUE(same_bits(huge.logits(tokens, Pass{}), exact.logits(tokens, Pass{})));
}

TEST(BeamSearch, FollowsAWindowedModel) {
  const LongformerLM model(longformer_lm_preset("tiny"), Init{.gen = Generator{3}});
  const Tensor prompt = some_tokens(2, 5, 17);
  const Tensor greedy = generate(model, prompt, 9, {.temperature = 0}, Generator{1});
  const Beams one = beam_search(model, prompt, model.start_decoding(2), 9, {.beams = 1});
  EXPECT_EQ(flatten(one.tokens).to_vector<int64_t>(), flatten(greedy).to_vector<int64_t>());
  const Beams three = beam_search(model, prompt, model.start_decoding(2), 9, {.beams = 3});
  EXPECT_EQ(to_string(three.tokens.shape()), "[2, 3, 9]");
}

TEST(LongformerLM, PhasesDoubleOrCostTheSame) {
  const LongformerLMConfig c = longformer_lm_preset("tiny");
  const TrainingPhase first{.windows = 1, .length = 8, .batch = 4, .steps = 90, .lr = 0.5};
  const std::vector<TrainingPhase> staged = staged_phases(first, 4);
  ASSERT_EQ(staged.size(), 4u);
  const int64_t batch[] = {4, 2, 1, 1}, steps[] = {90, 30, 15, 10};
  for (size_t p = 0; p < 4; ++p) {
    EXPECT_EQ(staged[p].windows, int64_t{1} << p);
    EXPECT_EQ(staged[p].length, int64_t{8} << p);
    EXPECT_EQ(staged[p].batch, batch[p]);
    EXPECT_EQ(staged[p].steps, steps[p]);
    EXPECT_EQ(staged[p].lr, 0.5 / static_cast<double>(int64_t{1} << p));
  }
  const std::vector<TrainingPhase> direct = direct_phases(c, first, 4);
  ASSERT_EQ(direct.size(), 4u);
  TrainingPhase step = staged.back();
  step.steps = 1;
  const double one = phase_macs(c, step);
  EXPECT_EQ(one, static_cast<double>(macs_of(with_windows_times(c, 8), 64, step.batch)));
  for (size_t p = 0; p < 4; ++p) {
    EXPECT_EQ(direct[p].length, 64);
    EXPECT_EQ(direct[p].windows, 8);
    EXPECT_EQ(direct[p].lr, staged[p].lr);
    EXPECT_LE(std::abs(phase_macs(c, direct[p]) - phase_macs(c, staged[p])), one / 2);
  }
  EXPECT_EQ(direct[3].steps, staged[3].steps);
  EXPECT_THROW(staged_phases(first, 0), ValueError);
  EXPECT_THROW(staged_phases(first, 21), ValueError);
}

// The positions are projected once for a batch, all else once for each sample.
TEST(LongformerLM, MacsOfABatch) {
  const LongformerLMConfig c = longformer_lm_preset("tiny");
  const LongformerLM model(c, Init{.device = meta_device});
  for (const int64_t length : {1, 3, 40}) {
    for (const int64_t batch : {1, 3}) {
      EXPECT_EQ(forward_macs(model, length, batch), macs_of(c, length, batch));
    }
  }
}

}  // namespace
}  // namespace longspan::test
