#include "nn/attention/multi_head.h"

#include <gtest/gtest.h>

#include <cmath>

#include "autograd/engine.h"
#include "autograd/mode.h"
#include "autograd/node.h"
#include "core/memory.h"
#include "nn/attention/decoding_memory.h"
#include "nn/stack.h"
#include "ops/copy.h"
#include "ops/shape.h"
#include "tests/harness/model_info.h"
#include "tests/nn/numbers.h"

namespace longspan {
namespace {

using test::distance;
using test::hashed_numbers;
using test::layer_init;
using test::same_bits;

AttentionOptions options(int64_t d_model, int64_t heads, int64_t d_head = 0) {
  return {.d_model = d_model,
          .n_head = heads,
          .d_head = d_head,
          .weights = Scheme::normal(0.5),
          .out_weights = Scheme::normal(0.5)};
}

/// Computes the attention of `layer` with plain loops; row i attends to row j of z if sees(i, j).
std::vector<double> naive(MultiHead& layer, const AttentionOptions& o, const Tensor& x,
                          const Tensor& z, const std::function<bool(int64_t, int64_t)>& sees) {
  const int64_t heads = o.n_head, d = o.d_head > 0 ? o.d_head : o.d_model / heads;
  const int64_t batch = x.dim(0), length = x.dim(1), keys = z.dim(1), width = heads * d;
  const auto weight = [&](const char* name) {
    return test::parameter(layer, std::string(name) + ".weight").to_vector<double>();
  };
  const auto project = [&](const std::vector<double>& in, const std::vector<double>& w,
                           int64_t from, int64_t to) {
    const int64_t rows = static_cast<int64_t>(in.size()) / from;
    std::vector<double> out(static_cast<size_t>(rows * to), 0.0);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < to; ++c) {
        for (int64_t i = 0; i < from; ++i) {
          out[static_cast<size_t>(r * to + c)] +=
              in[static_cast<size_t>(r * from + i)] * w[static_cast<size_t>(c * from + i)];
        }
      }
    }
    return out;
  };
  const std::vector<double> q = project(x.to_vector<double>(), weight("q"), o.d_model, width);
  const std::vector<double> k =
      project(z.to_vector<double>(), weight(o.share_qk ? "q" : "k"), o.d_model, width);
  const std::vector<double> v = project(z.to_vector<double>(), weight("v"), o.d_model, width);
  std::vector<double> merged(static_cast<size_t>(batch * length * width), 0.0);
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t i = 0; i < length; ++i) {
        std::vector<double> p(static_cast<size_t>(keys), 0.0);
        double sum = 0;
        for (int64_t j = 0; j < keys; ++j) {
          if (!sees(i, j)) continue;
          double s = 0;
          for (int64_t c = 0; c < d; ++c) {
            s += q[static_cast<size_t>((b * length + i) * width + h * d + c)] *
                 k[static_cast<size_t>((b * keys + j) * width + h * d + c)];
          }
          sum += p[static_cast<size_t>(j)] = std::exp(s / std::sqrt(static_cast<double>(d)));
        }
        for (int64_t j = 0; j < keys; ++j) {
          for (int64_t c = 0; c < d && sum > 0; ++c) {
            merged[static_cast<size_t>((b * length + i) * width + h * d + c)] +=
                p[static_cast<size_t>(j)] / sum *
                v[static_cast<size_t>((b * keys + j) * width + h * d + c)];
          }
        }
      }
    }
  }
  return project(merged, weight("out"), width, o.d_model);
}

TEST(MultiHead, EqualsLoops) {
  for (const auto& [heads, d] : {std::pair<int64_t, int64_t>{2, 0}, {3, 4}, {1, 20}}) {
    for (const bool share : {false, true}) {
      AttentionOptions o = options(16, heads, d);
      o.share_qk = share;
      MultiHead layer(o, {}, layer_init);
      const Tensor x = hashed_numbers({2, 7, 16});
      LayerContext ctx;
      ctx.pattern = patterns::local(3);
      const std::vector<double> y =
          naive(layer, o, x, x, [](int64_t i, int64_t j) { return j <= i && i - j < 3; });
      EXPECT_LT(distance(layer.forward(x, ctx, Pass{}).y, Tensor::from(y, {2, 7, 16})), 1e-13)
          << heads << " heads of " << d << (share ? ", shared" : "");
    }
  }
}

