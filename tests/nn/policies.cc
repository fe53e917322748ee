// Memory policies and chunks on stacks of blocks.

#include <array>
#include <limits>
#include <map>

#include "autograd/mode.h"
#include "core/kernels/block_attention.h"
#include "core/kernels/matmul.h"
#include "core/memory.h"
#include "nn/checkpoint.h"
#include "nn/chunked.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/matmul.h"
#include "ops/norm.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/shape.h"
#include "tests/nn/small_stack.h"

namespace longspan::test {
namespace {

constexpr int64_t T = B * L, H = 2;  // tokens, and heads of small_block()

const std::vector<const char*> bitwise_policies = {"checkpoint",
                                                   "checkpoint:2",
                                                   "checkpoint:3",
                                                   "checkpoint:5",
                                                   "checkpoint:9",
                                                   "checkpoint:2+1+rest",
                                                   "checkpoint:4:2",
                                                   "checkpoint:3:2:1",
                                                   "lean",
                                                   "selective",
                                                   "checkpoint:2+9223372036854775807+rest"};

/// Returns the results of a pass of two segments through a stack: output, all gradients, memories.
std::vector<Tensor> everything(const MemoryPolicy& policy, const Init& init, DType dtype) {
  Stack stack = small_stack(policy, 5, init, true);
  Tensor encoded = numbers({B, 6, D}, "context", init);
  set_requires_grad(encoded);
  std::vector<Tensor> extra;
  std::vector<Tensor> all = outcome(stack, init, [&](const Tensor& x) {
    LayerContext ctx = causal();
    ctx.encoder_output = cast(mul(encoded, 2.0), dtype);  // a result, not a leaf
    ctx.encoder_pattern = patterns::dense();
    ctx.mem_len = 7;
    SegmentMemory memory;
    Tensor before = cast(x, dtype);
    for (int i = 0; i < 2; ++i) {  // the second segment attends to the first one's states
      ctx.pattern = patterns::local(5);
      Stack::Result r = stack.forward(before, ctx, memory, training.at(i));
      memory = std::move(r.memory);
      before = r.y;
    }
    for (const LayerMemory& m : memory.layers) extra.push_back(m.get<InputRows>().states);
    return cast(before, x.dtype());
  });
  all.push_back(grad(encoded));
  all.insert(all.end(), extra.begin(), extra.end());
  return all;
}

TEST(Memory, EveryPolicyGivesTheSameBits) {
  for (const Init& init : {in_f32, in_f64}) {
    const auto expected = everything("standard", init, init.dtype);
    for (const char* policy : bitwise_policies) {
      SCOPED_TRACE(policy);
      expect_same(expected, everything(policy, init, init.dtype));
    }
  }
  const auto expected = everything("standard", in_f32, DType::bf16);
  for (const char* policy : bitwise_policies) {
    SCOPED_TRACE(policy);
    expect_same(expected, everything(policy, in_f32, DType::bf16));
  }
}

/// Computes Drop(z) for z = c Linear(x), with an auxiliary loss of sum z^2. The choice c counts the
/// calls that make a choice, so recomputation must reuse the choice of the first call.
struct Auxiliary final : Layer {
  explicit Auxiliary(const Init& init) : linear(D, D, true, init, Scheme::normal(0.3)) {}
  Output forward(const Tensor& x, const LayerContext& ctx, Pass pass) const override {
    Output out;
    const Tensor choice = ctx.choices.empty() ? full({1}, static_cast<double>(++*runs), DType::i32)
                                              : ctx.choices.front();
    const Tensor z = mul(linear.forward(x), cast(choice, x.dtype()));
    out.y = dropout(z, 0.2, pass.at("aux"));
    out.losses = {{"squares", sum(square(z))}};
    out.choices = {choice};
    return out;
  }
  void visit(Visitor& v) override { v("linear", linear); }

