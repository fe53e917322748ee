#include "nn/axial.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/shape.h"
#include "tests/harness/model_info.h"

namespace longspan::test {
namespace {

const Init axial_init{.gen = Generator{5}, .dtype = DType::f64};

/// Returns the rows of the whole table, written out by definition.
std::vector<double> materialised(const AxialPositions& grid) {
  std::vector<std::vector<double>> tables;
  for (const Embedding& axis : grid.axes) tables.push_back(axis.weight.to_vector<double>());
  std::vector<double> all;
  for (int64_t i = 0; i < grid.size(); ++i) {
    int64_t rest = i, after = grid.size();
    for (size_t k = 0; k < tables.size(); ++k) {
      const int64_t width = grid.axes[k].weight.dim(1);
      after /= grid.axes[k].weight.dim(0);
      const int64_t row = rest / after;
      rest %= after;
      for (int64_t c = 0; c < width; ++c) {
        all.push_back(tables[k][static_cast<size_t>(row * width + c)]);
      }
    }
  }
  return all;
}

using Axes = std::vector<int64_t>;

TEST(Axial, GridsGrow) {
  EXPECT_EQ(extended_axial_shape({4, 6}, 24), (Axes{4, 6}));  // already has 24 positions
  EXPECT_EQ(extended_axial_shape({128}, 129), (Axes{129}));
  EXPECT_EQ(extended_axial_shape({64, 64}, 65'536), default_axial_shape(65'536));
  EXPECT_EQ(extended_axial_shape({32, 32, 3}, 3'072), (Axes{32, 32, 3}));
  EXPECT_EQ(longer_axial_shape({32, 32, 3}, 3'073), (Axes{33, 32, 3}));
  EXPECT_EQ(longer_axial_shape({8}, 9), (Axes{9}));
  EXPECT_EQ(longer_axial_shape({8, 2}, 9), (Axes{8, 2}));
  try {
    extended_axial_shape({32, 32, 3}, 4'000);
    FAIL();
  } catch (const ValueError& e) {  // suggests a shape that works
    EXPECT_NE(std::string(e.what()).find("such as 42,32,3, with n_max = 4000"), std::string::npos)
        << e.what();
  }
}

TEST(Reformer, AxialEqualsAMaterialisedTable) {
  const std::vector<std::vector<int64_t>> shapes = {{4, 6}, {1, 5}, {3, 2, 4}, {7}};
  for (const std::vector<int64_t>& shape : shapes) {
    std::vector<int64_t> widths;
    int64_t numbers = 0, width = 0;
    for (size_t k = 0; k < shape.size(); ++k) {
      widths.push_back(static_cast<int64_t>(3 + 2 * k));
      numbers += shape[k] * widths[k];
      width += widths[k];
    }
    AxialPositions grid(shape, widths, axial_init, Scheme::normal(1));
    EXPECT_EQ(parameter_count(grid), numbers);
    const int64_t places = grid.size();
    const Tensor table = Tensor::from(materialised(grid), {places, width});
    EXPECT_TRUE(same_bits(grid.forward(0, places), table));
    // A shorter length gives the first rows of the table, and a range gives that range of rows.
    EXPECT_TRUE(same_bits(grid.forward(0, places - 1), contiguous(slice(table, 0, 0, places - 1))));
    EXPECT_TRUE(same_bits(grid.forward(1, 2), contiguous(narrow(table, 0, 1, 2))));
    EXPECT_THROW(grid.forward(2, places), ValueError);
  }
}

TEST(Reformer, AxialGradients) {
  AxialPositions grid({3, 2, 4}, {2, 3, 1}, axial_init, Scheme::normal(1));
  const Tensor weights = normal({9, 6}, Generator{8}, 0, 1, DType::f64);
  const Pass pass{.training = true, .gen = Generator{3}};
  for (const float dropout : {0.0f, 0.4f}) {
    // Nine of 24 positions, starting at position 5, so that rows repeat and some are never read.
    const auto loss = [&] { return sum(mul(square(grid.forward(5, 9, dropout, pass)), weights)); };
    EXPECT_EQ(check_parameter_gradients(grid, loss, 24), "");
  }
}

TEST(AxialPositions, DefaultShapesHoldEveryPosition) {
  using Sizes = std::vector<int64_t>;
  EXPECT_EQ(default_axial_shape(65536), (Sizes{256, 256}));
  EXPECT_EQ(default_axial_shape(128), (Sizes{16, 8}));
  EXPECT_EQ(default_axial_shape(12288), (Sizes{128, 96}));
  EXPECT_EQ(default_axial_shape(1), (Sizes{1, 1}));
  for (int64_t length = 1; length < 300; ++length) {
    const Sizes shape = default_axial_shape(length);
    EXPECT_GE(shape[0] * shape[1], length);
    EXPECT_LT(shape[0] * (shape[1] - 1), length);
  }
  EXPECT_THROW(default_axial_shape(0), ValueError);
}

TEST(AxialPositions, DropoutDropsColumnsForAllPositions) {
  AxialPositions grid({4, 4}, {32, 32}, axial_init, Scheme::normal(1));
  const Pass pass{.training = true, .gen = Generator{3}};
  const Tensor whole = grid.forward(0, 16);
  const std::vector<double> shares =
      div(grid.forward(0, 16, 0.25f, pass), whole).to_vector<double>();
  int64_t dropped = 0;
  for (size_t c = 0; c < 64; ++c) {
    for (size_t i = 1; i < 16; ++i) EXPECT_NEAR(shares[i * 64 + c], shares[c], 1e-12);
    dropped += shares[c] == 0 ? 1 : 0;
    EXPECT_LE(std::abs(shares[c] * (shares[c] - 1 / 0.75)), 1e-12);
  }
  EXPECT_GT(dropped, 4);
  EXPECT_LT(dropped, 32);
  // The result depends neither on the requested rows nor on the start of a chunk.
  Pass later = pass;
  later.row = 5;
  EXPECT_TRUE(same_bits(contiguous(narrow(grid.forward(0, 16, 0.25f, pass), 0, 5, 3)),
                        grid.forward(5, 3, 0.25f, later)));
  EXPECT_TRUE(same_bits(grid.forward(0, 16, 0.25f, Pass{}), whole));
}

TEST(AxialPositions, RefusesWhatIsNoGrid) {
  const Scheme scheme = Scheme::normal(1);
  EXPECT_THROW(AxialPositions({}, {}, axial_init, scheme), ValueError);
  EXPECT_THROW(AxialPositions({4}, {2, 2}, axial_init, scheme), ValueError);
  EXPECT_THROW(AxialPositions({4, 0}, {2, 2}, axial_init, scheme), ValueError);
  EXPECT_THROW(AxialPositions({4, 4}, {2, 0}, axial_init, scheme), ValueError);
}

}  // namespace
}  // namespace longspan::test
