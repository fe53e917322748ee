#include "ops/matmul.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <tuple>

#include "autograd/engine.h"
#include "autograd/record.h"
#include "core/kernels/matmul.h"
#include "core/parallel.h"
#include "cpu/matmul/gemm.h"
#include "ops/copy.h"
#include "ops/shape.h"
#include "tests/harness/op_info.h"
#include "tests/ops/laid.h"
#include "tests/ops/linear_reference.h"

namespace longspan::test {
namespace {

Array leading_expanded(const Array& x, const Shape& batch) {
  Shape shape = batch;
  shape.push_back(x.dim(-2));
  shape.push_back(x.dim(-1));
  return naive::expand(x, shape);
}

Shape leading(const Array& x) {
  return Shape(std::span(x.shape.begin(), static_cast<size_t>(x.shape.rank() - 2)));
}

Array broadcast_matmul(const Array& a, const Array& b) {
  const Shape batch = naive::broadcast(leading(a), leading(b));
  return naive::matmul(leading_expanded(a, batch), leading_expanded(b, batch));
}

/// Joins [B, M, n] and [B, L, n] along axis 1; the first one may be missing.
Array joined(const Array& before, const Array& x) {
  if (!before) return x;
  Array y({x.dim(0), before.dim(1) + x.dim(1), x.dim(2)});
  int64_t at = 0;
  for (int64_t b = 0; b < x.dim(0); ++b) {
    for (const Array* part : {&before, &x}) {
      const int64_t n = part->dim(1) * part->dim(2);
      for (int64_t i = 0; i < n; ++i) y[at++] = (*part)[b * n + i];
    }
  }
  return y;
}

std::vector<Sample> matmul_samples() {
  std::vector<Sample> samples = {
      {"one", {randn({1, 1}), randn({1, 1})}},
      {"odd", {randn({3, 5}), randn({5, 7})}},
      {"row", {randn({1, 17}), randn({17, 33})}},
      {"column", {randn({33, 17}), randn({17, 1})}},
      {"outer", {randn({7, 1}), randn({1, 17})}},
      {"no rows", {randn({0, 4}), randn({4, 3})}},
      {"no columns", {randn({2, 4}), randn({4, 0})}},
      {"empty sum", {randn({3, 0}), randn({0, 2})}},
      {"batch", {randn({3, 4, 5}), randn({3, 5, 2})}},
      {"no batch", {randn({0, 4, 5}), randn({0, 5, 2})}},
      {"deep batch", {randn({2, 3, 2, 5}), randn({2, 3, 5, 4})}},
      {"b repeated", {randn({3, 2, 5}), randn({5, 4})}},
      {"a repeated", {randn({2, 5}), randn({2, 3, 5, 4})}},
      {"both repeated", {randn({2, 1, 3, 5}), randn({1, 3, 5, 2})}},
      {"huge", {1e4 * randn({4, 6}), 1e-3 * randn({6, 3})}},
  };
  for (const int64_t m : {2, 13, 17}) {
    for (const int64_t n : {2, 17, 34}) {
      for (const int64_t k : {2, 7}) {
        samples.push_back({fmt::format("{} {} {}", m, n, k), {randn({m, k}), randn({k, n})}});
      }
    }
  }
  return samples;
}

const Registered matmul_info = OpInfo{
    .name = "matmul",
    .run = [](Inputs in) { return matmul(in[0], in[1]); },
    .reference = [](Arrays in) { return broadcast_matmul(in[0], in[1]); },
    .samples = matmul_samples(),
    .large = {{"large", {randn({65, 129}), randn({129, 67})}},
              {"deep sum", {randn({33, 700}), randn({700, 40})}},
              {"tall", {randn({300, 64}), randn({64, 64})}},
              {"batch", {randn({6, 33, 65}), randn({6, 65, 31})}},
              {"b repeated", {randn({5, 65, 33}), randn({33, 65})}},
              {"long sum", {randn({24, 5000}), randn({5000, 40})}}},
    .rejects = {rejects<ShapeError>("vector", {randn({3}), randn({3, 2})}, "rank"),
                rejects<ShapeError>("vector b", {randn({2, 3}), randn({3})}, "rank"),
                rejects<ShapeError>("inner", {randn({2, 3}), randn({4, 5})},
                                    "matmul: inner dimensions differ: 3 and 4"),
                rejects<ShapeError>("batch", {randn({2, 2, 3}), randn({3, 3, 5})},
                                    "leading axes [2] and [3] do not broadcast"),
                rejects<DTypeError>("integers", {iota({2, 3}), iota({3, 2})}, "floating"),
                rejects<DTypeError>("mixed", {as(DType::f64, randn({2, 3})), randn({3, 2})},
                                    "f64")},
    .saved_bytes =
        [](Inputs in) {
          return std::vector<int64_t>{in[0].nbytes(), in[1].nbytes()};
        },
    .tolerance = 2,
    .reason = "sums of up to 5,000 terms in f32, whose roundings add up",
};

// Only rows of a count as rows in this entry. In matmul_info, entries of a batch would be rows too.
const Registered rows_info = OpInfo{
    .name = "matmul by rows",
    .run = [](Inputs in) { return matmul(in[0], in[1]); },
    .reference = [](Arrays in) { return naive::matmul(in[0], in[1]); },
    .samples = {{"odd", {randn({33, 65}), randn({65, 7})}}},
    .large = {{"wide", {randn({311, 300}), randn({300, 130})}},
              {"narrow", {randn({700, 17}), randn({17, 65})}},
              {"square", {randn({64, 64}), randn({64, 64})}}},
    .saved_bytes =
        [](Inputs in) {
          return std::vector<int64_t>{in[0].nbytes(), in[1].nbytes()};
        },
    .row_inputs = {0},
    .tolerance = 2,
    .reason = "sums of up to 300 terms in f32, whose roundings add up",
};

const Registered linear_info = OpInfo{
    .name = "linear",
    .run = [](Inputs in) { return linear(in[0], in[1], in[2]); },
    .reference = [](Arrays in) { return linear_reference(in[0], in[1], in[2]); },
    .samples = {{"one", {randn({1, 1}), randn({1, 1}), randn({1})}},
                {"odd", {randn({7, 17}), randn({5, 17}), randn({5})}},
                {"no bias", {randn({7, 3}), randn({33, 3}), none()}},
                {"vector", {randn({17}), randn({3, 17}), randn({3})}},
                {"deep", {randn({2, 3, 2, 5}), randn({4, 5}), randn({4})}},
                {"tokens", {randn({2, 7, 6}), randn({34, 6}), randn({34})}},
                {"no rows", {randn({0, 5}), randn({4, 5}), randn({4})}},
                {"no tokens", {randn({2, 0, 5}), randn({4, 5}), randn({4})}},
                {"no features", {randn({3, 0}), randn({4, 0}), randn({4})}},
                {"no outputs", {randn({3, 5}), randn({0, 5}), randn({0})}}},
    .large = {{"large", {randn({257, 65}), randn({33, 65}), randn({33})}},
              {"wide", {randn({100, 300}), randn({257, 300}), randn({257})}},
              {"tokens", {randn({9, 67, 48}), randn({64, 48}), randn({64})}},
              {"many rows", {randn({3000, 24}), randn({40, 24}), none()}}},
    .rejects = {rejects<ShapeError>("features", {randn({2, 3}), randn({5, 4}), none()},
                                    "linear: x has 3 features, weight takes 4"),
                rejects<ShapeError>("weight", {randn({2, 3}), randn({3}), none()}, "weight"),
                rejects<ShapeError>("bias", {randn({2, 3}), randn({5, 3}), randn({3})}, "bias"),
                rejects<ShapeError>("scalar", {scalar(1), randn({5, 3}), none()}, "rank"),
                rejects<DTypeError>("integers", {iota({2, 3}), randn({5, 3}), none()}, "floating"),
                rejects<DTypeError>("mixed", {as(DType::f64, randn({2, 3})), randn({5, 3}), none()},
                                    "f64"),
                rejects<DTypeError>("mixed bias",
                                    {randn({2, 3}), randn({5, 3}), as(DType::f64, randn({5}))},
                                    "f64")},
    .saved_bytes =
        [](Inputs in) {
          return std::vector<int64_t>{in[0].nbytes(), in[1].nbytes()};
        },
    .row_inputs = {0},
    .tolerance = 2,
    .reason = "sums of up to 300 terms in f32, whose roundings add up",
};

const Registered linear_onto_info = OpInfo{
    .name = "linear onto",
    .run = [](Inputs in) { return linear(in[0], in[1], in[2], in[3]); },
    .reference = [](Arrays in) -> Results<Array> {
      return sum_reference(linear_reference(in[0], in[1], in[2]), in[3]);
    },
    .samples = {{"one", {randn({1, 1}), randn({1, 1}), randn({1}), randn({1, 1})}},
                {"odd", {randn({7, 17}), randn({5, 17}), randn({5}), randn({7, 5})}},
                {"no bias", {randn({7, 3}), randn({33, 3}), none(), randn({7, 33})}},
                {"vector", {randn({17}), randn({3, 17}), randn({3}), randn({3})}},
                {"tokens", {randn({2, 7, 6}), randn({34, 6}), randn({34}), randn({2, 7, 34})}},
                {"no rows", {randn({0, 5}), randn({4, 5}), randn({4}), randn({0, 4})}},
                {"no features", {randn({3, 0}), randn({4, 0}), randn({4}), randn({3, 4})}},
                {"no outputs", {randn({3, 5}), randn({0, 5}), randn({0}), randn({3, 0})}}},
    .large = {{"large", {randn({257, 65}), randn({33, 65}), randn({33}), randn({257, 33})}}},
    .rejects = {rejects<ShapeError>("onto", {randn({2, 3}), randn({5, 3}), none(), randn({1, 5})},
                                    "onto must have shape [2, 5]"),
                rejects<DTypeError>(
                    "mixed onto",
                    {randn({2, 3}), randn({5, 3}), none(), as(DType::f64, randn({2, 5}))}, "f64")},
    .saved_bytes =
        [](Inputs in) {
          return std::vector<int64_t>{in[0].nbytes(), in[1].nbytes()};
        },
    .row_inputs = {0, 3},
    .tolerance = 2,
    .reason = "sums of up to 65 terms in f32; in 16 bits they are rounded before onto is added",
};

const Registered joined_info = OpInfo{
    .name = "joined_linear",
    .run = [](Inputs in) { return joined_linear(in[0], in[1], in[2], in[3]); },
    .reference = [](Arrays in) { return linear_reference(joined(in[0], in[1]), in[2], in[3]); },
    .samples = {{"one", {randn({1, 1, 1}), randn({1, 1, 1}), randn({1, 1}), randn({1})}},
                {"odd", {randn({2, 3, 5}), randn({2, 7, 5}), randn({4, 5}), randn({4})}},
                {"no bias", {randn({3, 4, 6}), randn({3, 1, 6}), randn({33, 6}), none()}},
                {"not given", {none(), randn({2, 3, 5}), randn({4, 5}), randn({4})}},
                {"no rows before", {randn({2, 0, 5}), randn({2, 3, 5}), randn({4, 5}), none()}},
                {"no rows after", {randn({2, 3, 5}), randn({2, 0, 5}), randn({4, 5}), none()}},
                {"no samples", {randn({0, 3, 5}), randn({0, 2, 5}), randn({4, 5}), randn({4})}},
                {"no features", {randn({2, 3, 0}), randn({2, 2, 0}), randn({4, 0}), randn({4})}},
                {"no outputs", {randn({2, 3, 5}), randn({2, 2, 5}), randn({0, 5}), randn({0})}}},
    .large = {{"large", {randn({3, 67, 48}), randn({3, 130, 48}), randn({65, 48}), randn({65})}},
              {"wide", {randn({2, 20, 300}), randn({2, 33, 300}), randn({257, 300}), none()}}},
    .rejects =
        {rejects<ShapeError>("features",
                             {randn({1, 2, 3}), randn({1, 2, 3}), randn({5, 4}), none()},
                             "joined_linear: x has 3 features, weight takes 4"),
         rejects<ShapeError>("widths", {randn({1, 2, 4}), randn({1, 2, 3}), randn({5, 3}), none()},
                             "before and x must agree except in their rows"),
         rejects<ShapeError>("samples", {randn({2, 2, 3}), randn({1, 2, 3}), randn({5, 3}), none()},
                             "before and x must agree except in their rows"),
         rejects<ShapeError>("rank", {randn({2, 3}), randn({1, 2, 3}), randn({5, 3}), none()},
                             "before"),
         rejects<ShapeError>(
             "bias", {randn({1, 2, 3}), randn({1, 2, 3}), randn({5, 3}), randn({3})}, "bias"),
         rejects<DTypeError>(
             "mixed", {as(DType::f64, randn({1, 2, 3})), randn({1, 2, 3}), randn({5, 3}), none()},
             "f64")},
    .saved_bytes =
        [](Inputs in) {
          if (!in[0]) return std::vector<int64_t>{in[1].nbytes(), in[2].nbytes()};
          return std::vector<int64_t>{in[0].nbytes(), in[1].nbytes(), in[2].nbytes()};
        },
    .tolerance = 2,
    .reason = "sums of up to 300 terms in f32, whose roundings add up",
};

const Making f32_making{DType::f32, DType::f32, Layout::contiguous, {}};

// A row has the same bits for any number of other rows and at every position in a tile.
TEST(Matmul, RowDependsOnItsRowAlone) {
  for (const int64_t n : {1, 16, 31, 64, 100}) {
    for (const int64_t k : {1, 64, 257, 600}) {
      const Tensor a = make(randn({150, k}), Generator{1}, f32_making);
      const Tensor b = make(randn({k, n}), Generator{2}, f32_making);
      const Tensor b_t = make(randn({n, k}), Generator{2}, f32_making);
      const std::vector<float> y = floats_of(matmul(a, b));
      const std::vector<float> y_t = floats_of(matmul(a, transpose(b_t, 0, 1)));
      for (const int64_t m : {1, 2, 3, 4, 5, 7, 11, 12, 13, 14, 15, 24, 29, 64, 149}) {
        const int64_t first = 150 - m;
        const Tensor part = a.alias({m, k}, {k, 1}, first * k);
        const auto rows = [&](const std::vector<float>& all) {
          return std::vector<float>(all.begin() + first * n, all.end());
        };
        SCOPED_TRACE(fmt::format("m {} n {} k {}", m, n, k));
        expect_same_bits(floats_of(matmul(part, b)), rows(y));
        expect_same_bits(floats_of(matmul(part, transpose(b_t, 0, 1))), rows(y_t));
      }
    }
  }
}

// The same for few rows of many columns, which read b in place: in 16 bits, with a bias and with
// accumulation.
TEST(Matmul, FewRowsOfManyColumns) {
  const int64_t n = 4133, k = 525;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const Tensor a = cast(make(randn({20, k}), Generator{1}, f32_making), dtype);
    const Tensor b = cast(make(randn({n, k}), Generator{2}, f32_making), dtype);
    const Tensor bias = cast(make(randn({n}), Generator{3}, f32_making), dtype);
    const auto product = [&](const Tensor& rows) {
      Tensor c = full({rows.dim(0), n}, 0.5, dtype);
      kernels::matmul(c.device(), rows.view(), transpose(b, 0, 1).view(), c.mut(),
                      {.accumulate = true, .bias = bias.view()});
      return floats_of(cast(c, DType::f32));
    };
    const std::vector<float> all = product(a);
    for (const int64_t m : {1, 2, 3, 4}) {
      SCOPED_TRACE(fmt::format("{} m {}", name_of(dtype), m));
      const Tensor part = a.alias({m, k}, {k, 1}, (20 - m) * k);
      const std::vector<float> last(all.begin() + (20 - m) * n, all.end());
      expect_same_bits(product(part), last);
      const Tensor turned = transpose(contiguous(transpose(part, 0, 1)), 0, 1);
      expect_same_bits(product(turned), last);
    }
  }
}

// Computes the product of a, whose rows are `a_row` apart, and b, stored as [n, k], into c with
// rows of n + 3.
std::vector<double> product_of(DType dtype, int64_t m, int64_t n, int64_t k, int64_t a_row,
                               bool bias, bool accumulate, bool transposed, int threads,
                               int64_t* segments = nullptr) {
  const Making making{dtype, dtype, Layout::contiguous, {}};
  const Tensor a = make(randn({m, k}), Generator{5}, making);
  const Tensor b = make(randn({n, k}), Generator{6}, making);
  const Tensor extra = make(randn({n}), Generator{7}, making);
  Tensor c = make(randn({m, n + 3}), Generator{8}, making);
  cpu::Gemm g{.m = m,
              .n = n,
              .k = k,
              .a = a.view().data,
              .a_row = a_row,
              .a_col = a_row == 1 ? m : 1,
              .b = b.view().data,
              .b_row = 1,
              .b_col = k,
              .bias = bias ? extra.view().data : nullptr,
              .c = c.mut().data,
              .c_row = n + 3,
              .dtype = dtype,
              .c_dtype = dtype,
              .accumulate = accumulate};
  if (transposed) g = cpu::transposed(g);
  g.splits_k = segments != nullptr;
  const cpu::GemmPlan plan = cpu::plan_gemm(g, threads);
  Tensor scratch = Tensor::empty({plan.scratch / 8 + 1}, DType::f64);
  Tensor partial = Tensor::empty({plan.partial_sums(g)}, dtype);
  for (int64_t i = 0; i < plan.tasks(); ++i) {
    cpu::run_gemm(g, plan, i, scratch.mut().data, partial.mut().data);
  }
  if (segments != nullptr) *segments = plan.segments;
  for (int64_t i = 0; plan.segments > 1 && i < m; ++i) {
    cpu::add_partial_sums(g, plan, partial.view().data, i);
  }
  return cast(c, DType::f64).to_vector<double>();
}

// Segments of k give the bits of one sum over all of it, with a bias and what was in c.
TEST(Matmul, SegmentsOfKHaveTheBitsOfOneSum) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const auto& [m, n, k] : {std::tuple{48, 64, 4096}, {61, 67, 2500}, {256, 256, 2048}}) {
      for (const bool accumulate : {false, true}) {
        for (const int64_t a_row : {int64_t{1}, int64_t{k}}) {
          const std::vector<double> whole =
              product_of(dtype, m, n, k, a_row, true, accumulate, false, 1);
          int64_t most = 1;
          for (const int threads : {2, 3, 5, 8}) {
            SCOPED_TRACE(fmt::format("{} {}x{}x{} {} threads", name_of(dtype), m, n, k, threads));
            int64_t segments = 0;
            EXPECT_EQ(
                product_of(dtype, m, n, k, a_row, true, accumulate, false, threads, &segments),
                whole);
            most = std::max(most, segments);
          }
          EXPECT_GT(most, 1) << "no plan had segments of k";
        }
      }
    }
  }
}

