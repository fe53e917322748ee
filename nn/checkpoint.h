#pragma once

#include "nn/layer.h"

namespace longspan {

/// layer.forward(x, given, pass), keeping for the backward pass x (and given.context) in place of
/// what the ops of the layer save: backward runs the layer once more. Gradients are those without
/// it, bit for bit, dropout included. Where nothing is recorded it is the layer itself. The layer
/// must outlive the graph; a second backward through a retained graph runs nothing again.
/// \cite chen2016
///   throws  GradientError in backward where the layer does not do the same again, or a parameter
///           was written in between
Output checkpoint(const Layer& layer, const Tensor& x, const Given& given, Pass pass);

}  // namespace longspan
