// BigBird. The tests of its encoder-decoder are in bigbird_pegasus.cc.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "autograd/engine.h"
#include "autograd/mode.h"
#include "models/bigbird/bigbird.h"
#include "models/etc/bigbird_etc.h"
#include "models/generate.h"
#include "models/transformer/transformer.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/patterns/layout_cache.h"
#include "ops/patterns/pairs.h"
#include "ops/reduce.h"
#include "ops/shape.h"
#include "tests/models/dense_attention.h"
#include "tests/models/etc_oracle.h"
#include "tests/models/small_models.h"

namespace longspan::test {
namespace {

BigBird randomised_bigbird(const BigBirdConfig& c) {
  return randomised<BigBird>(c, in_f64, 0.3, 5);
}

/// Returns the pattern of one layer for samples of these lengths.
AttentionPattern layer_pattern(const BigBird& model, int64_t layer, int64_t length,
                               const std::vector<int64_t>& valid) {
  std::vector<BlockTable> tables;
  std::vector<int32_t> which;
  for (const int64_t l : valid) {
    for (int64_t h = 0; h < model.config().n_head; ++h) {
      which.push_back(static_cast<int32_t>(tables.size()));
      tables.push_back(model.table(layer, h, l));
    }
  }
  return patterns::block_lists(
      length, tables,
      Tensor::from(which, {static_cast<int64_t>(valid.size()), model.config().n_head}), "bigbird");
}

/// Implements sec. 2 token by token, from the random blocks of (head, row).
using RandomOf = std::function<std::vector<int64_t>(int64_t head, int64_t row)>;
bool sees_block(int64_t n, int64_t i, int64_t j, const std::vector<int64_t>& random) {
  if (i == 0 || i == n - 1 || j == 0 || j == n - 1 || std::abs(i - j) <= 1) return true;
  return std::count(random.begin(), random.end(), j) > 0;
}

Sees sees_bigbird(const BigBirdConfig& c, int64_t length, const RandomOf& random) {
  const int64_t b = c.block, n = (length + b - 1) / b;
  return [=](int64_t, int64_t h, int64_t i, int64_t j) {
    if (n < 5 + c.n_random) return true;
    const int64_t row = i / b;
    return sees_block(n, row, j / b,
                      row > 0 && row < n - 1 ? random(h, row) : std::vector<int64_t>{});
  };
}

RandomOf drawn(const BigBirdConfig& c, int64_t layer, int64_t length) {
  const int64_t n = (length + c.block - 1) / c.block;
  std::vector<std::vector<std::vector<int64_t>>> all;
  for (int64_t h = 0; n >= 5 + c.n_random && h < c.n_head; ++h) {
    all.push_back(random_blocks(c, layer, h, n));
  }
  return [all](int64_t h, int64_t row) {
    return all[static_cast<size_t>(h)][static_cast<size_t>(row - 1)];
  };
}

// Checks that draw_blocks(), which stores no list, equals shuffling an explicit list.
TEST(BigBirdBlocks, AreDrawnAsByShufflingAList) {
  for (const int64_t size : {0, 1, 2, 5, 40}) {
    for (const int64_t count : {0, 1, 3, 40}) {
      std::vector<int64_t> list;
      for (int64_t k = 3; k < 3 + size; ++k) list.push_back(k < 5 ? k : k + 4);
      const std::vector<BlockRange> legal{
          {3, std::min<int64_t>(5, 3 + size)}, {8, 7}, {9, 7 + size}};
      const Generator gen = Generator{7}.fork("bigbird").fork(1u).fork(2u).fork(50u).fork(4u);
      const int64_t steps = std::min(count, size);
      for (int64_t i = 0; i < steps; ++i) {
        const auto pick = uint64_t{philox_word(gen.key, i)} * static_cast<uint64_t>(size - i) >> 32;
        std::swap(list[static_cast<size_t>(i)], list[static_cast<size_t>(i) + pick]);
      }
      list.resize(static_cast<size_t>(steps));
      std::sort(list.begin(), list.end());
      EXPECT_EQ(draw_blocks(legal, count, 7, 1, 2, 50, 4), list) << size << " " << count;
    }
  }
}

TEST(BigBirdBlocks, HaveTheirLayoutsFromTheCache) {
  const BigBird model = randomised_bigbird(bigbird_preset("tiny"));
  const NoGrad off;
  const Tensor tokens = some_tokens(2, 45, bigbird_preset("tiny").vocab);
  const Tensor first = model.logits(tokens, Pass{});
  const int64_t layouts = layout_cache_state().made;
  EXPECT_TRUE(same_bits(model.logits(tokens, Pass{}), first));
  EXPECT_EQ(layout_cache_state().made, layouts);
}

// With too few blocks for the pattern the model is dense attention, bit for bit. With r = n - 5
// the middle rows are dense.
TEST(BigBird, FewBlocksAreDense) {
  const BigBirdConfig c = bigbird_preset("tiny");
  TransformerConfig t;
  t.wiring = Wiring::encoder;
  t.vocab = c.vocab;
  t.n_layer = c.n_layer;
  t.n_head = c.n_head;
  t.d_model = c.d_model;
  t.d_ff = c.d_ff;
  t.n_max = c.n_max;
  t.norm = NormPlace::post;
  t.norm_eps = c.norm_eps;
  t.activation = c.activation;
  t.positions = Positions::learned;
  t.qkv_bias = t.out_bias = t.head_bias = t.emb_norm = t.mlm_head = t.tie_embedding = true;
  BigBird model = randomised_bigbird(c);
  Transformer dense(t, in_f64);
  copy_parameters(model, dense);
  const NoGrad off;
  for (const int64_t length : {1, 2, 5, 24}) {  // six blocks; the pattern needs seven
    const Tensor tokens = some_tokens(2, length, c.vocab);
    EXPECT_TRUE(same_bits(model.logits(tokens, Pass{}), dense.logits(tokens, Pass{}))) << length;
  }
  const Tensor tokens = some_tokens(2, 45, c.vocab);
  EXPECT_FALSE(same_bits(model.logits(tokens, Pass{}), dense.logits(tokens, Pass{})));
  const BlockTable seven = model.table(0, 0, 28);
  for (int64_t i = 2; i < 5; ++i) EXPECT_EQ(seven.keys[static_cast<size_t>(i)].size(), 7u);
}

// Equals dense attention under the mask, for every plan of random blocks.
TEST(BigBird, EqualsTheMask) {
  for (const int64_t length : {1, 3, 28, 29, 45, 64, 131}) {
    BigBirdConfig c = bigbird_preset("tiny");
    c.n_head = 4;
    for (const RandomPlan plan : {RandomPlan::uniform, RandomPlan::first_1024}) {
      c.random = plan;
      const BigBird model = randomised_bigbird(c);
      expect_dense(layer_pattern(model, 1, length, {length}),
                   sees_bigbird(c, length, drawn(c, 1, length)), 1, c.n_head, length,
                   fmt::format("{} L {}", name_of_value(plan), length));
    }
  }
  // With blocks of 128, the first 1,024 tokens are eight blocks.
  BigBirdConfig c = bigbird_preset("tiny");
  c.block = 128;
  c.random = RandomPlan::first_1024;
  constexpr int64_t length = 128 * 12 - 5;
  expect_dense(layer_pattern(randomised_bigbird(c), 0, length, {length}),
               sees_bigbird(c, length, drawn(c, 0, length)), 1, c.n_head, length, "blocks of 128");
}

TEST(BigBird, EqualsTheMaskOfGivenBlocks) {
  BigBirdConfig c = bigbird_preset("tiny");
  c.random = RandomPlan::given;
  constexpr int64_t length = 45, n = 12;
  std::vector<int64_t> all;
  std::map<std::vector<int64_t>, std::vector<int64_t>> given;  // (layer, head, row)
  for (int64_t layer = 0; layer < 2; ++layer) {
    for (int64_t h = 0; h < 2; ++h) {
      for (int64_t row = 1; row < n - 1; ++row) {
        // Gives each head and layer two blocks at other distances, out of order.
        std::vector<int64_t> legal;
        for (int64_t k = n - 2; k >= 1; --k) {
          if (std::abs(k - row) > 1) legal.push_back(k);
        }
        const auto at = static_cast<size_t>(layer + 2 * h);
        given[{layer, h, row}] = {legal[at], legal[at + 1]};
        all.insert(all.end(), {legal[at], legal[at + 1]});
      }
    }
  }
  BigBird model = randomised_bigbird(c);
  EXPECT_THROW(model.table(0, 0, length), ValueError);
  model.set_random_blocks(Tensor::from(all, {2, 2, n - 2, 2}));
  for (int64_t layer = 0; layer < 2; ++layer) {
    const RandomOf random = [&](int64_t h, int64_t row) { return given[{layer, h, row}]; };
    expect_dense(layer_pattern(model, layer, length, {length}), sees_bigbird(c, length, random), 1,
                 2, length, "given");
  }
  EXPECT_THROW(model.table(0, 0, 60), ValueError) << "other lengths have other rows";
  EXPECT_THROW(model.set_random_blocks(Tensor::from(all, {4, 1, n - 2, 2})), ShapeError);
  EXPECT_THROW(randomised_bigbird(bigbird_preset("tiny"))
                   .set_random_blocks(Tensor::from(all, {2, 2, n - 2, 2})),
               ValueError);
}

// A block that a row sees m times counts as m concatenated copies of its keys. The oracle gets
// the copies as separate rows and sums their gradients.
TEST(BigBird, RepeatsEqualKeysConcatenated) {
  BigBirdConfig c = bigbird_preset("tiny");
  c.random = RandomPlan::given;
  c.n_layer = 1;
  constexpr int64_t length = 45, n = 12, heads = 2, width = 5;
  std::vector<int64_t> all;
  const auto picks = [](int64_t h, int64_t row) -> std::vector<int64_t> {
    if (h == 0) return {0, 0};                  // block 0 three times
    if (row % 3 == 0) return {n - 1, row - 1};  // the short last block, and a neighbour twice
    return {(row + 5) % n, (row + 5) % n};      // the same one drawn twice
  };
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t row = 1; row < n - 1; ++row) {
      const auto two = picks(h, row);
      all.insert(all.end(), two.begin(), two.end());
    }
  }
  const Tensor blocks = Tensor::from(all, {1, heads, n - 2, 2});
  BigBird strict = randomised_bigbird(c);
  strict.set_random_blocks(blocks);
  EXPECT_THROW(strict.table(0, 0, length), ValueError);
  c.count_repeats = true;
  BigBird model = randomised_bigbird(c);
  model.set_random_blocks(blocks);
  // Copy m of key j of block k exists for rows that see block k more than m times.
  const auto times = [&](int64_t h, int64_t i, int64_t j) -> int64_t {
    const int64_t row = i / c.block, k = j / c.block;
    if (row == 0 || row == n - 1) return 1;
    const auto random = picks(h, row);
    return static_cast<int64_t>(std::count(random.begin(), random.end(), k)) +
           (sees_block(n, row, k, {}) ? 1 : 0);
  };
  constexpr int64_t copies = 3, long_length = copies * length;
  const Shape shape{1, heads, length, width};
  const std::vector<double> q = noise(shape, 1), k = noise(shape, 2), v = noise(shape, 3),
                            dout = noise(shape, 4);
  const auto repeated = [&](const std::vector<double>& x, int64_t from) {
    std::vector<double> y;
    for (int64_t h = 0; h < heads; ++h) {
      const auto first = x.begin() + h * length * width;
      for (int64_t m = 0; m < copies; ++m) {
        if (m < from) {
          y.insert(y.end(), first, first + length * width);
        } else {
          y.insert(y.end(), static_cast<size_t>(length * width), 0.0);
        }
      }
    }
    return y;
  };
  const AttentionValues truth = dense_attention(
      repeated(q, 1), repeated(k, copies), repeated(v, copies), repeated(dout, 1),
      {1, heads, long_length, width}, [&](int64_t, int64_t h, int64_t i, int64_t j) {
        return i < length ? j / length < times(h, i, j % length) : j == 0;
      });
  const auto folded = [&](const std::vector<double>& x) {
    std::vector<double> y(static_cast<size_t>(heads * length * width));
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t m = 0; m < copies; ++m) {
        for (int64_t e = 0; e < length * width; ++e) {
          y[static_cast<size_t>(h * length * width + e)] +=
              x[static_cast<size_t>((h * copies + m) * length * width + e)];
        }
      }
    }
    return Tensor::from(y, shape);
  };
  Tensor tensors[] = {Tensor::from(q, shape), Tensor::from(k, shape), Tensor::from(v, shape)};
  for (Tensor& x : tensors) set_requires_grad(x);
  const AttentionPattern pattern = layer_pattern(model, 0, length, {length});
  EXPECT_EQ(visible_pairs(pattern, length, length), model.table(0, 0, length).pairs());
  const Tensor out = block_attention(tensors[0], tensors[1], tensors[2], pattern).out;
  backward(out, Tensor::from(dout, shape));
  // Rows beyond the first copy see only key 0, so its value is their output. They have no gradient.
  std::vector<double> first = truth.out;
  for (int64_t h = 0; h < heads; ++h) {
    const auto row = first.begin() + h * long_length * width;
    std::fill(row + length * width, row + long_length * width, 0.0);
  }
  EXPECT_LE(distance(out.detach(), folded(first)), 1e-12);
  EXPECT_LE(distance(grad(tensors[0]), folded(truth.dq)), 1e-12);
  EXPECT_LE(distance(grad(tensors[1]), folded(truth.dk)), 1e-12);
  EXPECT_LE(distance(grad(tensors[2]), folded(truth.dv)), 1e-12);
}