// The strips of an a with unit stride along its columns are packed once for all columns: the same
// bits as from a copy with rows, for sizes around those of vectors, strips and blocks.
TEST(Matmul, KeptStripsHaveTheBitsOfRows) {
  for (const int64_t m : {5, 12, 13, 24, 48, 95, 97, 131}) {
    for (const int64_t n : {33, 256, 257, 300, 700}) {
      for (const int64_t k : {1, 3, 4, 511, 513}) {
        const Tensor a = make(randn({k, m}), Generator{5}, f32_making);
        const Tensor b = make(randn({k, n}), Generator{6}, f32_making);
        const Tensor rows = contiguous(transpose(a, 0, 1));
        SCOPED_TRACE(fmt::format("m {} n {} k {}", m, n, k));
        expect_same_bits(floats_of(matmul(transpose(a, 0, 1), b)), floats_of(matmul(rows, b)));
      }
    }
  }
}

// The parts of a plan cover everything once, and their sizes differ by a unit at most.
TEST(Matmul, PartsAreEven) {
  for (const int64_t n : {1, 11, 12, 256, 2048, 2050}) {
    for (const int64_t unit : {1, 12, 32}) {
      for (const int64_t parts : {1, 2, 3, 7}) {
        const int64_t units = (n + unit - 1) / unit;
        if (parts > units) continue;
        int64_t end = 0;
        for (int64_t i = 0; i < parts; ++i) {
          const cpu::Part part = cpu::part_of(n, unit, parts, i);
          EXPECT_EQ(part.begin, end);
          EXPECT_GE((part.size + unit - 1) / unit, units / parts);
          EXPECT_LE(part.size, cpu::largest_part(n, unit, parts));
          end += part.size;
        }
        EXPECT_EQ(end, n);
      }
    }
  }
}

