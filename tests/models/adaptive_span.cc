// Adaptive-Span: spans that heads learn, what their keys cost, and files that another
// implementation made.

#include "models/adaptive_span/adaptive_span.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "autograd/engine.h"
#include "autograd/mode.h"
#include "data/memory_tasks.h"
#include "ops/copy.h"
#include "ops/cost.h"
#include "ops/elementwise.h"
#include "ops/matmul.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/shape.h"
#include "ops/softmax.h"
#include "tests/harness/messages.h"
#include "tests/models/costs.h"
#include "tests/models/segments.h"
#include "train/optimizer.h"

namespace longspan::test {
namespace {

using AdaptiveSpanChange = std::function<void(AdaptiveSpanConfig&)>;

ModelInfo adaptive_span_info(const std::string& name, const AdaptiveSpanChange& change) {
  AdaptiveSpanConfig c = adaptive_span_preset("tiny");
  c.vocab = 17;
  c.d_model = 12;
  c.span_max = 4;
  c.span_ramp = 6;  // the mask is above 0 at all distances, whatever spans the tests draw
  change(c);
  AdaptiveSpanConfig dropping = c;
  dropping.dropout = 0.1f;
  ModelInfo m = streamed_entry<AdaptiveSpan>(name, c, dropping);
  m.sees = [c](int64_t i, int64_t j) { return j < i && i - j <= c.span_max; };
  m.macs = [c](int64_t l) { return macs_of(c, AdaptiveSpan(c, Init{}).computed_spans(), l); };
  if (c.trim > 0 && !c.dynamic) m.unrecorded = "set trim to 0";
  return m;
}

const RegisteredModel adaptive_span_post =
    adaptive_span_info("adaptive_span_post", [](AdaptiveSpanConfig&) {});
const RegisteredModel adaptive_span_pre =
    adaptive_span_info("adaptive_span_pre", [](AdaptiveSpanConfig& c) {
      c.norm = NormPlace::pre;
      c.span_scope = SpanScope::layer;
      c.trim = 0;
    });
const RegisteredModel adaptive_span_dynamic =
    adaptive_span_info("adaptive_span_dynamic", [](AdaptiveSpanConfig& c) {
      c.dynamic = true;
      c.pre_div = 2;
    });
AdaptiveSpanConfig tiny_adaptive_span(const AdaptiveSpanChange& change) {
  AdaptiveSpanConfig c = adaptive_span_preset("tiny");
  change(c);
  return c;
}

/// Sets z' of every layer, in turn for its heads.
void set_spans(Module& model, const std::vector<std::vector<double>>& layers) {
  size_t i = 0;
  for (NamedTensor& p : named_parameters(model)) {
    if (p.name.ends_with("attention.span")) assign(p.tensor, layers[i++ % layers.size()]);
  }
}

/// Returns a model with random weights and spans that differ: z is 0.9, 3, 1.5 and 0 of S = 6.
AdaptiveSpan adaptive_span(const AdaptiveSpanChange& change, DType dtype = DType::f64) {
  AdaptiveSpan model(tiny_adaptive_span(change), Init{.gen = Generator{3}, .dtype = dtype});
  randomise(model, 0.4, 7);
  if (model.config().span_scope == SpanScope::layer) {
    set_spans(model, {{0.15}, {0.5}});
  } else if (model.config().n_head == 2) {
    set_spans(model, {{0.15, 0.5}, {0.25, 0}});
  }
  return model;
}

/// Makes one layer over rows of width 6 with two heads and random weights.
SpanAttention span_layer(const SpanOptions& spans, bool scores = true) {
  const Init init{.gen = Generator{5}, .dtype = DType::f64};
  SpanAttention layer({.d_model = 6, .n_head = 2}, spans,
                      init.at("p").make({spans.most, 3}, Scheme::normal(1)), init);
  randomise(layer, 0.5, 11);
  if (!scores) {
    Tensor q = parameter(layer, "q.weight");
    assign(q, std::vector<double>(36, 0.0));
  }
  return layer;
}

Tensor span_rows(int64_t batch, int64_t n) {
  return normal({batch, n, 6}, Generator{2}, 0.0, 1.0, DType::f64);
}

void set_z(SpanAttention& layer, const std::vector<double>& z, double most) {
  std::vector<double> shares;
  for (const double x : z) shares.push_back(x / most);
  Tensor span = parameter(layer, "span");
  assign(span, shares);
}

TEST(AdaptiveSpan, AFullSpanIsAttentionOfAFixedSpan) {
  for (const int64_t trim : {0, 1}) {
    SpanAttention layer = span_layer({.most = 5, .ramp = 2, .start = 1, .trim = trim});
    set_z(layer, {5, 5}, 5);
    const NoGrad off;
    const Init init{.gen = Generator{5}, .dtype = DType::f64};
    const Tensor p = init.at("p").make({5, 3}, Scheme::normal(1));
    const Tensor x = span_rows(2, 11);
    const Projected all = layer.project(x);
    ScoreTerms t;
    t.id = {5, 0};
    t.relation_key = concat({p, zeros({1, 3}, DType::f64)}, 0);
    const Tensor expected =
        layer.merge(block_attention(all.q, all.k, all.v, patterns::dilated(5, -1, 1), t).out);
    EXPECT_TRUE(same_bits(layer.forward(x, {}, Pass{}).y, expected));
    set_z(layer, {5, 1}, 5);
    EXPECT_GT(distance(layer.forward(x, {}, Pass{}).y, expected), 1e-3);
  }
}

TEST(AdaptiveSpan, TheMaskHasTheWeightsOfThePaper) {
  const SpanOptions options{.most = 12, .ramp = 4, .trim = 1};
  SpanAttention layer = span_layer(options, false);  // all scores are 0
  const Tensor x = span_rows(1, 20);
  const auto last_row = [&] {  // weights of distances 1, 2, ... in head 0
    const Tensor p = layer.probabilities(x, {});
    std::vector<double> row =
        contiguous(select(select(select(p, 0, 0), 0, 0), 0, 19)).to_vector<double>();
    EXPECT_EQ(row.back(), 0.0);  // itself
    row.pop_back();
    std::reverse(row.begin(), row.end());
    return row;
  };
  set_z(layer, {0, 7}, 12);
  const std::vector<double> at_zero = last_row();
  for (size_t i = 0; i < at_zero.size(); ++i) {
    const double expected = i < 4 ? (4 - static_cast<double>(i)) / 10 : 0;
    EXPECT_NEAR(at_zero[i], expected, 1e-15) << i;
  }
  for (const auto& [z, seen] :
       std::vector<std::pair<double, int64_t>>{{0, 4}, {0.5, 5}, {1, 5}, {2.5, 7}, {12, 12}}) {
    set_z(layer, {z, 7}, 12);
    const std::vector<double> row = last_row();
    EXPECT_EQ(std::count_if(row.begin(), row.end(), [](double w) { return w > 0; }), seen) << z;
    EXPECT_EQ(layer.visible(), (std::vector<int64_t>{seen, 11})) << z;
  }
}

TEST(AdaptiveSpan, ThePapersFormulaHasNoOffset) {
  SpanAttention layer = span_layer({.most = 12, .ramp = 4, .offset = 0, .trim = 1}, false);
  set_z(layer, {0, 2}, 12);
  const Tensor p = layer.probabilities(span_rows(1, 20), {});
  const auto row = contiguous(select(select(select(p, 0, 0), 0, 0), 0, 19)).to_vector<double>();
  for (int64_t distance = 1; distance < 20; ++distance) {
    const double expected = distance < 4 ? static_cast<double>(4 - distance) / 6 : 0;
    EXPECT_NEAR(row[static_cast<size_t>(19 - distance)], expected, 1e-15) << distance;
  }
}

TEST(AdaptiveSpan, CutsAreIrrelevant) {
  const Tensor tokens = some_tokens(2, 12, 11);
  for (const NormPlace place : {NormPlace::post, NormPlace::pre}) {
    for (const int64_t trim : {0, 1, 2}) {
      const AdaptiveSpan model = adaptive_span([&](auto& c) {
        c.norm = place;
        c.trim = trim;
        c.dynamic = trim == 2;
      });
      for (const bool evaluation : {false, true}) expect_equal_cuts(model, tokens, evaluation);
    }
  }
}

/// Returns the gradients of the summed losses of the segments, and their total.
std::vector<Tensor> adaptive_span_gradients(AdaptiveSpan& model, const Tensor& tokens,
                                            const std::vector<int64_t>& lengths, double& total) {
  for (const NamedTensor& p : named_parameters(model)) set_grad(p.tensor, {});
  SegmentMemory memory = model.empty_memory(tokens.dim(0));
  int64_t at = 0;
  total = 0;
  for (const int64_t n : lengths) {
    const Tensor part = contiguous(narrow(tokens, 1, at, n));
    auto result = model.loss(part, part, memory, training);
    const Tensor loss = result.total();
    total += loss.item();
    backward(loss);
    memory = std::move(result.memory);
    at += n;
  }
  std::vector<Tensor> all;
  for (const NamedTensor& p : named_parameters(model)) all.push_back(grad(p.tensor));
  return all;
}

/// Compares a trimmed model with an untrimmed one, also with spans at kinks of the mask.
void expect_trimmed_as_untrimmed(DType dtype, double tolerance, SpanScope scope) {
  const auto with = [&](int64_t trim) {
    return adaptive_span(
        [&](auto& c) {
          c.trim = trim;
          c.span_max = 16;
          c.span_scope = scope;
        },
        dtype);
  };
  AdaptiveSpan untrimmed = with(0), trimmed = with(1), by_three = with(3);
  const Tensor tokens = some_tokens(3, 24, 11);
  // In tokens: between kinks, at kinks, at the ends.
  for (const std::vector<std::vector<double>>& z :
       {std::vector<std::vector<double>>{{0.3, 4.6}, {9.5, 1.25}}, {{0, 1}, {2, 5}}, {{16, 0}}}) {
    std::vector<std::vector<double>> shares = z;
    for (auto& heads : shares) {
      if (scope == SpanScope::layer) heads.resize(1);
      for (double& x : heads) x /= 16;
    }
    double expected_loss = 0, loss = 0;
    set_spans(untrimmed, shares);
    const auto expected = adaptive_span_gradients(untrimmed, tokens, {9, 1, 14}, expected_loss);
    for (AdaptiveSpan* model : {&trimmed, &by_three}) {
      set_spans(*model, shares);
      const auto all = adaptive_span_gradients(*model, tokens, {9, 1, 14}, loss);
      EXPECT_NEAR(loss, expected_loss, tolerance * expected_loss);
      const TensorList named = named_parameters(*model);
      for (size_t i = 0; i < named.size(); ++i) {
        EXPECT_LT(distance(all[i], expected[i]), tolerance) << named[i].name;
        if (named[i].name.ends_with(".span") && z[0][0] < 16) {
          EXPECT_GT(distance(expected[i], zeros_like(expected[i])), 1e-5);
        }
      }
      if (z[0][0] < 16) {
        for (const auto& heads : model->computed_spans()) {
          for (const int64_t n : heads) EXPECT_LT(n, 16);
        }
      }
    }
  }
}

TEST(AdaptiveSpan, TrimmingChangesNoGradient) {
  expect_trimmed_as_untrimmed(DType::f64, 1e-13, SpanScope::head);
  expect_trimmed_as_untrimmed(DType::f64, 1e-13, SpanScope::layer);
  expect_trimmed_as_untrimmed(DType::f32, 1e-5, SpanScope::head);
}

TEST(AdaptiveSpan, EachHeadComputesItsOwnSpan) {
  AdaptiveSpan model = adaptive_span([](auto& c) {
    c.span_max = 300;
    c.span_ramp = 32;
    c.trim = 64;
  });
  set_spans(model, {{0, 1.0 / 300}, {31.0 / 300, 290.0 / 300}});
  using Spans = std::vector<std::vector<int64_t>>;
  EXPECT_EQ(model.spans(), (Spans{{32, 33}, {63, 300}}));
  EXPECT_EQ(model.average_span(), 107);
  EXPECT_EQ(model.computed_spans(), (Spans{{64, 64}, {64, 300}}));
  EXPECT_EQ(forward_macs(model, 50), macs_of(model.config(), {{64, 64}, {64, 300}}, 50));
  EXPECT_LT(forward_macs(model, 50), macs_of(model.config(), {{64, 64}, {300, 300}}, 50));
  Tensor span = parameter(model, "layers.1.attention.span");
  assign(span, {32.0 / 300, 0});  // at z = 31 the mask became 0 at distance 64; now 65 has a part
  EXPECT_EQ(model.computed_spans(), (Spans{{64, 64}, {128, 64}}));
  const auto heads_of_64 = [](auto& c) {
    c.span_max = 300;
    c.span_ramp = 32;
    c.trim = 64;
    c.persistent = 5;
  };
  const AdaptiveSpan persistent(tiny_adaptive_span(heads_of_64), Init{.device = meta_device});
  EXPECT_EQ(forward_macs(persistent, 50), macs_of(persistent.config(), {{64, 64}, {64, 64}}, 50));
  const AdaptiveSpan untrimmed = adaptive_span([](auto& c) {
    c.span_max = 300;
    c.trim = 0;
  });
  EXPECT_EQ(forward_macs(untrimmed, 50), macs_of(untrimmed.config(), {{300, 300}, {300, 300}}, 50));
}

TEST(AdaptiveSpan, ManyHeadsShareLayouts) {
  std::vector<double> shares;
  for (int h = 0; h < 12; ++h) shares.push_back(h / 12.0);
  const auto with = [&](int64_t trim) {
    AdaptiveSpan model = adaptive_span([&](auto& c) {
      c.n_head = 12;
      c.d_model = 24;
      c.span_max = 60;
      c.trim = trim;
    });
    set_spans(model, {shares});
    return model;
  };
  AdaptiveSpan trimmed = with(1), untrimmed = with(0);
  const auto spans = trimmed.computed_spans(), least = trimmed.spans();
  std::vector<int64_t> different = spans[0];
  different.erase(std::unique(different.begin(), different.end()), different.end());
  EXPECT_LE(different.size(), 8u);
  EXPECT_GT(different.size(), 4u);
  for (size_t h = 0; h < 12; ++h) EXPECT_GE(spans[0][h], least[0][h]);
  const Tensor tokens = some_tokens(1, 90, 11);
  EXPECT_LT(distance(trimmed.logits(tokens, Pass{}), untrimmed.logits(tokens, Pass{})), 1e-13);
}

TEST(AdaptiveSpan, DecodesAsSegmentsOfOneToken) {
  for (const int64_t trim : {0, 1, 2}) {
    const AdaptiveSpan model = adaptive_span([&](auto& c) {
      c.trim = trim;
      c.dynamic = trim == 2;
    });
    const NoGrad off;
    const Tensor tokens = some_tokens(2, 60, 11);
    auto state = model.start_decoding(2);
    SegmentMemory memory = model.empty_memory(2);
    for (int64_t t = 0; t < 60; ++t) {
      const Tensor token = contiguous(narrow(tokens, 1, t, 1));
      const Tensor decoded = model.decode(token, *state);
      const Tensor expected = select(model.logits_after(memory, token), 1, 0);
      EXPECT_LT(distance(decoded, expected), 1e-12) << t;
    }
  }
}

TEST(AdaptiveSpan, ASpanThatOutgrowsItsKeysSeesFewer) {
  AdaptiveSpan model = adaptive_span([](auto& c) {
    c.n_layer = 1;
    c.span_max = 30;
  });
  const NoGrad off;
  const Tensor tokens = some_tokens(1, 60, 11);
  set_spans(model, {{0, 0.02}});
  auto state = model.start_decoding(1);
  for (int64_t t = 0; t < 59; ++t) model.decode(contiguous(narrow(tokens, 1, t, 1)), *state);
  const int64_t first = dynamic_cast<StreamState&>(*state).memory.layers[0].get<KeyValues>().first;
  set_spans(model, {{0.5, 1}});
  ASSERT_GT(first, 59 - model.spans()[0][0]);
  ASSERT_LT(first, 59);
  const Tensor decoded = model.decode(contiguous(narrow(tokens, 1, 59, 1)), *state);
  const Tensor there = contiguous(narrow(tokens, 1, first, 60 - first));
  EXPECT_LT(distance(decoded, select(model.logits(there, Pass{}), 1, -1)), 1e-12);
}

TEST(AdaptiveSpan, WeightsGrowWithTheSpan) {
  SpanAttention layer = span_layer({.most = 12, .ramp = 4, .trim = 0});
  const Tensor x = span_rows(1, 20);
  std::vector<double> before(19, 0.0);
  double sum = 0;
  for (double z = 0; z <= 12; z += 0.25) {
    set_z(layer, {z, 3}, 12);
    const Tensor p = layer.probabilities(x, {});
    const auto row = contiguous(select(select(select(p, 0, 0), 0, 0), 0, 19)).to_vector<double>();
    double now = 0;
    for (size_t j = 0; j < 19; ++j) {  // in units of the weight at distance 1, whose mask is 1
      const double weight = row[j] / row[18];
      EXPECT_GE(weight, before[j] * (1 - 1e-14));
      before[j] = weight;
      now += weight;
    }
    EXPECT_GT(now, sum - 1e-14);
    sum = now;
  }
}

TEST(AdaptiveSpan, MaskedKeysHaveNoInfluence) {
  AdaptiveSpan model = adaptive_span([](auto& c) {
    c.n_layer = 1;
    c.span_max = 12;
    c.trim = 0;
  });
  set_spans(model, {{0, 3.0 / 12}});
  const NoGrad off;
  std::vector<int64_t> ids = some_tokens(1, 20, 10).to_vector<int64_t>();
  const auto last = [&] { return select(model.logits(Tensor::from(ids, {1, 20}), Pass{}), 1, 19); };
  const Tensor expected = last();
  for (int64_t distance = 1; distance < 20; ++distance) {
    const int64_t old = std::exchange(ids[static_cast<size_t>(19 - distance)], 10);
    EXPECT_EQ(same_bits(last(), expected), distance > 5) << distance;
    ids[static_cast<size_t>(19 - distance)] = old;
  }
}

// At z = 0 and 3 the mask is exactly 1 at distance z + 1 and exactly 0 at z + R + 1. Both keys
// count, which neither one-sided derivative does.
TEST(AdaptiveSpan, AtAKinkBothKeysCount) {
  constexpr double ramp = 4, h = 1e-6;
  for (const int64_t trim : {0, 1}) {
    SpanAttention layer = span_layer({.most = 9, .ramp = ramp, .trim = trim}, false);
    const Tensor x = span_rows(1, 15), w = normal({1, 6}, Generator{8}, 0.0, 1.0, DType::f64);
    const auto loss = [&] { return sum(mul(select(layer.forward(x, {}, Pass{}).y, 1, 14), w)); };
    // used[distance]: what the loss gets of head 0 if all its weight is on the key at `distance`.
    std::vector<double> used(10, 0.0);
    const auto v = contiguous(select(layer.project(x).v.detach(), 1, 0)).to_vector<double>();
    const auto out = parameter(layer, "out.weight").to_vector<double>(), by = w.to_vector<double>();
    for (size_t distance = 1; distance < 10; ++distance) {
      for (size_t c = 0; c < 6; ++c) {
        for (size_t k = 0; k < 3; ++k) {
          used[distance] += by[c] * out[c * 6 + k] * v[(14 - distance) * 3 + k];
        }
      }
    }
    const auto at = [&](double z) {
      const NoGrad off;
      set_z(layer, {z, 2.5}, 9);
      return loss().item();
    };
    for (const double z : {0.0, 3.0}) {
      double total = 0, mean = 0, expected = 0;
      const auto raw = [&](size_t distance) {
        return (ramp + z + 1 - static_cast<double>(distance)) / ramp;
      };
      for (size_t distance = 1; distance < 10; ++distance) {
        const double mask = std::clamp(raw(distance), 0.0, 1.0);  // all scores are 0
        total += mask;
        mean += mask * used[distance];
      }
      mean /= total;
      for (size_t distance = 1; distance < 10; ++distance) {
        const bool on = raw(distance) >= 0 && raw(distance) <= 1;
        if (on) expected += (used[distance] - mean) / total / ramp;
      }
      const double right = (at(z + h) - at(z)) / h, left = (at(z) - at(z - h)) / h;
      set_z(layer, {z, 2.5}, 9);
      set_grad(parameter(layer, "span"), {});
      backward(loss());
      const double ours = grad(parameter(layer, "span")).to_vector<double>()[0] / 9;
      EXPECT_NEAR(ours, expected, 1e-14) << z;
      EXPECT_GT(std::abs(ours - right), 1e-3) << z;
      EXPECT_GT(std::abs(ours - left), 1e-3) << z;
    }
  }
}

TEST(AdaptiveSpan, ThePenaltyShortensSpans) {
  for (const SpanScope scope : {SpanScope::head, SpanScope::layer}) {
    AdaptiveSpan model = adaptive_span([&](auto& c) {
      c.span_penalty = 50;
      c.span_scope = scope;
    });
    const bool by_head = scope == SpanScope::head;
    if (by_head) {
      set_spans(model, {{0.9, 0.5}, {0.1, 1}});
    } else {
      set_spans(model, {{0.9}, {0.1}});
    }
    const double mean_spans = 6 * (by_head ? 0.7 + 0.55 : 0.9 + 0.1);
    const Tensor tokens = some_tokens(2, 5, 11);
    auto result = model.loss(tokens, tokens, model.empty_memory(2), training);
    ASSERT_EQ(result.auxiliary.size(), 1u);
    EXPECT_EQ(result.auxiliary[0].name, "span");
    EXPECT_NEAR(result.auxiliary[0].value.item(), 50 * mean_spans, 1e-10);
    EXPECT_NEAR(result.total().item(), result.loss.item() + 50 * mean_spans, 1e-10);
    EXPECT_TRUE(model.loss(tokens, tokens, model.empty_memory(2), Pass{}).auxiliary.empty());
    backward(result.auxiliary[0].value);
    const double step = 50 * 6 / (by_head ? 2.0 : 1.0) * 2e-3;  // 0.3, or 0.6
    Sgd sgd(named_parameters(model), SgdOptions{});
    sgd.step(2e-3);
    const void* address = parameter(model, "layers.0.attention.span").view().data;
    const std::vector<int64_t> before = model.spans()[1];
    end_step(model, 0, Generator{1}, {});
    EXPECT_EQ(parameter(model, "layers.0.attention.span").view().data, address);
    EXPECT_NEAR(parameter(model, "layers.0.attention.span").to_vector<double>()[0], 0.9 - step,
                1e-12);
    const auto second = parameter(model, "layers.1.attention.span").to_vector<double>();
    EXPECT_EQ(second[0], 0.0);
    if (by_head) {
      EXPECT_NEAR(second[1], 1 - step, 1e-12);
    }
    EXPECT_EQ(model.spans()[1][0], 2);  // R: the host knows of the change
    EXPECT_LT(before[0], 2);            // z was below 0
    Tensor first = parameter(model, "layers.0.attention.span");
    assign(first, by_head ? std::vector<double>{1.5, 0.5} : std::vector<double>{1.5});
    end_step(model, 1, Generator{1}, {});
    EXPECT_EQ(parameter(model, "layers.0.attention.span").to_vector<double>()[0], 1.0);
  }
}

/// Returns a dynamic model whose v is 0, with b of each layer in turn for its heads, and an
/// adaptive one with z = S sigmoid(b); their other parameters are equal.
std::pair<AdaptiveSpan, AdaptiveSpan> equal_spans(const AdaptiveSpanChange& change, int64_t trim) {
  const auto with = [&](bool dynamic) {
    return adaptive_span([&](auto& c) {
      change(c);
      c.dynamic = dynamic;
      c.trim = dynamic ? 1 : trim;
    });
  };
  std::pair<AdaptiveSpan, AdaptiveSpan> both{with(true), with(false)};
  auto& [dynamic, adaptive] = both;
  double b = -1.7;
  for (NamedTensor& p : named_parameters(dynamic)) {
    if (p.name.ends_with("span.weight")) {
      assign(p.tensor, std::vector<double>(static_cast<size_t>(p.tensor.numel()), 0.0));
    } else if (p.name.ends_with("span.bias")) {
      std::vector<double> values;
      for (int64_t i = 0; i < p.tensor.numel(); ++i) values.push_back(b += 0.9);
      assign(p.tensor, values);
      const std::string layer = p.name.substr(0, p.name.size() - std::string(".bias").size());
      const NoGrad off;
      Tensor z = parameter(adaptive, layer);
      assign(z, sigmoid(p.tensor).to_vector<double>());
    } else {
      Tensor same = parameter(adaptive, p.name);
      assign(same, p.tensor.to_vector<double>());
    }
  }
  return both;
}

TEST(AdaptiveSpan, EqualDynamicSpansAreAdaptiveOnes) {
  const Tensor tokens = some_tokens(3, 24, 11);
  for (const SpanScope scope : {SpanScope::head, SpanScope::layer}) {
    for (const int64_t trim : {0, 1}) {
      auto [dynamic, adaptive] = equal_spans(
          [&](auto& c) {
            c.span_max = 16;
            c.span_scope = scope;
          },
          trim);
      double loss = 0, expected_loss = 0;
      const auto ours = adaptive_span_gradients(dynamic, tokens, {9, 1, 14}, loss);
      const auto expected = adaptive_span_gradients(adaptive, tokens, {9, 1, 14}, expected_loss);
      EXPECT_NEAR(loss, expected_loss, 1e-13 * expected_loss);
      const TensorList named = named_parameters(dynamic);
      for (size_t i = 0; i < named.size(); ++i) {
        const std::string& name = named[i].name;
        if (name.ends_with("span.weight")) {
          EXPECT_GT(distance(ours[i], zeros_like(ours[i])), 1e-4) << name;
        } else if (name.ends_with("span.bias")) {
          // The gradient of b is that of all tokens together: dz S sigma (1 - sigma).
          const std::string layer = name.substr(0, name.size() - std::string(".bias").size());
          const Tensor share = sigmoid(named[i].tensor.detach());
          const Tensor by_z = grad(parameter(adaptive, layer));
          EXPECT_LT(distance(ours[i], mul(by_z, mul(share, sub(1.0, share)))), 1e-12) << name;
        } else {
          EXPECT_LT(distance(ours[i], grad(parameter(adaptive, name))), 1e-12) << name;
        }
      }
    }
  }
}

// The gradients of v and b are sums over the tokens of the gradients of their spans.
TEST(AdaptiveSpan, GradientsAreSumsOverTokens) {
  SpanAttention layer = span_layer({.most = 7, .ramp = 3, .dynamic = true, .pre_div = 1.5});
  const Tensor x = span_rows(2, 11), w = normal({2, 11, 6}, Generator{8}, 0.0, 1.0, DType::f64);
  const Tensor b = parameter(layer, "span.bias");
  backward(sum(mul(layer.forward(x, {}, Pass{}).y, w)));
  const auto of_v = grad(parameter(layer, "span.weight")).to_vector<double>();
  const auto of_b = grad(b).to_vector<double>();
  // d loss / d z of each token, by changing only its span.
  const NoGrad off;
  const Tensor z = contiguous(layer.token_spans(x));  // [2, 2, 11]
  const Projected all = layer.project(x);
  ScoreTerms t;
  t.id = {7, 0};
  const Init init{.gen = Generator{5}, .dtype = DType::f64};
  t.relation_key =
      concat({init.at("p").make({7, 3}, Scheme::normal(1)), zeros({1, 3}, DType::f64)}, 0);
  t.ramp = 3;
  t.offset = 4;
  const auto loss_at = [&](const std::vector<double>& spans) {
    t.query_span = Tensor::from(spans, {2, 2, 11});
    const AttentionPattern all_keys = patterns::dilated(7, -1, 1);
    return sum(mul(layer.merge(block_attention(all.q, all.k, all.v, all_keys, t).out), w)).item();
  };
  const std::vector<double> spans = z.to_vector<double>(), rows = x.to_vector<double>();
  std::vector<double> sum_b(2, 0.0), sum_v(12, 0.0);
  for (size_t at = 0; at < spans.size(); ++at) {
    constexpr double h = 1e-6;
    std::vector<double> more = spans, less = spans;
    more[at] += h;
    less[at] -= h;
    const double dz = (loss_at(more) - loss_at(less)) / (2 * h);
    const double db = dz * spans[at] * (1 - spans[at] / 7);
    const size_t sample = at / 22, head = at / 11 % 2, token = at % 11;
    sum_b[head] += db;
    for (size_t c = 0; c < 6; ++c) {
      sum_v[head * 6 + c] += db / 1.5 * rows[(sample * 11 + token) * 6 + c];
    }
  }
  for (size_t i = 0; i < 2; ++i) EXPECT_NEAR(of_b[i], sum_b[i], 1e-7);
  for (size_t i = 0; i < 12; ++i) EXPECT_NEAR(of_v[i], sum_v[i], 1e-7);
}

TEST(AdaptiveSpan, DynamicSpansBeginAsInThePaper) {
  const auto first_spans = [](const AdaptiveSpanChange& change) {
    const AdaptiveSpan model(tiny_adaptive_span(change),
                             Init{.gen = Generator{3}, .dtype = DType::f64});
    return model.dynamic_spans(some_tokens(1, 5, 11));
  };
  for (const SpanScope scope : {SpanScope::head, SpanScope::layer}) {
    const double four = 1 / (1 + std::exp(4.0));
    const auto with = [&](double start) {
      return first_spans([&](auto& c) {
        c.dynamic = true;
        c.span_scope = scope;
        c.span_init = start;
      });
    };
    EXPECT_LT(distance(with(0), full({2, 2, 5}, 6 * four, DType::f64)), 1e-14);
    EXPECT_LT(distance(with(0.25), full({2, 2, 5}, 1.5, DType::f64)), 1e-14);
  }
}

TEST(AdaptiveSpan, DynamicSpansFollowTheTokens) {
  AdaptiveSpan model = adaptive_span([](auto& c) {
    c.dynamic = true;
    c.pre_div = 3;
  });
  const std::vector<int64_t> ids = {4, 7, 4, 1};
  const Tensor z = model.dynamic_spans(Tensor::from(ids, {1, 4}));
  ASSERT_EQ(z.shape(), (Shape{2, 2, 4}));
  const auto table = parameter(model, "embed.token.weight").to_vector<double>();
  const auto v = parameter(model, "layers.0.attention.span.weight").to_vector<double>();
  const auto b = parameter(model, "layers.0.attention.span.bias").to_vector<double>();
  const auto spans = z.to_vector<double>();
  for (size_t h = 0; h < 2; ++h) {
    for (size_t t = 0; t < 4; ++t) {
      double logit = b[h];
      for (size_t c = 0; c < 8; ++c) {
        logit += v[h * 8 + c] * table[static_cast<size_t>(ids[t]) * 8 + c] / 3;
      }
      EXPECT_NEAR(spans[h * 4 + t], 6 / (1 + std::exp(-logit)), 1e-12);
    }
  }
  EXPECT_NE(spans[8], spans[10]) << "layer 1 has seen what comes before";
  const auto seen = model.seen_spans(Tensor::from(ids, {1, 4})).to_vector<float>();
  for (size_t i = 0; i < spans.size(); ++i) {
    EXPECT_NEAR(seen[i], std::clamp(spans[i] + 2, 1.0, 6.0), 1e-6);  // R = 2
  }
}

TEST(AdaptiveSpan, DynamicSpansPayTheirMean) {
  for (const SpanScope scope : {SpanScope::head, SpanScope::layer}) {
    AdaptiveSpan model = adaptive_span([&](auto& c) {
      c.dynamic = true;
      c.span_penalty = 50;
      c.span_scope = scope;
    });
    const Tensor tokens = some_tokens(1, 5, 11);
    auto result = model.loss(tokens, tokens, model.empty_memory(1), training);
    ASSERT_EQ(result.auxiliary.size(), 1u);
    EXPECT_EQ(result.auxiliary[0].name, "span");
    const double mean = sum(model.dynamic_spans(tokens)).item() / 10;  // of 5 tokens and 2 heads
    EXPECT_NEAR(result.auxiliary[0].value.item(), 50 * mean, 1e-10);
    EXPECT_TRUE(model.loss(tokens, tokens, model.empty_memory(1), Pass{}).auxiliary.empty());
  }
}

// The first row has no other key.
TEST(AdaptiveSpan, WithoutKeysARowIsThePersistentAverage) {
  constexpr int64_t count = 4;
  SpanAttention layer = span_layer({.most = 5, .ramp = 2, .persistent = count});
  const NoGrad off;
  const Tensor x = span_rows(2, 3);
  const Tensor q = layer.project(x).q;  // [2, 2, 3, 3]
  const Tensor k = mul(parameter(layer, "persistent_key"), std::sqrt(3.0));
  const Tensor v = mul(parameter(layer, "persistent_value"), 2.0);  // sqrt(4)
  const Tensor score = mul(matmul(q, transpose(k, 1, 2)), 1 / std::sqrt(3.0));
  const Tensor expected = layer.merge(matmul(softmax(score), v));
  const Tensor y = layer.forward(x, {}, Pass{}).y;
  const auto row = [](const Tensor& t, int64_t i) { return contiguous(select(t, 1, i)); };
  EXPECT_LT(distance(row(y, 0), row(expected, 0)), 1e-14);
  EXPECT_GT(distance(row(y, 1), row(expected, 1)), 1e-3);
}

TEST(AdaptiveSpan, PersistentVectorsShareTheSoftmax) {
  SpanAttention plain = span_layer({.most = 5, .ramp = 2});
  SpanAttention layer = span_layer({.most = 5, .ramp = 2, .persistent = 1});
  for (NamedTensor& p : named_parameters(plain)) {
    Tensor x = parameter(layer, p.name);
    assign(x, p.tensor.to_vector<double>());
  }
  const NoGrad off;
  const Tensor x = span_rows(2, 9);
  const Tensor weights = plain.probabilities(x, {});
  // The weights of other keys keep their ratios; persistent ones take the rest.
  const auto some = contiguous(layer.probabilities(x, {})).to_vector<double>();
  const auto all = contiguous(weights).to_vector<double>();
  for (size_t row = 0; row < some.size() / 9; ++row) {
    double sum = 0;
    for (size_t j = 0; j < 9; ++j) sum += some[row * 9 + j];
    EXPECT_LT(sum, 1);
    for (size_t j = 0; j < 9; ++j) EXPECT_NEAR(some[row * 9 + j], sum * all[row * 9 + j], 1e-14);
  }
}

/// Returns how many tokens before it the last of 40 tokens depends on, in segments of n.
int64_t adaptive_span_reach(const AdaptiveSpan& model, int64_t n) {
  std::vector<int64_t> ids(40);
  std::iota(ids.begin(), ids.end(), 0);
  const auto last = [&] {
    const NoGrad off;
    SegmentMemory memory = model.empty_memory(1);
    Tensor logits;
    for (int64_t at = 0; at < 40; at += n) {
      const std::vector<int64_t> part(ids.begin() + at, ids.begin() + at + n);
      logits = model.logits_after(memory, Tensor::from(part, {1, n}));
    }
    return contiguous(select(logits, 1, -1));
  };
  const Tensor before = last();
  for (int64_t i = 0; i < 40; ++i) {
    const int64_t old = std::exchange(ids[static_cast<size_t>(i)], 49);
    const bool changed = !same_bits(last(), before);
    ids[static_cast<size_t>(i)] = old;
    if (changed) return 39 - i;
  }
  return -1;
}

TEST(AdaptiveSpan, ReachIsTheSumOfTheLargestSpans) {
  for (const int64_t trim : {0, 1, 4}) {
    AdaptiveSpan model = adaptive_span([&](auto& c) {
      c.n_layer = 3;
      c.vocab = 50;
      c.span_max = 10;
      c.trim = trim;
    });
    set_spans(model, {{0.15, 0.5}, {0.3, 0}, {1, 0.2}});  // z = 1.5 and 5; 3 and 0; 10 and 2
    for (const int64_t n : {1, 4, 5, 20, 40})
      EXPECT_EQ(adaptive_span_reach(model, n), 7 + 5 + 10) << n;
  }
}

TEST(AdaptiveSpan, Gradients) {
  struct Case {
    const char* what;
    int64_t length;
    bool memory;
    AdaptiveSpanChange change;
  };
  const Case cases[] = {
      {"several blocks", 7, true, [](auto&) {}},
      {"empty memory", 7, false, [](auto&) {}},
      {"one token", 1, true, [](auto&) {}},
      {"one token without memory", 1, false, [](auto&) {}},
      {"a ramp of 1", 7, true, [](auto& c) { c.span_ramp = 1; }},
      {"no offset", 7, true, [](auto& c) { c.span_offset = 0; }},
      {"a span shorter than the block", 7, true, [](auto& c) { c.span_max = 3; }},
      {"one span for each layer", 7, true, [](auto& c) { c.span_scope = SpanScope::layer; }},
      {"dropout", 7, true, [](auto& c) { c.dropout = 0.2f; }},
      {"pre-norm", 7, true, [](auto& c) { c.norm = NormPlace::pre; }},
      {"untrimmed", 7, true, [](auto& c) { c.trim = 0; }},
      {"persistent vectors", 7, true, [](auto& c) { c.persistent = 3; }},
      {"persistent vectors and dropout", 1, false,
       [](auto& c) {
         c.persistent = 3;
         c.dropout = 0.2f;
       }},
      {"phantom rows", 7, true, [](auto& c) { c.phantom_zero_memory = true; }},
      {"dynamic", 7, true, [](auto& c) { c.dynamic = true; }},
      {"dynamic with an empty memory", 7, false, [](auto& c) { c.dynamic = true; }},
      {"dynamic, one token", 1, true, [](auto& c) { c.dynamic = true; }},
      {"dynamic, one token without memory", 1, false, [](auto& c) { c.dynamic = true; }},
      {"dynamic with a ramp of 1", 7, true,
       [](auto& c) {
         c.dynamic = true;
         c.span_ramp = 1;
       }},
      {"dynamic, shorter than the block", 7, true,
       [](auto& c) {
         c.dynamic = true;
         c.span_max = 3;
         c.pre_div = 2;
       }},
      {"dynamic for each layer, pre-norm", 7, true,
       [](auto& c) {
         c.dynamic = true;
         c.span_scope = SpanScope::layer;
         c.norm = NormPlace::pre;
       }},
      {"dynamic with dropout and persistent vectors", 7, true,
       [](auto& c) {
         c.dynamic = true;
         c.dropout = 0.2f;
         c.persistent = 3;
       }},
  };
  for (const Case& each : cases) {
    AdaptiveSpan model = adaptive_span(each.change);
    set_spans(model, model.config().span_scope == SpanScope::head
                         ? std::vector<std::vector<double>>{{0.13, 0.51}, {0.27, 0.06}}
                         : std::vector<std::vector<double>>{{0.13}, {0.27}});  // not at kinks
    const Tensor tokens = some_tokens(2, each.length, 11);
    SegmentMemory before = model.empty_memory(2);
    if (each.memory) before = model.loss(tokens, tokens, before, Pass{}).memory;
    EXPECT_EQ(check_parameter_gradients(
                  model, [&] { return model.loss(tokens, tokens, before, training).total(); }),
              "")
        << each.what;
  }
}

TEST(AdaptiveSpan, PhantomRowsTakeAttention) {
  const auto with = [](bool phantom) {
    return adaptive_span([&](auto& c) { c.phantom_zero_memory = phantom; });
  };
  const Tensor tokens = some_tokens(2, 12, 11);
  const auto real = losses_of(with(false), tokens, {6, 6}),
             phantom = losses_of(with(true), tokens, {6, 6});
  EXPECT_GT(std::abs(real[0] - phantom[0]), 1e-3);
  EXPECT_EQ(losses_of(with(true), tokens, {6, 6}, true), phantom);
}

TEST(AdaptiveSpan, SpansStayF32WhereLayersComputeInBf16) {
  AdaptiveSpanConfig c = tiny_adaptive_span([](auto& x) { x.span_max = 3000; });
  c.precision = Precision::bf16;
  AdaptiveSpan model(c, Init{.gen = Generator{3}});
  set_spans(model, {{2001.0 / 3000, 0}});  // bf16 has multiples of 8 there
  EXPECT_EQ(parameter(model, "layers.0.attention.span").dtype(), DType::f32);
  EXPECT_EQ(model.spans()[0][0], 2003);
  const Tensor tokens = some_tokens(1, 20, 11);
  auto result = model.loss(tokens, tokens, model.empty_memory(1), training);
  backward(result.total());
  EXPECT_EQ(grad(parameter(model, "layers.0.attention.span")).dtype(), DType::f32);
}

TEST(AdaptiveSpan, DynamicSpansAreF32WhereLayersComputeInBf16) {
  AdaptiveSpanConfig c = tiny_adaptive_span([](auto& x) {
    x.span_max = 3000;
    x.dynamic = true;
    x.span_init = 2001.0 / 3000;
  });
  c.precision = Precision::bf16;
  AdaptiveSpan model(c, Init{.gen = Generator{3}});
  const Tensor tokens = some_tokens(1, 20, 11), z = model.dynamic_spans(tokens);
  EXPECT_EQ(z.dtype(), DType::f32);
  for (const float x : z.to_vector<float>()) EXPECT_NEAR(x, 2001, 1e-3);
  backward(model.loss(tokens, tokens, model.empty_memory(1), training).total());
  EXPECT_EQ(grad(parameter(model, "layers.0.attention.span.weight")).dtype(), DType::f32);
}

// At a marker the answer is 20 tokens back, elsewhere 2: spans are long at markers only.
TEST(AdaptiveSpan, DynamicSpansAreLongWhereTheyAreNeeded) {
  const LookupTask task{.length = 64, .near = 2, .far = 20, .symbols = 8};
  AdaptiveSpan model(tiny_adaptive_span([](auto& c) {
                       c.vocab = 9;
                       c.n_layer = 1;
                       c.d_model = 32;
                       c.d_ff = 64;
                       c.span_max = 32;
                       c.span_ramp = 4;
                       c.dynamic = true;
                       c.span_init = 0.8;
                       c.span_penalty = 1e-3;
                     }),
                     Init{.gen = Generator{1}});
  Adam adam(named_parameters(model));
  const auto batch_at = [&](std::string_view split, uint64_t step) {
    std::vector<Sample> samples;
    for (uint64_t i = 0; i < 8; ++i) {
      samples.push_back(task.sample({.split = split, .index = 8 * step + i}));
    }
    return longspan::stack(samples);
  };
  for (uint64_t step = 0; step < 300; ++step) {
    const Batch batch = batch_at("train", step);
    backward(model.loss(batch.tokens, batch.targets, model.empty_memory(8), training).total());
    adam.step(1e-2);
  }
  const NoGrad off;
  const Batch test = batch_at("test", 0);
  EXPECT_LT(model.loss(test.tokens, test.targets, model.empty_memory(8), Pass{}).loss.item(), 0.1);
  const Tensor tokens = contiguous(narrow(test.tokens, 0, 0, 1));
  const std::vector<int32_t> ids = tokens.to_vector<int32_t>();
  const std::vector<float> z = model.dynamic_spans(tokens).to_vector<float>();  // [1, 2, 64]
  double at_markers = 0, elsewhere = 0, markers = 0;
  for (size_t t = 0; t < 64; ++t) {
    const double longest = static_cast<double>(std::max(z[t], z[64 + t]));
    markers += ids[t] == 0 ? 1 : 0;
    (ids[t] == 0 ? at_markers : elsewhere) += longest;
  }
  ASSERT_GT(markers, 2);
  EXPECT_GT(at_markers / markers, 12);
  EXPECT_LT(elsewhere / (64 - markers), 4);
}

/// Compares losses and gradients of several segments with a file.
void expect_adaptive_span_golden(const std::string& name, DType dtype, double tolerance) {
  const GoldenFile golden("adaptive_span", name);
  AdaptiveSpan model = golden.build<AdaptiveSpan, AdaptiveSpanConfig>(dtype);
  std::vector<Tensor> losses;
  train_on_segments(golden, model, tolerance, [&](const LanguageModel::Losses& result) {
    losses.push_back(result.total().detach());
    backward(result.total());
  });
  golden.expect("output.losses", stack(losses, 0), tolerance);
  golden.expect_gradients(model, tolerance);
}

class AdaptiveSpanGoldens : public testing::TestWithParam<std::string> {};
TEST_P(AdaptiveSpanGoldens, InF64) { expect_adaptive_span_golden(GetParam(), DType::f64, 1e-12); }
TEST_P(AdaptiveSpanGoldens, InF32) { expect_adaptive_span_golden(GetParam(), DType::f32, 2e-5); }
INSTANTIATE_TEST_SUITE_P(AdaptiveSpan, AdaptiveSpanGoldens,
                         testing::ValuesIn(golden_names("adaptive_span")), own_name);

TEST(AdaptiveSpan, HasTheCostsOfThePaper) {
  const auto of = [](const char* preset, double span) {
    return token_macs(adaptive_span_preset(preset), span) / 1e6;
  };
  EXPECT_NEAR(of("text8_12", 314), 41.6, 0.05);
  EXPECT_NEAR(of("text8_12", 2100), 63.6, 0.05);  // Transformer-XL
  EXPECT_NEAR(of("text8_24", 245), 216.6, 0.05);
  AdaptiveSpanConfig narrow = adaptive_span_preset("text8_24");
  narrow.d_ff = 3072;
  EXPECT_NEAR(token_macs(narrow, 245) / 1e6, 178.9, 0.05);
  AdaptiveSpanConfig xl = narrow;  // Transformer-XL of 24 layers
  xl.d_model = 1024;
  EXPECT_NEAR(token_macs(xl, 3800) / 1e6, 438.4, 0.05);
}

TEST(AdaptiveSpan, HasThePublishedSizes) {
  const auto count = [](const char* preset) {
    return static_cast<double>(adaptive_span_entry().make(preset)->parameters());
  };
  EXPECT_NEAR(count("text8_12"), 38e6, 0.5e6);
  EXPECT_NEAR(count("enwik8_12"), 39e6, 0.5e6);
  EXPECT_NEAR(count("enwik8_24"), 209e6, 0.5e6);
}

TEST(AdaptiveSpan, SaysWhatDoesNotFit) {
  const auto refusal = [](const AdaptiveSpanChange& change) {
    return message_of<ValueError>([&] { adaptive_span(change); });
  };
  EXPECT_TRUE(contains(refusal([](auto& c) { c.span_max = 0; }), "span_max"));
  EXPECT_TRUE(contains(refusal([](auto& c) { c.span_ramp = 0.5; }), "span_ramp"));
  EXPECT_TRUE(contains(refusal([](auto& c) { c.span_init = 1.5; }), "a share of span_max"));
  EXPECT_TRUE(contains(refusal([](auto& c) { c.span_penalty = -1; }), "span_penalty"));
  EXPECT_TRUE(contains(refusal([](auto& c) { c.trim = -1; }), "trim"));
  EXPECT_TRUE(contains(refusal([](auto& c) { c.pre_div = 0; }), "pre_div is 0"));
  const auto full = [](auto& c) {
    c.dynamic = true;
    c.span_init = 1;
  };
  EXPECT_TRUE(contains(refusal(full), "dynamic spans are below span_max"));
  const AdaptiveSpan adaptive = adaptive_span([](auto&) {}),
                     dynamic = adaptive_span([](auto&c) { c.dynamic = true; });
  EXPECT_TRUE(contains(message_of<NotImplemented>([&] { dynamic.spans(); }), "dynamic_spans()"));
  EXPECT_TRUE(
      contains(message_of<NotImplemented>([&] { adaptive.dynamic_spans(some_tokens(1, 3, 11)); }),
               "spans()"));
  EXPECT_TRUE(contains(
      message_of<ShapeError>([&] { dynamic.dynamic_spans(some_tokens(2, 3, 11)); }), "[1, L]"));
  EXPECT_TRUE(
      contains(message_of<ValueError>([&] { adaptive.attention_outline(2, 5); }), "layer 2 of 2"));
}

TEST(AdaptiveSpan, SaysWhatItSaves) {
  const AdaptiveSpan model(adaptive_span_preset("small"), Init{});
  const std::string text = model.remark(128);
  EXPECT_TRUE(contains(text, "spans: 32.0 tokens on average, 32 at most, of 512")) << text;
  const AdaptiveSpan dynamic = adaptive_span([](auto& c) { c.dynamic = true; });
  EXPECT_TRUE(contains(dynamic.remark(4), "each token has its own, 6 at most"));
}

}  // namespace
}  // namespace longspan::test
