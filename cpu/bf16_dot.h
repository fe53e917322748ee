#pragma once

namespace longspan::cpu {

/// Whether kernels may use the processor's dot products of bf16 pairs (AVX512_BF16: sums in f32,
/// two exact products at a time): where it has them and LONGSPAN_SIMD allows them.
bool bf16_dot();
/// Forbids or allows them, the latter only where the processor has them. Not while kernels run.
void set_bf16_dot(bool allowed);

}  // namespace longspan::cpu