// The transpose of a product has the same bits, beside any edges of tiles, blocks and tasks.
TEST(Matmul, TransposedProductsHaveTheSameBits) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const int64_t m : {5, 8, 17, 34, 128, 259}) {
      for (const int64_t n : {3, 7, 12, 23, 64, 301}) {
        for (const int64_t k : {1, 30, 513, 1100}) {
          const bool bias = (m + n + k) % 2 == 0, accumulate = k % 3 == 0;
          const int threads = n > 200 ? 3 : 1;
          SCOPED_TRACE(fmt::format("{} m {} n {} k {}", name_of(dtype), m, n, k));
          for (const int64_t a_row : {k, int64_t{1}, int64_t{0}}) {  // a^T, and one row for all
            EXPECT_EQ(product_of(dtype, m, n, k, a_row, bias, accumulate, true, threads),
                      product_of(dtype, m, n, k, a_row, bias, accumulate, false, threads));
          }
        }
      }
    }
  }
}

// Products with a large matrix are computed as their transposes up to a number of rows, which
// changes no bits of a row.
TEST(Matmul, RowsBesideALargeMatrix) {
  const int before = num_threads();
  const int64_t n = 523, k = 517, most = 300;
  const Tensor a = make(randn({2, most, k}), Generator{1}, f32_making);
  const Tensor b = make(randn({2, n, k}), Generator{2}, f32_making);
  const Tensor bias = make(randn({n}), Generator{3}, f32_making);
  const auto product = [&](const Tensor& rows) {
    Tensor c = full({2, rows.dim(1), n}, 0.5, DType::f32);
    kernels::matmul(c.device(), rows.view(), transpose(b, 1, 2).view(), c.mut(),
                    {.accumulate = true, .bias = bias.view()});
    return floats_of(contiguous(transpose(c, 0, 1)));
  };
  const std::vector<float> all = product(a);
  for (const int64_t m : {1, 4, 5, 16, 33, 128, 150, 256, 257}) {
    SCOPED_TRACE(fmt::format("m {}", m));
    const int64_t first = most - m;
    const std::vector<float> last(all.begin() + first * 2 * n, all.end());
    for (const int threads : {1, 2}) {
      set_num_threads(threads);
      expect_same_bits(product(a.alias({2, m, k}, {most * k, k, 1}, first * k)), last);
    }
  }
  set_num_threads(before);
}

