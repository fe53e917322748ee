#pragma once

namespace longspan::cpu {

/// Whether kernels may use the processor's dot products of bf16 pairs (AVX512_BF16: f32 sums, two
/// exact products at a time): true if the processor has them and LONGSPAN_SIMD allows them.
bool bf16_dot();
/// Forbids or allows them; allowing has an effect only if the processor has them. Must not be
/// called while kernels run.
void set_bf16_dot(bool allowed);

}  // namespace longspan::cpu
