// A moving average of weights (train/weight_average.h).
#include "train/weight_average.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"
#include "core/memory.h"
#include "ops/copy.h"

namespace longspan::test {
namespace {

class WeightAverages : public testing::Test {
 protected:
  void set(float a, float b) {
    auto* to = x.mut().as<float>();
    to[0] = a;
    to[1] = b;
  }
  Tensor x = Tensor::from(std::vector<float>{1, -2}, {2});
  Tensor y = Tensor::from(std::vector<double>{3}, {1, 1});
  TensorList parameters{{"x", x}, {"y", y}};
};

TEST_F(WeightAverages, FollowTheParameters) {
  WeightAverage average(parameters, 0.9);
  double a = 1, b = -2;
  for (int64_t t = 1; t <= 40; ++t) {
    const auto p = static_cast<float>(std::sin(static_cast<double>(t)));
    set(p, 2 * p);
    average.update(t);
    const double d =
        std::min(0.9, (1.0 + static_cast<double>(t)) / (10.0 + static_cast<double>(t)));
    a = d * a + (1 - d) * static_cast<double>(p);
    b = d * b + (1 - d) * 2 * static_cast<double>(p);
    const auto found = average.state()[0].tensor.to_vector<float>();
    EXPECT_NEAR(found[0], a, 1e-6);
    EXPECT_NEAR(found[1], b, 1e-6);
  }
  EXPECT_EQ(average.state()[0].name, "x.average");
  EXPECT_EQ(average.state()[1].tensor.to_vector<double>(), (std::vector<double>{3}));
}

TEST_F(WeightAverages, StandInForThemAndGoBack) {
  std::optional<WeightAverage> average;
  { const WeightAverage::Instead none(average); }
  average.emplace(parameters, 0.5);
  set(5, 6);
  {
    const WeightAverage::Instead instead(average);
    EXPECT_EQ(x.to_vector<float>(), (std::vector<float>{1, -2}));
  }
  EXPECT_EQ(x.to_vector<float>(), (std::vector<float>{5, 6}));
  EXPECT_EQ(average->state()[0].tensor.to_vector<float>(), (std::vector<float>{1, -2}));
  average->restart();
  EXPECT_EQ(average->state()[0].tensor.to_vector<float>(), (std::vector<float>{5, 6}));
}

TEST_F(WeightAverages, AreAStateOfTheOptimizerAndAllocateNothingMore) {
  const MemoryTracker& tracker = memory_tracker(Device{});
  const int64_t before = tracker.live()[Category::optimizer];
  WeightAverage average(parameters, 0.5);
  const Usage with = tracker.live();
  EXPECT_GT(with[Category::optimizer], before);
  average.update(1);
  for (size_t i = 0; i < with.bytes.size(); ++i) EXPECT_EQ(tracker.live().bytes[i], with.bytes[i]);
}

TEST_F(WeightAverages, Reject) {
  EXPECT_THROW(WeightAverage(parameters, 1), ValueError);
  EXPECT_THROW(WeightAverage(parameters, -0.1), ValueError);
  EXPECT_THROW(WeightAverage(parameters, std::nan("")), ValueError);
}

}  // namespace
}  // namespace longspan::test
