#include "ops/loss.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "autograd/engine.h"
#include "autograd/record.h"
#include "core/generator.h"
#include "core/memory.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/entmax.h"
#include "ops/index.h"
#include "ops/matmul.h"
#include "ops/reduce.h"
#include "ops/shape.h"
#include "ops/softmax.h"
#include "tests/harness/op_info.h"

namespace longspan::test {
namespace {

/// Scalar arguments of a sample: smoothing, ignored target, reduction, weight of lse^2, cap,
/// gradient.
template <class A>
CrossEntropyOptions loss_options(const A& in) {
  CrossEntropyOptions options;
  if (in.numbers() > 0) options.smoothing = in.number(0);
  if (in.numbers() > 1) options.ignore = in.integer(1);
  if (in.numbers() > 2) options.reduction = static_cast<Reduction>(in.integer(2));
  if (in.numbers() > 3) options.z_loss = in.number(3);
  if (in.numbers() > 4) options.soft_cap = in.number(4);
  if (in.numbers() > 5) options.gradient = static_cast<LossGradient>(in.integer(5));
  return options;
}

/// Computes -sum_j q_j log p_j with q = (1 - s) onehot + s / V, from the definition.
Array reference(const Array& logits, const Array& targets, const CrossEntropyOptions& options) {
  const int64_t V = logits.dim(-1);
  Array each(targets.shape);
  double sum = 0, kept = 0;
  for (int64_t i = 0; i < targets.size(); ++i) {
    const auto t = static_cast<int64_t>(targets[i]);
    if (t == options.ignore) continue;
    double largest = -std::numeric_limits<double>::infinity(), z = 0;
    for (int64_t j = 0; j < V; ++j) largest = std::max(largest, logits[i * V + j]);
    for (int64_t j = 0; j < V; ++j) {
      const double x = logits[i * V + j];
      z += x == largest ? 1 : std::exp(x - largest);
    }
    const double lse = largest + std::log(z);
    double loss = 0;
    for (int64_t j = 0; j < V; ++j) {
      const double q =
          (j == t ? 1 - options.smoothing : 0) + options.smoothing / static_cast<double>(V);
      if (q != 0) loss += q * (lse - logits[i * V + j]);
    }
    if (options.z_loss != 0) loss += options.z_loss * lse * lse;
    each[i] = loss;
    sum += loss;
    ++kept;
  }
  if (options.reduction == Reduction::none) return each;
  if (options.reduction == Reduction::mean) sum /= std::max(1.0, kept);
  return Array({}, std::vector<double>{sum});
}

/// Computes x w^T + b, soft-capped.
Array capped_product(const Array& x, const Array& w, const Array& b, double cap) {
  Shape shape = x.shape;
  const int64_t D = w.dim(1), V = w.dim(0);
  shape[shape.rank() - 1] = V;
  Array y(shape);
  for (int64_t i = 0; i < (V > 0 ? y.size() / V : 0); ++i) {
    for (int64_t j = 0; j < V; ++j) {
      double sum = b ? b[j] : 0;
      for (int64_t k = 0; k < D; ++k) sum += x[i * D + k] * w[j * D + k];
      y[i * V + j] = cap != 0 ? cap * std::tanh(sum / cap) : sum;
    }
  }
  return y;
}

InputSpec ids(const Shape& shape, int64_t classes) { return integers(shape, 0, classes - 1); }

struct Variant {
  std::string name;
  std::vector<double> numbers;
};
const std::vector<Variant> variants = {{"", {}},
                                       {" smooth", {0.1}},
                                       {" ignore", {0, 1}},
                                       {" smooth ignore", {0.3, 0}},
                                       {" sum", {0, -100, 1}},
                                       {" each", {0.2, 2, 2}},
                                       {" uniform", {1}}};

std::vector<Sample> logits_samples() {
  std::vector<Sample> list;
  for (const Variant& v : variants) {
    list.push_back({"rows" + v.name, {randn({5, 7}), ids({5}, 7)}, v.numbers});
    list.push_back({"tokens" + v.name, {randn({2, 3, 17}), ids({2, 3}, 17)}, v.numbers});
    list.push_back({"wide" + v.name, {3 * randn({2, 65}), ids({2}, 65)}, v.numbers});
    list.push_back({"one" + v.name, {randn({1, 3}), ids({1}, 3)}, v.numbers});
  }
  list.push_back({"vector", {randn({9}), ids({}, 9)}});
  list.push_back({"one class", {randn({4, 1}), ids({4}, 1)}});
  list.push_back({"no tokens", {randn({0, 3}), ids({0}, 3)}});
  list.push_back({"huge", {100.0 * randn({4, 9}), ids({4}, 9)}});
  list.push_back({"shifted", {randn({4, 9}) + 50.0, ids({4}, 9)}});
  list.push_back({"infinite",
                  {constant(values({3, 3}, {inf, 0, 1, -inf, 2, inf, -inf, 1, 2})),
                   as(DType::i64, values({3}, {1, 1, 2}))},
                  {0, -100, 2}});
  list.push_back({"all ignored", {randn({3, 5}), values({3}, {1, 1, 1})}, {0, 1}});
  list.back().inputs[1].fixed = true;
  list.back().inputs[1].dtype = DType::i32;
  return list;
}

std::vector<Sample> loss_offset_samples() {
  std::vector<Sample> list;
  for (const Variant& v : variants) {
    list.push_back({"rows" + v.name, {randn({5, 7}), ids({5}, 7)}, v.numbers});
    list.push_back({"wide" + v.name, {2 * randn({2, 65}), ids({2}, 65)}, v.numbers});
    list.push_back({"two equal" + v.name, {full({1, 2}, 0), ids({1}, 2)}, v.numbers});
  }
  return list;
}

const Registered cross_entropy_info = OpInfo{
    .name = "cross_entropy",
    .run = [](Inputs in) { return cross_entropy(in[0], in[1], loss_options(in)); },
    .reference = [](Arrays in) { return reference(in[0], in[1], loss_options(in)); },
    .samples = logits_samples(),
    .large = {{"bytes", {randn({700, 256}), as(DType::u8, ids({700}, 256))}},
              {"words", {randn({9, 5003}), as(DType::i32, ids({9}, 5003))}, {0.1}}},
    .rejects = {rejects<ShapeError>("targets", {randn({3, 4}), ids({4}, 4)},
                                    "targets must have shape [3]"),
                rejects<DTypeError>("floating targets", {randn({3, 4}), randn({3})}, "integer"),
                rejects<DTypeError>("integer logits", {iota({3, 4}), ids({3}, 4)}, "floating"),
                rejects<ShapeError>("scalar", {randn({}), ids({}, 3)}, "rank"),
                rejects<ValueError>("too large",
                                    {randn({3, 4}), as(DType::i64, values({3}, {0, 4, 1}))},
                                    "target 4 at position 1 is not in [0, 4)"),
                rejects<ValueError>("negative",
                                    {randn({3, 4}), as(DType::i64, values({3}, {0, 1, -1}))},
                                    "target -1 at position 2"),
                rejects<ValueError>("smoothing", {randn({3, 4}), ids({3}, 4)}, "smoothing", {1.5})},
    .saved_bytes =
        [](Inputs in) {
          const bool by_rows = in[0].dtype() == DType::f16 || in[0].dtype() == DType::bf16 ||
                               loss_options(in).reduction == Reduction::none;
          std::vector<int64_t> bytes = {in[0].nbytes()};
          if (by_rows) bytes.push_back(in[1].nbytes());
          return bytes;
        },
    .offset = {.inputs = {0}, .samples = loss_offset_samples()},
    .nan = {.inputs = {0}},
    .expandable = false,
};

const std::vector<Variant> linear_variants = {{" z", {0, -100, 0, 0.3}},
                                              {" z smooth each", {0.2, 2, 2, 1e-2}},
                                              {" cap", {0, -100, 0, 0, 1.5}},
                                              {" z cap smooth", {0.1, 1, 0, 0.2, 2}}};

std::vector<Sample> linear_samples() {
  std::vector<Sample> list;
  std::vector<Variant> all = variants;
  all.insert(all.end(), linear_variants.begin(), linear_variants.end());
  for (const Variant& v : all) {
    list.push_back(
        {"rows" + v.name, {randn({5, 3}), randn({7, 3}), randn({7}), ids({5}, 7)}, v.numbers});
    list.push_back({"tokens" + v.name,
                    {randn({2, 3, 5}), randn({17, 5}), none(), ids({2, 3}, 17)},
                    v.numbers});
  }
  list.push_back({"one", {randn({1, 1}), randn({2, 1}), randn({2}), ids({1}, 2)}});
  list.push_back({"no tokens", {randn({0, 3}), randn({4, 3}), randn({4}), ids({0}, 4)}});
  return list;
}

/// Whole numbers times numbers on a grid give logits on that grid, to which biases add an offset.
std::vector<Sample> linear_offset_samples() {
  const auto whole = [](const Shape& shape) {
    InputSpec spec = randn(shape);
    spec.value = [f = spec.value](Generator gen, int64_t i) { return std::round(f(gen, i)); };
    return spec;
  };
  std::vector<Sample> list;
  std::vector<Variant> all = variants;
  all.push_back({" in forward", {0.1, -100, 1, 0, 0, 1}});
  for (const Variant& v : all) {
    list.push_back(
        {"rows" + v.name, {whole({5, 3}), randn({7, 3}), randn({7}), ids({5}, 7)}, v.numbers});
    list.push_back({"two equal" + v.name,
                    {full({1, 1}, 1), full({2, 1}, 0), full({2}, 0), ids({1}, 2)},
                    v.numbers});
  }
  return list;
}

const Registered linear_cross_entropy_info = OpInfo{
    .name = "linear_cross_entropy",
    .run =
        [](Inputs in) {
          return linear_cross_entropy(in[0], in[1], in[2], in[3], loss_options(in));
        },
    .reference =
        [](Arrays in) {
          const CrossEntropyOptions options = loss_options(in);
          return reference(capped_product(in[0], in[1], in[2], options.soft_cap), in[3], options);
        },
    .samples = linear_samples(),
    // More classes, and more tokens, than a tile holds.
    .large = {{"many classes",
               {randn({9, 8}), randn({9001, 8}), randn({9001}), ids({9}, 9001)},
               {0.1}},
              {"many tokens", {randn({2311, 16}), randn({256, 16}), none(), ids({2311}, 256)}}},
    .rejects = {rejects<ShapeError>("features", {randn({3, 4}), randn({5, 3}), none(), ids({3}, 5)},
                                    "x has 4 features, weight takes 3"),
                rejects<ShapeError>("bias", {randn({3, 4}), randn({5, 4}), randn({4}), ids({3}, 5)},
                                    "bias must have shape [5]"),
                rejects<DTypeError>(
                    "mixed", {randn({3, 4}), as(DType::i64, iota({5, 4})), none(), ids({3}, 5)},
                    "dtypes differ"),
                rejects<ValueError>(
                    "too large",
                    {randn({1, 4}), randn({5, 4}), none(), as(DType::i64, values({1}, {5}))},
                    "target 5 at position 0")},
    .saved_bytes =
        [](Inputs in) {
          const int64_t sums = in[0].dtype() == DType::f64 ? 8 : 4;
          const auto ignore = static_cast<double>(loss_options(in).ignore);
          int64_t rows = 0;
          for (const double t : to_array(in[3]).values) rows += t != ignore ? 1 : 0;
          std::vector<int64_t> bytes = {in[0].nbytes(), in[1].nbytes(), in[3].nbytes(),
                                        rows * 2 * sums};
          if (in[2]) bytes.push_back(in[2].nbytes());
          return bytes;
        },
    .offset = {.inputs = {2}, .samples = linear_offset_samples()},
    .nan = {.inputs = {0, 2}},
    .expandable = false,
};

/// Scalar arguments of a sample: weight of positive targets, reduction.
template <class A>
BinaryCrossEntropyOptions binary_options_of(const A& in) {
  BinaryCrossEntropyOptions options;
  if (in.numbers() > 0) options.positive_weight = in.number(0);
  if (in.numbers() > 1) options.reduction = static_cast<Reduction>(in.integer(1));
  return options;
}

Array reduced_loss(Array each, Reduction reduction) {
  if (reduction == Reduction::none) return each;
  double sum = 0;
  for (const double x : each.values) sum += x;
  if (reduction == Reduction::mean) sum /= static_cast<double>(std::max<int64_t>(1, each.size()));
  return Array({}, std::vector<double>{sum});
}

/// Scalar arguments of a sample: reduction.
std::vector<Sample> squared_samples() {
  std::vector<Sample> list;
  for (const double reduction : {0.0, 1.0, 2.0}) {
    for (const Shape& shape : {Shape{5, 7}, Shape{}, Shape{1}, Shape{2, 3, 17}, Shape{0, 3}}) {
      list.push_back({fmt::format("{} {}", to_string(shape), reduction),
                      {randn(shape), randn(shape)},
                      {reduction}});
    }
  }
  return list;
}

const Registered mse_info = OpInfo{
    .name = "mse",
    .run = [](Inputs in) { return mse(in[0], in[1], static_cast<Reduction>(in.integer(0))); },
    .reference =
        [](Arrays in) {
          return reduced_loss(
              naive::zip(in[0], in[1], [](double x, double t) { return (x - t) * (x - t); }),
              static_cast<Reduction>(in.integer(0)));
        },
    .samples = squared_samples(),
    .large = {{"mean", {randn({300, 257}), randn({300, 257})}, {0}},
              {"each", {randn({300, 257}), constant(randn({300, 257}))}, {2}}},
    .rejects = {rejects<ShapeError>("shapes that would broadcast", {randn({3, 1}), randn({3, 4})},
                                    "shapes differ: [3, 1] and [3, 4]", {0}),
                rejects<DTypeError>("dtypes",
                                    {as(DType::f32, randn({3})), as(DType::f64, randn({3}))},
                                    "dtypes differ", {0}),
                rejects<DTypeError>("integers", {iota({3}), iota({3})}, "must be floating", {0})},
    .saved_bytes =
        [](Inputs in) {
          return std::vector<int64_t>{in[0].nbytes(), in[1].nbytes()};
        },
};

InputSpec probabilities(const Shape& shape) { return constant(uniform(shape, 0, 1)); }
/// Zeros and ones of the dtype under test.
InputSpec labels(const Shape& shape) {
  InputSpec r = constant(mask(shape));
  r.fixed = false;
  return r;
}

std::vector<Sample> binary_samples() {
  std::vector<Sample> list;
  for (const double weight : {1.0, 8.0}) {
    for (const double reduction : {0.0, 1.0, 2.0}) {
      const std::string name = fmt::format(" {} {}", weight, reduction);
      for (const Shape& shape : {Shape{5, 7}, Shape{2, 3, 17}}) {
        list.push_back({"labels " + to_string(shape) + name,
                        {3 * randn(shape), labels(shape)},
                        {weight, reduction}});
      }
      list.push_back({"soft" + name, {randn({5, 7}), probabilities({5, 7})}, {weight, reduction}});
    }
  }
  list.push_back({"scalar", {randn({}), probabilities({})}});
  list.push_back({"empty", {randn({0, 3}), probabilities({0, 3})}});
  list.push_back(
      {"far", {values({4}, {-80, 80, -30, 30}), constant(values({4}, {0, 1, 1, 0}))}, {1, 2}});
  return list;
}

const Registered binary_cross_entropy_info = OpInfo{
    .name = "binary_cross_entropy_with_logits",
    .run =
        [](Inputs in) {
          return binary_cross_entropy_with_logits(in[0], in[1], binary_options_of(in));
        },
    .reference =
        [](Arrays in) {  // -w t ln p - (1 - t) ln(1 - p), with ln p = -ln(1 + e^-z)
          const BinaryCrossEntropyOptions options = binary_options_of(in);
          const auto each = [&](double z, double t) {
            const auto softplus = [](double x) {
              return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x)));
            };
            return options.positive_weight * t * softplus(-z) + (1 - t) * softplus(z);
          };
          return reduced_loss(naive::zip(in[0], in[1], each), options.reduction);
        },
    .samples = binary_samples(),
    .large = {{"mean", {randn({300, 257}), probabilities({300, 257})}, {8}}},
    .rejects = {rejects<ShapeError>("shapes", {randn({3, 4}), probabilities({4})}, "shapes differ"),
                rejects<DTypeError>("integer targets", {randn({3}), mask({3})},
                                    "targets must be floating"),
                rejects<ValueError>("target above 1", {randn({3}), values({3}, {0, 1, 1.5})},
                                    "target 1.5 at position 2 is not in [0, 1]"),
                rejects<ValueError>("target NaN", {randn({2}), values({2}, {NAN, 1})},
                                    "target nan at position 0"),
                rejects<ValueError>("negative weight", {randn({2}), probabilities({2})},
                                    "a positive weight of -1", {-1})},
    .saved_bytes =
        [](Inputs in) {
          return std::vector<int64_t>{in[0].nbytes(), in[1].nbytes()};
        },
};