  Linear linear;
  std::shared_ptr<int> runs = std::make_shared<int>(0);
};

Stack auxiliary_stack(const MemoryPolicy& policy, int64_t layers, const Init& init) {
  std::vector<Block> blocks;
  for (int64_t i = 0; i < layers; ++i) {
    std::vector<Branch> list;
    list.push_back({"aux", Normalization(NormKind::rms, D, 1e-5, init.at(i).at("norm")),
                    std::make_unique<Auxiliary>(init.at(i))});
    blocks.emplace_back(i % 2 == 0 ? NormPlace::pre : NormPlace::post, 0.1f, std::move(list));
  }
  return {std::move(blocks), std::nullopt, policy};
}

TEST(Memory, LossesAndChoicesOfLayersSurvive) {
  const auto run = [](const MemoryPolicy& policy) {
    Stack stack = auxiliary_stack(policy, 5, in_f32);
    return outcome(stack, in_f32, [&](const Tensor& x) {
      const Stack::Result r = stack.forward(x, {}, {}, training);
      return add(r.y, r.losses.at(0).value);
    });
  };
  const auto expected = run("standard");
  for (const char* policy : bitwise_policies) {
    SCOPED_TRACE(policy);
    expect_same(expected, run(policy));
  }
}

/// Adds the mean of its earlier states to Linear(x), and keeps what its block got: twice the input,
/// next to the states it had. An auxiliary loss reads both.
struct Keeping final : Layer {
  explicit Keeping(const Init& init) : linear(D, D, true, init, Scheme::normal(0.3)) {}
  Output forward(const Tensor& x, const LayerContext& ctx, Pass /*pass*/) const override {
    Output out(linear.forward(x));
    InputRows next{.states = mul(ctx.block.x.detach(), 2.0)};
    if (const Tensor& states = ctx.memory.get<InputRows>().states) {
      out.y = add(out.y, mean(states, {1}, true));
      next.states = add(next.states, ctx.block.states);
    }
    out.losses = {{"kept", mean(square(sub(linear.forward(next.states), x)))}};
    out.kept = LayerMemory::of(std::move(next));
    return out;
  }
  void visit(Visitor& v) override { v("linear", linear); }

