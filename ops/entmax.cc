#include "ops/entmax.h"

#include "autograd/record.h"
#include "core/kernels/entmax.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/index.h"
#include "ops/loss.h"
#include "ops/reduce.h"
#include "ops/rows.h"
#include "ops/shape.h"

namespace longspan {
namespace {

using detail::as_rows;

constexpr const char* kEntmax = "entmax";

/// alpha  for each row of x, contiguous
Tensor entmax_rows(const Tensor& input, const Tensor& alpha) {
  const Tensor x = contiguous(input);
  Tensor y = Tensor::like(x);
  kernels::entmax_forward(x.device(), as_rows(x).view(), alpha.view(), as_rows(y).mut());
  return record(
      kEntmax, {x, alpha}, y, save(y, alpha), [](const Context& c, const Tensor& dy) -> Grads {
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
  require_floating(kEntmax, x);
  require_floating(kEntmax, alpha);
  require_rank(kEntmax, x, 1);
  require_same_device(kEntmax, {"x", x}, {"alpha", alpha});
  Shape rows = x.shape();
  rows.erase(rows.rank() - 1);
  const Tensor each = contiguous(expand(cast(alpha, accumulator_of(x.dtype())), rows));
  return entmax_rows(x, reshape(each, {each.numel()}));
}

Tensor entmax(const Tensor& x, double alpha) {
  require(alpha >= 1 && alpha <= 2, kEntmax, "alpha is {}; expected 1 to 2", alpha);
  return entmax(x, full({}, alpha, accumulator_of(x.dtype()), x.device()));
}

Tensor sparsemax(const Tensor& x) { return entmax(x, 2); }

Tensor entmax_loss(const Tensor& logits, const Tensor& targets, double alpha) {
  constexpr const char* op = "entmax_loss";
  require_floating(op, logits, "logits");
  require_rank(op, logits, 1, "logits");
  require_integer(op, targets, "targets");
  require_same_device(op, {"logits", logits}, {"targets", targets});
  Shape each = logits.shape();
  each.erase(each.rank() - 1);
  if (targets.shape() != each)
    fail_with<ShapeError>(op, "targets must have the shape of the logits without the last axis",
                          {{"logits", logits}, {"targets", targets}});
  if (alpha < kernels::kEntmaxSoftmax && alpha >= 1) {
    const CrossEntropyOptions all{.ignore = -1, .reduction = Reduction::none};
    return cast(cross_entropy(logits, targets, all), logits.dtype());
  }
  // In f32 for 16 bits: the entropy divides what p was rounded by by alpha - 1.
  const Tensor wide = cast(logits, accumulator_of(logits.dtype()));
  const Tensor p = entmax(wide, alpha).detach();
  const Tensor entropy = mul(sub(1.0, sum(pow(p, alpha), {-1})), 1 / (alpha * (alpha - 1)));
  // p is where its bracket has its maximum, so that the bracket's gradient is p.
  // A common offset of the logits is taken out first, since p . z would round it.
  const Tensor z = sub(wide, max(wide.detach(), -1, true).values);
  const Tensor right = squeeze(take_along_axis(z, unsqueeze(targets, -1)), -1);
  return cast(add(sub(sum(mul(p, z), {-1}), right), entropy), logits.dtype());
}

}  // namespace longspan
