#pragma once

#include "cuda/attention_general.h"

namespace longspan::cuda {

/// The number of blocks of a launch; throws where it does not fit one.
unsigned attention_grid(const char* name, int64_t blocks);

/// Attention on tensor cores, where widths are multiples of 8 up to 128, rows begin at multiples of
/// 16 bytes, the scale is positive and there are no relation terms, from the arguments that the
/// general path is given. Each returns whether it served the call. Backward gives dq, dk and dv.
bool tensor_forward(const kernels::AttentionInputs& in, const View& out,
                    const AttentionArguments<bf16>& x);
bool tensor_forward(const kernels::AttentionInputs& in, const View& out,
                    const AttentionArguments<f16>& x);
bool tensor_backward(const kernels::AttentionInputs& in, const ConstView& dout,
                     const kernels::AttentionGradients& grads, const AttentionArguments<bf16>& x);
bool tensor_backward(const kernels::AttentionInputs& in, const ConstView& dout,
                     const kernels::AttentionGradients& grads, const AttentionArguments<f16>& x);

}  // namespace longspan::cuda