// A column's bits do not depend on the columns beside it, nor on the layouts of the operands.
TEST(Matmul, ColumnAndLayoutDoNotMatter) {
  for (const int64_t k : {5, 64, 300}) {
    const int64_t m = 37, n = 67;
    const Tensor a = make(randn({m, k}), Generator{3}, f32_making);
    const Tensor b = make(randn({k, n}), Generator{4}, f32_making);
    const Tensor a_t = transpose(contiguous(transpose(a, 0, 1)), 0, 1);
    const Tensor b_t = transpose(contiguous(transpose(b, 0, 1)), 0, 1);
    const std::vector<float> y = floats_of(matmul(a, b));
    expect_same_bits(floats_of(matmul(a_t, b)), y);
    expect_same_bits(floats_of(matmul(a, b_t)), y);
    expect_same_bits(floats_of(matmul(a_t, b_t)), y);
    for (const int64_t from : {0, 1, 16, 40}) {
      const int64_t width = n - from;
      const std::vector<float> part = floats_of(matmul(a, b.alias({k, width}, {n, 1}, from)));
      for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = 0; j < width; ++j) {
          ASSERT_EQ(part[static_cast<size_t>(i * width + j)],
                    y[static_cast<size_t>(i * n + from + j)])
              << "k " << k << " from " << from << " at " << i << ", " << j;
        }
      }
    }
  }
}