// Pairs: the closed formula if b divides L, else the sum over rows.
TEST(BigBird, PairCounts) {
  EXPECT_EQ(bigbird_pairs(64, 64, 3), 2'547'712);
  for (const int64_t b : {4, 16, 64}) {
    for (const int64_t r : {0, 1, 3}) {
      BigBirdConfig c = bigbird_preset("tiny");
      c.block = b;
      c.n_random = r;
      const BigBird model = randomised_bigbird(c);
      for (const int64_t n : {5 + r, 6 + r, int64_t{20}}) {
        const AttentionPattern whole = layer_pattern(model, 0, n * b, {n * b});
        const int64_t per_head = bigbird_pairs(n, b, r);
        EXPECT_EQ(attended_pairs(whole, 1, 2, n * b, n * b), 2 * per_head);
        EXPECT_EQ(model.table(0, 1, n * b).pairs(), per_head);
        // The last block has one token.
        const int64_t length = (n - 1) * b + 1;
        const BlockTable table = model.table(0, 0, length);
        const auto size = [&](int64_t k) { return k == n - 1 ? 1 : b; };
        int64_t expected = 0;
        for (int64_t i = 0; i < n; ++i) {
          for (const int64_t k : table.keys[static_cast<size_t>(i)]) expected += size(i) * size(k);
        }
        const AttentionPattern part = layer_pattern(model, 0, length, {length});
        EXPECT_EQ(visible_pairs(part, length, length), expected);
        EXPECT_EQ(covered_pairs(part, length, length), expected) << "only attended pairs";
      }
    }
  }
}

