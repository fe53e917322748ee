#include "ops/entmax.h"

#include "autograd/record.h"
#include "core/kernels/entmax.h"
#include "ops/copy.h"
#include "ops/rows.h"
#include "ops/shape.h"

namespace longspan {
namespace {

using detail::as_rows;

constexpr const char* kOp = "entmax";

/// alpha  for each row of x, contiguous
Tensor entmax_rows(const Tensor& input, const Tensor& alpha) {
  const Tensor x = contiguous(input);
  Tensor y = Tensor::like(x);
  kernels::entmax_forward(x.device(), as_rows(x).view(), alpha.view(), as_rows(y).mut());
  return record(
      kOp, {x, alpha}, y, save(y, alpha), [](const Context& c, const Tensor& dy) -> Grads {
        const auto [p, a] = c.saved<2>();
        const Tensor g = contiguous(dy);
        Tensor dx = Tensor::like(g), dalpha = c.wants(1) ? Tensor::like(a) : Tensor{};
        kernels::entmax_backward(g.device(), as_rows(p).view(), a.view(), as_rows(g).view(),
                                 as_rows(dx).mut(), dalpha ? dalpha.mut() : View{});
        return {dx, dalpha};
      });
}

}  // namespace

Tensor entmax(const Tensor& x, const Tensor& alpha) {
  require_floating(kOp, x);
  require_floating(kOp, alpha);
  require_rank(kOp, x, 1);
  require_same_device(kOp, {"x", x}, {"alpha", alpha});
  Shape rows = x.shape();
  rows.erase(rows.rank() - 1);
  const Tensor each = contiguous(expand(cast(alpha, accumulator_of(x.dtype())), rows));
  return entmax_rows(x, reshape(each, {each.numel()}));
}

Tensor entmax(const Tensor& x, double alpha) {
  require(alpha >= 1 && alpha <= 2, kOp, "alpha is {}; expected 1 to 2", alpha);
  return entmax(x, full({}, alpha, accumulator_of(x.dtype()), x.device()));
}

Tensor sparsemax(const Tensor& x) { return entmax(x, 2); }

}  // namespace longspan
