#include "nn/nearest.h"

#include <gtest/gtest.h>

#include <vector>

namespace longspan {
namespace {

TEST(Nearest, IsTheCandidateWithTheFewestEdits) {
  const std::vector<std::string> names{"batch", "length", "model.dropout", "model.n_layer"};
  EXPECT_EQ(nearest("bacth", names), "batch");
  EXPECT_EQ(nearest("dropout", names), "model.dropout");
  EXPECT_EQ(nearest("model.layers", names), "model.n_layer");
  EXPECT_EQ(nearest("xyz", names), "");
  EXPECT_EQ(nearest("", names), "");
  EXPECT_EQ(nearest(std::string(100'000, 'a'), names), "");
}

}  // namespace
}  // namespace longspan
