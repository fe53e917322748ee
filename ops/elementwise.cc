#include "ops/elementwise.h"

#include "autograd/record.h"
#include "ops/kernels/elementwise.h"

namespace longspan {

using kernels::Unary;

Tensor exp(const Tensor& x) {
  require_floating("exp", x);
  Tensor y = Tensor::like(x);
  kernels::unary_forward(x.device(), Unary::exp, 0, 0, x.view(), y.mut());
  return record("exp", {x}, y, save(y), [](const Context& c, const Tensor& dy) -> Grads {
    const auto saved = c.saved<1>();
    Tensor dx = Tensor::like(dy);
    kernels::unary_backward(dy.device(), Unary::exp, 0, 0, saved[0].view(), dy.view(), dx.mut());
    return {dx};
  });
}

}  // namespace longspan