// R(i): r distinct blocks outside the row's fixed pattern, drawn separately for each head, the
// same in every call.
TEST(BigBird, RandomBlocks) {
  for (const RandomPlan plan : {RandomPlan::uniform, RandomPlan::first_1024}) {
    for (const int64_t block : {4, 64, 512}) {
      BigBirdConfig c = bigbird_preset("tiny");
      c.block = block;
      c.n_random = 3;
      c.random = plan;
      for (const int64_t n : {8, 9, 16, 17, 40}) {
        std::set<std::vector<std::vector<int64_t>>> plans;
        for (int64_t layer = 0; layer < 3; ++layer) {
          for (int64_t head = 0; head < 4; ++head) {
            const auto rows = random_blocks(c, layer, head, n);
            EXPECT_EQ(rows, random_blocks(c, layer, head, n));
            ASSERT_EQ(rows.size(), static_cast<size_t>(n - 2));
            for (int64_t i = 1; i < n - 1; ++i) {
              const auto& row = rows[static_cast<size_t>(i - 1)];
              EXPECT_EQ(std::set<int64_t>(row.begin(), row.end()).size(), 3u);
              for (const int64_t k : row) {
                EXPECT_TRUE(k >= 1 && k <= n - 2 && std::abs(k - i) > 1) << k << " of row " << i;
                if (plan == RandomPlan::first_1024) {
                  EXPECT_LT(k, std::max<int64_t>(1024 / block, 8));
                }
              }
            }
            plans.insert(rows);
          }
        }
        EXPECT_GT(plans.size(), n == 8 ? 6u : 11u) << "heads and layers draw their own";
        c.random_seed = 1;
        EXPECT_EQ(plans.count(random_blocks(c, 0, 0, n)), 0u) << "so do seeds";
        c.random_seed = 0;
      }
    }
  }
  // If three of many blocks are drawn uniformly, every legal block is drawn about equally often.
  BigBirdConfig c = bigbird_preset("tiny");
  c.n_random = 3;
  constexpr int64_t n = 24, row = 10, heads = 2000;
  std::vector<int64_t> times(n);
  for (int64_t head = 0; head < heads; ++head) {
    const auto rows = random_blocks(c, 0, head, n);
    for (const int64_t k : rows[row - 1]) ++times[static_cast<size_t>(k)];
  }
  const double expected = 3.0 * heads / (n - 5);
  for (int64_t k = 1; k < n - 1; ++k) {
    if (std::abs(k - row) <= 1) continue;
    EXPECT_NEAR(static_cast<double>(times[static_cast<size_t>(k)]), expected,
                5 * std::sqrt(expected));
  }
  EXPECT_THROW(random_blocks(c, 0, 0, 7), ValueError);
}

