#include "cpu/linear_attention/linear_attention.h"

#include "cpu/register.h"

namespace longspan::cpu {
namespace {

void forward(const kernels::LinearAttentionInputs& in, const kernels::LinearAttentionResults& to) {
  (in.q.dtype == DType::f64 ? linear_forward_f64 : linear_forward_f32)(in, to);
}

void backward(const kernels::LinearAttentionInputs& in,
              const kernels::LinearAttentionResultsOf<ConstView>& results,
              const kernels::LinearAttentionGradientsOut& given,
              const kernels::LinearAttentionGradients& to) {
  (in.q.dtype == DType::f64 ? linear_backward_f64 : linear_backward_f32)(in, results, given, to);
}

}  // namespace

void register_linear_attention() {
  for (const DeviceKind kind : {DeviceKind::cpu, DeviceKind::meta}) {
    kernels::linear_attention_forward.set(kind, forward);
    kernels::linear_attention_backward.set(kind, backward);
  }
}

}  // namespace longspan::cpu
