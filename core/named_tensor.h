#pragma once

#include <string>
#include <vector>

#include "core/tensor.h"

namespace longspan {

/// A tensor and its dotted name, e.g. "layers.0.attention.query.weight".
struct NamedTensor {
  std::string name;
  Tensor tensor;
  /// Of a parameter: gradients of one clip group are clipped by their common norm. Empty: the group
  /// of all parameters that name none.
  std::string clip_group = {};
};

/// A model's list of parameters, an optimizer's state, or the contents of a file.
using TensorList = std::vector<NamedTensor>;

}  // namespace longspan
