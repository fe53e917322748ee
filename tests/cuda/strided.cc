#include "core/kernels/strided.h"

#include <gtest/gtest.h>

#include "core/generator.h"
#include "cuda/grid.h"

namespace longspan {
namespace {

using kernels::Divider;
using kernels::Layouts;
using kernels::Offsets;
using kernels::SummedAxes;

TEST(Divider, DividesLikeTheOperator) {
  const auto numbers = [](uint32_t d) {
    std::vector<uint32_t> n = {0, 1, d - 1, d, d + 1, 2 * d - 1, 2 * d, 0x7ffffffeu, 0x7fffffffu};
    for (int64_t i = 0; i < 200; ++i) n.push_back(philox_word(d, i) >> 1);
    return n;
  };
  for (uint32_t d = 1; d < 3000; ++d) {
    const Divider divider(d);
    for (const uint32_t n : numbers(d)) {
      if (n >= 0x80000000u) continue;
      ASSERT_EQ(divider.quotient(n), n / d) << n << " / " << d;
    }
  }
  for (const uint32_t d : {0x10001u, 0x7fffffu, 0x40000000u, 0x40000001u, 0x7fffffffu}) {
    const Divider divider(d);
    for (const uint32_t n : numbers(d)) {
      if (n >= 0x80000000u) continue;
      ASSERT_EQ(divider.quotient(n), n / d) << n << " / " << d;
    }
  }
}

/// Computes the offset of element i by definition.
int64_t offset_of(const Shape& shape, const Strides& strides, int64_t i) {
  int64_t offset = 0;
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    offset += i % shape[axis] * strides[axis];
    i /= shape[axis];
  }
  return offset;
}

template <class Index>
void check(const Shape& shape, const Strides& a, const Strides& b) {
  const Layouts<2> layouts(shape, {&a, &b});
  ASSERT_EQ(layouts.numel, numel(shape));
  ASSERT_EQ(layouts.rows() * layouts.length(), layouts.numel);
  const Offsets<2, Index> offsets(layouts);
  for (int64_t i = 0; i < layouts.numel; ++i) {
    Index o[2];
    offsets.at(static_cast<Index>(i), o);
    int64_t start[2];
    layouts.row(i / layouts.length(), start);
    for (int k = 0; k < 2; ++k) {
      ASSERT_EQ(start[k] + i % layouts.length() * layouts.step(k), o[k]) << "element " << i;
    }
    ASSERT_EQ(o[0], offset_of(shape, a, i)) << to_string(shape) << " element " << i;
    ASSERT_EQ(o[1], offset_of(shape, b, i)) << to_string(shape) << " element " << i;
  }
}

TEST(Layouts, EveryElementIsWhereItsStridesSay) {
  const Shape shapes[] = {
      {}, {1}, {7}, {3, 5}, {1, 4, 1, 3}, {2, 3, 4, 5}, {2, 1, 3, 2, 2, 1, 2, 3}};
  for (const Shape& shape : shapes) {
    const Strides row_major = contiguous_strides(shape);
    Strides reversed = shape, repeated = row_major, spread = row_major;
    int64_t step = 1;
    for (int i = 0; i < shape.rank(); ++i) {
      reversed[i] = step;
      step *= shape[i];
      if (i % 2 == 0) repeated[i] = 0;
      spread[i] = row_major[i] * 3;
    }
    for (const Strides& other : {row_major, reversed, repeated, spread}) {
      check<int32_t>(shape, row_major, other);
      check<int64_t>(shape, other, row_major);
    }
  }
}

TEST(Layouts, NeighbouringAxesMerge) {
  const Shape shape{4, 5, 6};
  const Strides row_major = contiguous_strides(shape), gap{60, 6, 1}, swapped{6, 24, 1};
  EXPECT_TRUE((Layouts<2>(shape, {&row_major, &row_major}).contiguous()));
  EXPECT_EQ((Layouts<2>(shape, {&row_major, &gap}).rank), 2);
  EXPECT_EQ((Layouts<1>(shape, {&swapped}).rank), 3);
  EXPECT_FALSE((Layouts<1>(shape, {&swapped}).contiguous()));
  const Shape empty{3, 0, 2};
  const Strides none = contiguous_strides(empty);
  EXPECT_EQ((Layouts<1>(empty, {&none}).numel), 0);
}

TEST(SummedAxes, EveryTermBelongsToOneSum) {
  const Shape x{3, 1, 4, 5, 2};
  const Strides strides{40, 7, 2, 8, 1};  // axes 2 and 3 swapped
  for (const Shape& y : {Shape{3, 1, 4, 5, 2}, Shape{1, 1, 1, 1, 1}, Shape{3, 1, 1, 5, 1},
                         Shape{1, 1, 4, 1, 2}, Shape{3, 1, 1, 1, 2}}) {
    const SummedAxes axes(x, strides, y);
    ASSERT_EQ(axes.kept.numel, numel(y));
    ASSERT_EQ(axes.kept.numel * axes.summed.numel, numel(x));
    const Offsets<1, int64_t> kept(axes.kept), summed(axes.summed);
    Shape terms = x;
    for (int i = 0; i < x.rank(); ++i) terms[i] = x[i] / y[i];
    for (int64_t output = 0; output < axes.kept.numel; ++output) {
      for (int64_t term = 0; term < axes.summed.numel; ++term) {
        int64_t a[1], b[1];
        kept.at(output, a);
        summed.at(term, b);
        ASSERT_EQ(a[0] + b[0], offset_of(y, strides, output) + offset_of(terms, strides, term))
            << to_string(y) << " output " << output << " term " << term;
      }
    }
  }
  const Shape empty{3, 0};
  const SummedAxes none(empty, contiguous_strides(empty), Shape{3, 1});
  EXPECT_EQ(none.kept.numel, 3);
  EXPECT_EQ(none.summed.rows(), 0);
}

TEST(Layouts, KnowWhere32BitsAreTooFew) {
  const Shape shape{2, 3};
  const Strides near{3, 1}, far{int64_t{1} << 31, 1}, back{-(int64_t{1} << 31), 1};
  EXPECT_TRUE((Layouts<1>(shape, {&near}).small()));
  EXPECT_FALSE((Layouts<2>(shape, {&near, &far}).small()));
  EXPECT_FALSE((Layouts<1>(shape, {&back}).small()));
  const Shape large{int64_t{1} << 16, int64_t{1} << 16};
  const Strides repeated{0, 0};
  EXPECT_FALSE((Layouts<1>(large, {&repeated}).small()));
}

TEST(GridPlace, EveryPlaceOnceTheFirstAxisFastest) {
  int64_t index = 0;
  for (int64_t z = 0; z < 3; ++z) {
    for (int64_t y = 0; y < 5; ++y) {
      for (int64_t x = 0; x < 4; ++x, ++index) {
        const cuda::GridPlace p(index, 4, 5);
        ASSERT_TRUE(p.x == x && p.y == y && p.z == z) << index;
      }
    }
  }
  const int64_t rows = int64_t{1} << 20;  // more than a launch allows along its second axis
  const cuda::GridPlace last(3 * rows * 70'000 - 1, 3, rows);
  EXPECT_TRUE(last.x == 2 && last.y == rows - 1 && last.z == 69'999);
}

}  // namespace
}  // namespace longspan
