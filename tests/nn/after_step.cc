#include "nn/after_step.h"

#include <gtest/gtest.h>

#include <map>

#include "autograd/mode.h"
#include "ops/elementwise.h"
#include "ops/reduce.h"
#include "tests/harness/clusters.h"
#include "tests/harness/messages.h"
#include "tests/nn/small_stack.h"

namespace longspan::test {
namespace {

Tensor row(const std::vector<double>& values) {
  return Tensor::from(values, {static_cast<int64_t>(values.size())});
}

/// Notes each after_step() in a list that its modules share.
struct Notes : Module {
  struct Call {
    const Module* of;
    StepEnd end;
    std::vector<double> first;
    bool recording;
  };
  explicit Notes(std::vector<Call>& list) : calls(&list) {}
  void visit(Visitor&) override {}
  void after_step(const StepEnd& end) override {
    calls->push_back(
        {this, end,
         end.statistics.empty() ? std::vector<double>{} : end.statistics[0].to_vector<double>(),
         autograd::recording()});
  }
  std::vector<Call>* calls;
};

struct Family final : Notes {
  explicit Family(std::vector<Call>& list) : Notes(list), a(list), b(list) {}
  void visit(Visitor& v) override { v("a", a)("b", b)("a_again", a); }
  Notes a, b;
};

TEST(AfterStep, CallsEachModuleOnceWithItsOwnSums) {
  std::vector<Notes::Call> calls;
  Family model(calls);
  std::vector<Statistics> statistics;
  add_statistics(statistics, {{&model.b, {row({1, 2})}}});
  add_statistics(statistics, {{&model, {row({5})}}, {&model.b, {row({10, 20})}}});
  end_step(model, 7, Generator{3}, statistics);
  ASSERT_EQ(calls.size(), 3u);
  EXPECT_EQ(calls[0].of, &model);
  EXPECT_EQ(calls[1].of, &model.a);
  EXPECT_EQ(calls[2].of, &model.b);
  EXPECT_EQ(calls[0].first, std::vector<double>{5});
  EXPECT_TRUE(calls[1].end.statistics.empty());
  EXPECT_EQ(calls[2].first, (std::vector<double>{11, 22}));
  EXPECT_NE(calls[1].end.gen.key, calls[2].end.gen.key);
  EXPECT_NE(calls[0].end.gen.key, calls[1].end.gen.key);
  for (const Notes::Call& call : calls) {
    EXPECT_EQ(call.end.step, 7);
    EXPECT_FALSE(call.recording);
  }
}

// The modules are collected once; each update has sums and generators of its own.
TEST(AfterStep, EndsOneUpdateAfterTheOther) {
  std::vector<Notes::Call> calls;
  Family model(calls);
  EndOfStep end(model);
  EXPECT_THROW(end.run(), ValueError);
  end.prepare(4, Generator{1}, {{&model.a, {row({1})}}});
  EXPECT_TRUE(calls.empty());
  end.run();
  EXPECT_THROW(end.run(), ValueError) << "its calls have been made";
  end.prepare(5, Generator{2}, {{&model.b, {row({2})}}});
  end.prepare(6, Generator{3}, {{&model.b, {row({3})}}});  // the update between them failed
  end.run();
  ASSERT_EQ(calls.size(), 6u);
  std::vector<Notes::Call> single;
  Family other(single);
  end_step(other, 4, Generator{1}, {});
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(calls[i].end.step, 4);
    EXPECT_EQ(calls[i + 3].end.step, 6);
    EXPECT_EQ(calls[i].end.gen.key, single[i].end.gen.key) << "as without a list that stays";
    EXPECT_NE(calls[i].end.gen.key, calls[i + 3].end.gen.key);
  }
  EXPECT_EQ(calls[1].first, std::vector<double>{1});
  EXPECT_TRUE(calls[4].first.empty());
  EXPECT_EQ(calls[5].first, std::vector<double>{3});
}

TEST(AfterStep, RefusesStatisticsOfAModuleThatIsNotVisited) {
  std::vector<Notes::Call> calls;
  Family model(calls);
  Notes stranger(calls);
  EndOfStep end(model);
  const std::vector<Statistics> statistics = {{&stranger, {row({1})}}};
  const std::string message =
      message_of<ValueError>([&] { end.prepare(0, Generator{1}, statistics); });
  EXPECT_TRUE(contains(message, "a visit() leaves out a child")) << message;
  EXPECT_THROW(end.run(), ValueError) << "nothing is prepared";
  EXPECT_TRUE(calls.empty());
}

TEST(AfterStep, SumsMustStayOfOneKind) {
  std::vector<Notes::Call> calls;
  Notes module(calls);
  std::vector<Statistics> all;
  add_statistics(all, {{&module, {row({1})}}});
  EXPECT_THROW(add_statistics(all, {{&module, {row({1}), row({2})}}}), ValueError);
  EXPECT_THROW(add_statistics(all, {{&module, {row({1, 2})}}}), ShapeError);
  Tensor x = row({3});
  set_requires_grad(x);
  add_statistics(all, {{&module, {mul(x, 2.0)}}});
  EXPECT_FALSE(requires_grad(all[0].sums[0]));
  EXPECT_EQ(all[0].sums[0].item(), 7);
}

TEST(AfterStep, BuffersKeepTheirAddress) {
  Tensor buffer = row({1, 2});
  const Tensor other_handle = buffer;
  const void* const at = buffer.view().data;
  const uint64_t version = buffer.storage().version();
  write_buffer(buffer, row({3, 4}));
  EXPECT_EQ(buffer.view().data, at);
  EXPECT_GT(buffer.storage().version(), version);  // a graph that saved it would notice
  EXPECT_EQ(other_handle.to_vector<double>(), (std::vector<double>{3, 4}));
  EXPECT_THROW(write_buffer(buffer, row({1})), ShapeError);
  EXPECT_THROW(write_buffer(buffer, Tensor::zeros({2})), DTypeError);
}

/// Returns the state of a stack after a training step with this policy, and the statistics of it.
std::vector<Tensor> state_after(const MemoryPolicy& policy, const Init& init) {
  Stack stack = cluster_stack(3, D, 0.2f, policy, init);
  Tensor x = numbers({2, 13, D}, "x", init);
  set_requires_grad(x);
  Stack::Result r = stack.forward(x, {}, {}, training);
  backward(add(sum(r.y), total_loss(r.losses.at(0).value, r.losses)));
  std::vector<Tensor> all;
  EXPECT_EQ(r.statistics.size(), 3u);
  for (const Statistics& s : r.statistics) {
    for (const Tensor& t : s.sums) all.push_back(t);
  }
  end_step(stack, 0, Generator{9}, r.statistics);
  for (const NamedTensor& b : named_buffers(stack)) {
    if (b.name.ends_with("updates")) {
      EXPECT_EQ(b.tensor.item(), 1) << b.name;
    }
    all.push_back(b.tensor);
  }
  all.push_back(grad(x));
  return all;
}

TEST(AfterStep, EveryPolicyGivesTheSameStateOnce) {
  for (const Init& init : {in_f32, in_f64}) {
    const std::vector<std::pair<const char*, const char*>> pairs = {
        {"checkpoint", "standard"},
        {"checkpoint:2", "standard"},
        {"checkpoint:3:1", "standard"},
        {"checkpoint:2+rest", "standard"},
        {"lean", "standard"},
        {"selective", "standard"},
        {"reversible:exact", "reversible:exact:stored"}};
    for (const auto& [policy, kept] : pairs) {
      SCOPED_TRACE(policy);
      const std::vector<Tensor> found = state_after(policy, init),
                                expected = state_after(kept, init);
      ASSERT_EQ(found.size(), expected.size());
      for (size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(same_bits(found[i], expected[i])) << i;
    }
  }
}

TEST(AfterStep, SumsOfPiecesAddUp) {
  const std::vector<Tensor> expected = state_after("standard", in_f64);
  for (const int64_t chunks : {2, 5, 26}) {
    MemoryPolicy policy = "checkpoint";
    policy.chunks = chunks;
    const std::vector<Tensor> found = state_after(policy, in_f64);
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_LT(distance(found[i], expected[i]), 1e-12) << chunks << " " << i;
    }
  }
}

TEST(AfterStep, EvaluationCountsNothing) {
  const Stack stack = cluster_stack(2, D, 0.2f, "standard", in_f32);
  const Stack::Result r = stack.forward(numbers({2, 13, D}, "x", in_f32), {}, {}, Pass{});
  EXPECT_TRUE(r.statistics.empty());
  EXPECT_TRUE(r.losses.empty());
}

TEST(Buffers, AreCountedWithParametersAndHaveNoGradient) {
  const int64_t before = memory_tracker().live()[Category::parameter];
  const Tensor b = in_f32.at("b").make_buffer({16, 16}, Scheme::normal(1));
  EXPECT_EQ(memory_tracker().live()[Category::parameter] - before, 4 * 16 * 16);
  EXPECT_FALSE(requires_grad(b));
  EXPECT_TRUE(same_bits(b, in_f32.at("b").make({16, 16}, Scheme::normal(1))));
}

}  // namespace
}  // namespace longspan::test
