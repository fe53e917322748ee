// BlockBERT.

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "autograd/mode.h"
#include "core/memory.h"
#include "models/blockbert/blockbert.h"
#include "models/transformer/transformer.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/index.h"
#include "ops/patterns/blocks.h"
#include "ops/patterns/pairs.h"
#include "ops/shape.h"
#include "tests/models/dense_attention.h"
#include "tests/models/small_models.h"

namespace longspan::test {
namespace {

using Permutations = std::vector<std::vector<int64_t>>;

/// Returns the configuration of a BERT with full attention and the same parameter names.
TransformerConfig dense_twin(const BlockBertConfig& c) {
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
  return t;
}

Permutations shifts(int64_t n) {
  Permutations all;
  for (int64_t s = 0; s < n; ++s) {
    all.emplace_back();
    for (int64_t k = 0; k < n; ++k) all.back().push_back((k + s) % n);
  }
  return all;
}

/// Returns every shift, and permutations that are neither a shift nor their own inverse.
Permutations some_permutations(int64_t n) {
  Permutations all = shifts(n);
  if (n == 3) all.push_back({2, 1, 0});
  if (n == 5) {
    all.push_back({2, 4, 1, 0, 3});
    all.push_back({1, 0, 4, 2, 3});
  }
  return all;
}

int64_t block_of(int64_t i, int64_t n, int64_t length) { return i * n / length; }

Sees sees_permuted(const Permutations& pi, int64_t length) {
  return [pi, length](int64_t, int64_t h, int64_t i, int64_t j) {
    const auto& p = pi[static_cast<size_t>(h)];
    const auto n = static_cast<int64_t>(p.size());
    return p[static_cast<size_t>(block_of(i, n, length))] == block_of(j, n, length);
  };
}

// One block is full attention, bit for bit.
TEST(BlockBert, OneBlockIsDense) {
  BlockBertConfig c = blockbert_preset("tiny");
  c.n_block = 1;
  c.heads_per_shift = {};
  BlockBert model(c, in_f64);
  randomise(model, 0.3, 5);
  Transformer dense(dense_twin(c), in_f64);
  copy_parameters(model, dense);
  for (const int64_t length : {1, 2, 7, 22, 64}) {
    const Tensor tokens = some_tokens(2, length, c.vocab), targets = mlm_targets(tokens);
    EXPECT_TRUE(same_bits(model.logits(tokens, Pass{}), dense.logits(tokens, Pass{})));
    backward(model.loss(tokens, targets, {}, Pass{}).loss);
    backward(dense.loss(tokens, targets, {}, Pass{}).loss);
    for (const NamedTensor& p : named_parameters(model)) {
      const Tensor twin = parameter(dense, p.name);
      EXPECT_TRUE(same_bits(grad(p.tensor), grad(twin))) << p.name << " at " << length;
      set_grad(p.tensor, {});
      set_grad(twin, {});
    }
  }
}

// Any permutation equals dense attention under the mask. Blocks may be empty.
TEST(BlockBert, AnyPermutationEqualsTheMask) {
  for (const int64_t length : {1, 2, 7, 22, 64, 65, 250}) {
    for (const int64_t n : {1, 2, 3, 5}) {
      const Permutations pi = some_permutations(n);
      expect_dense(patterns::permuted_blocks(length, pi), sees_permuted(pi, length), 2,
                   static_cast<int64_t>(pi.size()), length, fmt::format("L {} n {}", length, n));
    }
  }
}

TEST(BlockBert, PaddingToAMultipleKeepsItsBlocks) {
  constexpr int64_t length = 22, padded = 30;
  const Permutations pi = some_permutations(3);
  expect_dense(
      patterns::permuted_blocks(length, pi, padded),
      [&](int64_t, int64_t h, int64_t i, int64_t j) {
        return pi[static_cast<size_t>(h)][static_cast<size_t>(block_of(i, 3, padded))] ==
               block_of(j, 3, padded);
      },
      1, static_cast<int64_t>(pi.size()), length, "padded to 30");
}

// Pairs: sum_k s_k s_pi(k), which is N^2 / n if n divides N.
TEST(BlockBert, PairCounts) {
  for (const int64_t length : {1, 7, 22, 64, 512, 1024}) {
    for (const int64_t n : {1, 2, 3, 5}) {
      const auto size = [&](int64_t k) {
        return ((k + 1) * length + n - 1) / n - (k * length + n - 1) / n;
      };
      for (int64_t shift = 0; shift < n; ++shift) {
        int64_t expected = 0;
        for (int64_t k = 0; k < n; ++k) expected += size(k) * size((k + shift) % n);
        const Permutations pi{shifts(n)[static_cast<size_t>(shift)]};
        const AttentionPattern p = patterns::permuted_blocks(length, pi);
        EXPECT_EQ(attended_pairs(p, 1, 1, length, length), expected);
        EXPECT_EQ(covered_pairs(p, length, length), expected) << "only attended pairs are computed";
        if (length % n == 0) {
          EXPECT_EQ(expected, length * length / n);
        }
      }
    }
  }
  const Permutations all = shifts(3);
  EXPECT_EQ(attended_pairs(patterns::permuted_blocks(22, all), 2, 3, 22, 22), 2 * 22 * 22);
}

// SparseBERT: a block sees itself and the last columns of every block. Checked against a mask and
// the closed form.
TEST(BlockBert, SparseBertEqualsTheMask) {
  constexpr int64_t stride = 8, columns = 3;
  for (const int64_t length : {1, 7, 8, 14, 22, 64, 250}) {
    const AttentionPattern p =
        patterns::block_lists(length, {fixed_blocks(length, stride, columns)}, {}, "fixed");
    const auto sees = [](int64_t, int64_t, int64_t i, int64_t j) {
      return i / stride == j / stride || j % stride >= stride - columns;
    };
    expect_dense(p, sees, 2, 3, length, fmt::format("L {}", length));
    EXPECT_EQ(attended_pairs(p, 1, 1, length, length), covered_pairs(p, length, length));
  }
  const int64_t n = 512 / 128;
  EXPECT_EQ(fixed_blocks(512, 128, 32).pairs(), 512 * (128 + (n - 1) * 32));
  EXPECT_THROW(fixed_blocks(8, 4, 5), ValueError);
}

// Key blocks in permuted order under the identity equal the permutation.
TEST(BlockBert, PermutedKeysUnderTheIdentity) {
  constexpr int64_t length = 20, n = 5, block = length / n, width = 3;
  const std::vector<int64_t> pi{2, 4, 1, 0, 3};
  std::vector<int64_t> rows;
  for (const int64_t k : pi) {
    for (int64_t i = 0; i < block; ++i) rows.push_back(k * block + i);
  }
  const Tensor order = Tensor::from(rows, {length});
  const auto made = [&](uint64_t key) {
    const Shape shape{1, 1, length, width};
    return Tensor::from(noise(shape, key), shape);
  };
  const Tensor q = made(1), k = made(2), v = made(3);
  const auto identity = patterns::permuted_blocks(length, {shifts(n).front()});
  const Tensor a = block_attention(q, k, v, patterns::permuted_blocks(length, {pi})).out;
  const Tensor b = block_attention(q, take(k, order, 2), take(v, order, 2), identity).out;
  EXPECT_LE(distance(a, b), 1e-15);
  EXPECT_GT(distance(a, block_attention(q, k, v, identity).out), 1e-3);
}

// Query block pi^-1(m) reads key block m, not query block pi(m).
TEST(BlockBert, TheTransposeIsTheInverse) {
  constexpr int64_t length = 22, n = 3;
  const std::vector<int64_t> pi{1, 2, 0};
  const Shape shape{1, 1, length, 4};
  for (int64_t k = 0; k < n; ++k) {
    Tensor key = Tensor::from(noise(shape, 2), shape);
    set_requires_grad(key);
    const Tensor q = Tensor::from(noise(shape, 1), shape);
    const Tensor v = Tensor::from(noise(shape, 3), shape);
    std::vector<double> dout = noise(shape, 4);
    for (int64_t i = 0; i < length; ++i) {
      if (block_of(i, n, length) == k) continue;
      for (int64_t c = 0; c < 4; ++c) dout[static_cast<size_t>(i * 4 + c)] = 0;
    }
    backward(block_attention(q, key, v, patterns::permuted_blocks(length, {pi})).out,
             Tensor::from(dout, shape));
    const std::vector<double> dk = grad(key).to_vector<double>();
    for (int64_t j = 0; j < length; ++j) {
      const bool read = block_of(j, n, length) == pi[static_cast<size_t>(k)];
      EXPECT_EQ(dk[static_cast<size_t>(j * 4)] != 0, read) << "key " << j << " from block " << k;
    }
  }
}

/// Returns the blocks of rows whose logits change if the tokens of block m change.
std::set<int64_t> changed_blocks(const BlockBert& model, int64_t length, int64_t m) {
  const NoGrad off;
  const int64_t n = model.config().n_block;
  const Tensor tokens = some_tokens(1, length, model.vocab());
  std::vector<int64_t> other = tokens.to_vector<int64_t>();
  for (int64_t i = 0; i < length; ++i) {
    auto& id = other[static_cast<size_t>(i)];
    if (block_of(i, n, length) == m) id = (id + 1) % model.vocab();
  }
  const Tensor a = model.logits(tokens, Pass{});
  const Tensor b = model.logits(Tensor::from(other, {1, length}), Pass{});
  std::set<int64_t> changed;
  for (int64_t i = 0; i < length; ++i) {
    if (!same_bits(contiguous(select(a, 1, i)), contiguous(select(b, 1, i)))) {
      changed.insert(block_of(i, n, length));
    }
  }
  return changed;
}

BlockBert block_model(int64_t n, int64_t layers, const Permutations& pi) {
  BlockBertConfig c = blockbert_preset("tiny");
  c.n_block = n;
  c.n_layer = layers;
  c.n_head = static_cast<int64_t>(pi.size());
  c.permutations.clear();
  for (const auto& p : pi) c.permutations.insert(c.permutations.end(), p.begin(), p.end());
  BlockBert model(c, in_f64);
  randomise(model, 0.3, 9);
  return model;
}

// In one layer, the tokens of a block affect the block itself (the residual) and the blocks that
// attend to it.
TEST(BlockBert, OneLayerReachesWhoLooks) {
  const Permutations pi{{0, 1, 2, 3, 4}, {2, 4, 1, 0, 3}};
  const BlockBert model = block_model(5, 1, pi);
  for (int64_t m = 0; m < 5; ++m) {
    std::set<int64_t> expected{m};
    for (const auto& p : pi) {
      for (int64_t k = 0; k < 5; ++k) {
        if (p[static_cast<size_t>(k)] == m) expected.insert(k);
      }
    }
    EXPECT_EQ(changed_blocks(model, 22, m), expected) << m;
  }
}

// After N layers, reachability is the N-th boolean power of the block attention matrix.
TEST(BlockBert, ReachabilityIsAMatrixPower) {
  constexpr int64_t n = 4;
  const Permutations all = shifts(n);
  struct Case {
    Permutations pi;
    int64_t layers_to_connect;  // 0: never
  };
  const Case cases[] = {{all, 1}, {{all[0], all[1]}, n - 1}, {{all[0], all[0]}, 0}};
  for (const Case& c : cases) {
    for (int64_t layers = 1; layers <= n; ++layers) {
      const BlockBert model = block_model(n, layers, {c.pi.begin(), c.pi.end()});
      int64_t reached = 0;
      for (int64_t m = 0; m < n; ++m) {
        std::set<int64_t> expected{m};
        for (int64_t step = 0; step < layers; ++step) {
          std::set<int64_t> next = expected;
          for (const auto& p : c.pi) {
            for (int64_t k = 0; k < n; ++k) {
              if (expected.count(p[static_cast<size_t>(k)]) > 0) next.insert(k);
            }
          }
          expected = next;
        }
        EXPECT_EQ(changed_blocks(model, 21, m), expected);
        reached += static_cast<int64_t>(expected.size());
      }
      const bool connected = c.layers_to_connect > 0 && layers >= c.layers_to_connect;
      EXPECT_EQ(reached == n * n, connected) << layers << " layers";
    }
  }
}

// Documents of half the length: shifted heads of block 0 see only padding.
TEST(BlockBert, PaddingGivesZerosNotNaN) {
  constexpr int64_t length = 22;
  const Permutations pi = shifts(2);
  const std::vector<int64_t> valid{11, 22, 5, 0};
  const Tensor lengths = Tensor::from(valid, {4});
  const Sees unpadded = sees_permuted(pi, length);
  expect_dense(
      with_lengths(patterns::permuted_blocks(length, pi), lengths, lengths),
      [&](int64_t b, int64_t h, int64_t i, int64_t j) {
        const int64_t end = valid[static_cast<size_t>(b)];
        return i < end && j < end && unpadded(b, h, i, j);
      },
      4, 2, length, "padded");

  BlockBertConfig c = blockbert_preset("tiny");
  c.n_block = 2;
  c.heads_per_shift = {2, 2};
  BlockBert model(c, in_f64);
  randomise(model, 0.3, 3);
  const NoGrad off;
  const Tensor tokens = some_tokens(4, length, c.vocab);
  const Tensor y = model.forward({.tokens = tokens, .lengths = lengths}, Pass{});
  for (const double v : y.to_vector<double>()) EXPECT_TRUE(std::isfinite(v));
  // The order of the samples and the content of the padding have no effect.
  const Tensor order = Tensor::from(std::vector<int64_t>{2, 0, 3, 1}, {4});
  const Tensor z =
      model.forward({.tokens = take(tokens, order), .lengths = take(lengths, order)}, Pass{});
  EXPECT_TRUE(same_bits(take(y, order), z));
  std::vector<int64_t> other = tokens.to_vector<int64_t>();
  for (int64_t i = 11; i < length; ++i) other[static_cast<size_t>(i)] = 1;
  const Tensor w =
      model.forward({.tokens = Tensor::from(other, {4, length}), .lengths = lengths}, Pass{});
  EXPECT_TRUE(same_bits(contiguous(narrow(select(y, 0, 0), 0, 0, 11)),
                        contiguous(narrow(select(w, 0, 0), 0, 0, 11))));
}

// Heads with every shift together see everything, but differ from dense attention: each block
// has its own softmax.
TEST(BlockBert, EveryShiftIsNotDenseAttention) {
  constexpr int64_t length = 21, n = 3, width = 4;
  const Shape one{1, 1, length, width};
  const auto made = [&](uint64_t key) { return Tensor::from(noise(one, key), one); };
  const Tensor q = made(1), k = made(2), v = made(3);
  const Tensor dense = block_attention(q, k, v, patterns::dense()).out;
  Tensor mean;
  for (const auto& pi : shifts(n)) {
    const Tensor y = block_attention(q, k, v, patterns::permuted_blocks(length, {pi})).out;
    EXPECT_GT(distance(y, dense), 1e-2);
    mean = mean ? add(mean, y) : y;
  }
  EXPECT_GT(distance(mul(mean, 1.0 / n), dense), 1e-2);
}

// The table of models checks gradients at length 11. This test checks the paper's tiny model.
TEST(BlockBert, Gradcheck) {
  BlockBert model(blockbert_preset("tiny"), in_f64);
  randomise(model, 0.3, 5);
  const Tensor tokens = some_tokens(2, 22, model.vocab()), targets = mlm_targets(tokens);
  EXPECT_EQ(check_parameter_gradients(
                model, [&] { return model.loss(tokens, targets, {}, Pass{}).loss; }, 3),
            "");
}

// Attention with materialised probabilities equals the fused one, with padding and blocks of
// any size.
TEST(BlockBert, MaterializedEqualsFused) {
  for (const int64_t n : {1, 3, 5}) {
    for (const int64_t length : {2, 22, 37}) {
      BlockBertConfig c = blockbert_preset("tiny");
      c.n_block = n;
      c.heads_per_shift = n == 1 ? std::vector<int64_t>{4} : std::vector<int64_t>{2, 1, 1};
      c.pad_to_multiple = length == 37 ? 8 : 0;
      BlockBert fused(c, in_f64);
      randomise(fused, 0.3, 5);
      c.attention_impl = AttentionImpl::materialized;
      BlockBert kept(c, in_f64);
      copy_parameters(fused, kept);
      const Tensor tokens = some_tokens(3, length, c.vocab), targets = mlm_targets(tokens);
      const Tensor lengths = Tensor::from(std::vector<int64_t>{length, length / 2, 1}, {3});
      const auto run = [&](BlockBert& model) {
        const Tensor y = model.forward({.tokens = tokens, .lengths = lengths}, Pass{});
        backward(model.loss(y, targets));
        return y.detach();
      };
      EXPECT_LE(distance(run(fused), run(kept)), 1e-12) << n << " blocks, L " << length;
      for (const NamedTensor& p : named_parameters(fused)) {
        EXPECT_LE(distance(grad(p.tensor), grad(parameter(kept, p.name))), 1e-12) << p.name;
      }
    }
  }
}

/// Returns the bytes that a training pass over `batch` sequences saves for its backward pass.
int64_t saved_bytes(AttentionImpl impl, int64_t n, int64_t batch, int64_t length) {
  BlockBertConfig c = blockbert_preset("tiny");
  c.n_layer = 1;
  c.n_max = length;
  c.n_block = n;
  c.heads_per_shift = n == 1 ? std::vector<int64_t>{4} : std::vector<int64_t>{3, 1};
  c.dropout = 0.1f;
  c.attention_impl = impl;
  const BlockBert model(c, Init{.gen = Generator{1}});
  const Tensor tokens = some_tokens(batch, length, c.vocab);
  const Pass pass{.training = true, .gen = Generator{3}};
  const Tensor loss = model.loss(tokens, mlm_targets(tokens), {}, pass).loss;
  return memory_tracker().live()[Category::saved];
}

// Claim of sec. 5 of the paper: with a fixed number of tokens, saved memory grows linearly with the
// length, and n times more slowly with n blocks. The fused kernels save nothing that grows with the
// length.
TEST(BlockBert, MemoryGrowsNTimesSlower) {
  constexpr int64_t tokens = 2048;
  const auto slope = [](AttentionImpl impl, int64_t n) {
    const auto at = [&](int64_t length) {
      return static_cast<double>(saved_bytes(impl, n, tokens / length, length));
    };
    const double first = (at(256) - at(128)) / 128, second = (at(512) - at(256)) / 256;
    if (impl == AttentionImpl::materialized) {
      EXPECT_NEAR(first, second, 0.01 * second);
    }
    return second;
  };
  const double dense = slope(AttentionImpl::materialized, 1);
  for (const int64_t n : {2, 4}) {
    const double ratio = dense / slope(AttentionImpl::materialized, n);
    EXPECT_NEAR(ratio, static_cast<double>(n), 0.03 * static_cast<double>(n));
  }
  EXPECT_LT(slope(AttentionImpl::fused, 2), 0.02 * dense);
}

TEST(BlockBert, HeadsGetTheirShifts) {
  BlockBertConfig c = blockbert_preset("tiny");
  c.n_head = 12;
  c.heads_per_shift = {8, 2, 2};
  const Permutations pi = block_permutations(c);
  ASSERT_EQ(pi.size(), 12u);
  EXPECT_EQ(pi[7], (std::vector<int64_t>{0, 1, 2}));
  EXPECT_EQ(pi[8], (std::vector<int64_t>{1, 2, 0}));
  EXPECT_EQ(pi[11], (std::vector<int64_t>{2, 0, 1}));
}

TEST(BlockBert, RejectsWhatDoesNotFit) {
  const auto expect_error = [](const std::function<void(BlockBertConfig&)>& change,
                               const std::string& part) {
    BlockBertConfig c = blockbert_preset("tiny");
    change(c);
    try {
      const BlockBert model(c, in_f64);
      FAIL() << part;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
  };
  expect_error([](auto& c) { c.heads_per_shift = {2, 1}; }, "expected n_head = 4");
  expect_error([](auto& c) { c.heads_per_shift = {1, 1, 1, 1}; }, "n_block = 3");
  expect_error([](auto& c) { c.heads_per_shift = {5, -1}; }, "expected 0 or more");
  expect_error([](auto& c) { c.n_block = 0; }, "n_block is 0; expected 1 to n_max = 64");
  expect_error([](auto& c) { c.n_block = int64_t{1} << 40; }, "expected 1 to n_max = 64");
  expect_error([](auto& c) { c.permutations = {0, 1, 2}; }, "n_block = 3 for each of n_head = 4");
  expect_error([](auto& c) { c.permutations = {0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 1}; }, "head 3");
  expect_error([](auto& c) { c.pad_to_multiple = -1; }, "pad_to_multiple");
  expect_error([](auto& c) { c.columns = 129; }, "stride = 128");
  expect_error([](auto& c) { c.stride = c.columns = 0; }, "columns is 0");
  expect_error(
      [](auto& c) {
        c.pattern = BlockBertPattern::fixed;
        c.attention_impl = AttentionImpl::materialized;
      },
      "attention_impl = fused");
  expect_error([](auto& c) { c.vocab = 0; }, "vocab is 0");
  expect_error([](auto& c) { c.mask_id = 23; }, "mask_id");
  const BlockBert model(blockbert_preset("tiny"), in_f64);
  EXPECT_THROW(model.logits(some_tokens(1, 65, 23), Pass{}), ValueError);
  EXPECT_THROW(model.logits(Tensor::from(std::vector<int64_t>{1, 2}, {2}), Pass{}), ShapeError);
}

}  // namespace
}  // namespace longspan::test
