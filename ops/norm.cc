#include "ops/norm.h"

#include "autograd/record.h"
#include "core/kernels/norm.h"
#include "ops/copy.h"
#include "ops/rows.h"

namespace longspan {
namespace {

Tensor normalize(std::string_view op, bool center, const Tensor& input, const Tensor& scale,
                 const Tensor& shift, double eps) {
  require_floating(op, input);
  require_rank(op, input, 1);
  require(eps >= 0, op, "eps is {}; needs 0 or more", eps);
  const auto check = [&](const Tensor& w, std::string_view name) {
    if (!w) return;
    require_same_dtype(op, {"x", input}, {name, w});
    require_same_device(op, {"x", input}, {name, w});
    require_shape(op, w, {input.dim(-1)}, name);
  };
  check(scale, "weight");
  check(shift, "bias");

  const Tensor x = contiguous(input);
  const Tensor weight = scale ? contiguous(scale) : scale;
  const Tensor bias = shift ? contiguous(shift) : shift;
  const int64_t rows = detail::rows_of(x);
  const DType precise = accumulator_of(x.dtype());
  Tensor y = Tensor::like(x);
  Tensor mean = center ? Tensor::empty({rows}, precise, x.device()) : Tensor{};
  Tensor rstd = Tensor::empty({rows}, precise, x.device());
  kernels::norm_forward(x.device(), center, eps, detail::as_rows(x).view(), weight.view(),
                        bias.view(), detail::as_rows(y).mut(), center ? mean.mut() : View{},
                        rstd.mut());

  return record(op, {x, weight, bias}, y, save(x, weight, mean, rstd),
                [center](const Context& c, const Tensor& dy) -> Grads {
                  const auto s = c.saved<4>();
                  const Tensor g = contiguous(dy);
                  const int64_t n = g.dim(-1);
                  // Added to the gradients that other ops have left for x, where these are not
                  // rounded first.
                  Tensor* const sum =
                      c.wants(0) && accumulator_of(g.dtype()) == g.dtype() ? c.add_to(0) : nullptr;
                  Tensor dx = !c.wants(0) ? Tensor{} : sum != nullptr ? *sum : Tensor::like(g);
                  Tensor dweight =
                      c.wants(1) ? Tensor::empty({n}, g.dtype(), g.device()) : Tensor{};
                  Tensor dbias = c.wants(2) ? Tensor::empty({n}, g.dtype(), g.device()) : Tensor{};
                  Tensor work;
                  if (dweight || dbias) {
                    work = Tensor::empty({kernels::norm_work(detail::rows_of(g)), 2, n},
                                         s[3].dtype(), g.device(), Category::workspace);
                  }
                  kernels::norm_backward(
                      g.device(), center, detail::as_rows(s[0]).view(), s[1].view(), s[2].view(),
                      s[3].view(), detail::as_rows(g).view(), sum != nullptr,
                      dx ? detail::as_rows(dx).mut() : View{}, dweight ? dweight.mut() : View{},
                      dbias ? dbias.mut() : View{}, work ? work.mut() : View{});
                  return {sum != nullptr ? Tensor{} : dx, dweight, dbias};
                });
}

}  // namespace

Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  return normalize("layer_norm", true, x, weight, bias, eps);
}

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  return normalize("rms_norm", false, x, weight, {}, eps);
}

}  // namespace longspan