TEST(Linear, RowsOfAnyStridesAroundAxesOfSizeOne) {
  const Tensor weight = make(randn({5, 6}), Generator{6}, f32_making);
  const Tensor block = make(randn({3, 1, 8, 6}), Generator{5}, f32_making);
  for (const Tensor& x : {narrow(block, 2, 0, 4), narrow(block, 0, 1, 2), slice(block, 2, 1, 8, 2),
                          transpose(block, 0, 1), transpose(narrow(block, 2, 0, 4), 0, 2),
                          expand(narrow(block, 2, 3, 1), {3, 2, 4, 6}), narrow(block, 2, 7, 1)}) {
    expect_same_bits(floats_of(linear(x, weight)), floats_of(linear(clone(x), weight)));
  }
}

TEST(Matmul, GradientsOfRepeatedOperandsAreSummedWide) {
  // 1 added 1,024 times: a sum in bf16 would stop at 256.
  Tensor a = full({1, 1}, 1, DType::bf16);
  set_requires_grad(a);
  const Tensor y = matmul(a, full({1024, 1, 1}, 1, DType::bf16));
  backward(y, full(y.shape(), 1, DType::bf16));
  EXPECT_EQ(grad(a).item(), 1024);
}

// All bits of y and of the gradients are the same for 1 to 3 threads.
TEST(Linear, BitsForAnyNumberOfThreads) {
  const int before = num_threads();
  std::vector<std::vector<float>> first;
  for (const int threads : {1, 2, 3}) {
    set_num_threads(threads);
    for (const bool narrow : {false, true}) {
      const int64_t rows = 1111, in = narrow ? 40 : 600, out = narrow ? 24 : 520;
      Tensor x = make(randn({rows, in}), Generator{5}, f32_making);
      Tensor weight = make(randn({out, in}), Generator{6}, f32_making);
      Tensor bias = make(randn({out}), Generator{7}, f32_making);
      for (Tensor* t : {&x, &weight, &bias}) set_requires_grad(*t);
      const Tensor y = linear(x, weight, bias);
      backward(y, make(randn({rows, out}), Generator{8}, f32_making));
      const std::vector<std::vector<float>> all = {floats_of(y), floats_of(grad(x)),
                                                   floats_of(grad(weight)), floats_of(grad(bias))};
      const size_t base = narrow ? 4 : 0;
      for (size_t i = 0; i < all.size(); ++i) {
        if (threads == 1) {
          first.push_back(all[i]);
        } else {
          SCOPED_TRACE(fmt::format("{} threads, result {}", threads, base + i));
          expect_same_bits(all[i], first[base + i]);
        }
      }
    }
  }
  set_num_threads(before);
}

