#include "train/step_time.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <thread>

#include "core/error.h"

namespace longspan {
namespace {

TEST(StepTime, TimesStepsAfterOthers) {
  int calls = 0;
  const StepTimes times = time_steps({}, [&] { ++calls; }, {.warm = 2, .steps = 5});
  EXPECT_EQ(calls, 7);
  EXPECT_EQ(times.seconds.size(), 5U);
}

TEST(StepTime, IsNoShorterThanTheStep) {
  const auto step = [] { std::this_thread::sleep_for(std::chrono::milliseconds(5)); };
  const StepTimes times = time_steps({}, step, {.warm = 0, .steps = 2});
  EXPECT_GE(times.best(), 0.005);
  EXPECT_LE(times.best(), times.median());
}

TEST(StepTime, EndsAfterSomeSecondsButNotBeforeOneStep) {
  int calls = 0;
  const auto step = [&] {
    ++calls;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  };
  const StepTimes times = time_steps({}, step, {.warm = 0, .steps = 100, .most_seconds = 0.001});
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(times.seconds.size(), 1U);
}

TEST(StepTime, KnowsTheFastestAndTheMiddle) {
  EXPECT_EQ((StepTimes{{3, 1, 2}}.best()), 1);
  EXPECT_EQ((StepTimes{{3, 1, 2}}.median()), 2);
  EXPECT_EQ((StepTimes{{4, 1, 2, 3}}.median()), 2.5);
  EXPECT_TRUE(std::isnan(StepTimes{}.best()));
  EXPECT_TRUE(std::isnan(StepTimes{}.median()));
  EXPECT_THROW(time_steps({}, [] {}, {.steps = 0}), ValueError);
  EXPECT_THROW(time_steps({}, [] {}, {.warm = -1}), ValueError);
}

}  // namespace
}  // namespace longspan
