#include "ops/sort.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "tests/ops/picking.h"

namespace longspan::test {
namespace {

/// Returns the indices that stably sort every line along an axis. NaN counts as the largest value.
Array sorting_order(const Array& x, int axis, bool descending) {
  Array order = x;
  const int64_t n = x.dim(axis);
  for (int64_t i = 0; i < x.size(); ++i) {
    Place p = place_of(x.shape, i);
    if (p[static_cast<size_t>(axis)] != 0) continue;
    const auto value = [&](int64_t k) {
      p[static_cast<size_t>(axis)] = k;
      return x[index_of(x.shape, p)];
    };
    std::vector<int64_t> places(static_cast<size_t>(n));
    std::iota(places.begin(), places.end(), 0);
    std::stable_sort(places.begin(), places.end(), [&](int64_t a, int64_t b) {
      const double va = value(a), vb = value(b);
      if (std::isnan(va) || std::isnan(vb)) {
        return descending ? std::isnan(va) && !std::isnan(vb) : !std::isnan(va) && std::isnan(vb);
      }
      return descending ? va > vb : va < vb;
    });
    for (int64_t k = 0; k < n; ++k) {
      p[static_cast<size_t>(axis)] = k;
      order[index_of(x.shape, p)] = static_cast<double>(places[static_cast<size_t>(k)]);
    }
  }
  return order;
}

/// Returns the first k elements of every sorted line of x, and their indices.
Results<Array> sorted(const Array& x, int axis, bool descending, int64_t k) {
  axis = axis < 0 ? axis + x.shape.rank() : axis;
  const Array order = sorting_order(x, axis, descending);
  Shape shape = x.shape;
  shape[axis] = k;
  const Array places = pick(order, shape, [](const Place& p) { return p; });
  const Array values = pick(x, shape, [&](Place p) {
    p[static_cast<size_t>(axis)] = static_cast<int64_t>(order[index_of(x.shape, p)]);
    return p;
  });
  return {values, places};
}

Results<Tensor> both(Sorted s) { return {s.values, s.indices}; }

const InputSpec special_values = constant(values({2, 6}, {0.0, -0.0, NAN, -inf, inf, -0.0,  //
                                                          1, NAN, 1, -NAN, 0, -1}));

const OpInfo sort_info_ = {
    .name = "sort",
    .run = [](Inputs in) { return both(sort(in[0], in.integer(0), in.number(1) != 0)); },
    .reference =
        [](Arrays in) {
          return sorted(in[0], in.integer(0), in.number(1) != 0, in[0].dim(in.integer(0)));
        },
    .samples = {{"rows", {randn({5, 7})}, {-1, 0}},
                {"descending", {randn({5, 7})}, {1, 1}},
                {"columns", {randn({6, 3})}, {0, 0}},
                {"middle", {randn({2, 5, 3})}, {1, 1}},
                {"one", {randn({4, 1})}, {1, 0}},
                {"empty rows", {randn({3, 0})}, {1, 0}},
                {"no rows", {randn({0, 3})}, {1, 0}},
                {"ties", {constant(as(DType::f32, ids({3, 40}, 4)))}, {1, 0}},
                {"ties descending", {constant(as(DType::f32, ids({3, 40}, 4)))}, {1, 1}},
                {"special", {special_values}, {1, 0}},
                {"special descending", {special_values}, {1, 1}},
                {"long", {constant(randn({2, 700}))}, {1, 0}}},
    .large = {{"large", {randn({40, 3000})}, {1, 1}}, {"many", {randn({3000, 17})}, {1, 0}}},
    .rejects = {rejects<ShapeError>("rank 0", {scalar(1)}, "rank 1 or more", {0, 0}),
                rejects<ShapeError>("no such axis", {randn({3})}, "axis 1", {1, 0})},
    .saved_bytes = [](Inputs in) { return std::vector<int64_t>{in[0].numel() * 8}; },
};
const Registered sort_entry = sort_info_, sort_integers = on_integers(sort_info_);

const OpInfo topk_info_ = {
    .name = "topk",
    .run =
        [](Inputs in) {
          return both(topk(in[0], in.integer(1), in.integer(0), in.number(2) != 0));
        },
    .reference =
        [](Arrays in) { return sorted(in[0], in.integer(0), in.number(2) != 0, in.integer(1)); },
    .samples = {{"rows", {randn({5, 9})}, {-1, 3, 1}},
                {"smallest", {randn({5, 9})}, {1, 4, 0}},
                {"columns", {randn({7, 2})}, {0, 2, 1}},
                {"all", {randn({3, 6})}, {1, 6, 1}},
                {"none", {randn({3, 6})}, {1, 0, 1}},
                {"ties", {constant(as(DType::f32, ids({3, 40}, 4)))}, {1, 15, 1}},
                {"ties smallest", {constant(as(DType::f32, ids({3, 40}, 4)))}, {1, 15, 0}},
                {"special", {special_values}, {1, 3, 1}}},
    .large = {{"large", {randn({20, 3000})}, {1, 40, 1}}},
    .rejects = {rejects<ValueError>("too many", {randn({3, 6})}, "7 of axis 1, which has 6",
                                    {1, 7, 1}),
                rejects<ValueError>("negative", {randn({3, 6})}, "-1 of axis 1", {1, -1, 1})},
    .saved_bytes =
        [](Inputs in) {
          return std::vector<int64_t>{in[0].numel() / in[0].dim(in.integer(0)) * in.integer(1) * 8};
        },
};
const Registered topk_entry = topk_info_, topk_integers = on_integers(topk_info_);

const Registered argsort_info = OpInfo{
    .name = "argsort",
    .run = [](Inputs in) { return argsort(in[0], in.integer(0), in.number(1) != 0); },
    .reference =
        [](Arrays in) {
          return sorted(in[0], in.integer(0), in.number(1) != 0, in[0].dim(in.integer(0)))[1];
        },
    .samples = {{"rows", {randn({5, 7})}, {-1, 0}}, {"columns", {randn({300, 2})}, {0, 1}}},
    .large = {{"large", {randn({1, 70000})}, {1, 0}}},
    .differentiable = false,
};

/// Row r holds r, r + 389, r + 778, ... modulo the prime n.
InputSpec strides_of(int64_t rows, int64_t n) {
  return {
      .shape = {rows, n},
      .value = [n](Generator, int64_t i) { return static_cast<double>((i % n * 389 + i / n) % n); },
      .fixed = true,
      .dtype = DType::i64};
}

const Registered inverse_info = OpInfo{
    .name = "inverse_permutation",
    .run = [](Inputs in) { return inverse_permutation(in[0]); },
    .reference =
        [](Arrays in) {
          Array y = in[0];
          const int64_t n = in[0].dim(-1);
          for (int64_t i = 0; i < y.size(); ++i) {
            y[i / n * n + static_cast<int64_t>(in[0][i])] = static_cast<double>(i % n);
          }
          return y;
        },
    .samples = {{"one", {permutation(9)}},
                {"rows", {as(DType::i32, values({2, 3}, {2, 0, 1, 1, 2, 0}))}},
                {"bytes", {as(DType::u8, permutation(200))}},
                {"empty", {longspan::test::iota({2, 0})}}},
    .large = {{"large", {strides_of(64, 1009)}}},
    .rejects = {rejects<ValueError>("twice", {as(DType::i64, values({2, 3}, {2, 0, 1, 1, 0, 1}))},
                                    "row 1 contains an index twice, the second time at 2"),
                rejects<ValueError>("past the end", {as(DType::i64, values({2}, {0, 2}))},
                                    "order holds 2 at [1]"),
                rejects<DTypeError>("floating", {randn({3})}, "order must be integer")},
    .dtypes = {DType::f32},
    .differentiable = false,
    .expandable = false,
};

}  // namespace
}  // namespace longspan::test
