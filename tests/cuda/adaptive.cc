// Adaptive embeddings and softmaxes on a device, whose ids the host does not read.
#include "nn/adaptive.h"

#include <gtest/gtest.h>

#include "autograd/engine.h"
#include "autograd/node.h"
#include "core/backends.h"
#include "core/deferred.h"
#include "models/transformer/transformer.h"
#include "nn/objective.h"
#include "ops/copy.h"
#include "tests/harness/device.h"
#include "tests/harness/messages.h"
#include "tests/harness/model_info.h"
#include "train/optimizer.h"
#include "train/step_graph.h"

namespace longspan {
namespace {

using test::cuda;

class GraphsOfAdaptive : public testing::Test {
 protected:
  void SetUp() override {
    if (!is_available(cuda)) GTEST_SKIP() << "skipped: no device";
  }
};

TransformerConfig adaptive_decoder(int64_t div_value) {
  TransformerConfig c;
  c.vocab = 40;
  c.n_layer = 1;
  c.n_head = 2;
  c.d_model = 16;
  c.d_ff = 24;
  c.cutoffs = {8, 20};
  c.div_value = div_value;
  c.tie_embedding = c.head_bias = true;
  c.init_std = 0.2;
  return c;
}

using Ids = std::vector<int64_t>;

/// Tokens and targets of each step; a cluster is empty in the second one.
const std::vector<std::pair<Ids, Ids>>& batches() {
  static const std::vector<std::pair<Ids, Ids>> all{
      {{0, 39, 8, 19, 20, 7}, {39, 8, ignored_target, 20, 7, 19}},
      {{1, 2, 30, 4, 5, 6}, {2, 30, 4, 5, 6, ignored_target}},
      {{20, 9, 0, 1, 38, 11}, {9, 0, 1, 38, 11, 21}},
      {{7, 7, 7, 7, 7, 7}, {8, 8, 8, 8, 8, 8}},
      {{12, 3, 25, 8, 1, 33}, {3, 25, 8, 1, 33, 12}}};
  return all;
}

struct Trained {
  std::vector<Tensor> losses, parameters;
  std::string refusal;
  bool replays = false;
};

Trained trained(const TransformerConfig& c, Device device, bool replay) {
  Transformer model(c, Init{Generator{1}, device});
  Adam adam(named_parameters(model));
  std::optional<StepGraph> graph;
  if (replay) graph.emplace(device, adam);
  const StepGraph::Body body = [&](const std::vector<Tensor>& in, Generator gen) {
    const Tensor loss = model.loss(in[0], in[1], {}, {.training = true, .gen = gen}).loss;
    backward(loss);
    return std::vector<Tensor>{loss.detach()};
  };
  Trained t;
  for (const auto& [ids, next] : batches()) {
    const std::vector<Tensor> in{to_device(Tensor::from(ids, {2, 3}), device),
                                 to_device(Tensor::from(next, {2, 3}), device)};
    const Tensor loss = graph ? graph->gradients(in, Generator{2}, body)[0] : body(in, {})[0];
    t.losses.push_back(clone(to_device(loss, {})));
    graph ? graph->update(1e-2) : adam.step(1e-2);
  }
  if (graph) {
    t.refusal = graph->refusal();
    t.replays = graph->replays();
  }
  for (const Tensor& p : parameters(model)) t.parameters.push_back(to_device(p.detach(), {}));
  return t;
}

TEST_F(GraphsOfAdaptive, StepsAreThoseOfTheHostAndAreReplayed) {
  for (const int64_t div_value : {1, 2}) {
    SCOPED_TRACE(div_value);
    const TransformerConfig c = adaptive_decoder(div_value);
    const Trained host = trained(c, {}, false), there = trained(c, cuda, false),
                  again = trained(c, cuda, true);
    EXPECT_EQ(again.refusal, "");
    EXPECT_TRUE(again.replays);
    for (size_t i = 0; i < host.losses.size(); ++i) {
      EXPECT_LT(test::distance(host.losses[i], there.losses[i]), 2e-5) << i;
      EXPECT_TRUE(test::same_bits(there.losses[i], again.losses[i])) << i;
    }
    for (size_t i = 0; i < there.parameters.size(); ++i) {
      EXPECT_TRUE(test::same_bits(there.parameters[i], again.parameters[i])) << i;
    }
  }
}

TEST_F(GraphsOfAdaptive, LossesAndIdsAreThoseOfTheHost) {
  const Init init{.gen = Generator{3}, .device = {}, .dtype = DType::f64};
  Init there_init = init;
  there_init.device = cuda;
  for (const int64_t div_value : {1, 2}) {
    AdaptiveOptions o{.vocab = 40, .d_model = 16, .cutoffs = {8, 20}, .div_value = div_value};
    AdaptiveEmbedding in(o, init), in_there(o, there_init);
    AdaptiveSoftmax out(o, {.cluster_order = ClusterOrder::reversed}, init),
        out_there(o, {.cluster_order = ClusterOrder::reversed}, there_init);
    for (const auto& [ids, next] : batches()) {
      const Tensor x = Tensor::from(ids, {2, 3}), y = Tensor::from(next, {2, 3});
      const Tensor h = in.forward(x), h_there = in_there.forward(to_device(x, cuda));
      EXPECT_LT(test::distance(h, to_device(h_there, {})), 1e-14);
      for (const Reduction r : {Reduction::none, Reduction::mean, Reduction::sum}) {
        const Tensor loss = out.loss(h, y, r);
        const Tensor loss_there = out_there.loss(h_there, to_device(y, cuda), r);
        EXPECT_LT(test::distance(loss, to_device(loss_there, {})), 1e-13);
      }
      EXPECT_LT(test::distance(out.log_probabilities(h),
                               to_device(out_there.log_probabilities(h_there), {})),
                1e-13);
    }
    const Tensor bad = to_device(Tensor::from(Ids{3, 40}, {2}), cuda);
    EXPECT_TRUE(test::contains(test::message_of<ValueError>([&] {
                                 in_there.forward(bad);
                                 deferred::raise_pending(cuda);
                               }),
                               "ids holds 40 at [1]"));
    const Tensor h = zeros({2, 16}, DType::f64, cuda);
    EXPECT_TRUE(test::contains(test::message_of<ValueError>([&] {
                                 out_there.loss(h, bad);
                                 deferred::raise_pending(cuda);
                               }),
                               "target 40 at position 1"));
  }
}

}  // namespace
}  // namespace longspan
