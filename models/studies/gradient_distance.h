#pragma once

#include <string>

#include "core/named_tensor.h"
#include "core/tensor.h"
#include "nn/module.h"

namespace longspan {

/// The distance of gradients g from reference gradients g' of the same parameters.
struct GradientDistance {
  double relative = 0;      ///< |g - g'| / |g'| of all parameters together, in the L2 norm
  double largest = 0;       ///< maximum of |g - g'| / |g'| over parameters with g' not 0
  std::string parameter{};  ///< the parameter of the maximum
};

/// Runs the backward pass of a loss of the module and returns the gradients of its parameters by
/// name, in f64 on the host, zeros where a parameter has none. The gradients of the module are
/// empty afterwards.
TensorList gradients_of(Module& module, const Tensor& loss);

/// Compares gradients with those of `reference`, which have the same names and shapes. Throws
/// ValueError if a name is missing or the reference is all 0, ShapeError.
GradientDistance gradient_distance(const TensorList& gradients, const TensorList& reference);

/// Copies parameters and buffers from a module with the same ones, in another dtype or not. Throws
/// ValueError if a name is missing, ShapeError.
void copy_state(Module& to, Module& from);

}  // namespace longspan