TEST(Memory, NoAllocationHoldsTokensTimesClasses) {
  const int64_t V = 8192, D = 8;
  for (const LossGradient gradient : {LossGradient::recompute, LossGradient::in_forward}) {
    const auto peak = [&](int64_t T) {
      const Tensor targets = Tensor::zeros({T}, DType::i32);
      Tensor x = Tensor::zeros({T, D}), w = Tensor::zeros({V, D});
      set_requires_grad(x);
      set_requires_grad(w);
      MemoryTracker& tracker = memory_tracker();
      tracker.reset_peak();
      const int64_t before = tracker.live().total();
      backward(linear_cross_entropy(x, w, {}, targets, {.gradient = gradient}));
      return tracker.peak().total() - before;
    };
    const bool whole = gradient == LossGradient::in_forward;  // 2^24 / V tokens at a time
    const int64_t T = whole ? 16384 : 4096;
    EXPECT_LT(peak(T), T * V * 4 / (whole ? 7 : 16));
    // Doubling the tokens adds memory for their rows, and none that grows with V.
    EXPECT_LT(peak(2 * T) - peak(T), T * 4 * (4 * D + 16));
  }
}

/// Returns random values in (-1/2, 1/2).
Tensor some(const Shape& shape, uint64_t key, DType dtype) {
  std::vector<double> v(static_cast<size_t>(numel(shape)));
  for (size_t i = 0; i < v.size(); ++i) {
    v[i] = to_uniform(philox_word(key, static_cast<int64_t>(i))) - 0.5;
  }
  return cast(Tensor::from(v, shape), dtype);
}

