#include "core/precision.h"

#include <gtest/gtest.h>

namespace longspan {
namespace {

TEST(MatmulPrecision, IsF32UntilSetAndComesBack) {
  EXPECT_EQ(matmul_precision(), MatmulPrecision::f32);
  {
    const WithMatmulPrecision outer(MatmulPrecision::bf16);
    EXPECT_EQ(matmul_precision(), MatmulPrecision::bf16);
    {
      const WithMatmulPrecision inner(MatmulPrecision::tf32);
      EXPECT_EQ(matmul_precision(), MatmulPrecision::tf32);
    }
    EXPECT_EQ(matmul_precision(), MatmulPrecision::bf16);
    set_matmul_precision(MatmulPrecision::tf32);
  }
  EXPECT_EQ(matmul_precision(), MatmulPrecision::f32);
}

}  // namespace
}  // namespace longspan
