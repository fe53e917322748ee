// Kernels below the ops: fill, accumulate, search for NaN and Inf, copy of bytes.
#include <gtest/gtest.h>

#include <limits>

#include "core/kernels/copy.h"
#include "core/kernels/gradient.h"
#include "core/memory.h"
#include "core/tensor.h"

namespace longspan {
namespace {

TEST(Plumbing, FillAddAndLook) {
  Tensor sum = Tensor::empty({3, 2});
  kernels::fill(sum.device(), sum.mut(), 2.5);
  const Tensor x = Tensor::from(std::vector<float>{1, 2, 3, 4, 5, 6}, {2, 3});
  kernels::accumulate(sum.device(), x.alias({3, 2}, {1, 3}, 0).view(), sum.mut());
  EXPECT_EQ(sum.to_vector<float>(), (std::vector<float>{3.5f, 6.5f, 4.5f, 7.5f, 5.5f, 8.5f}));

  bool finite = false;
  kernels::all_finite(sum.device(), sum.view(), &finite);
  EXPECT_TRUE(finite);
  kernels::fill(sum.device(), sum.mut(), std::numeric_limits<double>::infinity());
  kernels::all_finite(sum.device(), sum.view(), &finite);
  EXPECT_FALSE(finite);
}

TEST(Plumbing, CopiesBytes) {
  const Tensor x = Tensor::from(std::vector<int32_t>{4, 5, 6}, {3});
  Tensor y = Tensor::zeros({3}, DType::i32);
  copy_within(y.device(), y.mut().data, x.view().data, x.nbytes());
  EXPECT_EQ(y.to_vector<int32_t>(), x.to_vector<int32_t>());
}

}  // namespace
}  // namespace longspan
