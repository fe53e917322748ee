#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/edge_attention/f32.cc"
#include <hwy/foreach_target.h>
// after foreach_target
#include <hwy/highway.h>

#include "cpu/edge_attention/edge_attention.h"
#include "cpu/edge_attention/run-inl.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::cpu {
namespace HWY_NAMESPACE {
namespace {

void forward_f32(const kernels::EdgeAttentionInputs& in, View out, View lse) {
  edge_forward<float>(in, out, lse);
}

void backward_f32(const kernels::EdgeAttentionInputs& in, ConstView out, ConstView lse,
                  ConstView dout, const kernels::EdgeGradients& to) {
  edge_backward<float>(in, out, lse, dout, to);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace longspan::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace longspan::cpu {

HWY_EXPORT(forward_f32);
HWY_EXPORT(backward_f32);

void edge_forward_f32(const kernels::EdgeAttentionInputs& in, View out, View lse) {
  HWY_DYNAMIC_DISPATCH(forward_f32)(in, out, lse);
}

void edge_backward_f32(const kernels::EdgeAttentionInputs& in, ConstView out, ConstView lse,
                       ConstView dout, const kernels::EdgeGradients& to) {
  HWY_DYNAMIC_DISPATCH(backward_f32)(in, out, lse, dout, to);
}

}  // namespace longspan::cpu
#endif
