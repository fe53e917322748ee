// BP-Transformer: layers against dense attention over all nodes, what reaches what, decoding,
// batches without padding, and the models that read roots or documents.

#include "models/bp_transformer/bp_transformer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <tuple>

#include "autograd/engine.h"
#include "autograd/mode.h"
#include "autograd/node.h"
#include "core/memory.h"
#include "core/parallel.h"
#include "data/memory_tasks.h"
#include "models/bp_transformer/bp_encoder.h"
#include "models/evaluate.h"
#include "models/generate.h"
#include "models/transformer/transformer.h"
#include "nn/attention/decoding_memory.h"
#include "ops/attention/edge_attention.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/loss.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/shape.h"
#include "tests/harness/messages.h"
#include "tests/harness/model_info.h"
#include "tests/models/small_models.h"
#include "train/optimizer.h"

namespace longspan::test {
namespace {

const Pass bp_training{.training = true, .gen = Generator{6}};

BpTransformerConfig tiny_bp_transformer() { return bp_transformer_preset("tiny"); }

BpTransformer bp_model(const BpTransformerConfig& c = tiny_bp_transformer(),
                       DType dtype = DType::f64) {
  return randomised<BpTransformer>(c, Init{.gen = Generator{1}, .dtype = dtype}, 0.3, 7);
}

BpEncoder bp_encoder_model(
    const std::function<void(BpEncoderConfig&)>& change = [](BpEncoderConfig&) {},
    DType dtype = DType::f64) {
  BpEncoderConfig c = bp_encoder_preset("tiny");
  c.pair_classes = 4;
  change(c);
  return randomised<BpEncoder>(c, Init{.gen = Generator{1}, .dtype = dtype}, 0.3, 7);
}

Tensor normal_f64(const Shape& shape, uint64_t seed) {
  return normal(shape, Generator(seed), 0, 1, DType::f64);
}

Tensor row_of(const Tensor& x, int64_t i) { return contiguous(select(x, 1, i)); }

/// Dense attention and its gradients in f64 over all pairs of a row and a key, most of which are
/// masked; the label of each pair that is not is in a matrix.
struct DenseEdges {
  std::vector<double> out, dq, dk, dv, dr;
};

DenseEdges dense_edges(const EdgeLayout& layout, const std::vector<double>& q,
                       const std::vector<double>& k, const std::vector<double>& v,
                       const std::vector<double>& r, const std::vector<double>& dout, int64_t d) {
  const int64_t R = layout.n_rows, N = layout.n_keys;
  std::vector<int64_t> label(static_cast<size_t>(R * N), -1);
  for (const Edge& e : edges_of(layout)) label[static_cast<size_t>(e.row * N + e.key)] = e.label;
  const double scale = 1 / std::sqrt(static_cast<double>(d));
  const auto at = [d](const std::vector<double>& x, int64_t i) { return x.data() + i * d; };
  const auto to = [d](std::vector<double>& x, int64_t i) { return x.data() + i * d; };
  DenseEdges y;
  y.out.assign(q.size(), 0);
  y.dq = y.out;
  y.dk.assign(k.size(), 0);
  y.dv = y.dk;
  y.dr.assign(r.size(), 0);
  for (int64_t u = 0; u < R; ++u) {
    std::vector<double> p(static_cast<size_t>(N), 0);
    double top = -1e300, total = 0;
    const auto score = [&](int64_t j) {
      double s = 0;
      for (int64_t c = 0; c < d; ++c) {
        s += at(q, u)[c] * (at(k, j)[c] + at(r, label[static_cast<size_t>(u * N + j)])[c]);
      }
      return s * scale;
    };
    const auto seen = [&](int64_t j) { return label[static_cast<size_t>(u * N + j)] >= 0; };
    for (int64_t j = 0; j < N; ++j) {
      if (seen(j)) top = std::max(top, score(j));
    }
    for (int64_t j = 0; j < N; ++j) {
      if (seen(j)) total += p[static_cast<size_t>(j)] = std::exp(score(j) - top);
    }
    double delta = 0;
    for (int64_t j = 0; j < N; ++j) {
      p[static_cast<size_t>(j)] /= total;
      for (int64_t c = 0; c < d; ++c) {
        to(y.out, u)[c] += p[static_cast<size_t>(j)] * at(v, j)[c];
        delta += p[static_cast<size_t>(j)] * at(v, j)[c] * at(dout, u)[c];
      }
    }
    for (int64_t j = 0; j < N; ++j) {
      if (!seen(j)) continue;
      double dp = 0;
      for (int64_t c = 0; c < d; ++c) dp += at(dout, u)[c] * at(v, j)[c];
      const double ds = p[static_cast<size_t>(j)] * (dp - delta) * scale;
      const int64_t l = label[static_cast<size_t>(u * N + j)];
      for (int64_t c = 0; c < d; ++c) {
        to(y.dq, u)[c] += ds * (at(k, j)[c] + at(r, l)[c]);
        to(y.dk, j)[c] += ds * at(q, u)[c];
        to(y.dr, l)[c] += ds * at(q, u)[c];
        to(y.dv, j)[c] += p[static_cast<size_t>(j)] * at(dout, u)[c];
      }
    }
  }
  return y;
}

void expect_near(const Tensor& x, const std::vector<double>& expected, double tolerance,
                 const std::string& what) {
  const std::vector<double> own = contiguous(x.detach()).to_vector<double>();
  ASSERT_EQ(own.size(), expected.size()) << what;
  double worst = 0;
  for (size_t i = 0; i < own.size(); ++i) worst = std::max(worst, std::abs(own[i] - expected[i]));
  EXPECT_LE(worst, tolerance) << what;
}

/// Compares the op with dense attention: outputs, and the gradients that dense attention scatters
/// from rows to keys and labels.
void compare_with_dense(int64_t n, const TreeOptions& o, double tolerance) {
  const auto layout = tree_edges(std::span(&n, 1), o);
  const int64_t d = 3, N = layout->n_rows;
  Tensor q = normal_f64({1, 1, N, d}, 1), k = normal_f64({1, 1, N, d}, 2),
         v = normal_f64({1, 1, N, d}, 3), r = normal_f64({o.labels(), d}, 4);
  for (Tensor* x : {&q, &k, &v, &r}) set_requires_grad(*x);
  const Tensor y = edge_attention(q, k, v, r, layout), dy = normal_f64(y.shape(), 5);
  backward(y, dy);
  const auto values = [](const Tensor& x) { return x.detach().to_vector<double>(); };
  const DenseEdges expected =
      dense_edges(*layout, values(q), values(k), values(v), values(r), values(dy), d);
  const std::string what = fmt::format("n {} k {} causal {}", n, o.k, o.causal);
  expect_near(y, expected.out, tolerance, what + " out");
  expect_near(grad(q), expected.dq, tolerance, what + " dq");
  expect_near(grad(k), expected.dk, tolerance, what + " dk");
  expect_near(grad(v), expected.dv, tolerance, what + " dv");
  expect_near(grad(r), expected.dr, tolerance, what + " dr");
}

TEST(BpTransformer, ManyNeighboursAreDenseAttentionWithRelativeVectors) {
  for (const bool causal : {true, false}) {
    for (const int64_t n : {2, 5, 8, 13}) {
      const TreeOptions o{.k = n - 1 + n % 2, .clip = 3, .causal = causal};
      const auto layout = tree_edges(std::span(&n, 1), o, TreeRows::leaves);
      const int64_t d = 4, N = layout->n_keys;
      const Tensor q = normal_f64({1, 1, n, d}, 1), k = normal_f64({1, 1, N, d}, 2),
                   v = normal_f64({1, 1, N, d}, 3), r = normal_f64({o.labels(), d}, 4);
      const std::vector<double> qs = q.to_vector<double>(), ks = k.to_vector<double>(),
                                vs = v.to_vector<double>(), rs = r.to_vector<double>();
      std::vector<double> out(static_cast<size_t>(n * d), 0);
      for (int64_t i = 0; i < n; ++i) {
        std::vector<double> p;
        double total = 0;
        for (int64_t j = 0; j < (causal ? i + 1 : n); ++j) {
          // r_self, r_left[t] at distance t + 1 to the left, r_right[t] to the right
          const int64_t label = j == i ? 0 : j < i ? 2 * (i - j - 1) + 1 : 2 * (j - i - 1) + 2;
          double s = 0;
          for (int64_t c = 0; c < d; ++c) {
            s += qs[size_t(i * d + c)] * (ks[size_t(j * d + c)] + rs[size_t(label * d + c)]);
          }
          p.push_back(std::exp(s / 2));
          total += p.back();
        }
        for (size_t j = 0; j < p.size(); ++j) {
          for (int64_t c = 0; c < d; ++c) {
            out[size_t(i * d + c)] += p[j] / total * vs[j * size_t(d) + size_t(c)];
          }
        }
      }
      expect_near(edge_attention(q, k, v, r, layout), out, 1e-12, fmt::format("{} {}", n, causal));
    }
  }
}

TEST(BpTransformer, AnyTreeIsDenseAttentionOverItsNodesWithAMask) {
  for (const bool causal : {true, false}) {
    for (const int64_t n : {1, 2, 3, 7, 16, 37}) {
      for (const int64_t k : {1, 2, 5}) {
        compare_with_dense(n, {.k = k, .clip = 2, .causal = causal, .span_self_loop = k == 2},
                           1e-12);
      }
    }
  }
}

TEST(BpTransformer, WhatElseIsInABatchChangesNoBit) {
  const NoGrad off;
  const std::vector<int64_t> lengths = {9, 1, 13, 4};
  const Tensor tokens = some_tokens(4, 13, 17);
  for (const bool causal : {false, true}) {
    const BpEncoder model =
        bp_encoder_model([&](BpEncoderConfig& c) { c.causal = causal; }, DType::f32);
    const Tensor all = model.class_logits({.tokens = tokens, .lengths = Tensor::from(lengths, {4})},
                                          Pass{});  // [4, 3]
    for (int64_t b = 0; b < 4; ++b) {
      const int64_t n = lengths[static_cast<size_t>(b)];
      const Tensor own = contiguous(narrow(narrow(tokens, 0, b, 1), 1, 0, n));
      EXPECT_TRUE(same_bits(model.class_logits({.tokens = own}, Pass{}), narrow(all, 0, b, 1)))
          << b;
    }
    // Samples of one length are rows of a batch, not trees side by side.
    const Tensor whole = model.class_logits({.tokens = tokens}, Pass{});
    const std::vector<int64_t> thirteen = {13, 13, 13, 12};
    const Tensor packed =
        model.class_logits({.tokens = tokens, .lengths = Tensor::from(thirteen, {4})}, Pass{});
    EXPECT_TRUE(same_bits(narrow(whole, 0, 0, 3), narrow(packed, 0, 0, 3)));
  }
}

TEST(BpTransformer, TreesSideBySideHaveTheGradientsOfEachAlone) {
  const std::vector<int64_t> lengths = {300, 512, 77};
  const Tensor tokens = some_tokens(3, 512, 17);
  BpEncoder model = bp_encoder_model([](BpEncoderConfig& c) { c.mlm_head = false; }, DType::f32);
  const auto gradients_of = [&](const std::function<Tensor()>& logits) {
    for (const Tensor& p : parameters(model)) set_grad(p, {});
    backward(sum(flatten(logits()), {0}));
    std::vector<Tensor> all;
    for (const Tensor& p : parameters(model)) {
      if (grad(p)) all.push_back(grad(p));
    }
    return all;
  };
  const std::vector<Tensor> packed = gradients_of([&] {
    return model.class_logits({.tokens = tokens, .lengths = Tensor::from(lengths, {3})}, Pass{});
  });
  const std::vector<Tensor> alone = gradients_of([&] {
    std::vector<Tensor> rows;
    for (int64_t b = 0; b < 3; ++b) {
      const Tensor own = narrow(narrow(tokens, 0, b, 1), 1, 0, lengths[static_cast<size_t>(b)]);
      rows.push_back(model.class_logits({.tokens = contiguous(own)}, Pass{}));
    }
    return concat(rows, 0);
  });
  ASSERT_EQ(packed.size(), alone.size());
  for (size_t i = 0; i < packed.size(); ++i) {
    double scale = 1e-3;  // all pairs of a root have one label, whose vector has no gradient
    for (const float g : alone[i].to_vector<float>()) {
      scale = std::max(scale, std::abs(static_cast<double>(g)));
    }
    EXPECT_LE(distance(packed[i], alone[i]), 1e-4 * scale) << i;
  }
}

TEST(BpTransformer, NoTokenReachesAnEarlierOne) {
  const NoGrad off;
  BpTransformerConfig c = tiny_bp_transformer();
  c.n_layer = 4;
  for (const int64_t k : {1, 3}) {
    c.k = k;
    const BpTransformer model = bp_model(c);
    const int64_t n = 23;
    const Tensor tokens = some_tokens(1, n, 17), before = model.logits(tokens, Pass{});
    for (const int64_t j : {0, 5, 16, 22}) {
      std::vector<int64_t> ids = tokens.to_vector<int64_t>();
      ids[static_cast<size_t>(j)] = (ids[static_cast<size_t>(j)] + 1) % 17;
      const Tensor after = model.logits(Tensor::from(ids, {1, n}), Pass{});
      for (int64_t i = 0; i < n; ++i) {
        EXPECT_EQ(same_bits(row_of(before, i), row_of(after, i)), i < j) << i << " " << j;
      }
    }
  }
}

TEST(BpTransformer, TwoLayersJoinEveryPairOfTokens) {
  const NoGrad off;
  const BpEncoder model = bp_encoder_model([](BpEncoderConfig& c) { c.k = 1; });
  const int64_t n = 21;
  const Tensor tokens = some_tokens(1, n, 17), before = model.logits(tokens, Pass{});
  for (int64_t j = 0; j < n; ++j) {
    std::vector<int64_t> ids = tokens.to_vector<int64_t>();
    ids[static_cast<size_t>(j)] = (ids[static_cast<size_t>(j)] + 1) % 17;
    const Tensor after = model.logits(Tensor::from(ids, {1, n}), Pass{});
    for (int64_t i = 0; i < n; ++i) {
      EXPECT_FALSE(same_bits(row_of(before, i), row_of(after, i))) << i << " " << j;
    }
  }
}

TEST(BpTransformer, SpansOfTheFirstLayerAverageTheirTokens) {
  for (const int64_t n : {2, 7, 16}) {
    const BpEncoder model = bp_encoder_model();
    const Tensor map = model.attention_map(some_tokens(1, n, 17), 0);  // [H, N, N]
    const int64_t nodes = Tree{n}.nodes();
    const std::vector<float> p = map.to_vector<float>();
    std::map<int64_t, int64_t> tokens;
    const auto layout = tree_edges(std::span(&n, 1), model.config().tree(false));
    for (const Edge& e : edges_of(*layout)) ++tokens[e.row];
    for (const Edge& e : edges_of(*layout)) {
      if (e.row < n) continue;
      for (int64_t head = 0; head < 2; ++head) {
        const float share = p[static_cast<size_t>((head * nodes + e.row) * nodes + e.key)];
        EXPECT_EQ(share, static_cast<float>(1.0 / static_cast<double>(tokens[e.row])));
      }
    }
  }
}

TEST(BpTransformer, GradientsOfTheWholeLanguageModel) {
  for (const int64_t n : {1, 2, 3, 5, 8, 13}) {
    BpTransformerConfig c = tiny_bp_transformer();
    c.dropout = 0.1f;
    BpTransformer model = bp_model(c);
    const Tensor tokens = some_tokens(2, n, 17), targets = some_tokens(2, n, 17, 4);
    EXPECT_EQ(
        check_parameter_gradients(
            model, [&] { return model.loss(tokens, targets, {}, bp_training).total(); }, 5, 1e-6),
        "")
        << n;
  }
}

TEST(BpTransformer, GradientsOfTheWholeClassifier) {
  const Tensor answers = Tensor::from(std::vector<int64_t>{2, 0}, {2});
  for (const int64_t n : {1, 2, 3, 5, 8, 13}) {
    BpEncoder model = bp_encoder_model([](BpEncoderConfig& c) {
      c.mlm_head = false;
      c.d_embed = 5;
      c.dropout = 0.1f;
    });
    const SourceTokens a{.tokens = some_tokens(2, n, 17)},
        b{.tokens = some_tokens(2, 13, 17, 3),
          .lengths = Tensor::from(std::vector<int64_t>{n, 13}, {2})};
    const auto loss = [&] {
      return add(cross_entropy(model.class_logits({a.tokens, a.lengths}, bp_training.at("class")),
                               answers),
                 cross_entropy(model.pair_logits(a, b, bp_training.at("pair")), answers));
    };
    EXPECT_EQ(check_parameter_gradients(model, loss, 5, 1e-6), "") << n;
  }
}

TEST(BpTransformer, GradientsOfMatchedPairs) {
  const Tensor answers = Tensor::from(std::vector<int64_t>{2, 0}, {2});
  for (const int64_t n : {1, 2, 5, 9}) {
    for (const char* memory : {"standard", "checkpoint"}) {
      BpEncoder model = bp_encoder_model([&](BpEncoderConfig& c) {
        c.mlm_head = false;
        c.match_layers = 2;
        c.dropout = 0.1f;
        c.memory = memory;
      });
      const SourceTokens a{.tokens = some_tokens(2, n, 17)},
          b{.tokens = some_tokens(2, 13, 17, 3),
            .lengths = Tensor::from(std::vector<int64_t>{n, 13}, {2})};
      const auto loss = [&] {
        return cross_entropy(model.pair_logits(a, b, bp_training), answers);
      };
      EXPECT_EQ(check_parameter_gradients(model, loss, 5, 1e-6), "") << n << " " << memory;
    }
  }
}

TEST(BpTransformer, GradientsByKeyAreThoseScatteredByRow) {
  for (const int64_t n : {1, 5, 64, 100}) {
    compare_with_dense(n, {.k = 4, .clip = 1, .causal = n == 64}, 1e-11);
  }
}

TEST(BpTransformer, RunsAndThreadsGiveTheSameBits) {
  const int before = num_threads();
  std::vector<std::vector<Tensor>> runs;
  for (const int threads : {1, 1, 2}) {
    set_num_threads(threads);
    BpTransformerConfig c = tiny_bp_transformer();
    c.dropout = 0.1f;
    BpTransformer model = bp_model(c, DType::f32);
    const Tensor tokens = some_tokens(3, 70, 17);
    const Tensor loss = model.loss(tokens, tokens, {}, bp_training).total();
    backward(loss);
    runs.push_back({loss.detach()});
    for (const Tensor& p : parameters(model)) {
      if (grad(p)) runs.back().push_back(grad(p));
    }
  }
  set_num_threads(before);
  ASSERT_EQ(runs[0].size(), runs[2].size());
  for (size_t i = 0; i < runs[0].size(); ++i) {
    EXPECT_TRUE(same_bits(runs[0][i], runs[1][i]) && same_bits(runs[0][i], runs[2][i])) << i;
  }
}

TEST(BpTransformer, OneTokenIsItsOwnRoot) {
  const NoGrad off;
  const int64_t one = 1;
  for (const bool causal : {true, false}) {
    const TreeOptions o{.k = 3, .clip = 2, .causal = causal};
    for (const TreeRows rows : {TreeRows::all, TreeRows::leaves, TreeRows::root}) {
      EXPECT_EQ(edges_of(*tree_edges(std::span(&one, 1), o, rows)), (std::vector<Edge>{{0, 0, 0}}));
    }
  }
  const Tensor token = some_tokens(1, 1, 17);
  const BpEncoder model = bp_encoder_model();
  EXPECT_EQ(contiguous(model.attention_map(token, 1)).to_vector<float>(),
            (std::vector<float>{1, 1}));
  EXPECT_TRUE(same_bits(model.roots({.tokens = token}, Pass{}),
                        reshape(model.forward(token, Pass{}), {1, 8})));
  EXPECT_EQ(to_string(model.class_logits({.tokens = token}, Pass{}).shape()), "[1, 3]");
}

/// Trains a model to recall marked labels, in samples that grow from 16 tokens to 259: what was
/// learned where labels are near holds where they are far.
double recalled(LanguageModel& model) {
  Adam adam(named_parameters(model));
  const auto batch = [](int64_t length, const char* split, int64_t from, int64_t rows) {
    const MarkedRecallTask task{.length = length, .decoys = true};
    std::vector<Sample> samples;
    for (int64_t i = from; i < from + rows; ++i) {
      samples.push_back(task.sample({1, split, static_cast<uint64_t>(i)}));
    }
    return stack(samples);
  };
  int64_t step = 0;
  const std::tuple<int64_t, int64_t, int64_t> stages[] = {
      {16, 64, 150}, {64, 16, 60}, {259, 8, 30}};
  for (const auto& [length, rows, steps] : stages) {
    for (int64_t i = 0; i < steps; ++i, ++step) {
      const Batch b = batch(length, "train", step * 64, rows);
      const Pass pass{.training = true, .gen = Generator{2}.fork(static_cast<uint64_t>(step))};
      backward(model.loss(b.tokens, b.targets, {}, pass).total());
      clip_gradients(adam, 0.25);
      // The rate falls at the end: else the recall of the last step hangs on the seed.
      adam.step(3e-3 * std::min({1.0, static_cast<double>(step + 1) / 20,
                                 static_cast<double>(240 - step) / 120}));
    }
  }
  const NoGrad off;
  const Batch test = batch(259, "test", 0, 256);
  Answers answers;
  for (int64_t from = 0; from < 256; from += 32) {
    const Tensor logits = model.logits(contiguous(narrow(test.tokens, 0, from, 32)), Pass{});
    answers += count_right(logits, contiguous(narrow(test.targets, 0, from, 32)));
  }
  EXPECT_EQ(answers.counted, 256);
  return answers.percent();
}

TEST(BpTransformer, RecallsAMarkedLabelThatAWindowDoesNotSee) {
  BpTransformerConfig c = bp_transformer_preset("recall");
  c.d_model = 48;
  c.d_ff = 96;
  BpTransformer tree(c, Init{.gen = Generator{1}});
  EXPECT_GT(recalled(tree), 99);

  TransformerConfig w;
  w.local = Locality::exact;
  w.window = 8;
  w.vocab = c.vocab;
  w.n_layer = c.n_layer;
  w.n_head = c.n_head;
  w.d_model = c.d_model;
  w.d_ff = c.d_ff;
  w.n_max = 259;
  Transformer window(w, Init{.gen = Generator{1}});
  const double chance = recalled(window);
  EXPECT_GT(chance, 6);
  EXPECT_LT(chance, 19);
}

/// The most bytes that a training step holds, with k = 4.
int64_t peak_of(int64_t n, int64_t width, Device device) {
  BpTransformerConfig c = bp_transformer_preset("small");
  c.k = 4;
  c.d_model = width;
  c.d_ff = 4 * width;
  c.intermediate_loss = false;
  BpTransformer model(c, Init{.device = device});
  const Tensor tokens = zeros({1, n}, DType::i64, device);
  tree_rows(n, c.tree(true), TreeRows::all);  // layouts are made once for all steps
  tree_rows(n, c.tree(true), TreeRows::leaves);
  MemoryTracker& tracker = memory_tracker(device);
  const int64_t before = tracker.live().total();
  tracker.reset_peak();
  backward(model.loss(tokens, tokens, {}, bp_training).total());
  return tracker.peak().total() - before;
}

TEST(BpTransformer, MemoryGrowsWithTheLength) {
  const TreeOptions o{.k = 4, .causal = true};
  EXPECT_NEAR(static_cast<double>(tree_pairs(16'384, o)) / static_cast<double>(tree_pairs(8192, o)),
              2.19, 0.005);
  for (const auto& [width, device] : {std::pair{96, meta_device}, {16, Device{}}}) {
    const auto less = static_cast<double>(peak_of(8192, width, device)),
               more = static_cast<double>(peak_of(16'384, width, device));
    EXPECT_LT(more / less, 2.3);
    EXPECT_GT(more / less, 1.8);  // it does hold the states of all nodes
  }
  EXPECT_EQ(peak_of(1000, 16, meta_device), peak_of(1000, 16, {}));
}

// ------------------------------------------------------------------------------- further behaviour

TEST(BpTransformer, IntermediateLossesFadeFromTheLowestLayerOn) {
  BpTransformerConfig c = tiny_bp_transformer();
  c.n_layer = 4;
  BpTransformer model = bp_model(c);
  const Tensor tokens = some_tokens(2, 9, 17), targets = some_tokens(2, 9, 17, 2);
  const double last = model.loss(tokens, targets, {}, Pass{}).loss.item();
  // The loss of each layer: that of a model that ends there.
  std::vector<double> each;
  for (int64_t layers = 1; layers <= 4; ++layers) {
    BpTransformerConfig less = c;
    less.n_layer = layers;
    BpTransformer shorter = bp_model(less);
    for (NamedTensor& p : named_parameters(shorter)) {
      assign(p.tensor, parameter(model, p.name).detach().to_vector<double>());
    }
    each.push_back(shorter.loss(tokens, targets, {}, Pass{}).loss.item());
  }
  EXPECT_EQ(each[3], last);
  const std::pair<float, std::vector<size_t>> stages[] = {{0, {0, 1, 2, 3}}, {0.2, {0, 1, 2, 3}},
                                                          {0.25, {1, 2, 3}}, {0.6, {2, 3}},
                                                          {0.75f, {3}},      {1, {3}}};
  for (const auto& [progress, predicting] : stages) {
    const Pass pass{.training = true, .gen = Generator{1}, .progress = progress};
    const LanguageModel::Losses losses = model.loss(tokens, targets, {}, pass);
    double mean = 0;
    for (const size_t i : predicting) mean += each[i] / static_cast<double>(predicting.size());
    EXPECT_NEAR(losses.total().item(), mean, 1e-12) << progress;
    EXPECT_NEAR(losses.loss.item(), last, 1e-12) << progress;
    EXPECT_EQ(losses.auxiliary.empty(), predicting.size() == 1) << progress;
  }
}

TEST(BpTransformer, DecodingKeepsCompleteNodesAlone) {
  const NoGrad off;
  BpTransformerConfig c = tiny_bp_transformer();
  c.n_layer = 3;
  const BpTransformer model = bp_model(c);
  const int64_t n = 70;
  const Tensor tokens = some_tokens(2, n, 17), whole = model.logits(tokens, Pass{});
  const auto state = model.start_decoding(2);
  int64_t at = 0;
  for (const int64_t piece : {1, 1, 1, 5, 8, 1, 16, 1, 30, 1, 1, 4}) {
    const Tensor y = model.decode(contiguous(narrow(tokens, 1, at, piece)), *state);
    at += piece;
    EXPECT_LT(distance(y, row_of(whole, at - 1)), 1e-12) << at;
    const auto& memory = dynamic_cast<const StreamState&>(*state).memory;
    ASSERT_EQ(memory.layers.size(), 3u);
    // Keys of nodes that are not complete have not been computed: they are zero.
    const Tensor& keys = memory.layers[1].get<KeyValues>().keys;
    const Tree places{(keys.dim(2) + 1) / 2};
    const std::vector<double> values = contiguous(keys).to_vector<double>();
    for (int64_t node = 0; node < places.nodes(); ++node) {
      const int64_t level = places.level_of(node), m = node - places.first(level);
      const bool complete = (m + 1) << level <= at;
      EXPECT_EQ(values[static_cast<size_t>(node * keys.dim(3))] != 0, complete) << node;
    }
  }
  EXPECT_EQ(at, n);
}

TEST(BpTransformer, BeamsTakeTheirNodesAlong) {
  const NoGrad off;
  const BpTransformer model = bp_model();
  const Tensor prompt = some_tokens(2, 3, 17);
  const Beams beams = beam_search(model, prompt, model.start_decoding(2), 20, {.beams = 3});
  for (int64_t b = 0; b < 2; ++b) {
    const Tensor made = contiguous(select(select(beams.tokens, 0, b), 0, 0));  // the best
    const Tensor text = concat({narrow(prompt, 0, b, 1), unsqueeze(made, 0)}, 1);
    const Tensor logits = model.logits(contiguous(narrow(text, 1, 0, 22)), Pass{});
    const Tensor nll =
        mul(cross_entropy(narrow(logits, 1, 2, 20), contiguous(narrow(text, 1, 3, 20))), -1.0);
    EXPECT_NEAR(nll.item(), beams.scores.to_vector<double>()[static_cast<size_t>(b * 3)], 1e-10);
  }
}

TEST(BpTransformer, ReversibleStreamsDecodeAsOnePass) {
  const NoGrad off;
  BpTransformerConfig c = tiny_bp_transformer();
  c.memory = "reversible";
  const BpTransformer model = bp_model(c);
  const Tensor tokens = some_tokens(2, 21, 17), whole = model.logits(tokens, Pass{});
  const auto state = model.start_decoding(2);
  for (int64_t t = 0; t < 21; t += 3) {
    const Tensor y = model.decode(contiguous(narrow(tokens, 1, t, 3)), *state);
    EXPECT_LT(distance(y, row_of(whole, t + 2)), 1e-12) << t;
  }
}

// Without matching layers the logits are a function of both roots alone, which read their own
// sequence: those of (a, b) and (a, c) differ by what b and c give. With them they do not.
TEST(BpTransformer, MatchedSequencesReadEachOther) {
  const NoGrad off;
  const auto root_of_first = [&](int64_t layers, const Tensor& b) {
    BpEncoder model = bp_encoder_model([&](BpEncoderConfig& c) {
      c.match_layers = layers;
      c.pair_classes = 8;
    });
    // Logits become the positive parts of the first root: W1 = [I 0], b1 = 0, W2 = I, b2 = 0.
    for (NamedTensor& p : named_parameters(model)) {
      if (!p.name.starts_with("pair.")) continue;
      std::vector<double> x(static_cast<size_t>(p.tensor.numel()), 0.0);
      for (int64_t i = 0; p.tensor.rank() == 2 && i < 8; ++i) {
        x[static_cast<size_t>(i * p.tensor.dim(1) + i)] = 1;
      }
      assign(p.tensor, x);
    }
    return model.pair_logits({.tokens = some_tokens(2, 7, 17)}, {.tokens = b}, Pass{});
  };
  const Tensor b = some_tokens(2, 5, 17, 2), c = some_tokens(2, 5, 17, 9);
  EXPECT_TRUE(same_bits(root_of_first(0, b), root_of_first(0, c)));
  // Spans read tokens of their own tree, which read the other sequence a layer before.
  EXPECT_TRUE(same_bits(root_of_first(1, b), root_of_first(1, c)));
  EXPECT_GT(distance(root_of_first(2, b), root_of_first(2, c)), 1e-3);
}

TEST(BpTransformer, MatchingDoesNotSeeWhatElseIsInABatch) {
  const NoGrad off;
  const BpEncoder model =
      bp_encoder_model([](BpEncoderConfig& c) { c.match_layers = 2; }, DType::f32);
  const SourceTokens a{.tokens = some_tokens(3, 7, 17)},
      b{.tokens = some_tokens(3, 12, 17, 5),
        .lengths = Tensor::from(std::vector<int64_t>{1, 9, 12}, {3})};
  const Tensor all = model.pair_logits(a, b, Pass{});
  for (int64_t i = 0; i < 3; ++i) {
    const int64_t n = b.lengths.to_vector<int64_t>()[static_cast<size_t>(i)];
    const Tensor own_a = contiguous(narrow(a.tokens, 0, i, 1)),
                 own_b = contiguous(narrow(narrow(b.tokens, 0, i, 1), 1, 0, n));
    EXPECT_TRUE(same_bits(model.pair_logits({.tokens = own_a}, {.tokens = own_b}, Pass{}),
                          contiguous(narrow(all, 0, i, 1))))
        << i;
  }
}

TEST(BpTransformer, PairsDoNotSeeWhichSideIsLonger) {
  const NoGrad off;
  const BpEncoder model = bp_encoder_model([](BpEncoderConfig&) {}, DType::f32);
  const SourceTokens a{.tokens = some_tokens(3, 7, 17)}, b{.tokens = some_tokens(3, 12, 17, 5)};
  const Tensor all = model.pair_logits(a, b, Pass{});
  EXPECT_EQ(to_string(all.shape()), "[3, 4]");
  const SourceTokens a1{.tokens = contiguous(narrow(a.tokens, 0, 1, 1))},
      b1{.tokens = contiguous(narrow(b.tokens, 0, 1, 1))};
  EXPECT_TRUE(same_bits(model.pair_logits(a1, b1, Pass{}), contiguous(narrow(all, 0, 1, 1))));
}

TEST(BpTransformer, SaysHowManyPairsThereAre) {
  EXPECT_TRUE(contains(bp_model().remark(64), "64 tokens are a tree with"));
  EXPECT_TRUE(contains(bp_model().remark(64), "full attention has 2080"));
}

TEST(BpTransformer, SaysWhatDoesNotFitTogether) {
  const auto refused = [](const std::function<void(BpTransformerConfig&)>& change) {
    return message_of<ValueError>([&] {
      BpTransformerConfig c = tiny_bp_transformer();
      change(c);
      bp_model(c);
    });
  };
  EXPECT_TRUE(contains(refused([](auto& c) { c.k = 0; }), "k is 0; expected 1 or more"));
  EXPECT_TRUE(contains(refused([](auto& c) { c.clip = -1; }), "clip is -1; expected 0 to 63"));
  EXPECT_TRUE(contains(refused([](auto& c) { c.n_head = 3; }), "d_model 8"));
  EXPECT_TRUE(contains(refused([](auto& c) { c.dropout = 1; }), "dropout is 1"));
  EXPECT_TRUE(contains(refused([](auto& c) { c.dropout_in = 1; }), "dropout_in is 1"));
  EXPECT_TRUE(contains(refused([](auto& c) { c.d_embed = 5; }), "set tie_embedding to false"));
  const BpTransformer model = bp_model();
  EXPECT_THROW(model.logits(some_tokens(1, 4, 17).detach().alias({4}, {1}, 0), Pass{}), ShapeError);
  SegmentMemory memory;
  memory.layers.resize(2);
  EXPECT_THROW(model.loss(some_tokens(1, 4, 17), some_tokens(1, 4, 17), memory, bp_training),
               ValueError);

  EXPECT_TRUE(contains(message_of<ValueError>([] {
                         bp_encoder_model([](BpEncoderConfig& c) {
                           c.pair_classes = 0;
                           c.match_layers = 1;
                         });
                       }),
                       "match_layers is 1; it needs pair_classes > 0"));
  const BpEncoder classes = bp_encoder_model([](BpEncoderConfig& c) { c.pair_classes = 0; });
  const SourceTokens in{.tokens = some_tokens(2, 4, 17)};
  EXPECT_THROW(classes.pair_logits(in, in, Pass{}), ValueError);
  SourceTokens wrong = in;
  wrong.lengths = Tensor::from(std::vector<int64_t>{4, 5}, {2});
  EXPECT_TRUE(contains(message_of<ValueError>([&] {
                         classes.class_logits({wrong.tokens, wrong.lengths}, Pass{});
                       }),
                       "sample 1 has 5 tokens; expected 1 to 4"));
  wrong.lengths = Tensor::from(std::vector<int64_t>{0, 4}, {2});
  EXPECT_THROW(classes.class_logits({wrong.tokens, wrong.lengths}, Pass{}), ValueError);
  wrong.lengths = Tensor::from(std::vector<int64_t>{4}, {1});
  EXPECT_THROW(classes.class_logits({wrong.tokens, wrong.lengths}, Pass{}), ShapeError);
  wrong.tokens = zeros({2, 0}, DType::i64);
  EXPECT_THROW(classes.class_logits({wrong.tokens, wrong.lengths}, Pass{}), ShapeError);
  const BpEncoder tokens = bp_encoder_model([](BpEncoderConfig& c) { c.classes = 0; });
  EXPECT_THROW(tokens.class_logits({in.tokens}, Pass{}), ValueError);
  EXPECT_THROW(bp_encoder_model([](BpEncoderConfig& c) { c.mask_id = 17; }), ValueError);
  EXPECT_THROW(bp_encoder_model([](BpEncoderConfig& c) { c.d_embed = 5; }), ValueError);
  const BpEncoder root = bp_encoder_model([](BpEncoderConfig& c) { c.mlm_head = false; });
  EXPECT_THROW(root.logits(in.tokens, Pass{}), ValueError);
}

TEST(BpTransformer, NothingIsAnEmptyInput) {
  const NoGrad off;
  const BpTransformer model = bp_model();
  EXPECT_EQ(to_string(model.logits(zeros({2, 0}, DType::i64), Pass{}).shape()), "[2, 0, 17]");
  EXPECT_EQ(to_string(model.logits(zeros({0, 5}, DType::i64), Pass{}).shape()), "[0, 5, 17]");
  EXPECT_EQ(to_string(bp_encoder_model().logits(zeros({2, 0}, DType::i64), Pass{}).shape()),
            "[2, 0, 17]");
  EXPECT_EQ(model.attention_outline(0, 0).calls.size(), 0u);
}

TEST(BpTransformer, ReversibleStreamsHaveTheGradientsOfStoredOnes) {
  for (const int64_t layers : {1, 2, 3}) {
    std::vector<std::vector<Tensor>> runs;
    for (const char* policy : {"reversible:exact", "reversible:exact:stored"}) {
      BpTransformerConfig c = tiny_bp_transformer();
      c.n_layer = layers;
      c.dropout = 0.1f;
      c.memory = policy;
      BpTransformer model = bp_model(c, DType::f32);
      const Tensor tokens = some_tokens(2, 19, 17);
      const Tensor loss = model.loss(tokens, tokens, {}, bp_training).total();
      backward(loss);
      runs.push_back({loss.detach()});
      for (const Tensor& p : parameters(model)) {
        if (grad(p)) runs.back().push_back(grad(p));
      }
    }
    ASSERT_EQ(runs[0].size(), runs[1].size());
    for (size_t i = 0; i < runs[0].size(); ++i) EXPECT_TRUE(same_bits(runs[0][i], runs[1][i])) << i;
  }
}

TEST(BpTransformer, ReversibleMatchingHasTheGradientsOfStoredStreams) {
  for (const int64_t n : {1, 2, 9}) {
    std::vector<std::vector<Tensor>> runs;
    for (const char* policy : {"reversible:exact", "reversible:exact:stored"}) {
      BpEncoder model = bp_encoder_model(
          [&](BpEncoderConfig& c) {
            c.mlm_head = false;
            c.match_layers = 2;
            c.dropout = 0.1f;
            c.memory = policy;
          },
          DType::f32);
      const SourceTokens a{.tokens = some_tokens(2, n, 17)}, b{.tokens = some_tokens(2, 13, 17, 3)};
      const Tensor loss = cross_entropy(model.pair_logits(a, b, bp_training),
                                        Tensor::from(std::vector<int64_t>{2, 0}, {2}));
      backward(loss);
      runs.push_back({loss.detach()});
      for (const Tensor& p : parameters(model)) {
        if (grad(p)) runs.back().push_back(grad(p));
      }
    }
    ASSERT_EQ(runs[0].size(), runs[1].size());
    EXPECT_GT(runs[0].size(), 40u);
    for (size_t i = 0; i < runs[0].size(); ++i) EXPECT_TRUE(same_bits(runs[0][i], runs[1][i])) << i;
  }
}

}  // namespace
}  // namespace longspan::test
