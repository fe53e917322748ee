// Linformer, and files that other implementations made.

#include "models/linformer/linformer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "autograd/engine.h"
#include "autograd/mode.h"
#include "core/memory.h"
#include "models/transformer/transformer.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/index.h"
#include "ops/matmul.h"
#include "ops/pool.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/shape.h"
#include "tests/harness/messages.h"
#include "tests/models/golden_file.h"

namespace longspan::test {
namespace {

using LinformerChange = std::function<void(LinformerConfig&)>;

LinformerConfig tiny_linformer(const LinformerChange& change = [](LinformerConfig&) {}) {
  LinformerConfig c = linformer_preset("tiny");
  change(c);
  return c;
}

/// Every kind of projection with every sharing and order.
std::vector<LinformerConfig> all_kinds() {
  std::vector<LinformerConfig> all;
  for (const auto projection :
       {RowProjection::linear, RowProjection::conv, RowProjection::mean, RowProjection::max}) {
    const bool weights = projection == RowProjection::linear || projection == RowProjection::conv;
    for (const auto sharing : {ProjectionSharing::none, ProjectionSharing::headwise,
                               ProjectionSharing::kv, ProjectionSharing::layerwise}) {
      if (!weights && sharing != ProjectionSharing::none) continue;
      for (const auto order : {ProjectionOrder::input, ProjectionOrder::key}) {
        all.push_back(tiny_linformer([&](auto& c) {
          c.projection = projection;
          c.sharing = sharing;
          c.projection_order = order;
        }));
      }
    }
  }
  return all;
}

std::string text_of(const LinformerConfig& c) {
  return fmt::format("{} {} {}", name_of_value(c.projection), name_of_value(c.sharing),
                     name_of_value(c.projection_order));
}

bool is_projection(const std::string& name) {
  return name.ends_with("attention.e.weight") || name.ends_with("attention.f.weight");
}

/// Sets every E and F to `values` [r, n], for each head if these have their own.
void set_projections(Module& model, const Tensor& values) {
  for (NamedTensor& p : named_parameters(model)) {
    if (!is_projection(p.name)) continue;
    assign(p.tensor, contiguous(expand(values, p.tensor.shape())).to_vector<double>());
  }
}

Tensor identity(int64_t n) {
  return cast(equal(unsqueeze(iota(n), 1), unsqueeze(iota(n), 0)), DType::f64);
}

/// [r, n] with 1 / c at the rows of window t.
Tensor averages(int64_t r, int64_t n) {
  const int64_t c = n / r;
  std::vector<double> e(static_cast<size_t>(r * n), 0.0);
  for (int64_t s = 0; s < n; ++s) e[static_cast<size_t>(s / c * n + s)] = 1.0 / double(c);
  return Tensor::from(e, {r, n});
}

struct TrainedLinformer {
  Tensor hidden;
  std::map<std::string, Tensor> gradients;  ///< by name; zero for the head
};

/// Returns the hidden states and the gradients of their sum, weighted by position and channel, over
/// the rows that exist.
TrainedLinformer trained_linformer(Encoder& model, const Tensor& tokens, const Tensor& lengths) {
  for (const NamedTensor& p : named_parameters(model)) set_grad(p.tensor, {});
  const Tensor y = model.forward({.tokens = tokens, .lengths = lengths}, Pass{});
  Tensor w = normal({1, 64, y.dim(2)}, Generator{5}, 0, 1, DType::f64);
  w = expand(narrow(w, 1, 0, y.dim(1)), y.shape());
  const Tensor rows = unsqueeze(iota(y.dim(1)), 0);
  const Tensor ends = lengths ? unsqueeze(lengths, 1) : full({1, 1}, double(y.dim(1)), DType::i64);
  const Tensor valid = unsqueeze(less(rows, ends), 2);
  backward(sum(mul(where(valid, y, zeros_like(y.detach())), w)));
  TrainedLinformer t{y.detach(), {}};
  for (const NamedTensor& p : named_parameters(model)) {
    t.gradients[p.name] = grad(p.tensor) ? grad(p.tensor) : zeros_like(p.tensor.detach());
  }
  return t;
}

Tensor vector_of(const std::vector<int64_t>& values) {
  return Tensor::from(values, {static_cast<int64_t>(values.size())});
}

// With r = n and E = F = 1, attention is exact, forward and backward.
TEST(Linformer, TheIdentityIsFullAttention) {
  for (const auto sharing : {ProjectionSharing::none, ProjectionSharing::headwise,
                             ProjectionSharing::kv, ProjectionSharing::layerwise}) {
    for (const auto order : {ProjectionOrder::input, ProjectionOrder::key}) {
      const LinformerConfig c = tiny_linformer([&](auto& x) {
        x.r = {24};
        x.sharing = sharing;
        x.projection_order = order;
      });
      SCOPED_TRACE(text_of(c));
      Linformer model(c, in_f64);
      randomise(model, 0.3, 5);
      set_projections(model, identity(24));
      TransformerConfig t;
      t.wiring = Wiring::encoder;
      t.vocab = c.vocab;
      t.n_layer = c.n_layer;
      t.n_head = c.n_head;
      t.d_model = c.d_model;
      t.d_ff = c.d_ff;
      t.n_max = c.n_max;
      t.norm = c.norm;
      t.norm_eps = c.norm_eps;
      t.activation = c.activation;
      t.positions = Positions::learned;
      t.qkv_bias = t.out_bias = t.head_bias = t.emb_norm = t.mlm_head = t.tie_embedding = true;
      Transformer dense(t, in_f64);
      for (NamedTensor& p : named_parameters(dense)) {
        assign(p.tensor, parameter(model, p.name).to_vector<double>());
      }
      const Tensor tokens = some_tokens(2, 24, c.vocab), targets = mlm_targets(tokens);
      EXPECT_LE(distance(model.logits(tokens, Pass{}), dense.logits(tokens, Pass{})), 1e-12);
      backward(model.loss(tokens, targets, {}, Pass{}).loss);
      backward(dense.loss(tokens, targets, {}, Pass{}).loss);
      for (const NamedTensor& p : named_parameters(dense)) {
        EXPECT_LE(distance(grad(parameter(model, p.name)), grad(p.tensor)), 1e-12) << p.name;
      }
    }
  }
}

// Averages of blocks are attention over pooled keys and values, which projection = mean
// computes.
TEST(Linformer, AveragesAreMeanPooledKeys) {
  const int64_t n = 24, r = 6, width = 16;
  const AttentionOptions heads{.d_model = width, .n_head = 2, .qkv_bias = true, .out_bias = true};
  const Tensor x = normal({2, n, width}, Generator{3}, 0, 1, DType::f64);
  for (const auto order : {ProjectionOrder::input, ProjectionOrder::key}) {
    LinformerOptions o{.order = order, .n_max = n, .r = r};
    LinformerAttention layer(heads, o, nullptr, in_f64);
    randomise(layer, 0.4, 9);
    Tensor e = parameter(layer, "e.weight"), f = parameter(layer, "f.weight");
    assign(e, averages(r, n).to_vector<double>());
    assign(f, averages(r, n).to_vector<double>());
    const NoGrad off;
    const auto of = [&](const char* name) {
      const Tensor y = linear(x, parameter(layer, std::string(name) + ".weight"),
                              parameter(layer, std::string(name) + ".bias"));
      return transpose(unflatten(y, 2, 2, width / 2), 1, 2);
    };
    const PoolWindow window{.size = n / r, .stride = n / r};
    const Tensor scores = matmul(of("q"), transpose(mean_pool(of("k"), window), 2, 3));
    const Tensor p = exp(div(scores, std::sqrt(width / 2.0)));
    const Tensor mixed = matmul(div(p, sum(p, {3}, true)), mean_pool(of("v"), window));
    const Tensor expected = linear(flatten(transpose(mixed, 1, 2), 2, 3),
                                   parameter(layer, "out.weight"), parameter(layer, "out.bias"));
    EXPECT_LE(distance(layer.forward(x, {}, Pass{}).y, expected), 1e-12);
    o.projection = RowProjection::mean;
    LinformerAttention pooled(heads, o, nullptr, in_f64);
    for (NamedTensor& w : named_parameters(pooled)) {
      assign(w.tensor, parameter(layer, w.name).to_vector<double>());
    }
    EXPECT_LE(distance(pooled.forward(x, {}, Pass{}).y, expected), 1e-12);
  }
}

// A short input is a long one with padding, forward and backward.
TEST(Linformer, SlicesArePaddedInputs) {
  for (const LinformerConfig& c : all_kinds()) {
    SCOPED_TRACE(text_of(c));
    Linformer model(c, in_f64);
    randomise(model, 0.3, 5);
    for (const int64_t length : {1, 4, 7, 12, 23}) {
      const Tensor tokens = some_tokens(2, 24, c.vocab);
      const TrainedLinformer padded = trained_linformer(model, tokens, vector_of({length, length}));
      const TrainedLinformer sliced =
          trained_linformer(model, contiguous(narrow(tokens, 1, 0, length)), {});
      EXPECT_TRUE(same_bits(contiguous(narrow(padded.hidden, 1, 0, length)), sliced.hidden))
          << length;
      for (const auto& [name, g] : padded.gradients) {
        EXPECT_LE(distance(g, sliced.gradients.at(name)), 1e-12) << length << " " << name;
      }
    }
  }
}

// What stands in the padding, and how much there is, changes no bit.
TEST(Linformer, PaddingChangesNoBit) {
  for (const LinformerConfig& c : all_kinds()) {
    SCOPED_TRACE(text_of(c));
    const Linformer model(c, Init{.gen = Generator{7}});
    const NoGrad off;
    const Tensor tokens = some_tokens(3, 19, c.vocab), others = some_tokens(3, 19, c.vocab, 2);
    const Tensor lengths = vector_of({9, 0, 19});
    const Tensor kept = unsqueeze(less(iota(19), unsqueeze(lengths, 1)), 2);
    const auto hidden = [&](const Tensor& t) {
      const Tensor y = model.forward({.tokens = t, .lengths = lengths}, Pass{});
      return where(kept, y, zeros_like(y));
    };
    const Tensor mixed = where(select(kept, 2, 0), tokens, others);
    EXPECT_TRUE(same_bits(hidden(tokens), hidden(mixed)));
    const Tensor alone =
        model.forward({.tokens = contiguous(narrow(narrow(tokens, 0, 0, 1), 1, 0, 9))}, Pass{});
    EXPECT_TRUE(same_bits(contiguous(narrow(narrow(hidden(tokens), 0, 0, 1), 1, 0, 9)), alone));
  }
}

// Parameters of E and F: 2 H N, 2 N, N and 1 matrices.
TEST(Linformer, CountsOfMatrices) {
  const auto matrices = [](ProjectionSharing sharing) {
    LinformerConfig c = linformer_preset("base512");
    c.sharing = sharing;
    Linformer model(c, Init{.meta = true});
    int64_t n = 0;
    for (const NamedTensor& p : named_parameters(model)) {
      if (is_projection(p.name)) n += p.tensor.numel();
    }
    EXPECT_EQ(n % (128 * 512), 0);
    return n / (128 * 512);
  };
  EXPECT_EQ(matrices(ProjectionSharing::none), 288);
  EXPECT_EQ(matrices(ProjectionSharing::headwise), 24);
  EXPECT_EQ(matrices(ProjectionSharing::kv), 12);
  EXPECT_EQ(matrices(ProjectionSharing::layerwise), 1);
}

// Matrices that are shared get the sum of the gradients of copies that are not.
TEST(Linformer, GradientsOfSharedMatricesAreSums) {
  const Tensor tokens = some_tokens(2, 19, 23);
  for (const auto sharing :
       {ProjectionSharing::headwise, ProjectionSharing::kv, ProjectionSharing::layerwise}) {
    Linformer tied(tiny_linformer([&](auto& c) { c.sharing = sharing; }), in_f64);
    randomise(tied, 0.3, 5);
    Linformer untied(tiny_linformer([&](auto& c) { c.sharing = ProjectionSharing::none; }), in_f64);
    std::map<std::string, Tensor> sums;  // by the name of the shared matrix
    const auto owner = [&](std::string name) {
      if (!is_projection(name) || sharing == ProjectionSharing::headwise) return name;
      name.replace(name.size() - 8, 1, "e");
      if (sharing == ProjectionSharing::layerwise) name.replace(7, 1, "0");
      return name;
    };
    for (NamedTensor& p : named_parameters(untied)) {
      const Tensor value = parameter(tied, owner(p.name)).detach();
      assign(p.tensor, contiguous(expand(value, p.tensor.shape())).to_vector<double>());
    }
    const TrainedLinformer a = trained_linformer(tied, tokens, {}),
                           b = trained_linformer(untied, tokens, {});
    EXPECT_LE(distance(a.hidden, b.hidden), 1e-12);
    for (const auto& [name, g] : b.gradients) {
      Tensor& total = sums[owner(name)];
      const Tensor one = is_projection(name) ? sum(g, {0}) : g;
      total = total ? add(total, one) : one;
    }
    for (const auto& [name, g] : a.gradients) {
      EXPECT_LE(distance(g, sums.at(name)), 1e-12) << name;
      if (is_projection(name)) {
        EXPECT_GT(distance(g, zeros_like(g)), 1e-3) << name;
      }
    }
  }
}

// Both orders are equal without biases. With them they differ by b (sum over s of E_ts - 1).
TEST(Linformer, OrdersDifferByRowSums) {
  const int64_t n = 10, r = 4, width = 6;
  const Tensor x = normal({2, 9, width}, Generator{3}, 0, 1, DType::f64);
  for (const auto sharing : {ProjectionSharing::none, ProjectionSharing::headwise,
                             ProjectionSharing::kv, ProjectionSharing::layerwise}) {
    const auto layer = [&](ProjectionOrder order, bool bias) {
      return LinformerAttention({.d_model = width, .n_head = 2, .qkv_bias = bias},
                                {.sharing = sharing, .order = order, .n_max = n, .r = r}, nullptr,
                                in_f64);
    };
    LinformerAttention input = layer(ProjectionOrder::input, false);
    randomise(input, 0.4, 9);
    LinformerAttention key = layer(ProjectionOrder::key, false);
    copy_parameters(input, key);
    const NoGrad off;
    EXPECT_LE(distance(input.forward(x, {}, Pass{}).y, key.forward(x, {}, Pass{}).y), 1e-14);

    // All scores are 0 and the output is the mean of the projected values.
    LinformerAttention biased_input = layer(ProjectionOrder::input, true);
    randomise(biased_input, 0.4, 9);
    Tensor q = parameter(biased_input, "q.weight"), bq = parameter(biased_input, "q.bias");
    Tensor out = parameter(biased_input, "out.weight");
    assign(q, std::vector<double>(36, 0.0));
    assign(bq, std::vector<double>(6, 0.0));
    assign(out, identity(width).to_vector<double>());
    LinformerAttention biased_key = layer(ProjectionOrder::key, true);
    copy_parameters(biased_input, biased_key);
    const bool one = sharing == ProjectionSharing::kv || sharing == ProjectionSharing::layerwise;
    Tensor f = parameter(biased_input, one ? "e.weight" : "f.weight").detach();
    if (f.rank() == 2) f = unsqueeze(f, 0);
    const Tensor sums = sum(narrow(f, 2, 0, 9), {1, 2});  // [H or 1]
    const Tensor excess = sub(div(sums, static_cast<double>(r)), 1);
    const Tensor bias = unflatten(parameter(biased_input, "v.bias").detach(), 0, 2, 3);
    const Tensor expected = flatten(contiguous(mul(bias, unsqueeze(excess, 1))), 0, 1);
    const Tensor difference =
        sub(biased_key.forward(x, {}, Pass{}).y, biased_input.forward(x, {}, Pass{}).y);
    EXPECT_LE(distance(difference, contiguous(expand(expected, difference.shape()))), 1e-14);
    EXPECT_GT(distance(difference, zeros_like(difference)), 1e-3);
  }
}

// There is no causal form.
TEST(Linformer, CausalityIsRefused) {
  const LinformerConfig c = tiny_linformer([](auto& x) { x.causal = true; });
  EXPECT_TRUE(contains(message_of<ValueError>([&] { Linformer(c, in_f64); }),
                       "linformer: causal is true; expected false"));
}

// No block of a training step has L^2 elements, nor L r for each head.
TEST(Linformer, NothingIsQuadratic) {
  constexpr int64_t length = 4096, r = 64;
  for (const auto projection : {RowProjection::linear, RowProjection::mean, RowProjection::conv}) {
    const LinformerConfig c = tiny_linformer([&](auto& x) {
      x.n_max = length;
      x.r = {r};
      x.n_head = 8;
      x.projection = projection;
    });
    const Linformer model(c, Init{.gen = Generator{1}});
    const Tensor tokens = some_tokens(1, length, c.vocab);
    const MemoryTrace trace({});
    backward(model.loss(tokens, mlm_targets(tokens), {}, training).loss);
    int64_t largest = 0;
    for (const MemoryTrace::Block& b : trace.blocks()) largest = std::max(largest, b.bytes);
    EXPECT_GE(largest, length * c.d_ff * 4);
    EXPECT_LT(largest, length * r * c.n_head * 4);
    EXPECT_LT(largest, length * length);
  }
}

// Gradients of E, F and all weights in every mode, with lengths.
TEST(Linformer, GradientsOfEveryMode) {
  for (const LinformerConfig& c : all_kinds()) {
    SCOPED_TRACE(text_of(c));
    Linformer model(c, in_f64);
    randomise(model, 0.3, 5);
    const Tensor tokens = some_tokens(3, 13, c.vocab);
    const Tensor targets = mlm_targets(tokens), lengths = vector_of({13, 6, 1});
    const auto loss = [&] {
      return model.loss(model.forward({.tokens = tokens, .lengths = lengths}, training), targets);
    };
    EXPECT_EQ(check_parameter_gradients(model, loss, 7), "");
  }
}

class LinformerGoldens : public testing::TestWithParam<std::string> {};

void expect_linformer_golden(const std::string& name, DType dtype, double tolerance) {
  const GoldenFile golden("linformer", name);
  Linformer model = golden.build<Linformer, LinformerConfig>(dtype);
  expect_golden_encoder(golden, model, tolerance);
}

TEST_P(LinformerGoldens, InF64) { expect_linformer_golden(GetParam(), DType::f64, 1e-11); }
TEST_P(LinformerGoldens, InF32) { expect_linformer_golden(GetParam(), DType::f32, 1e-5); }
INSTANTIATE_TEST_SUITE_P(Linformer, LinformerGoldens, testing::ValuesIn(golden_names("linformer")),
                         own_name);

TEST(Linformer, FrozenMatricesAreStateWithoutGradient) {
  Linformer learned(tiny_linformer(), in_f64),
      frozen(tiny_linformer([](auto&c) { c.freeze_projection = true; }), in_f64);
  EXPECT_EQ(parameter_count(learned) - parameter_count(frozen), 2 * 2 * 6 * 24);
  TensorList state = named_buffers(frozen);
  ASSERT_EQ(state.size(), 4u);
  for (const NamedTensor& b : state) {
    EXPECT_FALSE(requires_grad(b.tensor)) << b.name;
    EXPECT_TRUE(same_bits(b.tensor, parameter(learned, b.name).detach())) << b.name;
  }
  const Tensor tokens = some_tokens(2, 17, 23);
  const TrainedLinformer a = trained_linformer(learned, tokens, {}),
                         b = trained_linformer(frozen, tokens, {});
  EXPECT_TRUE(same_bits(a.hidden, b.hidden));
  for (const auto& [name, g] : b.gradients) {
    EXPECT_TRUE(same_bits(g, a.gradients.at(name))) << name;
  }
}

TEST(Linformer, StartsOfTheMatrices) {
  const auto spread = [](ProjectionStart start) {
    LinformerConfig c = linformer_preset("base512");
    c.n_layer = 1;
    c.d_model = c.d_ff = 12;
    c.vocab = 16;
    c.mask_id = -1;
    c.projection_start = start;
    Linformer model(c, in_f64);
    const Tensor e = parameter(model, "layers.0.attention.e.weight").detach();
    return std::pair{std::sqrt(mean(square(e)).item()), max(flatten(abs(e)), 0).values.item()};
  };
  const double third = 1 / std::sqrt(3.0), bound = std::sqrt(3.0 / (512 + 128));
  const auto xavier = spread(ProjectionStart::xavier);
  EXPECT_NEAR(xavier.first, bound * third, 0.01 * bound);
  EXPECT_LE(xavier.second, bound);
  EXPECT_GT(xavier.second, 0.999 * bound);
  const auto uniform = spread(ProjectionStart::uniform);
  EXPECT_NEAR(uniform.first, third / std::sqrt(128.0), 1e-3);
  EXPECT_LE(uniform.second, 1 / std::sqrt(128.0));
  EXPECT_NEAR(spread(ProjectionStart::normal).first, 1 / std::sqrt(128.0), 1e-3);
}

// Theory: with E of N(0, 1 / r), E^T E is near 1, and nearer with larger r.
TEST(Linformer, RandomMatricesPreserveProductsBetterWithMoreRows) {
  const int64_t n = 256, width = 8;
  const NoGrad off;
  const Tensor x = normal({1, n, width}, Generator{3}, 0, 1, DType::f64);
  const Tensor exact = matmul(transpose(x, 1, 2), x);
  const auto error = [&](int64_t r) {
    double total = 0;
    for (uint64_t seed = 0; seed < 8; ++seed) {
      const SequenceProjection e({.start = ProjectionStart::normal, .n_max = n, .r = r},
                                 {.d_model = width, .n_head = 1},
                                 Init{.gen = Generator{seed}, .dtype = DType::f64});
      const Tensor y = e.forward(x, {});
      total += mean(square(sub(matmul(transpose(y, 1, 2), y), exact))).item();
    }
    return std::sqrt(total / 8);
  };
  const double at_16 = error(16), at_64 = error(64), at_256 = error(256);
  EXPECT_NEAR(at_16 / at_64, 2, 0.5);  // 1 / sqrt(r)
  EXPECT_NEAR(at_64 / at_256, 2, 0.5);
}

TEST(Linformer, LayersHaveTheirOwnLength) {
  const LinformerConfig c = tiny_linformer([](auto& x) {
    x.n_layer = 3;
    x.r = {8, 3};
  });
  Linformer model(c, in_f64);
  EXPECT_EQ(parameter(model, "layers.0.attention.e.weight").dim(0), 8);
  EXPECT_EQ(parameter(model, "layers.1.attention.e.weight").dim(0), 3);
  EXPECT_EQ(parameter(model, "layers.2.attention.f.weight").dim(0), 3);
  EXPECT_EQ(to_string(model.attention_map(some_tokens(1, 9, 23), 1).shape()), "[2, 9, 3]");
  EXPECT_EQ(model.attention_outline(0, 9).columns, 8);
}

TEST(Linformer, SaysWhatDoesNotGoTogether) {
  const auto message = [](const LinformerChange& change) {
    return message_of<ValueError>([&] { Linformer(tiny_linformer(change), in_f64); });
  };
  EXPECT_TRUE(contains(message([](auto& c) { c.r = {25}; }), "r is 25; expected 1 to n_max = 24"));
  EXPECT_TRUE(contains(message([](auto& c) { c.r = {0}; }), "r is 0; expected 1 to n_max = 24"));
  EXPECT_TRUE(contains(message([](auto& c) { c.r = {}; }), "r is empty"));
  EXPECT_TRUE(contains(message([](auto& c) {
                         c.r = {4, 6};
                         c.sharing = ProjectionSharing::layerwise;
                       }),
                       "r is 4 and 6; sharing = layerwise needs one r"));
  EXPECT_TRUE(contains(message([](auto& c) { c.n_max = 0; }), "n_max is 0"));
  EXPECT_TRUE(contains(message([](auto& c) { c.n_head = 3; }), "not a multiple of n_head 3"));
  const Linformer model(tiny_linformer(), in_f64);
  EXPECT_TRUE(
      contains(message_of<ValueError>([&] { model.logits(some_tokens(1, 25, 23), Pass{}); }),
               "25 tokens are more than the position table has; n_max is 24"));
  const SequenceProjection e({.n_max = 4, .r = 2}, {.d_model = 2, .n_head = 1}, in_f64);
  EXPECT_TRUE(contains(message_of<ValueError>([&] {
                         e.forward(zeros({1, 5, 2}, DType::f64), {});
                       }),
                       "5 rows are more than E has columns; n_max is 4"));
}

TEST(Linformer, TakesNoTokensAndOne) {
  for (const LinformerConfig& c : all_kinds()) {
    SCOPED_TRACE(text_of(c));
    const Linformer model(c, in_f64);
    const NoGrad off;
    EXPECT_EQ(to_string(model.logits(some_tokens(2, 0, 23), Pass{}).shape()), "[2, 0, 23]");
    EXPECT_EQ(to_string(model.logits(some_tokens(0, 3, 23), Pass{}).shape()), "[0, 3, 23]");
    const Tensor y = model.logits(some_tokens(1, 1, 23), Pass{});
    EXPECT_TRUE(std::isfinite(sum(y).item()));
  }
}

}  // namespace
}  // namespace longspan::test