Tensor padded_output(const BigBird& model, const std::vector<int64_t>& tokens, int64_t length) {
  std::vector<int64_t> padded = tokens;
  padded.resize(static_cast<size_t>(length), 1);
  const auto valid = static_cast<int64_t>(tokens.size());
  const Tensor y = model.forward({.tokens = Tensor::from(padded, {1, length}),
                                  .lengths = Tensor::from(std::vector<int64_t>{valid}, {1})},
                                 Pass{});
  return contiguous(narrow(y, 1, 0, valid));
}

// With global_last = real the padding does not affect valid tokens. With padded it does, as in
// the reference implementations.
TEST(BigBird, ThePaddingMattersOnlyToPadded) {
  const NoGrad off;
  BigBirdConfig c = bigbird_preset("tiny");
  for (const GlobalLast last : {GlobalLast::real, GlobalLast::padded}) {
    c.global_last = last;
    const BigBird model = randomised_bigbird(c);
    const std::vector<int64_t> tokens = some_tokens(1, 37, c.vocab).to_vector<int64_t>();
    const Tensor alone = padded_output(model, tokens, 37);
    EXPECT_EQ(same_bits(alone, padded_output(model, tokens, 45)), last == GlobalLast::real);
    EXPECT_EQ(same_bits(alone, padded_output(model, tokens, 64)), last == GlobalLast::real);
  }
}

