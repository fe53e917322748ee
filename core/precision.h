#pragma once

#include <cstdint>

namespace longspan {

/// The type to which products of f32 matrices round their operands. Sums and results are always
/// f32.
enum class MatmulPrecision : uint8_t {
  f32,   ///< no rounding: the default
  tf32,  ///< 10 mantissa bits, on devices that multiply this type faster: CUDA
  bf16   ///< bf16, to nearest even, on devices that multiply this type faster: CUDA and processors
         ///< with AVX512_BF16
};

/// Returns the process-wide setting. It applies to f32 operands only; a device that cannot multiply
/// in that precision uses f32, which is more precise. Results that depend on single bits, such as
/// LSH hashes, always use f32.
MatmulPrecision matmul_precision();
/// Applies to every later matmul, also in the backward pass of an earlier forward pass: call it
/// before training, not within a step.
void set_matmul_precision(MatmulPrecision precision);

/// Applies a setting while it lives.
class WithMatmulPrecision {
 public:
  explicit WithMatmulPrecision(MatmulPrecision precision) : before_(matmul_precision()) {
    set_matmul_precision(precision);
  }
  ~WithMatmulPrecision() { set_matmul_precision(before_); }
  WithMatmulPrecision(const WithMatmulPrecision&) = delete;
  WithMatmulPrecision& operator=(const WithMatmulPrecision&) = delete;

 private:
  MatmulPrecision before_;
};

}  // namespace longspan
