#pragma once

#include "core/kernels/linear_attention.h"

namespace longspan::cpu {

// Each computes in the dtype of its name, whatever the dtype of the tensors. On the meta device
// they only allocate their workspace.
void linear_forward_f32(const kernels::LinearAttentionInputs& in,
                        const kernels::LinearAttentionResults& to);
void linear_forward_f64(const kernels::LinearAttentionInputs& in,
                        const kernels::LinearAttentionResults& to);
void linear_backward_f32(const kernels::LinearAttentionInputs& in,
                         const kernels::LinearAttentionResultsOf<ConstView>& results,
                         const kernels::LinearAttentionGradientsOut& given,
                         const kernels::LinearAttentionGradients& to);
void linear_backward_f64(const kernels::LinearAttentionInputs& in,
                         const kernels::LinearAttentionResultsOf<ConstView>& results,
                         const kernels::LinearAttentionGradientsOut& given,
                         const kernels::LinearAttentionGradients& to);

}  // namespace longspan::cpu