/// Returns the loss, and the gradients of x, weight and bias for an upstream gradient of dy.
std::vector<Tensor> head_of(int64_t T, int64_t V, DType dtype, const CrossEntropyOptions& options,
                            const Tensor& targets, double dy = 3) {
  const int64_t D = 24;
  Tensor x = some({T, D}, 1, dtype), w = some({V, D}, 2, dtype), b = some({V}, 3, dtype);
  for (Tensor* leaf : {&x, &w, &b}) set_requires_grad(*leaf);
  const Tensor loss = linear_cross_entropy(x, w, b, targets, options);
  backward(loss, full({}, dy, loss.dtype()));
  return {loss.detach(), grad(x), grad(w), grad(b)};
}

Tensor modulo(int64_t T, int64_t V, int64_t ignored_every) {
  std::vector<int32_t> ids(static_cast<size_t>(T));
  for (int64_t i = 0; i < T; ++i) {
    ids[static_cast<size_t>(i)] =
        static_cast<int32_t>(ignored_every > 0 && i % ignored_every == 0 ? -100 : i * 7 % V);
  }
  return Tensor::from(ids, {T});
}

TEST(Memory, GradientsInForwardAreThoseOfBackward) {
  for (const int64_t V : {33, 9001}) {  // one tile of classes, or three
    const Tensor targets = modulo(700, V, 3);
    for (const double cap : {0.0, 2.0}) {
      CrossEntropyOptions options{.smoothing = 0.1, .z_loss = 0.01, .soft_cap = cap};
      const auto expected = head_of(700, V, DType::f64, options, targets);
      options.gradient = LossGradient::in_forward;
      const auto got = head_of(700, V, DType::f64, options, targets);
      for (size_t i = 0; i < got.size(); ++i) {
        const std::vector<double> a = flatten(got[i]).to_vector<double>(),
                                  e = flatten(expected[i]).to_vector<double>();
        for (size_t j = 0; j < a.size(); ++j) ASSERT_NEAR(a[j], e[j], 1e-14) << i << " " << j;
      }
    }
  }
  CrossEntropyOptions each{.reduction = Reduction::none, .gradient = LossGradient::in_forward};
  EXPECT_THROW(head_of(5, 7, DType::f64, each, modulo(5, 7, 0)), ValueError);
}

