#include "train/schedule.h"

#include <gtest/gtest.h>

namespace longspan {
namespace {

TEST(Schedule, WarmupIsLinear) {
  const auto check = [](const auto& schedule) {
    EXPECT_DOUBLE_EQ(schedule(0), 0.5 / 4);
    EXPECT_DOUBLE_EQ(schedule(1), 0.5 * 2 / 4);
    EXPECT_DOUBLE_EQ(schedule(3), 0.5);
  };
  check(Constant{.peak = 0.5, .warmup = 4});
  check(Cosine{.peak = 0.5, .warmup = 4, .steps = 100});
  check(LinearDecay{.peak = 0.5, .warmup = 4, .steps = 100});
  check(InverseSqrt{.peak = 0.5, .warmup = 4});
  check(Stepwise{.peak = 0.5, .warmup = 4});
}

TEST(Schedule, Constant) {
  EXPECT_EQ(Constant{.peak = 2}(0), 2);
  EXPECT_EQ(Constant{.peak = 2}(1'000'000), 2);
}

TEST(Schedule, Cosine) {
  const Cosine schedule{.peak = 2, .warmup = 10, .steps = 110, .floor = 0.05};
  EXPECT_DOUBLE_EQ(schedule(10), 2);
  EXPECT_DOUBLE_EQ(schedule(60), 2 * (0.05 + 0.95 / 2));
  EXPECT_NEAR(schedule(35), 2 * (0.05 + 0.95 * (1 + std::sqrt(0.5)) / 2), 1e-15);
  EXPECT_DOUBLE_EQ(schedule(110), 0.1);
  EXPECT_DOUBLE_EQ(schedule(1000), 0.1);
  EXPECT_DOUBLE_EQ((Cosine{.peak = 1, .warmup = 5, .steps = 5, .floor = 0.5}(5)), 0.5);
}

TEST(Schedule, AtAnyShareOfTheWay) {
  const Cosine cosine{.peak = 2, .warmup = 10, .steps = 110, .floor = 0.05};
  const LinearDecay line{.peak = 2, .warmup = 10, .steps = 110, .floor = 0.05};
  EXPECT_EQ(cosine.at(60, 0.5), cosine(60));
  EXPECT_EQ(cosine.at(7, 0), cosine(7));  // the warm-up counts steps
  EXPECT_DOUBLE_EQ(cosine.at(60, 1), 0.1);
  EXPECT_EQ(line.at(60, 0.5), line(60));
  EXPECT_DOUBLE_EQ(line.at(5000, 0.25), 2 * (1 - 0.95 * 0.25));
}

TEST(Schedule, Linear) {
  const LinearDecay schedule{.peak = 1, .warmup = 0, .steps = 10, .floor = 0.2};
  EXPECT_DOUBLE_EQ(schedule(0), 1);
  EXPECT_DOUBLE_EQ(schedule(5), 0.6);
  EXPECT_DOUBLE_EQ(schedule(10), 0.2);
  EXPECT_DOUBLE_EQ(schedule(99), 0.2);
}

TEST(Schedule, InverseSqrt) {
  const InverseSqrt schedule{.peak = 1, .warmup = 100};
  EXPECT_DOUBLE_EQ(schedule(99), 1);
  EXPECT_DOUBLE_EQ(schedule(399), 0.5);
  EXPECT_DOUBLE_EQ(InverseSqrt{.peak = 1}(0), 1);
  EXPECT_DOUBLE_EQ(InverseSqrt{.peak = 1}(3), 0.5);
}

TEST(Schedule, Noam) {
  // lr = D^-0.5 min(n^-0.5, n warmup^-1.5)
  const Noam schedule{.d_model = 512, .warmup = 4000};
  EXPECT_NEAR(schedule(0), std::pow(512, -0.5) * std::pow(4000, -1.5), 1e-18);
  EXPECT_NEAR(schedule(3999), std::pow(512, -0.5) * std::pow(4000, -0.5), 1e-15);
  EXPECT_NEAR(schedule(15'999), std::pow(512, -0.5) / std::sqrt(16'000), 1e-15);
  EXPECT_LT(schedule(3998), schedule(3999));
  EXPECT_GT(schedule(3999), schedule(4000));
}

TEST(Schedule, Stepwise) {
  const Stepwise schedule{.peak = 8, .warmup = 2, .every = 3, .factor = 0.5};
  EXPECT_DOUBLE_EQ(schedule(2), 8);
  EXPECT_DOUBLE_EQ(schedule(4), 8);
  EXPECT_DOUBLE_EQ(schedule(5), 4);
  EXPECT_DOUBLE_EQ(schedule(8), 2);
}

}  // namespace
}  // namespace longspan
