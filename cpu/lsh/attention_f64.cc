#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/lsh/attention_f64.cc"
#include <hwy/foreach_target.h>
// after foreach_target
#include <hwy/highway.h>

#include "cpu/lsh/backward-inl.h"
#include "cpu/lsh/forward-inl.h"
#include "cpu/lsh/lsh.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::cpu {
namespace HWY_NAMESPACE {
namespace {

void forward_f64(const kernels::LshInputs& in, const View& out, const View& lse) {
  lsh_forward<double>(in, out, lse);
}

void backward_f64(const kernels::LshInputs& in, const ConstView& out, const ConstView& lse,
                  const ConstView& dout, const ConstView& dlse, const View& dq, const View& dv) {
  lsh_backward<double>({in, out, lse, dout, dlse, dq, dv});
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace longspan::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longspan::cpu {

HWY_EXPORT(forward_f64);
HWY_EXPORT(backward_f64);

void lsh_forward_f64(const kernels::LshInputs& in, const View& out, const View& lse) {
  HWY_DYNAMIC_DISPATCH(forward_f64)(in, out, lse);
}

void lsh_backward_f64(const kernels::LshInputs& in, const ConstView& out, const ConstView& lse,
                      const ConstView& dout, const ConstView& dlse, const View& dq,
                      const View& dv) {
  HWY_DYNAMIC_DISPATCH(backward_f64)(in, out, lse, dout, dlse, dq, dv);
}

}  // namespace longspan::cpu
#endif
