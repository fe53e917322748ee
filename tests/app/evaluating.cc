// Samples of a split that are evaluated; tests/app/small_runs.h asks every task for one.

#include "app/tasks/evaluating.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "app/make_config.h"
#include "app/runs/samples.h"
#include "tests/app/small_runs.h"
#include "tests/harness/messages.h"

namespace longspan::test {
namespace {

TEST(EvaluatedItems, AreAllUnlessThereIsASample) {
  for (const int64_t count : {0, 1, 7}) {
    const EvaluatedItems items(count, 16);
    EXPECT_EQ(items.size(), count);
    EXPECT_FALSE(items.is_sample());
    for (int64_t i = 0; i < count; ++i) EXPECT_EQ(items[i], i);
  }
}

TEST(EvaluatedItems, AreSpreadEvenly) {
  for (const int64_t count : {1, 2, 5, 64, 1001}) {
    for (const int64_t tokens : {1, 16, 17, 100, 16 * 1001, 1 << 20}) {
      const Evaluating sample(tokens);
      const EvaluatedItems items(count, 16);
      ASSERT_EQ(items.size(), std::min<int64_t>(std::max<int64_t>(tokens / 16, 1), count));
      EXPECT_EQ(items.is_sample(), items.size() < count);
      const double apart = static_cast<double>(count) / static_cast<double>(items.size());
      for (int64_t i = 0; i < items.size(); ++i) {
        // In the middle of the i-th of as many equal parts.
        const double middle = (static_cast<double>(i) + 0.5) * apart;
        EXPECT_EQ(items[i], static_cast<int64_t>(std::floor(middle)));
        EXPECT_TRUE(i == 0 || items[i] > items[i - 1]);
      }
    }
  }
  EXPECT_EQ(EvaluatedItems(5, 16).size(), 5) << "a sample ends with what asks for it";
  const Evaluating sample(1);
  EXPECT_EQ(EvaluatedItems(0, 16).size(), 0);
  EXPECT_EQ(EvaluatedItems(5, 0).size(), 1);
}

TEST(EvaluatedItems, AreThoseOfTheInnermostSample) {
  int64_t outer = 0, inner = 0;
  const Evaluating first(32, [&](int64_t, int64_t) { ++outer; });
  EXPECT_EQ(EvaluatedItems(9, 16).size(), 2);
  Evaluating::see(1, 2);
  {
    const Evaluating second(0, [&](int64_t, int64_t) { ++inner; });
    EXPECT_EQ(EvaluatedItems(9, 16).size(), 9);
    Evaluating::see(1, 2);
    const Evaluating silent(16);
    EXPECT_EQ(EvaluatedItems(9, 16).size(), 1);
    Evaluating::see(1, 2);
  }
  Evaluating::see(2, 2);
  EXPECT_EQ(outer, 2);
  EXPECT_EQ(inner, 1);
}

// A sample's score is the mean over its segments, each scored by itself.
TEST(EvaluatedItems, OfATextAreSegmentsOfIt) {
  const SmallData data;
  for (const char* model : {"transformer", "longformer"}) {
    SCOPED_TRACE(model);
    const TrainingRun run(make_config(small_run(data, model)), "");
    const auto text = open_task_data(run);
    ASSERT_EQ(text->size("valid"), 120);  // 13 segments of 9, and 3
    const auto bits = [&](int64_t tokens) {
      const Evaluating sample(tokens);
      return text->bits("valid");
    };
    EXPECT_NE(bits(9), bits(18));
    EXPECT_NE(bits(18), bits(0));
    EXPECT_EQ(bits(13 * 9), bits(0)) << "all segments, and then the rest too";
  }
}

TEST(Samples, SayWhatAModelWrites) {
  const SmallData data;
  const auto sample = [&](const char* model) {
    const TrainingRun run(make_config(small_run(data, model)), "");
    const auto opened = open_task_data(run);
    const std::string text = sample_of(run, *opened);
    EXPECT_EQ(text, sample_of(run, *opened)) << "the same draws again";
    return text;
  };
  const std::string written = sample("transformer");
  EXPECT_TRUE(contains(written, "-- read: the first 9 tokens of the validation part\n")) << written;
  EXPECT_TRUE(contains(written, "-- written: 128 tokens")) << written;
  const std::string filled = sample("longformer");
  EXPECT_TRUE(contains(filled, "[guess|right]")) << filled;
  EXPECT_TRUE(contains(filled, " of 1 right\n")) << filled;  // the fifth of nine tokens
  EXPECT_TRUE(
      contains(sample("led"), "-- read: the first document of the validation part\nit is ab"));
  EXPECT_EQ(sample("hibert"), "") << "tokens of its data are no text of the run";
}

}  // namespace
}  // namespace longspan::test