TEST(MultiHead, EarlierStatesComeBeforeTheInput) {
  for (const bool share : {false, true}) {
    AttentionOptions o = options(16, 2);
    o.share_qk = share;
    MultiHead layer(o, {}, layer_init);
    const Tensor all = hashed_numbers({2, 9, 16}), memory = narrow(all, 1, 0, 4),
                 x = narrow(all, 1, 4, 5);
    LayerContext ctx;
    ctx.pattern = patterns::local(3);
    ctx.memory.set(InputRows{.states = memory});
    const std::vector<double> y = naive(layer, o, contiguous(x), all, [](int64_t i, int64_t j) {
      return j <= i + 4 && i + 4 - j < 3;
    });
    EXPECT_LT(distance(layer.forward(x, ctx, Pass{}).y, Tensor::from(y, {2, 5, 16})), 1e-13);
  }
}

TEST(MultiHead, CrossEqualsLoops) {
  AttentionOptions o = options(12, 2);
  o.cross = true;
  MultiHead layer(o, {}, layer_init);
  const Tensor x = hashed_numbers({2, 5, 12}), z = hashed_numbers({2, 9, 12}, 2);
  LayerContext ctx;
  ctx.encoder_output = z;
  ctx.encoder_pattern = patterns::dense();
  const std::vector<double> y = naive(layer, o, x, z, [](int64_t, int64_t) { return true; });
  EXPECT_LT(distance(layer.forward(x, ctx, Pass{}).y, Tensor::from(y, {2, 5, 12})), 1e-13);
}

TEST(MultiHead, ProbabilitiesSumToOneAndGiveTheOutput) {
  const AttentionOptions o = options(8, 2);
  MultiHead layer(o, {}, layer_init);
  const Tensor x = hashed_numbers({2, 600, 8});  // more than one block of columns
  LayerContext ctx;
  ctx.pattern = patterns::causal();
  const std::vector<double> p = layer.probabilities(x, ctx).to_vector<double>();
  double worst = 0;
  for (size_t row = 0; row < p.size() / 600; ++row) {
    double sum = 0;
    for (size_t j = 0; j < 600; ++j) {
      const double v = p[row * 600 + j];
      EXPECT_TRUE(v == 0 || j <= row % 600);
      sum += v;
    }
    worst = std::max(worst, std::abs(sum - 1));
  }
  EXPECT_LT(worst, 4e-15);  // 600 roundings of half a unit each
}

TEST(MultiHead, NamesItsParameters) {
  AttentionOptions o = options(8, 2);
  o.qkv_bias = o.out_bias = true;
  MultiHead layer(o, ShawTables({.clip = 3}, 2, 4, layer_init, Scheme::zeros()), layer_init);
  std::string names;
  for (const NamedTensor& p : named_parameters(layer)) {
    names += p.name + to_string(p.tensor.shape()) + " ";
  }
  EXPECT_EQ(names,
            "q.weight[8, 8] q.bias[8] k.weight[8, 8] k.bias[8] v.weight[8, 8] v.bias[8] "
            "out.weight[8, 8] out.bias[8] relative_key.weight[4, 4] relative_value.weight[4, 4] ");
}

TEST(MultiHead, DecodingNeedsItsMemoryToFit) {
  MultiHead layer(options(8, 2), {}, layer_init);
  const NoGrad off;
  LayerContext ctx;
  ctx.pattern = patterns::causal();
  ctx.decoding = true;
  ctx.memory = layer.forward(hashed_numbers({1, 3, 8}), ctx, Pass{}).memory;
  EXPECT_EQ(ctx.memory.get<KeyValues>().count, 3);
  ctx.position = 2;  // the memory ends at 3
  EXPECT_THROW(layer.forward(hashed_numbers({1, 1, 8}), ctx, Pass{}), ValueError);
  ctx.position = 3;
  EXPECT_EQ(layer.forward(hashed_numbers({1, 1, 8}), ctx, Pass{}).memory.get<KeyValues>().count, 4);
  const EnableGrad on;
  EXPECT_THROW(layer.forward(hashed_numbers({1, 1, 8}), ctx, Pass{}), GradientError);
}

