#include "autograd/leaf_watch.h"

#include <gtest/gtest.h>

#include "autograd/engine.h"
#include "autograd/node.h"
#include "autograd/record.h"
#include "ops/elementwise.h"
#include "ops/reduce.h"
#include "ops/shape.h"
#include "tests/autograd/small_tensors.h"
#include "tests/harness/messages.h"

namespace longspan {
namespace {

using test::contains;
using test::leaf;
using test::message_of;
using test::values_of;

/// The order in which leaves were reported, and their gradients then.
struct Reports {
  explicit Reports(std::vector<Tensor> of) : leaves(std::move(of)) {}
  std::function<void(size_t)> note() {
    return [this](size_t i) {
      order.push_back(i);
      then.push_back(values_of(grad(leaves[i])));
    };
  }
  std::vector<Tensor> leaves;
  std::vector<size_t> order;
  std::vector<std::vector<double>> then;
};

TEST(LeafWatch, ReportsALeafAfterItsLastNode) {
  Tensor a = leaf({1, 2}), b = leaf({3, 4}), c = leaf({5, 6}), unused = leaf({7});
  Reports r({a, b, c, unused});
  const LeafWatch watch(r.leaves, r.note());
  // b is read by the last and by the first product: it is complete with the first.
  backward(sum(mul(mul(mul(a, b), c), b)));
  EXPECT_EQ(r.order, (std::vector<size_t>{2, 0, 1, 3}));
  EXPECT_EQ(r.then[0], (std::vector<double>{9, 32}));
  EXPECT_EQ(r.then[1], (std::vector<double>{45, 96}));
  EXPECT_EQ(r.then[2], (std::vector<double>{30, 96}));
  EXPECT_TRUE(r.then[3].empty());
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(values_of(grad(r.leaves[r.order[i]])), r.then[i]);
}

TEST(LeafWatch, TakesGradientsAndReportsEveryBackwardAnew) {
  Tensor a = leaf({1, 2}), b = leaf({3, 4});
  std::vector<std::vector<double>> taken;
  const std::vector<Tensor> leaves{a, b};
  const LeafWatch watch(leaves, [&](size_t i) {
    taken.push_back(values_of(grad(leaves[i])));
    set_grad(leaves[i], {});
  });
  for (int i = 0; i < 2; ++i) backward(sum(mul(a, b)));
  EXPECT_EQ(taken, (std::vector<std::vector<double>>{{3, 4}, {1, 2}, {3, 4}, {1, 2}}));
  EXPECT_FALSE(grad(a));
}

TEST(LeafWatch, TheInnermostOneGetsTheReports) {
  Tensor a = leaf({1});
  Reports outer({a}), inner({a});
  const LeafWatch first(outer.leaves, outer.note());
  {
    const LeafWatch second(inner.leaves, inner.note());
    backward(sum(a));
  }
  EXPECT_EQ(outer.order.size(), 0u);
  EXPECT_EQ(inner.order.size(), 1u);
  backward(sum(a));
  EXPECT_EQ(outer.order.size(), 1u);
}

TEST(LeafWatch, SaysNothingOfGradientsThatAreAskedFor) {
  Tensor a = leaf({1, 2}), b = leaf({3, 4});
  Reports r({a, b});
  const LeafWatch watch(r.leaves, r.note());
  const Tensor y = sum(mul(a, b));
  gradients({&y, 1}, {}, {&a, 1}, true);
  backward(y, {}, {.inputs = {a}});
  EXPECT_TRUE(r.order.empty());
}

TEST(LeafWatch, RowsThatNodesAddToAreCompleteWithTheLastOfThem) {
  Tensor table = leaf({1, 2, 3});
  Reports r({table});
  const LeafWatch watch(r.leaves, r.note());
  const Tensor first = narrow(table, 0, 0, 2), last = narrow(table, 0, 1, 2);
  backward(sum(mul(first, last)));
  EXPECT_EQ(r.then, (std::vector<std::vector<double>>{{2, 4, 2}}));
}

/// x, with a backward that adds to the gradient of `other` without an edge to it.
struct Hidden final : autograd::Node {
  explicit Hidden(Tensor of) : Node("hidden"), other(std::move(of)) {}
  Grads backward(std::span<const Tensor> dy) override {
    Tensor y;
    {
      const EnableGrad on;
      y = sum(mul(other, 2.0));
    }
    gradients_within({&y, 1}, {}, {});
    return {dy[0]};
  }
  Tensor other;
};

TEST(LeafWatch, AContributionAfterTheReportIsAnError) {
  Tensor x = leaf({1, 2}), w = leaf({3, 4});
  const auto run = [&] {
    Tensor y;
    {
      const NoGrad off;
      y = mul(x, 1.0);
    }
    record_node("hidden", {x}, {&y}, [&] { return std::make_shared<Hidden>(w); });
    backward(sum(mul(y, w)));
  };
  run();
  EXPECT_EQ(values_of(grad(w)), (std::vector<double>{3, 4}));
  const std::vector<Tensor> leaves{w};
  const LeafWatch watch(leaves, [](size_t) {});
  EXPECT_TRUE(contains(message_of<GradientError>(run), "must list in `next`"));
  // An error leaves nothing behind.
  backward(sum(mul(w, w)));
}

TEST(LeafWatch, WatchesLeavesAlone) {
  Tensor x = leaf({1, 2});
  const std::vector<Tensor> results{mul(x, 2.0)}, plain{Tensor::from(std::vector<double>{1}, {1})};
  const auto watch = [](const std::vector<Tensor>& of) { LeafWatch w(of, [](size_t) {}); };
  EXPECT_TRUE(contains(message_of<GradientError>([&] { watch(results); }), "expected a leaf"));
  EXPECT_TRUE(contains(message_of<GradientError>([&] { watch(plain); }), "expected a leaf"));
}

}  // namespace
}  // namespace longspan
