#include "cpu/edge_attention/edge_attention.h"

#include "cpu/register.h"

namespace longspan::cpu {
namespace {

void forward(const kernels::EdgeAttentionInputs& in, View out, View lse) {
  (in.q.dtype == DType::f64 ? edge_forward_f64 : edge_forward_f32)(in, out, lse);
}

void backward(const kernels::EdgeAttentionInputs& in, ConstView out, ConstView lse, ConstView dout,
              const kernels::EdgeGradients& to) {
  (in.q.dtype == DType::f64 ? edge_backward_f64 : edge_backward_f32)(in, out, lse, dout, to);
}

}  // namespace

void register_edge_attention() {
  for (const DeviceKind kind : {DeviceKind::cpu, DeviceKind::meta}) {
    kernels::edge_attention_forward.set(kind, forward);
    kernels::edge_attention_backward.set(kind, backward);
  }
}

}  // namespace longspan::cpu
