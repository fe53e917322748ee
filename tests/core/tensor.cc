#include "core/tensor.h"

#include <gtest/gtest.h>

namespace longspan {
namespace {

TEST(Tensor, HoldsValues) {
  const Tensor x = Tensor::from(std::vector<float>{1, 2, 3, 4, 5, 6}, {2, 3});
  EXPECT_EQ(x.dim(-1), 3);
  EXPECT_EQ(x.alias({3, 2}, {1, 3}, 0).to_vector<float>(), (std::vector<float>{1, 4, 2, 5, 3, 6}));
  EXPECT_THROW(x.to_vector<double>(), DTypeError);
  EXPECT_THROW(x.dim(2), ShapeError);
}

}  // namespace
}  // namespace longspan
