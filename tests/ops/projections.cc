#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "autograd/engine.h"
#include "autograd/node.h"
#include "core/error.h"
#include "core/kernels/matmul.h"
#include "core/matmul_library.h"
#include "core/memory.h"
#include "core/parallel.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/matmul.h"
#include "ops/shape.h"
#include "tests/harness/op_info.h"
#include "tests/ops/linear_reference.h"

namespace longspan::test {
namespace {

/// Inputs: x, and a weight and a bias for each result.
Results<Tensor> run_projections(Inputs in) {
  std::vector<Projection> to;
  for (size_t i = 1; i + 1 < in.size(); i += 2) to.push_back({in[i], in[i + 1]});
  return projections(in[0], to);
}

Results<Array> projections_reference(Arrays in) {
  std::vector<Array> y;
  for (size_t i = 1; i + 1 < in.size(); i += 2) {
    y.push_back(linear_reference(in[0], in[i], in[i + 1]));
  }
  return y;
}

std::vector<InputSpec> equal(const Shape& x, int64_t out) {
  const int64_t in = x[x.rank() - 1];
  return {randn(x),     randn({out, in}), randn({out}), randn({out, in}),
          randn({out}), randn({out, in}), randn({out})};
}

const Registered projections_info = OpInfo{
    .name = "projections",
    .run = run_projections,
    .reference = projections_reference,
    .samples = {{"one", equal({1, 1}, 1)},
                {"odd", equal({7, 17}, 5)},
                {"vector", equal({17}, 3)},
                {"tokens", equal({2, 7, 6}, 34)},
                {"no rows", equal({0, 5}, 4)},
                {"no features", equal({3, 0}, 4)},
                {"no outputs", equal({3, 5}, 0)},
                {"other widths, no biases",
                 {randn({2, 3, 6}), randn({4, 6}), none(), randn({0, 6}), none(), randn({9, 6}),
                  none()}},
                {"two", {randn({5, 3}), randn({4, 3}), none(), randn({6, 3}), randn({6})}},
                {"a single one", {randn({5, 3}), randn({4, 3}), randn({4})}}},
    .large = {{"large", equal({257, 65}, 33)},
              {"wide", equal({100, 600}, 130)},
              {"many rows", equal({3, 1000, 24}, 40)}},
    .rejects =
        {rejects<ShapeError>("features",
                             {randn({2, 3}), randn({5, 3}), none(), randn({5, 4}), none()},
                             "projections: x has 3 features, weight takes 4"),
         rejects<ShapeError>(
             "bias", {randn({2, 3}), randn({5, 3}), none(), randn({5, 3}), randn({3})}, "bias"),
         rejects<ShapeError>("scalar", {scalar(1), randn({5, 3}), none()}, "rank"),
         rejects<DTypeError>("integers", {iota({2, 3}), randn({5, 3}), none()}, "floating"),
         rejects<DTypeError>(
             "mixed", {randn({2, 3}), randn({5, 3}), none(), as(DType::f64, randn({5, 3})), none()},
             "f64"),
         rejects<ValueError>("none", {randn({2, 3})}, "0 weights are given; expected 1 to 7")},
    .saved_bytes =
        [](Inputs in) {
          std::vector<int64_t> bytes = {in[0].nbytes()};
          for (size_t i = 1; i < in.size(); i += 2) bytes.push_back(in[i].nbytes());
          return bytes;
        },
    .row_inputs = {0},
    .tolerance = 2,
    .reason = "sums of up to 600 terms in f32, whose roundings add up",
};

std::vector<double> doubles(const Tensor& x) {
  return x ? cast(contiguous(x.detach()), DType::f64).to_vector<double>() : std::vector<double>{};
}

/// Rows, and weights and biases of as many outputs as `out` says.
struct Example {
  Example(DType dtype, int64_t rows, int64_t in, const std::vector<int64_t>& out) {
    const Making making{dtype, dtype, Layout::contiguous, {}};
    uint64_t next = 1;
    const auto random = [&](const Shape& shape) {
      return make(randn(shape), Generator{next++}, making);
    };
    leaves.push_back(random({rows, in}));
    for (const int64_t n : out) {
      leaves.push_back(random({n, in}));
      leaves.push_back(random({n}));
      dy.push_back(random({rows, n}));
    }
    other = random({rows, in});
    for (Tensor& leaf : leaves) set_requires_grad(leaf);
  }
  std::vector<Tensor> leaves, dy;  // x, and a weight and a bias for each result
  Tensor other;                    // a gradient of x by another op
};

/// The results and the gradients of x, the weights and the biases, as f64.
///   given  the results that get a gradient
///   other  whether another op leaves a gradient at x
using Values = std::vector<std::vector<double>>;

/// By projections().
Values together(const Example& e, const std::vector<bool>& given, bool other) {
  const Tensor x = mul(e.leaves[0], 1);  // where gradients are added in place, unlike at a leaf
  std::vector<Projection> to;
  for (size_t i = 1; i < e.leaves.size(); i += 2) to.push_back({e.leaves[i], e.leaves[i + 1]});
  const std::vector<Tensor> y = projections(x, to);
  std::vector<Tensor> asked, dy;
  for (size_t i = 0; i < y.size(); ++i) {
    if (!given[i]) continue;
    asked.push_back(y[i]);
    dy.push_back(e.dy[i]);
  }
  if (other) {
    asked.push_back(mul(x, 1));
    dy.push_back(e.other);
  }
  backward(asked, dy);
  Values all;
  for (const Tensor& one : y) all.push_back(doubles(one));
  for (const Tensor& leaf : e.leaves) all.push_back(doubles(grad(leaf)));
  return all;
}

/// By linear(), and the gradient of x by products that are added in c, from the last to the first.
Values one_by_one(const Example& e, const std::vector<bool>& given, bool other) {
  Values all, gradients;
  Tensor dx = Tensor::like(e.leaves[0]);
  bool any = false;
  for (size_t i = 0; i < e.dy.size(); ++i) {
    const Tensor &w = e.leaves[1 + 2 * i], &b = e.leaves[2 + 2 * i];
    const Tensor y = linear(e.leaves[0], w, b);
    if (given[i]) backward(y, e.dy[i]);
    all.push_back(doubles(y));
    gradients.push_back(doubles(grad(w)));
    gradients.push_back(doubles(grad(b)));
  }
  for (size_t i = e.dy.size(); i-- > 0;) {
    if (!given[i]) continue;
    kernels::matmul(Device{}, e.dy[i].view(), e.leaves[1 + 2 * i].view(), dx.mut(),
                    {.accumulate = std::exchange(any, true)});
  }
  all.push_back(doubles(other ? add(e.other, dx) : dx));
  all.insert(all.end(), gradients.begin(), gradients.end());
  return all;
}

void expect_equal(DType dtype, int64_t rows, int64_t in, const std::vector<int64_t>& out,
                  const std::vector<bool>& given) {
  for (const bool other : {false, true}) {
    SCOPED_TRACE(fmt::format("{} {} rows of {} to {}, {} threads{}", name_of(dtype), rows, in,
                             out[0], num_threads(), other ? ", and another gradient" : ""));
    const Values of_one = together(Example(dtype, rows, in, out), given, other);
    EXPECT_EQ(of_one, one_by_one(Example(dtype, rows, in, out), given, other));
    for (size_t i = 0; i < out.size(); ++i) {
      EXPECT_EQ(of_one[out.size() + 2 + 2 * i].empty(), !given[i]);
    }
  }
}

// The sizes reach every way in which a product is computed: few rows, transposed, kept strips, more
// than one block of columns, and sums of products whose tasks are divided alike or not.
TEST(Projections, HaveTheBitsOfLinear) {
  const int before = num_threads();
  for (const int threads : {1, 2, 3}) {
    set_num_threads(threads);
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
      expect_equal(dtype, 3, 40, {33, 33, 33}, {true, true, true});
      expect_equal(dtype, 40, 520, {1100, 1100, 1100}, {true, true, true});
      expect_equal(dtype, 700, 70, {40, 41, 1300}, {true, true, true});
      expect_equal(dtype, 61, 20, {2100, 1}, {true, true});
    }
  }
  set_num_threads(before);
}

// With up to 512 outputs in f32 the gradient of x has the bits that it has by several linear().
TEST(Projections, AddGradientsAsLinearDoes) {
  const std::vector<int64_t> out{512, 300, 512};
  const Example one(DType::f32, 50, 64, out), each(DType::f32, 50, 64, out);
  together(one, {true, true, true}, false);
  const Tensor x = mul(each.leaves[0], 1);
  std::vector<Tensor> y;
  for (size_t i = 1; i < each.leaves.size(); i += 2) {
    y.push_back(linear(x, each.leaves[i], each.leaves[i + 1]));
  }
  backward(y, each.dy);
  for (size_t i = 0; i < each.leaves.size(); ++i) {
    EXPECT_EQ(doubles(grad(one.leaves[i])), doubles(grad(each.leaves[i])));
  }
}

// The same with OpenBLAS, which computes whole tasks.
TEST(Projections, HaveTheBitsOfLinearOnOpenBlas) {
  const WithMatmulLibrary setting(MatmulLibrary::openblas);
  expect_equal(DType::f32, 61, 70, {300, 40, 300}, {true, true, true});
}

// A result without a gradient adds nothing, and its weight and bias get none.
TEST(Projections, OfWhichSomeGetNoGradient) {
  expect_equal(DType::f32, 9, 4, {5, 6, 7}, {true, false, false});
  expect_equal(DType::f32, 9, 4, {5, 6, 7}, {false, true, false});
  expect_equal(DType::f32, 9, 4, {5, 6, 7}, {false, false, true});
  expect_equal(DType::f32, 9, 4, {5, 6, 7}, {true, false, true});
}

// Constants: gradients pass through them to x, and leaves whose x is constant get theirs.
TEST(Projections, OfConstants) {
  const Making making{DType::f64, DType::f64, Layout::contiguous, {}};
  for (const bool of_x : {true, false}) {
    Values found[2];
    for (const bool joint : {true, false}) {
      Tensor x = make(randn({5, 4}), Generator{1}, making);
      Tensor w = make(randn({3, 4}), Generator{2}, making);
      Tensor v = make(randn({6, 4}), Generator{3}, making);
      Tensor b = make(randn({3}), Generator{4}, making);
      if (of_x) set_requires_grad(x);
      for (Tensor* const leaf : {&v, &b}) {
        if (!of_x) set_requires_grad(*leaf);
      }
      const std::vector<Tensor> y = joint ? projections(x, std::vector<Projection>{{w, b}, {v}})
                                          : std::vector{linear(x, w, b), linear(x, v)};
      const Tensor dy[] = {make(randn({5, 3}), Generator{5}, making),
                           make(randn({5, 6}), Generator{6}, making)};
      backward(y, dy);
      for (const Tensor& leaf : {x, w, v, b}) found[joint].push_back(doubles(grad(leaf)));
    }
    EXPECT_EQ(found[0], found[1]);
    EXPECT_TRUE(found[0][1].empty());
  }
}

TEST(Projections, AreAtMostSeven) {
  const Tensor x = Tensor::zeros({2, 3});
  std::vector<Projection> to(7, {Tensor::zeros({4, 3})});
  EXPECT_EQ(projections(x, to).size(), 7u);
  to.push_back(to[0]);
  try {
    projections(x, to);
    ADD_FAILURE() << "not refused";
  } catch (const ValueError& error) {
    EXPECT_NE(std::string(error.what()).find("projections: 8 weights are given; expected 1 to 7"),
              std::string::npos);
  }
}

/// A product of the kernel, and what its epilogue needs.
struct Case {
  Shape a, b;
  DType dtype = DType::f32, result = DType::f32;
  bool columns = false;  ///< a is the transpose of what is stored
  bool bias = false, accumulate = false, sums = false, addend = false;
  bool linked = false;  ///< c is that of the case before
};

/// Returns the results of the products of one call, or of a call for each.
///   workspace  gets the bytes that one call takes on the meta device less those on the CPU
Values products(const std::vector<Case>& cases, bool together, int64_t* workspace = nullptr) {
  std::vector<Tensor> kept, results;
  std::vector<kernels::Product> all;
  uint64_t next = 1;
  for (const Case& one : cases) {
    const Making making{one.dtype, one.dtype, Layout::contiguous, {}};
    const auto random = [&](const Shape& shape) {
      kept.push_back(make(randn(shape), Generator{next++}, making));
      return kept.back();
    };
    Tensor a = random(one.a);
    if (one.columns) a = transpose(a, -2, -1);
    const Tensor b = random(one.b);
    Shape shape = a.shape();
    shape[shape.rank() - 1] = b.dim(-1);
    Tensor c = one.linked ? results.back() : full(shape, 0.5, one.result);
    kernels::Product p{a.view(), b.view(), c.mut()};
    p.epilogue.accumulate = one.accumulate;
    if (one.bias) p.epilogue.bias = random({b.dim(-1)}).view();
    if (one.addend) p.epilogue.addend = random(shape).view();
    if (one.sums) {
      results.push_back(Tensor::empty({a.dim(0)}, one.dtype));
      p.epilogue.a_sums = results.back().mut();
    }
    if (!one.linked) results.push_back(c);
    all.push_back(p);
  }
  if (together) {
    const auto taken = [&](const Device& device) {
      std::vector<kernels::Product> there = all;
      for (kernels::Product& p : there) {
        kernels::Product::visit_tensors([&](auto& view) { view.device = device; }, p);
      }
      memory_tracker(device).reset_peak();
      kernels::products(device, there);
      return memory_tracker(device).peak()[Category::workspace];
    };
    const int64_t on_meta = taken(meta_device);
    *workspace = on_meta - taken(Device{});
  } else {
    for (const kernels::Product& p : all) {
      kernels::matmul(Device{}, p.a, p.b, p.c, p.epilogue);
    }
  }
  Values values;
  for (const Tensor& x : results) values.push_back(doubles(x));
  return values;
}

// Products of unlike sizes, dtypes and epilogues, some of them empty, batches or of the same c,
// give what each of them gives alone, on any number of threads.
TEST(Products, HaveTheBitsOfEachAlone) {
  const std::vector<std::vector<Case>> groups = {
      {},
      {{.a = {5, 7}, .b = {7, 3}}},
      {{.a = {100, 300}, .b = {300, 90}, .bias = true},
       {.a = {3, 4}, .b = {4, 5}, .accumulate = true},
       {.a = {2000, 64}, .b = {2000, 96}, .columns = true, .sums = true},
       {.a = {64, 2000}, .b = {2000, 96}, .sums = true, .addend = true},
       {.a = {1, 700}, .b = {700, 1000}}},
      {{.a = {200, 600}, .b = {600, 90}, .dtype = DType::f64, .result = DType::f64, .bias = true},
       {.a = {90, 80}, .b = {80, 300}, .dtype = DType::bf16, .result = DType::bf16},
       {.a = {90, 80}, .b = {80, 300}, .dtype = DType::f16, .sums = true}},
      {{.a = {6, 0}, .b = {0, 5}, .bias = true, .sums = true},
       {.a = {0, 6}, .b = {6, 5}},
       {.a = {40, 50}, .b = {50, 60}, .sums = true}},
      {{.a = {3, 40, 50}, .b = {3, 50, 60}}, {.a = {40, 50}, .b = {50, 60}}},
      // Sums of products: of as many columns, and of others, whose tasks may be divided unlike.
      {{.a = {30, 4000}, .b = {4000, 40}},
       {.a = {30, 4000}, .b = {4000, 40}, .accumulate = true, .linked = true},
       {.a = {30, 4000}, .b = {4000, 40}, .accumulate = true, .addend = true, .linked = true},
       {.a = {900, 40}, .b = {40, 50}, .bias = true}},
      {{.a = {700, 600}, .b = {600, 520}},
       {.a = {700, 1}, .b = {1, 520}, .accumulate = true, .linked = true},
       {.a = {700, 3000}, .b = {3000, 520}, .accumulate = true, .linked = true}},
      {{.a = {700, 40}, .b = {40, 520}, .dtype = DType::f16, .result = DType::f16},
       {.a = {700, 2000},
        .b = {2000, 520},
        .dtype = DType::f16,
        .result = DType::f16,
        .accumulate = true,
        .linked = true}},
  };
  const int before = num_threads();
  for (size_t i = 0; i < groups.size(); ++i) {
    set_num_threads(1);
    const auto apart = products(groups[i], false);
    for (const int threads : {1, 2, 3, 5}) {
      SCOPED_TRACE(fmt::format("group {}, {} threads", i, threads));
      set_num_threads(threads);
      int64_t more = -1;
      EXPECT_EQ(products(groups[i], true, &more), apart);
      EXPECT_EQ(more, 0);
    }
  }
  set_num_threads(before);
}

}  // namespace
}  // namespace longspan::test
