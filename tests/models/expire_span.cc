// Expire-Span: memories that say how long they live, what is deleted, and files that another
// implementation made.

#include "models/expire_span/expire_span.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "autograd/engine.h"
#include "autograd/mode.h"
#include "core/memory.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/index.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/shape.h"
#include "tests/harness/messages.h"
#include "tests/models/costs.h"
#include "tests/models/segments.h"

namespace longspan::test {
namespace {

using ExpireSpanChange = std::function<void(ExpireSpanConfig&)>;

ModelInfo expire_span_info(const std::string& name, const ExpireSpanChange& change) {
  ExpireSpanConfig c = expire_span_preset("tiny");
  c.vocab = 17;
  c.d_model = 12;
  c.span_ramp = 16;  // the mask is above 0 at all distances, whatever spans the tests draw
  c.span_penalty = 1e-3;
  change(c);
  ExpireSpanConfig dropping = c;
  dropping.dropout = 0.1f;
  ModelInfo m = streamed_entry<ExpireSpan>(name, c, dropping);
  m.sees = [](int64_t i, int64_t j) { return j < i; };
  m.macs = [c](int64_t l) { return macs_of(c, l); };
  return m;
}

const RegisteredModel expire_span_post =
    expire_span_info("expire_span_post", [](ExpireSpanConfig&) {});
const RegisteredModel expire_span_pre =
    expire_span_info("expire_span_pre", [](ExpireSpanConfig& c) {
      c.norm = NormPlace::pre;
      c.span_loss = SpanLoss::direct;
      c.shorten = true;
      c.always_keep = 3;
      c.max_memory = 10;
      c.overflow = Overflow::drop;
    });

ExpireSpanConfig tiny_expire_span(const ExpireSpanChange& change) {
  ExpireSpanConfig c = expire_span_preset("tiny");
  change(c);
  return c;
}

/// Returns a model with random weights, whose spans differ from token to token.
ExpireSpan expire_span(const ExpireSpanChange& change, DType dtype = DType::f64) {
  return randomised<ExpireSpan>(tiny_expire_span(change), Init{.gen = Generator{3}, .dtype = dtype},
                                0.4, 7);
}

/// Sets all spans of a model to one value: 0 or L.
void set_all_spans(ExpireSpan& model, bool longest) {
  for (NamedTensor& p : named_parameters(model)) {
    if (p.name.ends_with("span.bias")) assign(p.tensor, {longest ? 1000.0 : -1000.0});
  }
}

constexpr int64_t kLongest = 16;  // L of the layers below

/// Makes one layer over rows of width 6 with two heads and random weights, for which the first
/// element of a row alone decides about its span, and of which neither keys nor values know.
ExpireAttention expire_layer(const ExpireOptions& options, int64_t positions = 3,
                             bool scores = true) {
  const Init init{.gen = Generator{5}, .dtype = DType::f64};
  const Tensor p = positions > 0 ? init.at("p").make({positions, 3}, Scheme::normal(1)) : Tensor{};
  ExpireAttention layer({.d_model = 6, .n_head = 2}, options, p, init);
  randomise(layer, 0.5, 11);
  for (NamedTensor& w : named_parameters(layer)) {
    std::vector<double> x = w.tensor.to_vector<double>();
    if (w.name == "span.weight") x = {1, 0, 0, 0, 0, 0};
    if (w.name == "span.bias") x = {0};
    if (w.name == "q.weight" && !scores) std::fill(x.begin(), x.end(), 0.0);
    if (w.name[0] == 'q' || w.name[0] == 'k' || w.name[0] == 'v') {
      for (size_t row = 0; row < 6; ++row) x[row * 6] = 0;
    }
    assign(w.tensor, x);
  }
  return layer;
}

/// Returns the logit of a span in 0 to L.
double logit(double span) {
  if (span <= 0) return -1000;
  if (span >= kLongest) return 1000;
  return -std::log(kLongest / span - 1);
}

/// Returns random rows [B, spans.size() / B, 6] with these spans.
Tensor rows_with(const std::vector<double>& spans, int64_t batch = 1) {
  const auto n = static_cast<int64_t>(spans.size()) / batch;
  Tensor x = normal({batch, n, 6}, Generator{2}, 0.0, 1.0, DType::f64);
  for (size_t i = 0; i < spans.size(); ++i) x.mut().as<double>()[i * 6] = logit(spans[i]);
  return x;
}

LayerMemory first_memory(const ExpireAttention& layer, int64_t batch) {
  const int64_t rows = layer.capacity();
  const Tensor births = clone(expand(ExpiringRows::first_births(rows, {}), {batch, rows}));
  return LayerMemory::of(free_rows(batch, rows, 6, DType::f64, {}), ExpiringRows{births, {}});
}

/// Runs a layer on a segment x after `memory`, which becomes the next one.
Output expire_step(const ExpireAttention& layer, const Tensor& x, LayerMemory& memory,
                   Pass pass = {}, const Tensor& limit = {}) {
  LayerContext ctx;
  ctx.memory = memory;
  ctx.block = {x, memory.get<InputRows>().states};
  if (limit) ctx.own.set(SpanLimit{limit});
  ctx.mem_len = layer.capacity();
  Output out = layer.forward(x, ctx, pass);
  memory = *out.kept;
  return out;
}

Tensor rows_from(const Tensor& x, int64_t begin, int64_t n) {
  return contiguous(narrow(x, 1, begin, n));
}

/// Returns the births of the rows of sample b that exist.
std::vector<int64_t> births_of(const LayerMemory& m, int64_t b = 0) {
  const auto all = contiguous(select(m.get<ExpiringRows>().births, 0, b)).to_vector<int64_t>();
  const auto begin = m.get<InputRows>().begin.to_vector<int64_t>()[static_cast<size_t>(b)];
  return {all.begin() + begin, all.end()};
}

/// Returns the weights of head 0 in one pass over x [1, n, 6], as [query][key].
std::vector<std::vector<double>> weights_of(const ExpireAttention& layer, const Tensor& x) {
  const auto all = contiguous(select(select(layer.probabilities(x, {}), 0, 0), 0, 0));
  const auto n = static_cast<size_t>(x.dim(1));
  const std::vector<double> flat = all.to_vector<double>();
  std::vector<std::vector<double>> rows;
  for (size_t i = 0; i < n; ++i)
    rows.emplace_back(flat.begin() + int64_t(i * n), flat.begin() + int64_t(i * n + n));
  return rows;
}

TEST(ExpireSpan, TheLongestSpanIsAttentionOfAllEarlierSteps) {
  constexpr int64_t n = 14;
  const ExpireAttention layer = expire_layer({.most = kLongest, .ramp = 3});
  const Init init{.gen = Generator{5}, .dtype = DType::f64};
  const Tensor p = init.at("p").make({3, 3}, Scheme::normal(1));
  const NoGrad off;
  const Tensor x = rows_with(std::vector<double>(2 * n, kLongest), 2);
  const Projected all = layer.project(x);
  ScoreTerms t;
  t.id = {4, 0};
  t.relation_key = concat({zeros({1, 3}, DType::f64), p, zeros({1, 3}, DType::f64)}, 0);
  const Tensor expected =
      layer.merge(block_attention(all.q, all.k, all.v, patterns::dilated(n, -1, 1), t).out);
  EXPECT_LT(distance(layer.forward(x, {}, Pass{}).y, expected), 1e-14);
  LayerMemory memory = first_memory(layer, 2);
  for (int64_t at = 0; at < n; at += 7) {
    EXPECT_LT(
        distance(expire_step(layer, rows_from(x, at, 7), memory).y, rows_from(expected, at, 7)),
        1e-14);
  }
  std::vector<double> shorter(2 * n, kLongest);
  shorter[0] = 2;
  EXPECT_GT(distance(layer.forward(rows_with(shorter, 2), {}, Pass{}).y, expected), 1e-3);
}

TEST(ExpireSpan, ASpanOf0LeavesTheRamp) {
  constexpr double ramp = 5;
  const ExpireAttention layer = expire_layer({.most = kLongest, .ramp = ramp}, 3, false);
  const auto weights = weights_of(layer, rows_with(std::vector<double>(20, 0)));
  for (const double w : weights[0]) EXPECT_EQ(w, 0);  // the first step sees nothing
  for (int64_t i = 1; i < 20; ++i) {
    double sum = 0;
    for (int64_t j = 0; j < i; ++j) sum += std::max(1 - double(i - j) / ramp, 0.0);
    for (int64_t j = 0; j < 20; ++j) {
      const double m = j < i ? std::max(1 - double(i - j) / ramp, 0.0) : 0;
      EXPECT_NEAR(weights[size_t(i)][size_t(j)], m / sum, 1e-15) << i << " " << j;
    }
  }
}

/// What a training pass over several segments gives.
struct TrainedSegments {
  std::vector<double> losses;
  std::vector<Tensor> gradients;
  SegmentMemory memory;
};

TrainedSegments train_on(ExpireSpan& model, const Tensor& tokens,
                         const std::vector<int64_t>& lengths) {
  for (const NamedTensor& p : named_parameters(model)) set_grad(p.tensor, {});
  TrainedSegments t;
  t.memory = model.empty_memory(tokens.dim(0));
  int64_t at = 0;
  for (const int64_t n : lengths) {
    const Tensor ids = rows_from(tokens, at, n);
    auto result = model.loss(ids, ids, t.memory, training);
    t.losses.push_back(result.total().item());
    backward(result.total());
    t.memory = std::move(result.memory);
    at += n;
  }
  for (const NamedTensor& p : named_parameters(model)) t.gradients.push_back(grad(p.tensor));
  return t;
}

// A model with a position for every distance deletes nothing. If those beyond the first four are
// zero, it is the model with four.
TEST(ExpireSpan, DeletionIsInvisible) {
  for (const NormPlace place : {NormPlace::post, NormPlace::pre}) {
    for (const SpanLoss loss : {SpanLoss::ramp, SpanLoss::direct}) {
      const auto change = [&](auto& c) {
        c.norm = place;
        c.span_loss = loss;
      };
      ExpireSpan model = expire_span(change);
      ExpireSpan keeps = expire_span([&](auto& c) {
        change(c);
        c.positions = 40;
      });
      for (NamedTensor& p : named_parameters(keeps)) {
        std::vector<double> x = parameter(model, p.name).to_vector<double>();
        if (p.name == "positions") x.insert(x.begin(), 36 * 4, 0.0);
        assign(p.tensor, x);
      }
      const Tensor tokens = some_tokens(3, 40, 11);
      const std::vector<int64_t> lengths = {4, 4, 7, 1, 4, 4, 4, 4, 8};
      const TrainedSegments ours = train_on(model, tokens, lengths),
                            all = train_on(keeps, tokens, lengths);
      for (size_t i = 0; i < lengths.size(); ++i) {
        EXPECT_NEAR(ours.losses[i], all.losses[i], 1e-13) << i;
      }
      const TensorList named = named_parameters(model);
      for (size_t i = 0; i < named.size(); ++i) {
        Tensor expected = all.gradients[i];
        if (named[i].name == "positions") expected = contiguous(narrow(expected, 0, 36, 4));
        EXPECT_LT(distance(ours.gradients[i], expected), 1e-12) << named[i].name;
      }
      for (const double rows : stored_rows(all.memory)) EXPECT_EQ(rows, 40);
      for (const double rows : stored_rows(ours.memory)) EXPECT_LT(rows, 14);
    }
  }
}

// Each sample deletes its own: a batch gives what its samples give alone.
TEST(ExpireSpan, SamplesDeleteForThemselves) {
  const ExpireSpan model = expire_span([](auto&) {});
  const Tensor tokens = some_tokens(3, 24, 11);
  const std::vector<int64_t> lengths(6, 4);
  std::vector<double> alone(6, 0.0);
  for (int64_t b = 0; b < 3; ++b) {
    const auto own = losses_of(model, contiguous(narrow(tokens, 0, b, 1)), lengths);
    for (size_t i = 0; i < 6; ++i) alone[i] += own[i] / 3;
  }
  const auto together = losses_of(model, tokens, lengths);
  for (size_t i = 0; i < 6; ++i) EXPECT_NEAR(together[i], alone[i], 1e-13);
  SegmentMemory memory = model.empty_memory(3);
  bool ragged = false;
  for (int64_t at = 0; at < 24; at += 4) {
    model.logits_after(memory, rows_from(tokens, at, 4));
    for (const LayerMemory& m : memory.layers) {
      const auto begin = m.get<InputRows>().begin.to_vector<int64_t>();
      ragged = ragged || begin[0] != begin[1] || begin[1] != begin[2];
    }
  }
  EXPECT_TRUE(ragged);
}

TEST(ExpireSpan, CutsAreIrrelevant) {
  const Tensor tokens = some_tokens(2, 32, 11);
  for (const NormPlace place : {NormPlace::post, NormPlace::pre}) {
    for (const int64_t keep : {0, 6}) {
      const ExpireSpan model = expire_span([&](auto& c) {
        c.norm = place;
        c.always_keep = keep;
      });
      const std::vector<double> single = losses_of(model, tokens, std::vector<int64_t>(32, 1));
      for (const bool evaluation : {false, true}) {
        for (const std::vector<int64_t>& lengths :
             std::vector<std::vector<int64_t>>{std::vector<int64_t>(32, 1),
                                               std::vector<int64_t>(16, 2),
                                               std::vector<int64_t>(8, 4),
                                               {7, 7, 7, 7, 4},
                                               {32}}) {
          const std::vector<double> losses = losses_of(model, tokens, lengths, evaluation);
          auto token = single.begin();
          for (size_t s = 0; s < lengths.size(); ++s) {
            const double expected = std::accumulate(token, token + lengths[s], 0.0);
            EXPECT_NEAR(losses[s], expected, 1e-13 * (1 + expected));
            token += lengths[s];
          }
        }
      }
    }
  }
}

/// Compares losses, logits and gradients of several segments with a file.
void expect_expire_span_golden(const std::string& name, DType dtype, double tolerance) {
  const GoldenFile golden("expire_span", name);
  ExpireSpan model = golden.build<ExpireSpan, ExpireSpanConfig>(dtype);
  const Tensor tokens = golden["input.tokens"], targets = golden["input.targets"];
  const Pass pass{.training = true, .gen = Generator{14}};
  if (model.config().shorten) {  // the file was made with the share that this test draws
    const Tensor share = uniform({1}, pass.at("shorten").gen, 0, 1, DType::f64);
    EXPECT_EQ(share.item(), golden["input.share"].item());
  }
  std::vector<int64_t> ends = golden["input.cuts"].to_vector<int64_t>();
  ends.push_back(tokens.dim(1));
  SegmentMemory memory = model.empty_memory(tokens.dim(0));
  std::vector<Tensor> losses, logits;
  int64_t begin = 0;
  for (const int64_t end : ends) {
    const Tensor ids = rows_from(tokens, begin, end - begin);
    SegmentMemory same = memory;
    logits.push_back(model.logits_after(same, ids));
    auto result = model.loss(ids, rows_from(targets, begin, end - begin), memory, pass);
    losses.push_back(result.total().detach());
    backward(result.total());
    memory = std::move(result.memory);
    begin = end;
  }
  golden.expect("output.losses", stack(losses, 0), tolerance);
  if (!model.config().shorten) golden.expect("output.logits", concat(logits, 1), tolerance);
  golden.expect_gradients(model, tolerance);
}

class ExpireSpanGoldens : public testing::TestWithParam<std::string> {};
TEST_P(ExpireSpanGoldens, InF64) { expect_expire_span_golden(GetParam(), DType::f64, 1e-12); }
TEST_P(ExpireSpanGoldens, InF32) { expect_expire_span_golden(GetParam(), DType::f32, 4e-5); }
INSTANTIATE_TEST_SUITE_P(ExpireSpan, ExpireSpanGoldens,
                         testing::ValuesIn(golden_names("expire_span")), own_name);

// Integers a little below, so that rounding does not add a step.
TEST(ExpireSpan, AMemoryIsSeenForItsLife) {
  constexpr int64_t ramp = 3;
  const ExpireAttention layer = expire_layer({.most = kLongest, .ramp = ramp}, 1, false);
  for (const double span : {0.0, 2 - 1e-9, 5.3, 7.9}) {
    std::vector<double> spans(24, 1.5);
    spans[2] = span;
    const Tensor x = rows_with(spans);
    const auto life = static_cast<int64_t>(std::ceil(span)) + ramp - 1;
    const auto weights = weights_of(layer, x);
    int64_t seen = 0;
    for (size_t i = 0; i < 24; ++i) seen += weights[i][2] > 0 ? 1 : 0;
    EXPECT_EQ(seen, life) << span;
    // In the memory it is as long as a later token can see it.
    LayerMemory memory = first_memory(layer, 1);
    int64_t kept = 0;
    for (int64_t t = 0; t < 24; ++t) {
      expire_step(layer, rows_from(x, t, 1), memory);
      const auto births = births_of(memory);
      kept += std::count(births.begin(), births.end(), 3);
    }
    EXPECT_EQ(kept, life) << span;
  }
}

/// Returns the gradient that the penalty on the span of row `at` gets over its life, in segments of
/// `length` rows; all other spans are 0.
double paid(const ExpireOptions& options, double span, size_t at, int64_t length) {
  ExpireAttention layer = expire_layer(options, 2);
  std::vector<double> spans(48, 0);
  spans[at] = span;
  const Tensor x = rows_with(spans);
  LayerMemory memory = first_memory(layer, 1);
  for (int64_t t = 0; t < 48; t += length) {
    backward(expire_step(layer, rows_from(x, t, length), memory, training).losses.at(0).value);
  }
  // All other sigmoids have a derivative of 0.
  return grad(parameter(layer, "span.bias")).item() / (span * (1 - span / kLongest));
}

TEST(ExpireSpan, AMemoryPaysOnceForItsSpan) {
  constexpr double alpha = 0.7;
  constexpr int64_t length = 4;
  for (const SpanLoss loss : {SpanLoss::ramp, SpanLoss::direct}) {
    const ExpireOptions options{.most = kLongest, .ramp = 3, .penalty = alpha, .loss = loss};
    for (const double span : {0.4, 5.3, 7.9, 12.5}) {
      for (size_t at = 0; at < 5; ++at) {
        EXPECT_NEAR(paid(options, span, at, length), alpha / length, 1e-13) << span << " " << at;
      }
    }
    // An integer span is at both ends of its ramp, which do not count.
    const double share = loss == SpanLoss::ramp ? 2.0 / 3 : 1;
    EXPECT_NEAR(paid(options, 8, 1, length), share * alpha / length, 1e-13);
  }
}

TEST(ExpireSpan, BothLossesHaveTheSameGradientOverAStream) {
  constexpr int64_t length = 4, segments = 12;
  std::vector<Tensor> weight, bias, rows;
  for (const SpanLoss loss : {SpanLoss::ramp, SpanLoss::direct}) {
    ExpireAttention layer =
        expire_layer({.most = kLongest, .ramp = 3, .penalty = 0.9, .loss = loss}, 2);
    Tensor w = parameter(layer, "span.weight");
    assign(w, {0.4, -0.3, 0.2, 0.5, -0.1, 0.3});
    Tensor x = normal({2, length * segments, 6}, Generator{2}, 0.0, 1.0, DType::f64);
    for (int64_t i = 0; i < x.numel(); ++i) {  // the second half lives for 0 steps and pays nothing
      const auto in = w.to_vector<double>()[static_cast<size_t>(i % 6)];
      if (i / 6 % (length * segments) >= length * segments / 2)
        x.mut().as<double>()[i] = -4000 * in;
    }
    LayerMemory memory = first_memory(layer, 2);
    std::vector<Tensor> own;
    for (int64_t s = 0; s < segments; ++s) {
      Tensor h = rows_from(x, s * length, length).detach();
      set_requires_grad(h, true);
      backward(expire_step(layer, h, memory, training).losses.at(0).value);
      own.push_back(grad(h));
    }
    weight.push_back(grad(w));
    bias.push_back(grad(parameter(layer, "span.bias")));
    rows.push_back(concat(own, 1));
  }
  EXPECT_GT(std::abs(bias[0].item()), 0.1);
  EXPECT_LT(distance(weight[0], weight[1]), 1e-13);
  EXPECT_LT(distance(bias[0], bias[1]), 1e-13);
  EXPECT_GT(distance(rows[0], rows[1]), 1e-3);
}

/// Returns a memory of several segments, in which samples hold different numbers of rows.
SegmentMemory ragged_memory(const ExpireSpan& model, int64_t batch, int64_t length) {
  const NoGrad off;
  SegmentMemory memory = model.empty_memory(batch);
  for (int64_t s = 0; s < 4; ++s) {
    model.logits_after(memory, some_tokens(batch, length, 11, static_cast<uint64_t>(s)));
    if (s == 2) {
      std::vector<uint8_t> reset(static_cast<size_t>(batch), 0);
      reset.back() = 1;
      memory = forget(memory, Tensor::from(reset, {batch}));
    }
  }
  return memory;
}

TEST(ExpireSpan, CachedRowsAreConstants) {
  for (const NormPlace place : {NormPlace::post, NormPlace::pre}) {
    ExpireSpan model = expire_span([&](auto& c) { c.norm = place; });
    const Tensor tokens = some_tokens(2, 5, 11);
    const SegmentMemory memory = ragged_memory(model, 2, 4);
    auto result = model.loss(tokens, tokens, memory, training);
    for (const NamedTensor& m : named_tensors(result.memory)) {
      EXPECT_FALSE(requires_grad(m.tensor)) << m.name;
    }
    backward(result.total());
    for (const NamedTensor& m : named_tensors(memory)) EXPECT_FALSE(grad(m.tensor)) << m.name;
    // Differences with the memory as it is: the norm of cached rows belongs to the function.
    for (const char* name : {"layers.1.attention.span.weight", "layers.1.attention.span.bias",
                             "layers.0.norm1.weight", "layers.0.norm1.bias"}) {
      Tensor w = parameter(model, name);
      const std::vector<double> at = w.to_vector<double>();
      const auto dw = grad(w).to_vector<double>();
      for (size_t i = 0; i < at.size(); ++i) {
        const auto loss = [&](double by) {
          const NoGrad off;
          std::vector<double> moved = at;
          moved[i] += by;
          assign(w, moved);
          return model.loss(tokens, tokens, memory, training).total().item();
        };
        constexpr double h = 1e-6;
        EXPECT_NEAR(dw[i], (loss(h) - loss(-h)) / (2 * h), 1e-7) << name << " " << i;
      }
      assign(w, at);
    }
  }
}

// The gradient of a pre-norm's gain has parts of rows that are in the memory alone.
TEST(ExpireSpan, TheNormOfCachedRowsIsTrained) {
  ExpireSpan model = expire_span([](auto& c) {
    c.norm = NormPlace::pre;
    c.n_layer = 1;
  });
  const Tensor tokens = some_tokens(2, 1, 11);
  const auto gradient = [&](const SegmentMemory& memory) {
    for (const NamedTensor& p : named_parameters(model)) set_grad(p.tensor, {});
    backward(model.loss(tokens, tokens, memory, training).loss);
    return grad(parameter(model, "layers.0.norm1.bias"));
  };
  // Without a memory the only row sees nothing, so that nothing depends on its norm.
  EXPECT_EQ(distance(gradient(model.empty_memory(2)), zeros({8}, DType::f64)), 0);
  EXPECT_GT(distance(gradient(ragged_memory(model, 2, 4)), zeros({8}, DType::f64)), 1e-3);
}

TEST(ExpireSpan, ShortenedSpans) {
  const ExpireOptions options{.most = kLongest, .ramp = 3, .penalty = 1};
  ExpireAttention layer = expire_layer(options);
  std::vector<double> spans;
  for (int64_t i = 0; i < 24; ++i) spans.push_back(1 + 0.61 * static_cast<double>(i % 20));
  const Tensor x = rows_with(spans, 2);
  std::vector<double> none(24, 0.0);
  const Tensor dead = rows_with(none, 2);
  const auto limit = [](double nu) { return full({1}, nu * kLongest, DType::f64); };
  const auto run = [&](const Tensor& rows, const Tensor& at) {
    LayerMemory memory = first_memory(layer, 2);
    std::vector<Tensor> y;
    for (int64_t t = 0; t < 12; t += 4)
      y.push_back(expire_step(layer, rows_from(rows, t, 4), memory, {}, at).y);
    return std::pair(concat(y, 1), memory);
  };
  const auto off = run(x, {}), full_share = run(x, limit(1)), no_share = run(x, limit(0)),
             some_share = run(x, limit(0.3));
  EXPECT_TRUE(same_bits(full_share.first, off.first));
  EXPECT_LT(distance(no_share.first, run(dead, {}).first), 1e-14);
  EXPECT_GT(distance(some_share.first, off.first), 1e-3);
  EXPECT_GT(distance(some_share.first, no_share.first), 1e-3);
  for (const auto& each : {full_share, no_share, some_share}) {  // deleted by their own spans
    EXPECT_EQ(births_of(each.second, 0), births_of(off.second, 0));
    EXPECT_EQ(births_of(each.second, 1), births_of(off.second, 1));
  }
  // No span is shorter than 1, so that none has a gradient below; some have above.
  for (const SpanLoss loss : {SpanLoss::ramp, SpanLoss::direct}) {
    ExpireOptions with = options;
    with.loss = loss;
    ExpireAttention pays = expire_layer(with);
    for (const double nu : {0.05, 0.3}) {
      set_grad(parameter(pays, "span.bias"), {});
      LayerMemory memory = first_memory(pays, 2);
      for (int64_t t = 0; t < 12; t += 4) {
        const Output out = expire_step(pays, rows_from(x, t, 4), memory, training, limit(nu));
        backward(add(sum(square(out.y)), out.losses.at(0).value));
      }
      const Tensor db = grad(parameter(pays, "span.bias"));
      EXPECT_EQ(db && db.item() != 0, nu > 0.1) << nu;
    }
  }
}

TEST(ExpireSpan, OneShareForAllLayersInTrainingOnly) {
  const auto with = [](bool shorten) {
    return expire_span([&](auto& c) {
      c.shorten = shorten;
      c.span_penalty = 0;
    });
  };
  const ExpireSpan plain = with(false), shortened = with(true);
  const Tensor tokens = some_tokens(2, 20, 11);
  const auto loss = [&](const ExpireSpan& m, Pass pass) {
    const NoGrad off;
    return m.loss(tokens, tokens, m.empty_memory(2), pass).loss.item();
  };
  EXPECT_EQ(loss(shortened, Pass{}), loss(plain, Pass{}));
  EXPECT_NE(loss(shortened, training), loss(plain, training));
  EXPECT_NE(loss(shortened, training), loss(shortened, training.at(5)));
}

// 100 tokens, while 14 memories can live: decoding deletes several times, wherever a prompt ends.
TEST(ExpireSpan, DecodesAsSegments) {
  struct Case {
    const char* what;
    ExpireSpanChange change;
  };
  const Case cases[] = {
      {"post-norm", [](auto&) {}},
      {"pre-norm", [](auto& c) { c.norm = NormPlace::pre; }},
      {"phantom rows", [](auto& c) { c.phantom_zero_memory = 4; }},
      {"phantom rows and pre-norm",
       [](auto& c) {
         c.phantom_zero_memory = 4;
         c.norm = NormPlace::pre;
       }},
      {"a least span", [](auto& c) { c.always_keep = 6; }},
      {"no positions", [](auto& c) { c.positions = 0; }},
  };
  for (const Case& each : cases) {
    SCOPED_TRACE(each.what);
    const ExpireSpan model = expire_span(each.change);
    const NoGrad off;
    const Tensor tokens = some_tokens(2, 100, 11);
    SegmentMemory memory = model.empty_memory(2);
    std::vector<Tensor> segments;
    for (int64_t t = 0; t < 100; t += 5) {
      segments.push_back(model.logits_after(memory, rows_from(tokens, t, 5)));
    }
    const Tensor expected = concat(segments, 1);
    for (const std::vector<int64_t>& prompts :
         std::vector<std::vector<int64_t>>{{}, {3}, {40}, {17, 18}, {1, 1, 50, 20}}) {
      auto state = model.start_decoding(2);
      auto prompt = prompts.begin();
      for (int64_t t = 0; t < 100;) {
        const int64_t n = prompt != prompts.end() ? *prompt++ : 1;
        const Tensor decoded = model.decode(rows_from(tokens, t, n), *state);
        t += n;
        EXPECT_LT(distance(decoded, contiguous(select(expected, 1, t - 1))), 1e-12) << t;
      }
    }
  }
}

TEST(ExpireSpan, BeamsTakeRows) {
  for (const int64_t phantom : {0, 4}) {
    const ExpireSpan model = expire_span([&](auto& c) { c.phantom_zero_memory = phantom; });
    const NoGrad off;
    const Tensor tokens = some_tokens(2, 50, 11), next = some_tokens(3, 30, 11, 5);
    const std::vector<int64_t> beams = {1, 1, 0};
    const Tensor from = Tensor::from(beams, {3});
    for (const int64_t before : {0, 7, 50}) {
      auto state = model.start_decoding(2);
      if (before > 0) model.decode(rows_from(tokens, 0, before), *state);
      state->take_rows(from, true);
      const Tensor all = concat({take(rows_from(tokens, 0, before), from), next}, 1);
      auto alone = model.start_decoding(3);
      if (before > 0) model.decode(rows_from(all, 0, before), *alone);
      for (int64_t t = 0; t < 30; ++t) {
        EXPECT_LT(distance(model.decode(rows_from(next, t, 1), *state),
                           model.decode(rows_from(next, t, 1), *alone)),
                  1e-13);
      }
    }
  }
}

/// Returns the bytes allocated while f runs, without the workspace of kernels.
template <class F>
int64_t bytes_of(F&& f) {
  const MemoryTrace trace(Device{});
  f();
  int64_t bytes = 0;
  for (const MemoryTrace::Block& b : trace.blocks()) {
    if (b.category != Category::workspace) bytes += b.bytes;
  }
  return bytes;
}

TEST(ExpireSpan, ATokenCopiesNoMemory) {
  std::vector<int64_t> least;
  for (const int64_t rows : {800, 3200}) {
    ExpireSpan model = expire_span(
        [&](auto& c) {
          c.span_max = rows;
          c.span_ramp = 1;
          c.n_layer = 1;
        },
        DType::f32);
    set_all_spans(model, true);
    const NoGrad off;
    EXPECT_EQ(model.memory_length(), rows);
    auto state = model.start_decoding(1);
    model.decode(some_tokens(1, rows, 11), *state);
    const auto period = static_cast<int64_t>(std::sqrt(2.0 * double(rows)));
    int64_t copies = 0;
    least.push_back(rows * 8 * 4);  // bytes of the keys
    for (int64_t t = 0; t <= 5 * period; ++t) {
      const Tensor token = some_tokens(1, 1, 11, static_cast<uint64_t>(t));
      const int64_t bytes = bytes_of([&] { model.decode(token, *state); });
      copies += bytes >= rows * 8 * 4 ? 1 : 0;
      least.back() = std::min(least.back(), bytes);
    }
    EXPECT_EQ(copies, 5) << rows;
  }
  EXPECT_EQ(least[0], least[1]);  // however many rows there are
}

TEST(ExpireSpan, DecodingSaysWhereThereIsNoSpace) {
  const auto with = [](Overflow overflow) {
    return expire_span([&](auto& c) {
      c.max_memory = 5;
      c.overflow = overflow;
      c.positions = 2;
    });
  };
  const NoGrad off;
  const Tensor tokens = some_tokens(2, 60, 11);
  ExpireSpan strict = with(Overflow::error), drops = with(Overflow::drop);
  set_all_spans(strict, true);
  set_all_spans(drops, true);
  const auto decode = [&](const ExpireSpan& model) {
    auto state = model.start_decoding(2);
    for (int64_t t = 0; t < 60; ++t) model.decode(rows_from(tokens, t, 1), *state);
  };
  const std::string message = message_of<ValueError>([&] { decode(strict); });
  EXPECT_TRUE(contains(message, "memories live in sample 0, but there are 5 rows")) << message;
  decode(drops);
}

TEST(ExpireSpan, SpansComputedOnceAreThoseComputedAgain) {
  for (const NormPlace place : {NormPlace::post, NormPlace::pre}) {
    const ExpireSpan model = expire_span([&](auto& c) { c.norm = place; });
    const Tensor tokens = some_tokens(2, 60, 11);
    for (const int64_t length : {1, 3, 20, 60}) {
      const std::vector<int64_t> lengths(static_cast<size_t>(60 / length), length);
      const auto again = losses_of(model, tokens, lengths),
                 once = losses_of(model, tokens, lengths, true);
      for (size_t i = 0; i < lengths.size(); ++i) EXPECT_NEAR(once[i], again[i], 1e-12);
    }
  }
}

/// Trains on segments with layers left out at random; returns what each segment gives.
struct LeftOut {
  std::vector<double> losses, penalties;
  SegmentMemory memory;
};
LeftOut train_leaving_out(const ExpireSpan& model, const Tensor& tokens, int64_t length) {
  const NoGrad off;
  LeftOut all;
  all.memory = model.empty_memory(tokens.dim(0));
  for (int64_t at = 0; at < tokens.dim(1); at += length) {
    const Tensor ids = rows_from(tokens, at, length);
    auto result =
        model.loss(ids, ids, all.memory, {.training = true, .gen = Generator{uint64_t(at)}});
    all.losses.push_back(result.loss.item());
    all.penalties.push_back(result.auxiliary.at(0).value.item());
    all.memory = std::move(result.memory);
  }
  return all;
}

// Layers that are all left out see the embeddings. What they remember, delete and pay is what a
// layer with these inputs does that adds nothing to them.
TEST(ExpireSpan, LayersLeftOutRememberAndPay) {
  const Tensor tokens = some_tokens(2, 40, 11);
  for (const SpanLoss loss : {SpanLoss::ramp, SpanLoss::direct}) {
    const auto with = [&](double layer_drop) {
      return expire_span([&](auto& c) {
        c.norm = NormPlace::pre;
        c.span_loss = loss;
        c.layer_drop = layer_drop;
      });
    };
    const ExpireSpan none = with(1 - 1e-12);
    ExpireSpan idle = with(0);
    for (NamedTensor& p : named_parameters(idle)) {  // layers run, and add zeros
      const bool out = p.name.find(".out.") != p.name.npos;
      if (out) assign(p.tensor, std::vector<double>(size_t(p.tensor.numel()), 0.0));
    }
    const LeftOut left = train_leaving_out(none, tokens, 8),
                  run = train_leaving_out(idle, tokens, 8);
    EXPECT_EQ(left.losses, run.losses);
    EXPECT_EQ(left.penalties, run.penalties);
    const TensorList a = named_tensors(left.memory), b = named_tensors(run.memory);
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(same_bits(a[i].tensor, b[i].tensor)) << i;
  }
}

TEST(ExpireSpan, LayersAreLeftOutAsOftenAsAsked) {
  // With one layer of zeros in every branch but the norm's gain, the loss tells whether it has run.
  const ExpireSpan model = expire_span([](auto& c) {
    c.n_layer = 1;
    c.layer_drop = 0.3;
  });
  const ExpireSpan always = expire_span([](auto& c) { c.n_layer = 1; });
  const Tensor tokens = some_tokens(1, 4, 11);
  const NoGrad off;
  const auto loss = [&](const ExpireSpan& m, Pass pass) {
    return m.loss(tokens, tokens, m.empty_memory(1), pass).loss.item();
  };
  EXPECT_EQ(loss(model, Pass{}), loss(always, Pass{}));
  int left_out = 0;
  for (uint64_t i = 0; i < 1000; ++i) {
    const Pass pass{.training = true, .gen = Generator{i}};
    if (loss(model, pass) != loss(always, pass)) ++left_out;
  }
  EXPECT_NEAR(left_out, 300, 60);  // four standard deviations
}

TEST(ExpireSpan, LayersLeftOutAreRunAgainAlike) {
  std::vector<std::vector<Tensor>> gradients;
  for (const char* policy : {"standard", "checkpoint", "checkpoint:2"}) {
    ExpireSpan model = expire_span([&](auto& c) {
      c.layer_drop = 0.5;
      c.n_layer = 4;
      c.memory = MemoryPolicy(policy);
    });
    gradients.push_back(train_on(model, some_tokens(2, 32, 11), {8, 8, 8, 8}).gradients);
    ASSERT_EQ(gradients.back().size(), gradients[0].size());
    for (size_t i = 0; i < gradients[0].size(); ++i) {
      ASSERT_EQ(static_cast<bool>(gradients.back()[i]), static_cast<bool>(gradients[0][i]));
      if (gradients[0][i]) {
        EXPECT_TRUE(same_bits(gradients.back()[i], gradients[0][i])) << policy;
      }
    }
  }
  EXPECT_TRUE(contains(message_of<ValueError>([] {
                         expire_span([](auto& c) {
                           c.layer_drop = 0.5;
                           c.memory = MemoryPolicy("reversible:exact");
                         });
                       }),
                       "reversible layers are never left out"));
}

TEST(ExpireSpan, AResetIsANewStream) {
  for (const bool evaluation : {false, true}) {
    for (const int64_t phantom : {0, 3}) {
      const ExpireSpan model = expire_span([&](auto& c) { c.phantom_zero_memory = phantom; });
      const NoGrad off;
      const Tensor tokens = some_tokens(3, 20, 11);
      const auto memory_of = [&](int64_t batch) {
        return evaluation ? model.evaluation_memory(batch) : model.empty_memory(batch);
      };
      SegmentMemory memory = memory_of(3), alone = memory_of(1), other = memory_of(1);
      for (int64_t t = 0; t < 20; t += 4) {
        const Tensor x = rows_from(tokens, t, 4);
        if (t == 8) memory = forget(memory, Tensor::from(std::vector<uint8_t>{0, 1, 0}, {3}));
        const Tensor all = model.logits_after(memory, x);
        const auto row = [&](const Tensor& y, int64_t b) { return contiguous(narrow(y, 0, b, 1)); };
        EXPECT_LT(distance(row(all, 2), model.logits_after(other, row(x, 2))), 1e-13) << t;
        if (t < 8) continue;
        EXPECT_LT(distance(row(all, 1), model.logits_after(alone, row(x, 1))), 1e-13) << t;
      }
    }
  }
}

TEST(ExpireSpan, TheFirstTokenSeesNothing) {
  const ExpireAttention layer = expire_layer({.most = kLongest, .ramp = 3});
  const Tensor x = rows_with({5, 7}, 2);
  LayerMemory memory = first_memory(layer, 2);
  const Tensor y = expire_step(layer, x, memory).y;
  EXPECT_EQ(distance(y, zeros({2, 1, 6}, DType::f64)), 0);
  EXPECT_EQ(distance(layer.forward(x, {}, Pass{}).y, zeros({2, 1, 6}, DType::f64)), 0);
  EXPECT_EQ(births_of(memory, 1), std::vector<int64_t>{1});
  // Nor does one after memories that are dead, though a position keeps their rows.
  const ExpireAttention short_lived = expire_layer({.most = kLongest, .ramp = 1});
  memory = first_memory(short_lived, 2);
  const Tensor dead = rows_with(std::vector<double>(10, 0.0), 2);
  EXPECT_EQ(distance(expire_step(short_lived, dead, memory).y, zeros({2, 5, 6}, DType::f64)), 0);
  EXPECT_EQ(births_of(memory, 0), (std::vector<int64_t>{3, 4, 5}));
}

TEST(ExpireSpan, NoTokensAndNoSamplesChangeNothing) {
  const ExpireAttention layer = expire_layer({.most = kLongest, .ramp = 3, .penalty = 1});
  const Tensor x = rows_with({5, 7, 2, 9}, 2);
  LayerMemory memory = first_memory(layer, 2);
  expire_step(layer, x, memory);
  const std::vector<int64_t> before = births_of(memory, 1);
  const Output none = expire_step(layer, rows_from(x, 0, 0), memory, training);
  EXPECT_EQ(to_string(none.y.shape()), "[2, 0, 6]");
  EXPECT_EQ(none.losses.at(0).value.item(), 0);
  EXPECT_EQ(births_of(memory, 1), before);
  LayerMemory nobody = first_memory(layer, 0);
  const Output empty = expire_step(layer, zeros({0, 3, 6}, DType::f64), nobody, training);
  EXPECT_EQ(to_string(empty.y.shape()), "[0, 3, 6]");
  EXPECT_EQ(empty.losses.at(0).value.item(), 0);
}

TEST(ExpireSpan, ExtremeMemories) {
  for (const int64_t length : {1, 4}) {
    const auto rows_after = [&](ExpireSpan& model, int64_t tokens) {
      const NoGrad off;
      SegmentMemory memory = model.empty_memory(2);
      std::vector<double> all;
      for (int64_t at = 0; at < tokens; at += length) {
        model.logits_after(memory, some_tokens(2, length, 11, static_cast<uint64_t>(at)));
        const auto living = model.living(memory), stored = stored_rows(memory);
        EXPECT_EQ(living, stored);  // one position: no dead row is kept
        all.push_back(living[0]);
      }
      return all;
    };
    ExpireSpan model = expire_span([](auto& c) { c.positions = 1; });
    set_all_spans(model, false);
    const auto shortest = rows_after(model, 24);
    for (size_t i = 0; i < shortest.size(); ++i) {
      const double read = static_cast<double>((int64_t(i) + 1) * length);
      EXPECT_EQ(shortest[i], std::min(read, 2.0));  // R - 1
    }
    set_all_spans(model, true);
    const auto longest = rows_after(model, 40);
    for (size_t i = 0; i < longest.size(); ++i) {
      const double read = static_cast<double>((int64_t(i) + 1) * length);
      EXPECT_EQ(longest[i], std::min(read, 14.0));  // L + R - 1
    }
  }
}

TEST(ExpireSpan, AlternatingMemories) {
  const ExpireAttention layer = expire_layer({.most = kLongest, .ramp = 3}, 1);
  std::vector<double> spans;
  for (int64_t i = 0; i < 60; ++i) spans.push_back(i % 2 == 0 ? kLongest : 0);
  const Tensor x = rows_with(spans);
  LayerMemory memory = first_memory(layer, 1);
  for (int64_t t = 0; t < 60; t += 5) {
    expire_step(layer, rows_from(x, t, 5), memory);
    std::vector<int64_t> expected;
    for (int64_t birth = 1; birth <= t + 5; ++birth) {
      const int64_t next = t + 6 - birth;  // distance to the next step
      if (next < 3 + (birth % 2 == 1 ? kLongest : 0)) expected.push_back(birth);
    }
    EXPECT_EQ(births_of(memory), expected) << t;
    const Tensor life = layer.lives(memory);
    EXPECT_EQ(sum(cast(greater(life, full({1}, 0, DType::f64)), DType::f64)).item(),
              static_cast<double>(expected.size()));
  }
}

TEST(ExpireSpan, TheMemoryHasTheBytesThatItsShapeSays) {
  const ExpireSpan model = expire_span(
      [](auto& c) {
        c.max_memory = 9;
        c.overflow = Overflow::drop;
      },
      DType::f32);
  const Tensor tokens = some_tokens(3, 5, 11);
  SegmentMemory memory = model.empty_memory(3);
  const auto block = [](int64_t bytes) { return memory::block_bytes(bytes); };
  const int64_t layer = block(3 * 9 * 8 * 4) + block(3 * 9 * 8) + block(3 * 8);
  for (int segment = 0; segment < 4; ++segment) {
    EXPECT_EQ(memory_tracker().live()[Category::memory], 2 * layer) << segment;
    auto result = model.loss(tokens, tokens, memory, training);
    memory = std::move(result.memory);
    backward(result.total());
  }
  memory = {};
  EXPECT_EQ(memory_tracker().live()[Category::memory], 0);
}

TEST(ExpireSpan, WhatHappensWhereThereIsNoSpace) {
  const auto with = [](Overflow overflow) {
    return expire_layer({.most = kLongest, .ramp = 3, .capacity = 6, .overflow = overflow}, 2);
  };
  std::vector<double> spans;
  for (int64_t i = 0; i < 12; ++i) spans.push_back(i % 3 == 0 ? kLongest : 9.5);
  const Tensor x = rows_with(spans);
  const ExpireAttention strict = with(Overflow::error), drops = with(Overflow::drop);
  LayerMemory memory = first_memory(strict, 1);
  expire_step(strict, rows_from(x, 0, 6), memory);
  const std::string message =
      message_of<ValueError>([&] { expire_step(strict, rows_from(x, 6, 6), memory); });
  EXPECT_TRUE(contains(message, "12 memories live in sample 0, but there are 6 rows")) << message;
  EXPECT_TRUE(contains(message, "raise max_memory or set overflow=drop")) << message;
  memory = first_memory(drops, 1);
  expire_step(drops, rows_from(x, 0, 6), memory);
  expire_step(drops, rows_from(x, 6, 6), memory);
  // The four of the longest span, of which the oldest has 16 - 12 steps left, and the newest two:
  // 9.5 - 1 and 9.5 - 2; next is 9 with 9.5 - 4, before 8.
  EXPECT_EQ(births_of(memory), (std::vector<int64_t>{4, 7, 9, 10, 11, 12}));
}

// A device goes on: the error comes when the host waits for it.
TEST(ExpireSpan, OnADeviceTheErrorComesLater) {
  const Device cuda{DeviceKind::cuda, 0};
  if (!is_available(cuda)) GTEST_SKIP() << "skipped: no device";
  ExpireSpanConfig c = tiny_expire_span([](auto& x) { x.max_memory = 6; });
  const ExpireSpan model(c, Init{.gen = Generator{3}, .device = cuda});
  const NoGrad off;
  const Tensor tokens = to_device(some_tokens(2, 12, 11), cuda);  // spans are 3.6: 6 rows live
  SegmentMemory memory = model.empty_memory(2);
  model.logits_after(memory, tokens);
  EXPECT_EQ(model.living(memory), (std::vector<double>{6, 6}));
  c.span_init = 0.9;
  const ExpireSpan longer(c, Init{.gen = Generator{3}, .device = cuda});
  memory = longer.empty_memory(2);
  longer.logits_after(memory, tokens);
  EXPECT_TRUE(contains(message_of<ValueError>([&] { longer.living(memory); }), "memories live"));
}

// An empty memory says when it was made: only differences of steps count.
TEST(ExpireSpan, StepsBeyond32Bits) {
  for (const DType dtype : {DType::f64, DType::f32}) {
    const ExpireSpan model = expire_span([](auto&) {}, dtype);
    const NoGrad off;
    const Tensor tokens = some_tokens(2, 40, 11);
    constexpr int64_t late = (int64_t{1} << 31) - 20;
    SegmentMemory early = model.empty_memory(2), far = model.empty_memory(2);
    for (LayerMemory& m : far.layers) {
      ExpiringRows rows = m.get<ExpiringRows>();
      rows.births = cast(add(cast(rows.births, DType::f64), double(late)), DType::i64);
      m.set(rows);
    }
    for (int64_t t = 0; t < 40; t += 4) {
      const Tensor x = rows_from(tokens, t, 4);
      EXPECT_TRUE(same_bits(model.logits_after(far, x), model.logits_after(early, x))) << t;
      for (size_t i = 0; i < 2; ++i) {
        std::vector<int64_t> expected = births_of(early.layers[i]);
        for (int64_t& birth : expected) birth += late;
        EXPECT_EQ(births_of(far.layers[i]), expected);
      }
    }
    EXPECT_GT(births_of(far.layers[0]).back(), int64_t{1} << 31);
  }
}

TEST(ExpireSpan, Gradients) {
  struct Case {
    const char* what;
    int64_t length;
    bool memory;
    ExpireSpanChange change;
  };
  const Case cases[] = {
      {"several segments", 7, true, [](auto&) {}},
      {"empty memory", 7, false, [](auto&) {}},
      {"one token", 1, true, [](auto&) {}},
      {"one token without memory", 1, false, [](auto&) {}},
      {"a ramp of 1", 7, true, [](auto& c) { c.span_ramp = 1; }},
      {"tau = 64", 7, true, [](auto& c) { c.pre_div = 64; }},
      {"fewer positions than rows", 7, true, [](auto& c) { c.positions = 2; }},
      {"more positions than rows", 7, true, [](auto& c) { c.positions = 11; }},
      {"no positions", 7, true, [](auto& c) { c.positions = 0; }},
      {"dropout", 7, true, [](auto& c) { c.dropout = 0.2f; }},
      {"pre-norm", 7, true, [](auto& c) { c.norm = NormPlace::pre; }},
      {"layers left out", 7, true,
       [](auto& c) {
         c.n_layer = 4;
         c.layer_drop = 0.5;
       }},
      {"layers left out, paid at birth", 7, true,
       [](auto& c) {
         c.n_layer = 3;
         c.layer_drop = 0.5;
         c.norm = NormPlace::pre;
         c.span_loss = SpanLoss::direct;
       }},
      {"paid at birth", 7, true, [](auto& c) { c.span_loss = SpanLoss::direct; }},
      {"shortened", 7, true, [](auto& c) { c.shorten = true; }},
      {"a least span", 7, true, [](auto& c) { c.always_keep = 3; }},
      {"a least span and dropout", 7, true,
       [](auto& c) {
         c.always_keep = 20;
         c.dropout = 0.2f;
       }},
      {"phantom rows", 7, true, [](auto& c) { c.phantom_zero_memory = 4; }},
      {"little space", 7, true,
       [](auto& c) {
         c.max_memory = 5;
         c.overflow = Overflow::drop;
       }},
      {"wide heads", 5, true, [](auto& c) { c.d_head = 5; }},
  };
  for (const Case& each : cases) {
    ExpireSpan model = expire_span(each.change);
    const Tensor tokens = some_tokens(3, each.length, 11);
    const SegmentMemory before = each.memory ? ragged_memory(model, 3, 6) : model.empty_memory(3);
    EXPECT_EQ(check_parameter_gradients(
                  model, [&] { return model.loss(tokens, tokens, before, training).total(); }),
              "")
        << each.what;
  }
}

TEST(ExpireSpan, PhantomRowsTakeAttention) {
  const auto with = [](int64_t phantom) {
    return expire_span([&](auto& c) { c.phantom_zero_memory = phantom; });
  };
  const Tensor tokens = some_tokens(2, 12, 11);
  const auto real = losses_of(with(0), tokens, {6, 6}),
             phantom = losses_of(with(4), tokens, {6, 6});
  EXPECT_GT(std::abs(real[0] - phantom[0]), 1e-3);
  EXPECT_EQ(losses_of(with(4), tokens, {6, 6}, true), phantom);
}

TEST(ExpireSpan, SpansStayF32WhereLayersComputeInBf16) {
  ExpireSpanConfig c = tiny_expire_span([](auto& x) { x.span_max = 3000; });
  c.precision = Precision::bf16;
  ExpireSpan model(c, Init{.gen = Generator{3}});
  const Tensor tokens = some_tokens(1, 20, 11);
  auto result = model.loss(tokens, tokens, model.empty_memory(1), training);
  backward(result.total());
  EXPECT_EQ(grad(parameter(model, "layers.0.attention.span.bias")).dtype(), DType::f32);
  for (const Tensor& e : model.token_spans(tokens, {})) {
    EXPECT_EQ(e.dtype(), DType::f32);
    for (const float x : e.to_vector<float>()) EXPECT_NEAR(x, 900, 0.001);  // p L, as w = 0
  }
}

TEST(ExpireSpan, SaysHowLongTokensLive) {
  const ExpireSpan model = expire_span([](auto& c) { c.norm = NormPlace::pre; });
  const Tensor tokens = some_tokens(2, 9, 11);
  SegmentMemory memory = model.empty_memory(2);
  model.logits_after(memory, tokens);
  const auto spans = model.token_spans(tokens, model.empty_memory(2));
  ASSERT_EQ(spans.size(), 2u);
  const auto living = model.living(memory), stored = stored_rows(memory);
  for (size_t i = 0; i < 2; ++i) {
    const std::vector<double> e = spans[i].to_vector<double>();
    double expected = 0;
    for (int64_t k = 0; k < 18; ++k) {
      expected += e[static_cast<size_t>(k)] + 3 > static_cast<double>(9 - k % 9) ? 0.5 : 0;
    }
    EXPECT_EQ(living[i], expected);
    EXPECT_GE(stored[i], std::max(living[i], 4.0));
  }
  EXPECT_TRUE(contains(model.remark(4), "memories live up to 12 steps, 3.6 at first"));
}

TEST(ExpireSpan, HasThePublishedSize) {
  EXPECT_NEAR(static_cast<double>(expire_span_entry().make("enwik8_12")->parameters()), 38e6,
              0.5e6);
}

TEST(ExpireSpan, SaysWhatDoesNotFit) {
  const auto refusal = [](const ExpireSpanChange& change) {
    return message_of<ValueError>([&] { expire_span(change); });
  };
  EXPECT_TRUE(contains(refusal([](auto& c) { c.span_max = 0; }), "span_max"));
  EXPECT_TRUE(contains(refusal([](auto& c) { c.span_ramp = 0.5; }), "span_ramp"));
  EXPECT_TRUE(contains(refusal([](auto& c) { c.span_init = 1; }), "a share of span_max"));
  EXPECT_TRUE(contains(refusal([](auto& c) { c.span_penalty = -1; }), "span_penalty"));
  EXPECT_TRUE(contains(refusal([](auto& c) { c.pre_div = 0; }), "pre_div"));
  EXPECT_TRUE(contains(refusal([](auto& c) { c.positions = -1; }), "positions"));
  EXPECT_TRUE(contains(refusal([](auto& c) { c.max_memory = 3; }), "at least positions = 4"));
  EXPECT_TRUE(
      contains(refusal([](auto& c) { c.phantom_zero_memory = 15; }), "at most the 14 rows"));
  const ExpireSpan model = expire_span([](auto&) {});
  const Tensor tokens = some_tokens(2, 6, 11);
  EXPECT_TRUE(contains(message_of<ValueError>([&] {
                         model.loss(tokens, tokens, model.evaluation_memory(2), training);
                       }),
                       "training takes empty_memory()"));
  EXPECT_THROW(model.loss(tokens, tokens, model.empty_memory(3), Pass{}), ShapeError);
  SegmentMemory unborn = model.empty_memory(2);
  unborn.layers[0].drop<ExpiringRows>();
  EXPECT_THROW(model.loss(tokens, tokens, unborn, Pass{}), ValueError);
}

}  // namespace
}  // namespace longspan::test
