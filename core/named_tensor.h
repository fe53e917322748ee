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

/// A model's list of parameters, an optimizer's state, or the contents of a file.
using TensorList = std::vector<NamedTensor>;

}  // namespace longspan