  Linear linear;
};

/// Returns the results of two segments through layers that make their own memory.
std::vector<Tensor> kept(NormPlace place, const MemoryPolicy& policy) {
  std::vector<Block> blocks;
  for (int64_t i = 0; i < 3; ++i) {
    const Init at = in_f32.at(i);
    std::vector<Branch> list;
    list.push_back({"keep", Normalization(NormKind::rms, D, 1e-5, at.at("norm")),
                    std::make_unique<Keeping>(at)});
    blocks.emplace_back(place, 0.1f, std::move(list));
  }
  Stack stack(std::move(blocks), std::nullopt, policy);
  std::vector<Tensor> extra;
  std::vector<Tensor> all = outcome(stack, in_f32, [&](const Tensor& x) {
    LayerContext ctx;
    ctx.mem_len = 4;  // which these layers do not read
    SegmentMemory memory;
    Tensor y = x;
    for (int i = 0; i < 2; ++i) {
      Stack::Result r = stack.forward(y, ctx, memory, training.at(i));
      memory = std::move(r.memory);
      y = add(r.y, r.losses.at(0).value);
      // The first layer's input is that of the stack; with two streams, of either of them.
      if (i == 0)
        extra.push_back(sub(memory.layers[0].get<InputRows>().states, mul(x.detach(), 2.0)));
    }
    for (const LayerMemory& m : memory.layers) extra.push_back(m.get<InputRows>().states);
    return y;
  });
  const double grid = is_reversible(policy) ? 1e-4 : 0;  // to which exact streams are rounded
  EXPECT_LE(max(flatten(abs(extra.front())), 0).values.item(), grid);
  all.insert(all.end(), extra.begin(), extra.end());
  return all;
}

TEST(Memory, LayersMayMakeTheirOwnMemory) {
  for (const NormPlace place : {NormPlace::pre, NormPlace::post}) {
    const auto expected = kept(place, "standard");
    for (const char* policy : bitwise_policies) {
      SCOPED_TRACE(policy);
      expect_same(expected, kept(place, policy));
    }
    expect_same(kept(place, "reversible:exact:stored"), kept(place, "reversible:exact"));
  }
}

/// Returns the number of calls of a kernel while f runs.
template <class F>
long calls(const KernelBase& kernel, F&& f) {
  const long before = kernel.calls(DeviceKind::cpu);
  f();
  return kernel.calls(DeviceKind::cpu) - before;
}

TEST(Memory, LeanRunsNoProductAndNoAttentionTwice) {
  const auto count = [](const MemoryPolicy& policy) {
    const Stack stack = small_stack(policy, 4, in_f32, true);
    LayerContext ctx = causal();
    ctx.encoder_output = numbers({B, 6, D}, "context", in_f32);
    ctx.encoder_pattern = patterns::dense();
    const auto step = [&] {
      const Tensor y = stack.forward(numbers({B, L, D}, "x", in_f32), ctx, {}, training).y;
      backward(y, Tensor::zeros(y.shape()));
    };
    return std::array{calls(kernels::matmul, step), calls(kernels::products, step),
                      calls(kernels::block_attention_forward, step)};
  };
  const auto standard = count("standard"), lean = count("lean"), selective = count("selective"),
             whole = count("checkpoint");
  EXPECT_EQ(lean, standard);
  // The last product of each branch, except that of a block's last branch, which recomputation does
  // not reach.
  EXPECT_EQ(selective[0], standard[0] + 4 * 2);
  EXPECT_EQ(selective[1], standard[1]);
  EXPECT_EQ(selective[2], standard[2]);
  // All of them: results of both attentions, queries of the second, and one of feed-forward; the
  // joint projections; both attentions.
  EXPECT_EQ(whole[0], standard[0] + 4 * (1 + 2 + 1));
  EXPECT_EQ(whole[1], standard[1] + 4 * 2);
  EXPECT_EQ(whole[2], standard[2] + 4 * 2);
}

/// Returns the bytes that a pass through `layers` layers saves.
int64_t saved_by(const MemoryPolicy& policy, int64_t layers) {
  const Stack stack = small_stack(policy, layers, in_f32);
  Tensor x = numbers({B, L, D}, "x", in_f32);
  set_requires_grad(x);
  const int64_t before = memory_tracker().live()[Category::saved];
  const Stack::Result result = stack.forward(x, causal(), {}, training);
  return memory_tracker().live()[Category::saved] - before;
}

TEST(Memory, SavedBytesOfALayerAreThoseOfTheFormulas) {
  const auto block = [](int64_t elements) { return memory::block_bytes(4 * elements); };
  const int64_t stream = block(T * D), inner = block(T * F), lse = block(B * H * L);
  // Attention saves the stream, q, k, v, the result and lse. Feed-forward saves the stream and the
  // hidden layer before its activation.
  const int64_t lean = 5 * stream + lse + stream + inner;
  const std::map<std::string, int64_t> each = {
      {"lean", lean}, {"selective", lean - stream}, {"checkpoint", stream}};
  for (const auto& [policy, bytes] : each) {
    EXPECT_EQ(saved_by(policy.c_str(), 5) - saved_by(policy.c_str(), 1), 4 * bytes) << policy;
  }
  EXPECT_EQ(saved_by("checkpoint:2", 8) - saved_by("checkpoint:2", 4), 2 * stream);
  EXPECT_EQ(saved_by("checkpoint:4:2", 12) - saved_by("checkpoint:4:2", 4), 2 * stream);
  // Standard adds the normed inputs, the slope and the hidden layer after dropout, and statistics.
  EXPECT_EQ(saved_by("standard", 5) - saved_by("standard", 1),
            4 * (lean + 2 * stream + inner + 4 * block(T)));
}

TEST(Memory, TwentyStepsOfEveryPolicyPeakAlike) {
  for (const char* policy : {"checkpoint:2", "checkpoint:3:1", "lean", "selective"}) {
    SCOPED_TRACE(policy);
    MemoryPolicy chunky = policy;
    chunky.chunks = 3;
    Stack stack = small_stack(chunky, 4, in_f32);
    Tensor x = numbers({B, L, D}, "x", in_f32);
    set_requires_grad(x);
    const Usage before = memory_tracker().live();
    int64_t first = 0;
    for (int step = 0; step < 20; ++step) {
      memory_tracker().reset_peak();
      {
        const Tensor y = stack.forward(x, causal(), {}, training.at(step)).y;
        backward(y, Tensor::zeros(y.shape()));
      }
      for (const Tensor& w : parameters(stack)) set_grad(w, {});
      set_grad(x, {});
      if (step == 1) first = memory_tracker().peak().total();
      if (step > 1) {
        EXPECT_EQ(memory_tracker().peak().total(), first);
      }
      for (const Category c : {Category::saved, Category::gradient, Category::workspace}) {
        EXPECT_EQ(memory_tracker().live()[c], before[c]);
      }
    }
  }
}

TEST(Memory, PoliciesRetainAndGiveParts) {
  for (const char* policy : bitwise_policies) {
    SCOPED_TRACE(policy);
    Stack stack = small_stack(policy, 5, in_f64);
    Tensor x = numbers({B, L, D}, "x", in_f64);
    set_requires_grad(x);
    const Tensor y = stack.forward(x, causal(), {}, training).y;
    const Tensor dy = numbers(y.shape(), "dy", in_f64);
    Tensor weight = parameter(stack, "layers.1.ff.in.weight");
    backward(y, dy, {.retain = true, .inputs = {weight}});
    EXPECT_FALSE(grad(x));
    const Tensor part = clone(grad(weight));
    backward(y, dy, {.retain = true});
    const Tensor once = clone(grad(x));
    EXPECT_LT(distance(grad(weight), mul(part, 2.0)), 1e-12);
    backward(y, dy);
    EXPECT_LT(distance(grad(x), mul(once, 2.0)), 1e-12);
    EXPECT_THROW(backward(y, dy), GradientError);
  }
}

TEST(Memory, AnotherOrderOfProductsIsAnError) {
  struct Odd final : Layer {
    mutable int runs = 0;
    Tensor w = numbers({4, 4}, "w", in_f32);
    Output forward(const Tensor& x, const LayerContext&, Pass) const override {
      const Tensor y = runs++ == 0 ? matmul(x, w) : linear(x, w, {});
      return exp(y);
    }
    void visit(Visitor&) override {}
  } odd;
  Tensor x = numbers({3, 4}, "x", in_f32);
  set_requires_grad(x);
  const Tensor y = checkpoint(odd, x, {}, training, autograd::Results::all).y;
  EXPECT_THROW(backward(y, Tensor::zeros(y.shape())), GradientError);
}

/// Returns |x - y| / |y| in the Euclidean norm.
double relative(const Tensor& x, const Tensor& y) {
  const auto norm = [](const Tensor& z) {
    return std::sqrt(sum(square(cast(z, DType::f64))).item());
  };
  return norm(sub(x, y)) / norm(y);
}

FeedForward feed_forward(const Init& init, Activation f) {
  return {{.d_model = D,
           .d_ff = F,
           .activation = f,
           .dropout = 0.3f,
           .weights = Scheme::normal(0.3),
           .out_weights = Scheme::normal(0.3)},
          init};
}

TEST(Memory, ChunkedFeedForwardIsTheSameToTheBit) {
  for (const Init& init : {in_f32, in_f64}) {
    for (const Activation f : {Activation::gelu_tanh, Activation::geglu, Activation::relu}) {
      FeedForward layer = feed_forward(init, f);
      const auto whole =
          outcome(layer, init, [&](const Tensor& x) { return layer.forward(x, {}, training).y; });
      constexpr int64_t most = std::numeric_limits<int64_t>::max();
      for (const int64_t c : {int64_t{1}, int64_t{2}, int64_t{3}, int64_t{7}, T, 2 * T, most}) {
        const auto parts =
            outcome(layer, init, [&](const Tensor& x) { return chunked(layer, x, c, training).y; });
        expect_same({whole[0], whole[1]}, {parts[0], parts[1]});
        for (size_t i = 2; i < whole.size(); ++i) {
          EXPECT_LT(relative(parts[i], whole[i]), init.dtype == DType::f64 ? 1e-13 : 1e-6) << i;
        }
      }
    }
  }
}

TEST(Memory, StacksInChunksHaveTheirBits) {
  for (const char* policy : {"standard", "checkpoint:2", "lean", "selective"}) {
    std::vector<std::vector<Tensor>> all;
    for (const int64_t c : {1, 2, 3, 7, 26}) {
      MemoryPolicy chunky = policy;
      chunky.chunks = c;
      Stack stack = small_stack(chunky, 3, in_f32);
      all.push_back(outcome(stack, in_f32, [&](const Tensor& x) {
        return stack.forward(x, causal(), {}, training).y;
      }));
      expect_same({all[0][0], all[0][1]}, {all.back()[0], all.back()[1]});
      for (size_t i = 2; i < all[0].size(); ++i) {
        EXPECT_LT(relative(all.back()[i], all[0][i]), 1e-6) << policy << " " << c << " " << i;
      }
    }
  }
}

TEST(Memory, ChunksBoundWhatIsAliveOfTheHiddenLayer) {
  const int64_t rows = 512, width = 8 * F;
  FeedForward layer({.d_model = D, .d_ff = width, .activation = Activation::gelu_tanh}, in_f32);
  const auto peak = [&](int64_t chunks) {
    Tensor x = clone(numbers({1, rows, D}, "x", in_f32));
    set_requires_grad(x);
    const int64_t before = memory_tracker().live().total();
    memory_tracker().reset_peak();
    const Tensor y = chunked(layer, x, chunks, training).y;
    EXPECT_EQ(memory_tracker().live()[Category::saved], memory::block_bytes(4 * rows * D));
    backward(y, Tensor::zeros(y.shape()));
    for (const Tensor& w : parameters(layer)) set_grad(w, {});
    return memory_tracker().peak().total() - before;
  };
  peak(1);
  // The hidden layer takes all memory except a few streams and gradients of weights.
  const int64_t hidden = 4 * rows * width, rest = 4 * (6 * rows * D + 6 * width * D);
  EXPECT_GT(peak(1), 2 * hidden);
  EXPECT_LT(peak(16), 4 * hidden / 16 + rest);
}

TEST(Memory, OnlyPositionWiseLayersRunInChunks) {
  const Init init = in_f32;
  const MultiHead attention({.d_model = D, .n_head = 2}, ShawTables{}, init);
  const Tensor x = numbers({B, L, D}, "x", init);
  EXPECT_THROW(chunked(attention, x, 2, training), ValueError);
  EXPECT_THROW(chunked(feed_forward(init, Activation::relu), x, 0, training), ValueError);
  MemoryPolicy policy;
  policy.chunks = 2;
  EXPECT_THROW(auxiliary_stack(policy, 2, init), ValueError);
  policy.chunks = 0;
  EXPECT_THROW(small_stack(policy, 2, init), ValueError);
}

// Recomputation draws the same dropout masks, also in chunks. The zeros of the outputs show the
// masks.
TEST(Memory, DropoutIsDrawnAgainAlike) {
  const Tensor x = add(numbers({B, L, D}, "x", in_f32), 10.0);
  struct Drop final : Layer {
    mutable std::vector<Tensor> drawn;
    Output forward(const Tensor& z, const LayerContext&, Pass pass) const override {
      Tensor y = dropout(z, 0.5, pass.at("site"));
      drawn.push_back(y.detach());
      return exp(y);
    }
    bool position_wise() const override { return true; }
    void visit(Visitor&) override {}
  } layer;
  Tensor leaf = clone(x);
  set_requires_grad(leaf);
  const Tensor whole = checkpoint(layer, leaf, {}, training).y;
  backward(whole, Tensor::zeros(whole.shape()));
  ASSERT_EQ(layer.drawn.size(), 2u);
  expect_same({layer.drawn[0]}, {layer.drawn[1]});
  const Tensor mask = reshape(layer.drawn[0], {1, T, D});
  layer.drawn.clear();
  const Tensor parts = chunked(layer, leaf, 4, training).y;
  backward(parts, Tensor::zeros(parts.shape()));
  ASSERT_EQ(layer.drawn.size(), 8u);
  std::vector<Tensor> first(layer.drawn.begin(), layer.drawn.begin() + 4);
  std::vector<Tensor> again(layer.drawn.rbegin(), layer.drawn.rbegin() + 4);  // last chunk first
  EXPECT_TRUE(same_bits(mask, concat(first, 1)));
  EXPECT_TRUE(same_bits(mask, concat(again, 1)));
}

}  // namespace
}  // namespace longspan::test
