// Effects of HeadOptions on every registered model.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "autograd/engine.h"
#include "autograd/node.h"
#include "models/all/registry.h"
#include "models/capabilities.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/loss.h"
#include "ops/reduce.h"
#include "ops/shape.h"
#include "tests/harness/model_info.h"
#include "train/config.h"

namespace longspan::test {
namespace {

/// Holds the tiny model of an entry with some fields set, and a batch for it.
struct Subject {
  Subject(const ModelEntry& entry, const Settings& settings) {
    const auto spec = entry.make("tiny");
    set_fields(*spec, settings);
    model = spec->build(Init{.gen = Generator{1}});
    const int64_t length =
        std::min({spec->defaults().length, model->max_length(), max_input_length(*model)});
    tokens = some_tokens(2, length, model->vocab());
    source = some_tokens(2, length, model->vocab(), 3);
  }

  bool sequence() const { return model->objective() == Objective::sequence; }
  Tensor loss(bool training) const {
    const Pass pass{.training = training, .gen = Generator{2}};
    return (sequence() ? need<WritesSequences>(*model).sequence_loss({source}, tokens, tokens, pass)
                       : model->loss(tokens, tokens, empty_memory(*model, 2), pass))
        .loss;
  }

  std::unique_ptr<LanguageModel> model;
  Tensor tokens, source;
};

TEST(TokenHead, ZLossIsPaidInTrainingAlone) {
  for (const ModelEntry& entry : models()) {
    SCOPED_TRACE(entry.name);
    const Subject plain(entry, {}), taxed(entry, {{"z_loss", 0.5, "test"}});
    EXPECT_GT(taxed.loss(true).item(), plain.loss(true).item() + 0.1);
    EXPECT_EQ(taxed.loss(false).item(), plain.loss(false).item());
    EXPECT_THROW(Subject(entry, {{"z_loss", -1.0, "test"}}), ValueError);
    EXPECT_THROW(Subject(entry, {{"soft_cap", -1.0, "test"}}), ValueError);
  }
}

TEST(TokenHead, LogitsAndLossHaveTheSameCap) {
  constexpr double cap = 0.25;
  for (const ModelEntry& entry : models()) {
    SCOPED_TRACE(entry.name);
    const Subject capped(entry, {{"soft_cap", cap, "test"}});
    if (capped.sequence()) continue;
    const Tensor z = capped.model->logits(capped.tokens, Pass{});
    EXPECT_LE(max(flatten(max(abs(z.detach()), -1).values), 0).values.item(), cap);
    EXPECT_NEAR(capped.loss(false).item(), cross_entropy(z, capped.tokens).item(), 1e-5);
  }
}

TEST(TokenHead, GradientsInForwardTrainAlike) {
  for (const ModelEntry& entry : models()) {
    SCOPED_TRACE(entry.name);
    std::vector<std::vector<Tensor>> all;
    for (const char* const how : {"recompute", "in_forward", "automatic"}) {
      const Subject s(
          entry,
          {{"loss_gradient", how, "test"}, {"z_loss", 0.01, "test"}, {"soft_cap", 2.0, "test"}});
      const Tensor loss = s.loss(true);
      backward(loss);
      all.push_back({loss.detach()});
      for (const Tensor& w : parameters(*s.model)) {
        if (grad(w)) all.back().push_back(grad(w));
      }
      ASSERT_EQ(all.back().size(), all[0].size());
      EXPECT_TRUE(same_bits(all[0][0], all.back()[0]));
    }
    for (size_t i = 1; i < all[0].size(); ++i) {
      EXPECT_LT(distance(all[0][i], all[1][i]), 1e-5) << i;
      EXPECT_TRUE(same_bits(all[0][i], all[2][i])) << i;
    }
  }
}

}  // namespace
}  // namespace longspan::test