TEST(BigBird, SamplesOfABatchAreAlone) {
  const NoGrad off;
  const BigBirdConfig c = bigbird_preset("tiny");
  const BigBird model = randomised_bigbird(c);
  const std::vector<int64_t> valid{45, 13, 29, 0, 13};
  const Tensor tokens = some_tokens(5, 45, c.vocab);
  const Tensor y = model.forward({.tokens = tokens, .lengths = Tensor::from(valid, {5})}, Pass{});
  for (const double v : y.to_vector<double>()) EXPECT_TRUE(std::isfinite(v));
  const std::vector<int64_t> ids = tokens.to_vector<int64_t>();
  for (size_t b = 0; b < valid.size(); ++b) {
    if (valid[b] == 0) continue;
    const auto first = ids.begin() + static_cast<int64_t>(b) * 45;
    const Tensor one = padded_output(model, {first, first + valid[b]}, valid[b]);
    const Tensor here = narrow(narrow(y, 0, static_cast<int64_t>(b), 1), 1, 0, valid[b]);
    EXPECT_TRUE(same_bits(contiguous(here), one)) << b;
  }
}

// The test against dense attention checks gradients of q, k and v. This one checks the parameters
// of the tiny model.
TEST(BigBird, Gradcheck) {
  const BigBirdConfig c = bigbird_preset("tiny");
  BigBird model = randomised_bigbird(c);
  const Tensor tokens = some_tokens(2, 45, c.vocab);
  std::vector<int64_t> ids = tokens.to_vector<int64_t>();
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i % 3 != 1) ids[i] = ignored_target;
  }
  const Tensor targets = Tensor::from(ids, {2, 45});
  EXPECT_EQ(check_parameter_gradients(
                model, [&] { return model.loss(tokens, targets, {}, Pass{}).loss; }, 3),
            "");
}

