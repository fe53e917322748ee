// Reversible stacks: gradients, memory and errors.

#include "nn/reversible.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "autograd/engine.h"
#include "autograd/mode.h"
#include "autograd/node.h"
#include "core/memory.h"
#include "nn/attention/multi_head.h"
#include "nn/checkpoint.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/matmul.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/shape.h"
#include "tests/harness/messages.h"
#include "tests/nn/small_stack.h"
#include "train/optimizer.h"

namespace longspan::test {
namespace {

/// Computes Drop(layer(norm(x))).
struct NormedBranch final : Layer {
  Normalization norm;
  std::unique_ptr<Layer> layer;
  Output forward(const Tensor& x, const LayerContext& ctx, Pass pass) const override {
    Output out = layer->forward(norm.forward(x), ctx, pass);
    out.y = dropout(out.y, 0.1, pass.at("resid"));
    return out;
  }
  void visit(Visitor& v) override { v("norm", norm)("layer", layer); }
};

/// A sequence of steps as a module.
struct Steps final : Module {
  std::vector<std::shared_ptr<Layer>> list;
  void visit(Visitor& v) override {
    for (size_t i = 0; i < list.size(); ++i) v(std::to_string(i), *list[i]);
  }
};

std::shared_ptr<Layer> branch(std::unique_ptr<Layer> layer, const Init& init) {
  auto b = std::make_shared<NormedBranch>();
  b->norm = Normalization(NormKind::layer, D, 1e-5, init.at("norm"));
  b->layer = std::move(layer);
  return b;
}

/// Returns blocks of attention, optional cross-attention, and feed-forward.
Steps blocks(int64_t count, const Init& init, bool cross = false, double gain = 0.25) {
  const Scheme weights = Scheme::normal(gain);
  AttentionOptions attention{
      .d_model = D, .n_head = 2, .dropout = 0.2f, .weights = weights, .out_weights = weights};
  AttentionOptions across = attention;
  across.cross = true;
  const FeedForwardOptions ff{.d_model = D,
                              .d_ff = F,
                              .activation = Activation::gelu_tanh,
                              .dropout = 0.1f,
                              .weights = weights,
                              .out_weights = weights};
  Steps s;
  for (int64_t i = 0; i < count; ++i) {
    const Init at = init.at(i);
    const auto heads = [&](const AttentionOptions& o, const char* label) {
      s.list.push_back(
          branch(std::make_unique<MultiHead>(o, ShawTables{}, at.at(label)), at.at(label)));
    };
    heads(attention, "attention");
    if (cross) heads(across, "cross");
    s.list.push_back(branch(std::make_unique<FeedForward>(ff, at.at("ff")), at.at("ff")));
  }
  return s;
}

LayerContext local() {
  LayerContext ctx;
  ctx.pattern = patterns::local(5);
  ctx.encoder_pattern = patterns::dense();
  return ctx;
}

/// The results of a pass through all steps, from both streams equal to x to their mean.
struct Passed {
  Tensor y;
  std::vector<AuxiliaryLoss> losses;
  std::vector<Output> outputs;
};
Passed pass_through(const Steps& steps, const Tensor& x, const LayerContext& ctx,
                    ReversibleOptions options, const Pass& pass = training) {
  if (options.layers == DType::f32) options.layers = x.dtype();
  Reversible streams(enter_reversible(x, options), options);
  Passed p;
  for (size_t i = 0; i < steps.list.size(); ++i) {
    Output out = streams.step(steps.list[i], ctx, pass.at(static_cast<uint64_t>(i)));
    add_losses(p.losses, out.losses);
    p.outputs.push_back(std::move(out));
  }
  p.y = mean_of(streams.finish());
  return p;
}

/// Returns the output and the gradients of the input, the context and every parameter.
std::vector<Tensor> outcome(Steps& steps, const Init& init, const ReversibleOptions& options,
                            bool cross = false) {
  for (const Tensor& w : parameters(steps)) set_grad(w, {});
  const Tensor x = leaf({B, L, D}, "x", init), context = leaf({B, 6, D}, "context", init);
  LayerContext ctx = local();
  if (cross) ctx.encoder_output = mul(cast(context, options.layers), 2.0);  // a result, not a leaf
  if (options.layers == DType::f32 && cross) ctx.encoder_output = mul(context, 2.0);
  const Tensor y = pass_through(steps, x, ctx, options).y;
  backward(y, numbers(y.shape(), "dy", init));
  std::vector<Tensor> all{y.detach(), grad(x), grad(context)};
  for (const Tensor& w : parameters(steps)) all.push_back(grad(w));
  return all;
}

/// Returns the largest |a - b| / |b| over the tensors, in the L2 norm.
double difference(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  EXPECT_EQ(a.size(), b.size());
  const NoGrad off;
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(static_cast<bool>(a[i]), static_cast<bool>(b[i])) << i;
    if (!a[i] || !b[i]) continue;
    const Tensor p = cast(a[i].detach(), DType::f64), q = cast(b[i].detach(), DType::f64);
    const double error = sum(square(p - q)).item(), scale = sum(square(q)).item();
    if (error > 0) largest = std::max(largest, std::sqrt(error / scale));
  }
  return largest;
}

ReversibleOptions stored(ReversibleOptions options) {
  options.stored = true;
  return options;
}
const ReversibleOptions exact{.exact = true};
const ReversibleOptions exact_in_bf16{.layers = DType::bf16, .exact = true};

/// Returns the error of the input that the inversion of `count` blocks reconstructs.
double inversion_error(int64_t count, const Init& init, const ReversibleOptions& options) {
  Steps steps = blocks(count, init);
  const ReconstructionErrorMonitor watch(-1);
  outcome(steps, init, options);
  EXPECT_EQ(watch.inversions, 1);
  return watch.last;
}

TEST(Memory, InvertsToRounding) {
  EXPECT_LE(inversion_error(24, in_f64, {}), 1e-12);
  const double in_single = inversion_error(24, in_f32, {});
  EXPECT_GT(in_single, 0);
  EXPECT_LE(in_single, 1e-5);
}

TEST(Memory, InvertsBitwiseOnTheGrid) {
  EXPECT_EQ(inversion_error(64, in_f32, exact), 0);
  EXPECT_EQ(inversion_error(64, in_f32, exact_in_bf16), 0);
  EXPECT_EQ(inversion_error(8, in_f64, exact), 0);
}

/// Returns the inversion error of `count` blocks of two feed-forward layers, D = 64, F = 128, with
/// weights of unit gain: the network of the table of inversion errors.
double drift(int64_t count, const ReversibleOptions& options, DType dtype = DType::f32) {
  constexpr int64_t width = 64, inner = 128;
  const Init init{.gen = Generator{11}, .dtype = dtype};
  const auto unit = [](int64_t fan_in) {
    return Scheme::normal(1 / std::sqrt(static_cast<double>(fan_in)));
  };
  const FeedForwardOptions ff{.d_model = width,
                              .d_ff = inner,
                              .activation = Activation::gelu_tanh,
                              .weights = unit(width),
                              .out_weights = unit(inner)};
  Steps steps;
  for (int64_t i = 0; i < 2 * count; ++i) {
    auto b = std::make_shared<NormedBranch>();
    b->norm = Normalization(NormKind::layer, width, 1e-5, init.at(i).at("norm"));
    b->layer = std::make_unique<FeedForward>(ff, init.at(i));
    steps.list.push_back(b);
  }
  const ReconstructionErrorMonitor watch(-1);
  const Tensor y = pass_through(steps, leaf({1, 32, width}, "x", init), {}, options, Pass{}).y;
  backward(y, numbers(y.shape(), "dy", init));
  EXPECT_EQ(watch.inversions, 1);
  return watch.last;
}

TEST(Memory, ErrorsOfInversionAreThoseOfTheTable) {
  for (const auto& [count, largest] : {std::pair{6, 1e-14}, {24, 5e-14}, {96, 2.5e-13}}) {
    EXPECT_LE(drift(count, {}, DType::f64), largest) << count;
  }
  for (const auto& [count, largest] : {std::pair{6, 7e-6}, {24, 2.6e-5}, {96, 1.4e-4}}) {
    EXPECT_LE(drift(count, {}), largest) << count;
    EXPECT_EQ(drift(count, exact), 0) << count;
    EXPECT_EQ(drift(count, exact_in_bf16), 0) << count;
  }
}

TEST(Memory, DriftOfLayersInBf16IsSeenAndBoundByTrueStreams) {
  const double far = drift(48, {.layers = DType::bf16});
  EXPECT_GT(far, 1e-4);
  EXPECT_LT(drift(48, {.layers = DType::bf16, .checkpoint_every = 4}), far / 100);
}

TEST(Memory, GradientsAreThoseOfTheStoredStreams) {
  Steps in_double = blocks(24, in_f64), in_single = blocks(24, in_f32);
  EXPECT_LE(difference(outcome(in_double, in_f64, {}), outcome(in_double, in_f64, stored({}))),
            1e-10);
  EXPECT_LE(difference(outcome(in_single, in_f32, {}), outcome(in_single, in_f32, stored({}))),
            1e-4);
}

TEST(Memory, GradientsOnTheGridAreBitwiseThoseOfTheStoredStreams) {
  for (const ReversibleOptions& options : {exact, exact_in_bf16}) {
    for (const bool cross : {false, true}) {
      Steps steps = blocks(5, in_f32, cross);  // with `cross` an odd number of steps
      expect_same(outcome(steps, in_f32, options, cross),
                  outcome(steps, in_f32, stored(options), cross));
    }
  }
}

TEST(Memory, TrueStreamsInBetweenChangeNothingOnTheGrid) {
  Steps steps = blocks(5, in_f32);
  for (const int64_t every : {1, 3, 10}) {
    ReversibleOptions options = exact;
    options.checkpoint_every = every;
    expect_same(outcome(steps, in_f32, options), outcome(steps, in_f32, stored(exact)));
  }
}

TEST(Memory, BitwiseAtDepth96After200Steps) {
  Steps steps = blocks(96, in_f32, false, 0.1);
  Adam adam(named_parameters(steps));
  double first = 0, last = 0;
  for (int64_t step = 0; step < 200; ++step) {
    const Init at = in_f32.at(step);
    const Tensor x = numbers({1, 8, D}, "x", at);
    const Pass pass{.training = true, .gen = Generator{3}.fork(static_cast<uint64_t>(step))};
    const Tensor y = pass_through(steps, x, local(), exact_in_bf16, pass).y;
    const Tensor loss = mean(square(y - flip(x, 2)));
    (step == 0 ? first : last) = loss.item();
    backward(loss);
    adam.step(3e-3);
  }
  EXPECT_LT(last, 0.8 * first);
  expect_same(outcome(steps, in_f32, exact_in_bf16), outcome(steps, in_f32, stored(exact_in_bf16)));
}

/// Weights that several steps share get the gradients of all of them.
TEST(Memory, SharedLayersGetEveryGradient) {
  Steps one = blocks(1, in_f32), shared;
  for (int i = 0; i < 6; ++i) shared.list.push_back(one.list[static_cast<size_t>(i % 2)]);
  const auto run = [&](const ReversibleOptions& options) {
    for (const Tensor& w : parameters(one)) set_grad(w, {});
    const Tensor y = pass_through(shared, numbers({B, L, D}, "x", in_f32), local(), options).y;
    backward(y, numbers(y.shape(), "dy", in_f32));
    std::vector<Tensor> all{y.detach()};
    for (const Tensor& w : parameters(one)) all.push_back(grad(w));
    return all;
  };
  expect_same(run(exact), run(stored(exact)));
}

/// A layer that runs a function that a test chooses.
struct OddScale final : Layer {
  std::function<Output(const Tensor&, const LayerContext&, Pass)> f;
  Tensor weight;
  Output forward(const Tensor& x, const LayerContext& ctx, Pass pass) const override {
    return f(x, ctx, pass);
  }
  void visit(Visitor& v) override { v("weight", weight); }
};

TEST(Memory, MasksAreTheSameWhenDrawnAgain) {
  std::vector<std::vector<float>> masks;
  Steps steps;
  for (int i = 0; i < 3; ++i) {
    auto odd = std::make_shared<OddScale>();
    odd->f = [&](const Tensor& x, const LayerContext&, Pass pass) {
      masks.push_back(dropout(ones_like(x.detach()), 0.5, pass).to_vector<float>());
      return dropout(x, 0.5, pass);
    };
    steps.list.push_back(odd);
  }
  const Tensor x = leaf({B, L, D}, "x", in_f32);
  backward(sum(pass_through(steps, x, {}, {}).y));
  ASSERT_EQ(masks.size(), 6u);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(masks[i], masks[5 - i]);
  EXPECT_NE(masks[0], masks[1]);
}

TEST(Memory, SavedBytesDoNotDependOnDepth) {
  const int64_t stream = memory::block_bytes(B * L * D * 4);
  const auto saved = [&](int64_t count, const ReversibleOptions& options) {
    const Steps steps = blocks(count, in_f32);
    const Tensor x = leaf({B, L, D}, "x", in_f32);
    const int64_t before = memory_tracker().live()[Category::saved];
    const Tensor y = pass_through(steps, x, local(), options).y;
    return memory_tracker().live()[Category::saved] - before;
  };
  for (const int64_t count : {4, 16, 64}) {
    EXPECT_EQ(saved(count, {}), 2 * stream);
    EXPECT_EQ(saved(count, exact), 2 * stream);
  }
  // Of the streams saved in between, two segments share each pair but the last.
  EXPECT_EQ(saved(16, {.checkpoint_every = 8}), 2 * 4 * stream);
  EXPECT_GT(saved(16, stored({})), 50 * stream);
  const ReconstructionErrorMonitor watch;  // saves eight rows of the input, which is both streams
  EXPECT_EQ(saved(16, {}), 2 * stream + memory::block_bytes(8 * D * 4));
}

TEST(Memory, BackwardHoldsFourStreamsAndOneStep) {
  const auto peak = [&](int64_t count) {
    Steps steps = blocks(count, in_f32);
    const Tensor x = leaf({B, 8 * L, D}, "x", in_f32);
    for (const Tensor& w : parameters(steps)) set_grad(w, zeros_like(w.detach()));
    const Tensor y = pass_through(steps, x, local(), {}).y;
    const Tensor dy = numbers(y.shape(), "dy", in_f32);
    const int64_t before = memory_tracker().live().total();
    memory_tracker().reset_peak();
    backward(y, dy);
    return memory_tracker().peak().total() - before;
  };
  EXPECT_EQ(peak(3), peak(12));
}

TEST(Memory, ReversibleMemoryDoesNotGrowFromStepToStep) {
  Steps steps = blocks(3, in_f32);
  const Tensor x = leaf({B, L, D}, "x", in_f32);
  Usage first_live, first_peak;
  for (int step = 0; step < 20; ++step) {
    memory_tracker().reset_peak();
    const Tensor y = pass_through(steps, x, local(), exact).y;
    backward(y, Tensor::like(y));
    for (const Tensor& w : parameters(steps)) set_grad(w, {});
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

/// Returns a layer that scales each row by its entry of `choices`, and counts a mean.
std::shared_ptr<OddScale> chooser(int* decided) {
  auto odd = std::make_shared<OddScale>();
  odd->weight = leaf({D, D}, "weight", in_f32);
  odd->f = [decided, odd = odd.get()](const Tensor& x, const LayerContext& ctx, Pass) {
    Output out;
    Tensor choice;
    if (ctx.choices.empty()) {
      ++*decided;
      choice = argmax(x.detach(), -1);  // [B, L]
      out.statistics = {{odd, {mean(x.detach(), {0, 1})}}};
    } else {
      choice = ctx.choices[0];
    }
    const Tensor scale = unsqueeze(cast(choice, DType::f32), -1);
    out.y = matmul(mul(x, mul(scale, 0.01)), odd->weight);
    out.choices = {choice};
    return out;
  };
  return odd;
}

TEST(Memory, StatisticsAndDecisionsAreMadeOnce) {
  int decided = 0;
  Steps steps;
  for (int i = 0; i < 4; ++i) steps.list.push_back(chooser(&decided));
  const Tensor x = leaf({B, L, D}, "x", in_f32);
  const auto run = [&](const ReversibleOptions& options) {
    set_grad(x, {});
    for (const Tensor& w : parameters(steps)) set_grad(w, {});
    const int64_t before = memory_tracker().live()[Category::saved];
    Passed p = pass_through(steps, x, {}, options);
    std::vector<Tensor> all;
    if (!options.stored) {
      EXPECT_EQ(memory_tracker().live()[Category::saved] - before,
                2 * memory::block_bytes(B * L * D * 4) + 4 * memory::block_bytes(B * L * 8));
    }
    for (const Output& out : p.outputs) {
      all.push_back(out.statistics.at(0).sums.at(0));
      all.push_back(out.choices[0]);
    }
    backward(sum(square(p.y)));
    all.push_back(grad(x));
    for (const Tensor& w : parameters(steps)) all.push_back(grad(w));
    return all;
  };
  const auto expected = run(stored(exact));
  EXPECT_EQ(decided, 4);
  expect_same(run(exact), expected);
  EXPECT_EQ(decided, 8);
}

TEST(Memory, AuxiliaryLossesAndContextAreDifferentiable) {
  Steps steps = blocks(2, in_f64, true);
  for (size_t i : {1u, 3u}) {
    auto odd = std::make_shared<OddScale>();
    odd->weight = leaf({D}, "weight", in_f64.at(static_cast<int64_t>(i)));
    odd->f = [odd = odd.get()](const Tensor& x, const LayerContext& ctx, Pass) {
      Output out(tanh(mul(x, odd->weight)));
      const Tensor z = mul(x, odd->weight);
      out.losses = {{"context", mean(square(add(z, mean(ctx.encoder_output, {1}, true))))},
                    {"size", mean(square(z))}};
      return out;
    };
    steps.list.insert(steps.list.begin() + static_cast<int64_t>(i), odd);
  }
  struct Inputs final : Module {
    Steps& steps;
    Tensor x = leaf({B, L, D}, "x", in_f64), context = leaf({B, 6, D}, "context", in_f64);
    explicit Inputs(Steps& s) : steps(s) {}
    void visit(Visitor& v) override { v("steps", steps)("x", x)("context", context); }
  } inputs(steps);
  const auto loss = [&] {
    LayerContext ctx = local();
    ctx.encoder_output = mul(inputs.context, 0.5);
    const Passed p = pass_through(steps, inputs.x, ctx, {});
    const Tensor context = mul(p.losses.at(0).value, 0.7), size = mul(p.losses.at(1).value, 0.3);
    return add(mean(square(p.y)), add(context, size));
  };
  EXPECT_EQ(check_parameter_gradients(inputs, loss), "");
}

TEST(Memory, ReversibleGraphsMayBeRetained) {
  Steps steps = blocks(3, in_f64);
  const Tensor x = leaf({B, L, D}, "x", in_f64);
  const Tensor y = pass_through(steps, x, local(), exact).y;
  const Tensor dy = numbers(y.shape(), "dy", in_f64);
  backward(y, dy, {.retain = true});
  const Tensor once = clone(grad(x));
  backward(y, dy);
  EXPECT_LT(distance(grad(x), mul(once, 2.0)), 1e-12);
  EXPECT_THROW(backward(y, dy), GradientError);
}

TEST(Memory, PartOfTheReversibleGradients) {
  Steps steps = blocks(3, in_f32);
  const Tensor x = leaf({B, L, D}, "x", in_f32);
  const Tensor inside = parameter(steps, "2.layer.q.weight");
  const auto only = [&](const Tensor& wanted, const ReversibleOptions& options) {
    const Tensor y = pass_through(steps, x, local(), options).y;
    backward(y, numbers(y.shape(), "dy", in_f32), {.inputs = {wanted}});
    for (const NamedTensor& w : named_parameters(steps)) {
      if (!w.tensor.shares_storage(wanted)) {
        EXPECT_FALSE(grad(w.tensor)) << w.name;
      }
    }
    const Tensor g = grad(wanted);
    set_grad(wanted, {});
    return std::vector<Tensor>{g};
  };
  for (const Tensor& wanted : {inside, x}) {
    expect_same(only(wanted, exact), only(wanted, stored(exact)));
    EXPECT_FALSE(grad(x));
  }
  // Only parameters require gradients.
  const Tensor data = numbers({B, L, D}, "x", in_f32);
  std::vector<std::vector<Tensor>> all;
  for (const ReversibleOptions& options : {exact, stored(exact)}) {
    for (const Tensor& w : parameters(steps)) set_grad(w, {});
    const Tensor y = pass_through(steps, data, local(), options).y;
    backward(y, numbers(y.shape(), "dy", in_f32));
    all.emplace_back();
    for (const Tensor& w : parameters(steps)) all.back().push_back(grad(w));
  }
  expect_same(all[0], all[1]);
}

TEST(Memory, StreamsAreGoneAfterBackwardAlsoWhereTheFirstLayersAreFrozen) {
  Steps steps = blocks(4, in_f32);
  for (size_t i = 0; i < 3; ++i) {
    for (Tensor w : parameters(*steps.list[i])) set_requires_grad(w, false);
  }
  const Tensor x = numbers({B, L, D}, "x", in_f32);
  const auto run = [&](const ReversibleOptions& options) {
    for (size_t i = 3; i < steps.list.size(); ++i) {
      for (const Tensor& w : parameters(*steps.list[i])) set_grad(w, {});
    }
    const int64_t before = memory_tracker().live().total();
    Tensor y = pass_through(steps, x, local(), options).y;
    backward(y, numbers(y.shape(), "dy", in_f32));
    std::vector<Tensor> all{y.detach()};
    int64_t bytes = memory::block_bytes(y.nbytes());
    for (const Tensor& w : parameters(steps)) {
      all.push_back(grad(w));
      if (grad(w)) bytes += memory::block_bytes(grad(w).nbytes());
    }
    EXPECT_EQ(memory_tracker().live().total() - before, bytes);  // y still holds the graph
    return all;
  };
  expect_same(run(exact), run(stored(exact)));
}

TEST(Memory, BackwardThatRunsOutOfMemoryLeavesTheStreamsAlone) {
  Steps steps = blocks(1, in_f32);
  const Tensor x = leaf({B, L, D}, "x", in_f32);
  bool failed = true;
  for (int64_t allocations = 0; failed; ++allocations) {
    Reversible streams(enter_reversible(x, {}), {});
    for (size_t i = 0; i < steps.list.size(); ++i) {
      streams.step(steps.list[i], local(), training.at(static_cast<uint64_t>(i)));
    }
    const Halves y = streams.finish();
    const Tensor loss = sum(square(mean_of(y))), first = clone(y.x1), second = clone(y.x2);
    failed = false;
    fail_allocation_after({}, allocations);
    try {
      backward(loss);
    } catch (const OutOfMemory&) {
      failed = true;
    }
    fail_allocation_after({}, -1);
    try {
      backward(loss);  // continues, or throws
    } catch (const GradientError&) {
    }
    EXPECT_TRUE(same_bits(y.x1, first) && same_bits(y.x2, second)) << allocations;
  }
}

TEST(Memory, AGradientMayComeFromTheMiddle) {
  Steps steps = blocks(3, in_f32);
  const Tensor x = leaf({B, L, D}, "x", in_f32);
  const auto run = [&](const ReversibleOptions& options) {
    set_grad(x, {});
    Reversible streams(enter_reversible(x, options), options);
    Tensor middle;
    for (size_t i = 0; i < steps.list.size(); ++i) {
      streams.step(steps.list[i], local(), training.at(static_cast<uint64_t>(i)));
      if (i == 2) middle = mean_of(streams.streams());
    }
    const Tensor y = mean_of(streams.finish());
    backward(sum(square(middle)), {}, {.retain = true});
    const Tensor first = clone(grad(x));
    backward(sum(square(y)));
    return std::vector<Tensor>{first, grad(x)};
  };
  expect_same(run(exact), run(stored(exact)));
}

TEST(Memory, ReversibleStreamsInsideACheckpoint) {
  struct Whole final : Layer {
    Steps steps = blocks(2, in_f32);
    Output forward(const Tensor& x, const LayerContext& ctx, Pass pass) const override {
      return pass_through(steps, x, ctx, exact, pass).y;
    }
    void visit(Visitor& v) override { v("steps", steps); }
  } whole;
  std::vector<std::vector<Tensor>> all;
  for (const bool saving : {false, true}) {
    const Tensor x = leaf({B, L, D}, "x", in_f32);
    for (const Tensor& w : parameters(whole)) set_grad(w, {});
    const Tensor y =
        (saving ? checkpoint(whole, x, local(), training) : whole.forward(x, local(), training)).y;
    backward(sum(square(y)));
    all.push_back({y.detach(), grad(x)});
    for (const Tensor& w : parameters(whole)) all.back().push_back(grad(w));
  }
  expect_same(all[0], all[1]);
}

TEST(Memory, CouplingsAreTwoSteps) {
  std::vector<Coupling> couplings(2);
  Steps steps;
  const FeedForwardOptions ff{.d_model = D, .d_ff = F, .dropout = 0.1f};
  for (int64_t i = 0; i < 4; ++i) {
    auto layer = std::make_unique<FeedForward>(ff, in_f32.at(i));
    steps.list.push_back(std::make_shared<FeedForward>(*layer));
    Coupling& c = couplings[static_cast<size_t>(i / 2)];
    (i % 2 == 0 ? c.f : c.g) = std::move(layer);
  }
  const Tensor x = leaf({B, L, D}, "x", in_f32);
  const ReversibleOutput out = reversible(couplings, {x, x}, {}, training);
  EXPECT_TRUE(same_bits(mean_of(out.y), pass_through(steps, x, {}, {}).y));
  EXPECT_EQ(concat_of(out.y).shape(), (Shape{B, L, 2 * D}));

  const NoGrad off;  // the paper's formulas
  const auto f = [&](size_t i, const Tensor& z) {
    return steps.list[i]->forward(z, {}, training.at(static_cast<uint64_t>(i))).y;
  };
  const Tensor x1 = add(x, f(0, x)), x2 = add(x, f(1, x1));
  const Tensor y1 = add(x1, f(2, x2)), y2 = add(x2, f(3, y1));
  EXPECT_TRUE(same_bits(out.y.x1, y1));
  EXPECT_TRUE(same_bits(out.y.x2, y2));
}

TEST(Memory, ReversibleRefusesWhatItCannotInvert) {
  const Tensor x = numbers({B, L, D}, "x", in_f32);
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const Tensor h = cast(x, dtype);
    EXPECT_NE(message_of<DTypeError>([&] {
                Reversible({h, h}, {});
              }).find("must be in f32 or f64"),
              std::string::npos);
  }
  EXPECT_THROW(Reversible({x, numbers({B, L, D + 1}, "x", in_f32)}, {}), ShapeError);
  EXPECT_THROW(ReconstructionErrorMonitor(0), ValueError);
  const Tensor large = full({B, L, D}, 300.0);
  const auto run = [&](int grid) {
    const ReversibleOptions options{.exact = true, .grid = grid};
    Reversible streams(enter_reversible(large, options), options);
    streams.finish();
  };
  EXPECT_NE(message_of<ValueError>([&] { run(16); }).find("a grid of at most 15 bits"),
            std::string::npos);
  EXPECT_NO_THROW(run(15));
}

TEST(Memory, NothingOfReversibleStreamsIsKeptWhereNothingIsRecorded) {
  const Steps steps = blocks(2, in_f32);
  const Tensor x = leaf({B, L, D}, "x", in_f32);
  const Tensor recorded = pass_through(steps, x, local(), exact).y;
  const NoGrad off;
  const int64_t before = memory_tracker().live().total();
  const Tensor y = pass_through(steps, x, local(), exact).y;
  EXPECT_EQ(memory_tracker().live().total() - before, memory::block_bytes(B * L * D * 4));
  EXPECT_TRUE(same_bits(y, recorded));
}

}  // namespace
}  // namespace longspan::test
