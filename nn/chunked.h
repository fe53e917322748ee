#pragma once

#include <functional>

#include "nn/layer.h"

namespace longspan {

/// A row-wise function of rows [1, n, D] -> [1, n, E]; `pass` holds the index of the first row. Its
/// auxiliary losses are means over its rows, its statistics sums over them.
using RowFunction = std::function<Output(const Tensor& rows, Pass pass)>;

/// Computes f(x) in `chunks` pieces of the B L rows of x [B, L, D], with ceil(B L / chunks) rows
/// each and the rest in the last: each piece is a checkpoint scope that saves nothing; together
/// they save x. So tensors that f saves, and others as large, exist for one piece at a time,
/// forward and backward. Results and the gradient of x are bit for bit those of f(x), dropout
/// included; gradients of parameters are summed from the last piece to the first, and auxiliary
/// losses are averaged over the pieces by their numbers of rows. f must outlive the graph.
/// \cite kitaev2020
///   returns  [B, L, E], the auxiliary losses and the statistics
///   saves    x
///   throws   ValueError on fewer than one chunk
Output chunked(const Tensor& x, int64_t chunks, Pass pass, const RowFunction& f);

/// The same for a layer. Throws ValueError unless the layer is position-wise.
Output chunked(const Layer& layer, const Tensor& x, int64_t chunks, Pass pass);

}  // namespace longspan