/// Up to 4,096 classes the gradients in forward have the bits of those in backward, need no more
/// memory, and are what `automatic` takes. Beyond them it recomputes.
TEST(Memory, AutomaticGradientsRaiseNoPeak) {
  const auto run = [](int64_t V, int64_t T, DType dtype, LossGradient gradient, double dy) {
    MemoryTracker& tracker = memory_tracker();
    const Tensor targets = modulo(T, V, 5);
    tracker.reset_peak();
    const int64_t before = tracker.live().total();
    const auto got = head_of(T, V, dtype, {.smoothing = 0.1, .gradient = gradient}, targets, dy);
    return std::pair(got, tracker.peak().total() - before);
  };
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const auto& [V, T] : {std::pair<int64_t, int64_t>{33, 700}, {256, 2100}, {4096, 300}}) {
      SCOPED_TRACE(fmt::format("{} {} {}", name_of(dtype), V, T));
      const auto [expected, most] = run(V, T, dtype, LossGradient::recompute, 2);
      for (const LossGradient how : {LossGradient::in_forward, LossGradient::automatic}) {
        if (dtype == DType::f16 && how == LossGradient::in_forward) continue;
        const auto [got, peak] = run(V, T, dtype, how, 2);
        EXPECT_LE(peak, most);
        for (size_t i = 0; i < got.size(); ++i) {
          EXPECT_EQ(flatten(cast(got[i], DType::f64)).to_vector<double>(),
                    flatten(cast(expected[i], DType::f64)).to_vector<double>())
              << i;
        }
      }
    }
  }
  const auto saved = [](int64_t V, DType dtype, Reduction reduction) {
    Tensor x = some({20, 8}, 1, dtype), w = some({V, 8}, 2, dtype);
    for (Tensor* leaf : {&x, &w}) set_requires_grad(*leaf);
    const Tensor loss = linear_cross_entropy(
        x, w, {}, modulo(20, V, 0), {.reduction = reduction, .gradient = LossGradient::automatic});
    return x.storage().category() == Category::saved ? "x" : "gradients";
  };
  EXPECT_STREQ(saved(4096, DType::f32, Reduction::mean), "gradients");
  EXPECT_STREQ(saved(4097, DType::f32, Reduction::mean), "x");
  EXPECT_STREQ(saved(100, DType::f64, Reduction::sum), "gradients");
  EXPECT_STREQ(saved(100, DType::f16, Reduction::mean), "x");
  EXPECT_STREQ(saved(100, DType::f32, Reduction::none), "x");
}

