#pragma once

#include "core/kernels/edge_attention.h"

namespace longspan::cpu {

// On the meta device they only allocate their workspace.
void edge_forward_f32(const kernels::EdgeAttentionInputs& in, View out, View lse);
void edge_forward_f64(const kernels::EdgeAttentionInputs& in, View out, View lse);
void edge_backward_f32(const kernels::EdgeAttentionInputs& in, ConstView out, ConstView lse,
                       ConstView dout, const kernels::EdgeGradients& to);
void edge_backward_f64(const kernels::EdgeAttentionInputs& in, ConstView out, ConstView lse,
                       ConstView dout, const kernels::EdgeGradients& to);

}  // namespace longspan::cpu
