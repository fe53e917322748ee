#pragma once

#include <string>
#include <vector>

#include "core/tensor.h"

namespace longspan {

/// A tensor and its dotted name, e.g. "layers.0.attention.query.weight".
struct NamedTensor {
  std::string name;
  Tensor tensor;
};

/// What a model lists as its parameters, an optimizer as its state, and a file holds.
using TensorList = std::vector<NamedTensor>;

}  // namespace longspan
