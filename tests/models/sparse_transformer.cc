// The Sparse Transformer. Decoding and gradients are also tested for every entry of the table of
// models.

#include <gtest/gtest.h>

#include <cmath>

#include "autograd/engine.h"
#include "autograd/mode.h"
#include "autograd/node.h"
#include "core/memory.h"
#include "models/sparse_transformer/sparse_transformer.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/matmul.h"
#include "ops/patterns/pairs.h"
#include "ops/reduce.h"
#include "ops/shape.h"
#include "ops/softmax.h"
#include "tests/harness/model_info.h"
#include "tests/models/costs.h"
#include "tests/models/small_models.h"
#include "train/optimizer.h"

namespace longspan::test {
namespace {

SparseTransformerConfig tiny_sparse(const char* sets, Integration integration) {
  SparseTransformerConfig c = sparse_transformer_preset("tiny");
  c.index_sets = sets;
  c.integration = integration;
  return c;
}

/// Returns a configuration of every kind of attention in docs/sparse-transformer.md.
std::vector<SparseTransformerConfig> every_mode() {
  std::vector<SparseTransformerConfig> all;
  for (const char* sets :
       {"strided,local,local,local", "local,strided", "block,summary", "dense"}) {
    all.push_back(tiny_sparse(sets, Integration::interleave));
  }
  for (const char* sets : {"local,strided", "block,summary", "strided"}) {
    all.push_back(tiny_sparse(sets, Integration::merged));
  }
  all.push_back(all[4]);
  all.back().paper_window = true;
  for (const char* sets : {"local,strided", "strided,local,block,summary", "block,summary"}) {
    all.push_back(tiny_sparse(sets, Integration::multihead));
    all.push_back(all.back());
    all.back().n_head = 4;
  }
  return all;
}

std::string name_of(const SparseTransformerConfig& c) {
  return std::string(name_of_value(c.integration)) + " " + c.index_sets;
}

/// Implements the definitions of section 2 of the paper literally.
bool in_set(const SparseTransformerConfig& c, IndexSet set, int64_t s, int64_t i, int64_t j) {
  const int64_t l = c.stride, from = l - (s + 1) * c.columns;
  if (j > i) return false;
  switch (set) {
    case IndexSet::local:
      return i - j < l + (c.paper_window ? 1 : 0);
    case IndexSet::strided:
      return (i - j) % l == 0;
    case IndexSet::block:
      return j / l == i / l;
    case IndexSet::summary:
      return from <= j % l && j % l < from + c.columns;
    case IndexSet::dense:
      break;
  }
  return true;
}

bool sees(const SparseTransformerConfig& c, int64_t layer, int64_t head, int64_t i, int64_t j) {
  const std::vector<IndexSet> sets = c.sets();
  const int64_t p = static_cast<int64_t>(sets.size());
  if (c.integration == Integration::interleave) {
    return in_set(c, sets[static_cast<size_t>(layer % p)], c.sub_block(head), i, j);
  }
  if (c.integration == Integration::multihead) {
    return in_set(c, sets[static_cast<size_t>(head % p)], c.sub_block(head / p), i, j);
  }
  for (const IndexSet set : sets) {
    if (in_set(c, set, c.sub_block(head), i, j)) return true;
  }
  return false;
}

int64_t brute_force_pairs(const SparseTransformerConfig& c, int64_t layer, int64_t length) {
  int64_t pairs = 0;
  for (int64_t h = 0; h < c.n_head; ++h) {
    for (int64_t i = 0; i < length; ++i) {
      for (int64_t j = 0; j <= i; ++j) pairs += sees(c, layer, h, i, j) ? 1 : 0;
    }
  }
  return pairs;
}

int64_t pairs_of_patterns(const LayerContext& ctx, int64_t layer, int64_t heads, int64_t length) {
  std::vector<AttentionPattern> parts = ctx.also;
  parts.push_back(ctx.layer_patterns.empty() ? ctx.pattern
                                             : ctx.layer_patterns[static_cast<size_t>(layer)]);
  int64_t pairs = 0;
  for (const AttentionPattern& p : parts) {
    for (int64_t h = 0; h < heads; ++h) pairs += visible_pairs(p, length, length, h);
  }
  return pairs;
}

// Patterns, brute force and closed-form counts agree.
TEST(SparseTransformer, PairCountsEqualTheFormulas) {
  const Init plan{.meta = true};
  for (int64_t length : {1, 2, 4, 5, 7, 16, 25, 40}) {
    for (int64_t l = 1; l <= 9; ++l) {
      for (int64_t columns = 1; columns <= l; ++columns) {
        for (SparseTransformerConfig c : every_mode()) {
          c.n_max = 40;
          c.stride = l;
          c.columns = columns;
          const SparseTransformer model(c, plan);
          const LayerContext ctx = model.layer_context(length, length, 0);
          for (int64_t layer = 0; layer < c.n_layer; ++layer) {
            const int64_t expected = brute_force_pairs(c, layer, length);
            ASSERT_EQ(attended_pairs(c, layer, length), expected)
                << name_of(c) << " L " << length << " l " << l << " c " << columns;
            ASSERT_EQ(pairs_of_patterns(ctx, layer, c.n_head, length), expected)
                << name_of(c) << " L " << length << " l " << l << " c " << columns;
          }
        }
      }
    }
  }
}

TEST(SparseTransformer, PairCountsOfThePublishedSizes) {
  SparseTransformerConfig c = sparse_transformer_preset("enwik8");
  EXPECT_EQ(attended_pairs(c, 0, 12'288), 8 * int64_t{19'470'336});
  c.index_sets = "local,strided";
  EXPECT_EQ(attended_pairs(c, 0, 12'288), 8 * int64_t{2'148'416});
  c.index_sets = "dense";
  EXPECT_EQ(attended_pairs(c, 0, 12'288), 8 * int64_t{75'503'616});
  const auto millions = [](const char* preset) {
    SparseTransformer model(sparse_transformer_preset(preset), Init{.meta = true});
    return static_cast<double>(parameter_count(model)) * 1e-6;
  };
  EXPECT_NEAR(millions("cifar10"), 59, 0.5);
  EXPECT_NEAR(millions("enwik8"), 95, 0.5);
  EXPECT_NEAR(millions("imagenet64"), 152, 0.5);
}

// The presets for images have the values of the authors' later code, up to what the paper says
// otherwise: order of layers, positions of tokens, the last norm, and initial deviations, of which
// each axis of the positions gets its share.
TEST(SparseTransformer, PresetsForImagesFollowTheAuthorsCode) {
  const auto deviation = [](const Tensor& x) {
    double sum = 0;
    for (const float v : x.to_vector<float>()) sum += double{v} * v;
    return std::sqrt(sum / static_cast<double>(x.numel()));
  };
  for (const char* name : {"cifar10", "imagenet64"}) {
    SparseTransformerConfig c = sparse_transformer_preset(name);
    EXPECT_TRUE(c.pos_before_shift && c.begin_vector) << name;
    EXPECT_EQ(c.integration, Integration::interleave) << name;
    EXPECT_EQ(c.norm_eps, 1e-5) << name;
    EXPECT_EQ(c.final_norm_eps, 1e-6) << name;
    EXPECT_EQ(c.n_layer % std::ssize(c.sets()), 0) << name;
    EXPECT_EQ(c.index_sets, std::string_view(name) == "cifar10" ? "strided,local,local,local"
                                                                : "local,strided,local,local");
    c.n_layer = 1;
    SparseTransformer model(c, in_f32);
    EXPECT_NEAR(deviation(parameter(model, "embed.token.weight")), 0.01, 0.0002) << name;
    EXPECT_NEAR(deviation(parameter(model, "embed.begin")), 0.01, 0.002) << name;
    for (const char* axis : {"0", "1", "2"}) {
      const Tensor table = parameter(model, std::string("embed.position.axes.") + axis + ".weight");
      EXPECT_NEAR(deviation(table), 0.01 / std::sqrt(3.0), 0.0005) << name << " " << axis;
    }
  }
}

// If the index sets hold all earlier positions, the model is dense attention.
TEST(SparseTransformer, WideSetsAreDenseAttention) {
  const NoGrad off;
  const Tensor tokens = some_tokens(2, 37, 11);
  const auto logits = [&](const char* sets, Integration integration, int64_t l, int64_t columns) {
    SparseTransformerConfig c = tiny_sparse(sets, integration);
    c.position_shape = {37};
    c.stride = l;
    c.columns = columns;
    return randomised<SparseTransformer>(c).logits(tokens, Pass{});
  };
  const Tensor dense = logits("dense", Integration::merged, 5, 2);
  for (const int64_t l : {37, 38, 1000}) {
    EXPECT_LT(distance(logits("local", Integration::merged, l, 1), dense), 1e-12);
    EXPECT_LT(distance(logits("local,strided", Integration::merged, l, 1), dense), 1e-12);
  }
  EXPECT_LT(distance(logits("strided", Integration::interleave, 1, 1), dense), 1e-12);
  for (const int64_t l : {1, 5, 8}) {
    EXPECT_LT(distance(logits("block,summary", Integration::merged, l, l), dense), 1e-12);
  }
  EXPECT_GT(distance(logits("block,summary", Integration::merged, 8, 7), dense), 1e-6);
}

/// Computes softmax attention under a dense mask, with every row and key written out. Rows with no
/// visible key are zero.
Tensor masked_attention(const Projected& p, const SparseTransformerConfig& c, int64_t layer) {
  const int64_t heads = p.q.dim(1), length = p.q.dim(2);
  std::vector<double> mask, seeing;
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t i = 0; i < length; ++i) {
      bool any = false;
      for (int64_t j = 0; j < length; ++j) {
        const bool visible = sees(c, layer, h, i, j);
        mask.push_back(visible ? 0 : -1e300);
        any = any || visible;
      }
      seeing.push_back(any ? 1 : 0);
    }
  }
  const double scale = 1 / std::sqrt(static_cast<double>(p.q.dim(3)));
  const Tensor scores =
      add(mul(matmul(p.q, transpose(p.k)), scale), Tensor::from(mask, {heads, length, length}));
  return mul(matmul(softmax(scores), p.v), Tensor::from(seeing, {heads, length, 1}));
}

LayerContext of_layer(const SparseTransformer& model, int64_t layer, int64_t length) {
  LayerContext ctx = model.layer_context(length, length, 0);
  if (!ctx.layer_patterns.empty()) {
    ctx.pattern = ctx.layer_patterns[static_cast<size_t>(layer)];
  }
  return ctx;
}

// Every mode equals dense attention under its masks, in the original order of rows. So do the
// gradients.
TEST(SparseTransformer, EveryModeIsMaskedDenseAttention) {
  for (SparseTransformerConfig c : every_mode()) {
    c.qk_ratio = 0.5;
    const SparseTransformer model = randomised<SparseTransformer>(c);
    for (const int64_t length : {1, 4, 23, 37}) {
      MultiHead attention({.d_model = 16,
                           .n_head = c.n_head,
                           .d_head = 8 / c.n_head,
                           .d_value = 16 / c.n_head,
                           .qkv_bias = true,
                           .out_bias = true},
                          ShawTables{}, in_f64);
      randomise(attention, 0.5, 3);
      for (int64_t layer = 0; layer < 2; ++layer) {
        std::vector<Tensor> y, dx;
        for (const bool ours : {true, false}) {
          Tensor x = in_f64.at("x").make({2, length, 16}, Scheme::normal(1));
          Tensor out = ours ? attention.forward(x, of_layer(model, layer, length), Pass{}).y
                            : attention.merge(masked_attention(attention.project(x), c, layer));
          Tensor dy = in_f64.at("dy").make(out.shape(), Scheme::normal(1)).detach();
          for (const Tensor& w : parameters(attention)) set_grad(w, {});
          backward(out, dy);
          y.push_back(out.detach());
          dx.push_back(grad(x));
          for (const Tensor& w : parameters(attention)) dx.push_back(grad(w));
        }
        EXPECT_LT(distance(y[0], y[1]), 1e-12) << name_of(c) << " L " << length;
        const size_t n = dx.size() / 2;
        for (size_t i = 0; i < n; ++i) {
          EXPECT_LT(distance(dx[i], dx[n + i]), 1e-10) << name_of(c) << " L " << length << " " << i;
        }
      }
    }
  }
}

TEST(SparseTransformer, MapsShowTheIndexSets) {
  for (const SparseTransformerConfig& c : every_mode()) {
    const SparseTransformer model = randomised<SparseTransformer>(c);
    for (int64_t layer = 0; layer < c.n_layer; ++layer) {
      const Tensor map = model.attention_map(some_tokens(1, 23, c.vocab), layer);
      const std::vector<float> p = map.to_vector<float>();
      for (int64_t h = 0; h < c.n_head; ++h) {
        for (int64_t i = 0; i < 23; ++i) {
          for (int64_t j = 0; j < 23; ++j) {
            EXPECT_EQ(p[static_cast<size_t>((h * 23 + i) * 23 + j)] > 0, sees(c, layer, h, i, j))
                << name_of(c) << " layer " << layer << " head " << h << ": " << i << ", " << j;
          }
        }
      }
    }
  }
}

// A token does not change outputs at earlier positions, bit for bit.
TEST(SparseTransformer, TheFutureHasNoInfluence) {
  const NoGrad off;
  for (const SparseTransformerConfig& c : every_mode()) {
    for (const Init& init : {in_f64, in_f32}) {
      const SparseTransformer model = randomised<SparseTransformer>(c, init);
      const Tensor a = some_tokens(1, 37, c.vocab);
      const Tensor before = model.forward(a, Pass{});
      for (const int64_t t : {0, 4, 19, 36}) {
        const Tensor b = clone(a);
        Tensor changed = b;
        changed.mut().as<int64_t>()[t] = (a.view().as<int64_t>()[t] + 1) % c.vocab;
        const Tensor after = model.forward(b, Pass{});
        EXPECT_TRUE(same_bits(narrow(before, 1, 0, t), narrow(after, 1, 0, t))) << name_of(c);
        EXPECT_FALSE(same_bits(narrow(before, 1, t, 1), narrow(after, 1, t, 1))) << name_of(c);
      }
    }
  }
}

using Matrix = std::vector<std::vector<bool>>;

Matrix matrix_of(const SparseTransformerConfig& c, int64_t layer, int64_t length) {
  Matrix m(static_cast<size_t>(length), std::vector<bool>(static_cast<size_t>(length)));
  for (int64_t i = 0; i < length; ++i) {
    for (int64_t j = 0; j < length; ++j) {
      m[static_cast<size_t>(i)][static_cast<size_t>(j)] = sees(c, layer, 0, i, j);
    }
  }
  return m;
}

/// Counts the pairs j <= i that no path of two steps connects, with `second` for the step from i
/// and `first` for the step to j.
int64_t unreached(const Matrix& first, const Matrix& second) {
  int64_t count = 0;
  for (size_t i = 0; i < first.size(); ++i) {
    for (size_t j = 0; j <= i; ++j) {
      bool reached = false;
      for (size_t k = 0; k < first.size(); ++k) reached = reached || (second[i][k] && first[k][j]);
      count += reached ? 0 : 1;
    }
  }
  return count;
}

Matrix with_residual(Matrix m) {
  for (size_t i = 0; i < m.size(); ++i) m[i][i] = true;
  return m;
}

// Two steps reach every earlier position; the maps of EveryModeIsMaskedDenseAttention are these
// matrices.
TEST(SparseTransformer, TwoStepsReachEveryEarlierPosition) {
  for (const int64_t length : {5, 37, 64}) {
    for (const int64_t l : {1, 5, 8}) {
      SparseTransformerConfig c = tiny_sparse("local,strided", Integration::interleave);
      c.stride = l;
      c.columns = 1;
      const Matrix local = matrix_of(c, 0, length), strided = matrix_of(c, 1, length);
      EXPECT_EQ(unreached(local, strided), 0);
      EXPECT_EQ(unreached(strided, local), 0);
      c.index_sets = "block,summary";
      const Matrix block = matrix_of(c, 0, length), summary = matrix_of(c, 1, length);
      EXPECT_EQ(unreached(with_residual(block), with_residual(summary)), 0);
      if (l > 1 && length > l) {
        EXPECT_GT(unreached(block, summary), 0);  // two steps need the residual connection
        EXPECT_GT(unreached(local, local), 0);
      }
      c.integration = Integration::merged;
      const Matrix merged = matrix_of(c, 0, length);
      EXPECT_EQ(unreached(merged, merged), 0);
    }
  }
}

// Recomputing blocks gives the same gradients, bit for bit, with dropout on.
TEST(SparseTransformer, RecomputationChangesNoGradient) {
  for (SparseTransformerConfig c : every_mode()) {
    c.dropout = 0.2f;
    for (const Init& init : {in_f64, in_f32}) {
      std::vector<Tensor> grads[2];
      int64_t saved[2];
      for (const int i : {0, 1}) {
        c.memory = i == 0 ? "standard" : "checkpoint";
        SparseTransformer model = randomised<SparseTransformer>(c, init);
        const Tensor tokens = some_tokens(2, 37, c.vocab), targets = some_tokens(2, 37, c.vocab, 2);
        const Tensor loss =
            model.loss(tokens, targets, {}, Pass{.training = true, .gen = Generator{3}}).loss;
        saved[i] = memory_tracker().live()[Category::saved];
        backward(loss);
        for (const Tensor& w : parameters(model)) grads[i].push_back(grad(w));
      }
      EXPECT_LT(saved[1], saved[0] / 3) << name_of(c);
      for (size_t w = 0; w < grads[0].size(); ++w) {
        EXPECT_TRUE(same_bits(grads[0][w], grads[1][w])) << name_of(c) << " " << w;
      }
    }
  }
}

// Decoding gives the logits of the full forward pass at every position.
TEST(SparseTransformer, DecodingIsTheFullPass) {
  const NoGrad off;
  std::vector<SparseTransformerConfig> all = every_mode();
  const size_t modes = all.size();
  for (size_t i = 0; i < modes; ++i) {
    all.push_back(all[i]);
    all.back().pos_before_shift = all.back().begin_vector = all.back().tie_embedding = true;
  }
  for (const SparseTransformerConfig& c : all) {
    const SparseTransformer model = randomised<SparseTransformer>(c);
    const Tensor tokens = some_tokens(2, 37, c.vocab);
    const Tensor whole = model.logits(tokens, Pass{});
    for (const int64_t first : {1, 7}) {
      const auto state = model.start_decoding(2);
      for (int64_t t = 0, n = first; t < 37; t += n, n = 1) {
        const Tensor y = model.decode(contiguous(narrow(tokens, 1, t, n)), *state);
        ASSERT_LT(distance(y, contiguous(select(whole, 1, t + n - 1))), 1e-11)
            << name_of(c) << " at " << t;
      }
      EXPECT_THROW(model.decode(some_tokens(2, 1, c.vocab), *state), ValueError);  // beyond n_max
    }
  }
}

// W_out is initialised to zero.
TEST(SparseTransformer, LogitsStartAtZero) {
  for (const SparseTransformerConfig& c : every_mode()) {
    for (const Init& init : {in_f64, in_f32}) {
      const SparseTransformer model(c, init);
      const Tensor tokens = some_tokens(2, 37, c.vocab);
      const Tensor logits = cast(model.logits(tokens, Pass{}).detach(), DType::f64);
      for (const double y : logits.to_vector<double>()) ASSERT_EQ(y, 0.0);
      const double bits = model.loss(tokens, tokens, {}, Pass{}).loss.item() / std::log(2.0);
      EXPECT_NEAR(bits, std::log2(static_cast<double>(c.vocab)), 1e-6);
    }
  }
}

// Gradients of every parameter in f64, with dropout on.
TEST(SparseTransformer, GradientsOfEveryMode) {
  for (SparseTransformerConfig c : every_mode()) {
    c.dropout = 0.2f;
    c.begin_vector = c.tie_embedding = c.n_head == 4;
    SparseTransformer model = randomised<SparseTransformer>(c);
    const Tensor tokens = some_tokens(2, 37, c.vocab), targets = some_tokens(2, 37, c.vocab, 2);
    const Pass pass{.training = true, .gen = Generator{3}};
    EXPECT_EQ(check_parameter_gradients(
                  model, [&] { return model.loss(tokens, targets, {}, pass).loss; }, 3),
              "")
        << name_of(c);
  }
}

// With output weights divided by sqrt(2 N), the residual stream has the same variance after 64
// layers as after 2.
TEST(SparseTransformer, TheResidualStreamIsAsWideAtAnyDepth) {
  const NoGrad off;
  for (const SparseInit init : {SparseInit::code, SparseInit::paper_literal}) {
    const auto variance = [&](int64_t layers) {
      SparseTransformerConfig c = tiny_sparse("block,summary", Integration::merged);
      c.d_model = 64;
      c.d_ff = 256;
      c.n_layer = layers;
      c.init = init;
      c.final_norm_eps = 1e12;  // far above the variance, so that the norm only centres and scales
      const SparseTransformer model(c, in_f64);
      const Tensor stream = mul(model.forward(some_tokens(2, 37, c.vocab), Pass{}), 1e6);
      return mean(square(stream)).item();
    };
    const double two = variance(2), sixty_four = variance(64);
    EXPECT_LT(sixty_four / two, 2);
    EXPECT_GT(sixty_four / two, 0.5);
  }
}

// Rows of a summary head before the first summary see no key: their output is zero.
TEST(SparseTransformer, RowsThatSeeNothingAreZero) {
  SparseTransformerConfig c = tiny_sparse("summary", Integration::interleave);
  c.n_head = 1;
  c.stride = 8;
  c.columns = 3;
  for (const Init& init : {in_f64, in_f32}) {
    const SparseTransformer model = randomised<SparseTransformer>(c, init);
    MultiHead attention({.d_model = 16, .n_head = 1}, ShawTables{}, init);
    randomise(attention, 0.5, 3);
    Tensor x = init.at("x").make({2, 21, 16}, Scheme::normal(1));
    const Tensor y = attention.forward(x, of_layer(model, 0, 21), Pass{}).y;
    const Tensor z = cast(y.detach(), DType::f64);
    for (const double v : contiguous(narrow(z, 1, 0, 5)).to_vector<double>()) EXPECT_EQ(v, 0);
    for (const double v : contiguous(narrow(z, 1, 5, 16)).to_vector<double>()) EXPECT_NE(v, 0);
    backward(mean(square(y)));
    for (const double v : cast(grad(x), DType::f64).to_vector<double>()) {
      EXPECT_TRUE(std::isfinite(v));
    }
  }
}

// A nonfinite gradient halves the loss scale and changes no weight.
TEST(SparseTransformer, AnInfiniteGradientHalvesTheLossScale) {
  SparseTransformerConfig c = tiny_sparse("block,summary", Integration::merged);
  c.precision = Precision::f16;
  SparseTransformer model(c, in_f32);
  AdamW optimizer(named_parameters(model));
  LossScale scale = LossScale::dynamic(65536, 1000);
  const Tensor tokens = some_tokens(2, 37, c.vocab), targets = some_tokens(2, 37, c.vocab, 2);
  const auto weights = [&] {
    std::vector<Tensor> copies;
    for (const Tensor& w : parameters(model)) copies.push_back(clone(w.detach()));
    return copies;
  };
  const auto step = [&](bool inject) {
    const Pass pass{.training = true, .gen = Generator{3}};
    backward(mul(model.loss(tokens, targets, {}, pass).loss, scale.value()));
    Tensor head = parameter(model, "head.weight");
    EXPECT_EQ(head.dtype(), DType::f32);  // a master weight
    if (inject) {
      const Tensor g = clone(grad(head));
      Tensor bad = g;
      bad.mut().as<float>()[3] = INFINITY;
      set_grad(head, g);
    }
    if (scale.accept(optimizer)) optimizer.step(1e-2);
  };
  const std::vector<Tensor> start = weights();
  step(true);
  EXPECT_EQ(scale.value(), 32768);
  std::vector<Tensor> now = weights();
  for (size_t i = 0; i < now.size(); ++i) EXPECT_TRUE(same_bits(now[i], start[i]));
  step(false);
  EXPECT_EQ(scale.value(), 32768);
  now = weights();
  size_t changed = 0;
  for (size_t i = 0; i < now.size(); ++i) changed += same_bits(now[i], start[i]) ? 0 : 1;
  EXPECT_GT(changed, 0u);
}

// A slot has the position of its target, or with pos_before_shift that of its token.
TEST(SparseTransformer, SlotsHaveThePositionOfTheirTargetOrToken) {
  const NoGrad off;
  SparseTransformerConfig c = tiny_sparse("dense", Integration::merged);
  c.position_shape = {4, 5, 2};
  FactorisedPositions grid(c.position_shape, 16, in_f64, Scheme::normal(1));
  ASSERT_EQ(grid.size(), 40);
  const Tensor rows = grid.forward(13, 20);
  for (int64_t i = 0; i < 20; ++i) {
    const int64_t t = 13 + i;
    const Tensor expected = add(add(narrow(grid.axes[0].weight, 0, t / 10, 1),
                                    narrow(grid.axes[1].weight, 0, t / 2 % 5, 1)),
                                narrow(grid.axes[2].weight, 0, t % 2, 1));
    EXPECT_LT(distance(narrow(rows, 0, i, 1), expected), 1e-15);
  }
  EXPECT_THROW(grid.forward(30, 11), ValueError);

  // All tokens are equal, so only positions distinguish slots: shifting the position table by one
  // turns one variant into the other.
  c.n_layer = 1;
  SparseTransformer standard = randomised<SparseTransformer>(c);
  c.pos_before_shift = true;
  SparseTransformer shifted = randomised<SparseTransformer>(c);
  const Tensor tokens = zeros({1, 6}, DType::i64);
  EXPECT_FALSE(same_bits(standard.forward(tokens, Pass{}), shifted.forward(tokens, Pass{})));
  for (SparseTransformer* model : {&standard, &shifted}) {
    for (const char* axis : {"0", "1", "2"}) {
      Tensor table = parameter(*model, std::string("embed.position.axes.") + axis + ".weight");
      assign(table, std::vector<double>(static_cast<size_t>(table.numel()), 0.0));
    }
  }
  EXPECT_TRUE(same_bits(standard.forward(tokens, Pass{}), shifted.forward(tokens, Pass{})));
}

TEST(SparseTransformer, AVectorBeginsASequenceInPlaceOfItsFirstToken) {
  const NoGrad off;
  SparseTransformerConfig c = tiny_sparse("local,strided", Integration::merged);
  c.begin_vector = true;
  for (const bool before : {false, true}) {
    c.pos_before_shift = before;
    const SparseTransformer model = randomised<SparseTransformer>(c);
    Tensor tokens = some_tokens(2, 9, c.vocab);
    const Tensor y = model.logits(tokens, Pass{});
    tokens.mut().as<int64_t>()[0] = (tokens.view().as<int64_t>()[0] + 1) % c.vocab;
    EXPECT_TRUE(same_bits(y, model.logits(tokens, Pass{})));
    tokens.mut().as<int64_t>()[1] = (tokens.view().as<int64_t>()[1] + 1) % c.vocab;
    EXPECT_FALSE(same_bits(y, model.logits(tokens, Pass{})));
  }
}

// Section 5 of the specification, second small task: images with vertical structure. Each row
// equals the row three above it, 12 positions before. Two local layers reach back only 6.
TEST(SparseTransformer, StridedBeatsLocalOnVerticalStructure) {
  constexpr int64_t columns = 4, rows = 6, batch = 16;
  const auto last_loss = [&](const char* sets) {
    SparseTransformerConfig c = tiny_sparse(sets, Integration::interleave);
    c.stride = columns;
    c.position_shape = {rows, columns};
    c.n_max = rows * columns;
    c.embed_std = 0.5;
    SparseTransformer model(c, in_f32);
    Adam adam(named_parameters(model));
    double loss = 0;
    for (int64_t step = 0; step <= 500; ++step) {
      const Tensor head =
          some_tokens(batch, 3 * columns, c.vocab, static_cast<uint64_t>(step) + 50);
      const Tensor image = concat({head, head}, 1);  // [B, 24]
      Tensor targets = clone(slice(image, 1, 1));
      for (int64_t i = 0; i < targets.numel(); ++i) {  // the first rows are unpredictable
        if (i % targets.dim(1) < 3 * columns - 1) targets.mut().as<int64_t>()[i] = ignored_target;
      }
      const Pass pass{.training = true, .gen = Generator{1}};
      const Tensor mean = model.loss(slice(image, 1, 0, image.dim(1) - 1), targets, {}, pass).loss;
      loss = mean.item();  // on images that are fresh in every step
      backward(mean);
      adam.step(5e-3);
    }
    return loss;
  };
  EXPECT_LT(last_loss("local,strided"), 0.1);
  EXPECT_GT(last_loss("local,local"), 0.95 * std::log(11.0));
}

TEST(SparseTransformer, EveryLengthFromOneOnTrains) {
  for (const SparseTransformerConfig& c : every_mode()) {
    const SparseTransformer model = randomised<SparseTransformer>(c, in_f32);
    for (const int64_t length : {1, 2, 4, 5, 6, 36}) {
      const Tensor tokens = some_tokens(1, length, c.vocab);
      const Tensor loss =
          model.loss(tokens, tokens, {}, Pass{.training = true, .gen = Generator{1}}).loss;
      EXPECT_TRUE(std::isfinite(loss.item()));
      backward(loss);
    }
    EXPECT_THROW(model.logits(some_tokens(1, 38, c.vocab), Pass{}), ValueError);
  }
}

TEST(SparseTransformer, ColumnsThatNoSetHasMayBeAnyNumber) {
  for (const Integration integration : {Integration::interleave, Integration::multihead}) {
    for (const int64_t columns : {0, 6}) {  // of a stride of 5
      SparseTransformerConfig c = tiny_sparse("local,strided", integration);
      const Tensor tokens = some_tokens(1, 12, c.vocab),
                   usual = randomised<SparseTransformer>(c, in_f32).logits(tokens, Pass{});
      c.columns = columns;
      EXPECT_TRUE(same_bits(randomised<SparseTransformer>(c, in_f32).logits(tokens, Pass{}), usual))
          << columns;
    }
  }
}

TEST(SparseTransformer, RejectsWhatDoesNotFit) {
  const auto message = [](const std::function<void(SparseTransformerConfig&)>& change) {
    SparseTransformerConfig c = sparse_transformer_preset("tiny");
    change(c);
    try {
      const SparseTransformer model(c, Init{.meta = true});
    } catch (const ValueError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_EQ(message([](SparseTransformerConfig&) {}), "");
  const auto names = [&](const char* what, const std::function<void(SparseTransformerConfig&)>& f) {
    EXPECT_NE(message(f).find(what), std::string::npos) << message(f);
  };
  names("stride is 0; expected 1 or more", [](SparseTransformerConfig& c) { c.stride = 0; });
  names("columns is 0; expected 1 to stride = 5",
        [](SparseTransformerConfig& c) { c.columns = 0; });
  names("columns is 6; expected 1 to stride = 5",
        [](SparseTransformerConfig& c) { c.columns = 6; });
  names("sub_blocks is 3; expected 0 to 2", [](SparseTransformerConfig& c) { c.sub_blocks = 3; });
  names("d_model 16 is not a multiple of n_head 3",
        [](SparseTransformerConfig& c) { c.n_head = 3; });
  names("qk_ratio", [](SparseTransformerConfig& c) { c.qk_ratio = 0.3; });
  names("\"strides\"; expected local, strided, block, summary and dense",
        [](SparseTransformerConfig& c) { c.index_sets = "local,strides"; });
  names("index_sets has \"\"", [](SparseTransformerConfig& c) { c.index_sets = ""; });
  names("cannot be merged", [](SparseTransformerConfig& c) { c.index_sets = "local,block"; });
  names("position_shape holds 30 positions; expected n_max = 37", [](SparseTransformerConfig& c) {
    c.position_shape = {6, 5};
  });
  names("dropout is 1", [](SparseTransformerConfig& c) { c.dropout = 1; });
}

}  // namespace
}  // namespace longspan::test