/// The upstream gradient may exceed the range of f16 when the gradients of the inputs do not.
TEST(Memory, GradientsInForwardTakeFactorsBeyondTheirDtype) {
  Tensor x = some({64, 24}, 1, DType::f16);
  set_requires_grad(x);
  const Tensor w = some({31, 24}, 2, DType::f16), targets = modulo(64, 31, 0);
  std::vector<Tensor> dx;
  for (const LossGradient gradient : {LossGradient::in_forward, LossGradient::recompute}) {
    backward(linear_cross_entropy(x, w, {}, targets, {.gradient = gradient}),
             longspan::full({}, 131072.0, DType::f32));
    dx.push_back(flatten(cast(grad(x), DType::f64)));
    set_grad(x, {});
  }
  const auto got = dx[0].to_vector<double>(), expected = dx[1].to_vector<double>();
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], 8) << i;  // of 2,000
}

TEST(Memory, IgnoredRowsGiveNothing) {
  for (const LossGradient gradient : {LossGradient::recompute, LossGradient::in_forward}) {
    const CrossEntropyOptions options{.z_loss = 0.1, .soft_cap = 3, .gradient = gradient};
    const auto none = head_of(9, 31, DType::f32, options, modulo(9, 31, 1));
    for (const Tensor& t : none) {
      for (const float v : flatten(t).to_vector<float>()) EXPECT_EQ(v, 0.0f);
    }
    const auto some_rows = head_of(9, 31, DType::f32, options, modulo(9, 31, 4));
    const std::vector<float> dx = flatten(some_rows[1]).to_vector<float>();
    for (size_t i = 0; i < dx.size(); ++i) EXPECT_EQ(dx[i] == 0.0f, i / 24 % 4 == 0) << i;
  }
}

std::vector<float> floats(const Tensor& x) { return flatten(x).to_vector<float>(); }

/// Returns the given rows of x, [rows, ...].
Tensor taken_rows(const Tensor& x, const std::vector<int64_t>& rows) {
  return take(x.detach(), Tensor::from(rows, {static_cast<int64_t>(rows.size())}));
}

