#pragma once

#include <cstdint>

#include "core/tensor.h"

namespace longspan {

/// Returns the numbers that PyTorch draws on the CPU with torch.manual_seed(seed) and torch.randn:
/// those of a standard normal distribution, from a Mersenne Twister (std::mt19937) by the method of
/// Box and Muller. In f32 they may differ in the last bits, where PyTorch approximates the cosine.
///   returns  contiguous, of this shape, on the CPU
///   throws   DTypeError unless dtype is f32 or f64
Tensor torch_normal(uint32_t seed, const Shape& shape, DType dtype);

}  // namespace longspan