// Without random blocks the variant with global tokens equals ETC: the same parameters and, bit
// for bit, the same outputs and gradients, whatever the block fields say.
TEST(BigBird, EtcModeWithoutRandomBlocksIsEtcBitForBit) {
  EtcConfig c = bigbird_etc_preset("tiny"), plain = etc_preset("tiny");
  c.n_random = 0;
  c.block = 7;
  c.random_seed = 5;
  Etc model(c, in_f64), etc(plain, in_f64);
  randomise(etc, 0.3, 5);
  copy_parameters(etc, model);
  const Tensor tokens = some_tokens(2, 29, c.vocab - 2), targets = some_tokens(2, 29, c.vocab, 2);
  const LinkedStreams y = model.forward(model.plain(tokens), Pass{});
  const LinkedStreams z = etc.forward(etc.plain(tokens), Pass{});
  EXPECT_TRUE(same_bits(y.l, z.l));
  EXPECT_TRUE(same_bits(y.g, z.g));
  backward(model.loss(tokens, targets, {}, Pass{}).loss);
  backward(etc.loss(tokens, targets, {}, Pass{}).loss);
  for (const NamedTensor& p : named_parameters(model)) {
    const Tensor here = grad(p.tensor), there = grad(parameter(etc, p.name));
    ASSERT_EQ(static_cast<bool>(here), static_cast<bool>(there)) << p.name;
    if (!here) continue;
    EXPECT_TRUE(same_bits(here, there)) << p.name;
  }
  // The presets of the paper have no random blocks.
  for (const char* name : {"base", "large", "hotpot", "natural_questions", "trivia", "wikihop"}) {
    EXPECT_EQ(bigbird_etc_preset(name).n_random, 0) << name;
  }
  EXPECT_THROW(bigbird_etc_preset("none"), ValueError);
}

// With random blocks: equals the definition, pair by pair, under every limit on visibility.
TEST(BigBird, EtcModeWithRandomBlocksEqualsTheDenseOracle) {
  for (const int64_t block : {0, 1, 3, 6}) {
    for (const int64_t n_l : {1, 9, 29, 47}) {
      EtcConfig c = etc_preset("tiny");
      c.n_random = 2;
      c.block = block;
      Links links = sentences(2, n_l);
      if (block == 3) {  // two concatenated examples
        const int64_t half = links.n_g / 2;
        for (int64_t b = 0; b < 2; ++b) {
          for (int64_t m = 0; m < links.n_g; ++m) links.global_example.push_back(m < half ? 3 : 1);
          for (int64_t j = 0; j < n_l; ++j) {
            links.example.push_back(links.owner[static_cast<size_t>(b * n_l + j)] < half ? 3 : 1);
          }
        }
      }
      Etc model(c, in_f64);
      randomise(model, 0.3, 5);
      const EtcInputs in = links.inputs(c);
      const auto weighed = [](const LinkedStreams& x) {
        std::vector<double> w(static_cast<size_t>(x.l.numel()));
        for (size_t i = 0; i < w.size(); ++i) w[i] = std::cos(static_cast<double>(i));
        return sum(mul(x.l, Tensor::from(w, x.l.shape())));
      };
      const LinkedStreams y = model.forward(in, Pass{}), z = dense_encoder(c, model, in, links);
      EXPECT_LE(distance(y.l, z.l), 1e-11) << block << " " << n_l;
      EXPECT_LE(distance(y.g, z.g), 1e-11);
      backward(weighed(y));
      std::map<std::string, Tensor> gradients;
      for (const NamedTensor& p : named_parameters(model)) {
        gradients[p.name] = grad(p.tensor);
        set_grad(p.tensor, {});
      }
      backward(weighed(z));
      for (const NamedTensor& p : named_parameters(model)) {
        if (!grad(p.tensor)) continue;
        EXPECT_LE(distance(gradients[p.name], grad(p.tensor)), 1e-9) << p.name;
      }
      if (n_l < 29) continue;
      EtcConfig none = c;
      none.n_random = 0;
      Etc windows(none, in_f64);
      copy_parameters(model, windows);
      EXPECT_FALSE(same_bits(windows.forward(in, Pass{}).l, y.l)) << "random blocks are seen";
    }
  }
}

// The lower triangle of the same blocks, compared with brute force for outputs, gradients and
// pairs.
TEST(BigBird, CausalRowsEqualTheMask) {
  for (const int64_t block : {1, 4, 16}) {
    for (const int64_t length : {1, 3, 28, 45, 131}) {
      BigBirdConfig c = bigbird_preset("tiny");
      c.block = block;
      c.n_random = 3;
      c.n_head = 4;
      c.causal = true;
      const BigBird model = randomised_bigbird(c);
      const Sees sees = [&](int64_t, int64_t h, int64_t i, int64_t j) {
        const int64_t row = i / block, k = j / block;
        const auto random = past_random_blocks(c, 1, h, row);
        for (const int64_t r : random) EXPECT_TRUE(r >= 1 && r <= row - 2);
        EXPECT_EQ(static_cast<int64_t>(random.size()), std::clamp<int64_t>(row - 2, 0, c.n_random));
        return j <= i &&
               (k == 0 || k >= row - 1 || std::count(random.begin(), random.end(), k) == 1);
      };
      const AttentionPattern pattern = layer_pattern(model, 1, length, {length});
      expect_dense(pattern, sees, 1, 4, length, fmt::format("b {} L {}", block, length));
      for (int64_t h = 0; h < 4; ++h) {
        int64_t pairs = 0;
        for (int64_t i = 0; i < length; ++i) {
          for (int64_t j = 0; j < length; ++j) pairs += sees(0, h, i, j) ? 1 : 0;
        }
        EXPECT_EQ(model.table(1, h, length).pairs(), pairs);
        EXPECT_EQ(visible_pairs(pattern, length, length, h), pairs);
      }
    }
  }
}