TEST(MultiHead, DecodingMemoryStaysBounded) {
  MultiHead layer(options(8, 2), {}, layer_init);
  const NoGrad off;
  LayerContext ctx;
  ctx.decoding = true;
  int64_t most = 0;
  for (int64_t t = 0; t < 500; ++t) {
    ctx.position = t;
    ctx.keep_from = std::max<int64_t>(t - 4, 0);
    ctx.pattern = patterns::local(5);
    ctx.memory =
        layer.forward(hashed_numbers({1, 1, 8}, static_cast<uint64_t>(t)), ctx, Pass{}).memory;
    most = std::max(most, ctx.memory.get<KeyValues>().keys.dim(2));
  }
  EXPECT_LE(most, 32);
}

TEST(MultiHead, Rejects) {
  EXPECT_THROW(MultiHead(options(10, 3), {}, layer_init), ValueError);
  EXPECT_THROW(MultiHead(options(10, 0), {}, layer_init), ValueError);
  AttentionOptions o = options(8, 2);
  o.cross = o.share_qk = true;
  EXPECT_THROW(MultiHead(o, {}, layer_init), ValueError);
  MultiHead layer(options(8, 2), {}, layer_init);
  LayerContext ctx;
  ctx.pattern = patterns::causal();
  EXPECT_THROW(layer.forward(hashed_numbers({1, 3, 9}), ctx, Pass{}), ShapeError);
  o.share_qk = false;
  EXPECT_THROW(MultiHead(o, {}, layer_init).forward(hashed_numbers({1, 3, 8}), ctx, Pass{}),
               ValueError);
  EXPECT_THROW(ShawTables({.clip = -1}, 2, 4, layer_init, Scheme::zeros()), ValueError);
}

Block attention_block(NormPlace place, const Init& init) {
  std::vector<Branch> branches;
  branches.push_back({"attention", Normalization(NormKind::layer, 8, 1e-5, init),
                      std::make_unique<MultiHead>(options(8, 2), ShawTables{}, init)});
  branches.push_back(
      {"ff", Normalization(NormKind::layer, 8, 1e-5, init),
       std::make_unique<FeedForward>(FeedForwardOptions{.d_model = 8,
                                                        .d_ff = 16,
                                                        .weights = Scheme::normal(0.3),
                                                        .out_weights = Scheme::normal(0.3)},
                                     init)});
  return Block(place, 0, std::move(branches));
}

TEST(Stack, AppliesItsNormsWhereItSays) {
  for (const NormPlace place : {NormPlace::pre, NormPlace::post}) {
    Block block = attention_block(place, layer_init);
    const Tensor x = hashed_numbers({1, 4, 8});
    LayerContext ctx;
    ctx.pattern = patterns::causal();
    const Tensor y = block.forward(x, ctx, Pass{}).y;
    const std::vector<double> v = contiguous(select(y, 1, 2)).to_vector<double>();
    double mean = 0, square = 0;
    for (const double a : v) mean += a / 8;
    for (const double a : v) square += (a - mean) * (a - mean) / 8;
    if (place == NormPlace::post) {
      EXPECT_NEAR(mean, 0, 1e-12);
      EXPECT_NEAR(square, 1, 1e-3);
    } else {
      EXPECT_GT(std::abs(square - 1), 1e-3);
    }
    EXPECT_TRUE(same_bits(block.branch_input("attention", x, ctx),
                          place == NormPlace::pre ? block.branch("attention").norm.forward(x) : x));
    EXPECT_THROW(block.branch("cross"), ValueError);
  }
}

