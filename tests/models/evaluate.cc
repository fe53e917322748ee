// Scores of models, and streams that they read in training.
#include "models/evaluate.h"

#include <gtest/gtest.h>

#include <cmath>

#include "data/memory_tasks.h"
#include "data/streams.h"
#include "models/transformer_xl/transformer_xl.h"
#include "ops/copy.h"
#include "tests/harness/model_info.h"

namespace longspan::test {
namespace {

TEST(Answers, CountWhereTheLargestLogitIsTheTarget) {
  const Tensor logits = Tensor::from(std::vector<float>{1, 2, 0, 5, 4, 3, 0, 0, 1}, {1, 3, 3});
  const auto none = static_cast<int32_t>(ignored_target);
  const Answers some = count_right(logits, Tensor::from(std::vector<int32_t>{1, 1, none}, {1, 3}));
  EXPECT_EQ(some.counted, 2);
  EXPECT_EQ(some.right, 1);
  EXPECT_EQ(some.percent(), 50);
  Answers all = count_right(logits, Tensor::from(std::vector<int32_t>{1, 0, 2}, {1, 3}));
  all += some;
  EXPECT_EQ(all.percent(), 80);
  EXPECT_TRUE(std::isnan(Answers{}.percent()));
  EXPECT_THROW(count_right(logits, Tensor::from(std::vector<int32_t>{1, 1}, {1, 2})), ShapeError);
}

// Segments follow one another, and the next sample does not see the last.
TEST(ContinueStreams, ForgetsWhereSamplesBegin) {
  const TransformerXL model(transformer_xl_preset("tiny"), Init{.gen = Generator{1}});
  const PeriodTask task{.length = 12, .period = 4};
  const SampleStreams streams(task, "train", 2, 6);
  const Pass pass{.training = true, .gen = Generator{2}};
  SegmentMemory memory = model.empty_memory(2);
  for (int64_t segment = 0; segment < 4; ++segment) {
    const StreamBatch batch = streams.at(segment, 0, 2);
    const auto loss_after = [&](const SegmentMemory& before) {
      return model.loss(batch.tokens, batch.targets, before, pass).loss.item();
    };
    const double after = loss_after(memory), alone = loss_after(model.empty_memory(2));
    EXPECT_EQ(after == alone, segment == 0) << segment;
    const double loss = continue_streams(model, batch, memory, pass).loss.item();
    EXPECT_EQ(loss, segment % 2 == 0 ? alone : after) << segment;
  }
  EXPECT_EQ(memory.position, 24);
}

}  // namespace
}  // namespace longspan::test
