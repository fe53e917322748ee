#include "autograd/engine.h"

#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "autograd/record.h"
#include "core/memory.h"
#include "core/parallel.h"
#include "core/scope.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/index.h"
#include "ops/matmul.h"
#include "ops/norm.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/shape.h"
#include "tests/autograd/small_tensors.h"
#include "tests/harness/messages.h"

namespace longspan {
namespace {

using test::leaf;
using test::message_of;
using test::values_of;

/// Computes y = 2 x and counts its backward calls in `runs`.
Tensor twice(const Tensor& x, int* runs) {
  return record("twice", {x}, mul(x.detach(), 2.0), {}, [runs](const Context&, const Tensor& dy) {
    ++*runs;
    return Grads{mul(dy, 2.0)};
  });
}

TEST(Backward, FollowsEveryPath) {
  Tensor x = leaf({1, 2, 3});
  const Tensor a = mul(x, 3.0), b = mul(x, x);
  backward(sum(add(add(a, b), x)));
  EXPECT_EQ(values_of(grad(x)), (std::vector<double>{6, 8, 10}));
}

TEST(Backward, Accumulates) {
  Tensor x = leaf({1, 2});
  for (int i = 1; i <= 3; ++i) {
    backward(sum(mul(x, 5.0)));
    EXPECT_EQ(values_of(grad(x)), (std::vector<double>{5.0 * i, 5.0 * i}));
  }
  EXPECT_EQ(grad(x).storage().category(), Category::gradient);
  set_grad(x, {});
  EXPECT_FALSE(grad(x));
  backward(sum(x));
  EXPECT_EQ(values_of(grad(x)), (std::vector<double>{1, 1}));
}

TEST(Backward, ALeafIsAnOutputToo) {
  Tensor x = leaf({1, 2});
  const Tensor dy = Tensor::from(std::vector<double>{3, 4}, {2});
  backward(x, dy);
  backward(x, dy);
  EXPECT_EQ(values_of(grad(x)), (std::vector<double>{6, 8}));
  EXPECT_EQ(values_of(dy), (std::vector<double>{3, 4}));  // the caller's dy is unchanged
}

TEST(Backward, GradientsThatShareStorageAreNotWrittenThrough) {
  Tensor x = leaf({1, 2}), y = leaf({3, 4});
  // add passes one dy to both inputs; then x accumulates more.
  const Tensor z = add(x, y);
  backward(std::vector<Tensor>{z, x},
           std::vector<Tensor>{Tensor::from(std::vector<double>{1, 1}, {2}),
                               Tensor::from(std::vector<double>{10, 10}, {2})});
  EXPECT_EQ(values_of(grad(x)), (std::vector<double>{11, 11}));
  EXPECT_EQ(values_of(grad(y)), (std::vector<double>{1, 1}));
  EXPECT_FALSE(grad(x).shares_storage(grad(y)));
}

// The gradient of `embedding` is added in place, here to one that another leaf has too.
TEST(Backward, GradientsThatShareStorageAreNotAddedToInPlace) {
  Tensor x = leaf({1, 2, 3, 4}), y = leaf({5, 6, 7, 8});
  const Tensor rows = embedding(x, Tensor::from(std::vector<int64_t>{1, 1}, {2}));
  const Tensor both = add(x, y);  // later, so that its gradient comes first
  backward(std::vector<Tensor>{rows, both}, std::vector<Tensor>{ones_like(rows), ones_like(both)});
  EXPECT_EQ(values_of(grad(x)), (std::vector<double>{1, 3, 1, 1}));
  EXPECT_EQ(values_of(grad(y)), (std::vector<double>{1, 1, 1, 1}));
}

// Products add to the gradient that other ops have given their input, where it is theirs alone: not
// where it is still another op's dy, and not at a leaf.
TEST(Backward, ProductsAddToTheGradientOfTheirInput) {
  const auto values = [](int64_t n) {
    std::vector<double> x(static_cast<size_t>(n));
    for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(0.7 * static_cast<double>(i) + 0.3);
    return x;
  };
  const Tensor start = Tensor::from(values(12), {4, 3});
  const Tensor weights[] = {Tensor::from(values(9), {3, 3}), Tensor::from(values(9), {3, 3}) * 2.0};
  for (const bool retain : {false, true}) {
    Tensor x = start.detach(), w0 = contiguous(weights[0]), w1 = contiguous(weights[1]);
    for (Tensor* leaf : {&x, &w0, &w1}) set_requires_grad(*leaf);
    const Tensor h = x * 1.5;
    const Tensor y = add(add(h, linear(h, w0)), linear(h, w1));
    const int times = retain ? 2 : 1;
    for (int i = 0; i < times; ++i) backward(sum(square(y)), {}, {.retain = i + 1 < times});

    // The same by the definition: dy = 2 y, dh = dy + dy W0 + dy W1, dW = dy^T h.
    const NoGrad off;
    const Tensor dy = y.detach() * 2.0, hd = h.detach();
    const Tensor dh = dy + matmul(dy, weights[0]) + matmul(dy, weights[1]);
    const auto expect_near = [&](const Tensor& found, const Tensor& wanted) {
      const auto a = found.to_vector<double>(), b = wanted.to_vector<double>();
      for (size_t i = 0; i < b.size(); ++i) EXPECT_NEAR(a[i], times * b[i], 1e-12);
    };
    expect_near(grad(x), dh * 1.5);
    for (const Tensor* w : {&w0, &w1}) expect_near(grad(*w), matmul(transpose(dy, 0, 1), hd));
  }
}

// So do norms, with the bits of a gradient of their own that is added.
TEST(Backward, NormsAddToTheGradientOfTheirInput) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    for (const int64_t n : {1, 7, 37, 2500}) {
      std::vector<double> v(static_cast<size_t>(6 * n));
      for (size_t i = 0; i < v.size(); ++i) v[i] = std::sin(0.7 * static_cast<double>(i) + 0.3);
      const Tensor start = cast(Tensor::from(v, {6, n}), dtype);
      const Tensor dy = cast(sin(Tensor::from(v, {6, n}) * 3.0), dtype);
      const auto gradient = [&](bool once, bool center) {
        Tensor x = start.detach();
        set_requires_grad(x);
        const auto normed = [&](const Tensor& of) {
          return center ? layer_norm(of, {}, {}, 1e-5) : rms_norm(of, {}, 1e-5);
        };
        // Backward comes to `other` first, whose gradient of h is its own: to that the norm adds.
        // With a copy of h the norm finds none that it could add to.
        const Tensor h = mul(x, 2.0), y = normed(once ? h : mul(h, 1.0)), other = mul(h, 3.0);
        backward(add(other, y), dy);
        return cast(grad(x), DType::f64).to_vector<double>();
      };
      for (const bool center : {false, true}) {
        EXPECT_EQ(gradient(true, center), gradient(false, center)) << name_of(dtype) << " " << n;
      }
    }
  }
}