// Layers add to the stream while they store their results, where nothing is dropped in between.
TEST(Stack, StreamsAreTheSumsOfWhatTheirLayersGive) {
  for (const NormPlace place : {NormPlace::pre, NormPlace::post}) {
    Block block = attention_block(place, Init{.gen = Generator{3}});
    LayerContext ctx;
    ctx.pattern = patterns::causal();
    const Tensor start = cast(hashed_numbers({2, 5, 8}), DType::f32);
    const auto outcome = [&](bool apart) {
      Tensor x = start.detach();
      set_requires_grad(x);
      for (const Tensor& w : parameters(block)) set_grad(w, {});
      Tensor y = x;
      if (apart) {
        for (const char* name : {"attention", "ff"}) {
          const Branch& b = block.branch(name);
          const Tensor in = place == NormPlace::pre ? b.norm.forward(y) : y;
          const Tensor sum = add(y, b.layer->forward(in, ctx, Pass{}).y);
          y = place == NormPlace::pre ? sum : b.norm.forward(sum);
        }
      } else {
        y = block.forward(x, ctx, Pass{}).y;
      }
      backward(y, sin(y.detach()));
      std::vector<Tensor> all{y.detach(), grad(x)};
      for (const Tensor& w : parameters(block)) all.push_back(grad(w));
      return all;
    };
    const std::vector<Tensor> one = outcome(false), other = outcome(true);
    ASSERT_EQ(one.size(), other.size());
    for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(same_bits(one[i], other[i])) << i;
  }
}

struct AttentionTwice final : Layer {
  Output forward(const Tensor& x, const LayerContext&, Pass) const override { return {x * 2.0}; }
  void visit(Visitor&) override {}
};

// So they are where a layer leaves the sum to the stream, and in chunks of rows.
TEST(Stack, StreamsAreSumsWhereLayersDoNotAdd) {
  const Tensor x = hashed_numbers({2, 5, 8});
  LayerContext ctx;
  ctx.pattern = patterns::causal();
  std::vector<Branch> branches;
  branches.push_back({"ff", Normalization(NormKind::layer, 8, 1e-5, layer_init),
                      std::make_unique<AttentionTwice>()});
  const Block twice(NormPlace::pre, 0, std::move(branches));
  EXPECT_TRUE(
      same_bits(twice.forward(x, ctx, Pass{}).y, add(x, twice.branch("ff").norm.forward(x) * 2.0)));
  Block block = attention_block(NormPlace::pre, layer_init);
  const std::vector<double> whole = block.forward(x, ctx, Pass{}).y.to_vector<double>();
  ASSERT_TRUE(block.set_chunks(2));
  const std::vector<double> chunks = block.forward(x, ctx, Pass{}).y.to_vector<double>();
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(chunks[i], whole[i], 1e-12) << i;
}

Stack attention_stack(NormPlace place, int64_t layers) {
  std::vector<Block> blocks;
  for (int64_t i = 0; i < layers; ++i) blocks.push_back(attention_block(place, layer_init.at(i)));
  return Stack(std::move(blocks), std::nullopt, "standard");
}

TEST(Stack, LayersMayHavePatternsOfTheirOwn) {
  const Stack stack = attention_stack(NormPlace::pre, 2);
  const Tensor x = hashed_numbers({1, 9, 8});
  LayerContext ctx;
  ctx.pattern = patterns::causal();
  const Tensor all = stack.forward(x, ctx, {}, Pass{}).y;
  ctx.layer_patterns = {patterns::local(3), patterns::dense()};
  const Tensor y = stack.forward(x, ctx, {}, Pass{}).y;
  Tensor expected = x;
  for (size_t i = 0; i < 2; ++i) {
    LayerContext one;
    one.pattern = ctx.layer_patterns[i];
    expected = stack.block(static_cast<int64_t>(i)).forward(expected, one, Pass{}).y;
  }
  EXPECT_TRUE(same_bits(y, expected));
  EXPECT_GT(distance(y, all), 1e-3);
  ctx.layer_patterns.pop_back();
  EXPECT_THROW(stack.forward(x, ctx, {}, Pass{}), ValueError);
}

