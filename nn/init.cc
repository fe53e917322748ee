#include "nn/init.h"

#include <cmath>

#include "autograd/node.h"
#include "ops/copy.h"
#include "ops/random.h"

namespace longspan {
namespace {

double xavier_bound(const Shape& shape, double gain) {
  require<ShapeError>(shape.rank() >= 2, "init", "xavier_uniform needs a matrix, not {}",
                      to_string(shape));
  const auto fans = static_cast<double>(shape[shape.rank() - 1] + shape[shape.rank() - 2]);
  return gain * std::sqrt(6 / fans);
}

Tensor draw(const Shape& shape, const Scheme& s, const Init& init) {
  switch (s.kind) {
    case Scheme::Kind::zeros:
      return Tensor::zeros(shape, init.dtype, init.device);
    case Scheme::Kind::constant:
      return full(shape, s.value, init.dtype, init.device);
    case Scheme::Kind::normal:
      return normal(shape, init.gen, 0, s.value, init.dtype, init.device);
    case Scheme::Kind::truncated_normal:
      return truncated_normal(shape, init.gen, 0, s.value, -2, 2, init.dtype, init.device);
    case Scheme::Kind::uniform:
      return uniform(shape, init.gen, -s.value, s.value, init.dtype, init.device);
    case Scheme::Kind::xavier_uniform: {
      const double bound = xavier_bound(shape, s.value);
      return uniform(shape, init.gen, -bound, bound, init.dtype, init.device);
    }
    case Scheme::Kind::orthogonal:
      break;
  }
  require<ShapeError>(shape.rank() >= 2, "init", "orthogonal needs a matrix, not {}",
                      to_string(shape));
  return orthogonal(shape, init.gen, s.value, init.dtype, init.device);
}

}  // namespace

Tensor Init::make(const Shape& shape, const Scheme& scheme) const {
  Tensor x;
  if (plan) {
    x = Tensor::zeros({1}, dtype, device).alias(shape, Strides::filled(shape.rank(), 0), 0);
  } else {
    x = draw(shape, scheme, *this);
  }
  x.set_category(Category::parameter);
  set_requires_grad(x);
  return x;
}

}  // namespace longspan