TEST(Matmul, NotANumberStaysInItsRow) {
  Tensor a = make(full({13, 20}, 1), Generator{}, f32_making);
  a.mut().as<float>()[3 * 20 + 5] = std::numeric_limits<float>::quiet_NaN();
  const Tensor b = make(full({20, 33}, 1), Generator{}, f32_making);
  const std::vector<float> y = floats_of(matmul(a, b));
  for (int64_t i = 0; i < 13; ++i) {
    for (int64_t j = 0; j < 33; ++j) {
      const float v = y[static_cast<size_t>(i * 33 + j)];
      EXPECT_TRUE(i == 3 ? std::isnan(v) : v == 20.0f) << i << ", " << j;
    }
  }
}

TEST(MeasuredPeak, IsFiniteAndPositiveForEveryLoop) {
  for (const Device device : {Device{}, Device{DeviceKind::cuda, 0}}) {
    if (!is_available(device) || !kernels::measure_peak.has(device.kind)) continue;
    for (const PeakLoop loop : {PeakLoop::registers, PeakLoop::loads, PeakLoop::dots}) {
      for (const int threads : {1, 2}) {
        double macs = 0;
        const char* instructions = nullptr;
        kernels::measure_peak(device, threads, loop, 0.0, &macs, &instructions);
        EXPECT_TRUE(std::isfinite(macs)) << static_cast<int>(loop);
        EXPECT_GT(macs, 0) << static_cast<int>(loop);
        EXPECT_GT(std::strlen(instructions), 3u);
      }
    }
  }
}

// Opened where several processes have a device each.
const ReachedElsewhere of_processes{"open_device_transport", "test_ranks"};

}  // namespace
}  // namespace longspan::test
