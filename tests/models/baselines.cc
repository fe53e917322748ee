// The baselines: full and local attention. Gradients and numbers of products are also tested for
// every entry of the table of models.

#include <gtest/gtest.h>

#include <cmath>

#include "autograd/engine.h"
#include "autograd/mode.h"
#include "autograd/node.h"
#include "models/transformer/transformer.h"
#include "nn/attention/multi_head.h"
#include "ops/copy.h"
#include "ops/cost.h"
#include "ops/elementwise.h"
#include "ops/index.h"
#include "ops/loss.h"
#include "ops/shape.h"
#include "tests/harness/model_info.h"
#include "tests/models/costs.h"
#include "tests/models/small_models.h"
#include "train/optimizer.h"

namespace longspan::test {
namespace {

TransformerConfig tiny_transformer() {
  TransformerConfig c = transformer_preset("tiny");
  c.n_max = 32;
  return c;
}

TransformerConfig with_positions(Positions positions) {
  TransformerConfig c = tiny_transformer();
  c.positions = positions;
  return c;
}

constexpr Positions every_kind[] = {Positions::none, Positions::sinusoid, Positions::learned,
                                    Positions::learned_per_layer, Positions::shaw};

// Full causal attention, a window that covers everything and two blocks that cover everything
// compute the same function.
TEST(Transformer, WideWindowsAreFullAttention) {
  for (const int64_t length : {1, 2, 7, 12}) {
    for (const Init& init : {in_f64, in_f32}) {
      const NoGrad off;
      TransformerConfig c = tiny_transformer();
      const Tensor tokens = some_tokens(2, length, c.vocab);
      const Tensor full = randomised<Transformer>(c, init).logits(tokens, Pass{});
      c.local = Locality::exact;
      for (const int64_t window : {length, length + 3, int64_t{1000}}) {
        c.window = window;
        EXPECT_TRUE(same_bits(full, randomised<Transformer>(c, init).logits(tokens, Pass{})))
            << length;
      }
      c.local = Locality::block;
      for (const int64_t window : {(length + 1) / 2, length, int64_t{1000}}) {
        c.window = window;
        EXPECT_TRUE(same_bits(full, randomised<Transformer>(c, init).logits(tokens, Pass{})))
            << length;
      }
      if (length > 2) {
        c.window = length / 2 - 1 > 0 ? length / 2 - 1 : 1;
        EXPECT_FALSE(same_bits(full, randomised<Transformer>(c, init).logits(tokens, Pass{})));
      }
    }
  }
}

TEST(Transformer, ProbabilitiesSumToOne) {
  for (const Locality local : {Locality::none, Locality::exact, Locality::block}) {
    TransformerConfig c = tiny_transformer();
    c.local = local;
    c.window = 3;
    const Transformer model = randomised<Transformer>(c);
    const Tensor map = model.attention_map(some_tokens(1, 11, c.vocab), 1);
    EXPECT_EQ(to_string(map.shape()), "[2, 11, 11]");
    const std::vector<float> p = map.to_vector<float>();
    for (size_t row = 0; row < 22; ++row) {
      double sum = 0;
      for (size_t j = 0; j < 11; ++j) {
        sum += p[row * 11 + j];
        if (j > row % 11) {
          EXPECT_EQ(p[row * 11 + j], 0);
        }
      }
      EXPECT_NEAR(sum, 1, 4e-7);  // f64 probabilities, rounded to f32 each
    }
  }
}

// Future tokens do not change earlier outputs, bit for bit.
TEST(Transformer, FutureIndependence) {
  for (const Positions positions : every_kind) {
    for (const NormPlace norm : {NormPlace::pre, NormPlace::post}) {
      for (const Init& init : {in_f64, in_f32}) {
        TransformerConfig c = with_positions(positions);
        c.norm = norm;
        const Transformer model = randomised<Transformer>(c, init);
        const NoGrad off;
        const Tensor a = some_tokens(1, 12, c.vocab);
        const Tensor before = model.forward({.tokens = a}, Pass{});
        for (const int64_t t : {0, 5, 11}) {
          Tensor b = clone(a);
          b.mut().as<int64_t>()[t] = (a.view().as<int64_t>()[t] + 1) % c.vocab;
          const Tensor after = model.forward({.tokens = b}, Pass{});
          EXPECT_TRUE(same_bits(narrow(before, 1, 0, t), narrow(after, 1, 0, t)));
          EXPECT_FALSE(same_bits(narrow(before, 1, t, 1), narrow(after, 1, t, 1)));
        }
      }
    }
  }
}

// Decoding equals the full forward pass. The table of models covers more kinds of models.
TEST(Transformer, DecodingIsTheFullPass) {
  for (const Positions positions : every_kind) {
    for (const auto& [local, window] : {std::pair{Locality::none, 0},
                                        {Locality::exact, 1},
                                        {Locality::exact, 4},
                                        {Locality::exact, 40},
                                        {Locality::block, 3},
                                        {Locality::block, 20}}) {
      TransformerConfig c = with_positions(positions);
      c.local = local;
      c.window = window;
      c.norm = window % 2 == 0 ? NormPlace::pre : NormPlace::post;
      const Transformer model = randomised<Transformer>(c);
      const NoGrad off;
      const Tensor tokens = some_tokens(2, 29, c.vocab);
      const Tensor whole = model.logits(tokens, Pass{});
      const auto state = model.start_decoding(2);
      for (int64_t t = 0, n = 5; t < 29; t += n, n = 1) {
        const Tensor y = model.decode(contiguous(narrow(tokens, 1, t, n)), *state);
        ASSERT_LT(distance(y, contiguous(select(whole, 1, t + n - 1))), 1e-12)
            << name_of_value(positions) << ", window " << window << ", at " << t;
      }
    }
  }
}

TEST(Transformer, DecodingAfterASource) {
  TransformerConfig c = tiny_transformer();
  c.wiring = Wiring::encoder_decoder;
  c.positions = Positions::sinusoid;
  const Transformer model = randomised<Transformer>(c);
  const NoGrad off;
  const Tensor source = some_tokens(2, 7, c.vocab, 3), tokens = some_tokens(2, 6, c.vocab);
  const Tensor lengths = Tensor::from(std::vector<int64_t>{7, 4}, {2});
  const Tensor whole =
      model.head(model.forward({.tokens = tokens, .lengths = lengths, .source = source}, Pass{}));
  const auto state = model.start_decoding(source, lengths);
  for (int64_t t = 0; t < 6; ++t) {
    const Tensor y = model.decode(contiguous(narrow(tokens, 1, t, 1)), *state);
    EXPECT_LT(distance(y, contiguous(select(whole, 1, t))), 1e-12);
  }
}

// Without position embeddings an encoder is equivariant to permutations of its tokens.
TEST(Transformer, Permutation) {
  TransformerConfig c = with_positions(Positions::none);
  c.wiring = Wiring::encoder;
  const Transformer model = randomised<Transformer>(c);
  const NoGrad off;
  const Tensor tokens = some_tokens(1, 9, c.vocab);
  const Tensor order = Tensor::from(std::vector<int64_t>{4, 0, 8, 2, 6, 1, 7, 3, 5}, {9});
  const Tensor a = model.forward({.tokens = take(tokens, order, 1)}, Pass{});
  const Tensor b = take(model.forward({.tokens = tokens}, Pass{}), order, 1);
  EXPECT_LT(distance(a, b), 1e-13);
}

void set_all(Module& module, const std::string& part, double value) {
  int found = 0;
  for (NamedTensor& p : named_parameters(module)) {
    if (p.name.find(part) == std::string::npos) continue;
    assign(p.tensor, std::vector<double>(static_cast<size_t>(p.tensor.numel()), value));
    ++found;
  }
  ASSERT_GT(found, 0) << part;
}

void copy_shared(Module& from, Module& to) {
  for (NamedTensor& p : named_parameters(to)) {
    assign(p.tensor, parameter(from, p.name).to_vector<double>());
  }
}

// Shaw's relative terms.
TEST(Transformer, ShawDegenerates) {
  const NoGrad off;
  const Tensor tokens = some_tokens(2, 12, 17);
  Transformer full = randomised<Transformer>(with_positions(Positions::shaw));
  set_all(full, "relative_value", 0);
  TransformerConfig c = with_positions(Positions::shaw);
  c.shaw_values = false;
  Transformer keys_only = randomised<Transformer>(c);
  copy_shared(full, keys_only);
  EXPECT_LT(distance(full.logits(tokens, Pass{}), keys_only.logits(tokens, Pass{})), 1e-13);

  set_all(full, "relative_key", 0);
  Transformer none = randomised<Transformer>(with_positions(Positions::none));
  copy_shared(full, none);
  EXPECT_LT(distance(full.logits(tokens, Pass{}), none.logits(tokens, Pass{})), 1e-13);
}

TEST(Transformer, ShawTranslates) {
  TransformerConfig c = with_positions(Positions::shaw);
  c.local = Locality::exact;
  c.window = 3;
  const Transformer model = randomised<Transformer>(c);
  const NoGrad off;
  // Two layers with windows of three keys reach four tokens back, so the later tokens cannot tell
  // how far they are from the start.
  const Tensor tokens = some_tokens(1, 20, c.vocab);
  const Tensor whole = model.forward({.tokens = tokens}, Pass{});
  for (const int64_t offset : {1, 4, 9}) {
    const Tensor shifted =
        model.forward({.tokens = contiguous(narrow(tokens, 1, offset, 20 - offset))}, Pass{});
    const int64_t n = 20 - offset - 4;
    EXPECT_LT(
        distance(contiguous(narrow(whole, 1, 20 - n, n)), contiguous(narrow(shifted, 1, 4, n))),
        1e-13);
  }
}

/// Reorders the columns of x: result[.., c] = x[.., order[c]].
void reorder(Tensor& x, const std::vector<int64_t>& order, int axis) {
  const Tensor ids = Tensor::from(order, {static_cast<int64_t>(order.size())});
  assign(x, contiguous(take(x.detach(), ids, axis)).to_vector<double>());
}

// The two layouts of sinusoids.
TEST(Transformer, SinusoidLayouts) {
  const NoGrad off;
  const int64_t width = 16;
  std::vector<int64_t> order;  // halves[c] = interleaved[order[c]]
  for (int64_t k = 0; k < width / 2; ++k) order.push_back(2 * k);
  for (int64_t k = 0; k < width / 2; ++k) order.push_back(2 * k + 1);
  const Tensor ids = Tensor::from(order, {width});
  EXPECT_TRUE(
      same_bits(sinusoid(3, 10, width, SinusoidLayout::halves, DType::f64, {}),
                take(sinusoid(3, 10, width, SinusoidLayout::interleaved, DType::f64, {}), ids, 1)));

  TransformerConfig c = with_positions(Positions::sinusoid);
  Transformer interleaved = randomised<Transformer>(c);
  c.sinusoid = SinusoidLayout::halves;
  Transformer halves = randomised<Transformer>(c);
  for (NamedTensor& p : named_parameters(halves)) {
    const std::string& n = p.name;
    const bool writes = n.ends_with("attention.out.weight") || n.ends_with("ff.out.weight");
    const bool stream = n.find("norm") != std::string::npos || n.ends_with("ff.out.bias");
    if (writes || stream) {
      reorder(p.tensor, order, 0);
    } else if (p.tensor.rank() == 2 && p.tensor.dim(1) == width &&
               n.find("relative") == std::string::npos) {
      reorder(p.tensor, order, 1);
    }
  }
  const Tensor tokens = some_tokens(2, 12, c.vocab);
  EXPECT_LT(distance(interleaved.logits(tokens, Pass{}), halves.logits(tokens, Pass{})), 1e-12);
}

// Padding.
TEST(Transformer, PaddedBatchesEqualSamplesAlone) {
  for (const Positions positions : every_kind) {
    TransformerConfig c = with_positions(positions);
    c.wiring = Wiring::encoder;
    const Transformer model = randomised<Transformer>(c);
    const NoGrad off;
    const std::vector<int64_t> lengths{12, 5, 1, 0};
    const Tensor tokens = some_tokens(4, 12, c.vocab);
    const Tensor batch =
        model.forward({.tokens = tokens, .lengths = Tensor::from(lengths, {4})}, Pass{});
    for (int64_t b = 0; b < 4; ++b) {
      const int64_t n = lengths[static_cast<size_t>(b)];
      const Tensor alone =
          model.forward({.tokens = contiguous(narrow(narrow(tokens, 0, b, 1), 1, 0, n))}, Pass{});
      const Tensor here = contiguous(narrow(narrow(batch, 0, b, 1), 1, 0, n));
      EXPECT_LT(distance(alone, here), 1e-13) << name_of_value(positions) << ", sample " << b;
    }
    for (const double y : batch.to_vector<double>()) EXPECT_FALSE(std::isnan(y));
  }
}

TEST(Transformer, NothingToSeeIsZero) {
  MultiHead layer({.d_model = 16,
                   .n_head = 2,
                   .weights = Scheme::normal(0.5),
                   .out_weights = Scheme::normal(0.5)},
                  {}, in_f64);
  Tensor x = in_f64.make({2, 5, 16}, Scheme::normal(1));
  const Tensor lengths = Tensor::from(std::vector<int64_t>{0, 5}, {2});
  LayerContext ctx;
  ctx.pattern = with_lengths(patterns::dense(), lengths, lengths);
  const Tensor y = layer.forward(x, ctx, Pass{}).y;
  for (const double v : contiguous(select(y, 0, 0)).to_vector<double>()) EXPECT_EQ(v, 0);
  backward(y, ones_like(y));
  for (const double v : contiguous(select(grad(x), 0, 0)).to_vector<double>()) EXPECT_EQ(v, 0);
  for (const double v : grad(x).to_vector<double>()) EXPECT_FALSE(std::isnan(v));
}

// Attention over one token is its value vector.
TEST(Transformer, CrossAttentionOverOneToken) {
  MultiHead layer({.d_model = 16,
                   .n_head = 2,
                   .cross = true,
                   .weights = Scheme::normal(0.5),
                   .out_weights = Scheme::normal(0.5)},
                  {}, in_f64);
  const NoGrad off;
  LayerContext ctx;
  ctx.encoder_output = in_f64.at("z").make({2, 1, 16}, Scheme::normal(1)).detach();
  ctx.encoder_pattern = patterns::dense();
  const Tensor x = in_f64.at("x").make({2, 5, 16}, Scheme::normal(3)).detach();
  const Tensor y = layer.forward(x, ctx, Pass{}).y;
  Linear v(16, 16, false, in_f64, Scheme::zeros()), out = v;
  v.weight = parameter(layer, "v.weight");
  out.weight = parameter(layer, "out.weight");
  const Tensor value = out.forward(v.forward(ctx.encoder_output));  // [B, 1, D]
  EXPECT_LT(distance(y, contiguous(expand(value, {2, 5, 16}))), 1e-13);
}

// With zero output weights the blocks are the identity.
TEST(Transformer, ZeroBranchesAreTheIdentity) {
  Transformer model = randomised<Transformer>(with_positions(Positions::none));
  set_all(model, "attention.out.weight", 0);
  set_all(model, "ff.out.", 0);
  const NoGrad off;
  const Tensor tokens = some_tokens(2, 9, 17);
  Normalization norm(NormKind::layer, 16, 1e-5, in_f64);
  norm.weight = parameter(model, "final_norm.weight");
  norm.bias = parameter(model, "final_norm.bias");
  const Tensor expected =
      norm.forward(take(parameter(model, "embed.token.weight"), flatten(tokens), 0));
  EXPECT_LT(distance(flatten(model.forward({.tokens = tokens}, Pass{}), 0, 1), expected), 1e-14);
}

// Gradients, over kinds of parameters, norms, positions, dropout, odd lengths, tied tables and
// label smoothing.
TEST(Transformer, Gradients) {
  uint64_t turn = 0;
  for (const Positions positions : every_kind) {
    for (const NormPlace norm : {NormPlace::pre, NormPlace::post}) {
      for (const int64_t length : {1, 2, 7}) {
        TransformerConfig c = with_positions(positions);
        ++turn;
        c.norm = norm;
        c.tie_embedding = turn % 2 == 0;
        c.head_bias = turn % 3 == 0;
        c.qkv_bias = c.out_bias = turn % 4 < 2;
        c.emb_scale = turn % 2 == 1;
        c.share_qk = turn % 5 == 0;
        c.label_smoothing = turn % 3 == 1 ? 0.1 : 0;
        c.dropout = 0.2f;
        c.d_head = turn % 2 == 0 ? 5 : 0;
        c.activation = static_cast<Activation>(turn % 6);
        c.shaw_per_head = turn % 4 == 0;
        c.shaw_share_layers = turn % 3 == 0;
        if (turn % 3 == 2) {
          c.local = turn % 2 == 0 ? Locality::block : Locality::exact;
          c.window = 3;
        }
        Transformer model = randomised<Transformer>(c);
        const Tensor tokens = some_tokens(2, length, c.vocab),
                     y = some_tokens(2, length, c.vocab, 2);
        const Pass pass{.training = true, .gen = Generator{turn}};
        EXPECT_EQ(
            check_parameter_gradients(
                model, [&] { return model.loss(model.forward({.tokens = tokens}, pass), y, pass); },
                4),
            "")
            << name_of_value(positions) << " " << name_of_value(norm) << " L=" << length;
      }
    }
  }
}

TEST(Transformer, GradientsBeyondOneTile) {
  for (const Locality local : {Locality::none, Locality::exact, Locality::block}) {
    TransformerConfig c = tiny_transformer();
    c.local = local;
    c.window = 19;
    c.dropout = 0.1f;
    Transformer model = randomised<Transformer>(c);
    const Tensor tokens = some_tokens(1, 101, c.vocab), y = some_tokens(1, 101, c.vocab, 2);
    const Pass pass{.training = true, .gen = Generator{5}};
    EXPECT_EQ(check_parameter_gradients(
                  model, [&] { return model.loss(tokens, y, {}, pass).loss; }, 2),
              "")
        << name_of_value(local);
  }
}

TEST(Transformer, GradientsOfAnEncoderDecoder) {
  for (const NormPlace norm : {NormPlace::pre, NormPlace::post}) {
    for (const bool tied : {false, true}) {
      TransformerConfig c = tiny_transformer();
      c.wiring = Wiring::encoder_decoder;
      c.norm = norm;
      c.tie_embedding = tied;
      c.dropout = 0.2f;
      c.label_smoothing = 0.1;
      c.positions = tied ? Positions::sinusoid : Positions::shaw;
      Transformer model = randomised<Transformer>(c);
      const TransformerInputs in{.tokens = some_tokens(3, 5, c.vocab),
                                 .lengths = Tensor::from(std::vector<int64_t>{7, 3, 0}, {3}),
                                 .source = some_tokens(3, 7, c.vocab, 4)};
      const Tensor y = some_tokens(3, 5, c.vocab, 2);
      const Pass pass{.training = true, .gen = Generator{3}};
      EXPECT_EQ(check_parameter_gradients(
                    model, [&] { return model.loss(model.forward(in, pass), y, pass); }, 3),
                "");
    }
  }
}

TEST(Transformer, GradientsOfAClassifier) {
  TransformerConfig c = tiny_transformer();
  c.wiring = Wiring::encoder;
  c.classes = 3;
  Transformer model = randomised<Transformer>(c);
  const TransformerInputs in{.tokens = some_tokens(2, 7, c.vocab),
                             .lengths = Tensor::from(std::vector<int64_t>{7, 4}, {2})};
  const Tensor classes = Tensor::from(std::vector<int64_t>{2, 0}, {2});
  const auto loss = [&] {
    return cross_entropy(model.classify(model.forward(in, Pass{})), classes);
  };
  EXPECT_EQ(check_parameter_gradients(model, loss, 4), "");

  // The classifier reads only the first token, through a tanh.
  const Tensor hidden = model.forward(in, Pass{});
  Linear pool(16, 16, true, in_f64, Scheme::zeros()), last(16, 3, true, in_f64, Scheme::zeros());
  pool.weight = parameter(model, "pool.weight");
  pool.bias = parameter(model, "pool.bias");
  last.weight = parameter(model, "classifier.weight");
  last.bias = parameter(model, "classifier.bias");
  const Tensor first = contiguous(select(hidden, 1, 0));
  EXPECT_LT(distance(model.classify(hidden), last.forward(tanh(pool.forward(first)))), 1e-14);
}

// A model cannot learn dependencies beyond the joint reach of its layers, but learns those within
// it: symbols repeat every seven positions, and two layers of a window W reach back 2 (W - 1).
TEST(Transformer, PeriodsBeyondTheReachAreNotLearnt) {
  constexpr int64_t period = 7, batch = 8, length = 22;
  const auto last_loss = [&](int64_t window) {
    TransformerConfig c = tiny_transformer();
    c.local = Locality::exact;
    c.window = window;
    c.shaw_clip = period;
    Transformer model(c, in_f32);
    Adam adam(named_parameters(model));
    double loss = 0;
    for (int64_t step = 0; step <= 200; ++step) {
      const Tensor symbols = some_tokens(batch, period, c.vocab, static_cast<uint64_t>(step) + 50);
      const Tensor text = repeat(symbols, 1, 4);  // [B, 28]
      Tensor targets = clone(narrow(text, 1, 1, length));
      for (int64_t i = 0; i < batch * length; ++i) {  // the first period is unpredictable
        if (i % length < period) targets.mut().as<int64_t>()[i] = ignored_target;
      }
      const Pass pass{.training = true, .gen = Generator{1}};
      const Tensor mean = model.loss(narrow(text, 1, 0, length), targets, {}, pass).loss;
      loss = mean.item();  // on symbols that are fresh in every step
      backward(mean);
      adam.step(1e-2);
    }
    return loss;
  };
  EXPECT_LT(last_loss(period), 0.3);
  EXPECT_GT(last_loss(period / 2), 0.95 * std::log(17.0));  // 2 * 2 < 6
}

// The number of products equals the closed form.
TEST(Transformer, MacsAreTheClosedForm) {
  const int64_t l = 11, d = 16, f = 32, v = 17, n = 2, batch = 2;
  TransformerConfig c = tiny_transformer();
  const auto check = [&](int64_t pairs) {
    const Transformer model = randomised<Transformer>(c, in_f32);
    const NoGrad off;
    const MacCount macs;
    const Tensor tokens = some_tokens(batch, l, v);
    model.loss(tokens, tokens, {}, Pass{});
    EXPECT_EQ(macs.attention(), batch * n * 2 * pairs * d);
    EXPECT_EQ(macs.products(), batch * (n * (4 * l * d * d + 2 * l * d * f) + l * d * v));
    EXPECT_EQ(macs.total(), batch * macs_of(c, l));
  };
  check(l * (l + 1) / 2);
  c.local = Locality::exact;
  c.window = 4;
  check(4 * l - 4 * 3 / 2);   // l rows of 4 keys; the first rows have 1, 2, 3
  c.local = Locality::block;  // blocks of 4, 4 and 3: the own block and the block before it
  check(10 + (10 + 16) + (6 + 12));
  c = tiny_transformer();
  c.wiring = Wiring::encoder;
  check(l * l);
}

// The decoder has cross-attention, and the embedding a projection of its own.
TEST(Transformer, MacsOfAnEncoderDecoder) {
  for (const int64_t d_embed : {0, 6}) {
    TransformerConfig c = tiny_transformer();
    c.wiring = Wiring::encoder_decoder;
    c.activation = Activation::geglu;
    c.d_embed = d_embed;
    EXPECT_EQ(forward_macs(Transformer(c, Init{.device = meta_device}), 11), macs_of(c, 11));
  }
}

TEST(Transformer, MacsOfADecodedToken) {
  const int64_t d = 16, f = 32, v = 17, n = 2, batch = 2;
  for (const int64_t window : {0, 4}) {
    TransformerConfig c = tiny_transformer();
    c.local = window > 0 ? Locality::exact : Locality::none;
    c.window = window;
    const Transformer model = randomised<Transformer>(c, in_f32);
    const auto state = model.start_decoding(batch);
    for (int64_t t = 0; t < 9; ++t) {
      const MacCount macs;
      model.decode(some_tokens(batch, 1, v, static_cast<uint64_t>(t)), *state);
      const int64_t seen = window > 0 ? std::min(t + 1, window) : t + 1;
      EXPECT_EQ(macs.total(), batch * (n * (4 * d * d + 2 * d * f + 2 * seen * d) + d * v));
    }
  }
}

}  // namespace
}  // namespace longspan::test
