// Checkpoints: functions that are computed again in the backward pass.

#include "nn/checkpoint.h"

#include <gtest/gtest.h>

#include "autograd/mode.h"
#include "core/memory.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/matmul.h"
#include "ops/random.h"
#include "ops/shape.h"
#include "tests/nn/small_stack.h"

namespace longspan::test {
namespace {

/// Several blocks as one layer. If `nested`, each block is checkpointed too.
struct Segment final : Layer {
  std::vector<Block> blocks;
  bool nested = false;

  Output forward(const Tensor& input, const LayerContext& ctx, Pass pass) const override {
    Tensor x = input;
    for (size_t i = 0; i < blocks.size(); ++i) {
      const Pass site = pass.at(static_cast<int64_t>(i));
      x = (nested ? checkpoint(blocks[i], x, ctx, site) : blocks[i].forward(x, ctx, site)).y;
    }
    return x;
  }
  void visit(Visitor& v) override { v("blocks", blocks); }
};

Segment segment(int64_t layers, bool nested, const Init& init) {
  Segment s;
  s.nested = nested;
  for (int64_t i = 0; i < layers; ++i) s.blocks.push_back(small_block(init.at(i), false));
  return s;
}

TEST(Memory, CheckpointGradientsAreBitwiseEqual) {
  for (const Init& init : {in_f32, in_f64}) {
    Stack plain = small_stack("standard", 3, init);
    Stack saving = small_stack("checkpoint", 3, init);
    expect_same(
        outcome(plain, init,
                [&](const Tensor& x) { return plain.forward(x, causal(), {}, training).y; }),
        outcome(saving, init,
                [&](const Tensor& x) { return saving.forward(x, causal(), {}, training).y; }));
  }
}

TEST(Memory, SegmentsAndNestedCheckpointsAreBitwiseEqual) {
  for (const int64_t layers : {2, 3}) {
    Segment plain = segment(layers, false, in_f32), nested = segment(layers, true, in_f32);
    const auto expected = outcome(
        plain, in_f32, [&](const Tensor& x) { return plain.forward(x, causal(), training).y; });
    expect_same(expected, outcome(plain, in_f32, [&](const Tensor& x) {
                  return checkpoint(plain, x, causal(), training).y;
                }));
    expect_same(expected, outcome(nested, in_f32, [&](const Tensor& x) {
                  return checkpoint(nested, x, causal(), training).y;
                }));
  }
}

TEST(Memory, ContextsGetTheirGradients) {
  std::vector<std::vector<Tensor>> all;
  for (const char* policy : {"standard", "checkpoint"}) {
    Stack stack = small_stack(policy, 2, in_f32, true);
    Tensor encoded = numbers({2, 6, D}, "context", in_f32);
    set_requires_grad(encoded);
    all.push_back(outcome(stack, in_f32, [&](const Tensor& x) {
      LayerContext ctx = causal();
      ctx.encoder_output = mul(encoded, 2.0);  // a result, not a leaf
      ctx.encoder_pattern = patterns::dense();
      return stack.forward(x, ctx, {}, training).y;
    }));
    all.back().push_back(grad(encoded));
  }
  expect_same(all[0], all[1]);
}

TEST(Memory, EachCheckpointedLayerSavesItsInput) {
  const int64_t input = memory::block_bytes(2 * 13 * D * 4);
  const auto saved = [&](const MemoryPolicy& policy, int64_t layers) {
    const Stack stack = small_stack(policy, layers, in_f32);
    Tensor x = numbers({2, 13, D}, "x", in_f32);
    set_requires_grad(x);
    const int64_t before = memory_tracker().live()[Category::saved];
    const Stack::Result result = stack.forward(x, causal(), {}, training);
    return memory_tracker().live()[Category::saved] - before;
  };
  const int64_t four = saved("checkpoint", 4);
  EXPECT_EQ(saved("checkpoint", 8) - four, 4 * input);
  EXPECT_EQ(four - saved("checkpoint", 2), 2 * input);
  EXPECT_GT(saved("standard", 4), 5 * four);
}

TEST(Memory, MemoryDoesNotGrowFromStepToStep) {
  Stack stack = small_stack("checkpoint", 3, in_f32);
  Tensor x = numbers({2, 13, D}, "x", in_f32);
  set_requires_grad(x);
  Usage first_live, first_peak;
  for (int step = 0; step < 20; ++step) {
    memory_tracker().reset_peak();
    const Tensor y = stack.forward(x, causal(), {}, training).y;
    backward(y, Tensor::like(y));
    for (const Tensor& w : parameters(stack)) set_grad(w, {});
    set_grad(x, {});
    if (step == 1) {
      first_live = memory_tracker().live();
      first_peak = memory_tracker().peak();
    }
    if (step > 1) {
      EXPECT_EQ(memory_tracker().live().total(), first_live.total());
      EXPECT_EQ(memory_tracker().peak().total(), first_peak.total());
    }
  }
}

TEST(Memory, RetainedGraphsRunTwice) {
  Segment s = segment(2, true, in_f64);
  Tensor x = numbers({2, 13, D}, "x", in_f64);
  set_requires_grad(x);
  const Tensor y = checkpoint(s, x, causal(), training).y;
  const Tensor dy = numbers(y.shape(), "dy", in_f64);
  backward(y, dy, {.retain = true});
  const Tensor once = clone(grad(x));
  backward(y, dy);
  EXPECT_LT(distance(grad(x), mul(once, 2.0)), 1e-12);  // sums are in another order
  EXPECT_THROW(backward(y, dy), GradientError);
}

TEST(Memory, PartOfTheGradients) {
  Segment s = segment(2, false, in_f32);
  Tensor x = numbers({2, 13, D}, "x", in_f32);
  set_requires_grad(x);
  Tensor weight = parameter(s, "blocks.1.ff.in.weight");
  std::vector<Tensor> part[2];
  for (const bool saving : {false, true}) {
    const Tensor y =
        (saving ? checkpoint(s, x, causal(), training) : s.forward(x, causal(), training)).y;
    const Tensor dy = numbers(y.shape(), "dy", in_f32);
    backward(y, dy, {.inputs = {weight}});
    EXPECT_FALSE(grad(x));
    part[saving ? 1 : 0] = {grad(weight)};
    set_grad(weight, {});
  }
  expect_same(part[0], part[1]);

  // Only parameters require gradients.
  std::vector<Tensor> all[2];
  for (const bool saving : {false, true}) {
    const Tensor data = numbers({2, 13, D}, "x", in_f32);
    const Tensor y =
        (saving ? checkpoint(s, data, causal(), training) : s.forward(data, causal(), training)).y;
    backward(y, numbers(y.shape(), "dy", in_f32));
    for (const Tensor& w : parameters(s)) {
      all[saving ? 1 : 0].push_back(grad(w));
      set_grad(w, {});
    }
  }
  expect_same(all[0], all[1]);
}

/// Computes y = f(x) with a function that a test chooses.
struct OddCheckpoint final : Layer {
  std::function<Tensor(const Tensor&)> f;
  Output forward(const Tensor& x, const LayerContext&, Pass) const override { return f(x); }
  void visit(Visitor&) override {}
};

TEST(Memory, AnotherReRunIsAnError) {
  const Tensor x = leaf({3, 4});
  int runs = 0;
  OddCheckpoint odd;
  const auto error = [&](std::function<Tensor(const Tensor&)> f) {
    odd.f = std::move(f);
    runs = 0;
    const Tensor y = checkpoint(odd, x, {}, training).y;
    try {
      backward(y, Tensor::zeros(y.shape()));
    } catch (const GradientError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_EQ(error([](const Tensor& z) { return exp(z); }), "");
  EXPECT_NE(error([&](const Tensor& z) { return runs++ == 0 ? exp(z) : square(z); }).find("exp"),
            std::string::npos);
  EXPECT_NE(error([&](const Tensor& z) {
              return runs++ == 0 ? exp(z) : exp(concat({z, z}, 0));
            }).find("f32[3, 4] of exp"),
            std::string::npos);
  EXPECT_NE(error([&](const Tensor& z) {
              return runs++ == 0 ? exp(exp(z)) : exp(z);
            }).find("saves 1 tensors"),
            std::string::npos);
}

// Recomputation with equal ops and shapes but other values is an error if checksums are taken
// (CheckReplays).
TEST(Memory, OtherNumbersAreAnErrorWhereTheyAreChecked) {
  const Tensor x = leaf({3, 4});
  int runs = 0;
  OddCheckpoint odd;
  const auto error = [&](bool check, std::function<Tensor(const Tensor&)> f) {
    odd.f = std::move(f);
    runs = 0;
    Tensor y;
    {
      const auto guard = check ? std::make_unique<autograd::CheckReplays>() : nullptr;
      y = checkpoint(odd, x, {}, training).y;
    }
    try {
      backward(y, Tensor::zeros(y.shape()));
    } catch (const GradientError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  const auto same = [](const Tensor& z) { return exp(transpose(exp(z))); };
  const auto other = [&](const Tensor& z) { return exp(exp(runs++ == 0 ? z : add(z, 1e-6))); };
  EXPECT_EQ(error(true, same), "");
  EXPECT_EQ(error(false, other), "");
  EXPECT_NE(error(true, other).find("save 0, of exp, holds other numbers"), std::string::npos);
}

TEST(Memory, WritingWhatIsReadIsAnError) {
  Tensor weight = leaf({4, 4});
  const Tensor x = leaf({3, 4});
  OddCheckpoint odd;
  odd.f = [&](const Tensor& z) { return matmul(z, weight); };
  const Tensor y = checkpoint(odd, x, {}, training).y;
  weight.mut().as<float>()[0] = 1;
  EXPECT_THROW(backward(y, Tensor::zeros(y.shape())), GradientError);

  Tensor input = leaf({3, 4});
  const Tensor z = checkpoint(odd, input, {}, training).y;
  input.mut().as<float>()[0] = 1;
  EXPECT_THROW(backward(z, Tensor::zeros(z.shape())), GradientError);
}

std::string error_of_backward(const Tensor& y, bool retain = false) {
  try {
    backward(y, Tensor::zeros(y.shape()), {.retain = retain});
  } catch (const GradientError& e) {
    return e.what();
  }
  return "";
}

// Recomputation reads `weight`, which backward no longer needs, to compute a tensor that backward
// needs.
TEST(Memory, WritingWhatOnlyTheReRunReadsIsAnError) {
  Tensor weight = leaf({4, 4});
  const Tensor x = leaf({3, 4});
  OddCheckpoint odd;
  odd.f = [&](const Tensor& z) { return mul(matmul(z, weight).detach(), z); };
  EXPECT_EQ(error_of_backward(checkpoint(odd, x, {}, training).y), "");
  const Tensor y = checkpoint(odd, x, {}, training).y;
  weight.mut().as<float>()[0] = 1;
  const std::string error = error_of_backward(y);
  EXPECT_NE(error.find("a tensor that a checkpointed part reads was written before backward"),
            std::string::npos)
      << error;
}

// The first backward of a retained graph fills in its saved tensors; the next ones check that these
// were not written.
TEST(Memory, WritingBetweenTwoBackwardsIsAnError) {
  Tensor weight = leaf({4, 4});
  const Tensor x = leaf({3, 4});
  OddCheckpoint odd;
  odd.f = [&](const Tensor& z) { return matmul(z, weight); };
  const Tensor y = checkpoint(odd, x, {}, training).y;
  EXPECT_EQ(error_of_backward(y, true), "");
  EXPECT_EQ(error_of_backward(y, true), "");
  weight.mut().as<float>()[0] = 1;
  const std::string error = error_of_backward(y);
  EXPECT_NE(error.find("a tensor saved for backward was written since"), std::string::npos)
      << error;
}

TEST(Memory, ReRunsEndAfterTheLastSave) {
  const Tensor x = leaf({3, 4});
  int begun = 0, finished = 0;
  OddCheckpoint odd;
  odd.f = [&](const Tensor& z) {
    ++begun;
    const Tensor y = exp(exp(z));
    ++finished;
    return y;
  };
  const Tensor y = checkpoint(odd, x, {}, training).y;
  backward(y, Tensor::zeros(y.shape()));
  EXPECT_EQ(begun, 2);
  EXPECT_EQ(finished, 1);
}

/// The leaves of a function with parameters and dropout, for tests of checkpoint(f, ...).
struct Leaves {
  Tensor x = leaf({5, 4}), w = numbers({4, 6}, "w", in_f32), v = numbers({6, 3}, "v", in_f32);
  Leaves() {
    set_requires_grad(w);
    set_requires_grad(v);
  }
  std::vector<Tensor> after(const Tensor& y) const {
    backward(y, numbers(y.shape(), "dy", in_f32));
    return {y.detach(), grad(x), grad(w), grad(v)};
  }
};

// w is captured, and so is a result of w; the dropout's numbers are those of the first call.
TEST(CheckpointOfAFunction, GradientsAreBitwiseEqualThoseOfCapturedParametersToo) {
  const auto run = [](bool saving) {
    const Leaves l;
    const Tensor scaled = l.v * 0.5;
    const auto f = [w = l.w, scaled, pass = training](const Tensor& x) {
      return matmul(dropout(gelu_erf(matmul(x, w)), 0.5f, pass.at("hidden")), scaled);
    };
    return l.after(saving ? checkpoint(f, l.x) : f(l.x));
  };
  expect_same(run(false), run(true));
}

TEST(CheckpointOfAFunction, TakesSeveralInputsAndReturnsSeveralResults) {
  const auto run = [](bool saving) {
    const Leaves l;
    const auto f = [](const Tensor& x, const Tensor& w, const Tensor& none) {
      EXPECT_FALSE(none);
      const Tensor h = tanh(matmul(x, w));
      return std::pair(h, square(h));
    };
    const Tensor w = l.w * 2.0;  // a result, not a leaf
    const auto [h, s] = saving ? checkpoint(f, l.x, w, Tensor{}) : f(l.x, w, {});
    return l.after(matmul(h + s, l.v));
  };
  expect_same(run(false), run(true));
}

TEST(CheckpointOfAFunction, NestsAndRunsTwiceInARetainedGraph) {
  const auto run = [](int depth) {
    const Leaves l;
    const auto inner = [w = l.w](const Tensor& x) { return tanh(matmul(x, w)); };
    const auto outer = [=, v = l.v](const Tensor& x) {
      return exp(matmul(depth > 1 ? checkpoint(inner, x) : inner(x), v));
    };
    const Tensor y = depth > 0 ? checkpoint(outer, l.x) : outer(l.x);
    const Tensor dy = numbers(y.shape(), "dy", in_f32);
    backward(y, dy, {.retain = true});
    return l.after(y);
  };
  expect_same(run(0), run(1));
  expect_same(run(0), run(2));
}

TEST(CheckpointOfAFunction, SavesItsInputsAlone) {
  const Tensor x = leaf({5, 4}) * 2.0, w = leaf({4, 64});
  const int64_t before = memory_tracker().live()[Category::saved];
  int calls = 0;
  {
    const Tensor y = checkpoint(
        [w, &calls](const Tensor& z) {
          ++calls;
          return exp(exp(matmul(z, w)));
        },
        x);
    EXPECT_EQ(memory_tracker().live()[Category::saved] - before, memory::block_bytes(5 * 4 * 4));
    EXPECT_EQ(calls, 1);
    backward(y, Tensor::zeros(y.shape()));
    EXPECT_EQ(calls, 2);
  }
  EXPECT_EQ(memory_tracker().live()[Category::saved], before);
}

TEST(CheckpointOfAFunction, WithoutRecordingItIsACall) {
  const Tensor x = leaf({3, 4});
  const NoGrad off;
  const int64_t before = memory_tracker().live()[Category::saved];
  const Tensor y = checkpoint([](const Tensor& z) { return exp(z); }, x);
  EXPECT_EQ(memory_tracker().live()[Category::saved], before);
  EXPECT_FALSE(requires_grad(y));
  EXPECT_TRUE(same_bits(y, exp(x)));
}

TEST(CheckpointOfAFunction, SaysWhatIsWrong) {
  const Tensor x = leaf({3, 4});
  int calls = 0;
  const Tensor other =
      checkpoint([&](const Tensor& z) { return calls++ == 0 ? exp(z) : square(z); }, x);
  EXPECT_NE(
      error_of_backward(other).find("the re-run of a checkpointed part differs from its first run"),
      std::string::npos);

  Tensor weight = leaf({4, 4});
  const Tensor y = checkpoint([weight](const Tensor& z) { return exp(matmul(z, weight)); }, x);
  weight.mut().as<float>()[0] = 1;
  EXPECT_NE(error_of_backward(y).find("was written before backward"), std::string::npos);

  Tensor input = leaf({3, 4});
  const Tensor z = checkpoint([](const Tensor& t) { return exp(exp(t)); }, input);
  input.mut().as<float>()[0] = 1;
  EXPECT_NE(error_of_backward(z).find("checkpoint: "), std::string::npos) << error_of_backward(z);

  const auto throwing = [](const Tensor& t) { return matmul(t, t); };
  EXPECT_THROW(checkpoint(throwing, x), ShapeError);
  EXPECT_EQ(autograd::CheckpointScope::current(), nullptr);
}

// A function that changes itself, or takes what is no tensor, is refused by the compiler.
template <class F, class... Inputs>
concept Checkpointable = requires(F f, Inputs... inputs) {
  checkpoint(f, inputs...);
};
constexpr auto counting = [n = 0](const Tensor& x) mutable { return x + double(++n); };
constexpr auto plain = [](const Tensor& x) { return x + 1.0; };
static_assert(Checkpointable<decltype(plain), Tensor>);
static_assert(!Checkpointable<std::remove_const_t<decltype(counting)>, Tensor>);
static_assert(!Checkpointable<decltype(plain), double>);
static_assert(!Checkpointable<decltype(plain), Tensor, Tensor>);

TEST(Memory, NothingIsKeptWhereNothingIsRecorded) {
  Segment s = segment(2, true, in_f32);
  const Tensor x = numbers({2, 13, D}, "x", in_f32);
  const NoGrad off;
  const int64_t before = memory_tracker().live()[Category::saved];
  const Tensor y = checkpoint(s, x, causal(), Pass{}).y;
  EXPECT_EQ(memory_tracker().live()[Category::saved], before);
  EXPECT_TRUE(same_bits(y, s.forward(x, causal(), Pass{}).y));
}

}  // namespace
}  // namespace longspan::test
