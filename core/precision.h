#pragma once

#include <cstdint>

namespace longspan {

/// What products of f32 matrices round their operands to. Sums and results are f32 in any case.
enum class MatmulPrecision : uint8_t {
  f32,   ///< nothing: the default
  tf32,  ///< 10 bits after the point, where the device multiplies such numbers faster: on CUDA
  bf16   ///< bf16, to nearest even, where the device multiplies such numbers faster: on CUDA and on
         ///< processors with AVX512_BF16
};

/// The setting, one for the process. It concerns operands in f32 alone; where a device has no such
/// products they stay f32, which is only more exact. What bits decide, as LSH hashing, is f32
/// always.
MatmulPrecision matmul_precision();
/// For every product from here on, also those of backward passes whose forward is done: set it
/// before training, not within a step.
void set_matmul_precision(MatmulPrecision precision);

/// The setting for as long as this lives.
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
