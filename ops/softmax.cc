#include "ops/softmax.h"

#include "autograd/record.h"
#include "core/kernels/softmax.h"
#include "ops/copy.h"
#include "ops/rows.h"

namespace longspan {
namespace {

using detail::as_rows;

Tensor over_last_axis(std::string_view op, bool log, const Tensor& input) {
  require_floating(op, input);
  require_rank(op, input, 1);

  const Tensor x = contiguous(input);
  Tensor y = Tensor::like(x);
  kernels::softmax_forward(x.device(), log, as_rows(x).view(), as_rows(y).mut());

  return record(op, {x}, y, save(y), [log](const Context& c, const Tensor& dy) -> Grads {
    const auto saved = c.saved<1>();
    const Tensor g = contiguous(dy);
    Tensor dx = Tensor::like(g);
    kernels::softmax_backward(g.device(), log, as_rows(saved[0]).view(), as_rows(g).view(),
                              as_rows(dx).mut());
    return {dx};
  });
}

}  // namespace

Tensor softmax(const Tensor& x) { return over_last_axis("softmax", false, x); }
Tensor log_softmax(const Tensor& x) { return over_last_axis("log_softmax", true, x); }

}  // namespace longspan