TEST(Backward, SeveralOutputsGiveTheSum) {
  Tensor x = leaf({1, 2});
  const Tensor a = mul(x, 2.0), b = mul(x, x);
  const std::vector<Tensor> outputs = {a, b, a};
  const Tensor one = ones_like(a);
  backward(outputs, std::vector<Tensor>{one, one, one});
  EXPECT_EQ(values_of(grad(x)), (std::vector<double>{2 + 2 + 2, 2 + 4 + 2}));
}

TEST(Backward, RefusesWhatDoesNotFit) {
  Tensor x = leaf({1, 2});
  const Tensor y = mul(x, 2.0);
  EXPECT_THROW(backward(y), ShapeError);
  EXPECT_THROW(backward(y, zeros({3}, DType::f64)), ShapeError);
  EXPECT_THROW(backward(y, zeros({2}, DType::f32)), DTypeError);
  EXPECT_THROW(backward(Tensor{}), GradientError);
  EXPECT_THROW(backward(zeros({1})), GradientError);
  EXPECT_THROW(backward(std::vector<Tensor>{y, y}, std::vector<Tensor>{ones_like(y)}),
               GradientError);
  EXPECT_FALSE(grad(x));
  backward(y, ones_like(y));  // these errors have not consumed the graph
  EXPECT_EQ(values_of(grad(x)), (std::vector<double>{2, 2}));
}

