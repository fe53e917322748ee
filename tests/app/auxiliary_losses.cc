// Auxiliary losses in runs of the program: their sums, their figures and their gradients.
#include <gtest/gtest.h>

#include "app/training_steps.h"
#include "autograd/engine.h"
#include "autograd/node.h"
#include "ops/elementwise.h"
#include "ops/reduce.h"
#include "tests/app/clusters_run.h"
#include "tests/harness/model_info.h"
#include "tests/harness/scratch.h"
#include "train/log.h"

namespace longspan::test {
namespace {

TEST(AuxiliaryLossesOfARun, AreMeansOverTheBatchesOfAStep) {
  RunConfig config = clusters_config();
  config.accumulate = 3;
  const TrainingRun run(std::move(config), "");
  const auto data = open_task_data(run);
  data->prepare();
  const TensorList weights = named_parameters(*run.model);
  const auto optimizer = make_optimizer(run.config.optimizer, weights);
  std::vector<SegmentMemory> none;
  TrainingSteps steps(run, *data, *optimizer, none);
  const double factor = 4;  // a loss scale
  const StepResult done = steps.gradients(2, 6, factor);
  std::vector<Tensor> gradients;
  for (const NamedTensor& p : weights) {
    gradients.push_back(grad(p.tensor));
    set_grad(p.tensor, {});
  }

  double loss = 0, size = 0, copy = 0;
  const Pass pass{.training = true,
                  .gen = run.generator().fork("step").fork(uint64_t{2}),
                  .progress = 2.0f / 6};
  for (int64_t i = 0; i < 3; ++i) {
    const LanguageModel::Losses losses = losses_of(run, *data->batch(2 * 3 + i), {}, pass.at(i));
    ASSERT_EQ(losses.auxiliary.size(), 2u);
    backward(mul(losses.total(), factor / 3));
    loss += losses.loss.item() / 3;
    size += losses.auxiliary[0].value.item() / 3;
    copy += losses.auxiliary[1].value.item() / 3;
  }
  EXPECT_NEAR(done.loss, loss, 1e-6);
  ASSERT_EQ(done.auxiliary.size(), 2u);
  EXPECT_EQ(done.auxiliary[0].first, "commitment");
  EXPECT_NEAR(done.auxiliary[0].second, size, 1e-6);
  EXPECT_EQ(done.auxiliary[1].first, "copy");
  EXPECT_NEAR(done.auxiliary[1].second, copy, 1e-6);
  for (size_t i = 0; i < weights.size(); ++i) {
    ASSERT_TRUE(gradients[i]) << weights[i].name;
    EXPECT_LT(distance(gradients[i], grad(weights[i].tensor)), 1e-5) << weights[i].name;
  }
}

TEST(AuxiliaryLossesOfARun, AreLoggedByNameAndClippedByGroup) {
  const Folder folder;
  train_run(clusters_config(), folder.path());
  int64_t steps = 0;
  double first = 0, last = 0;
  for (const Json& row : read_rows(folder / "metrics.jsonl")) {
    if (row.find("loss") == nullptr) continue;
    ++steps;
    for (const char* key :
         {"loss_commitment", "loss_copy", "gradient_norm", "gradient_norm_copy"}) {
      ASSERT_NE(row.find(key), nullptr) << key;
      EXPECT_GT(row[key].number(), 0) << key;
    }
    EXPECT_NE(row["gradient_norm"].number(), row["gradient_norm_copy"].number());
    (steps == 1 ? first : last) = row["loss_copy"].number();
  }
  EXPECT_EQ(steps, 6);
  EXPECT_LT(last, first);
}

}  // namespace
}  // namespace longspan::test
