#pragma once

#include "core/view.h"
#include "ops/kernels/block_attention.h"

namespace longspan::cuda {

/// The number of blocks of a launch; throws where it does not fit one.
unsigned attention_grid(const char* name, int64_t blocks);

/// Attention on tensor cores, where widths are multiples of 8 up to 128, rows begin at multiples of
/// 16 bytes, the scale is positive and there are no relation terms. Each returns whether it served
/// the call. Backward takes delta = dout . out - dlse, [B, H, L], and gives dq, dk and dv.
bool tensor_forward_bf16(const kernels::AttentionInputs& in, const View& out, const View& lse);
bool tensor_backward_bf16(const kernels::AttentionInputs& in, const ConstView& lse,
                          const ConstView& dout, const float* delta,
                          const kernels::AttentionGradients& grads);
bool tensor_forward_f16(const kernels::AttentionInputs& in, const View& out, const View& lse);
bool tensor_backward_f16(const kernels::AttentionInputs& in, const ConstView& lse,
                         const ConstView& dout, const float* delta,
                         const kernels::AttentionGradients& grads);

}  // namespace longspan::cuda
