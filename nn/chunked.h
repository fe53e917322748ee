#pragma once

#include <functional>

#include "nn/layer.h"

namespace longspan {

/// f of rows [1, n, D], each of them by itself, -> [1, n, E]; `pass` knows which rows they are.
using RowFunction = std::function<Tensor(const Tensor& rows, Pass pass)>;

/// f(x) in `chunks` pieces of the B L rows of x [B, L, D], of ceil(B L / chunks) rows and the last
/// of what is left: each piece is a frame that keeps nothing, all of them together x. So what f
/// saves, and what is as large, exists for one piece at a time, forward and backward. Results and
/// the gradient of x are those of f(x), bit for bit, dropout included; gradients of parameters are
/// summed from the last piece to the first. f must outlive the graph. \cite kitaev2020
///   returns  [B, L, E]
///   saves    x
///   throws   ValueError on fewer than one chunk
Tensor chunked(const Tensor& x, int64_t chunks, Pass pass, const RowFunction& f);

/// The same of a layer. Throws ValueError where it is not one that works position by position.
Output chunked(const Layer& layer, const Tensor& x, int64_t chunks, Pass pass);

}  // namespace longspan