TEST(Backward, TwiceNeedsRetain) {
  Tensor x = leaf({3});
  const Tensor y = mul(x, x);
  backward(y, {}, {.retain = true});
  backward(y);
  EXPECT_EQ(values_of(grad(x)), (std::vector<double>{12}));
  EXPECT_NE(message_of<GradientError>([&] { backward(y); }).find("call the first one with retain"),
            std::string::npos);
}

TEST(Backward, GradientsOfGradientsAreRefused) {
  Tensor x = leaf({3});
  backward(mul(x, x));
  const Tensor penalty = mul(grad(x), grad(x));
  EXPECT_NE(message_of<GradientError>([&] { backward(penalty); }).find("gradients of gradients"),
            std::string::npos);
  EXPECT_NE(message_of<GradientError>([&] { backward(grad(x)); }).find("gradients of gradients"),
            std::string::npos);
  EXPECT_NE(message_of<NotImplemented>([&] {
              backward(mul(x, x), {}, {.create_graph = true});
            }).find("gradients of gradients are not supported"),
            std::string::npos);
}

TEST(Backward, OnlyWhatIsAskedFor) {
  int left = 0, right = 0;
  Tensor a = leaf({1}), b = leaf({2});
  const Tensor y = add(twice(a, &left), twice(b, &right));
  backward(y, {}, {.retain = true, .inputs = {a}});
  EXPECT_EQ(values_of(grad(a)), (std::vector<double>{2}));
  EXPECT_FALSE(grad(b));
  EXPECT_EQ(left, 1);
  EXPECT_EQ(right, 0);
  backward(y, {}, {.retain = true, .inputs = {a, b}});
  EXPECT_EQ(values_of(grad(a)), (std::vector<double>{4}));
  EXPECT_EQ(values_of(grad(b)), (std::vector<double>{2}));
  EXPECT_THROW(backward(y, {}, {.inputs = {y}}), GradientError);
  EXPECT_THROW(backward(y, {}, {.inputs = {zeros({1})}}), GradientError);
}

TEST(Gradients, OfLeavesAndResultsWithoutTouchingAnything) {
  int runs = 0;
  Tensor x = leaf({1, 2}), far = leaf({7});
  const Tensor below = twice(x, &runs), h = mul(below, 3.0), y = sum(mul(h, h));
  const std::vector<Tensor> g =
      gradients(std::vector<Tensor>{y}, {}, std::vector<Tensor>{h, x, far, x}, true);
  EXPECT_EQ(values_of(g[0]), (std::vector<double>{12, 24}));
  EXPECT_EQ(values_of(g[1]), (std::vector<double>{72, 144}));
  EXPECT_FALSE(g[2]);
  EXPECT_EQ(values_of(g[3]), (std::vector<double>{72, 144}));
  EXPECT_FALSE(grad(x));
  EXPECT_EQ(runs, 1);
  // No node below the requested input runs.
  gradients(std::vector<Tensor>{y}, {}, std::vector<Tensor>{h}, true);
  EXPECT_EQ(runs, 1);
  EXPECT_EQ(values_of(gradients(std::vector<Tensor>{y}, {}, std::vector<Tensor>{y}, true)[0]),
            (std::vector<double>{1}));
  EXPECT_THROW(gradients(std::vector<Tensor>{y}, {}, std::vector<Tensor>{zeros({1})}),
               GradientError);
}

