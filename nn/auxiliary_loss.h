#pragma once

#include <string>
#include <vector>

#include "core/tensor.h"

namespace longspan {

/// A loss besides that of the task, e.g. a penalty on attention spans. It is added to the loss of
/// the task before backward(), and logged under its own name.
struct AuxiliaryLoss {
  std::string name;  ///< lower-case letters, digits and _: "span_penalty"
  Tensor value;      ///< differentiable scalar, weight included
};

/// Adds losses to `all`, in order; losses of one name are summed. Throws ValueError on another kind
/// of name or an undefined value, ShapeError unless values are scalars.
void add_losses(std::vector<AuxiliaryLoss>& all, std::vector<AuxiliaryLoss> more);

/// Returns the loss of the task plus all auxiliary losses, in order, in the dtype of the former.
Tensor total_loss(const Tensor& loss, const std::vector<AuxiliaryLoss>& auxiliary);

}  // namespace longspan