// More classes than a tile holds, and their first, middle or last one is NaN or inf.
TEST(LinearCrossEntropy, PassesOnWhatIsNotFiniteFromEveryTileOfClasses) {
  constexpr int64_t V = 9001;
  for (const int64_t at : {0, 4500, 9000}) {
    std::vector<float> bias(V, 0);
    for (const float value :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      bias[static_cast<size_t>(at)] = value;
      for (const CrossEntropyOptions& options :
           {CrossEntropyOptions{}, CrossEntropyOptions{.smoothing = 0.1},
            CrossEntropyOptions{.gradient = LossGradient::in_forward}}) {
        const double smoothing = options.smoothing;
        Tensor x = some({2, 8}, 1, DType::f32);
        set_requires_grad(x);
        const Tensor loss =
            linear_cross_entropy(x, some({V, 8}, 2, DType::f32), Tensor::from(bias, {V}),
                                 Tensor::from<int64_t>({7, 8000}, {2}), options);
        EXPECT_TRUE(std::isnan(value) ? std::isnan(loss.item()) : !std::isfinite(loss.item()))
            << at << " " << loss.item();
        if (smoothing == 0 && !std::isnan(value)) {
          EXPECT_EQ(loss.item(), inf);
        }
        backward(loss);
        for (const float v : floats(grad(x))) EXPECT_TRUE(std::isnan(v)) << at;
      }
    }
  }
}

// Two equal logits: ln 2, and a gradient of a half for each, at every offset.
TEST(CrossEntropy, OfTwoEqualLogitsIsLnTwoAtEveryOffset) {
  for (const float c : {0.0f, 1e3f, 1e4f, 1e6f, 1e8f}) {
    const Tensor t = Tensor::from(std::vector<int64_t>{0}, {1});
    Tensor z = Tensor::from(std::vector<float>{c, c}, {1, 2});
    set_requires_grad(z);
    EXPECT_FLOAT_EQ(floats(log_softmax(z))[0], -std::log(2.0f)) << c;
    EXPECT_FLOAT_EQ(floats(entmax_loss(z, t, 1.0))[0], std::log(2.0f)) << c;
    EXPECT_FLOAT_EQ(floats(entmax_loss(z, t, 1.5))[0], floats(entmax_loss(z - c, t, 1.5))[0]) << c;
    Tensor loss = cross_entropy(z, t);
    EXPECT_FLOAT_EQ(floats(loss)[0], std::log(2.0f)) << c;
    backward(loss);
    EXPECT_EQ(floats(grad(z)), (std::vector<float>{-0.5f, 0.5f})) << c;
    set_grad(z, {});
    backward(sum(logsumexp(z, -1)));
    EXPECT_EQ(floats(grad(z)), (std::vector<float>{0.5f, 0.5f})) << c;
    for (const LossGradient gradient : {LossGradient::recompute, LossGradient::in_forward}) {
      Tensor b = longspan::full({2}, static_cast<double>(c));
      set_requires_grad(b);
      loss = linear_cross_entropy(ones({1, 1}), zeros({2, 1}), b, t, {.gradient = gradient});
      EXPECT_FLOAT_EQ(floats(loss)[0], std::log(2.0f)) << c;
      backward(loss);
      EXPECT_EQ(floats(grad(b)), (std::vector<float>{-0.5f, 0.5f})) << c;
    }
  }
}

TEST(LinearCrossEntropy, RowsWithoutColumnsHaveTheLossOfEqualClasses) {
  const Tensor x = Tensor::zeros({2, 0}), weight = Tensor::zeros({3, 0});
  const Tensor targets = Tensor::from<int64_t>({1, -100}, {2});
  EXPECT_NEAR(linear_cross_entropy(x, weight, {}, targets).item(), std::log(3.0), 1e-6);
}

// Ignored rows take part in no product, even if they hold NaN. Losses and all gradients are, bit
// for bit, those of the other rows alone.
TEST(Memory, IgnoredRowsAreLeftOut) {
  constexpr int64_t T = 300, D = 24;
  std::vector<int64_t> counted;
  for (int64_t i = 0; i < T; ++i) {
    if (i % 3 != 0) counted.push_back(i);
  }
  const auto run = [](const Tensor& x, int64_t V, const Tensor& targets, const Tensor& dy,
                      const CrossEntropyOptions& options) {
    std::vector<Tensor> leaves{x.detach(), some({V, D}, 2, DType::f32), some({V}, 3, DType::f32)};
    for (Tensor& leaf : leaves) set_requires_grad(leaf);
    const Tensor loss = linear_cross_entropy(leaves[0], leaves[1], leaves[2], targets, options);
    backward(loss, dy);
    return std::vector<Tensor>{loss.detach(), grad(leaves[0]), grad(leaves[1]), grad(leaves[2])};
  };
  for (const int64_t V : {33, 9001}) {
    std::vector<float> values = floats(some({T, D}, 1, DType::f32));
    for (size_t i = 0; i < values.size(); ++i) {
      if (i / D % 3 == 0) values[i] = NAN;
    }
    const Tensor x = Tensor::from(values, {T, D}), targets = modulo(T, V, 3);
    for (const bool each : {false, true}) {
      for (const LossGradient gradient : {LossGradient::recompute, LossGradient::in_forward}) {
        if (each && gradient == LossGradient::in_forward) continue;
        const CrossEntropyOptions options{.smoothing = 0.1,
                                          .reduction = each ? Reduction::none : Reduction::mean,
                                          .z_loss = 0.01,
                                          .soft_cap = 3,
                                          .gradient = gradient};
        const Tensor dy = each ? some({T}, 5, DType::f32) : longspan::full({}, 3.0);
        const auto all = run(x, V, targets, dy, options);
        const auto own = run(taken_rows(x, counted), V, taken_rows(targets, counted),
                             each ? taken_rows(dy, counted) : dy, options);
        EXPECT_EQ(floats(each ? taken_rows(all[0], counted) : all[0]), floats(own[0]));
        EXPECT_EQ(floats(taken_rows(all[1], counted)), floats(own[1]));
        EXPECT_EQ(floats(all[2]), floats(own[2]));
        EXPECT_EQ(floats(all[3]), floats(own[3]));
        const std::vector<float> dx = floats(all[1]);
        for (size_t i = 0; i < dx.size(); ++i) {
          if (i / D % 3 == 0) {
            ASSERT_EQ(dx[i], 0.0f) << i;
          }
        }
      }
    }
  }
}