TEST(Graph, ALongChainRunsAndGoes) {
  const int64_t before = memory_tracker().live().total();
  {
    Tensor x = leaf({1});
    Tensor y = x;
    for (int i = 0; i < 300'000; ++i) y = clone(y);
    backward(y);
    EXPECT_EQ(values_of(grad(x)), (std::vector<double>{1}));
  }
  EXPECT_EQ(memory_tracker().live().total(), before);
}

TEST(Graph, ALongChainGoesWithoutHavingRun) {
  const int64_t before = memory_tracker().live().total();
  for (const bool front_first : {true, false}) {
    Tensor x = leaf({1});
    std::vector<Tensor> all = {x};
    for (int i = 0; i < 300'000; ++i) all.push_back(mul(all.back(), all.back()));
    if (front_first) {
      for (Tensor& t : all) t = {};
    } else {
      const Tensor last = all.back();
      all.clear();
    }
  }
  EXPECT_EQ(memory_tracker().live().total(), before);
}

TEST(Graph, EveryNodeRunsOnceHoweverManyPathsThereAre) {
  // The number of paths is the 200th Fibonacci number.
  Tensor x = leaf({1});
  int runs = 0;
  Tensor a = mul(x, 0.5), b = mul(x, 0.5);
  for (int i = 0; i < 200; ++i) {
    const Tensor next = mul(add(a, twice(b, &runs)), 1.0 / 3.0);
    a = b;
    b = next;
  }
  backward(b);
  EXPECT_EQ(runs, 200);
  EXPECT_TRUE(std::isfinite(grad(x).item()));
}

TEST(Graph, LongChainsOfSlicesAndOfTwoInputs) {
  Tensor x = leaf({1, 2, 3, 4});
  Tensor y = x;
  for (int i = 0; i < 100'000; ++i) y = slice(concat({y, x}, 0), 0, 1, 5);
  backward(sum(y));
  double total = 0;
  for (const double g : values_of(grad(x))) total += g;
  EXPECT_EQ(total, 4);
}

/// Computes y = x; backward notes how many bytes are saved at that time.
struct Witness final : autograd::Node {
  Witness(const Tensor& kept, std::vector<int64_t>* seen) : Node("witness"), notes(seen) {
    save({kept});
  }
  Grads backward(std::span<const Tensor> dy) override {
    notes->push_back(memory_tracker().live()[Category::saved]);
    return {dy[0]};
  }
  std::vector<int64_t>* notes;
};

TEST(Saved, GoesAsNodesFinish) {
  const int64_t before = memory_tracker().live()[Category::saved];
  Tensor x = leaf({1});
  Tensor y = x;
  std::vector<int64_t> seen;
  const int64_t bytes = 1 << 20, n = 8;
  for (int i = 0; i < n; ++i) {
    Tensor z = clone(y);
    record_node("witness", {y}, {&z}, [&] {
      return std::make_shared<Witness>(Tensor::empty({bytes}, DType::u8), &seen);
    });
    y = z;
  }
  EXPECT_EQ(memory_tracker().live()[Category::saved] - before, n * bytes);
  backward(y, {}, {.retain = true});
  EXPECT_EQ(seen, std::vector<int64_t>(n, before + n * bytes));
  seen.clear();
  backward(y);  // the graph itself is still held by y
  for (int64_t i = 0; i < n; ++i) {
    EXPECT_EQ(seen[static_cast<size_t>(i)], before + (n - i) * bytes);
  }
  EXPECT_EQ(memory_tracker().live()[Category::saved], before);
}

TEST(Saved, TwoHoldersCountOnce) {
  const int64_t before = memory_tracker().live()[Category::saved];
  Tensor x = leaf(std::vector<double>(1000, 2.0));
  {
    const Tensor h = mul(x, 2.0);
    const Tensor a = mul(h, h), b = mul(h, h);
    EXPECT_EQ(memory_tracker().live()[Category::saved] - before, memory::block_bytes(8000));
  }
  EXPECT_EQ(memory_tracker().live()[Category::saved], before);
}

TEST(Saved, AStaleTensorIsDetected) {
  Tensor x = leaf({2, 3});
  Tensor h = mul(x, 2.0);
  const Tensor y = sum(mul(h, h));
  h.mut();
  const std::string text = message_of<GradientError>([&] { backward(y); });
  EXPECT_NE(text.find("mul: a tensor saved for backward was written since"), std::string::npos)
      << text;
  EXPECT_NE(text.find("saved  f64[2]"), std::string::npos) << text;
  // A write through a view counts for all of the storage.
  Tensor g = mul(x, 2.0);
  const Tensor z = sum(mul(g, g));
  slice(g, 0, 0, 1).mut();
  EXPECT_THROW(backward(z), GradientError);
  EXPECT_FALSE(grad(x));
}

TEST(Modes, NoGradAndEnableGradNest) {
  Tensor x = leaf({1});
  EXPECT_TRUE(autograd::recording());
  {
    const NoGrad off;
    EXPECT_FALSE(requires_grad(mul(x, 2.0)));
    {
      const EnableGrad on;
      EXPECT_TRUE(requires_grad(mul(x, 2.0)));
      std::thread([] { EXPECT_TRUE(autograd::recording()); }).join();
    }
    EXPECT_FALSE(autograd::recording());
    std::thread([] { EXPECT_TRUE(autograd::recording()); }).join();
  }
  EXPECT_TRUE(requires_grad(mul(x, 2.0)));
  EXPECT_FALSE(autograd::replaying());
  {
    const Replay again;
    EXPECT_TRUE(autograd::replaying());
  }
  EXPECT_FALSE(autograd::replaying());
}

TEST(Modes, NothingIsKeptWhereNothingIsRecorded) {
  Tensor x = leaf(std::vector<double>(100, 1.0));
  const int64_t saved = memory_tracker().live()[Category::saved];
  const NoGrad off;
  const Tensor y = mul(mul(x, x), x);
  EXPECT_EQ(memory_tracker().live()[Category::saved], saved);
}

TEST(Leaves, AskForGradientsOnce) {
  Tensor x = zeros({2}), n = zeros({2}, DType::i64);
  EXPECT_FALSE(requires_grad(x));
  set_requires_grad(x);
  EXPECT_TRUE(requires_grad(x));
  EXPECT_FALSE(requires_grad(x.detach()));
  Tensor y = mul(x, 2.0);
  EXPECT_TRUE(requires_grad(y));
  EXPECT_THROW(set_requires_grad(y), GradientError);
  EXPECT_THROW(set_requires_grad(n), DTypeError);
  set_requires_grad(x, false);
  EXPECT_FALSE(requires_grad(mul(x, 2.0)));
  EXPECT_THROW(set_grad(x, zeros({2})), GradientError);
  set_requires_grad(x);
  EXPECT_THROW(set_grad(x, zeros({3})), ShapeError);
  EXPECT_THROW(set_grad(x, zeros({2}, DType::f64)), DTypeError);
  EXPECT_THROW(set_grad(y, zeros({2})), GradientError);
  // A gradient that is not row-major also accumulates.
  Tensor m = zeros({2, 3});
  set_requires_grad(m);
  set_grad(m, transpose(reshape(arange(0, 6, 1, DType::f32), {3, 2})));
  backward(sum(m));
  EXPECT_EQ(grad(m).to_vector<float>(), (std::vector<float>{1, 3, 5, 2, 4, 6}));
}

/// Computes f(x) = exp(w x), which backward recomputes instead of saving it.
struct Recompute final : autograd::Node {
  Recompute(const Tensor& x, const Tensor& weight) : Node("recompute"), w(weight) { save({x}); }
  Grads backward(std::span<const Tensor> dy) override {
    Tensor x = saved(0).detach();
    set_requires_grad(x);
    Tensor y;
    {
      const EnableGrad on;
      const Replay again;
      y = exp(mul(w, x));
    }
    longspan::backward(y, dy[0]);
    return {grad(x)};
  }
  Tensor w;
};

TEST(Backward, MayRunInsideBackward) {
  const auto run = [](int depth) {
    Tensor x = leaf({0.3, -0.2}), w = leaf({0.5, 0.7});
    Tensor y = x;
    for (int i = 0; i < depth; ++i) {
      Tensor z;
      {
        const NoGrad off;
        z = exp(mul(w, y));
      }
      record_node("recompute", {y}, {&z}, [&] { return std::make_shared<Recompute>(y, w); });
      y = z;
    }
    backward(sum(y));
    return std::pair(values_of(grad(x)), values_of(grad(w)));
  };
  const auto plain = [](int depth) {
    Tensor x = leaf({0.3, -0.2}), w = leaf({0.5, 0.7});
    Tensor y = x;
    for (int i = 0; i < depth; ++i) y = exp(mul(w, y));
    backward(sum(y));
    return std::pair(values_of(grad(x)), values_of(grad(w)));
  };
  for (const int depth : {1, 2, 4}) EXPECT_EQ(run(depth), plain(depth));
}

/// Has the outputs x and 2 x.
struct Pair final : autograd::Node {
  explicit Pair(std::vector<bool>* arrived) : Node("pair"), notes(arrived) {}
  Grads backward(std::span<const Tensor> dy) override {
    Tensor dx;
    notes->clear();
    for (const Tensor& d : dy) notes->push_back(static_cast<bool>(d));
    if (dy[0]) dx = dy[0];
    if (dy[1]) dx = dx ? add(dx, mul(dy[1], 2.0)) : mul(dy[1], 2.0);
    return {dx};
  }
  std::vector<bool>* notes;
};

TEST(Nodes, SeveralOutputsOfWhichSomeAreUsed) {
  Tensor x = leaf({1});
  std::vector<bool> arrived;
  const auto pair = [&] {
    std::vector<Tensor> y = {x.detach(), mul(x.detach(), 2.0)};
    record_node("pair", {x}, {&y[0], &y[1]}, [&] { return std::make_shared<Pair>(&arrived); });
    return y;
  };
  backward(pair()[1]);
  EXPECT_EQ(arrived, (std::vector<bool>{false, true}));
  EXPECT_EQ(grad(x).item(), 2);
  const auto y = pair();
  backward(add(y[0], mul(y[1], 10.0)));
  EXPECT_EQ(arrived, (std::vector<bool>{true, true}));
  EXPECT_EQ(grad(x).item(), 2 + 21);
}

struct Forgetful final : autograd::Node {
  Forgetful() : Node("forgetful") {}
  Grads backward(std::span<const Tensor>) override { return {}; }
};

TEST(Nodes, MustReturnAGradientForEachInput) {
  Tensor x = leaf({1});
  Tensor y = clone(x.detach());
  record_node("forgetful", {x}, {&y}, [] { return std::make_shared<Forgetful>(); });
  EXPECT_NE(message_of<GradientError>([&] {
              backward(y);
            }).find("forgetful: backward returned 0 gradients for 1 inputs"),
            std::string::npos);
}

TEST(Nodes, GradientsThatDoNotFitStopAtTheOpThatMadeThem) {
  // Checks gradients at a leaf, and between ops, where the next kernel would read out of bounds.
  const auto wrong = [](const Tensor& x, const Shape& shape, DType dtype) {
    return record("wrong", {x}, clone(x.detach()), {},
                  [shape, dtype](const Context&, const Tensor&) {
                    return Grads{Tensor::zeros(shape, dtype)};
                  });
  };
  Tensor x = leaf({1, 2});
  for (const bool between : {false, true}) {
    const Tensor h = between ? mul(x, x) : x;
    const auto text = [&](const Shape& shape, DType dtype, auto tag) {
      return message_of<typename decltype(tag)::type>(
          [&] { backward(sum(wrong(h, shape, dtype)), {}, {.retain = true}); });
    };
    const std::string size = text({3}, DType::f64, TypeTag<ShapeError>{});
    EXPECT_NE(size.find("wrong: backward gave a gradient of input 0 that is not f64[2] on cpu"),
              std::string::npos)
        << size;
    EXPECT_NE(size.find("gradient  f64[3]"), std::string::npos) << size;
    EXPECT_NE(text({2}, DType::f32, TypeTag<DTypeError>{}).find("is not f64[2]"),
              std::string::npos);
    EXPECT_FALSE(grad(x));
  }
}

TEST(Leaves, GradientsInHandStayAsTheyAre) {
  Tensor x = leaf({1, 2}), y = leaf({3, 4});
  const Tensor given = Tensor::from(std::vector<double>{5, 6}, {2});
  set_grad(x, given);
  set_grad(y, given);
  EXPECT_EQ(given.storage().category(), Category::gradient);
  backward(sum(mul(x, 2.0)));
  EXPECT_EQ(values_of(given), (std::vector<double>{5, 6}));
  EXPECT_EQ(values_of(grad(x)), (std::vector<double>{7, 8}));
  EXPECT_EQ(values_of(grad(y)), (std::vector<double>{5, 6}));
  const Tensor held = grad(x);
  backward(sum(x));
  EXPECT_EQ(values_of(held), (std::vector<double>{7, 8}));
  EXPECT_EQ(values_of(grad(x)), (std::vector<double>{8, 9}));
  EXPECT_EQ(grad(x).storage().category(), Category::gradient);
}

TEST(Graph, MayDieAfterTheThreadThatBuiltIt) {
  // Static objects are destroyed after the thread-local objects of the main thread.
  EXPECT_EXIT(
      {
        static Tensor kept;
        Tensor x = leaf({1});
        kept = x;
        for (int i = 0; i < 1000; ++i) kept = mul(kept, kept);
        std::exit(0);
      },
      testing::ExitedWithCode(0), "");
}

TEST(Anomaly, NamesTheFirstOpForward) {
  Tensor x = leaf({-1, 1});
  const AnomalyMode on;
  const Scope scope("model");
  const std::string text = message_of<ValueError>([&] { mul(log(x), 2.0); });
  EXPECT_NE(text.find("log: forward produced NaN or Inf"), std::string::npos) << text;
  EXPECT_NE(text.find("in model"), std::string::npos) << text;
  EXPECT_NO_THROW(mul(x, 2.0));
}

TEST(Anomaly, NamesTheFirstOpBackwardAndWhereItWasRecorded) {
  Tensor x = leaf({0, 1});
  const AnomalyMode on;
  Tensor y;
  {
    const Scope scope("model.layers", 3);
    y = mul(sqrt(mul(x, 2.0)), 3.0);  // the derivative of sqrt at 0 is infinite
  }
  const std::string text = message_of<ValueError>([&] { backward(sum(y)); });
  EXPECT_NE(text.find("sqrt: backward produced NaN or Inf; recorded in model.layers.3"),
            std::string::npos)
      << text;
}

TEST(Anomaly, OffMeansNoCheck) {
  Tensor x = leaf({0, 1});
  EXPECT_NO_THROW(backward(sum(sqrt(x))));
  EXPECT_TRUE(std::isinf(values_of(grad(x))[0]));
}

/// A small network that uses many kinds of op.
struct Network {
  Tensor table, weight, bias;
  Network() {
    const Generator gen{3};
    table = normal({50, 24}, gen.fork("table"));
    weight = normal({24, 24}, gen.fork("weight"));
    bias = normal({24}, gen.fork("bias"));
    for (Tensor* p : {&table, &weight, &bias}) {
      p->set_category(Category::parameter);
      set_requires_grad(*p);
    }
  }
  Tensor loss() const {
    const Tensor ids = randint({6, 40}, Generator{4}, 0, 50);
    Tensor h = embedding(table, ids);
    for (int layer = 0; layer < 3; ++layer) {
      const Tensor u = tanh(linear(h, weight, bias));
      const auto parts = split(u, {8, 16}, 2);
      h = add(h, dropout(concat({parts[1], parts[0]}, 2), 0.3,
                         Pass{.training = true, .gen = {5}}.at(layer)));
    }
    const Tensor first = slice(h, 1, 0, 20), second = slice(h, 1, 10, 40, 2);
    return add(mean(mul(first, first)), mean(exp(mul(permute(second, {1, 0, 2}), 0.1))));
  }
  void clear() {
    for (Tensor* p : {&table, &weight, &bias}) set_grad(*p, {});
  }
  std::vector<std::vector<float>> grads() const {
    return {grad(table).to_vector<float>(), grad(weight).to_vector<float>(),
            grad(bias).to_vector<float>()};
  }
};

TEST(Determinism, SameBitsForAnyThreadsAndEveryRun) {
  const int before = num_threads();
  std::vector<std::vector<std::vector<float>>> all;
  for (const int threads : {1, 2, 3, 1}) {
    set_num_threads(threads);
    Network net;
    const Tensor loss = net.loss();
    backward(loss);
    all.push_back(net.grads());
    all.back().push_back(loss.to_vector<float>());
  }
  set_num_threads(before);
  for (size_t i = 1; i < all.size(); ++i) EXPECT_TRUE(all[i] == all[0]) << i;
}

TEST(Determinism, GraphsOfSeveralThreadsDoNotMix) {
  Network net;
  backward(net.loss());
  const auto want = net.grads();
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      for (int round = 0; round < 3; ++round) {
        Network mine;
        backward(mine.loss());
        EXPECT_TRUE(mine.grads() == want);
      }
    });
  }
  for (std::thread& t : threads) t.join();
}