TEST(Stack, SegmentsWithMemoryAreOnePass) {
  for (const NormPlace place : {NormPlace::pre, NormPlace::post}) {
    Stack stack = attention_stack(place, 3);
    test::randomise(stack, 0.4, 5);
    const NoGrad off;
    const Tensor x = hashed_numbers({2, 11, 8});
    LayerContext ctx;
    ctx.pattern = patterns::causal();
    const Tensor whole = stack.forward(x, ctx, {}, Pass{}).y;
    for (const int64_t length : {1, 2, 4, 11}) {
      ctx.mem_len = 16;  // nothing is lost
      SegmentMemory memory;
      for (int64_t t = 0; t < 11; t += length) {
        const int64_t n = std::min(length, 11 - t);
        Stack::Result r = stack.forward(narrow(x, 1, t, n), ctx, memory, Pass{});
        EXPECT_LT(distance(r.y, contiguous(narrow(whole, 1, t, n))), 1e-14);
        memory = std::move(r.memory);
        EXPECT_EQ(memory.layers[2].get<InputRows>().states.shape(), (Shape{2, 16, 8}));
        EXPECT_EQ(memory.layers[2].get<InputRows>().begin.to_vector<int64_t>(),
                  (std::vector<int64_t>(2, 16 - t - n)));
      }
    }
  }
}

TEST(Stack, MemoryKeepsTheNewestInputsWithoutHistory) {
  const Stack stack = attention_stack(NormPlace::post, 2);
  const Tensor x = hashed_numbers({1, 4, 8});
  LayerContext ctx;
  ctx.pattern = patterns::causal();
  EXPECT_FALSE(stack.forward(x, ctx, {}, Pass{}).memory.layers[0].get<InputRows>().states);
  ctx.mem_len = 3;
  SegmentMemory memory = stack.forward(x, ctx, {}, Pass{}).memory;
  EXPECT_TRUE(same_bits(memory.layers[0].get<InputRows>().states, contiguous(narrow(x, 1, 1, 3))));
  EXPECT_FALSE(requires_grad(memory.layers[1].get<InputRows>().states));
  const int64_t bytes = memory_tracker().live()[Category::memory];
  memory = stack.forward(narrow(x, 1, 0, 2), ctx, memory, Pass{}).memory;
  EXPECT_EQ(memory_tracker().live()[Category::memory], bytes);
  EXPECT_TRUE(same_bits(memory.layers[0].get<InputRows>().states,
                        concat({narrow(x, 1, 3, 1), narrow(x, 1, 0, 2)}, 1)));
}

// Rows of a memory get no gradient, but the weights that project them do.
TEST(Stack, GradientsAcrossACutAreThoseOfOnePassInTheLastLayer) {
  for (const NormPlace place : {NormPlace::pre, NormPlace::post}) {
    Stack stack = attention_stack(place, 2);
    test::randomise(stack, 0.4, 5);
    const Tensor x = hashed_numbers({2, 7, 8}), dy = hashed_numbers({2, 7, 8}, 3);
    LayerContext ctx;
    ctx.pattern = patterns::causal();
    backward(stack.forward(x, ctx, {}, Pass{}).y, dy);
    const TensorList named = named_parameters(stack);
    std::vector<Tensor> whole;
    for (const NamedTensor& p : named) {
      whole.push_back(grad(p.tensor));
      set_grad(p.tensor, {});
    }
    ctx.mem_len = 7;
    Stack::Result first = stack.forward(narrow(x, 1, 0, 3), ctx, {}, Pass{});
    backward(first.y, contiguous(narrow(dy, 1, 0, 3)));
    const Stack::Result second = stack.forward(narrow(x, 1, 3, 4), ctx, first.memory, Pass{});
    backward(second.y, contiguous(narrow(dy, 1, 3, 4)));
    for (size_t i = 0; i < named.size(); ++i) {
      const double d = distance(grad(named[i].tensor), whole[i]);
      if (named[i].name.starts_with("layers.1.")) {
        EXPECT_LT(d, 1e-13) << named[i].name;
      } else {
        EXPECT_GT(d, 1e-6) << named[i].name;
      }
    }
  }
}

TEST(Stack, RefusesMemoriesItDoesNotHave) {
  const Stack stack = attention_stack(NormPlace::pre, 1);
  EXPECT_EQ(stack.size(), 1);
  SegmentMemory memory;
  memory.layers.resize(2);
  LayerContext ctx;
  ctx.pattern = patterns::causal();
  EXPECT_THROW(stack.forward(hashed_numbers({1, 4, 8}), ctx, memory, Pass{}), ValueError);
}

}  // namespace
}  // namespace longspan