// Losses and dh computed in several tiles of tokens have the bits of one tile: of all rows at once
// (gradients in forward) and of one row alone.
TEST(Memory, ChunksOfTokensHaveTheBitsOfOne) {
  constexpr int64_t T = 300, V = 4000;  // 131 tokens to a tile
  const Tensor targets = modulo(T, V, 7);
  CrossEntropyOptions options{.smoothing = 0.1, .reduction = Reduction::sum, .z_loss = 0.01};
  const auto splits = head_of(T, V, DType::f32, options, targets, 1);
  options.gradient = LossGradient::in_forward;
  const auto one = head_of(T, V, DType::f32, options, targets, 1);
  EXPECT_EQ(floats(splits[0]), floats(one[0]));
  EXPECT_EQ(floats(splits[1]), floats(one[1]));

  options.gradient = LossGradient::recompute;
  options.reduction = Reduction::none;
  const Tensor x = some({T, 24}, 1, DType::f32), w = some({V, 24}, 2, DType::f32);
  const std::vector<float> all = floats(linear_cross_entropy(x, w, {}, targets, options));
  for (const int64_t i : {0, 1, 130, 131, 262, 299}) {
    const Tensor own =
        linear_cross_entropy(taken_rows(x, {i}), w, {}, taken_rows(targets, {i}), options);
    EXPECT_EQ(floats(own)[0], all[static_cast<size_t>(i)]) << i;
  }
}

TEST(Memory, LargeLogitsAreStable) {
  for (const LossGradient gradient : {LossGradient::recompute, LossGradient::in_forward}) {
    Tensor x = Tensor::from(std::vector<float>{1e4f, -1e4f, 0}, {3, 1});
    Tensor w = Tensor::from(std::vector<float>{1, -1}, {2, 1});
    set_requires_grad(x);
    const Tensor loss = linear_cross_entropy(x, w, {}, modulo(3, 2, 0), {.gradient = gradient});
    // With targets 0, 1, 0 the losses are 0, 0 and ln 2.
    EXPECT_NEAR(loss.item(), std::log(2.0) / 3, 1e-6);
    backward(loss);
    for (const float v : flatten(grad(x)).to_vector<float>()) EXPECT_TRUE(std::isfinite(v));
  }
}

TEST(Memory, TiedWeightsGetBothGradients) {
  const Tensor ids = modulo(11, 13, 0);
  std::vector<Tensor> grads;
  for (const bool dense : {true, false}) {
    Tensor table = some({13, 6}, 5, DType::f64);
    set_requires_grad(table);
    const Tensor x = embedding(table, ids);
    backward(dense
                 ? cross_entropy(linear(x, table), ids)
                 : linear_cross_entropy(x, table, {}, ids, {.gradient = LossGradient::in_forward}));
    grads.push_back(grad(table));
  }
  const auto a = flatten(grads[0]).to_vector<double>(), b = flatten(grads[1]).to_vector<double>();
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-15);
}

/// Returns the gradients of the logits for an upstream gradient of dy, of each of `passes` backward
/// passes. All but the last one retain the graph.
std::vector<std::vector<double>> logits_gradients(const Tensor& z, const Tensor& targets,
                                                  const Tensor& dy,
                                                  const CrossEntropyOptions& options, int passes) {
  Tensor x = z.detach();
  set_requires_grad(x);
  const Tensor loss = cross_entropy(x, targets, options);
  std::vector<std::vector<double>> all;
  for (int pass = 1; pass <= passes; ++pass) {
    backward(loss, dy, {.retain = pass < passes});
    all.push_back(flatten(cast(grad(x), DType::f64)).to_vector<double>());
    set_grad(x, {});
  }
  return all;
}
std::vector<double> logits_gradient(const Tensor& z, const Tensor& targets, const Tensor& dy,
                                    const CrossEntropyOptions& options) {
  return logits_gradients(z, targets, dy, options, 1)[0];
}

