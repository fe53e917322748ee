#include "core/matmul_library.h"

#include <gtest/gtest.h>

#include <string>

#include "core/kernel.h"

namespace longspan {
namespace {

TEST(MatmulLibrary, IsOwnUntilSetAndComesBack) {
  EXPECT_EQ(matmul_library(), MatmulLibrary::own);
  {
    const WithMatmulLibrary outer(MatmulLibrary::openblas);
    EXPECT_EQ(matmul_library(), MatmulLibrary::openblas);
    set_matmul_library(MatmulLibrary::own);
    EXPECT_EQ(matmul_library(), MatmulLibrary::own);
    set_matmul_library(MatmulLibrary::openblas);
  }
  EXPECT_EQ(matmul_library(), MatmulLibrary::own);
}

TEST(MatmulLibrary, SaysWhichOpenBlasThereIs) {
  register_backends();
  const std::string text(openblas_description());
  EXPECT_EQ(text.rfind("OpenBLAS ", 0), 0u) << text;
  EXPECT_NE(text.find(", "), std::string::npos) << text;
}

}  // namespace
}  // namespace longspan
