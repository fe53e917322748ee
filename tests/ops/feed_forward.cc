#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <tuple>

#include "autograd/engine.h"
#include "autograd/node.h"
#include "core/kernels/matmul.h"
#include "core/matmul_library.h"
#include "core/parallel.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/matmul.h"
#include "ops/shape.h"
#include "tests/harness/op_info.h"
#include "tests/ops/linear_reference.h"

namespace longspan::test {
namespace {

double value_of(Activation f, double x) {
  const double root = std::sqrt(2 / std::numbers::pi);
  switch (f) {
    case Activation::relu:
      return std::max(x, 0.0);
    case Activation::gelu_erf:
      return x * 0.5 * std::erfc(-x / std::numbers::sqrt2);
    case Activation::gelu_tanh:
      return x * 0.5 * (1 + std::tanh(root * (x + 0.044715 * x * x * x)));
    case Activation::gelu_sigmoid:
      return x / (1 + std::exp(-1.702 * x));
    case Activation::silu:
      return x / (1 + std::exp(-x));
    case Activation::geglu:
    case Activation::geglu_tanh:
      break;
  }
  return std::nan("");
}

OpInfo info_of(std::string name, Activation f) {
  const bool gated = is_gated(f);
  const int64_t wide = gated ? 2 : 1;  // rows of the first weight for each hidden feature
  OpInfo info{
      .name = "feed_forward " + std::move(name),
      .run = [f](Inputs in) { return feed_forward(in[0], in[1], in[2], f, in[3], in[4]); },
      .reference = [f, gated](Arrays in) -> Results<Array> {
        const Array z = linear_reference(in[0], in[1], in[2]);
        Array h = z;
        if (gated) {
          const int64_t width = in[3].dim(1);
          Shape shape = z.shape;
          shape[shape.rank() - 1] = width;
          h = Array(shape);
          const Activation of_gate =
              f == Activation::geglu ? Activation::gelu_erf : Activation::gelu_tanh;
          for (int64_t i = 0; i < h.size(); ++i) {
            const int64_t first = i / width * 2 * width + i % width;
            h[i] = z[first] * value_of(of_gate, z[first + width]);
          }
        } else {
          for (int64_t i = 0; i < h.size(); ++i) h[i] = value_of(f, z[i]);
        }
        return linear_reference(h, in[3], in[4]);
      },
      .samples =
          {{"odd",
            {randn({7, 17}), randn({5 * wide, 17}), randn({5 * wide}), randn({3, 5}), randn({3})}},
           {"ones", {randn({9, 1}), randn({wide, 1}), randn({wide}), randn({1, 1}), randn({1})}},
           {"no biases", {randn({2, 3, 4}), randn({6 * wide, 4}), none(), randn({4, 6}), none()}},
           {"no rows",
            {randn({0, 4}), randn({6 * wide, 4}), randn({6 * wide}), randn({4, 6}), randn({4})}},
           {"no features",
            {randn({3, 0}), randn({4 * wide, 0}), randn({4 * wide}), randn({2, 4}), randn({2})}},
           {"nothing hidden",
            {randn({3, 2}), randn({0, 2}), randn({0}), randn({2, 0}), randn({2})}}},
      .large = {{"large",
                 {randn({257, 33}), randn({130 * wide, 33}), randn({130 * wide}), randn({65, 130}),
                  randn({65})}}},
      .row_inputs = {0},
      .tolerance = 8,
      .gradient_tolerance = 2,
      .reason =
          "sums of up to 130 terms in f32; in 16 bits the hidden features are rounded before "
          "they are summed, and sums of few of them, or of gradients over rows, cancel",
  };
  if (!gated) {
    info.saved_bytes = [f](Inputs in) {
      int64_t rows = 1;
      for (int i = 0; i + 1 < in[0].rank(); ++i) rows *= in[0].dim(i);
      const int64_t hidden = rows * in[1].dim(0) * size_of(in[0].dtype());
      std::vector<int64_t> bytes = {in[0].nbytes(), in[1].nbytes(), in[3].nbytes(), hidden};
      if (f != Activation::relu) bytes.push_back(hidden);
      return bytes;
    };
  }
  return info;
}

const Registered relu_info = info_of("relu", Activation::relu);
const Registered gelu_erf_info = info_of("gelu_erf", Activation::gelu_erf);
const Registered gelu_tanh_info = info_of("gelu_tanh", Activation::gelu_tanh);
const Registered gelu_sigmoid_info = info_of("gelu_sigmoid", Activation::gelu_sigmoid);
const Registered silu_info = info_of("silu", Activation::silu);

/// A layer's result, added to a sixth input, and the gradients of its inputs, as f64.
std::vector<std::vector<double>> computed(bool fused, Activation f, DType dtype, int64_t rows,
                                          int64_t in, int64_t hidden, int64_t out) {
  const Making making{dtype, dtype, Layout::contiguous, {}};
  std::vector<Tensor> x = {make(randn({rows, in}), Generator{1}, making),
                           make(randn({hidden, in}), Generator{2}, making),
                           make(randn({hidden}), Generator{3}, making),
                           make(randn({out, hidden}), Generator{4}, making),
                           make(randn({out}), Generator{5}, making),
                           make(randn({rows, out}), Generator{7}, making)};
  for (Tensor& leaf : x) set_requires_grad(leaf);
  const Tensor y = fused ? feed_forward(x[0], x[1], x[2], f, x[3], x[4], x[5])
                         : add(x[5], linear(activate(f, linear(x[0], x[1], x[2])), x[3], x[4]));
  backward(y, make(randn({rows, out}), Generator{6}, making));
  std::vector<std::vector<double>> all = {cast(y.detach(), DType::f64).to_vector<double>()};
  for (const Tensor& leaf : x) all.push_back(cast(grad(leaf), DType::f64).to_vector<double>());
  return all;
}

// As do linear() and a sum. The sizes reach every way in which a product is computed: few rows,
// transposed, strips that are kept, sums in 16 bits, segments of k.
TEST(FeedForward, HasTheBitsOfItsThreeOps) {
  const int before = num_threads();
  for (const int threads : {1, 2}) {
    set_num_threads(threads);
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
      for (const auto& [rows, in, hidden, out] : {std::tuple{3, 40, 70, 33},
                                                  {40, 512, 520, 516},
                                                  {700, 70, 300, 40},
                                                  {61, 20, 70, 2100}}) {
        for (const Activation f : {Activation::relu, Activation::gelu_erf, Activation::silu}) {
          if (dtype != DType::f32 && f == Activation::silu) continue;
          SCOPED_TRACE(fmt::format("{} {} rows {} -> {} -> {} {} threads", name_of(dtype), rows, in,
                                   hidden, out, threads));
          EXPECT_EQ(computed(true, f, dtype, rows, in, hidden, out),
                    computed(false, f, dtype, rows, in, hidden, out));
        }
      }
    }
  }
  set_num_threads(before);
}

// The same with OpenBLAS, which computes whole tasks.
TEST(FeedForward, HasTheBitsOfItsThreeOpsOnOpenBlas) {
  const WithMatmulLibrary setting(MatmulLibrary::openblas);
  for (const Activation f : {Activation::relu, Activation::gelu_tanh}) {
    EXPECT_EQ(computed(true, f, DType::f32, 61, 70, 300, 40),
              computed(false, f, DType::f32, 61, 70, 300, 40));
  }
}

// Rows of any strides are added.
TEST(FeedForward, AddsRowsOfAnyStrides) {
  const Making making{DType::f32, DType::f32, Layout::contiguous, {}};
  const Tensor x = make(randn({6, 5}), Generator{1}, making);
  const Tensor w = make(randn({7, 5}), Generator{2}, making);
  const Tensor lying = make(randn({7, 6}), Generator{3}, making);
  const Tensor wide = make(randn({6, 2, 7}), Generator{4}, making);
  for (const Tensor& onto : {transpose(lying, 0, 1), select(wide, 1, 1)}) {
    const Tensor apart = add(onto, linear(x, w)), y = linear(x, w, {}, onto);
    EXPECT_EQ(y.to_vector<float>(), apart.to_vector<float>());
  }
}

// What the messages say names the op and the operand.
TEST(FeedForward, RefusesWeightsThatDoNotFit) {
  const Tensor x = Tensor::zeros({2, 3}), in = Tensor::zeros({5, 3}), out = Tensor::zeros({4, 5});
  const auto refused = [&](const Tensor& w1, const Tensor& b1, const Tensor& w2) {
    try {
      feed_forward(x, w1, b1, Activation::relu, w2, {});
    } catch (const ShapeError& error) {
      return std::string(error.what());
    }
    return std::string("nothing");
  };
  EXPECT_EQ(refused(in, {}, out), "nothing");
  EXPECT_NE(refused(Tensor::zeros({5, 4}), {}, out).find("feed_forward: x has 3 features"),
            std::string::npos);
  EXPECT_NE(refused(in, Tensor::zeros({4}), out).find("feed_forward"), std::string::npos);
  EXPECT_NE(refused(in, {}, Tensor::zeros({4, 6})).find("feed_forward: x has 5 features"),
            std::string::npos);
}

// The sums of a's rows, of every layout: in the packing of columns, and apart.
TEST(Epilogue, SumsOfRows) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    for (const auto& [m, n, k] : {std::tuple{5, 7, 3},
                                  {97, 300, 1030},
                                  {256, 33, 2048},
                                  {13, 700, 513},
                                  {4, 0, 9},
                                  {6, 5, 0}}) {
      for (const bool columns : {true, false}) {
        SCOPED_TRACE(fmt::format("{} {}x{}x{} columns {}", name_of(dtype), m, n, k, columns));
        const Making making{dtype, dtype, Layout::contiguous, {}};
        const Tensor stored = make(columns ? randn({k, m}) : randn({m, k}), Generator{1}, making);
        const Tensor a = columns ? transpose(stored, 0, 1) : stored;
        const Tensor b = make(randn({k, n}), Generator{2}, making);
        Tensor c = Tensor::empty({m, n}, dtype), sums = Tensor::empty({m}, dtype);
        kernels::matmul(c.device(), a.view(), b.view(), c.mut(), {.a_sums = sums.mut()});
        const auto of_a = cast(contiguous(a), DType::f64).to_vector<double>();
        const auto found = cast(sums, DType::f64).to_vector<double>();
        const double error = dtype == DType::f64 ? 1e-12 : dtype == DType::f32 ? 1e-5 : 1e-2;
        for (int64_t i = 0; i < m; ++i) {
          double sum = 0, size = 1;
          for (int64_t p = 0; p < k; ++p) {
            const double x = of_a[static_cast<size_t>(i * k + p)];
            sum += x;
            size += std::abs(x);
          }
          EXPECT_NEAR(found[static_cast<size_t>(i)], sum, error * size);
        }
      }
    }
  }
}

// The sums have the same bits for any number of threads.
TEST(Epilogue, SumsOfRowsForAnyNumberOfThreads) {
  const int before = num_threads();
  std::vector<float> first;
  for (const int threads : {1, 2, 3, 5}) {
    set_num_threads(threads);
    const Making making{DType::f32, DType::f32, Layout::contiguous, {}};
    const Tensor a = make(randn({4100, 200}), Generator{1}, making);
    const Tensor b = make(randn({4100, 260}), Generator{2}, making);
    Tensor c = Tensor::empty({200, 260}), sums = Tensor::empty({200});
    kernels::matmul(c.device(), transpose(a, 0, 1).view(), b.view(), c.mut(),
                    {.a_sums = sums.mut()});
    const std::vector<float> now = sums.to_vector<float>();
    if (threads == 1) first = now;
    EXPECT_EQ(now, first) << threads << " threads";
  }
  set_num_threads(before);
}

}  // namespace
}  // namespace longspan::test
