#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/linear_attention/f32.cc"
#include <hwy/foreach_target.h>
// after foreach_target
#include <hwy/highway.h>

#include "cpu/linear_attention/linear_attention.h"
#include "cpu/linear_attention/run-inl.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::cpu {
namespace HWY_NAMESPACE {
namespace {

void forward_f32(const LinearAttentionInputs& in, const LinearAttentionResults& to) {
  linear_forward<float>(in, to);
}

void backward_f32(const LinearAttentionInputs& in,
                  const kernels::LinearAttentionResultsOf<ConstView>& results,
                  const kernels::LinearAttentionGradientsOut& given,
                  const kernels::LinearAttentionGradients& to) {
  linear_backward<float>({in, results, given, to});
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace longspan::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace longspan::cpu {

HWY_EXPORT(forward_f32);
HWY_EXPORT(backward_f32);

void linear_forward_f32(const kernels::LinearAttentionInputs& in,
                        const kernels::LinearAttentionResults& to) {
  HWY_DYNAMIC_DISPATCH(forward_f32)(in, to);
}

void linear_backward_f32(const kernels::LinearAttentionInputs& in,
                         const kernels::LinearAttentionResultsOf<ConstView>& results,
                         const kernels::LinearAttentionGradientsOut& given,
                         const kernels::LinearAttentionGradients& to) {
  HWY_DYNAMIC_DISPATCH(backward_f32)(in, results, given, to);
}

}  // namespace longspan::cpu
#endif