TEST(OutOfMemory, AnywhereInAStepLeavesNothingBehind) {
  Network net;
  backward(net.loss());
  const auto want = net.grads();
  net.clear();
  const Usage before = memory_tracker().live();
  int failures = 0;
  for (int64_t n = 0;; ++n) {
    fail_allocation_after({}, n);
    try {
      backward(net.loss());
      fail_allocation_after({}, -1);
      break;
    } catch (const OutOfMemory&) {
      ++failures;
    }
    net.clear();
    ASSERT_EQ(memory_tracker().live().bytes, before.bytes) << "after failure " << n;
  }
  EXPECT_GT(failures, 50);
  net.clear();
  backward(net.loss());
  EXPECT_TRUE(net.grads() == want);
  net.clear();
  EXPECT_EQ(memory_tracker().live().bytes, before.bytes);
}

TEST(Steps, DoNotGrow) {
  Network net;
  LeakCheck check({}, 3);
  int64_t held = 0;
  for (int step = 0; step < 1000; ++step) {
    backward(net.loss());
    net.clear();
    ASSERT_NO_THROW(check.step());
    const Usage now = memory_tracker().live();
    if (step == 2) held = now.total() + now.held_free;
    if (step > 2) {
      ASSERT_EQ(now.total() + now.held_free, held) << "step " << step;
    }
  }
}