// Decoding in steps of any size equals the full pass, because rows do not depend on later
// tokens.
TEST(BigBird, CausalDecodingEqualsTheFullPass) {
  const NoGrad off;
  for (const RandomPlan plan : {RandomPlan::uniform, RandomPlan::first_1024}) {
    BigBirdConfig c = bigbird_preset("tiny");
    c.random = plan;
    c.causal = true;
    const BigBird model = randomised_bigbird(c);
    const Tensor tokens = some_tokens(2, 45, c.vocab);
    const Tensor full = model.logits(tokens, Pass{});
    const auto state = model.start_decoding(2);
    int64_t at = 0;
    for (const int64_t n : {1, 1, 5, 1, 9, 4, 1, 1, 1, 13, 1, 1, 6}) {
      const Tensor step = model.decode(contiguous(narrow(tokens, 1, at, n)), *state);
      at += n;
      EXPECT_LE(distance(step, contiguous(select(full, 1, at - 1))), 1e-12) << at;
      const Tensor prefix = model.logits(contiguous(narrow(tokens, 1, 0, at)), Pass{});
      EXPECT_LE(distance(contiguous(select(prefix, 1, -1)), contiguous(select(full, 1, at - 1))),
                1e-12);
    }
    EXPECT_EQ(at, 45);
    // Beam search with one beam is greedy decoding.
    const Tensor prompt = contiguous(narrow(tokens, 1, 0, 7));
    const Beams one = beam_search(model, prompt, model.start_decoding(2), 30, {.beams = 1});
    const Tensor greedy = generate(model, prompt, 30, {.temperature = 0}, Generator{1});
    EXPECT_TRUE(same_bits(contiguous(select(one.tokens, 1, 0)), greedy));
  }
  EXPECT_THROW(randomised_bigbird(bigbird_preset("tiny")).start_decoding(1), NotImplemented);
}

/// Returns the least number of steps from block i to each block j if rows see the blocks in `sees`,
/// or -1 if there is no path.
std::vector<int64_t> steps_from(int64_t i, const std::vector<std::set<int64_t>>& sees) {
  std::vector<int64_t> steps(sees.size(), -1), front{i};
  steps[static_cast<size_t>(i)] = 0;
  for (int64_t far = 1; !front.empty(); ++far) {
    std::vector<int64_t> next;
    for (const int64_t k : front) {
      for (const int64_t j : sees[static_cast<size_t>(k)]) {
        if (steps[static_cast<size_t>(j)] >= 0) continue;
        steps[static_cast<size_t>(j)] = far;
        next.push_back(j);
      }
    }
    front = std::move(next);
  }
  return steps;
}

// Sec. 2: two layers connect every pair of tokens through the global blocks. Without global blocks,
// random edges shorten long paths to a few steps.
TEST(BigBird, TwoStepsReachEverywhereAndRandomEdgesShortenPaths) {
  constexpr int64_t n = 64;
  BigBirdConfig c = bigbird_preset("tiny");
  c.n_random = 3;
  const BigBird model = randomised_bigbird(c);
  const BlockTable table = model.table(0, 0, n * c.block);
  const auto random = random_blocks(c, 0, 0, n);
  std::vector<std::set<int64_t>> all(n), local(n), wired(n);  // wired: local and random edges
  for (int64_t k = 0; k < n; ++k) {
    const auto at = static_cast<size_t>(k);
    all[at].insert(table.keys[at].begin(), table.keys[at].end());
    local[at] = {std::max<int64_t>(k - 1, 0), k, std::min(k + 1, n - 1)};
    wired[at] = local[at];
    if (k > 0 && k < n - 1) wired[at].insert(random[at - 1].begin(), random[at - 1].end());
  }
  double along = 0, across = 0;  // mean steps with windows alone, and with random edges
  for (int64_t i = 0; i < n; ++i) {
    for (const int64_t far : steps_from(i, all)) EXPECT_TRUE(far >= 0 && far <= 2);
    for (const int64_t far : steps_from(i, local)) along += static_cast<double>(far) / (n * n);
    for (const int64_t far : steps_from(i, wired)) across += static_cast<double>(far) / (n * n);
  }
  EXPECT_NEAR(along, (n * n - 1) / (3.0 * n), 1e-9) << "of a path";
  EXPECT_LT(across, 5);
}

