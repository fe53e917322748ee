#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/attention/backward_f64.cc"
#include <hwy/foreach_target.h>
// after foreach_target
#include <hwy/highway.h>

#include "cpu/attention/backward-inl.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::cpu {
namespace HWY_NAMESPACE {
namespace {

void backward_f64(const AttentionProblem& in, const ConstView& out, const ConstView& lse,
                  const ConstView& dout, const ConstView& dlse, const AttentionGradients& grads) {
  backward<double>(in, out, lse, dout, dlse, grads);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace longspan::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longspan::cpu {

HWY_EXPORT(backward_f64);

void block_attention_backward_f64(const AttentionProblem& in, const ConstView& out,
                                  const ConstView& lse, const ConstView& dout,
                                  const ConstView& dlse, const AttentionGradients& grads) {
  HWY_DYNAMIC_DISPATCH(backward_f64)(in, out, lse, dout, dlse, grads);
}

}  // namespace longspan::cpu
#endif