TEST(Memory, AResidualNeedsNoCopyOfItsGradient) {
  // The gradient arrives twice through x + f(x); the second is added into the first.
  Tensor x = normal({1 << 16}, Generator{1});
  set_requires_grad(x);
  Tensor h = mul(x, 1.5);
  for (int i = 0; i < 4; ++i) h = add(h, mul(h, 0.5));
  const Tensor dy = ones_like(h);
  memory_tracker().reset_peak();
  const int64_t live = memory_tracker().live().total();
  backward(h, dy);
  EXPECT_LE(memory_tracker().peak().total() - live, 3 * dy.nbytes());
}

TEST(Record, MoreSavedTensorsThanThereAreIsAnErrorThatSaysSo) {
  const Tensor x = leaf({1, 2});
  const Tensor y =
      record("greedy", {x}, mul(x.detach(), 2.0), save(x), [](const Context& c, const Tensor& dy) {
        const auto s = c.saved<2>();
        return Grads{mul(dy, s[1])};
      });
  const std::string text = message_of<GradientError>([&] { backward(sum(y)); });
  EXPECT_NE(text.find("greedy: backward asks for saved tensor 1"), std::string::npos) << text;
  EXPECT_NE(text.find("the forward pass saved 1"), std::string::npos) << text;
}

// Both edges of each node lead to the same node.
TEST(Graphs, LongOnesOfPairsOfEdgesDieWithoutRecursion) {
  Tensor x = leaf({1});
  for (int i = 0; i < 300'000; ++i) x = mul(x, x);
  const Tensor other = add(x, x);
  x = {};
  SUCCEED();
}

}  // namespace
}  // namespace longspan
