#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "autograd/engine.h"
#include "autograd/node.h"
#include "core/memory.h"
#include "ops/copy.h"
#include "ops/shape.h"

namespace longspan {
namespace {

Tensor leaf(const Shape& shape) {
  Tensor x = clone(reshape(arange(0, static_cast<double>(numel(shape)), 1, DType::f64), shape));
  return set_requires_grad(x);
}

TEST(Views, ShareStorage) {
  const Tensor x = reshape(iota(24), {2, 3, 4});
  EXPECT_TRUE(reshape(x, {6, -1}).shares_storage(x));
  EXPECT_TRUE(transpose(x, 0, 2).shares_storage(x));
  EXPECT_TRUE(slice(x, 1, -2).shares_storage(x));
  EXPECT_TRUE(expand(unsqueeze(x, 0), {5, -1, -1, -1}).shares_storage(x));
  // Axes that are contiguous in memory may be merged and split, even if other axes are permuted.
  const Tensor t = permute(x, {2, 0, 1});
  EXPECT_TRUE(reshape(t, {4, 6}).shares_storage(x));
  EXPECT_TRUE(reshape(t, {2, 2, 6}).shares_storage(x));
  EXPECT_FALSE(reshape(t, {8, 3}).shares_storage(x));
  EXPECT_EQ(reshape(t, {8, 3}).to_vector<int64_t>(), t.to_vector<int64_t>());
  EXPECT_EQ(reshape(t, {4, 6}).to_vector<int64_t>(), t.to_vector<int64_t>());
  EXPECT_EQ(reshape(slice(x, 2, 0, 4, 2), {12}).to_vector<int64_t>(),
            slice(x, 2, 0, 4, 2).to_vector<int64_t>());
}

TEST(Views, SizesBeyondReasonAreRefused) {
  const int64_t huge = int64_t{1} << 40, most = std::numeric_limits<int64_t>::max();
  const Tensor x = zeros({1}), none = zeros({0, 1});
  EXPECT_THROW(expand(x, {huge, huge}), ShapeError);
  EXPECT_THROW(expand(none, {huge, huge, 0, 1}), ShapeError);
  EXPECT_THROW(reshape(none, {huge, huge, 0}), ShapeError);
  EXPECT_THROW(reshape(x, {huge, huge}), ShapeError);
  EXPECT_THROW(unflatten(none, 0, huge, huge), ShapeError);
  EXPECT_THROW(split(x, {most, most, 3}, 0), ShapeError);
  EXPECT_THROW(pad(x, 0, most, most), ShapeError);
  EXPECT_THROW(repeat(x, 0, most), ShapeError);
  EXPECT_THROW(arange(0, 1e30), ValueError);
  EXPECT_EQ(chunk(iota(5), most, 0).size(), 5u);
}

TEST(Views, EveryReshapeOfEveryPermutation) {
  const Tensor x = reshape(iota(24), {2, 1, 3, 4});
  const std::vector<Shape> shapes = {{24},         {1, 24},      {4, 6},          {6, 4},
                                     {2, 2, 6},    {3, 8},       {8, 3},          {12, 1, 2},
                                     {2, 3, 4, 1}, {2, 2, 2, 3}, {1, 3, 2, 2, 2}, {4, 3, 2}};
  std::vector<int> order = {0, 1, 2, 3};
  do {
    const Tensor p = permute(x, order);
    for (const Shape& s : shapes) {
      EXPECT_EQ(reshape(p, s).to_vector<int64_t>(), p.to_vector<int64_t>()) << to_string(s);
    }
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(Views, ManySlicesShareOneGradient) {
  const int64_t n = 2000, width = 64;
  Tensor x = leaf({n, width});
  const Tensor y = clone(x);  // not a leaf
  std::vector<Tensor> rows;
  for (int64_t i = 0; i < n; ++i) rows.push_back(select(y, 0, i));
  const Tensor z = stack(rows);
  const int64_t before = memory_tracker().allocations();
  memory_tracker().reset_peak();
  const int64_t live = memory_tracker().live().total();
  backward(z, z.detach());
  EXPECT_EQ(grad(x).to_vector<double>(), x.to_vector<double>());
  // One gradient for all slices and one for the leaf; one gradient per slice would be 2,000.
  EXPECT_LT(memory_tracker().allocations() - before, 10);
  EXPECT_LE(memory_tracker().peak().total() - live, 3 * x.nbytes());
}

TEST(Views, OverlappingSlicesAdd) {
  Tensor x = leaf({6});
  const Tensor a = slice(x, 0, 0, 4), b = slice(x, 0, 2, 6), c = slice(x, 0, 0, 6, 3);
  backward(std::vector<Tensor>{a, b, c},
           std::vector<Tensor>{full_like(a, 1), full_like(b, 10), full_like(c, 100)});
  EXPECT_EQ(grad(x).to_vector<double>(), (std::vector<double>{101, 1, 11, 111, 10, 10}));
}

TEST(Views, PartOfASplit) {
  Tensor x = leaf({2, 5});
  const auto parts = split(x, {2, 0, 3}, 1);
  backward(parts[2], ones_like(parts[2]));
  EXPECT_EQ(grad(x).to_vector<double>(), (std::vector<double>{0, 0, 1, 1, 1, 0, 0, 1, 1, 1}));
}

}  // namespace
}  // namespace longspan
