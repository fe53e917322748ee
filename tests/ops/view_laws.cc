// Ops give the same results for any view as for its copy, forward and backward.
#include <gtest/gtest.h>

#include <cmath>

#include "autograd/engine.h"
#include "autograd/mode.h"
#include "autograd/node.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/index.h"
#include "ops/loss.h"
#include "ops/matmul.h"
#include "ops/norm.h"
#include "ops/pool.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/shape.h"
#include "ops/softmax.h"
#include "ops/sort.h"

namespace longspan {
namespace {

/// A sequence of pseudorandom integers below `n`.
class Dice {
 public:
  int64_t operator()(int64_t n) { return philox_word(12345, i_++) % n; }

 private:
  int64_t i_ = 0;
};

/// Returns a random view of rank 2 or more, with some sizes of 1, after up to three view
/// operations.
Tensor some_view(Dice& dice, DType dtype) {
  constexpr int64_t sizes[] = {1, 1, 2, 3, 5, 8, 17};
  Shape shape;
  for (int64_t i = 2 + dice(3); i > 0; --i) shape.push_back(sizes[dice(7)]);
  Tensor x = normal(shape, Generator{static_cast<uint64_t>(dice(1000))}, 0, 1, dtype);
  for (int64_t steps = dice(4); steps > 0; --steps) {
    const auto axis = static_cast<int>(dice(x.rank()));
    switch (dice(6)) {
      case 0:
        x = transpose(x, axis, static_cast<int>(dice(x.rank())));
        break;
      case 1: {
        const int64_t begin = dice(x.dim(axis));
        x = narrow(x, axis, begin, 1 + dice(x.dim(axis) - begin));
        break;
      }
      case 2:
        x = slice(x, axis, 0, to_end, 1 + dice(3));
        break;
      case 3:
        x = unsqueeze(x, axis);
        break;
      case 4: {
        Shape wide = x.shape();
        if (wide[axis] == 1) wide[axis] = 1 + dice(4);
        x = expand(x, wide);
        break;
      }
      default:
        if (x.rank() > 2) x = select(x, axis, dice(x.dim(axis)));
    }
  }
  return x;
}

void expect_close(const Tensor& a, const Tensor& b, double tolerance) {
  ASSERT_EQ(a.shape(), b.shape());
  const NoGrad off;
  const std::vector<double> x = cast(a, DType::f64).to_vector<double>();
  const std::vector<double> y = cast(b, DType::f64).to_vector<double>();
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_NEAR(x[i], y[i], tolerance * (1 + std::abs(y[i]))) << "element " << i;
  }
}

struct Op {
  const char* name;
  Tensor (*run)(const Tensor&);
};

Tensor weight(const Shape& shape, DType dtype) { return normal(shape, Generator{7}, 0, 1, dtype); }

const Op ops[] = {
    {"linear",
     [](const Tensor& x) {
       return linear(x, weight({4, x.dim(-1)}, x.dtype()));
     }},
    {"matmul, both", [](const Tensor& x) { return matmul(x, transpose(x)); }},
    {"matmul",
     [](const Tensor& x) {
       return matmul(x, weight({x.dim(-1), 3}, x.dtype()));
     }},
    {"softmax", [](const Tensor& x) { return softmax(x); }},
    {"layer_norm", [](const Tensor& x) { return layer_norm(x, {}, {}, 0.1); }},
    {"sum, first", [](const Tensor& x) { return sum(x, {0}); }},
    {"sum, last", [](const Tensor& x) { return sum(x, {-1}); }},
    {"mean, both",
     [](const Tensor& x) {
       return mean(x, {0, -1}, true);
     }},
    {"sum", [](const Tensor& x) { return sum(x); }},
    {"logsumexp", [](const Tensor& x) { return logsumexp(x, 0); }},
    {"cumsum", [](const Tensor& x) { return cumsum(x, 0); }},
    {"gelu", [](const Tensor& x) { return gelu_erf(x); }},
    {"add", [](const Tensor& x) { return x + narrow(x, 0, 0, 1); }},
    {"mul", [](const Tensor& x) { return x * x; }},
    {"where", [](const Tensor& x) { return where(greater(x, zeros_like(x)), x, neg(x)); }},
    {"reshape", [](const Tensor& x) { return reshape(x, {-1}); }},
    {"flatten", [](const Tensor& x) { return flatten(x, 0, 1); }},
    {"concat",
     [](const Tensor& x) {
       return concat({x, x}, -1);
     }},
    {"pad", [](const Tensor& x) { return pad(x, -1, 1, 2); }},
    {"flip", [](const Tensor& x) { return flip(x, 0); }},
    {"repeat", [](const Tensor& x) { return repeat(x, 0, 2); }},
    {"sort", [](const Tensor& x) { return sort(x, 0).values; }},
    {"take", [](const Tensor& x) { return take(x, zeros({3}, DType::i64), 0); }},
    {"embedding",
     [](const Tensor& x) {
       return embedding(x, zeros({2, 2}, DType::i64));
     }},
    {"dropout",
     [](const Tensor& x) { return dropout(x, 0.3, {.training = true, .gen = Generator{3}}); }},
    {"conv1d",
     [](const Tensor& x) {
       return conv1d(x, weight({3, 2, x.dim(-1)}, x.dtype()), {}, {.before = 1});
     }},
    {"mse", [](const Tensor& x) { return mse(x, neg(x.detach())); }},
    {"cast", [](const Tensor& x) { return cast(x, DType::f64); }},
    {"split",
     [](const Tensor& x) {
       return split(x, {1, x.dim(0) - 1}, 0)[0];
     }},
};

TEST(AnyView, GivesWhatItsCopyGives) {
  Dice dice;
  for (int round = 0; round < 600; ++round) {
    const DType dtype = round % 3 == 0 ? DType::f64 : round % 3 == 1 ? DType::f32 : DType::bf16;
    const double tolerance = dtype == DType::bf16 ? 2e-2 : 1e-4;
    const Tensor x = some_view(dice, dtype);
    for (const Op& op : ops) {
      SCOPED_TRACE(fmt::format("{} of {}{} strides {}", op.name, name_of(dtype),
                               to_string(x.shape()), to_string(x.strides())));
      Tensor a = x.detach(), b = clone(a);
      set_requires_grad(a);
      set_requires_grad(b);
      const Tensor ya = op.run(a), yb = op.run(b);
      expect_close(ya, yb, tolerance);
      const Tensor dy = normal(ya.shape(), Generator{5}, 0, 1, ya.dtype());
      const bool plain = dy.rank() < 2;
      backward(ya, plain ? dy : transpose(contiguous(transpose(dy, 0, -1)), 0, -1));
      backward(yb, dy);
      expect_close(grad(a), grad(b), tolerance);
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace longspan
