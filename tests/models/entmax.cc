#include "ops/entmax.h"

#include <gtest/gtest.h>

#include "autograd/engine.h"
#include "tests/models/golden_file.h"

namespace longspan::test {
namespace {

// tests/oracles/entmax.py: rows of five alphas and three widths of scores.
TEST(Entmax, AgreesWithThePackage) {
  const GoldenFile golden("entmax", "entmax");
  Tensor x = golden["x"], alpha = golden["alpha"];
  set_requires_grad(x);
  set_requires_grad(alpha);
  const Tensor y = entmax(x, alpha);
  backward(y, golden["dy"]);
  EXPECT_LT(distance(y.detach(), golden["y"]), 1e-11);
  EXPECT_LT(distance(grad(x), golden["dx"]), 1e-10);
  EXPECT_LT(distance(grad(alpha), golden["dalpha"]), 1e-10);
}

}  // namespace
}  // namespace longspan::test