// Sec. 3.4, task 1: find the furthest vector for each unit vector. One layer of full attention with
// Q = -a, K = V = a and large logits solves it exactly. If the pattern hides that vector, no
// weights can.
TEST(BigBird, TheFurthestVectorNeedsFullAttention) {
  constexpr int64_t length = 180, width = 8;
  std::vector<double> a = noise({1, 1, length, width}, 3);
  for (int64_t i = 0; i < length; ++i) {
    double norm = 0;
    for (int64_t e = 0; e < width; ++e) norm += a[i * width + e] * a[i * width + e];
    for (int64_t e = 0; e < width; ++e) a[i * width + e] /= std::sqrt(norm);
  }
  BigBirdConfig c = bigbird_preset("tiny");
  c.n_head = 1;
  const BigBird model = randomised_bigbird(c);
  const Tensor x = Tensor::from(a, {1, 1, length, width});
  const AttentionPattern sparse = layer_pattern(model, 0, length, {length});
  std::set<std::pair<int64_t, int64_t>> visible;
  count_pairs(sparse, length, length, 0, 0, 0,
              [&](int64_t i, int, int64_t j) { visible.emplace(i, j); });
  ScoreTerms large;
  large.scale = 1e9;
  for (const bool full : {true, false}) {
    const auto y = block_attention(mul(x, -1), x, x, full ? patterns::dense() : sparse, large)
                       .out.to_vector<double>();
    int64_t right = 0, seen = 0;
    for (int64_t i = 0; i < length; ++i) {
      int64_t furthest = 0;
      double least = 2;
      for (int64_t j = 0; j < length; ++j) {
        double dot = 0;
        for (int64_t e = 0; e < width; ++e) dot += a[i * width + e] * a[j * width + e];
        if (dot < least) furthest = j;
        least = std::min(least, dot);
      }
      double error = 0;
      for (int64_t e = 0; e < width; ++e) {
        error = std::max(error, std::abs(y[i * width + e] - a[furthest * width + e]));
      }
      right += error < 1e-6 ? 1 : 0;
      seen += visible.contains({i, furthest}) ? 1 : 0;
    }
    EXPECT_EQ(right, full ? length : seen);
    EXPECT_EQ(right < length / 3, !full) << "the pattern shows few of them";
  }
}

TEST(BigBird, RejectsWhatDoesNotFit) {
  const auto expect_error = [](const std::function<void(BigBirdConfig&)>& change,
                               const std::string& part) {
    BigBirdConfig c = bigbird_preset("tiny");
    change(c);
    try {
      const BigBird model(c, in_f64);
      FAIL() << part;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
  };
  expect_error([](auto& c) { c.block = 0; }, "block is 0; expected 1 or more");
  expect_error([](auto& c) { c.n_random = -1; }, "n_random is -1; expected 0 or more");
  expect_error([](auto& c) { c.n_random = INT64_MAX; }, "no more blocks than n_max = 64 tokens");
  expect_error([](auto& c) { c.d_model = 15; }, "n_head");
  expect_error([](auto& c) { c.causal = true, c.classes = 2; }, "need causal = false");
  expect_error([](auto& c) { c.causal = c.span_head = true; }, "need causal = false");
  EXPECT_THROW(bigbird_preset("none"), ValueError);
  BigBirdConfig wide = bigbird_preset("tiny");  // one block holds the whole sequence
  wide.block = INT64_MAX;
  EXPECT_EQ(randomised_bigbird(wide).table(0, 0, 45).pairs(), 45 * 45);
  expect_error([](auto& c) { c.count_repeats = true; }, "count_repeats is for random = given");
  expect_error(
      [](auto& c) {
        c.causal = true;
        c.random = RandomPlan::given;
      },
      "expected uniform or first_1024");
  EXPECT_THROW(bigbird_blocks(20, 4, {{3}, {3}, {1}}), ValueError) << "seen twice";
  EXPECT_THROW(bigbird_blocks(20, 4, {{3}, {5}, {1}}, true), ValueError) << "there is no block 5";
}

}  // namespace
}  // namespace longspan::test
