#include "nn/auxiliary_loss.h"

#include <gtest/gtest.h>

#include "nn/chunked.h"
#include "nn/reversible.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/reduce.h"
#include "tests/harness/clusters.h"
#include "tests/harness/messages.h"
#include "tests/nn/small_stack.h"

namespace longspan::test {
namespace {

Tensor number(double value) { return Tensor::from(std::vector<double>{value}, {}); }

TEST(AuxiliaryLosses, OfOneNameAreSummed) {
  std::vector<AuxiliaryLoss> all;
  add_losses(all, {{"b", number(1)}, {"a", number(2)}});
  add_losses(all, {{"a", number(3)}, {"c_1", number(4)}, {"a", number(5)}});
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0].name, "b");
  EXPECT_EQ(all[1].name, "a");
  EXPECT_EQ(all[1].value.item(), 10);
  EXPECT_EQ(all[2].name, "c_1");
  EXPECT_EQ(total_loss(number(100), all).item(), 115);
  EXPECT_EQ(total_loss(number(7), {}).item(), 7);
  // Layers may compute in fewer bits than the loss.
  const Tensor total = total_loss(number(7), {{"a", cast(number(0.5), DType::bf16)}});
  EXPECT_EQ(total.dtype(), DType::f64);
  EXPECT_EQ(total.item(), 7.5);
}

TEST(AuxiliaryLosses, AreScalarsWithPlainNames) {
  std::vector<AuxiliaryLoss> all;
  for (const char* name : {"", "Span", "a b", "a.b"}) {
    EXPECT_THROW(add_losses(all, {{name, number(1)}}), ValueError) << name;
  }
  EXPECT_THROW(add_losses(all, {{"a", Tensor{}}}), ValueError);
  EXPECT_THROW(add_losses(all, {{"a", Tensor::zeros({2})}}), ShapeError);
  EXPECT_TRUE(all.empty());
}

/// Returns the result, the losses by name and all gradients of a training pass of four layers.
std::vector<Tensor> pass_of(const MemoryPolicy& policy, const Init& init) {
  Stack stack = cluster_stack(4, D, 0.2f, policy, init);
  std::vector<Tensor> losses;
  std::vector<Tensor> all = outcome(stack, init, [&](const Tensor& x) {
    const Stack::Result r = stack.forward(x, {}, {}, training);
    EXPECT_EQ(r.losses.size(), 2u);
    EXPECT_EQ(r.losses.at(0).name, "commitment");
    EXPECT_EQ(r.losses.at(1).name, "copy");
    for (const AuxiliaryLoss& loss : r.losses) losses.push_back(loss.value.detach());
    const Tensor weighted = add(mul(r.losses[0].value, 0.7), mul(r.losses[1].value, 1.3));
    return add(r.y, weighted);
  });
  all.insert(all.end(), losses.begin(), losses.end());
  return all;
}

void expect_same_bits(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(same_bits(a[i], b[i])) << i;
}

TEST(AuxiliaryLosses, HaveTheSameBitsUnderEveryPolicy) {
  for (const Init& init : {in_f32, in_f64}) {
    const std::vector<Tensor> expected = pass_of("standard", init);
    EXPECT_NE(expected[expected.size() - 1].item(), 0);
    EXPECT_NE(expected[expected.size() - 2].item(), 0);
    for (const Tensor& gradient : expected) EXPECT_TRUE(gradient);
    for (const char* policy : {"checkpoint", "checkpoint:3", "checkpoint:3:1", "checkpoint:2+rest",
                               "lean", "selective"}) {
      SCOPED_TRACE(policy);
      expect_same_bits(expected, pass_of(policy, init));
    }
    expect_same_bits(pass_of("reversible:exact:stored", init), pass_of("reversible:exact", init));
  }
}

TEST(AuxiliaryLosses, OfPiecesAreAveraged) {
  const std::vector<Tensor> expected = pass_of("standard", in_f64);
  for (const char* kind : {"standard", "checkpoint:2", "lean"}) {
    for (const int64_t chunks : {2, 3, 7, 26}) {
      MemoryPolicy policy = kind;
      policy.chunks = chunks;
      const std::vector<Tensor> found = pass_of(policy, in_f64);
      ASSERT_EQ(found.size(), expected.size());
      for (size_t i = 0; i < found.size(); ++i) {
        EXPECT_LT(distance(found[i], expected[i]), 1e-12) << kind << " " << chunks << " " << i;
      }
    }
  }
}

// Every policy carries each loss apart: one of them reaches no parameter of the other.
TEST(AuxiliaryLosses, ReachOnlyTheirParameters) {
  for (const char* policy : {"standard", "checkpoint", "reversible"}) {
    Stack stack = cluster_stack(2, D, 0, policy, in_f32);
    for (const bool copy : {false, true}) {
      for (const Tensor& w : parameters(stack)) set_grad(w, {});
      Tensor x = numbers({2, 3, D}, "x", in_f32);
      set_requires_grad(x);
      backward(stack.forward(x, {}, {}, training).losses.at(copy ? 1 : 0).value);
      EXPECT_EQ(static_cast<bool>(grad(parameter(stack, "layers.1.clusters.copy.weight"))), copy);
      const Tensor own = grad(parameter(stack, "layers.1.clusters.linear.weight"));
      EXPECT_EQ(static_cast<bool>(own) && sum(abs(own)).item() > 0, !copy);
    }
  }
}

TEST(AuxiliaryLosses, RecomputedInAnotherNumberAreAnError) {
  struct Fickle final : Layer {
    mutable int runs = 0;
    Output forward(const Tensor& x, const LayerContext&, Pass) const override {
      Output out(mul(x, 0.5));
      if (runs++ == 0) out.losses = {{"once", mean(x)}};
      return out;
    }
    void visit(Visitor&) override {}
  };
  Tensor x = numbers({1, 2, D}, "x", in_f32);
  set_requires_grad(x);
  Reversible streams(enter_reversible(x, {}), {});
  const Output out = streams.step(std::make_shared<Fickle>(), {}, training);
  const Tensor y = mean_of(streams.finish());
  const std::string message =
      message_of<GradientError>([&] { backward(add(mean(y), out.losses.at(0).value)); });
  EXPECT_NE(message.find("1 auxiliary losses, and 0 when it was recomputed"), std::string::npos)
      << message;
}

}  // namespace
}  // namespace longspan::test