// Backward overwrites what forward has saved, unless another backward may follow.
TEST(CrossEntropy, RetainedGraphsGiveTheSameGradientAgain) {
  const Tensor z = some({9, 65}, 1, DType::f32), targets = modulo(9, 65, 4);
  for (const Reduction reduction : {Reduction::mean, Reduction::sum, Reduction::none}) {
    const CrossEntropyOptions options{.smoothing = 0.1, .reduction = reduction};
    for (const double factor : {3.0, 1.0}) {
      const Tensor dy = full(reduction == Reduction::none ? Shape{9} : Shape{}, factor, DType::f32);
      const std::vector<double> expected = logits_gradient(z, targets, dy, options);
      // The memory that the first pass gets holds something else.
      { const Tensor other = full({9, 65}, 7, DType::f32); }
      for (const auto& got : logits_gradients(z, targets, dy, options, 3)) {
        EXPECT_EQ(got, expected);
      }
    }
  }
}

TEST(LinearCrossEntropy, RetainedGraphsGiveTheSameGradientAgain) {
  const Tensor targets = modulo(9, 31, 4), dy = full({}, 3.0, DType::f32);
  const CrossEntropyOptions options{.gradient = LossGradient::in_forward};
  std::vector<std::vector<float>> got;
  for (const bool retain : {true, false}) {
    Tensor x = some({9, 24}, 1, DType::f32), w = some({31, 24}, 2, DType::f32);
    for (Tensor* leaf : {&x, &w}) set_requires_grad(*leaf);
    const Tensor loss = linear_cross_entropy(x, w, {}, targets, options);
    for (int pass = 0; pass < (retain ? 3 : 1); ++pass) {
      for (Tensor* leaf : {&x, &w}) set_grad(*leaf, {});
      backward(loss, dy, {.retain = retain});
    }
    got.push_back(floats(grad(x)));
    got.push_back(floats(grad(w)));
  }
  EXPECT_EQ(got[0], got[2]);
  EXPECT_EQ(got[1], got[3]);
}

// The gradient of an ignored row is 0, also if that of its loss is not finite.
TEST(CrossEntropy, IgnoredRowsTakeNoUpstreamGradient) {
  const Tensor dy = Tensor::from(std::vector<float>{NAN, 2, 2}, {3});
  const auto dz = logits_gradient(some({3, 5}, 1, DType::f32), modulo(3, 5, 3), dy,
                                  {.reduction = Reduction::none});
  for (size_t i = 0; i < dz.size(); ++i) EXPECT_EQ(dz[i] == 0, i < 5) << dz[i];
}

// Divided by the number of rows, most of these gradients are below the range of f16; times dy they
// are not.
TEST(CrossEntropy, MeansOverManyRowsKeepTheirGradientsInF16) {
  const Tensor z = 8 * some({4096, 16}, 1, DType::f16), targets = modulo(4096, 16, 0);
  const Tensor dy = full({}, 65536.0, DType::f32);
  const auto got = logits_gradient(z, targets, dy, {}),
             expected =
                 logits_gradient(cast(z, DType::f64), targets, full({}, 65536.0, DType::f64), {});
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], expected[i], 1e-3 * std::abs(expected[i]) + 1e-6) << i;
  }
}

// Forward and backward hold one tensor of the size of the logits.
TEST(Memory, CrossEntropyHoldsItsGradientOnly) {
  Tensor z = Tensor::zeros({512, 256});
  set_requires_grad(z);
  const Tensor targets = modulo(512, 256, 0);
  MemoryTracker& tracker = memory_tracker();
  tracker.reset_peak();
  const int64_t before = tracker.live().total();
  backward(cross_entropy(z, targets), full({}, 2.0, DType::f32));
  EXPECT_LT(tracker.peak().total() - before, z.nbytes() + 512 * 40);
}

TEST(LinearCrossEntropy, EqualsLinearThenCrossEntropy) {
  // With one tile both ops compute the same products, exponentials and sums, so that losses and
  // gradients have the same bits.
  std::vector<float> xs(65 * 16), ws(33 * 16);
  for (size_t i = 0; i < xs.size(); ++i)
    xs[i] = to_uniform(philox_word(1, static_cast<int64_t>(i))) - 0.5f;
  for (size_t i = 0; i < ws.size(); ++i)
    ws[i] = to_uniform(philox_word(2, static_cast<int64_t>(i))) - 0.5f;
  std::vector<int32_t> ts(65);
  for (size_t i = 0; i < ts.size(); ++i) ts[i] = static_cast<int32_t>(i % 33);
  Tensor grads[2], losses[2];
  for (int i = 0; i < 2; ++i) {
    Tensor x = Tensor::from(xs, {65, 16}), w = Tensor::from(ws, {33, 16});
    set_requires_grad(x);
    const Tensor t = Tensor::from(ts, {65});
    losses[i] = i == 0 ? linear_cross_entropy(x, w, {}, t) : cross_entropy(linear(x, w), t);
    backward(losses[i]);
    grads[i] = grad(x);
  }
  EXPECT_EQ(losses[0].to_vector<float>(), losses[1].to_vector<float>());
  EXPECT_EQ(grads[0].to_vector<float>(), grads[1].to_vector<float>());
}

}  // namespace
}  // namespace longspan::test
